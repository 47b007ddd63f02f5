"""How each API and version is carried: one table, made from the generated one, in which a relay looks up each frame."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kafka_throttle.protocol.api import (
    ARRAY,
    COMPACT_ARRAY,
    THROTTLE,
    Api,
    Shape,
    request_header_version,
    response_header_version,
)
from kafka_throttle.protocol.api_key import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SHARE_FETCH,
)
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.messages.client_waits import client_waits
from kafka_throttle.protocol.messages.fetch import epoch_at
from kafka_throttle.protocol.messages.sasl import BARE, SASL_APIS
from kafka_throttle.protocol.messages.topic_mutations import STRICT_SINCE, TOPIC_MUTATIONS
from kafka_throttle.protocol.primitives import Reader
from kafka_throttle.protocol.walk import Walk
from kafka_throttle.proxy.relay import use
from kafka_throttle.proxy.relay.actions import DecisionKind
from kafka_throttle.proxy.relay.costs import cost_kind, min_learning_bytes

_HEADER_BYTES: Final = 8
"""The length prefix and correlation id of a response."""

NO_THROTTLE: Final = -1
WALKED_THROTTLE: Final = -2


class ResponseKind(Enum):
    """How a response is handled.

    - PLAIN: it streams through; the throttle time, if it has one, is at a fixed place near its start.
    - HEAD: its first bytes need a decision (addresses, API versions), then the rest streams through.
    - LAST: the throttle time is its last field, and it has no addresses; collected whole when it is small.
    - TAIL: what matters comes after an array; collected whole when it is small, walked while it streams when it is
      large.
    """

    PLAIN = "plain"
    LAST = "last"
    HEAD = "head"
    TAIL = "tail"


HEAD_RESPONSES: Final = frozenset({METADATA, FIND_COORDINATOR, API_VERSIONS, DESCRIBE_CLUSTER})
"""The APIs whose responses need a decision. Other responses need one only if their last part has node endpoints."""

ASKED_REQUESTS: Final = {
    DESCRIBE_CLIENT_QUOTAS: DecisionKind.QUOTA_API,
    ALTER_CLIENT_QUOTAS: DecisionKind.QUOTA_API,
    **dict.fromkeys(TOPIC_MUTATIONS, DecisionKind.MUTATION),
    DESCRIBE_USER_SCRAM_CREDENTIALS: DecisionKind.SCRAM_CREDENTIALS,
    **dict.fromkeys(SASL_APIS, DecisionKind.SASL),
}
"""The APIs whose requests need a decision, as whole frames; those of MUTATION only if the client has a quota for
them.
"""


@dataclass(slots=True, frozen=True)
class Plan:
    """How one version of one API is carried. Offsets count from the frame's start, with empty header tags.

    - `request_header`: the version of the request's header. 0 has no client-id, 2 has tags.
    - `asked`: which kind of decision the whole request needs, if any.
    - `quick`: whether a whole small response without a throttle time can be recognised without reading it field by
      field.
    - `fetches`: whether the response is charged to the quota of consumers.
    - `epoch_at`: where the epoch of its session is in the body of a Fetch, 0 for versions without sessions. None: a
      response over quota is never replaced by an empty one.
    - `client_waits`: whether clients wait by themselves for the throttle time in the response.
    - `cost_kind`: the API whose cost is used for this one.
    - `telling_bytes`: a response of so many bytes or more shows by its time what these requests cost; None: none does.
    - `use`: the type of quota under which its usage is counted.
    """

    api_key: int
    api_version: int
    name: str
    request_header: int
    response_tags: bool
    response: ResponseKind
    throttle_at: int
    shape: Shape | None
    asked: DecisionKind | None = None
    quick: bool = False
    fetches: bool = False
    epoch_at: int | None = None
    client_waits: bool = False
    cost_kind: int = 0
    telling_bytes: int | None = None
    use: int = use.REQUEST

    @property
    def lists_to_the_end(self) -> bool:
        """Whether all of the response has addresses, as many as the request asked for."""
        return self.api_key == FIND_COORDINATOR and self.shape is not None and _has_array(self.shape)


def is_strict(plan: Plan) -> bool:
    """Whether a request about topics that exceeds its quota is refused instead of delayed (KIP-599)."""
    return plan.api_version >= STRICT_SINCE[plan.api_key]


def _plan(api: Api, api_version: int) -> Plan:
    response_tags = response_header_version(api, api_version) == 1
    shape = api.shapes[api_version - api.min_version]
    throttle_at = NO_THROTTLE
    if api_version >= api.throttle_since:
        fixed = api.throttle_offset >= 0
        throttle_at = 8 + response_tags + api.throttle_offset if fixed else WALKED_THROTTLE
    response = ResponseKind.HEAD if api.key in HEAD_RESPONSES else _kind_by_shape(shape)
    return Plan(
        api.key,
        api_version,
        api.name,
        request_header=request_header_version(api, api_version),
        response_tags=response_tags,
        response=response,
        throttle_at=throttle_at,
        shape=shape,
        asked=ASKED_REQUESTS.get(api.key),
        quick=_is_quick(api, response, throttle_at),
        fetches=api.key in (FETCH, SHARE_FETCH),
        epoch_at=epoch_at(api_version) if api.key == FETCH else None,
        client_waits=client_waits(api.key, api_version),
        cost_kind=cost_kind(api.key),
        telling_bytes=min_learning_bytes(api.key),
        use=_use(api.key),
    )


def _has_array(shape: Shape) -> bool:
    return any(op[0] in (ARRAY, COMPACT_ARRAY) for op in shape)


def _use(api_key: int) -> int:
    if api_key == PRODUCE:
        return use.PRODUCE
    return use.FETCH if api_key in (FETCH, SHARE_FETCH) else use.REQUEST


def _is_quick(api: Api, response: ResponseKind, throttle_at: int) -> bool:
    if response is ResponseKind.PLAIN:
        return throttle_at >= 0
    return response is ResponseKind.LAST or (response is ResponseKind.TAIL and api.key == PRODUCE)


def _kind_by_shape(shape: Shape | None) -> ResponseKind:
    if shape is None:
        return ResponseKind.PLAIN
    return ResponseKind.LAST if shape[-1] == (THROTTLE,) else ResponseKind.TAIL


def walk_response(plan: Plan, head: bytes, leaders: frozenset[int] = frozenset()) -> Walk:
    """Walk a response as far as `head`, its beginning, reaches. The walk looks for `leaders`. Raises ProtocolError."""
    walk = begin_walk(plan, head, leaders)
    walk.advance(head, 0)
    return walk


def begin_walk(plan: Plan, head: bytes, leaders: frozenset[int] = frozenset()) -> Walk:
    """A walk that begins where the body of a response begins. Raises ProtocolError."""
    assert plan.shape is not None
    reader = Reader(head, _HEADER_BYTES)
    if plan.response_tags:
        reader.tags()
    return Walk(plan.shape, reader.offset, leaders)


def rest_of_metadata(api_version: int, walk: Walk, leaders: frozenset[int]) -> Walk:
    """The walk that continues `walk` after the nodes of a response to Metadata, and looks for leaders."""
    return Walk(APIS[METADATA].rests[api_version], walk.tail_at, leaders)


def plan_key(api_key: int, api_version: int) -> int:
    """The key of PLANS for two int16s."""
    return api_key << 16 | api_version & 0xFFFF


PLANS: Final[dict[int, Plan]] = {
    plan_key(api.key, version): _plan(api, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
}

UNKNOWN_API_VERSIONS: Final = replace(
    PLANS[plan_key(API_VERSIONS, APIS[API_VERSIONS].max_version)],
    api_version=APIS[API_VERSIONS].max_version + 1,
)
"""An ApiVersions request of a version that the table does not have: the proxy responds to it (KIP-511)."""

SASL_TOKEN: Final = replace(PLANS[plan_key(SASL_AUTHENTICATE, 0)], api_version=BARE, name="SASL token")
"""A frame after a SaslHandshake of version 0: a length and a token, no header. Counted as SaslAuthenticate."""
