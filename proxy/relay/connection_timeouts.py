"""The timeouts of a client: to send a first byte, the rest of a request or the next one, and to read its responses.

Connections are checked now and then, by numbers that relays and streams count anyway: this costs nothing per request.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from kafka_throttle.proxy.relay.actions import CloseReason

CROWDED_REQUEST_MS: Final = 5_000
"""How long the rest of a request may take while other relays wait for memory, in ms."""


class WaitingFor(Enum):
    """What the proxy waits for. NOTHING: the proxy or the node must act next, or the client is muted."""

    NOTHING = "nothing"
    FIRST_BYTE = "first_byte"
    REQUEST = "request"
    """The rest of a request that has begun."""
    CROWDED_REQUEST = "crowded_request"
    """The rest of a request that holds memory for which other relays wait."""
    USE = "use"


@dataclass(frozen=True, slots=True)
class TimeOuts:
    """The timeouts in ms; 0: no timeout."""

    first_byte_ms: int = 0
    request_ms: int = 0
    idle_ms: int = 0
    unread_ms: int = 0

    def of(self, waiting_for: WaitingFor) -> int:
        """How long the proxy waits for it."""
        if waiting_for is WaitingFor.REQUEST:
            return self.request_ms
        if waiting_for is WaitingFor.CROWDED_REQUEST:
            return min(self.request_ms, CROWDED_REQUEST_MS) or CROWDED_REQUEST_MS
        return self.idle_ms if waiting_for is WaitingFor.USE else self.first_byte_ms


_REASONS: Final = {
    WaitingFor.FIRST_BYTE: CloseReason.FIRST_BYTE_TIMEOUT,
    WaitingFor.REQUEST: CloseReason.REQUEST_TIMEOUT,
    WaitingFor.CROWDED_REQUEST: CloseReason.REQUEST_TIMEOUT,
    WaitingFor.USE: CloseReason.IDLE_TIMEOUT,
}


def _kind(waiting_for: WaitingFor) -> WaitingFor:
    """The wait that others may join and leave: while other relays wait for memory, it is still for the same request."""
    return WaitingFor.REQUEST if waiting_for is WaitingFor.CROWDED_REQUEST else waiting_for


class Waiting(Protocol):
    """The part of a relay that the timeouts look at."""

    @property
    def waiting_for(self) -> WaitingFor:
        """What the proxy waits for."""

    @property
    def requests(self) -> int:
        """How many requests have come whole."""


class ConnectionTimeouts:
    """The waiting times of one connection. Each counts from the first look that finds it, so that none ends early."""

    __slots__ = ("_crowded_ms", "_held_up", "_requests", "_unread_ms", "_waited_ms", "_waiting_for", "_written_bytes")

    def __init__(self) -> None:
        self._waiting_for = WaitingFor.NOTHING
        self._requests = 0
        self._waited_ms = 0
        self._crowded_ms = 0
        """The part of it in which other relays waited for the memory."""
        self._written_bytes = -1
        self._unread_ms = 0
        self._held_up = False

    def note_held_up(self) -> None:
        """Note that the proxy or the node keeps the client from being read, if only for a moment."""
        self._held_up = True

    def look(
        self, relay: Waiting, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """The reason to close the connection, if a timeout has passed; see `for_bytes` and `for_reading`."""
        held_up, self._held_up = self._held_up, False
        reason = self.for_bytes(relay.waiting_for, relay.requests, held_up, step_ms, time_outs)
        return reason or self.for_reading(unsent_bytes, written_bytes, step_ms, time_outs)

    def for_bytes(
        self, waiting_for: WaitingFor, requests: int, held_up: bool, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """The reason to close the connection, if the client was too slow to send.

        `requests` is how many have come whole. `held_up`: since the last look the proxy or the node has kept the client
        from being read. `step_ms` have passed since the last look.
        """
        before = self._waiting_for
        if requests == self._requests and (waiting_for is WaitingFor.NOTHING or held_up):
            return None
        self._waiting_for = waiting_for
        if requests != self._requests or _kind(waiting_for) is not _kind(before):
            self._requests, self._waited_ms, self._crowded_ms = requests, 0, 0
            return None
        self._waited_ms += step_ms
        if 0 < time_outs.of(_kind(waiting_for)) <= self._waited_ms:
            return _REASONS[waiting_for]
        if waiting_for is before is WaitingFor.CROWDED_REQUEST:
            self._crowded_ms += step_ms
            if time_outs.of(waiting_for) <= self._crowded_ms:
                return _REASONS[waiting_for]
        return None

    def for_reading(
        self, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """The reason to close the connection, if the client was too slow to read its responses.

        `unsent_bytes` of responses still wait to be written, `written_bytes` had to wait as well and have gone out.
        """
        so_far = written_bytes if unsent_bytes else -1
        if so_far != self._written_bytes or not unsent_bytes:
            self._written_bytes, self._unread_ms = so_far, 0
            return None
        self._unread_ms += step_ms
        return CloseReason.CLIENT_READS_NOTHING if 0 < time_outs.unread_ms <= self._unread_ms else None
