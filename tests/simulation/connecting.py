"""Which clients connect to a world: addresses, storms, logins, slowness. Drawn on top of what is there already.

It has a separate generator of random numbers, so that it changes nothing else in a world.
"""

from copy import deepcopy
from random import Random

from kafka_throttle.protocol.api_key import API_VERSIONS, PRODUCE
from tests.simulation.acceptor import address_of
from tests.simulation.logins import MECHANISMS, Login
from tests.simulation.plan import (
    NO_LIMIT,
    Burst,
    Change,
    ConnectionPlan,
    Drain,
    Dribble,
    Fault,
    GatePlan,
    QuotaPlan,
    RequestPlan,
    Step,
    StormPlan,
    Wait,
    WorldPlan,
)
from tests.simulation.wire import MUTATIONS, OWN_KEYS

_USERS = ("alice", "alice", "bob", "carol")
_HUNDREDS = 60
_FAMILIES = ("ipv4", "ipv4", "mapped", "ipv6")


def add_connecting_clients(world: WorldPlan) -> None:
    """Draw the limits of connections, storms, logins, slow clients and time-outs of a world."""
    rng = Random(f"visitors {world.seed}")
    for connection in world.connections:
        _choose_origin(rng, connection)
    kind = rng.random()
    world.demands_sasl = kind < 0.12
    if kind < 0.4:
        _add_logins(rng, world)
    if rng.random() < 0.3:
        for connection in world.connections:
            _slow_down(rng, connection)
    if rng.random() < 0.45:
        world.time_outs = _time_outs(rng)
    if rng.random() < 0.07:
        _add_slow_node(world)
    if rng.random() < 0.6:
        world.gate = _gate(rng)
        world.gate_samples = rng.choice((11, 3, 3))
        world.max_addresses = rng.choice((65_536, 65_536, 65_536, 16))
        for _ in range(rng.choice((0, 1, 1, 2))):
            world.storms.append(_storm(rng))
            if world.storms[-1].addresses >= _HUNDREDS and rng.random() < 0.7:
                _ban_the_storm(rng, world)
        theme = rng.random()
        if theme < 0.25:
            _let_queue(rng, world)
        elif theme < 0.45:
            _let_wait_for_slots(rng, world)
        elif theme < 0.55:
            _let_pool(rng, world)
    _add_changes(rng, world)


def _let_queue(rng: Random, world: WorldPlan) -> None:
    """Queues in which some come in, some wait for their own time, and some are closed for want of a slot."""
    gate, storm = world.gate, _storm_of_few(rng)
    gate.waits, gate.rate, world.gate_samples = True, rng.choice((3.0, 5.0, 10.0, 20.0)), rng.choice((2, 3, 3))
    gate.max_held, gate.max_held_of_ip = 2000, rng.choice((200, 10))
    gate.instance_rate = rng.choice((NO_LIMIT, 5.0, 10.0, 30.0))
    gate.listener_rates = (rng.choice((NO_LIMIT, 10.0, 30.0)), NO_LIMIT)
    gate.instance_count = rng.choice((NO_LIMIT, 5, 15, 40))
    storm.apart_ms, storm.gap_ms = rng.choice((0, 70)), rng.choice((20, 130))
    world.storms.append(storm)


def _let_wait_for_slots(rng: Random, world: WorldPlan) -> None:
    """Both listeners want the last slots, some of which are taken by clients of which nothing is known yet."""
    gate = world.gate
    gate.instance_count, gate.headers = rng.choice((1, 2, 5)), (True, False)
    gate.rate, gate.most_headers = rng.choice((NO_LIMIT, 1.0, 5.0)), rng.choice((1000, 3))
    gate.listener_counts = (NO_LIMIT, rng.choice((NO_LIMIT, 1, 3)))
    for listener in range(2):
        storm = _storm_of_few(rng)
        storm.listener, storm.header_ms = listener, rng.choice((0, 20, 300, -1))
        storm.stays_ms, storm.at_once = rng.choice((1, 50, 300)), rng.choice((1, 3, 10))
        world.storms.append(storm)


def _let_pool(rng: Random, world: WorldPlan) -> None:
    """Some addresses begin more handshakes than there is room for, and some but a few."""
    gate = world.gate
    gate.rate, gate.count, gate.handshakes, gate.most_handshakes = 50.0, NO_LIMIT, (True, True), rng.choice((3, 6))
    for handshake_ms in (-1, rng.choice((20, 300))):
        storm = _storm_of_few(rng)
        storm.handshake_ms, storm.apart_ms = handshake_ms, rng.choice((0, 70))
        world.storms.append(storm)


def _storm_of_few(rng: Random) -> StormPlan:
    storm = StormPlan(rng.choice((0, 0, 300)), rng.choice((1, 2, 3)), rng.choice((2, 5)))
    storm.at_once = rng.choice((5, 10, 25))
    storm.gap_ms = rng.choice((1, 20, 130))
    storm.stays_ms = rng.choice((0, 50, 50, 900))
    storm.first = rng.choice((0, 3, 100))
    storm.family = rng.choice(_FAMILIES)
    storm.listener = rng.randrange(2)
    storm.handshake_ms = rng.choice((0, 20))
    return storm


def _ban_the_storm(rng: Random, world: WorldPlan) -> None:
    """The addresses of the storm may hardly connect at all; those of the clients may."""
    world.gate.rate = rng.choice((0.05, 0.0))
    world.gate.rates = tuple(sorted({(connection.address, 50.0) for connection in world.connections}))
    world.storms[-1].first = 100


def _choose_origin(rng: Random, connection: ConnectionPlan) -> None:
    connection.address = address_of(rng.choice(_FAMILIES), rng.randrange(6))[0]
    connection.listener = rng.randrange(2)
    connection.header_ms = rng.choice((0, 1, 50, 50, 4000, 6000))
    connection.handshake_ms = rng.choice((0, 1, 50, 50, 4000, -1))


def _add_changes(rng: Random, world: WorldPlan) -> None:
    if world.gate != GatePlan() and rng.random() < 0.4:
        for _ in range(rng.choice((1, 2))):
            gate = GatePlan() if rng.random() < 0.2 else _gate(rng)
            gate.headers, gate.handshakes = world.gate.headers, world.gate.handshakes
            world.changes.append(Change(rng.choice((0, 5, 300, 700, 1500, 4000, 12_000)), "gate", gate=gate))
    if rng.random() < 0.08:
        at_ms = rng.choice((5, 2000, 30_000))
        world.changes.append(Change(at_ms, "time_outs", time_outs=_time_outs(rng) if rng.random() < 0.8 else (0,) * 4))


# ------------------------------------------------------------------- the gate


def _gate(rng: Random) -> GatePlan:
    gate = GatePlan()
    if rng.random() < 0.6:
        gate.rate = rng.choice((0.5, 1.0, 2.0, 2.0, 5.0, 5.0, 20.0, 20.0, 0.0))
        numbers = rng.sample(range(8), rng.choice((0, 0, 1, 2)))
        rates = (0.0, 0.5, 3.0, 50.0, NO_LIMIT)
        gate.rates = tuple((address_of("ipv4", number)[0], rng.choice(rates)) for number in numbers)
    if rng.random() < 0.3:
        gate.count = rng.choice((1, 3, 10))
        gate.counts = ((address_of(rng.choice(("ipv4", "ipv6")), rng.randrange(6))[0], rng.choice((1, 5, 0))),)
    if rng.random() < 0.3:
        gate.instance_rate = rng.choice((2.0, 10.0, 50.0))
        gate.instance_count = rng.choice((NO_LIMIT, 3, 20))
    if rng.random() < 0.5:
        gate.listener_rates = (rng.choice((1.0, 5.0, 20.0)), rng.choice((NO_LIMIT, 10.0)))
    if rng.random() < 0.2:
        gate.listener_counts = (rng.choice((1, 4, 30)), rng.choice((NO_LIMIT, 2)))
    if rng.random() < 0.2:
        gate.user_count = rng.choice((1, 2, 5))
        gate.user_counts = ((rng.choice((*_USERS, "ANONYMOUS")), rng.choice((0, 1, 3))),)
    gate.waits = rng.random() < 0.5
    gate.shadow_rate = rng.choice((NO_LIMIT, 0.5, 5.0))
    gate.max_held_of_ip = rng.choice((200, 200, 3, 20, 0))
    gate.max_held = rng.choice((2000, 2000, 10, 50, 0))
    if rng.random() < 0.25:
        gate.ipv4_prefix, gate.ipv6_prefix = rng.choice((24, 31, 32)), rng.choice((64, 64, 48, 128))
    if rng.random() < 0.15:
        gate.headers = (True, rng.random() < 0.3)
        gate.most_headers, gate.header_ms = rng.choice((1000, 20, 3)), rng.choice((5000, 300))
    if rng.random() < 0.15:
        gate.handshakes = (rng.random() < 0.3, True)
        gate.most_handshakes, gate.handshake_ms = rng.choice((1000, 20, 3)), rng.choice((10_000, 300))
    return gate


def _storm(rng: Random) -> StormPlan:
    """Of few addresses that come often, or of hundreds that come once or twice."""
    storm = StormPlan(rng.choice((0, 0, 1, 300, 3000)), 1, 1)
    if rng.random() < 0.35:
        storm.addresses, storm.tries = rng.choice((60, 120, 300)), rng.choice((1, 1, 2))
    else:
        storm.addresses = rng.choice((1, 2, 5, 10))
        storm.tries = rng.choice((5, 20)) if storm.addresses < 5 else rng.choice((3, 10))
        storm.at_once = rng.choice((1, 3, 5)) if storm.addresses < 5 else rng.choice((1, 3))
    storm.apart_ms = rng.choice((0, 0, 1, 7, 130))
    storm.gap_ms = rng.choice((0, 1, 20, 20, 450, 1000))
    storm.stays_ms = rng.choice((0, 0, 1, 50, 900, 20_000))
    storm.first = rng.choice((0, 0, 3, 100))
    storm.family = rng.choice(_FAMILIES)
    storm.listener = rng.randrange(2)
    storm.header_ms = rng.choice((0, 0, 20, 1000, -1))
    storm.handshake_ms = rng.choice((0, 0, 20, 1000, -1))
    if rng.random() < 0.4:
        storm.user, storm.fails = rng.choice(_USERS), rng.random() < 0.4
    return storm


# ------------------------------------------------------------------------ slow


def _time_outs(rng: Random) -> tuple[int, int, int, int]:
    def one() -> int:
        return rng.choice((0, 1000, 2000, 5000, 30_000, 600_000))

    return one(), one(), one(), one()


def _slow_down(rng: Random, connection: ConnectionPlan) -> None:
    """Clients that dribble, are silent for a while, or send nothing at all."""
    steps = connection.steps
    kind = rng.random()
    if kind < 0.35:
        plain = [
            request
            for request in connection.requests()
            if request.api_key not in (*MUTATIONS, *OWN_KEYS) and request.token is None and request.filler_bytes < 5000
        ]
        if plain:
            request = deepcopy(rng.choice(plain))
            request.flipped_bit = -1
            request.response.kind = "right"
            dribble = Dribble(request, rng.choice((2, 5, 12)), rng.choice((10, 300, 1500, 5000, 90_000)))
            steps.insert(rng.randrange(len(steps)), dribble)
    elif kind < 0.6:
        steps.insert(0, Wait(rng.choice((1500, 4000, 40_000, 700_000))))
    elif kind < 0.7:
        del steps[rng.randrange(len(steps)) :]


def _add_slow_node(world: WorldPlan) -> None:
    """A large request comes steadily, and its node stands still most of the time: the client is not to blame."""
    connection = world.connections[0]
    size = min(12 * world.write_buffer_bytes, 800_000, world.max_frame_bytes - 100)
    request = RequestPlan(PRODUCE, 9, 77, filler_bytes=size)
    connection.steps = [Dribble(request, 60, 100), *connection.steps]
    connection.capacity, connection.connect, connection.connect_ms = 2048, "accepted", 1
    connection.faults = [Fault(200 + 1000 * second, "node_stall", 700) for second in range(6)]
    world.time_outs = (0, 2000, 0, 0)


# ---------------------------------------------------------------------- logins


def _add_logins(rng: Random, world: WorldPlan) -> None:
    """Some log in, some again and as other users, some fail. There are quotas for the names that they use."""
    for user in ("alice", "bob"):
        if rng.random() < 0.8:
            quota = QuotaPlan(
                user, rng.choice((None, "etl", "*")), *(rng.choice((None, 100, 2000, 2**40)) for _ in "pf")
            )
            world.quotas = (*world.quotas, quota)
            for change in world.changes:
                change.quotas = (*change.quotas, quota) if change.quotas and rng.random() < 0.7 else change.quotas
    for connection in world.connections:
        if not world.demands_sasl and rng.random() < 0.4:
            continue
        at, number = 0, 0
        user = rng.choice(_USERS)
        while at >= 0:
            login = _login(rng, user if rng.random() < 0.8 else rng.choice(_USERS), world.demands_sasl)
            connection.steps[at:at] = _steps_of(rng, login, 500 + 10 * number)
            bursts = [i for i, step in enumerate(connection.steps) if isinstance(step, Burst) and i > at + 6]
            number += 1
            at = rng.choice(bursts) if bursts and rng.random() < 0.5 and number < 4 else -1
        if Random(f"versions {connection.seed}").random() < 0.5:
            connection.steps[:0] = [Burst([RequestPlan(API_VERSIONS, 3, 499)]), Drain()]


def _login(rng: Random, user: str, demanded: bool) -> Login:
    login = Login(user, rng.choice(MECHANISMS), rng.choice((0, 1, 2, 2)), rng.random() < 0.2)
    kind = rng.random()
    if kind < 0.2:
        login.fails = "password"
    elif kind < 0.24:
        login.fails = "mechanism"
    elif kind < 0.3 and not demanded:
        login.fails = "state"
    login.bare &= login.mechanism != "GSSAPI"
    login.rude = rng.random() < 0.3
    login.hangs_up = rng.random() < (0.6 if demanded else 0.4)
    return login


def _steps_of(rng: Random, login: Login, correlation_id: int) -> list[Step]:
    """Each frame waits for the response to the one before, now and then they are sent together."""
    requests: list[RequestPlan] = login.requests(correlation_id)
    if rng.random() < 0.1:
        return [Burst(requests), Drain()]
    steps: list[Step] = []
    for request in requests:
        request.response.delay_ms = rng.choice((0, 0, 0, 5, 2000))
        if rng.random() < 0.1:
            steps.append(Wait(rng.choice((5, 1500, 12_000))))
        slow = rng.random() < 0.06
        steps += [Dribble(request, 3, rng.choice((10, 1500))) if slow else Burst([request]), Drain()]
    return steps
