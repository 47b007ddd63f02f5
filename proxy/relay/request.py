"""Reads a request as far as decisions about it need, and remembers it until its response has gone out."""

from typing import Final

from kafka_throttle.protocol import frames as requests
from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError, TruncatedMessage
from kafka_throttle.protocol.frames import HEAD, MAX_HEAD_BYTES
from kafka_throttle.protocol.primitives import MAX_HEADER_TAGS, Reader
from kafka_throttle.proxy.relay.actions import CloseReason, DecisionKind
from kafka_throttle.proxy.relay.plans import PLANS, UNKNOWN_API_VERSIONS, Plan
from kafka_throttle.proxy.relay.recognise import TLS_HANDSHAKE, looks_like
from kafka_throttle.proxy.relay.use import UsageCounter
from kafka_throttle.quotas.client_quotas import ClientSensors
from kafka_throttle.quotas.fetch_rooms import Place

LONG_CLIENT_ID_BYTES: Final = 1024
"""Longer client ids than this are not stored as they are: 100,000 of 32 KiB would fill the memory."""

_FETCH_LIMITS_BYTES: Final = 16
"""How far into the body of a Fetch request its byte limits reach at most."""

_NO_ACKS: Final = b"\0\0"
_ONE_ACK: Final = b"\0\1"

_NOTE_FACTOR: Final = 32
"""How many bytes the note of a decision takes for each byte of its request: it has objects for very short topics."""

OWN_REQUEST: Final = object()
"""The note of a request that the proxy sends itself."""

_SMALLEST_REQUEST: Final = 10
"""An API key, a version, a correlation id and the length of a client id, without the length prefix.

Only ControlledShutdown v0 has no client id; its body has at least as many bytes.
"""


class Refusal(ProtocolError):
    """A frame that cannot be carried, and the reason for closing its connection."""

    def __init__(self, reason: CloseReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RequestHead:
    """What was read of a request. It does not change.

    - `size_bytes`: the size of the frame without its length prefix.
    - `body_at`, `decided_at`: offsets from the beginning of the frame: of its body, and of the end of what was read.
    - `answered`: whether it will have a response.
    - `learned_from`: whether the time of its response shows what it cost.
    """

    __slots__ = (
        "answered",
        "body_at",
        "client_id",
        "correlation_id",
        "decided_at",
        "learned_from",
        "plan",
        "size_bytes",
    )

    def __init__(self, plan: Plan, size_bytes: int, correlation_id: int, client_id: bytes, body_at: int) -> None:
        self.plan = plan
        self.size_bytes = size_bytes
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_at = body_at
        self.decided_at = body_at
        self.answered = True
        self.learned_from = True


class Request:
    """A request that is sent, until its response has gone out; in flight, a run of requests that are handled alike.

    - `correlation_id`: of the one that has its response next. `waiting`: how many there are, with ids that count up.
      `waiting_bytes`: their sizes together.
    - `client_sensors`: what measures its client; None: it is not charged.
    - `muted_until_ms`: the end of the mute when it was taken. The response reports what is left of it.
    - `charged`, `timed`: whether, for the next response, the bytes of the Fetch and the request time were charged.
    - `response`: the whole response, if the proxy responds by itself. It goes out when its turn comes.
    - `note`: if there is one, the node's response is collected whole. It is for the proxy if the request is one of its
      own; else it needs a decision, which gets the note.
    - `incremental`: whether a Fetch continues a session; None if its response is never replaced by an empty one.
    - `use`: counts its usage, if that is metered.
    - `reserved`: what all of them are expected to cost of the request time that the sensor `reserved_at` measures.
    - `place`: where a Fetch with a quota has got room for what it may bring.
    """

    __slots__ = (
        "charged",
        "client_sensors",
        "correlation_id",
        "head",
        "incremental",
        "muted_until_ms",
        "note",
        "place",
        "plan",
        "reserved",
        "reserved_at",
        "response",
        "timed",
        "use",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, head: RequestHead, client_sensors: ClientSensors | None = None, note: object = None) -> None:
        self.head = head
        self.plan = head.plan
        self.correlation_id = head.correlation_id
        self.client_sensors = client_sensors
        self.muted_until_ms = 0
        self.charged = False
        self.timed = False
        self.response: bytes | None = None
        self.note = note
        self.incremental: bool | None = None
        self.use: UsageCounter | None = None
        self.waiting = 0
        self.waiting_bytes = 0
        self.reserved = 0.0
        self.reserved_at = 0
        self.place: Place | None = None

    def another(self) -> "Request":
        """A request of the same client with the same head, which reports the same mute."""
        other = Request(self.head, self.client_sensors)
        other.use = self.use
        other.muted_until_ms = self.muted_until_ms
        return other

    @property
    def is_own_request(self) -> bool:
        """Whether the proxy sent it, not the client."""
        return self.note is OWN_REQUEST

    @property
    def kept_bytes(self) -> int:
        """How many bytes are stored for it until its response, beyond what any request takes."""
        client_id_bytes = len(self.head.client_id)
        kept = client_id_bytes if client_id_bytes > LONG_CLIENT_ID_BYTES else 0
        if self.response is not None:
            kept += len(self.response)
        if self.plan.asked is DecisionKind.MUTATION and self.note is not None:
            kept += _NOTE_FACTOR * self.head.size_bytes
        return kept


def read_request(buf: bytes, at: int, end: int, max_frame_bytes: int) -> RequestHead | None:
    """The request whose frame begins at `at`, or None while the fields that are read do not all lie before `end`.

    Raises Refusal or another ProtocolError for bytes that can never become a request that the proxy carries.
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
    if not plan.request_header:
        id_at = id_end = id_at - 2
    head = RequestHead(plan, size, correlation_id, buf[id_at:id_end], id_end - at)
    frame_end = at + 4 + size
    if id_end > frame_end:
        raise MalformedMessage(f"{plan.name} v{api_version}: a client id of {id_length} bytes in a frame of {size}")
    try:
        _read_rest(head, buf, at, min(end, frame_end))
    except TruncatedMessage as error:
        if end >= frame_end or end - at >= MAX_HEAD_BYTES:
            raise MalformedMessage(f"{plan.name} v{api_version}: {error}") from error
        return None
    return head


def _read_rest(head: RequestHead, buf: bytes, at: int, end: int) -> None:
    """Read header tags and the fields of the body that matter. Raises TruncatedMessage if they reach beyond `end`."""
    plan = head.plan
    body_at = id_end = at + head.body_at
    if plan.request_header > 1:
        body_at += 1
        if body_at <= end and buf[id_end]:
            reader = Reader(memoryview(buf)[:end], id_end)
            reader.tags(MAX_HEADER_TAGS)
            body_at = reader.offset
    if body_at > end:
        raise TruncatedMessage(id_end, body_at - id_end, end)
    decided_at = body_at
    if plan.api_key == PRODUCE:
        acks_at = requests.acks_at(buf, body_at, plan.api_version, end)
        decided_at = acks_at + 2
        acks = buf[acks_at:decided_at]
        head.answered = acks != _NO_ACKS
        head.learned_from = acks == _ONE_ACK
    elif plan.api_key == FETCH:
        decided_at += _FETCH_LIMITS_BYTES
        if decided_at > end:
            raise TruncatedMessage(body_at, _FETCH_LIMITS_BYTES, end)
    elif plan.api_key == SHARE_FETCH:
        limits_at = requests.share_fetch_limits_at(memoryview(buf)[:end], body_at)
        decided_at = limits_at + requests.LIMITS_BYTES
        if decided_at > end:
            raise TruncatedMessage(limits_at, requests.LIMITS_BYTES, end)
    elif plan is UNKNOWN_API_VERSIONS and head.size_bytes > MAX_HEAD_BYTES:
        raise MalformedMessage(f"an ApiVersions request of {head.size_bytes} bytes")
    head.body_at = body_at - at
    head.decided_at = decided_at - at


def _check_size(buf: bytes, at: int, max_frame_bytes: int) -> None:
    """Check a length prefix as soon as it is here. Raises Refusal or MalformedMessage."""
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
