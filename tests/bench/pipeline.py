"""How fast usage records become a table, beside DuckDB that parses and writes the same files.

    python tests/bench/pipeline.py ingest --rows 10000000

Both write Parquet by day and virtual cluster. DuckDB looks at no checksum, compares no sequence numbers and its result
is not atomic; it is here as a measure of what this machine can do. Runs are taken in turn, after a warm-up of each.
The machine may be shared, so processor seconds count more than the clock.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline.jobs.ingest import ingest_spool
from pipeline.session import spark_session
from pipeline.table import state_of
from quotas.usage_record import UsageRecord, columns
from tests.pipeline.spools import write_many

ROOT = Path(__file__).resolve().parents[2]
CORES = 2
WARM_UP_ROWS = 1_000_000
_DUCKDB_TYPES = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ingest"])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="3g", help="of Spark's driver")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench" / "pipeline")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = ingest(arguments.rows, arguments.rounds, arguments.memory, arguments.folder)
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


def ingest(rows: int, rounds: int, memory: str, folder: Path) -> dict[str, dict[str, float]]:
    """Medians by side: rows/s by the clock, processor microseconds per row, and MB of the table."""
    spools = {count: spool_of(folder, count) for count in {min(rows, WARM_UP_ROWS), rows}}
    spark = spark_session(f"local[{CORES}]", memory, "benchmark")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    out = folder / "table"

    def ours(spool: Path) -> None:
        ingest_spool(spark, str(spool), str(out), say=lambda line: None)

    def theirs(spool: Path) -> None:
        duckdb_copy(spool, out)

    sides: dict[str, tuple[Callable[[Path], None], list[int]]] = {
        "ingest": (ours, [java, os.getpid()]),
        "DuckDB": (theirs, [os.getpid()]),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    try:
        for at in range(-1, rounds):
            count = rows if at >= 0 else min(rows, WARM_UP_ROWS)
            for name, (run, processes) in sides.items():
                shutil.rmtree(out, ignore_errors=True)
                figures = measured(lambda run=run, count=count: run(spools[count]), processes, count)
                figures["table_mb"] = sum(file.stat().st_size for file in out.rglob("*.parquet")) / 1e6
                if name == "ingest":
                    assert state_of(None, str(out)).counts == {"usage records": count}
                if at >= 0:
                    runs[name].append(figures)
                    print(name, {key: round(value, 2) for key, value in figures.items()}, file=sys.stderr, flush=True)
    finally:
        spark.stop()
        shutil.rmtree(out, ignore_errors=True)
    return {name: {key: statistics.median(run[key] for run in of) for key in of[0]} for name, of in runs.items()}


def measured(run: Callable[[], None], processes: list[int], rows: int) -> dict[str, float]:
    """By the clock, and by the processor time of these processes."""
    before, began = sum(map(cpu_seconds, processes)), time.monotonic()
    run()
    seconds = time.monotonic() - began
    cpu = sum(map(cpu_seconds, processes)) - before
    return {
        "rows_per_second": rows / seconds,
        "cpu_us_per_row": cpu / rows * 1e6,
        "rows_per_second_by_cpu": rows / (cpu / CORES),
    }


def cpu_seconds(process: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def spool_of(folder: Path, rows: int) -> Path:
    """A spool of so many rows; made once."""
    spool = folder / f"spool-{rows}"
    if not spool.exists():
        aside = spool.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        write_many(aside, rows, processes=CORES)
        aside.rename(spool)
    return spool


def duckdb_copy(spool: Path, out: Path) -> None:
    """Lines to typed columns to Parquet; headers and ends have too few columns and are left out."""
    known = {name: _DUCKDB_TYPES[kind] for name, (kind, _) in columns(UsageRecord).items()}
    types = {"version": "VARCHAR", "kind": "VARCHAR", **dict.fromkeys(known, "VARCHAR"), "crc": "VARCHAR"} | known
    wanted = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    out.mkdir(parents=True)
    with duckdb.connect(config={"threads": CORES}) as connection:
        connection.execute(
            f"""COPY (SELECT * EXCLUDE (version, kind, crc), make_timestamp_ms(begin_ms)::DATE AS day FROM read_csv(
            '{spool}/*.tsv', delim='\t', header=false, quote='', escape='', nullstr='\\N', auto_detect=false,
            ignore_errors=true, columns={{{wanted}}}) WHERE kind = 'usage') TO '{out}'
            (FORMAT parquet, PARTITION_BY (day, virtual_cluster), COMPRESSION zstd, OVERWRITE_OR_IGNORE)"""
        )


def table(figures: dict[str, dict[str, float]]) -> str:
    """As Markdown."""
    lines = ["| | rows/s | CPU, us/row | rows/s if both cores were its own | MB |", "|---|---|---|---|---|"]
    for name, of in figures.items():
        lines.append(
            f"| {name} | {of['rows_per_second']:,.0f} | {of['cpu_us_per_row']:.2f} "
            f"| {of['rows_per_second_by_cpu']:,.0f} | {of['table_mb']:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
