"""The few fields of a request that decide what happens to it: header, acks of Produce, byte limits of Fetch."""

from struct import Struct

from protocol.errors import TruncatedMessage
from protocol.primitives import Reader
from protocol.splices import Splice

HEAD = Struct(">ihhih")
"""size, api_key, api_version, correlation_id, client-id length: the fixed part of a frame with header v1 or v2."""

MAX_HEAD_BYTES = 128 * 1024
"""What may stand before the last field of a request that is read here: two strings of 32 KiB, and tags. Of responses,
as much is held to be decided about, and more only if it lists more addresses."""

MAX_ASKED_BYTES = 1024 * 1024
"""The largest request that is decided about as a whole: tens of thousands of quotas or topics."""

MAX_HELD_BYTES = 32 * 1024 * 1024
"""The largest response that is decided about as a whole: what thousands of new topics, or 500,000 partitions, take."""

INT32_MAX = 2**31 - 1

_INT32 = Struct(">i")
_LIMITS = Struct(">ii")
LIMITS_BYTES = _LIMITS.size
"""min_bytes and max_bytes, one behind the other."""

_PRODUCE_TRANSACTIONAL_SINCE = 3
_PRODUCE_FLEXIBLE_SINCE = 9
_FETCH_MAX_BYTES_SINCE = 3
_FETCH_WITHOUT_REPLICA_ID_SINCE = 15


def acks_at(frame: bytes, body_at: int, api_version: int, end: int) -> int:
    """Where `acks`, an int16, stands in a Produce request whose frame reaches to `end`; 0 means: no response will come.

    Raises TruncatedMessage when the field does not lie before `end`. Source: `ProduceRequest.json`.
    """
    at = body_at
    if api_version >= _PRODUCE_FLEXIBLE_SINCE:
        reader = Reader(frame, body_at)
        at = max(reader.uvarint() - 1, 0) + reader.offset
    elif api_version >= _PRODUCE_TRANSACTIONAL_SINCE:
        at = max(Reader(frame, body_at).int16(), 0) + body_at + 2
    if at + 2 > end:
        raise TruncatedMessage(at, 2, end)
    return at


def fetch_clamp(frame: bytes | memoryview, body_at: int, api_version: int, ceiling_bytes: int) -> Splice | None:
    """The splice that holds a Fetch request's max_bytes and min_bytes to `ceiling_bytes`; None if they are below it.

    `min_bytes` never exceeds the new `max_bytes`; versions below 3 have no `max_bytes`. Source: quota-semantics of
    Kafka 2.5 and later. Raises TruncatedMessage when the fields are not in `frame` yet.
    """
    start = body_at + (4 if api_version >= _FETCH_WITHOUT_REPLICA_ID_SINCE else 8)
    if api_version < _FETCH_MAX_BYTES_SINCE:
        min_bytes = Reader(frame, start).int32()
        return None if min_bytes <= ceiling_bytes else Splice(start, start + 4, _INT32.pack(ceiling_bytes))
    return limits_clamp(frame, start, ceiling_bytes)


def share_fetch_limits_at(frame: bytes | memoryview, body_at: int) -> int:
    """Where min_bytes and max_bytes stand in a ShareFetch request. Source: `ShareFetchRequest.json`, 0+.

    Raises TruncatedMessage when what comes before them is not in `frame` yet.
    """
    reader = Reader(frame, body_at)
    for _ in range(2):
        reader.skip(max(reader.uvarint() - 1, 0))
    reader.skip(8)
    return reader.offset


def limits_clamp(frame: bytes | memoryview, start: int, ceiling_bytes: int) -> Splice | None:
    """The splice that holds max_bytes, and with it min_bytes, to `ceiling_bytes`; they stand at `start`."""
    reader = Reader(frame, start)
    min_bytes, max_bytes = reader.int32(), reader.int32()
    clamped = min(max_bytes, ceiling_bytes)
    if clamped == max_bytes and min_bytes <= max_bytes:
        return None
    return Splice(start, start + 8, _LIMITS.pack(min(min_bytes, clamped), clamped))
