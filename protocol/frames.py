"""The few fields of a request that decisions need: the header, acks of Produce, byte limits of Fetch."""

from struct import Struct
from typing import Final

from kafka_throttle.protocol.errors import TruncatedMessage
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.protocol.splices import Splice

HEAD: Final = Struct(">ihhih")
"""size, api_key, api_version, correlation_id, client-id length: the fixed part of a frame with header v1 or v2."""

MAX_HEAD_BYTES: Final = 128 * 1024
"""The most that can precede the last field that is read of a request: two strings of 32 KiB, and tags. Of a response,
as much is stored until it is decided about, and more only if it lists more addresses.
"""

MAX_ASKED_BYTES: Final = 1024 * 1024
"""The largest request that is decided about as a whole: tens of thousands of quotas or topics."""

MAX_SASL_BYTES: Final = 512 * 1024
"""The largest frame of an authentication, as a broker's sasl.server.max.receive.size."""

MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""The largest response that is decided about as a whole: enough for thousands of new topics, or 500,000 partitions."""

INT32_MAX: Final = 2**31 - 1

_INT32: Final = Struct(">i")
_LIMITS: Final = Struct(">ii")
LIMITS_BYTES: Final = _LIMITS.size
"""The size of min_bytes and max_bytes, which follow each other."""

_PRODUCE_TRANSACTIONAL_SINCE: Final = 3
_PRODUCE_FLEXIBLE_SINCE: Final = 9
_FETCH_MAX_BYTES_SINCE: Final = 3
_FETCH_WITHOUT_REPLICA_ID_SINCE: Final = 15


def acks_at(frame: bytes, body_at: int, api_version: int, end: int) -> int:
    """Where `acks`, an int16, is in a Produce request whose frame reaches to `end`. If it is 0, no response comes.

    Raises TruncatedMessage if the field does not lie before `end`. Source: `ProduceRequest.json`.
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
    """The splice that lowers max_bytes and min_bytes of a Fetch request to `ceiling_bytes`; None if nothing changes.

    `min_bytes` never exceeds the new `max_bytes`; versions below 3 have no `max_bytes`. Source: the behaviour of
    brokers since Kafka 2.5. Raises TruncatedMessage if the fields are not in `frame` yet.
    """
    start = body_at + (4 if api_version >= _FETCH_WITHOUT_REPLICA_ID_SINCE else 8)
    if api_version < _FETCH_MAX_BYTES_SINCE:
        min_bytes = Reader(frame, start).int32()
        return None if min_bytes <= ceiling_bytes else Splice(start, start + 4, _INT32.pack(ceiling_bytes))
    return limits_clamp(frame, start, ceiling_bytes)


def fetch_max_bytes(frame: bytes | memoryview, body_at: int, api_version: int) -> int:
    """max_bytes of a Fetch request, whose fields that are read are here; versions below 3 have none."""
    if api_version < _FETCH_MAX_BYTES_SINCE:
        return INT32_MAX
    min_bytes_at = body_at + (4 if api_version >= _FETCH_WITHOUT_REPLICA_ID_SINCE else 8)
    max_bytes: int = _INT32.unpack_from(frame, min_bytes_at + 4)[0]
    return max_bytes


def share_fetch_limits_at(frame: bytes | memoryview, body_at: int) -> int:
    """Where min_bytes and max_bytes are in a ShareFetch request. Source: `ShareFetchRequest.json`, version 0 and later.

    Raises TruncatedMessage if what comes before them is not in `frame` yet.
    """
    reader = Reader(frame, body_at)
    for _ in range(2):
        reader.skip(max(reader.uvarint() - 1, 0))
    reader.skip(8)
    return reader.offset


def limits_clamp(frame: bytes | memoryview, start: int, ceiling_bytes: int) -> Splice | None:
    """The splice that lowers max_bytes, at `start` + 4, and min_bytes, at `start`, to `ceiling_bytes`; None if
    nothing changes.
    """
    reader = Reader(frame, start)
    min_bytes, max_bytes = reader.int32(), reader.int32()
    clamped = min(max_bytes, ceiling_bytes)
    if clamped == max_bytes and min_bytes <= max_bytes:
        return None
    return Splice(start, start + 8, _LIMITS.pack(min(min_bytes, clamped), clamped))
