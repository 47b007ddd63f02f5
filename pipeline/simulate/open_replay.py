"""A sensor and clients that nothing held back when they were recorded: they want what they wanted, at their times.

What comes of that is what `replay.SensorReplay` makes of it, to the last bit; only most of the work is left out that it
has with demand which was held, or is greedy. Each client has one connection.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from pipeline.simulate.meter import Meter
from pipeline.simulate.recorded import REFUSED, UNCOUNTED, Event
from pipeline.simulate.replay import Throttling
from quotas.records.trace import Operation


def is_open(events: Sequence[Event], quota_type: str) -> bool:
    """Whether nothing held these back, each client has one connection, and they are in the order of time."""
    return (
        quota_type not in UNCOUNTED
        and not any(event.throttle_ms or event.refused_ms or event.lanes > 1 or event.let_through for event in events)
        and all(one.at_ms <= other.at_ms for one, other in pairwise(events))
    )


class _Lane:
    """A connection: from when on it may send, and what waits for that."""

    __slots__ = ("client", "free_ms", "is_held", "waiting")

    def __init__(self, client: Throttling) -> None:
        self.client = client
        self.free_ms = -(2**62)
        self.is_held = False
        self.waiting: deque[tuple[int, int, float]] = deque()
        """When each came, its number and its value."""


class OpenReplay:
    """One sensor and all who share it; `clients` and `all` are what came of it."""

    def __init__(self, meter: Meter, quota_type: str) -> None:
        self.clients: dict[Hashable, Throttling] = {}
        self.all = Throttling()
        self.waiting = 0
        """How many connections had something left to send."""
        self._meter = meter
        self._refuses = quota_type in REFUSED
        self._operation = REFUSED.get(quota_type, Operation.CHARGE)
        self._turns: list[tuple[int, int, _Lane]] = []

    def run(self, events: Iterable[Event], until_ms: int) -> None:
        """Events that are open, up to a time."""
        lanes: dict[Hashable, _Lane] = {}
        turns, late = self._turns, set()
        for number, event in enumerate(events):
            at_ms, client = event.at_ms, event.client
            lane = lanes.get(client)
            if lane is None:
                lane = lanes[client] = _Lane(Throttling())
            if at_ms >= until_ms:
                late.add(client)
                continue
            while turns and (turns[0][0] < at_ms or (turns[0][0] == at_ms and turns[0][1] < number)):
                self._next_turn()
            if lane.is_held:
                lane.waiting.append((at_ms, number, event.value))
            elif lane.free_ms > at_ms:
                lane.waiting.append((at_ms, number, event.value))
                lane.is_held = True
                heappush(turns, (lane.free_ms, number, lane))
            else:
                self._send(lane, number, event.value, at_ms)
        while turns and turns[0][0] < until_ms:
            self._next_turn()
        self.clients = {
            name: lane.client for name, lane in lanes.items() if lane.client.requests or lane.client.throttles
        }
        self.waiting = len({name for name, lane in lanes.items() if lane.is_held} | late)

    def _next_turn(self) -> None:
        """The first of those who wait sends what it has waited with."""
        at_ms, _, lane = heappop(self._turns)
        lane.is_held = False
        _, number, value = lane.waiting.popleft()
        self._send(lane, number, value, at_ms)

    def _send(self, lane: _Lane, number: int, value: float, now_ms: int) -> None:
        client, everybody = lane.client, self.all
        throttle_ms = self._meter.use(self._operation, value, now_ms)
        if throttle_ms and self._refuses:
            lane.waiting.appendleft((now_ms, number, value))
        else:
            client.used += value
            client.requests += 1
            everybody.used += value
            everybody.requests += 1
        if throttle_ms:
            lane.client.add(throttle_ms, now_ms)
            self.all.add(throttle_ms, now_ms)
            lane.free_ms = now_ms + throttle_ms
        if lane.waiting:
            at_ms, number, _ = lane.waiting[0]
            self._hold(lane, max(at_ms, lane.free_ms), number)

    def _hold(self, lane: _Lane, until_ms: int, number: int) -> None:
        lane.is_held = True
        heappush(self._turns, (until_ms, number, lane))
