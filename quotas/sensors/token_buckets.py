"""Token buckets as rows, and Kafka's arithmetic on them: the quota of controller mutations.

A bucket holds up to N windows' worth of its limit. It is refilled whenever it is used, in the same steps as in a
broker, so the tokens equal those of Kafka's class bit for bit. Source: KIP-599.

Rows are as quotas/sensors/rows.py says; times are monotonic milliseconds. A row has

====  ========================================================================================================
word  content
====  ========================================================================================================
0-2   generation, largest throttle time of the row in ms or 0, limit in units/s (float)
3     tokens (float); infinity until the first use, which cuts them to the size of the bucket
4     time of the last refill
5     time of the last charge or give-back, or of the opening
6     number of charges
7     number of refusals
8     number of charges and refusals with a throttle time
9     number of throttles that were cut to the maximum
10    sum of all throttle times in ms
11    sum of everything charged less what was given back (float)
====  ========================================================================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Final

from mypy_extensions import mypyc_attr

from kafka_throttle.quotas.sensors.rows import LIMIT, PACE, ROW_MASK, WAITS_MS, Rows
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, rounded

_ROW_WORDS: Final = 12

_TOKENS: Final = 3
_REFILLED: Final = 4
_USED: Final = 5
_CHARGES: Final = 6
_REFUSALS: Final = 7
_THROTTLES: Final = 8
_CAPPED: Final = 9
_THROTTLED_MS: Final = 10
_TOTAL: Final = 11


@dataclass(frozen=True, slots=True)
class BucketReading:
    """A copy of what one row holds.

    `tokens` and `burst` are in units, `limit` in units/s, `total` is everything charged less what was given back.
    `throttled_ms` is the sum of the throttle times of charges and refusals. If one request has several of them, its
    client only gets the last one.
    """

    tokens: float
    burst: float
    limit: float
    total: float
    charges: int
    refusals: int
    throttles: int
    capped: int
    throttled_ms: int
    used_ms: int


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenBuckets(Rows):
    """A table of `capacity` token buckets. Not thread-safe.

    `samples` and `window_ms` are a broker's `controller.quota.window.num` and `controller.quota.window.size.seconds`.
    No throttle is longer than `max_throttle_ms`. This limit forgives nothing: the overdraft stays in the bucket.
    """

    def __init__(self, capacity: int, samples: int = 11, window_ms: int = 1000, max_throttle_ms: int = 20_000) -> None:
        super().__init__(capacity, samples, window_ms, _ROW_WORDS)
        self.capped = 0
        """The number of throttles that were cut to the maximum, in all rows including closed ones."""
        self.max_debt_ms = 60_000
        """How long an unconfirmed charge may overdraw a bucket; `max_throttle_ms` applies if it is longer."""
        self.set_cap(max_throttle_ms)

    def set_cap(self, max_throttle_ms: int) -> None:
        """Set the limit of a single throttle time. MAX_THROTTLE_MS leaves Kafka's throttle times unchanged."""
        if not 0 < max_throttle_ms <= MAX_THROTTLE_MS:
            raise ValueError(f"expected a cap from 1 to 2^31-1, got {max_throttle_ms}")
        self.max_throttle_ms = max_throttle_ms

    def like(self) -> "TokenBuckets":
        """A new table of the same size and settings, without open rows."""
        return TokenBuckets(self.capacity, self.samples, self.window_ms, self.max_throttle_ms)

    def burst(self, limit: float) -> float:
        """How many tokens a bucket of this limit holds."""
        return self.samples * (self.window_ms / 1000.0) * limit

    def open(self, limit: float, now_ms: int) -> int:
        """The handle of a new, full bucket. Raises SensorsFull if no row is free."""
        handle = self._open_row(limit)
        row = handle & ROW_MASK
        self._floats[row + _TOKENS] = inf
        self._ints[row + _REFILLED] = self._ints[row + _USED] = now_ms
        return handle

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """Use `limit` from the next use on, also for the time since the last use. Tokens or an overdraft are kept."""
        self._floats[self._row(handle) + LIMIT] = limit

    # ------------------------------------------------------------------- spend

    def spend_permissively(self, handle: int, value: float, now_ms: int) -> int | None:
        """Charge `value` in any case. Returns for how many ms to throttle the request, None if tokens are left.

        An overdraft may have a throttle time of 0, as a refusal may; it replaces an earlier throttle time of the
        request.
        """
        row = self._row(handle)
        self._refill(row, now_ms)
        self._spend(row, value, now_ms)
        return self._reported_ms(row) if self._floats[row + _TOKENS] < 0 else None

    def spend_strictly(self, handle: int, value: float, now_ms: int) -> int | None:
        """Charge all of `value`, however large, unless the bucket is already overdrawn: then charge nothing.

        Returns None if it was charged, otherwise for how many ms to throttle the request. A refusal may return 0 if the
        overdraft is so small that its time rounds to 0.
        """
        row = self._row(handle)
        self._refill(row, now_ms)
        if self._floats[row + _TOKENS] < 0:
            self._ints[row + _REFUSALS] += 1
            return self._reported_ms(row)
        self._spend(row, value, now_ms)
        return None

    def unconfirmed(self, handle: int, value: float, now_ms: int) -> float:
        """How much of `value` to charge before it is known whether the request succeeds. Changes nothing.

        All of it, unless that overdraws the bucket for longer than the larger of `max_debt_ms` and `max_throttle_ms`. A
        bucket that is not overdrawn is charged at least 1, so that a value that is too large overdraws it.
        """
        tokens, limit = self.tokens(handle, now_ms), self.limit(handle)
        most = tokens + limit * (max(self.max_debt_ms, self.max_throttle_ms) / 1000)
        if value <= most:
            return float(value)
        return float(max(floor(most), 1 if tokens >= 0 else 0))

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """Put charged tokens back, at most until the bucket is full."""
        row = self._row(handle)
        self._refill(row, now_ms)
        self._put(row, value, now_ms)

    def record(self, handle: int, value: float, now_ms: int) -> None:
        """Take `value` out of the bucket without checking what is left; the next use finds an overdraft."""
        self.give_back(handle, -value, now_ms)

    def history(self, handle: int, now_ms: int) -> tuple[float, ...]:
        """The tokens that are missing in the bucket, as the use of one window."""
        return (self.burst(self.limit(handle)) - self.tokens(handle, now_ms),)

    def scale(self, handle: int, factor: float, now_ms: int) -> None:
        """Multiply the missing tokens by `factor`. Neither the limit nor `total` changes."""
        missing = self.history(handle, now_ms)[0]
        self._set_tokens(handle, self.burst(self.limit(handle)) - missing * factor, now_ms)

    def add_history(self, handle: int, by_age: Sequence[float], now_ms: int) -> None:
        """Take as many tokens as another bucket misses. `total` does not change."""
        self._set_tokens(handle, self.tokens(handle, now_ms) - sum(by_age), now_ms)

    def reshare(self, handle: int, limit: float, keep: float, gain: Sequence[float], now_ms: int) -> None:
        """Use `limit` from now on. The part `keep` of the missing tokens is still missing, and `gain` in addition."""
        missing = self.history(handle, now_ms)[0] * keep + sum(gain)
        self.set_limit(handle, limit, now_ms)
        self.scale(handle, 0.0, now_ms)
        self.add_history(handle, (missing,), now_ms)

    def _set_tokens(self, handle: int, tokens: float, now_ms: int) -> None:
        row = self._row(handle)
        self._floats[row + _TOKENS] = tokens
        self._ints[row + _REFILLED] = now_ms

    def _refill(self, row: int, now_ms: int) -> None:
        self._floats[row + _TOKENS] = self._tokens(row, now_ms)
        self._ints[row + _REFILLED] = now_ms

    def _tokens(self, row: int, now_ms: int) -> float:
        floats, limit = self._floats, self._floats[row + LIMIT]
        refilled = floats[row + _TOKENS] + limit * ((now_ms - self._ints[row + _REFILLED]) / 1000.0)
        return min(self.burst(limit), refilled)

    def _spend(self, row: int, value: float, now_ms: int) -> None:
        self._ints[row + _CHARGES] += 1
        self._put(row, -value, now_ms)

    def _put(self, row: int, value: float, now_ms: int) -> None:
        floats = self._floats
        floats[row + _TOKENS] = min(self.burst(floats[row + LIMIT]), floats[row + _TOKENS] + value)
        floats[row + _TOTAL] -= value
        self._ints[row + _USED] = now_ms

    def _reported_ms(self, row: int) -> int:
        """The throttle time of an overdrawn bucket, cut to the maximum, and counted."""
        ints, floats = self._ints, self._floats
        wanted_ms = overdraft_ms(floats[row + _TOKENS], floats[row + LIMIT])
        throttle_ms = min(wanted_ms, self._longest_ms(row, floats[row + _TOKENS]))
        self._press(row, ints[row + _REFILLED] + throttle_ms)
        if wanted_ms > throttle_ms:
            ints[row + _CAPPED] += 1
            self.capped += 1
        if throttle_ms:
            ints[row + _THROTTLES] += 1
            ints[row + _THROTTLED_MS] += throttle_ms
        return throttle_ms

    def _longest_ms(self, row: int, tokens: float) -> int:
        """What a throttle time is cut to."""
        pace = self._floats[row + PACE]
        if not pace:
            return self.max_throttle_ms
        return min(max(WAITS_MS, overdraft_ms(tokens, pace * self._floats[row + LIMIT])), self.max_throttle_ms)

    # -------------------------------------------------------------------- read

    def tokens(self, handle: int, now_ms: int) -> float:
        """The tokens at `now_ms`, negative if the bucket is overdrawn. Changes nothing."""
        return self._tokens(self._row(handle), now_ms)

    def throttle_ms(self, handle: int, now_ms: int) -> int:
        """The throttle time of a refusal at `now_ms`, 0 if there would be none. Changes nothing."""
        tokens = self.tokens(handle, now_ms)
        if tokens >= 0:
            return 0
        return min(overdraft_ms(tokens, self.limit(handle)), self._longest_ms(self._row(handle), tokens))

    def total(self, handle: int) -> float:
        """Everything charged less what was given back."""
        return self._floats[self._row(handle) + _TOTAL]

    def mark(self, handle: int) -> tuple[float, int, int, float]:
        """The total, the number of charges and refusals, the time of the last use, the limit: one changes with use."""
        row, ints, floats = self._row(handle), self._ints, self._floats
        uses = ints[row + _CHARGES] + ints[row + _REFUSALS]
        return floats[row + _TOTAL], uses, ints[row + _REFILLED], floats[row + LIMIT]

    def idle_since_ms(self, handle: int) -> int:
        """Time of the last charge or give-back, or of the opening. As in a broker, a refusal does not count."""
        return self._ints[self._row(handle) + _USED]

    def reading(self, handle: int, now_ms: int) -> BucketReading:
        """The content of the row at `now_ms`. Changes nothing."""
        row = self._row(handle)
        ints, limit = self._ints, self._floats[row + LIMIT]
        return BucketReading(
            tokens=self._tokens(row, now_ms),
            burst=self.burst(limit),
            limit=limit,
            total=self._floats[row + _TOTAL],
            charges=ints[row + _CHARGES],
            refusals=ints[row + _REFUSALS],
            throttles=ints[row + _THROTTLES],
            capped=ints[row + _CAPPED],
            throttled_ms=ints[row + _THROTTLED_MS],
            used_ms=ints[row + _USED],
        )


def overdraft_ms(tokens: float, limit: float) -> int:
    """The ms until negative tokens are 0 again at `limit`; cut to MAX_THROTTLE_MS, where a broker would overflow."""
    return min(rounded(-tokens / limit * 1000), MAX_THROTTLE_MS)


def remaining_ms(throttle_ms: int, since_ms: int, now_ms: int) -> int:
    """The rest at `now_ms`, when a response is sent, of a throttle time that was determined at `since_ms`."""
    return max(throttle_ms - (now_ms - since_ms), 0)
