"""DescribeUserScramCredentials (KIP-554): which users a request asks for, refusals, and a response without users.

There is only version 0, with compact fields. Sources: `DescribeUserScramCredentialsRequest.json`, `...Response.json`.
"""

from kafka_throttle.protocol.primitives import Reader, int32
from kafka_throttle.protocol.splices import Splice

_HEADER_BYTES = 8
_THROTTLE_BYTES = 4
_LEAST_USER_BYTES = 2
_NO_TAGS = b"\0"
_NO_USERS = b"\0\0" + b"\0" + b"\1" + _NO_TAGS
"""The error code, a null error message, an empty array of users, and tags."""


def only_user(frame: bytes, body_at: int) -> bytes | None:
    """The name of the user that a request, a whole frame, asks for; None if it asks for several, or for all.

    Raises ProtocolError.
    """
    reader = Reader(frame, body_at)
    if reader.count(True, _LEAST_USER_BYTES) != 1:
        return None
    return reader.compact_string()


def throttle_at(frame: bytes) -> int:
    """Where the throttle time is in a response, a whole frame. Raises ProtocolError."""
    reader = Reader(frame, _HEADER_BYTES)
    reader.tags()
    return reader.offset


def without_refusal(frame: bytes) -> tuple[Splice, ...]:
    """The splice that turns a refusal, a whole frame, into a response without users; none for other responses."""
    reader = Reader(frame, throttle_at(frame))
    start = reader.skip(_THROTTLE_BYTES) + _THROTTLE_BYTES
    return (Splice(start, len(frame), _NO_USERS),) if reader.int16() else ()


def no_users_response(frame: bytes) -> bytes:
    """The response without users to the request in `frame`; both are whole frames."""
    rest = frame[8:12] + _NO_TAGS + int32(0) + _NO_USERS
    return int32(len(rest)) + rest
