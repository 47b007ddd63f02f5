"""Limits on the rate and the number of connections: of an instance, of each listener, and from each address.

Kafka's arithmetic (KIP-402, KIP-612), as the steps of an acceptor with a new connection:

1. `arrive` measures it and returns how long it has to wait;
2. after that it waits until `has_slot`; meanwhile a broker's listener accepts no other connection;
3. `admit` decides whether its address may have it, and counts it;
4. `leave` is called when it has ended.

This module itself does not wait and closes nothing. Rates are windowed rates. A delay is at most one window, and no
debt is left.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from kafka_throttle.quotas.connection_counts import ADDRESS, NO_LIMIT, ConnectionCounts, CountKey
from kafka_throttle.quotas.sensors.address_rates import AddressRates
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading, Sensors


class ListenerKey(NamedTuple):
    """One listener of one virtual cluster."""

    virtual_cluster: str
    listener: str


class AddressKey(NamedTuple):
    """One address, in its plain spelling, at all listeners of one virtual cluster."""

    virtual_cluster: str
    address: str


class RateKey(NamedTuple):
    """One rate of connections: of an address in a virtual cluster, of a listener, or (without any) of the instance.

    An `address` of "" is the row that new addresses share; None: the rate is not one of addresses.
    """

    virtual_cluster: str = ""
    listener: str = ""
    address: str | None = None
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of an instance or of one listener: connections/s, and the number of connections at a time."""

    creation_rate: float = NO_LIMIT
    connections: int = NO_LIMIT


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """The limits of addresses in one virtual cluster: connections/s, and the number of connections at a time.

    `rates` and `counts` are for single addresses, in their plain spelling; `creation_rate` and `connections` are for
    each address without an entry there. Rates that begin with `shadow_` are measured and not enforced.
    """

    creation_rate: float = NO_LIMIT
    connections: int = NO_LIMIT
    rates: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    shadow_rate: float = NO_LIMIT
    shadow_rates: Mapping[str, float] = field(default_factory=dict)

    def rate_of(self, address: str) -> float:
        """The limit of this address in connections/s."""
        return self.rates.get(address, self.creation_rate)

    def shadow_rate_of(self, address: str) -> float:
        """The shadow limit of this address in connections/s."""
        return self.shadow_rates.get(address, self.shadow_rate)

    def count_of(self, address: str) -> int:
        """How many connections this address may have at a time."""
        return self.counts.get(address, self.connections)

    def has_own(self, address: str) -> bool:
        """Whether there is a limit for this address alone."""
        return address in self.rates or address in self.counts or address in self.shadow_rates


class Outcome(Enum):
    """The decision about a connection."""

    ADMITTED = "admitted"
    TOO_FAST = "too_fast"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a connection is admitted; if not, the `limit` of its address that it exceeds.

    A connection that is TOO_FAST is to be held for `throttle_ms` and then closed; one that is TOO_MANY is to be closed
    at once. `rate` is the rate limit of its address, if there is one; with `has_own` it is for this address alone.
    """

    outcome: Outcome
    limit: float = NO_LIMIT
    throttle_ms: int = 0
    rate: float | None = None
    has_own: bool = False


ADMITTED = Admission(Outcome.ADMITTED)


class _Rate:
    """One windowed rate; `charge` counts a connection and returns for how many ms it has to wait."""

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

    def copied(self) -> bytes:
        return self._sensors.copied(self._row)

    def overwrite(self, copied: bytes, now_ms: int) -> None:
        limit = self._sensors.limit(self._row)
        self._sensors.overwrite(self._row, copied)
        self.set_limit(limit, now_ms)


@dataclass(slots=True)
class _Listener:
    limits: ConnectionLimits
    rate: _Rate
    protected: bool
    connections: int = 0


@dataclass(slots=True)
class _Cluster:
    """The limits, rates and counts of the addresses of one virtual cluster."""

    samples: int
    window_ms: int
    rates: AddressRates
    shadow_rates: AddressRates
    limits: AddressLimits = field(default_factory=AddressLimits)
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)
    share_of: Callable[[RateKey], float] | None = None
    """Which part of the rate of an address this instance enforces; None: all of it."""

    def limit_of(self, key: RateKey) -> float:
        """The rate that the tables allow an address."""
        address = key.address or ""
        return self.limits.shadow_rate_of(address) if key.shadow else self.limits.rate_of(address)

    def enforced(self, key: RateKey, limit: float) -> float:
        """The part of `limit` that this instance enforces."""
        return limit if self.share_of is None else limit * self.share_of(key)


class ConnectionQuotas:
    """The connection quotas of one instance. Not thread-safe; `now_ms` is monotonic.

    Each address with a rate limit that was seen within the last N windows has a row, see `AddressRates`; at most
    `max_addresses` in each virtual cluster. `samples` and `window_ms` are for the instance, and for virtual clusters
    that are not added with others.
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
        """The number of admitted connections, at all listeners."""
        self.tell: Callable[[str, str, Admission, int], None] | None = None
        """Called with each decision of `admit`: virtual cluster, address, decision and time."""

    # ---------------------------------------------------------- configuration

    def add_virtual_cluster(self, name: str, samples: int, window_ms: int) -> None:
        """Add a virtual cluster with its measuring windows."""
        rates, shadow_rates = (AddressRates(samples, window_ms, self._max_addresses) for _ in range(2))
        self._clusters[name] = _Cluster(samples, window_ms, rates, shadow_rates)

    def add_listener(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int, protected: bool = False) -> None:
        """Add a listener. While there are others, the instance's limits do not apply to a `protected` one.

        A broker protects its inter-broker listener like this.
        """
        cluster = self._cluster(key.virtual_cluster)
        rate = _Rate(limits.creation_rate, cluster.samples, cluster.window_ms, now_ms)
        self._listeners[key] = _Listener(limits, rate, protected)

    def remove_listener(self, key: ListenerKey) -> None:
        """Remove a listener. Its connections go on, and still count for their addresses and for the instance."""
        del self._listeners[key]

    def set_instance_limits(self, limits: ConnectionLimits, now_ms: int) -> None:
        """Set these limits from the next connection on. Connections that wait already are not affected."""
        self._limits = limits
        self._rate.set_limit(limits.creation_rate, now_ms)

    def set_listener_limits(self, key: ListenerKey, limits: ConnectionLimits, now_ms: int) -> None:
        """Set these limits from the next connection on. Connections that wait already are not affected."""
        listener = self._listeners[key]
        listener.limits = limits
        listener.rate.set_limit(limits.creation_rate, now_ms)

    def set_address_limits(self, virtual_cluster: str, limits: AddressLimits) -> None:
        """Set the limits from the next connection on. Measurements stay, also while there is no limit."""
        cluster = self._cluster(virtual_cluster)
        cluster.limits = limits
        cluster.counts.limit(ADDRESS, limits.count_of)

    def _cluster(self, name: str) -> _Cluster:
        if name not in self._clusters:
            self.add_virtual_cluster(name, self._samples, self._window_ms)
        return self._clusters[name]

    # ---------------------------------------------------------- a connection's way

    def arrive(self, key: ListenerKey, now_ms: int) -> int:
        """Measure a new connection. Returns for how many ms it has to wait, one window at most."""
        listener = self._listeners[key]
        throttle_ms = listener.rate.charge(now_ms)
        return throttle_ms if self._is_protected(listener) else max(throttle_ms, self._rate.charge(now_ms))

    def has_slot(self, key: ListenerKey, on_the_way: int = 0, on_the_way_here: int = 0) -> bool:
        """Whether the listener and the instance may have one more connection.

        `on_the_way` and `on_the_way_here` are the connections that have a slot and are not admitted yet: of the
        instance, and of this listener.
        """
        listener = self._listeners[key]
        if listener.connections + on_the_way_here >= listener.limits.connections:
            return False
        return self._is_protected(listener) or self.connections + on_the_way < self._limits.connections

    def admit(self, key: ListenerKey, address: str, now_ms: int) -> Admission:
        """Decide whether the address may have this connection, which has arrived and waited. If so, it is counted.

        A connection that is TOO_FAST is taken back from all rates, so that it delays no others; one that is TOO_MANY is
        not.
        """
        admission = self._admit(key, address, now_ms)
        if self.tell is not None:
            cluster = self._clusters[key.virtual_cluster]
            limits = cluster.limits
            rate = limits.rate_of(address)
            if rate < NO_LIMIT:
                enforced = cluster.enforced(RateKey(key.virtual_cluster, "", address), rate)
                reported = replace(admission, rate=enforced, has_own=address in limits.rates)
            else:
                reported = admission
            self.tell(key.virtual_cluster, address, reported, now_ms)
        return admission

    def _admit(self, key: ListenerKey, address: str, now_ms: int) -> Admission:
        cluster = self._clusters[key.virtual_cluster]
        limits = cluster.limits
        if (rate := limits.rate_of(address)) < NO_LIMIT:
            enforced = cluster.enforced(RateKey(key.virtual_cluster, "", address), rate)
            throttle_ms = cluster.rates.measure(address, enforced, address in limits.rates, now_ms)
            if throttle_ms:
                self.take_back(key, now_ms)
                return Admission(Outcome.TOO_FAST, rate, throttle_ms)
        return self.count(key, address)

    def count(self, key: ListenerKey, address: str) -> Admission:
        """Decide whether the address may have one more connection, ignoring its rate. If so, it is counted."""
        cluster = self._clusters[key.virtual_cluster]
        if not cluster.counts.enter(CountKey(ADDRESS, address)):
            return Admission(Outcome.TOO_MANY, cluster.limits.count_of(address))
        self.connections += 1
        self._listeners[key].connections += 1
        return ADMITTED

    def measure_shadow(self, virtual_cluster: str, address: str, now_ms: int) -> None:
        """Measure a connection, admitted or not, for the shadow rates."""
        cluster = self._clusters[virtual_cluster]
        if (rate := cluster.limits.shadow_rate_of(address)) < NO_LIMIT:
            enforced = cluster.enforced(RateKey(virtual_cluster, "", address, True), rate)
            cluster.shadow_rates.measure(address, enforced, address in cluster.limits.shadow_rates, now_ms)

    def leave(self, key: ListenerKey, address: str) -> None:
        """An admitted connection has ended. Raises ValueError if none is counted for its address."""
        self._clusters[key.virtual_cluster].counts.leave(CountKey(ADDRESS, address))
        self.connections -= 1
        listener = self._listeners.get(key)
        if listener is not None and listener.connections:
            listener.connections -= 1

    def must_close_one(self, key: ListenerKey) -> bool:
        """Whether the instance has too many connections and this listener has to close one.

        That happens when the limit is lowered, or by connections of a protected listener, which never wait for a slot.
        """
        return self.connections > self._limits.connections and not self._is_protected(self._listeners[key])

    def take_back(self, key: ListenerKey, now_ms: int) -> None:
        """Take a connection that has arrived back from the rates of its listener and of the instance."""
        listener = self._listeners[key]
        if not self._is_protected(listener):
            self._rate.give_back(now_ms)
        listener.rate.give_back(now_ms)

    def _is_protected(self, listener: _Listener) -> bool:
        return listener.protected and len(self._listeners) > 1

    # ------------------------------------------------------------------ shares

    def share(self, virtual_cluster: str, share_of: Callable[[RateKey], float]) -> None:
        """Enforce from now on this part of the rates of addresses, and note which are exceeded, for `take_pressed`."""
        cluster = self._clusters[virtual_cluster]
        cluster.share_of = share_of
        cluster.rates.pressed, cluster.shadow_rates.pressed = {}, {}

    def share_of(self, virtual_cluster: str, address: str) -> float:
        """The part of the rate of an address that this instance enforces."""
        return self._clusters[virtual_cluster].enforced(RateKey(virtual_cluster, "", address), 1.0)

    def take_pressed(self, virtual_cluster: str) -> dict[RateKey, int]:
        """The rates that were exceeded since the last call, each with the end of the latest throttle."""
        pressed: dict[RateKey, int] = {}
        for shadow in (False, True):
            rates = self.rates(virtual_cluster, shadow)
            for address, until_ms in (rates.pressed or {}).items():
                pressed[RateKey(virtual_cluster, "", address, shadow)] = until_ms
            rates.pressed = {}
        return pressed

    def reshare(self, key: RateKey, share: float, keep: float, gain: Sequence[float], now_ms: int) -> None:
        """Enforce `share` times the rate of an address, as `ClientQuotaManager.reshare` does.

        Throttles are one window at most, so that none has to be cut. Does nothing if there is no limit. Raises
        ValueError if the share is not above 0.
        """
        if not share > 0:
            raise ValueError(f"expected a share above 0 of {key}, got {share}")
        if (limit := self._clusters[key.virtual_cluster].limit_of(key)) < NO_LIMIT:
            more = [seconds * limit for seconds in gain]
            self.rates(key.virtual_cluster, key.shadow).reshare(key.address or "", limit * share, keep, more, now_ms)

    def share_history(self, key: RateKey, now_ms: int) -> tuple[float, float, tuple[float, ...]] | None:
        """As `ClientQuotaManager.share_history`, of the rate of an address; None also if it is banned."""
        limit = self._clusters[key.virtual_cluster].limit_of(key)
        found = self.rates(key.virtual_cluster, key.shadow).history(key.address or "", now_ms)
        return (found[0], limit, found[1]) if found is not None and 0 < limit < NO_LIMIT else None

    def rate_keys(self, virtual_cluster: str) -> Iterable[RateKey]:
        """The keys of the rates of all addresses that have a row."""
        for shadow in (False, True):
            for address in self.rates(virtual_cluster, shadow).addresses:
                yield RateKey(virtual_cluster, "", address, shadow)

    # ------------------------------------------------------------------ copies

    def copies(self) -> Iterator[tuple[RateKey, bytes]]:
        """A copy of the row of each rate."""
        yield RateKey(), self._rate.copied()
        for key, listener in list(self._listeners.items()):
            yield RateKey(*key), listener.rate.copied()
        for name in list(self._clusters):
            for shadow in (False, True):
                for address, copied in self.rates(name, shadow).copies():
                    yield RateKey(name, "", address, shadow), copied

    def adopt(self, key: RateKey, copied: bytes, now_ms: int) -> bool:
        """Continue a rate from a copy that `copies` made, of quotas with the same windows. The limit stays.

        With a smaller share of the rate of an address than the copied row had, it continues the matching part. False if
        there is no such listener or virtual cluster, or no row for the address. Raises ValueError if the copy has
        another size.
        """
        if key.address is not None:
            if (cluster := self._clusters.get(key.virtual_cluster)) is None:
                return False
            share = None if cluster.share_of is None else cluster.share_of(key)
            limit = None if share is None else cluster.limit_of(key) * share
            return self.rates(key.virtual_cluster, key.shadow).adopt(key.address, copied, now_ms, limit)
        if key == RateKey():
            self._rate.overwrite(copied, now_ms)
            return True
        listener = self._listeners.get(ListenerKey(key.virtual_cluster, key.listener))
        if listener is not None:
            listener.rate.overwrite(copied, now_ms)
        return listener is not None

    # -------------------------------------------------------------------- read

    def address_limits(self, virtual_cluster: str) -> AddressLimits:
        """The limits in force for addresses."""
        return self._clusters[virtual_cluster].limits

    def listener_limits(self, key: ListenerKey) -> ConnectionLimits:
        """The limits in force for a listener."""
        return self._listeners[key].limits

    @property
    def instance_limits(self) -> ConnectionLimits:
        """The limits in force for the instance."""
        return self._limits

    def connections_of(self, key: ListenerKey) -> int:
        """The number of admitted connections of this listener."""
        return self._listeners[key].connections

    def connections_from(self, key: AddressKey) -> int:
        """The number of admitted connections from this address."""
        return self.counts(key.virtual_cluster).open(CountKey(ADDRESS, key.address))

    def counts(self, virtual_cluster: str) -> ConnectionCounts:
        """The numbers of connections of the addresses and users of a virtual cluster."""
        return self._clusters[virtual_cluster].counts

    def instance_reading(self, now_ms: int) -> SensorReading:
        """The measured rate of the instance."""
        return self._rate.reading(now_ms)

    def listener_reading(self, key: ListenerKey, now_ms: int) -> SensorReading:
        """The measured rate of a listener."""
        return self._listeners[key].rate.reading(now_ms)

    def rates(self, virtual_cluster: str, shadow: bool = False) -> AddressRates:
        """The rates of the addresses of a virtual cluster."""
        cluster = self._clusters[virtual_cluster]
        return cluster.shadow_rates if shadow else cluster.rates

    def address_reading(self, key: AddressKey, now_ms: int, shadow: bool = False) -> SensorReading | None:
        """The measured rate of an address, with its present limit; None if it has no row."""
        reading = self.rates(key.virtual_cluster, shadow).reading(key.address, now_ms)
        if reading is None:
            return None
        cluster = self._clusters[key.virtual_cluster]
        return replace(reading, limit=cluster.limit_of(RateKey(key.virtual_cluster, "", key.address, shadow)))

    def address_readings(self, now_ms: int) -> Iterator[tuple[AddressKey, SensorReading]]:
        """The measured rate of each address that has a row, for each virtual cluster the longest unused first."""
        for name, cluster in list(self._clusters.items()):
            for address, reading in cluster.rates.readings(now_ms):
                limit = cluster.limits.rate_of(address)
                yield AddressKey(name, address), reading if limit == reading.limit else replace(reading, limit=limit)
