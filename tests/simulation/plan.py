"""What happens in one simulated world, decided before it begins: plain data that can be printed and cut down."""

from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_THROTTLE_MS = 2**31 - 1

AMPLE_SENSORS = 1000
"""With so many rows the table of sensors is never full."""


_LONG_DRAIN_MS = 1000


@dataclass(slots=True)
class ResponsePlan:
    """How a node responds to one request.

    `kind` is `right` or one of wire.WRONG_ANSWERS, `never` or `close`. `filler_bytes` of it are opaque, `nodes` how
    many addresses it names, `tag_bytes` the size of an unknown tagged field (0: none). Of results
    about topics the last `dropped` are missing, and `shuffled` ones are in another order than that of the request.
    """

    kind: str = "right"
    filler_bytes: int = 0
    throttle_ms: int = 0
    delay_ms: int = 0
    nodes: int = 0
    tag_bytes: int = 0
    shuffled: bool = False
    dropped: int = 0


@dataclass(slots=True)
class TopicPlan:
    """One topic of a request to create or delete topics or to add partitions.

    `by_id`: it is named by its id where the version can. `assigned` is the number of assignments (-1: null, to add
    partitions), `error` what the node responds although all is well; with error 7 it does what was asked.
    """

    name: bytes
    partitions: int = 1
    by_id: bool = False
    assigned: int = 0
    replication: int = -1
    configs: int = 0
    tag_bytes: int = 0
    error: int = 0


@dataclass(slots=True)
class EntryPlan:
    """What is to become of one entity's quotas: parts (type, name; None for the default), a value for each key or None
    to remove it.
    """

    parts: tuple[tuple[str, str | None], ...]
    limits: tuple[tuple[str, float | None], ...]


@dataclass(slots=True)
class FilterPlan:
    """Which entities are to be described: of this type, `match` 0 with this name, 1 the default, 2 any."""

    part: str
    match: int
    name: str | None = None


@dataclass(slots=True)
class TokenPlan:
    """What a frame of an authentication holds behind its header (a `bare` one: behind its length), and the response.

    `outcome` is what the response means: begun, tokens, ongoing, unproven, succeeded, failed or out_of_place. After a
    success the client is this `user`; with an unproven one the node knows whether it is `over`. A node that `hangs_up`
    closes behind its response.
    """

    data: bytes
    response: bytes
    outcome: str = "ongoing"
    user: str = ""
    bare: bool = False
    hangs_up: bool = False
    over: bool = False


@dataclass(slots=True)
class RequestPlan:
    """One request of a client. `flipped_bit` (-1: none) is turned over in the finished frame. With a `token` it is part
    of an authentication.

    `topics` are those of a request about topics; `is_own_request` is how the node responds to the proxy's own
    requests for it. `entries` are those of an alteration of quotas, which is written after `alteration_ms` and fails
    for those entries whose numbers, counted among those that are written, are in `alteration_fails`. `filters`,
    `strict`: those of a description.
    """

    api_key: int
    version: int
    correlation_id: int = 1
    client_id: bytes | None = b"etl"
    filler_bytes: int = 0
    acks: int = 1
    transactional_id_bytes: int = -1
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    epoch: int = -1
    tag_bytes: int = 0
    flipped_bit: int = -1
    response: ResponsePlan = field(default_factory=ResponsePlan)
    topics: list[TopicPlan] = field(default_factory=list)
    validate_only: bool = False
    is_own_request: ResponsePlan = field(default_factory=ResponsePlan)
    entries: list[EntryPlan] = field(default_factory=list)
    filters: list[FilterPlan] = field(default_factory=list)
    strict: bool = False
    alteration_ms: int = 0
    alteration_fails: tuple[int, ...] = ()
    token: TokenPlan | None = None


@dataclass(slots=True)
class Burst:
    """Requests that are written together, as far as the client's depth allows."""

    requests: list[RequestPlan]


@dataclass(slots=True)
class Dribble:
    """One request in `pieces`, `every_ms` apart."""

    request: RequestPlan
    pieces: int
    every_ms: int


@dataclass(slots=True)
class Raw:
    """Bytes that are no request."""

    what: str
    data: bytes


@dataclass(slots=True)
class Wait:
    """The client does nothing for `ms`."""

    ms: int


@dataclass(slots=True)
class Stall:
    """The client does not read for `ms`; it goes on writing."""

    ms: int


@dataclass(slots=True)
class Drain:
    """The client waits until it has all responses."""


@dataclass(slots=True)
class End:
    """The client goes: `close`, `half_close` (it still reads) or `reset`."""

    how: str


Step = Burst | Dribble | Raw | Wait | Stall | Drain | End


@dataclass(slots=True)
class Fault:
    """Something breaks on the way, so long after the connection began.

    `client_reset`, `node_reset`: the connection breaks. `node_end`, `node_close`: the node half-closes, closes.
    `client_hold`, `node_hold`: nothing arrives for `ms`. `client_stall`, `node_stall`: nothing is read there for `ms`.
    """

    at_ms: int
    kind: str
    ms: int = 0


@dataclass(slots=True)
class ConnectionPlan:
    """One client with its node, and the network between them and the proxy.

    `depth` is how many responses the client lets be due, `capacity` how many unread bytes each direction holds,
    `delay_ms` the longest way of a segment, `cuts` in how many more pieces a write may come. `flush_ms` is how long a
    node collects responses before it writes them, `decision_ms` how long a decision takes: it is found at its end, or,
    with `early_decisions`, at its beginning. The user `may_alter` quotas and `may_describe` those of others. It comes
    from `address` to one of two listeners; `header_ms`, `handshake_ms` are how long it has them wait where they want a
    PROXY header or speak TLS (-1: for ever).
    """

    seed: int
    start_ms: int = 0
    steps: list[Step] = field(default_factory=list)
    obedient: bool = True
    depth: int = 5
    capacity: int = 65_536
    delay_ms: int = 1
    cuts: int = 0
    connect: str = "accepted"
    connect_ms: int = 1
    flush_ms: int = 0
    decision_ms: int = 0
    early_decisions: bool = False
    may_alter: bool = True
    may_describe: bool = True
    faults: list[Fault] = field(default_factory=list)
    address: str = "10.9.0.1"
    listener: int = 0
    header_ms: int = 0
    handshake_ms: int = 0

    def requests(self) -> Iterator[RequestPlan]:
        """Every request, in order."""
        for step in self.steps:
            if isinstance(step, Burst):
                yield from step.requests
            elif isinstance(step, Dribble):
                yield step.request


@dataclass(slots=True, frozen=True)
class QuotaPlan:
    """Quotas of one entity: names as in Entity, `*` for the default; None for what has no quota."""

    user: str | None
    client_id: str | None
    produce: int | None = None
    fetch: int | None = None
    mutation: float | None = None
    request: float | None = None


NO_LIMIT = 2**31 - 1
"""Of connections, and of connections/s."""


@dataclass(slots=True)
class GatePlan:
    """Which connections are admitted: rates and counts of the instance, of each of two listeners, of an address (some
    have separate ones), and counts of a user.

    The `shadow_rate` has no effect. Addresses that come too fast are held, `max_held_of_ip` each and `max_held` in all,
    and closed, or with `waits` queue. `headers` and `handshakes` say which listeners want PROXY headers and speak TLS;
    `most_` of them are waited for at a time, and for `_ms` at most.
    """

    instance_rate: float = NO_LIMIT
    instance_count: int = NO_LIMIT
    listener_rates: tuple[float, float] = (NO_LIMIT, NO_LIMIT)
    listener_counts: tuple[int, int] = (NO_LIMIT, NO_LIMIT)
    rate: float = NO_LIMIT
    rates: tuple[tuple[str, float], ...] = ()
    shadow_rate: float = NO_LIMIT
    count: int = NO_LIMIT
    counts: tuple[tuple[str, int], ...] = ()
    user_count: int = NO_LIMIT
    user_counts: tuple[tuple[str, int], ...] = ()
    waits: bool = False
    max_held: int = 2000
    max_held_of_ip: int = 200
    ipv4_prefix: int = 32
    ipv6_prefix: int = 128
    headers: tuple[bool, bool] = (False, False)
    most_headers: int = 1000
    header_ms: int = 5000
    handshakes: tuple[bool, bool] = (False, False)
    most_handshakes: int = 1000
    handshake_ms: int = 10_000


@dataclass(slots=True)
class StormPlan:
    """Connections of `addresses` addresses of a `family` (ipv4, ipv6, or mapped), the first of them number `first`.

    Each begins `apart_ms` after the one before, with `at_once` connections, and each of these is made `tries` times,
    `gap_ms` after it was closed. One that is admitted sends nothing and ends after `stays_ms`. Before, it logs in as a
    `user` if there is one, and succeeds unless it `fails`.
    """

    at_ms: int
    addresses: int
    tries: int
    at_once: int = 1
    gap_ms: int = 0
    apart_ms: int = 0
    stays_ms: int = 0
    first: int = 0
    family: str = "ipv4"
    listener: int = 0
    header_ms: int = 0
    handshake_ms: int = 0
    user: str = ""
    fails: bool = False


@dataclass(slots=True)
class Change:
    """What the operator does: `quotas` puts those in force, `caps` the two, `sweep` looks for idle sensors, `gate`
    changes the limits of connections, `time_outs` how long clients are waited for.

    `drain` closes connections at idle moments, and after `drain_ms` the rest; if it lasts for less than a second, no
    further requests are taken.
    """

    at_ms: int
    kind: str
    quotas: tuple[QuotaPlan, ...] = ()
    max_throttle_ms: int = MAX_THROTTLE_MS
    max_debt_ms: int = MAX_THROTTLE_MS
    drain_ms: int = 0
    gate: GatePlan = field(default_factory=GatePlan)
    time_outs: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def takes_no_more(self) -> bool:
        """Whether a drain takes no further requests."""
        return self.drain_ms < _LONG_DRAIN_MS


@dataclass(slots=True)
class WorldPlan:
    """One proxy before one node, with all its clients. `seed` is where it came from; nothing is drawn from it again.

    With `withholds` responses to fetches over quota have no data, with `delays` responses are delayed.
    The cluster begins with so many `topics`; what Metadata says of them is `metadata_lag_ms` old.
    Each request costs a node `cost_us`.
    The node `demands_sasl`, or does not. Rates of connections are measured over `gate_samples` windows, of at most
    `max_addresses` addresses. `time_outs` (0: none) are for the first byte, for the rest of a request, for use, and for
    responses to be read.
    """

    seed: int
    connections: list[ConnectionPlan]
    quotas: tuple[QuotaPlan, ...] = ()
    shadows: tuple[QuotaPlan, ...] = ()
    changes: list[Change] = field(default_factory=list)
    max_throttle_ms: int = MAX_THROTTLE_MS
    max_debt_ms: int = MAX_THROTTLE_MS
    sensors: int = AMPLE_SENSORS
    max_frame_bytes: int = 104_857_600
    max_response_bytes: int = 2**31 - 1
    max_in_flight: int = 1000
    write_buffer_bytes: int = 262_144
    advertised_host_bytes: int = 13
    portless: tuple[int, ...] = ()
    timers_early: bool = False
    withholds: bool = False
    delays: bool = False
    topics: int = 5
    metadata_lag_ms: int = 0
    default_partitions: int = 1
    charge_validate_only: bool = False
    cost_us: int = 100
    demands_sasl: bool = False
    gate: GatePlan = field(default_factory=GatePlan)
    gate_samples: int = 11
    max_addresses: int = 65_536
    storms: list[StormPlan] = field(default_factory=list)
    time_outs: tuple[int, int, int, int] = (0, 0, 0, 0)
