"""The table that ingest writes and all others read.

<table>/usage/commit=<name>/day=2026-11-22/virtual_cluster=main/*.parquet
<table>/trace/...                                                          the same of trace events
<table>/quarantine/commit=<name>/*.parquet                                 what was not taken, and why
<table>/_log/                                                              what of it counts: see table_log
<table>/_summaries/                                                        what was asked before: see day_summaries
"""

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from pipeline.spark.day import day_of
from pipeline.table.files import files_at
from pipeline.table.schemas import PARTITION, QUARANTINE, ROWS, defaults, schema_of, time_column
from pipeline.table.table_log import BadTable, Part, State, read_state
from quotas.records.usage_record import TRACE, USAGE, Row


def read_usage(
    spark: SparkSession,
    table: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    state: State | None = None,
) -> DataFrame:
    """The usage records whose windows began at `since_ms` or later and before `until_ms`, and their `day` (a date).

    The table as it was in `state`, or as it is at this moment: what is ingested later is not in it. Raises BadTable if
    there is none.
    """
    return _read(spark, table, ROWS[USAGE], since_ms, until_ms, state)


def read_trace(spark: SparkSession, table: str, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """The trace events with `wall_ms` in that time, and their `day`. Otherwise as `read_usage`."""
    return _read(spark, table, ROWS[TRACE], since_ms, until_ms)


def read_quarantine(spark: SparkSession, table: str) -> DataFrame:
    """What ingest did not take: QUARANTINE."""
    state, root = state_of(spark, table), files_at(spark, table).root
    paths = [f"{root}/{part.path}" for part in state.parts.values() if part.stream == "quarantine"]
    return spark.read.schema(QUARANTINE).parquet(*paths) if paths else spark.createDataFrame([], QUARANTINE)


def state_of(spark: SparkSession | None, table: str) -> State:
    """What the table's log says. Raises BadTable if it is no table, or an empty one."""
    state = read_state(files_at(spark, table))
    if state.version == 0:
        raise BadTable(f"{table}: expected a table of `usage ingest`, found none")
    return state


def _read(
    spark: SparkSession,
    table: str,
    row: type[Row],
    since_ms: int | None,
    until_ms: int | None,
    state: State | None = None,
) -> DataFrame:
    days = [None if ms is None else day_of(ms) for ms in (since_ms, until_ms)]
    state = state_of(spark, table) if state is None else state
    parts = [
        part
        for part in state.parts.values()
        if part.stream == row.KIND
        and (days[0] is None or part.day >= days[0])
        and (days[1] is None or part.day <= days[1])
    ]
    records = read_parts(spark, files_at(spark, table).root, row, parts)
    at = F.col(time_column(row))
    if since_ms is not None:
        records = records.where(at >= since_ms)
    if until_ms is not None:
        records = records.where(at < until_ms)
    return records


def read_parts(spark: SparkSession, root: str, row: type[Row], parts: Iterable[Part]) -> DataFrame:
    """The records of these parts. Columns that were not known when a file was written have their defaults."""
    paths = [f"{root}/{part.path}" for part in parts]
    schema = schema_of(row)
    with_day = T.StructType([*schema.fields, T.StructField("day", T.DateType())])
    if not paths:
        return spark.createDataFrame([], with_day)
    stored = spark.read.schema(with_day).option("basePath", f"{root}/{row.KIND}").parquet(*paths)
    # A partition without a name is read as null.
    values = {**defaults(row), PARTITION: ""}
    return stored.select(
        *(
            F.coalesce(F.col(name), F.lit(values[name])).alias(name) if values.get(name) is not None else F.col(name)
            for name in schema.names
        ),
        "day",
    )
