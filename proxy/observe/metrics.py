"""All metrics of the service, declared in one place.

Rare events are counted by metric objects. What is counted for each frame is a plain integer elsewhere: the owner of
these integers registers a source, and one collector reads all sources at scrape time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_throttle.common.duties import failures
from kafka_throttle.proxy.gate.gate_metrics import (
    AddressUse,
    ClusterGate,
    InstanceGate,
    ListenerGate,
    TopAddresses,
    address_families,
    closed_family,
    cluster_families,
    instance_families,
    listener_families,
)
from kafka_throttle.proxy.installed import build_in_use, installed_version
from kafka_throttle.proxy.observe.added_latency import AddedLatency, latency_family
from kafka_throttle.proxy.observe.fleet_metrics import FleetTotals, fleet_families
from kafka_throttle.proxy.observe.health import ClusterHealth, Muted, health_families, muted_family
from kafka_throttle.proxy.observe.logs import dropped_lines
from kafka_throttle.proxy.observe.past.history_metrics import HistoryTotals, history_families
from kafka_throttle.proxy.observe.top_entities import EntitySource, Rules, TopEntities, node_label
from kafka_throttle.proxy.relay.actions import CloseReason

_RELAY = ("virtual_cluster", "listener", "node_id")
_RULE = ("virtual_cluster", "node_id", "quota_type")
_ENTITY = (*_RULE, "user", "client_id")


@dataclass(slots=True)
class RelayTotals:
    """What all relays of one (virtual cluster, listener, node) have counted, open and closed connections together.

    `requests` is by the API's name; `throttles` and `throttled_ms` are by the quota type's name. `node_throttles`
    counts responses in which the node's throttle time was larger than ours. `withheld_bytes` are the bytes of Fetch
    responses over quota that were replaced by empty ones. `mutations_refused` counts topics whose creation, deletion or
    new partitions were refused. `exempt_us` is the request time that is charged to no quota. `authentications` is by
    result.
    """

    virtual_cluster: str
    listener: str
    node_id: int
    connections_open: int = 0
    connections_opened: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    request_bytes: int = 0
    responses: int = 0
    response_bytes: int = 0
    throttles: Mapping[str, int] = field(default_factory=dict)
    throttled_ms: Mapping[str, int] = field(default_factory=dict)
    node_throttles: int = 0
    withheld_bytes: int = 0
    mutations_refused: int = 0
    authentications: Mapping[str, int] = field(default_factory=dict)
    exempt_us: float = 0.0


@dataclass(slots=True)
class SensorTotals:
    """How full the sensor tables are: one for enforced quotas, and one for shadow quotas (`shadow_used`).

    `overflows` counts clients that got a shared row because the table was full; `capped` counts throttles that were cut
    to `max_throttle_ms`.
    """

    virtual_cluster: str
    used: int
    capacity: int
    overflows: int
    capped: int
    shadow_used: int = 0
    shadow_overflows: int = 0


@dataclass(slots=True)
class CapTotals:
    """What one byte cap let through and delayed. `listener` is "" for a cap of the whole virtual cluster.

    `limit` is in bytes/s (None: no limit any more); `waits` counts reads that had to wait, `waiting` those that wait
    now.
    """

    virtual_cluster: str
    listener: str
    direction: str
    limit: int | None
    read_bytes: int
    waits: int
    waited_ms: int
    waiting: int


@dataclass(slots=True)
class ShadowTotals:
    """What the shadow quotas of one type would have throttled at one node: the number, and the sum of throttle times.

    A `node_id` of None means all nodes together.
    """

    virtual_cluster: str
    node_id: int | None
    quota_type: str
    throttles: int
    throttled_ms: int


class StreamTotals(Protocol):
    """The totals of the records of one stream."""

    stream: str
    written: int
    written_bytes: int
    files: int
    deleted: int
    dropped: dict[str, int]
    waiting: int


@dataclass(slots=True)
class UsageTotals:
    """The totals of usage records. `failures` counts failed writes.

    `clients` has three numbers for each virtual cluster: how many clients are counted separately, how many may be, and
    how often a further client was not counted separately.
    """

    streams: Sequence[StreamTotals]
    failures: int
    clients: Mapping[str, tuple[int, int, int]]


class ShippingTotals(Protocol):
    """The totals of shipping complete files to a topic, and what is still to be shipped."""

    lines: int
    line_bytes: int
    files: int
    lost_files: int
    long_lines: int
    failures: int
    waiting_files: int
    waiting_bytes: int


_ADDRESSES_PER_STEP = 500


class Metrics:
    """The metrics of one process, in `registry`. `top_entities` may be changed at any time."""

    def __init__(self, registry: CollectorRegistry, top_entities: int = 20) -> None:
        self.registry = registry
        self.config_reloads = Counter(
            "kafka_throttle_config_reloads",
            "Reloads of the configuration file, by result: applied or rejected.",
            ("result",),
            registry=registry,
        )
        self.last_reload_ok = Gauge(
            "kafka_throttle_config_last_reload_successful",
            "1 if the configuration file as it was last read is in force, 0 if it was rejected.",
            registry=registry,
        )
        self.last_reload_at = Gauge(
            "kafka_throttle_config_last_reload_success_timestamp_seconds",
            "When the configuration that is in force was read.",
            registry=registry,
        )
        self.handover_failures = Counter(
            "kafka_throttle_handover_failures",
            "How often a process that was to take over failed to start, so that this one went on.",
            registry=registry,
        )
        self.sensors_taken_over = Gauge(
            "kafka_throttle_sensors_taken_over",
            "Rows of sensors that this process has continued from the process before it.",
            registry=registry,
        )
        self.workers = Gauge(
            "kafka_throttle_workers",
            "Processes that serve clients: 1, or as many as `workers` says.",
            registry=registry,
        )
        self.worker_restarts = Counter(
            "kafka_throttle_worker_restarts", "Workers that have ended and were replaced.", registry=registry
        )
        self.worker_timeouts = Counter(
            "kafka_throttle_worker_timeouts",
            "Questions that a worker did not answer in time, so that a response is without it.",
            registry=registry,
        )
        self.ready = Gauge("kafka_throttle_ready", "1 if /readyz says that the proxy is ready.", registry=registry)
        self.upstream_connect_failures = Counter(
            "kafka_throttle_upstream_connect_failures",
            "Failed attempts to connect to a node.",
            ("virtual_cluster", "node_id"),
            registry=registry,
        )
        self.nodes_left_out = Counter(
            "kafka_throttle_nodes_left_out",
            "How often a node was left out of a response because the listener has no port left for it.",
            ("virtual_cluster", "listener"),
            registry=registry,
        )
        self.upstream_connects_paced = Counter(
            "kafka_throttle_upstream_connects_paced",
            "Connections to a node that had to wait for `upstream.connections_per_second`.",
            ("virtual_cluster", "node_id"),
            registry=registry,
        )
        self.metadata_refresh_failures = Counter(
            "kafka_throttle_metadata_refresh_failures",
            "Failed attempts of the proxy's own connection to learn the nodes of a cluster.",
            ("virtual_cluster",),
            registry=registry,
        )
        self.quota_problems = Counter(
            "kafka_throttle_quota_problems",
            "Problems with quotas: a wrong one (it keeps its last good value, all others apply), or a failing source.",
            ("virtual_cluster", "source"),
            registry=registry,
        )
        self.certificate_ends = Gauge(
            "kafka_throttle_certificate_expiry_timestamp_seconds",
            "Expiry of the listener's certificate, or of an authority behind it that is more urgent to renew; without "
            "a listener, of the client certificate for the nodes. The listeners admin and metrics have no virtual "
            "cluster.",
            ("virtual_cluster", "listener"),
            registry=registry,
        )
        self.certificate_due = Gauge(
            "kafka_throttle_certificate_renewal_due_timestamp_seconds",
            "From when on this certificate expires soon: a quarter of its validity is left, but 30 days at most. From "
            "then on the log and `check` warn, too.",
            ("virtual_cluster", "listener"),
            registry=registry,
        )
        self.certificate_reloads = Counter(
            "kafka_throttle_certificate_reloads",
            "Reloads of certificates whose files have changed, by result: applied or rejected.",
            ("virtual_cluster", "listener", "result"),
            registry=registry,
        )
        self.http_refused = Counter(
            "kafka_throttle_http_refused",
            "Requests and connections that an HTTP listener (metrics or admin) refused, by reason.",
            ("listener", "reason"),
            registry=registry,
        )
        self.event_loop_lag = Gauge(
            "kafka_throttle_event_loop_lag_seconds",
            "The longest delay of the event loop in the last 15 seconds.",
            registry=registry,
        )
        Info("kafka_throttle_build", "The version, and whether compiled or pure Python runs.", registry=registry).info(
            {"version": installed_version(), "build": build_in_use()}
        )
        for result in ("applied", "rejected"):
            self.config_reloads.labels(result)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._counted = _Counted(top_entities)
        registry.register(self._counted)

    @property
    def top_entities(self) -> int:
        """How many entities have separate series, for each (virtual cluster, node, quota type).

        As many as that are chosen by their use, and again as many by their throttle time.
        """
        return self._counted.entities.top

    @top_entities.setter
    def top_entities(self, count: int) -> None:
        self._counted.entities.top = count

    def gather(self) -> Generator[None, None, None]:
        """Read entities in steps of a few ms, for the next scrape. A scrape without it reads them at once."""
        return self._counted.gather()

    def connections_closed(self, virtual_cluster: str, listener: str) -> dict[CloseReason, int]:
        """The dictionary in which a listener counts its closed connections by reason. It is read at each scrape."""
        return self._counted.closed.setdefault((virtual_cluster, listener), {})

    @property
    def closed(self) -> Mapping[tuple[str, str], Mapping[CloseReason, int]]:
        """How many connections of each virtual cluster and listener ended, by reason."""
        return self._counted.closed

    def loop_lag_s(self) -> float:
        """The longest delay of the event loop in the last 15 seconds."""
        [metric] = self.event_loop_lag.collect()
        return metric.samples[0].value

    def add_relays(self, source: Callable[[], Iterable[RelayTotals]]) -> None:
        """Export what `source` returns at each scrape. Rows with equal labels are added up."""
        self._counted.relays.append(source)

    def add_health(self, source: Callable[[], ClusterHealth]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.health.append(source)

    def add_latency(self, source: Callable[[], Iterable[AddedLatency]]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.latencies.append(source)

    def add_muted(self, source: Callable[[], Iterable[Muted]]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.muted.append(source)

    def add_sensors(self, source: Callable[[], SensorTotals]) -> None:
        """Export what `source` returns at each scrape; several tables are added up."""
        self._counted.sensors.append(source)

    def add_caps(self, source: Callable[[], Iterable[CapTotals]]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.caps.append(source)

    def add_shadows(self, source: Callable[[], Iterable[ShadowTotals]]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.shadows.append(source)

    def add_gate(
        self,
        instance: Callable[[], InstanceGate],
        listeners: Callable[[], Iterable[ListenerGate]],
        clusters: Callable[[], Iterable[ClusterGate]],
        addresses: Callable[[], Iterable[AddressUse]],
    ) -> None:
        """Export what these sources return at each scrape: of the addresses the top ones, and the sum of the others."""
        self._counted.instances.append(instance)
        self._counted.listeners.append(listeners)
        self._counted.clusters.append(clusters)
        self._counted.addresses.append(addresses)

    def add_shipping(self, source: Callable[[], ShippingTotals]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.shipping.append(source)

    def add_usage(self, source: Callable[[], UsageTotals]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.usage.append(source)

    def add_history(self, source: Callable[[], HistoryTotals]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.history.append(source)

    def add_fleet(self, source: Callable[[], FleetTotals]) -> None:
        """Export what `source` returns at each scrape."""
        self._counted.fleets.append(source)

    def add_entities(self, source: EntitySource) -> None:
        """Export the top entities of this source at each scrape, and the sums of the others."""
        self._counted.entities.add(source)


class _Counted(Collector):
    """Reads all sources at scrape time."""

    def __init__(self, top_entities: int) -> None:
        self.entities = TopEntities(top_entities)
        self.closed: dict[tuple[str, str], dict[CloseReason, int]] = {}
        self.relays: list[Callable[[], Iterable[RelayTotals]]] = []
        self.health: list[Callable[[], ClusterHealth]] = []
        self.muted: list[Callable[[], Iterable[Muted]]] = []
        self.latencies: list[Callable[[], Iterable[AddedLatency]]] = []
        self.sensors: list[Callable[[], SensorTotals]] = []
        self.shadows: list[Callable[[], Iterable[ShadowTotals]]] = []
        self.caps: list[Callable[[], Iterable[CapTotals]]] = []
        self.instances: list[Callable[[], InstanceGate]] = []
        self.listeners: list[Callable[[], Iterable[ListenerGate]]] = []
        self.clusters: list[Callable[[], Iterable[ClusterGate]]] = []
        self.addresses: list[Callable[[], Iterable[AddressUse]]] = []
        self.usage: list[Callable[[], UsageTotals]] = []
        self.shipping: list[Callable[[], ShippingTotals]] = []
        self.history: list[Callable[[], HistoryTotals]] = []
        self.fleets: list[Callable[[], FleetTotals]] = []
        self._gathered: dict[str, TopAddresses] | None = None

    def collect(self) -> Iterator[Metric]:
        """All metric families. Each is exported even when it has no value."""
        yield CounterMetricFamily(
            "kafka_throttle_log_lines_dropped",
            "Lines of the log that were dropped, because standard error was not read, or could not be written.",
            dropped_lines(),
        )
        yield _failures_family(failures())
        yield from _relay_families([row for source in self.relays for row in source()])
        yield from health_families([source() for source in self.health])
        yield muted_family([row for source in self.muted for row in source()])
        yield latency_family([each for source in self.latencies for each in source()])
        yield from _sensor_families([source() for source in self.sensors])
        yield from _cap_families([row for source in self.caps for row in source()])
        yield from _shadow_families([row for source in self.shadows for row in source()])
        yield closed_family(self.closed)
        yield from instance_families([source() for source in self.instances])
        yield from listener_families([row for source in self.listeners for row in source()])
        yield from cluster_families([row for source in self.clusters for row in source()])
        yield from _usage_families([source() for source in self.usage])
        yield from _shipping_families([source() for source in self.shipping])
        yield from history_families([source() for source in self.history])
        yield from fleet_families([source() for source in self.fleets])
        if self._gathered is None:
            for _ in self.gather():
                pass
        addresses, self._gathered = self._gathered or {}, None
        yield from address_families(addresses)
        yield from _entity_families(self.entities.enforced, "")
        yield _throttled_entities(self.entities.enforced)
        yield from _entity_families(self.entities.shadow, "shadow_")

    def gather(self) -> Generator[None, None, None]:
        """Read entities and addresses, in steps, for the next `collect`."""
        yield from self.entities.read()
        addresses: dict[str, TopAddresses] = {}
        for number, use in enumerate((use for source in self.addresses for use in source()), 1):
            addresses.setdefault(use.virtual_cluster, TopAddresses(self.entities.top)).add(use)
            if not number % _ADDRESSES_PER_STEP:
                yield
        self._gathered = addresses


class _Sums:
    """Collects the values of one metric. Values with equal labels are added up: a scrape must not repeat a series."""

    def __init__(self, family: GaugeMetricFamily | CounterMetricFamily) -> None:
        self._family = family
        self._sums: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], value: float) -> None:
        self._sums[labels] = self._sums.get(labels, 0) + value

    def done(self) -> Metric:
        for labels, value in self._sums.items():
            self._family.add_metric(labels, value)
        return self._family


def _counter(name: str, text: str, labels: tuple[str, ...]) -> _Sums:
    return _Sums(CounterMetricFamily(f"kafka_throttle_{name}", text, labels=labels))


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> _Sums:
    return _Sums(GaugeMetricFamily(f"kafka_throttle_{name}", text, labels=labels))


def _relay_families(rows: list[RelayTotals]) -> Iterator[Metric]:
    by_api, by_type = (*_RELAY, "api"), (*_RELAY, "quota_type")
    connections = _gauge("connections", "Client connections that are open.", _RELAY)
    opened = _counter("connections_opened", "Client connections that were opened.", _RELAY)
    requests = _counter("requests", "Requests that were forwarded to the node.", by_api)
    request_bytes = _counter("request_bytes", "Bytes of the forwarded requests.", _RELAY)
    responses = _counter("responses", "Responses that were sent to the client.", _RELAY)
    response_bytes = _counter("response_bytes", "Bytes of the responses sent to the client.", _RELAY)
    throttles = _counter("throttles", "Throttles of a client by the proxy.", by_type)
    throttled = _counter("throttled_seconds", "Time for which clients were muted.", by_type)
    by_node = _counter(
        "node_throttles", "Responses in which the node's throttle time was larger than the proxy's.", _RELAY
    )
    as_empty_fetch = _counter(
        "withheld_bytes", "Bytes of Fetch responses over quota, which were replaced by empty responses.", _RELAY
    )
    refused = _counter("mutations_refused", "Topics whose creation, deletion or new partitions were refused.", _RELAY)
    exempt = _counter("exempt_request_seconds", "Request time that is charged to no quota.", _RELAY)
    logins = _counter("authentications", "SASL authentications, by the node's result.", (*_RELAY, "result"))
    for row in rows:
        labels = (row.virtual_cluster, row.listener, str(row.node_id))
        for result, count in row.authentications.items():
            logins.add((*labels, result), count)
        exempt.add(labels, row.exempt_us / 1e6)
        connections.add(labels, row.connections_open)
        opened.add(labels, row.connections_opened)
        request_bytes.add(labels, row.request_bytes)
        responses.add(labels, row.responses)
        response_bytes.add(labels, row.response_bytes)
        by_node.add(labels, row.node_throttles)
        as_empty_fetch.add(labels, row.withheld_bytes)
        refused.add(labels, row.mutations_refused)
        for api, count in row.requests.items():
            requests.add((*labels, api), count)
        for quota_type, count in row.throttles.items():
            throttles.add((*labels, quota_type), count)
        for quota_type, duration_ms in row.throttled_ms.items():
            throttled.add((*labels, quota_type), duration_ms / 1000)
    for sums in (connections, opened, requests, request_bytes, responses, response_bytes):
        yield sums.done()
    for sums in (throttles, throttled, by_node, as_empty_fetch, refused, exempt, logins):
        yield sums.done()


def _sensor_families(tables: list[SensorTotals]) -> Iterator[Metric]:
    used = _gauge("sensors", "Rows of the sensor table in use.", ("virtual_cluster",))
    capacity = _gauge("sensors_capacity", "Rows of the sensor table.", ("virtual_cluster",))
    overflows = _counter(
        "sensor_overflows", "Clients that got a shared row because the table was full.", ("virtual_cluster",)
    )
    capped = _counter("capped", "Throttles that were cut to max_throttle_ms.", ("virtual_cluster",))
    shadow_used = _gauge("shadow_sensors", "Rows of the sensor table for shadow quotas in use.", ("virtual_cluster",))
    shadow_overflows = _counter(
        "shadow_sensor_overflows", "Clients that got a shared row of the table for shadow quotas.", ("virtual_cluster",)
    )
    for table in tables:
        labels = (table.virtual_cluster,)
        used.add(labels, table.used)
        capacity.add(labels, table.capacity)
        overflows.add(labels, table.overflows)
        capped.add(labels, table.capped)
        shadow_used.add(labels, table.shadow_used)
        shadow_overflows.add(labels, table.shadow_overflows)
    for sums in (used, capacity, overflows, capped, shadow_used, shadow_overflows):
        yield sums.done()


def _cap_families(rows: list[CapTotals]) -> Iterator[Metric]:
    labels = ("virtual_cluster", "listener", "direction")
    limit = _gauge(
        "cap_bytes_per_second",
        "The byte cap for all clients of a listener; without a listener, of the virtual cluster.",
        labels,
    )
    waiting = _gauge("cap_waiting", "Connections whose next read waits for the byte cap.", labels)
    read = _counter("cap_bytes", "Bytes that were read through the byte cap.", labels)
    waits = _counter("cap_waits", "Reads that the byte cap delayed.", labels)
    waited = _counter("cap_waited_seconds", "Sum of the waiting times of these reads.", labels)
    for row in rows:
        where = (row.virtual_cluster, row.listener, row.direction)
        if row.limit is not None:
            limit.add(where, row.limit)
        waiting.add(where, row.waiting)
        read.add(where, row.read_bytes)
        waits.add(where, row.waits)
        waited.add(where, row.waited_ms / 1000)
    for sums in (limit, waiting, read, waits, waited):
        yield sums.done()


def _failures_family(failures: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "kafka_throttle_background_failures",
        "Errors in the proxy's own background work, which goes on. Please report the traceback in the log.",
        labels=("task",),
    )
    for task, count in failures.items():
        family.add_metric((task,), count)
    return family


def _shadow_families(rows: list[ShadowTotals]) -> Iterator[Metric]:
    throttles = _counter("shadow_throttles", "Throttles that shadow quotas would have imposed.", _RULE)
    throttled = _counter("shadow_throttled_seconds", "Sum of the throttle times of these throttles.", _RULE)
    for row in rows:
        labels = (row.virtual_cluster, node_label(row.node_id), row.quota_type)
        throttles.add(labels, row.throttles)
        throttled.add(labels, row.throttled_ms / 1000)
    yield throttles.done()
    yield throttled.done()


_SHIPPING = (
    ("lines", _counter, "usage_shipped_lines", "Lines written to the topic; some may be written twice."),
    ("line_bytes", _counter, "usage_shipped_bytes", "Bytes of these lines before compression."),
    ("files", _counter, "usage_shipped_files", "Files of which all lines are in the topic."),
    ("lost_files", _counter, "usage_files_lost_unshipped", "Files that retention deleted before they were shipped."),
    (
        "long_lines",
        _counter,
        "usage_lines_unshippable",
        "Lines that were left out because they are longer than any line of kafka-throttle.",
    ),
    ("failures", _counter, "usage_shipping_failures", "Failed attempts to ship; their lines are shipped later."),
    ("waiting_files", _gauge, "usage_unshipped_files", "Complete files that are not shipped yet."),
    ("waiting_bytes", _gauge, "usage_unshipped_bytes", "Bytes of these files."),
)
"""The metrics of ShippingTotals: attribute, kind, name, help text."""


def _shipping_families(rows: list[ShippingTotals]) -> Iterator[Metric]:
    for count, kind, name, about in _SHIPPING:
        sums = kind(name, about, ())
        for row in rows:
            sums.add((), getattr(row, count))
        yield sums.done()


def _usage_families(rows: list[UsageTotals]) -> Iterator[Metric]:
    of, reasons, of_cluster = ("stream",), ("stream", "reason"), ("virtual_cluster",)
    records = _counter("usage_records", "Usage records and trace events that were written.", of)
    written = _counter("usage_bytes", "Bytes of the usage records and trace events that were written.", of)
    files = _counter("usage_files", "Files of usage records and trace events that were completed.", of)
    deleted = _counter("usage_files_deleted", "Files that were deleted because they were too old or too many.", of)
    waiting = _gauge("usage_records_waiting", "Records that wait to be written.", of)
    dropped = _counter("usage_records_dropped", "Records that were not written, by reason.", reasons)
    failures = _counter("usage_write_failures", "Failed attempts to write records.", ())
    clients = _gauge("usage_clients", "Clients whose use is counted separately.", of_cluster)
    capacity = _gauge("usage_clients_capacity", "The most clients whose use can be counted separately.", of_cluster)
    overflows = _counter(
        "usage_client_overflows", "Clients that were not counted separately because there were too many.", of_cluster
    )
    for row in rows:
        failures.add((), row.failures)
        for stream in row.streams:
            labels = (stream.stream,)
            records.add(labels, stream.written)
            written.add(labels, stream.written_bytes)
            files.add(labels, stream.files)
            deleted.add(labels, stream.deleted)
            waiting.add(labels, stream.waiting)
            for reason, count in stream.dropped.items():
                dropped.add((stream.stream, reason), count)
        for cluster, (count, most, overflowed) in row.clients.items():
            clients.add((cluster,), count)
            capacity.add((cluster,), most)
            overflows.add((cluster,), overflowed)
    for sums in (records, written, files, deleted, waiting, dropped, failures, clients, capacity, overflows):
        yield sums.done()


def _entity_families(rules: Rules, kind: str) -> Iterator[Metric]:
    """The metric families of entities. `kind` is "" for enforced quotas, "shadow_" for shadow quotas."""
    what = "a shadow quota" if kind else "a quota"
    rate = _gauge(
        f"{kind}entity_rate",
        f"Current use of {what}, in its unit, by the entities with the highest use and those throttled most.",
        _ENTITY,
    )
    tokens = _gauge(f"{kind}entity_tokens", f"Tokens left in the bucket of {what}; negative if overdrawn.", _ENTITY)
    limit = _gauge(f"{kind}entity_limit", "The limit of these entities, if they have one, in its unit.", _ENTITY)
    throttled = _counter(
        f"{kind}entity_throttle_seconds",
        f"Throttle time {'that would have been imposed on' if kind else 'of'} these entities.",
        _ENTITY,
    )
    others = _gauge(f"{kind}other_entities", "How many further entities are measured.", _RULE)
    other_rate = _gauge(
        f"{kind}other_entities_rate", "The sum of the use of these further entities, in its unit.", _RULE
    )
    other_throttled = _gauge(
        f"{kind}other_entities_throttle_seconds",
        f"Throttle time {'that would have been imposed on' if kind else 'of'} these further entities.",
        _RULE,
    )
    for rule, entities in rules.items():
        shown_rows = entities.shown()
        for labels, row in shown_rows.items():
            if row.tokens is None:
                rate.add((*rule, *labels), row.rate)
            else:
                tokens.add((*rule, *labels), row.tokens)
            if row.limit is not None:
                limit.add((*rule, *labels), row.limit)
            throttled.add((*rule, *labels), row.throttled_ms / 1000)
        others.add(rule, entities.count - len(shown_rows))
        rest_ms = entities.throttled_ms - sum(row.throttled_ms for row in shown_rows.values())
        other_throttled.add(rule, rest_ms / 1000)
        if not entities.has_tokens:
            rest = entities.rate - sum(row.rate for row in shown_rows.values())
            other_rate.add(rule, max(rest, 0.0))
    for sums in (rate, tokens, limit, throttled, others, other_rate, other_throttled):
        yield sums.done()


def _throttled_entities(rules: Rules) -> Metric:
    throttled = _gauge("throttled_entities", "How many entities have clients that are throttled now.", _RULE)
    for rule, entities in rules.items():
        throttled.add(rule, entities.throttled)
    return throttled.done()
