"""`usage compact`: merge the small files of a table, and remove old ones; meant to run each night."""

from collections.abc import Mapping

from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.table.maintenance import optimized, vacuum
from kafka_throttle.pipeline.table.table import version_of

KEEP_HOURS = 168


def main(
    table: str,
    keep_hours: int = KEEP_HOURS,
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Merge small files, and remove what has not been part of the table for `keep_hours`; 0. Raises BadTable."""
    spark = spark_session(master, memory, "kafka-throttle usage compact", settings)
    version_of(spark, table)
    print(f"{optimized(spark, table):,} small files merged")
    vacuum(spark, table, keep_hours)
    print(f"files removed that have not been part of the table for {keep_hours} h")
    return 0
