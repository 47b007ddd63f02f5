"""What goes into a relay and what comes out: plain data, so that a relay of another make can take its place."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from protocol.api_key import DESCRIBE_CLIENT_QUOTAS
from protocol.frames import INT32_MAX
from protocol.splices import Splice
from protocol.walk import Walk
from proxy.side import QuickEnum, Side
from quotas.changes import Alteration
from quotas.entities import QuotaType

OWN_REQUEST_ID: Final = -0x6B74
"""The correlation id of the proxy's own requests. A client may use it too: responses keep their order."""


class CloseReason(QuickEnum):
    """Why a connection ended; log line and metric label use the value."""

    CLIENT_CLOSED = "client_closed"
    CLIENT_LOST = "client_lost"
    CLIENT_SENT_NOTHING = "client_sent_nothing"
    NODE_CLOSED = "node_closed"
    NODE_LOST = "node_lost"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_UNKNOWN = "node_unknown"
    NODE_PACED = "node_paced"
    NODE_GONE = "node_gone"
    REQUEST_NOT_KAFKA = "request_not_kafka"
    REQUEST_TOO_LARGE = "request_too_large"
    REQUEST_MALFORMED = "request_malformed"
    UNSUPPORTED_API = "unsupported_api"
    UNSUPPORTED_VERSION = "unsupported_version"
    ANSWER_NOT_KAFKA = "answer_not_kafka"
    ANSWER_TOO_LARGE = "answer_too_large"
    ANSWER_MALFORMED = "answer_malformed"
    ANSWER_UNEXPECTED = "answer_unexpected"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    REQUEST_TIMEOUT = "request_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLIENT_READS_NOTHING = "client_reads_nothing"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    PROXY_PEER_UNTRUSTED = "proxy_peer_untrusted"
    PROXY_HEADER_MISSING = "proxy_header_missing"
    PROXY_HEADER_MALFORMED = "proxy_header_malformed"
    PROXY_HEADER_TIMEOUT = "proxy_header_timeout"
    TOO_MANY_PROXY_HEADERS = "too_many_proxy_headers"
    TOO_MANY_FROM_IP = "too_many_from_ip"
    TOO_MANY_OF_USER = "too_many_of_user"
    IP_RATE_EXCEEDED = "ip_rate_exceeded"
    TOO_MANY_HELD = "too_many_held"
    TLS_EXPECTED = "tls_expected"
    TLS_UNEXPECTED = "tls_unexpected"
    TLS_FAILED = "tls_failed"
    TLS_REFUSED_BY_CLIENT = "tls_refused_by_client"
    TLS_HANDSHAKE_TIMEOUT = "tls_handshake_timeout"
    TOO_MANY_HANDSHAKES = "too_many_handshakes"
    CLIENT_CERTIFICATE_MISSING = "client_certificate_missing"
    CLIENT_CERTIFICATE_EXPIRED = "client_certificate_expired"
    CLIENT_CERTIFICATE_UNTRUSTED = "client_certificate_untrusted"
    NO_PRINCIPAL_RULE = "no_principal_rule"
    SERVER_NAME_UNKNOWN = "server_name_unknown"
    SERVER_NAME_MISSING = "server_name_missing"
    NODE_CERTIFICATE_REFUSED = "node_certificate_refused"
    NODE_TLS_FAILED = "node_tls_failed"
    SHUTDOWN = "shutdown"
    NOT_AUTHENTICATED = "not_authenticated"
    AUTHENTICATION_FAILED = "authentication_failed"
    INTERNAL_ERROR = "internal_error"


class DecisionKind(QuickEnum):
    """What somebody else must decide.

    ADDRESSES, API_VERSIONS: `frame` is a response, or the first MAX_HEAD_BYTES of it; the decision carries splices, or
    says how many more bytes it takes.
    QUOTA_API: `frame` is a whole request to describe or alter quotas; the decision carries the response.
    MUTATION: `frame` is a whole request to create or delete topics or to add partitions, or the whole response to one;
    it is empty where a request that was charged never went to the node. The decision carries what is to be enquired
    first, or splices or a response and what that costs the client.
    SCRAM_CREDENTIALS: `frame` is a whole request to describe SCRAM credentials, or the whole response to one.
    SASL: `frame` is a whole frame of an authentication, or is empty: a request comes behind an exchange whose end the
    node did not tell. The decision says where the exchange stands, or what is to be enquired first.
    """

    ADDRESSES = "addresses"
    API_VERSIONS = "api_versions"
    QUOTA_API = "quota_api"
    MUTATION = "mutation"
    SCRAM_CREDENTIALS = "scram_credentials"
    SASL = "sasl"


class Exchange(Enum):
    """Where a SASL exchange stands, as far as it matters to a relay.

    BEGUN: requests follow that hold tokens. TOKENS: bare tokens follow, each is answered by one. OPAQUE_TOKENS: so they
    do, but the last may get no response. ONGOING: a token was answered. UNPROVEN: it was, and perhaps was the last; as
    behind opaque tokens, a request of our own that is answered shows that it was. SUCCEEDED: the client is who it is
    said to be by now. FAILED: it is not. OUT_OF_PLACE: the node sees no reason for an authentication now.
    """

    BEGUN = "begun"
    TOKENS = "tokens"
    OPAQUE_TOKENS = "opaque_tokens"
    ONGOING = "ongoing"
    UNPROVEN = "unproven"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OUT_OF_PLACE = "out_of_place"


@dataclass(slots=True)
class Send:
    """Write `pieces` to `side`, in order."""

    side: Side
    pieces: Sequence[bytes | memoryview]


@dataclass(slots=True)
class DecisionRequest:
    """Have somebody decide; that direction waits until `on_verdict(ticket, ...)`, the other goes on.

    The decision is given after all actions of the same list have been carried out, or later. About a request,
    `client_id` is the raw one of its header, its body begins at `body_at` in `frame`, and `own_responses` are the
    responses to what an earlier decision wanted to know. About a response, `note` is what the decision on its request
    noted.
    """

    ticket: int
    kind: DecisionKind
    side: Side
    api_key: int
    api_version: int
    frame: bytes = field(repr=False)
    client_id: bytes = b""
    body_at: int = 0
    own_responses: tuple[bytes, ...] = ()
    note: object = None

    @property
    def settles(self) -> bool:
        """Whether it corrects what was charged: this is decided although nobody waits for the decision any more."""
        return self.kind is DecisionKind.MUTATION and self.side is Side.NODE

    @property
    def only_tells(self) -> bool:
        """Whether nothing comes of it but the decision: it need not be decided any more where nobody waits for that."""
        return self.kind is DecisionKind.ADDRESSES or self.api_key == DESCRIBE_CLIENT_QUOTAS


@dataclass(slots=True, frozen=True)
class Pause:
    """Stop reading from `side`."""

    side: Side


@dataclass(slots=True, frozen=True)
class Resume:
    """Read from `side` again."""

    side: Side


@dataclass(slots=True)
class WakeAt:
    """Call `on_time` at this monotonic time; takes the place of an earlier wish."""

    at_ms: int


@dataclass(slots=True, frozen=True)
class OpenUpstream:
    """Connect to the node of this relay; `on_writable(NODE)` says that it stands."""


@dataclass(slots=True)
class Throttled:
    """Tells that the client is muted: by which quota (None: the node's own throttle), for how long from now.

    `client_id` is the raw one of the request that was too much.
    """

    quota_type: QuotaType | None
    throttle_time_ms: int
    client_id: bytes


@dataclass(slots=True)
class Close:
    """Write out what was sent to either side, then close both. The relay sends nothing more.

    While the relay is `unsettled` the node is read on, and its bytes are given to the relay.
    """

    reason: CloseReason
    detail: str = ""


@dataclass(slots=True, frozen=True)
class HangUp:
    """Behind a Close: nothing more is wanted of the node."""


Action = Send | DecisionRequest | Pause | Resume | WakeAt | OpenUpstream | Throttled | Close | HangUp


@dataclass(slots=True)
class Decision:
    """The response to a DecisionRequest: forward (with splices in the frame's own offsets), answer, or close.

    `throttle_at` is where the throttle time stands in the response that was asked about, -1 if it has none. `response`
    is the whole frame that answers the request that was asked about; it goes out when its turn comes.

    `own_requests` are requests of the proxy's own, to be sent to the node first; their responses come with the same
    DecisionRequest again. With a `note` the response to the request is asked about, too. `throttle_time_ms` is for how
    long from now the client is muted for its controller mutations, `refused` how many of them were. `exchange` is about
    SASL.
    `rest` walks on through what follows in a response, and finds what is led by nodes that clients are not told of.
    `more`: so many bytes of the response must be here, then it is asked about again.
    """

    splices: tuple[Splice, ...] = ()
    throttle_at: int = -1
    response: bytes | None = None
    close: Close | None = None
    own_requests: tuple[bytes, ...] = ()
    note: object = None
    throttle_time_ms: int = 0
    refused: int = 0
    exchange: Exchange | None = None
    rest: Walk | None = None
    more: int = 0


@dataclass(slots=True, frozen=True)
class QuotaAlteration:
    """What must be written before a DecisionRequest is answered; `reply` makes the Decision of what came of it."""

    alterations: tuple[Alteration, ...]
    client_id: str
    reply: Callable[[Sequence[Exception | None]], Generator[None, None, Decision]]


@dataclass(slots=True, frozen=True)
class SlowDecision:
    """A decision that takes long: steps of a few ms, that yield in between and return what is decided."""

    steps: Generator[None, None, Decision | QuotaAlteration]


@dataclass(slots=True, frozen=True)
class RelayLimits:
    """Bounds of one relay: frames in bytes, requests whose responses are still to come; and how it throttles.

    Where more than `max_kept_bytes` are kept for requests in flight (answers of the proxy's own, long client ids, what
    is noted of mutations), no further one is taken before all of them are answered.

    With `withholds` the response to a Fetch over quota is replaced by an empty one, as by a broker, unless the Fetch
    was sent before there was a quota; else it goes out and is charged for good. With `delays` answers
    are held until the mute is over, as by brokers before 2.0; clients that would wait again hear of no throttle time.
    With `authenticates` the node demands SASL: before a success only what belongs to that may pass, uncharged.
    """

    max_frame_bytes: int = 104_857_600
    max_response_bytes: int = INT32_MAX
    max_in_flight: int = 1000
    max_kept_bytes: int = 262_144
    withholds: bool = False
    delays: bool = False
    authenticates: bool = False
