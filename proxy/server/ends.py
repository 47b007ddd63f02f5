"""How the connections of a listener end: counted by reason, and logged where a log line is worth it."""

import logging
import struct
from socket import SO_LINGER, SOL_SOCKET

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.gate.gate_log import GateLog
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.observe.logs import is_reported
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.server.connection import ORDINARY
from kafka_throttle.quotas.connection_quotas import ListenerKey

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: the kernel drops the bytes of the connection and sends the peer a reset."""

_REFUSED_AT_ONCE = frozenset(
    {
        CloseReason.PROXY_PEER_UNTRUSTED,
        CloseReason.PROXY_HEADER_MISSING,
        CloseReason.PROXY_HEADER_MALFORMED,
        CloseReason.TOO_MANY_PROXY_HEADERS,
        CloseReason.TOO_MANY_HANDSHAKES,
    }
)
"""Reasons for which a stage refuses connections as fast as they come, too fast for one log line each."""

_HUNG_UP = frozenset({CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST})


class ConnectionEnds:
    """Counts in `counts` how many connections ended, by reason; closes and logs those that were never open."""

    def __init__(self, key: ListenerKey, log: GateLog, counts: dict[CloseReason, int]) -> None:
        self._key = key
        self._log = log
        self._counts = counts

    def count(self, reason: CloseReason) -> None:
        """A connection has ended."""
        self._counts[reason] = self._counts.get(reason, 0) + 1

    def is_worth_a_line(self, address: str, reason: CloseReason, detail: str) -> bool:
        """Whether to log an end: the first time for each address and reason, and each time for a bug of the proxy."""
        if reason is CloseReason.INTERNAL_ERROR:
            return True
        return self._log.note_fault(self._key, address, reason, detail)

    def refuse(self, incoming: IncomingConnection, reason: CloseReason, reset: bool = False, detail: str = "") -> None:
        """Close a connection that exceeds a limit. The first refusal of an address is logged, others are counted."""
        if reset:
            incoming.socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        incoming.socket.close()
        self._log.note_refused(self._key, incoming, reason, detail)
        self.count(reason)

    def turn_away(self, incoming: IncomingConnection, reason: CloseReason, detail: str = "") -> None:
        """Close a connection that a stage has refused, or that has ended in one."""
        if reason in _REFUSED_AT_ONCE:
            self.refuse(incoming, reason, detail=detail)
            return
        incoming.socket.close()
        level = self._level_of(incoming, reason, detail)
        if is_reported(level):
            incoming.log.log(level, "connection_closed", reason=reason.value, detail=printable(detail))
        self.count(reason)

    def _level_of(self, incoming: IncomingConnection, reason: CloseReason, detail: str) -> int:
        """The level of the line about an incoming connection that ends: DEBUG if its address repeats a mistake."""
        if reason in ORDINARY and reason not in _HUNG_UP:
            return logging.DEBUG if reason is CloseReason.CLIENT_SENT_NOTHING else logging.INFO
        if not self.is_worth_a_line(incoming.address, reason, detail):
            return logging.DEBUG
        return logging.INFO if reason in _HUNG_UP else logging.WARNING
