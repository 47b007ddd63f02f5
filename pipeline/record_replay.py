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
from pipeline.meter import Meter, value_of
from pipeline.recorded import SHAPES, RecordedClient, Shape, Window
from pipeline.replay import SensorReplay, Throttling
from pipeline.traced import Client

SAFETY = 1 - 1e-6
"""Sums of doubles are only so exact."""

_FULL_ABOVE = 800
_GOOD_FIT = 0.01


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


def replay_run(
    clients: Mapping[Hashable, Sequence[Window]],
    rules: Rules,
    quota_type: str,
    limit: float,
    shapes: Mapping[Hashable, Shape],
    end_ms: int | None = None,
) -> Replayed:
    """One run of windows of all who share a sensor, windows of each client in their order.

    What is held is sent until `end_ms`; without it, until the last window ends.
    """
    paced = replay_clients(clients, rules, quota_type, limit, shapes, Client.PACED, end_ms)
    was_throttled = any(window.throttled_ms for windows in clients.values() for window in windows)
    greedy = paced
    if was_throttled:
        greedy = replay_clients(clients, rules, quota_type, limit, shapes, Client.GREEDY, end_ms)
    return Replayed(paced.clients, greedy.clients, paced.all, greedy.all, paced.waiting)


def replay_clients(
    clients: Mapping[Hashable, Sequence[Window]],
    rules: Rules,
    quota_type: str,
    limit: float,
    shapes: Mapping[Hashable, Shape],
    kind: Client,
    end_ms: int | None = None,
) -> SensorReplay:
    """The same for one kind of client."""
    recorded = [
        RecordedClient(client, quota_type, windows, limit, shapes.get(client, SHAPES[0]), kind)
        for client, windows in clients.items()
    ]
    if end_ms is None:
        end_ms = max(windows[-1].end_ms for windows in clients.values())
    begins = sorted({window.begin_ms for windows in clients.values() for window in windows})
    replay = SensorReplay(Meter(rules, quota_type, limit, begins[0]))
    for begin_ms, next_ms in zip(begins, [*begins[1:], end_ms], strict=True):
        for client in recorded:
            _feed(replay, client, begin_ms)
        replay.run(next_ms)
    _send_the_rest(replay, recorded, end_ms)
    return replay


def _send_the_rest(replay: SensorReplay, recorded: Sequence[RecordedClient], end_ms: int) -> None:
    """Windows whose demand had to wait for what was demanded before."""
    while any(client.taken < len(client.windows) for client in recorded):
        before = replay.all.requests
        for client in recorded:
            _feed(replay, client, end_ms)
        replay.run(end_ms)
        if replay.all.requests == before:
            return


def _feed(replay: SensorReplay, client: RecordedClient, now_ms: int) -> None:
    """Give a client what it demands up to now, unless it has more than enough to send."""
    while client.taken < len(client.windows) and client.next_ms <= now_ms:
        if client.waiting > _FULL_ABOVE:
            return
        for lane, demand in client.next_window():
            demand.due_ms = max(demand.due_ms, replay.now_ms)
            replay.add(lane, [demand])


def fitted(
    clients: Mapping[Hashable, Sequence[Window]], rules: Rules, quota_type: str, limit: float
) -> tuple[Shape, float]:
    """The shape that explains best what throttle times were recorded of all who shared a sensor, and how well.

    The second is what the model makes of them, as a multiple of what was recorded.
    """
    recorded_ms = sum(window.throttled_ms for windows in clients.values() for window in windows)
    best, best_share = SHAPES[0], 1.0
    for shape in SHAPES if recorded_ms else ():
        if shape is not SHAPES[0] and abs(best_share - 1) < _GOOD_FIT:
            break
        replay = replay_clients(clients, rules, quota_type, limit, dict.fromkeys(clients, shape), Client.PACED)
        share = replay.all.throttled_ms / recorded_ms
        if shape is SHAPES[0] or abs(share - 1) < abs(best_share - 1):
            best, best_share = shape, share
    return best, best_share


def charged(quota_type: str, used: float) -> float:
    """What a sensor is charged for what a record tells."""
    return value_of(quota_type, used)
