"""Reads a table of the format before Delta Lake, once, into a new one.

<old>/_log/<version>.json        a commit: the directories that it adds and removes, and what is known of numbers
<old>/_log/<version>.snapshot    the same of all commits up to that one
<old>/usage/commit=<name>/day=2026-11-22/virtual_cluster=main/*.parquet    and `trace`; `quarantine` without partitions
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.table.accounts import Account, Accounts, Writer, added, read_accounts, rows_of
from kafka_throttle.pipeline.table.intervals import Intervals
from kafka_throttle.pipeline.table.schemas import NUMBERS, ROWS
from kafka_throttle.pipeline.table.table import TABLES, BadTable, completed, make_tables, root_of, stored

_FORMAT = 1
_CLUSTER = "virtual_cluster"


def migrated(spark: SparkSession, old: str, table: str) -> dict[str, int]:
    """Write all of the old table into a new one; how many rows each Delta table then has.

    If it is killed it may be run again: what was written is skipped. Raises BadTable if the old table cannot be read,
    or if the new one has records of another origin.
    """
    parts, accounts = _state(spark, old)
    make_tables(spark, table)
    if read_accounts(spark, table):
        raise BadTable(f"{table}: expected a new table, found one with records")
    for name in ("usage", "trace", "quarantine"):
        paths = [f"{root_of(old)}/{part['path']}" for part in parts if part["stream"] == name]
        if paths:
            _append(table, name, _rows(spark, old, name, paths))
    _append(table, "numbers", spark.createDataFrame(rows_of(accounts), NUMBERS).coalesce(1))
    return {name: stored(spark, table, name).count() for name in TABLES}


def _append(table: str, name: str, rows: DataFrame) -> None:
    writer = rows.write.format("delta").mode("append").option("txnAppId", "migrate").option("txnVersion", 0)
    writer.save(f"{root_of(table)}/{name}")


def _rows(spark: SparkSession, old: str, name: str, paths: list[str]) -> DataFrame:
    reader = spark.read.schema(TABLES[name]).option("basePath", f"{root_of(old)}/{name}")
    rows = reader.parquet(*paths)
    if name not in ROWS:
        return rows.select(*TABLES[name].names)
    # A directory without a name is read as null.
    named = rows.withColumn(_CLUSTER, F.coalesce(_CLUSTER, F.lit("")))
    return completed(named, ROWS[name]).select(*TABLES[name].names)


def _state(spark: SparkSession, old: str) -> tuple[list[Mapping[str, Any]], Accounts]:
    """The directories that count, and what is known of numbers."""
    log = _log(spark, old)
    begin = max((version for version, kind in log if kind == "snapshot"), default=0)
    state = log[begin, "snapshot"] if begin else {"parts": [], "accounts": []}
    parts = {part["path"]: part for part in state["parts"]}
    accounts: Accounts = _accounts(state["accounts"])
    last = max((version for version, kind in log if kind == "json"), default=begin)
    for version in range(begin + 1, last + 1):
        commit = log.get((version, "json"))
        if commit is None:
            raise BadTable(f"{old}/_log: version {version} is missing")
        for path in commit["removed"]:
            parts.pop(path, None)
        parts |= {part["path"]: part for part in commit["added"]}
        accounts = added(accounts, _accounts(commit["accounts"]))
    return list(parts.values()), accounts


def _log(spark: SparkSession, old: str) -> dict[tuple[int, str], Any]:
    """By version and kind of file."""
    try:
        files = spark.read.text(f"{root_of(old)}/_log/*", wholetext=True)
        found = files.select("value", F.col("_metadata.file_name").alias("name")).collect()
    except PySparkException as error:
        raise BadTable(f"{old}: expected a table of an earlier version, found none") from error
    log = {}
    for row in found:
        version, _, kind = row["name"].partition(".")
        try:
            form = json.loads(row["value"])
        except ValueError as error:
            raise BadTable(f"{old}/_log/{row['name']} is not readable: {error}") from error
        if form.get("format") != _FORMAT:
            raise BadTable(f"{old}/_log/{row['name']}: expected format {_FORMAT}, got {form.get('format')!r}")
        log[int(version), kind] = form
    return log


def _accounts(form: Iterable[Mapping[str, Any]]) -> dict[Writer, Account]:
    """Logs of the first versions do not say which epochs are complete: all of them count as complete."""
    return {
        Writer(one["stream"], one["instance"], one["epoch"]): Account(
            _intervals(one["present"]),
            _intervals(one["dropped"]),
            one["told"],
            one.get("final", True),
            one.get("alone", True),
            one.get("flush_ms", 0),
        )
        for one in form
    }


def _intervals(form: Iterable[Iterable[int]]) -> Intervals:
    return tuple((first, last) for first, last in form)
