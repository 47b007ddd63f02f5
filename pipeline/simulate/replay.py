"""What a sensor would have done to the clients that share it, event by event, by the proxy's own arithmetic.

Demand stands in *lanes*: a lane is a connection, as far as that can be told. A lane sends its requests in their order,
each when it is due and the lane is not muted; whatever a sensor says to a request mutes its lane. All lanes of
a sensor take turns by time, and at the same ms by the order of their demands.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, heapreplace

from kafka_throttle.pipeline.simulate.meter import Meter
from kafka_throttle.quotas.fetch_rooms import Place as FetchPlace
from kafka_throttle.quotas.records.trace import Operation

GAP_MS = 1
"""Who would use all he may asks again so long after the end of what he asked for."""

_CHARGE = Operation.CHARGE
_UNHELD = frozenset({Operation.GIVE_BACK})
_REFUSES = frozenset({Operation.SPEND_STRICTLY, Operation.CHARGE_IF_WITHIN, Operation.CONNECT})
_NO_REQUEST = frozenset({Operation.OWE, *_UNHELD})


@dataclass(slots=True)
class Demand:
    """One use, or `count` equal ones, of `value` in all.

    It comes at `due_ms`, or `lag_ms` after the end of the mute that holds its lane then. A client that would use all
    it may sends more of the same until `greedy_until_ms`, each `gap_ms` after the end of the one before, while nothing
    else of its lane is due. What is refused comes again when the mute is over if it `insists`. One that `is_retried`
    was refused live, and what comes next of its lane is the same again: if it is let through, that is not wanted any
    more. After it, or after the mute that it brings, its connection rests for `rest_ms`.
    """

    due_ms: int
    value: float
    order: int = 0
    count: int = 1
    lag_ms: int = 0
    operation: str = Operation.CHARGE
    greedy_until_ms: int = 0
    gap_ms: int = GAP_MS
    insists: bool = False
    is_retried: bool = False
    rest_ms: int = 0


@dataclass(slots=True)
class Lane:
    """A connection of `client`, or several that take turns; `free` are the times from when each may send, a heap.

    `place` is where its Fetches wait for their turns; None: they do not.
    """

    client: Hashable
    demands: deque[Demand] = field(default_factory=deque)
    free: list[int] = field(default_factory=lambda: [-(2**62)])
    place: FetchPlace | None = None

    @property
    def free_ms(self) -> int:
        """From when on it may send."""
        return self.free[0]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self.demands

    def turn(self) -> tuple[int, int]:
        """When its next request goes, and in which order among others of that time."""
        demand = self.demands[0]
        at_ms = demand.due_ms
        if at_ms < self.free[0] and demand.operation not in _UNHELD:
            at_ms = self.free[0] + demand.lag_ms
        return at_ms, demand.order


@dataclass(slots=True)
class Throttling:
    """What became of one client, or of all that share a sensor; `muted_ms` is time in which anyone was muted."""

    requests: int = 0
    used: float = 0.0
    throttles: int = 0
    throttled_ms: int = 0
    longest_ms: int = 0
    muted_ms: int = 0
    muted_until_ms: int = -(2**62)

    def add(self, throttle_ms: int, now_ms: int) -> None:
        """One throttle more."""
        until_ms, before_ms = now_ms + throttle_ms, self.muted_until_ms
        self.throttles += 1
        self.throttled_ms += throttle_ms
        if throttle_ms > self.longest_ms:
            self.longest_ms = throttle_ms
        if until_ms > before_ms:
            self.muted_ms += until_ms - (before_ms if before_ms > now_ms else now_ms)
            self.muted_until_ms = until_ms


class SensorReplay:
    """One sensor and the lanes that use it. Demands may be added while it goes on, never before `now_ms`.

    `reported`, if given, gets the throttle time of each demand's use by its order; extra ones of a greedy client have
    none.
    """

    def __init__(self, meter: Meter, reported: dict[int, int] | None = None) -> None:
        self.meter = meter
        self.clients: dict[Hashable, Throttling] = {}
        self.all = Throttling()
        self.now_ms = -(2**62)
        self._reported = reported
        self._turns: list[tuple[int, int, int]] = []
        self._lanes: list[Lane] = []
        self._numbers: dict[int, int] = {}

    def add(self, lane: Lane, demands: Iterable[Demand]) -> None:
        """Have a lane send these, behind what it has to send already."""
        number = self._numbers.get(id(lane))
        if number is None:
            number = self._numbers[id(lane)] = len(self._lanes)
            self._lanes.append(lane)
            lane.place = self.meter.enter()
        was_done = lane.is_done
        lane.demands.extend(demands)
        if lane.is_done:
            return
        if was_done:
            heappush(self._turns, (*lane.turn(), number))

    def run(self, until_ms: int = 2**62) -> None:
        """Go on up to a time, or until nothing is left to be sent."""
        turns, lanes = self._turns, self._lanes
        while turns and turns[0][0] < until_ms:
            now_ms, _, number = turns[0]
            lane = lanes[number]
            self.now_ms = now_ms
            demand = lane.demands[0]
            if (
                demand.operation is _CHARGE
                and demand.count == 1
                and not demand.greedy_until_ms
                and self._reported is None
                and lane.place is None
            ):
                lane.demands.popleft()
                self._charge(lane, demand, now_ms)
            else:
                self._use(lane, demand, now_ms)
            if lane.is_done:
                heappop(turns)
            else:
                heapreplace(turns, (*lane.turn(), number))

    def _charge(self, lane: Lane, demand: Demand, now_ms: int) -> None:
        """What `_use` comes to for a plain charge, which nearly all of them are."""
        client, everybody, value = self._client(lane), self.all, demand.value
        client.used += value
        client.requests += 1
        everybody.used += value
        everybody.requests += 1
        throttle_ms = self.meter.use(_CHARGE, value, now_ms)
        if throttle_ms or demand.rest_ms:
            self._mute(lane, client, throttle_ms, now_ms, demand.rest_ms)

    def _client(self, lane: Lane) -> Throttling:
        client = self.clients.get(lane.client)
        if client is None:
            client = self.clients[lane.client] = Throttling()
        return client

    @property
    def waiting(self) -> int:
        """How many lanes have something left to send."""
        return len(self._turns)

    def _use(self, lane: Lane, demand: Demand, now_ms: int) -> None:
        place = lane.place
        if place is None and demand.insists and demand.operation == Operation.CHARGE_IF_WITHIN and demand.count == 1:
            demand.count = self.meter.pieces(demand.value)
        client, value, count = self._client(lane), demand.value, demand.count
        is_left = count > 1
        if is_left:
            if place is None and self.meter.use_many(value, count, now_ms):
                lane.demands.popleft()
                self._sent(client, value, count)
                return
            value /= count
            demand.value -= value
            demand.count -= 1
            demand.due_ms = now_ms
        else:
            lane.demands.popleft()
        if place is None:
            throttle_ms = self.meter.use(demand.operation, value, now_ms)
            refused = demand.operation in _REFUSES and (throttle_ms > 0 or self.meter.refused)
        else:
            throttle_ms = self.meter.fetch(place, demand.operation, value, now_ms)
            refused = self.meter.refused
            if not refused and self.meter.fetched < value:
                rest = replace(demand, due_ms=now_ms, value=value - self.meter.fetched, count=1, lag_ms=0)
                lane.demands.appendleft(rest)
                value, is_left = self.meter.fetched, True
        if self._reported is not None and demand.order not in self._reported:
            self._reported[demand.order] = throttle_ms
        if demand.operation not in _NO_REQUEST and not refused:
            self._sent(client, value, 1)
        rest_ms = 0 if refused and place is not None else demand.rest_ms
        if throttle_ms or rest_ms:
            self._mute(lane, client, throttle_ms, now_ms, rest_ms)
        if demand.is_retried and not refused:
            _skip_retries(lane)
        if refused and (demand.insists or place is not None):
            greedy_until_ms = 0 if is_left else demand.greedy_until_ms
            due_ms = now_ms + (not throttle_ms)
            again = replace(demand, due_ms=due_ms, value=value, count=1, lag_ms=0, greedy_until_ms=greedy_until_ms)
            lane.demands.appendleft(again)
        elif demand.greedy_until_ms and not is_left:
            self._want_more(lane, demand, value, now_ms)

    def _sent(self, client: Throttling, value: float, requests: int) -> None:
        for sums in (client, self.all):
            sums.used += value
            sums.requests += requests

    def _mute(self, lane: Lane, client: Throttling, throttle_ms: int, now_ms: int, rest_ms: int) -> None:
        if throttle_ms:
            client.add(throttle_ms, now_ms)
            self.all.add(throttle_ms, now_ms)
        heapreplace(lane.free, max(lane.free_ms, now_ms + throttle_ms + rest_ms))

    def _want_more(self, lane: Lane, demand: Demand, value: float, now_ms: int) -> None:
        due_ms = max(lane.free_ms, now_ms) + demand.gap_ms
        if due_ms < demand.greedy_until_ms and not (lane.demands and lane.demands[0].due_ms <= due_ms):
            more = copy(demand)
            more.due_ms, more.value, more.count, more.lag_ms = due_ms, value, 1, 0
            lane.demands.appendleft(more)


def _skip_retries(lane: Lane) -> None:
    """What is next of a lane has been had already, and so has what that was retried with."""
    demands = lane.demands
    while demands and demands.popleft().is_retried:
        pass
    while demands and demands[0].operation == Operation.GIVE_BACK:
        demands.popleft()
