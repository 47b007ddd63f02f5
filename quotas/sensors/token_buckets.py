"""Token buckets as rows, and Kafka's arithmetic on them: the quota of controller mutations.

A bucket holds up to N windows' worth of its limit. It refills whenever it is looked at, in the steps of a broker, so
that the tokens are those of Kafka's own class, bit for bit. Source: KIP-599.

Rows are as `quotas.sensors.rows` says; times are monotonic milliseconds. A row has

====  ========================================================================================================
word  content
====  ========================================================================================================
0-2   generation, lock, limit in units/s (float)
3     tokens (float); infinity until the first look, which cuts them to what the bucket holds by then
4     when it was refilled
5     when it was last charged or given back to, or opened
6     number of charges
7     number of refusals
8     number of charges and refusals with a throttle time
9     number of throttles that were cut to the cap
10    sum of all throttle times in ms
11    sum of everything charged less what was given back (float)
====  ========================================================================================================
"""

from dataclasses import dataclass
from math import floor, inf

from quotas.sensors.rows import LIMIT, ROW_MASK, Rows
from quotas.sensors.windowed_rate import MAX_THROTTLE_MS, rounded

_ROW_WORDS = 12

_TOKENS, _REFILLED, _USED = 3, 4, 5
_CHARGES, _REFUSALS, _THROTTLES, _CAPPED, _THROTTLED_MS, _TOTAL = 6, 7, 8, 9, 10, 11


@dataclass(frozen=True, slots=True)
class BucketReading:
    """A copy of what one row holds.

    `tokens` and `burst` are in units, `limit` in units/s, `total` is everything charged less what was given back.
    `throttled_ms` adds up what charges and refusals told; of those of one request, only the last counts for its client.
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


class TokenBuckets(Rows):
    """Token buckets, as many as `capacity`. Not for use by several threads.

    `samples` and `window_ms` are a broker's `controller.quota.window.num` and `controller.quota.window.size.seconds`.
    No throttle is longer than `max_throttle_ms`. A cap forgives nothing: what is overdrawn stays in the bucket.
    """

    def __init__(self, capacity: int, samples: int = 11, window_ms: int = 1000, max_throttle_ms: int = 20_000) -> None:
        super().__init__(capacity, samples, window_ms, _ROW_WORDS)
        self.capped = 0
        """How many throttles were cut to the cap, in all rows that ever were."""
        self.max_debt_ms = 60_000
        """For so long, or for one cap, a charge that nobody has confirmed yet may overdraw a bucket."""
        self.set_cap(max_throttle_ms)

    def set_cap(self, max_throttle_ms: int) -> None:
        """From now on no throttle is longer than this. MAX_THROTTLE_MS leaves Kafka's own numbers alone."""
        if not 0 < max_throttle_ms <= MAX_THROTTLE_MS:
            raise ValueError(f"expected a cap from 1 to 2^31-1, got {max_throttle_ms}")
        self.max_throttle_ms = max_throttle_ms

    def like(self) -> "TokenBuckets":
        """As many more, all unused."""
        return TokenBuckets(self.capacity, self.samples, self.window_ms, self.max_throttle_ms)

    def burst(self, limit: float) -> float:
        """How many tokens a bucket of this limit holds."""
        return self.samples * (self.window_ms / 1000.0) * limit

    def open(self, limit: float, now_ms: int) -> int:
        """A handle of a full bucket. SensorsFull if there is no row left."""
        handle = self._open_row(limit)
        row = handle & ROW_MASK
        self._floats[row + _TOKENS] = inf
        self._ints[row + _REFILLED] = self._ints[row + _USED] = now_ms
        return handle

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """From the next look on `limit` counts, also for the time since the last one. Tokens, or debt, are kept."""
        self._floats[self._row(handle) + LIMIT] = limit

    # ------------------------------------------------------------------- spend

    def spend_permissively(self, handle: int, value: float, now_ms: int) -> int | None:
        """Charge `value` in any case; return for how many ms the request is to be throttled, None if tokens are left.

        As a refusal, an overdraft may have 0; it, too, stands for what an earlier one of the request was told.
        """
        row = self._row(handle)
        self._refill(row, now_ms)
        self._spend(row, value, now_ms)
        return self._reported_ms(row) if self._floats[row + _TOKENS] < 0 else None

    def spend_strictly(self, handle: int, value: float, now_ms: int) -> int | None:
        """Charge all of `value`, however much, unless the bucket is overdrawn already: then charge nothing.

        Returns None if it was charged, else for how many ms the request is to be throttled. A refusal may have 0: of a
        debt so small that it rounds to no time at all.
        """
        row = self._row(handle)
        self._refill(row, now_ms)
        if self._floats[row + _TOKENS] < 0:
            self._ints[row + _REFUSALS] += 1
            return self._reported_ms(row)
        self._spend(row, value, now_ms)
        return None

    def unconfirmed(self, handle: int, value: float, now_ms: int) -> float:
        """How much of `value` may be charged before it is known to be done; changes nothing.

        All of it, unless that overdraws the bucket for longer than `max_debt_ms`, or one cap where that is longer. A
        bucket that is not overdrawn yet is charged 1 at least, so that it is overdrawn by whatever is too much.
        """
        tokens, limit = self.tokens(handle, now_ms), self.limit(handle)
        most = tokens + limit * (max(self.max_debt_ms, self.max_throttle_ms) / 1000)
        if value <= most:
            return value
        return max(floor(most), 1 if tokens >= 0 else 0)

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """Put back what was charged, never beyond what the bucket holds."""
        row = self._row(handle)
        self._refill(row, now_ms)
        self._put(row, value, now_ms)

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
        """The throttle time of an overdrawn bucket, cut to the cap and counted."""
        ints, floats = self._ints, self._floats
        wanted_ms = overdraft_ms(floats[row + _TOKENS], floats[row + LIMIT])
        throttle_ms = min(wanted_ms, self.max_throttle_ms)
        if wanted_ms > throttle_ms:
            ints[row + _CAPPED] += 1
            self.capped += 1
        if throttle_ms:
            ints[row + _THROTTLES] += 1
            ints[row + _THROTTLED_MS] += throttle_ms
        return throttle_ms

    # -------------------------------------------------------------------- read

    def tokens(self, handle: int, now_ms: int) -> float:
        """What is left at `now_ms`, below 0 if it is overdrawn; changes nothing."""
        return self._tokens(self._row(handle), now_ms)

    def throttle_ms(self, handle: int, now_ms: int) -> int:
        """What a refusal at `now_ms` would tell, 0 if there would be none; changes nothing."""
        tokens = self.tokens(handle, now_ms)
        return min(overdraft_ms(tokens, self.limit(handle)), self.max_throttle_ms) if tokens < 0 else 0

    def idle_since_ms(self, handle: int) -> int:
        """When the row was last charged or given back to, or opened. As in a broker, a refusal is no use of it."""
        return self._ints[self._row(handle) + _USED]

    def reading(self, handle: int, now_ms: int) -> BucketReading:
        """What the row holds at `now_ms`; changes nothing."""
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
    """How long it takes at `limit` until tokens below 0 are 0 again, where brokers wrap cut to MAX_THROTTLE_MS."""
    return min(rounded(-tokens / limit * 1000), MAX_THROTTLE_MS)


def remaining_ms(throttle_ms: int, since_ms: int, now_ms: int) -> int:
    """What is left at `now_ms`, when a request is answered, of the throttle time that was found at `since_ms`."""
    return max(throttle_ms - (now_ms - since_ms), 0)
