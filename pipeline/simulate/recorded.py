"""From usage records to events: how the use of windows came about, as far as records tell, retold request by request.

A record's profile has, of each second with any use, when its first request came, how much was used and, if it was
throttled, by how long, how often, and how many requests it had: so use is known to the second. Of a Produce or Fetch
that was throttled it has time and size, too, if they were few. All others of a second are taken to be alike, and their
times are filled in, in one of several MANNERS. Each is charged to the proxy's own sensor with the limit that was in
force, and what comes of it mutes one of its client's connections; a request goes when it is due and a connection is
free. Second by second the manner counts that explains the recorded throttle times best. A replay with the limit that
was in force then is this once more.

There are as many connections as it takes for the mutes that were recorded at the same time. What a quota refuses and
has come again needs no manner. Mutations and connections came as long before they were let through as the second before
was throttled; records do not tell how many requests it were, so there are as many as throttles. A fetch that got no
data over quota was wanted as soon as its connection had had the one before, for as long as throttles tell.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, groupby, pairwise, repeat
from math import ceil, inf
from typing import NamedTuple

from pipeline.simulate.candidate import Rules
from pipeline.simulate.meter import Meter, longest_throttle_ms, value_of
from pipeline.simulate.replay import GAP_MS, Demand, Lane
from pipeline.simulate.traced import HELD_MS, Client
from quotas.records.trace import Operation
from quotas.records.usage_record import SecondOfUse, ThrottledUse, UsageRecord, read_profile

MAX_REQUESTS = 200
"""More requests of a window are taken together to so many."""

MOST_FOLD = 4
"""Of seconds that were throttled there are so many times as many where that many connections, or more, were muted."""

GRAIN_S = 0.01
COARSE_GRAIN_S = 0.1
"""So much quota time one request stands for at least, where mutes were recorded and where none were: smaller ones are
taken together.
"""

MAX_LANES = 256

REFUSED = {
    "controller_mutation": Operation.SPEND_STRICTLY,
    "connection": Operation.CONNECT,
    "fetch": Operation.CHARGE_IF_WITHIN,
}
"""How what is refused, and not held, is charged; all else is held. A fetch that is refused gets an empty response."""

OVERDRAWN = {"controller_mutation": Operation.SPEND, "fetch": Operation.CHARGE}
"""How what was let through is charged where it was not refused but throttled after it: mutations of earlier versions,
fetches that are delivered.
"""

UNCOUNTED = frozenset({"controller_mutation", "connection"})
"""Of these a second does not tell how many requests were let through."""

_SMOOTH = 6
_LEAST_MUTED_MS = 500
_LAG_MS = 1
_ALWAYS = 0.8
_LONG_AGO = -(2**62)
_FOREVER = 2**62
_OFF_MS = 5
_GOOD_FIT = 0.01
_GOOD_SUM = 0.002
_LEAST_SHARE = 0.05
_LEAST_LEFT = 1e-9


class Window(NamedTuple):
    """What one record tells; `used` and `peak` are in its unit."""

    begin_ms: int
    end_ms: int
    used: float
    peak: float
    requests: int
    throttles: int
    throttled_ms: int
    muted_ms: int = 0
    profile: str = ""

    @classmethod
    def of(cls, record: UsageRecord) -> "Window":
        """What a record tells."""
        return cls(*(getattr(record, name) for name in cls._fields))

    @property
    def length_ms(self) -> int:
        """At least 1."""
        return max(self.end_ms - self.begin_ms, 1)

    def seconds(self) -> list[SecondOfUse]:
        """As the profile has them, in ms since 1970; without one the busiest begins somewhere, the others are even."""
        reported = [self._since_1970(second) for second in read_profile(self.profile)]
        return sorted(reported) if reported else self._evenly()

    def _since_1970(self, second: SecondOfUse) -> SecondOfUse:
        reported = tuple(ThrottledUse(self.begin_ms + at_ms, used) for at_ms, used in second.reported)
        return second._replace(at_ms=self.begin_ms + second.at_ms, reported=reported)

    def _evenly(self) -> list[SecondOfUse]:
        number = max(self.length_ms // 1000, 1)
        busiest = int(number * (self.begin_ms / self.length_ms * 0.6180339887 % 1))
        peak = self.used if number == 1 else min(max(self.peak, self.used / number), self.used)
        others = (self.used - peak) / max(number - 1, 1)
        muted_ms = self.throttled_ms // number
        return [
            SecondOfUse(self.begin_ms + i * 1000, peak if i == busiest else others, muted_ms) for i in range(number)
        ]


def lanes_of(windows: Sequence[Window]) -> int:
    """How many connections were muted at the same time, so far as records tell."""
    most = 1.0
    for i, window in enumerate(windows):
        if not window.throttles:
            continue
        some = windows[max(0, i - _SMOOTH + 1) : i + 1]
        throttled_ms, muted_ms = sum(w.throttled_ms for w in some), sum(w.muted_ms for w in some)
        if muted_ms > _LEAST_MUTED_MS:
            most = max(most, throttled_ms / muted_ms - 0.3)
        elif not muted_ms and len(some) == _SMOOTH:
            most = max(most, throttled_ms / max(window.end_ms - some[0].begin_ms, 1) - 0.2)
    return min(ceil(most), MAX_LANES)


class Event(NamedTuple):
    """One request, retold: whose, in which lane, which stands for how many connections, and what came of it.

    `refused_ms` is how long before its time it was refused; what was `let_through` was throttled after that.
    """

    client: Hashable
    lane: Hashable
    lanes: int
    at_ms: int
    value: float
    throttle_ms: int
    refused_ms: int
    let_through: bool = False


_Request = tuple[int, float, Hashable, int, int]
"""When it is due, its value, its client, how long before that it was refused, and how long its connection rests when
the mute that it brought is over: a bare tuple, because most are made only to be tried.
"""


class Order(Enum):
    """Which requests of a second were throttled: any, the last ones, or the first ones."""

    ANY = "any"
    LAST = "last"
    FIRST = "first"


class Manner(NamedTuple):
    """How requests came within a second.

    `haste`: 0 is spread over the second, 1 over what mutes leave of it, 2 is at once. `restful`: a connection takes
    time for each request, and so behind each mute: what mutes leave of the second, by its requests. `late_ms`: the last
    request comes so much later. In an `order`, those that were throttled are as large as it takes for that, but for
    `jumps` windows that the sensor forgot meanwhile. `by_told`: those that are told came at their times, and the others
    evenly while a connection was free; nothing else counts then, and it only does where any are told.
    """

    haste: float = 1.0
    restful: bool = False
    late_ms: int = 0
    order: Order = Order.ANY
    jumps: int = 0
    by_told: bool = False


MANNERS = (
    Manner(),
    Manner(order=Order.LAST),
    Manner(order=Order.LAST, jumps=1),
    Manner(order=Order.FIRST),
    Manner(late_ms=2),
    Manner(restful=True),
    Manner(order=Order.LAST, late_ms=10),
    Manner(late_ms=10),
    Manner(late_ms=30),
    Manner(late_ms=60),
    Manner(0.0),
    Manner(2.0),
    Manner(0.5),
    Manner(1.5),
    Manner(0.5, restful=True),
    Manner(2.0, restful=True),
    Manner(0.25),
    Manner(0.75),
)
"""In the order in which they are tried."""

PLAIN_MANNERS = tuple(manner for manner in MANNERS if manner == Manner(manner.haste))
"""For clients that share a sensor: all have the same."""

REPORTED_MANNERS = (Manner(by_told=True),)
"""For seconds that tell what was throttled, before any others."""

SPREAD = Manner(0.0)
"""That of requests that nothing held."""


class _Portion(NamedTuple):
    """What a client did in one second, in how many requests, and where it belongs."""

    client: "_Client"
    second: SecondOfUse
    value: float
    number: int
    end_ms: int
    next_ms: int | None
    refused_ms: int

    @property
    def wall_s(self) -> int:
        """Which second it is, since 1970."""
        return self.second.at_ms // 1000

    def requests(self, manner: Manner, last_ms: int) -> list[_Request]:
        """In their order; the last one before them came at `last_ms`."""
        client, number = self.client, self.number
        if not number:
            return []
        rest_ms = min(int(self._unmuted_ms() / number), HELD_MS) if manner.restful else 0
        longest_ms = self.refused_ms // number
        if manner.by_told and self.second.reported:
            return self._around_reported()
        times_ms, values = self._uses(manner)
        if rest_ms:
            times_ms = [at_ms + rest_ms for at_ms in times_ms]
        times_ms[-1] += manner.late_ms
        refused_ms: Iterable[int] = repeat(0, len(times_ms))
        if longest_ms:
            gaps_ms = (at_ms - before_ms for before_ms, at_ms in pairwise([last_ms, *times_ms]))
            refused_ms = [min(longest_ms, max(gap_ms, 0)) for gap_ms in gaps_ms]
        return list(zip(times_ms, values, repeat(client.name), refused_ms, repeat(max(rest_ms, _LAG_MS)), strict=False))

    def _around_reported(self) -> list[_Request]:
        """As `requests`, of a second that tells of those that were throttled."""
        reported = self._reported()
        left = self.value - sum(value for _, value in reported)
        number = max(self.number - len(reported), 1) if left > _LEAST_LEFT * self.value else 0
        stretches = self._stretches(reported) or [(self.second.at_ms, self.second.at_ms + 1.0)]
        step_ms = sum(until_ms - from_ms for from_ms, until_ms in stretches) / max(number, 1)
        uses: list[tuple[int, float]] = []
        waiting, done, passed_ms = deque(reported), 0, 0.0
        for from_ms, until_ms in stretches:
            while waiting and waiting[0][0] <= from_ms:
                uses.append(waiting.popleft())
            passed_ms += until_ms - from_ms
            those = min(round(passed_ms / step_ms), number) - done
            for i in range(those):
                uses.append((int(from_ms + (i + 0.5) / those * (until_ms - from_ms)), left / number))
            done += those
        uses += waiting
        return [(at_ms, value, self.client.name, 0, _LAG_MS) for at_ms, value in uses]

    def _reported(self) -> list[tuple[int, float]]:
        """When each that is told was charged, and its value: within the second, and what was used in it."""
        second, quota_type = self.second, self.client.quota_type
        reported = [
            (min(max(at_ms, second.at_ms), self.end_ms), min(value_of(quota_type, used), self.value))
            for at_ms, used in second.reported
        ]
        in_reported = sum(value for _, value in reported)
        if in_reported > self.value:
            reported = [(at_ms, value * self.value / in_reported) for at_ms, value in reported]
        return sorted(reported)

    def _stretches(self, reported: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
        """From when to when a connection was free, so far as that is known; each ends where one of these begins."""
        second, in_reported = self.second, sum(value for _, value in reported) or 1.0
        paid = max(second.throttles - len(reported), 0)
        free = max(self.client.lanes - paid, 1)
        reported_ms = second.throttled_ms * len(reported) / max(second.throttles, len(reported), 1)
        changes: list[tuple[float, int]] = [(second.at_ms, 0), (self.end_ms, 0)]
        for at_ms, value in reported:
            changes += [(at_ms, -1), (min(at_ms + reported_ms * value / in_reported, self.end_ms), 1)]
        stretches = []
        for (from_ms, change), (until_ms, _) in pairwise(sorted(changes)):
            free += change
            if free > 0 and until_ms > from_ms:
                stretches.append((from_ms, until_ms))
        return stretches

    def spread(self) -> list[tuple[int, float]]:
        """As `requests` in the manner SPREAD, each with its time and value, of a second in which nothing was held."""
        number, at_ms = self.number, self.second.at_ms
        if number < 2:
            return [(at_ms, self.value)] if number else []
        value, step_ms = self.value / number, max(self.end_ms - at_ms, 1) / number
        return [(at_ms + int(i * step_ms), value) for i in range(number)]

    def _uses(self, manner: Manner) -> tuple[list[int], list[float]]:
        """When each is due, and their values."""
        number, at_ms, client = self.number, self.second.at_ms, self.client
        throttled = min(self._throttled(), number) if manner.order is not Order.ANY else 0
        if not throttled:
            step_ms = self._step_ms(manner.haste)
            return [at_ms + int(i * step_ms) for i in range(number)], [self.value / number] * number
        unmuted_ms, free = self._unmuted_ms(), number - throttled
        mutes_ms = self._mutes_ms(throttled, manner.jumps)
        wanted = sum(mutes_ms) / 1000 * client.live_per_s
        of_throttled = self.value if not free else min(wanted, self.value * (1 - free / number / 2))
        each = [of_throttled * ms / max(sum(mutes_ms), 1e-9) for ms in mutes_ms]
        of_free = (self.value - of_throttled) / max(free, 1)
        step_ms = unmuted_ms / max(free, 1)
        if manner.order is Order.LAST:
            times_ms = [at_ms + int(i * step_ms) for i in range(free)]
            return times_ms + [at_ms + int(unmuted_ms) if free else at_ms] * throttled, [of_free] * free + each
        begin_ms = at_ms + min(int(self._muted_ms()), 999)
        times_ms = [at_ms] * throttled + [begin_ms + int(i * step_ms) for i in range(free)]
        return times_ms, each + [of_free] * free

    def _mutes_ms(self, number: int, jumps: int) -> list[float]:
        """How long each of so many mutes was, as far as that is due to what was used. The last one was long enough to
        reach the next second.
        """
        muted_ms, jumped_ms = self._muted_ms(), jumps * self.client.window_ms
        if muted_ms <= jumped_ms:
            jumped_ms = 0
        each_ms = (muted_ms - jumped_ms) / number
        last_ms = each_ms + jumped_ms
        if number > 1 and self.next_ms is not None and self._goes_on():
            least_ms = min(self.next_ms - self.end_ms, muted_ms)
            if least_ms > last_ms:
                last_ms = min((least_ms + muted_ms) / 2, self.client.longest_ms)
        others_ms = (muted_ms - last_ms) / max(number - 1, 1)
        least_ms = _LEAST_SHARE * each_ms
        return [max(others_ms, least_ms)] * (number - 1) + [max(last_ms - jumped_ms, least_ms)]

    def _throttled(self) -> int:
        """How many of them were throttled, as far as that is known."""
        second = self.second
        if not second.requests:
            return 0
        throttled = max(round(self.number * second.throttles / second.requests), 1)
        return max(throttled, ceil(second.throttled_ms / self.client.longest_ms))

    def _muted_ms(self) -> float:
        """For how long each connection was muted."""
        return self.second.throttled_ms / self.client.lanes

    def _goes_on(self) -> bool:
        """Whether the last mute went on into the next second."""
        return self.next_ms is not None and self.next_ms <= self.end_ms + self._muted_ms() + HELD_MS

    def _unmuted_ms(self) -> float:
        """For how long requests could come."""
        begin_ms, end_ms = self.second.at_ms, self.end_ms
        until_ms = self.next_ms if self.next_ms is not None and self._goes_on() else end_ms
        return min(max(until_ms - begin_ms - self._muted_ms(), 0.0), max(end_ms - begin_ms, 1))

    def _step_ms(self, haste: float) -> float:
        """From one to the next. What brings a mute that goes on into the next second comes at the end."""
        whole_ms, unmuted_ms = max(self.end_ms - self.second.at_ms, 1), self._unmuted_ms()
        span_ms = whole_ms * (1 - haste) + unmuted_ms * haste if haste <= 1 else unmuted_ms * (2 - haste)
        is_last_muted = self.number > 1 and self.second.throttled_ms > 0 and self._goes_on()
        return min(span_ms, whole_ms - 1) / (self.number - 1) if is_last_muted else span_ms / max(self.number, 1)


@dataclass(frozen=True, slots=True)
class _Client:
    """One client, and how its use is to be told; no throttle that it was told was longer than `longest_ms`."""

    name: Hashable
    windows: Sequence[Window]
    lanes: int
    quota_type: str
    per_s: float
    live_per_s: float
    window_ms: int
    longest_ms: int
    refuses: bool = False

    @classmethod
    def of(
        cls,
        name: Hashable,
        windows: Sequence[Window],
        rules: Rules,
        quota_type: str,
        limit: float | None,
        per_s: float,
        refuses: bool = True,
    ) -> "_Client":
        """As its windows tell; `limit` was in force."""
        lanes, longest_ms = lanes_of(windows), longest_throttle_ms(rules, quota_type)
        live_per_s, refuses = limit or per_s, refuses and quota_type in REFUSED
        return cls(name, windows, lanes, quota_type, per_s, live_per_s, rules.window_ms, longest_ms, refuses)

    @property
    def never_stops(self) -> bool:
        """Whether about all of its connections are muted about all the time."""
        throttled_ms = sum(window.throttled_ms for window in self.windows)
        return throttled_ms > _ALWAYS * self.lanes * sum(window.length_ms for window in self.windows)

    def portions(self) -> Iterator[_Portion]:
        """All of its seconds with any use, or throttle, in their order."""
        refused_ms, last = 0, None
        for window in self.windows:
            seconds = window.seconds()
            each, least = self._each(window, seconds), self._least(window, seconds)
            for second in seconds:
                if last is not None:
                    yield last._replace(next_ms=second.at_ms)
                value = value_of(self.quota_type, second.used)
                number = self._number(value, each, least, second)
                end_ms = min(_end_ms(second), window.end_ms)
                last = _Portion(self, second, value, number, end_ms, None, refused_ms)
                if self.refuses:
                    refused_ms = second.throttled_ms + (0 if number else refused_ms)
        if last is not None:
            yield last

    def _refused_in(self, second: SecondOfUse) -> int:
        return second.throttles if self.refuses else 0

    def _least(self, window: Window, seconds: Sequence[SecondOfUse]) -> tuple[float, float]:
        """For how much use, as the sensor counts it, one request stands at least: of a second that tells how many they
        were, and of any other.
        """
        if self.quota_type in UNCOUNTED:
            return 0.0, 0.0
        grain = self.per_s * (GRAIN_S if window.throttles else COARSE_GRAIN_S)
        reported = value_of(self.quota_type, sum(second.used for second in seconds if second.requests))
        most = MAX_REQUESTS * min(self.lanes, MOST_FOLD)
        return max(grain, reported / most), max(grain, value_of(self.quota_type, window.used) / MAX_REQUESTS)

    def _each(self, window: Window, seconds: Sequence[SecondOfUse]) -> float:
        """What a request is worth where its second does not tell how many they were, as the sensor counts it."""
        if self.quota_type in UNCOUNTED:
            number = min(max(int(window.used), 1), window.throttles or MAX_REQUESTS, MAX_REQUESTS)
            return value_of(self.quota_type, window.used) / number
        reported = [second for second in seconds if second.requests]
        used = window.used - sum(second.used for second in reported)
        requests = window.requests - sum(second.requests for second in reported)
        return value_of(self.quota_type, max(used, 0.0)) / max(requests, 1)

    def _number(self, value: float, each: float, least: tuple[float, float], second: SecondOfUse) -> int:
        """As how many requests the use of a second is told: as many as it were, or as matter; enough to be throttled
        for as long as it was.
        """
        if value <= 0:
            return 0
        if second.requests and self.quota_type not in UNCOUNTED:
            requests = max(second.requests - self._refused_in(second), 1)
            number = min(requests, ceil(value / least[0]) if least[0] > 0 else MAX_REQUESTS)
        else:
            worth = max(each, least[1])
            number = round(min(value / worth, MAX_REQUESTS)) if worth > 0 else 1
        throttled = 1 if self.refuses else ceil(second.throttled_ms / self.longest_ms)
        return min(max(number, throttled, 1), MAX_REQUESTS)


def _end_ms(second: SecondOfUse) -> int:
    return second.at_ms - second.at_ms % 1000 + 1000


_Reported = tuple[Hashable, Hashable, int, int, float, int, int, bool]


@dataclass(slots=True)
class _Story:
    """What has been told so far, and on which sensor.

    An event is as `Event` has it, but a bare tuple, because most are only tried.
    """

    meter: Meter
    events: list[_Reported] = field(default_factory=list)


_Saved = tuple[list[_Request], list[int], int, int]


class _Sender:
    """Connections that take requests of one queue; `free` is from when on each may send, a heap. `reported_ms` is for
    how long they were throttled so far, `recorded_ms` for how long that was live.
    """

    __slots__ = (
        "_last_ms",
        "_lets",
        "_per_s",
        "_queue",
        "_rest_ms",
        "_story",
        "_use_each",
        "clients",
        "free",
        "lane",
        "number",
        "recorded_ms",
        "reported_ms",
    )

    def __init__(self, number: int, clients: Sequence[_Client], story: _Story) -> None:
        self.number = number
        self.clients = clients
        quota_type = clients[0].quota_type
        self.lane = clients[0].name
        self.free = [_LONG_AGO] * sum(client.lanes for client in clients)
        self.recorded_ms = self.reported_ms = 0
        self._story = story
        self._queue: deque[_Request] = deque()
        self._use_each = story.meter.using(OVERDRAWN.get(quota_type, Operation.CHARGE))
        self._lets = quota_type in OVERDRAWN
        self._per_s = clients[0].live_per_s
        self._last_ms = _LONG_AGO
        self._rest_ms = 0

    @property
    def off_ms(self) -> int:
        """By how much the throttle time is off."""
        return abs(self.reported_ms - self.recorded_ms)

    @property
    def over_ms(self) -> int:
        """By how much it is too long, which more throttles can only make worse."""
        return max(self.reported_ms - self.recorded_ms, 0)

    def saved(self) -> _Saved:
        """As things stand."""
        return list(self._queue), list(self.free), self._last_ms, self.reported_ms

    def restore(self, saved: _Saved) -> None:
        """As things stood."""
        self._queue = deque(saved[0])
        self.free, self._last_ms, self.reported_ms = list(saved[1]), saved[2], saved[3]

    def requests(self, portions: Sequence[_Portion], manner: Manner) -> list[_Request]:
        """What was done in one second, as it is sent in this manner."""
        if len(portions) == 1:
            return portions[0].requests(manner, self._last_ms)
        found = (portion.requests(manner, self._last_ms) for portion in portions)
        return sorted(chain(*found), key=lambda request: request[0])

    def add(self, requests: Sequence[_Request]) -> None:
        """Have these sent, behind what waits."""
        self._queue += requests
        if requests:
            self._last_ms = requests[-1][0]

    def is_foretold(self, requests: Sequence[_Request], sent: Sequence[_Reported], most_ms: float) -> bool:
        """Whether these would be sent, to the last one, as others were that came as things stand; or would be until for
        `most_ms`, or longer, more was throttled than should have been.
        """
        free, most_ms = list(self.free), most_ms + self.recorded_ms - self.reported_ms
        wanted = chain(self._queue, requests)
        for reported, (due_ms, value, _, _, rest_ms) in zip(sent, wanted, strict=False):
            _, _, _, at_ms, its_value, throttle_ms, _, _ = reported
            if value != its_value or max(due_ms, free[0]) != at_ms:
                return False
            if throttle_ms:
                heapreplace(free, at_ms + throttle_ms + rest_ms)
                most_ms -= throttle_ms
                if most_ms <= 0:
                    return True
        return next(wanted, None) is None

    def next_ms(self) -> int:
        """When the next request goes; _FOREVER when there is none."""
        return max(self._queue[0][0], self.free[0]) if self._queue else _FOREVER

    def late_ms(self, end_ms: int) -> float:
        """How long after `end_ms` the last that waits will be sent, by what the quota lets go in a second."""
        if not self._queue:
            return 0.0
        waits_ms = sum(request[1] for request in self._queue) / self._per_s * 1000 if self._per_s > 0 else 0.0
        return max(self.free[0] - end_ms, 0) + waits_ms / len(self.free)

    def go_on(self, until_ms: int, most_ms: float) -> int:
        """Send all whose turn is before `until_ms`; when the next one's is. Or until for `most_ms`, or longer, more was
        throttled than should have been.
        """
        use_each, most_ms, sends = self._use_each, most_ms + self.recorded_ms, self._sends(until_ms)
        while throttle_ms := use_each(sends):
            self._mute(throttle_ms)
            if self.reported_ms >= most_ms:
                return until_ms
        return self.next_ms()

    def _sends(self, until_ms: int) -> Iterator[tuple[int, float]]:
        """When each is sent before `until_ms`, and its value."""
        queue, free, events = self._queue, self.free, self._story.events
        lane, lanes, lets = self.lane, len(free), self._lets
        while queue:
            at_ms, value, client, refused_ms, self._rest_ms = queue[0]
            if at_ms < free[0]:
                at_ms = free[0]
            if at_ms >= until_ms:
                return
            queue.popleft()
            events.append((client, lane, lanes, at_ms, value, 0, refused_ms, lets))
            yield at_ms, value

    def _mute(self, throttle_ms: int) -> None:
        """What was sent last was throttled."""
        story = self._story
        client, lane, lanes, at_ms, value, _, refused_ms, lets = story.events[-1]
        story.events[-1] = (client, lane, lanes, at_ms, value, throttle_ms, refused_ms, lets)
        self.reported_ms += throttle_ms
        heapreplace(self.free, at_ms + throttle_ms + self._rest_ms)


class _State(NamedTuple):
    """Where a retelling stands, and those of its senders that may have something to do in a second."""

    senders: list[tuple[_Sender, _Saved]]
    meter: bytes
    events: int


_Since = tuple[_State, list[_Reported]]
"""Where a retelling stands, and what it has told."""

_Second = Mapping[_Sender, Sequence[_Portion]]
"""What was done in one second, by those who did it."""


class _Retelling:
    """All who shared a sensor, second by second. Of the manners in which a second's requests may have come the one
    counts that explains best for how long each was throttled up to then.
    """

    def __init__(self, clients: Sequence[_Client], meter: Meter) -> None:
        self._story = _Story(meter)
        senders = [_Sender(number, group, self._story) for number, group in enumerate(_groups(clients))]
        self._sender_of = {id(client): sender for sender in senders for client in sender.clients}
        self._clients = clients
        self._manners = _manners(clients)
        self._last = [its[0] for its in self._manners]
        self._busy: list[_Sender] = []
        """Those who have something left to do."""

    def run(self) -> list[Event]:
        """All of it."""
        for wall_s, portions in _by_second(self._clients):
            self._go_until(self._busy, wall_s * 1000)
            own: dict[_Sender, list[_Portion]] = {}
            for portion in portions:
                sender = self._sender_of[id(portion.client)]
                own.setdefault(sender, []).append(portion)
                sender.recorded_ms += portion.second.throttled_ms
            self._tell(own, [*own, *(one for one in self._busy if one not in own)], wall_s * 1000 + 1000)
        self._go_until(self._busy, _FOREVER)
        return list(map(tuple.__new__, repeat(Event), self._story.events))

    def _tell(self, own: _Second, involved: Sequence[_Sender], end_ms: int) -> None:
        recorded_ms = sum(portion.second.throttled_ms for portions in own.values() for portion in portions)
        in_all_ms = sum(sender.recorded_ms for sender in involved)
        good_ms = _OFF_MS + _GOOD_FIT * recorded_ms + _GOOD_SUM * in_all_ms
        reported_ms = sum(sender.reported_ms for sender in involved)
        is_reported = any(portion.second.reported for portions in own.values() for portion in portions)
        manner, manners = self._last[is_reported], self._manners[is_reported]
        before, requests = self._state(involved), _requests(own, manner)
        off_ms = self._try(own, requests, involved, end_ms)
        nothing = not recorded_ms and sum(sender.reported_ms for sender in involved) == reported_ms
        if off_ms > good_ms and not nothing:
            best = self._best(own, manners, manner, requests, before, end_ms, off_ms, good_ms)
            self._last[best.by_told] = best
        self._busy = [sender for sender in involved if sender.next_ms() < _FOREVER]

    def _best(
        self,
        own: _Second,
        manners: Sequence[Manner],
        best: Manner,
        requests: list[list[_Request]],
        before: _State,
        end_ms: int,
        best_off_ms: float,
        good_ms: float,
    ) -> Manner:
        """Try all, and have done what was best. What is `best` so far has been tried, as `requests`; many manners come
        to the same, or what they send does.
        """
        involved = [sender for sender, _ in before.senders]
        reported = self._reported_since(before)
        tried, sent = [requests], [reported[1]]
        self._restore(before)
        least_ms = sum(sender.over_ms for sender in involved)
        for manner in manners:
            if least_ms >= best_off_ms:
                break
            requests = _requests(own, manner)
            if requests in tried or self._is_foretold(requests, sent, involved, best_off_ms):
                continue
            off_ms = self._try(own, requests, involved, end_ms, best_off_ms)
            tried.append(requests)
            sent.append(self._story.events[before.events :])
            if off_ms < best_off_ms:
                best, best_off_ms = manner, off_ms
                if off_ms <= good_ms:
                    return best
                reported = self._reported_since(before)
            self._restore(before)
        self._tell_again(reported)
        return best

    def _is_foretold(
        self,
        requests: list[list[_Request]],
        sent: Sequence[Sequence[_Reported]],
        involved: Sequence[_Sender],
        best_off_ms: float,
    ) -> bool:
        """Whether it is known without a try that these come out no better than what was `sent` as things stand."""
        if len(involved) > 1 or not requests:
            return False
        return any(involved[0].is_foretold(requests[0], reported, best_off_ms) for reported in sent)

    def _try(
        self,
        own: _Second,
        requests: list[list[_Request]],
        involved: Sequence[_Sender],
        end_ms: int,
        best_off_ms: float = inf,
    ) -> float:
        """By how much the throttle times up to then are off, and will be: of one sender, also how late is what should
        have come. If that is no less than `best_off_ms`, as much as that is plain.
        """
        for sender, its in zip(own, requests, strict=True):
            sender.add(its)
        if not self._go_until(involved, end_ms, best_off_ms):
            return best_off_ms
        off_ms: float = sum(sender.off_ms for sender in involved)
        return off_ms + involved[0].late_ms(end_ms) if len(involved) == 1 else off_ms

    def _go_until(self, senders: Sequence[_Sender], until_ms: int, most_ms: float = inf) -> bool:
        """Have all sent whose turn is before a time; False, and not all, if more was throttled than should have been,
        for `most_ms` in all or longer.
        """
        if len(senders) == 1:
            senders[0].go_on(until_ms, most_ms)
            return senders[0].over_ms < most_ms
        turns = [(at_ms, sender.number, sender) for sender in senders if (at_ms := sender.next_ms()) < until_ms]
        heapify(turns)
        while turns:
            _, number, sender = heappop(turns)
            stop_ms = min(until_ms, turns[0][0] + (number < turns[0][1])) if turns else until_ms
            others_ms = sum(other.over_ms for other in senders if other is not sender) if most_ms < inf else 0
            following_ms = sender.go_on(stop_ms, most_ms - others_ms)
            if sender.over_ms >= most_ms - others_ms:
                return False
            if following_ms < until_ms:
                heappush(turns, (following_ms, number, sender))
        return True

    def _state(self, senders: Sequence[_Sender]) -> _State:
        story, saved = self._story, [(sender, sender.saved()) for sender in senders]
        return _State(saved, story.meter.saved(), len(story.events))

    def _reported_since(self, before: _State) -> _Since:
        """What has been done since then, to be done again."""
        return self._state([sender for sender, _ in before.senders]), self._story.events[before.events :]

    def _tell_again(self, since: _Since) -> None:
        """What was done once, as things stand again as they stood before it."""
        state, events = since
        story = self._story
        for sender, saved in state.senders:
            sender.restore(saved)
        story.meter.restore(state.meter)
        story.events += events

    def _restore(self, state: _State) -> None:
        for sender, saved in state.senders:
            sender.restore(saved)
        story = self._story
        story.meter.restore(state.meter)
        del story.events[state.events :]


def _requests(own: _Second, manner: Manner) -> list[list[_Request]]:
    """What each did in one second, as it is sent in this manner."""
    return [sender.requests(portions, manner) for sender, portions in own.items()]


def _manners(clients: Sequence[_Client]) -> tuple[Sequence[Manner], Sequence[Manner]]:
    """In which they may have come, the same for all: in seconds that do not tell what was throttled, and in others."""
    if len(clients) > 1:
        return PLAIN_MANNERS, REPORTED_MANNERS + PLAIN_MANNERS
    return MANNERS, REPORTED_MANNERS + MANNERS


def _groups(clients: Sequence[_Client]) -> list[list[_Client]]:
    """Who sends from one queue."""
    together = [client for client in clients if client.never_stops]
    return [[client] for client in clients if not client.never_stops] + ([together] if together else [])


def _by_second(clients: Sequence[_Client]) -> Iterator[tuple[int, list[_Portion]]]:
    portions = merge(*(client.portions() for client in clients), key=lambda portion: portion.second.at_ms)
    for wall_s, own in groupby(portions, key=lambda portion: portion.second.at_ms // 1000):
        yield wall_s, list(own)


def _unmuted(clients: Sequence[_Client]) -> list[Event]:
    """What came of requests that nothing held."""
    lanes = {one.name: (group[0].name, sum(of.lanes for of in group)) for group in _groups(clients) for one in group}
    last_ms = dict.fromkeys(lanes, _LONG_AGO)
    served = {name: _Served(*its) for name, its in lanes.items()}
    events: list[Event] = []
    for _, portions in _by_second(clients):
        begin = len(events)
        for portion in portions:
            name = portion.client.name
            if portion.client.quota_type not in UNCOUNTED:
                events += served[name].events(portion)
                continue
            if not portion.second.throttled_ms and not portion.refused_ms:
                uses = portion.spread()
                events += [Event(name, *lanes[name], at_ms, value, 0, 0) for at_ms, value in uses]
                last_ms[name] = uses[-1][0] if uses else last_ms[name]
                continue
            for at_ms, value, _, refused_ms, _ in portion.requests(SPREAD, last_ms[name]):
                last_ms[name] = at_ms
                events.append(Event(name, *lanes[name], at_ms, value, 0, refused_ms))
        if len(portions) > 1:
            events[begin:] = sorted(events[begin:], key=lambda event: event.at_ms)
    return events


class _Served:
    """Connections of one client that were refused, and came again. Each of its requests was wanted as soon as its
    connection had had the one before, as far as there was throttling in that second and since the one before it; if
    there was for all of that time, then it only waited for the one before, and was wanted when that was.
    """

    def __init__(self, lane: Hashable, lanes: int) -> None:
        self._lane = lane
        self._lanes = lanes
        self._last = deque([(_LONG_AGO, _LONG_AGO)] * lanes, lanes)
        """When each connection was served last, and when that was wanted."""

    def events(self, portion: _Portion) -> Iterator[Event]:
        """The requests of one second more."""
        waited_ms = portion.refused_ms + portion.second.throttled_ms
        for at_ms, value in portion.spread():
            before_ms, wanted_ms = self._last[0]
            gap_ms = max(at_ms - before_ms - GAP_MS, 0)
            if gap_ms > waited_ms:
                wanted_ms = at_ms - (waited_ms if before_ms != _LONG_AGO else portion.refused_ms)
            waited_ms -= min(gap_ms, waited_ms)
            wanted_ms = min(wanted_ms, at_ms)
            self._last.append((at_ms, wanted_ms))
            yield Event(portion.client.name, self._lane, self._lanes, at_ms, value, 0, at_ms - wanted_ms)


def retold(
    windows: Mapping[Hashable, Sequence[Window]],
    rules: Rules,
    quota_type: str,
    limit: float | None,
    per_s: float,
    refuses: bool = True,
) -> list[Event]:
    """The events of all who shared a sensor with this limit, in their order; without a limit nothing was throttled.

    `refuses`: what is REFUSED was so, and not let through and throttled after it.

    Small requests are taken together, by how much of a quota of `per_s` they need. Clients that never stop have one
    queue: Kafka's window forgets a burst at once, and who then comes first takes the room, which may be another one
    than it was live.
    """
    clients = [_Client.of(name, its, rules, quota_type, limit, per_s, refuses) for name, its in windows.items()]
    if limit is None or not clients or (quota_type in REFUSED and refuses):
        return _unmuted(clients)
    meter = Meter(rules, quota_type, limit, min(its[0].begin_ms for its in windows.values()))
    return _Retelling(clients, meter).run()


def demands(events: Sequence[Event], quota_type: str, kind: Client) -> Iterator[tuple[Lane, Demand]]:
    """What clients wanted who did this, in order, without the mutes, as `pipeline.simulate.traced` takes them out."""
    lanes: dict[Hashable, _Wanting] = {}
    operation = REFUSED.get(quota_type)
    held_as = OVERDRAWN.get(quota_type, Operation.CHARGE)
    for order, event in enumerate(events):
        wanting = lanes.get(event.lane)
        if wanting is None:
            wanting = lanes[event.lane] = _Wanting(event)
        if operation is None or event.let_through:
            due_ms, lag_ms, greedy_until_ms = held(event, wanting.mutes, kind)
            yield (
                wanting.lane,
                Demand(due_ms, event.value, order, 1, lag_ms, held_as, greedy_until_ms, client=event.client),
            )
        elif operation is Operation.CONNECT and not event.refused_ms:
            due_ms, lag_ms, greedy_until_ms = held(event, wanting.mutes, kind)
            insists = not event.throttle_ms
            demand = Demand(due_ms, event.value, order, 1, lag_ms, operation, greedy_until_ms, 1, insists, event.client)
            yield wanting.lane, demand
        else:
            yield wanting.lane, _refused(event, order, operation, kind)


class _Wanting:
    """Connections of one queue; `mutes` are as `held` has them."""

    __slots__ = ("lane", "mutes")

    def __init__(self, event: Event) -> None:
        self.lane = Lane(event.client, free=[_LONG_AGO] * event.lanes)
        self.mutes = [(_LONG_AGO, 0)] * event.lanes


def held(event: Event, mutes: list[tuple[int, int]], kind: Client) -> tuple[int, int, int]:
    """When a request is due that may have waited for the end of a mute, how long after the end of one that holds it now
    it comes, and until when its client wants more of the same (0: it does not).

    `mutes` are the ends and beginnings of the last mutes of each connection of its queue, a heap; its own becomes one.
    """
    end_ms, begin_ms = mutes[0]
    due_ms = at_ms = event.at_ms
    lag_ms = greedy_until_ms = 0
    if at_ms - end_ms <= HELD_MS:
        lag_ms = max(at_ms - end_ms, 0)
        if kind is Client.PACED:
            due_ms = begin_ms
    if event.throttle_ms:
        until_ms = at_ms + event.throttle_ms
        heapreplace(mutes, (until_ms, at_ms))
        if kind is Client.GREEDY:
            greedy_until_ms = until_ms
    return due_ms, lag_ms, greedy_until_ms


def _refused(event: Event, order: int, operation: str, kind: Client) -> Demand:
    greedy_until_ms = event.at_ms if kind is Client.GREEDY and event.refused_ms else 0
    due_ms = event.at_ms - event.refused_ms
    return Demand(due_ms, event.value, order, 1, 0, operation, greedy_until_ms, _LAG_MS, True, event.client)
