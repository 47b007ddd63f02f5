"""Running measurements as fixed-size rows in one flat buffer, and Kafka's arithmetic on them.

A row is reached by a handle. The arithmetic is that of a broker's windowed rate, bit for bit (N+1 samples, each
expiring N windows after its last event, as brokers do since 3.8), and of its throttle time (KIP-13, KIP-219). On top
stands a cap for single throttles that keeps what it cuts off as a debt.

A row in 8-byte words; times are monotonic milliseconds, *double* words are IEEE doubles, the others signed integers:

| word | content |
|---|---|
| 0 | generation, odd while the row is in use |
| 1 | lock, reserved for makes with threads |
| 2 | limit in units/s (double) |
| 3 | the current sample, as a word of the row; 0 while there is none |
| 4 | when the current sample is complete |
| 5 | how many samples there are |
| 6 | no sample expires before this time |
| 7 | sum of all samples, up to rounding (double) |
| 8 | a sum below this one is certainly within the limit (double) |
| 9 | when the debt is paid (double), 0 without one |
| 10 | everything ever charged (double) |
| 11 | charges that were throttled |
| 12 | throttles that were cut to the cap |
| 13 | sum of all throttle times |
| 14.. | N+1 samples of three words: start, time of the last event, sum (double) |
"""

from dataclasses import dataclass
from math import ceil, floor, inf

UNLIMITED = 2.0**63 - 1
"""Kafka's bound where no quota applies."""

LONGEST_THROTTLE_MS = 2**31 - 1
"""throttle_time_ms is an int32; a longer delay is cut to it (a broker keeps the low 32 bits)."""

_GENERATION, _LIMIT, _CURRENT, _COMPLETE_AT, _SAMPLES, _EXPIRES_AT = 0, 2, 3, 4, 5, 6
_TOTAL, _SAFE_TOTAL, _PAID_AT, _CHARGED, _THROTTLES, _CAPPED, _THROTTLED_MS = 7, 8, 9, 10, 11, 12, 13
_FIRST_SAMPLE = 14
_SAMPLE_WORDS = 3
_LAST, _SUM = 1, 2
_WORD_BYTES = 8
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1

_WELL_BELOW = 1 - 1e-9
"""How far below the limit a sum must be to need no exact look: much further than rounding can move it."""


class SensorsFull(RuntimeError):
    """Every row is in use."""


class StaleSensor(LookupError):
    """The handle of a row that has been closed."""


@dataclass(slots=True, frozen=True)
class SensorReading:
    """A copy of one row: `rate` and `limit` in units/s, `charged` in units, times in ms.

    `idle_ms` is the time since the last charge, `debt_ms` how far ahead of now the debt reaches.
    """

    rate: float
    limit: float
    charged: float
    throttles: int
    capped: int
    throttled_ms: int
    idle_ms: int
    debt_ms: int


class Sensors:
    """`capacity` rows for windowed rates over `samples` windows of `window_ms`.

    `charge`, `give_back` and `set_limit` are the only ways to change a row; no object stands for one.
    """

    def __init__(
        self,
        capacity: int,
        samples: int = 11,
        window_ms: int = 1000,
        max_throttle_ms: int = 20_000,
        max_debt_ms: int = 60_000,
    ) -> None:
        self.capacity = capacity
        self.samples = samples
        self.window_ms = window_ms
        self.used = 0
        self.capped = 0
        """How many throttles were cut to the cap, rows that are closed included."""
        self._row_words = _FIRST_SAMPLE + _SAMPLE_WORDS * (samples + 1)
        buffer = bytearray(capacity * self._row_words * _WORD_BYTES)
        self._integers = memoryview(buffer).cast("q")
        self._doubles = memoryview(buffer).cast("d")
        self._expiry_ms = samples * window_ms
        self._closed_rows: list[int] = []
        self._opened_rows = 0
        self.set_caps(max_throttle_ms, max_debt_ms)

    def set_caps(self, max_throttle_ms: int, max_debt_ms: int) -> None:
        """The longest single throttle, and how far ahead of now a debt may reach, from now on."""
        self._max_throttle_ms = max_throttle_ms
        self._max_debt_ms = max(max_debt_ms, max_throttle_ms)

    def open(self, limit: float) -> int:
        """The handle of a fresh row with `limit` units/s. Raises SensorsFull."""
        if self._closed_rows:
            row = self._closed_rows.pop()
        elif self._opened_rows < self.capacity:
            row = self._opened_rows
            self._opened_rows += 1
        else:
            raise SensorsFull(f"all {self.capacity} rows are in use")
        self.used += 1
        base = row * self._row_words
        integers = self._integers
        generation = integers[base] + 1
        for word in range(base, base + self._row_words):
            integers[word] = 0
        integers[base + _GENERATION] = generation
        self._put_limit(base, limit)
        return generation << _ROW_BITS | row

    def close(self, handle: int) -> None:
        """Give the row back; the handle is stale from now on."""
        base = self._base(handle)
        self._integers[base + _GENERATION] += 1
        self._closed_rows.append(handle & _ROW_MASK)
        self.used -= 1

    def charge(self, handle: int, value: float, now_ms: int) -> int:
        """Record `value` units; return throttle_time_ms, 0 while the quota holds."""
        base = (handle & _ROW_MASK) * self._row_words
        integers, doubles = self._integers, self._doubles
        if integers[base] != handle >> _ROW_BITS:
            raise StaleSensor(handle)
        doubles[base + _CHARGED] += value
        if now_ms < integers[base + _COMPLETE_AT]:
            sample = base + integers[base + _CURRENT]
            integers[sample + _LAST] = now_ms
            doubles[sample + _SUM] += value
            total = doubles[base + _TOTAL] = doubles[base + _TOTAL] + value
        else:
            total = self._record_in_new_sample(base, value, now_ms)
        # The exact rate is needed only near the limit, and where looking at it would drop a sample.
        if (
            total < doubles[base + _SAFE_TOTAL]
            and now_ms < integers[base + _EXPIRES_AT]
            and not doubles[base + _PAID_AT]
        ):
            return 0
        return self._throttle_time(base, value, now_ms)

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """Take `value` units back: they are subtracted from the sample that is current now, as a broker does."""
        base = self._base(handle)
        self._doubles[base + _CHARGED] -= value
        if now_ms < self._integers[base + _COMPLETE_AT]:
            sample = base + self._integers[base + _CURRENT]
            self._integers[sample + _LAST] = now_ms
            self._doubles[sample + _SUM] -= value
            self._doubles[base + _TOTAL] -= value
        else:
            self._record_in_new_sample(base, -value, now_ms)

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """Move the limit; samples stay, and a debt is rescaled to the time that it takes at the new limit."""
        base = self._base(handle)
        old, paid_at = self._doubles[base + _LIMIT], self._doubles[base + _PAID_AT]
        if limit >= UNLIMITED or paid_at <= now_ms:
            self._doubles[base + _PAID_AT] = 0.0
        else:
            debt_ms = min((paid_at - now_ms) * old / limit, self._max_debt_ms)
            self._doubles[base + _PAID_AT] = now_ms + debt_ms
        self._put_limit(base, limit)

    def reading(self, handle: int, now_ms: int) -> SensorReading:
        """A copy of the row as it stands; looking changes nothing."""
        base = self._base(handle)
        integers, doubles = self._integers, self._doubles
        live = [at for at in self._sample_words(base) if now_ms - integers[at + _LAST] < self._expiry_ms]
        window_ms = self._window_ms(now_ms - min((integers[at] for at in live), default=now_ms))
        current = base + integers[base + _CURRENT]
        return SensorReading(
            rate=sum(doubles[at + _SUM] for at in live) / (window_ms / 1000.0),
            limit=doubles[base + _LIMIT],
            charged=doubles[base + _CHARGED],
            throttles=integers[base + _THROTTLES],
            capped=integers[base + _CAPPED],
            throttled_ms=integers[base + _THROTTLED_MS],
            idle_ms=now_ms - integers[current + _LAST] if integers[base + _SAMPLES] else 0,
            debt_ms=max(ceil(doubles[base + _PAID_AT] - now_ms), 0),
        )

    def _base(self, handle: int) -> int:
        base = (handle & _ROW_MASK) * self._row_words
        if self._integers[base + _GENERATION] != handle >> _ROW_BITS:
            raise StaleSensor(handle)
        return base

    def _put_limit(self, base: int, limit: float) -> None:
        """No window is shorter than N-1 whole ones, so this sum is within the limit whatever its window."""
        unlimited = limit >= UNLIMITED
        safe = inf if unlimited else limit * ((self.samples - 1) * self.window_ms / 1000) * _WELL_BELOW
        self._doubles[base + _LIMIT] = limit
        self._doubles[base + _SAFE_TOTAL] = safe

    def _sample_words(self, base: int) -> range:
        first = base + _FIRST_SAMPLE
        return range(first, first + _SAMPLE_WORDS * self._integers[base + _SAMPLES], _SAMPLE_WORDS)

    def _record_in_new_sample(self, base: int, value: float, now_ms: int) -> float:
        """Begin the next sample of the ring with `value`; return the sum of all."""
        integers, doubles = self._integers, self._doubles
        count = integers[base + _SAMPLES]
        if not count:
            integers[base + _EXPIRES_AT] = now_ms + self._expiry_ms
        at = integers[base + _CURRENT] + _SAMPLE_WORDS if count else _FIRST_SAMPLE
        if at == self._row_words:
            at = _FIRST_SAMPLE
        if at == _FIRST_SAMPLE + _SAMPLE_WORDS * count:
            integers[base + _SAMPLES] = count + 1
        integers[base + _CURRENT] = at
        integers[base + _COMPLETE_AT] = now_ms + self.window_ms
        integers[base + at] = integers[base + at + _LAST] = now_ms
        doubles[base + at + _SUM] = value
        total = doubles[base + _TOTAL] = self._sum(base)
        return total

    def _sum(self, base: int) -> float:
        """The samples added up in the order of the ring's slots: with fractions the order decides the last bits."""
        total = 0.0
        for at in self._sample_words(base):
            total += self._doubles[at + _SUM]
        return total

    def _expire(self, base: int, now_ms: int) -> None:
        """Empty the samples whose last event is N windows ago. They then begin and end now, as in a broker."""
        integers = self._integers
        oldest_ms = now_ms
        for at in self._sample_words(base):
            if now_ms - integers[at + _LAST] >= self._expiry_ms:
                integers[at] = integers[at + _LAST] = now_ms
                self._doubles[at + _SUM] = 0.0
                if at - base == integers[base + _CURRENT]:
                    integers[base + _COMPLETE_AT] = now_ms + self.window_ms
            oldest_ms = min(oldest_ms, integers[at + _LAST])
        integers[base + _EXPIRES_AT] = oldest_ms + self._expiry_ms

    def _window_ms(self, elapsed_ms: int) -> int:
        missing = self.samples - 1 - elapsed_ms // self.window_ms
        return max(elapsed_ms + max(missing, 0) * self.window_ms, 1)

    def _throttle_time(self, base: int, value: float, now_ms: int) -> int:
        """Measure exactly, and turn what is above the limit into a throttle time."""
        integers, doubles = self._integers, self._doubles
        if now_ms >= integers[base + _EXPIRES_AT]:
            self._expire(base, now_ms)
        total = doubles[base + _TOTAL] = self._sum(base)
        limit = doubles[base + _LIMIT]
        window_ms = self._window_ms(now_ms - min(integers[at] for at in self._sample_words(base)))
        rate = total / (window_ms / 1000.0)
        delay_ms = 0
        if rate > limit:
            delay_ms = rounded((rate - limit) / limit * window_ms)
        throttle_time_ms = self._with_debt(base, value, delay_ms, now_ms)
        if throttle_time_ms:
            integers[base + _THROTTLES] += 1
            integers[base + _THROTTLED_MS] += throttle_time_ms
        return throttle_time_ms

    def _with_debt(self, base: int, value: float, delay_ms: int, now_ms: int) -> int:
        """Cut `delay_ms` to the cap; what is cut off, and what is charged before it is paid, remains to be waited."""
        doubles = self._doubles
        paid_at = doubles[base + _PAID_AT]
        if paid_at > now_ms:
            paid_at += value / doubles[base + _LIMIT] * 1000
        if delay_ms > self._max_throttle_ms:
            paid_at = max(paid_at, now_ms + delay_ms)
        if paid_at <= now_ms:
            doubles[base + _PAID_AT] = 0.0
            return delay_ms
        paid_at = min(paid_at, now_ms + self._max_debt_ms)
        doubles[base + _PAID_AT] = paid_at
        owed_ms = ceil(paid_at - now_ms)
        if owed_ms > self._max_throttle_ms:
            self._integers[base + _CAPPED] += 1
            self.capped += 1
        return min(owed_ms, self._max_throttle_ms)


def rounded(value: float) -> int:
    """`value` to the nearest whole number, exact halves up, as Java's Math.round; at most LONGEST_THROTTLE_MS."""
    if value >= LONGEST_THROTTLE_MS:
        return LONGEST_THROTTLE_MS
    whole = floor(value)
    return whole + 1 if value - whole >= 0.5 else whole
