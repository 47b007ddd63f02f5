"""What each throttle must be: Kafka's rate, computed the slow way, beside every row."""

from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf

from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, Sensors
from tests.quotas.windowed_rate import WindowedRate, nearest


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Violation unless it holds."""
    if not holds:
        raise Violation(what)


class Of(Enum):
    """What is charged: bytes, or percents of request time. To look at what is OWED, of tokens too, charges nothing.

    Nor does what a Fetch hears of its room: what it is GRANTED, that it WAITS (0 ms: it has done so for too long), that
    it WAITS_ANEW behind a response without data, and what it is TOLD with its response.
    """

    BYTES = "bytes"
    TIME = "time"
    OWED = "owed"
    OWED_TIME = "owed time"
    OWED_TOKENS = "owed tokens"
    GRANTED = "granted"
    WAITS = "waits"
    WAITS_ANEW = "waits anew"
    TOLD = "told"


LOOKS = frozenset({Of.OWED, Of.OWED_TIME, Of.OWED_TOKENS})
WAITS = frozenset({Of.WAITS, Of.WAITS_ANEW})


@dataclass(slots=True)
class Charge:
    """One charge that a relay has made, or `charges` of them, `value` in all, and what came of it; whether it was
    `taken_back` at once. The `value` of WAITS is how much a Fetch asks for; one that is GRANTED so much has `asked` for
    more, perhaps; that of TOLD is what it brought.
    """

    of: Of
    handle: int
    value: float
    throttle_ms: int
    charges: int = 1
    taken_back: bool = False
    asked: int = 0


class _Row:
    """Beside one row: a rate of Kafka's, and the debt that a cap leaves."""

    def __init__(self, limit: float, sensors: "WatchedSensors") -> None:
        self.rate = WindowedRate(limit, sensors.samples, sensors.window_ms)
        self.refused_until_ms = 0
        self.paid_at = -inf

    def charge(self, value: float, now_ms: int, sensors: "WatchedSensors") -> int:
        """What is owed at once, cut to the cap; what the cap cuts off is owed later, and each byte adds to it."""
        delay_ms = self.rate.charge(value, now_ms)
        if self.paid_at > now_ms:
            self.paid_at += value / self.rate.limit * 1000
        if delay_ms > sensors.max_throttle_ms:
            self.paid_at = max(self.paid_at, now_ms + delay_ms)
        self.paid_at = min(self.paid_at, now_ms + sensors.max_debt_ms)
        if self.paid_at <= now_ms:
            self.paid_at = -inf
            return min(delay_ms, sensors.max_throttle_ms)
        return min(max(delay_ms, ceil(self.paid_at - now_ms)), sensors.max_throttle_ms)

    def give_back(self, value: float, now_ms: int) -> None:
        """Record the negative; a debt shrinks as it has grown."""
        self.rate.record(-value, now_ms)
        if self.paid_at > now_ms:
            self.paid_at -= value / self.rate.limit * 1000

    def set_limit(self, limit: float, now_ms: int, sensors: "WatchedSensors") -> None:
        """A debt of T ms becomes T * old / new, within its bound."""
        debt_ms = self.paid_at - now_ms
        self.paid_at = -inf
        if debt_ms > 0 and limit < UNLIMITED:
            self.paid_at = now_ms + min(debt_ms * (self.rate.limit / limit), sensors.max_debt_ms)
        self.rate.limit = limit


class WatchedSensors(Sensors):
    """Sensors whose every throttle is compared with the oracle; each charge is appended to the `journal`."""

    def __init__(self, capacity: int, max_throttle_ms: int, max_debt_ms: int, of: Of, journal: deque[Charge]) -> None:
        super().__init__(capacity, max_throttle_ms=max_throttle_ms, max_debt_ms=max_debt_ms)
        self.journal = journal
        self._of = of
        self._within = False
        self._rows: dict[int, _Row] = {}

    def owed_ms(self, handle: int, now_ms: int) -> int:
        owed_ms = super().owed_ms(handle, now_ms)
        row = self._rows[handle]
        refused_ms = min(row.refused_until_ms - now_ms, self.max_throttle_ms)
        _require_equal("owed (ms)", owed_ms, max(deepcopy(row).charge(0.0, now_ms, self), refused_ms))
        of = Of.OWED if self._of is Of.BYTES else Of.OWED_TIME
        self.journal.append(Charge(of, handle, 0.0, owed_ms))
        return owed_ms

    def right_room(self, handle: int, now_ms: int) -> float:
        """How much may be recorded now within the limit, found out the slow way."""
        rate = deepcopy(self._rows[handle].rate)
        if not rate.ring:
            return rate.limit * (self.samples - 1) * (self.window_ms / 1000)
        measured, divisor_ms = rate.measure(now_ms)
        return (rate.limit - measured) * (divisor_ms / 1000)

    def open(self, limit: float, now_ms: int) -> int:
        handle = super().open(limit, now_ms)
        self._rows[handle] = _Row(limit, self)
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self._rows[handle]

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        super().set_limit(handle, limit, now_ms)
        self._rows[handle].set_limit(limit, now_ms, self)
        self._rows[handle].refused_until_ms = 0

    def charge(self, handle: int, value: float, now_ms: int) -> int:
        throttle_ms = super().charge(handle, value, now_ms)
        if handle in self._rows:  # not where something is tried on a copy
            expected_ms = self._rows[handle].charge(value, now_ms, self)
            _require_equal(f"{value} bytes are throttled for (ms)", throttle_ms, expected_ms)
            self.journal.append(Charge(self._of, handle, value, throttle_ms))
        return throttle_ms

    def charge_unthrottled(self, handle: int, value: float, charges: int, now_ms: int) -> bool:
        charged = super().charge_unthrottled(handle, value, charges, now_ms)
        if charged:
            _require_equal(f"{value} bytes: ms", 0, self._rows[handle].charge(value, now_ms, self))
            self.journal.append(Charge(self._of, handle, value, 0, charges))
        return charged

    def charge_if_within(self, handle: int, value: float, now_ms: int) -> int:
        row = self._rows[handle]
        paid_at, self._within = row.paid_at, True
        throttle_ms = super().charge_if_within(handle, value, now_ms)
        self._within = False
        if throttle_ms:
            row.paid_at = paid_at if paid_at > now_ms else -inf
            row.refused_until_ms = now_ms + min(throttle_ms, self.window_ms)
        return throttle_ms

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        if handle in self._rows:
            row, charge = self._rows[handle], self.journal[-1]
            charge.taken_back = self._within or (charge.handle == handle and not charge.throttle_ms)
            _require_equal(f"{value} bytes may be given back", charge.taken_back and charge.value == value, True)
            row.give_back(value, now_ms)
        super().give_back(handle, value, now_ms)

    def is_open(self, handle: int) -> bool:
        """Whether the row of this handle still measures."""
        return handle in self._rows


@dataclass(slots=True)
class Spent:
    """One look at a token bucket: `spent strictly`, `spent permissively` or `given back`, and its result.

    `asked` is what was to be spent: more than the `value`, where it is not confirmed yet.
    """

    how: str
    handle: int
    value: float
    reported_ms: int | None = None
    asked: float | None = None


class _Bucket:
    """Beside one row: Kafka's token bucket, and the sum of what was taken out."""

    def __init__(self, limit: float, now_ms: int) -> None:
        self.limit = limit
        self.tokens = inf
        self.total = 0.0
        self._looked_ms = now_ms

    def look(self, now_ms: int, buckets: TokenBuckets) -> float:
        most = buckets.samples * (buckets.window_ms / 1000.0) * self.limit
        self.tokens = min(most, self.tokens + self.limit * ((now_ms - self._looked_ms) / 1000.0))
        self._looked_ms = now_ms
        return self.tokens

    def put(self, value: float, now_ms: int, buckets: TokenBuckets) -> None:
        self.look(now_ms, buckets)
        self.tokens += value
        self.total -= value
        self.look(now_ms, buckets)

    def reported_ms(self, buckets: TokenBuckets) -> int | None:
        if self.tokens >= 0:
            return None
        return min(nearest(-self.tokens / self.limit * 1000), MAX_THROTTLE_MS, buckets.max_throttle_ms)


class WatchedBuckets(TokenBuckets):
    """Token buckets whose every number is compared with Kafka's; `spent` are the looks since they were last taken."""

    def __init__(self, capacity: int, max_throttle_ms: int, journal: deque[Charge]) -> None:
        super().__init__(capacity, max_throttle_ms=max_throttle_ms)
        self.journal = journal
        self.spent: deque[Spent] = deque()
        self._asked: float | None = None
        self._buckets: dict[int, _Bucket] = {}

    def is_open(self, handle: int) -> bool:
        """Whether the row of this handle is in use."""
        return handle in self._buckets

    def open(self, limit: float, now_ms: int) -> int:
        handle = super().open(limit, now_ms)
        self._buckets[handle] = _Bucket(limit, now_ms)
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self._buckets[handle]

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        super().set_limit(handle, limit, now_ms)
        self._buckets[handle].limit = limit

    def unconfirmed(self, handle: int, value: float, now_ms: int) -> float:
        found = super().unconfirmed(handle, value, now_ms)
        bucket = self._buckets[handle]
        tokens = bucket.look(now_ms, self)
        owed = bucket.limit * max(self.max_debt_ms, self.max_throttle_ms) / 1000
        if value > tokens + owed:
            most = tokens + owed
            lowest = 1 if tokens >= 0 else 0
            require(found in (lowest, value) or most - 2 < found < most + 1, f"{found} of {value} are unconfirmed")
        else:
            require(abs(found - value) <= 1, f"{found} of {value} are unconfirmed")
        self._asked = value
        return found

    def throttle_ms(self, handle: int, now_ms: int) -> int:
        reported_ms = super().throttle_ms(handle, now_ms)
        bucket = deepcopy(self._buckets[handle])
        bucket.look(now_ms, self)
        _require_equal("owed (ms)", reported_ms, bucket.reported_ms(self) or 0)
        self.journal.append(Charge(Of.OWED_TOKENS, handle, 0.0, reported_ms))
        return reported_ms

    def spend_permissively(self, handle: int, value: float, now_ms: int) -> int | None:
        reported_ms = super().spend_permissively(handle, value, now_ms)
        bucket = self._buckets[handle]
        bucket.put(-value, now_ms, self)
        return self._checked(Spent("spent permissively", handle, value, reported_ms), bucket.reported_ms(self), now_ms)

    def spend_strictly(self, handle: int, value: float, now_ms: int) -> int | None:
        reported_ms = super().spend_strictly(handle, value, now_ms)
        bucket = self._buckets[handle]
        right_ms = bucket.reported_ms(self) if bucket.look(now_ms, self) < 0 else None
        if right_ms is None:
            bucket.put(-value, now_ms, self)
        return self._checked(Spent("spent strictly", handle, value, reported_ms), right_ms, now_ms)

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        super().give_back(handle, value, now_ms)
        self._buckets[handle].put(value, now_ms, self)
        self._checked(Spent("given back", handle, value), None, now_ms)

    def _checked(self, spent: Spent, right_ms: int | None, now_ms: int) -> int | None:
        if spent.reported_ms != right_ms:
            raise Violation(f"{spent}: {right_ms} ms is right")
        bucket, reading = self._buckets[spent.handle], self.reading(spent.handle, now_ms)
        _require_equal("tokens", reading.tokens, bucket.tokens)
        _require_equal("tokens spent in all", reading.total, bucket.total)
        spent.asked, self._asked = self._asked, None
        self.spent.append(spent)
        return spent.reported_ms


def watched_manager(sensors: WatchedSensors, table: QuotaTable, shadow: QuotaTable, cost_us: int) -> ClientQuotaManager:
    """A quota manager whose token buckets and request times are watched, too; every request costs the same."""
    costs = RequestCosts(pinned=dict.fromkeys(APIS, Cost(cost_us)))
    buckets = WatchedBuckets(sensors.capacity, sensors.max_throttle_ms, sensors.journal)
    quota_manager = ClientQuotaManager(sensors, table, shadow, buckets, costs)
    times = WatchedSensors(sensors.capacity, sensors.window_ms, 0, Of.TIME, sensors.journal)
    quota_manager.request_sensors = quota_manager._rows[QuotaType.REQUEST, False] = times
    shadows = WatchedBuckets(sensors.capacity, sensors.max_throttle_ms, sensors.journal)
    quota_manager.shadow_buckets = quota_manager._rows[QuotaType.CONTROLLER_MUTATION, True] = shadows
    return quota_manager


def _require_equal(what: str, found: float, right: float) -> None:
    if found != right:
        raise Violation(f"{what}: {found}, {right} is right")
