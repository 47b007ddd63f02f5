"""How long a client is waited for: to begin, to end a request, to use its connection, to read its responses.

Looked at now and then, by what relays and streams count anyway: a request costs nothing more for it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from proxy.relay.actions import CloseReason


class WaitingFor(Enum):
    """What a client is waited for. NOTHING: it is our turn, or the node's, or it has to wait."""

    NOTHING = "nothing"
    FIRST_BYTE = "first_byte"
    REQUEST = "request"
    """The rest of one that has begun."""
    USE = "use"


@dataclass(frozen=True, slots=True)
class TimeOuts:
    """In ms; 0: for ever."""

    first_byte_ms: int = 0
    request_ms: int = 0
    idle_ms: int = 0
    unread_ms: int = 0

    def of(self, waiting_for: WaitingFor) -> int:
        """How long that may take."""
        if waiting_for is WaitingFor.REQUEST:
            return self.request_ms
        return self.idle_ms if waiting_for is WaitingFor.USE else self.first_byte_ms


_REASONS = {
    WaitingFor.FIRST_BYTE: CloseReason.FIRST_BYTE_TIMEOUT,
    WaitingFor.REQUEST: CloseReason.REQUEST_TIMEOUT,
    WaitingFor.USE: CloseReason.IDLE_TIMEOUT,
}


class Waiting(Protocol):
    """A relay, as far as its client is waited for."""

    @property
    def waiting_for(self) -> WaitingFor:
        """What the client is waited for."""

    @property
    def whole_requests(self) -> int:
        """How many requests have come to their end."""


class ConnectionTimeouts:
    """The waits of one connection. Each counts from the first look that finds it, so that none ends early."""

    __slots__ = ("_held_up", "_requests", "_unread_ms", "_waited_ms", "_waiting_for", "_written_bytes")

    def __init__(self) -> None:
        self._waiting_for = WaitingFor.NOTHING
        self._requests = 0
        self._waited_ms = 0
        self._written_bytes = -1
        self._unread_ms = 0
        self._held_up = False

    def note_held_up(self) -> None:
        """We, or the node, keep the client from being read, if only for a moment."""
        self._held_up = True

    def look(
        self, relay: Waiting, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """Why the connection ends, if a time is over; see `for_bytes` and `for_reading`."""
        held_up, self._held_up = self._held_up, False
        reason = self.for_bytes(relay.waiting_for, relay.whole_requests, held_up, step_ms, time_outs)
        return reason or self.for_reading(unsent_bytes, written_bytes, step_ms, time_outs)

    def for_bytes(
        self, waiting_for: WaitingFor, requests: int, held_up: bool, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """Why the connection ends, if a time is over. `step_ms` have passed since the last look.

        `requests` are here whole. `held_up`: we, or the node, have kept the client from being read meanwhile.
        """
        if requests != self._requests:
            self._waiting_for, self._requests, self._waited_ms = waiting_for, requests, 0
        elif waiting_for is WaitingFor.NOTHING or held_up:
            return None
        elif waiting_for is not self._waiting_for:
            self._waiting_for, self._waited_ms = waiting_for, 0
        else:
            self._waited_ms += step_ms
            if 0 < time_outs.of(waiting_for) <= self._waited_ms:
                return _REASONS[waiting_for]
        return None

    def for_reading(
        self, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
    ) -> CloseReason | None:
        """The same for `unsent_bytes` of responses, after `written_bytes` that had to wait, too, and have gone out."""
        so_far = written_bytes if unsent_bytes else -1
        if so_far != self._written_bytes or not unsent_bytes:
            self._written_bytes, self._unread_ms = so_far, 0
            return None
        self._unread_ms += step_ms
        return CloseReason.CLIENT_READS_NOTHING if 0 < time_outs.unread_ms <= self._unread_ms else None
