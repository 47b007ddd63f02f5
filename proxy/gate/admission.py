"""Who comes in, who waits and who is closed: decided by numbers and times, without a socket or a clock.

On top of the arithmetic of `ConnectionQuotas` it keeps what an acceptor keeps: for each listener the one connection
that waits for a rate or a slot, and the connections that are held because their address comes too fast.

Whoever drives it gives each connection a ticket, anything hashable, and does what it is told:

==========================  =============================================================================
what happened               what is told
==========================  =============================================================================
`arrive`                    whether the connection may go on; if not, its listener accepts no more until
                            `due` says GO_ON
`admit`                     a ConnectionSlot, or HELD, or Refused
`due`, when `wake_at` says  GO_ON, ADMITTED (with a ConnectionSlot) or CLOSE (with a reason) for those that waited
`left`                      nothing; then somebody may be due who waits for a slot
==========================  =============================================================================
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from heapq import heappop, heappush
from ipaddress import ip_network
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from proxy.relay.actions import CloseReason
from quotas.connection_quotas import (
    NO_LIMIT,
    AddressKey,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from quotas.connection_quotas import (
    Admission as Decision,
)
from quotas.entities import plain_ip
from quotas.sensors.windowed_rate import SensorReading

Ticket = TypeVar("Ticket")

ANONYMOUS = "ANONYMOUS"
"""The user of a client that has not proven who it is, as Kafka names it."""


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """What a virtual cluster does with connections.

    `waits`: those that come too fast are not closed at the end of their hold, but admitted if the rate allows it then.
    Of each address `max_held` are held at a time. A user has `per_user` connections, some have counts of their own;
    nobody who is ANONYMOUS has the first. Addresses that agree in so many bits of their prefix are one, unless anything
    is said about one alone.
    """

    waits: bool = False
    max_held: int = 200
    per_user: int = NO_LIMIT
    counts_of_users: Mapping[str, int] = field(default_factory=dict)
    ipv4_prefix: int = 32
    ipv6_prefix: int = 128

    def most_of(self, user: str) -> int:
        """How many connections a user may have."""
        return self.counts_of_users.get(user, NO_LIMIT if user == ANONYMOUS else self.per_user)


@dataclass(slots=True, eq=False)
class ConnectionSlot:
    """What an admitted connection holds until it has left: `origin` is the address, or prefix, that it counts for."""

    listener: ListenerKey
    origin: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A connection is to be closed now; with `reset` so that nothing of it stays, neither here nor in the kernel."""

    reason: CloseReason
    reset: bool = False


class LimitReached(NamedTuple):
    """A limit of `listener`, None: of the instance, that is reached; `setting` of its section `connections`."""

    listener: ListenerKey | None
    setting: str
    limit: float


class OnHold(Enum):
    """The connection is not read; `due` tells what becomes of it."""

    HELD = "held"


HELD = OnHold.HELD


class Step(Enum):
    """What becomes of a connection that has waited."""

    GO_ON = "go_on"
    ADMITTED = "admitted"
    CLOSE = "close"


class Next(NamedTuple, Generic[Ticket]):
    """What is to be done with a connection that has waited; `place` comes with ADMITTED, `reason` with CLOSE."""

    listener: ListenerKey
    ticket: Ticket
    step: Step
    place: ConnectionSlot | None = None
    reason: CloseReason | None = None


@dataclass(slots=True)
class AddressStanding:
    """As whose an address counts, how many connections that has of at most `most` (None: any number), its rate.

    `hosts` are the names with a quota that are known to be this address.
    """

    origin: str
    connections: int
    most: int | None
    reading: SensorReading | None
    hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class GateCounts:
    """What a listener has had wait, hold and turn away since it began; times are the sums of what was told."""

    throttles: int = 0
    throttled_ms: int = 0
    address_throttles: int = 0
    address_throttled_ms: int = 0


@dataclass(slots=True)
class _Waiting(Generic[Ticket]):
    """The one connection of a listener that waits for its rate, and then for a slot."""

    ticket: Ticket
    until_ms: int


@dataclass(slots=True, eq=False)
class _Holding(Generic[Ticket]):
    """A connection that is held, `until_ms` at most; `due_ms` is when it is looked at, None while others are before."""

    ticket: Ticket
    listener: ListenerKey
    origin: str
    since_ms: int
    until_ms: int
    due_ms: int | None
    in_queue: bool


class Admission(Generic[Ticket]):
    """The door of one instance. Not for use by several threads; `now_ms` is monotonic.

    In all, `max_held` connections are held at a time.
    """

    def __init__(self, quotas: ConnectionQuotas, max_held: int) -> None:
        self.quotas = quotas
        self.max_held = max_held
        self.counts: dict[ListenerKey, GateCounts] = {}
        self._rules: dict[str, ClusterRules] = {}
        self._window_ms: dict[str, int] = {}
        self._waiting: dict[ListenerKey, _Waiting[Ticket]] = {}
        self._on_the_way: dict[ListenerKey, int] = {}
        self._on_the_way_in_all = 0
        self._held: dict[Ticket, _Holding[Ticket]] = {}
        self._held_of: dict[tuple[str, str], int] = {}
        self._queues: dict[tuple[str, str], deque[_Holding[Ticket]]] = {}
        self._due: list[tuple[int, int, _Holding[Ticket]]] = []
        self._turns = count()
        self._users: dict[tuple[str, str], int] = {}

    # ---------------------------------------------------------- configuration

    def add_virtual_cluster(self, name: str, samples: int, window_ms: int) -> None:
        """One that measures with windows of its own; no connection is held longer than one of them."""
        self.quotas.add_virtual_cluster(name, samples, window_ms)
        self._rules[name] = ClusterRules()
        self._window_ms[name] = window_ms

    def add_listener(self, key: ListenerKey, now_ms: int) -> None:
        """One of a virtual cluster that was added; it has no limits yet."""
        self.quotas.add_listener(key, ConnectionLimits(), now_ms)
        self.counts[key] = GateCounts()
        self._on_the_way[key] = 0

    def set_rules(self, virtual_cluster: str, rules: ClusterRules) -> None:
        """In force for the next connection."""
        self._rules[virtual_cluster] = rules

    # ------------------------------------------------------ a connection's way

    def arrive(self, key: ListenerKey, ticket: Ticket, now_ms: int) -> bool:
        """Whether a connection may go on. If not, its listener is to accept no other before it may."""
        throttle_ms = self.quotas.arrive(key, now_ms)
        if throttle_ms:
            counts = self.counts[key]
            counts.throttles += 1
            counts.throttled_ms += throttle_ms
        if throttle_ms or not self._has_slot(key):
            self._waiting[key] = _Waiting(ticket, now_ms + throttle_ms)
            return False
        self._goes_on(key)
        return True

    def _has_slot(self, key: ListenerKey) -> bool:
        return self.quotas.has_slot(key, self._on_the_way_in_all, self._on_the_way[key])

    def _goes_on(self, key: ListenerKey) -> None:
        """From now on it takes a slot, until it is admitted, held, refused or given up."""
        self._on_the_way[key] += 1
        self._on_the_way_in_all += 1

    def give_up(self, key: ListenerKey) -> None:
        """A connection that was told to go on has ended before anybody asked to admit it; its rates stand."""
        self._on_the_way[key] -= 1
        self._on_the_way_in_all -= 1

    def admit(
        self, key: ListenerKey, ticket: Ticket, address: str, now_ms: int, measured: bool = True
    ) -> ConnectionSlot | OnHold | Refused:
        """What becomes of a connection that was told to go on, now that its address is known.

        One that is not `measured` spends no rate, and waits for none; it counts as a connection of its address.
        """
        self.give_up(key)
        name = key.virtual_cluster
        origin = self.origin_of(name, address)
        if not measured:
            self.quotas.take_back(key, now_ms)
            admitted = self.quotas.count(key, origin).outcome is Outcome.ADMITTED
            return ConnectionSlot(key, origin) if admitted else Refused(CloseReason.TOO_MANY_FROM_IP)
        self.quotas.measure_shadow(name, origin, now_ms)
        if self._rules[name].waits and (name, origin) in self._queues:
            self.quotas.take_back(key, now_ms)
            return self._hold(key, ticket, origin, now_ms, None)
        decision = self.quotas.admit(key, origin, now_ms)
        if decision.outcome is Outcome.ADMITTED:
            return ConnectionSlot(key, origin)
        if decision.outcome is Outcome.TOO_MANY:
            return Refused(CloseReason.TOO_MANY_FROM_IP)
        return self._hold(key, ticket, origin, now_ms, decision.throttle_ms)

    def origin_of(self, virtual_cluster: str, address: str) -> str:
        """As whose a connection from this address counts: its own, or that of a prefix."""
        rules = self._rules[virtual_cluster]
        is_ipv6 = ":" in address
        prefix = rules.ipv6_prefix if is_ipv6 else rules.ipv4_prefix
        if prefix == (128 if is_ipv6 else 32) or self.quotas.address_limits(virtual_cluster).has_own(address):
            return address
        return str(ip_network((address.partition("%")[0], prefix), strict=False))

    # ----------------------------------------------------------------- holding

    def _hold(
        self, key: ListenerKey, ticket: Ticket, origin: str, now_ms: int, throttle_ms: int | None
    ) -> OnHold | Refused:
        """Hold one for `throttle_ms`; without a time it stands behind others in its queue."""
        rules, where = self._rules[key.virtual_cluster], (key.virtual_cluster, origin)
        if len(self._held) >= self.max_held or self._held_of.get(where, 0) >= rules.max_held:
            return Refused(CloseReason.TOO_MANY_HELD, reset=True)
        until_ms = now_ms + self._window_ms[key.virtual_cluster]
        due_ms = None if throttle_ms is None else min(now_ms + throttle_ms, until_ms)
        holding = _Holding(ticket, key, origin, now_ms, until_ms, due_ms, rules.waits)
        self._held[ticket] = holding
        self._held_of[where] = self._held_of.get(where, 0) + 1
        if rules.waits:
            self._queues.setdefault(where, deque()).append(holding)
        if due_ms is not None:
            self._look_at(holding, due_ms)
        return HELD

    def _look_at(self, holding: _Holding[Ticket], due_ms: int) -> None:
        holding.due_ms = due_ms
        heappush(self._due, (due_ms, next(self._turns), holding))

    def _note_hold(self, key: ListenerKey, held_ms: int) -> None:
        counts = self.counts[key]
        counts.address_throttles += 1
        counts.address_throttled_ms += held_ms

    def _end_hold(self, holding: _Holding[Ticket], now_ms: int) -> None:
        where = (holding.listener.virtual_cluster, holding.origin)
        del self._held[holding.ticket]
        if self._held_of[where] == 1:
            del self._held_of[where]
        else:
            self._held_of[where] -= 1
        self._note_hold(holding.listener, now_ms - holding.since_ms)

    # --------------------------------------------------------------------- due

    def wake_at(self) -> int | None:
        """When somebody is due, as far as only time is waited for."""
        times = [waiting.until_ms for key, waiting in self._waiting.items() if self._has_slot(key)]
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def due(self, now_ms: int) -> Iterator[Next[Ticket]]:
        """What is to be done now; each thing is to be done before the next one is asked for, which need not be now."""
        for key in [key for key, waiting in self._waiting.items() if waiting.until_ms <= now_ms]:
            if key in self._waiting and self._has_slot(key):
                yield self._let_go_on(key)
        while self._due and self._due[0][0] <= now_ms:
            due_ms, turn, holding = heappop(self._due)
            if holding.in_queue:
                yield from self._serve(holding, due_ms, turn, now_ms)
            else:
                self._end_hold(holding, now_ms)
                yield Next(holding.listener, holding.ticket, Step.CLOSE, reason=CloseReason.IP_RATE_EXCEEDED)

    def _let_go_on(self, key: ListenerKey) -> Next[Ticket]:
        waiting = self._waiting.pop(key)
        self._goes_on(key)
        return Next(key, waiting.ticket, Step.GO_ON)

    def _serve(self, head: _Holding[Ticket], due_ms: int, turn: int, now_ms: int) -> Iterator[Next[Ticket]]:
        """The head of a queue is due, or has come up: it comes in, is closed, or waits for its own time.

        In the first two cases its turn passes to who is behind it, before anything is told: `due` may be left there.
        """
        decision = self._try(head, now_ms)
        if decision.outcome is Outcome.TOO_FAST and head.due_ms is None and now_ms < head.until_ms:
            self._look_at(head, min(now_ms + decision.throttle_ms, head.until_ms))
            return
        where = (head.listener.virtual_cluster, head.origin)
        queue = self._queues[where]
        queue.popleft()
        self._end_hold(head, now_ms)
        if queue:
            heappush(self._due, (due_ms, turn, queue[0]))
        else:
            del self._queues[where]
        yield self._outcome(head, decision)

    def _try(self, head: _Holding[Ticket], now_ms: int) -> Decision:
        """Admit one that has been held if all allow it now: as if it had just come, but that it need not wait again."""
        self.quotas.arrive(head.listener, now_ms)
        if self._has_slot(head.listener):
            return self.quotas.admit(head.listener, head.origin, now_ms)
        self.quotas.take_back(head.listener, now_ms)
        return _NO_SLOT

    def _outcome(self, head: _Holding[Ticket], decision: Decision) -> Next[Ticket]:
        if decision.outcome is Outcome.ADMITTED:
            return Next(head.listener, head.ticket, Step.ADMITTED, ConnectionSlot(head.listener, head.origin))
        if decision is _NO_SLOT:
            reason = CloseReason.TOO_MANY_CONNECTIONS
        elif decision.outcome is Outcome.TOO_MANY:
            reason = CloseReason.TOO_MANY_FROM_IP
        else:
            reason = CloseReason.IP_RATE_EXCEEDED
        return Next(head.listener, head.ticket, Step.CLOSE, reason=reason)

    def empty(self, now_ms: int) -> Iterator[Next[Ticket]]:
        """Close all that wait or are held, at the end of the process."""
        for key, waiting in self._waiting.items():
            yield Next(key, waiting.ticket, Step.CLOSE, reason=CloseReason.SHUTDOWN)
        self._waiting.clear()
        for holding in list(self._held.values()):
            self._end_hold(holding, now_ms)
            yield Next(holding.listener, holding.ticket, Step.CLOSE, reason=CloseReason.SHUTDOWN)
        self._queues.clear()
        self._due.clear()

    # ---------------------------------------------------------------- admitted

    def user_became(self, place: ConnectionSlot, user: str) -> bool:
        """Whether a connection whose user is known now, or is another now, may stay. If so it counts for that user."""
        name = place.listener.virtual_cluster
        if user == place.user:
            return True
        count_of_user = self._users.get((name, user), 0)
        if count_of_user >= self._rules[name].most_of(user):
            return False
        self._forget_user(place)
        self._users[name, user] = count_of_user + 1
        place.user = user
        return True

    def left(self, place: ConnectionSlot) -> None:
        """An admitted connection has ended."""
        self._forget_user(place)
        self.quotas.leave(place.listener, place.origin)

    def _forget_user(self, place: ConnectionSlot) -> None:
        if place.user is not None:
            key = place.listener.virtual_cluster, place.user
            if self._users[key] == 1:
                del self._users[key]
            else:
                self._users[key] -= 1

    # -------------------------------------------------------------------- read

    def standing_of(self, virtual_cluster: str, address: str, now_ms: int, shadow: bool) -> AddressStanding:
        """What is known of an address."""
        origin = self.origin_of(virtual_cluster, plain_ip(address))
        key, most = AddressKey(virtual_cluster, origin), self.quotas.address_limits(virtual_cluster).count_of(origin)
        reading = self.quotas.address_reading(key, now_ms, shadow)
        return AddressStanding(origin, self.quotas.connections_from(key), None if most >= NO_LIMIT else most, reading)

    def limits_reached(self, key: ListenerKey, now_ms: int) -> Iterator[LimitReached]:
        """What has a connection wait at a listener now."""
        quotas, on_the_way = self.quotas, self._on_the_way
        for where, limits, rate, connections in (
            (None, quotas.instance_limits, quotas.instance_reading, quotas.connections + self._on_the_way_in_all),
            (key, quotas.listener_limits(key), partial(quotas.listener_reading, key), quotas.connections_of(key)),
        ):
            here = connections + (on_the_way[key] if where else 0)
            if here >= limits.connections:
                yield LimitReached(where, "max_connections", limits.connections)
            if rate(now_ms).rate > limits.creation_rate:
                yield LimitReached(where, "max_connection_creation_rate", limits.creation_rate)

    @property
    def virtual_clusters(self) -> Iterable[str]:
        """By name."""
        return self._rules.keys()

    @property
    def somebody_waits(self) -> bool:
        """Whether a listener has a connection that waits for its rate, or a slot."""
        return bool(self._waiting)

    @property
    def held(self) -> int:
        """How many connections are held."""
        return len(self._held)

    def held_of(self, virtual_cluster: str) -> int:
        """How many of them are of one virtual cluster."""
        return sum(number for (name, _), number in self._held_of.items() if name == virtual_cluster)


_NO_SLOT = Decision(Outcome.TOO_MANY)
