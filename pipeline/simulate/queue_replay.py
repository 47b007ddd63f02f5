"""A sensor and the connections of one queue, which nobody shares it with: the clients that were held live, mostly.

What comes of that is what `replay.SensorReplay` makes of what `recorded.demands` says, to the last bit; only there is
nobody to take turns with, so nothing is queued and no demand is kept.
"""

from collections.abc import Hashable, Iterator, Sequence
from heapq import heapreplace

from pipeline.simulate.meter import Meter
from pipeline.simulate.recorded import REFUSED, Event, held
from pipeline.simulate.replay import GAP_MS, Throttling
from pipeline.simulate.traced import Client
from quotas.records.trace import Operation

_LONG_AGO = -(2**62)


def is_queue(events: Sequence[Event], quota_type: str) -> bool:
    """Whether all of these went by one queue, and were held, not refused."""
    return quota_type not in REFUSED and len({event.lane for event in events}) == 1


class QueueReplay:
    """One sensor and one queue; `clients` and `all` are what came of it."""

    def __init__(self, meter: Meter) -> None:
        self.clients: dict[Hashable, Throttling] = {}
        self.all = Throttling()
        self.waiting = 0
        """1 if something was left to send."""
        self._use_each = meter.using(Operation.CHARGE)
        self._free: list[int] = []
        self._free_ms = _LONG_AGO
        """From when on the next request might have gone."""
        self._last = (Throttling(), 0)
        """Whose the last request was, and when it went."""

    def run(self, events: Sequence[Event], kind: Client, until_ms: int) -> None:
        """All of a queue, up to a time."""
        self._free = [_LONG_AGO] * events[0].lanes
        sends = self._sends(events, kind, until_ms)
        while throttle_ms := self._use_each(sends):
            client, now_ms = self._last
            self._mute(client, throttle_ms, now_ms)
            self._free_ms = self._free[0]

    def _sends(self, events: Sequence[Event], kind: Client, until_ms: int) -> Iterator[tuple[int, float]]:
        """When each request goes, and its value; of who is greedy, more of it."""
        mutes = [(_LONG_AGO, 0)] * events[0].lanes
        free, clients, everybody = self._free, self.clients, self.all
        for event in events:
            now_ms, lag_ms, greedy_until_ms = held(event, mutes, kind)
            if free[0] > now_ms:
                now_ms = free[0] + lag_ms
            value = event.value
            while now_ms < until_ms:
                client = clients.get(event.client)
                if client is None:
                    client = clients[event.client] = Throttling()
                client.used += value
                client.requests += 1
                everybody.used += value
                everybody.requests += 1
                self._last = client, now_ms
                yield now_ms, value
                if not greedy_until_ms:
                    break
                due_ms = max(self._free_ms, now_ms) + GAP_MS
                if due_ms >= greedy_until_ms:
                    break
                now_ms = max(due_ms, free[0])
            else:
                self.waiting = 1
                return

    def _mute(self, client: Throttling, throttle_ms: int, now_ms: int) -> None:
        client.add(throttle_ms, now_ms)
        self.all.add(throttle_ms, now_ms)
        heapreplace(self._free, now_ms + throttle_ms)
