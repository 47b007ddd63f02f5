"""Usage records replayed as a backlog: what came in each second and what still waited, through the proxy's own sensor.

Records have the use of each second, and how it was throttled, but not when its requests came. So each run is replayed
twice, and between the two results is what would have been:

- A PACED client has no more requests than were seen, spread over their second. Where it was throttled its connections
  rest after each request, for as long as they were not throttled on average. Requests waited only if one was refused.
- A GREEDY client has all requests of a second at once, as early as a throttle may have held them. It does not rest, and
  while it was throttled it has another request of the same size whenever none is left.

Both wait for their throttles. No assumption is tried or fitted, and the quotas that were in force are not needed.

Windows that are quiet (see `quiet`) need no replay. Only *runs* of others are replayed, each after a
lead-in that fills the sensor, and with time after it for debts and for requests that wait. A run depends on nothing
before its lead-in except where in a second a sample begins, which records do not say. So runs may be replayed
separately, anywhere, in any order, with one result.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, floor
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.candidate import Rules
from kafka_throttle.pipeline.simulate.meter import Meter, longest_throttle_ms, value_of
from kafka_throttle.pipeline.simulate.replay import Demand, Lane, SensorReplay, Throttling
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.usage_record import SecondOfUse, UsageRecord, read_profile

HELD_MS = 100
"""So soon after a mute comes what it has held back; a client that obeys by itself needs a way to come back."""

MAX_REQUESTS = 200
"""More requests of a second are combined into so many."""

GRAIN_S = 0.01
COARSE_GRAIN_S = 0.1
"""Smaller requests are combined until each needs so much of the quota's time: in windows with throttles, and without.
"""

MAX_CONNECTIONS = 256

REFUSED = {
    "controller_mutation": Operation.SPEND_STRICTLY,
    "connection": Operation.CONNECT,
    "fetch": Operation.CHARGE_IF_WITHIN,
}
"""How quota types are charged that refuse what is over the quota. Requests of the other types pass, and then mute."""

_SMOOTH = 6
_LEAST_MUTED_MS = 500
_LONG_AGO = -(2**62)


class Client(Enum):
    """What a client is like that is not known: PACED wants what was seen, GREEDY always more while it is throttled."""

    PACED = "paced"
    GREEDY = "greedy"


class Window(NamedTuple):
    """What one record says; `used` and `peak` are in its unit."""

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
        """What a record says."""
        return cls(*(getattr(record, name) for name in cls._fields))

    @property
    def length_ms(self) -> int:
        """At least 1."""
        return max(self.end_ms - self.begin_ms, 1)

    def seconds(self) -> list[SecondOfUse]:
        """Those of the profile, in ms since 1970; without a profile one has the peak, and the others are even."""
        seconds = [second._replace(at_ms=self.begin_ms + second.at_ms) for second in read_profile(self.profile)]
        return sorted(seconds) if seconds else self._evenly()

    def _evenly(self) -> list[SecondOfUse]:
        number = max(self.length_ms // 1000, 1)
        busiest = int(number * (self.begin_ms / self.length_ms * 0.6180339887 % 1))
        peak = self.used if number == 1 else min(max(self.peak, self.used / number), self.used)
        others = (self.used - peak) / max(number - 1, 1)
        muted_ms = self.throttled_ms // number
        return [
            SecondOfUse(self.begin_ms + i * 1000, peak if i == busiest else others, muted_ms) for i in range(number)
        ]


def connections(windows: Sequence[Window], kind: Client) -> int:
    """How many connections a client had, as far as mutes show: on average if it is PACED, at the most if GREEDY."""
    most = max([1.0, *_muted_together(windows)])
    throttled_ms, muted_ms = sum(w.throttled_ms for w in windows), sum(w.muted_ms for w in windows)
    if kind is Client.PACED and muted_ms:
        most = max(floor(min(throttled_ms / muted_ms + 0.3, most + 0.999)), 1)
    return min(ceil(most), MAX_CONNECTIONS)


def _muted_together(windows: Sequence[Window]) -> Iterator[float]:
    """For each throttled window, how many were muted at the same time; less a margin, so that chance adds none."""
    for i, window in enumerate(windows):
        if not window.throttles:
            continue
        some = windows[max(0, i - _SMOOTH + 1) : i + 1]
        throttled_ms, muted_ms = sum(w.throttled_ms for w in some), sum(w.muted_ms for w in some)
        if muted_ms > _LEAST_MUTED_MS:
            yield throttled_ms / muted_ms - 0.3
        elif not muted_ms and len(some) == _SMOOTH:
            yield throttled_ms / max(window.end_ms - some[0].begin_ms, 1) - 0.2


@dataclass(slots=True)
class _Arrivals:
    """The requests of one client, second by second. A quota of `per_s` says which requests are small."""

    kind: Client
    quota_type: str
    per_s: float
    longest_ms: int
    connections: int
    operation: str
    before: Sequence[Demand] = ()
    """The requests of the last second that had any; it began at `last_ms`, a throttle after `due_ms`."""
    last_ms: int = _LONG_AGO
    due_ms: int = _LONG_AGO
    tries: int = 1
    """How many they were with those that were refused."""
    throttled_ms: float = 0.0
    """How long each connection was throttled since then, and in that second."""

    @property
    def refuses(self) -> bool:
        """Whether what is over the quota comes again."""
        return self.operation != Operation.CHARGE

    @property
    def waits(self) -> bool:
        """Whether a throttle comes before what it is for."""
        return self.refuses or self.quota_type == "fetch"

    def of(self, window: Window, second: SecondOfUse) -> list[Demand]:
        """What came in one second. A second that only refused has nothing, but what comes next waited for it."""
        throttled_ms = min(second.throttled_ms / self.connections, 1000 + self.longest_ms)
        value = value_of(self.quota_type, second.used)
        if value <= 0:
            self.throttled_ms += throttled_ms
            return []
        waited_ms, gap_ms = self.throttled_ms + throttled_ms * self.waits, second.at_ms - self.last_ms
        due_ms = throttle_ago_ms = second.at_ms - int(min(gap_ms, waited_ms))
        if self.kind is Client.PACED and gap_ms <= waited_ms + HELD_MS:
            # It only waited for the request before, so it is wanted with that, however early that comes in the replay.
            due_ms = self.due_ms
        number = self._number(window, second, value)
        if self.kind is Client.GREEDY:
            demands = [Demand(due_ms, value / number, i) for i in range(number)]
            if throttled_ms or (self.waits and self.throttled_ms):
                demands[-1].greedy_until_ms = second.at_ms + int(throttled_ms)
        else:
            self._rest(second.at_ms)
            end_ms = min(second.at_ms - second.at_ms % 1000 + 1000, window.end_ms)
            step_ms, waited = max(end_ms - second.at_ms, 0) / number, max(second.throttles, 1) if self.waits else 0
            demands = [
                Demand((due_ms if i < waited else second.at_ms) + int(i * step_ms), value / number, i)
                for i in range(number)
            ]
        for demand in demands:
            demand.operation, demand.insists = self.operation, self.refuses
        self.before, self.tries = demands, number + second.throttles * self.refuses
        self.last_ms, self.due_ms, self.throttled_ms = second.at_ms, throttle_ago_ms, throttled_ms
        return demands

    def _rest(self, at_ms: int) -> None:
        """Have connections rest after the requests of the second before, until the next one begins."""
        idle_ms = min(at_ms - self.last_ms - self.throttled_ms, 1000)
        if self.throttled_ms and idle_ms > 0:
            for demand in self.before:
                demand.rest_ms = ceil(idle_ms * self.connections / self.tries)

    def _number(self, window: Window, second: SecondOfUse, value: float) -> int:
        """As how many requests: as many as there were or as matter, and enough for the recorded throttle time."""
        if self.quota_type == "controller_mutation":
            requests = min(second.used, (window.throttles or window.used) * second.used / max(window.used, 1e-9))
        elif self.quota_type == "connection":
            requests = second.used
        elif second.requests:
            requests = second.requests - second.throttles * self.refuses
        else:
            requests = window.requests * second.used / max(window.used, 1e-9)
        least = 1 if self.refuses else ceil(second.throttled_ms / self.longest_ms)
        grain_s = GRAIN_S if window.throttles or window.throttled_ms else COARSE_GRAIN_S
        most = ceil(min(value / max(self.per_s * grain_s, 1e-9), MAX_REQUESTS))
        return min(max(round(min(requests, most)), least, 1), MAX_REQUESTS)


@dataclass(slots=True)
class Replayed:
    """What came of one run, for a PACED and for a GREEDY client; times in ms."""

    paced: dict[Hashable, Throttling] = field(default_factory=dict)
    greedy: dict[Hashable, Throttling] = field(default_factory=dict)
    sensor: Throttling = field(default_factory=Throttling)
    greedy_sensor: Throttling = field(default_factory=Throttling)


def replay_run(
    clients: Mapping[Hashable, Sequence[Window]], rules: Rules, quota_type: str, limit: float, end_ms: int
) -> Replayed:
    """One run of all clients that would share a sensor of this limit. What waits is sent until `end_ms`."""
    paced, greedy = (_replayed(clients, rules, quota_type, limit, end_ms, kind) for kind in Client)
    return Replayed(paced.clients, greedy.clients, paced.all, greedy.all)


def _replayed(
    clients: Mapping[Hashable, Sequence[Window]],
    rules: Rules,
    quota_type: str,
    limit: float,
    end_ms: int,
    kind: Client,
) -> SensorReplay:
    begin_ms = min((windows[0].begin_ms for windows in clients.values()), default=0)
    replay = SensorReplay(Meter(rules, quota_type, limit, begin_ms))
    longest_ms = longest_throttle_ms(rules, quota_type)
    for name, windows in clients.items():
        number = connections(windows, kind)
        arrivals = _Arrivals(kind, quota_type, limit, longest_ms, number, _operation(windows, quota_type))
        lane = Lane(name, free=[_LONG_AGO] * number)
        replay.add(
            lane, (one for window in windows for second in window.seconds() for one in arrivals.of(window, second))
        )
    replay.run(end_ms)
    return replay


def _operation(windows: Sequence[Window], quota_type: str) -> str:
    """How its requests are charged. A profile lists fetches only if they were delivered over quota."""
    delivered = quota_type == "fetch" and any("=" in window.profile for window in windows)
    return Operation.CHARGE if delivered else REFUSED.get(quota_type, Operation.CHARGE)
