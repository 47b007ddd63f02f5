"""`usage compact`: merge the small files of a table, and summarise its days; meant to run each night."""

from collections.abc import Mapping

from pipeline.spark.session import LOCAL, spark_session
from pipeline.table.compaction import AT_LEAST, compacted
from pipeline.table.day_summaries import keep_summaries
from pipeline.table.files import files_at
from pipeline.table.table import state_of
from pipeline.table.table_log import now_ms, read_state


def main(
    table: str,
    at_least: int = AT_LEAST,
    master: str = LOCAL,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Merge the parts of a day and virtual cluster that has `at_least` small ones, and summarise days that are over; 0.

    Raises BadTable.
    """
    spark = spark_session(master, memory, "kafka-throttle usage compact", settings)
    state_of(spark, table)
    files = files_at(spark, table)
    print(f"{compacted(spark, files, at_least):,} small parts merged")
    print(f"{keep_summaries(spark, files, read_state(files), now_ms()):,} days summarised")
    return 0
