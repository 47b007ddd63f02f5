"""From usage records to events: how the use of windows came about, as far as records tell, retold request by request.

A record's profile has, of each second with any use, when its first request came, how much was used and by how long that
was throttled: so use is known to the second. Within one, requests are taken to be equal, and their times are filled in:
spread over what is left of the second, or over what its mutes leave of it, or sooner, by a degree of HASTE. Each is
charged to the proxy's own sensor with the limit that was in force, and what comes of it mutes one of its client's
connections; a request goes when it is due and a connection is free. The haste that explains the recorded throttle times
best counts. A replay with the limit that was in force then is this once more.

There are as many connections as it takes for the mutes that were recorded at the same time. What a quota refuses and
has come again (mutations, connections) came as long before it was let through as the second before was throttled;
records do not tell how many requests it were, so there are as many as throttles.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, merge
from math import ceil
from typing import NamedTuple

from pipeline.candidate import Rules
from pipeline.meter import Meter, value_of
from pipeline.replay import Demand, Lane
from pipeline.traced import HELD_MS, Client
from quotas.trace import Operation
from quotas.usage_record import UsageRecord, read_profile

MAX_REQUESTS = 200
"""More requests of a window are taken together to so many."""

GRAIN_S = 0.01
COARSE_GRAIN_S = 0.1
"""So much quota time one request stands for at least, where mutes were recorded and where none were: smaller ones are
taken together.
"""

MAX_LANES = 256

HASTES = (1.0, 0.0, 2.0, 0.5, 1.5, 0.25, 0.75)
"""Degrees of haste, in the order in which they are tried: 0 is spread over the second, 1 over what mutes leave of it, 2
is at once.
"""

REFUSED = {"controller_mutation": Operation.SPEND_STRICTLY, "connection": Operation.CONNECT}
"""How what is refused, and not held, is charged; all else is held."""

LENT = {"fetch": Operation.CHARGE_OR_LEND}
"""How an answer is charged that has gone out already: what is too much is charged when its mute is over."""

_SMOOTH = 6
_LEAST_MUTED_MS = 500
_LAG_MS = 1
_ALWAYS = 0.8
_LONG_AGO = -(2**62)


class Second(NamedTuple):
    """What was used in one second of a window: from when, how much, and by how long it was throttled."""

    at_ms: int
    used: float
    throttled_ms: int


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

    def seconds(self) -> list[Second]:
        """As the profile has them; without one the busiest begins somewhere, and the others are even."""
        told = [Second(self.begin_ms + at_ms, used, ms) for at_ms, used, ms in read_profile(self.profile)]
        return sorted(told) if told else self._evenly()

    def _evenly(self) -> list[Second]:
        number = max(self.length_ms // 1000, 1)
        busiest = int(number * (self.begin_ms / self.length_ms * 0.6180339887 % 1))
        peak = self.used if number == 1 else min(max(self.peak, self.used / number), self.used)
        others = (self.used - peak) / max(number - 1, 1)
        muted_ms = self.throttled_ms // number
        return [Second(self.begin_ms + i * 1000, peak if i == busiest else others, muted_ms) for i in range(number)]


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

    `refused_ms` is how long before its time it was refused.
    """

    client: Hashable
    lane: Hashable
    lanes: int
    at_ms: int
    value: float
    throttle_ms: int
    refused_ms: int


class _Request(NamedTuple):
    due_ms: int
    value: float
    client: Hashable
    refused_ms: int


@dataclass(frozen=True, slots=True)
class _Client:
    """One client, and how its use is to be told."""

    name: Hashable
    windows: Sequence[Window]
    lanes: int
    quota_type: str
    per_s: float
    haste: float

    @property
    def never_stops(self) -> bool:
        """Whether about all of its connections are muted about all the time."""
        throttled_ms = sum(window.throttled_ms for window in self.windows)
        return throttled_ms > _ALWAYS * self.lanes * sum(window.length_ms for window in self.windows)

    def requests(self) -> Iterator[_Request]:
        """All of them, in their order."""
        refused_ms, last_ms = 0, _LONG_AGO
        for window in self.windows:
            each = value_of(self.quota_type, window.used) / self._number(window)
            seconds = window.seconds()
            for i, second in enumerate(seconds):
                value = value_of(self.quota_type, second.used)
                count = 0
                if value > 0:
                    count = min(max(1, round(value / each)), MAX_REQUESTS) if each > 0 else 1
                next_ms = seconds[i + 1].at_ms if i + 1 < len(seconds) else None
                step_ms = self._span_ms(second, min(_end_ms(second), window.end_ms), next_ms) / max(count, 1)
                for j in range(count):
                    at_ms = second.at_ms + int(j * step_ms)
                    yield _Request(at_ms, value / count, self.name, min(refused_ms // count, max(at_ms - last_ms, 0)))
                    last_ms = at_ms
                refused_ms = second.throttled_ms + (0 if count else refused_ms)

    def _number(self, window: Window) -> int:
        """Of how many requests the window is told."""
        if self.quota_type in REFUSED:
            return min(max(int(window.used), 1), window.throttles or MAX_REQUESTS, MAX_REQUESTS)
        grain = self.per_s * (GRAIN_S if window.throttles else COARSE_GRAIN_S)
        grains = ceil(value_of(self.quota_type, window.used) / grain) if grain > 0 else MAX_REQUESTS
        return min(max(window.requests, 1), MAX_REQUESTS, max(grains, 1))

    def _span_ms(self, second: Second, end_ms: int, next_ms: int | None) -> float:
        """Over how long a second's requests are spread."""
        whole_ms = max(end_ms - second.at_ms, 1)
        muted_ms = second.throttled_ms / self.lanes
        goes_on = next_ms is not None and next_ms <= end_ms + muted_ms + HELD_MS
        until_ms = next_ms if next_ms is not None and goes_on else end_ms
        unmuted_ms = min(max(until_ms - second.at_ms - muted_ms, 0), whole_ms)
        if self.haste <= 1:
            return whole_ms * (1 - self.haste) + unmuted_ms * self.haste
        return unmuted_ms * (2 - self.haste)


def _end_ms(second: Second) -> int:
    return second.at_ms - second.at_ms % 1000 + 1000


class _Sender:
    """Connections that take requests of one queue; `free` is from when on each may send, a heap."""

    __slots__ = ("_head", "_lent", "_operation", "_requests", "free", "lane")

    def __init__(self, clients: Sequence[_Client]) -> None:
        self.lane = clients[0].name
        self.free = [_LONG_AGO] * sum(client.lanes for client in clients)
        self._requests = merge(*(client.requests() for client in clients), key=lambda request: request.due_ms)
        self._head = next(self._requests, None)
        self._operation = LENT.get(clients[0].quota_type, Operation.CHARGE)
        self._lent: list[tuple[int, float, int]] = []

    def next_ms(self) -> int | None:
        """When the next request goes, or is to be paid; None when there is none."""
        lent_ms = self._lent[0][0] if self._lent else None
        if self._head is None:
            return lent_ms
        due_ms, free_ms = self._head.due_ms, self.free[0]
        next_ms = due_ms if free_ms < due_ms else free_ms + _LAG_MS
        return next_ms if lent_ms is None else min(next_ms, lent_ms)

    def go_on(self, meter: Meter | None, at_ms: int, end_ms: int, events: list[Event]) -> None:
        """Send the next request, or pay for one whose mute is over, now; behind `end_ms` that is as good as paid."""
        if self._lent and self._lent[0][0] <= at_ms:
            _, value, number = heappop(self._lent)
            if meter is None or at_ms >= end_ms:
                return
            throttle_ms = meter.use(Operation.REPAY, value, at_ms)
            event = events[number]
            events[number] = event._replace(throttle_ms=event.throttle_ms + throttle_ms)
        else:
            request = self._head
            assert request is not None
            self._head = next(self._requests, None)
            value, number = request.value, len(events)
            throttle_ms = meter.use(self._operation, value, at_ms) if meter is not None else 0
            lanes = len(self.free)
            events.append(Event(request.client, self.lane, lanes, at_ms, value, throttle_ms, request.refused_ms))
        if throttle_ms:
            heapreplace(self.free, at_ms + throttle_ms)
        if meter is not None and meter.lent:
            heappush(self._lent, (at_ms + throttle_ms, value, number))


def retold(
    windows: Mapping[Hashable, Sequence[Window]],
    rules: Rules,
    quota_type: str,
    limit: float | None,
    per_s: float,
    haste: float,
) -> list[Event]:
    """The events of all who shared a sensor with this limit, in their order; without a limit nothing was throttled.

    Small requests are taken together, by how much of a quota of `per_s` they need. Clients that never stop have one
    queue: Kafka's window forgets a burst at once, and who then comes first takes the room, which may be another one
    than it was live.
    """
    clients = [_Client(name, its, lanes_of(its), quota_type, per_s, haste) for name, its in windows.items()]
    together = [client for client in clients if client.never_stops]
    senders = [_Sender([client]) for client in clients if client not in together]
    if together:
        senders.append(_Sender(together))
    turns = [(at_ms, i) for i, sender in enumerate(senders) if (at_ms := sender.next_ms()) is not None]
    heapify(turns)
    meter = None
    if limit is not None and turns and quota_type not in REFUSED:
        meter = Meter(rules, quota_type, limit, turns[0][0])
    end_ms = max((its[-1].end_ms for its in windows.values()), default=0)
    events: list[Event] = []
    while turns:
        at_ms, i = turns[0]
        senders[i].go_on(meter, at_ms, end_ms, events)
        following_ms = senders[i].next_ms()
        if following_ms is None:
            heappop(turns)
        else:
            heapreplace(turns, (following_ms, i))
    return events


def demands(events: Sequence[Event], quota_type: str, kind: Client) -> Iterator[tuple[Lane, Demand]]:
    """What clients wanted who did this, in order, with the mutes taken out as `pipeline.traced` takes them out."""
    lanes: dict[Hashable, _Wanting] = {}
    operation = REFUSED.get(quota_type)
    for order, event in enumerate(events):
        wanting = lanes.get(event.lane)
        if wanting is None:
            wanting = lanes[event.lane] = _Wanting(event)
        if operation is None:
            demand = wanting.held(event, order, kind)
            demand.operation = LENT.get(quota_type, Operation.CHARGE)
            yield wanting.lane, demand
        else:
            yield wanting.lane, _refused(event, order, operation, kind)


class _Wanting:
    """Connections of one queue; `mutes` are the ends and beginnings of the last mutes of each, a heap."""

    __slots__ = ("lane", "mutes")

    def __init__(self, event: Event) -> None:
        self.lane = Lane(event.client, free=[_LONG_AGO] * event.lanes)
        self.mutes = [(_LONG_AGO, 0)] * event.lanes

    def held(self, event: Event, order: int, kind: Client) -> Demand:
        """The demand behind a request that may have waited for the end of a mute."""
        end_ms, begin_ms = self.mutes[0]
        demand = Demand(event.at_ms, event.value, order, client=event.client)
        if event.at_ms - end_ms <= HELD_MS:
            demand.lag_ms = max(event.at_ms - end_ms, _LAG_MS)
            if kind is Client.PACED:
                demand.due_ms = begin_ms
        if event.throttle_ms:
            heapreplace(self.mutes, (event.at_ms + event.throttle_ms, event.at_ms))
            if kind is Client.GREEDY:
                demand.greedy_until_ms = event.at_ms + event.throttle_ms
        return demand


def _refused(event: Event, order: int, operation: str, kind: Client) -> Demand:
    greedy_until_ms = event.at_ms if kind is Client.GREEDY and event.refused_ms else 0
    due_ms = event.at_ms - event.refused_ms
    return Demand(due_ms, event.value, order, 1, 0, operation, greedy_until_ms, _LAG_MS, True, event.client)
