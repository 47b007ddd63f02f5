"""A sensor and the connections of one queue, which nobody shares it with: the clients that were held live, mostly.

What comes of that is what `replay.SensorReplay` makes of what `recorded.demands` says, to the last bit; only there is
nobody to take turns with, so nothing is queued and no demand is kept.
"""

from collections.abc import Hashable, Sequence
from heapq import heapreplace

from pipeline.meter import Meter
from pipeline.recorded import LENT, REFUSED, Event, held
from pipeline.replay import GAP_MS, Throttling
from pipeline.traced import Client
from quotas.trace import Operation

_LONG_AGO = -(2**62)


def is_queue(events: Sequence[Event], quota_type: str) -> bool:
    """Whether all of these went by one queue, and were held, not refused."""
    return quota_type not in REFUSED and len({event.lane for event in events}) == 1


class QueueReplay:
    """One sensor and one queue; `clients` and `all` are what came of it."""

    def __init__(self, meter: Meter, quota_type: str) -> None:
        self.clients: dict[Hashable, Throttling] = {}
        self.all = Throttling()
        self.waiting = 0
        """1 if something was left to send."""
        self._meter = meter
        self._is_lending = quota_type in LENT
        self._use = meter.using(LENT.get(quota_type, Operation.CHARGE))
        self._free: list[int] = []

    def run(self, events: Sequence[Event], kind: Client, until_ms: int) -> None:
        """All of a queue, up to a time."""
        lanes = events[0].lanes
        free = self._free = [_LONG_AGO] * lanes
        mutes = [(_LONG_AGO, 0)] * lanes
        clients = self.clients
        for event in events:
            now_ms, lag_ms, greedy_until_ms = held(event, mutes, kind)
            if free[0] > now_ms:
                now_ms = free[0] + lag_ms
            client = clients.get(event.client)
            if client is None and now_ms < until_ms:
                client = clients[event.client] = Throttling()
            if client is None or not self._send(client, event.value, now_ms, greedy_until_ms, until_ms):
                self.waiting = 1
                return

    def _send(self, client: Throttling, value: float, now_ms: int, greedy_until_ms: int, until_ms: int) -> bool:
        """One request and, of who is greedy until then, more of it; whether there was time for that."""
        use, free, everybody = self._use, self._free, self.all
        while now_ms < until_ms:
            client.used += value
            client.requests += 1
            everybody.used += value
            everybody.requests += 1
            throttle_ms = use(value, now_ms)
            if throttle_ms:
                self._mute(client, throttle_ms, now_ms)
            due_ms = max(free[0], now_ms) + GAP_MS if greedy_until_ms else 0
            if self._is_lending and self._meter.lent and not self._pay(client, value, now_ms + throttle_ms, until_ms):
                return False
            if due_ms >= greedy_until_ms:
                return True
            now_ms = max(due_ms, free[0])
        return False

    def _pay(self, client: Throttling, value: float, now_ms: int, until_ms: int) -> bool:
        """Try to pay what was lent until it is paid; whether there was time for that."""
        while (now_ms := max(now_ms, self._free[0])) < until_ms:
            throttle_ms = self._meter.use(Operation.REPAY, value, now_ms)
            if throttle_ms:
                self._mute(client, throttle_ms, now_ms)
            if not self._meter.lent:
                return True
            now_ms += throttle_ms
        return False

    def _mute(self, client: Throttling, throttle_ms: int, now_ms: int) -> None:
        client.add(throttle_ms, now_ms)
        self.all.add(throttle_ms, now_ms)
        heapreplace(self._free, now_ms + throttle_ms)
