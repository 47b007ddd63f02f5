"""What a line must be like to be a record: one list of rules, each with its reason, as expressions of Spark.

The format is that of quotas/records/usage_record.py, and `read_line` there gives the same values and the same reasons.
Spark's casts accept more numbers than that format has, such as ` 5`, `+5`, `1d` or `0x1p3`: they are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from kafka_throttle.pipeline.spark.day import utc_day
from kafka_throttle.pipeline.table.schemas import (
    HAS_IP,
    HAS_NO_MOST,
    MAY_BE_NEGATIVE,
    MOST,
    QUOTA_TYPES,
    schema_of,
    time_column,
)
from kafka_throttle.pipeline.table.table import DAY
from kafka_throttle.quotas.records.usage_record import FLOAT, VERSION, Row, UsageRecord, columns

NO_VALUE = "(no value)"
"""The text of a message without a value in the quarantine: null would not be a text."""

_AROUND = 3
"""Version, kind and checksum around the columns."""
_TAIL = 9
"""Bytes of a tab and the checksum."""
_NULL = "\\N"
_MOST_DIGITS = 9
_MOST_SHOWN = 40
"""Characters of a wrong value that a reason has."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What no accepted line is like, and the reason that is given."""

    broken: Column
    """Never null where all rules before this one are kept."""
    reason: Column


def kind_of(text: Column) -> Column:
    """The second part of a line."""
    return F.get(F.split(F.substring_index(text, "\t", 2), "\t"), F.lit(1))


def split_lines(lines: DataFrame) -> DataFrame:
    """Lines with `text` -> the same with its tab-separated `parts`, and `is_sound`: whether the checksum holds."""
    body = F.expr(f"substring(cast(text as binary), 1, octet_length(text) - {_TAIL})")
    tail = F.expr(f"substring(cast(text as binary), -{_TAIL})")
    checksum = F.concat(F.lit("\t"), F.lower(F.lpad(F.hex(F.crc32(body)), _TAIL - 1, "0"))).cast("binary")
    is_sound = (F.octet_length("text") >= _TAIL) & (tail == checksum) & F.is_valid_utf8("text")
    return lines.withColumn("parts", F.split("text", "\t")).withColumn("is_sound", is_sound)


def rules_of_messages() -> Iterator[Rule]:
    """What a message of a topic is that has no line."""
    yield Rule(F.col("text") == NO_VALUE, F.lit("the message has no value"))
    yield Rule(F.startswith("text", F.lit("{")), F.lit("the JSON is not that of a line, or was changed"))


def rules_of_all() -> Iterator[Rule]:
    """What holds for every line."""
    yield Rule(~F.col("is_sound"), F.lit("the checksum is wrong"))
    version = F.get("parts", F.lit(0))
    is_number = version.rlike(rf"^[0-9]{{1,{_MOST_DIGITS}}}\z") & (version.try_cast("int") >= 1)
    yield Rule(~is_number, F.concat(F.lit("expected a version, got "), _shown(version)))


def rule_of_kinds() -> Rule:
    """For lines of none of the kinds that are known."""
    kind = F.when(F.size("parts") >= _AROUND, F.get("parts", F.lit(1))).otherwise(F.lit(""))
    return Rule(F.lit(True), F.concat(F.lit("unknown kind "), _shown(kind)))


def rules_of_record(row: type[Row], latest_ms: int) -> Iterator[Rule]:
    """What holds for the lines of a kind of records: see `with_columns`. Records later than `latest_ms` are refused."""
    kinds = columns(row)
    names, found = list(kinds), F.size("parts") - _AROUND
    too_many = (found > len(names)) & (F.get("parts", F.lit(0)).try_cast("int") <= VERSION)
    expected = F.concat(F.lit(f"expected {len(names)} columns, got "), found.cast("string"))
    yield Rule(too_many, expected)
    for number, name in enumerate(names):
        yield Rule(found == number, F.concat(expected, F.lit(f": {name} is missing")))
    for number, (name, (kind, optional)) in enumerate(kinds.items()):
        if kind is str:
            continue
        part, value = F.get("parts", F.lit(number + 2)), F.col(name)
        is_written_so = part.rlike(rf"^({FLOAT})\z") if kind is float else value.cast("string") == part
        is_wrong = value.isNull() | ~is_written_so
        is_wrong = (part != _NULL) & is_wrong if optional else is_wrong
        yield Rule(is_wrong, _got(f"{name}: expected {kind.__name__}", _shown(part)))
        if kind is float:
            endless = value.isNotNull() & (F.isnan(value) | (F.abs(value) == float("inf")))
            yield Rule(endless, _got(f"{name}: expected a finite number", _shown(part)))
    for name, (kind, _) in kinds.items():
        value, part = F.coalesce(name, F.lit(0)), F.col(name).cast("string")
        if kind is not str and name not in MAY_BE_NEGATIVE[row.KIND]:
            yield Rule(value < 0, _got(f"{name}: expected 0 or more", part))
        if kind is not str and name not in HAS_NO_MOST:
            yield Rule((value > MOST) | (value < -MOST), _got(f"{name}: expected {MOST} at most", part))
    expected_types = f"quota_type: expected one of {', '.join(QUOTA_TYPES)}"
    yield Rule(~F.col("quota_type").isin(*QUOTA_TYPES), _got(expected_types, _shown(F.col("quota_type"))))
    of_addresses, value_of = HAS_IP[row.KIND]
    lacks_ip = (F.col(of_addresses) == value_of) & (F.col("ip") == "")
    yield Rule(lacks_ip, F.lit(f"ip: expected an address, as {of_addresses} is {value_of}"))
    at = time_column(row)
    yield Rule(F.col(at) > latest_ms, _got(f"{at}: in the future", F.col(at).cast("string")))
    if issubclass(row, UsageRecord):
        end = F.col("end_ms")
        yield Rule(end < F.col("begin_ms"), _got("end_ms: expected begin_ms or later", end.cast("string")))
        yield Rule(end > latest_ms, _got("end_ms: in the future", end.cast("string")))


def with_columns(lines: DataFrame, row: type[Row]) -> DataFrame:
    """Split lines -> the same with the columns of the row and DAY; a number that cannot be read is null."""
    values = {}
    for number, field in enumerate(schema_of(row).fields):
        part = F.get("parts", F.lit(number + 2))
        if isinstance(field.dataType, T.StringType):
            value = _unescaped(part)
        else:
            # A text that is no number costs an exception of Java.
            value = F.nullif(part, F.lit(_NULL)).try_cast(field.dataType)
        values[field.name] = value
    at = values[time_column(row)]
    day = F.when(at.between(0, MOST), utc_day(at))
    return lines.select("*", *(value.alias(name) for name, value in values.items()), day.alias(DAY))


def is_broken(rules: list[Rule]) -> Column:
    """Whether a line breaks any of these rules."""
    return reduce(or_, (F.coalesce(rule.broken, F.lit(True)) for rule in rules))


def reason_of(rules: list[Rule]) -> Column:
    """The reason of the first of these rules that a line breaks; null if it keeps all of them."""
    return F.coalesce(*(F.when(F.coalesce(rule.broken, F.lit(True)), rule.reason) for rule in rules))


def _got(expected: str, value: Column) -> Column:
    return F.concat(F.lit(f"{expected}, got "), value)


def _shown(part: Column) -> Column:
    return F.concat(F.lit("'"), F.substring(F.coalesce(part, F.lit("")), 1, _MOST_SHOWN), F.lit("'"))


def _unescaped(part: Column) -> Column:
    """As `unescaped` in quotas/records/usage_record.py: pairs of backslashes are found first, from the left."""
    pieces = F.transform(F.split(part, r"\\\\"), _with_controls)
    return F.when(F.contains(part, F.lit("\\")), F.array_join(pieces, "\\")).otherwise(part)


def _with_controls(piece: Column) -> Column:
    for written, meant in (("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r")):
        piece = F.replace(piece, F.lit(written), F.lit(meant))
    return piece
