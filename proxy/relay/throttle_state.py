"""Why, and until when, no further request of a client is taken, and what its responses report of that (KIP-219)."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from kafka_throttle.protocol.splices import Splice
from kafka_throttle.proxy.relay.accounting import Accounting
from kafka_throttle.proxy.relay.actions import DecisionKind, Throttled, WakeAt
from kafka_throttle.proxy.relay.request import Request
from kafka_throttle.proxy.relay.turn import Piece, Turn
from kafka_throttle.proxy.relay.use import UsageCounter
from kafka_throttle.quotas.entities import QuotaType

# Why no further request is taken: a set of reasons. Reading goes on until one request head is here, so that a peer
# that hangs up is noticed. FETCHING: after a Fetch with a quota no request is taken until its response has begun. A
# broker, too, handles one request of a connection at a time, and a client that sends a hundred Fetches ahead must not
# get a hundred responses over its quota. NO_ROOM: the quota of request time has no room for one more request beside
# all that its entity has in flight. LEAVING: the proxy ends, and the connection with the next response that is due.
# NO_MEMORY: a request that has to be collected whole waits until the memory that all relays share has room for it.
UNCONNECTED: Final = 1
THROTTLED: Final = 2
ASKING: Final = 4
IN_FLIGHT_FULL: Final = 8
FETCHING: Final = 16
ASKING_FIRST: Final = 32
AUTHENTICATING: Final = 64
NO_ROOM: Final = 128
LEAVING: Final = 256
NO_MEMORY: Final = 512

ENDS_WITH_RESPONSES: Final = IN_FLIGHT_FULL | FETCHING | ASKING_FIRST | AUTHENTICATING | NO_ROOM


_INT32: Final = Struct(">i")


class ThrottleState:
    """The mute of one connection: a set of reasons, of which THROTTLED ends at `muted_until_ms`.

    - `responses_until_ms`: responses report a throttle until then, also to requests that were taken before it. Produce
      and mutations throttle by their requests: only the responses to them and to later ones report that.
    - `delays`: responses are delayed until the throttle is over, instead of reporting it. `delayed_since_ms`: since
      when the oldest response is, if it is. `delayed_until_ms`: until when. `delayed_ms`: how long it was.
    """

    __slots__ = (
        "_accounting",
        "_max_ms",
        "_prolonged",
        "_reported",
        "_turn",
        "delayed_ms",
        "delayed_since_ms",
        "delayed_until_ms",
        "delays",
        "muted_until_ms",
        "reasons",
        "responses_until_ms",
        "throttled_ms",
    )

    def __init__(self, turn: Turn, accounting: Accounting, delays: bool, max_throttle_ms: int) -> None:
        self.reasons = UNCONNECTED
        self.muted_until_ms = 0
        self.responses_until_ms = 0
        self.throttled_ms = 0
        self.delays = delays
        self.delayed_since_ms: int | None = None
        self.delayed_until_ms = 0
        self.delayed_ms = 0
        self._turn = turn
        self._accounting = accounting
        self._max_ms = max_throttle_ms
        self._prolonged: tuple[tuple[UsageCounter, int], ...] = ()
        """The usage of each quota that mutes the client now, and by how many ms it prolonged the mute."""
        self._reported: tuple[QuotaType | None, ...] = ()
        """The quotas that Throttled has reported in this mute. One that does not prolong it is reported once."""

    # --------------------------------------------------------------------- begin

    def throttle(
        self, throttle_time_ms: int, quota_type: QuotaType | None, client_id: bytes, used: float = 0.0
    ) -> None:
        """Take no further request for `throttle_time_ms` from now; a mute that lasts longer stays.

        `used` is how much of the quota was used by the Produce or Fetch that caused the mute, if its bytes pass; else
        0. Without a quota type it is the node that throttles.
        """
        now_ms = self._turn.now_ms
        until_ms = now_ms + throttle_time_ms
        is_muted = self.reasons & THROTTLED != 0
        prolonged_ms = until_ms - max(self.muted_until_ms, now_ms)
        if quota_type is not None:
            use = self._accounting.note_throttle(quota_type, client_id, max(prolonged_ms, 0), used)
            if prolonged_ms > 0 and use is not None:
                self._prolonged += ((use, prolonged_ms),)
        if not is_muted:
            self._reported = ()
        prolongs = prolonged_ms > 0 or not is_muted
        if prolongs or quota_type not in self._reported:
            self._reported += (quota_type,)
            self._turn.after.append(Throttled(quota_type, throttle_time_ms, client_id))
        if prolongs:
            self.throttled_ms += prolonged_ms
            self.muted_until_ms = until_ms
            self.reasons |= THROTTLED
            self._turn.after.append(WakeAt(until_ms))

    def throttle_with_responses(
        self, throttle_time_ms: int, quota_type: QuotaType | None, client_id: bytes, used: float = 0.0
    ) -> None:
        """Throttle by a response: from it on, every response reports the throttle until it is over."""
        self.throttle(throttle_time_ms, quota_type, client_id, used)
        self.responses_until_ms = max(self.responses_until_ms, self._turn.now_ms + throttle_time_ms)

    # ----------------------------------------------------------------------- end

    @property
    def next_end_ms(self) -> int:
        """When the throttle is over, or the delay of a response if that is earlier."""
        if self.delayed_since_ms is None:
            return self.muted_until_ms
        return min(self.delayed_until_ms, self.muted_until_ms)

    def end(self, somebody_waits: bool) -> None:
        """The throttle is over; `somebody_waits`: the client has sent something that had to wait."""
        self.reasons &= ~THROTTLED
        for use, muted_ms in self._prolonged if somebody_waits else ():
            use.note_backlog(muted_ms, self._turn.now_us)
        self._prolonged = ()

    def close(self) -> None:
        """The connection ends: nobody is muted for what is left."""
        if self.reasons & THROTTLED:
            self.throttled_ms -= max(self.muted_until_ms - self._turn.now_ms, 0)

    # -------------------------------------------------------------------- report

    def until_ms(self, request: Request) -> int:
        """Until when the response to a request reports a throttle of the proxy."""
        return max(request.muted_until_ms, self.responses_until_ms)

    def has_delayed(self, request: Request) -> bool:
        """Whether the response to the oldest request has to wait, as responses are delayed and a throttle is not over.

        When it is over, `delayed_ms` is how long the response was delayed.
        """
        now_ms, until_ms = self._turn.now_ms, self.until_ms(request)
        if request.plan.asked is DecisionKind.SASL:
            until_ms = 0
        if until_ms > now_ms and self.reasons & THROTTLED:
            self.delayed_until_ms = until_ms
            if self.delayed_since_ms is None:
                self.delayed_since_ms = now_ms
                if until_ms < self.muted_until_ms:
                    self._turn.after.append(WakeAt(until_ms))
            return True
        self.delayed_ms = 0 if self.delayed_since_ms is None else now_ms - self.delayed_since_ms
        self.delayed_since_ms = None
        return False

    def own_response(self, request: Request, response: bytes) -> list[Piece]:
        """The pieces of a response of the proxy, with the throttle time that it has to report."""
        if self.delays:
            reported_ms = 0 if request.plan.client_waits else self.delayed_ms
        else:
            reported_ms = self.until_ms(request) - self._turn.now_ms
        at = request.plan.throttle_at
        if reported_ms <= 0 or at < 0:
            return [response]
        return [response[:at], _INT32.pack(reported_ms), memoryview(response)[at + 4 :]]

    def reported_ms(self, request: Request, node_ms: int) -> int:
        """The throttle time that a response of the node has to report: the larger one, the proxy's or the node's.

        A node's throttle counts up to the cap of the proxy's own: a node that says more, by a fault or on purpose, must
        not have a client wait for days.
        The client is muted for it. Where responses are delayed, a client that waits for this time itself gets only what
        is left of the node's throttle after the delay. Other clients get how long they were throttled.
        """
        if node_ms > self._max_ms:
            node_ms = self._max_ms
        if self.delays:
            left_ms = node_ms - self.delayed_ms
            if left_ms > 0:
                self._accounting.counters.throttles_by_node += 1
                self.throttle(left_ms, None, request.head.client_id)
            if not self.delayed_ms and node_ms <= 0:
                return node_ms
            return max(left_ms, 0) if request.plan.client_waits else max(self.delayed_ms, node_ms)
        own_ms = self.until_ms(request) - self._turn.now_ms
        if own_ms <= 0 and node_ms <= 0:
            return node_ms
        if node_ms > own_ms:
            self._accounting.counters.throttles_by_node += 1
            self.throttle_with_responses(node_ms, None, request.head.client_id)
            return node_ms
        return own_ms

    def splices(self, request: Request, throttle_at: int, node_ms: int) -> Sequence[Splice]:
        """What has to be changed in a response of the node, whose own throttle time is at `throttle_at`."""
        reported_ms = self.reported_ms(request, node_ms)
        return () if reported_ms == node_ms else (Splice(throttle_at, throttle_at + 4, _INT32.pack(reported_ms)),)
