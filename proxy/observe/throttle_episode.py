"""Who is throttled now: the throttle episodes of open connections."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.quotas.client_quotas import SensorKey

_OVER_AFTER_MS = 11_000
"""An episode is over when a whole quota window has passed since its last mute ended."""

_MOST_ENDED = 100_000
"""So many episodes that have ended are kept, in case that nobody takes them any more."""

_Counted = TypeVar("_Counted")


@dataclass(slots=True, eq=False)
class ThrottleEpisode:
    """A run of throttles of one connection by one quota, without a pause as long as a quota window between them.

    The quota is named by the `first` throttle. `began_ms` and `ends_ms`, the end of the last mute, are monotonic.
    `throttled_ms` is for how long the quota mutes the client in all; mutes that overlap count once.
    """

    first: PastThrottle
    began_ms: int
    ends_ms: int
    throttles: int = 0
    throttled_ms: int = 0
    longest_throttle_time_ms: int = 0
    _taken: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    """What `take` has returned, added up."""

    def note(self, throttle_time_ms: int, now_ms: int) -> None:
        """Count a throttle."""
        until_ms = now_ms + throttle_time_ms
        self.throttles += 1
        self.throttled_ms += max(until_ms - max(self.ends_ms, now_ms), 0)
        self.ends_ms = max(self.ends_ms, until_ms)
        self.longest_throttle_time_ms = max(self.longest_throttle_time_ms, throttle_time_ms)

    def over(self, now_ms: int) -> bool:
        """True when its last mute ended a quota window ago."""
        return now_ms - self.ends_ms > _OVER_AFTER_MS

    def muted_ms(self, now_ms: int) -> int:
        """For how long the quota has muted the client until now."""
        return self.throttled_ms - max(self.ends_ms - now_ms, 0)

    def take(self, now_ms: int) -> "Throttling":
        """What has come since the last call."""
        throttles, given_ms, muted_ms = self._taken
        self._taken = self.throttles, self.throttled_ms, self.muted_ms(now_ms)
        return Throttling(self.throttles - throttles, self.throttled_ms - given_ms, self._taken[2] - muted_ms)

    def names(self) -> dict[str, str | int | None]:
        """The keys of both log lines: the client, and the quota that throttles it."""
        first = self.first
        return {
            "user": printable(first.user),
            "client_id": printable(first.client_id),
            "node_id": first.node_id,
            "quota_type": first.quota_name,
            "entity": None if first.entity is None else str(first.entity),
        }

    def summary(self, now_ms: int) -> dict[str, int]:
        """The other keys of the log line at its end. A connection may close while a mute still lasts."""
        return {
            "throttles": self.throttles,
            "longest_throttle_time_ms": self.longest_throttle_time_ms,
            "throttled_ms": self.muted_ms(now_ms),
            "duration_ms": min(self.ends_ms, now_ms) - self.began_ms,
        }


class Throttling(NamedTuple):
    """How much a client was throttled in some time.

    `given_ms` is the throttle time that `throttles` gave, `muted_ms` is for how long the client was muted.
    """

    throttles: int
    given_ms: int
    muted_ms: int


class ThrottledClients:
    """The throttle episodes of one virtual cluster that are not over, by client and quota."""

    def __init__(self) -> None:
        self.keeps_ended = False
        """Whether episodes that end are kept until `take_ended`."""
        self._ended: list[tuple[ThrottleEpisode, Throttling]] = []
        self._episodes: dict[tuple[object, ...], set[ThrottleEpisode]] = {}
        self._of_sensor: Counter[SensorKey | None] = Counter()
        """How many episodes each sensor has."""
        self._of_client: Counter[tuple[str, str]] = Counter()
        """How many episodes each user and client-id has, by whatever quota at whatever node."""

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def clients(self) -> int:
        """How many clients are throttled: a client is a user with a client-id."""
        return len(self._of_client)

    def throttles(self, sensor: SensorKey) -> bool:
        """Whether a sensor throttles any client now."""
        return sensor in self._of_sensor

    def throttles_client(self, user: str, client_id: str) -> bool:
        """Whether a client is throttled now, by whatever quota at whatever node."""
        return (user, client_id) in self._of_client

    def sensors(self) -> Iterator[SensorKey]:
        """The sensors that throttle clients now. Others may begin and end to do so between two items."""
        return (sensor for sensor in list(self._of_sensor) if sensor is not None)

    def add(self, episode: ThrottleEpisode) -> None:
        """An episode has begun."""
        first = episode.first
        self._of_sensor[first.sensor] += 1
        self._of_client[first.user, first.client_id] += 1
        self._episodes.setdefault(client_and_quota(episode), set()).add(episode)

    def remove(self, episode: ThrottleEpisode, now_ms: int) -> None:
        """An episode is over, or its connection has closed."""
        if self.keeps_ended and len(self._ended) < _MOST_ENDED and any(came := episode.take(now_ms)):
            self._ended.append((episode, came))
        first, key = episode.first, client_and_quota(episode)
        _count_down(self._of_sensor, first.sensor)
        _count_down(self._of_client, (first.user, first.client_id))
        episodes = self._episodes[key]
        episodes.remove(episode)
        if not episodes:
            del self._episodes[key]

    def take_ended(self) -> list[tuple[ThrottleEpisode, Throttling]]:
        """The episodes that have ended since the last call, with what had not been taken of them."""
        ended, self._ended = self._ended, []
        return ended

    def by_client(self) -> Iterator[list[ThrottleEpisode]]:
        """The episodes of each client and quota, one for each connection.

        Episodes may begin and end between two items. Those that end meanwhile are left out, or are still there.
        """
        for episodes in list(self._episodes.values()):
            if episodes:
                yield list(episodes)


def client_and_quota(episode: ThrottleEpisode) -> tuple[object, ...]:
    """What the episodes of one client by one quota have in common."""
    return (*episode.first.cause, episode.first.client_id)


def _count_down(counter: Counter[_Counted], key: _Counted) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
