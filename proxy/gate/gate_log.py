"""What the log has of connections that wait, are refused, or end by a fault: summed up by episode."""

from collections.abc import Callable
from itertools import chain

import structlog

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.gate.admission import LimitReached
from kafka_throttle.proxy.gate.refusals import RefusalEpisode, Refusals
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import ListenerKey

_FAULTS_OVER_AFTER_MS = 60_000
"""Clients with a wrong setting reconnect more slowly than clients that are refused."""

_MOST_SHARED = 1_000
"""Shared names come from SASL mechanisms, which are few. More names than this are made up by clients."""

_FULL = "limits.max_connections"

_SAME_FOR_ALL = frozenset(
    {
        CloseReason.NODE_UNREACHABLE,
        CloseReason.NODE_UNKNOWN,
        CloseReason.NODE_PACED,
        CloseReason.NODE_CERTIFICATE_REFUSED,
        CloseReason.NODE_TLS_FAILED,
        CloseReason.RESPONSE_NOT_KAFKA,
        CloseReason.QUOTAS_UNKNOWN,
    }
)
"""Faults of a node or of the proxy, which all clients meet: one episode for all of them, not one for each address."""
_ALL_CLIENTS = "all clients"

_LINES_OF_SHORT = 10
"""How many connections that their clients soon ended have a line, of each address in a minute: they may be right."""


class GateLog:
    """Logs the first of each kind; `sum_up` logs a sum of each episode that is over, and once a minute of the others.

    `origin_of` a virtual cluster and an address is what a connection counts for: the address, or its prefix.
    """

    def __init__(self, origin_of: Callable[[str, str], str], now_ms: Callable[[], int]) -> None:
        self._origin_of = origin_of
        self._now_ms = now_ms
        self._refusals = Refusals()
        self._limits = Refusals()
        self._faults = Refusals(_FAULTS_OVER_AFTER_MS)
        self._unnamed = Refusals(_FAULTS_OVER_AFTER_MS)
        self._denied = Refusals(_FAULTS_OVER_AFTER_MS)
        self._shared: set[tuple[str, str]] = set()
        self._log = structlog.get_logger()

    def note_limit(self, reached: LimitReached) -> None:
        """Log that a limit of the instance or of a listener is reached. Further connections that wait are counted."""
        name, listener = reached.listener or ("", "")
        path = f"listeners[].connections.{reached.setting}" if listener else f"connections.{reached.setting}"
        if self._limits.note(name, listener, path, self._now_ms()):
            whose = _whose(name, listener)
            self._log.warning("connection_limit_reached", **whose, setting=path, limit=reached.limit, others="wait")

    def note_full(self, limit: int) -> None:
        """Log that the process has as many client sockets as it may have; further refusals are only counted."""
        if self._limits.note("", "", _FULL, self._now_ms()):
            self._log.warning("connection_limit_reached", setting=_FULL, limit=limit, others="are closed at once")

    def note_refused(self, key: ListenerKey, incoming: IncomingConnection, reason: CloseReason, detail: str) -> None:
        """Log the first refusal of an address, and count the others."""
        name = key.virtual_cluster
        if reason in _SAME_FOR_ALL:
            origin, is_first = _ALL_CLIENTS, self.note_fault(key, incoming.address, reason, detail)
        else:
            origin = self._origin_of(name, incoming.address)
            is_first = self._refusals.note(name, origin, reason.value, self._now_ms())
        if is_first:
            incoming.log.warning("connection_refused", reason=reason.value, detail=printable(detail), counts_as=origin)

    def note_fault(self, key: ListenerKey, address: str, reason: CloseReason, detail: str) -> bool:
        """Count a connection that ended by a fault of its client, its node or the proxy, or that its client soon ended.

        Returns whether to log it. `detail` says what is wrong.
        """
        name, fault = key.virtual_cluster, printable(f"{reason.value}: {detail}" if detail else reason.value)
        origin = _ALL_CLIENTS if reason in _SAME_FOR_ALL else self._origin_of(name, address)
        is_short = reason is CloseReason.CLIENT_LOST or (reason is CloseReason.CLIENT_CLOSED and not detail)
        lines = _LINES_OF_SHORT if is_short else 1
        return self._faults.note(name, origin, fault, self._now_ms(), lines)

    def note_unnamed(self, key: ListenerKey, address: str) -> bool:
        """Count a TLS connection that asked for no server name. Returns whether to log it."""
        name = key.virtual_cluster
        return self._unnamed.note(name, self._origin_of(name, address), "server_name_missing", self._now_ms())

    def note_denied(self, key: ListenerKey, address: str, api: str, user: str) -> bool:
        """Count a request about quotas that its user has no right to make. Returns whether to log it."""
        name = key.virtual_cluster
        return self._denied.note(name, self._origin_of(name, address), f"{api} of {printable(user)}", self._now_ms())

    def note_shared(self, key: ListenerKey, user: str) -> bool:
        """Whether to log that several clients may share this user name because their own names are not visible.

        True the first time for each virtual cluster and name.
        """
        shared = key.virtual_cluster, user
        if shared in self._shared or len(self._shared) >= _MOST_SHARED:
            return False
        self._shared.add(shared)
        return True

    def sum_up(self) -> None:
        """Log a summary of each episode that is over or has gone on for a minute: limits reached, refusals, faults."""
        now_ms = self._now_ms()
        for episode in self._limits.over(now_ms):
            whose, lasted_ms = _whose(episode.virtual_cluster, episode.origin), episode.last_ms - episode.began_ms
            for path, count in episode.reasons.items():
                number = {"refused" if path == _FULL else "waited": count}
                self._log.info("connection_limit_over", **whose, setting=path, duration_ms=lasted_ms, **number)
        for episode in chain(self._faults.over(now_ms), self._faults.going_on(now_ms)):
            if episode.unlogged:
                total = episode.reasons.total()
                self._log.info("connections_closed", **_span(episode), connections=total, faults=_counted(episode))
        for episode in chain(self._unnamed.over(now_ms), self._unnamed.going_on(now_ms)):
            if episode.unlogged:
                self._log.info("server_names_missing", **_span(episode), connections=episode.reasons.total())
        for episode in chain(self._denied.over(now_ms), self._denied.going_on(now_ms)):
            if episode.unlogged:
                self._log.info("quota_requests_denied", **_span(episode), requests=_counted(episode))
        for episode in chain(self._refusals.over(now_ms), self._refusals.going_on(now_ms)):
            self._log.info("connections_refused", **_span(episode), **episode.reasons)


def _counted(episode: RefusalEpisode) -> list[str]:
    """The reasons of an episode, each with its number, the most frequent first."""
    return [f"{count} {reason}" for reason, count in episode.reasons.most_common()]


def _span(episode: RefusalEpisode) -> dict[str, str | int]:
    """The log keys of every summary: which connections it counts, and for how long they came."""
    return {
        "virtual_cluster": episode.virtual_cluster,
        "counts_as": episode.origin,
        "duration_ms": episode.last_ms - episode.began_ms,
    }


def _whose(virtual_cluster: str, listener: str) -> dict[str, str]:
    """The log keys of a limit's listener; none for a limit of the whole process."""
    return {"virtual_cluster": virtual_cluster, "listener": listener} if listener else {}
