"""Connections from usage records: attempts, those that were let in and those that came too fast, second by second.

A record's profile tells how many of a second were let in, when the first of them came, how many were held and for how
long in all. One that is held is not counted, and its client comes again when that is over. So in a second as many
attempts are made as it tells, one after the other, and the sensor says which of them are held; never are more let in,
or held, than were. At which pace they came is tried: the one counts that explains best for how long they were held up
to then. What is told is of a client that waits for one connection before it asks for the next.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from pipeline.simulate.meter import Meter
from pipeline.simulate.recorded import Event, Window
from pipeline.simulate.traced import HELD_MS
from quotas.records.trace import Operation

MOST = 200
"""More attempts that were let in within a second are taken together to so many; of those held no more are told."""

MOST_TRIED = 4000
"""When so many attempts of a second have been made its pace is not looked for any more: one try has 1,000, or some."""


class Pace(NamedTuple):
    """How attempts follow each other: `stretch` times what time there is by their number; behind a hold by `lag_ms`."""

    stretch: float
    lag_ms: int


_STRETCHES = (1.0, 0.93, 1.07, 0.85, 1.15, 0.7, 1.3, 0.5, 0.3, 0.0, 1.6, 2.2)
PACES = tuple(Pace(stretch, lag_ms) for stretch in _STRETCHES for lag_ms in (1, 4))
"""In the order in which they are tried."""

_LONG_AGO = -(2**62)
_LATEST_MS = 20_000
_LATER_MS = 20
_OFF_MS = 5
_GOOD_FIT = 0.01


class _Second(NamedTuple):
    """What was done in one second; the next one with any use, or hold, begins at `next_ms`."""

    at_ms: int
    used: float
    held: int
    held_ms: int
    next_ms: int | None = None

    @property
    def begin_ms(self) -> int:
        """When it began."""
        return self.at_ms - self.at_ms % 1000

    @property
    def number(self) -> int:
        """As how many attempts its use is told."""
        return min(round(self.used), MOST) or int(self.used > 0)

    def free_ms(self) -> float:
        """What holds leave of it, as far as it is told."""
        end_ms = until_ms = self.begin_ms + 1000
        if self.next_ms is not None and self.next_ms <= end_ms + self.held_ms + HELD_MS:
            until_ms = self.next_ms
        return float(min(max(until_ms - self.at_ms - self.held_ms, 0), end_ms - self.at_ms))


class _State(NamedTuple):
    """Where a telling stands; from `free_ms` on the client may try."""

    meter: bytes
    events: int
    free_ms: int
    reported_ms: int


def attempts(name: Hashable, windows: Sequence[Window], meter: Meter) -> list[Event]:
    """The attempts of the only client of a sensor, in their order; those with a throttle time were not let in."""
    telling = _Telling(name, meter)
    for second in _seconds(windows):
        telling.add(second)
    return telling.events


def _seconds(windows: Sequence[Window]) -> Iterator[_Second]:
    last: _Second | None = None
    for window in windows:
        for at_ms, used, held_ms, _, held, *_ in window.seconds():
            if last is not None:
                yield last._replace(next_ms=at_ms)
            if held_ms and not held:
                held = max(round(window.throttles * held_ms / max(window.throttled_ms, held_ms)), 1)
            last = _Second(at_ms, max(used, 0.0), min(held, MOST), held_ms)
    if last is not None:
        yield last


class _Telling:
    """One client, second by second."""

    def __init__(self, name: Hashable, meter: Meter) -> None:
        self.events: list[Event] = []
        self._name = name
        self._meter = meter
        self._pace = PACES[0]
        self._free_ms = _LONG_AGO
        self._reported_ms = self._recorded_ms = 0
        self._tried = 0

    def add(self, second: _Second) -> None:
        """One second more, at the pace that explains it best."""
        self._recorded_ms += second.held_ms
        good_ms = _OFF_MS + _GOOD_FIT * second.held_ms
        before = _State(self._meter.saved(), len(self.events), self._free_ms, self._reported_ms)
        best = last = self._pace
        best_ms = self._try(second, best)
        self._tried = 0
        for pace in PACES:
            if best_ms <= good_ms or self._tried > MOST_TRIED:
                break
            self._restore(before)
            off_ms, last = self._try(second, pace), pace
            if off_ms < best_ms:
                best, best_ms = pace, off_ms
        if last != best:
            self._restore(before)
            self._try(second, best)
        self._pace = best

    def _try(self, second: _Second, pace: Pace) -> int:
        """By how much the throttle times up to then are off, and how late after its second the last one was let in."""
        meter, left, held = self._meter, second.number, second.held
        value, step_ms = second.used / max(left, 1), max(second.free_ms() * pace.stretch / max(left, 1), 1)
        due_ms, late_ms = self._begins_ms(second, pace), 0
        while left or held:
            now_ms = int(due_ms)
            may_not_be = not held or not left or now_ms < second.at_ms
            before = meter.saved() if may_not_be else b""
            throttle_ms = meter.use(Operation.CONNECT, 1.0, now_ms)
            self._tried += 1
            if throttle_ms and held:
                held -= 1
                due_ms = self._hold(throttle_ms, now_ms) + pace.lag_ms
            elif throttle_ms and now_ms < second.at_ms + _LATEST_MS:
                meter.restore(before)
                due_ms = now_ms + max(throttle_ms, _LATER_MS)
            elif not left:
                meter.restore(before)
                break
            elif not throttle_ms and now_ms < second.at_ms:
                meter.restore(before)
                due_ms = second.at_ms
            else:
                self._let_in(value, 1.0 if throttle_ms else 0.0, now_ms)
                left -= 1
                due_ms = now_ms + step_ms
                late_ms = max(now_ms - second.begin_ms - 1000, 0)
        return abs(self._reported_ms - self._recorded_ms) + late_ms

    def _begins_ms(self, second: _Second, pace: Pace) -> float:
        """When the first one comes: before the first that is let in where a hold ends before that."""
        free_ms = self._free_ms
        if second.number and second.held and second.begin_ms - HELD_MS < free_ms < second.at_ms:
            return max(free_ms + pace.lag_ms, second.begin_ms)
        return max(second.at_ms, free_ms)

    def _hold(self, throttle_ms: int, now_ms: int) -> int:
        """Until when."""
        self._reported_ms += throttle_ms
        self._free_ms = now_ms + throttle_ms
        self.events.append(Event(self._name, self._name, 1, now_ms, 1.0, throttle_ms, 0))
        return self._free_ms

    def _let_in(self, value: float, missing: float, now_ms: int) -> None:
        """One that stands for as many as `value`; one of them is charged already, but for what is `missing` of that."""
        if value - 1 + missing:
            self._meter.use(Operation.CHARGE, value - 1 + missing, now_ms)
        self._free_ms = max(self._free_ms, now_ms)
        self.events.append(Event(self._name, self._name, 1, now_ms, value, 0, 0))

    def _restore(self, state: _State) -> None:
        self._meter.restore(state.meter)
        del self.events[state.events :]
        self._free_ms, self._reported_ms = state.free_ms, state.reported_ms
