"""What the tables' columns are, derived from the one place that knows the records."""

from collections.abc import Mapping

from pyspark.sql import types as T  # noqa: N812, as everybody calls it

from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.usage_record import Row, TraceEvent, UsageRecord, columns

ROWS: Mapping[str, type[Row]] = {row.KIND: row for row in (UsageRecord, TraceEvent)}
"""What the table has of each stream."""

_TYPES: Mapping[type, T.DataType] = {str: T.StringType(), int: T.LongType(), float: T.DoubleType()}

MAY_BE_NEGATIVE: Mapping[str, frozenset[str]] = {
    UsageRecord.KIND: frozenset({"node_id"}),
    TraceEvent.KIND: frozenset({"node_id", "value", "at_ms"}),
}
"""Columns that have a sign: -2 is all nodes; what a sensor is given back is negative."""

MOST = 2**48
"""The largest number that a record may have, whatever its sign: in bytes, 280 TB in one window; in ms since 1970, the
year 10889. Sums of such numbers stay within 64 bits."""

HAS_NO_MOST = frozenset({"limit", "shadow_limit", "value"})
"""Columns that may have any number: they are quotas, or a trace's `value` may be one."""

QUOTA_TYPES = tuple(quota_type.name.lower() for quota_type in QuotaType)
"""What `quota_type` may be."""

HAS_IP: Mapping[str, tuple[str, str]] = {
    UsageRecord.KIND: ("quota_type", QuotaType.CONNECTION.name.lower()),
    TraceEvent.KIND: ("operation", Operation.CONNECT.value),
}
"""Which column has which value where `ip` says whom a quota is of, and is not empty."""

QUARANTINE = T.StructType(
    [
        T.StructField("file", T.StringType()),
        T.StructField("line", T.LongType()),
        T.StructField("reason", T.StringType()),
        T.StructField("text", T.StringType()),
        T.StructField("at_ms", T.LongType()),
    ]
)
"""What was not taken: where (no line: the whole file, or a message), why, how it began, and when it was found."""

NUMBERS = T.StructType(
    [
        T.StructField("stream", T.StringType()),
        T.StructField("instance", T.StringType()),
        T.StructField("epoch", T.LongType()),
        T.StructField("what", T.StringType()),
        T.StructField("first", T.LongType()),
        T.StructField("last", T.LongType()),
    ]
)
"""What is known of the sequence numbers of a writer: see pipeline/table/accounts.py."""


def schema_of(row: type[Row]) -> T.StructType:
    """The records as Spark has them: text, 64-bit integers and doubles, in the order of the line."""
    return T.StructType([T.StructField(name, _TYPES[kind]) for name, (kind, _) in columns(row).items()])


def time_column(row: type[Row]) -> str:
    """The column that says when it was, in ms since 1970; its day is the record's partition."""
    return "begin_ms" if row is UsageRecord or issubclass(row, UsageRecord) else "wall_ms"
