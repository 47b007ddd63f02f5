"""Copies of all sensors of a process, for the process that takes its place: nobody gets a fresh burst.

A copy is a row word for word, so sensors that continue from copies give the same throttle times as the copied ones.
Copies are valid for the same windows, and for the same clock: monotonic times of one machine since it was started.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas, RateKey
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, SensorTags
from kafka_throttle.quotas.sensors.windowed_rate import StaleSensor

FORMAT: Final = 1
"""Other numbers stand for other words in rows, or other keys."""

KEYS_PER_STEP: Final = 200
"""How many rows one step of a Copier looks at."""

_Mark = tuple[float, int, int, float]
_UNSEEN: Final[_Mark] = (0.0, -1, -1, -1.0)

_CLIENT: Final = "client"
_CONNECTION: Final = "connection"


class RowCopy(NamedTuple):
    """One row: what it measures, as values that JSON has, and its words."""

    key: tuple[Any, ...]
    words: bytes


class Charge(NamedTuple):
    """What a sensor of a client has recorded since it was copied, or since the last Charge of it."""

    key: tuple[Any, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Sensing:
    """All sensors of one process: those of clients by virtual cluster, and the rates of connections."""

    clients: Mapping[str, ClientQuotaManager]
    connections: ConnectionQuotas

    @property
    def layouts(self) -> dict[str, Sequence[int]]:
        """The windows of each virtual cluster."""
        return {name: list(manager.layout) for name, manager in self.clients.items()}

    def others(self, layouts: Mapping[str, Sequence[int]]) -> dict[str, str]:
        """The virtual clusters that cannot continue from copies made with these `layouts`, each with the reason."""
        reasons = {}
        for name, mine in self.layouts.items():
            if name not in layouts:
                reasons[name] = "it is new"
            elif list(layouts[name]) != mine:
                reasons[name] = f"its windows were {list(layouts[name])}, and are {mine} now"
        return reasons

    def adopt(self, copy: RowCopy, now_ms: int) -> bool:
        """Continue from a copy. False if nothing here measures that, or there is no row for it.

        Raises ValueError or LookupError if it is no copy of this FORMAT.
        """
        key = key_of(copy.key)
        if isinstance(key, RateKey):
            return self.connections.adopt(key, copy.words, now_ms)
        manager = self.clients.get(key.virtual_cluster)
        return manager is not None and manager.adopt(key, copy.words, now_ms)

    def record(self, charge: Charge, now_ms: int) -> bool:
        """Record what the process that made the copies has charged since. False if nothing here measures that."""
        key = key_of(charge.key)
        if isinstance(key, RateKey):
            raise ValueError(f"expected the charge of a client, got {key}")
        manager = self.clients.get(key.virtual_cluster)
        return manager is not None and manager.record(key, charge.value, now_ms)


class Copier:
    """Copies the rows of a process, and then again and again what has changed since.

    Its methods work in steps, and yield what each step has found, which may be nothing. Anything may happen to the
    sensors between two steps.
    """

    def __init__(self, sensing: Sensing) -> None:
        self._sensing = sensing
        self._rates: dict[RateKey, bytes] = {}
        """The rows of connections as they were copied last."""
        self._marks: dict[tuple[str, str, bool, int], _Mark] = {}
        """What each sensor of a client had recorded at the last look; sensors are told apart by their handles."""

    def changed(self) -> Iterator[list[RowCopy]]:
        """Copies of the rows that are new or have changed since they were copied; the first time of all rows."""
        rates = self._sensing.connections.copies()
        while batch := list(islice(rates, KEYS_PER_STEP)):
            yield [RowCopy(values_of(key), words) for key, words in batch if self._rates.get(key) != words]
            self._rates.update(batch)
        for manager, sensors in self._clients():
            marks = [(key, handle, *self._look(manager, key, handle)) for key, handle in sensors]
            yield [
                RowCopy(values_of(key), manager.copied(key, handle)) for key, handle, old, new in marks if old != new
            ]

    def charges(self) -> Iterator[list[Charge]]:
        """What clients were charged since their rows were copied, and since the last call."""
        for manager, sensors in self._clients():
            marks = [(key, *self._look(manager, key, handle)) for key, handle in sensors]
            yield [Charge(values_of(key), new[0] - old[0]) for key, old, new in marks if old[0] != new[0]]

    def _look(self, manager: ClientQuotaManager, key: SensorKey, handle: int) -> tuple[_Mark, _Mark]:
        """The marks of a sensor at the last look and now; the same if it is closed."""
        place = (key.virtual_cluster, key.quota_type.value, key.shadow, handle)
        before = self._marks.get(place, _UNSEEN)
        try:
            now = self._marks[place] = manager.mark(key, handle)
        except StaleSensor:
            return before, before
        return before, now

    def _clients(self) -> Iterator[tuple[ClientQuotaManager, list[tuple[SensorKey, int]]]]:
        for manager in self._sensing.clients.values():
            sensors = iter(manager.open_sensors)
            while batch := list(islice(sensors, KEYS_PER_STEP)):
                yield manager, batch


def values_of(key: SensorKey | RateKey) -> tuple[Any, ...]:
    """A key as values that JSON has."""
    if isinstance(key, RateKey):
        return _CONNECTION, *key
    quota = QuotaKey(key.quota_type, key.shadow).text
    shared_by = None if key.shared_by is None else _names(key.shared_by)
    return _CLIENT, key.virtual_cluster, key.node_id, quota, key.tags.user, key.tags.client_id, shared_by


def _names(entity: Entity) -> tuple[tuple[str, str | None], ...]:
    """The parts of an entity with their names; None for the default."""
    return tuple((part, None if name is DEFAULT else name) for part, name in entity.parts if name is not None)


def key_of(values: Sequence[Any]) -> SensorKey | RateKey:
    """The key with these values. Raises ValueError, TypeError or LookupError if there is none."""
    kind, *fields = values
    if kind == _CONNECTION:
        return RateKey(*fields)
    if kind != _CLIENT:
        raise ValueError(f"expected the row of a client or of connections, got {kind!r}")
    virtual_cluster, node_id, quota, user, client_id, shared_by = fields
    quota_type, shadow = QuotaKey.parse(quota)
    entity = None
    if shared_by is not None:
        names = {part.replace("-", "_"): DEFAULT if name is None else name for part, name in shared_by}
        entity = Entity(**names)
    return SensorKey(virtual_cluster, node_id, quota_type, SensorTags(user, client_id), entity, shadow)
