"""Limits the log lines about connections of one address: so many of each kind, then a sum once a minute and at the end.

In a connection storm there are more refusals in a second than a log can take, and a client with a wrong setting
reconnects for ever.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_OVER_AFTER_MS = 10_000
_MOST_EPISODES = 1_000
_SUMMED_UP_EVERY_MS = 60_000
_MOST_REASONS = 16
OTHERS = "others"
"""In place of the addresses of a virtual cluster that have no separate episode, and of further reasons."""


@dataclass(slots=True)
class RefusalEpisode:
    """A run of refusals of one address without a long pause between them, counted by reason.

    What was counted since the last sum began at `began_ms`; `unlogged` of it had no log line. `known` are all reasons.
    """

    virtual_cluster: str
    origin: str
    began_ms: int
    last_ms: int
    reasons: Counter[str] = field(default_factory=Counter)
    unlogged: int = 0
    known: set[str] = field(default_factory=set)


class Refusals:
    """The episodes that are not over. At most 1,000 addresses have one; the others of a virtual cluster share one.

    An episode is over when nothing was refused for `over_after_ms`. It counts 16 reasons; further reasons are counted
    together, and have no log line.
    """

    def __init__(self, over_after_ms: int = _OVER_AFTER_MS) -> None:
        self._over_after_ms = over_after_ms
        self._episodes: OrderedDict[tuple[str, str], RefusalEpisode] = OrderedDict()
        """Ordered by the time of the last refusal, the oldest first."""

    def note(self, virtual_cluster: str, origin: str, reason: str, now_ms: int, lines: int = 1) -> bool:
        """Count a refusal. Returns whether to log it: so many `lines` of a reason are logged before the next sum."""
        key = virtual_cluster, origin
        episode = self._episodes.get(key)
        if episode is None and len(self._episodes) >= _MOST_EPISODES:
            key = virtual_cluster, OTHERS
            episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = RefusalEpisode(*key, now_ms, now_ms)
        episode.last_ms = now_ms
        if len(episode.known) >= _MOST_REASONS and reason not in episode.known:
            reason = OTHERS
        is_logged = reason != OTHERS and episode.reasons[reason] < lines
        episode.known.add(reason)
        episode.reasons[reason] += 1
        episode.unlogged += not is_logged
        self._episodes.move_to_end(key)
        return is_logged

    def over(self, now_ms: int) -> Iterator[RefusalEpisode]:
        """Remove the episodes that are over. Returns those of which something was not returned by `going_on`."""
        while self._episodes:
            episode = next(iter(self._episodes.values()))
            if now_ms - episode.last_ms < self._over_after_ms:
                return
            self._episodes.popitem(last=False)
            if episode.reasons:
                yield episode

    def going_on(self, now_ms: int) -> Iterator[RefusalEpisode]:
        """The episodes that are not over, each once a minute if a refusal had no log line. Their counts begin anew."""
        for episode in self._episodes.values():
            if episode.unlogged and now_ms - episode.began_ms >= _SUMMED_UP_EVERY_MS:
                yield replace(episode)
                episode.began_ms, episode.reasons, episode.unlogged = now_ms, Counter(), 0
