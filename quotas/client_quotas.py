"""Binds clients to the sensors that measure them, and keeps the limits of sensors equal to the quota tables."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, islice
from typing import Final, NamedTuple

from kafka_throttle.quotas.entities import DEFAULT, SCOPED, Entity, Name, QuotaType, Scope, SensorTags
from kafka_throttle.quotas.fetch_rooms import FetchRooms
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import LONG_CLIENT_ID, QuotaTable
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.traced_sensors import Subject, Traced, TracedBuckets, TracedHandle, TracedSensors
from kafka_throttle.quotas.request_costs import NodeCosts, RequestCosts
from kafka_throttle.quotas.sensors.rows import Rows
from kafka_throttle.quotas.sensors.token_buckets import BucketReading, TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading, Sensors

IDLE_MS: Final = 3_600_000
"""A sensor that is unused for longer is closed, as in a broker."""

KEYS_PER_SWEEP: Final = 1_000

SHADOWS_PER_CALL: Final = 1_000
"""How many sensors of shadow quotas one look at their sums reads: a few ms."""

KEYS_PER_STEP: Final = 500
"""How many sensors one step of a quota change looks at."""

_NONE_SUMMED_UP: Final = (0, 0)

_LOOKED_AT_FOR_ROOM: Final = 512
_TOUCHED_KEPT: Final = 10_000

_MAX_CLIENT_IDS: Final = 10_000

NO_CEILING_BYTES: Final = 2**31 - 1

WHOLE_CLUSTER: Final = -2
"""In place of a node id, for use that is measured over all nodes."""


@dataclass(slots=True)
class ClientSensors:
    """The sensors that measure one client at one node, as handles; None for a quota type that is not measured.

    A sensor of a quota with the scope CLUSTER measures all nodes together. They are valid while `version` is the
    version of their ClientQuotaManager, or if its `renews` accepts them.

    `fetch_ceiling_bytes` is the most that one Fetch may ask for. `mutation` is a token bucket that all nodes share;
    `limits_mutations` is False if it has no limit. `costs` has the costs of requests at this node, if request time is
    measured (for `request` or `shadow_request`). `limits` is False if no quota limits this client, `limits_produces`
    and `limits_requests` if no quota of that type does. Sensors of shadow quotas never throttle. `crowded` are the
    sensor tables that were full when this was made.
    """

    version: int
    produce: int | None
    fetch: int | None
    fetch_ceiling_bytes: int
    shadow_produce: int | None = None
    shadow_fetch: int | None = None
    mutation: int | None = None
    limits_mutations: bool = False
    shadow_mutation: int | None = None
    request: int | None = None
    shadow_request: int | None = None
    costs: NodeCosts | None = None
    limits: bool = False
    limits_produces: bool = False
    limits_requests: bool = False
    user: str = ""
    client_id: str = ""
    crowded: tuple[Rows, ...] = ()

    @property
    def limits_fetches(self) -> bool:
        """Whether a fetch quota limits this client."""
        return self.fetch_ceiling_bytes < NO_CEILING_BYTES


@dataclass(frozen=True, slots=True)
class SensorKey:
    """What one sensor measures: a quota type, enforced or shadow, under some tags at one node.

    Controller mutations are measured for the WHOLE_CLUSTER, because Kafka's bucket is at the controller, and so is
    use that a quota with the scope CLUSTER binds.

    `shared_by` is the entity whose new clients share this sensor because the table was full. Its tags then have
    `<overflow>` in place of the names of these clients.
    """

    virtual_cluster: str
    node_id: int
    quota_type: QuotaType
    tags: SensorTags
    shared_by: Entity | None = None
    shadow: bool = False


class ShadowThrottles(NamedTuple):
    """What shadow quotas would have throttled: the number of throttles, and the sum of their times in ms."""

    throttles: int = 0
    throttled_ms: int = 0


class ClientQuotaManager:
    """Gives each client the sensors that measure it (ClientSensors), and keeps their limits equal to the quota tables.

    `version` increases when a table is replaced and when sensors are closed. Older ClientSensors remain valid if
    `renews` accepts them, which it does unless the change concerns their client. `overflowed` counts clients without a
    separate sensor because the sensor table was full; a sixteenth of its rows is reserved for sensors that such clients
    share.

    Shadow quotas have a separate sensor table of the same size, so they take no rows from enforced quotas. There are
    also separate tables for the token buckets of controller mutations, and for request time, whose throttles Kafka
    limits to one window.
    """

    def __init__(
        self,
        sensors: Sensors,
        table: QuotaTable,
        shadow: QuotaTable | None = None,
        buckets: TokenBuckets | None = None,
        costs: RequestCosts | None = None,
        traces: Callable[[SensorTags, Entity | None], bool] | None = None,
    ) -> None:
        """`buckets` are for controller mutations; by default a table as large as `sensors`, with the same max throttle.

        `costs` has the costs of requests at the nodes. `traces` decides which sensors are traced, by their tags and the
        entity of their quota; it needs TracedSensors and TracedBuckets.
        """
        self._traces = traces
        self.share_of: Callable[[SensorKey], float] | None = None
        """Which part of a limit this instance enforces, if it shares the limits with others; None: all of each."""
        self.pace_of: Callable[[SensorKey], float] | None = None
        """The pace of a sensor that is opened now, see `reshare`; None: all have none."""
        self._pressable: dict[tuple[Rows, int], SensorKey] | None = None
        """The key of each open sensor by its table and handle, from `watch_pressed` on."""
        self.sensors = sensors
        self.request_sensors = _of_request_time(sensors)
        self.shadow_request_sensors = _of_request_time(sensors)
        self.time_in_flight: dict[int, float] = {}
        """The expected cost of the requests in flight, by the handle of their sensor of request time, in its unit."""
        self.fetch_rooms = FetchRooms(sensors)
        self.costs = costs or RequestCosts()
        self.buckets = buckets or TokenBuckets(sensors.capacity, max_throttle_ms=sensors.max_throttle_ms)
        self.shadow_buckets = self.buckets.like()
        self.buckets.max_debt_ms = self.shadow_buckets.max_debt_ms = sensors.max_debt_ms
        self.shadow_sensors = sensors.like(sensors.max_throttle_ms, sensors.max_debt_ms)
        self._rows: dict[tuple[QuotaType, bool], Sensors | TokenBuckets] = {
            (QuotaType.PRODUCE, False): self.sensors,
            (QuotaType.PRODUCE, True): self.shadow_sensors,
            (QuotaType.FETCH, False): self.sensors,
            (QuotaType.FETCH, True): self.shadow_sensors,
            (QuotaType.REQUEST, False): self.request_sensors,
            (QuotaType.REQUEST, True): self.shadow_request_sensors,
            (QuotaType.CONTROLLER_MUTATION, False): self.buckets,
            (QuotaType.CONTROLLER_MUTATION, True): self.shadow_buckets,
        }
        self.table = table
        self.shadow = shadow if shadow is not None else QuotaTable()
        self.version = 0
        self.overflowed = 0
        self.shadow_overflowed = 0
        self._handles: dict[SensorKey, int] = {}
        self._client_sensors_by_id: dict[tuple[str, int, str, str], ClientSensors] = {}
        self._touched: dict[tuple[str, str], int] = {}
        """The version at which the sensors of a client became stale; "" stands for any user or any client-id."""
        self._touched_before: dict[tuple[str, str], int] = {}
        self._begin_of_touched = 0
        self._all_touched = 0
        """All ClientSensors of an earlier version are stale."""
        self._shared_closed = 0
        """ClientSensors of an earlier version that have a shared sensor may be stale."""
        self._places: set[tuple[str, int]] = set()
        self._spared: set[SensorKey] = set()
        """Sensors of the ClientSensors that are being made; they must not be closed to make room."""
        self._crowded: list[Rows] = []
        """Sensor tables in which the client whose ClientSensors are being made got no separate sensor."""
        self._swept: Iterator[SensorKey] = iter(())
        self._in_turn: Iterator[SensorKey] = iter(())
        self._shadow_sums: dict[tuple[str, int, QuotaType], ShadowThrottles] = {}
        self._summed_up: dict[SensorKey, tuple[int, int]] = {}
        """How many throttles and ms of each sensor of a shadow quota are in the sums."""
        self._shadows_in_turn: Iterator[SensorKey] = iter(())
        self.version += 1

    def bind(self, virtual_cluster: str, node_id: int, user: str, client_id: str, now_ms: int) -> ClientSensors:
        """The sensors of this client; missing ones are opened."""
        who = (virtual_cluster, node_id, user, client_id)
        client_sensors = self._client_sensors_by_id.get(who)
        if client_sensors is None or not self.renews(client_sensors):
            client_sensors = self._make_client_sensors(virtual_cluster, node_id, user, client_id, now_ms)
            self._remember(who, client_sensors)
        return client_sensors

    def _remember(self, who: tuple[str, int, str, str], client_sensors: ClientSensors) -> None:
        self._client_sensors_by_id.pop(who, None)
        if not client_sensors.crowded:
            if len(self._client_sensors_by_id) == _MAX_CLIENT_IDS:
                del self._client_sensors_by_id[next(iter(self._client_sensors_by_id))]
            self._client_sensors_by_id[who] = client_sensors

    def renews(self, client_sensors: ClientSensors) -> bool:
        """Whether these sensors are still what `bind` would return. If so, their version is set to the present one.

        They are if no change since then concerns their client. A client without a separate sensor keeps its shared one
        while the full table has no room.
        """
        since = client_sensors.version
        if since == self.version:
            return True
        if since < self._all_touched:
            return False
        if client_sensors.crowded and (since < self._shared_closed or any(map(_has_room, client_sensors.crowded))):
            return False
        user, client_id = client_sensors.user, client_sensors.client_id
        for name in ((user, client_id), (user, ""), ("", client_id)):
            if self._touched.get(name, 0) > since or self._touched_before.get(name, 0) > since:
                return False
        client_sensors.version = self.version
        return True

    def _make_client_sensors(
        self, virtual_cluster: str, node_id: int, user: str, client_id: str, now_ms: int
    ) -> ClientSensors:
        self._spared.clear()
        self._crowded.clear()

        def sensor(quota_type: QuotaType, shadow: bool = False) -> tuple[int | None, float]:
            return self._sensor(virtual_cluster, node_id, quota_type, user, client_id, shadow, now_ms)

        produce, produce_limit = sensor(QuotaType.PRODUCE)
        fetch, fetch_limit = sensor(QuotaType.FETCH)
        shadow_produce, _ = sensor(QuotaType.PRODUCE, shadow=True)
        shadow_fetch, _ = sensor(QuotaType.FETCH, shadow=True)
        mutation, mutation_limit = sensor(QuotaType.CONTROLLER_MUTATION)
        shadow_mutation, _ = sensor(QuotaType.CONTROLLER_MUTATION, shadow=True)
        request, request_limit = sensor(QuotaType.REQUEST)
        shadow_request, _ = sensor(QuotaType.REQUEST, shadow=True)
        timed = request is not None or shadow_request is not None
        return ClientSensors(
            self.version,
            produce,
            fetch,
            self._ceiling_bytes(fetch_limit),
            shadow_produce,
            shadow_fetch,
            mutation,
            mutation is not None and mutation_limit < UNLIMITED,
            shadow_mutation,
            request,
            shadow_request,
            self.costs.of_node(node_id) if timed else None,
            min(produce_limit, fetch_limit, mutation_limit, request_limit) < UNLIMITED,
            produce_limit < UNLIMITED,
            request_limit < UNLIMITED,
            user=user,
            client_id=client_id,
            crowded=tuple(self._crowded),
        )

    def replace(
        self,
        table: QuotaTable,
        now_ms: int,
        shadow: QuotaTable | None = None,
        changed: Collection[Entity] | None = None,
    ) -> None:
        """Put `table` in force from the next charge of each sensor on, and `shadow` as the table of shadow quotas.

        Running throttles are not changed. `changed` says that the tables differ from the old ones only in the quotas of
        these entities; then sensors that these quotas cannot bind are skipped.
        """
        for _ in self.replacing(table, now_ms, shadow, changed):
            pass

    def replacing(
        self,
        table: QuotaTable,
        now_ms: int,
        shadow: QuotaTable | None = None,
        changed: Collection[Entity] | None = None,
    ) -> Iterator[None]:
        """As `replace`, in steps of a few ms. Between the steps anything is allowed except another change of quotas.

        From the first step on, `bind` uses the new tables and limits. Until the last step, sensors that were not bound
        again may have their old limits.
        """
        table, shadow = table.succeeding(self.table), shadow if shadow is not None else QuotaTable()
        same_tags = table.measures_as(self.table) and shadow.measures_as(self.shadow)
        self.table, self.shadow = table, shadow
        if changed is None or not same_tags or len(changed) > _TOUCHED_KEPT:
            self._all_touched = self.version + 1
        else:
            for entity in changed:
                self._touch_clients_of(entity)
        self.version += 1
        for keys in self._keys_under(changed):
            for key in keys:
                self._adjust(key, now_ms)
            yield

    def _set_limit(self, key: SensorKey, handle: int, limit: float, now_ms: int) -> None:
        rows = self._rows_of(key)
        if limit != rows.limit(handle):
            rows.set_limit(handle, limit, now_ms)

    def _adjust(self, key: SensorKey, now_ms: int) -> None:
        """Give a sensor its limit from the table, or close it if the table has no quota for it any more."""
        handle = self._handles.get(key)
        if handle is None:
            return
        limit = self._limit(key)
        if limit is None:
            self._close(key)
        else:
            self._set_limit(key, handle, self._enforced(key, limit), now_ms)

    def _keys_under(self, changed: Collection[Entity] | None) -> Iterator[Iterable[SensorKey]]:
        """Keys of all sensors that quotas of these entities can bind, in batches. Other keys may be among them."""
        if changed is None or len(changed) * len(self._places) * len(QuotaType) * 2 > len(self._handles):
            return _batches(list(self._handles))
        clients = [entity for entity in changed if entity.ip is None]
        templates = [entity for entity in clients if entity.user is DEFAULT or entity.client_id is DEFAULT]
        named = [entity for entity in clients if entity.user is not DEFAULT and entity.client_id is not DEFAULT]
        return chain(_batches(self._keys_of(named)), self._keys_like(templates) if templates else ())

    def _keys_of(self, entities: Iterable[Entity]) -> Iterator[SensorKey]:
        """Keys of all sensors that may exist for entities given by name, without defaults."""
        places = list(self._places)
        for entity in entities:
            tags = SensorTags(_named(entity.user), _named(entity.client_id))
            for virtual_cluster, node_id in places:
                for quota_type in QuotaType:
                    yield SensorKey(virtual_cluster, node_id, quota_type, tags)
                    yield SensorKey(virtual_cluster, node_id, quota_type, tags, shadow=True)

    def _keys_like(self, templates: Iterable[Entity]) -> Iterator[Iterable[SensorKey]]:
        """Keys of the sensors that these defaults can bind: all, or those with the name given beside the default."""
        names = {(_named(entity.user), _named(entity.client_id)) for entity in templates}
        users, client_ids = {user for user, _ in names if user}, {client_id for _, client_id in names if client_id}
        for keys in _batches(list(self._handles)):
            if ("", "") in names:
                yield keys
            else:
                yield [key for key in keys if key.tags.user in users or key.tags.client_id in client_ids]

    def _touch_clients_of(self, entity: Entity) -> None:
        """Make the sensors of clients that this entity's quotas can bind stale from the next version on.

        For a very long client-id the sensors of all clients become stale: its clients may be measured under a shortened
        name.
        """
        if entity.ip is not None:
            return
        user, client_id = _named(entity.user), _named(entity.client_id)
        if (user or client_id) and len(client_id) < LONG_CLIENT_ID:
            self._touch(user, client_id)
        else:
            self._all_touched = self.version + 1

    def _touch(self, user: str, client_id: str) -> None:
        """Make the sensors of this client stale from the next version on; "" stands for any user or any client-id."""
        if len(self._touched) >= _TOUCHED_KEPT:
            self._all_touched = max(self._all_touched, self._begin_of_touched)
            self._touched_before, self._touched = self._touched, {}
            self._begin_of_touched = self.version + 1
        self._touched[user, client_id] = self.version + 1

    # ------------------------------------------------------------------ shares

    def _enforced(self, key: SensorKey, limit: float) -> float:
        """The part of a limit from the tables that this instance enforces."""
        return limit if self.share_of is None or limit >= UNLIMITED else limit * self.share_of(key)

    def reshare(
        self, key: SensorKey, share: float, keep: float, gain: Sequence[float], pace: float, now_ms: int
    ) -> None:
        """Enforce `share` times the limit of the tables from the next charge of this sensor on.

        The sensor keeps the part `keep` of its history, and gets `gain` in addition: seconds of the whole limit by age
        in windows. With a `pace`, a part of the whole limit, its throttles are cut, see `Rows.set_pace`. A sensor that
        is not open is opened if it gains, because its share has been used elsewhere. Does nothing if there is no limit.
        Raises ValueError if the share is not above 0.
        """
        if not share > 0:
            raise ValueError(f"expected a share above 0 of {key}, got {share}")
        limit, rows = self._limit(key), self._rows_of(key)
        if limit is None or limit >= UNLIMITED:
            if (handle := self._handles.get(key)) is not None:
                rows.set_pace(handle, pace / share)
            return
        handle = self._adopted(key, now_ms) if any(gain) else self._handles.get(key)
        if handle is None:
            return
        enforced = limit * share
        was_bytes = self._ceiling_bytes(rows.limit(handle))
        rows.reshare(handle, enforced, keep, [seconds * limit for seconds in gain], now_ms)
        rows.set_pace(handle, pace / share)
        if key.quota_type is QuotaType.FETCH and not key.shadow and self._ceiling_bytes(enforced) != was_bytes:
            self._touch_clients_with(key)
            self.version += 1

    def share_history(self, key: SensorKey, now_ms: int) -> tuple[float, float, tuple[float, ...]] | None:
        """What a sensor has recorded in total, its limit by the tables, and its history, in units by age in windows.

        None if it is not open or has no limit.
        """
        handle, limit = self._handles.get(key), self._limit(key)
        if handle is None or limit is None or limit >= UNLIMITED:
            return None
        rows = self._rows_of(key)
        return rows.total(handle), limit, rows.history(handle, now_ms)

    def watch_pressed(self) -> None:
        """Note from now on which sensors throttle or refuse, for `take_pressed`."""
        self._pressable = {(self._rows_of(key), handle): key for key, handle in self._handles.items()}
        for rows in self._rows.values():
            rows.pressed = {}

    def take_pressed(self) -> dict[SensorKey, int]:
        """The sensors that have throttled or refused since the last call, each with the end of the latest throttle."""
        pressed: dict[SensorKey, int] = {}
        for rows in dict.fromkeys(self._rows.values()):
            handles = rows.pressed or {}
            rows.pressed = {}
            for handle, until_ms in handles.items():
                key = None if self._pressable is None else self._pressable.get((rows, handle))
                if key is not None:
                    pressed[key] = until_ms
        return pressed

    def set_caps(self, max_throttle_ms: int, max_debt_ms: int) -> None:
        """Set the limit of a single throttle time, and the limit of how far ahead a debt may reach."""
        self.sensors.set_caps(max_throttle_ms, max_debt_ms)
        self.shadow_sensors.set_caps(max_throttle_ms, max_debt_ms)
        self.buckets.set_cap(max_throttle_ms)
        self.shadow_buckets.set_cap(max_throttle_ms)
        self.buckets.max_debt_ms = self.shadow_buckets.max_debt_ms = max_debt_ms

    def expire(self, now_ms: int) -> None:
        """Close sensors that were unused for more than an hour. Each call looks at a part of them.

        If there is no row left for new clients, also close sensors whose window is empty or whose bucket is full: a new
        sensor would measure the same.
        """
        keys = list(islice(self._swept, KEYS_PER_SWEEP))
        if not keys:
            self._swept = iter(list(self._handles))
            keys = list(islice(self._swept, KEYS_PER_SWEEP))
        for key in keys:
            if key.shadow:
                self._sum_up(key)
        idle = [key for key in keys if self._is_idle(key, now_ms)]
        if idle:
            self._close_unused(idle)

    def _is_idle(self, key: SensorKey, now_ms: int) -> bool:
        handle, rows = self._handles.get(key), self._rows_of(key)
        if handle is None:
            return False
        idle_ms = now_ms - rows.idle_since_ms(handle)
        if idle_ms <= rows.samples * rows.window_ms:
            return False
        if idle_ms <= IDLE_MS and _has_room(rows) and self._is_in_scope(key):
            return False
        reading = rows.reading(handle, now_ms)
        if isinstance(reading, BucketReading):
            return idle_ms > IDLE_MS or reading.tokens == reading.burst
        return reading.debt_ms == 0

    def _is_in_scope(self, key: SensorKey) -> bool:
        """Whether a sensor measures use where the scope of its quota says; if not, clients are measured elsewhere."""
        table, entity = self.shadow if key.shadow else self.table, key.shared_by
        if entity is None:
            entity = table.by_tags(key.quota_type, key.tags)[1]
        return (table.scope_of(key.quota_type, entity) is Scope.CLUSTER) == (key.node_id == WHOLE_CLUSTER)

    def _rows_of(self, key: SensorKey) -> Sensors | TokenBuckets:
        return self._rows[key.quota_type, key.shadow]

    def reading(self, key: SensorKey, now_ms: int) -> SensorReading | BucketReading | None:
        """The present measurement of a sensor, None if there is no such sensor."""
        handle = self._handles.get(key)
        return None if handle is None else self._rows_of(key).reading(handle, now_ms)

    def find(self, key: SensorKey, entity: Entity | None) -> SensorKey | None:
        """`key` if it has a sensor, or the key of the sensor that new clients of `entity` share, or None."""
        if key in self._handles:
            return key
        shared = key if entity is None else _shared_key(key, entity)
        return shared if shared in self._handles else None

    @property
    def sensor_keys(self) -> list[SensorKey]:
        """The keys of all sensors."""
        return list(self._handles)

    @property
    def open_sensors(self) -> list[tuple[SensorKey, int]]:
        """The keys and handles of all sensors."""
        return list(self._handles.items())

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """What rows must have in common to be copied: number and length of windows, of rates and of token buckets."""
        return self.sensors.samples, self.sensors.window_ms, self.buckets.samples, self.buckets.window_ms

    def copied(self, key: SensorKey, handle: int) -> bytes:
        """A copy of the row of a sensor, for `adopt`. Raises StaleSensor if it is closed."""
        return self._rows_of(key).copied(handle)

    def mark(self, key: SensorKey, handle: int) -> tuple[float, int, int, float]:
        """Everything that a sensor has recorded, numbers that change with each use, its limit. Raises StaleSensor."""
        return self._rows_of(key).mark(handle)

    def adopt(self, key: SensorKey, copied: bytes, now_ms: int) -> bool:
        """Continue a sensor from a copy by a manager with the same `layout`. Its limit is that of the tables here.

        Of a lower limit than the copied one, because this is a smaller share of it, it continues the matching part: the
        rest is with other shares. False if it is not measured here, or there is no row for it. Raises ValueError if the
        copy has another size.
        """
        handle = self._adopted(key, now_ms)
        if handle is None:
            return False
        rows = self._rows_of(key)
        limit = rows.limit(handle)
        rows.overwrite(handle, copied)
        if self.share_of is not None and limit < rows.limit(handle) < UNLIMITED:
            rows.reshare(handle, limit, limit / rows.limit(handle), (), now_ms)
        self._set_limit(key, handle, limit, now_ms)
        return True

    def record(self, key: SensorKey, value: float, now_ms: int) -> bool:
        """Record what another process has charged a sensor with. False if it is not measured here.

        Where limits are shared, the other process has charged it to a share of its own.
        """
        if self.share_of is not None:
            return False
        handle = self._adopted(key, now_ms)
        if handle is not None:
            self._rows_of(key).record(handle, value, now_ms)
        return handle is not None

    def _adopted(self, key: SensorKey, now_ms: int) -> int | None:
        """The sensor of this key, which is opened if needed. None if it is not measured, or there is no row for it."""
        handle, limit = self._handles.get(key), self._limit(key)
        table = self.shadow if key.shadow else self.table
        if handle is not None or limit is None or not table.is_on(key.quota_type):
            return handle
        rows = self._rows_of(key)
        if rows.used == rows.capacity or (key.shared_by is None and not _has_room(rows)):
            return None
        entity = table.by_tags(key.quota_type, key.tags)[1] if key.shared_by is None else key.shared_by
        return self._open(key, entity, self._enforced(key, limit), now_ms)

    def readings(self, now_ms: int) -> Iterator[tuple[SensorKey, SensorReading]]:
        """The measurements of all windowed rates. Sensors may be opened and closed between two items."""
        for key in list(self._handles):
            rows, handle = self._rows_of(key), self._handles.get(key)
            if isinstance(rows, Sensors) and handle is not None:
                yield key, rows.reading(handle, now_ms)

    def bucket_readings(self, now_ms: int) -> Iterator[tuple[SensorKey, BucketReading]]:
        """The measurements of all token buckets. Buckets may be opened and closed between two items."""
        for key in [key for key in self._handles if key.quota_type is QuotaType.CONTROLLER_MUTATION]:
            rows, handle = self._rows_of(key), self._handles.get(key)
            if isinstance(rows, TokenBuckets) and handle is not None:
                yield key, rows.reading(handle, now_ms)

    def shadow_throttles(self) -> dict[tuple[str, int, QuotaType], ShadowThrottles]:
        """The shadow throttles by virtual cluster, node and quota type, including sensors that are closed.

        Each call reads SHADOWS_PER_CALL sensors at most, and `expire` reads some, too: the latest throttles by one of
        very many sensors come with a later call.
        """
        keys = list(self._summed_up)
        if len(keys) > SHADOWS_PER_CALL:
            keys = list(islice(self._shadows_in_turn, SHADOWS_PER_CALL))
            if not keys:
                self._shadows_in_turn = iter(list(self._summed_up))
                keys = list(islice(self._shadows_in_turn, SHADOWS_PER_CALL))
        for key in keys:
            self._sum_up(key)
        return dict(self._shadow_sums)

    def _sum_up(self, key: SensorKey) -> None:
        """Add what the sensor of a shadow quota has counted since it was read last to the sums."""
        handle = self._handles.get(key)
        if handle is None:
            return
        rows, (throttles, throttled_ms) = self._rows_of(key), self._summed_up[key]
        reading = rows.reading(handle, rows.idle_since_ms(handle))
        kind = (key.virtual_cluster, key.node_id, key.quota_type)
        sums = self._shadow_sums.get(kind, ShadowThrottles())
        self._shadow_sums[kind] = ShadowThrottles(
            sums.throttles + reading.throttles - throttles,
            sums.throttled_ms + reading.throttled_ms - throttled_ms,
        )
        self._summed_up[key] = reading.throttles, reading.throttled_ms

    def _sensor(
        self,
        virtual_cluster: str,
        node_id: int,
        quota_type: QuotaType,
        user: str,
        client_id: str,
        shadow: bool,
        now_ms: int,
    ) -> tuple[int | None, float]:
        """The handle of a client's sensor (None if the quota type is not measured) and its limit.

        As in a broker, clients without a quota are measured too. This does not apply to shadow quotas.
        """
        table = self.shadow if shadow else self.table
        if not table.is_on(quota_type):
            return None, UNLIMITED
        tags, limit, entity = table.tags_and_limit(quota_type, user, client_id)
        if shadow and entity is None:
            return None, UNLIMITED
        where = measured_at(node_id, table.scope_of(quota_type, entity))
        key = SensorKey(virtual_cluster, where, quota_type, tags, shadow=shadow)
        limit = self._enforced(key, limit)
        handle = self._handles.get(key)
        if handle is not None:
            self._set_limit(key, handle, limit, now_ms)
        elif _has_room(self._rows_of(key)):
            handle = self._open(key, entity, limit, now_ms)
        else:
            return _used_by(self._overflow(key, entity, limit, now_ms), user, client_id, entity), limit
        self._spared.add(key)
        return _used_by(handle, user, client_id, entity), limit

    def _overflow(self, key: SensorKey, entity: Entity | None, limit: float, now_ms: int) -> int | None:
        """A sensor from the reserved rows: shared for new clients of a default, separate for a named entity.

        When the reserve is used up, an enforced quota gets the row that was idle longest. A shadow quota gets none,
        because closing a row makes ClientSensors stale.
        """
        self._crowded.append(self._rows_of(key))
        if key.shadow:
            self.shadow_overflowed += 1
        else:
            self.overflowed += 1
        if entity is None:
            return None
        key = _shared_key(key, entity)
        handle = self._handles.get(key)
        if handle is None:
            rows = self._rows_of(key)
            if rows.used == rows.capacity:
                if key.shadow:
                    return None
                self._close_longest_idle(rows)
            handle = self._open(key, entity, limit, now_ms)
        self._spared.add(key)
        return handle

    def _close_longest_idle(self, rows: Sensors | TokenBuckets) -> None:
        """Make room: of the next rows in turn (all of a small table), close a 64th, those that were idle longest."""
        count = max(min(rows.capacity, _LOOKED_AT_FOR_ROOM) // 64, 1)
        some = self._some_in_turn(rows)
        self._close_unused(nsmallest(count, some, key=lambda key: rows.idle_since_ms(self._handles[key])))

    def _some_in_turn(self, rows: Sensors | TokenBuckets) -> Collection[SensorKey]:
        """Keys of sensors that may be closed; each call returns other ones."""
        found: dict[SensorKey, None] = {}
        rounds = 0
        while len(found) < _LOOKED_AT_FOR_ROOM and rounds < 2:
            key = next(self._in_turn, None)
            if key is None:
                rounds += 1
                self._in_turn = iter(list(self._handles))
            elif key in self._handles and self._rows_of(key) is rows and key not in self._spared:
                found[key] = None
        return found

    def _close_unused(self, keys: Iterable[SensorKey]) -> None:
        """Close sensors whose quotas remain in force. Their clients get new sensors with their next request."""
        for key in keys:
            self._close(key)
            self._touch_clients_with(key)
        self.version += 1

    def _touch_clients_with(self, key: SensorKey) -> None:
        """Make the sensors of clients that this sensor measures stale from the next version on."""
        if key.shared_by is None:
            self._touch(key.tags.user, key.tags.client_id)
        else:
            self._shared_closed = self.version + 1

    def _open(self, key: SensorKey, entity: Entity | None, limit: float, now_ms: int) -> int:
        handle = self._rows_of(key).open(limit, now_ms)
        if self._traces is not None and self._traces(key.tags, entity):
            handle = self._traced(key, entity, handle, limit, now_ms)
        self._handles[key] = handle
        if self.pace_of is not None and self.share_of is not None and (pace := self.pace_of(key)):
            self._rows_of(key).set_pace(handle, pace / self.share_of(key))
        if self._pressable is not None:
            self._pressable[self._rows_of(key), handle] = key
        if key.shadow:
            self._summed_up[key] = _NONE_SUMMED_UP
        self._places.add((key.virtual_cluster, key.node_id))
        if key.quota_type in SCOPED:
            self._take_history(key, handle, now_ms)
        return handle

    def _take_history(self, key: SensorKey, handle: int, now_ms: int) -> None:
        """Give a new sensor what was used in the scope that its quota had until now, so that nobody has a fresh burst.

        A sensor of all nodes takes over what those of the nodes hold. That of a node copies what the sensor of all
        nodes holds, as nobody knows at which node it was used.
        """
        rows = self._rows_of(key)
        for other in self._in_other_scope(key):
            other_handle = self._handles.get(other)
            if other_handle is not None and any(held := rows.history(other_handle, now_ms)):
                rows.add_history(handle, held, now_ms)
                if key.node_id == WHOLE_CLUSTER:
                    rows.scale(other_handle, 0.0, now_ms)

    def _in_other_scope(self, key: SensorKey) -> Iterator[SensorKey]:
        """The keys of the sensors that measured the same clients if their quota had the other scope."""
        if key.node_id != WHOLE_CLUSTER:
            if (key.virtual_cluster, WHOLE_CLUSTER) in self._places:
                yield replace(key, node_id=WHOLE_CLUSTER)
            return
        for virtual_cluster, node_id in self._places:
            if virtual_cluster == key.virtual_cluster and node_id != WHOLE_CLUSTER:
                yield replace(key, node_id=node_id)

    def _traced(self, key: SensorKey, entity: Entity | None, handle: int, limit: float, now_ms: int) -> int:
        rows, tags = self._rows_of(key), key.tags
        assert isinstance(rows, TracedSensors | TracedBuckets)
        of = (key.virtual_cluster, key.node_id, key.quota_type, key.shadow, tags.user, tags.client_id, _rule(entity))
        traced = TracedHandle.of(handle, Subject(*of))
        rows.note(Traced(Operation.OPEN, traced.subject, handle, limit, 1, 0, limit, now_ms))
        return traced

    def _close(self, key: SensorKey) -> None:
        if key.shadow:
            self._sum_up(key)
            del self._summed_up[key]
        handle, rows = self._handles.pop(key), self._rows_of(key)
        if self._pressable is not None:
            del self._pressable[rows, handle]
        if isinstance(handle, TracedHandle) and isinstance(rows, TracedSensors | TracedBuckets):
            at_ms, limit = rows.idle_since_ms(handle), rows.limit(handle)
            rows.note(Traced(Operation.CLOSE, handle.subject, int(handle), 0.0, 1, 0, limit, at_ms))
        rows.close(handle)

    def _limit(self, key: SensorKey) -> float | None:
        """The limit of an open sensor by the tables. None if the sensor is not needed any more."""
        table = self.shadow if key.shadow else self.table
        if key.shared_by is not None:
            return table.get(key.shared_by, {}).get(key.quota_type)
        limit = table.limit_of(key.quota_type, key.tags)
        return None if key.shadow and limit == UNLIMITED else limit

    def _ceiling_bytes(self, limit: float) -> int:
        """The most bytes of one Fetch: what the quota allows at one instant after a time without use.

        With a single window this is 0. Clients without a quota have no ceiling, as in a broker.
        """
        if limit >= UNLIMITED:
            return NO_CEILING_BYTES
        return int(min(self.sensors.burst(limit), NO_CEILING_BYTES))


def measured_at(node_id: int, scope: Scope) -> int:
    """Where the use of a node is measured by a quota with this scope, as the node id of a SensorKey."""
    return WHOLE_CLUSTER if scope is Scope.CLUSTER else node_id


def _used_by(handle: int | None, user: str, client_id: str, entity: Entity | None) -> int | None:
    """The handle; if it is traced, with the client that uses it."""
    return handle.used_by(user, client_id, _rule(entity)) if isinstance(handle, TracedHandle) else handle


def _rule(entity: Entity | None) -> str:
    return "" if entity is None else str(entity)


def _of_request_time(sensors: Sensors) -> Sensors:
    """A sensor table of the same size for request time. Throttles are at most one window (KIP-124), without debt."""
    return sensors.like(sensors.window_ms, 0)


def _has_room(rows: Rows) -> bool:
    """Whether a new client gets a separate row. A sixteenth of the rows is reserved for shared ones."""
    return rows.used < rows.capacity - max(rows.capacity // 16, 1)


def _shared_key(key: SensorKey, entity: Entity) -> SensorKey:
    """The key of the sensor that new clients of a default share; for a named entity the key itself."""
    if entity.user is not DEFAULT and entity.client_id is not DEFAULT:
        return key
    return replace(key, tags=SensorTags(_shared(entity.user), _shared(entity.client_id)), shared_by=entity)


def _batches(keys: Iterable[SensorKey]) -> Iterator[Iterable[SensorKey]]:
    left = iter(keys)
    while batch := list(islice(left, KEYS_PER_STEP)):
        yield batch


def _named(name: Name) -> str:
    """The name; "" for the default and for None."""
    return name if isinstance(name, str) else ""


def _shared(name: Name) -> str:
    if name is None:
        return ""
    return "<overflow>" if name is DEFAULT else name
