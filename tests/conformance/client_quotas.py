"""Random scripts for the quotas of clients, and how our own classes response them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import Entity, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, Sensors
from tests.conformance.entities import (
    EVENTS_BETWEEN_CHANGES,
    QuotaChange,
    RandomQuotas,
    level,
    random_client,
    random_step_ms,
)
from tests.conformance.oracle import Step, bits

BEGIN_MS = 1_000_000

ROWS = 10_000


# ------------------------------------------------------------------- our side


class Rows(Protocol):
    """What Sensors and TokenBuckets have in common."""

    def open(self, limit: float, now_ms: int) -> int: ...
    def limit(self, handle: int) -> float: ...
    def set_limit(self, handle: int, limit: float, now_ms: int) -> None: ...


class ByTags:
    """Finds a client's row by its tags, and keeps all limits at what the quotas say.

    Without `remembers_kinds` a kind of entity is forgotten with its last quota.
    """

    def __init__(self, quota_type: QuotaType, rows: Rows, remembers_kinds: bool = True) -> None:
        self.quota_type = quota_type
        self.table = QuotaTable({})
        self.bound: Counter[int | None] = Counter()
        """How often a client was bound by a quota of each of the eight levels, or by none."""
        self._rows = rows
        self._remembers_kinds = remembers_kinds
        self._quotas: dict[Entity, dict[QuotaType, float]] = {}
        self._handles: dict[SensorTags, int] = {}

    def change(self, change: QuotaChange, now_ms: int) -> None:
        self._quotas.pop(change.entity, None)
        if change.limit is not None:
            self._quotas[change.entity] = {self.quota_type: change.limit}
        table = QuotaTable(self._quotas)
        self._replace(table.succeeding(self.table) if self._remembers_kinds else table, now_ms)

    def _replace(self, table: QuotaTable, now_ms: int) -> None:
        self.table = table
        for tags, handle in self._handles.items():
            limit = table.limit_of(self.quota_type, tags)
            if limit != self._rows.limit(handle):
                self._rows.set_limit(handle, limit, now_ms)

    def find(self, user: str, client_id: str, now_ms: int) -> tuple[int | None, SensorTags]:
        """The client's row, None while the type is off, and its tags."""
        tags, limit, entity = self.table.tags_and_limit(self.quota_type, user, client_id)
        self.bound[None if entity is None else level(entity)] += 1
        return self._handle(user, client_id, tags, limit, now_ms), tags

    def _handle(self, user: str, client_id: str, tags: SensorTags, limit: float, now_ms: int) -> int | None:
        if tags not in self._handles and self.table.is_on(self.quota_type):
            self._handles[tags] = self._rows.open(limit, now_ms)
        return self._handles.get(tags) if self.table.is_on(self.quota_type) else None


class ByManager(ByTags):
    """The same by the product's own quota manager, for the types that it binds."""

    def __init__(self, quota_type: QuotaType, quota_manager: ClientQuotaManager, rows: Rows) -> None:
        super().__init__(quota_type, rows)
        self._quota_manager = quota_manager

    def _replace(self, table: QuotaTable, now_ms: int) -> None:
        self.table = table
        self._quota_manager.replace(table, now_ms)

    def most_fetched(self, user: str, client_id: str, now_ms: int) -> int:
        """What the client may ask for in one fetch."""
        return self._quota_manager.bind("main", 1, user, client_id, now_ms).fetch_ceiling_bytes

    def _handle(self, user: str, client_id: str, tags: SensorTags, limit: float, now_ms: int) -> int | None:
        client_sensors = self._quota_manager.bind("main", 1, user, client_id, now_ms)
        return {
            QuotaType.PRODUCE: client_sensors.produce,
            QuotaType.FETCH: client_sensors.fetch,
            QuotaType.CONTROLLER_MUTATION: client_sensors.mutation,
        }[self.quota_type]


# -------------------------------------------------------- produce, fetch, request


def byte_limit(rng: random.Random) -> float:
    """At least 1,000/s, and values are at most 10^7, so that no delay passes int32: a broker would wrap it, we cut."""
    return float(int(10 ** rng.uniform(3, 6.5)))


def bytes_of_a_request(rng: random.Random) -> float:
    """Mostly whole; a fifth are not, so that adding up rounds."""
    if rng.random() < 0.2:
        return rng.random() * float(10 ** rng.randrange(7))
    return min(float(int(rng.lognormvariate(9, 2))), 1e7)


def percent_limit(rng: random.Random) -> float:
    """From a thousandth of a thread to several."""
    return float(10 ** rng.uniform(-1, 2.5))


def percent_of_a_request(rng: random.Random) -> float:
    """What a broker makes of a request's nanoseconds."""
    return int(rng.lognormvariate(17, 2)) * (100.0 / 1_000_000_000)


class ClientScript:
    """Charges of one type by random clients, with live quota changes; `kinds` are the lines it has, and how often."""

    def __init__(
        self,
        side: ByTags,
        sensors: Sensors,
        random_limit: Callable[[random.Random], float],
        random_value: Callable[[random.Random], float],
        kinds: str,
    ) -> None:
        self.side = side
        self._sensors = sensors
        self._random_limit = random_limit
        self._random_value = random_value
        self._kinds = kinds

    def steps(self, seed: int, events: int, anchored: bool) -> Iterator[Step]:
        """The script with our responses."""
        rng, now_ms = random.Random(seed), BEGIN_MS
        quotas = RandomQuotas(rng, self._random_limit, anchored)
        for change in quotas.first():
            yield quota_step(self.side, change, now_ms)
        for i in range(events):
            if i % EVENTS_BETWEEN_CHANGES == 0:
                yield quota_step(self.side, quotas.change(), now_ms)
            now_ms += random_step_ms(rng)
            yield self._step(rng, rng.choice(self._kinds), *random_client(rng), now_ms)

    def _step(self, rng: random.Random, kind: str, user: str, client_id: str, now_ms: int) -> Step:
        handle, tags = self.side.find(user, client_id, now_ms)
        value = self._value(rng, handle)
        line = f"{kind}\t{now_ms}\t{user}\t{client_id}\t{value!r}"
        if kind == "M":
            assert isinstance(self.side, ByManager)
            return Step(line, str(self.side.most_fetched(user, client_id, now_ms)))
        if kind == "U":
            if handle is not None:
                self._sensors.give_back(handle, -value, now_ms)
            return Step(line, "")
        if handle is None:
            return Step(line, "0\toff")
        throttle_ms = self._sensors.charge(handle, value, now_ms)
        if kind == "F" and throttle_ms:
            self._sensors.give_back(handle, value, now_ms)
        rate = self._sensors.reading(handle, now_ms).rate
        return Step(line, f"{throttle_ms}\t{state(rate, tags)}", throttle_ms > 0)

    def _value(self, rng: random.Random, handle: int | None) -> float:
        """Now and then just what a client may use at once: then its rate is just the limit."""
        if handle is not None and rng.random() < 0.03:
            return min(self._sensors.burst(self._sensors.limit(handle)), 1e7)
        return self._random_value(rng)


def quota_step(side: ByTags, change: QuotaChange, now_ms: int) -> Step:
    """A change of a quota is made here, and written down for Kafka."""
    side.change(change, now_ms)
    names = [
        "-" if name is None else name if isinstance(name, str) else "*"
        for name in (change.entity.user, change.entity.client_id)
    ]
    limit = "-" if change.limit is None else repr(change.limit)
    return Step(f"Q\t{now_ms}\t{names[0]}\t{names[1]}\t{limit}", "")


def state(measured: float, tags: SensorTags) -> str:
    """What a sensor has measured, and its tags."""
    return f"{bits(measured)}\t{tags.user}\t{tags.client_id}"


def client_script(
    quota_type: QuotaType, samples: int = 11, window_s: int = 1, remembers_kinds: bool = True
) -> ClientScript:
    """Produce: charges. Fetch: charges that are taken back, and what may be fetched at most. Request: both kinds."""
    window_ms = window_s * 1000
    if quota_type is QuotaType.REQUEST:
        # A broker's delay for request time is one window at most, and leaves no debt.
        sensors = Sensors(ROWS, samples, window_ms, max_throttle_ms=window_ms, max_debt_ms=0)
        side = ByTags(quota_type, sensors, remembers_kinds)
        return ClientScript(side, sensors, percent_limit, percent_of_a_request, "CCU")
    sensors = Sensors(ROWS, samples, window_ms, max_throttle_ms=MAX_THROTTLE_MS)
    side = ByTags(quota_type, sensors, remembers_kinds=False)
    if remembers_kinds:
        side = ByManager(quota_type, ClientQuotaManager(sensors, QuotaTable()), sensors)
    kinds = "C" if quota_type is QuotaType.PRODUCE else "FFFFFFFFFUM"
    return ClientScript(side, sensors, byte_limit, bytes_of_a_request, kinds)
