"""The table that ingest writes and all others read: a folder with Delta tables.

<table>/usage        usage records, partitioned by `day`
<table>/trace        trace events, the same
<table>/quarantine   what was not taken, and why: QUARANTINE
<table>/numbers      which sequence numbers were taken, dropped or reported: see accounts
<table>/_checkpoint  Spark's state of each source
"""

import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from kafka_throttle.pipeline.spark.day import day_of
from kafka_throttle.pipeline.spark.session import on_one_machine
from kafka_throttle.pipeline.spark.unreadable import SPARK_ERRORS
from kafka_throttle.pipeline.table.schemas import NUMBERS, QUARANTINE, ROWS, schema_of, time_column
from kafka_throttle.quotas.records.usage_record import TRACE, USAGE, Row

DAY = "day"
"""UTC; the partition of usage records and trace events."""

_WITH_DAY = T.StructField(DAY, T.DateType())

TABLES: Mapping[str, T.StructType] = {
    **{kind: schema_of(row).add(_WITH_DAY) for kind, row in ROWS.items()},
    "quarantine": QUARANTINE,
    "numbers": NUMBERS,
}
"""What ingest writes, by name."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_ONE_SLASH = re.compile("^file:/(?!/)")
_NO_TABLE = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE")
_TOO_NEW = ("DELTA_INVALID_PROTOCOL_VERSION", "DELTA_UNSUPPORTED_FEATURES")


class BadTable(ValueError):
    """A directory that is no table, or one that this version cannot read."""


def root_of(table: str) -> str:
    """The URI of a table, or of a spool. A bare path is one of this machine, whatever Spark's default is."""
    if not _URI.match(table):
        return f"file://{Path(table).absolute()}"
    return _ONE_SLASH.sub("file:///", table.rstrip("/"))


def refuse_local(spark: SparkSession, path: str) -> None:
    """Raise ValueError for a bare path if other machines do the work: to them it is another place."""
    if not _URI.match(path) and not on_one_machine(spark):
        raise ValueError(
            f"{path}: expected a place that all machines of the cluster see, as s3a://... or hdfs://..., got a path of "
            f"this machine; where the same directory is mounted on all of them: {root_of(path)}"
        )


def refuse_colon(table: str) -> None:
    """Raise BadTable for a new table whose path has a colon: Hadoop takes what is before it for the scheme of a URI."""
    path = local_path(root_of(table))
    if path is not None and ":" in str(path):
        raise BadTable(f"{path}: expected a path without a colon, which Spark cannot write to, got one")


def local_path(root: str) -> Path | None:
    """The path of a root on this machine; None of those elsewhere."""
    return Path(root.removeprefix("file://")) if root.startswith("file://") else None


def sql_name(root: str, name: str) -> str:
    """One of the Delta tables as SQL names it."""
    return f"delta.`{root.replace('`', '``')}/{name}`"


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def read_usage(
    spark: SparkSession,
    table: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    version: int | None = None,
) -> DataFrame:
    """The usage records whose windows began at `since_ms` or later and before `until_ms`, and their `day` (a date).

    The table as it was in this version, or as it is at this moment: what is ingested later is not in it. Raises
    BadTable if there is none.
    """
    return _read(spark, table, ROWS[USAGE], since_ms, until_ms, version)


def read_trace(spark: SparkSession, table: str, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """The trace events with `wall_ms` in that time, and their `day`. Otherwise as `read_usage`."""
    return _read(spark, table, ROWS[TRACE], since_ms, until_ms, None)


def read_quarantine(spark: SparkSession, table: str) -> DataFrame:
    """What ingest did not take: QUARANTINE."""
    return stored(spark, table, "quarantine")


def version_of(spark: SparkSession, table: str, name: str = USAGE) -> int:
    """The number of the last commit. Raises BadTable."""
    stored(spark, table, name)
    version: int = spark.sql(f"DESCRIBE HISTORY {sql_name(root_of(table), name)} LIMIT 1").collect()[0]["version"]
    return version


def version_at(spark: SparkSession, table: str, at_ms: int) -> int:
    """The version of the usage records at that time, in ms since 1970. Raises BadTable if there was none, or if it is
    not known any more.
    """
    stored(spark, table, USAGE)
    commits = spark.sql(f"DESCRIBE HISTORY {sql_name(root_of(table), USAGE)}")
    [found] = commits.where(F.unix_millis("timestamp") <= at_ms).agg(F.max("version").alias("version")).collect()
    if found["version"] is None:
        raise BadTable(f"{table}: nothing is known of it at that time")
    version: int = found["version"]
    return version


def stored(spark: SparkSession, table: str, name: str, version: int | None = None) -> DataFrame:
    """One of the Delta tables, in this version or the present one. Raises BadTable."""
    refuse_local(spark, table)
    root = root_of(table)
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    try:
        rows = reader.load(f"{root}/{name}")
        _ = rows.schema  # Spark Connect looks at a table only when its columns or rows are asked for
        return rows
    except SPARK_ERRORS as error:
        raise _explained(table, error) from error


def _explained(table: str, error: Exception) -> Exception:
    text = str(error)
    if any(name in text for name in _TOO_NEW):
        return BadTable(f"{table}: it needs a later version of Delta Lake: {text.splitlines()[0]}")
    if any(name in text for name in _NO_TABLE):
        return BadTable(f"{table}: expected a table of `usage ingest`, found none")
    return error


def make_tables(spark: SparkSession, table: str, tables: Mapping[str, T.StructType] = TABLES) -> None:
    """Make the Delta tables that are missing. Raises BadTable if one lacks columns."""
    root = root_of(table)
    for name, schema in tables.items():
        # SQL's CREATE TABLE IF NOT EXISTS makes none where a killed writer has left a directory.
        writer = spark.createDataFrame([], schema).write.format("delta").mode("ignore")
        parts = [DAY] if DAY in schema.names else []
        try:
            writer.partitionBy(*parts).save(f"{root}/{name}")
        except SPARK_ERRORS as error:
            raise _explained(table, error) from error
        _refuse_lack(stored(spark, table, name), schema, f"{table}/{name}")


def _refuse_lack(rows: DataFrame, schema: T.StructType, path: str) -> None:
    """Raise BadTable if columns are missing. Further ones, of a later version, do no harm."""
    if missing := [name for name in schema.names if name not in rows.columns]:
        raise BadTable(f"{path}: it lacks {', '.join(missing)}; ingest the records again, into a new table")


def _read(
    spark: SparkSession, table: str, row: type[Row], since_ms: int | None, until_ms: int | None, version: int | None
) -> DataFrame:
    if version is None:
        version = version_of(spark, table, row.KIND)
    records = stored(spark, table, row.KIND, version)
    _refuse_lack(records, TABLES[row.KIND], f"{table}/{row.KIND}")
    records = records.select(*TABLES[row.KIND].names)
    at = F.col(time_column(row))
    if since_ms is not None:
        records = records.where((at >= since_ms) & (F.col(DAY) >= F.lit(day_of(since_ms)).cast("date")))
    if until_ms is not None:
        records = records.where((at < until_ms) & (F.col(DAY) <= F.lit(day_of(until_ms)).cast("date")))
    return records
