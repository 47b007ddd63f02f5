"""`usage expire`: delete old records from a table."""

from collections.abc import Mapping

from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.table.maintenance import expired


def main(
    table: str,
    before: str,
    user: str | None = None,
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Delete the records of days before `before` (UTC), of one user or of all; 0. Raises BadTable."""
    spark = spark_session(master, memory, "kafka-throttle usage expire", settings)
    whose = "" if user is None else f" of user {user}"
    for stream, count in expired(spark, table, before, user).items():
        print(f"{stream}: {count:,} records{whose} before {before} deleted")
    print("their files are removed by `usage compact` after --keep-hours")
    return 0
