"""Worlds from seeds: mostly small ones, runs of equal frames in most, everything that can go wrong in some."""

from dataclasses import replace
from random import Random
from struct import pack

from kafka_throttle.protocol.api_key import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    METADATA,
    PRODUCE,
)
from kafka_throttle.protocol.api_key import (
    CONTROLLED_SHUTDOWN as _CONTROLLED_SHUTDOWN,
)
from kafka_throttle.protocol.api_table import APIS
from tests.simulation.connecting import add_connecting_clients
from tests.simulation.plan import (
    AMPLE_SENSORS,
    MAX_THROTTLE_MS,
    Burst,
    Change,
    ConnectionPlan,
    Drain,
    End,
    EntryPlan,
    Fault,
    FilterPlan,
    QuotaPlan,
    Raw,
    RequestPlan,
    ResponsePlan,
    Stall,
    Step,
    TopicPlan,
    Wait,
    WorldPlan,
)
from tests.simulation.wire import HEAD_BYTES, MUTATIONS, OTHER_APIS, OWN_KEYS, WRONG_RESPONSES, can_be

_POOL = tuple(b"c%d" % number for number in range(40))
_CLIENT_IDS = (b"etl", b"etl", b"web", b"batch", b"x", b"", None, b"\xff\xfe", b"n" * 300)


def world_of(seed: int) -> WorldPlan:
    """The world of this seed; one in forty is a large one."""
    rng = Random(seed)
    large = rng.random() < 0.025
    tame = rng.random() < 0.3
    plan = WorldPlan(seed, [])
    _choose_limits(rng, plan, tame)
    mutating, timed = rng.random() < 0.4, rng.random() < 0.25
    if rng.random() < 0.8:
        plan.quotas = _quotas(rng, mutating, timed)
    plan.cost_us = rng.choice((100, 5000, 300_000))
    if mutating:
        _choose_topics(rng, plan)
    if rng.random() < 0.4:
        plan.max_throttle_ms = rng.choice((1, 50, 1000, 20_000))
        plan.max_debt_ms = plan.max_throttle_ms * rng.choice((1, 3, 100))
    for number in range(rng.randint(8, 25) if large else rng.randint(1, 4)):
        plan.connections.append(_connection(rng, seed * 1000 + number, plan, large, tame, mutating))
    if rng.random() < 0.4:
        plan.changes = sorted(
            (_change(rng, mutating, timed) for _ in range(rng.randint(1, 4))), key=lambda change: change.at_ms
        )
    if rng.random() < 0.1:
        plan.changes.append(Change(rng.choice((5, 100, 3000)), "drain", drain_ms=rng.choice((0, 50, 10_000))))
    _choose_modes(rng, plan)
    if rng.random() < 0.1:
        _hang_up(rng, plan)
    if rng.random() < 0.15:
        _share_a_quota(rng, plan)
    add_connecting_clients(plan)
    return plan


def _choose_modes(rng: Random, plan: WorldPlan) -> None:
    """How clients over quota are treated; drawn last, so that it changes nothing else in a world."""
    kind = rng.random()
    plan.delays = 0.2 <= kind < 0.4
    if kind < 0.2:
        plan.withholds = True
        if rng.random() < 0.5:
            plan.max_debt_ms = 0
    if rng.random() < (0.6 if plan.delays else 0.15):  # what is held when the connection ends
        plan.changes.append(
            Change(rng.choice((5, 20, 100, 500, 2000, 8000)), "drain", drain_ms=rng.choice((0, 0, 500)))
        )


def _hang_up(rng: Random, plan: WorldPlan) -> None:
    """Clients leave without a look at their responses, which are on their way or come much later; drawn last, too."""
    for connection in plan.connections:
        connection.steps = [step for step in connection.steps if not isinstance(step, Drain)]
        delay_ms = rng.choice((1, 20, 600, 12_000))
        for request in connection.requests():
            if request.api_key == FETCH:
                request.response.delay_ms = delay_ms


def _share_a_quota(rng: Random, plan: WorldPlan) -> None:
    """Readers of one fetch quota beside the other clients; its limit changes meanwhile, perhaps. Drawn last, too."""
    limit = rng.choice((100, 2000, 20_000, 1_000_000))
    plan.quotas = (*plan.quotas, QuotaPlan("ANONYMOUS", "reader", fetch=limit))
    for number in range(rng.choice((1, 2, 3, 5, 8))):
        reader = ConnectionPlan(plan.seed * 1000 + 100 + number, start_ms=rng.choice((0, 0, 5, 700, 12_000)))
        reader.obedient = rng.random() < 0.6
        reader.depth = rng.choice((1, 1, 3, 20))
        reader.steps = [*_reads(rng, limit), End(rng.choice(("close", "close", "half_close", "reset")))]
        plan.connections.append(reader)
    for _ in range(rng.choice((0, 0, 1, 3))):
        other = QuotaPlan("ANONYMOUS", "reader", fetch=rng.choice((None, limit // 10, limit * 10)))
        at_ms = rng.choice((300, 2500, 6000, 15_000))
        plan.changes.append(Change(at_ms, "quotas", (*plan.quotas[:-1], other) if rng.random() < 0.8 else ()))
    plan.changes.sort(key=lambda change: change.at_ms)


def _reads(rng: Random, limit: int) -> list[Step]:
    """Fetches that find much, little, or nothing for a long time, with heartbeats between them."""
    steps: list[Step] = []
    version = rng.choice((0, 2, 4, 11, 12, 17))
    batch_bytes = rng.choice((0, limit // 20, limit // 3, limit, 3 * limit, 12 * limit))
    for number in range(rng.choice((3, 10, 60))):
        fetch = RequestPlan(FETCH, version, 100 + 2 * number, b"reader")
        fetch.epoch = rng.choice((-1, 0, 0, 1, 5))
        fetch.max_bytes = rng.choice((1000, 52_428_800, 52_428_800))
        fetch.response.delay_ms = rng.choice((0, 1, 5, 500, 500, 9000))
        fetch.response.filler_bytes = min(batch_bytes, 3_000_000) if rng.random() < 0.7 else 0
        requests = [fetch]
        if rng.random() < 0.3:
            requests.append(RequestPlan(HEARTBEAT, 4, 101 + 2 * number, b"reader", filler_bytes=20))
        steps.append(Burst(requests))
        if rng.random() < 0.2:
            steps.append(Wait(rng.choice((1, 400, 3000, 8000))))
    if rng.random() < 0.6:
        steps.append(Drain())
    return steps


def _choose_limits(rng: Random, plan: WorldPlan, tame: bool) -> None:
    plan.timers_early = rng.random() < 0.2
    plan.write_buffer_bytes = rng.choice((4096, 16_384, 65_536, 262_144))
    plan.advertised_host_bytes = rng.choice((1, 13, 130))
    if rng.random() < 0.3:
        plan.max_in_flight = rng.choice((1, 2, 5, 20))
    if tame:
        return
    if rng.random() < 0.15:
        plan.sensors = rng.choice((16, 17, 20))
    if rng.random() < 0.1:
        plan.max_frame_bytes = rng.choice((1024, 10_000, 200_000))
    if rng.random() < 0.1:
        plan.max_response_bytes = rng.choice((1024, 10_000, 200_000))
    if rng.random() < 0.1:
        plan.portless = (rng.randint(1, 4),)


def _choose_topics(rng: Random, plan: WorldPlan) -> None:
    plan.topics = rng.choice((0, 5, 20))
    plan.metadata_lag_ms = rng.choice((0, 0, 5, 500))
    plan.default_partitions = rng.choice((1, 3))
    plan.charge_validate_only = rng.random() < 0.3
    if rng.random() < 0.4:
        entity = rng.choice(_ENTITIES)
        plan.shadows = (QuotaPlan(*entity, rng.choice((None, 100)), None, _mutation_rate(rng)),)


# ---------------------------------------------------------------------- quotas

_ENTITIES = (
    (None, "*"),
    (None, "etl"),
    ("ANONYMOUS", None),
    ("ANONYMOUS", "etl"),
    ("*", None),
    ("*", "*"),
    (None, "web"),
)


def _quotas(rng: Random, mutating: bool, timed: bool) -> tuple[QuotaPlan, ...]:
    chosen = rng.sample(_ENTITIES, rng.choice((1, 1, 2, 3)))
    return tuple(
        QuotaPlan(
            user,
            client_id,
            _rate(rng),
            _rate(rng),
            _mutation_rate(rng) if mutating else None,
            rng.choice((None, 0.01, 0.1, 1.0, 10.0, 1000.0)) if timed else None,
        )
        for user, client_id in chosen
    )


def _mutation_rate(rng: Random) -> float | None:
    return rng.choice((None, 0.01, 0.1, 0.3, 0.3, 1.0, 1.0, 5.0, 1e9))


def _rate(rng: Random) -> int | None:
    return rng.choice((None, 1, 100, 2000, 20_000, 200_000, 5_000_000, 2**40))


def _change(rng: Random, mutating: bool, timed: bool) -> Change:
    at_ms = rng.choice((0, 10, 100, 1000, 5000, 20_000, 4_000_000))
    kind = rng.choice(("quotas", "quotas", "caps", "sweep"))
    if kind == "quotas":
        return Change(at_ms, kind, _quotas(rng, mutating, timed) if rng.random() < 0.8 else ())
    if kind == "caps":
        max_throttle_ms = rng.choice((10, 1000, 20_000, MAX_THROTTLE_MS))
        return Change(at_ms, kind, max_throttle_ms=max_throttle_ms, max_debt_ms=max(max_throttle_ms, 60_000))
    return Change(at_ms, kind)


# ----------------------------------------------------------------- connections


def _connection(rng: Random, seed: int, world: WorldPlan, large: bool, tame: bool, mutating: bool) -> ConnectionPlan:
    plan = ConnectionPlan(seed, start_ms=rng.choice((0, 0, 1, 100, 3000)))
    plan.obedient = tame or rng.random() < 0.5
    plan.depth = rng.choice((1, 2, 5, 50))
    plan.capacity = rng.choice((65_536, 262_144) if large else (2048, 16_384, 16_384, 65_536, 262_144, 4_194_304))
    plan.delay_ms = rng.choice((0, 0, 1, 20))
    plan.cuts = rng.choice((0, 0, 2, 8))
    plan.connect_ms = rng.choice((0, 1, 50, 3000))
    plan.flush_ms = rng.choice((0, 0, 2, 30))
    if rng.random() < 0.08:
        plan.decision_ms = rng.choice((1, 40))
        plan.early_decisions = rng.random() < 0.5
    plan.may_alter = rng.random() < 0.9
    plan.may_describe = rng.random() < 0.8
    if not tame:
        _choose_faults(rng, plan)
    plan.steps = _steps(_Drawing(rng, world, large, tame, mutating))
    return plan


def _choose_faults(rng: Random, plan: ConnectionPlan) -> None:
    if rng.random() < 0.08:
        plan.connect = rng.choice(("refused", "unknown", "babbles"))
    kinds = (
        "client_reset",
        "node_reset",
        "node_end",
        "node_close",
        "client_hold",
        "node_hold",
        "node_stall",
        "client_stall",
    )
    while rng.random() < 0.3:
        kind, at_ms = rng.choice(kinds), rng.choice((0, 1, 2, 5, 30, 300, 5000))
        plan.faults.append(Fault(at_ms, kind, rng.choice((1, 50, 2000, 60_000))))


class _Drawing:
    """What the requests of one client are drawn from: chance, client ids (few, or very many), and correlation ids that
    count up, wrap, lie below zero, or are all the same.
    """

    def __init__(self, rng: Random, world: WorldPlan, large: bool, tame: bool, mutating: bool) -> None:
        self.rng = rng
        self.world = world
        self.large = large
        self.tame = tame
        self.mutating = mutating
        self._names = _POOL if world.sensors < AMPLE_SENSORS else _CLIENT_IDS
        self._next_id = rng.choice((0, 1, 2**31 - 4, -3, -(2**31), rng.randint(-(2**31), 2**31 - 1)))
        self._step = rng.choice((1, 1, 1, 1, 0, 7))

    def correlation_id(self) -> int:
        value = self._next_id
        self._next_id = (value + self._step + 2**31) % 2**32 - 2**31
        return value

    def client_id(self) -> bytes | None:
        return self.rng.choice(self._names)


def _steps(draw: _Drawing) -> list[Step]:
    rng, tame = draw.rng, draw.tame
    steps: list[Step] = []
    for _ in range(rng.randint(1, 3)):
        steps.append(Burst(_requests(draw)))
        while rng.random() < 0.35:
            steps.append(_pause(rng))
    if not tame:
        if rng.random() < 0.12:
            steps.append(_garbage(draw))
        if rng.random() < 0.15:
            _spoil_a_response(rng, steps, draw.world)
        if rng.random() < 0.04:
            _flip_a_bit(rng, steps)
    if rng.random() < 0.8:
        steps.append(Drain())
    ends = ("close", "close", "close", "half_close") if tame else ("close", "close", "half_close", "reset")
    steps.append(End(rng.choice(ends)))
    return steps


def _pause(rng: Random) -> Step:
    kind = rng.random()
    if kind < 0.4:
        return Wait(rng.choice((1, 20, 500, 1000, 3000, 12_000, 7_200_000)))
    if kind < 0.7:
        return Stall(rng.choice((1, 100, 5000, 100_000)))
    return Drain()


def _requests(draw: _Drawing) -> list[RequestPlan]:
    """A few runs of equal frames, with others in between."""
    rng, requests = draw.rng, []
    while not requests or rng.random() < 0.5:
        model = _request(draw)
        requests.append(model)
        for _ in range(rng.choice((0, 1, 3, 8, 20, 60 if draw.large else 5))):
            if rng.random() < 0.06:
                requests.append(_request(draw))
            requests.append(_repeated(draw, model))
    return requests


def _repeated(draw: _Drawing, model: RequestPlan) -> RequestPlan:
    """The next one of a run: mostly the same, sometimes of another size, client id, acks or response."""
    rng = draw.rng
    request = replace(model, correlation_id=draw.correlation_id(), response=replace(model.response))
    if request.response.filler_bytes > 50_000 and rng.random() < 0.7:
        request.response.filler_bytes = 100
    if request.filler_bytes > 50_000 and rng.random() < 0.8:
        request.filler_bytes = 100
    if request.response.nodes > 100 or request.response.tag_bytes > HEAD_BYTES:
        request.response = ResponsePlan(nodes=1)
    if model.api_key == _CONTROLLED_SHUTDOWN:
        return request
    if model.api_key in MUTATIONS or model.api_key in OWN_KEYS:
        _choose_body(draw, request)
        return request
    change = rng.random()
    if change < 0.08:
        request.filler_bytes = _size(rng, False)
    elif change < 0.11:
        request.client_id = draw.client_id()
    elif change < 0.14:
        request.acks = rng.choice((0, 1, -1))
    elif change < 0.18:
        request.response = _response(rng, request, False)
    elif change < 0.2:
        request.filler_bytes = max(model.filler_bytes + rng.choice((-1, 1)), 0)
    elif change < 0.22:
        request.tag_bytes = rng.choice((0, 5, 200))
    return request


def _size(rng: Random, large: bool) -> int:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice((0, 1, 50, 100, 100, 100, 400, 1000))
    if kind < 0.9:
        return rng.randint(0, 20_000)
    if kind < 0.97 or not large:
        return rng.choice((rng.randint(20_000, 300_000), HEAD_BYTES + rng.randint(-60, 20)))
    return rng.randint(300_000, 4_000_000)


def _request(draw: _Drawing) -> RequestPlan:
    rng = draw.rng
    api_key, version = _api(rng, draw.mutating)
    request = RequestPlan(api_key, version, draw.correlation_id(), draw.client_id())
    if rng.random() < 0.03:
        request.client_id = bytes(rng.choice((97, 255)) for _ in range(rng.choice((1025, 30_000))))
    if rng.random() < 0.1:
        request.tag_bytes = rng.choice((1, 3, 130, 2000))
    if api_key == PRODUCE:
        request.acks = rng.choice((1, 1, -1, 0))
        request.transactional_id_bytes = rng.choice((-1, -1, 0, 7, 500))
        request.filler_bytes = _size(rng, draw.large)
    elif api_key == FETCH:
        request.min_bytes = rng.choice((0, 1, 1, 100_000))
        request.max_bytes = rng.choice((1, 1000, 1_000_000, 52_428_800, 2**31 - 1))
        request.filler_bytes = rng.choice((0, 30, 300))
        request.epoch = request.correlation_id % 5 - 1
    elif api_key in MUTATIONS or api_key in OWN_KEYS:
        _choose_body(draw, request)
    else:
        request.filler_bytes = rng.choice((4, 20, 20, 100, 3000))
    request.response = _response(rng, request, draw.large)
    return request


# ------------------------------------------------------------ topics and quotas


def _choose_body(draw: _Drawing, request: RequestPlan) -> None:
    """What a request about topics or quotas asks for."""
    rng = draw.rng
    request.validate_only = rng.random() < 0.15
    if request.api_key in MUTATIONS:
        request.topics = [_topic(rng, request.api_key) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5, 8)))]
        if rng.random() < 0.02:
            request.topics = [_topic(rng, request.api_key) for _ in range(300)]
        request.response.shuffled = rng.random() < 0.3
        request.response.dropped = rng.choice((1, 2)) if rng.random() < 0.05 else 0
        request.is_own_request = ResponsePlan(delay_ms=rng.choice((0, 0, 1, 5, 100)), nodes=rng.choice((0, 1, 3)))
        request.is_own_request.throttle_ms = rng.choice((1, 300)) if rng.random() < 0.05 else 0
        if not draw.tame and rng.random() < 0.02:
            request.is_own_request.kind = rng.choice((*WRONG_RESPONSES, "never", "close"))
            if request.is_own_request.kind == "huge_size" and draw.world.max_response_bytes == 2**31 - 1:
                request.is_own_request.kind = "other_id"
        return
    request.filters = [_filter(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    request.strict = rng.random() < 0.3
    request.entries = [_entry(rng, draw.mutating) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if rng.random() < 0.02:
        request.entries = [EntryPlan((("user", f"u{i}"),), (("producer_byte_rate", 5e6),)) for i in range(450)]
    request.alteration_ms = rng.choice((0, 1, 20, 1000, 30_000))
    if rng.random() < 0.2:
        request.alteration_fails = rng.choice(((0,), (1,), (0, 1), (0, 2)))


def _topic(rng: Random, api_key: int) -> TopicPlan:
    name = b"t%d" % rng.randrange(20) if rng.random() < 0.9 else rng.choice((b"a b", b"", b"..", b"n" * 250, b"new"))
    topic = TopicPlan(name, rng.choice((1, 2, 3, 10, 30, 100, -1, 0)))
    topic.by_id = rng.random() < 0.4
    if api_key == 37:
        topic.partitions = rng.choice((0, 5, 9, 25, 40))
        topic.assigned = rng.choice((-1, -1, -1, 0, 2))
    elif rng.random() < 0.15:
        topic.assigned, topic.partitions = rng.choice((1, 3)), rng.choice((-1, -1, 3))
    if rng.random() < 0.1:
        topic.replication = rng.choice((1, 0, -2))
    topic.configs = rng.choice((1, 3)) if rng.random() < 0.1 else 0
    topic.tag_bytes = rng.choice((1, 200)) if rng.random() < 0.1 else 0
    topic.error = rng.choice((7, 29, 41, -1)) if rng.random() < 0.12 else 0
    return topic


def _entry(rng: Random, mutating: bool) -> EntryPlan:
    user, client_id = rng.choice((*_ENTITIES, ("?", None), (None, None), (None, "")))
    named = (("user", user), ("client-id", client_id))
    parts = tuple((part, None if name == "*" else name) for part, name in named if name is not None)
    keys = ["producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage", "nonsense"]
    values = (None, 100.0, 5_000_000.0, 1.0, 0.5) if mutating else (None, 5_000_000.0, 2e9)
    limits = []
    for key in rng.sample(keys[: 5 if rng.random() < 0.1 else 3 + mutating], rng.choice((0, 1, 1, 2))):
        limits.append((key, 0.0 if rng.random() < 0.05 else rng.choice(values)))
    return EntryPlan(parts, tuple(limits))


def _filter(rng: Random) -> FilterPlan:
    match = rng.choice((0, 1, 2))
    return FilterPlan(rng.choice(("user", "client-id")), match, rng.choice(("ANONYMOUS", "etl")) if not match else None)


def _api(rng: Random, mutating: bool) -> tuple[int, int]:
    if rng.random() < (0.6 if mutating else 0.04):
        key = rng.choice((*MUTATIONS, *MUTATIONS, *MUTATIONS, 48, 49))
        api = APIS[key]
        return key, rng.choice((rng.randint(api.min_version, api.max_version), api.max_version, api.max_version))
    kind = rng.random()
    if kind < 0.4:
        return PRODUCE, rng.choice((0, 1, 2, 3, 5, 7, 8, 9, 9, 10, 11, 12, 13, 13))
    if kind < 0.65:
        return FETCH, rng.choice((0, 2, 4, 7, 11, 11, 12, 13, 15, 16, 17, 18))
    if kind < 0.75:
        key = HEARTBEAT
    elif kind < 0.9:
        key = rng.choice((METADATA, METADATA, FIND_COORDINATOR, API_VERSIONS, API_VERSIONS, DESCRIBE_CLUSTER))
    elif kind < 0.92:
        return _CONTROLLED_SHUTDOWN, 0
    else:
        key = rng.choice(OTHER_APIS)
    if key == API_VERSIONS and rng.random() < 0.4:
        return key, rng.choice((5, 6, 99, 32_767))
    return key, rng.randint(APIS[key].min_version, APIS[key].max_version)


def _response(rng: Random, request: RequestPlan, large: bool) -> ResponsePlan:
    response = ResponsePlan(delay_ms=rng.choice((0, 0, 0, 1, 5, 100)))
    if rng.random() < 0.02:
        response.delay_ms = rng.choice((10_000, 90_000))
    if rng.random() < 0.12:
        response.throttle_ms = rng.choice((1, 10, 300, 5000, 40_000, -1))
    if rng.random() < 0.1:
        response.tag_bytes = rng.choice((1, 40, 150, 3000))
    if request.api_key == FETCH:
        response.filler_bytes = _size(rng, large)
    elif request.api_key == PRODUCE:
        response.filler_bytes = rng.choice((0, 0, 0, 0, 1, 50, 1000, 140_000)) if rng.random() < 0.5 else 0
    else:
        response.filler_bytes = (
            rng.choice((0, 1, 2, 30, 700, 5000)) if rng.random() < 0.97 else rng.randint(100_000, 200_000)
        )
    addresses = request.api_key in (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER)
    if addresses or (request.api_key in (PRODUCE, FETCH) and rng.random() < 0.15):
        response.nodes = rng.choice((0, 1, 3, 3, 40))
    if rng.random() < 0.01:  # more addresses than are held of any response, or tags behind the records
        response.nodes, response.tag_bytes = (
            (5000, 0) if request.api_key == METADATA else (response.nodes, HEAD_BYTES + 9000)
        )
    return response


# ------------------------------------------------------------- what goes wrong


def _garbage(draw: _Drawing) -> Step:
    rng = draw.rng
    size = draw.world.max_frame_bytes + 1
    known = pack(">hhih", 12, 2, draw.correlation_id(), 3) + b"etl"
    kinds = {
        "TLS": bytes.fromhex("16030100a5010000a10303") + rng.randbytes(100),
        "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "a PROXY header": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        "a negative size": pack(">i", -rng.randint(1, 2**31)) + known,
        "a small size": pack(">i", rng.randint(0, 7)) + known,
        "a huge size": pack(">i", size if rng.random() < 0.5 else 2**31 - 1) + known,
        "part of a size": b"\0\0\0"[: rng.randint(1, 3)],
        "part of a frame": pack(">i", 500) + known + bytes(rng.randint(0, 200)),
        "an unknown api": pack(">ihhih", 20, rng.choice((93, 999, -1, 32_767)), 3, 1, 3) + b"etl" + bytes(7),
        "an unknown version": pack(">ihhih", 20, rng.choice((0, 1, 12)), rng.choice((77, -1)), 1, 3)
        + b"etl"
        + bytes(7),
        "a client id beyond its frame": pack(">ihhih", 10, 12, 2, 1, 3000) + b"x",
        "a produce without acks": pack(">ihhih", 10, 0, 7, 1, -1),
        "tags beyond their frame": pack(">ihhih", 12, 12, 4, 1, -1) + b"\x05\x01",
        "65 tags": pack(">ihhih", 400, 12, 4, 1, -1) + b"\x41" + bytes(389),
        "noise": rng.randbytes(rng.randint(1, 300)),
    }
    what = rng.choice(list(kinds))
    return Raw(what, kinds[what])


def _spoil_a_response(rng: Random, steps: list[Step], world: WorldPlan) -> None:
    requests = [request for step in steps if isinstance(step, Burst) for request in step.requests if request.acks]
    kind = rng.choice((*WRONG_RESPONSES, "other_id", "other_id", "never", "never", "close"))
    if kind == "huge_size" and world.max_response_bytes == 2**31 - 1:
        kind = "negative_size"
    fitting = [
        request
        for request in requests
        if not (request.api_key == API_VERSIONS and request.version > 4)
        and (kind in ("never", "close") or can_be(kind, request.api_key, request.version))
    ]
    if fitting:
        rng.choice(fitting).response.kind = kind


def _flip_a_bit(rng: Random, steps: list[Step]) -> None:
    requests = [request for step in steps if isinstance(step, Burst) for request in step.requests]
    if requests:
        rng.choice(requests).flipped_bit = rng.randrange(400)
