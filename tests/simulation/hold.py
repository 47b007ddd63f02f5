"""In throttle mode `delay`: which responses must be delayed, since when, and what they report when they go out."""

from kafka_throttle.protocol.messages.client_waits import client_waits
from kafka_throttle.proxy.relay.actions import Action, Close, CloseReason, Throttled
from tests.simulation import wire
from tests.simulation.exchange import Taken
from tests.simulation.mute import Mute
from tests.simulation.oracle import require

_NOBODY_LISTENS = {CloseReason.CLIENT_LOST, CloseReason.INTERNAL_ERROR}


class Hold:
    """The delay of the next response on one connection. It is judged by what has come out; nothing is foreseen.

    A relay decides by itself how many bytes of a response it needs before it delays it. So, unless a response was whole
    when its delay began, only the earliest begin is known, and what the response reports says when it really began.
    """

    def __init__(self, mute: Mute, delays: bool) -> None:
        self.since_ms: int | None = None
        """Since when the next response may have been held."""
        self._delays = delays
        self._mute = mute
        self._exactly = False
        self._held_ms = 0
        self._ends = False
        self._letting_go = False
        self._node_throttles: list[int] = []

    @property
    def reports_delays(self) -> bool:
        """Whether responses report for how long they were held, not how long a mute goes on."""
        return self._delays and not self._letting_go

    def see(self, actions: list[Action]) -> None:
        """A step was taken: note the mutes that it has begun, and whether it ends the connection in good order."""
        self._ends = any(isinstance(action, Close) and action.reason not in _NOBODY_LISTENS for action in actions)
        throttled = [action for action in actions if isinstance(action, Throttled)]
        self._node_throttles = [action.throttle_time_ms for action in throttled if action.quota_type is None]

    def is_on(self, request: Taken | None, now_ms: int) -> bool:
        """Whether the response to the request that is next has to wait for the end of a throttle."""
        if request is None or request.head.is_sasl:
            return False
        return self.reports_delays and self._mute.on and self.until_ms(request) > now_ms

    def until_ms(self, request: Taken) -> int:
        """Until when its response has to wait."""
        return max(request.muted_until_ms, self._mute.responses_until_ms)

    def begin(self, now_ms: int, exactly: bool) -> None:
        """The next response has to wait from now on, unless it does already; `exactly`: it is here whole."""
        if self.since_ms is None:
            self.since_ms, self._exactly = now_ms, exactly

    def release(self, request: Taken, now_ms: int) -> None:
        """The next response begins to go out.

        When the connection ends, a delayed response goes out before its time, and from there on all responses report as
        in a mute. One that is no longer delayed then reports its delay or not, as the end released it or not.
        """
        if self.is_on(request, now_ms):
            require(self._ends, f"a response goes out at {now_ms} though the mute is not over")
            self._letting_go = True
        self._exactly &= not self._ends
        self._held_ms = 0 if self.since_ms is None else now_ms - self.since_ms
        self.since_ms = None

    def require_let_go(self) -> None:
        """The connection ends, and the next response is whole: if it was held, it should have gone out."""
        require(not (self._ends and self.since_ms is not None), "what is held does not go out at the end")

    def reported_ms(self, head: wire.Head, node_ms: int, reported_ms: int | None, now_ms: int) -> int:
        """What the response that was released must report; `reported_ms` is what it does report, if that is here."""
        waits = client_waits(head.api_key, head.version)
        held_ms = self._held_ms
        if held_ms and not self._exactly and reported_ms is not None:
            held_ms = self._held_by_what_is_reported(waits, node_ms, reported_ms)
            require(0 <= held_ms <= self._held_ms, f"held for {held_ms} ms, at most {self._held_ms} can be")
        if (left_ms := node_ms - held_ms) > 0:
            self._mute.throttle_by_node(now_ms, left_ms, head.client_id)
            self._node_throttles = self._node_throttles[1:]
        if not held_ms and node_ms <= 0:
            return node_ms
        return max(left_ms, 0) if waits else max(held_ms, node_ms)

    def _held_by_what_is_reported(self, waits: bool, node_ms: int, reported_ms: int) -> int:
        if reported_ms == node_ms <= 0:
            return 0
        if waits:
            return node_ms - reported_ms if reported_ms > 0 else self._held_ms
        if reported_ms > node_ms:
            return reported_ms
        return node_ms - self._node_throttles[0] if self._node_throttles else self._held_ms
