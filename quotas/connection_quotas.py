"""How fast connections may come, and how many there may be: at an instance, at each listener, from each address.

Kafka's arithmetic (KIP-402, KIP-612) as the steps that an acceptor goes through with a new connection:

1. `arrive` measures it and says how long it has to wait;
2. after that it waits on until `has_slot`; meanwhile a broker's listener accepts nothing else;
3. `admit` says whether its address may have it, and counts it;
4. `leave` when it has ended.

Nothing here waits or closes. Rates are windowed rates; a delay is one window at most, and no debt is left.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from quotas.entities import DEFAULT, QuotaType
from quotas.quota_table import MAX_CONNECTION_RATE, QuotaTable
from quotas.sensors import SensorReading, Sensors

NO_LIMIT = MAX_CONNECTION_RATE
"""Kafka's default for every rate and every count here: 2^31-1."""

MAX_LISTENERS = 1023

_CLOSED_AT_ONCE = 2
"""So many empty rows may go for each that is opened: they never pile up, and no connection waits for all of them."""


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
    """

    creation_rate: float = NO_LIMIT
    connections: int = NO_LIMIT
    rates: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def rate_of(self, address: str) -> float:
        """Connections/s that may come from there."""
        return self.rates.get(address, self.creation_rate)

    def count_of(self, address: str) -> int:
        """How many connections there may be from there."""
        return self.counts.get(address, self.connections)


def rates_of(table: QuotaTable) -> tuple[float, dict[str, float]]:
    """The rate for addresses without one of their own, and those that have one, as a quota table has them.

    An entity named by a host name comes as it is: whoever knows its addresses has to replace it.
    """
    default, rates = float(NO_LIMIT), {}
    for entity, limits in table.items():
        if entity.ip is DEFAULT:
            default = limits.get(QuotaType.CONNECTION, default)
        elif entity.ip is not None and QuotaType.CONNECTION in limits:
            rates[entity.ip] = limits[QuotaType.CONNECTION]
    return default, rates


class Outcome(Enum):
    """What becomes of a connection."""

    ADMITTED = "admitted"
    TOO_FAST = "too_fast"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a connection is admitted, else which `limit` of its address it is over.

    One that comes too fast is to be held for `throttle_ms`, and then closed; one too many is to be closed at once.
    """

    outcome: Outcome
    limit: float = NO_LIMIT
    throttle_ms: int = 0


ADMITTED = Admission(Outcome.ADMITTED)


@dataclass(slots=True)
class _Listener:
    limits: ConnectionLimits
    rate: int
    protected: bool
    connections: int = 0


class ConnectionQuotas:
    """The connections of one instance. Not for use by several threads; `now_ms` is monotonic.

    A row is kept for each address that has a rate limit and was seen within the last N windows, `max_addresses` at
    most. When they run out, newcomers under a virtual cluster's default share one more, counted in `overflowed`; a
    sixteenth is kept back for addresses with a rate of their own. When that is used up, the longest unused row goes.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        now_ms: int,
        samples: int = 11,
        window_ms: int = 1000,
        max_addresses: int = 65_536,
    ) -> None:
        # One for the instance, one for each listener, one to share for each virtual cluster.
        self._of_listeners = Sensors(1 + 2 * MAX_LISTENERS, samples, window_ms, window_ms, max_debt_ms=0)
        self._of_addresses = Sensors(max_addresses, samples, window_ms, window_ms, max_debt_ms=0)
        self._limits = limits
        self._instance_rate = self._of_listeners.open(limits.creation_rate, now_ms)
        self._listeners: dict[ListenerKey, _Listener] = {}
        self._address_limits: dict[str, AddressLimits] = {}
        self._counts: dict[AddressKey, int] = {}
        self._rates: OrderedDict[AddressKey, int] = OrderedDict()
        """Rows of addresses, the longest unused first."""
        self._shared: dict[str, int] = {}
        """By virtual cluster: the row of those for whom none was left."""
        self._reserve = max_addresses // 16
        self._empty_after_ms = samples * window_ms
        self.connections = 0
        """How many are admitted, at all listeners."""
        self.overflowed = 0

    # ---------------------------------------------------------- configuration

    def add_listener(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int, protected: bool = False) -> None:
        """A `protected` one is beyond the instance's limits while there are others, as a broker's own listener is."""
        rate = self._of_listeners.open(limits.creation_rate, now_ms)
        self._listeners[key] = _Listener(limits, rate, protected)

    def remove_listener(self, key: ListenerKey) -> None:
        """Its connections go on; they still count for their addresses and for the instance."""
        self._of_listeners.close(self._listeners.pop(key).rate)

    def set_instance_limits(self, limits: ConnectionLimits, now_ms: int) -> None:
        """In force for the next connection; who waits already waits on as told."""
        self._limits = limits
        self._of_listeners.set_limit(self._instance_rate, limits.creation_rate, now_ms)

    def set_listener_limits(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int) -> None:
        """In force for the next connection; who waits already waits on as told."""
        listener = self._listeners[key]
        listener.limits = limits
        self._of_listeners.set_limit(listener.rate, limits.creation_rate, now_ms)

    def set_address_limits(self, virtual_cluster: str, limits: AddressLimits, now_ms: int) -> None:
        """In force for the next connection. What was measured stays, also while there is no limit."""
        self._address_limits[virtual_cluster] = limits
        for key, row in self._rates.items():
            if key.virtual_cluster == virtual_cluster:
                self._of_addresses.set_limit(row, limits.rate_of(key.address), now_ms)
        if virtual_cluster in self._shared:
            self._of_listeners.set_limit(self._shared[virtual_cluster], limits.creation_rate, now_ms)

    # ---------------------------------------------------------- a connection's way

    def arrive(self, key: ListenerKey, now_ms: int) -> int:
        """Measure a new connection; return for how many ms it has to wait, one window at most."""
        listener = self._listeners[key]
        throttle_ms = 0
        if not self._is_protected(listener):
            throttle_ms = self._of_listeners.charge(self._instance_rate, 1.0, now_ms)
        return max(throttle_ms, self._of_listeners.charge(listener.rate, 1.0, now_ms))

    def has_slot(self, key: ListenerKey) -> bool:
        """Whether the listener, and the instance, may have one connection more."""
        listener = self._listeners[key]
        if listener.connections >= listener.limits.connections:
            return False
        return self._is_protected(listener) or self.connections < self._limits.connections

    def admit(self, key: ListenerKey, address: str, now_ms: int) -> Admission:
        """Whether the address may have the connection, which has arrived and waited; if so it is counted.

        One that comes too fast is taken back from all rates, so that it delays nobody; one too many is not.
        """
        limits = self._address_limits.get(key.virtual_cluster, _NO_ADDRESS_LIMITS)
        origin = AddressKey(key.virtual_cluster, address)
        if (rate := limits.rate_of(address)) < NO_LIMIT:
            throttle_ms = self._measure_address(origin, rate, now_ms)
            if throttle_ms:
                self._take_back(self._listeners[key], now_ms)
                return Admission(Outcome.TOO_FAST, rate, throttle_ms)
        count = self._counts.get(origin, 0)
        if count >= (most := limits.count_of(address)):
            return Admission(Outcome.TOO_MANY, most)
        self._counts[origin] = count + 1
        self.connections += 1
        self._listeners[key].connections += 1
        return ADMITTED

    def leave(self, key: ListenerKey, address: str) -> None:
        """A connection that was admitted has ended. ValueError if none is counted for its address."""
        origin = AddressKey(key.virtual_cluster, address)
        count = self._counts.get(origin, 0)
        if not count:
            raise ValueError(f"no connection from {address} is counted in {key.virtual_cluster}")
        if count == 1:
            del self._counts[origin]
        else:
            self._counts[origin] = count - 1
        self.connections -= 1
        listener = self._listeners.get(key)
        if listener is not None and listener.connections:
            listener.connections -= 1

    def must_close_one(self, key: ListenerKey) -> bool:
        """Whether the instance has too many connections and this listener has to give one up.

        It comes to that when the limit is lowered, or by a protected listener, which never waits for the others.
        """
        return self.connections > self._limits.connections and not self._is_protected(self._listeners[key])

    def _is_protected(self, listener: _Listener) -> bool:
        return listener.protected and len(self._listeners) > 1

    def _take_back(self, listener: _Listener, now_ms: int) -> None:
        if not self._is_protected(listener):
            self._of_listeners.give_back(self._instance_rate, 1.0, now_ms)
        self._of_listeners.give_back(listener.rate, 1.0, now_ms)

    # -------------------------------------------------------- rates of addresses

    def _measure_address(self, origin: AddressKey, limit: float, now_ms: int) -> int:
        """For how many ms a connection has to be held that comes too fast, and so is not measured; else 0."""
        sensors, row = self._of_addresses, self._own_row(origin, limit, now_ms)
        if row is None:
            self.overflowed += 1
            sensors, row = self._of_listeners, self._shared_row(origin.virtual_cluster, limit, now_ms)
        throttle_ms = sensors.charge(row, 1.0, now_ms)
        if throttle_ms:
            sensors.give_back(row, 1.0, now_ms)
        return throttle_ms

    def _own_row(self, origin: AddressKey, limit: float, now_ms: int) -> int | None:
        """None for a newcomer under the default when there are no more rows."""
        row = self._rates.get(origin)
        if row is not None:
            self._rates.move_to_end(origin)
            return row
        sensors = self._of_addresses
        self._close_empty(now_ms)
        if sensors.used >= sensors.capacity - self._reserve:
            if origin.address not in self._address_limits[origin.virtual_cluster].rates:
                return None
            if sensors.used == sensors.capacity:
                sensors.close(self._rates.popitem(last=False)[1])
        row = self._rates[origin] = sensors.open(limit, now_ms)
        return row

    def _shared_row(self, virtual_cluster: str, limit: float, now_ms: int) -> int:
        if virtual_cluster not in self._shared:
            self._shared[virtual_cluster] = self._of_listeners.open(limit, now_ms)
        return self._shared[virtual_cluster]

    def _close_empty(self, now_ms: int) -> None:
        """Close rows whose window is empty: fresh ones would measure the same."""
        sensors = self._of_addresses
        for origin, row in list(islice(self._rates.items(), _CLOSED_AT_ONCE)):
            if now_ms - sensors.idle_since_ms(row) >= self._empty_after_ms:
                sensors.close(row)
                del self._rates[origin]

    # -------------------------------------------------------------------- read

    def connections_of(self, key: ListenerKey) -> int:
        """How many are admitted at this listener."""
        return self._listeners[key].connections

    def connections_from(self, key: AddressKey) -> int:
        """How many are admitted from this address."""
        return self._counts.get(key, 0)

    def instance_reading(self, now_ms: int) -> SensorReading:
        """What the instance has measured."""
        return self._of_listeners.reading(self._instance_rate, now_ms)

    def listener_reading(self, key: ListenerKey, now_ms: int) -> SensorReading:
        """What the listener has measured."""
        return self._of_listeners.reading(self._listeners[key].rate, now_ms)

    def address_reading(self, key: AddressKey, now_ms: int) -> SensorReading | None:
        """What was measured for an address; None if it has no row of its own."""
        row = self._rates.get(key)
        return None if row is None else self._of_addresses.reading(row, now_ms)

    def address_readings(self, now_ms: int) -> Iterator[tuple[AddressKey, SensorReading]]:
        """Every address that has a row, the longest unused first."""
        for key, row in list(self._rates.items()):
            yield key, self._of_addresses.reading(row, now_ms)


_NO_ADDRESS_LIMITS = AddressLimits()
