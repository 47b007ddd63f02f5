"""The JSON of the API's responses.

docs/reference/openapi.json is made from these types and from the texts below their fields.
"""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

EntityForm = Annotated[
    dict[str, str | None],
    Field(
        description="An entity as in Kafka's protocol: names by entity type (user, client-id, ip); null: the default."
    ),
]

LimitValue = Annotated[
    int | float | None, Field(description="The limit in the unit of the quota type; null: no limit.")
]


class ErrorForm(TypedDict):
    """An error."""

    error: str
    """What was expected of the request, and what it was instead."""


class OriginForm(TypedDict):
    """Where the quotas of a virtual cluster come from."""

    virtual_cluster: str
    """The name of the virtual cluster."""

    source: str
    """The source of its quotas: file, zookeeper or upstream."""

    known: bool
    """Whether the quotas are known. They are not before their source was read for the first time."""

    problems: dict[str, str]
    """The problems of the source, by place; at most 100."""


class LimitForm(TypedDict):
    """A limit and its layer."""

    limit: LimitValue
    layer: str
    """The file, znode or other place that the limit comes from."""

    scope: str
    """node: each node has the whole limit, as in Kafka; cluster: it is one limit over all nodes."""


class EntityQuotasForm(TypedDict):
    """The quotas of one entity."""

    entity: EntityForm
    limits: dict[str, LimitForm]
    """By quota, such as producer_byte_rate; shadow quotas begin with shadow_."""


class QuotasPage(OriginForm):
    """A part of the quotas in force."""

    total: int
    """How many entities have quotas."""

    offset: int
    """How many entities come before those in this response."""

    quotas: list[EntityQuotasForm]
    """The entities. They have no special order; it stays the same until the quotas change."""


class CapForm(TypedDict):
    """What a byte cap lets through, and what it delays."""

    virtual_cluster: str
    """The name of the virtual cluster."""

    listener: str
    """The listener; "" is the cap of the whole virtual cluster."""

    direction: str
    """ingress (from clients) or egress (to clients)."""

    limit: int | None
    """In bytes/s; null: it had a limit, and has none now."""

    read_bytes: int
    """The bytes that were read."""

    waits: int
    """How many reads had to wait."""

    waited_ms: int
    """For how long, added up."""

    waiting: int
    """How many reads wait now."""


class CapsPage(TypedDict):
    """The byte caps of a virtual cluster."""

    virtual_cluster: str
    """The name of the virtual cluster."""

    caps: list[CapForm]
    """The caps."""


class CostForm(TypedDict):
    """What one kind of request costs a node."""

    base_us: float
    """Thread time of each request, in microseconds."""

    per_kib_us: float
    """Thread time of each KiB of the request and its response, in microseconds."""

    origin: str
    """pinned (by the configuration), learned (from the node), or shipped (with the proxy)."""

    samples: int
    """How many measurements it was learned from."""


class NodeCostsForm(TypedDict):
    """What requests cost at one node."""

    node_id: int
    """The node."""

    floor_us: float
    """The least time in which the node responds, in microseconds."""

    apis: dict[str, CostForm]
    """By the name of the API in Kafka's protocol."""


class CostsPage(TypedDict):
    """What requests cost, by the model that limits request times."""

    virtual_cluster: str
    """The name of the virtual cluster."""

    nodes: list[NodeCostsForm]
    """The nodes, by id."""


class BucketForm(TypedDict):
    """A token bucket."""

    tokens: float
    """The tokens in it; below 0 the client is throttled."""

    burst: float
    """The most tokens that it can have."""


class ThrottlingRuleForm(TypedDict):
    """The rule that throttles a client."""

    quota: str
    """The quota, such as producer_byte_rate."""

    entity: EntityForm
    level: int
    """The level of precedence: 1 comes first."""

    source: str
    """The source of the quotas: file, zookeeper or upstream."""

    layer: str | None
    """The file, znode or other place that the limit comes from; null: the quota was removed after the throttle."""


class ThrottledForm(TypedDict):
    """A client that is throttled by one quota at one node."""

    virtual_cluster: str
    """The name of the virtual cluster."""

    user: str
    """The user of the client."""

    client_id: str
    """Its client-id."""

    ip: str
    """The address of the first of its connections that was throttled."""

    node_id: int
    """The node."""

    quota_type: str
    """As in logs and metrics; node: the node throttles by itself."""

    unit: str | None
    """The unit of the limit and the rate; null: the node throttles by itself."""

    rule: ThrottlingRuleForm | None
    """The rule; null: the node throttles by itself."""

    limit: LimitValue
    share: float | None
    """The part of the limit that this instance enforces; null: it has no fleet, or the quota was removed meanwhile."""

    rate: float | None
    """What is measured now; null for token buckets and where nothing is measured any more."""

    bucket: BucketForm | None
    """What is measured now of controller mutations."""

    left_ms: int
    """How much longer the client is muted, in ms; 0 between two throttles."""

    since: str
    """When the throttle began (RFC 3339, UTC)."""

    throttles: int
    """How many throttles there were since then."""

    throttled_ms: int
    """For how long its connections were muted since then, added up."""

    connections: int
    """How many of its connections are throttled."""


class ThrottledPage(TypedDict):
    """The clients that are throttled now."""

    sort: str
    """The order: the parameter of this name."""

    clients: int
    """How many clients (users with a client-id) are throttled, each counted once."""

    total: int
    """How many lines there are: one for each client, quota and node."""

    more: int
    """How many of them are not in this response."""

    throttled: list[ThrottledForm]
    """The first lines in this order."""

    quotas_unknown: list[OriginForm]
    """The virtual clusters whose quotas are not known yet."""

    connections: int
    """How many connections of clients are open."""

    entities: int
    """How many entities have quotas that throttle; shadow quotas do not."""

    other_instances: bool
    """Whether other instances serve clients with the same quotas: their clients are not in this response."""


class ClientForm(TypedDict):
    """The client that is explained."""

    user: str
    """The user."""

    client_id: str
    """The client-id as it is measured: a very long one is cut."""

    ip: str | None
    """The address; null: quotas of addresses are left out."""


class RuleForm(LimitForm):
    """A quota that covers the client."""

    entity: EntityForm
    level: int
    """The level of precedence: 1 comes first."""


class OverriddenRuleForm(RuleForm):
    """A quota that covers the client and does not bind it."""

    why: str
    """Why it does not bind the client."""


class TagsForm(TypedDict):
    """What a client is measured under."""

    user: str
    """The user; "" for all users together."""

    client_id: str
    """The client-id; "" for all client-ids together."""


class ClaimForm(TypedDict):
    """What another instance of the fleet claims of a limit; parts of the limit, 1 is all of it."""

    instance: str
    """The member of the fleet: the name of the instance, and a number that is another one after each of its starts."""

    claim: float
    """What it claims."""

    demand: float
    """What it wants."""


class ShareForm(TypedDict):
    """The part of a limit that this instance of a fleet enforces, and why; 1 is all of the limit."""

    share: float
    """What this instance enforces."""

    why: str
    """Why it is that share."""

    claim: float | None
    """What it claims; null: nothing."""

    demand: float | None
    """What it wants, if it claims something."""

    others_claim: float
    """What the other instances claim, together."""

    others: list[ClaimForm]
    """The other instances that claim something, the largest claim first; at most 20."""


class UseForm(TypedDict):
    """What one sensor measures now."""

    node_id: int | None
    """The node; null: all nodes together."""

    limit: LimitValue
    """What is enforced: in a fleet, the share of this instance."""

    throttles: int
    """How many throttles it caused."""

    throttled_ms: int
    """How long they were, added up."""

    capped: int
    """How many of them were cut to throttle.max_throttle_ms."""

    shared_by: EntityForm | None
    """The entity whose new clients share this sensor, because the table of sensors was full."""

    share: ShareForm | None
    """The share of this instance; null: the virtual cluster has no fleet, or nothing of it is divided."""


class RateUseForm(UseForm):
    """What the sensor of a rate measures now."""

    rate: float
    """The rate."""

    debt_ms: int
    """What is owed from earlier throttles, in ms."""


class BucketUseForm(UseForm):
    """What a token bucket has now."""

    bucket: BucketForm | None
    """The bucket; null: it has no limit."""

    refusals: int
    """How many requests it refused."""


class ThrottleForm(TypedDict):
    """One throttle, or several equal ones one after the other."""

    at: str
    """When it was (RFC 3339, UTC)."""

    left_ms: int
    """How much longer it mutes the client, in ms."""

    throttle_time_ms: int
    """How long it is."""

    user: str
    """The user of the client."""

    client_id: str
    """Its client-id."""

    ip: str
    """Its address."""

    node_id: int
    """The node."""

    entity: EntityForm | None
    rate: float | None
    """What was measured; null for token buckets, and if the node throttles by itself."""

    limit: LimitValue
    tokens: float | None
    """The tokens of a token bucket."""

    throttles: int
    """How many throttles of this client there were so far."""


class ExplanationForm(TypedDict):
    """Why one quota of a client is what it is."""

    quota: str
    """The quota, such as producer_byte_rate; shadow quotas begin with shadow_."""

    unit: str
    """The unit of limits and rates."""

    enforced: bool
    """Whether it throttles; shadow quotas are only measured."""

    rule: RuleForm | None
    """The rule that binds the client; null: none does."""

    overridden: list[OverriddenRuleForm]
    """Rules that cover the client, and do not bind it."""

    measured_as: TagsForm | None
    """What the client is measured under; null: it is not measured."""

    shared_by: str
    """Which clients are measured together, in words."""

    notes: list[str]
    """Further remarks, in words."""

    use: list[RateUseForm | BucketUseForm]
    """What is measured now, at each node where something is."""

    throttles: list[ThrottleForm]
    """The latest throttles of all clients that are measured together, the latest first; at most 10."""


class ExplainedCapForm(TypedDict):
    """A byte cap, for all clients together."""

    listener: str
    """The listener; "" is the cap of the whole virtual cluster."""

    direction: str
    """ingress (from clients) or egress (to clients)."""

    limit: int
    """In bytes/s."""

    waits: int | None
    """How many reads had to wait."""

    waited_ms: int | None
    """For how long, added up."""

    waiting: int | None
    """How many reads wait now."""


class ExplainedClientForm(TypedDict):
    """A client, its quotas, and why they apply."""

    client: ClientForm
    throttled: bool
    """Whether it is throttled now."""

    quotas: list[ExplanationForm]
    """One for each quota type, and for each shadow quota."""

    node_throttles: list[ThrottleForm]
    """The latest throttles of this client by nodes themselves, the latest first; at most 10."""


class ExplanationPage(OriginForm, ExplainedClientForm):
    """The quotas of a client, and why they apply. If the request fits several clients, of the first one of them."""

    live: bool
    """Whether this comes from a running proxy, with what it has measured."""

    others: list[ExplainedClientForm]
    """The other clients that fit the request: throttled ones come first, then those that are connected; at most 9."""

    more: int
    """How many further clients fit the request."""

    notes: list[str]
    """Remarks about the client, in words: for example that no client fits the request."""

    caps: list[ExplainedCapForm]
    """The byte caps that delay the client together with all others."""


# --------------------------------------------------------------------- the past


class PastThrottledForm(ThrottledForm):
    """A client that was throttled in a second of the past by one quota at one node.

    `throttles` and `throttled_ms` are those of this second, and `left_ms` is as of its end.
    """

    given_ms: int
    """The throttle time that these throttles gave, added up."""

    charged: float | None
    """What was charged in this second for all clients that are measured together; null: not known."""


class OthersForm(TypedDict):
    """The sums of all lines that are not in a response."""

    throttles: int
    """How many throttles there were."""

    given_ms: int
    """The throttle time that they gave."""

    throttled_ms: int
    """For how long clients were muted."""


class WhenForm(TypedDict):
    """A second of the past."""

    at: str
    """The second (RFC 3339, UTC)."""

    until: str
    """The last second, if several were recorded together."""

    skipped: int
    """How many damaged records were skipped."""


class PastThrottledPage(WhenForm):
    """The clients that were throttled in a second of the past."""

    precision: str
    """second: to the second."""

    sort: str
    """The order: throttled."""

    clients: int
    """How many clients (users with a client-id) were throttled, each counted once."""

    total: int
    """How many lines there are: one for each client, quota and node."""

    more: int
    """How many of them are not in this response."""

    others: OthersForm
    throttled: list[PastThrottledForm]
    """The first lines, those of clients that were muted for longest."""

    quotas_unknown: list[OriginForm]
    """The virtual clusters whose quotas were not known then."""


class ChangeForm(TypedDict):
    """A change of a quota."""

    at: str
    """When it came into force (RFC 3339, UTC)."""

    entity: EntityForm
    old: LimitValue
    new: LimitValue
    layer: str | None
    """The file, znode or other place that the new limit comes from; null: the quota was removed."""

    scope: str | None
    """The new scope, node or cluster; null: the quota was removed."""


class OperationForm(TypedDict):
    """One operation on a sensor, from a trace."""

    at: str
    """When it was (RFC 3339, UTC)."""

    operation: str
    """What was done, as in traces."""

    value: float
    """The value, in the unit of the quota."""

    throttle_time_ms: int
    """The throttle time that it gave."""

    limit: float | None
    """The limit of the sensor."""

    node_id: int
    """The node."""

    user: str
    """The user that the sensor measures."""

    client_id: str
    """The client-id that it measures."""

    requests: int
    """How many requests it stands for."""


class OperationsForm(TypedDict):
    """The operations on the sensors of a quota in a second of the past."""

    precision: str
    """exact: from a trace; second: to the second."""

    operations: list[OperationForm]
    """The operations, from a trace; at most 100."""

    more_operations: int
    """How many more there were."""


class PastExplanationForm(ExplanationForm, OperationsForm):
    """Why one quota of a client was what it was."""

    changes: list[ChangeForm]
    """The last change of this quota of each entity that covers the client, as far as it is kept."""

    throttled: list[PastThrottledForm]
    """Who was throttled by this quota, of all clients that were measured together."""


class PastExplainedClientForm(TypedDict):
    """A client and its quotas in a second of the past."""

    precision: str
    """exact: a part of it is from a trace; second: to the second."""

    client: ClientForm
    quotas: list[PastExplanationForm]
    """One for each quota type, and for each shadow quota."""

    node_throttled: list[PastThrottledForm]
    """Throttles of this client by nodes themselves."""


class PastExplanationPage(OriginForm, WhenForm, PastExplainedClientForm):
    """The quotas of a client in a second of the past. If the request fits several clients, of the first one of them."""

    live: bool
    """false."""

    others: list[PastExplainedClientForm]
    """The other clients that fit the request and were throttled in this second: those that were muted for longest come
    first; at most 9."""

    more: int
    """How many further clients of them there are."""

    node_throttles: list[ThrottleForm]
    """Empty."""

    caps: list[ExplainedCapForm]
    """Empty."""

    notes: list[str]
    """Further remarks, in words."""
