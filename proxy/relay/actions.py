"""The inputs and outputs of a relay: plain data, so that another implementation of the relay can take its place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final

from kafka_throttle.protocol.api_key import DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.protocol.frames import INT32_MAX
from kafka_throttle.protocol.splices import Splice
from kafka_throttle.protocol.walk import Walk
from kafka_throttle.proxy.relay.memory import Holding
from kafka_throttle.proxy.side import QuickEnum, Side
from kafka_throttle.quotas.entities import QuotaType

OWN_REQUEST_ID: Final = -0x6B74
"""The correlation id of the proxy's own requests. A client may use it too: responses keep their order."""


class CloseReason(QuickEnum):
    """Why a connection ended. The log line and the metric label have the value."""

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
    RESPONSE_NOT_KAFKA = "response_not_kafka"
    RESPONSE_TOO_LARGE = "response_too_large"
    RESPONSE_MALFORMED = "response_malformed"
    RESPONSE_UNEXPECTED = "response_unexpected"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    REQUEST_TIMEOUT = "request_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLIENT_READS_NOTHING = "client_reads_nothing"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    QUOTAS_UNKNOWN = "quotas_unknown"
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
    """What a relay needs a decision about.

    - ADDRESSES, API_VERSIONS: `frame` is a response, or its first MAX_HEAD_BYTES, or as much of it as an earlier
      decision needed (`more`). The decision carries splices, or how much of the response it needs.
    - QUOTA_API: `frame` is a whole request to describe or alter quotas; the decision carries the response.
    - MUTATION: `frame` is a whole request to create or delete topics or to add partitions, or the whole response to
      one. It is empty when a request that was charged was never sent to the node. The decision carries requests that
      the proxy must send first, or splices or a response, and how long the client is muted.
    - SCRAM_CREDENTIALS: `frame` is a whole request to describe SCRAM credentials, or the whole response to one.
    - SASL: `frame` is a whole frame of an authentication. It is empty when a request follows an exchange and the node
      has not shown that the exchange is over. The decision carries the state of the exchange, or requests that the
      proxy must send first.
    """

    ADDRESSES = "addresses"
    API_VERSIONS = "api_versions"
    QUOTA_API = "quota_api"
    MUTATION = "mutation"
    SCRAM_CREDENTIALS = "scram_credentials"
    SASL = "sasl"


class Exchange(Enum):
    """The state of a SASL exchange, as far as it matters to a relay.

    - BEGUN: requests follow that hold tokens.
    - TOKENS: bare tokens follow, and each has a response.
    - OPAQUE_TOKENS: bare tokens follow, and the last one may have no response.
    - ONGOING: a token had its response, and the exchange is not over.
    - UNPROVEN: a token had its response, and that may have been the last one. Here, and after opaque tokens, the node
      shows that the exchange has succeeded when it responds to a request of the proxy.
    - SUCCEEDED: the node has accepted the client.
    - FAILED: the node has refused the client.
    - OUT_OF_PLACE: the node does not expect an authentication now.
    """

    BEGUN = "begun"
    TOKENS = "tokens"
    OPAQUE_TOKENS = "opaque_tokens"
    ONGOING = "ongoing"
    UNPROVEN = "unproven"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OUT_OF_PLACE = "out_of_place"


class Send:
    """Write `pieces` to `side`, in order."""

    __slots__ = ("pieces", "side")
    __match_args__: ClassVar[tuple[str, str]] = ("side", "pieces")

    def __init__(self, side: Side, pieces: Sequence[bytes | memoryview]) -> None:
        self.side = side
        self.pieces = pieces


@dataclass(slots=True)
class DecisionRequest:
    """Ask for a decision. The direction that it is about waits until `on_decision(ticket, ...)`; the other one goes on.

    The decision is given after all actions of the same list have been carried out, or later. For a request, `client_id`
    is the raw client id of its header, its body begins at `body_at` in `frame`, and `own_responses` are the responses
    to the requests that an earlier decision had the proxy send. For a response, `note` is what the decision about its
    request noted.
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
    note: Any = None

    @property
    def settles(self) -> bool:
        """Whether the decision corrects what was charged. It is made even if the connection no longer waits for it."""
        return self.kind is DecisionKind.MUTATION and self.side is Side.NODE

    @property
    def only_reports(self) -> bool:
        """Whether the decision has no side effect that matters: it can be skipped when nothing waits for it."""
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
    """Call `on_time` at this monotonic time. It replaces an earlier WakeAt."""

    at_ms: int


@dataclass(slots=True, frozen=True)
class OpenUpstream:
    """Connect to the node of this relay; `on_writable(NODE)` reports that the connection is there.

    `mark` is the correlation id of the first request if that has the client-id of a proxy: it says of which proxy.
    """

    mark: int | None = field(default=None, compare=False)


@dataclass(slots=True, frozen=True)
class AwaitMemory:
    """The relay waits for room in the memory that it shares with others: have `holding.wake` call `on_memory`."""

    holding: Holding


@dataclass(slots=True)
class Throttled:
    """Reports that the client is muted from now for `throttle_time_ms`, by which quota (None: the node's own throttle).

    `client_id` is the raw client id of the request that exceeded the quota.
    """

    quota_type: QuotaType | None
    throttle_time_ms: int
    client_id: bytes


@dataclass(slots=True)
class Close:
    """Write out what was sent to both sides, then close both. The relay sends nothing more.

    While the relay is `unsettled` the node is still read, and its bytes are given to the relay.
    """

    reason: CloseReason
    detail: str = ""


@dataclass(slots=True, frozen=True)
class HangUp:
    """Comes after a Close: the connection to the node is no longer needed."""


Action = Send | DecisionRequest | Pause | Resume | WakeAt | OpenUpstream | AwaitMemory | Throttled | Close | HangUp


@dataclass(slots=True)
class Decision:
    """The result of a DecisionRequest: forward the frame, respond to the request, or close the connection.

    - `splices`: the changes to the frame that is forwarded, in its own offsets.
    - `throttle_at`: where the throttle time is in the response that the decision is about; -1 if it has none.
    - `response`: the whole response to the request that the decision is about. It goes out when its turn comes.
    - `own_requests`: requests of the proxy that must be sent to the node first. The same DecisionRequest then comes
      again with their responses.
    - `note`: if there is one, the response to the request needs a decision, too, and the note comes with it.
    - `throttle_time_ms`: how long from now the client is muted for its controller mutations.
    - `refused`: how many controller mutations were refused.
    - `exchange`: the state of the SASL exchange.
    - `rest`: continues the walk over a response to Metadata, and finds partitions whose leader was left out.
    - `more`: how many bytes of the response must be here before the decision is asked for again.
    """

    splices: tuple[Splice, ...] = ()
    throttle_at: int = -1
    response: bytes | None = None
    close: Close | None = None
    own_requests: tuple[bytes, ...] = ()
    note: Any = None
    throttle_time_ms: int = 0
    refused: int = 0
    exchange: Exchange | None = None
    rest: Walk | None = None
    more: int = 0


@dataclass(slots=True, frozen=True)
class RelayLimits:
    """The limits of one relay, and how it throttles.

    - `max_frame_bytes`, `max_response_bytes`: the largest request and response, without length prefix.
    - `max_in_flight`: how many requests may wait for their responses.
    - `max_kept_bytes`: if more bytes are stored for requests in flight (responses of the proxy, long client ids, notes
      about mutations), no further request is taken until all of them have their responses.
    - `withholds`: the response to a Fetch over quota is replaced by an empty one, as a broker does, unless the Fetch
      was sent before there was a quota. Otherwise Fetches are paced: they wait for room, and what they bring goes out.
    - `delays`: responses are delayed until the mute is over, as brokers before 2.0 do. Clients that would wait again
      get no throttle time of the proxy.
    - `max_throttle_ms`: the longest throttle of a node's own that is obeyed and passed on.
    - `authenticates`: the node requires SASL. Before an authentication has succeeded, only what belongs to it may pass,
      and it is not charged.
    """

    max_frame_bytes: int = 104_857_600
    max_response_bytes: int = INT32_MAX
    max_in_flight: int = 1000
    max_kept_bytes: int = 262_144
    withholds: bool = False
    delays: bool = False
    authenticates: bool = False
    max_throttle_ms: int = INT32_MAX
