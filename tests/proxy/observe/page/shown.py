"""A process with one virtual cluster, for tests of the status page: real sensors and quotas, made-up totals."""

from types import SimpleNamespace

from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.gate.admission import AddressStanding
from kafka_throttle.proxy.gate.gate_metrics import AddressUse, InstanceGate, ListenerGate
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.health import ClusterHealth, Muted
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import CapTotals, RelayTotals, ShadowTotals
from kafka_throttle.proxy.observe.page.process import NodeState, Process
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.relay.actions import CloseReason, Throttled
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.sources.source import SourceState

PRODUCE, SHADOW_FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH, shadow=True)
QUOTAS = {
    Entity("alice"): {PRODUCE: Limit(1_000_000.0, "proxy.yaml"), SHADOW_FETCH: Limit(50.0, "state.json")},
    Entity(client_id=DEFAULT): {PRODUCE: Limit(9_000.0, "proxy.yaml")},
}
NODE = 2


class Cluster(SimpleNamespace):
    """A virtual cluster with nodes 1 and 2, of which 1 is gone."""

    def __init__(self, name, clock, quotas=QUOTAS, capacity=256):
        manager = ClientQuotaManager(Sensors(capacity), QuotaTable())
        tables = tables_of(quotas)
        manager.replace(tables.enforced, clock.now_ms(), tables.shadow)
        super().__init__(
            name=name,
            clock=clock,
            quota_manager=manager,
            last_throttles=LastThrottles(manager, clock),
            throttled=ThrottledClients(),
            quotas=quotas,
            origin=Origin(name, "file", {}),
            trouble=None,
            open=[("alice", "10.0.0.1")],
            fleet=None,
            user_names={},
            share=None,
            is_one_of_several=False,
            open_connections=4,
            client_ids={},
        )

    def node_ids(self):
        return [1, NODE]

    def nodes(self):
        return [NodeState(1, "kafka-1:9092", 61.0), NodeState(NODE, "kafka-2:9092", None)]

    def peers(self):
        return iter(self.open)

    def clients(self):
        return [Client(user, self.client_ids.get(user, "etl"), address) for user, address in self.open]

    def health(self):
        return ClusterHealth(
            self.name, self.trouble, [NODE], [], "file", SourceState(True, True, 3.0), True, self.fleet
        )

    def share_of(self, sensor):
        return self.share

    def standing_of(self, address, shadow):
        return AddressStanding(address, 1, None, None)

    def cap_totals(self):
        return [CapTotals(self.name, "plain", "ingress", 1000, 5, 2, 30, 1)]

    def shadow_totals(self):
        return [ShadowTotals(self.name, NODE, "fetch", 3, 900)]

    def use(self, user, client_id, value, quota="produce"):
        """Charge a client, and return for how long that throttles it, in ms."""
        facts = ConnectionFacts(ListenerFacts(self.name, None, self.quota_manager, None), NODE, user)
        sensors, now_ms = facts.bind(client_id.encode(), self.clock.now_ms()), self.clock.now_ms()
        if quota == "shadow_fetch":
            return self.quota_manager.shadow_sensors.charge(sensors.shadow_fetch, value, now_ms)
        return self.quota_manager.sensors.charge(sensors.produce, value, now_ms)

    def throttle(self, user, client_id, value=20_000_000):
        """Charge a client far beyond its limit, and note that it is throttled."""
        throttle_time_ms = self.use(user, client_id, value)
        facts = ConnectionFacts(ListenerFacts(self.name, None, self.quota_manager, None), NODE, user)
        cause, now_ms = Throttled(QuotaType.PRODUCE, throttle_time_ms, client_id.encode()), self.clock.now_ms()
        episode = ThrottleEpisode(self.last_throttles.note("10.0.0.1", cause, facts, now_ms), now_ms, now_ms)
        episode.note(throttle_time_ms, now_ms)
        self.throttled.add(episode)
        return episode


class Shown(SimpleNamespace):
    """The process, and what its totals are made of."""

    def __init__(self, clock, *clusters):
        super().__init__(
            clock=clock,
            clusters=list(clusters) or [Cluster("main", clock)],
            totals=[
                RelayTotals("main", "plain", NODE, connections_open=4, requests={"Produce": 10}, request_bytes=100)
            ],
            reasons=[],
            addresses=[AddressUse("main", "10.0.0.1", 4.0, 5.0, 1)],
            closed={("main", "plain"): {CloseReason.CLIENT_CLOSED: 9, CloseReason.REQUEST_NOT_KAFKA: 2}},
        )

    def process(self):
        return Process(
            name="proxy-1",
            clusters=self.clusters,
            clock=self.clock,
            not_ready=lambda: self.reasons,
            remarks=lambda: [remark for cluster in self.clusters for remark in cluster.health().remarks()],
            relays=lambda: self.totals,
            muted=lambda: [Muted("main", "plain", 1)],
            instance=lambda: InstanceGate(1.5, None, 4, None, 0, 2000, 5, 10_000),
            listeners=lambda: [ListenerGate("main", "plain", 1.5, 20.0, None, 3, 40, 2, 90)],
            addresses=lambda: self.addresses,
            closed=self.closed,
            loop_lag_s=lambda: 0.004,
        )
