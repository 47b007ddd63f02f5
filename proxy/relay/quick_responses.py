"""Recognises, without reading all fields, responses that have no throttle time and no addresses. Most have none."""

from struct import Struct

from protocol.frames import MAX_HEAD_BYTES
from protocol.messages.produce import lone_partition_throttle_at
from proxy.relay.plans import NO_THROTTLE, Plan, ResponseKind

QUICK_BYTES = MAX_HEAD_BYTES - 4
"""The largest response, without its length prefix, that is recognised this way."""

_HEAD = Struct(">ii")
_SMALLEST_BYTES = 16
_ZERO = b"\0\0\0\0"


def quick_run(plan: Plan, buf: bytes, at: int, due: int, most: int, max_response_bytes: int) -> tuple[int, int]:
    """How many whole responses at `at` need only be passed on, and where they end.

    They are for requests of a `plan` that is `quick`, `most` at most, and their correlation ids count up from `due`.
    """
    plain, last = plan.response is ResponseKind.PLAIN, plan.response is ResponseKind.LAST
    offset, tags, end, count = plan.throttle_at, plan.response_tags, len(buf), 0
    while count < most and end - at >= _SMALLEST_BYTES:
        size, correlation_id = _HEAD.unpack_from(buf, at)
        frame_end = at + 4 + size
        if correlation_id != due or frame_end > end or not _SMALLEST_BYTES - 4 <= size <= max_response_bytes:
            break
        if last:
            throttle_at = frame_end - 4
        elif plain:
            throttle_at = at + offset
        else:
            offset = lone_partition_throttle_at(buf, at, size + 4, plan.api_version)
            throttle_at = at + offset
        if offset == NO_THROTTLE or throttle_at + 4 > frame_end or buf[throttle_at : throttle_at + 4] != _ZERO:
            break
        if tags and buf[at + 8]:
            break
        at = frame_end
        due += 1
        count += 1
    return count, at
