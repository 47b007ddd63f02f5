"""Decides which connections of a process that ends are closed, and when."""

from collections.abc import Collection
from typing import Protocol

from kafka_throttle.protocol.api_key import FETCH, JOIN_GROUP, SYNC_GROUP
from kafka_throttle.proxy.relay.actions import CloseReason

_LAST_PART = 0.1
"""The last part of the time, in which no further request is taken."""

_PATIENCE_S = 0.1
"""How long the proxy waits for a response to a request that only waits, for records or for other clients."""

_ONLY_WAITS = frozenset({FETCH, JOIN_GROUP, SYNC_GROUP})
"""APIs whose responses may take minutes, and whose requests clients can repeat without harm."""


class Leaving(Protocol):
    """A connection that is to be closed."""

    opened_ms: int

    @property
    def is_new(self) -> bool:
        """Whether its client has just connected, and has had no response yet."""

    @property
    def oldest_api_key(self) -> int:
        """The API of the response that comes next."""

    def leave(self) -> None:
        """Close the connection at its first idle moment."""

    def finish(self) -> None:
        """Take no further request, and close the connection if all requests that it has taken have responses."""

    def give_up(self, reason: CloseReason) -> None:
        """Close the connection now."""


class Drain:
    """Closes connections from `begin_s` on, for at most `drain_s`.

    While other processes accept the clients, connections are closed when they are idle, the oldest first, spread evenly
    over the time, so that reconnects are spread, too. If none does, the clients wait for the next process, which may
    begin only when this one has ended: then all are closed at once, except new ones and those that wait for a response.
    """

    def __init__(self, begin_s: float, drain_s: float) -> None:
        self._begin_s = begin_s
        self._drain_s = drain_s
        self._most = 0
        self._hurries_since_s: float | None = None

    def has_hurried(self, now_s: float) -> bool:
        """Whether closing has not been spread for a moment: connections whose requests only wait are closed then."""
        return self._hurries_since_s is not None and now_s - self._hurries_since_s > _PATIENCE_S

    def is_over(self, now_s: float) -> bool:
        """Whether the time is over, so that the proxy waits for no further response."""
        return now_s >= self._begin_s + self._drain_s

    def look(self, connections: Collection[Leaving], now_s: float, others_accept: bool) -> None:
        """Close those of the open connections that can be closed now. Call it again and again."""
        passed = (now_s - self._begin_s) / self._drain_s
        if self._hurries_since_s is not None:
            self._finish(connections, self.has_hurried(now_s))
        elif others_accept and passed < 1 - _LAST_PART:
            self._spread(connections, passed)
        else:
            self._hurries_since_s = now_s
            for connection in connections:  # what has come already is still taken
                if not connection.is_new:
                    connection.leave()

    def _spread(self, connections: Collection[Leaving], passed: float) -> None:
        waiting = sorted(connections, key=lambda connection: connection.opened_ms)
        most = self._most = max(self._most, len(waiting))
        due = 1 + int(passed / (1 - _LAST_PART) * most)
        for connection in waiting[: max(due - (most - len(waiting)), 0)]:
            connection.leave()

    def _finish(self, connections: Collection[Leaving], had_time: bool) -> None:
        for connection in connections:
            if not connection.is_new:
                connection.finish()
            if had_time and connection.oldest_api_key in _ONLY_WAITS:
                connection.give_up(CloseReason.SHUTDOWN)
