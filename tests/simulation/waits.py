"""When a client has been waited for long enough, found out beside `ConnectionTimeouts` from what its model knows."""

from kafka_throttle.proxy.relay.connection_timeouts import TimeOuts
from tests.simulation.oracle import require

FIRST_BYTE, REQUEST, USE = "first_byte", "request", "use"


class Waits:
    """The waits of one connection, by looks: a look that finds the same as the last one adds what lies between them."""

    def __init__(self, now_ms: int) -> None:
        self._whole = 0
        self._whole_ms = now_ms
        """When a request came to its end last; before, when the connection began."""
        self._kind = ""
        self._waited_ms = 0
        self._unread: tuple[int, int] | None = None
        """How much had gone out late while something was unsent, and when that was seen first."""
        self._unread_ms = 0

    def look(self, waiting_for: str, whole: int, held_up: bool, now_ms: int, step_ms: int, time_outs: TimeOuts) -> str:
        """Why the connection must end now, empty if it must not. Counted are `whole` requests, `waiting_for` is what
        the client is waited for, `held_up` whether it was kept from being read since the last look.
        """
        limits = {FIRST_BYTE: time_outs.first_byte_ms, REQUEST: time_outs.request_ms, USE: time_outs.idle_ms}
        if whole != self._whole:
            self._whole, self._whole_ms, self._kind, self._waited_ms = whole, now_ms, waiting_for, 0
            return ""
        if not waiting_for or held_up:
            return ""
        if waiting_for != self._kind:
            self._kind, self._waited_ms = waiting_for, 0
            return ""
        self._waited_ms += step_ms
        if not 0 < limits[waiting_for] <= self._waited_ms:
            return ""
        passed_ms = now_ms - self._whole_ms
        require(
            passed_ms >= limits[waiting_for], f"{waiting_for} of {limits[waiting_for]} ms is over after {passed_ms} ms"
        )
        return {FIRST_BYTE: "first_byte_timeout", REQUEST: "request_timeout", USE: "idle_timeout"}[waiting_for]

    def look_at_responses(self, unsent: int, late: int, now_ms: int, step_ms: int, time_outs: TimeOuts) -> str:
        """The same for `unsent` bytes of responses; `late` have had to wait for the client and have gone out."""
        if not unsent or self._unread is None or self._unread[0] != late:
            self._unread, self._unread_ms = ((late, now_ms) if unsent else None), 0
            return ""
        self._unread_ms += step_ms
        if not 0 < time_outs.unread_ms <= self._unread_ms:
            return ""
        passed_ms = now_ms - self._unread[1]
        require(passed_ms >= time_outs.unread_ms, f"responses are unread for {passed_ms} of {time_outs.unread_ms} ms")
        return "client_reads_nothing"
