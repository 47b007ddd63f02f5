"""Usage records replayed under a candidate, sensor by sensor, and where nothing could be throttled not at all.

Windows that are quiet (see `quiet`) need no replay. Only *runs* of others are replayed, each behind a lead-in that
fills the sensor, and with room behind it for debts and for what was held to be sent. A run depends on nothing before
its lead-in but on where in a second a sample begins, which records do not tell anyway; so runs may be replayed apart,
anywhere, in any order, with one result.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.simulate.attempts import attempts
from pipeline.simulate.candidate import Rules
from pipeline.simulate.meter import Meter
from pipeline.simulate.open_replay import OpenReplay, is_open
from pipeline.simulate.queue_replay import QueueReplay, is_queue
from pipeline.simulate.recorded import OVERDRAWN, REFUSED, Event, Window, demands, lanes_of, retold
from pipeline.simulate.replay import Demand, Lane, SensorReplay, Throttling
from pipeline.simulate.traced import Client


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
        return Explained(retold(clients, rules, quota_type, None, least), recorded_ms, recorded_ms)
    delivers = _delivers(clients, quota_type)
    events = retold(clients, rules, quota_type, live, least, refuses=not delivers)
    if quota_type not in REFUSED or delivers:
        return Explained(events, recorded_ms, _throttled_ms(events))
    replay = _replay(events, rules, quota_type, live, Client.PACED, _last_ms(clients))
    insisting = Explained(events, recorded_ms, replay.all.throttled_ms)
    if quota_type == "fetch":
        return insisting
    if quota_type in OVERDRAWN:
        events = retold(clients, rules, quota_type, live, least, refuses=False)
    elif len(clients) == 1 and lanes_of(*clients.values()) == 1:
        [(name, windows)] = clients.items()
        events = attempts(name, windows, Meter(rules, quota_type, live, windows[0].begin_ms))
    else:
        return insisting
    return min(Explained(events, recorded_ms, _throttled_ms(events)), insisting, key=_off_ms)


def _delivers(clients: Clients, quota_type: str) -> bool:
    """Whether what was fetched over quota was delivered: only then there is any use that was throttled."""
    if quota_type != "fetch":
        return False
    return any(second.reported for windows in clients.values() for window in windows for second in window.seconds())


def _off_ms(reported: Explained) -> int:
    return abs(reported.model_ms - reported.recorded_ms)


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
    meter = Meter(rules, quota_type, limit, events[0].at_ms if events else 0)
    if is_open(events, quota_type) and all(meter.pieces(event.value) == 1 for event in events):
        open_one = OpenReplay(meter, quota_type)
        open_one.run(events, end_ms)
        return Replayed(open_one.clients, open_one.clients, open_one.all, open_one.all, open_one.waiting)
    paced = _replay(events, rules, quota_type, limit, Client.PACED, end_ms)
    greedy = paced
    if any(group.recorded_ms for group in groups):
        greedy = _replay(events, rules, quota_type, limit, Client.GREEDY, end_ms)
    return Replayed(paced.clients, greedy.clients, paced.all, greedy.all, paced.waiting)


def _replay(
    events: Sequence[Event], rules: Rules, quota_type: str, limit: float, kind: Client, end_ms: int
) -> SensorReplay | QueueReplay:
    meter = Meter(rules, quota_type, limit, events[0].at_ms if events else 0)
    if is_queue(events, quota_type):
        queue = QueueReplay(meter)
        queue.run(events, kind, end_ms)
        return queue
    return in_full(meter, events, quota_type, kind, end_ms)


def in_full(meter: Meter, events: Sequence[Event], quota_type: str, kind: Client, end_ms: int) -> SensorReplay:
    """Any events at all: the long way, which `QueueReplay` and `OpenReplay` shorten for some."""
    replay = SensorReplay(meter)
    lanes: dict[int, tuple[Lane, list[Demand]]] = {}
    for lane, demand in demands(events, quota_type, kind):
        lanes.setdefault(id(lane), (lane, []))[1].append(demand)
    for lane, wanted in lanes.values():
        replay.add(lane, wanted)
    replay.run(end_ms)
    return replay
