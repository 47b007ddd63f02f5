"""The quotas that are used most, as a share of their limits. Found in steps, because there may be very many sensors."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import Generic, Protocol, TypeVar

from proxy.clock import Clock
from proxy.gate.gate_metrics import AddressUse
from proxy.observe.throttle_episode import ThrottledClients
from proxy.observe.throttled_now import used_share
from quotas.changes import Limit, Quotas
from quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from quotas.entities import Entity, QuotaKey, QuotaType
from quotas.limits import UNLIMITED
from quotas.sensors.token_buckets import BucketReading
from quotas.sensors.windowed_rate import SensorReading

_PER_STEP = 500
"""How many sensors one step reads: a few ms."""

Reading = SensorReading | BucketReading
Row = TypeVar("Row")


class Cluster(Protocol):
    """What is needed of a virtual cluster."""

    name: str
    quota_manager: ClientQuotaManager
    throttled: ThrottledClients

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What is used of one quota by what one sensor measures: clients of a user or client-id, or an `ip`.

    `share` is the use as a share of the limit, of a token bucket how much of it is missing. `node_id` is None for all
    nodes together. `entity` is the one that the quota is set on, `layer` the file, znode or other place of it; None if
    the quota was removed meanwhile. New clients of `shared_by` share the sensor because the sensor table was full.
    """

    virtual_cluster: str
    node_id: int | None
    quota_type: QuotaType
    share: float
    limit: float
    user: str = ""
    client_id: str = ""
    ip: str = ""
    rate: float | None = None
    tokens: float | None = None
    burst: float | None = None
    throttles: int = 0
    throttled_ms: int = 0
    throttled: bool = False
    entity: Entity | None = None
    layer: str | None = None
    shared_by: Entity | None = None


class MostUsed:
    """The `most` enforced quotas with the highest use as a share of their limits, and the shadow quotas that would have
    throttled for longest.

    `choose` looks at all sensors; `enforced` and `shadows` read the chosen ones anew. `limited` counts the sensors with
    a limit and `exceeded` those above it, `shadows_measured` the sensors of shadow quotas, as of the last choice.
    """

    def __init__(
        self, clusters: Sequence[Cluster], addresses: Callable[[], Iterable[AddressUse]], clock: Clock, most: int
    ) -> None:
        self.limited = self.exceeded = self.shadows_measured = self.looked_at = 0
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._addresses = addresses
        self._clock = clock
        self._most = most
        self._enforced: list[tuple[Cluster, SensorKey] | AddressUse] = []
        self._shadows: list[tuple[Cluster, SensorKey]] = []

    def choose(self) -> Generator[None, None, None]:
        """Look at all sensors, in steps."""
        enforced: _Highest[tuple[Cluster, SensorKey] | AddressUse] = _Highest(self._most)
        shadows: _Highest[tuple[Cluster, SensorKey]] = _Highest(self._most)
        looked_at = exceeded = 0
        for looked_at, (cluster, key, reading) in enumerate(self._readings(), 1):
            if reading.limit < UNLIMITED:
                if key.shadow:
                    shadows.add(reading.throttled_ms, (cluster, key))
                else:
                    share = used_share(reading)
                    exceeded += share > 1
                    enforced.add(share, (cluster, key))
            if not looked_at % _PER_STEP:
                yield
        for number, use in enumerate(self._addresses(), 1):
            share = use.rate / use.limit if 0 < use.limit < UNLIMITED else 0.0
            exceeded += share > 1
            enforced.add(share, use)
            looked_at += 1
            if not number % _PER_STEP:
                yield
        self._enforced, self._shadows = enforced.rows(), shadows.rows()
        self.limited, self.shadows_measured = enforced.count, shadows.count
        self.exceeded, self.looked_at = exceeded, looked_at

    def _readings(self) -> Iterator[tuple[Cluster, SensorKey, Reading]]:
        now_ms = self._clock.now_ms()
        for cluster in self._clusters.values():
            manager = cluster.quota_manager
            found: Iterator[tuple[SensorKey, Reading]] = chain(
                manager.readings(now_ms), manager.bucket_readings(now_ms)
            )
            for key, reading in found:
                yield cluster, key, reading

    def enforced(self) -> list[QuotaUse]:
        """What is used of the chosen quotas now, the highest share first. Rates of addresses are as of the choice."""
        uses = (self._of_address(row) if isinstance(row, AddressUse) else self._use(*row) for row in self._enforced)
        return sorted((use for use in uses if use is not None), key=lambda use: -use.share)

    def shadows(self) -> list[QuotaUse]:
        """What the chosen shadow quotas would have throttled until now, the longest time first."""
        uses = (self._use(*row) for row in self._shadows)
        return sorted((use for use in uses if use is not None), key=lambda use: -use.throttled_ms)

    def _use(self, cluster: Cluster, key: SensorKey) -> QuotaUse | None:
        """What a sensor measures now; None if it was closed, or has no limit any more."""
        manager = cluster.quota_manager
        reading = manager.reading(key, self._clock.now_ms())
        if reading is None or reading.limit >= UNLIMITED:
            return None
        table = manager.shadow if key.shadow else manager.table
        tags, quota_type = key.tags, key.quota_type
        entity = key.shared_by or table.tags_and_limit(quota_type, tags.user, tags.client_id).entity
        bucket = reading if isinstance(reading, BucketReading) else None
        return QuotaUse(
            cluster.name,
            None if key.node_id == WHOLE_CLUSTER else key.node_id,
            quota_type,
            used_share(reading),
            reading.limit,
            user=tags.user,
            client_id=tags.client_id,
            rate=reading.rate if isinstance(reading, SensorReading) else None,
            tokens=None if bucket is None else bucket.tokens,
            burst=None if bucket is None else bucket.burst,
            throttles=reading.throttles,
            throttled_ms=reading.throttled_ms,
            throttled=cluster.throttled.throttles(key),
            entity=entity,
            layer=_layer(cluster, entity, QuotaKey(quota_type, key.shadow)),
            shared_by=key.shared_by,
        )

    def _of_address(self, use: AddressUse) -> QuotaUse:
        share = use.rate / use.limit if 0 < use.limit < UNLIMITED else 0.0
        return QuotaUse(
            use.virtual_cluster,
            None,
            QuotaType.CONNECTION,
            share,
            use.limit,
            ip=use.address,
            rate=use.rate,
            throttles=use.throttles,
        )


class _Highest(Generic[Row]):
    """The `most` rows with the highest values of those that were added, and how many these were."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._rows: list[tuple[float, int, Row]] = []

    def add(self, value: float, row: Row) -> None:
        """Add a row. Of rows with the same value the first ones are kept."""
        self.count += 1
        self._rows.append((value, -self.count, row))
        if len(self._rows) > 4 * self._most + _PER_STEP:
            self._rows = nlargest(self._most, self._rows)

    def rows(self) -> list[Row]:
        """The rows, the highest value first."""
        return [row for _, _, row in nlargest(self._most, self._rows)]


def _layer(cluster: Cluster, entity: Entity | None, key: QuotaKey) -> str | None:
    if entity is None:
        return None
    limits = cluster.quotas.get(entity, {})
    limit: Limit | None = limits.get(key)
    return None if limit is None else limit.layer
