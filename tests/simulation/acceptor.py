"""The acceptor of a simulated proxy: proxy/server/acceptor.py on fake time, with real gate, admission and fair pools.

An IncomingClient is what an IncomingConnection is there. Storms are clients without a relay.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any

from kafka_throttle.proxy.gate.admission import Admission, ClusterRules, ConnectionSlot, Next, Refused, Step
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.gate.fair_pool import FairPool
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import AddressLimits, ConnectionLimits, ConnectionQuotas, ListenerKey
from kafka_throttle.quotas.entities import ANONYMOUS, network_of, plain_ip
from tests.simulation.gate_judge import WINDOW_MS, GateJudge
from tests.simulation.network import Events
from tests.simulation.oracle import require
from tests.simulation.plan import GatePlan, StormPlan

VIRTUAL_CLUSTER = "main"
NAMES = ("front", "back")
AMPLE_ADDRESSES = 1000
"""With so many rows each address is measured by its own."""

_ACCEPTS_AT_ONCE = 32
_FIRST_IPV6 = int(ip_address("2001:db8::1"))


class _NoLog:
    def info(self, *_: object, **__: object) -> None: ...

    def warning(self, *_: object, **__: object) -> None: ...


class IncomingClient:
    """A client that connects, as the acceptor sees it.

    Its address is `whose`, in the plain spelling; the kernel's `peer`, or a header after `header_ms`, spells it
    otherwise.
    """

    log = _NoLog()

    def __init__(
        self,
        whose: str,
        peer: str,
        header_ms: int,
        handshake_ms: int,
        opened: Callable[[ConnectionSlot], None],
        refused: Callable[[CloseReason], None],
    ) -> None:
        self.whose = whose
        self.peer = peer
        self.header_ms = header_ms
        self.handshake_ms = handshake_ms
        self.opened = opened
        self.refused = refused
        self.address = ""
        self.place: ConnectionSlot | None = None
        self.of_balancer = False

    @property
    def network(self) -> str:
        """Who takes turns for the client; all are one as long as their addresses are not known."""
        return "" if self.place is None else network_of(self.place.origin)


class _Clock:
    def __init__(self, events: Events) -> None:
        self._events = events

    def now_ms(self) -> int:
        return self._events.now_ms

    def now_us(self) -> int:
        return 1000 * self._events.now_ms

    def epoch_ms(self) -> int:
        return self._events.now_ms


class _Timer:
    def __init__(self, handle: list[Callable[[], None] | None]) -> None:
        self._handle = handle

    def cancel(self) -> None:
        Events.cancel(self._handle)


class _Stage:
    """A SlowStage without a loop: a client in it goes on when it is ready."""

    def __init__(
        self, events: Events, make_pool: Callable[[], "FairPool[IncomingClient]"], late: CloseReason, full: CloseReason
    ):
        self.most = 0
        self.timeout_ms = 0
        self._events = events
        self._pool = make_pool()
        self._late = late
        self._full = full
        self._ends: dict[IncomingClient, Callable[[CloseReason], None]] = {}

    def begin(
        self,
        incoming: IncomingClient,
        ready_ms: int,
        go_on: Callable[[IncomingClient], None],
        turn_away: Callable[[IncomingClient, CloseReason], None],
    ) -> None:
        origin = incoming.network
        if len(self._pool) >= self.most and not self._make_room_for(origin):
            turn_away(incoming, self._full)
            return
        self._pool.enter(incoming, origin)
        in_time = 0 <= ready_ms < self.timeout_ms
        timer = self._events.at(
            self._events.now_ms + (ready_ms if in_time else self.timeout_ms),
            partial(self._leave, incoming, go_on) if in_time else lambda: self._ends[incoming](self._late),
        )

        def end(reason: CloseReason) -> None:
            Events.cancel(timer)
            self._leave(incoming, lambda incoming: turn_away(incoming, reason))

        self._ends[incoming] = end

    def _leave(self, incoming: IncomingClient, then: Callable[[IncomingClient], None]) -> None:
        del self._ends[incoming]
        self._pool.leave(incoming)
        then(incoming)

    def _make_room_for(self, origin: str) -> bool:
        """The client that leaves must be the oldest of the origin that has most clients in the stage."""
        leaver = self._pool.victim_for(origin)
        of: dict[str, list[IncomingClient]] = {}
        for incoming in self._ends:
            of.setdefault(incoming.network, []).append(incoming)
        most = max(map(len, of.values()), default=0)
        right = most > len(of.get(origin, ())) + 1
        require((leaver is not None) == right, f"a client leaves a stage: {leaver is not None}, {right} is right")
        if leaver is None:
            return False
        pool = of[leaver.network]
        require(len(pool) == most and pool[0] is leaver, "another leaves a stage than the oldest of the largest origin")
        self._ends[leaver](self._full)
        return True

    def stop(self) -> None:
        for end in list(self._ends.values()):
            end(CloseReason.SHUTDOWN)


class _Listener:
    def __init__(self, acceptor: "Acceptor", name: str) -> None:
        self.key = ListenerKey(VIRTUAL_CLUSTER, name)
        self.backlog: deque[IncomingClient] = deque()
        self.header: _Stage | None = None
        self.handshake: _Stage | None = None
        self.headers = _Stage(
            acceptor.events,
            acceptor.make_pool,
            CloseReason.PROXY_HEADER_TIMEOUT,
            CloseReason.TOO_MANY_PROXY_HEADERS,
        )
        self.handshakes = _Stage(
            acceptor.events,
            acceptor.make_pool,
            CloseReason.TLS_HANDSHAKE_TIMEOUT,
            CloseReason.TOO_MANY_HANDSHAKES,
        )
        self._acceptor = acceptor
        self._gate = acceptor.gate
        self._waits = False
        acceptor.gate.add_listener(self.key, self._carry_on)

    def connect(self, incoming: IncomingClient) -> None:
        self.backlog.append(incoming)
        if not self._waits:
            self._acceptor.events.soon(self._accept_all)

    def _accept_all(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._waits or not self.backlog:
                return
            self._accept(self.backlog.popleft())
        self._acceptor.events.soon(self._accept_all)

    def _accept(self, incoming: IncomingClient) -> None:
        incoming.address = plain_ip(incoming.peer)
        if self._gate.arrive(self.key, incoming):
            self._find_origin(incoming)
        else:
            self._waits = True

    def _find_origin(self, incoming: IncomingClient) -> None:
        if self.header is None:
            self._admit(incoming)
        else:
            self.header.begin(incoming, incoming.header_ms, self._came_from, self._give_up)

    def _came_from(self, incoming: IncomingClient) -> None:
        incoming.address = plain_ip(incoming.whose)
        self._admit(incoming)

    def _admit(self, incoming: IncomingClient) -> None:
        match self._gate.admit(self.key, incoming):
            case ConnectionSlot() as place:
                self._secure(incoming, place)
            case Refused(reason):
                self._refuse(incoming, reason)

    def _secure(self, incoming: IncomingClient, place: ConnectionSlot) -> None:
        incoming.place = place
        if self.handshake is None:
            self._open(incoming)
        else:
            self.handshake.begin(incoming, incoming.handshake_ms, self._open, self._refuse)

    def _open(self, incoming: IncomingClient) -> None:
        assert incoming.place is not None
        if not self._acceptor.demands_sasl and not self._gate.admission.change_user(incoming.place, ANONYMOUS):
            self._refuse(incoming, CloseReason.TOO_MANY_OF_USER)
            return
        self._acceptor.end(incoming)
        incoming.opened(incoming.place)

    def _carry_on(self, what: Next[Any]) -> None:
        match what.step:
            case Step.GO_ON:
                self._waits = False
                self._acceptor.events.soon(self._accept_all)
                self._find_origin(what.ticket)
            case Step.ADMITTED:
                assert what.place is not None
                self._secure(what.ticket, what.place)
            case Step.CLOSE:
                assert what.reason is not None
                self._refuse(what.ticket, what.reason)

    def _give_up(self, incoming: IncomingClient, reason: CloseReason) -> None:
        self._gate.give_up(self.key)
        self._refuse(incoming, reason)

    def _refuse(self, incoming: IncomingClient, reason: CloseReason) -> None:
        self._acceptor.end(incoming)
        if incoming.place is not None:
            self._gate.left(incoming.place)
            incoming.place = None
        self._acceptor.note_refused(self.key, incoming, reason)
        incoming.refused(reason)


class Acceptor:
    """Two listeners and their gate; `parts` may replace ConnectionGate, Admission and FairPool."""

    def __init__(
        self,
        events: Events,
        gate: GatePlan,
        samples: int,
        max_addresses: int,
        early: bool,
        demands_sasl: bool,
        parts: Any,
    ) -> None:
        self.events = events
        self.demands_sasl = demands_sasl
        self.refused: dict[str, int] = {}
        self.on_the_way: set[IncomingClient] = set()
        """Clients that have connected, and have neither come in nor been refused."""
        self.closed = False
        self._early = early
        now_ms = events.now_ms
        quotas = ConnectionQuotas(ConnectionLimits(), now_ms, samples, WINDOW_MS, max_addresses)
        admission: Admission[Any] = getattr(parts, "admission", Admission)(quotas, gate.max_held)
        admission.add_virtual_cluster(VIRTUAL_CLUSTER, samples, WINDOW_MS)
        self.judge = GateJudge(admission, lambda: events.now_ms, samples, max_addresses >= AMPLE_ADDRESSES)
        judge: Any = self.judge
        self.make_pool = getattr(parts, "pool", FairPool)
        self.gate: ConnectionGate = getattr(parts, "gate", ConnectionGate)(judge, _Clock(events), self._call_later)
        vars(self.gate.log)["_log"] = _NoLog()
        self.listeners = [_Listener(self, name) for name in NAMES]
        self.set(gate)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        delay_ms = round(delay_s * 1000)
        early_ms = 1 if self._early and delay_ms > 1 else 0
        return _Timer(self.events.at(self.events.now_ms + delay_ms - early_ms, callback))

    def set(self, plan: GatePlan) -> None:
        """These are the limits from now on."""
        self.judge.take_up(plan, self.events.now_ms)
        admission = self.judge.sound
        limits = AddressLimits(plan.rate, plan.count, dict(plan.rates), dict(plan.counts), plan.shadow_rate)
        admission.quotas.set_address_limits(VIRTUAL_CLUSTER, limits)
        counts = dict(plan.user_counts)
        rules = ClusterRules(
            plan.waits, plan.max_held_of_ip, plan.user_count, counts, plan.ipv4_prefix, plan.ipv6_prefix
        )
        admission.set_rules(VIRTUAL_CLUSTER, rules)
        self.gate.set_limits(ConnectionLimits(plan.instance_rate, plan.instance_count), plan.max_held)
        for i, listener in enumerate(self.listeners):
            of_listener = ConnectionLimits(plan.listener_rates[i], plan.listener_counts[i])
            self.gate.set_listener_limits(listener.key, of_listener)
            listener.headers.most, listener.headers.timeout_ms = plan.most_headers, plan.header_ms
            listener.handshakes.most, listener.handshakes.timeout_ms = plan.most_handshakes, plan.handshake_ms
            listener.header = listener.headers if plan.headers[i] else None
            listener.handshake = listener.handshakes if plan.handshakes[i] else None

    def connect(self, listener: int, incoming: IncomingClient) -> None:
        """A client connects; it is refused once the acceptor is closed."""
        if self.closed:
            incoming.refused(CloseReason.SHUTDOWN)
        else:
            self.on_the_way.add(incoming)
            self.listeners[listener].connect(incoming)

    def end(self, incoming: IncomingClient) -> None:
        """It comes in, or is refused: exactly one of the two, once."""
        require(incoming in self.on_the_way, "one comes in, or is refused, twice")
        self.on_the_way.discard(incoming)

    def check_rest(self) -> None:
        """Nothing is left to happen: only clients behind one that waits for a slot are still on their way."""
        self.judge.check_rest()
        waiting = 0
        for listener in self.listeners:
            waits = self.judge.waits(listener.key)
            require(
                waits or not listener.backlog, f"{len(listener.backlog)} are not accepted at {listener.key.listener}"
            )
            waiting += waits + len(listener.backlog)
        require(len(self.on_the_way) == waiting, f"{len(self.on_the_way)} are on their way, {waiting} is right")

    def note_refused(self, key: ListenerKey, incoming: Any, reason: CloseReason) -> None:
        self.refused[reason.value] = self.refused.get(reason.value, 0) + 1
        self.gate.log.note_refused(key, incoming, reason, "")

    def close(self) -> None:
        """Accept no more, and close all that are on their way in."""
        self.closed = True
        for listener in self.listeners:
            self.on_the_way.difference_update(listener.backlog)
            listener.backlog.clear()
            listener.headers.stop()
            listener.handshakes.stop()
        self.gate.empty()
        self.gate.log.sum_up()
        require(not self.on_the_way, f"{len(self.on_the_way)} are on their way though all is closed")


class Storm:
    """Clients without a relay, that connect again and again."""

    def __init__(self, plan: StormPlan, acceptor: Acceptor, events: Events) -> None:
        self._plan = plan
        self._acceptor = acceptor
        self._events = events

    def begin(self) -> None:
        """The first of each address are on their way."""
        for number in range(self._plan.addresses):
            at_ms = self._events.now_ms + number * self._plan.apart_ms
            for _ in range(self._plan.at_once):
                self._events.at(at_ms, partial(self._connect, number, self._plan.tries))

    def _connect(self, number: int, tries: int) -> None:
        plan, acceptor = self._plan, self._acceptor
        if not tries or acceptor.closed:
            return
        again = partial(self._again, number, tries - 1)
        whose, peer = address_of(plan.family, plan.first + number)
        if acceptor.listeners[plan.listener].header is not None:
            peer = "192.0.2.1"
        opened = partial(self._stay, again)
        incoming = IncomingClient(whose, peer, plan.header_ms, plan.handshake_ms, opened, lambda reason: again())
        acceptor.connect(plan.listener, incoming)

    def _again(self, number: int, tries: int) -> None:
        self._events.at(self._events.now_ms + self._plan.gap_ms, partial(self._connect, number, tries))

    def _stay(self, again: Callable[[], None], place: ConnectionSlot) -> None:
        plan, acceptor = self._plan, self._acceptor

        def leave() -> None:
            acceptor.gate.left(place)
            again()

        if plan.user and not plan.fails and not acceptor.judge.change_user(place, plan.user):
            self._events.soon(leave)
        else:
            self._events.at(self._events.now_ms + plan.stays_ms, leave)


def address_of(family: str, number: int) -> tuple[str, str]:
    """The plain spelling of an address, and how the kernel spells it."""
    if family == "ipv6":
        plain = str(ip_address(_FIRST_IPV6 + (number >> 4 << 64) + (number & 15)))
        return plain, plain
    plain = f"10.0.{number >> 8}.{number & 255}"
    return plain, f"::ffff:{plain}" if family == "mapped" else plain
