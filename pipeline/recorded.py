"""From usage records to demand: how the use of a window may have come about, with recorded throttling taken out.

A record tells sums of a window (10 s), no times within it. Where nothing was throttled, the busiest second is taken to
be as its record says, and the rest even over the others. Where mutes were recorded, there are several SHAPES, of which
that one counts that explains the recorded throttle times best under the quotas that were in force.

There are as many lanes as it takes for the mutes that were recorded at the same time: five connections that are muted
all the time have 50 s of throttle times in 10 s.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from pipeline.meter import value_of
from pipeline.replay import Demand, Lane
from pipeline.traced import Client
from quotas.trace import Operation

MAX_REQUESTS = 200
"""More requests of a window are taken together to so many."""

GRAIN_S = 0.1
"""So much quota time one request stands for at least: smaller ones are taken together."""

MAX_LANES = 256
_OPERATIONS = {"controller_mutation": Operation.SPEND_STRICTLY, "connection": Operation.CONNECT}
_SMOOTH = 6
_SATURATED = 0.9
_STEADY = 0.5


class Window(NamedTuple):
    """What one record tells; `used` and `peak` are in its unit."""

    begin_ms: int
    end_ms: int
    used: float
    peak: float
    requests: int
    throttles: int
    throttled_ms: int

    @property
    def length_ms(self) -> int:
        """At least 1."""
        return max(self.end_ms - self.begin_ms, 1)


class Shape(NamedTuple):
    """How use comes about in a window with mutes.

    Without `bursts`: evenly over the time that was left beside the mutes, and the sooner, the more `haste` (0 to 1)
    there is: what was held had all been waiting when the window began. With them: in bursts of a busiest second each,
    mutes right behind them, in which the throttled requests come one throttle time earlier than they were recorded.
    What stands behind a window that was muted for the most part, and is so itself, comes so many windows `ahead`: it
    had been waiting for longer than a throttle.
    """

    bursts: bool = False
    haste: float = 0.0
    ahead: float = 0.0


EVEN = Shape()
SHAPES = (
    EVEN,
    Shape(haste=0.5),
    Shape(haste=0.9),
    Shape(haste=0.97),
    Shape(bursts=True),
    Shape(bursts=True, ahead=1.0),
    Shape(bursts=True, ahead=3.0),
    Shape(ahead=3.0),
)


def lanes_of(windows: Sequence[Window]) -> int:
    """How many connections were muted at the same time, at the most, so far as records tell."""
    most = 1.0
    for i, window in enumerate(windows):
        most = max(most, window.throttled_ms / (2 * window.length_ms))
        some = windows[max(0, i - _SMOOTH + 1) : i + 1]
        if len(some) == _SMOOTH:
            span_ms = max(window.end_ms - some[0].begin_ms, 1)
            most = max(most, sum(w.throttled_ms for w in some) / span_ms - 0.2)
    return min(ceil(most), MAX_LANES)


class _Mutes(NamedTuple):
    """For how long a lane was muted in a window, and whether mutes went on in the one before and the one behind."""

    muted_ms: float
    before: bool
    behind: bool


@dataclass(slots=True)
class RecordedClient:
    """The lanes of one client at one sensor of `limit` (as charged), and its demand, window by window."""

    client: Hashable
    quota_type: str
    windows: Sequence[Window]
    limit: float
    shape: Shape = EVEN
    kind: Client = Client.PACED
    lanes: list[Lane] = field(default_factory=list)
    taken: int = 0
    """Windows whose demand was given."""
    _turn: int = 0
    _left_ms: float = 0.0

    def __post_init__(self) -> None:
        self.lanes = [Lane(self.client) for _ in range(lanes_of(self.windows))]

    @property
    def waiting(self) -> int:
        """How many requests were given and have not been sent."""
        return sum(len(lane.demands) for lane in self.lanes)

    def next_window(self) -> Iterator[tuple[Lane, Demand]]:
        """The demand of the next window, in the order of its times."""
        window, mutes = self.windows[self.taken], self._mutes()
        self.taken += 1
        for demand in self._demands(window, mutes):
            self._turn = (self._turn + 1) % len(self.lanes)
            yield self.lanes[self._turn], demand

    @property
    def next_ms(self) -> float:
        """When the next window's demand may begin."""
        window = self.windows[self.taken]
        return window.begin_ms - self._ahead_ms(self.taken)

    def _ahead_ms(self, i: int) -> float:
        """How much sooner than in its own window the demand of one comes that had nothing but mutes before it."""
        if not self.shape.ahead or not i:
            return 0.0
        saturated = _STEADY * len(self.lanes)
        if any(w.throttled_ms < saturated * w.length_ms for w in self.windows[i - 1 : i + 1]):
            return 0.0
        return self.shape.ahead * self.windows[i].length_ms

    def _mutes(self) -> _Mutes:
        windows, i = self.windows, self.taken
        window = windows[i]
        earlier = windows[i - 1] if i else window
        later = windows[i + 1] if i + 1 < len(windows) else window
        if i:
            self._left_ms = max(0.0, self._left_ms - (window.begin_ms - earlier.end_ms))
        follows = i > 0 and earlier.throttled_ms > 0 and earlier.end_ms == window.begin_ms
        before = self._left_ms > 0 or follows
        wanted_ms = self._left_ms + window.throttled_ms / len(self.lanes)
        muted_ms = min(wanted_ms, float(window.length_ms))
        self._left_ms = wanted_ms - muted_ms
        goes_on = later is not window and later.throttled_ms > 0 and later.begin_ms == window.end_ms
        return _Mutes(muted_ms, before, self._left_ms > 0 or goes_on)

    def _demands(self, window: Window, mutes: _Mutes) -> list[Demand]:
        charged = value_of(self.quota_type, window.used)
        operation = _OPERATIONS.get(self.quota_type, Operation.CHARGE)
        number = self._number(window, charged, operation)
        value, lanes = charged / number, len(self.lanes)
        greedy = self.kind is Client.GREEDY and mutes.muted_ms > 0
        free_ms = (window.length_ms - mutes.muted_ms) * (1 - self.shape.haste)
        gap_ms = max(int(free_ms / number * lanes), 1)
        lag_ms = 0
        if mutes.muted_ms:
            lag_ms = gap_ms if not self.shape.bursts or mutes.muted_ms >= _SATURATED * window.length_ms else 1
        until_ms = window.begin_ms + int(mutes.muted_ms) if greedy else 0
        ahead_ms = int(self._ahead_ms(self.taken - 1))
        insists = operation != Operation.CHARGE
        return [
            Demand(at_ms - ahead_ms, value, at_ms, 1, lag_ms, operation, until_ms, gap_ms, insists)
            for at_ms in self._times(window, mutes, number)
        ]

    def _number(self, window: Window, charged: float, operation: str) -> int:
        if operation != Operation.CHARGE:
            return min(max(int(window.used), 1), max(window.requests, 1), MAX_REQUESTS)
        grains = ceil(charged / (self.limit * GRAIN_S)) if self.limit else MAX_REQUESTS
        return min(max(window.requests, 1), MAX_REQUESTS, max(grains, 1))

    def _times(self, window: Window, mutes: _Mutes, number: int) -> list[int]:
        if not mutes.muted_ms:
            return _with_peak(window, number)
        if self.shape.bursts:
            return _in_bursts(window, mutes, number)
        step_ms = (window.length_ms - mutes.muted_ms) * (1 - self.shape.haste) / number
        return [window.begin_ms + int(i * step_ms) for i in range(number)]


def _with_peak(window: Window, number: int) -> list[int]:
    """The busiest second begins somewhere, but always at the same place of the same window."""
    length_ms = window.length_ms
    share = min(window.peak / window.used, 1.0) if window.used > 0 else 0.0
    in_peak = min(number, round(number * share))
    peak_ms = min(1000, length_ms)
    elsewhere_ms = length_ms - peak_ms
    begin_ms = int(elsewhere_ms * (window.begin_ms / length_ms * 0.6180339887 % 1))
    rest = number - in_peak
    if elsewhere_ms <= 0 or not rest:
        return [window.begin_ms + begin_ms + i * peak_ms // number for i in range(number)]
    times = [window.begin_ms + begin_ms + i * peak_ms // in_peak for i in range(in_peak)]
    for i in range(rest):
        at_ms = i * elsewhere_ms // rest
        times.append(window.begin_ms + at_ms + (peak_ms if at_ms >= begin_ms else 0))
    return sorted(times)


def _in_bursts(window: Window, mutes: _Mutes, number: int) -> list[int]:
    length_ms, muted_ms = float(window.length_ms), mutes.muted_ms
    throttled = min(number, ceil(window.throttles * number / max(window.requests, 1)))
    single_ms = window.throttled_ms / window.throttles if window.throttles else 0.0
    if muted_ms >= _SATURATED * length_ms:
        return _whole(window, [i * length_ms / number - single_ms for i in range(number)])
    share = min(window.peak / window.used, 1.0) if window.used > 0 else 1.0
    bursts = 1 if mutes.before != mutes.behind else max(1, min(round(1 / max(share, 0.1)), throttled or 1))
    in_bursts = min(number - throttled, round(number * share) * bursts)
    cycle_ms, each_ms = length_ms / bursts, muted_ms / bursts
    ends = mutes.before and bursts == 1
    begin_ms = 0.0 if mutes.before else cycle_ms - each_ms if mutes.behind else (cycle_ms - each_ms) / 2
    times: list[float] = []
    for burst in range(bursts):
        onset_ms = burst * cycle_ms + begin_ms
        own = _part(throttled, burst, bursts)
        times += [onset_ms + i * each_ms / own - single_ms * (i > 0) for i in range(own)]
        burst_ms = min(onset_ms + muted_ms if ends else onset_ms, length_ms - 1)
        times += [burst_ms] * _part(in_bursts, burst, bursts)
    rest = number - throttled - in_bursts
    return _whole(window, times + [i * length_ms / rest for i in range(rest)])


def _part(number: int, which: int, of: int) -> int:
    """The share of one of so many."""
    return number * (which + 1) // of - number * which // of


def _whole(window: Window, times: list[float]) -> list[int]:
    return sorted(window.begin_ms + int(at_ms) for at_ms in times)
