"""Who was throttled in the second that is just over: read once a second from the throttle episodes of connections."""

from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappush, heapreplace

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.past.records import Others, PastLine, ThrottledIn
from kafka_throttle.proxy.observe.throttle_episode import (
    ThrottledClients,
    ThrottleEpisode,
    Throttling,
    client_and_quota,
)
from kafka_throttle.proxy.observe.throttled_line import ThrottledLine, measured
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey

MAX_LINES = 1_000
"""The most lines of a second; the others are summed up."""

_PER_STEP = 500
"""How many episodes one step reads."""
_LINES_PER_STEP = 100


@dataclass(slots=True)
class _Client:
    """One client and quota in this second, on all connections."""

    first: PastThrottle
    began_ms: int
    ends_ms: int
    connections: int = 0
    throttles: int = 0
    given_ms: int = 0
    throttled_ms: int = 0

    def add(self, episode: ThrottleEpisode, came: Throttling) -> None:
        """Add what came on one connection."""
        if episode.began_ms < self.began_ms:
            self.first, self.began_ms = episode.first, episode.began_ms
        self.ends_ms = max(self.ends_ms, episode.ends_ms)
        self.connections += 1
        self.throttles += came.throttles
        self.given_ms += came.given_ms
        self.throttled_ms += came.muted_ms


class SecondsOfCluster:
    """Reads the seconds of one virtual cluster, one after the other."""

    def __init__(self, throttled: ThrottledClients, quota_manager: ClientQuotaManager, most: int = MAX_LINES) -> None:
        throttled.keeps_ended = True
        self._throttled = throttled
        self._quota_manager = quota_manager
        self._most = most
        self._totals: dict[SensorKey, float] = {}
        """What the sensors of the last second's lines had been charged in all."""

    def take(self, clock: Clock) -> Generator[None, None, ThrottledIn]:
        """What came since the last call, in steps. Nothing is read of clients that are not throttled."""
        most: list[tuple[int, int, _Client]] = []
        others = Others()
        number = looked_at = 0
        ended = self._ended(clock.now_ms())
        for episodes in self._throttled.by_client():
            client = ended.pop(client_and_quota(episodes[0]), None) if ended else None
            now_ms = clock.now_ms()
            for episode in episodes:
                looked_at += 1
                if any(came := episode.take(now_ms)):
                    client = client or _Client(episode.first, episode.began_ms, episode.ends_ms)
                    client.add(episode, came)
                if not looked_at % _PER_STEP:
                    yield
            if client is not None:
                number += 1
                self._put(most, number, client, others)
        for client in ended.values():
            number += 1
            self._put(most, number, client, others)
        return ThrottledIn((yield from self._lines(most, clock)), others)

    def _ended(self, now_ms: int) -> dict[tuple[object, ...], _Client]:
        """The clients of episodes that ended in this second. They are not muted any more."""
        found: dict[tuple[object, ...], _Client] = {}
        for episode, came in self._throttled.take_ended():
            client = found.setdefault(client_and_quota(episode), _Client(episode.first, episode.began_ms, now_ms))
            client.add(episode, came)
            client.ends_ms = now_ms
        return found

    def _put(self, most: list[tuple[int, int, _Client]], number: int, client: _Client, others: Others) -> None:
        """Add a client to a heap of those that were muted for longest. What has no room in it goes to `others`."""
        entry = (client.throttled_ms, -number, client)
        if len(most) < self._most:
            heappush(most, entry)
            return
        left_out = heapreplace(most, entry)[2] if entry > most[0] else client
        others.lines += 1
        others.throttles += left_out.throttles
        others.given_ms += left_out.given_ms
        others.throttled_ms += left_out.throttled_ms

    def _lines(self, most: list[tuple[int, int, _Client]], clock: Clock) -> Generator[None, None, list[PastLine]]:
        lines: list[PastLine] = []
        totals: dict[SensorKey, float] = {}
        for _, _, client in sorted(most, reverse=True):
            lines.append(self._line(client, totals, clock.now_ms()))
            if not len(lines) % _LINES_PER_STEP:
                yield
        self._totals = totals
        return lines

    def _line(self, client: _Client, totals: dict[SensorKey, float], now_ms: int) -> PastLine:
        sensor = client.first.sensor
        reading = None if sensor is None else self._quota_manager.reading(sensor, now_ms)
        charged = None
        if sensor is not None and reading is not None:
            totals[sensor] = reading.total
            before = self._totals.get(sensor)
            charged = None if before is None else reading.total - before
        line = ThrottledLine(
            client.first,
            *measured(reading),
            left_ms=max(client.ends_ms - now_ms, 0),
            throttles=client.throttles,
            throttled_ms=client.throttled_ms,
            connections=client.connections,
        )
        return PastLine(line, client.given_ms, charged)
