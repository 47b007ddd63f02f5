"""Small files of a table are merged, old ones removed, and records deleted, while others read it and write to it."""

from pyspark.sql import SparkSession

from kafka_throttle.pipeline.table.schemas import ROWS
from kafka_throttle.pipeline.table.table import DAY, TABLES, root_of, sql_name, sql_text, stored


def optimized(spark: SparkSession, table: str) -> int:
    """Merge small files of each day into larger ones; how many were merged."""
    merged = 0
    for name in TABLES:
        [row] = spark.sql(f"OPTIMIZE {sql_name(root_of(table), name)}").collect()
        merged += row["metrics"]["numFilesRemoved"]
    return merged


def vacuum(spark: SparkSession, table: str, keep_hours: int) -> None:
    """Remove files that have not been part of the table for `keep_hours`, also those of killed writers.

    Versions from before then can no longer be read.
    """
    tables = [sql_name(root_of(table), name) for name in TABLES]
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    before = spark.conf.get(check)
    spark.conf.set(check, "false")
    try:
        for name in tables:
            spark.sql(f"VACUUM {name} RETAIN {keep_hours} HOURS")
    finally:
        spark.conf.set(check, before)


def expired(spark: SparkSession, table: str, before: str, user: str | None = None) -> dict[str, int]:
    """Delete the records of days before a day (`2026-11-22`, UTC), of one user or all; how many of each stream.

    Their numbers stay known, so they are not missing, and are not taken again. Raises BadTable.
    """
    deleted = {}
    for kind in ROWS:
        stored(spark, table, kind)
        # Delta's DELETE takes no parameters.
        of_user = "" if user is None else f" AND user = {sql_text(user)}"
        before_day = f"{DAY} < CAST({sql_text(before)} AS DATE)"
        [row] = spark.sql(f"DELETE FROM {sql_name(root_of(table), kind)} WHERE {before_day}{of_user}").collect()
        deleted[kind] = row["num_affected_rows"]
    return deleted
