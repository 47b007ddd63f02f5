"""Decides which client connections are admitted, which wait and which are closed. Has no socket and reads no clock.

`ConnectionQuotas` has the arithmetic. `Admission` adds the state of an acceptor: for each listener the one connection
that waits for a rate or a slot, and the connections that are held because their address exceeds its rate.

The caller gives each connection a ticket (any hashable value) and acts on the results:

==========================  =============================================================================
call                        result
==========================  =============================================================================
`arrive`                    True if the connection may go on. If False, its listener accepts no other
                            connection until `due` yields GO_ON.
`admit`                     a ConnectionSlot, or HELD, or Refused
`due`, at `wake_at`         for each connection whose wait is over: GO_ON, ADMITTED (with a ConnectionSlot)
                            or CLOSE (with a reason)
`left`                      nothing; a connection that waits for a slot may be due now
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

from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_counts import NO_LIMIT, USER, CountKey
from kafka_throttle.quotas.connection_quotas import (
    AddressKey,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from kafka_throttle.quotas.connection_quotas import (
    Admission as Decision,
)
from kafka_throttle.quotas.entities import ANONYMOUS, network_of, plain_ip
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading

Ticket = TypeVar("Ticket")


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """The connection rules of a virtual cluster.

    A connection over the rate of its address is held. At the end of the hold it is closed, or with `waits` admitted if
    the rate allows it then. `max_held` connections of one address are held at a time; of IPv6, of one network of /64.

    A user may have `per_user` connections, unless `counts_of_users` has another number for the user. `per_user` does
    not apply to ANONYMOUS.

    Addresses that agree in the first `ipv4_prefix` or `ipv6_prefix` bits count as one address, except an address that
    has a quota or a count for itself.
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
    """The place of an admitted connection until it has ended. It counts for `origin`, an address or a prefix."""

    listener: ListenerKey
    origin: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A connection is to be closed now; with `reset` by a TCP reset, so that the kernel keeps no state of it."""

    reason: CloseReason
    reset: bool = False


class LimitReached(NamedTuple):
    """A limit that is reached: `setting` in the section `connections` of `listener`, or of the instance for None."""

    listener: ListenerKey | None
    setting: str
    limit: float


class OnHold(Enum):
    """The connection is held: it is not read, and `due` decides about it later."""

    HELD = "held"


HELD = OnHold.HELD


class Step(Enum):
    """What to do with a connection whose wait is over."""

    GO_ON = "go_on"
    ADMITTED = "admitted"
    CLOSE = "close"


class Next(NamedTuple, Generic[Ticket]):
    """What to do with a connection whose wait is over; `place` is set with ADMITTED, `reason` with CLOSE."""

    listener: ListenerKey
    ticket: Ticket
    step: Step
    place: ConnectionSlot | None = None
    reason: CloseReason | None = None


@dataclass(slots=True)
class AddressStanding:
    """The connection limits of one address, and what it uses of them.

    The address counts for `origin`: itself, or a prefix. `origin` has `connections` of at most `most` (None: any
    number), and `reading` is its rate. `hosts` are the host names with a quota that resolve to this address.
    """

    origin: str
    connections: int
    most: int | None
    reading: SensorReading | None
    hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class GateCounts:
    """Throttled connections of a listener since the process started.

    `throttles` waited for a rate of the listener or of the instance, `throttled_ms` is the sum of their throttle times.
    `address_throttles` were held because of their address, `address_throttled_ms` is the sum of their holds.
    """

    throttles: int = 0
    throttled_ms: int = 0
    address_throttles: int = 0
    address_throttled_ms: int = 0


@dataclass(slots=True)
class _Waiting(Generic[Ticket]):
    """The one connection of a listener that waits: for a rate until `until_ms`, and then for a slot."""

    ticket: Ticket
    until_ms: int


@dataclass(slots=True, eq=False)
class _Holding(Generic[Ticket]):
    """A connection that is held, until `until_ms` at most.

    It is decided about at `due_ms`; None while others are ahead of it in the queue of its address.
    """

    ticket: Ticket
    listener: ListenerKey
    origin: str
    since_ms: int
    until_ms: int
    due_ms: int | None
    in_queue: bool


class Admission(Generic[Ticket]):
    """Decides about the connections of one instance. Not thread-safe; `now_ms` is monotonic.

    At most `max_held` connections are held at a time, over all listeners.
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
        """How many are held, by virtual cluster and network."""
        self._queues: dict[tuple[str, str], deque[_Holding[Ticket]]] = {}
        self._due: list[tuple[int, int, _Holding[Ticket]]] = []
        self._turns = count()

    # ---------------------------------------------------------- configuration

    def add_virtual_cluster(self, name: str, samples: int, window_ms: int) -> None:
        """Add a virtual cluster with its measuring windows. No connection is held for longer than one window."""
        self.quotas.add_virtual_cluster(name, samples, window_ms)
        self._rules[name] = ClusterRules()
        self._window_ms[name] = window_ms

    def add_listener(self, key: ListenerKey, now_ms: int) -> None:
        """Add a listener of a virtual cluster that was added before. It has no limits yet."""
        self.quotas.add_listener(key, ConnectionLimits(), now_ms)
        self.counts[key] = GateCounts()
        self._on_the_way[key] = 0

    def set_rules(self, virtual_cluster: str, rules: ClusterRules) -> None:
        """Apply these rules from the next connection on."""
        self._rules[virtual_cluster] = rules
        self.quotas.counts(virtual_cluster).limit(USER, rules.most_of)

    # ------------------------------------------------------ a connection's way

    def arrive(self, key: ListenerKey, ticket: Ticket, now_ms: int) -> bool:
        """Whether a new connection may go on. If not, its listener accepts no other until `due` yields GO_ON for it."""
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
        """Count a connection that has a slot until it is admitted, held, refused or given up."""
        self._on_the_way[key] += 1
        self._on_the_way_in_all += 1

    def give_up(self, key: ListenerKey) -> None:
        """A connection that may go on has ended before `admit`. The rates that it used are not given back."""
        self._on_the_way[key] -= 1
        self._on_the_way_in_all -= 1

    def admit(
        self, key: ListenerKey, ticket: Ticket, address: str, now_ms: int, measured: bool = True
    ) -> ConnectionSlot | OnHold | Refused:
        """Decide about a connection that may go on, now that the client's address is known.

        A connection that is not `measured` uses no rate and waits for none, but counts as a connection of its address.
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
        """What a connection from this address counts for: the address itself, or its prefix."""
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
        """Hold a connection for `throttle_ms`; with None it waits behind others in the queue of its address."""
        rules, name = self._rules[key.virtual_cluster], key.virtual_cluster
        of = (name, network_of(origin))
        if len(self._held) >= self.max_held or self._held_of.get(of, 0) >= rules.max_held:
            return Refused(CloseReason.TOO_MANY_HELD, reset=True)
        until_ms = now_ms + self._window_ms[name]
        due_ms = None if throttle_ms is None else min(now_ms + throttle_ms, until_ms)
        holding = _Holding(ticket, key, origin, now_ms, until_ms, due_ms, rules.waits)
        self._held[ticket] = holding
        self._held_of[of] = self._held_of.get(of, 0) + 1
        if rules.waits:
            self._queues.setdefault((name, origin), deque()).append(holding)
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
        of = (holding.listener.virtual_cluster, network_of(holding.origin))
        del self._held[holding.ticket]
        if self._held_of[of] == 1:
            del self._held_of[of]
        else:
            self._held_of[of] -= 1
        self._note_hold(holding.listener, now_ms - holding.since_ms)

    # --------------------------------------------------------------------- due

    def wake_at(self) -> int | None:
        """The next time at which a connection is due; None if none waits for a time."""
        times = [waiting.until_ms for key, waiting in self._waiting.items() if self._has_slot(key)]
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def due(self, now_ms: int) -> Iterator[Next[Ticket]]:
        """What to do now with connections whose wait is over.

        The caller carries out each item before it takes the next. It may stop after any item and call again later.
        """
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
        """Decide about the head of a queue: it is admitted, is closed, or waits until its own time.

        When it leaves the queue, the turn passes to the next connection before the item is yielded, because the caller
        may stop `due` there.
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
        """Try to admit a connection that was held. All checks for a new one apply, but it does not wait again."""
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
        """Close all connections that wait or are held, at the end of the process."""
        for key, waiting in self._waiting.items():
            yield Next(key, waiting.ticket, Step.CLOSE, reason=CloseReason.SHUTDOWN)
        self._waiting.clear()
        for holding in list(self._held.values()):
            self._end_hold(holding, now_ms)
            yield Next(holding.listener, holding.ticket, Step.CLOSE, reason=CloseReason.SHUTDOWN)
        self._queues.clear()
        self._due.clear()

    # ---------------------------------------------------------------- admitted

    def change_user(self, place: ConnectionSlot, user: str) -> bool:
        """Count a connection for `user`, who is known now or has changed. False if this user may have no more: then it
        counts as before, and must be closed.
        """
        if user == place.user:
            return True
        if not self.quotas.counts(place.listener.virtual_cluster).enter(CountKey(USER, user)):
            return False
        self._forget_user(place)
        place.user = user
        return True

    def left(self, place: ConnectionSlot) -> None:
        """An admitted connection has ended."""
        self._forget_user(place)
        self.quotas.leave(place.listener, place.origin)

    def _forget_user(self, place: ConnectionSlot) -> None:
        if place.user is not None:
            self.quotas.counts(place.listener.virtual_cluster).leave(CountKey(USER, place.user))

    # -------------------------------------------------------------------- read

    def standing_of(self, virtual_cluster: str, address: str, now_ms: int, shadow: bool) -> AddressStanding:
        """The connection limits of an address, and what it uses of them."""
        origin = self.origin_of(virtual_cluster, plain_ip(address))
        key, most = AddressKey(virtual_cluster, origin), self.quotas.address_limits(virtual_cluster).count_of(origin)
        reading = self.quotas.address_reading(key, now_ms, shadow)
        return AddressStanding(origin, self.quotas.connections_from(key), None if most >= NO_LIMIT else most, reading)

    def limits_reached(self, key: ListenerKey, now_ms: int) -> Iterator[LimitReached]:
        """The limits that make a connection of this listener wait now."""
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
        """The names of all virtual clusters."""
        return self._rules.keys()

    @property
    def somebody_waits(self) -> bool:
        """Whether any listener has a connection that waits for a rate or a slot."""
        return bool(self._waiting)

    @property
    def held(self) -> int:
        """How many connections are held, over all listeners."""
        return len(self._held)

    def held_of(self, virtual_cluster: str) -> int:
        """How many connections of one virtual cluster are held."""
        return sum(number for (name, _), number in self._held_of.items() if name == virtual_cluster)


_NO_SLOT = Decision(Outcome.TOO_MANY)
