"""Kafka's frames as the simulator knows them: built from templates, read by code that is not the relay's.

Of the product it takes the table of APIs and versions, which other tests hold to Kafka's own classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from struct import Struct, pack
from typing import TYPE_CHECKING

from kafka_throttle.protocol.api_key import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
)
from kafka_throttle.protocol.api_table import APIS
from tests.simulation.plan import RequestPlan, ResponsePlan

if TYPE_CHECKING:
    from tests.simulation.topics import Result

OWN_KEYS = {ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS}
"""APIs that the proxy responds to by itself, whatever the node offers."""
SCRAM_CREDENTIALS = DESCRIBE_USER_SCRAM_CREDENTIALS
"""APIs that it responds to where the node has none, as these nodes."""
PROXYS_OWN = [(DESCRIBE_CLIENT_QUOTAS, 0, 1), (ALTER_CLIENT_QUOTAS, 0, 1), (SCRAM_CREDENTIALS, 0, 0)]
SASL_KEYS = (b"\0\x11", b"\0\x24")
MUTATIONS = (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS)
"""See topics.py."""
HEAD_BYTES = 128 * 1024
"""How much of a frame may have to be seen before it is decided what becomes of it."""

Reported = tuple[tuple[bytes | None, bytes, int], ...]

_FIXED_HEAD = Struct(">ihhih")
_HIDDEN_TAG = b"\x7f"
_MAX_FILLER_BYTES = 4 << 20
_FILLER = Random(0).randbytes(2 * _MAX_FILLER_BYTES)

WRONG_RESPONSES = {
    "other_id": "response_unexpected",
    "extra": "response_unexpected",
    "too_short": "response_malformed",
    "cut_tail": "response_malformed",
    "negative_size": "response_malformed",
    "small_size": "response_malformed",
    "huge_size": "response_too_large",
    "http": "response_not_kafka",
    "tls": "response_not_kafka",
    "half": "node_closed",
    "half_reset": "node_lost",
}
"""What a node may write in place of a response, and why the connection ends then."""


def filler(size: int, salt: int) -> bytes:
    """`size` opaque bytes, different for each `salt`."""
    start = salt * 2_654_435_761 % _MAX_FILLER_BYTES
    return _FILLER[start : start + size]


def framed(payload: bytes) -> bytes:
    return pack(">i", len(payload)) + payload


def uvarint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def text(value: bytes | None, compact: bool) -> bytes:
    """A string, or null."""
    if compact:
        return b"\0" if value is None else uvarint(len(value) + 1) + value
    return pack(">h", -1) if value is None else pack(">h", len(value)) + value


def count(elements: int, compact: bool) -> bytes:
    return uvarint(elements + 1) if compact else pack(">i", elements)


def tags(size: int) -> bytes:
    """A tag buffer with one unknown field of `size` bytes; an empty one for 0."""
    return b"\0" if not size else b"\x01\x63" + uvarint(size) + filler(size, size)


def is_flexible(api_key: int, version: int) -> bool:
    return version >= APIS[api_key].first_flexible


def is_known(api_key: int, version: int) -> bool:
    api = APIS.get(api_key)
    return api is not None and api.min_version <= version <= api.max_version


PROOF_ASKED = framed(pack(">hhi", API_VERSIONS, 0, -0x6B74) + text(b"kafka-throttle", False))
"""The own request that shows whether an exchange is over."""


# --------------------------------------------------------------------- requests


def request_frame(plan: RequestPlan, body: bytes | None = None) -> bytes:
    """The frame that a plan describes; without a `body`, what is not looked at is filled up."""
    api_key, version = plan.api_key, plan.version
    api = APIS.get(api_key)
    flexible = api is not None and is_flexible(api_key, version)
    header = pack(">hhi", api_key, version, plan.correlation_id)
    if api is None or version >= api.client_id_since:
        header += text(plan.client_id, compact=False)
    if flexible:
        header += tags(plan.tag_bytes)
    if body is None:
        body = _fields(plan, flexible) + filler(plan.filler_bytes, plan.correlation_id)
    if plan.token is not None:
        header, body = (b"" if plan.token.bare else header), plan.token.data
    frame = framed(header + body)
    if plan.flipped_bit >= 0:
        at, bit = divmod(plan.flipped_bit, 8)
        at %= len(frame)
        frame = frame[:at] + bytes([frame[at] ^ 1 << bit]) + frame[at + 1 :]
    return frame


def _session_id(plan: RequestPlan) -> int:
    """Some full fetches close an earlier session, most have none."""
    return 77 if plan.epoch > 0 or not plan.correlation_id % 3 else 0


def _fields(plan: RequestPlan, flexible: bool) -> bytes:
    if plan.api_key == PRODUCE:
        fields = pack(">hi", plan.acks, 30_000)
        if plan.version < 3:
            return fields
        size = plan.transactional_id_bytes
        return text(None if size < 0 else filler(size, size), flexible) + fields
    if plan.api_key == FETCH:
        replica = b"" if plan.version >= 15 else pack(">i", -1)
        fields = replica + pack(">iii", 500, plan.min_bytes, plan.max_bytes)
        if plan.version >= 7:
            return fields + b"\0" + pack(">ii", _session_id(plan), plan.epoch)
        return fields + bytes(max(16 - len(fields), 0))
    return b""


@dataclass(slots=True)
class Head:
    """What decides about a request."""

    frame_bytes: int
    api_key: int
    version: int
    correlation_id: int
    client_id: bytes
    body_at: int
    acks: int
    incremental: bool = False
    bare: bool = False

    @property
    def answered(self) -> bool:
        return self.api_key != PRODUCE or self.acks != 0

    @property
    def answered_by_proxy(self) -> bool:
        """ApiVersions of a version that is not in the table."""
        return self.api_key == API_VERSIONS and self.version > APIS[API_VERSIONS].max_version

    @property
    def about_quotas(self) -> bool:
        """DescribeClientQuotas, AlterClientQuotas."""
        return self.api_key in OWN_KEYS

    @property
    def about_credentials(self) -> bool:
        """DescribeUserScramCredentials."""
        return self.api_key == SCRAM_CREDENTIALS

    @property
    def is_sasl(self) -> bool:
        """SaslHandshake, SaslAuthenticate: made of another request by a flipped bit, and without a response here."""
        return self.api_key.to_bytes(2, "big", signed=True) in SASL_KEYS

    @property
    def about_topics(self) -> bool:
        """CreateTopics, DeleteTopics, CreatePartitions."""
        return self.api_key in MUTATIONS


@dataclass(slots=True)
class Bad:
    """Bytes that are no request, and the reason to close for; `late` where it is found when it would be sent on."""

    reason: str
    late: bool = False


class _Short(Exception):
    """More bytes are needed."""


_MALFORMED = Bad("request_malformed")
_OTHER_PROTOCOLS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PRI ", b"HTTP", b"SSH-", b"PROX")


def is_other_protocol(start: bytes) -> bool:
    """Whether bytes begin as TLS, HTTP, SSH or a PROXY header do."""
    tls = len(start) >= 2 and start[0] in (20, 21, 22, 23) and start[1] == 3
    return tls or start[:4] in _OTHER_PROTOCOLS or start[:4] == b"\r\n\r\n"


def with_session(data: bytes | bytearray, head: Head) -> Head | Bad | None:
    """The Fetch that `data` begins with, with what it says of its session; None while that is not there."""
    if head.version < 7:
        return head
    at = head.body_at + (17 if head.version >= 15 else 21)
    if at + 4 > min(len(data), head.frame_bytes):
        return Bad("request_malformed", late=True) if len(data) >= head.frame_bytes else None
    head.incremental = int.from_bytes(data[at : at + 4], "big", signed=True) > 0
    return head


def judge_token(data: bytes | bytearray) -> Head | Bad | None:
    """The bare token that `data` begins with, as `judge` does for requests."""
    if len(data) < 4:
        return None
    size = int.from_bytes(data[:4], "big", signed=True)
    if size < 0:
        return _MALFORMED
    return Head(size + 4, int.from_bytes(SASL_KEYS[1], "big"), -1, 0, b"", 4, 1, bare=True)


def judge(data: bytes | bytearray, max_frame_bytes: int) -> Head | Bad | None:
    """The request that `data` begins with, None while its decisive bytes are not there."""
    if len(data) < 4:
        return None
    size = int.from_bytes(data[:4], "big", signed=True)
    if not 10 <= size <= max_frame_bytes:
        if is_other_protocol(bytes(data[:4])):
            return Bad("tls_unexpected" if data[0] == 0x16 else "request_not_kafka")
        return Bad("request_too_large") if size > max_frame_bytes else _MALFORMED
    if len(data) < 14:
        return None
    _, api_key, version, correlation_id, id_bytes = _FIXED_HEAD.unpack_from(data)
    api = APIS.get(api_key)
    by_proxy = api_key == API_VERSIONS and version > APIS[API_VERSIONS].max_version
    if not is_known(api_key, version) and not by_proxy:
        if is_other_protocol(bytes(data[:4])):
            return Bad("tls_unexpected" if data[0] == 0x16 else "request_not_kafka")
        return Bad("unsupported_api" if api is None else "unsupported_version")
    assert api is not None
    frame_bytes = size + 4
    id_at, at = 14, 14 + max(id_bytes, 0)
    if version < api.client_id_since:
        id_at = at = 12
    if at > frame_bytes:
        return _MALFORMED
    here = min(len(data), frame_bytes)
    try:
        body_at = _skip_tags(data, at, here) if version >= api.first_flexible else at
        if body_at > here:
            raise _Short
        head = Head(frame_bytes, api_key, version, correlation_id, bytes(data[id_at:at]), body_at, 1)
        if api_key == PRODUCE:
            head.acks = _acks(data, body_at, version, here)
        elif api_key == FETCH and body_at + 16 > here:
            raise _Short
    except _Short:
        return _MALFORMED if len(data) >= min(frame_bytes, HEAD_BYTES) else None
    except ValueError:
        return _MALFORMED
    if by_proxy and size > HEAD_BYTES:
        return _MALFORMED
    return head


def _uvarint(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    value = 0
    for step in range(5):
        if at >= end:
            raise _Short
        value |= (data[at] & 127) << 7 * step
        at += 1
        if data[at - 1] < 128:
            if value >= 2**32:
                break
            return value, at
    raise ValueError("no uvarint of 32 bits")


def _skip_tags(data: bytes | bytearray, at: int, end: int) -> int:
    fields, at = _uvarint(data, at, end)
    if fields > 64:
        raise ValueError("too many tags")
    for _ in range(fields):
        _, at = _uvarint(data, at, end)
        size, at = _uvarint(data, at, end)
        at += size
        if at > end:
            raise _Short
    return at


def _acks(data: bytes | bytearray, at: int, version: int, end: int) -> int:
    if version >= 9:
        size, at = _uvarint(data, at, end)
        at += max(size - 1, 0)
    elif version >= 3:
        if at + 2 > end:
            raise _Short
        at += 2 + max(int.from_bytes(data[at : at + 2], "big", signed=True), 0)
    if at + 2 > end:
        raise _Short
    return int.from_bytes(data[at : at + 2], "big", signed=True)


def clamped(frame: bytes, head: Head, ceiling_bytes: int) -> bytes:
    """The beginning of a Fetch request with max_bytes at most `ceiling_bytes` and min_bytes at most max_bytes."""
    at = head.body_at + (4 if head.version >= 15 else 8)
    least, most = (int.from_bytes(frame[i : i + 4], "big", signed=True) for i in (at, at + 4))
    if head.version < 3:
        return frame[:at] + pack(">i", min(least, ceiling_bytes)) + frame[at + 4 :]
    most = min(most, ceiling_bytes)
    return frame[:at] + pack(">ii", min(least, most), most) + frame[at + 8 :]


def fetch_max_bytes(frame: bytes | bytearray, head: Head) -> int:
    """How many bytes a Fetch asks for."""
    at = head.body_at + (8 if head.version >= 15 else 12)
    return int.from_bytes(frame[at : at + 4], "big", signed=True) if head.version >= 3 else 2**31 - 1


def own_fetch_response(head: Head) -> bytes:
    """Without data, to a Fetch that no node gets; to one that continues a session with error 71."""
    if head.version < 7:
        return framed(pack(">i", head.correlation_id) + bytes(8 if head.version else 4))
    error = 71 if head.incremental else 0
    if head.version >= 12:
        return framed(pack(">ibihi", head.correlation_id, 0, 0, error, 0) + b"\x01\0")
    return framed(pack(">iihii", head.correlation_id, 0, error, 0, 0))


def session_at(head: Head) -> int:
    """Where the id of its session is in a Fetch; 0: it has none."""
    return 0 if head.version < 7 else head.body_at + (13 if head.version >= 15 else 17)


def session_made(head: Head, response: bytes) -> int:
    """The session that the response to a full fetch belongs to; 0: none."""
    if head.version < 7 or head.incremental:
        return 0
    at = 8 + _header_tags_bytes(head, response) + 6
    return int.from_bytes(response[at : at + 4], "big", signed=True)


def empty_fetch_response(head: Head, response: bytes, throttle_ms: int) -> bytes:
    """The response of a broker to a Fetch over quota, in place of `response`."""
    error, session_id = 0, 0
    if head.version >= 7 and head.incremental:
        at = 8 + _header_tags_bytes(head, response) + 4
        error, session_id = (int.from_bytes(response[i:j], "big") for i, j in ((at, at + 2), (at + 2, at + 6)))
        error = 71 if error == 71 and session_id else 0
    if head.version >= 12:
        return framed(pack(">ibihi", head.correlation_id, 0, throttle_ms, error, session_id) + b"\x01\0")
    if head.version >= 7:
        return framed(pack(">iihii", head.correlation_id, throttle_ms, error, session_id, 0))
    throttle = pack(">i", throttle_ms) if head.version else b""
    return framed(pack(">i", head.correlation_id) + throttle + bytes(4))


def _header_tags_bytes(head: Head, response: bytes) -> int:
    return _skip_tags(response, 8, len(response)) - 8 if _has_header_tags(head) else 0


def unsupported_version_response(correlation_id: int) -> bytes:
    """The response to an ApiVersions request of an unknown version (KIP-511)."""
    api = APIS[API_VERSIONS]
    return framed(pack(">ihihhh", correlation_id, 35, 1, API_VERSIONS, api.min_version, api.max_version))


# ---------------------------------------------------------------------- responses


@dataclass(slots=True)
class Response:
    """What a node writes for one request, and what the client must get of it, except for the throttle time.

    `throttle_at` is where throttle_time_ms stands in `for_client` (-1: nowhere), `charged_bytes` what a Fetch counts.
    `reason` is why the connection must end instead, after at most `passable` bytes; `ending` what the node does then.
    `array` is where the results of a response about topics stand in `frame`, `reported` what Metadata says of topics:
    name, id, partitions. `results` are what became of each topic. It `proves` that the client is through its
    authentication.
    """

    frame: bytes
    for_client: bytes
    throttle_at: int = -1
    throttle_ms: int = 0
    charged_bytes: int = 0
    reason: str = ""
    passable: int = 0
    ending: str = ""
    addresses: tuple[tuple[int, bytes, int], ...] = ()
    results: "tuple[Result, ...]" = ()
    array: tuple[int, int] = (-1, -1)
    reported: Reported = ()
    proves: bool = False

    @property
    def can_be_framed(self) -> bool:
        """Whether its length is that of its prefix."""
        return int.from_bytes(self.frame[:4], "big", signed=True) + 4 == len(self.frame) >= 8


@dataclass(slots=True)
class Surroundings:
    """What responses depend on beside their plan."""

    host: bytes
    portless: tuple[int, ...]
    max_response_bytes: int
    max_frame_bytes: int = 104_857_600

    def ours(self, node_id: int) -> tuple[bytes, int]:
        """Where clients find this node."""
        return self.host, 20_000 + node_id


def theirs(node_id: int) -> tuple[bytes, int]:
    """The address of this node by the cluster's responses."""
    return b"inside-%d.example" % node_id * (1 + node_id % 3), 9092 + node_id


def response(head: Head, plan: ResponsePlan, around: Surroundings, body: "Body | None" = None) -> Response:
    """The response to a request, right or wrong as planned; `body` is that of the right one, if it is not of a kind."""
    right = _right_response(head, plan, around, body)
    if plan.kind in ("right", "extra") or right.reason:
        return right
    frame, reason = _wrong_frame(head, plan, right.frame, around), WRONG_RESPONSES[plan.kind]
    passable, for_client = 0, right.for_client
    if plan.kind in ("half", "half_reset"):
        passable = len(for_client)
    elif plan.kind == "cut_tail" and len(frame) > HEAD_BYTES:
        passable, for_client = len(frame) - 1, frame
    ending = {"half": "close", "half_reset": "reset", "tls": "close"}.get(plan.kind, "")
    uncharged = 4 + _has_header_tags(head) if plan.kind == "too_short" else len(right.frame) - right.charged_bytes
    announced = int.from_bytes(frame[:4], "big", signed=True) + 4
    return Response(
        frame,
        for_client,
        right.throttle_at,
        plan.throttle_ms,
        right.charged_bytes if ending else announced - uncharged,
        reason,
        passable,
        ending,
        reported=right.reported,
    )


def token_response(head: Head, token: bytes, around: Surroundings) -> Response:
    """The response to a frame of an authentication."""
    if head.bare:
        return Response(framed(token), framed(token))
    return _right_response(head, ResponsePlan(), around, Body(token, token, -1))


def names_users(frame: bytes, body_at: int) -> bool:
    """Whether it can be read which users a DescribeUserScramCredentials asks for: its one user, or several."""
    try:
        count, at = _uvarint(frame, body_at, len(frame))
        if count != 2 or len(frame) - at < 2:  # a user is two bytes at least
            return (count - 1) * 2 <= len(frame) - at
        size, at = _uvarint(frame, at, len(frame))
    except (_Short, ValueError):
        return False
    return at + max(size - 1, 0) <= len(frame)


def no_users_response(correlation_id: int) -> bytes:
    """The response to a client of a cluster without SCRAM: no throttle, no error, no message, no users."""
    return pack(">iib", 14, correlation_id, 0) + pack(">ihbbb", 0, 0, 0, 1, 0)


def proof_response(head: Head, through: bool) -> Response:
    """The response to ApiVersions v0: an offer once the login is through, an illegal state in an exchange."""
    offer = pack(">hihhh", 0, 1, PRODUCE, 0, 9) if through else pack(">hi", 34, 0)
    frame = framed(pack(">i", head.correlation_id) + offer)
    return Response(frame, frame, proves=through)


def extra_response() -> Response:
    """A response without a request."""
    return Response(framed(pack(">iih", 0x5EED_5EED, 0, 0)), b"", reason=WRONG_RESPONSES["extra"])


def unasked_alert() -> Response:
    """What a node that expects TLS sends before it hangs up."""
    return Response(bytes.fromhex("15030300020228"), b"", reason="response_not_kafka", ending="close")


def can_be(kind: str, api_key: int, version: int) -> bool:
    """Whether a response of this API that is wrong in this way can be recognised."""
    if kind == "too_short":
        held_whole = (api_key == PRODUCE and version > 0) or api_key in (METADATA, API_VERSIONS)
        return held_whole or version >= APIS[api_key].throttle_since
    return kind != "cut_tail" or (api_key == PRODUCE and version >= 9) or (api_key == FETCH and version >= 16)


def _wrong_frame(head: Head, plan: ResponsePlan, frame: bytes, around: Surroundings) -> bytes:
    match plan.kind:
        case "other_id":
            return frame[:4] + pack(">i", head.correlation_id ^ 0x4000_0000) + frame[8:]
        case "too_short":
            return framed(frame[4:8] + (b"\0" if _has_header_tags(head) else b""))
        case "cut_tail":
            return framed(frame[4:-1])
        case "negative_size":
            return pack(">i", -1 - plan.filler_bytes) + frame[4:]
        case "small_size":
            return pack(">i", plan.filler_bytes % 4) + frame[4:]
        case "huge_size":
            return pack(">i", around.max_response_bytes + 1) + frame[4:]
        case "http":
            return b"HTTP/1.1 400 Bad Request\r\n\r\n"
        case "tls":
            return bytes.fromhex("15030300020228")
        case _:
            return frame[: max(len(frame) // 2, 1)]


def _has_header_tags(head: Head) -> bool:
    return head.api_key != API_VERSIONS and is_flexible(head.api_key, head.version)


@dataclass(slots=True)
class Body:
    """A body as the node writes it and as the client must get it.

    `throttle_at` is the place of its throttle time, `uncharged` how much of it does not count. What decides must lie
    before `decided_at` (-1: anywhere), and not too far behind `tail_at`, after which it is held back. Of a response
    about topics, `array` is where their results stand with their number, and `reported` is what Metadata says of them.
    """

    theirs: bytes
    ours: bytes
    throttle_at: int
    uncharged: int = 0
    nodes: tuple[int, ...] = ()
    decided_at: int = -1
    tail_at: int = -1
    array: tuple[int, int] = (-1, -1)
    reported: Reported = ()


def _right_response(head: Head, plan: ResponsePlan, around: Surroundings, body: Body | None) -> Response:
    header_tags = tags(plan.tag_bytes % 200) if _has_header_tags(head) else b""
    header = pack(">i", head.correlation_id) + header_tags
    if body is None:
        body = _BODIES.get(head.api_key, _plain_body)(head, plan, around, len(header) + 4)
    frame, for_client = framed(header + body.theirs), framed(header + body.ours)
    throttle_at = body.throttle_at + 4 + len(header) if body.throttle_at >= 0 else -1
    charged_bytes = len(frame) - 4 - len(header_tags) - body.uncharged
    addresses = tuple((node_id, *theirs(node_id)) for node_id in body.nodes)
    made = Response(
        frame, for_client, throttle_at, plan.throttle_ms, charged_bytes, addresses=addresses, reported=body.reported
    )
    body_at = 4 + len(header)
    if body.array[0] >= 0:
        made.array = (body_at + body.array[0], body_at + body.array[1])
    if len(frame) - 4 > around.max_response_bytes or (
        _is_gathered(head, body_at + body.decided_at, len(frame)) and len(frame) > around.max_frame_bytes
    ):
        made.reason = "response_too_large"
    return made


def _is_gathered(head: Head, decided_at: int, frame_bytes: int) -> bool:
    """Whether more of a response is wanted than is held of any: addresses go on behind that, or may do so."""
    coordinators = head.api_key == FIND_COORDINATOR and head.version >= 4
    return frame_bytes > HEAD_BYTES and (coordinators or decided_at > HEAD_BYTES)


def _plain_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    """Opaque bytes, the throttle time among them where the version has one."""
    api = APIS[head.api_key]
    opaque = filler(plan.filler_bytes + 2, head.correlation_id + 1)
    if head.version < api.throttle_since:
        return Body(opaque, opaque, -1)
    at = api.throttle_offset
    body = filler(at, 7) + pack(">i", plan.throttle_ms) + opaque
    return Body(body, body, at)


def _node_ids(plan: ResponsePlan) -> tuple[int, ...]:
    return tuple(range(1, plan.nodes + 1))


def _endpoint(node_id: int, address: tuple[bytes, int], compact: bool) -> bytes:
    host, port = address
    return pack(">i", node_id) + text(host, compact) + pack(">i", port)


def _endpoint_tags(plan: ResponsePlan, around: Surroundings, before: int) -> tuple[bytes, bytes, int, tuple[int, ...]]:
    """A tag buffer with NodeEndpoints (KIP-951): the node's, ours, how much of it is not charged, the nodes named."""
    unknown = tags(plan.tag_bytes)
    if not plan.nodes:
        return unknown, unknown, 0, ()
    ids = _node_ids(plan)

    def field(tag: bytes, address: object) -> bytes:
        elements = [_endpoint(i, address(i), True) + text(b"rack", True) + b"\0" for i in ids]
        value = count(len(ids), True) + b"".join(elements)
        return tag + uvarint(len(value)) + value

    rest = unknown[1:]
    start = bytes([1 + unknown[0]])
    node_field = field(b"\0", theirs)
    buffer = start + node_field + rest
    hidden = start + field(_HIDDEN_TAG, theirs) + rest
    if before + len(buffer) > HEAD_BYTES:
        return buffer, hidden, 0, ()
    if set(ids) & set(around.portless):
        return buffer, hidden, len(node_field), ids
    return buffer, start + field(b"\0", around.ours) + rest, len(node_field), ids


def _produce_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    version, flexible = head.version, head.version >= 9
    fixed = 14 if version < 2 else 22 if version < 5 else 30
    rest = b""
    if version >= 8:
        rest = count(0, flexible) + text(None, flexible) + (b"\0" if flexible else b"")
    partition = fixed + len(rest)
    partitions = 1 + plan.filler_bytes // partition
    opaque = filler(fixed * min(partitions, 1000), head.correlation_id)
    records = [opaque[fixed * (i % 1000) :][:fixed] + rest for i in range(partitions)]
    if version >= 8 and plan.filler_bytes % 3 == 1:  # an error message, and a record error
        errors = count(1, flexible) + pack(">i", 3) + text(b"why", flexible) + (b"\0" if flexible else b"")
        records[0] = opaque[:fixed] + errors + text(b"no", flexible) + (b"\0" if flexible else b"")
    topic = filler(16, 5) if version >= 13 else text(b"topic", flexible)
    topics = count(1, flexible) + topic + count(partitions, flexible) + b"".join(records) + (b"\0" if flexible else b"")
    if version == 0:
        return Body(topics, topics, -1)
    start = topics + pack(">i", plan.throttle_ms)
    if not flexible:
        return Body(start, start, len(topics))
    if version == 9:
        body = start + tags(plan.tag_bytes)
        return Body(body, body, len(topics), tail_at=len(topics))
    node_tags, our_tags, _, ids = _endpoint_tags(plan, around, header_end + len(start))
    return Body(start + node_tags, start + our_tags, len(topics), nodes=ids, tail_at=len(topics))


def _fetch_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    if head.version < 7:
        return _plain_body(head, plan, around, header_end)
    error, session_id = (71 if plan.filler_bytes % 7 == 3 else 0), (0 if plan.filler_bytes % 11 == 5 else 4711)
    start = pack(">ihi", plan.throttle_ms, error, session_id)
    if head.version < 16:
        body = start + filler(plan.filler_bytes + 2, head.correlation_id + 1)
        return Body(body, body, 0)
    partitions = 1 + plan.filler_bytes % 3
    records = filler(plan.filler_bytes // partitions, head.correlation_id)
    aborted = uvarint(2) + filler(16, 3) + b"\0" if plan.filler_bytes % 5 == 1 else b"\x01"
    partition = (
        filler(30, 4) + aborted + pack(">i", -1) + uvarint(len(records) + 1) + records + tags(plan.tag_bytes % 50)
    )
    topics = uvarint(2) + filler(16, 6) + uvarint(partitions + 1) + partition * partitions + b"\0"
    start += topics
    node_tags, our_tags, uncharged, ids = _endpoint_tags(plan, around, header_end + len(start))
    return Body(start + node_tags, start + our_tags, 0, uncharged, ids, tail_at=len(start))


def _metadata_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    version, flexible = head.version, head.version >= 9
    ids = _node_ids(plan)
    rack = b"" if version == 0 else text(b"rack", flexible)
    after = b"\0" if flexible else b""
    throttle = pack(">i", plan.throttle_ms) if version >= 3 else b""

    def body(address: object, left_out: Sequence[int] = ()) -> tuple[bytes, bytes]:
        entries = [_endpoint(i, address(i), flexible) + rack + after for i in ids if i not in left_out]
        nodes = throttle + count(len(entries), flexible) + b"".join(entries)
        return nodes, _topics_of_metadata(version, plan, ids, left_out)

    (nodes, rest), (our_nodes, our_rest) = body(theirs), body(around.ours, around.portless)
    return Body(nodes + rest, our_nodes + our_rest, 0 if throttle else -1, nodes=ids, decided_at=len(nodes))


def _topics_of_metadata(version: int, plan: ResponsePlan, ids: Sequence[int], left_out: Sequence[int]) -> bytes:
    """What comes after the nodes: a controller, and partitions with leaders, except nodes that are left out."""
    flexible = version >= 9
    after = b"\0" if flexible else b""

    def known(node_id: int) -> int:
        return -1 if node_id in left_out and ids else node_id

    def partition(index: int) -> bytes:
        leader = [*ids, -1][index % (len(ids) + 1)]
        error = 5 if leader in (-1, *left_out) else 0
        replicas = count(len(ids), flexible) + b"".join(pack(">i", i) for i in ids)
        made = pack(">hii", error, index, known(leader)) + (pack(">i", 1) if version >= 7 else b"")
        return made + replicas * (3 if version >= 5 else 2) + after

    some = [partition(index) for index in range(len(ids) + 1)]
    partitions = 1 + plan.filler_bytes // len(some[0])
    records = (b"".join(some) * (partitions // len(some) + 1))[: partitions * len(some[0])]
    topic = pack(">h", 0) + text(b"topic", flexible) + (filler(16, 9) if version >= 10 else b"")
    topic += (b"\0" if version else b"") + count(partitions, flexible) + records
    topic += (pack(">i", 1) if version >= 8 else b"") + after
    start = (text(b"cluster", flexible) if version >= 2 else b"") + (pack(">i", known(1)) if version else b"")
    end = (pack(">i", 2) if 8 <= version <= 10 else b"") + (pack(">h", 0) if version >= 13 else b"")
    return start + count(1, flexible) + topic + end + (tags(plan.tag_bytes) if flexible else b"")


def _find_coordinator_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    version, flexible = head.version, head.version >= 3
    throttle = pack(">i", plan.throttle_ms) if version >= 1 else b""
    ids = _node_ids(plan)

    def place(node_id: int, address: object, left_out: Sequence[int]) -> tuple[bytes, bytes]:
        if node_id in left_out:
            return pack(">h", 15), _endpoint(-1, (b"", -1), flexible)
        return pack(">h", 0), _endpoint(node_id, address(node_id), flexible)

    def body(address: object, left_out: Sequence[int] = ()) -> bytes:
        if version >= 4:
            places = (place(i, address, left_out) for i in ids)
            coordinators = (text(b"group", True) + found + error + text(None, True) + b"\0" for error, found in places)
            return throttle + count(len(ids), True) + b"".join(coordinators) + tags(plan.tag_bytes)
        nobody = pack(">h", 0), _endpoint(-1, (b"", -1), flexible)
        error, found = place(1, address, left_out) if ids else nobody
        message = text(None, flexible) if version >= 1 else b""
        return throttle + error + message + found + (tags(plan.tag_bytes) if flexible else b"")

    named = ids if version >= 4 else ids[:1]
    return Body(body(theirs), body(around.ours, around.portless), 0 if throttle else -1, nodes=named)


def _describe_cluster_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    version = head.version
    ids = _node_ids(plan)
    start = pack(">ih", plan.throttle_ms, 0) + text(None, True) + (b"\x01" if version >= 1 else b"")
    start += text(b"cluster", True)
    fenced = b"\0" if version >= 2 else b""

    def brokers(address: object, left_out: Sequence[int] = ()) -> bytes:
        controller = pack(">i", -1 if 1 in left_out and ids else 1)
        entries = [_endpoint(i, address(i), True) + text(None, True) + fenced + b"\0" for i in ids if i not in left_out]
        return start + controller + count(len(entries), True) + b"".join(entries) + pack(">i", 0) + tags(plan.tag_bytes)

    return Body(brokers(theirs), brokers(around.ours, around.portless), 0, nodes=ids)


def _api_versions_body(head: Head, plan: ResponsePlan, around: Surroundings, header_end: int) -> Body:
    version, flexible = head.version, head.version >= 3
    tag = tags(plan.tag_bytes % 60) if flexible else b""
    offered = [(key, 0, 3 + (key + plan.filler_bytes) % 14) for key in (*range(plan.filler_bytes % 80), 999)]
    carried = [entry for entry in map(_carried, offered) if entry is not None]
    named = {key for key, _, _ in offered}
    added = [entry for entry in PROXYS_OWN if entry[0] not in named]

    def body(entries: list[tuple[int, int, int]], ours: list[tuple[int, int, int]]) -> bytes:
        written = {entry: pack(">hhh", *entry) + tag for entry in entries}
        written |= {entry: pack(">hhh", *entry) + (b"\0" if flexible else b"") for entry in ours}
        in_order = sorted(written) if ours else written
        return pack(">h", 0) + count(len(written), flexible) + b"".join(written[entry] for entry in in_order)

    rest = tags(plan.tag_bytes) if flexible else b""
    throttle = pack(">i", plan.throttle_ms) if version >= 1 else b""
    ours = body(carried, added)
    return Body(body(offered, []) + throttle + rest, ours + throttle + rest, len(ours) if throttle else -1)


def _carried(entry: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """An entry of ApiVersions cut to what the table has for clients; a broker's minimum of 0 for Produce stays."""
    key, least, most = entry
    api = APIS.get(key)
    if api is None or "broker" not in api.listeners:
        return None
    least, most = max(least, 0 if key == PRODUCE else api.min_version), min(most, api.max_version)
    return (key, least, most) if least <= most else None


_BODIES = {
    PRODUCE: _produce_body,
    FETCH: _fetch_body,
    METADATA: _metadata_body,
    FIND_COORDINATOR: _find_coordinator_body,
    API_VERSIONS: _api_versions_body,
    DESCRIBE_CLUSTER: _describe_cluster_body,
}

OTHER_APIS = tuple(
    key
    for key, api in APIS.items()
    if api.throttle_offset >= 0
    and not any(api.shapes)
    and "broker" in api.listeners
    and key not in OWN_KEYS
    and key not in MUTATIONS
)
"""APIs whose responses are opaque except for a throttle time at a fixed place."""
