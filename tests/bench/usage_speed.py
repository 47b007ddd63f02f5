"""How fast `usage simulate` and `usage report` answer, beside DuckDB adding up the same rows.

    python tests/bench/usage_speed.py simulate report --rows 10000000,50000000
    python tests/bench/usage_speed.py simulate --master cluster      two workers of a core each, started here

Each command reads a table as `usage ingest` leaves it (see usage_table.py), after one go of each over a million
records: so Java's compiler has not done with what is asked of many. `--warm-up` with the largest size tells what is
left when it has. DuckDB reads the same Parquet files on the same cores and does less: for `simulate` it adds up the use
of each sensor over windows of 20 s and compares it with the limit, and replays nothing; for `report` it makes the same
sums, percentiles and shares, but no ranking, no bills, no episodes and no page. The machine may be shared, so processor
seconds count more than the clock: "if both cores were its own" is by these.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from pyspark.sql import SparkSession

from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.jobs.simulate import simulate
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.table import local_path, read_usage
from tests.bench.processes import say
from tests.bench.spark_cost import CORES, KINDS, add_place, measured, session
from tests.bench.usage_table import BIG_LIMITS, CANDIDATES, LIMITS, candidate_of, table_at, until_ms

PARALLEL_GC = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
"""Nobody waits for a response within a pause: the collector that takes the least in all."""
WARM_UP_ROWS = 1_000_000
Figures = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["simulate", "report"])
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="for simulate: see usage_table.py")
    parser.add_argument("--rows", default="10000000,50000000", help="sizes, the largest is how much is made")
    parser.add_argument("--rounds", type=int, default=1, help="of each at each size")
    parser.add_argument("--warm-up", type=int, default=WARM_UP_ROWS, help="records in a first go of each")
    parser.add_argument("--memory", default="2g", help="of Spark's driver")
    add_place(parser)
    parser.add_argument("--keep", action="store_true", help="do not remove the table: it is taken the next time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes = sorted(map(int, arguments.rows.split(",")))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        with session(arguments.master, arguments.memory, PARALLEL_GC) as spark:
            say(f"a table with {sizes[-1]:,} records")
            table = table_at(spark, arguments.folder, sizes[-1])
            tasks = [Task(spark, table, what, of) for what, of in named(arguments.what, arguments.candidates)]
            figures = {task.name: compared(task, sizes, arguments.rounds, arguments.warm_up) for task in tasks}
    finally:
        if not arguments.keep:
            shutil.rmtree(arguments.folder)
    print(as_markdown(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


@dataclass(frozen=True)
class Task:
    """What is asked of a table; `candidate` is that of a simulation."""

    spark: SparkSession
    table: str
    what: str
    candidate: str

    @property
    def name(self) -> str:
        return f"usage {self.what}" + (f", {self.candidate}" if self.candidate else "")


def named(what: list[str], candidates: str) -> Iterator[tuple[str, str]]:
    """What is asked, and with which candidate."""
    for one in what:
        for candidate in candidates.split(",") if one == "simulate" else [""]:
            yield one, candidate


def compared(task: Task, sizes: list[int], rounds: int, warm_up: int) -> dict[str, dict[str, Figures]]:
    """By size and side, the medians of what was measured."""
    sides = {task.name: OURS[task.what], "DuckDB": yardstick}
    few = min(sizes[-1], warm_up)
    for name, run in sides.items():
        say(f"{name}, {few:,} records, to warm up: {rounded(run(task, few))}")
    found = {}
    for rows in sizes:
        runs: dict[str, list[Figures]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, run in sides.items():
                runs[name].append(run(task, rows))
                say(f"{name}, {rows:,} records: {rounded(runs[name][-1])}")
        found[f"{rows:,}"] = {
            name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in runs.items()
        }
    return found


def rounded(figures: Figures) -> Figures:
    return {key: round(value, 2) for key, value in figures.items()}


# ---- ours ----------------------------------------------------------------------------------------


def simulated(task: Task, rows: int) -> Figures:
    response: dict[str, Any] = {}
    candidate = candidate_of(task.candidate)
    figures = measured(
        lambda: response.update(simulate(task.spark, task.table, candidate, until_ms=until_ms(rows))), rows
    )
    assert abs(response["records"] - rows) < 600, response["records"]
    return figures | {
        "replayed_windows": response["replayed_windows"],
        "clients": len(response["clients"]),
        "throttled_s": sum(of["throttled_ms"] for of in response["sensors"]) / 1000,
    }


def reported(task: Task, rows: int) -> Figures:
    found = []
    folder = Path(tempfile.mkdtemp(prefix="usage-report-"))

    def run() -> None:
        usage = read_usage(task.spark, task.table, until_ms=until_ms(rows))
        (folder / "tables").mkdir()
        found.append(report.find(usage, Steps(7), table=task.table, top_n=20))
        report.write(found[0], folder)

    try:
        figures = measured(run, rows)
    finally:
        shutil.rmtree(folder)
    assert abs(found[0].records - rows) < 600, found[0].records
    return figures


OURS: dict[str, Callable[[Task, int], Figures]] = {"simulate": simulated, "report": reported}

# ---- DuckDB --------------------------------------------------------------------------------------


def _sums_of_simulate(candidate: str) -> list[str]:
    ordinary, big = CANDIDATES[candidate]
    limit = " ".join(
        f"WHEN \"user\" {'=' if is_big else '<>'} 'big' AND quota_type = '{kind}' THEN {limits[kind] * share * unit}"
        for is_big, limits, share in ((True, BIG_LIMITS, big), (False, LIMITS, ordinary))
        for kind, unit in (("produce", 1), ("fetch", 1), ("request", 10))
    )
    return [
        f"""SELECT count(*), count(*) FILTER (over) FROM (
        SELECT sum(used) OVER (PARTITION BY "user", node_id, quota_type ORDER BY begin_ms
          RANGE BETWEEN 10000 PRECEDING AND CURRENT ROW) > 10 * (CASE {limit} END) AS over
        FROM (SELECT "user", node_id, quota_type, begin_ms, sum(used) AS used FROM usage GROUP BY ALL))""",
        """SELECT virtual_cluster, node_id, "user", client_id, ip, quota_type, sum(used), sum(requests), sum(throttles),
        sum(throttled_ms) FROM usage GROUP BY ALL""",
    ]


_SUMS = "sum(in_bytes), sum(out_bytes), sum(requests), sum(throttles), sum(throttled_ms), sum(backlogged_ms)"
_REPORT = [
    "SELECT count(*), min(begin_ms), max(end_ms), approx_quantile(end_ms - begin_ms, 0.5) FROM usage",
    f"""SELECT virtual_cluster, "user", client_id, quota_type, begin_ms // 86400000 AS day, {_SUMS},
    sum(CAST(used * 1000 AS BIGINT)), sum(shadow_throttles), sum(shadow_throttled_ms), sum(unsent_bytes),
    sum(end_ms - begin_ms), sum(end_ms - begin_ms) FILTER (throttles > 0), count(*) FROM usage GROUP BY ALL""",
    f"SELECT begin_ms // 900000 AS slot, {_SUMS} FROM usage GROUP BY ALL",
    """SELECT quota_type, rule, "user", count(*), approx_quantile(u, [0.5, 0.95, 0.99]), max(u), arg_max(node_id, u),
    max(peak) FROM (SELECT quota_type, rule, "user", node_id, instance, epoch, begin_ms,
      sum(used) / any_value("limit") / (max(end_ms) - any_value(begin_ms)) * 1000 AS u, max(peak / "limit") AS peak
      FROM usage WHERE "limit" > 0 AND used > 0 GROUP BY ALL) GROUP BY ALL""",
    """SELECT "user", client_id, quota_type, shadow_rule, sum(shadow_throttles) FROM usage WHERE shadow_rule <> ''
    GROUP BY ALL""",
    """SELECT node_id, "user", client_id, count(*), approx_quantile(share, [0.25, 0.5, 0.75]) FROM (
    SELECT *, bytes / sum(bytes) OVER slice AS share, sum(throttled_ms) OVER slice, max(bytes) OVER slice FROM (
      SELECT virtual_cluster, node_id, "user", client_id, begin_ms // 10000 AS slot, sum(in_bytes + out_bytes) AS bytes,
      sum(throttled_ms) AS throttled_ms FROM usage GROUP BY ALL)
    WINDOW slice AS (PARTITION BY node_id, slot)) GROUP BY ALL""",
]


def yardstick(task: Task, rows: int) -> Figures:
    """What DuckDB takes for sums of the same kind."""
    with duckdb.connect(config={"threads": CORES, "memory_limit": "4GB"}) as connection:
        files = f"read_parquet('{local_path(task.table)}/usage/day=*/*.parquet', hive_partitioning = true)"
        connection.execute(f"CREATE VIEW usage AS SELECT * FROM {files} WHERE begin_ms < {until_ms(rows)}")

        def run() -> None:
            for query in _sums_of_simulate(task.candidate) if task.what == "simulate" else _REPORT:
                connection.execute(query).fetchall()

        return measured(run, rows)


def as_markdown(figures: dict[str, dict[str, dict[str, Figures]]]) -> str:
    """As tables."""
    head = ["records", "", "s", "rows/s", "CPU, us/row", *KINDS, "rows/s if both cores were its own"]
    lines = []
    for of_what in figures.values():
        lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for rows, sides in of_what.items():
            for name, of in sides.items():
                kinds = " | ".join(f"{of[f'{kind}_us_per_row']:.2f}" for kind in KINDS)
                clock = f"{of['seconds']:.1f} | {of['rows_per_second']:,.0f}"
                cpu = f"{of['cpu_us_per_row']:.2f} | {kinds} | {of['rows_per_second_by_cpu']:,.0f}"
                lines.append(f"| {rows} | {name} | {clock} | {cpu} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
