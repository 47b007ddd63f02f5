"""Metrics of client connections: their rates, and how many wait, are held or are refused.

The rates and throttle times are Kafka's. Times are sums in seconds; divide them by their counts for the average.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_throttle.proxy.relay.actions import CloseReason


@dataclass(slots=True)
class ListenerGate:
    """The connections of one listener. Rates are in connections/s; a limit is None where there is none.

    `throttles` connections waited for a rate of the listener or the instance, `address_throttles` were held for the
    rate of their address.
    """

    virtual_cluster: str
    listener: str
    accept_rate: float
    accept_limit: float | None
    connections_limit: int | None
    throttles: int
    throttled_ms: int
    address_throttles: int
    address_throttled_ms: int


@dataclass(slots=True)
class ClusterGate:
    """How many connections of one virtual cluster are held, and how full its table of measured addresses is."""

    virtual_cluster: str
    held: int
    addresses: int
    addresses_capacity: int
    overflows: int


@dataclass(slots=True)
class InstanceGate:
    """The connections of the whole process. `sockets` counts all client sockets, in any state."""

    accept_rate: float
    accept_limit: float | None
    connections: int
    connections_limit: int | None
    held: int
    held_limit: int
    sockets: int
    sockets_limit: int


@dataclass(slots=True)
class AddressUse:
    """The connection rate of one address or prefix that has a limit."""

    virtual_cluster: str
    address: str
    rate: float
    limit: float
    throttles: int


class TopAddresses:
    """The `top` addresses of one virtual cluster by rate, and the number and total rate of all its addresses."""

    def __init__(self, top: int) -> None:
        self.count = 0
        self.rate = 0.0
        self._top = top
        self._most: list[AddressUse] = []

    def add(self, row: AddressUse) -> None:
        """Add one address."""
        self.count += 1
        self.rate += row.rate
        self._most.append(row)
        if len(self._most) > 4 * self._top + 500:
            self._most = self.most_used()

    def most_used(self) -> list[AddressUse]:
        """The addresses with the highest rates; of equal rates, those with most refusals."""
        return nlargest(self._top, self._most, key=lambda row: (row.rate, row.throttles))


def instance_families(gates: list[InstanceGate]) -> Iterator[Metric]:
    """The metric families of the process. Each is exported even when it has no value."""
    rate = _gauge(
        "instance_connection_accept_rate", "Rate of new client connections of this process, in connections/s."
    )
    limit = _gauge("instance_connection_accept_limit", "The limit of this rate, if there is one.")
    connections = _gauge("instance_connections", "Client connections that are admitted and open.")
    connections_limit = _gauge(
        "instance_connections_limit", "The limit above which new connections wait, if there is one."
    )
    held_limit = _gauge("held_connections_limit", "The limit of held connections; further ones are reset.")
    sockets = _gauge("client_sockets", "Client sockets in any state: open, waiting, held or closing.")
    sockets_limit = _gauge("client_sockets_limit", "The limit of client sockets; further ones are closed at once.")
    for gate in gates:
        rate.add_metric((), gate.accept_rate)
        connections.add_metric((), gate.connections)
        held_limit.add_metric((), gate.held_limit)
        sockets.add_metric((), gate.sockets)
        sockets_limit.add_metric((), gate.sockets_limit)
        if gate.accept_limit is not None:
            limit.add_metric((), gate.accept_limit)
        if gate.connections_limit is not None:
            connections_limit.add_metric((), gate.connections_limit)
    yield from (rate, limit, connections, connections_limit, held_limit, sockets, sockets_limit)


def listener_families(gates: list[ListenerGate]) -> Iterator[Metric]:
    """The metric families of listeners."""
    of = ("virtual_cluster", "listener")
    rate = _gauge("connection_accept_rate", "Rate of new client connections of a listener, in connections/s.", of)
    limit = _gauge("connection_accept_limit", "The limit of this rate, if there is one.", of)
    connections_limit = _gauge("connections_limit", "The limit above which new connections wait, if there is one.", of)
    throttles = _counter(
        "connection_accept_throttles", "Connections that waited for the rate of the listener or the process.", of
    )
    throttled = _counter("connection_accept_throttle_seconds", "Sum of the throttle times of these connections.", of)
    held = _counter(
        "ip_connection_accept_throttles", "Connections that were held because their address exceeded its rate.", of
    )
    held_for = _counter(
        "ip_connection_accept_throttle_seconds", "Sum of the times for which these connections were held.", of
    )
    for gate in gates:
        labels = (gate.virtual_cluster, gate.listener)
        rate.add_metric(labels, gate.accept_rate)
        throttles.add_metric(labels, gate.throttles)
        throttled.add_metric(labels, gate.throttled_ms / 1000)
        held.add_metric(labels, gate.address_throttles)
        held_for.add_metric(labels, gate.address_throttled_ms / 1000)
        if gate.accept_limit is not None:
            limit.add_metric(labels, gate.accept_limit)
        if gate.connections_limit is not None:
            connections_limit.add_metric(labels, gate.connections_limit)
    yield from (rate, limit, connections_limit, throttles, throttled, held, held_for)


def closed_family(closed: Mapping[tuple[str, str], Mapping[CloseReason, int]]) -> Metric:
    """How many connections of each virtual cluster and listener ended, by reason."""
    of = ("virtual_cluster", "listener", "reason")
    family = _counter("connections_closed", "Client connections that ended, by reason.", of)
    for where, reasons in closed.items():
        for reason, count in list(reasons.items()):
            family.add_metric((*where, reason.value), count)
    return family


def cluster_families(gates: list[ClusterGate]) -> Iterator[Metric]:
    """The metric families of virtual clusters."""
    of = ("virtual_cluster",)
    held = _gauge("held_connections", "Connections that are held because their address exceeded its rate.", of)
    used = _gauge("ip_sensors", "Addresses whose connection rate is measured.", of)
    capacity = _gauge("ip_sensors_capacity", "The most addresses whose connection rate can be measured.", of)
    overflows = _counter("ip_sensor_overflows", "Connections measured together because there were more addresses.", of)
    for gate in gates:
        labels = (gate.virtual_cluster,)
        held.add_metric(labels, gate.held)
        used.add_metric(labels, gate.addresses)
        capacity.add_metric(labels, gate.addresses_capacity)
        overflows.add_metric(labels, gate.overflows)
    yield from (held, used, capacity, overflows)


def address_families(addresses: dict[str, TopAddresses]) -> Iterator[Metric]:
    """The metric families of addresses, by virtual cluster: the top addresses, and the sum of all others."""
    of, of_all = ("virtual_cluster", "ip"), ("virtual_cluster",)
    rate = _gauge(
        "ip_connection_accept_rate",
        "Rate of new connections of the addresses with the highest rates, in connections/s.",
        of,
    )
    limit = _gauge("ip_connection_accept_limit", "The limits of these addresses.", of)
    refused = _counter("ip_connections_refused", "Connections that exceeded the rate of these addresses.", of)
    others = _gauge("other_ips", "How many further addresses are measured.", of_all)
    other_rate = _gauge("other_ips_connection_accept_rate", "The sum of the rates of these further addresses.", of_all)
    for virtual_cluster, top in addresses.items():
        rows = top.most_used()
        for row in rows:
            labels = (virtual_cluster, row.address)
            rate.add_metric(labels, row.rate)
            limit.add_metric(labels, row.limit)
            refused.add_metric(labels, row.throttles)
        others.add_metric((virtual_cluster,), top.count - len(rows))
        other_rate.add_metric((virtual_cluster,), max(top.rate - sum(row.rate for row in rows), 0.0))
    yield from (rate, limit, refused, others, other_rate)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kafka_throttle_{name}", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"kafka_throttle_{name}", text, labels=labels)
