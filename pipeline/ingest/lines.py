"""Lines of a spool as columns.

Spark reads the lines and computes their checksums. In Spark's Python processes Arrow splits them into columns (see
`pipeline.ingest.line_columns`) and, if all executors share a directory, writes the columns. Otherwise Spark writes
them. docs/pipeline.md says what each costs.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from pipeline.ingest import task_files
from pipeline.ingest.line_columns import CHECKSUM, Reader
from pipeline.table.schemas import OFFSET, schema_of
from quotas.records.usage_record import Row

LINES = T.StructType(
    [
        T.StructField("text", T.StringType()),
        T.StructField("file", T.StringType()),
        T.StructField("block", T.LongType()),
        T.StructField("number", T.LongType()),
    ]
)
"""A line and its place: `block` is the block's first byte in the file, `number` grows by one from line to line of a
block.
"""


def parsed(lines: DataFrame, row: type[Row], latest_ms: int) -> DataFrame:
    """LINES -> `kind`, `day`, the row's columns, OFFSET, and, for lines without a good record of the row, LINES.

    A line with a good record of the row has its `kind`; a line of another stream with a right checksum has that
    stream's kind; all others are OTHER. Records later than `latest_ms` (ms since 1970) are refused.
    """

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        return Reader(row, latest_ms).read(batches)

    day = [T.StructField("kind", T.StringType()), T.StructField("day", T.DateType())]
    offset = T.StructField(OFFSET, T.LongType())
    schema = T.StructType([*day, *schema_of(row).fields, offset, *LINES.fields])
    return summed(lines).mapInArrow(read, schema)


def written(lines: DataFrame, row: type[Row], latest_ms: int, folder: Path) -> DataFrame:
    """As `parsed`, but the columns go to files in a directory that all executors share: RESPONSE of task_files."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        return task_files.written(batches, folder, row, latest_ms)

    return summed(lines).mapInArrow(write, task_files.RESPONSE)


def summed(lines: DataFrame) -> DataFrame:
    """LINES -> the same with `text` as bytes, and CHECKSUM."""
    body = F.expr("substring(cast(text as binary), 1, octet_length(text) - 9)")
    text = F.col("text").cast("binary").alias("text")
    return lines.select(text, "file", "block", "number", F.crc32(body).alias(CHECKSUM))
