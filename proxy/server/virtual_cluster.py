"""One running virtual cluster: its quotas, its connections to the nodes, its listeners."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import UsageConfig, VirtualClusterConfig, pinned_costs
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.gate.address_quotas import AddressQuotas
from kafka_throttle.proxy.gate.admission import AddressStanding
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.full_tables import FullTables
from kafka_throttle.proxy.observe.health import ClusterHealth
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import CapTotals, Metrics, SensorTotals, ShadowTotals
from kafka_throttle.proxy.observe.page.process import NodeState
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.observe.top_entities import EntitySource, EntityUse
from kafka_throttle.proxy.relay.costs import BUSY_SHARES, SHIPPED
from kafka_throttle.proxy.relay.use import Meter
from kafka_throttle.proxy.server.caps import Caps
from kafka_throttle.proxy.server.connection import Connection
from kafka_throttle.proxy.server.fleet.fleet import Fleet
from kafka_throttle.proxy.server.fleet.membership import fleet_of
from kafka_throttle.proxy.server.fleet.transport import FleetTransport
from kafka_throttle.proxy.server.listener import Listener
from kafka_throttle.proxy.server.quota_sources import source_of
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.server.sharing import Sharing
from kafka_throttle.proxy.server.tls_material import TlsMaterial
from kafka_throttle.proxy.upstream.connector import Upstream
from kafka_throttle.proxy.upstream.topology import NodeDirectory
from kafka_throttle.proxy.usage.recorder import own_name
from kafka_throttle.proxy.usage.tracer import Tracer
from kafka_throttle.quotas.changes import Quotas
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_quotas import RateKey
from kafka_throttle.quotas.entities import plain_ip
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.traced_sensors import TracedBuckets, TracedSensors
from kafka_throttle.quotas.request_costs import RequestCosts
from kafka_throttle.quotas.row_copies import values_of
from kafka_throttle.quotas.sensors.token_buckets import BucketReading, TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading, Sensors
from kafka_throttle.quotas.shares.member import Explained
from kafka_throttle.quotas.sources.source import Source


class VirtualCluster:
    """One running virtual cluster: its quotas, its connections to the nodes, its listeners."""

    def __init__(
        self,
        config: VirtualClusterConfig,
        config_path: Path,
        max_sensors: int,
        poller: Poller,
        clock: Clock,
        metrics: Metrics,
        may_open: Callable[[], bool],
        gate: ConnectionGate,
        usage: UsageConfig | None = None,
        tracer: Tracer | None = None,
        transport: FleetTransport | None = None,
        source: Source | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """`transport` carries the claims of its fleet; None: this instance is the only one."""
        usage = usage or UsageConfig()
        throttle = config.throttle
        windows = config.quotas.windows
        window_ms = windows.quota_window_size_seconds * 1000
        gate.admission.add_virtual_cluster(config.name, windows.quota_window_num, window_ms)
        caps = (throttle.max_throttle_ms, throttle.max_debt_ms)
        of_rates = (max_sensors, windows.quota_window_num, window_ms, *caps)
        of_buckets = (
            max_sensors,
            windows.controller_quota_window_num,
            windows.controller_quota_window_size_seconds * 1000,
            throttle.max_throttle_ms,
        )
        sensors = Sensors(*of_rates) if tracer is None else TracedSensors(tracer.note, *of_rates)
        buckets = TokenBuckets(*of_buckets) if tracer is None else TracedBuckets(tracer.note, *of_buckets)
        self.name = config.name
        self.user_names: Mapping[str, str] = {}
        self.gate = gate
        costs = RequestCosts(SHIPPED, busy_shares=BUSY_SHARES)
        traces = None if tracer is None else tracer.chooses
        self.quota_manager = ClientQuotaManager(sensors, QuotaTable(), buckets=buckets, costs=costs, traces=traces)
        self.meter = Meter(config.name, usage.window_s, usage.max_clients, costs) if usage.directory else None
        self.source = source or source_of(config, config_path)
        self.book = QuotaStore(
            config.name,
            self.source,
            self.quota_manager,
            clock,
            lambda source, count: metrics.quota_problems.labels(config.name, source).inc(count),
            reports=source is None,
        )
        self.fleet: Fleet | None = None
        self.transport = transport
        if transport is not None:
            name, connections = usage.instance or own_name(), gate.admission.quotas
            self.fleet = fleet_of(config, transport, self.quota_manager, connections, name, clock)
        self.last_throttles = LastThrottles(self.quota_manager, clock)
        self.throttled = ThrottledClients()
        self._full_tables = FullTables(config.name)
        self.upstream = Upstream(
            config.name,
            config.upstream,
            NodeDirectory(
                config.name,
                clock.now_us,
                lambda listener: metrics.nodes_left_out.labels(config.name, listener).inc(),
                config.upstream.destinations,
            ),
            poller,
            lambda node_id: metrics.upstream_connect_failures.labels(config.name, str(node_id)).inc(),
            lambda: metrics.metadata_refresh_failures.labels(config.name).inc(),
            lambda node_id: metrics.upstream_connects_paced.labels(config.name, str(node_id)).inc(),
            clock.now_us,
        )
        self.caps = Caps(clock)
        sharing = sharing or Sharing()
        self.listeners = [
            Listener(
                config.name,
                listener,
                self.upstream,
                self.quota_manager,
                self.book,
                self.last_throttles,
                self.throttled,
                poller,
                clock,
                may_open,
                metrics.connections_closed(config.name, listener.name),
                self.caps,
                gate,
                self.meter,
                sharing,
            )
            for listener in config.listeners
        ]
        self.address_quotas = AddressQuotas(config.name, gate)
        self.book.when_changed = self.address_quotas.take_up
        self.set_rules(config)

    def set_rules(self, config: VirtualClusterConfig) -> None:
        """Apply the settings of quotas, throttling, byte caps, SASL, connections and listeners."""
        self.is_one_of_several = config.is_one_of_several
        """Whether other instances serve clients with the same quotas."""
        self.book.refuses_while_unknown = config.quotas.when_unknown == "refuse"
        self.quota_manager.costs.pin(pinned_costs(config.quotas))
        self.caps.set(config.caps)
        self.user_names = config.sasl.user_names
        self.address_quotas.set_rules(config.connections)
        settings = {listener.name: listener for listener in config.listeners}
        for listener in self.listeners:
            listener.set_rules(config, settings[listener.name])

    def set_certified(self, name: str, certified: TlsMaterial | None) -> None:
        """Use this TLS material for the listener `name`, or with "" for the nodes; None: plain TCP."""
        if not name:
            self.upstream.set_tls(None if certified is None else certified.context)
        for listener in self.listeners:
            if listener.name == name:
                listener.acceptor.set_certified(certified)

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""
        return self.book.quotas

    @property
    def quotas_since_ms(self) -> int:
        """When the quotas in force came into force, by the wall clock."""
        return self.book.since_ms

    def standing_of(self, address: str, shadow: bool) -> AddressStanding:
        """The connection limits of an address, and what it uses of them."""
        standing = self.gate.standing_of(self.name, address, shadow)
        return replace(standing, hosts=self.address_quotas.hosts_at(plain_ip(address)))

    def share_of(self, row: SensorKey | RateKey) -> Explained | None:
        """The share of a limit that this instance enforces, and why; None if it has no fleet."""
        return None if self.fleet is None else self.fleet.member.explain(values_of(row))

    def health(self) -> ClusterHealth:
        """What is right and wrong with the cluster, its listeners and its source of quotas."""
        directory, discovery = self.upstream.directory, self.upstream.discovery
        nodes, are_known = directory.present, discovery.trouble is None and not discovery.lacks_login
        return ClusterHealth(
            self.name,
            discovery.trouble,
            nodes,
            [each.name for each in self.listeners if are_known and not any(map(each.has_port, nodes))],
            self.source.name,
            self.source.state,
            self.book.known,
            None if self.fleet is None else self.fleet.totals(),
            [str(server) for server in discovery.silent],
            [f"node {node_id} is not connected to at {why}" for node_id, why in directory.refused.items()],
            self.book.problems_to_report,
            discovery.lacks_login,
        )

    @property
    def origin(self) -> Origin:
        """The source of the quotas, and its problems."""
        return Origin(self.name, self.source.name, self.book.problems, self.book.known)

    def node_ids(self) -> set[int]:
        """The nodes at which clients may have been measured."""
        return set(self.upstream.directory.node_ids).union(*(listener.relays.counters for listener in self.listeners))

    @property
    def connections(self) -> Iterator[Connection]:
        """All open connections."""
        return (connection for listener in self.listeners for connection in list(listener.connections))

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open."""
        counters = (each for listener in self.listeners for each in listener.relays.counters.values())
        return sum(each.connections_open for each in counters)

    def nodes(self) -> Iterator[NodeState]:
        """The nodes that the cluster has or had."""
        directory = self.upstream.directory
        for node_id in list(directory.node_ids):
            host, port = directory.address(node_id) or ("", 0)
            yield NodeState(node_id, f"{host}:{port}", directory.gone_for_s(node_id))

    def peers(self) -> Iterator[tuple[str, str]]:
        """The user and the address of each open connection."""
        return (peer for listener in self.listeners for peer in listener.peers())

    def clients(self) -> Iterator[Client]:
        """The client of each open connection that has sent a request, with its address."""
        table = self.quota_manager.table
        return (
            Client(user, measured_client_id(client_id, table), address)
            for listener in self.listeners
            for user, client_id, address in listener.clients()
        )

    def cap_totals(self) -> Iterator[CapTotals]:
        """The totals of each byte cap. The listener is "" for the caps of the whole virtual cluster."""
        for listener, caps in (
            ("", self.caps),
            *((listener.name, listener.streams.caps) for listener in self.listeners),
        ):
            for direction, cap in caps.by_direction().items():
                if cap.limit is not None or cap.waits:
                    counts = (cap.limit, cap.read_bytes, cap.waits, cap.waited_ms, cap.waiting)
                    yield CapTotals(self.name, listener, direction, *counts)

    def sensor_totals(self) -> SensorTotals:
        """How full the sensor tables are."""
        quota_manager = self.quota_manager
        return SensorTotals(
            self.name,
            quota_manager.sensors.used,
            quota_manager.sensors.capacity,
            quota_manager.overflowed,
            quota_manager.sensors.capped + quota_manager.buckets.capped,
            quota_manager.shadow_sensors.used,
            quota_manager.shadow_overflowed,
        )

    def report_full_tables(self, now_us: int) -> None:
        """Log which tables of sensors had no room for newcomers."""
        totals = self.sensor_totals()
        overflows = {"clients": totals.overflows, "shadow": totals.shadow_overflows}
        self._full_tables.look(overflows | {"addresses": self.gate.overflows_of(self.name)}, now_us)

    def shadow_totals(self) -> Iterator[ShadowTotals]:
        """What the shadow quotas would have throttled."""
        for (_, node_id, quota_type), (throttles, throttled_ms) in self.quota_manager.shadow_throttles().items():
            yield ShadowTotals(self.name, _one_node(node_id), quota_type.name.lower(), throttles, throttled_ms)
        of_connections = self.gate.shadow_totals(self.name)
        if of_connections.throttles:
            yield ShadowTotals(self.name, None, "connection", *of_connections)

    def entities(self, clock: Clock) -> EntitySource:
        """The measured entities, for the metrics."""
        return EntitySource(
            partial(self._entity_uses, clock), partial(self._throttled_uses, clock), partial(self._again, clock)
        )

    def _entity_uses(self, clock: Clock) -> Iterator[EntityUse | None]:
        return (self._read(key, clock.now_ms()) for key in self.quota_manager.sensor_keys)

    def _throttled_uses(self, clock: Clock) -> Iterator[EntityUse]:
        uses = (self._read(key, clock.now_ms()) for key in self.throttled.sensors())
        return (use for use in uses if use is not None)

    def _again(self, clock: Clock, use: EntityUse) -> EntityUse | None:
        return None if use.sensor is None else self._read(use.sensor, clock.now_ms())

    def _read(self, key: SensorKey, now_ms: int) -> EntityUse | None:
        """What a sensor measures now; None if it was closed, and for a token bucket without a limit."""
        reading = self.quota_manager.reading(key, now_ms)
        return None if reading is None else self._entity_use(key, reading)

    def _entity_use(self, key: SensorKey, reading: SensorReading | BucketReading) -> EntityUse | None:
        limit = reading.limit if reading.limit < UNLIMITED else None
        if isinstance(reading, SensorReading):
            rate, tokens = reading.rate, None
        elif limit is None:
            return None
        else:
            rate, tokens = reading.burst - reading.tokens, reading.tokens
        return EntityUse(
            self.name,
            _one_node(key.node_id),
            key.quota_type.name.lower(),
            key.tags.user,
            key.tags.client_id,
            rate,
            limit,
            reading.throttled_ms,
            key.shadow,
            tokens,
            self.throttled.throttles(key),
            key,
        )


def _one_node(node_id: int) -> int | None:
    return None if node_id == WHOLE_CLUSTER else node_id
