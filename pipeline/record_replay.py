"""Usage records replayed under a candidate, sensor by sensor, and where nothing could be throttled not at all.

A window of a sensor is *quiet* if all that may have been used by all who share it, within as long as a sensor
remembers, would be below what the limit allows even by the shortest window that Kafka divides by: then no request of it
can be throttled, wherever in the window it came. Only *runs* of other windows are replayed, each behind a lead-in that
fills the sensor, and with room behind it for debts and for what was held to be sent. A run depends on nothing before
its lead-in but on where in a second a sample begins, which records do not tell anyway; so runs may be replayed apart,
anywhere, in any order, with one result.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.candidate import Rules
from pipeline.meter import Meter
from pipeline.recorded import HASTES, REFUSED, Event, Window, demands, retold
from pipeline.replay import Demand, Lane, SensorReplay, Throttling
from pipeline.traced import Client

SAFETY = 1 - 1e-6
"""Sums of doubles are only so exact."""

_GOOD_FIT = 0.005
_FIT_WINDOWS = 120
"""So many windows of each client, 20 minutes, must do to find out how its use comes about."""


class Memory(NamedTuple):
    """How long a sensor of some rules remembers, and by how little it divides at the least; seconds."""

    span_s: float
    least_s: float
    debt_s: float


def memory_of(rules: Rules, quota_type: str) -> Memory:
    """That of sensors, or buckets, for this quota type."""
    if quota_type == "controller_mutation":
        samples, window_s = rules.bucket_samples, rules.bucket_window_ms / 1000
    else:
        samples, window_s = rules.samples, rules.window_ms / 1000
    debts = 0.0 if quota_type in ("request", "connection", "controller_mutation") else rules.max_debt_ms / 1000
    return Memory((samples + 2) * window_s, max(samples - 1, 1e-3) * window_s, debts)


def most_in_span(used: float, peak: float, length_s: float, memory: Memory) -> float:
    """The most that windows like this one can have within as long as a sensor remembers."""
    length_s = max(length_s, 1e-3)
    if length_s <= 1:
        return used * (ceil(memory.span_s / length_s) + 1)
    peak = min(max(peak, used / length_s), used)
    others = (used - peak) / (length_s - 1)
    peaks = ceil(memory.span_s / length_s) + 1
    return min(peaks * peak + max(0.0, memory.span_s - peaks) * others, peaks * used)


def allowed(limit: float, memory: Memory) -> float:
    """What may be used within a span without a throttle, however it comes."""
    return limit * memory.least_s * SAFETY


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def runs(begin_ms: Ints, end_ms: Ints, most: Floats, used: Floats, limit: float, memory: Memory) -> Ints:
    """Of the windows of one sensor, in their order: the number of the run that each belongs to, -1 where none.

    `most` is what all sharers together can have within a span of such windows, infinite where mutes were recorded;
    `used` what they used, both as charged. Windows of a lead-in belong to the run.
    """
    loud = _neighbours_most(begin_ms, end_ms, most, memory) > allowed(limit, memory)
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


def _neighbours_most(begin_ms: Ints, end_ms: Ints, most: Floats, memory: Memory) -> Floats:
    """The largest of a window and those that a sensor still remembers in it."""
    worst = most.copy()
    span_ms = int(memory.span_s * 1000)
    for back in range(1, len(most)):
        near = begin_ms[back:] - end_ms[:-back] < span_ms
        if not near.any():
            break
        worst[back:] = np.where(near, np.maximum(worst[back:], most[:-back]), worst[back:])
    return worst


@dataclass(slots=True)
class Replayed:
    """What came of one run, for a PACED and for a GREEDY client; times in ms."""

    paced: dict[Hashable, Throttling] = field(default_factory=dict)
    greedy: dict[Hashable, Throttling] = field(default_factory=dict)
    sensor: Throttling = field(default_factory=Throttling)
    greedy_sensor: Throttling = field(default_factory=Throttling)
    waiting: int = 0
    """Requests of the paced clients that were still held when the run ended."""


class Explained(NamedTuple):
    """How the use of all who shared a sensor came about, and how well that explains their recorded throttle times."""

    events: list[Event]
    recorded_ms: int
    model_ms: int


Clients = Mapping[Hashable, Sequence[Window]]
"""Those who share a sensor, the windows of each in their order."""


def explained(clients: Clients, rules: Rules, quota_type: str, live: float | None, limit: float) -> Explained:
    """The events that explain best what was recorded while the limit `live` was in force; None: not known.

    `limit` is the one that they are to be replayed with.
    """
    least = min(limit, limit if live is None else live)
    recorded_ms = _recorded_ms(clients)
    if not recorded_ms or live is None:
        return Explained(retold(clients, rules, quota_type, None, least, 0.0), recorded_ms, recorded_ms)
    haste = HASTES[0] if quota_type in REFUSED else _haste(clients, rules, quota_type, live, least)
    events = retold(clients, rules, quota_type, live, least, haste)
    if quota_type in REFUSED:
        replay = _replay(events, rules, quota_type, live, Client.PACED, _last_ms(clients))
        return Explained(events, recorded_ms, replay.all.throttled_ms)
    return Explained(events, recorded_ms, _throttled_ms(events))


def _haste(clients: Clients, rules: Rules, quota_type: str, live: float, per_s: float) -> float:
    # What came after the last throttle says nothing about it.
    last_ms = max(w.begin_ms for windows in clients.values() for w in windows if w.throttled_ms)
    some = {client: [w for w in windows[:_FIT_WINDOWS] if w.begin_ms <= last_ms] for client, windows in clients.items()}
    recorded_ms = _recorded_ms(some)
    best, best_off_ms = HASTES[0], 2**62
    for haste in HASTES:
        off_ms = abs(_throttled_ms(retold(some, rules, quota_type, live, per_s, haste)) - recorded_ms)
        if off_ms < best_off_ms:
            best, best_off_ms = haste, off_ms
        if best_off_ms <= _GOOD_FIT * recorded_ms:
            break
    return best


def _recorded_ms(clients: Clients) -> int:
    return sum(window.throttled_ms for windows in clients.values() for window in windows)


def _throttled_ms(events: Sequence[Event]) -> int:
    return sum(event.throttle_ms for event in events)


def _last_ms(clients: Clients) -> int:
    return max(windows[-1].end_ms for windows in clients.values())


def replay_run(groups: Sequence[Explained], rules: Rules, quota_type: str, limit: float, end_ms: int) -> Replayed:
    """One run of all who would share a sensor of this limit, in groups as they shared one live.

    What is held is sent until `end_ms`.
    """
    events = groups[0].events
    if len(groups) > 1:
        events = sorted((event for group in groups for event in group.events), key=lambda event: event.at_ms)
    paced = _replay(events, rules, quota_type, limit, Client.PACED, end_ms)
    greedy = paced
    if any(group.recorded_ms for group in groups):
        greedy = _replay(events, rules, quota_type, limit, Client.GREEDY, end_ms)
    return Replayed(paced.clients, greedy.clients, paced.all, greedy.all, paced.waiting)


def _replay(
    events: Sequence[Event], rules: Rules, quota_type: str, limit: float, kind: Client, end_ms: int
) -> SensorReplay:
    replay = SensorReplay(Meter(rules, quota_type, limit, events[0].at_ms if events else 0))
    lanes: dict[int, tuple[Lane, list[Demand]]] = {}
    for lane, demand in demands(events, quota_type, kind):
        lanes.setdefault(id(lane), (lane, []))[1].append(demand)
    for lane, wanted in lanes.values():
        replay.add(lane, wanted)
    replay.run(end_ms)
    return replay
