"""Decides for one connection: its requests, its responses, and what both have in common, put together from parts."""

from collections.abc import Sequence
from typing import Final

from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.proxy.relay.accounting import Accounting, UsageOf
from kafka_throttle.proxy.relay.actions import (
    Action,
    Close,
    CloseReason,
    Decision,
    DecisionKind,
    Exchange,
    HangUp,
    RelayLimits,
    Send,
    WakeAt,
)
from kafka_throttle.proxy.relay.charging import Bind, Charges, KnownSensors
from kafka_throttle.proxy.relay.connection_timeouts import WaitingFor
from kafka_throttle.proxy.relay.flow import Flow
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.memory import NOBODY, SMALL_BYTES, Holding, Memory, Owner
from kafka_throttle.proxy.relay.plans import Plan
from kafka_throttle.proxy.relay.quick_responses import QuickResponses
from kafka_throttle.proxy.relay.recognise import looks_like
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.repeated_requests import RepeatedRequests
from kafka_throttle.proxy.relay.request import Refusal, Request
from kafka_throttle.proxy.relay.request_direction import RequestDirection
from kafka_throttle.proxy.relay.response_direction import DELAYED, ResponseDirection
from kafka_throttle.proxy.relay.sasl_state import SaslState
from kafka_throttle.proxy.relay.service_times import ServiceTimes
from kafka_throttle.proxy.relay.settlement import Settlement
from kafka_throttle.proxy.relay.throttle_state import (
    ASKING,
    ASKING_FIRST,
    ENDS_WITH_RESPONSES,
    LEAVING,
    NO_MEMORY,
    NO_ROOM,
    THROTTLED,
    UNCONNECTED,
    ThrottleState,
)
from kafka_throttle.proxy.relay.turn import NO_TICKET, Turn
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager

_CLIENT: Final = Side.CLIENT
_NODE: Final = Side.NODE
_BY_NODE: Final = frozenset({CloseReason.NODE_CLOSED, CloseReason.NODE_LOST})
_NODE_IS_GONE: Final = _BY_NODE | {CloseReason.NODE_TLS_FAILED}
"""After a Close with one of these reasons, the client is not charged for what the node still works on. With all other
reasons it is: otherwise a client could choose one of these ends, and have the node work without being charged.
"""
_NOT_BY_CLIENT: Final = _NODE_IS_GONE | {CloseReason.SHUTDOWN}
"""After these reasons a Fetch without a known response is charged no bytes: as much as it may bring would be too much.
"""
_ENDS: Final = _BY_NODE | {CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_LOST}
_RESPONSES_NO_MORE: Final = _NOT_BY_CLIENT | {
    CloseReason.RESPONSE_NOT_KAFKA,
    CloseReason.RESPONSE_TOO_LARGE,
    CloseReason.RESPONSE_MALFORMED,
    CloseReason.RESPONSE_UNEXPECTED,
    CloseReason.INTERNAL_ERROR,
}
"""After a Close with one of these reasons, no response of the node is waited for."""
_NOBODY_LISTENS: Final = frozenset({CloseReason.CLIENT_LOST, CloseReason.INTERNAL_ERROR})


class Relay:
    """A `ConnectionRelay`. Requests and responses keep their order; a frame that is not understood is not sent on."""

    __slots__ = (
        "_accounting",
        "_charges",
        "_client_eof",
        "_closed",
        "_flow",
        "_in_flight",
        "_requests",
        "_responses",
        "_sasl",
        "_settlement",
        "_throttle",
        "_times",
        "_turn",
        "client_sent_nothing",
        "ended_idle",
    )

    def __init__(
        self,
        quota_manager: ClientQuotaManager,
        counters: RelayCounters,
        limits: RelayLimits,
        bind: Bind,
        usage_of: UsageOf | None = None,
        memory: Memory | None = None,
        owner: Owner = NOBODY,
    ) -> None:
        manager = quota_manager
        self._turn = turn = Turn()
        self._accounting = accounting = Accounting(turn, counters, usage_of)
        self._throttle = throttle = ThrottleState(turn, accounting, limits.delays, limits.max_throttle_ms)
        self._times = times = ServiceTimes(manager)
        self._in_flight = in_flight = InFlight(turn, throttle, times, limits.max_in_flight, limits.max_kept_bytes)
        self._sasl = sasl = SaslState(counters, limits.authenticates)
        self._flow = flow = Flow(turn, limits.max_kept_bytes, Memory() if memory is None else memory, owner)
        sensors = KnownSensors(turn, throttle, times, in_flight, manager, bind, not limits.withholds)
        self._charges = charges = Charges(turn, accounting, throttle, times, manager)
        repeated = RepeatedRequests(
            turn, accounting, throttle, in_flight, times, charges, manager, limits.max_frame_bytes
        )
        quick = QuickResponses(
            turn, accounting, throttle, in_flight, times, charges, manager, limits.max_response_bytes
        )
        self._requests = RequestDirection(
            turn, accounting, throttle, in_flight, sasl, sensors, charges, repeated, flow, limits, manager
        )
        self._responses = ResponseDirection(turn, accounting, throttle, in_flight, charges, quick, flow, limits)
        self._settlement: Settlement | None = None
        """What is still to be settled after the end, if anything is."""
        self._closed = False
        self._client_eof = False
        self.ended_idle = False
        self.client_sent_nothing = False

    # ------------------------------------------------------------------- looked at

    @property
    def requests(self) -> int:
        return self._accounting.requests

    @property
    def request_bytes(self) -> int:
        return self._accounting.request_bytes

    @property
    def responses(self) -> int:
        return self._accounting.responses

    @property
    def first_bytes(self) -> bytes:
        return self._requests.unread.first_bytes

    @property
    def requests_by_api(self) -> Sequence[int]:
        return self._accounting.counters.requests_by_api

    @property
    def oldest_api_key(self) -> int:
        queue = self._in_flight.queue
        return queue[0].plan.api_key if queue else -1

    @property
    def response_bytes(self) -> int:
        return self._accounting.response_bytes

    @property
    def throttled_ms(self) -> int:
        return self._throttle.throttled_ms

    @property
    def muted(self) -> bool:
        return self._throttle.reasons != 0 and self._requests.half is None and not self._closed

    @property
    def unsettled(self) -> bool:
        return self._settlement is not None

    @property
    def lacks_room(self) -> bool:
        return self._throttle.reasons & NO_ROOM != 0

    @property
    def unread_bytes(self) -> int:
        return len(self._requests.unread)

    @property
    def held_bytes(self) -> int:
        own_bytes = sum(map(len, self._in_flight.own_responses))
        return self.unread_bytes + self._responses.held_bytes + own_bytes

    @property
    def missing_bytes(self) -> int:
        return self._requests.unread.missing

    @property
    def idle(self) -> bool:
        in_flight, requests, responses = self._in_flight, self._requests, self._responses
        held = in_flight.queue or in_flight.own_responses or requests.unread.data or responses.holds_bytes
        return not (held or requests.half is not None or responses.amid)

    @property
    def answered(self) -> bool:
        half, responses = self._requests.half, self._responses
        incomplete = half is not None and half.head.answered
        waiting = self._in_flight.waiting - incomplete - (responses.state is DELAYED)
        return waiting <= 0 and not responses.amid and not self._throttle.reasons & (ASKING | ASKING_FIRST)

    @property
    def waiting_for(self) -> WaitingFor:
        if self._client_eof and self._requests.half is None:
            return WaitingFor.NOTHING
        found = self._requests.waiting_for
        return WaitingFor.NOTHING if found is WaitingFor.USE and not self.idle else found

    # ---------------------------------------------------------------------- events

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        self._accounting.note_unsent(unsent_bytes, now_us)

    def take_no_more(self) -> None:
        if not self._throttle.reasons & (ASKING | ASKING_FIRST):
            self._throttle.reasons |= LEAVING

    def on_held_up(self) -> None:
        self._times.held_up()

    def on_left(self) -> None:
        self._requests.note_left()

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        if self._closed:
            return self._settle_later(data, now_us) if side is _NODE else []
        turn = self._turn
        turn.now_us = now_us
        turn.now_ms = now_us // 1000
        if side is _CLIENT:
            at = self._requests.try_fast(data)
            if at == len(data) and not turn.after:
                return [Send(_NODE, (data,))]
            return self._requests_came(data, at)
        responses = self._responses
        if self._times.measures and not responses.unread:
            self._times.came(now_us)
        at = responses.try_fast(data)
        if at == len(data) and not self._throttle.reasons:
            queue = self._in_flight.queue
            if not queue or queue[0].response is None:
                return [Send(_CLIENT, (data,))]
        return self._responses_came(data, at)

    def _requests_came(self, data: bytes, at: int) -> list[Action]:
        actions = self._turn.actions = []
        if at == len(data):  # the last one has begun a mute
            self._turn.send(_NODE, [data])
        elif self._requests.add(data):
            self._go_on_with_requests(at)
        else:
            self._requests.settle_client()
        return actions

    def _responses_came(self, data: bytes, at: int) -> list[Action]:
        actions = self._turn.actions = []
        if self._responses.add(data):
            self._go_on_with_responses(at=at)
        return actions

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        actions = self._turn.begin(now_us)
        is_for_request = ticket == self._requests.asked.ticket
        if self._closed:
            if is_for_request:
                self._unspend(decision)
        elif not is_for_request and ticket != self._responses.ticket:
            pass
        elif decision.close is not None:
            self._close(decision.close.reason, decision.close.detail)
        elif is_for_request:
            self._requests.decide(decision)
            if not decision.own_requests:
                self._go_on_with_requests()
        else:
            if decision.exchange is not None:
                self._note_exchange(decision.exchange)
            self._go_on_with_responses(decision)
        return actions

    def _note_exchange(self, exchange: Exchange) -> None:
        """The response to a SASL frame is here; unless that was out of place, it is charged to no quota."""
        if exchange is not Exchange.OUT_OF_PLACE:
            request = self._in_flight.queue[0]
            self._times.release(request)
            request.client_sensors = None
        self._requests.note_exchange(exchange)

    def on_time(self, now_us: int) -> list[Action]:
        actions, throttle = self._turn.begin(now_us), self._throttle
        if self._closed or not throttle.reasons & THROTTLED:
            return actions
        now_ms = self._turn.now_ms
        if now_ms < throttle.muted_until_ms:
            if self._responses.state is DELAYED and now_ms >= throttle.delayed_until_ms:
                self._go_on_with_responses(self._responses.delayed_decision)
            if not self._closed:
                actions.append(WakeAt(throttle.next_end_ms))
            return actions
        throttle.end(somebody_waits=bool(self._requests.unread.data))
        if self._responses.state is DELAYED:
            self._go_on_with_responses(self._responses.delayed_decision)
        if not self._closed:
            self._go_on_with_requests()
        return actions

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        actions = self._turn.begin(now_us)
        if self._closed:
            return actions
        if side is _CLIENT:
            self._flow.unblock_client()
        else:
            self._flow.node_blocked = False
            if self._throttle.reasons & UNCONNECTED:
                self._throttle.reasons &= ~UNCONNECTED
                self._accounting.forget_clients()
        self._responses.settle_node()
        self._go_on_with_requests()
        return actions

    def on_memory(self, now_us: int) -> list[Action]:
        actions, holding = self._turn.begin(now_us), self._flow.holding
        if self._closed or holding is None:
            return actions
        if self._responses.waits and not holding.awaits_response:
            self._responses.memory_came()
            self._go_on_with_responses()
        if not self._closed and self._throttle.reasons & NO_MEMORY and not holding.awaits_request:
            self._throttle.reasons &= ~NO_MEMORY
            self._go_on_with_requests()
        return actions

    def on_blocked(self, side: Side, unsent_bytes: int = 0) -> list[Action]:
        actions = self._turn.actions = []
        if self._closed:
            return actions
        if side is _NODE:
            self._flow.node_blocked = True
        else:
            self._flow.block_client(unsent_bytes)
            self._times.held_up()
            self._responses.settle_node()
            if self._flow.holding is not None:
                self._settle_memory(self._flow.holding)
        self._requests.settle_client()
        return actions

    def on_eof(self, side: Side, now_us: int) -> list[Action]:
        actions, responses = self._turn.begin(now_us), self._responses
        if self._closed:
            if side is _NODE:
                self._hang_up(charges=False)
        elif side is _CLIENT:
            self._client_eof = True
            self._requests.note_left()
            self._go_on_with_requests()
        elif not responses.amid and (name := looks_like(responses.unread[:4])):
            self._close(CloseReason.RESPONSE_NOT_KAFKA, f"looks like {name}")
        else:
            amid = responses.amid or responses.unread
            self._close(CloseReason.NODE_CLOSED, "in the middle of a response" if amid else "")
        return actions

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        actions = self._turn.begin(max(now_us, self._turn.now_us))
        if not self._closed:
            self._close(reason, detail)
        else:
            self._hang_up(charges=reason not in _NOT_BY_CLIENT)
        return actions

    # ----------------------------------------------------------------------- go on

    def _go_on_with_requests(self, at: int = 0) -> None:
        requests, throttle = self._requests, self._throttle
        try:
            if requests.unread.data:
                requests.take(at)
            if self._in_flight.queue:
                self._responses.send_own()
            while throttle.reasons & ENDS_WITH_RESPONSES and self._in_flight.clear_finished_waits():
                requests.take()
                if self._in_flight.queue:
                    self._responses.send_own()
        except Refusal as refusal:
            self._close(refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(CloseReason.REQUEST_MALFORMED, str(error))
        else:
            if self._client_eof and not requests.client_waits:
                amid = requests.unread.data or requests.half is not None
                self._close(CloseReason.CLIENT_CLOSED, "in the middle of a request" if amid else "")
            else:
                requests.settle_client()
                if self._flow.holding is not None:
                    self._settle_memory(self._flow.holding)

    def _go_on_with_responses(self, decision: Decision | None = None, at: int = 0) -> None:
        responses = self._responses
        try:
            if decision is not None:
                responses.decide(decision)
            if responses.unread or self._in_flight.queue:
                responses.take(at)
                if self._in_flight.queue:
                    responses.send_own()
        except Refusal as refusal:
            self._close(refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(CloseReason.RESPONSE_MALFORMED, str(error))
        else:
            responses.settle_node()
            if self._throttle.reasons & ENDS_WITH_RESPONSES and self._in_flight.clear_finished_waits():
                self._go_on_with_requests()
            else:
                if self._throttle.reasons and self._requests.unread.data:  # if none of it waits, nothing has changed
                    self._requests.settle_client()
                if self._flow.holding is not None:
                    self._settle_memory(self._flow.holding)

    def _settle_memory(self, holding: Holding) -> None:
        """Hold no more memory than is needed now, and count the bytes that are here without having been asked for."""
        requests, responses, in_flight = self._requests, self._responses, self._in_flight
        unread_bytes, unsent_bytes = len(requests.unread.data), self._flow.unsent_bytes
        if not (
            holding.bytes
            or holding.waiting_bytes
            or unread_bytes > SMALL_BYTES
            or in_flight.keeps > SMALL_BYTES
            or unsent_bytes
        ):
            return
        request_bytes = response_bytes = waiting_bytes = 0
        if requests.has_whole:
            request_bytes, unread_bytes = holding.request_bytes, 0
        elif holding.awaits_request:
            waiting_bytes, unread_bytes = unread_bytes, 0
        if responses.has_whole:
            response_bytes = holding.response_bytes
        kept_bytes = unread_bytes + in_flight.count_kept() + unsent_bytes
        holding.settle(request_bytes, response_bytes, kept_bytes, waiting_bytes)

    # --------------------------------------------------------------------- the end

    def _close(self, reason: CloseReason, detail: str = "") -> None:
        turn, accounting = self._turn, self._accounting
        self._times.free(self._in_flight.queue)  # first of all: others wait for this room, also if a bug ends this here
        turn.do_after()
        if self._responses.state is DELAYED and reason not in _NOBODY_LISTENS:
            self._responses.let_go()
        ended_by = reason
        if reason in _ENDS and self._authentication_failed(reason):
            reason = CloseReason.AUTHENTICATION_FAILED
        self.ended_idle = self.idle
        self.client_sent_nothing = not (accounting.requests or self._requests.unread.data or self._requests.half)
        self._closed = True
        self._throttle.close()
        half = self._requests.half
        if self._times.measures and ended_by not in _NODE_IS_GONE:
            self._times.charge_unanswered(self._in_flight.queue, half, turn.now_ms, turn.now_us)
        self._requests.abandon()
        decision = self._requests.asked.decision
        if decision is not None:
            self._unspend(decision)
        if self._in_flight.queue:
            self._settle_after(ended_by, half)
        else:
            self._responses.forget()
            self._in_flight.own_responses = []
            if self._flow.holding is not None:
                self._flow.holding.close()
        accounting.forget_clients()
        turn.actions.append(Close(reason, detail))

    def _settle_after(self, reason: CloseReason, half: Request | None) -> None:
        """See to it that what is charged at responses is charged when they come, if they can be waited for."""
        holding = self._flow.hold()
        holding.close()  # it counts from now on, but never waits
        settlement = self._settlement = Settlement(self._turn, self._in_flight, self._charges, holding)
        left, here = self._responses.give_up()
        settlement.begin(half)
        if not settlement.due or reason in _RESPONSES_NO_MORE:
            self._stop_settling(settlement, charges=reason not in _NOT_BY_CLIENT)
            return
        self._settle(settlement, here, left)
        if settlement.due:
            self._flow.pause_node(False)

    def _authentication_failed(self, reason: CloseReason) -> bool:
        """Whether the connection ended because the node refused the client.

        A node that does not accept a bare token, or a request after one, only closes the connection.
        """
        if self._sasl.refused:
            return True
        if reason in _BY_NODE and self._sasl.awaits_proof and self._in_flight.queue:
            self._accounting.counters.authentications_failed += 1
            return True
        return False

    def _settle(self, settlement: Settlement, data: bytes, left: int = 0) -> None:
        """Take bytes of the node after the end; see `Settlement.take`."""
        try:
            settlement.take(data, left)
        except ProtocolError:
            self._stop_settling(settlement, charges=True)
        self._turn.do_after()
        if not settlement.due:
            self._stop_settling(settlement, charges=False)

    def _settle_later(self, data: bytes, now_us: int) -> list[Action]:
        actions, settlement = self._turn.begin(now_us), self._settlement
        if settlement is not None:
            self._settle(settlement, data)
            if not settlement.due:
                actions.append(HangUp())
        return actions

    def _stop_settling(self, settlement: Settlement, charges: bool) -> None:
        """Wait for no more responses. With `charges`, a Fetch without one is charged as much as it may bring."""
        settlement.end(charges)
        self._settlement = None
        self._in_flight.own_responses = []
        self._in_flight.queue.clear()

    def _hang_up(self, charges: bool) -> None:
        """Hang up if responses were still waited for."""
        if self._settlement is not None:
            self._stop_settling(self._settlement, charges)
            self._turn.actions.append(HangUp())

    def _unspend(self, decision: Decision) -> None:
        """A request that was decided about is not carried out: give back what it was charged."""
        asked = self._requests.asked
        asked.ticket, asked.decision = NO_TICKET, None
        plan: Plan | None = asked.plan
        if decision.note is not None and plan is not None and plan.asked is DecisionKind.MUTATION:
            self._turn.ask(DecisionKind.MUTATION, _NODE, plan, b"").note = decision.note
            self._turn.do_after()
