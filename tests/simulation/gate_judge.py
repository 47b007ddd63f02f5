"""What must become of each incoming connection, found out beside the gate from addresses, times and what was reported.

Rates are Kafka's the slow way; what an address may have follows from its own connections, its limits, and nothing else.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from kafka_throttle.proxy.gate.admission import Admission, ConnectionSlot, LimitReached, Next, OnHold, Refused, Step
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas, ListenerKey
from tests.quotas.windowed_rate import WindowedRate
from tests.simulation.oracle import Violation, require
from tests.simulation.plan import NO_LIMIT, GatePlan

WINDOW_MS = 1000
MAX_OVERTAKEN = 2
"""So often the slot that a connection waits for may be taken by others: a later one that finds it free, and one that
waited for longer.
"""


@dataclass(slots=True)
class _Held:
    ticket: Any
    listener: ListenerKey
    origin: str
    since_ms: int
    due_ms: int | None
    queues: bool

    @property
    def until_ms(self) -> int:
        return self.since_ms + WINDOW_MS


class GateJudge:
    """In the place of an Admission: asks it, and raises Violation where it is wrong.

    The address of a ticket is its `whose`, in the plain spelling. Without `exact`, where the table of addresses may be
    full, it is not checked whether an address comes too fast.
    """

    def __init__(self, sound: "Admission[Any]", now_ms: Callable[[], int], samples: int, exact: bool) -> None:
        self.sound = sound
        self._now_ms = now_ms
        self.counts: Counter[str] = Counter()
        """What became of how many."""
        self.worst_held = 0
        self._samples = samples
        self._exact = exact
        self._gate = GatePlan()
        self._instance = self._new_rate(NO_LIMIT)
        self._listeners: dict[ListenerKey, WindowedRate] = {}
        self._order: list[ListenerKey] = []
        self._addresses: dict[str, WindowedRate] = {}
        self._waiting: dict[ListenerKey, tuple[Any, int]] = {}
        self._slot_since: dict[ListenerKey, int] = {}
        self._overtaken: Counter[ListenerKey] = Counter()
        self._overtaken_ms: dict[ListenerKey, int] = {}
        self._on_the_way: Counter[ListenerKey] = Counter()
        self._open: dict[ConnectionSlot, tuple[ListenerKey, str]] = {}
        self._here: Counter[ListenerKey] = Counter()
        self._from: Counter[str] = Counter()
        self._users: dict[ConnectionSlot, str] = {}
        self._held: dict[Any, _Held] = {}
        self._held_of: Counter[str] = Counter()
        self._queues: dict[str, deque[_Held]] = {}
        self._up: deque[str] = deque()
        """The origins whose queue has a new head, which is tried at once."""

    def take_up(self, gate: GatePlan, now_ms: int) -> None:
        """These are the limits from now on."""
        self._gate = gate
        self._instance.limit = gate.instance_rate
        for key, rate in zip(self._order, gate.listener_rates, strict=True):
            self._listeners[key].limit = rate
        self._note_slots(now_ms)

    def add_listener(self, key: ListenerKey, now_ms: int) -> None:
        self.sound.add_listener(key, now_ms)
        self._listeners[key] = self._new_rate(NO_LIMIT)
        self._order.append(key)

    # ------------------------------------------------------------- as an Admission

    @property
    def quotas(self) -> ConnectionQuotas:
        return self.sound.quotas

    @property
    def max_held(self) -> int:
        return self.sound.max_held

    @max_held.setter
    def max_held(self, most: int) -> None:
        self.sound.max_held = most

    @property
    def somebody_waits(self) -> bool:
        return self.sound.somebody_waits

    @property
    def held(self) -> int:
        return self.sound.held

    def wake_at(self) -> int | None:
        return self.sound.wake_at()

    def origin_of(self, virtual_cluster: str, address: str) -> str:
        return self.sound.origin_of(virtual_cluster, address)

    def limits_reached(self, key: ListenerKey, now_ms: int) -> list[LimitReached]:
        """For a connection that waits there is a reason."""
        reached = list(self.sound.limits_reached(key, now_ms))
        require(bool(reached) or key not in self._waiting, f"one waits at {key.listener} without a limit")
        return reached

    def arrive(self, key: ListenerKey, ticket: Any, now_ms: int) -> bool:
        require(key not in self._waiting, f"{key.listener} accepts one more though one waits")
        wait_ms = self._charge_arrival(key, now_ms)
        may = not wait_ms and self._has_slot(key)
        reported = self.sound.arrive(key, ticket, now_ms)
        require(reported == may, f"an arrival at {key.listener} may go on: {reported}, {may} is right ({wait_ms} ms)")
        self.counts["arrived"] += 1
        if may:
            self._goes_on(key)
        else:
            self.counts["waited"] += 1
            self._waiting[key] = ticket, now_ms + wait_ms
            self._overtaken[key] = 0
        self._note_slots(now_ms)
        return reported

    def give_up(self, key: ListenerKey) -> None:
        self.sound.give_up(key)
        self._on_the_way[key] -= 1
        self.counts["given up"] += 1
        self._note_slots(self._now_ms())

    def admit(
        self, key: ListenerKey, ticket: Any, address: str, now_ms: int, measured: bool = True
    ) -> ConnectionSlot | OnHold | Refused:
        require(measured, "no balancer comes for itself here")
        self._on_the_way[key] -= 1
        reported = self.sound.admit(key, ticket, address, now_ms)
        origin = self._origin_of(ticket.whose)
        if self._gate.waits and origin in self._queues:
            self._take_back(key, now_ms)
            right, due_ms = "held", None
        else:
            right, delay_ms = self._try(key, origin, now_ms, reported)
            due_ms = now_ms + delay_ms
        if right == "held" and self._is_full_of_held(origin):
            right = CloseReason.TOO_MANY_HELD.value
        self._require_reported(reported, right, f"one from {origin}")
        self.counts[right] += 1
        if isinstance(reported, ConnectionSlot):
            self._admitted(reported, key, origin)
        elif right == "held":
            self._hold(_Held(ticket, key, origin, now_ms, due_ms, self._gate.waits))
        self._note_slots(now_ms)
        return reported

    def due(self, now_ms: int) -> Iterator[Next[Any]]:
        """What the admission has done is checked before it is passed on."""
        for what in self.sound.due(now_ms):
            if what.step is Step.GO_ON:
                self._check_go_on(what, now_ms)
            else:
                self._check_end_of_hold(what, now_ms)
            self._note_slots(now_ms)
            yield what
        while self._up:
            wrong = self._try_head(now_ms)
            require(wrong is None, f"the head of a queue is {wrong}, and the admission does not say so")

    def left(self, place: ConnectionSlot) -> None:
        self.sound.left(place)
        require(place in self._open, "one has left twice")
        key, origin = self._open.pop(place)
        self._here[key] -= 1
        self._from[origin] -= 1
        self._users.pop(place, None)
        self._note_slots(self._now_ms())

    def change_user(self, place: ConnectionSlot, user: str) -> bool:
        reported = self.sound.change_user(place, user)
        most = dict(self._gate.user_counts).get(user, NO_LIMIT if user == "ANONYMOUS" else self._gate.user_count)
        right = self._users.get(place) == user or list(self._users.values()).count(user) < most
        require(reported == right, f"{user} may have one more: {reported}, {right} is right")
        if right:
            self._users[place] = user
        else:
            self.counts["too_many_of_user"] += 1
        return reported

    def empty(self, now_ms: int) -> Iterator[Next[Any]]:
        for what in list(self.sound.empty(now_ms)):
            held = self._held.pop(what.ticket, None)
            if held is not None:
                self._held_of[_network_of(held.origin)] -= 1
            waiting = self._waiting.pop(what.listener, None) if held is None else None
            known = held is not None or (waiting is not None and waiting[0] is what.ticket)
            require(known, "one is closed that was neither held nor waited")
            yield what
        self._queues.clear()

    # -------------------------------------------------------------------- what is right

    def _new_rate(self, limit: float) -> WindowedRate:
        return WindowedRate(limit, self._samples, WINDOW_MS)

    def _charge_arrival(self, key: ListenerKey, now_ms: int) -> int:
        return max(_charge(self._instance, now_ms), _charge(self._listeners[key], now_ms))

    def _take_back(self, key: ListenerKey, now_ms: int) -> None:
        self._instance.record(-1.0, now_ms)
        self._listeners[key].record(-1.0, now_ms)

    def _has_slot(self, key: ListenerKey) -> bool:
        gate = self._gate
        if self._here[key] + self._on_the_way[key] >= gate.listener_counts[self._order.index(key)]:
            return False
        return len(self._open) + self._on_the_way.total() < gate.instance_count

    def _goes_on(self, key: ListenerKey) -> None:
        self._on_the_way[key] += 1
        self._note_overtaken(key)

    def _note_overtaken(self, by: ListenerKey) -> None:
        """A slot is taken: if it was the last one, a connection that has waited for it is overtaken."""
        for key, (_, until_ms) in self._waiting.items():
            if until_ms <= self._now_ms() and key in self._slot_since and not self._has_slot(key):
                # A slot that became free just now is for any connection, as in Kafka: the gate has not had its turn.
                at_once = self._now_ms() in (self._slot_since[key], self._overtaken_ms.get(key))
                self._overtaken_ms[key] = self._now_ms()
                self._overtaken[key] += not at_once
                require(self._overtaken[key] <= MAX_OVERTAKEN, f"{key.listener} is starved by {by.listener}")

    def _note_slots(self, now_ms: int) -> None:
        """Note at which listeners there is a slot, and since when: once its time is over, too, what waits goes on."""
        for key in self._waiting:
            if self._has_slot(key):
                self._slot_since.setdefault(key, now_ms)
            else:
                self._slot_since.pop(key, None)

    def _origin_of(self, whose: str) -> str:
        gate, ip = self._gate, ip_address(whose)
        prefix = gate.ipv4_prefix if ip.version == 4 else gate.ipv6_prefix
        named = whose in dict(gate.rates) or whose in dict(gate.counts)
        if named or prefix == ip.max_prefixlen:
            return whose
        return str(ip_network((whose, prefix), strict=False))

    def _try(self, key: ListenerKey, origin: str, now_ms: int, reported: object) -> tuple[str, int]:
        """What an address may have, and how long it is held; where that is not known, what was reported is right."""
        gate = self._gate
        rate = dict(gate.rates).get(origin, gate.rate)
        if rate < NO_LIMIT:
            if not self._exact:
                too_fast = reported is OnHold.HELD or reported == Refused(CloseReason.TOO_MANY_HELD, reset=True)
                delay_ms = WINDOW_MS if too_fast else 0
            else:
                sensor = self._addresses.setdefault(origin, self._new_rate(rate))
                sensor.limit = rate
                delay_ms = _charge(sensor, now_ms)
                if delay_ms:
                    sensor.record(-1.0, now_ms)
            if delay_ms:
                self._take_back(key, now_ms)
                return "held", delay_ms
        if self._from[origin] >= dict(gate.counts).get(origin, gate.count):
            return CloseReason.TOO_MANY_FROM_IP.value, 0
        return "admitted", 0

    def _is_full_of_held(self, origin: str) -> bool:
        return len(self._held) >= self._gate.max_held or self._held_of[_network_of(origin)] >= self._gate.max_held_of_ip

    def _require_reported(self, reported: object, right: str, what: str) -> None:
        found = "admitted" if isinstance(reported, ConnectionSlot) else "held"
        if isinstance(reported, Refused):
            found = reported.reason.value
        require(found == right, f"{what} is {found}, {right} is right")

    # ------------------------------------------------------------------ connections that wait

    def _hold(self, held: _Held) -> None:
        self._held[held.ticket] = held
        self._held_of[_network_of(held.origin)] += 1
        self.worst_held = max(self.worst_held, len(self._held))
        require(self.sound.held == len(self._held), f"{self.sound.held} are held, {len(self._held)} is right")
        if held.queues:
            self._queues.setdefault(held.origin, deque()).append(held)

    def _admitted(self, place: ConnectionSlot, key: ListenerKey, origin: str) -> None:
        found = (place.listener, place.origin)
        require(found == (key, origin), f"one from {origin} at {key.listener} counts as {found}")
        self._open[place] = key, origin
        self._here[key] += 1
        self._from[origin] += 1

    def _check_go_on(self, what: Next[Any], now_ms: int) -> None:
        ticket, until_ms = self._waiting.pop(what.listener, (None, 0))
        require(ticket is what.ticket, "another goes on than the one that waits")
        slot_ms = self._slot_since.pop(what.listener, None)
        require(slot_ms is not None, f"one goes on at {what.listener.listener} without a slot")
        assert slot_ms is not None
        right_ms = max(until_ms, slot_ms)
        require(now_ms == right_ms, f"one goes on at {now_ms}, {right_ms} is right")
        self._goes_on(what.listener)

    def _check_end_of_hold(self, what: Next[Any], now_ms: int) -> None:
        reported = what.step.value if what.reason is None else what.reason.value
        while self._up:
            outcome = self._try_head(now_ms, what)
            if outcome is not None:
                require(outcome == reported, f"the next of a queue is {reported}, {outcome} is right")
                return
        held = self._held.get(what.ticket)
        if held is None:
            raise Violation(f"one is {reported} that is not held")
        if held.queues:
            require(self._queues[held.origin][0] is held, "one overtakes those before it")
            outcome = self._try_head_of(held, now_ms, what)
            require(outcome == reported, f"the head of a queue is {reported}, {outcome} is right")
        else:
            require(reported == CloseReason.IP_RATE_EXCEEDED.value, f"one that is held is {reported} at its end")
            self._end_hold(held)
        require(now_ms == held.due_ms or not self._exact, f"a hold ends at {now_ms}, {held.due_ms} is right")
        require(now_ms <= held.until_ms, f"one is held from {held.since_ms} to {now_ms}")

    def _try_head(self, now_ms: int, what: Next[Any] | None = None) -> str | None:
        """Look at the new head of a queue; return what becomes of it, None if it waits for its time."""
        head = self._queues[self._up.popleft()][0]
        if not self._exact and (what is None or what.ticket is not head.ticket):
            self._charge_arrival(head.listener, now_ms)
            self._take_back(head.listener, now_ms)
            head.due_ms = head.until_ms
            return None
        return self._try_head_of(head, now_ms, what)

    def _try_head_of(self, head: _Held, now_ms: int, what: Next[Any] | None) -> str | None:
        self._charge_arrival(head.listener, now_ms)
        if self._has_slot(head.listener):
            reported = OnHold.HELD if what is not None and what.reason is CloseReason.IP_RATE_EXCEEDED else None
            outcome, delay_ms = self._try(head.listener, head.origin, now_ms, reported)
        else:
            self._take_back(head.listener, now_ms)
            outcome, delay_ms = CloseReason.TOO_MANY_CONNECTIONS.value, 0
        if outcome == "held":
            if head.due_ms is None and now_ms < head.until_ms and (self._exact or what is None):
                head.due_ms = min(now_ms + delay_ms, head.until_ms)
                return None
            outcome = CloseReason.IP_RATE_EXCEEDED.value
        self.counts[f"{outcome} after a hold"] += 1
        self._end_hold(head)
        if outcome == "admitted":
            if what is None or what.place is None or what.ticket is not head.ticket:
                raise Violation("the head of a queue may come in, and the admission does not say so")
            self._admitted(what.place, head.listener, head.origin)
            self._note_overtaken(head.listener)
        return outcome

    def _end_hold(self, held: _Held) -> None:
        del self._held[held.ticket]
        self._held_of[_network_of(held.origin)] -= 1
        if held.queues:
            queue = self._queues[held.origin]
            queue.popleft()
            if queue:
                self._up.append(held.origin)
            else:
                del self._queues[held.origin]

    # ------------------------------------------------------------------------ at rest

    def waits(self, key: ListenerKey) -> bool:
        """Whether one waits at this listener."""
        return key in self._waiting

    def check_rest(self) -> None:
        """Nothing is left to happen: no connection is held, and for those that wait there is no slot."""
        require(not self._held, f"{len(self._held)} are held for ever")
        for key in self._waiting:
            require(not self._has_slot(key), f"one waits for ever at {key.listener} though there is a slot")

    def check_end(self) -> None:
        """All connections have ended: nothing is counted any more."""
        admission, quotas = self.sound, self.sound.quotas
        require(not self._open, f"{len(self._open)} have not left")
        require(quotas.connections == 0, f"{quotas.connections} are counted though none is there")
        require(not any(map(quotas.connections_of, self._order)), "a listener counts some though none is there")
        left = [admission._held, admission._held_of, admission._queues, admission._waiting]
        require(not any(left), f"something is still noted: {left}")
        on_the_way = (admission._on_the_way_in_all, set(admission._on_the_way.values()))
        require(on_the_way == (0, {0}), f"on the way are {on_the_way}")
        for name in admission.virtual_clusters:
            counted = quotas.counts(name)._open
            require(not counted, f"connections are counted: {counted}")


def _charge(rate: WindowedRate, now_ms: int) -> int:
    if rate.limit == 0:
        rate.record(1.0, now_ms)
        return WINDOW_MS
    return min(rate.charge(1.0, now_ms), WINDOW_MS)


def _network_of(origin: str) -> str:
    """Who stands behind an address or prefix: of IPv6 what agrees in its first 64 bits."""
    net = ip_network(origin)
    return str(net.supernet(new_prefix=64) if net.version == 6 and net.prefixlen > 64 else net)
