"""Who is measured by which sensor under a candidate, and that sensor: the proxy's own, alone in a table."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.candidate import Rules
from kafka_throttle.quotas.entities import QuotaType, Scope
from kafka_throttle.quotas.fetch_rooms import PIECE_S, FetchRooms
from kafka_throttle.quotas.fetch_rooms import Place as FetchPlace
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

_CHARGE = Operation.CHARGE
_MOST_BYTES = 2**31 - 1
_FETCHES = frozenset({Operation.CHARGE, Operation.CHARGE_IF_WITHIN})
PERCENT_SECONDS_PER_MS = 0.1
"""Request time: 10 ms of one thread within a second are 1 % (KIP-124)."""

_BY_WINDOW = (QuotaType.REQUEST, QuotaType.CONNECTION)


class Place(NamedTuple):
    """What one sensor measures: the tags are empty where they do not count. `quota_type` is a usage record's word."""

    quota_type: str
    user: str
    client_id: str
    ip: str


class MeasuredQuota(NamedTuple):
    """Where a client is measured, its limit as the quota has it, the entity whose quota that is, and its scope."""

    place: Place
    limit: float
    rule: str
    scope: Scope


def type_of(word: str) -> QuotaType:
    """The quota type that a usage record calls `word`. KeyError if there is none."""
    return QuotaType[word.upper()]


def measured_quota(rules: Rules, quota_type: str, user: str, client_id: str, ip: str) -> MeasuredQuota | None:
    """Under which tags a client is measured, and its limit; None where nothing can throttle it.

    Precedence is Kafka's. ValueError for a quota type that does not exist.
    """
    try:
        kind = type_of(quota_type)
    except KeyError:
        raise ValueError(f"unknown quota type {quota_type!r}") from None
    if kind is QuotaType.CONNECTION:
        limit, entity = rules.table.ip_limit(ip)
        if entity is None:
            return None
        return MeasuredQuota(Place(quota_type, "", "", ip), limit, str(entity), Scope.CLUSTER)
    if not rules.table.is_on(kind):
        return None
    tags, limit, entity = rules.table.tags_and_limit(kind, user, client_id)
    if entity is None or limit >= UNLIMITED:
        return None
    place = Place(quota_type, tags.user, tags.client_id, "")
    return MeasuredQuota(place, limit, str(entity), rules.table.scope_of(kind, entity))


def value_of(quota_type: str, used: float) -> float:
    """What a sensor is charged for `used` of a usage record: percent of a thread where that counts ms."""
    return used * PERCENT_SECONDS_PER_MS if quota_type == "request" else used


def longest_throttle_ms(rules: Rules, quota_type: str) -> int:
    """No single throttle is longer: the cap, or one window for request time and connections (KIP-124, KIP-612)."""
    return rules.window_ms if type_of(quota_type) in _BY_WINDOW else rules.max_throttle_ms


class Meter:
    """The sensor, or token bucket, of one place under a candidate. Times in ms; `limit` is the quota."""

    def __init__(self, rules: Rules, quota_type: str, limit: float, now_ms: int) -> None:
        self.limit = limit
        self._most = limit * rules.samples * rules.window_ms / 1000
        self.refused = False
        """Whether the last spending was refused, which may be for a debt that rounds to 0 ms, or a Fetch waits."""
        self.fetched = 0.0
        self._rooms: FetchRooms | None = None
        kind = type_of(quota_type)
        if kind is QuotaType.CONTROLLER_MUTATION:
            self._buckets = TokenBuckets(1, rules.bucket_samples, rules.bucket_window_ms, rules.max_throttle_ms)
            self._handle = self._buckets.open(limit, now_ms)
            self.use: Callable[[str, float, int], int] = self._spend
        else:
            debt_ms = 0 if kind in _BY_WINDOW else rules.max_debt_ms
            longest_ms = longest_throttle_ms(rules, quota_type)
            self._sensors = Sensors(1, rules.samples, rules.window_ms, longest_ms, debt_ms)
            self._handle = self._sensors.open(limit, now_ms)
            self.use = self._charge
            if kind is QuotaType.FETCH and rules.paces_fetches:
                self._rooms = FetchRooms(self._sensors)

    def enter(self) -> FetchPlace | None:
        """The place of one more lane, if it reads and waits for its turns; what it does goes through `fetch`."""
        return None if self._rooms is None else self._rooms.enter(self._handle, takes_turns=True)

    def fetch(self, place: FetchPlace, operation: str, value: float, now_ms: int) -> int:
        """For how long a Fetch waits: before it goes, if it is `refused`, or else before the next one.

        It brings what it is granted of `value`, as if batches were small: `fetched`.
        """
        rooms, self.refused, self.fetched = self._rooms, False, value
        if rooms is None or operation not in _FETCHES:
            return self._charge(operation, value, now_ms)
        wait_ms = rooms.wait_ms(place, _MOST_BYTES, now_ms)
        if wait_ms:
            self.refused = True
            return wait_ms
        self.fetched = min(value, max(place.granted, PIECE_S * self.limit / max(place.room.places, 1)))
        rooms.came(place, ceil(self.fetched))
        throttle_ms = self._sensors.charge(self._handle, self.fetched, now_ms)
        return rooms.told_ms(place, now_ms, throttle_ms)

    def pieces(self, value: float) -> int:
        """In how many fetches `value` comes: as none asks for more than the quota ever lets through (max_bytes)."""
        return ceil(value / self._most) if value > self._most else 1

    def use_many(self, value: float, count: int, now_ms: int) -> bool:
        """Record `count` requests, `value` in all, if it is plain that none is throttled; else do nothing: False."""
        if self.use != self._charge:
            return False
        return self._sensors.charge_unthrottled(self._handle, value, count, now_ms)

    def _charge(self, operation: str, value: float, now_ms: int) -> int:
        sensors, handle = self._sensors, self._handle
        if operation is _CHARGE or operation == _CHARGE:
            return sensors.charge(handle, value, now_ms)
        if operation in (Operation.CHARGE_IF_WITHIN, Operation.CONNECT):
            return sensors.charge_if_within(handle, value, now_ms)
        if operation == Operation.OWE:
            return sensors.owed_ms(handle, now_ms)
        if operation == Operation.GIVE_BACK:
            sensors.give_back(handle, value, now_ms)
        return 0

    def _spend(self, operation: str, value: float, now_ms: int) -> int:
        buckets, handle = self._buckets, self._handle
        if operation == Operation.SPEND:
            return buckets.spend_permissively(handle, value, now_ms) or 0
        if operation == Operation.GIVE_BACK:
            buckets.give_back(handle, value, now_ms)
            return 0
        throttle_ms = buckets.spend_strictly(handle, value, now_ms)
        self.refused = throttle_ms is not None
        return throttle_ms or 0
