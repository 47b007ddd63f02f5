"""What the log is told of connections that end badly: a line when an address meets that first, one when it is over.

A storm brings more of them in a second than a log can take, and a client with a wrong setting comes again for ever.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

_OVER_AFTER_MS = 10_000
_MOST_EPISODES = 1_000
_MOST_REASONS = 16
OTHERS = "others"
"""Stands for the addresses of a virtual cluster that have no episode of their own, and for further reasons."""


@dataclass(slots=True)
class RefusalEpisode:
    """Refusals of one address, no two of them far apart; how many by reason."""

    virtual_cluster: str
    origin: str
    began_ms: int
    last_ms: int
    reasons: Counter[str] = field(default_factory=Counter)


class Refusals:
    """The episodes that are not over yet, of 1,000 addresses at most: what the others meet is one of each cluster.

    One is over when nothing has come for `over_after_ms`. With `tells_each` each of its reasons is worth a line of its
    own, not only the first. Each counts 16 reasons; what further ones there are is counted together.
    """

    def __init__(self, over_after_ms: int = _OVER_AFTER_MS, tells_each: bool = False) -> None:
        self._over_after_ms = over_after_ms
        self._tells_each = tells_each
        self._episodes: OrderedDict[tuple[str, str], RefusalEpisode] = OrderedDict()
        """The one with the oldest last refusal first."""

    def note(self, virtual_cluster: str, origin: str, reason: str, now_ms: int) -> bool:
        """Count a refusal; whether that is worth a line: an episode begins with it, or meets another reason."""
        key = virtual_cluster, origin
        episode = self._episodes.get(key)
        if episode is None and len(self._episodes) >= _MOST_EPISODES:
            key = virtual_cluster, OTHERS
            episode = self._episodes.get(key)
        begins = episode is None
        if episode is None:
            episode = self._episodes[key] = RefusalEpisode(*key, now_ms, now_ms)
        episode.last_ms = now_ms
        if len(episode.reasons) >= _MOST_REASONS and reason not in episode.reasons:
            reason = OTHERS
        episode.reasons[reason] += 1
        self._episodes.move_to_end(key)
        return begins or (self._tells_each and reason != OTHERS and episode.reasons[reason] == 1)

    def over(self, now_ms: int) -> Iterator[RefusalEpisode]:
        """Those that have ended since this was asked last."""
        while self._episodes:
            episode = next(iter(self._episodes.values()))
            if now_ms - episode.last_ms < self._over_after_ms:
                return
            yield self._episodes.popitem(last=False)[1]
