"""The relay in Python: the reference for any other implementation."""

from protocol.errors import ProtocolError
from protocol.frames import MAX_HEAD_BYTES
from proxy.relay.actions import (
    Action,
    Close,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    Exchange,
    HangUp,
    RelayLimits,
    Resume,
    Send,
    WakeAt,
)
from proxy.relay.carriage import ASKING, ENDS_WITH_RESPONSES, NO_ROOM, NO_TICKET, THROTTLED, UNCONNECTED, Bind, UsageOf
from proxy.relay.connection_timeouts import WaitingFor
from proxy.relay.recognise import looks_like
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.request import Refusal
from proxy.relay.request_side import RequestSide
from proxy.relay.use import REQUEST
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager

_CLIENT = Side.CLIENT
_NODE = Side.NODE
_ENDS = frozenset({CloseReason.NODE_CLOSED, CloseReason.NODE_LOST, CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST})
_RESPONSES_NO_MORE = frozenset(
    {
        CloseReason.NODE_CLOSED,
        CloseReason.NODE_LOST,
        CloseReason.NODE_TLS_FAILED,
        CloseReason.ANSWER_NOT_KAFKA,
        CloseReason.ANSWER_TOO_LARGE,
        CloseReason.ANSWER_MALFORMED,
        CloseReason.ANSWER_UNEXPECTED,
        CloseReason.INTERNAL_ERROR,
        CloseReason.SHUTDOWN,
    }
)
"""After a Close with one of these reasons, no response of the node is waited for."""
_NOBODY_LISTENS = frozenset({CloseReason.CLIENT_LOST, CloseReason.INTERNAL_ERROR})


class Relay(RequestSide):
    """One client connection with its upstream connection. Does no I/O and reads no clock.

    Each `on_*` method takes what happened and when (`now_us`, monotonic), and returns what to do, in order. After a
    Close the relay only corrects what was charged for mutations: by DecisionRequests, and a HangUp in the end. Requests
    and responses keep their order, and a frame that is not understood is not sent on.
    """

    __slots__ = (
        "_client_eof",
        "_closed",
        "_unsettled",
        "ended_idle",
        "ended_unasked",
        "ended_unheard",
    )

    def __init__(
        self,
        quota_manager: ClientQuotaManager,
        counters: RelayCounters,
        limits: RelayLimits,
        bind: Bind,
        usage_of: UsageOf | None = None,
    ) -> None:
        super().__init__(quota_manager, counters, limits, bind, usage_of)
        self._closed = False
        self._client_eof = False
        self._unsettled = False
        self.ended_idle = False
        """Whether, at the Close, nothing was in flight or incomplete: neither side owed the other anything."""
        self.ended_unasked = False
        """Whether, at the Close, no whole request had come."""
        self.ended_unheard = False
        """Whether, at the Close, the client had sent nothing at all."""

    @property
    def unsettled(self) -> bool:
        """After a Close: whether responses of the node are still wanted."""
        return self._unsettled

    @property
    def muted(self) -> bool:
        """True while the client is read only to see its next request head."""
        return self._mute != 0 and not self._request_left

    @property
    def lacks_room(self) -> bool:
        """True while a request waits because its quota of request time has no room beside what is in flight."""
        return self._mute & NO_ROOM != 0

    @property
    def held_bytes(self) -> int:
        """How many bytes the relay holds."""
        collected = sum(map(len, (*self._collecting, *self._own_responses, *self._gathered_response)))
        requests = len(self._requests) + len(self._gathered)
        return requests + len(self._responses) + collected + len(self._held_response)

    @property
    def missing_bytes(self) -> int:
        """How many bytes are still to come of a request that is collected whole."""
        return self._missing

    @property
    def idle(self) -> bool:
        """True between requests: nothing is in flight, and no frame is incomplete."""
        held = self._requests or self._responses or self._collecting or self._own_responses or self._held_response
        return not (self._in_flight or held or self._request_left or self._amid_response)

    @property
    def whole_requests(self) -> int:
        """How many requests have come whole."""
        return self.requests

    @property
    def waiting_for(self) -> WaitingFor:
        """What the proxy waits for the client to do."""
        if self._request_left:
            return WaitingFor.NOTHING if self._client_paused else WaitingFor.REQUEST
        may_not_begin = self._mute & ~UNCONNECTED or (self._opening and self._mute)
        if self._client_paused or self._client_eof:
            return WaitingFor.NOTHING
        if may_not_begin and not (self._requests and self._passes_mute(self._requests, 0)):
            return WaitingFor.NOTHING
        if self._requests:
            return WaitingFor.REQUEST
        if not self.requests:
            return WaitingFor.FIRST_BYTE
        return WaitingFor.USE if self.idle else WaitingFor.NOTHING

    def on_held_up(self) -> None:
        """Something other than the node delays its responses: their time does not show what the requests cost."""
        self._times.held_up()

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        """Bytes from the client or the node."""
        if self._closed:
            return self._settle(data) if side is _NODE and self._unsettled else []
        self._now_us = now_us
        if side is _NODE:
            return self._answers_came(data, now_us // 1000)
        return self._requests_came(data, now_us // 1000)

    def _requests_came(self, data: bytes, now_ms: int) -> list[Action]:
        at = 0
        if self._requests or self._mute or self._request_left:
            if self._missing:
                return self._gather(data, now_ms)
            self._requests += data
        else:
            at, _ = self._take_repeated(data, 0, now_ms)
            if at == len(data):
                return [Send(_NODE, (data,))]
            self._requests = data
        actions: list[Action] = []
        self._go_on_with_requests(actions, now_ms, at)
        return actions

    def _gather(self, data: bytes, now_ms: int) -> list[Action]:
        """Bytes of a request that is collected whole: nothing happens until it is complete or quotas have changed."""
        actions: list[Action] = []
        self._gathered += data
        self._missing -= len(data)
        if self._missing > 0 and self._wanted_version == self._quota_manager.version:
            self._settle_client(actions)
        else:
            self._put_together()
            self._go_on_with_requests(actions, now_ms)
        return actions

    def _answers_came(self, data: bytes, now_ms: int) -> list[Action]:
        at = 0
        if self._timed and not self._responses:
            self._times.came(self._now_us)
        if (
            self._responses
            or self._amid_response
            or self._response_ticket != NO_TICKET
            or self._held_since_ms is not None
        ):
            if self._head_bytes == MAX_HEAD_BYTES or self._response_ticket != NO_TICKET:
                self._responses += data
            elif self._gather_response(data):
                return []
        else:
            at = self._pass_repeated(data, 0, now_ms)
            if at == len(data) and not self._mute and not (self._in_flight and self._in_flight[0].response):
                return [Send(_CLIENT, (data,))]
            self._responses = data
        actions: list[Action] = []
        self._go_on_with_responses(actions, now_ms, at=at)
        return actions

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        """Carry on with the decision about a DecisionRequest. A decision that is no longer waited for is dropped."""
        actions: list[Action] = []
        self._now_us, now_ms = now_us, now_us // 1000
        if self._closed:
            return self._unspend(decision) if ticket == self._request_ticket else actions
        if ticket not in (self._request_ticket, self._response_ticket):
            return actions
        if decision.close is not None:
            self._close(actions, decision.close.reason, decision.close.detail)
        elif ticket == self._request_ticket:
            self._request_ticket = NO_TICKET
            if decision.own_requests:
                self._send_own_requests(decision.own_requests, actions)
                return actions
            self._mute &= ~ASKING
            if decision.exchange is not None:
                self._note_exchange(decision.exchange)
            else:
                self._decided, self._decided_ms = decision, now_ms
            self._go_on_with_requests(actions, now_ms)
        else:
            self._response_ticket = NO_TICKET
            if decision.more:
                return self._wait_for_more(decision.more, now_ms)
            if decision.exchange is not None:
                if decision.exchange is not Exchange.OUT_OF_PLACE:
                    self._exempt()
                self._note_exchange(decision.exchange)
            self._go_on_with_responses(actions, now_ms, decision)
        return actions

    def on_time(self, now_us: int) -> list[Action]:
        """The time of a WakeAt has come: the throttle is over, unless it was prolonged meanwhile."""
        actions: list[Action] = []
        self._now_us, now_ms = now_us, now_us // 1000
        if self._closed or not self._mute & THROTTLED:
            return actions
        if now_ms < self._muted_until_ms:
            if self._held_since_ms is not None and now_ms >= self._held_until_ms:
                self._go_on_with_responses(actions, now_ms, self._held_decision)
            if not self._closed:
                until_ms = self._muted_until_ms
                actions.append(WakeAt(until_ms if self._held_since_ms is None else min(self._held_until_ms, until_ms)))
            return actions
        self._mute &= ~THROTTLED
        self._mute_is_over(bool(self._requests))
        if self._held_since_ms is not None:
            self._go_on_with_responses(actions, now_ms, self._held_decision)
        if not self._closed:
            self._go_on_with_requests(actions, now_ms)
        return actions

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        """A side takes bytes (again). For the node, the first call means that it is connected."""
        actions: list[Action] = []
        self._now_us, now_ms = now_us, now_us // 1000
        if self._closed:
            return actions
        if side is _NODE:
            self._node_blocked = False
            if self._mute & UNCONNECTED and self._clients:
                self._forget_clients()
            self._mute &= ~UNCONNECTED
            self._settle_node(actions)
            self._go_on_with_requests(actions, now_ms)
        else:
            self._client_blocked = False
            self._settle_node(actions)
            self._go_on_with_requests(actions, now_ms)
        return actions

    def on_blocked(self, side: Side) -> list[Action]:
        """A side takes no more bytes for now: the other side is not read until it does."""
        actions: list[Action] = []
        if self._closed:
            return actions
        if side is _NODE:
            self._node_blocked = True
            self._settle_client(actions)
        else:
            self._client_blocked = True
            self._times.held_up()
            self._settle_node(actions)
            self._settle_client(actions)
        return actions

    def on_eof(self, side: Side, now_us: int) -> list[Action]:
        """No more bytes come from `side`. What a muted client sent before is still carried, as a broker does."""
        actions: list[Action] = []
        self._now_us, now_ms = now_us, now_us // 1000
        if self._closed:
            return self._hang_up() if side is _NODE else actions
        if side is _NODE:
            name = None if self._amid_response else looks_like(self._responses[:4])
            if name:
                self._close(actions, CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
            else:
                detail = "in the middle of a response" if self._responses or self._amid_response else ""
                self._close(actions, CloseReason.NODE_CLOSED, detail)
        else:
            self._client_eof = True
            self._go_on_with_requests(actions, now_ms)
        return actions

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        """The connection to a side is lost, could not be made, or must be given up."""
        actions: list[Action] = []
        self._now_us = max(now_us, self._now_us)
        if not self._closed:
            self._close(actions, reason, detail)
        return actions

    def _go_on_with_requests(self, actions: list[Action], now_ms: int, at: int = 0) -> None:
        if self._missing:
            self._put_together()
        try:
            if self._requests:
                self._take_requests(actions, now_ms, at)
            if self._in_flight:
                self._send_own_responses(actions, now_ms)
            while self._mute & ENDS_WITH_RESPONSES and self._take_up_again():
                self._take_requests(actions, now_ms)
                if self._in_flight:
                    self._send_own_responses(actions, now_ms)
        except Refusal as refusal:
            self._close(actions, refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(actions, CloseReason.REQUEST_MALFORMED, str(error))
        else:
            if self._client_eof and not (self._requests and self._client_waits):
                detail = "in the middle of a request" if self._requests or self._request_left else ""
                self._close(actions, CloseReason.CLIENT_CLOSED, detail)
            else:
                self._settle_client(actions)

    @property
    def _client_waits(self) -> bool:
        """Whether the client has sent something that may still be taken."""
        return self._client_blocked or bool(self._mute and (self._opening or self._mute != UNCONNECTED))

    def _go_on_with_responses(
        self, actions: list[Action], now_ms: int, decision: Decision | None = None, at: int = 0
    ) -> None:
        try:
            if decision is not None:
                self._send_decided_response(decision, actions, now_ms)
            if self._responses or self._in_flight:
                self._take_responses(actions, now_ms, at)
                if self._in_flight:
                    self._send_own_responses(actions, now_ms)
        except Refusal as refusal:
            self._close(actions, refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(actions, CloseReason.ANSWER_MALFORMED, str(error))
        else:
            self._settle_node(actions)
            if self._mute & ENDS_WITH_RESPONSES and self._take_up_again():
                self._go_on_with_requests(actions, now_ms)
            elif self._mute:
                self._settle_client(actions)

    def _wait_for_more(self, head_bytes: int, now_ms: int) -> list[Action]:
        """Wait until `head_bytes` of a response are here: it cannot be decided about before."""
        actions: list[Action] = []
        try:
            self._want_more(head_bytes)
        except Refusal as refusal:
            self._close(actions, refusal.reason, str(refusal))
        else:
            self._go_on_with_responses(actions, now_ms)
        return actions

    def _close(self, actions: list[Action], reason: CloseReason, detail: str = "") -> None:
        if self._held_since_ms is not None and reason not in _NOBODY_LISTENS:
            self._let_go(actions)
        answers_come = reason not in _RESPONSES_NO_MORE
        if reason in _ENDS and self._authentication_failed(reason):
            reason = CloseReason.AUTHENTICATION_FAILED
        self.ended_idle = self.idle
        self.ended_unasked = not self.requests
        self.ended_unheard = not (self.requests or self._requests or self._request_left)
        self._closed = True
        if self._timed:
            self._times.abandon(self._in_flight, self._half, self._now_us // 1000, self._now_us)
        self._abandon_half(self._now_us // 1000)
        self._put_together()
        if self._decided is not None:
            actions += self._unspend(self._decided)
        if self._requests and self._usage_of is not None:
            self._coming = self._coming or self._client(b"").of(REQUEST)
            self._read(self._coming.client.of(REQUEST), len(self._requests))
        self._forget_clients()
        self._requests = b""
        self._unsettled = answers_come and self._owes_correction
        if not self._unsettled:
            self._forget_responses()
        elif self._node_paused:
            self._node_paused = False
            actions.append(Resume(_NODE))
        actions.append(Close(reason, detail))

    # ------------------------------------------------------------ after a Close

    def _settle(self, data: bytes) -> list[Action]:
        """Take bytes of the node after a Close: ask about the response that corrects what was charged."""
        actions: list[Action] = []
        self._responses += data
        try:
            at = self._collect(self._in_flight[0], self._responses, 0, actions)
        except ProtocolError:
            return self._hang_up()
        self._responses = self._responses[at:]
        return actions + self._hang_up() if actions else []

    def _hang_up(self) -> list[Action]:
        """Hang up if a response was still waited for; now nothing is."""
        if not self._unsettled:
            return []
        self._unsettled = False
        self._forget_responses()
        return [HangUp()]

    def _forget_responses(self) -> None:
        self._responses = self._held_response = b""
        self._collecting, self._own_responses, self._gathered_response = [], [], []
        self._in_flight.clear()

    def _unspend(self, decision: Decision) -> list[Action]:
        """A request that was decided about is not carried out: give back what it was charged."""
        self._request_ticket, self._decided = NO_TICKET, None
        plan = self._asked_plan
        if decision.note is None or plan is None or plan.asked is not DecisionKind.MUTATION:
            return []
        return [self._ask_to_settle(plan.api_key, plan.api_version, b"", decision.note)]

    def _ask_to_settle(self, api_key: int, api_version: int, frame: bytes, note: object) -> DecisionRequest:
        ask = DecisionRequest(self._next_ticket(), DecisionKind.MUTATION, _NODE, api_key, api_version, frame)
        ask.note = note
        return ask

    @property
    def _owes_correction(self) -> bool:
        """Whether the response to a mutation that was charged is still to come.

        There is one at most, and it is the first in flight: no other request was in flight when the proxy asked the
        node what the mutation costs.
        """
        if not self._in_flight or self._held_response:
            return False
        first = self._in_flight[0]
        return first.plan.asked is DecisionKind.MUTATION and first.note is not None

    def _authentication_failed(self, reason: CloseReason) -> bool:
        """Whether the connection ended because the node refused the client.

        A node that does not accept a bare token, or a request after one, only closes the connection.
        """
        if self._refused:
            return True
        by_node = reason in (CloseReason.NODE_CLOSED, CloseReason.NODE_LOST)
        if by_node and self._awaits_proof and self._in_flight:
            self._counters.authentications_failed += 1
            return True
        return False
