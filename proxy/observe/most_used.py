"""The quotas that are used most, as a share of their limits. Found in steps, because there may be very many sensors."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Generic, Protocol, TypeVar

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.gate.gate_metrics import AddressUse
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.proxy.observe.throttled_now import used_share
from kafka_throttle.quotas.changes import Limit, Quotas
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.token_buckets import BucketReading
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading

MOST_READ = 20_000
"""How many sensors and addresses are looked at in one go: some 60 ms of CPU."""

_PER_STEP = 500
"""How many of them one step looks at: a few ms."""

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

    `read_on` looks at MOST_READ sensors and addresses at most; with more, all have been looked at after several calls.
    `enforced` and `shadows` read those anew that were chosen when all had been looked at.
    """

    def __init__(
        self, clusters: Sequence[Cluster], addresses: Callable[[], Iterable[AddressUse]], clock: Clock, most: int
    ) -> None:
        self.choice = _Choice(most)
        self._clusters = clusters
        self._addresses = addresses
        self._clock = clock
        self._most = most
        self._coming: tuple[_Choice, Iterator[_Chosen]] | None = None

    def read_on(self) -> Generator[None, None, None]:
        """Look at more sensors and addresses, in steps."""
        choice, rest = self._coming or (_Choice(self._most), self._everything())
        number = 0
        for number, chosen in enumerate(islice(rest, MOST_READ), 1):
            self._look(choice, chosen)
            if not number % _PER_STEP:
                yield
        choice.is_whole = number < MOST_READ
        self._coming = None if choice.is_whole else (choice, rest)
        if choice.is_whole or not self.choice.is_whole:
            self.choice = choice

    def _everything(self) -> Iterator["_Chosen"]:
        for cluster in self._clusters:
            for key in cluster.quota_manager.sensor_keys:
                yield cluster, key
        yield from self._addresses()

    def _look(self, choice: "_Choice", chosen: "_Chosen") -> None:
        choice.looked_at += 1
        if isinstance(chosen, AddressUse):
            choice.add(_share_of_address(chosen), chosen)
            return
        cluster, key = chosen
        reading = cluster.quota_manager.reading(key, self._clock.now_ms())
        if reading is None or reading.limit >= UNLIMITED:
            return
        if key.shadow:
            choice.shadows.add(reading.throttled_ms, chosen)
        else:
            choice.add(used_share(reading), chosen)

    def enforced(self) -> list[QuotaUse]:
        """What is used of the chosen quotas now, the highest share first. Rates of addresses are as of the choice."""
        uses = map(self._use, self.choice.enforced.rows())
        return sorted((use for use in uses if use is not None), key=lambda use: -use.share)

    def shadows(self) -> list[QuotaUse]:
        """What the chosen shadow quotas would have throttled until now, the longest time first."""
        uses = map(self._use, self.choice.shadows.rows())
        return sorted((use for use in uses if use is not None), key=lambda use: -use.throttled_ms)

    def _use(self, chosen: "_Chosen") -> QuotaUse | None:
        """What a sensor measures now; None if it was closed, or has no limit any more."""
        if isinstance(chosen, AddressUse):
            return _use_of_address(chosen)
        cluster, key = chosen
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


_Chosen = tuple[Cluster, SensorKey] | AddressUse
"""A sensor, or an address whose connection rate is measured."""


def _share_of_address(use: AddressUse) -> float:
    return use.rate / use.limit if 0 < use.limit < UNLIMITED else 0.0


def _use_of_address(use: AddressUse) -> QuotaUse:
    return QuotaUse(
        use.virtual_cluster,
        None,
        QuotaType.CONNECTION,
        _share_of_address(use),
        use.limit,
        ip=use.address,
        rate=use.rate,
        throttles=use.throttles,
    )


class _Choice:
    """What was chosen among those that were `looked_at`; `is_whole` once these are all.

    `enforced` and `shadows` count the sensors with a limit, `exceeded` those above it.
    """

    def __init__(self, most: int) -> None:
        self.enforced: _Highest[_Chosen] = _Highest(most)
        self.shadows: _Highest[_Chosen] = _Highest(most)
        self.exceeded = self.looked_at = 0
        self.is_whole = False

    def add(self, share: float, chosen: _Chosen) -> None:
        """Add the use of an enforced quota."""
        self.exceeded += share > 1
        self.enforced.add(share, chosen)


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
