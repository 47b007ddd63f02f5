"""The latest throttle of each client and its reason, for `explain`. The number of clients is bounded."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kafka_throttle.common.bounded import Bounded
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey, measured_at
from kafka_throttle.quotas.entities import Entity, QuotaType, SensorTags
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading

MAX_CLIENTS = 1_000
"""How many (client, node, quota type) are remembered."""


@dataclass(slots=True)
class PastThrottle:
    """The latest throttle of one client by one quota at one node.

    `quota_type` is None for a throttle that the node imposed; then there are no tags, no sensor, no entity and no
    measurement. Clients whose `tags` differ may share a `sensor`, if the sensor table was full.
    `rate` is what the sensor measured, in units/s; for a token bucket `tokens` is set instead. `throttles` counts the
    throttles of this client since it was first remembered.
    """

    at_epoch_ms: int
    throttle_time_ms: int
    user: str
    client_id: str
    ip: str
    node_id: int
    quota_type: QuotaType | None
    tags: SensorTags | None
    sensor: SensorKey | None
    entity: Entity | None
    rate: float | None
    limit: float | None
    tokens: float | None
    throttles: int

    @property
    def cause(self) -> tuple[str, int, SensorKey | None, Entity | None]:
        """What throttled: clients of a user, at one node, by one sensor, with the quota of one entity."""
        return self.user, self.node_id, self.sensor, self.entity

    @property
    def quota_name(self) -> str:
        """The quota type as in logs and metrics; `node` for a throttle that the node imposed."""
        return "node" if self.quota_type is None else self.quota_type.name.lower()


class LastThrottles:
    """The latest throttles of one virtual cluster, one entry for each (client, node, quota type)."""

    def __init__(self, quota_manager: ClientQuotaManager, clock: Clock) -> None:
        self._quota_manager = quota_manager
        self._clock = clock
        self._latest: Bounded[tuple[str, str, str, int, QuotaType | None], PastThrottle] = Bounded(MAX_CLIENTS)

    def note(self, ip: str, throttled: Throttled, facts: ConnectionFacts, now_ms: int) -> PastThrottle:
        """Remember that a client at `ip` (in its plain spelling) was throttled just now, and return what is known."""
        quota_type = throttled.quota_type
        client_id = measured_client_id(throttled.client_id, self._quota_manager.table)
        who = (facts.user, client_id, ip, facts.node_id, quota_type)
        before = self._latest.get(who)
        tags = sensor = entity = rate = limit = tokens = None
        if quota_type is not None:
            tags, limit, entity = self._quota_manager.table.tags_and_limit(quota_type, facts.user, client_id)
            where = measured_at(facts.node_id, self._quota_manager.table.scope_of(quota_type, entity))
            key = SensorKey(facts.listener.virtual_cluster, where, quota_type, tags)
            sensor = self._quota_manager.find(key, entity) or key
            reading = self._quota_manager.reading(sensor, now_ms)
            if isinstance(reading, SensorReading):
                rate, limit = reading.rate, reading.limit
            elif reading is not None:
                limit, tokens = reading.limit, reading.tokens
        past = self._latest[who] = PastThrottle(
            at_epoch_ms=self._clock.epoch_ms(),
            throttle_time_ms=throttled.throttle_time_ms,
            user=facts.user,
            client_id=client_id,
            ip=ip,
            node_id=facts.node_id,
            quota_type=quota_type,
            tags=tags,
            sensor=sensor,
            entity=entity,
            rate=rate,
            limit=limit,
            tokens=tokens,
            throttles=1 if before is None else before.throttles + 1,
        )
        return past

    def __iter__(self) -> Iterator[PastThrottle]:
        """All throttles that are remembered. Others may be noted between two items."""
        return iter(list(self._latest.values()))

    def of_sensor(self, quota_type: QuotaType, tags: SensorTags, most: int) -> list[PastThrottle]:
        """The throttles of all clients that are measured with `tags`, the latest first."""
        return list(islice(self._where(quota_type, tags), most))

    def by_nodes(self, user: str, client_id: str, most: int) -> list[PastThrottle]:
        """The throttles of one client that nodes imposed, the latest first."""
        own = (past for past in self._where(None, None) if (past.user, past.client_id) == (user, client_id))
        return list(islice(own, most))

    def _where(self, quota_type: QuotaType | None, tags: SensorTags | None) -> Iterator[PastThrottle]:
        latest_first = reversed(self._latest.values())
        return (past for past in latest_first if past.quota_type is quota_type and past.tags == tags)
