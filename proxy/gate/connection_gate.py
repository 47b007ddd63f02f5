"""The gate of this process on the event loop: asks `Admission` about connections, and wakes those that wait."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import islice
from typing import Protocol, TypeVar

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import ConnectionLimitsConfig
from kafka_throttle.proxy.gate.admission import AddressStanding, Admission, ConnectionSlot, Next, OnHold, Refused
from kafka_throttle.proxy.gate.gate_log import GateLog
from kafka_throttle.proxy.gate.gate_metrics import AddressUse, ClusterGate, InstanceGate, ListenerGate
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.quotas.client_quotas import ShadowThrottles
from kafka_throttle.quotas.connection_counts import NO_LIMIT
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ListenerKey

Number = TypeVar("Number", int, float)


_AT_ONCE = 50
"""How many connections that have waited go on in one turn of the event loop."""


def limits_of(config: ConnectionLimitsConfig) -> ConnectionLimits:
    """The limits of a configuration section, as `ConnectionQuotas` takes them."""
    rate, most = config.max_connection_creation_rate, config.max_connections
    return ConnectionLimits(NO_LIMIT if rate is None else rate, NO_LIMIT if most is None else most)


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make the call."""


def on_the_loop(delay_s: float, callback: Callable[[], None]) -> Timer:
    """Schedule a call on the running event loop."""
    return asyncio.get_running_loop().call_later(delay_s, callback)


class ConnectionGate:
    """The gate for all listeners of this process. `admission` decides; `call_later` schedules, never calls at once."""

    def __init__(
        self,
        admission: Admission[IncomingConnection],
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Timer] = on_the_loop,
    ) -> None:
        self.admission = admission
        self._call_later = call_later
        self._clock = clock
        self.log = GateLog(admission.origin_of, clock.now_ms)
        self._carry_on: dict[ListenerKey, Callable[[Next[IncomingConnection]], None]] = {}
        self._timer: Timer | None = None
        self._timer_ms = 0

    def add_listener(self, key: ListenerKey, carry_on: Callable[[Next[IncomingConnection]], None]) -> None:
        """Add a listener. `carry_on` is called with the decision about each of its connections that has waited."""
        self.admission.add_listener(key, self._clock.now_ms())
        self._carry_on[key] = carry_on

    def arrive(self, key: ListenerKey, incoming: IncomingConnection) -> bool:
        """Whether a new connection may go on. If not, its listener accepts no other until `carry_on` is called."""
        may_go_on = self.admission.arrive(key, incoming, self._clock.now_ms())
        if not may_go_on:
            for reached in self.admission.limits_reached(key, self._clock.now_ms()):
                self.log.note_limit(reached)
            self._plan()
        return may_go_on

    def admit(self, key: ListenerKey, incoming: IncomingConnection) -> ConnectionSlot | OnHold | Refused:
        """Decide about a connection, now that the client's address is known."""
        measured = not incoming.of_balancer
        outcome = self.admission.admit(key, incoming, incoming.address, self._clock.now_ms(), measured)
        if isinstance(outcome, OnHold):
            self._plan()
        if not isinstance(outcome, ConnectionSlot):
            self._slot_is_free()
        return outcome

    def give_up(self, key: ListenerKey, measured: bool = True) -> None:
        """A connection has ended before `admit`. If it is not `measured`, it is taken back from all rates."""
        self.admission.give_up(key)
        if not measured:
            self.admission.quotas.take_back(key, self._clock.now_ms())
        self._slot_is_free()

    def left(self, place: ConnectionSlot) -> None:
        """An admitted connection has ended."""
        self.admission.left(place)
        self._slot_is_free()

    def set_limits(self, instance: ConnectionLimits, max_held: int) -> None:
        """Set the limits of the whole process, from the next connection on."""
        self.admission.quotas.set_instance_limits(instance, self._clock.now_ms())
        self.admission.max_held = max_held
        self._slot_is_free()

    def set_listener_limits(self, key: ListenerKey, limits: ConnectionLimits) -> None:
        """Set the limits of a listener, from the next connection on."""
        self.admission.quotas.set_listener_limits(key, limits, self._clock.now_ms())
        self._slot_is_free()

    def _slot_is_free(self) -> None:
        if self.admission.somebody_waits:
            self._plan()

    def empty(self) -> None:
        """Close all connections that wait or are held. Called when no listener accepts any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for what in list(self.admission.empty(self._clock.now_ms())):
            self._carry_on[what.listener](what)

    # --------------------------------------------------------------------- time

    def _plan(self) -> None:
        """Schedule the next look at waiting connections. Never now: `carry_on` must not run amid another step."""
        at_ms = self.admission.wake_at()
        if at_ms is None or (self._timer is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        delay_s = max(at_ms - self._clock.now_ms(), 0) / 1000
        self._timer = self._call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            for what in islice(self.admission.due(self._clock.now_ms()), _AT_ONCE):
                self._carry_on[what.listener](what)
        finally:
            self._plan()

    # --------------------------------------------------------------------- read

    def standing_of(self, virtual_cluster: str, address: str, shadow: bool) -> AddressStanding:
        """The connection limits of an address, and what it uses of them now."""
        return self.admission.standing_of(virtual_cluster, address, self._clock.now_ms(), shadow)

    def instance_totals(self, sockets: int, max_sockets: int) -> InstanceGate:
        """The totals of the whole process, which has `sockets` client sockets of `max_sockets`."""
        admission, quotas = self.admission, self.admission.quotas
        limits = quotas.instance_limits
        return InstanceGate(
            quotas.instance_reading(self._clock.now_ms()).rate,
            _limit(limits.creation_rate),
            quotas.connections,
            _limit(limits.connections),
            admission.held,
            admission.max_held,
            sockets,
            max_sockets,
        )

    def listener_totals(self) -> Iterator[ListenerGate]:
        """The totals of each listener."""
        now_ms, quotas = self._clock.now_ms(), self.admission.quotas
        for key, counts in self.admission.counts.items():
            limits = quotas.listener_limits(key)
            yield ListenerGate(
                *key,
                quotas.listener_reading(key, now_ms).rate,
                _limit(limits.creation_rate),
                _limit(limits.connections),
                *astuple(counts),
            )

    def cluster_totals(self) -> Iterator[ClusterGate]:
        """The totals of each virtual cluster."""
        for name in self.admission.virtual_clusters:
            rates = self.admission.quotas.rates(name)
            yield ClusterGate(name, self.admission.held_of(name), rates.used, rates.capacity, rates.overflowed)

    def overflows_of(self, virtual_cluster: str) -> int:
        """How many connections were measured together because there were more addresses than can be measured."""
        return self.admission.quotas.rates(virtual_cluster).overflowed

    def shadow_totals(self, virtual_cluster: str) -> ShadowThrottles:
        """How many connections shadow quotas would have held, and the sum of their holds in ms."""
        rates = self.admission.quotas.rates(virtual_cluster, shadow=True)
        return ShadowThrottles(rates.throttles, rates.throttled_ms)

    def address_uses(self) -> Iterator[AddressUse]:
        """The use of each address whose rate is measured."""
        for key, reading in self.admission.quotas.address_readings(self._clock.now_ms()):
            yield AddressUse(*key, reading.rate, reading.limit, reading.throttles)


def _limit(limit: Number) -> Number | None:
    return None if limit >= NO_LIMIT else limit
