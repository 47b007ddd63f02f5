"""Reading a request as far as its fate depends on it, and remembering it until its response has gone out."""

from dataclasses import dataclass

from protocol import frames as requests
from protocol.api_key import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH
from protocol.api_table import APIS
from protocol.errors import MalformedMessage, ProtocolError, TruncatedMessage
from protocol.frames import HEAD, MAX_HEAD_BYTES
from protocol.primitives import MAX_HEADER_TAGS, Reader
from proxy.relay.actions import CloseReason, DecisionKind
from proxy.relay.plans import PLANS, UNKNOWN_API_VERSIONS, Plan
from proxy.relay.recognise import TLS_HANDSHAKE, looks_like
from proxy.relay.use import Use
from quotas.client_quotas import ClientSensors

LONG_CLIENT_ID_BYTES = 1024
"""A longer client id than this is not kept as it is: 100,000 of 32 KiB would fill the memory."""

_FETCH_LIMITS_BYTES = 16
"""How far into the body of a Fetch request its byte limits reach at most."""

_NO_ACKS = b"\0\0"
_ONE_ACK = b"\0\1"

_NOTE_FACTOR = 32
"""So much more than a request takes what a decision notes of it: objects for each topic of a few bytes."""

_SMALLEST_REQUEST = 10
"""An api key, a version, a correlation id and the length of a client id, without the length prefix.

Only ControlledShutdown v0 has no client id; its body makes up for that.
"""


class Refusal(ProtocolError):
    """A frame that cannot be carried, and the reason under which its connection is closed."""

    def __init__(self, reason: CloseReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True)
class Request:
    """One request: what was read of it, and from then on what its response needs.

    `size_bytes` is the frame without its length prefix, `body_at` and `decided_at` are offsets in the bytes it was
    read from: where its body begins, and where what was read of it ends. `muted_until_ms` is the end of the mute as
    it stood when the request was taken; the response reports what is left of it. `response` is the whole frame where
    the proxy answers by itself; it goes out when its turn comes. With `held` the node's response is collected whole: an
    `is_own_request` is the proxy's own, and its response is for the proxy; others are asked about, with `note`.
    `incremental` tells whether a Fetch goes on with a session; None where its response is never withheld.
    `as_empty_fetch`: it is.

    In flight it stands for `waiting` requests of equal fate, whose ids count up from `correlation_id`, the next to
    be answered; `waiting_bytes` are their sizes together. The next response is `charged` if the bytes of that fetch
    were, and `timed` if its request time was. Of what is `learned_from` the time of a response tells what it cost.
    `use` is where it is metered, if it is. `reserved` is what all of them are expected to cost of the quota of request
    time that is measured by the sensor `reserved_at`.
    """

    plan: Plan
    size_bytes: int
    correlation_id: int
    client_id: bytes
    body_at: int
    decided_at: int = 0
    answered: bool = True
    client_sensors: ClientSensors | None = None
    muted_until_ms: int = 0
    charged: bool = False
    timed: bool = False
    response: bytes | None = None
    held: bool = False
    is_own_request: bool = False
    note: object = None
    incremental: bool | None = None
    as_empty_fetch: bool = False
    waiting: int = 0
    waiting_bytes: int = 0
    learned_from: bool = True
    use: Use | None = None

    @property
    def kept_bytes(self) -> int:
        """What is kept for it until it is answered, beyond what any request takes."""
        kept = len(self.client_id) if len(self.client_id) > LONG_CLIENT_ID_BYTES else 0
        if self.response is not None:
            kept += len(self.response)
        if self.plan.asked is DecisionKind.MUTATION and self.note is not None:
            kept += _NOTE_FACTOR * self.size_bytes
        return kept

    reserved: float = 0.0
    reserved_at: int = 0


def read_request(buf: bytes, at: int, end: int, max_frame_bytes: int) -> Request | None:
    """The request whose frame begins at `at`, as soon as its decisive fields lie before `end`; None until then.

    Raises Refusal or another ProtocolError for what can never become a request that the proxy carries.
    """
    if end - at < HEAD.size:
        _check_size(buf, at, max_frame_bytes)
        return None
    size, api_key, api_version, correlation_id, id_length = HEAD.unpack_from(buf, at)
    plan = PLANS.get(api_key << 16 | api_version & 0xFFFF)
    if plan is None or not _SMALLEST_REQUEST <= size <= max_frame_bytes:
        _check_size(buf, at, max_frame_bytes)
        plan = _plan_beyond_table(buf[at : at + 4], api_key, api_version)
    id_at = at + HEAD.size
    id_end = id_at + id_length if id_length > 0 else id_at
    if not plan.has_client_id:
        id_at = id_end = id_at - 2
    request = Request(plan, size, correlation_id, buf[id_at:id_end], id_end)
    frame_end = at + 4 + size
    if id_end > frame_end:
        raise MalformedMessage(f"{plan.name} v{api_version}: a client id of {id_length} bytes in a frame of {size}")
    try:
        _read_rest(request, buf, id_end, min(end, frame_end))
    except TruncatedMessage as error:
        if end >= frame_end or end - at >= MAX_HEAD_BYTES:
            raise MalformedMessage(f"{plan.name} v{api_version}: {error}") from error
        return None
    return request


def _read_rest(request: Request, buf: bytes, id_end: int, end: int) -> None:
    """Read header tags and the decisive fields of the body. Raises TruncatedMessage where they pass `end`."""
    plan = request.plan
    body_at = id_end
    if plan.request_tags:
        body_at = id_end + 1
        if body_at <= end and buf[id_end]:
            reader = Reader(memoryview(buf)[:end], id_end)
            reader.tags(MAX_HEADER_TAGS)
            body_at = reader.offset
    if body_at > end:
        raise TruncatedMessage(id_end, body_at - id_end, end)
    request.body_at = request.decided_at = body_at
    if plan.api_key == PRODUCE:
        acks_at = requests.acks_at(buf, body_at, plan.api_version, end)
        request.decided_at = acks_at + 2
        acks = buf[acks_at : acks_at + 2]
        request.answered = acks != _NO_ACKS
        request.learned_from = acks == _ONE_ACK
    elif plan.api_key == FETCH:
        request.decided_at = body_at + _FETCH_LIMITS_BYTES
        if request.decided_at > end:
            raise TruncatedMessage(body_at, _FETCH_LIMITS_BYTES, end)
    elif plan.api_key == SHARE_FETCH:
        limits_at = requests.share_fetch_limits_at(memoryview(buf)[:end], body_at)
        request.decided_at = limits_at + requests.LIMITS_BYTES
        if request.decided_at > end:
            raise TruncatedMessage(limits_at, requests.LIMITS_BYTES, end)
    elif plan is UNKNOWN_API_VERSIONS and request.size_bytes > MAX_HEAD_BYTES:
        raise MalformedMessage(f"an ApiVersions request of {request.size_bytes} bytes")


def _check_size(buf: bytes, at: int, max_frame_bytes: int) -> None:
    """Judge a length prefix as soon as it is there."""
    first_bytes = buf[at : at + 4]
    if len(first_bytes) < 4:
        return
    size = int.from_bytes(first_bytes, "big", signed=True)
    if _SMALLEST_REQUEST <= size <= max_frame_bytes:
        return
    if name := looks_like(first_bytes):
        raise Refusal(*_other_protocol(name))
    if size > max_frame_bytes:
        raise Refusal(CloseReason.REQUEST_TOO_LARGE, f"{size} bytes announced, {max_frame_bytes} allowed")
    raise MalformedMessage(f"a length prefix of {size}")


def _plan_beyond_table(first_bytes: bytes, api_key: int, api_version: int) -> Plan:
    api = APIS.get(api_key)
    if api_key == API_VERSIONS and api is not None and api_version > api.max_version:
        return UNKNOWN_API_VERSIONS
    if name := looks_like(first_bytes):
        raise Refusal(*_other_protocol(name))
    if api is None:
        raise Refusal(CloseReason.UNSUPPORTED_API, f"api key {api_key} version {api_version}")
    raise Refusal(CloseReason.UNSUPPORTED_VERSION, f"{api.name} (api key {api_key}) version {api_version}")


def _other_protocol(name: str) -> tuple[CloseReason, str]:
    reason = CloseReason.TLS_UNEXPECTED if name == TLS_HANDSHAKE else CloseReason.REQUEST_NOT_KAFKA
    return reason, f"looks like {name}"
