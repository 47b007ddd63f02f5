"""Lines of a spool as columns, in Spark SQL alone: no line passes through Python unless something is wrong with it.

Who gets here what a line says, and in `pipeline.rejects` why it says nothing, must agree with
`quotas.usage_record.read_line`: a test holds the two together.
"""

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from pipeline.schemas import MAY_BE_NEGATIVE, OFFSET, PARTITION, ROWS, defaults, schema_of, time_column
from quotas.usage_record import VERSION, Row, UsageRecord, columns

LINES = T.StructType(
    [
        T.StructField("text", T.StringType()),
        T.StructField("file", T.StringType()),
        T.StructField("block", T.LongType()),
        T.StructField("number", T.LongType()),
    ]
)
"""Where a line is: the block's first byte in the file, and a number that grows by one from line to line of a block."""

OTHER = "other"
"""The kind of all lines that hold no record, or none that can be taken."""

_BEFORE = 2
_AROUND = 3
"""Of the parts of a line two come before the columns, version and kind, and one behind them, the checksum."""


def parsed(lines: DataFrame, row: type[Row], latest_ms: int) -> DataFrame:
    """LINES -> `kind`, `day`, the row's columns, OFFSET, and of lines without such a record LINES.

    A line with a good record of the row has its `kind`; one of another stream whose checksum is right has that
    stream's; all the rest is OTHER. Of records later than `latest_ms` (ms since 1970) nothing is believed.
    """
    split = lines.select(*LINES.names, F.split("text", "\t").alias("parts"))
    typed = split.select(*LINES.names, "parts", *_columns(row), _checksum_is_right().alias("sound"))
    judged = typed.withColumn("kind", _kind(row, latest_ms))
    good = F.col("kind") == row.KIND
    day = F.to_date(F.timestamp_millis(F.col(time_column(row))))
    return judged.select(
        "kind",
        F.when(good, day).alias("day"),
        *(F.when(good, F.col(name)).alias(name) if name == PARTITION else F.col(name) for name in schema_of(row).names),
        (F.col("sequence") - F.col("number")).alias(OFFSET),
        *(F.when(~good, F.col(name)).alias(name) for name in LINES.names),
    )


def _columns(row: type[Row]) -> list[Column]:
    later = defaults(row)
    read = []
    for place, (name, (kind, _)) in enumerate(columns(row).items(), _BEFORE):
        column = _typed(F.get("parts", F.lit(place)), kind)
        if name in later:
            # Where the line ends before, the checksum would stand.
            column = F.when(F.size("parts") > place + 1, column).otherwise(F.lit(later[name]))
        read.append(column.alias(name))
    return read


def _typed(part: Column, kind: type) -> Column:
    if kind is int:
        return part.try_cast("long")
    if kind is float:
        return part.try_cast("double")
    return F.when(F.contains(part, F.lit("\\")), _unescaped(part)).otherwise(part)


def _unescaped(part: Column) -> Column:
    r"""Escapes taken out: first `\\` becomes `\s`, which nothing else does, so that no backslash has two meanings."""
    for escape, meant in (("\\\\", "\\s"), ("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r"), ("\\s", "\\")):
        part = F.replace(part, F.lit(escape), F.lit(meant))
    return part


def _checksum_is_right() -> Column:
    body = F.expr("substring(cast(text as binary), 1, octet_length(text) - 9)")
    crc = F.lpad(F.lower(F.hex(F.crc32(body))), 8, "0")
    return F.element_at("parts", -1) == crc


def _kind(row: type[Row], latest_ms: int) -> Column:
    written = F.get("parts", F.lit(1))
    kind = F.when(F.col("sound") & (written == row.KIND) & _can_be_taken(row, latest_ms), F.lit(row.KIND))
    for other in ROWS:
        if other != row.KIND:
            kind = kind.when(F.col("sound") & (written == other), F.lit(other))
    return kind.otherwise(F.lit(OTHER))


def _can_be_taken(row: type[Row], latest_ms: int) -> Column:
    """Whether the parts are as many as they may be, numbers all of them that are to be, and possible ones."""
    version = F.get("parts", F.lit(0)).try_cast("int")
    most, least = len(columns(row)), len(columns(row)) - len(defaults(row))
    count = F.size("parts") - _AROUND
    plain = version.cast("string") == F.get("parts", F.lit(0))
    conditions = [version >= 1, plain, count >= least, (count <= most) | (version > VERSION)]
    conditions += [_is_possible(row, name, *types) for name, types in columns(row).items() if types[0] is not str]
    conditions.append(F.col(time_column(row)) <= latest_ms)
    if issubclass(row, UsageRecord):
        conditions.append(F.col("end_ms") >= F.col("begin_ms"))
    return F.coalesce(reduce(and_, conditions), F.lit(False))


def _is_possible(row: type[Row], name: str, kind: type, optional: bool) -> Column:
    """A finite number, not negative but for those that may be. NaN is larger than all others in Spark."""
    column = F.col(name)
    possible = F.lit(True) if name in MAY_BE_NEGATIVE[row.KIND] else column >= 0
    if kind is float:
        possible = possible & (column < float("inf")) & (column > float("-inf"))
    elif name in MAY_BE_NEGATIVE[row.KIND]:
        possible = column.isNotNull()
    if not optional:
        return possible
    place = list(columns(row)).index(name) + _BEFORE
    return (F.get("parts", F.lit(place)) == "\\N") | possible
