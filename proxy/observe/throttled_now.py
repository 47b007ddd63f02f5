"""The page of clients that are throttled now. It is worked out in steps, because there may be very many of them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.forms import ThrottledForm, ThrottledPage
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.observe.throttled_line import ThrottledLine, measured
from kafka_throttle.quotas.changes import Quotas
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_quotas import RateKey
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.token_buckets import BucketReading
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading
from kafka_throttle.quotas.shares.member import Explained

MAX_THROTTLED = 1_000
"""The most throttled clients in one response."""

_PER_STEP = 200
"""How many episodes, or clients in the response, one step reads: a few ms."""


class Cluster(Protocol):
    """What is needed of a virtual cluster: its quotas, what they measure, and whom they throttle."""

    name: str
    quota_manager: ClientQuotaManager
    throttled: ThrottledClients
    is_one_of_several: bool
    """Whether other instances serve clients with the same quotas."""

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open."""

    def share_of(self, row: SensorKey | RateKey) -> Explained | None:
        """The share of a limit that this instance enforces, and why; None if it has no fleet."""

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""

    @property
    def origin(self) -> Origin:
        """The source of the quotas, and its problems."""


@dataclass(slots=True)
class ThrottledClient:
    """The throttle episodes of one client by one quota at one node, on all its connections."""

    cluster: Cluster
    first: PastThrottle
    began_ms: int
    ends_ms: int
    connections: int = 0
    throttles: int = 0
    throttled_ms: int = 0

    def add(self, episode: ThrottleEpisode, now_ms: int) -> None:
        """Add the episode of one connection."""
        if episode.began_ms < self.began_ms:
            self.first, self.began_ms = episode.first, episode.began_ms
        self.ends_ms = max(self.ends_ms, episode.ends_ms)
        self.connections += 1
        self.throttles += episode.throttles
        self.throttled_ms += episode.muted_ms(now_ms)

    def reading(self, now_ms: int) -> SensorReading | BucketReading | None:
        """The present measurement of the quota; None for a throttle of the node, or if the sensor is closed."""
        sensor = self.first.sensor
        return None if sensor is None else self.cluster.quota_manager.reading(sensor, now_ms)

    def used_share(self, now_ms: int) -> float:
        """What is used of the quota, as a share of its limit."""
        reading = self.reading(now_ms)
        return 0.0 if reading is None else used_share(reading)

    def line(self, now_ms: int) -> ThrottledLine:
        """What is reported of the client."""
        reading = self.reading(now_ms)
        return ThrottledLine(
            self.first,
            *measured(reading),
            left_ms=max(self.ends_ms - now_ms, 0),
            throttles=self.throttles,
            throttled_ms=self.throttled_ms,
            connections=self.connections,
            share=self._share(),
        )

    def _share(self) -> float | None:
        sensor = self.first.sensor
        explained = None if sensor is None else self.cluster.share_of(sensor)
        return None if explained is None else explained.share

    def form(self, now_ms: int) -> ThrottledForm:
        """As JSON. The limit is the one that the rule has now, or that a removed rule had when the throttle began."""
        cluster = self.cluster
        return self.line(now_ms).form(cluster.name, cluster.origin.source, cluster.quotas)


def used_share(reading: SensorReading | BucketReading) -> float:
    """What is used of a quota, as a share of its limit; for a token bucket, how much of the bucket is missing."""
    if not 0 < reading.limit < UNLIMITED:
        return 0.0
    if isinstance(reading, BucketReading):
        return (reading.burst - reading.tokens) / reading.burst
    return reading.rate / reading.limit


class Rank(NamedTuple):
    """An order of the page: what the first client has, in words, and the number that is highest for it."""

    first: str
    number: Callable[[ThrottledClient, int], float]


RANKS: Final[Mapping[str, Rank]] = {
    "left": Rank("longest wait", lambda client, now_ms: client.ends_ms),
    "rate": Rank("highest use", lambda client, now_ms: client.used_share(now_ms)),
    "since": Rank("oldest throttle", lambda client, now_ms: -client.began_ms),
    "throttled": Rank("longest throttled", lambda client, now_ms: client.throttled_ms),
}
"""By the value of the parameter `sort`. The use is a share of the limit; `throttled` is the time for which the client
was muted since its throttle began."""


def throttled_form(
    clusters: Sequence[Cluster], sort: str, most: int, clock: Clock
) -> Generator[None, None, ThrottledPage]:
    """The first `most` lines in the order `sort`, one for each client, quota and node; and how many more there are.

    Works in steps. `clients` counts a client once, by however many quotas and at however many nodes it is throttled.
    `quotas_unknown` has the origins of quotas that are not known yet.
    """
    rank, total, looked_at = RANKS[sort].number, 0, 0
    first: list[tuple[float, int, ThrottledClient]] = []
    for cluster in clusters:
        for episodes in cluster.throttled.by_client():
            client = ThrottledClient(cluster, episodes[0].first, episodes[0].began_ms, episodes[0].ends_ms)
            for episode in episodes:
                client.add(episode, clock.now_ms())
                looked_at += 1
                if not looked_at % _PER_STEP:
                    first = nlargest(most, first)
                    yield
            first.append((rank(client, clock.now_ms()), -total, client))
            total += 1
    forms: list[ThrottledForm] = []
    for number_of_forms, (_, _, client) in enumerate(nlargest(most, first), 1):
        forms.append(client.form(clock.now_ms()))
        if not number_of_forms % _PER_STEP:
            yield
    return {
        "sort": sort,
        "clients": sum(cluster.throttled.clients for cluster in clusters),
        "total": total,
        "more": total - len(forms),
        "throttled": forms,
        "quotas_unknown": [cluster.origin.form() for cluster in clusters if not cluster.origin.known],
        "connections": sum(cluster.open_connections for cluster in clusters),
        "entities": sum(len(cluster.quota_manager.table) for cluster in clusters),
        "other_instances": any(cluster.is_one_of_several for cluster in clusters),
    }
