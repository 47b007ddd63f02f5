"""What the log has of connections that wait, are refused, or end by a mistake of their client: summed up by episode."""

from collections.abc import Callable
from typing import Any

import structlog

from common.printable import printable
from proxy.gate.admission import LimitReached
from proxy.gate.refusals import RefusalEpisode, Refusals
from proxy.gate.stages import IncomingConnection
from proxy.relay.actions import CloseReason
from quotas.connection_quotas import ListenerKey

_FAULTS_OVER_AFTER_MS = 60_000
"""Clients with a wrong setting reconnect more slowly than clients that are refused."""

_MOST_SHARED = 1_000
"""Shared names come from SASL mechanisms, which are few. More names than this are made up by clients."""

_FULL = "limits.max_connections"


class GateLog:
    """Logs the first of each episode; `tell_ended` logs summaries of those that are over.

    `origin_of` a virtual cluster and an address is what a connection counts for: the address, or its prefix.
    """

    def __init__(self, origin_of: Callable[[str, str], str], now_ms: Callable[[], int]) -> None:
        self._origin_of = origin_of
        self._now_ms = now_ms
        self._refusals = Refusals()
        self._limits = Refusals(tells_each=True)
        self._faults = Refusals(_FAULTS_OVER_AFTER_MS, tells_each=True)
        self._unnamed = Refusals(_FAULTS_OVER_AFTER_MS)
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
        origin = self._origin_of(name, incoming.address)
        if self._refusals.note(name, origin, reason.value, self._now_ms()):
            incoming.log.warning("connection_refused", reason=reason.value, detail=printable(detail), counts_as=origin)

    def note_fault(self, key: ListenerKey, address: str, fault: str) -> bool:
        """Count a connection that ended because of a wrong setting of its client. Returns whether to log it.

        `fault` says what is wrong, already cut to the length that is logged.
        """
        name = key.virtual_cluster
        return self._faults.note(name, self._origin_of(name, address), fault, self._now_ms())

    def note_unnamed(self, key: ListenerKey, address: str) -> bool:
        """Count a TLS connection that asked for no server name. Returns whether to log it."""
        name = key.virtual_cluster
        return self._unnamed.note(name, self._origin_of(name, address), "server_name_missing", self._now_ms())

    def note_shared(self, key: ListenerKey, user: str) -> bool:
        """Whether to log that several clients may share this user name because their own names are not visible.

        True the first time for each virtual cluster and name.
        """
        shared = key.virtual_cluster, user
        if shared in self._shared or len(self._shared) >= _MOST_SHARED:
            return False
        self._shared.add(shared)
        return True

    def tell_ended(self) -> None:
        """Log a summary of each episode that is over: of limits reached, refusals, and clients with a wrong setting."""
        now_ms = self._now_ms()
        for episode in self._limits.over(now_ms):
            whose, lasted_ms = _whose(episode.virtual_cluster, episode.origin), episode.last_ms - episode.began_ms
            for path, count in episode.reasons.items():
                number = {"refused" if path == _FULL else "waited": count}
                self._log.info("connection_limit_over", **whose, setting=path, duration_ms=lasted_ms, **number)
        for episode in self._faults.over(now_ms):
            if episode.reasons.total() > len(episode.reasons):  # otherwise each of them was logged
                faults = [f"{count} {fault}" for fault, count in episode.reasons.most_common()]
                self._sum_up("connections_closed", episode, connections=episode.reasons.total(), faults=faults)
        for episode in self._unnamed.over(now_ms):
            if (connections := episode.reasons.total()) > 1:
                self._sum_up("server_names_missing", episode, connections=connections)
        for episode in self._refusals.over(now_ms):
            self._sum_up("connections_refused", episode, **episode.reasons)

    def _sum_up(self, event: str, episode: RefusalEpisode, **more: Any) -> None:
        self._log.info(
            event,
            virtual_cluster=episode.virtual_cluster,
            counts_as=episode.origin,
            duration_ms=episode.last_ms - episode.began_ms,
            **more,
        )


def _whose(virtual_cluster: str, listener: str) -> dict[str, str]:
    """The log keys of a limit's listener; none for a limit of the whole process."""
    return {"virtual_cluster": virtual_cluster, "listener": listener} if listener else {}
