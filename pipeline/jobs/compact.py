"""`usage compact`: merge the small files of a table."""

from collections.abc import Mapping

from pipeline.compaction import AT_LEAST, compacted
from pipeline.files import files_at
from pipeline.session import LOCAL, spark_session
from pipeline.table import state_of


def main(
    table: str,
    at_least: int = AT_LEAST,
    master: str = LOCAL,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Merge where a day of a virtual cluster has `at_least` small parts; 0. Raises BadTable."""
    spark = spark_session(master, memory, "kafka-throttle usage compact", settings)
    state_of(spark, table)
    print(f"{compacted(spark, files_at(spark, table), at_least):,} small parts merged")
    return 0
