"""How many connections each address and each user of a virtual cluster has, and may have."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kafka_throttle.quotas.limits import MAX_CONNECTION_RATE

ADDRESS: Final = "address"
USER: Final = "user"

NO_LIMIT: Final = MAX_CONNECTION_RATE
"""Kafka's default for every rate and every count of connections: 2^31-1."""


class CountKey(NamedTuple):
    """The number of connections of one address or one user; `kind` is ADDRESS or USER."""

    kind: str
    name: str


class OpenConnections(NamedTuple):
    """How many connections are open, of how many that all instances together may have."""

    open: int
    most: int


def _unlimited(_: str) -> int:
    return NO_LIMIT


class ConnectionCounts:
    """The open connections of one virtual cluster, by address and by user.

    `share` makes it enforce a part of each limit. Open connections are never closed for a lower limit.
    """

    def __init__(self) -> None:
        self._open: dict[CountKey, int] = {}
        self._most_of: dict[str, Callable[[str], int]] = {ADDRESS: _unlimited, USER: _unlimited}
        self._allowed: Callable[[CountKey, int], int] | None = None
        self._refused: set[CountKey] = set()

    def limit(self, kind: str, most_of: Callable[[str], int]) -> None:
        """Apply these limits by name from the next connection on."""
        self._most_of[kind] = most_of

    def most_of(self, key: CountKey) -> int:
        """How many connections there may be at all instances together."""
        return self._most_of[key.kind](key.name)

    def enter(self, key: CountKey) -> bool:
        """Whether there may be one more connection here. If so, it is counted."""
        count, most = self._open.get(key, 0), self.most_of(key)
        if self._allowed is not None and most < NO_LIMIT and count >= self._allowed(key, most):
            self._refused.add(key)
            return False
        if count >= most:
            return False
        self._open[key] = count + 1
        return True

    def leave(self, key: CountKey) -> None:
        """A counted connection has ended. Raises ValueError if none is counted."""
        count = self._open.get(key, 0)
        if not count:
            raise ValueError(f"no connection of {key.kind} {key.name} is counted")
        if count == 1:
            del self._open[key]
        else:
            self._open[key] = count - 1

    def open(self, key: CountKey) -> int:
        """How many connections are open here."""
        return self._open.get(key, 0)

    # ------------------------------------------------------------------ shares

    def share(self, allowed: Callable[[CountKey, int], int]) -> None:
        """From now on `allowed` says how many of `most` connections this instance may have."""
        self._allowed = allowed

    def take_refused(self) -> set[CountKey]:
        """The counts of which this instance refused a connection since the last call, because of its share."""
        refused, self._refused = self._refused, set()
        return refused

    def limited(self) -> Iterator[tuple[CountKey, OpenConnections]]:
        """All counts of which connections are open, and that are limited."""
        for key, count in self._open.items():
            if (most := self.most_of(key)) < NO_LIMIT:
                yield key, OpenConnections(count, most)
