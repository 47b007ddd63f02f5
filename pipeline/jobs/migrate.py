"""`usage migrate`: a table of the format before Delta Lake into a new table."""

from collections.abc import Mapping

from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.table.migration import migrated
from kafka_throttle.pipeline.table.table import refuse_local


def main(
    old: str, table: str, master: str | None = None, memory: str = "2g", settings: Mapping[str, str] | None = None
) -> int:
    """Read the table `old`, once, into the new one; 0. Raises BadTable."""
    spark = spark_session(master, memory, "kafka-throttle usage migrate", settings)
    for path in (old, table):
        refuse_local(spark, path)
    for name, count in migrated(spark, old, table).items():
        if name != "numbers":
            print(f"{name}: {count:,} rows")
    return 0
