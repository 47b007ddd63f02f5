"""What the log is told of refused connections: a line when an address is refused first, and one when that is over.

A storm brings more of them in a second than a log can take.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

_OVER_AFTER_MS = 10_000
_MOST_EPISODES = 1_000
OTHERS = "others"
"""Stands for the addresses of a virtual cluster that have no episode of their own."""


@dataclass(slots=True)
class RefusalEpisode:
    """Refusals of one address, no two of them further apart than 10 s; how many by reason."""

    virtual_cluster: str
    origin: str
    began_ms: int
    last_ms: int
    reasons: Counter[str] = field(default_factory=Counter)


class Refusals:
    """The episodes that are not over yet, of 1,000 addresses at most: what the others meet is one of each cluster."""

    def __init__(self) -> None:
        self._episodes: OrderedDict[tuple[str, str], RefusalEpisode] = OrderedDict()
        """The one with the oldest last refusal first."""

    def note(self, virtual_cluster: str, origin: str, reason: str, now_ms: int) -> bool:
        """Count a refusal; whether an episode begins with it."""
        key = virtual_cluster, origin
        episode = self._episodes.get(key)
        if episode is None and len(self._episodes) >= _MOST_EPISODES:
            key = virtual_cluster, OTHERS
            episode = self._episodes.get(key)
        begins = episode is None
        if episode is None:
            episode = self._episodes[key] = RefusalEpisode(*key, now_ms, now_ms)
        episode.last_ms = now_ms
        episode.reasons[reason] += 1
        self._episodes.move_to_end(key)
        return begins

    def over(self, now_ms: int) -> Iterator[RefusalEpisode]:
        """Those that have ended since this was asked last."""
        while self._episodes:
            episode = next(iter(self._episodes.values()))
            if now_ms - episode.last_ms < _OVER_AFTER_MS:
                return
            yield self._episodes.popitem(last=False)[1]
