"""The quotas of one simulated instance: the product's sensors and tables, charged as the relay charges them."""

from functools import cache
from typing import Any, Final

from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, ClientSensors, SensorKey
from kafka_throttle.quotas.connection_quotas import (
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fleet.events import Events
from tests.fleet.plan import Plan

CLUSTER: Final = "main"
_NODE_ID: Final = 1
_LISTENER: Final = ListenerKey(CLUSTER, "clients")


class InstanceClock:
    """The clock of one instance: it starts anywhere, and runs a little faster or slower than the others'."""

    def __init__(self, events: Events, start_ms: int, speed: float) -> None:
        self._events = events
        self._start_ms = start_ms
        self._speed = speed

    def now_ms(self) -> int:
        return self.of(self._events.now_ms)

    def now_us(self) -> int:
        return self.now_ms() * 1000

    def epoch_ms(self) -> int:
        return 1_700_000_000_000 + self._events.now_ms

    def of(self, at_ms: int) -> int:
        """What this clock showed at a time of the simulation."""
        return self._start_ms + int(at_ms * self._speed)


def name_of(entity: int) -> str:
    """The user, or the address, that an entity of a plan stands for."""
    return f"user-{entity}"


@cache
def key_of(entity: int, quota_type: QuotaType) -> tuple[Any, ...]:
    """What the fleet calls the sensor of this entity."""
    if quota_type is QuotaType.CONNECTION:
        return "connection", CLUSTER, "", name_of(entity), False
    node_id = WHOLE_CLUSTER if quota_type is QuotaType.CONTROLLER_MUTATION else _NODE_ID
    return "client", CLUSTER, node_id, QuotaKey(quota_type, False).text, name_of(entity), "", None


def quota_table(plan: Plan) -> QuotaTable:
    """The quotas of a plan, but for those of connections."""
    return QuotaTable(
        {
            Entity(name_of(number)): {QuotaType(entity.quota_type): entity.limit}
            for number, entity in enumerate(plan.entities)
            if QuotaType(entity.quota_type) is not QuotaType.CONNECTION
        }
    )


@cache
def _sensor_key(entity: int, quota_type: QuotaType) -> SensorKey:
    return SensorKey(CLUSTER, key_of(entity, quota_type)[2], quota_type, SensorTags(name_of(entity), ""))


class Enforcing:
    """The sensors of one process, and the quotas of a plan on them."""

    def __init__(self, plan: Plan, table: QuotaTable, clock: InstanceClock) -> None:
        self._types = [QuotaType(entity.quota_type) for entity in plan.entities]
        self._limits = [entity.limit for entity in plan.entities]
        self._clock = clock
        capacity = 2 * len(plan.entities) + 16
        self.manager = ClientQuotaManager(
            Sensors(capacity, plan.windows, plan.window_ms),
            table,
            buckets=TokenBuckets(capacity, plan.windows, plan.window_ms),
        )
        now_ms = clock.now_ms()
        self.connections = ConnectionQuotas(ConnectionLimits(), now_ms, plan.windows, plan.window_ms)
        self.connections.add_virtual_cluster(CLUSTER, plan.windows, plan.window_ms)
        self.connections.add_listener(_LISTENER, ConnectionLimits(), now_ms)
        rates = {name_of(n): self._limits[n] for n, kind in enumerate(self._types) if kind is QuotaType.CONNECTION}
        self.connections.set_address_limits(CLUSTER, AddressLimits(rates=rates))
        self._bound: dict[int, ClientSensors] = {}
        self._charges = {
            QuotaType.PRODUCE: self._produce,
            QuotaType.FETCH: self._fetch,
            QuotaType.REQUEST: self._request,
            QuotaType.CONTROLLER_MUTATION: self._mutate,
            QuotaType.CONNECTION: self._connect,
        }

    def charge(self, entity: int, amount: float) -> tuple[float, int]:
        """Take a request: what went through of it, and the throttle time in ms."""
        return self._charges[self._types[entity]](entity, amount, self._clock.now_ms())

    def owed_ms(self, entity: int) -> int:
        """How long the first request of a new connection waits for what the entity owes."""
        quota_type = self._types[entity]
        if quota_type is QuotaType.CONNECTION:
            return 0
        rows, handle = self._row(entity, self._sensors(entity))
        now_ms = self._clock.now_ms()
        return rows.throttle_ms(handle, now_ms) if isinstance(rows, TokenBuckets) else rows.owed_ms(handle, now_ms)

    def part_enforced(self, entity: int) -> float | None:
        """The limit of its row as a part of the limit of the quota; None if there is no row."""
        measured = self.manager.reading(_sensor_key(entity, self._types[entity]), self._clock.now_ms())
        return None if measured is None else measured.limit / self._limits[entity]

    def _sensors(self, entity: int) -> ClientSensors:
        bound = self._bound.get(entity)
        if bound is None or not self.manager.renews(bound):
            bound = self.manager.bind(CLUSTER, _NODE_ID, name_of(entity), "", self._clock.now_ms())
            self._bound[entity] = bound
        return bound

    def _row(self, entity: int, sensors: ClientSensors) -> tuple[Sensors | TokenBuckets, int]:
        manager = self.manager
        rows, handle = {
            QuotaType.PRODUCE: (manager.sensors, sensors.produce),
            QuotaType.FETCH: (manager.sensors, sensors.fetch),
            QuotaType.REQUEST: (manager.request_sensors, sensors.request),
            QuotaType.CONTROLLER_MUTATION: (manager.buckets, sensors.mutation),
        }[self._types[entity]]
        assert handle is not None
        return rows, handle

    def _produce(self, entity: int, amount: float, now_ms: int) -> tuple[float, int]:
        handle = self._sensors(entity).produce
        assert handle is not None
        return amount, self.manager.sensors.charge(handle, amount, now_ms)

    def _fetch(self, entity: int, amount: float, now_ms: int) -> tuple[float, int]:
        """What exceeds the quota is answered without data."""
        sensors = self._sensors(entity)
        assert sensors.fetch is not None
        size = min(amount, sensors.fetch_ceiling_bytes)
        throttle_ms = self.manager.sensors.charge_if_within(sensors.fetch, size, now_ms)
        return (0.0 if throttle_ms else size), throttle_ms

    def _request(self, entity: int, amount: float, now_ms: int) -> tuple[float, int]:
        handle = self._sensors(entity).request
        assert handle is not None
        return amount, self.manager.request_sensors.charge(handle, amount, now_ms)

    def _mutate(self, entity: int, amount: float, now_ms: int) -> tuple[float, int]:
        handle = self._sensors(entity).mutation
        assert handle is not None
        refused_ms = self.manager.buckets.spend_strictly(handle, amount, now_ms)
        return (amount, 0) if refused_ms is None else (0.0, refused_ms)

    def _connect(self, entity: int, amount: float, now_ms: int) -> tuple[float, int]:
        """A connection that comes and goes."""
        admission = self.connections.admit(_LISTENER, name_of(entity), now_ms)
        if admission.outcome is not Outcome.ADMITTED:
            return 0.0, admission.throttle_ms
        self.connections.leave(_LISTENER, name_of(entity))
        return amount, 0
