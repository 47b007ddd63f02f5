"""Windowed rates as rows, and Kafka's arithmetic on them.

The arithmetic is that of a broker's windowed rate, bit for bit (N+1 samples, each expiring N windows after its last
event, as in brokers since 3.8), and of its throttle time. In addition, single throttle times have a maximum; what
exceeds it is kept as a debt.

Rows are as quotas/sensors/rows.py says; times are monotonic milliseconds. A row has

====  ======================================================================================================
word  content
====  ======================================================================================================
0-2   generation, largest throttle time of the row in ms or 0, limit in units/s (float)
3     position of the current sample, in words from the begin of the row; 0: no sample yet
4     number of samples so far, at most N+1
5     before this time no sample expires and the current one does not end
6     until then the limit certainly holds while the current sample's sum is below this (float)
7     start of the oldest sample, or an earlier time; valid until the time in word 5
8     time at which the debt is paid (float); -infinity: no debt
9     sum of everything recorded in earlier samples than the current one (float)
10    number of charges
11    number of charges that were throttled
12    number of throttles that were cut to the maximum
13    sum of all throttle times in ms
14    time of the opening
15    end of the wait for the latest charge that was taken back because it exceeded the limit; 0: none
16..  N+1 samples of three words: start, time of the last event, sum (float)
====  ======================================================================================================
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isnan
from typing import Final

from mypy_extensions import mypyc_attr

from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.rows import GENERATION, HEAD_WORDS, LIMIT, PACE, ROW_BITS, ROW_MASK, WAITS_MS, Rows
from kafka_throttle.quotas.sensors.rows import SensorsFull as SensorsFull
from kafka_throttle.quotas.sensors.rows import StaleSensor as StaleSensor

MAX_THROTTLE_MS: Final = 2**31 - 1
"""Throttle times are int32 on the wire. As a maximum it leaves Kafka's throttle times unchanged."""

_ROW_WORDS: Final = 16
_SAMPLE_WORDS: Final = 3

_CURRENT: Final = 3
_SAMPLES: Final = 4
_QUIET_UNTIL: Final = 5
_SAFE_SUM: Final = 6
_OLDEST_START: Final = 7
_PAID_AT: Final = 8
_EARLIER: Final = 9
_CHARGES: Final = 10
_THROTTLES: Final = 11
_CAPPED: Final = 12
_THROTTLED_MS: Final = 13
_OPENED: Final = 14
_REFUSED_UNTIL: Final = 15

_START: Final = 0
_LAST: Final = 1
_SUM: Final = 2

_FIRST_SUM: Final = _ROW_WORDS + _SUM

_NEVER: Final = -(2**63)

_SAFETY: Final = 1 - 1e-9
"""A sum below this part of the limit needs no exact calculation. The margin is far larger than rounding errors."""


@dataclass(frozen=True, slots=True)
class SensorReading:
    """A copy of what one row holds.

    `rate` and `limit` are in units/s. `total` is everything recorded less what was given back. `debt_ms` is the time
    until the debt is paid. `charged_ms` is the time of the last recording, None if there was none.
    """

    rate: float
    limit: float
    total: float
    charges: int
    throttles: int
    capped: int
    throttled_ms: int
    debt_ms: float
    charged_ms: int | None


@mypyc_attr(allow_interpreted_subclasses=True)
class Sensors(Rows):
    """A table of `capacity` windowed rates. Not thread-safe.

    `samples` and `window_ms` are a broker's `quota.window.num` and `quota.window.size.seconds`.
    """

    def __init__(
        self,
        capacity: int,
        samples: int = 11,
        window_ms: int = 1000,
        max_throttle_ms: int = 20_000,
        max_debt_ms: int = 60_000,
    ) -> None:
        self._ring_end = _ROW_WORDS + (samples + 1) * _SAMPLE_WORDS
        # One additional row, for calculations that must not change a row.
        super().__init__(capacity, samples, window_ms, self._ring_end, scratch_rows=1)
        self.capped = 0
        """The number of throttles that were cut to the maximum, in all rows including closed ones."""
        self.set_caps(max_throttle_ms, max_debt_ms)
        self._expire_age_ms = samples * window_ms
        self._least_window_ms = max((samples - 1) * window_ms, 1)

    def set_caps(self, max_throttle_ms: int, max_debt_ms: int) -> None:
        """Set the limit of a single throttle time, and the limit of how far ahead a debt may reach."""
        if not 0 < max_throttle_ms <= MAX_THROTTLE_MS or max_debt_ms < 0:
            raise ValueError(f"expected a cap from 1 to 2^31-1 and a debt from 0, got {max_throttle_ms}, {max_debt_ms}")
        self.max_throttle_ms = max_throttle_ms
        self.max_debt_ms = max_debt_ms

    def like(self, max_throttle_ms: int, max_debt_ms: int) -> "Sensors":
        """A new table of the same size and windows, with other limits of throttle time and debt."""
        return Sensors(self.capacity, self.samples, self.window_ms, max_throttle_ms, max_debt_ms)

    def burst(self, limit: float) -> float:
        """How much may be recorded at one instant after a time without use."""
        return limit * (self.samples - 1) * (self.window_ms / 1000)

    def open(self, limit: float, now_ms: int) -> int:
        """The handle of a new row. Raises SensorsFull if no row is free."""
        handle = self._open_row(limit)
        row = handle & ROW_MASK
        self._ints[row + _QUIET_UNTIL] = _NEVER
        self._floats[row + _PAID_AT] = -inf
        self._ints[row + _OPENED] = now_ms
        return handle

    def overwrite(self, handle: int, copied: bytes) -> None:
        """See Rows. Raises ValueError also if the copy has no current sample where one may be."""
        words = memoryview(copied).cast("q")
        if len(words) == self._ring_end:
            at = words[_CURRENT]
            is_begin = _ROW_WORDS <= at < self._ring_end and (at - _ROW_WORDS) % _SAMPLE_WORDS == 0
            if not ((0 < words[_SAMPLES] <= self.samples + 1 and is_begin) or at == words[_SAMPLES] == 0):
                raise ValueError(f"expected a row, got one of {words[_SAMPLES]} samples with the current one at {at}")
        super().overwrite(handle, copied)

    # ------------------------------------------------------------------ charge

    def charge(self, handle: int, value: float, now_ms: int) -> int:
        """Record `value`. Returns for how many ms to throttle the client, 0 if the quota is not exceeded."""
        ints, floats = self._ints, self._floats
        row = handle & ROW_MASK
        if ints[row] != handle >> ROW_BITS:
            raise StaleSensor(handle)
        ints[row + _CHARGES] += 1
        if now_ms < ints[row + _QUIET_UNTIL]:
            sample = row + ints[row + _CURRENT]
            ints[sample + _LAST] = now_ms
            floats[sample + _SUM] = total = floats[sample + _SUM] + value
            if total < floats[row + _SAFE_SUM]:
                return 0
        else:
            self._record(row, value, now_ms)
            self._settle(row, now_ms)
        throttle_ms = self._throttle_ms(row, value, now_ms)
        if throttle_ms:
            ints[row + _THROTTLES] += 1
            ints[row + _THROTTLED_MS] += throttle_ms
        return throttle_ms

    def charge_unthrottled(self, handle: int, value: float, charges: int, now_ms: int) -> bool:
        """Record several charges, `value` in total, if certainly none is throttled. Otherwise do nothing: False.

        Equal bit for bit to single calls of `charge` if the values are whole numbers (below 2^53 in total).
        """
        ints, floats = self._ints, self._floats
        row = handle & ROW_MASK
        if ints[row] != handle >> ROW_BITS:
            raise StaleSensor(handle)
        if now_ms >= ints[row + _QUIET_UNTIL]:
            return False
        sample = row + ints[row + _CURRENT]
        total = floats[sample + _SUM] + value
        if total >= floats[row + _SAFE_SUM]:
            return False
        floats[sample + _SUM] = total
        ints[sample + _LAST] = now_ms
        ints[row + _CHARGES] += charges
        return True

    def charge_each(self, handle: int, uses: Iterable[tuple[int, float]]) -> int:
        """As `charge` for each (time in ms, value), up to the first that is throttled. Returns its throttle time, or 0.

        The next item is taken from `uses` after the one before is recorded. `uses` must not use the row itself.
        """
        ints, floats = self._ints, self._floats
        row = handle & ROW_MASK
        if ints[row] != handle >> ROW_BITS:
            raise StaleSensor(handle)
        charges, last_ms, quiet_until, throttle_ms = 0, _NEVER, ints[row + _QUIET_UNTIL], 0
        sample = row + ints[row + _CURRENT]
        total, safe = floats[sample + _SUM], floats[row + _SAFE_SUM]
        for now_ms, value in uses:
            charges += 1
            if now_ms < quiet_until:
                total += value
                last_ms = now_ms
                if total < safe:
                    continue
                ints[sample + _LAST] = now_ms
                floats[sample + _SUM] = total
            else:
                if last_ms != _NEVER:
                    ints[sample + _LAST] = last_ms
                    floats[sample + _SUM] = total
                self._record(row, value, now_ms)
                self._settle(row, now_ms)
            throttle_ms = self._throttle_ms(row, value, now_ms)
            last_ms = _NEVER
            if throttle_ms:
                ints[row + _THROTTLES] += 1
                ints[row + _THROTTLED_MS] += throttle_ms
                break
            quiet_until, sample = ints[row + _QUIET_UNTIL], row + ints[row + _CURRENT]
            total, safe = floats[sample + _SUM], floats[row + _SAFE_SUM]
        if last_ms != _NEVER:
            ints[sample + _LAST] = last_ms
            floats[sample + _SUM] = total
        ints[row + _CHARGES] += charges
        return throttle_ms

    def charge_if_within(self, handle: int, value: float, now_ms: int) -> int:
        """Charge `value`, and take it back at once if it exceeds the quota. Returns the throttle time in ms.

        A broker does this for a Fetch over quota, which gets a response without data. A debt is not changed.
        """
        row = self._row(handle)
        owed_at = self._floats[row + _PAID_AT]
        throttle_ms = self.charge(handle, value, now_ms)
        if throttle_ms:
            self.give_back(handle, value, now_ms)
            self._floats[row + _PAID_AT] = owed_at if owed_at > now_ms else -inf
            self._ints[row + _REFUSED_UNTIL] = now_ms + min(throttle_ms, self.window_ms)
        return throttle_ms

    def room(self, handle: int, now_ms: int) -> float:
        """How much may be recorded now within the limit, negative if it is exceeded. Changes nothing.

        The result may be too low for up to the time of a sample: it is then the amount that is certainly within the
        limit.
        """
        row = self._row(handle)
        floats = self._floats
        if now_ms < self._ints[row + _QUIET_UNTIL] and (safe := floats[row + _SAFE_SUM]) != -inf:
            return safe - floats[row + self._ints[row + _CURRENT] + _SUM]
        total, window_ms = self._measured(row, now_ms)
        return floats[row + LIMIT] * (window_ms / 1000) - total

    def note_wait(self, handle: int, wait_ms: int, now_ms: int) -> int:
        """Count a throttle of clients that wait for room before they use anything; return its time, which is cut to
        WAITS_MS where a larger limit is about to come."""
        row = self._row(handle)
        if self._floats[row + PACE]:
            wait_ms = min(wait_ms, WAITS_MS)
        self._ints[row + _THROTTLES] += 1
        self._ints[row + _THROTTLED_MS] += wait_ms
        self._press(row, now_ms + wait_ms)
        return wait_ms

    def owed_ms(self, handle: int, now_ms: int) -> int:
        """The throttle time of a charge of 0, or the rest of the wait for the latest refused one. Changes nothing."""
        copy, capped, pressed = self._copy(handle), self.capped, self.pressed
        self.pressed = None
        owed_ms = self.charge(copy, 0.0, now_ms)
        self.capped, self.pressed = capped, pressed
        row = self._row(handle)
        cap_ms = WAITS_MS if self._floats[row + PACE] else self.max_throttle_ms
        return max(owed_ms, min(self._ints[row + _REFUSED_UNTIL] - now_ms, cap_ms))

    def _copy(self, handle: int) -> int:
        """The handle of a copy of the row. There is one copy at a time, in the scratch row."""
        row, scratch = self._row(handle), self._ring_end * self.capacity + HEAD_WORDS
        self._ints[scratch : scratch + self._ring_end] = self._ints[row : row + self._ring_end]
        return self._ints[scratch + GENERATION] << ROW_BITS | scratch

    def give_back(self, handle: int, value: float, now_ms: int) -> None:
        """Take a charge back: record its negative, without checking the limit."""
        row = self._row(handle)
        # Within the current sample a smaller sum stays safe.
        if now_ms >= self._ints[row + _QUIET_UNTIL]:
            self._ints[row + _QUIET_UNTIL] = _NEVER
        self._record(row, -value, now_ms)
        if self._floats[row + _PAID_AT] > now_ms:
            self._floats[row + _PAID_AT] -= value / self._floats[row + LIMIT] * 1000

    def record(self, handle: int, value: float, now_ms: int) -> None:
        """Record `value` without checking the limit; the next charge finds what it exceeds."""
        self.give_back(handle, -value, now_ms)

    def set_limit(self, handle: int, limit: float, now_ms: int) -> None:
        """Use `limit` from the next charge on. Recorded use is kept; a debt of T ms becomes T * old / new ms."""
        row = self._row(handle)
        floats = self._floats
        debt_ms = floats[row + _PAID_AT] - now_ms
        if debt_ms > 0 and limit < UNLIMITED:
            rescaled_ms = debt_ms * (floats[row + LIMIT] / limit)
            floats[row + _PAID_AT] = now_ms + min(rescaled_ms, self.max_debt_ms)
        else:
            floats[row + _PAID_AT] = -inf
        floats[row + LIMIT] = limit
        self._ints[row + _QUIET_UNTIL] = _NEVER
        self._ints[row + _REFUSED_UNTIL] = 0

    def _record(self, row: int, value: float, now_ms: int) -> None:
        """Add `value` to the current sample, or to a new one if it is a window old. This expires nothing."""
        ints, floats = self._ints, self._floats
        current = ints[row + _CURRENT]
        if not current or now_ms - ints[row + current + _START] >= self.window_ms:
            if current:
                floats[row + _EARLIER] += floats[row + current + _SUM]
            current = self._next_sample(row, current, now_ms)
        sample = row + current
        ints[sample + _LAST] = now_ms
        floats[sample + _SUM] += value

    def _next_sample(self, row: int, current: int, now_ms: int) -> int:
        """Make the slot after `current` the current sample, empty it, and return its position."""
        ints = self._ints
        following = current + _SAMPLE_WORDS if current else _ROW_WORDS
        if following == self._ring_end:
            following = _ROW_WORDS
        end = _ROW_WORDS + ints[row + _SAMPLES] * _SAMPLE_WORDS
        if following == end:
            ints[row + _SAMPLES] += 1
        ints[row + _CURRENT] = following
        ints[row + following + _START] = ints[row + following + _LAST] = now_ms
        self._floats[row + following + _SUM] = 0.0
        return following

    # ----------------------------------------------------------------- measure

    def _settle(self, row: int, now_ms: int) -> None:
        """Empty expired samples, and find until which time and up to which sum a charge needs no exact calculation.

        Until the current sample ends or another one expires, only the sum of the current sample changes. The rate is
        then at most the sum of all positive samples divided by the shortest window possible until then. A sum of
        doubles never gets smaller when one of its terms gets larger, so leaving out the negative samples is safe in any
        order of addition.
        """
        ints, floats, current = self._ints, self._floats, self._ints[row + _CURRENT]
        first = row + _ROW_WORDS
        end = first + ints[row + _SAMPLES] * _SAMPLE_WORDS
        # Lists, because access to a word of a memoryview takes several times as long.
        starts, lasts = ints[first:end:_SAMPLE_WORDS].tolist(), ints[first + _LAST : end : _SAMPLE_WORDS].tolist()
        sums: list[float] = floats[first + _SUM : end : _SAMPLE_WORDS].tolist()  # type: ignore[assignment]
        expired_ms = now_ms - self._expire_age_ms
        if min(lasts) <= expired_ms:
            for i, last in enumerate(lasts):
                if last <= expired_ms:
                    sample = first + i * _SAMPLE_WORDS
                    ints[sample + _START] = ints[sample + _LAST] = starts[i] = lasts[i] = now_ms
                    floats[sample + _SUM] = sums[i] = 0
        sums[(current - _ROW_WORDS) // _SAMPLE_WORDS] = 0
        others = sum(sums) if min(sums) >= 0 else sum(of_sample for of_sample in sums if of_sample > 0)
        oldest_start = min(now_ms, min(starts))
        quiet_until = min(ints[row + current + _START] + self.window_ms, min(lasts) + self._expire_age_ms)
        least_window_ms = max(now_ms - oldest_start, self._least_window_ms)
        safe = floats[row + LIMIT] * (least_window_ms / 1000) * _SAFETY
        in_debt = floats[row + _PAID_AT] > now_ms
        ints[row + _QUIET_UNTIL] = quiet_until
        ints[row + _OLDEST_START] = oldest_start
        floats[row + _SAFE_SUM] = safe - others if others < safe and not in_debt else -inf

    def _throttle_ms(self, row: int, value: float, now_ms: int) -> int:
        """The throttle time after a recording: Kafka's, or that of the debt."""
        floats, total = self._floats, 0.0
        end = row + self._ring_end
        sums: list[float] = floats[row + _FIRST_SUM : end : _SAMPLE_WORDS].tolist()  # type: ignore[assignment]
        # Added one by one, as in Java: from Python 3.12 on sum() is more exact. Unused samples are 0.
        for of_sample in sums:
            total += of_sample
        window_ms = divisor_ms(now_ms - self._ints[row + _OLDEST_START], self.samples, self.window_ms)
        limit = floats[row + LIMIT]
        rate = total / (window_ms / 1000.0)
        delay_ms = 0 if rate <= limit else delay(rate, limit, window_ms)
        paid_at = floats[row + _PAID_AT]
        if not delay_ms and paid_at == -inf:
            return 0
        cap_ms = self._longest_ms(row, total, now_ms) if floats[row + PACE] else self.max_throttle_ms
        if delay_ms > cap_ms or paid_at != -inf:
            delay_ms = self._throttle_in_debt_ms(row, value, delay_ms, cap_ms, now_ms)
        if delay_ms:
            self._press(row, now_ms + delay_ms)
        return delay_ms

    def _throttle_in_debt_ms(self, row: int, value: float, delay_ms: int, cap_ms: int, now_ms: int) -> int:
        """The throttle time if Kafka's exceeds the maximum, or if there is a debt because an earlier one did.

        A charge in debt moves the end of the debt; waiting pays it. So all clients that share the row together get what
        the limit allows. The throttle time is never less than Kafka's, cut to the maximum.
        """
        floats = self._floats
        paid_at = floats[row + _PAID_AT]
        if paid_at > now_ms:
            paid_at += value / floats[row + LIMIT] * 1000
        if delay_ms > cap_ms:
            paid_at = max(paid_at, now_ms + delay_ms)
        paid_at = min(paid_at, now_ms + self.max_debt_ms)
        if paid_at > now_ms:
            floats[row + _PAID_AT] = paid_at
            floats[row + _SAFE_SUM] = -inf
        else:
            floats[row + _PAID_AT] = -inf
            self._ints[row + _QUIET_UNTIL] = _NEVER
        wanted_ms = max(delay_ms, ceil(paid_at - now_ms)) if paid_at > now_ms else delay_ms
        if wanted_ms > cap_ms:
            self._ints[row + _CAPPED] += 1
            self.capped += 1
            return cap_ms
        return wanted_ms

    def _longest_ms(self, row: int, total: float, now_ms: int) -> int:
        """What a throttle time is cut to while clients wait for a larger limit: WAITS_MS, or until what the window
        holds would have been used at their pace since its oldest sample."""
        pace = self._floats[row + PACE] * self._floats[row + LIMIT]
        paced_ms = total / pace * 1000 - (now_ms - self._ints[row + _OLDEST_START])
        return min(ceil(min(max(paced_ms, WAITS_MS), MAX_THROTTLE_MS)), self.max_throttle_ms)

    # ----------------------------------------------------------------- history

    def history(self, handle: int, now_ms: int) -> tuple[float, ...]:
        """What was recorded in the last N windows, in units by age in windows: index 0 is the last window.

        Use counts as even between the first and the last event of its sample. A debt that reaches further than the
        throttle time of that use is added at index 0, as use with the throttle time of the debt.
        """
        row = self._row(handle)
        by_age = self._by_age(row, now_ms)
        debt_ms = self._floats[row + _PAID_AT] - now_ms
        if debt_ms > 0:
            owed = self._floats[row + LIMIT] * ((self._least_window_ms + debt_ms) / 1000)
            by_age[0] += max(owed - sum(by_age), 0.0)
        return tuple(by_age)

    def scale(self, handle: int, factor: float, now_ms: int) -> None:
        """Multiply what the window holds, and a debt, by `factor`. Neither the limit nor `total` changes."""
        row, total = self._row(handle), self.total(handle)
        ints, floats = self._ints, self._floats
        for of_sample in range(row + _FIRST_SUM, row + self._ring_end, _SAMPLE_WORDS):
            floats[of_sample] *= factor
        if current := ints[row + _CURRENT]:
            # In two steps, so that the two add up to the same total to the last bit.
            floats[row + _EARLIER] = earlier = total - floats[row + current + _SUM]
            floats[row + current + _SUM] = total - earlier
        if (debt_ms := floats[row + _PAID_AT] - now_ms) > 0:
            floats[row + _PAID_AT] = now_ms + debt_ms * factor
        ints[row + _QUIET_UNTIL] = _NEVER

    def add_history(self, handle: int, by_age: Sequence[float], now_ms: int) -> None:
        """Add use of another row, as its `history`, to what the window holds. `total` does not change.

        The samples begin anew, one for each age that holds something: a throttle time after it may differ by up to two
        windows from that of a row which recorded all of it.
        """
        row = self._row(handle)
        held = self._by_age(row, now_ms)
        for age, units in enumerate(by_age[: self.samples]):
            held[age] += units
        total, used_ms = self.total(handle), self.idle_since_ms(handle)
        ints, floats, window_ms = self._ints, self._floats, self.window_ms
        sample = row + _ROW_WORDS
        for age in range(self.samples - 1, -1, -1):
            if held[age]:
                # Only a part of the oldest window is left, on average one half.
                before_ms = window_ms if age < self.samples - 1 else window_ms // 2
                ints[sample + _LAST] = now_ms - age * window_ms
                ints[sample + _START] = now_ms - age * window_ms - before_ms
                floats[sample + _SUM] = held[age]
                sample += _SAMPLE_WORDS
        # An empty sample is the current one, so that all of `total` is earlier.
        ints[row + _CURRENT] = sample - row
        ints[row + _SAMPLES] = (sample - row - _ROW_WORDS) // _SAMPLE_WORDS + 1
        ints[sample + _START], ints[sample + _LAST] = now_ms, used_ms
        for of_sample in range(sample + _SUM, row + self._ring_end, _SAMPLE_WORDS):
            floats[of_sample] = 0.0
        floats[row + _EARLIER] = total
        ints[row + _QUIET_UNTIL] = _NEVER

    def reshare(self, handle: int, limit: float, keep: float, gain: Sequence[float], now_ms: int) -> None:
        """Use `limit` from the next charge on, with the part `keep` of the history, and with `gain` in addition."""
        if keep != 1:
            self.scale(handle, keep, now_ms)
        if limit != self.limit(handle):
            self.set_limit(handle, limit, now_ms)
        if any(gain):
            self.add_history(handle, gain, now_ms)

    def _by_age(self, row: int, now_ms: int) -> list[float]:
        ints, floats, window_ms = self._ints, self._floats, self.window_ms
        by_age = [0.0] * self.samples
        first = row + _ROW_WORDS
        for sample in range(first, first + ints[row + _SAMPLES] * _SAMPLE_WORDS, _SAMPLE_WORDS):
            youngest_ms, oldest_ms = now_ms - ints[sample + _LAST], now_ms - ints[sample + _START]
            if youngest_ms >= self._expire_age_ms:
                continue
            units, span_ms = floats[sample + _SUM], max(oldest_ms - youngest_ms, 1)
            for age in range(youngest_ms // window_ms, oldest_ms // window_ms + 1):
                part_ms = min(oldest_ms, (age + 1) * window_ms) - max(youngest_ms, age * window_ms)
                part = part_ms / span_ms if oldest_ms > youngest_ms else 1.0
                by_age[min(age, self.samples - 1)] += units * part
        return by_age

    # -------------------------------------------------------------------- read

    def reading(self, handle: int, now_ms: int) -> SensorReading:
        """The content of the row at `now_ms`. Changes nothing."""
        row = self._row(handle)
        ints, floats = self._ints, self._floats
        current = ints[row + _CURRENT]
        return SensorReading(
            rate=self._rate(row, now_ms),
            limit=floats[row + LIMIT],
            total=self.total(handle),
            charges=ints[row + _CHARGES],
            throttles=ints[row + _THROTTLES],
            capped=ints[row + _CAPPED],
            throttled_ms=ints[row + _THROTTLED_MS],
            debt_ms=max(floats[row + _PAID_AT] - now_ms, 0.0),
            charged_ms=ints[row + current + _LAST] if current else None,
        )

    def total(self, handle: int) -> float:
        """Everything recorded less what was given back."""
        row = self._row(handle)
        current = self._ints[row + _CURRENT]
        return self._floats[row + _EARLIER] + (self._floats[row + current + _SUM] if current else 0.0)

    def mark(self, handle: int) -> tuple[float, int, int, float]:
        """The total, the number of charges, the time of the last use, the limit: one is another after each use."""
        row = self._row(handle)
        return self.total(handle), self._ints[row + _CHARGES], self.idle_since_ms(handle), self._floats[row + LIMIT]

    def idle_since_ms(self, handle: int) -> int:
        """Time of the last recording, or of the opening."""
        row = self._row(handle)
        current = self._ints[row + _CURRENT]
        return self._ints[row + current + _LAST] if current else self._ints[row + _OPENED]

    def _rate(self, row: int, now_ms: int) -> float:
        total, window_ms = self._measured(row, now_ms)
        return total / (window_ms / 1000.0)

    def _measured(self, row: int, now_ms: int) -> tuple[float, int]:
        """The sum of all samples that have not expired, and the number of ms to divide it by."""
        ints, floats = self._ints, self._floats
        oldest_start, total = now_ms, 0.0
        first = row + _ROW_WORDS
        for sample in range(first, first + ints[row + _SAMPLES] * _SAMPLE_WORDS, _SAMPLE_WORDS):
            if now_ms - ints[sample + _LAST] < self._expire_age_ms:
                oldest_start = min(oldest_start, ints[sample + _START])
                total += floats[sample + _SUM]
        return total, divisor_ms(now_ms - oldest_start, self.samples, self.window_ms)


def divisor_ms(elapsed_ms: int, samples: int, window_ms: int) -> int:
    """The number of ms to divide a total by, `elapsed_ms` after its oldest sample began.

    Until N-1 windows are complete, the missing ones are added. The present window counts with its elapsed part.
    """
    missing = samples - 1 - elapsed_ms // window_ms
    if missing > 0:
        elapsed_ms += missing * window_ms
    return max(elapsed_ms, 1)


def delay(rate: float, limit: float, window_ms: int) -> int:
    """Kafka's delay in ms for a rate over the limit. A limit of 0 bans.

    The delay is cut to MAX_THROTTLE_MS, where a broker would overflow.
    """
    if not limit:
        return MAX_THROTTLE_MS
    delay_ms = rounded((rate - limit) / limit * window_ms)
    return delay_ms if delay_ms < MAX_THROTTLE_MS else MAX_THROTTLE_MS


def rounded(value: float) -> int:
    """The nearest integer, as Java's Math.round: halves are rounded up, NaN becomes 0, the result is cut to 64 bits.

    Adding 0.5 first would be wrong for 0.49999999999999994.
    """
    if -(2.0**63) < value < 2.0**63:
        whole = floor(value)
        return whole + (value - whole >= 0.5)
    if isnan(value):
        return 0
    return 2**63 - 1 if value > 0 else -(2**63)
