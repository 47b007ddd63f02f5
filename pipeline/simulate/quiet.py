"""Which windows of a sensor are *quiet*: no request of them can be throttled, wherever in its second it comes.

What is in a sensor of N windows of w seconds came since its oldest sample began, less than (N+1) * w before, and it
divides that by as long, or by (N-1) * w at the least. So there is no throttle

- if what touches any N*w + 1 seconds of the clock, one behind the other, is below what the limit allows in (N-1) * w,
- and what touches any (N+1)*w + 1 is below what it allows in N * w.

A span of less than D whole seconds touches D+1 of them. A token bucket, which holds what its limit allows in N * w, is
never empty then, either. Fetches that wait for their turns have a bucket of their own. How much a window can have in k
of its seconds, a record tells: k times its peak at the most; and one without a profile is retold evenly, but for one
second that has the peak (see `recorded`). Both are lines, `base + k * slope`, and what sharers have is the sum of their
lines.
"""

from math import ceil, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_throttle.pipeline.simulate.candidate import Rules
from kafka_throttle.quotas.fetch_rooms import BURST_S, PIECE_S

SAFETY = 1 - 1e-6
"""Sums of doubles are only so exact."""

_STEPS = 32
"""More places of a span than these are looked at several at a time, with the most that any of them has."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Memory(NamedTuple):
    """How long a sensor of some rules remembers, and by how little it divides at the least; seconds."""

    span_s: float
    debt_s: float
    spans: tuple[tuple[int, float], ...]
    """So many seconds of the clock that are touched, and by how much is then divided at the least."""


_OF_ROOMS = Memory(2.0, 0.0, ((2, BURST_S - PIECE_S),))
"""That of Fetches that wait for their turns: if no two seconds have more than so much, no Fetch lacks its piece. So for
limits from 5 bytes/s: below that one byte is more than a piece."""


def memory_of(rules: Rules, quota_type: str) -> Memory:
    """That of sensors, or buckets, for this quota type."""
    if quota_type == "fetch" and rules.paces_fetches:
        return _OF_ROOMS
    if quota_type == "controller_mutation":
        samples, window_s = rules.bucket_samples, rules.bucket_window_ms / 1000
    else:
        samples, window_s = rules.samples, rules.window_ms / 1000
    debts = 0.0 if quota_type in ("request", "connection", "controller_mutation") else rules.max_debt_ms / 1000
    least_s, whole_s = max((samples - 1) * window_s, 1e-3), samples * window_s
    spans = ((ceil(whole_s) + 1, least_s), (ceil(whole_s + window_s) + 1, whole_s))
    return Memory(whole_s + 2 * window_s, debts, spans)


class Most(NamedTuple):
    """What windows can have in k of their seconds at the most: `used`, and no more than base + k * slope."""

    used: Floats
    base: Floats
    slope: Floats

    def of(self, seconds: Ints, which: slice) -> Floats:
        """In so many seconds of windows one behind the other."""
        line = self.base[which] + seconds * self.slope[which]
        within: Floats = np.where(seconds > 0, np.minimum(self.used[which], line), 0.0)
        return within


def line_of(used: float, peak: float, length_s: float, uneven: bool) -> tuple[float, float]:
    """Base and slope of one record."""
    seconds = max(floor(length_s), 1)
    if seconds == 1:
        return used, 0.0
    peak = min(max(peak, used / seconds), used)
    others = (used - peak) / (seconds - 1)
    return (0.0, peak) if uneven else (peak - others, others)


def loud_windows(begin_ms: Ints, end_ms: Ints, most: Most, limit: float, memory: Memory) -> NDArray[np.bool_]:
    """Of the windows of one sensor, in their order: in which a request might be throttled."""
    begin_s = begin_ms // 1000
    end_s = np.maximum(-(-end_ms // 1000), begin_s + 1)
    loud = np.zeros(len(begin_ms), dtype=np.bool_)
    for touched, divided_s in memory.spans:
        loud |= _most_that_ends_in(begin_s, end_s, most, touched) > limit * divided_s * SAFETY
    return loud


def _most_that_ends_in(begin_s: Ints, end_s: Ints, most: Most, touched: int) -> Floats:
    """For each window, the most in `touched` seconds the last of which is one of its own."""
    worst = np.zeros(len(begin_s))
    own_s = np.minimum(end_s - begin_s, touched)
    for first, last in _places(int(own_s.max(initial=0))):
        own = np.minimum(own_s, last)
        total = most.of(own, slice(None)) + _most_before(begin_s, end_s, most, begin_s + first - touched, own)
        worst = np.maximum(worst, np.where(own_s >= first, total, 0.0))
    return worst


def _most_before(begin_s: Ints, end_s: Ints, most: Most, from_s: Ints, own_s: Ints) -> Floats:
    """For each window, what earlier ones can have had between `from_s` and its own first `own_s` seconds."""
    total = np.zeros(len(begin_s))
    last_s = np.maximum.accumulate(end_s)
    for back in range(1, len(begin_s)):
        if not (last_s[:-back] > from_s[back:]).any():
            break
        until_s = np.minimum(end_s[:-back], begin_s[back:] + own_s[back:])
        total[back:] += most.of(until_s - np.maximum(begin_s[:-back], from_s[back:]), slice(None, -back))
    return total


def _places(seconds: int) -> list[tuple[int, int]]:
    """1 to `seconds`, from the first to the last of at most _STEPS parts."""
    parts = np.array_split(np.arange(1, seconds + 1), min(seconds, _STEPS) or 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]


def runs(begin_ms: Ints, end_ms: Ints, most: Most, used: Floats, limit: float, memory: Memory) -> Ints:
    """Of the windows of one sensor, in their order: the number of the run that each belongs to, -1 where none.

    `most` is what all sharers together can have, infinite where mutes were recorded; `used` what they used, both as
    charged. Windows of a lead-in belong to the run.
    """
    loud = loud_windows(begin_ms, end_ms, most, limit, memory)
    run = np.full(len(begin_ms), -1, dtype=np.int64)
    number, busy_until_ms, owed = -1, -(2**62), 0.0
    lead_ms = int(memory.span_s * 1000)
    after_ms = int((memory.span_s + memory.debt_s) * 1000)
    last_begin_ms = 0
    for i in np.flatnonzero(loud | (used > limit * (end_ms - begin_ms) / 1000)):
        begin = int(begin_ms[i])
        if busy_until_ms >= begin - lead_ms and number >= 0:
            owed = max(0.0, owed - limit * (begin - last_begin_ms) / 1000)
        else:
            number, owed = number + 1, 0.0
        owed += float(used[i])
        last_begin_ms = begin
        first = int(np.searchsorted(end_ms, begin - lead_ms, side="right"))
        busy_until_ms = int(end_ms[i]) + after_ms + int(1000 * owed / max(limit, 1e-9))
        last = int(np.searchsorted(begin_ms, busy_until_ms, side="left"))
        part = run[first:last]
        part[part < 0] = number
        run[i] = number
    return run
