"""How fast connections may come, and how many there may be: at an instance, at each listener, from each address.

Kafka's arithmetic (KIP-402, KIP-612) as the steps that an acceptor goes through with a new connection:

1. `arrive` measures it and says how long it has to wait;
2. after that it waits on until `has_slot`; meanwhile a broker's listener accepts nothing else;
3. `admit` says whether its address may have it, and counts it;
4. `leave` when it has ended.

Nothing here waits or closes. Rates are windowed rates; a delay is one window at most, and no debt is left.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from quotas.limits import MAX_CONNECTION_RATE
from quotas.sensors.address_rates import AddressRates
from quotas.sensors.windowed_rate import SensorReading, Sensors

NO_LIMIT = MAX_CONNECTION_RATE
"""Kafka's default for every rate and every count here: 2^31-1."""


class ListenerKey(NamedTuple):
    """One listener of one virtual cluster."""

    virtual_cluster: str
    listener: str


class AddressKey(NamedTuple):
    """One address, in its plain spelling, at all listeners of one virtual cluster."""

    virtual_cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What an instance, or one listener, takes: connections/s, and how many at a time."""

    creation_rate: float = NO_LIMIT
    connections: int = NO_LIMIT


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """What each address may have in one virtual cluster: connections/s, and how many at a time.

    `rates` and `counts` are for single addresses, in their plain spelling, the others for all without an entry there.
    Rates that begin with `shadow_` are measured and never felt.
    """

    creation_rate: float = NO_LIMIT
    connections: int = NO_LIMIT
    rates: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    shadow_rate: float = NO_LIMIT
    shadow_rates: Mapping[str, float] = field(default_factory=dict)

    def rate_of(self, address: str) -> float:
        """Connections/s that may come from there."""
        return self.rates.get(address, self.creation_rate)

    def count_of(self, address: str) -> int:
        """How many connections there may be from there."""
        return self.counts.get(address, self.connections)

    def has_own(self, address: str) -> bool:
        """Whether anything is said about this address alone."""
        return address in self.rates or address in self.counts or address in self.shadow_rates


class Outcome(Enum):
    """What becomes of a connection."""

    ADMITTED = "admitted"
    TOO_FAST = "too_fast"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a connection is admitted, else which `limit` of its address it is over.

    One that comes too fast is to be held for `throttle_ms`, and then closed; one too many is to be closed at once.
    `rate` is what its address may have, if that is limited; `has_own`: that is for this address alone.
    """

    outcome: Outcome
    limit: float = NO_LIMIT
    throttle_ms: int = 0
    rate: float | None = None
    has_own: bool = False


ADMITTED = Admission(Outcome.ADMITTED)


class _Rate:
    """One windowed rate; `charge` counts a connection, and says for how many ms it has to wait."""

    __slots__ = ("_row", "_sensors", "charge")

    def __init__(self, limit: float, samples: int, window_ms: int, now_ms: int) -> None:
        self._sensors = Sensors(1, samples, window_ms, window_ms, max_debt_ms=0)
        self._row = self._sensors.open(limit, now_ms)
        self.charge: Callable[[int], int] = partial(self._sensors.charge, self._row, 1.0)

    def give_back(self, now_ms: int) -> None:
        self._sensors.give_back(self._row, 1.0, now_ms)

    def set_limit(self, limit: float, now_ms: int) -> None:
        self._sensors.set_limit(self._row, limit, now_ms)

    def reading(self, now_ms: int) -> SensorReading:
        return self._sensors.reading(self._row, now_ms)


@dataclass(slots=True)
class _Listener:
    limits: ConnectionLimits
    rate: _Rate
    protected: bool
    connections: int = 0


@dataclass(slots=True)
class _Cluster:
    """What is known of the addresses of one virtual cluster."""

    samples: int
    window_ms: int
    rates: AddressRates
    shadow_rates: AddressRates
    limits: AddressLimits = field(default_factory=AddressLimits)
    counts: dict[str, int] = field(default_factory=dict)


class ConnectionQuotas:
    """The connections of one instance. Not for use by several threads; `now_ms` is monotonic.

    A row is kept for each address that has a rate limit and was seen within the last N windows, as `AddressRates` says,
    `max_addresses` at most in each virtual cluster. `samples` and `window_ms` are those of the instance, and of virtual
    clusters that are not said to have others.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        now_ms: int,
        samples: int = 11,
        window_ms: int = 1000,
        max_addresses: int = 65_536,
    ) -> None:
        self._limits = limits
        self._samples = samples
        self._window_ms = window_ms
        self._max_addresses = max_addresses
        self._rate = _Rate(limits.creation_rate, samples, window_ms, now_ms)
        self._listeners: dict[ListenerKey, _Listener] = {}
        self._clusters: dict[str, _Cluster] = {}
        self.connections = 0
        """How many are admitted, at all listeners."""
        self.tell: Callable[[str, str, Admission, int], None] | None = None
        """Is told what became of a connection in a virtual cluster, from which address, and when."""

    # ---------------------------------------------------------- configuration

    def add_virtual_cluster(self, name: str, samples: int, window_ms: int) -> None:
        """One that measures with windows of its own."""
        rates, shadow_rates = (AddressRates(samples, window_ms, self._max_addresses) for _ in range(2))
        self._clusters[name] = _Cluster(samples, window_ms, rates, shadow_rates)

    def add_listener(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int, protected: bool = False) -> None:
        """A `protected` one is beyond the instance's limits while there are others, as a broker's own listener is."""
        cluster = self._cluster(key.virtual_cluster)
        rate = _Rate(limits.creation_rate, cluster.samples, cluster.window_ms, now_ms)
        self._listeners[key] = _Listener(limits, rate, protected)

    def remove_listener(self, key: ListenerKey) -> None:
        """Its connections go on; they still count for their addresses and for the instance."""
        del self._listeners[key]

    def set_instance_limits(self, limits: ConnectionLimits, now_ms: int) -> None:
        """In force for the next connection; who waits already waits on as told."""
        self._limits = limits
        self._rate.set_limit(limits.creation_rate, now_ms)

    def set_listener_limits(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int) -> None:
        """In force for the next connection; who waits already waits on as told."""
        listener = self._listeners[key]
        listener.limits = limits
        listener.rate.set_limit(limits.creation_rate, now_ms)

    def set_address_limits(self, virtual_cluster: str, limits: AddressLimits) -> None:
        """In force for the next connection. What was measured stays, also while there is no limit."""
        self._cluster(virtual_cluster).limits = limits

    def _cluster(self, name: str) -> _Cluster:
        if name not in self._clusters:
            self.add_virtual_cluster(name, self._samples, self._window_ms)
        return self._clusters[name]

    # ---------------------------------------------------------- a connection's way

    def arrive(self, key: ListenerKey, now_ms: int) -> int:
        """Measure a new connection; return for how many ms it has to wait, one window at most."""
        listener = self._listeners[key]
        throttle_ms = listener.rate.charge(now_ms)
        return throttle_ms if self._is_protected(listener) else max(throttle_ms, self._rate.charge(now_ms))

    def has_slot(self, key: ListenerKey, on_the_way: int = 0, on_the_way_here: int = 0) -> bool:
        """Whether the listener, and the instance, may have one connection more.

        Those that have been told so and are not admitted yet come on top, `on_the_way_here` those of this listener.
        """
        listener = self._listeners[key]
        if listener.connections + on_the_way_here >= listener.limits.connections:
            return False
        return self._is_protected(listener) or self.connections + on_the_way < self._limits.connections

    def admit(self, key: ListenerKey, address: str, now_ms: int) -> Admission:
        """Whether the address may have the connection, which has arrived and waited; if so it is counted.

        One that comes too fast is taken back from all rates, so that it delays nobody; one too many is not.
        """
        admission = self._admit(key, address, now_ms)
        if self.tell is not None:
            limits = self._clusters[key.virtual_cluster].limits
            rate = limits.rate_of(address)
            reported = replace(admission, rate=rate, has_own=address in limits.rates) if rate < NO_LIMIT else admission
            self.tell(key.virtual_cluster, address, reported, now_ms)
        return admission

    def _admit(self, key: ListenerKey, address: str, now_ms: int) -> Admission:
        cluster = self._clusters[key.virtual_cluster]
        limits = cluster.limits
        if (rate := limits.rate_of(address)) < NO_LIMIT:
            throttle_ms = cluster.rates.measure(address, rate, address in limits.rates, now_ms)
            if throttle_ms:
                self.take_back(key, now_ms)
                return Admission(Outcome.TOO_FAST, rate, throttle_ms)
        return self.count(key, address)

    def count(self, key: ListenerKey, address: str) -> Admission:
        """Whether the address may have one connection more, however fast they come; if so it is counted."""
        cluster = self._clusters[key.virtual_cluster]
        count = cluster.counts.get(address, 0)
        if count >= (most := cluster.limits.count_of(address)):
            return Admission(Outcome.TOO_MANY, most)
        cluster.counts[address] = count + 1
        self.connections += 1
        self._listeners[key].connections += 1
        return ADMITTED

    def measure_shadow(self, virtual_cluster: str, address: str, now_ms: int) -> None:
        """Count a connection, admitted or not, for the shadow rates: would they have refused it?"""
        cluster = self._clusters[virtual_cluster]
        if (rate := cluster.limits.shadow_rates.get(address, cluster.limits.shadow_rate)) < NO_LIMIT:
            cluster.shadow_rates.measure(address, rate, address in cluster.limits.shadow_rates, now_ms)

    def leave(self, key: ListenerKey, address: str) -> None:
        """A connection that was admitted has ended. ValueError if none is counted for its address."""
        counts = self._clusters[key.virtual_cluster].counts
        count = counts.get(address, 0)
        if not count:
            raise ValueError(f"no connection from {address} is counted in {key.virtual_cluster}")
        if count == 1:
            del counts[address]
        else:
            counts[address] = count - 1
        self.connections -= 1
        listener = self._listeners.get(key)
        if listener is not None and listener.connections:
            listener.connections -= 1

    def must_close_one(self, key: ListenerKey) -> bool:
        """Whether the instance has too many connections and this listener has to give one up.

        It comes to that when the limit is lowered, or by a protected listener, which never waits for the others.
        """
        return self.connections > self._limits.connections and not self._is_protected(self._listeners[key])

    def take_back(self, key: ListenerKey, now_ms: int) -> None:
        """A connection that has arrived is not to count for the rates of listener and instance."""
        listener = self._listeners[key]
        if not self._is_protected(listener):
            self._rate.give_back(now_ms)
        listener.rate.give_back(now_ms)

    def _is_protected(self, listener: _Listener) -> bool:
        return listener.protected and len(self._listeners) > 1

    # -------------------------------------------------------------------- read

    def address_limits(self, virtual_cluster: str) -> AddressLimits:
        """What is in force for addresses."""
        return self._clusters[virtual_cluster].limits

    def listener_limits(self, key: ListenerKey) -> ConnectionLimits:
        """What is in force for a listener."""
        return self._listeners[key].limits

    @property
    def instance_limits(self) -> ConnectionLimits:
        """What is in force for the instance."""
        return self._limits

    def connections_of(self, key: ListenerKey) -> int:
        """How many are admitted at this listener."""
        return self._listeners[key].connections

    def connections_from(self, key: AddressKey) -> int:
        """How many are admitted from this address."""
        return self._clusters[key.virtual_cluster].counts.get(key.address, 0)

    def instance_reading(self, now_ms: int) -> SensorReading:
        """What the instance has measured."""
        return self._rate.reading(now_ms)

    def listener_reading(self, key: ListenerKey, now_ms: int) -> SensorReading:
        """What the listener has measured."""
        return self._listeners[key].rate.reading(now_ms)

    def rates(self, virtual_cluster: str, shadow: bool = False) -> AddressRates:
        """What was measured for its addresses."""
        cluster = self._clusters[virtual_cluster]
        return cluster.shadow_rates if shadow else cluster.rates

    def address_reading(self, key: AddressKey, now_ms: int, shadow: bool = False) -> SensorReading | None:
        """What was measured for an address, with the limit that it has now; None if it has no row of its own."""
        reading = self.rates(key.virtual_cluster, shadow).reading(key.address, now_ms)
        if reading is None:
            return None
        limits = self._clusters[key.virtual_cluster].limits
        limit = limits.shadow_rates.get(key.address, limits.shadow_rate) if shadow else limits.rate_of(key.address)
        return replace(reading, limit=limit)

    def address_readings(self, now_ms: int) -> Iterator[tuple[AddressKey, SensorReading]]:
        """Every address that has a row, the longest unused of a virtual cluster first."""
        for name, cluster in list(self._clusters.items()):
            for address, reading in cluster.rates.readings(now_ms):
                yield AddressKey(name, address), replace(reading, limit=cluster.limits.rate_of(address))
