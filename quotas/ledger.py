"""Who is measured by which row: the one owner of the quota table and of the sensors' handles."""

from collections.abc import Iterator
from dataclasses import dataclass

from quotas.entities import Entity, QuotaType, SensorTags
from quotas.quota_table import QuotaTable, Rule
from quotas.sensors import SensorReading, Sensors

INT32_MAX = 2**31 - 1
IDLE_AFTER_MS = 3_600_000
"""A sensor that nobody has charged for this long is dropped, as a broker drops it."""


@dataclass(slots=True, frozen=True)
class Binding:
    """Which rows measure one client at one node. Holds while the ledger's version is `version`.

    A handle is None where nothing is to be measured. `fetch_ceiling_bytes` is what max_bytes of a Fetch may be at
    most, INT32_MAX without a fetch quota.
    """

    version: int
    produce: int | None
    fetch: int | None
    fetch_ceiling_bytes: int


@dataclass(slots=True, frozen=True)
class SensorKey:
    """Identifies a sensor: quotas hold per node. `overflow` names the rule whose newcomers share it, else None."""

    node_id: int
    quota_type: QuotaType
    tags: SensorTags
    overflow: Entity | None = None


class Ledger:
    """Binds clients to sensors, and keeps the sensors' limits in step with the quota table of a virtual cluster."""

    def __init__(self, sensors: Sensors, table: QuotaTable) -> None:
        self.sensors = sensors
        self.version = 0
        self.overflowed = 0
        """How many bindings had to share a row because the table of sensors was full."""
        self._table = table
        self._handles: dict[SensorKey, int] = {}
        self._reserve = max(sensors.capacity // 16, 1)
        self._evicted_at_ms: int | None = None

    def bind(self, node_id: int, user: str, client_id: str, now_ms: int) -> Binding:
        """The rows for a client of `user` with `client_id` ("" for none). Raises SensorsFull as a last resort."""
        produce = self._sensor(QuotaType.PRODUCE, node_id, user, client_id, now_ms)
        fetch = self._sensor(QuotaType.FETCH, node_id, user, client_id, now_ms)
        rule = self._table.rule(QuotaType.FETCH, user, client_id)
        return Binding(self.version, produce, fetch, self._fetch_ceiling_bytes(rule))

    def replace(self, table: QuotaTable, now_ms: int) -> None:
        """Put another table in force. Samples stay, mutes that run are neither shortened nor prolonged."""
        self._table = table.succeeding(self._table)
        for key, handle in self._handles.items():
            if key.overflow is None:
                limit = self._table.limit(key.quota_type, key.tags)
            else:
                limit = self._table.limit_of(key.quota_type, key.overflow)
            self.sensors.set_limit(handle, limit, now_ms)
        self.version += 1

    def expire(self, now_ms: int, idle_ms: int = IDLE_AFTER_MS) -> int:
        """Close the rows that nobody has charged for more than `idle_ms` and that owe nothing; return how many."""
        idle = [
            key
            for key, handle in self._handles.items()
            if (reading := self.sensors.reading(handle, now_ms)).idle_ms > idle_ms and not reading.debt_ms
        ]
        for key in idle:
            self.sensors.close(self._handles.pop(key))
        if idle:
            self.version += 1
        return len(idle)

    def readings(self, now_ms: int) -> Iterator[tuple[SensorKey, SensorReading]]:
        """Every sensor as it stands."""
        return ((key, self.sensors.reading(handle, now_ms)) for key, handle in self._handles.items())

    def _fetch_ceiling_bytes(self, rule: Rule) -> int:
        """What the window of the quota can hold: a larger fetch would be throttled even after a rest."""
        sensors = self.sensors
        ceiling = rule.limit * (sensors.samples - 1) * (sensors.window_ms / 1000)
        return int(min(ceiling, INT32_MAX))

    def _sensor(self, quota_type: QuotaType, node_id: int, user: str, client_id: str, now_ms: int) -> int | None:
        if not self._table.measures(quota_type):
            return None
        rule = self._table.rule(quota_type, user, client_id)
        key = SensorKey(node_id, quota_type, rule.tags)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._open(key, rule, now_ms)
        return handle

    def _open(self, key: SensorKey, rule: Rule, now_ms: int) -> int | None:
        """A row of its own; when they run out, none for the unlimited, and one row for all newcomers of a rule."""
        if self._is_full():
            self._evict(now_ms)
        if self._is_full():
            if rule.entity is None:
                return None
            self.overflowed += 1
            key = SensorKey(key.node_id, key.quota_type, SensorTags("", ""), rule.entity)
            if key in self._handles:
                return self._handles[key]
        handle = self._handles[key] = self.sensors.open(rule.limit)
        return handle

    def _is_full(self) -> bool:
        return self.sensors.used >= self.sensors.capacity - self._reserve

    def _evict(self, now_ms: int) -> None:
        """Close rows whose window is empty: a fresh row would measure the same. At most once a second."""
        if self._evicted_at_ms is None or now_ms - self._evicted_at_ms >= 1000:
            self._evicted_at_ms = now_ms
            self.expire(now_ms, self.sensors.samples * self.sensors.window_ms)
