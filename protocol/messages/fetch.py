"""Responses without data to a Fetch over quota, and the fields that they depend on.

A broker gives one to a ShareFetch, too, but then its records stay acquired until their lock ends: the proxy does not
copy that. Sources: `FetchRequest.json`, `FetchResponse.json`; KIP-227 for sessions.
"""

from struct import Struct

from kafka_throttle.protocol.primitives import int32

_SESSIONS_SINCE = 7
_FLEXIBLE_SINCE = 12
_WITHOUT_REPLICA_ID_SINCE = 15
_THROTTLE_SINCE = 1

_ERROR_AND_SESSION = Struct(">hi")
_NO_ARRAY = b"\0\0\0\0"
_NO_COMPACT_ARRAY = b"\x01"
_NO_TAGS = b"\0"

_INVALID_FETCH_SESSION_EPOCH = 71
_THROTTLE_BYTES = 4


def epoch_at(api_version: int) -> int:
    """Where the session epoch is in the body of a Fetch request, 0 if nowhere. Epochs above 0 continue a session.

    The id of the session comes before it, an int32. With an epoch of 0 or below, a node closes the session of this id.
    """
    if api_version < _SESSIONS_SINCE:
        return 0
    return 17 if api_version >= _WITHOUT_REPLICA_ID_SINCE else 21


def decisive_bytes(api_version: int) -> int:
    """How many bytes of the body of a response must be here before an empty one can be made of it."""
    if api_version >= _SESSIONS_SINCE:
        return _THROTTLE_BYTES + _ERROR_AND_SESSION.size
    return _THROTTLE_BYTES if api_version >= _THROTTLE_SINCE else 0


def empty_fetch_response(
    response: bytes | memoryview, body_at: int, api_version: int, incremental: bool, throttle_time_ms: int
) -> bytes:
    """The frame that replaces the `response` of a node, of which the head is here; its body begins at `body_at`.

    For a full fetch it has no session, even if the node has made one, and no error. For an incremental fetch it keeps
    the session. Error 71 (the epoch does not fit any more) stays as long as the session exists; other errors are left
    out.
    """
    error, session_id = 0, 0
    if incremental and api_version >= _SESSIONS_SINCE:
        error, session_id = _ERROR_AND_SESSION.unpack_from(response, body_at + _THROTTLE_BYTES)
        if error != _INVALID_FETCH_SESSION_EPOCH or not session_id:
            error = 0
    return _without_data(bytes(response[4:8]), api_version, throttle_time_ms, error, session_id)


def own_fetch_response(correlation_id: int, api_version: int, incremental: bool) -> bytes:
    """A response without data to a Fetch that no node gets, with a throttle time of 0.

    A full fetch gets the empty one of a broker over quota. What an incremental one changes in its session would be
    lost, so it gets error 71: its client opens a new session with its next Fetch, which closes the old one.
    """
    error = _INVALID_FETCH_SESSION_EPOCH if incremental else 0
    return _without_data(int32(correlation_id), api_version, 0, error, 0)


def session_of(response: bytes | memoryview, body_at: int, api_version: int) -> int:
    """The session that a response belongs to, of which so much is here as `decisive_bytes` says; 0: none."""
    if api_version < _SESSIONS_SINCE:
        return 0
    session_id: int = _ERROR_AND_SESSION.unpack_from(response, body_at + _THROTTLE_BYTES)[1]
    return session_id


def _without_data(correlation_id: bytes, api_version: int, throttle_time_ms: int, error: int, session_id: int) -> bytes:
    throttle = int32(throttle_time_ms)
    if api_version < _SESSIONS_SINCE:
        return _framed(correlation_id + (throttle if api_version >= _THROTTLE_SINCE else b"") + _NO_ARRAY)
    head = throttle + _ERROR_AND_SESSION.pack(error, session_id)
    if api_version < _FLEXIBLE_SINCE:
        return _framed(correlation_id + head + _NO_ARRAY)
    return _framed(correlation_id + _NO_TAGS + head + _NO_COMPACT_ARRAY + _NO_TAGS)


def _framed(payload: bytes) -> bytes:
    return int32(len(payload)) + payload
