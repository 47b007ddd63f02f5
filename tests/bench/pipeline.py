"""How fast usage records become a table, beside DuckDB that parses and writes the same files.

    python tests/bench/pipeline.py ingest --rows 10000000,50000000    each size, and whether the cost per row grows
    python tests/bench/pipeline.py ingest --master cluster            two workers of a core each, started here
    python tests/bench/pipeline.py small --rounds 20                  100 lines into a table that is there already

Both write Parquet by day. DuckDB looks at no checksum, compares no sequence numbers and its result is not atomic; it is
here as a measure of what this machine can do. Runs are taken in turn, after a warm-up of each. The machine may be
shared, so processor seconds count more than the clock: those of Spark, of its Python and of this process, all together.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from pyspark.sql import SparkSession

from kafka_throttle.pipeline.jobs.ingest import ingest_spool
from kafka_throttle.pipeline.table.table import read_usage, root_of
from kafka_throttle.quotas.records.usage_record import VERSION, UsageRecord, columns
from tests.bench.spark_cost import CORES, add_place, measured, session
from tests.pipeline.spools import Fleet, records, write_many, write_spool

WARM_UP_ROWS = 2_000_000
_DUCKDB_TYPES = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}

Figures = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ingest", "small"])
    parser.add_argument("--rows", default="10000000", help="how many; several sizes with commas between them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="3g", help="of Spark's driver")
    add_place(parser)
    parser.add_argument("--conf", action="append", default=[], metavar="spark.KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.conf)
    if arguments.what == "small":
        with session(arguments.master, arguments.memory, settings) as spark:
            print(small(spark, arguments.rounds))
        return 0
    sizes = sorted(int(rows) for rows in arguments.rows.split(","))
    spools = {count: spool_of(arguments.folder, count) for count in {min(sizes[0], WARM_UP_ROWS), *sizes}}
    out = arguments.folder / "table"
    try:
        with session(arguments.master, arguments.memory, settings) as spark:
            figures = {size: ingest(spark, spools, size, arguments.rounds, out) for size in sizes}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    print(table(figures))
    print(growth(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


def ingest(spark: SparkSession, spools: dict[int, Path], rows: int, rounds: int, out: Path) -> dict[str, Figures]:
    """Medians by side."""

    def theirs(spool: Path) -> None:
        duckdb_copy(spool, out)
        assert sum(pq.ParquetFile(file).metadata.num_rows for file in out.rglob("*.parquet")) == rows_of(spool)

    return medians({"ingest": ingest_of(spark, out), "DuckDB": theirs}, spools, rows, rounds, out)


def ingest_of(spark: SparkSession, out: Path) -> Callable[[Path], None]:
    """An ingest of a spool, which takes all rows."""

    def run(spool: Path) -> None:
        totals = ingest_spool(spark, root_of(str(spool)), root_of(str(out)), say=lambda line: None)
        assert totals.counts == {"usage records": rows_of(spool)}, totals.counts

    return run


def small(spark: SparkSession, rounds: int) -> str:
    """Medians of ingests of 100 lines each into one table, after as many that warm up."""
    runs: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        spool, table = Path(folder, "spool"), Path(folder, "table")
        for number in range(1, 2 * rounds + 1):
            write_spool(spool, records(Fleet(first_sequence=100 * number - 99), 100), first_file=number)
            before = jobs(spark)
            figures = measured(
                lambda: ingest_spool(spark, root_of(str(spool)), root_of(str(table)), say=lambda line: None), 100
            )
            runs.append({"seconds": figures["seconds"], "jobs": jobs(spark) - before})
            runs[-1]["cpu_seconds"] = figures["cpu_us_per_row"] * 100 / 1e6
            print({key: round(value, 2) for key, value in runs[-1].items()}, file=sys.stderr, flush=True)
        assert read_usage(spark, root_of(str(table))).count() == 100 * 2 * rounds
    return str({key: round(statistics.median(run[key] for run in runs[rounds:]), 2) for key in runs[0]})


def jobs(spark: SparkSession) -> int:
    """How many jobs Spark has run."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def medians(
    sides: dict[str, Callable[[Path], None]], spools: dict[int, Path], rows: int, rounds: int, out: Path
) -> dict[str, Figures]:
    """Of some rounds, after one that warms up: rows/s by the clock, processor microseconds per row, MB of the table."""
    runs: dict[str, list[Figures]] = {name: [] for name in sides}
    for at in range(-1, rounds):
        count = rows if at >= 0 else min(spools)
        for name, run in sides.items():
            shutil.rmtree(out, ignore_errors=True)
            figures = measured(lambda run=run, count=count: run(spools[count]), count)
            figures["table_mb"] = sum(file.stat().st_size for file in out.rglob("*.parquet")) / 1e6
            if at >= 0:
                runs[name].append(figures)
                print(rows, name, {key: round(value, 2) for key, value in figures.items()}, file=sys.stderr, flush=True)
    return {name: {key: statistics.median(run[key] for run in of) for key in of[0]} for name, of in runs.items()}


def spool_of(folder: Path, rows: int) -> Path:
    """A spool of so many rows; made once for each version of the lines."""
    spool = folder / f"spool-v{VERSION}-{rows}"
    if not spool.exists():
        aside = spool.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        write_many(aside, rows, processes=CORES)
        aside.rename(spool)
    return spool


def rows_of(spool: Path) -> int:
    """As its name says."""
    return int(spool.name.rpartition("-")[2])


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
            (FORMAT parquet, PARTITION_BY (day), COMPRESSION zstd, OVERWRITE_OR_IGNORE)"""
        )


def table(figures: dict[int, dict[str, Figures]]) -> str:
    """As Markdown."""
    lines = ["| rows | | rows/s | CPU, us/row | rows/s if both cores were its own | MB |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {rows:,} | {name} | {of['rows_per_second']:,.0f} | {of['cpu_us_per_row']:.2f} "
        f"| {of['rows_per_second_by_cpu']:,.0f} | {of['table_mb']:,.0f} |"
        for rows, sides in figures.items()
        for name, of in sides.items()
    ]
    return "\n".join(lines)


def growth(figures: dict[int, dict[str, Figures]]) -> str:
    """How the cost of a row changes from the smallest size to the largest: 1.00 is linear."""
    least, most = min(figures), max(figures)
    if least == most:
        return ""
    return "\n".join(
        f"{name}: a row of {most:,} costs {of['cpu_us_per_row'] / figures[least][name]['cpu_us_per_row']:.2f} times "
        f"the processor time of a row of {least:,}"
        for name, of in figures[most].items()
    )


if __name__ == "__main__":
    sys.exit(main())
