"""What one relay must do, found out beside it from the bytes and times that it was given.

The model reads frames by itself (wire.py), knows every response from its plan, and has a separate mute. After each call
of the relay it sees the actions, and raises Violation for what should not be, or should be and is not.
"""

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import islice
from operator import attrgetter
from struct import pack

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.relay.actions import (
    Action,
    Close,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    HangUp,
    OpenUpstream,
    Pause,
    Resume,
    Send,
    Throttled,
    WakeAt,
)
from kafka_throttle.proxy.relay.seam import ConnectionRelay
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import EffectiveQuota
from tests.simulation import quota_calls, wire
from tests.simulation.exchange import ForClient, Taken, WindowUsage, Written, difference, merged
from tests.simulation.hold import Hold
from tests.simulation.judge import NODE_ID, USER, VIRTUAL_CLUSTER, Decided, Judge
from tests.simulation.mute import Mute
from tests.simulation.network import READ_BYTES
from tests.simulation.oracle import LOOKS, WAITS, Charge, Of, Violation, WatchedSensors, require
from tests.simulation.pacing import GRACE_MS, LONGEST_MS
from tests.simulation.plan import ConnectionPlan, RequestPlan, WorldPlan
from tests.simulation.waits import FIRST_BYTE, REQUEST, USE, Waits

CLIENT, NODE = Side.CLIENT, Side.NODE
HELD_BYTES = wire.HEAD_BYTES + READ_BYTES
"""What a relay may hold of one direction: what is not yet enough for a decision, and the read that came on top."""

MAX_DECISION_REQUESTS_IN_A_ROW = 50
"""So many DecisionRequests may come before a relay sends something: tables change, but not each time."""

LONG_CLIENT_ID_BYTES = 1024
NOTE_FACTOR = 32
"""What is noted of a request about topics takes so much more than it."""

MAX_CLIENT_IDS = 64
"""A relay remembers the sensors of no more client-ids than these."""

US_PER_PERCENT = 10_000
"""One percent of a thread is 10 ms in each second."""

INT32_MAX = 2**31 - 1
MAX_ASKED_BYTES = 1024 * 1024
MAX_SASL_BYTES = 512 * 1024
"""A larger request is never decided about."""

_MAY_SEND_OWN_REQUESTS = {DecisionKind.MUTATION, DecisionKind.SCRAM_CREDENTIALS}
"""Requests for which the proxy sends own requests before it decides."""

_BAD_RESPONSES = {
    CloseReason.RESPONSE_UNEXPECTED,
    CloseReason.RESPONSE_MALFORMED,
    CloseReason.RESPONSE_NOT_KAFKA,
    CloseReason.RESPONSE_TOO_LARGE,
}
"""They end the connection before further requests are taken up."""


_REFUSED_AT_ONCE = ("response_unexpected", "response_not_kafka", "response_too_large")
"""Why responses are refused before they are charged."""

_NODE_ENDS = ("node_lost", "node_closed")
_NODE_IS_GONE = ("node_lost", "shutdown", "internal_error")


_HANDLE_OF: dict[QuotaType, Callable[[ClientSensors], int | None]] = {
    QuotaType.PRODUCE: attrgetter("produce"),
    QuotaType.FETCH: attrgetter("fetch"),
    QuotaType.REQUEST: attrgetter("request"),
    QuotaType.CONTROLLER_MUTATION: attrgetter("mutation"),
}


def measured_as(client_id: bytes) -> str:
    """The name under which a client id is measured: a very long one is measured under a digest."""
    name = client_id.decode(errors="replace")
    if len(client_id) > 1024:
        return f"{name[:64]}… sha256 {sha256(client_id).hexdigest()}"
    return name


class Model:
    """Beside one relay. `around` is what responses depend on, `counts` are shared by all models of a world, and so are
    the `judge` of requests about topics and the `book` of quotas. `plan_at` finds the plan of the request that begins
    at a place of the client's stream.

    Without `exact_keys` the table of sensors may be full: clients share sensors, and one without a quota may have none.
    Then each request is charged to the sensors that its relay was given, and these must have the right limits.
    """

    def __init__(
        self,
        plan: WorldPlan,
        connection: ConnectionPlan,
        relay: ConnectionRelay,
        quota_manager: ClientQuotaManager,
        around: wire.Surroundings,
        counts: WindowUsage,
        judge: Judge,
        book: quota_calls.Book,
        plan_at: Callable[[int], RequestPlan | None],
        exact_keys: bool,
        now_ms: int,
    ) -> None:
        self.user = "" if plan.demands_sasl else USER
        self.held_up = False
        """Whether reading the client was paused since this was looked at last."""
        self.waits = Waits(now_ms)
        self.closed: Close | None = None
        self.for_node: deque[Taken] = deque()
        """Requests sent on, for the node to take off."""
        self.for_client: deque[ForClient] = deque()
        """Responses sent on, for the client to take off."""
        self.requests = 0
        self.empty_fetch_wrong = False
        """Whether a wrong response was not read, because an empty one went out in its place."""
        self.learned: dict[int, tuple[str, int]] = {}
        self._plan = plan
        self._relay = relay
        self._quota_manager = quota_manager
        assert isinstance(quota_manager.sensors, WatchedSensors)
        self._sensors = quota_manager.sensors
        self._around = around
        self._counts = counts
        self._judge = judge
        self._book = book
        self._connection = connection
        self._plan_at = plan_at
        self._exact_keys = exact_keys

        self._unproven = plan.demands_sasl
        self._bare = False
        self._exchanging = False
        """The node is amid an authentication."""
        self._may_authenticate = False
        """So is the client, as far as the relay knows: it has sent nothing else since."""
        self._may_be_over = False
        self._has_logged_in = False
        self._claimed = ""
        self._proof = False
        self._login_failed = False
        self._sasl_out_of_place = False
        self._decided: Decided | None = None
        self._takes_no_more = False
        self._own_requests_due: list[bytes] = []
        self._own_requests_in_flight = 0
        self._own_responses_ms = 0
        self._own_responses: list[bytes] = []
        self._reported: list[tuple[bytes | None, bytes, int]] = []
        self._own_response_is_malformed = False
        self._decision_reason = ""
        assert isinstance(quota_manager.request_sensors, WatchedSensors)
        self._times = quota_manager.request_sensors
        self._bound: dict[bytes, ClientSensors] = {}
        """By client id, the sensors that the relay was given last. It may use those of the latest request after it has
        forgotten them.
        """
        self._remembered: dict[bytes, None] = {}
        """The client ids whose sensors the relay has not forgotten, the oldest first."""
        self._to_look_up: deque[tuple[bytes, ClientSensors]] = deque()
        """The same of what it was given, and no request has been seen with."""
        self._begun_ms = -1
        self._charged_us = 0.0

        self._known_then = book.known

        self._requests = bytearray()
        self._requests_fed = 0
        self._request_left = 0
        self._half: Taken | None = None
        """The request of which so much is still to come."""
        self._client_acted = False
        self._in_flight: deque[Taken] = deque()
        self._keeps_much = False
        self._connected = False
        self._opened = False
        self._mute = Mute(counts)
        self._mute_is_over = False
        self._hold = Hold(self._mute, plan.delays)
        self._blocked = {CLIENT: False, NODE: False}
        self._paused = {CLIENT: False, NODE: False}
        self._eof = {CLIENT: False, NODE: False}
        self._lost_reason = ""
        self._asks: dict[int, DecisionRequest] = {}
        self._decision_requests_in_a_row = 0
        self._wake_at: int | None = None

        self._responses: deque[Written] = deque()
        self._unfed: deque[Written] = deque()

        self._journal = self._sensors.journal
        """What was charged and is not accounted for yet, in its order."""
        self._unheard: deque[Taken] = deque()
        """The Fetches that were in flight when the client left, and are not charged yet."""
        self._sizes: set[int] = set()
        """How many bytes each response of the node would be charged."""
        self._left = False
        """The client has ended its stream, though not all of it was read."""
        self._pays = False
        """The first request waits, or has waited, for what its entity owes."""
        self._throttled: list[Throttled] = []
        """The throttles that the relay has reported in its last step."""
        self._looked: set[tuple[Of, int]] = set()
        """At what was owed on which sensor the relay has looked."""
        self._closes = False
        self._throttles_reported = 0
        """How many throttles the relay has reported in its last step."""
        self._lacks_room_at = -1
        """The place of the request that waits for room."""
        self._fetch_waited_at = -1
        """The place of the Fetch that has waited for room for too long: it gets a response without data."""
        self._answered_fetch_at = -1
        """The place of one that has got it."""
        self._waited = ((-1, -1), 0, 0)
        """The place of the Fetch that waits, for room under which sensor, how long it does, and until when."""
        self._granted_bytes = 0
        """What the last Fetch that was clamped may bring."""
        self._lost_session = 0
        """A session that the node has made, or that the client gave up, without a response that said so."""
        self._limited: int | None = None
        """The sensor of request time of what was sent on last while something was in flight."""
        self._unforeseen: dict[int, float] = {}
        """By sensor, what was charged in this step for requests that nothing limited when they were taken."""
        self._responses_sent = 0
        self._request_bytes = 0
        self._response_bytes = 0

    # ----------------------------------------------------- what the relay is given

    def node_writes(self, response: wire.Response) -> None:
        """The node has put this on its way."""
        self._unfed.append(Written(response))
        self._sizes |= {response.charged_bytes, len(response.frame) - 4, len(response.frame) - 5}
        if len(response.frame) >= 4:
            announced = self._announced(response)
            self._sizes |= {announced - 4, announced - 5}

    def bytes_came(self, side: Side, data: bytes) -> None:
        self._client_acted = side is CLIENT
        if side is CLIENT:
            self._requests += data
            self._requests_fed += len(data)
            return
        left = len(data)
        while left:
            written = self._unfed[0]
            if not written.fed_bytes:
                self._responses.append(written)
            step = min(left, len(written.response.frame) - written.fed_bytes)
            written.fed_bytes += step
            left -= step
            if written.all_fed:
                self._unfed.popleft()
            if written.dropped:
                self._drop(written)

    # ------------------------------------------------------------- what is decided

    def decided(self, ask: DecisionRequest, decision: Decision | QuotaAlteration, now_ms: int) -> None:
        """The decision about a request or a response has just been found."""
        if ask.kind is DecisionKind.MUTATION and ask.side is CLIENT:
            self._judge_request(ask, now_ms)
        elif ask.kind is DecisionKind.MUTATION:
            self._settle(ask, now_ms)
        elif ask.kind is DecisionKind.QUOTA_API and self.closed is None:
            self._look_at_quota_call(ask, decision, written=False)
        self._judge.require_all_accounted()

    def begin_to_decide(self, ask: DecisionRequest) -> None:
        """A decision is begun: it may use what is known now."""
        self._known_then = self._book.known

    def decision_comes(self, ask: DecisionRequest, decision: Decision, now_ms: int) -> None:
        """What was found out reaches the relay."""
        if ask.kind is DecisionKind.QUOTA_API and decision.response is not None:
            self._decided = Decided(now_ms, response=decision.response)
        elif ask.kind is DecisionKind.SCRAM_CREDENTIALS:
            self._judge_credentials(ask, now_ms)
        elif ask.kind is DecisionKind.SASL and ask.side is NODE:
            self._note_exchange(ask)
        elif ask.kind is DecisionKind.SASL and not ask.frame:
            self._note_proof(ask)
        elif ask.kind is DecisionKind.SASL:
            require(self._requests.startswith(ask.frame), f"asks about {ask.frame[:30]!r}, which is not next")
            self._decided = Decided(now_ms, frame=ask.frame)
        elif self._decided is not None:
            self._decided.at_ms = now_ms
        self._asks.pop(ask.ticket, None)

    def _note_exchange(self, ask: DecisionRequest) -> None:
        """The node has responded to a frame of an authentication: what it means is as planned."""
        plan = self._plan_at(self._in_flight[0].at)
        require(ask.frame == self._responses[0].response.frame, "asks about another response than the one that is here")
        require(plan is not None and plan.token is not None, "asks about the end of what is no authentication")
        assert plan is not None
        assert plan.token is not None
        outcome = plan.token.outcome
        if outcome != "out_of_place":
            self._in_flight[0].timed = None
        if outcome == "unproven" and not self._exchanging:
            outcome = "ongoing"
        if outcome == "out_of_place" and self._may_be_over and not self._has_logged_in:
            return
        if outcome == "out_of_place" and self._unproven:
            outcome = "failed"
        elif outcome == "succeeded" and not self._exchanging:
            outcome = "ongoing"
        if outcome not in ("ongoing", "out_of_place"):
            self._exchanging = outcome in ("begun", "tokens", "unproven")
        if outcome != "ongoing":
            self._may_authenticate = self._exchanging and outcome != "out_of_place"
        if outcome != "ongoing":
            self._may_be_over = outcome == "unproven"
        self._login_failed = outcome == "failed"
        self._sasl_out_of_place = outcome == "out_of_place"
        self._counts.logins_failed += self._login_failed
        if outcome == "tokens":
            self._bare = True
        elif outcome == "succeeded":
            self._log_in(plan.token.user)
        elif outcome == "unproven":
            self._claimed = plan.token.user

    def _log_in(self, user: str) -> None:
        self._bare = self._unproven = self._may_be_over = False
        self._has_logged_in = True
        self.user = user
        self._bound.clear()
        self._remembered.clear()
        self._counts.logins += 1

    def _note_proof(self, ask: DecisionRequest) -> None:
        """A request comes behind an exchange that may be over: an own request of the proxy shows whether it is."""
        require(self._may_be_over and not self._has_logged_in, "asks for a proof though nothing is to be proven")
        if not ask.own_responses:
            self._own_requests_due = [wire.PROOF_ASKED]
        elif self._proof:
            self._login_failed = self._sasl_out_of_place = False
            self._log_in(self._claimed)
        else:
            self._may_be_over = self._exchanging = self._may_authenticate = self._sasl_out_of_place = False
            self._login_failed = True
            self._counts.logins_failed += 1

    def alteration_done(self, ask: DecisionRequest, decision: Decision) -> None:
        """What was to be written for a request is written, or not."""
        if self.closed is None:
            self._look_at_quota_call(ask, decision, written=True)

    def _judge_request(self, ask: DecisionRequest, now_ms: int) -> None:
        head = self._next()
        assert isinstance(head, wire.Head)
        frame = bytes(self._requests[: head.frame_bytes])
        require(ask.frame == frame, f"asks about {ask.frame[:30]!r}, {frame[:30]!r} is next")
        if self._own_response_is_malformed:
            self._decision_reason = "response_malformed"
            return
        reported = tuple(self._reported) if ask.own_responses else None
        client_id = measured_as(head.client_id)
        found = self._judge.judge(frame, head, self.user, client_id, reported, self._own_responses_ms, now_ms)
        self._reported.clear()
        if found.close:
            self._decision_reason = found.close
        elif found.send_own_requests:
            self._own_requests_due = found.send_own_requests
        else:
            self._decided = found

    def _judge_credentials(self, ask: DecisionRequest, now_ms: int) -> None:
        """A node without this API has no users; one that does not say what it offers decides by itself.

        For a client that may not describe quotas, it is read whether it asks for its user only.
        """
        head = self._next()
        assert isinstance(head, wire.Head)
        require(ask.side is CLIENT, "asks about a response that no node sent")
        require(ask.frame == bytes(self._requests[: head.frame_bytes]), f"asks about {ask.frame[:30]!r}")
        if not ask.own_responses:
            self._own_requests_due = [wire.PROOF_ASKED]
        elif self._proof:
            self._decided = Decided(now_ms, response=wire.no_users_response(head.correlation_id))
        elif not self._connection.may_describe and not wire.names_users(ask.frame, head.body_at):
            self._decision_reason = "request_malformed"
        else:
            self._decided = Decided(now_ms, frame=ask.frame)

    def _settle(self, ask: DecisionRequest, now_ms: int) -> None:
        if not ask.frame:
            decided, self._decided = self._decided, None
            require(self.closed is not None and decided is not None, "gives back what was not decided")
            assert decided is not None
            assert decided.settlement is not None
            self._judge.unspend(decided.settlement)
            return
        written, request = self._responses[0], self._in_flight[0]
        require(ask.frame == written.response.frame, "asks about another response than the one that is here")
        settlement = request.settlement
        require(settlement is not None, f"asks about the response to {request.head}")
        assert settlement is not None
        if written.response.reason:
            return
        self._judge.settle(settlement, written.response.results, now_ms)
        written.merged = merged(settlement, written.response)

    def _look_at_quota_call(self, ask: DecisionRequest, decision: Decision | QuotaAlteration, written: bool) -> None:
        head = self._next()
        assert isinstance(head, wire.Head)
        plan = self._plan_at(self.next_at)
        if plan is None or plan.flipped_bit >= 0 or plan.api_key != head.api_key:
            if isinstance(decision, Decision) and decision.close is not None:
                self._decision_reason = decision.close.reason.value
            return
        writes = plan.api_key == ALTER_CLIENT_QUOTAS and quota_calls.writes(plan, self._connection.may_alter)
        require(isinstance(decision, QuotaAlteration) == (writes and not written), f"{decision} for {plan}")
        if isinstance(decision, QuotaAlteration):
            return
        require(decision.response is not None, f"{decision} for {plan}")
        assert decision.response is not None
        require(decision.response[4:8] == pack(">i", head.correlation_id), "an own response with another id")
        if plan.api_key == DESCRIBE_CLIENT_QUOTAS:
            may = self._connection.may_describe
            self._book.check_described(decision.response, plan, self.user, may, self._known_then)
        else:
            self._book.check_altered(decision.response, plan, self._connection.may_alter, written)

    def time_came(self, now_ms: int) -> None:
        self._wake_at = None
        if self._mute.on and now_ms >= self._mute.until_ms:
            self._mute.on = False
            self._mute_is_over = True

    def writable(self, side: Side) -> None:
        self._blocked[side] = False
        if side is NODE:
            self._connected = True

    def blocked(self, side: Side) -> None:
        self._blocked[side] = True

    def eof_came(self, side: Side) -> None:
        self._eof[side] = True
        if self.closed is not None:
            self.node_is_lost()

    def lost(self, reason: str) -> None:
        self._lost_reason = reason

    # --------------------------------------------------------- what it has to do

    def see(self, actions: list[Action], now_ms: int) -> None:
        """Look at what the relay does about what it was given last."""
        if self.closed is not None:
            for action in actions:
                corrects = isinstance(action, HangUp) or (isinstance(action, DecisionRequest) and action.settles)
                require(corrects, f"{action} after {self.closed}")
            self._account_for_unheard()
            require(not self._journal, f"charged without a reason after the end: {list(self._journal)}")
            return
        if any(isinstance(action, Close) for action in actions):
            self._take_apart()
        self._check_time_charges(now_ms)
        self._throttled = [action for action in actions if isinstance(action, Throttled)]
        self._throttles_reported = len(self._throttled)
        self._hold.see(actions)
        for action in actions:
            require(self.closed is None, f"{action} after {self.closed}")
            self._see_one(action, now_ms)
        if self.closed is None:
            self._account_early(now_ms)
            self._take_own(now_ms)
            self._take_own_responses()
            self._account_early(now_ms)
            self._note_hold(now_ms)
            self._check_progress(now_ms)
            self._check_room(now_ms)
        require(not self._journal, f"charged without a reason: {list(self._journal)}")
        throttled = [action for action in actions if isinstance(action, Throttled)]
        require(throttled == self._mute.reported, f"reported {throttled}, {self._mute.reported} is right")
        self._mute.reported.clear()
        self._client_acted = self._mute_is_over = False
        self._judge.looks()
        self._judge.require_all_accounted()
        self._check_counters()

    def _see_one(self, action: Action, now_ms: int) -> None:
        match action:
            case Send(side, pieces):
                self._sent(side, pieces, now_ms)
            case Pause(side):
                require(not self._paused[side], f"{side} is paused twice")
                self.held_up |= side is CLIENT
                self._paused[side] = True
            case Resume(side):
                require(self._paused[side], f"{side} is resumed twice")
                self._paused[side] = False
            case WakeAt(at_ms):
                self._wake_at = at_ms
            case OpenUpstream():
                require(not self._opened, "a second upstream connection")
                self._opened = True
            case DecisionRequest():
                self._asked(action, now_ms)
            case Close():
                self._close(action, now_ms)

    def _sent(self, side: Side, pieces: Sequence[bytes | memoryview], now_ms: int) -> None:
        require(all(pieces), "an empty piece")
        data = b"".join(pieces)
        require(bool(data), "a Send of nothing")
        self._decision_requests_in_a_row = 0
        if side is NODE:
            self._sent_to_node(data, now_ms)
        else:
            self._sent_to_client(data, now_ms)

    def _asked(self, ask: DecisionRequest, now_ms: int) -> None:
        self._take_own(now_ms)
        self._take_own_responses()
        proof = ask.kind is DecisionKind.SASL and not ask.frame
        if ask.side is CLIENT and ask.kind is not DecisionKind.SASL:
            self._may_be_over = self._may_authenticate = False
            self._look_up(ask.client_id)
        if (ask.kind in _MAY_SEND_OWN_REQUESTS or proof) and ask.side is CLIENT:
            require(not self._own_requests_in_flight, "asks before all own responses are here")
            require(ask.own_responses == tuple(self._own_responses), "asks with other own responses than came")
            self._own_responses.clear()
        self._decision_requests_in_a_row += 1
        require(self._decision_requests_in_a_row <= MAX_DECISION_REQUESTS_IN_A_ROW, "asks again and again")
        self._asks[ask.ticket] = ask

    def _close(self, close: Close, now_ms: int) -> None:
        """Everything that was charged is accounted for."""
        self._take_own_responses()
        if close.reason not in _BAD_RESPONSES:
            self._take_own(now_ms)
        self._closes = True
        self._account_early(now_ms)
        self._check_close(close)
        node_is_gone = close.reason.value in _NODE_ENDS or self._lost_reason in _NODE_ENDS or self._eof[NODE]
        for request in self._in_flight:
            if self._is_unpaid(request) and not (node_is_gone and not any(one.of is Of.TIME for one in self._journal)):
                self._charge_time(request, now_ms)
        self._abandon(now_ms)
        if close.reason is CloseReason.AUTHENTICATION_FAILED and not self._login_failed:
            self._counts.logins_failed += 1
        client_is_lost = self._lost_reason == "client_lost"  # which is reported as a failed login if there was one
        if self._next_is_whole and not self._next_is_wrong and not client_is_lost:
            self._hold.require_let_go()
        if self._decided is not None and self._decided.settlement is not None:
            given_back = any(ask.settles and not ask.frame for ask in self._asks.values())
            require(given_back, f"{self._decided.spent} tokens are spent for nothing")
        first = self._in_flight[0] if self._in_flight else None
        is_settled = bool(self._responses) and bool(self._responses[0].merged)  # it may be held for its time
        owes = first is not None and first.settlement is not None and not self._asking(NODE) and not is_settled
        comes = not self._eof[NODE] and self._lost_reason not in _NODE_IS_GONE and close.reason not in _BAD_RESPONSES
        self._unheard.extend(request for request in self._in_flight if self._is_unheard(request))
        wanted = comes and (owes or bool(self._unheard))
        require(wanted or not self._relay.unsettled, "the node is read on though nothing is due")
        require(self._relay.unsettled or not (comes and owes), "the node is read on: False")
        self._account_for_unheard()
        is_broken = any(written.response.reason and written.fed_bytes for written in self._responses)
        waited_for = self._relay.unsettled or is_broken or not (comes and self._unheard)
        require(waited_for, f"the node is read on: False, though {self._unheard} are in flight")
        if not comes and close.reason not in _BAD_RESPONSES:
            self._unheard.clear()
        self.closed = close

    def _is_unheard(self, request: Taken) -> bool:
        """Whether a request is a Fetch whose response is still to be charged."""
        if request.fetch_handle is None or request is self._half:
            return False
        written = self._responses[0] if self._responses and request is self._first else None
        is_charged = written is not None and written.charged and not written.sent_bytes
        return not is_charged and self._is_charged(Of.BYTES, request.fetch_handle)

    def _account_for_unheard(self) -> None:
        """Behind the end each Fetch is charged once: the size of its response, or the room that it was given."""
        while self._journal and self._unheard:
            charge, request = self._journal[0], self._unheard.popleft()
            is_open = request.fetch_handle is not None and self._sensors.is_open(request.fetch_handle)
            right = self._sizes | {request.room_bytes}
            is_for_it = charge.handle == request.fetch_handle and charge.value in right
            if not is_for_it and not (is_open and request.room_bytes):
                continue  # what has no quota may bring anything, so nothing is charged for it without its response
            require(charge.of is Of.BYTES and charge.handle == request.fetch_handle, f"{charge} for {request}")
            require(charge.value in right, f"{charge.value} bytes are charged for {request}, {right} are right")
            require(not charge.taken_back, "the bytes of a Fetch are given back though its client has left")
            self._journal.popleft()

    def node_is_lost(self) -> None:
        """The node is gone, too: what it has not sent costs nothing."""
        self._unheard.clear()

    def client_left(self) -> None:
        self._left = True

    def require_all_charged(self) -> None:
        """Each Fetch that the node was asked for is paid for, whoever has hung up."""
        unpaid = [one for one in self._unheard if one.room_bytes and self._sensors.is_open(one.fetch_handle or 0)]
        require(not unpaid, f"nobody was charged for {unpaid}")

    def _take_apart(self) -> None:
        """Requests in flight that are alike are charged together when the connection ends."""
        for charge in self._journal:
            if charge.of is Of.TIME and charge.charges == 1:
                charge.charges = max(round(charge.value * US_PER_PERCENT / self._plan.cost_us), 1)

    # ------------------------------------------------------------------ requests

    def _next(self) -> wire.Head | wire.Bad | None:
        head = self._next_head()
        if self._bare:
            return head
        if isinstance(head, wire.Head) and self._may_withhold(head):
            head = wire.with_session(self._requests, head)
        may_pass = not isinstance(head, wire.Head) or head.is_sasl or head.api_key == wire.API_VERSIONS
        if self._unproven and not may_pass and not self._must_prove:
            return wire.Bad("not_authenticated", late=True)
        large = isinstance(head, wire.Head) and self._connected and head.frame_bytes - 4 > self._most_asked(head)
        return wire.Bad("request_too_large") if large and self._is_asked(head) else head

    def _most_asked(self, head: wire.Head) -> int:
        return MAX_SASL_BYTES if head.is_sasl else MAX_ASKED_BYTES

    def _next_head(self) -> wire.Head | wire.Bad | None:
        """What is looked at to see what is owed, and whether there is room: a Fetch before its session is here."""
        if self._bare:
            return wire.judge_token(self._requests)
        return wire.judge(self._requests, self._plan.max_frame_bytes)

    @property
    def _must_prove(self) -> bool:
        """Whether the node must show that an exchange is over before a request passes."""
        return self._may_be_over and not self._has_logged_in

    def _is_asked(self, head: wire.Head) -> bool | None:
        """Whether a request needs a decision; None if that depends on what a full table has room for."""
        if not head.about_topics:
            return head.about_quotas or head.about_credentials or head.is_sasl
        client_id = measured_as(head.client_id)
        small = head.frame_bytes - 4 <= MAX_ASKED_BYTES
        return self._judge.is_asked(self.user, client_id) if small else self._judge.is_limited(self.user, client_id)

    def _is_whole(self, head: wire.Head) -> bool:
        return len(self._requests) >= head.frame_bytes

    @property
    def _full(self) -> bool:
        alone = bool(self._in_flight) and self._in_flight[-1].alone
        return (
            self._takes_no_more
            or alone
            or self._keeps_much
            or len(self._in_flight) >= self._plan.max_in_flight
            or self._lacks_room
        )

    def take_no_more(self) -> None:
        """The proxy ends: no further request is taken, except one that is asked about already."""
        self._takes_no_more |= not self._asking(CLIENT)

    def check_answered(self) -> None:
        """Nothing is lost if the connection ends now: an incomplete request and a delayed response are not counted."""
        whole = len(self._in_flight) - bool(self._request_left) - (self._hold.since_ms is not None)
        require(whole <= 0, f"{whole} requests are in flight and do not count")

    @property
    def _lacks_room(self) -> bool:
        """Whether the relay holds back the next request as its quota of request time has no room for it."""
        return self._relay.lacks_room and self._relay.requests <= self.requests

    def _sensor_of_time(self, head: wire.Head, given: ClientSensors | None, now_ms: int) -> int | None:
        """By which of the `given` sensors a request is measured whose time is limited."""
        if self._unproven or given is None or not head.answered:
            return None
        if self._quota_of(head, QuotaType.REQUEST).limit >= UNLIMITED:
            return None
        return self._sensor(head, QuotaType.REQUEST, given, now_ms)

    def _check_room(self, now_ms: int) -> None:
        """A request waits only where there is no room, and no more than that is in flight, except a first request."""
        cost, limited = self._plan.cost_us / US_PER_PERCENT, self._limited
        self._limited = None
        if limited is not None and self._times.is_open(limited):
            room = self._times.right_room(limited, now_ms) - self._quota_manager.time_in_flight.get(limited, 0.0)
            room += self._unforeseen.get(limited, 0.0)
            require(room > -cost / 2, f"{-room / cost} requests more are in flight than the quota has room for")
        self._unforeseen.clear()
        waits_since, self._lacks_room_at = self._lacks_room_at, self.next_at if self._lacks_room else -1
        if not self._lacks_room:
            return
        head = self._next_head()
        require(bool(self._in_flight), "a request waits for room though nothing is in flight")
        require(isinstance(head, wire.Head), f"what waits for room is no request: {head}")
        assert isinstance(head, wire.Head)
        if waits_since == self._lacks_room_at:
            return  # until all before it have their responses, whatever becomes of its quota
        sensor = self._sensor_of_time(head, self._given_last(head.client_id), now_ms)
        require(sensor is not None, f"{head} waits for room though nothing limits it")
        assert sensor is not None
        room = self._times.right_room(sensor, now_ms) - self._quota_manager.time_in_flight.get(sensor, 0.0)
        untold = self._times.limit(sensor) * self._times.window_ms / 1000
        require(room < 3 * cost + 1.001 * untold, f"{head} waits though there is room for {room / cost}")

    def _is_unpaid(self, request: Taken | None) -> bool:
        """Whether the time of this request is charged if the connection ends now."""
        if request is None or request is self._half or request.own_response is not None:
            return False
        return request.timed is not None and self._is_charged(Of.TIME, request.timed)

    def _note_done(self) -> None:
        """The oldest request has its response; after too many stored bytes, the next one is taken when all have."""
        self._in_flight.popleft()
        self._keeps_much &= bool(self._in_flight)

    def _keep(self, taken: Taken, kept_bytes: int) -> None:
        """So many bytes are stored for a request until its response, besides a long client id."""
        id_bytes = len(taken.head.client_id)
        taken.kept_bytes = kept_bytes + (id_bytes if id_bytes > LONG_CLIENT_ID_BYTES else 0)
        kept_bytes = sum(one.kept_bytes for one in self._in_flight)
        self._keeps_much = bool(self._in_flight) and kept_bytes > self._plan.write_buffer_bytes

    @property
    def _next_passes_mute(self) -> bool:
        """Whether what comes next is taken in a mute, too: with SASL the clocks of sessions run on."""
        may_authenticate = self._unproven or self._has_logged_in or self._may_authenticate or self._may_be_over
        is_sasl = self._bare or self._requests[4:6] in wire.SASL_KEYS
        return may_authenticate and is_sasl and not self._sasl_out_of_place

    def _may_take(self, head: wire.Head) -> bool:
        """Whether nothing holds this request back."""
        if (self._mute.on and not self._next_passes_mute) or self._full or self._asking(CLIENT):
            return False
        if not self._connected or (head.answered_by_proxy and self._must_prove):
            return False
        if self._fetch_waited_at == self.next_at:
            return self._is_whole(head) and not self._blocked[CLIENT]
        if self._decided is None and (head.answered_by_proxy or self._is_asked(head) is not False):
            return self._is_whole(head) and not self._blocked[CLIENT]
        return self._is_whole(head) or not self._relay.missing_bytes  # which is collected, although quotas may change

    @property
    def _waits_with_requests(self) -> bool:
        """Whether something that will end holds back what the client has sent."""
        waits = self._mute.on or self._full or self._asking(CLIENT) or self._blocked[CLIENT]
        waits = waits or (self._opened and not self._connected)
        return waits and bool(self._requests)

    def _asking(self, side: Side) -> bool:
        asks_first = side is CLIENT and bool(self._own_requests_due or self._own_requests_in_flight)
        return asks_first or any(ask.side is side for ask in self._asks.values())

    def _take_own(self, now_ms: int) -> None:
        """Take the requests that the proxy responds to by itself and that are next."""
        while not self._request_left and self._requests:
            head = self._next()
            answers_fetch = isinstance(head, wire.Head) and self._answered_fetch_at == self.next_at
            takes = answers_fetch or (isinstance(head, wire.Head) and self._may_take(head))
            if not (isinstance(head, wire.Head) and takes) or self._relay.requests <= self.requests:
                return
            if head.answered_by_proxy and not self._unproven:
                self._may_be_over = self._may_authenticate = False
                self._look_up(head.client_id)
            taken = Taken(head, self.next_at, 0, None)
            self._note_decided(taken)
            if answers_fetch:
                self._answer_fetch(head, taken)
            elif head.answered_by_proxy:
                taken.own_response = wire.unsupported_version_response(head.correlation_id)
                taken.muted_until_ms = self._mute.until_ms
            elif self._decided is not None and self._decided.response is not None:
                taken.own_response = self._decided.response
                taken.throttle_at = 8 + wire.is_flexible(head.api_key, head.version)
                self._carry_out(head, now_ms)
                taken.muted_until_ms = self._mute.until_ms
            else:
                return
            self._count_request(head)
            self._in_flight.append(taken)
            self._keep(taken, len(taken.own_response))
            del self._requests[: head.frame_bytes]

    def _carry_out(self, head: wire.Head, now_ms: int) -> Decided:
        """What was decided about the next request happens."""
        decided, self._decided = self._decided, None
        assert decided is not None
        self._counts.mutations_refused += decided.refused
        left_ms = decided.at_ms + decided.throttle_ms - now_ms
        if left_ms > 0:
            self._mute.throttle(now_ms, left_ms, QuotaType.CONTROLLER_MUTATION, head.client_id)
        return decided

    def _send_own_requests(self, data: bytes, now_ms: int) -> None:
        """Own requests of the proxy go to the node."""
        frames, self._own_requests_due = self._own_requests_due, []
        require(data == b"".join(frames), f"the own requests are {data!r}, {frames} is right")
        for frame in frames:
            head = wire.judge(frame, 2**31 - 1)
            assert isinstance(head, wire.Head)
            taken = Taken(head, self.next_at, 0, None, is_own_request=True)
            self._in_flight.append(taken)
            self.for_node.append(taken)
        self._own_requests_in_flight, self._own_responses_ms = len(frames), now_ms

    def _take_own_responses(self) -> None:
        """Responses to the proxy's own requests are here whole: the client never gets them."""
        while (
            self._responses
            and self._in_flight
            and self._in_flight[0].is_own_request
            and not self._responses[0].sent_bytes
        ):
            response = self._responses[0].response
            nonsense = response.reason == "response_malformed" and response.can_be_framed
            if not self._responses[0].all_fed or (response.reason and not nonsense):
                return
            self._responses.popleft()
            self._note_done()
            self._own_requests_in_flight -= 1
            self._own_responses.append(response.frame)
            self._reported += response.reported
            self._proof = response.proves
            self._own_response_is_malformed |= nonsense

    @property
    def next_at(self) -> int:
        """Where in the client's stream the next request begins."""
        return self._requests_fed - len(self._requests)

    def _sent_to_node(self, data: bytes, now_ms: int) -> None:
        if self._own_requests_due:
            self._send_own_requests(data, now_ms)
            return
        at = 0
        while at < len(data):
            if not self._request_left:
                self._take(now_ms)
            step = min(self._request_left, len(data) - at)
            require(step <= len(self._requests), "bytes to the node that the client has not sent")
            if data[at : at + step] != self._requests[:step]:
                raise Violation(
                    f"other bytes to the node than the client sent: {difference(data[at:], self._requests)}"
                )
            del self._requests[:step]
            self._request_left -= step
            at += step
            if self._half is not None and not self._request_left:
                self._came_whole(self._half, now_ms)
        self._take_own(now_ms)  # they were taken before anything was sent, and before their responses mute

    def _take(self, now_ms: int) -> None:
        """The next frame begins to go to the node."""
        self._take_own(now_ms)
        self._take_own_responses()
        head = self._next()
        require(isinstance(head, wire.Head), f"sent on what is no request: {head}, {bytes(self._requests[:20])!r}")
        assert isinstance(head, wire.Head)
        require(not head.answered_by_proxy, "ApiVersions of an unknown version went to the node")
        require(not head.about_quotas, "a request about quotas went to the node")
        unasked = head.about_credentials and self._decided is None
        require(not unasked, "a request went to a node that has no such API")
        require(self._connected, "a request before the connection stands")
        require(
            not self._mute.on or self._next_passes_mute, f"a request at {now_ms}, muted until {self._mute.until_ms}"
        )
        require(not self._full, f"more than {self._plan.max_in_flight} in flight")
        require(not self._asking(CLIENT), "a request while its decision is due")
        if self._decided is not None:
            self._count_request(head)
            self._take_decided(head, now_ms)
            return
        require(not self._must_prove, f"{head} passes though the user of the client is not known")
        self._may_be_over = self._may_authenticate = False
        require(self._is_asked(head) is not True, f"{head} went to the node unasked")
        self._own_responses.clear()
        self._reported.clear()
        self._own_response_is_malformed = False
        self._look_up(head.client_id)
        fetch_handle = self._clamp_fetch(head, now_ms)
        self._close_lost_session(head)
        alone = head.api_key == wire.FETCH and fetch_handle is not None and self._has_ceiling(head)
        limited = self._check_looked(head, now_ms)
        if self._in_flight:
            self._limited = limited
        taken = Taken(head, self.next_at, self._mute.until_ms, fetch_handle, alone=alone)
        if alone:
            taken.room_bytes = self._granted_bytes
        taken.may_be_emptied = self._may_withhold(head)
        if not self._unproven:
            taken.timed = self._sensor(head, QuotaType.REQUEST, self._bound[head.client_id], now_ms)
            taken.limited = self._quota_of(head, QuotaType.REQUEST).limit < UNLIMITED
        if head.answered:
            self._in_flight.append(taken)
        self.for_node.append(taken)
        self._half, self._request_left = taken, head.frame_bytes

    def _came_whole(self, taken: Taken, now_ms: int) -> None:
        """The last byte of a request goes to the node: it is counted and charged, by the quotas of now."""
        head, self._half = taken.head, None
        self._count_request(head)
        if head.api_key == wire.PRODUCE:
            self._look_up(head.client_id)
            self._charge_produce(head, head.frame_bytes - 4, now_ms)
            taken.timed = self._sensor(head, QuotaType.REQUEST, self._bound[head.client_id], now_ms)
        taken.muted_until_ms = self._mute.until_ms
        self._keep(taken, 0)

    def _abandon(self, now_ms: int) -> None:
        """The connection ends amid a request: what came of it is counted and charged, and does not mute."""
        if self._half is None:
            return
        head, came_bytes = self._half.head, self._half.head.frame_bytes - self._request_left
        self._count_request(head, came_bytes)
        if head.api_key == wire.PRODUCE:
            self._look_up(head.client_id)
            self._charge_produce(head, came_bytes - 4, now_ms, mutes=False)

    def _take_decided(self, head: wire.Head, now_ms: int) -> None:
        """A request that was decided about goes to the node, perhaps without some of its topics."""
        at = self.next_at
        decided = self._carry_out(head, now_ms)
        require(decided.response is None, f"{head} went to the node though the proxy responds to it")
        taken = Taken(head, at, self._mute.until_ms, None, settlement=decided.settlement, alone=head.is_sasl)
        if head.is_sasl:
            taken.muted_until_ms = 0
        if head.is_sasl and not (head.bare or self._unproven):
            self._look_up(head.client_id)
        if not head.bare:
            self._note_decided(taken)
        taken.sent_bytes = self._request_left = len(decided.frame)
        self._in_flight.append(taken)
        if not head.is_sasl:
            self._keep(taken, NOTE_FACTOR * (head.frame_bytes - 4) if decided.settlement is not None else 0)
        self.for_node.append(taken)
        self._requests[: head.frame_bytes] = decided.frame

    def _require_looked(self, of: Of, handle: int | None, head: wire.Head, now_ms: int) -> None:
        """The first request that a quota limits goes on only if it was looked at what is owed.

        Before the look may be the charge of a response that needs a decision. Charges behind it may be for responses to
        this request and to later ones.
        """
        if handle is None:
            return
        while (of, handle) not in self._looked and self._journal:
            if (self._journal[0].of in LOOKS and self._journal[0].throttle_ms) or not self._account_for_next(now_ms):
                break
        require((of, handle) in self._looked, f"a first {head} goes on whatever is owed")

    def _check_looked(self, head: wire.Head, now_ms: int) -> int | None:
        """What the quotas of bytes and of request time ask of an entity's first request; which sensor limits its
        time.
        """
        given = self._bound.get(head.client_id)
        if head.api_key == wire.PRODUCE and self._quota_of(head, QuotaType.PRODUCE).limit < UNLIMITED:
            assert given is not None
            self._require_looked(Of.OWED, self._sensor(head, QuotaType.PRODUCE, given, now_ms), head, now_ms)
        sensor = self._sensor_of_time(head, given, now_ms)
        self._require_looked(Of.OWED_TIME, sensor, head, now_ms)
        return sensor

    def _note_look(self, now_ms: int) -> bool:
        """An entity's first request of a kind waits for what is owed already, if something is."""
        self._take_own(now_ms)
        look, head = self._journal[0], self._next_head()
        if look.throttle_ms:
            if not isinstance(head, wire.Head):
                return False
            require((look.of, look.handle) not in self._looked, f"{head} waits once more for what is owed")
            of_bytes = {wire.PRODUCE: QuotaType.PRODUCE, wire.FETCH: QuotaType.FETCH}
            others = {Of.OWED_TIME: QuotaType.REQUEST, Of.OWED_TOKENS: QuotaType.CONTROLLER_MUTATION}
            quota_type = others.get(look.of) or of_bytes.get(head.api_key)
            require(quota_type is not None, f"{head} waits for {look}")
            assert quota_type is not None
            given = self._given_last(head.client_id)
            is_of_client = given is not None and _HANDLE_OF[quota_type](given) == look.handle
            require(is_of_client, f"{head} waits for {look}, which is another client's")
            self._mute.throttle(now_ms, look.throttle_ms, quota_type, head.client_id)
            self._pays = True
        self._journal.popleft()
        if not look.throttle_ms and look.of is Of.OWED and self._waits_for_unheard(look.handle, head):
            assert isinstance(head, wire.Head)
            self._mute.throttle(now_ms, self._sensors.window_ms, QuotaType.FETCH, head.client_id)
            self._pays = True
        else:
            self._looked.add((look.of, look.handle))
        return True

    def _waits_for_unheard(self, handle: int, head: object) -> bool:
        """Whether a first Fetch that is not paced waits as others are in flight whose clients have left."""
        if not (self._plan.withholds and isinstance(head, wire.Head) and head.api_key == wire.FETCH):
            return False
        seen = len(self._mute.reported)
        waited = Throttled(QuotaType.FETCH, self._sensors.window_ms, head.client_id)
        return self._quota_manager.fetch_rooms.unheard_bytes(handle) > 0 and self._throttled[seen : seen + 1] == [
            waited
        ]

    def _quota_of(self, head: wire.Head, quota_type: QuotaType) -> EffectiveQuota:
        """The present quota of the client of a request."""
        return self._quota_manager.table.tags_and_limit(quota_type, self.user, measured_as(head.client_id))

    def _sensor(self, head: wire.Head, quota_type: QuotaType, given: ClientSensors, now_ms: int) -> int | None:
        """By which of the `given` sensors a request is measured now, None: by none. They must be the right ones.

        A full table measures no client without a quota.
        """
        handle, right = _HANDLE_OF[quota_type](given), self._quota_of(head, quota_type)
        if self._exact_keys:
            client_id = measured_as(head.client_id)
            exactly = self._quota_manager.bind(VIRTUAL_CLUSTER, NODE_ID, self.user, client_id, now_ms)
            expected = _HANDLE_OF[quota_type](exactly)
            require(handle == expected, f"{quota_type.name} of {head} is measured by {handle} instead of {expected}")
        if handle is None:
            is_on = self._quota_manager.table.is_on(quota_type)
            none_right = not is_on or (right.entity is None and not self._exact_keys)
            require(none_right, f"nothing measures {quota_type.name} of {head}")
            return None
        sensors = self._times if quota_type is QuotaType.REQUEST else self._sensors
        limit = sensors.limit(handle) if sensors.is_open(handle) else right.limit
        require(limit == right.limit, f"{quota_type.name} of {head} is limited to {limit} instead of {right.limit}")
        return handle

    def _charge_produce(self, head: wire.Head, value: int, now_ms: int, mutes: bool = True) -> None:
        """So many bytes of a Produce are charged."""
        handle = self._sensor(head, QuotaType.PRODUCE, self._bound[head.client_id], now_ms)
        if handle is not None:
            self._charge(value, handle, QuotaType.PRODUCE, head, now_ms, mutes=mutes)

    def _clamp_fetch(self, head: wire.Head, now_ms: int) -> int | None:
        """Clamp a Fetch; return by which sensor the response will be measured."""
        if head.api_key != wire.FETCH:
            return None
        handle = self._sensor(head, QuotaType.FETCH, self._bound[head.client_id], now_ms)
        ceiling_bytes = self._ceiling_bytes(self._quota_of(head, QuotaType.FETCH).limit)
        if handle is not None and ceiling_bytes < INT32_MAX:
            self._require_looked(Of.OWED, handle, head, now_ms)
            granted = self._next_charge(Of.GRANTED, handle, now_ms)
            require(granted, f"{head} goes on without room, but {list(self._journal)}")
            room, start = self._journal.popleft(), bytes(self._requests[: head.body_at + 16])
            asked = wire.fetch_max_bytes(start, head)
            require(room.asked == asked, f"{head} asks for {asked} bytes, room was found for {room.asked}")
            self._granted_bytes = int(room.value)
            self._requests[: head.body_at + 16] = wire.clamped(start, head, min(ceiling_bytes, self._granted_bytes))
        return handle

    def _close_lost_session(self, head: wire.Head) -> None:
        """A full fetch with a quota, which names no session, closes the one that its client does not know of."""
        at = wire.session_at(head)
        limited = self._has_ceiling(head) or self._quota_of(head, QuotaType.REQUEST).limit < UNLIMITED
        looks = self._has_ceiling(head) or (self._plan.withholds and limited)
        if head.api_key != wire.FETCH or not at or not self._lost_session or not looks or self._unproven:
            return
        whole = wire.with_session(self._requests, head)
        if isinstance(whole, wire.Head) and not whole.incremental and not any(self._requests[at : at + 4]):
            self._requests[at : at + 4] = pack(">i", self._lost_session)
            self._lost_session = 0

    def _wait_for_room(self, now_ms: int) -> bool:
        """A Fetch waits for room, or has done so for too long."""
        self._take_own(now_ms)
        wait, head = self._journal[0], self._next_head()
        if not isinstance(head, wire.Head):
            return False
        given = self._given_last(head.client_id)
        if head.api_key != wire.FETCH or given is None or given.fetch != wait.handle:
            return False  # it is for one behind that
        require(not self._plan.withholds, f"{head} waits for room: {wait}")
        self._journal.popleft()
        if wait.of is Of.WAITS_ANEW:
            require(self._fetch_waited_at == self.next_at, f"{head} gets no data though it has not waited")
            self._mute.throttle(now_ms, wait.throttle_ms, QuotaType.FETCH, head.client_id)
            self._answered_fetch_at = self.next_at
            self._take_own(now_ms)
        elif wait.throttle_ms:
            asked = wire.fetch_max_bytes(self._requests, head)
            require(wait.value == asked, f"{head} asks for {asked} bytes, room was sought for {wait.value}")
            self._note_wait(wait, now_ms)
            self._mute.throttle(now_ms, wait.throttle_ms, QuotaType.FETCH, head.client_id)
            self._pays = True
        else:
            self._fetch_waited_at = self.next_at
        return True

    def _note_wait(self, wait: Charge, now_ms: int) -> None:
        """It waits for no longer than anybody without a response, unless something else had it lose its turn."""
        waiting = (self.next_at, wait.handle)
        was, waited_ms, until_ms = self._waited
        waited_ms = wait.throttle_ms + (waited_ms if was == waiting and now_ms < until_ms + GRACE_MS else 0)
        self._waited = (waiting, waited_ms, now_ms + wait.throttle_ms)
        require(waited_ms <= LONGEST_MS, f"a Fetch waits for {waited_ms} ms without a response")

    def _answer_fetch(self, head: wire.Head, taken: Taken) -> None:
        """The proxy responds to a Fetch that has waited for too long."""
        self._answered_fetch_at = -1
        self._may_be_over = self._may_authenticate = False
        self._look_up(head.client_id)
        self._note_decided(taken)
        assert isinstance(wire.with_session(self._requests, head), wire.Head)
        taken.own_response = wire.own_fetch_response(head)
        taken.throttle_at = (9 if head.version >= 12 else 8) if head.version else -1
        taken.muted_until_ms = self._mute.until_ms
        at = wire.session_at(head)
        if at and not head.incremental and any(self._requests[at : at + 4]):
            self._lost_session = int.from_bytes(self._requests[at : at + 4], "big", signed=True)

    def _ceiling_bytes(self, limit: float) -> int:
        window_s = (self._sensors.samples - 1) * (self._sensors.window_ms / 1000)
        return int(min(limit * window_s, INT32_MAX))

    def _has_ceiling(self, head: wire.Head) -> bool:
        return self._ceiling_bytes(self._quota_of(head, QuotaType.FETCH).limit) < INT32_MAX

    def _charge(
        self,
        value: int,
        handle: int,
        quota_type: QuotaType,
        head: wire.Head,
        now_ms: int,
        may_be_emptied: bool = False,
        over_time: bool = False,
        mutes: bool = True,
        tells: bool = False,
    ) -> int:
        """One charge of the relay is accounted for; return its throttle time. `over_time`: the client gets no bytes."""
        charged = self._next_charge(Of.BYTES, handle, now_ms)
        require(charged, f"{quota_type.name} of {value} bytes is not charged, but {list(self._journal)}")
        charge = self._journal[0]
        charge.charges -= 1
        if charge.charges:
            charge.value -= value
        else:
            self._journal.popleft()
            require(charge.value == value, f"charged {charge.value} instead of {value} bytes")
        as_empty_fetch = may_be_emptied and (over_time or charge.throttle_ms > 0)
        require(charge.taken_back == as_empty_fetch, f"{value} bytes are taken back though they go out, or the reverse")
        throttle_ms = max(charge.throttle_ms, self._told_ms(handle, value) if tells else 0)
        if throttle_ms and mutes:
            in_responses = quota_type is QuotaType.FETCH
            self._mute.throttle(now_ms, throttle_ms, quota_type, head.client_id, in_responses)
        return throttle_ms

    def _told_ms(self, handle: int, value: int) -> int:
        """For how long the next Fetch waits, as the response to one that had room tells."""
        told = self._journal.popleft() if self._journal else None
        right = told is not None and (told.of, told.handle, told.value) == (Of.TOLD, handle, value)
        require(right, f"it is not told when there is room again behind {value} bytes, but {told}")
        assert told is not None
        return told.throttle_ms

    def _count_request(self, head: wire.Head, came_bytes: int | None = None) -> None:
        counts, frame_bytes = self._counts, head.frame_bytes if came_bytes is None else came_bytes
        self.requests += 1
        self._request_bytes += frame_bytes
        counts.requests_by_api[head.api_key] = counts.requests_by_api.get(head.api_key, 0) + 1
        counts.request_bytes += frame_bytes

    # ------------------------------------------------------------------- responses

    def _sent_to_client(self, data: bytes, now_ms: int) -> None:
        at = 0
        while at < len(data):
            self._take_own_responses()
            if any(charge.of is Of.WAITS_ANEW for charge in self._journal):
                while self._journal and self._journal[0].of in LOOKS | WAITS and self._account_for_next(now_ms):
                    pass
            written = self._responses[0] if self._responses else None
            if written is None or not written.sent_bytes:
                own = self._own_response(data[at:], now_ms)
                if own is not None:
                    sent, throttle_ms = own
                    require(data[at : at + len(sent)] == sent, f"another own response: {data[at : at + 30]!r}")
                    at += len(sent)
                    self._done(len(sent), throttle_ms)
                    continue
            require(written is not None, f"a response that no node sent: {data[at : at + 30]!r}")
            assert written is not None
            if not written.sent_bytes:
                self._begin_response(written, now_ms)
            if written.as_empty_fetch:
                at += self._withhold(written, data, at, now_ms)
            else:
                at += self._compare(written, data, at, now_ms)

    @property
    def _first(self) -> Taken | None:
        """The request whose response is next."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def _next_is_whole(self) -> bool:
        """Whether the next response is here whole and needs no decision: if it has to wait, the relay delays it."""
        written = self._responses[0] if self._responses else None
        if self._first is not None and self._first.own_response is not None:
            return written is None or not written.sent_bytes
        return written is not None and written.all_fed and not written.sent_bytes and not self._asking(NODE)

    @property
    def _next_is_wrong(self) -> bool:
        """Whether the response that is next may not be passed on."""
        own = self._first is not None and self._first.own_response is not None
        return not own and bool(self._responses) and bool(self._responses[0].response.reason)

    def _note_hold(self, now_ms: int) -> None:
        if self._first is None or not self._hold.is_on(self._first, now_ms):
            return
        begun = bool(self._responses) and self._responses[0].fed_bytes > 0 and not self._responses[0].sent_bytes
        if begun or self._first.own_response is not None:
            self._hold.begin(now_ms, exactly=self._next_is_whole)

    def _own_response(self, data: bytes, now_ms: int) -> tuple[bytes, int] | None:
        """The response of ours that is next, if `data` must begin with one, and the throttle time in it."""
        if not self._in_flight:
            self._take_own(now_ms)
        own = self._in_flight[0].own_response if self._in_flight else None
        if own is None:
            return None
        request, at = self._in_flight[0], self._in_flight[0].throttle_at
        self._charge_time(request, now_ms)
        self._hold.release(request, now_ms)
        if at < 0:
            return own, 0
        left_ms = max(request.muted_until_ms, self._mute.responses_until_ms) - now_ms
        if self._hold.reports_delays:
            left_ms = self._hold.reported_ms(request.head, 0, int.from_bytes(data[at : at + 4], "big"), now_ms)
        if left_ms <= 0:
            return own, 0
        return own[:at] + pack(">i", left_ms) + own[at + 4 :], left_ms

    def _done(self, frame_bytes: int, throttle_ms: int) -> None:
        self._note_done()
        self.for_client.append(ForClient(frame_bytes, throttle_ms))
        self._count_response(frame_bytes)

    def _count_response(self, frame_bytes: int) -> None:
        self._responses_sent += 1
        self._response_bytes += frame_bytes
        self._counts.responses += 1
        self._counts.response_bytes += frame_bytes

    def _begin_response(self, written: Written, now_ms: int) -> None:
        """The next response begins to go to the client: it must be the one that is due."""
        response = written.response
        require(bool(self._in_flight), "a response without a request")
        request = self._in_flight[0]
        if request.head.api_key == wire.FETCH and not written.charged:
            self._charge_fetch(written, request, now_ms)
        wrong = response.reason and not response.passable
        require(not wrong, f"sent on a wrong response ({response.reason})")
        self._charge_time(request, now_ms)
        self._hold.release(request, now_ms)
        self._note_done()
        require(
            request.head.bare or response.for_client[4:8] == pack(">i", request.head.correlation_id),
            f"the response {response.for_client[4:8].hex()} is not the one to {request.head}",
        )
        written.request = request
        require(request.settlement is None or bool(written.merged), "a response went out that was not settled")
        written.expected = written.merged or response.for_client
        if not written.as_empty_fetch:
            self._count_response(self._announced(response))

    def _withhold(self, written: Written, data: bytes, at: int, now_ms: int) -> int:
        """Instead of a response over quota goes an empty one, at once and whole; what comes of the node's is
        dropped.
        """
        request, response = written.request, written.response
        assert request is not None
        reported_ms = response.throttle_ms
        if response.throttle_at >= 0:
            reported_ms = self._throttle_ms(written, now_ms)
        empty = wire.empty_fetch_response(request.head, response.frame, reported_ms)
        if data[at : at + len(empty)] != empty:
            raise Violation(f"in place of what is over quota goes {difference(data[at:], empty)}")
        self._count_response(len(empty))
        self._counts.as_empty_fetch += 1
        self._counts.withheld_bytes += self._announced(response)
        self.for_client.append(ForClient(len(empty), max(reported_ms, 0)))
        if not request.head.incremental:
            self._lost_session = wire.session_made(request.head, response.frame)
        written.dropped = True
        self.empty_fetch_wrong = self.empty_fetch_wrong or bool(response.reason)
        self._drop(written)
        return len(empty)

    def _drop(self, written: Written) -> None:
        written.sent_bytes = written.fed_bytes
        if written.all_fed and not written.response.ending:
            self._responses.remove(written)

    def _announced(self, response: wire.Response) -> int:
        return int.from_bytes(response.frame[:4], "big") + 4 if len(response.frame) >= 4 else 0

    def _charge_fetch(self, written: Written, request: Taken, now_ms: int) -> None:
        written.charged = True
        may_be_emptied = request.may_be_emptied
        over_time = self._charge_time(request, now_ms) > 0
        written.as_empty_fetch = may_be_emptied and over_time
        value = written.response.charged_bytes
        if request.fetch_handle is None or not self._is_charged(Of.BYTES, request.fetch_handle):
            return
        how = (request.head, now_ms, may_be_emptied, over_time)
        tells = request.room_bytes > 0 and not self._plan.withholds
        throttle_ms = self._charge(value, request.fetch_handle, QuotaType.FETCH, *how, tells=tells)
        if throttle_ms:
            written.as_empty_fetch = may_be_emptied

    def _note_decided(self, taken: Taken) -> None:
        """The time of a request that was decided about is measured as its client was then, if it was."""
        client_id = taken.head.client_id
        if client_id in self._remembered and not self._unproven:
            given = self._bound[client_id]
            taken.timed, taken.limited = given.request, given.limits_requests

    def reported_sensors(self, client_id: bytes, client_sensors: ClientSensors) -> None:
        """The relay was given the sensors that measure a client-id: with the next request of that."""
        self._to_look_up.append((client_id, client_sensors))

    def _given_last(self, client_id: bytes) -> ClientSensors | None:
        """What the relay was given last for a client-id, whether a request has been seen with it or not."""
        given = [sensors for name, sensors in self._to_look_up if name == client_id]
        return given[-1] if given else self._bound.get(client_id)

    def _look_up(self, client_id: bytes) -> None:
        """The relay has looked at a request: if it had no valid sensors for that, it was given some, each time.

        A client that had some before does not wait for what it owes. Beyond MAX_CLIENT_IDS the oldest ones are
        forgotten; for a very long client-id all are.
        """
        while self._to_look_up and self._to_look_up[0][0] == client_id:
            _, given = self._to_look_up.popleft()
            if client_id in self._remembered:
                looks = (
                    (Of.OWED, given.produce),
                    (Of.OWED, given.fetch),
                    (Of.OWED_TIME, given.request),
                    (Of.OWED_TOKENS, given.mutation),
                )
                self._looked |= {(of, handle) for of, handle in looks if handle is not None}
            elif len(client_id) > 1024:
                self._remembered.clear()
            elif len(self._remembered) >= MAX_CLIENT_IDS:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[client_id] = None
            self._bound[client_id] = given

    def _check_time_charges(self, now_ms: int) -> None:
        """No more time is charged than these requests cost."""
        if self._begun_ms < 0:
            self._begun_ms = now_ms
        for charge in self._journal:
            if charge.of is Of.TIME:
                charged_us, most_us = charge.value * US_PER_PERCENT, self._plan.cost_us * charge.charges
                require(charged_us <= most_us + 1, f"{charged_us} us are charged, {most_us} at most are right")
                require(charge.throttle_ms <= self._times.window_ms, f"{charge} throttles for more than a window")

    def _may_withhold(self, head: wire.Head) -> bool:
        """Whether the response to a request may be replaced by an empty one: for a quota at the time it is sent on."""
        if not self._plan.withholds or self._unproven or head.api_key != wire.FETCH:
            return False
        return self._has_ceiling(head) or self._quota_of(head, QuotaType.REQUEST).limit < UNLIMITED

    def _is_charged(self, of: Of, handle: int) -> bool:
        """Whether a charge to this sensor has to be there: its row is open, or was when it was charged in this step."""
        sensors = self._times if of is Of.TIME else self._sensors
        return sensors.is_open(handle) or any(charge.of is of and charge.handle == handle for charge in self._journal)

    def _next_charge(self, of: Of, handle: int, now_ms: int) -> bool:
        """Whether the next charge is one to this sensor; what was charged before is accounted for."""
        while self._journal and not (self._journal[0].of is of and self._journal[0].handle == handle):
            if not self._account_for_next(now_ms):
                return False
        return bool(self._journal)

    def _account_early(self, now_ms: int) -> None:
        """What was charged is accounted for, though nothing more of it goes out now."""
        while self._journal and self._account_for_next(now_ms):
            pass

    def _account_for_next(self, now_ms: int) -> bool:
        """The next charge is for something that waits: a first Fetch, or a response, as soon as its size is known."""
        of = self._journal[0].of
        if of in LOOKS:
            return self._note_look(now_ms)
        if of in WAITS:
            return self._wait_for_room(now_ms)
        if of is Of.TIME and not self._in_flight:
            self._take_own(now_ms)
        if not self._in_flight:
            return False
        request, written = self._in_flight[0], self._responses[0] if self._responses else None
        if of is Of.TIME and self._is_unpaid(request) and self._is_for_the_end(request, written):
            self._charge_time(request, now_ms)
            return True
        if written is not None and self._is_for_fetch(self._journal[0], request, written):
            require(written.fed_bytes >= 8, "charged before its size is known")
            self._charge_fetch(written, request, now_ms)
            return True
        if of is Of.TIME and self._plan.delays and request.timed is not None:
            self._charge_time(request, now_ms)
            return True
        return False

    def _is_for_the_end(self, request: Taken, written: Written | None) -> bool:
        """Whether time is charged because the connection ends, not for a response. Then nothing is reported."""
        if not self._closes or self._throttles_reported > len(self._mute.reported):
            return False
        if written is None or written.fed_bytes < 8 or len(self._journal) < 2:
            return True
        its_own = all(self._is_for_fetch(charge, request, written) for charge in islice(self._journal, 2))
        is_of_many = self._journal[0].charges > 1  # one charge for all requests in flight, as at the end alone
        return is_of_many or not its_own or self._journal[1].of is Of.TIME

    def _is_for_fetch(self, charge: Charge, request: Taken, written: Written) -> bool:
        """Whether this can be the charge for a Fetch response, whose time is charged first."""
        size_bytes = self._announced(written.response) - 4
        is_refused = written.response.reason in _REFUSED_AT_ONCE
        if written.sent_bytes or written.charged or is_refused or not 0 <= size_bytes <= self._plan.max_response_bytes:
            return False
        if charge.of is Of.TIME:
            return request.head.api_key == wire.FETCH and request.timed == charge.handle
        right = request.fetch_handle == charge.handle and charge.charges == 1
        if self._closes and request.room_bytes and not self._plan.withholds:  # a client that has left is told nothing
            right = right and any(told.of is Of.TOLD for told in islice(self._journal, 1, 3))
        return right and charge.value == written.response.charged_bytes

    def _charge_time(self, request: Taken, now_ms: int) -> int:
        """The time that a response took is charged, once; the throttle time in ms.

        No more is charged than has passed; a response of ours is charged what the node's would cost.
        """
        sensor, request.timed = request.timed, None
        if sensor is None or not self._is_charged(Of.TIME, sensor):
            return 0
        charged = self._next_charge(Of.TIME, sensor, now_ms)
        require(charged, f"the time of {request.head} is not charged, but {list(self._journal)}")
        charge = self._journal[0]
        part_us = charge.value * US_PER_PERCENT / charge.charges
        if not request.limited:
            self._unforeseen[charge.handle] = self._unforeseen.get(charge.handle, 0.0) + part_us / US_PER_PERCENT
        charge.value -= charge.value / charge.charges
        charge.charges -= 1
        if not charge.charges:
            self._journal.popleft()
        if request.own_response is not None:
            right_us = self._plan.cost_us
            require(abs(part_us - right_us) < 1, f"{part_us} us for an own response, {right_us} are right")
        else:
            self._charged_us += part_us
            passed_us = 1000 * (now_ms - self._begun_ms)
            within = self._closes or self._charged_us <= passed_us + 1
            require(within, f"{self._charged_us} us are charged in {passed_us} us")
        if charge.throttle_ms and not (self._closes and self._throttles_reported <= len(self._mute.reported)):
            self._mute.throttle(
                now_ms, charge.throttle_ms, QuotaType.REQUEST, request.head.client_id, in_responses=True
            )
        return charge.throttle_ms

    def _compare(self, written: Written, data: bytes, at: int, now_ms: int) -> int:
        """Compare what is sent of a response with what must be; return how many bytes of `data` belong to it."""
        step = min(len(written.expected) - written.sent_bytes, len(data) - at)
        after = written.sent_bytes + step
        if not written.reported and 0 <= written.response.throttle_at < after:
            here = data[max(at + written.response.throttle_at - written.sent_bytes, 0) :][:4]
            reported_ms = int.from_bytes(here, "big", signed=True) if len(here) == 4 else None
            written.reported_ms = self._throttle_ms(written, now_ms, reported_ms)
            place = written.response.throttle_at
            field = pack(">i", written.reported_ms)
            written.expected = written.expected[:place] + field + written.expected[place + 4 :]
        if data[at : at + step] != written.expected[written.sent_bytes : after]:
            where = difference(data[at : at + step], written.expected[written.sent_bytes : after])
            raise Violation(f"other bytes to the client than the node sent, {written.sent_bytes} on: {where}")
        written.sent_bytes = after
        if written.response.reason:
            require(after <= written.response.passable, f"too much of a wrong response ({written.response.reason})")
        if after == len(written.expected):
            require(written.all_fed, "a response went out before it was all there")
            self._responses.popleft()
            self.for_client.append(ForClient(after, written.reported_ms))
            self.learned.update({n: (host.decode(), port) for n, host, port in written.response.addresses})
        return step

    def _throttle_ms(self, written: Written, now_ms: int, reported_ms: int | None = None) -> int:
        """What a response must report: the larger of the proxy's throttle time and the node's, which mutes, too."""
        written.reported = True
        request, node_ms = written.request, written.response.throttle_ms
        assert request is not None
        if self._hold.reports_delays:
            return self._hold.reported_ms(request.head, node_ms, reported_ms, now_ms)
        own_ms = self._mute.left_ms(request, now_ms)
        if node_ms > max(own_ms, 0):
            self._mute.throttle_by_node(now_ms, node_ms, request.head.client_id)
            self._mute.responses_until_ms = max(self._mute.responses_until_ms, now_ms + node_ms)
        return own_ms if own_ms > max(node_ms, 0) else node_ms

    # -------------------------------------------------------------------- checks

    def _check_progress(self, now_ms: int) -> None:
        """Nothing waits without a reason, and what waits is woken."""
        require(not self._decision_reason, f"does not close for {self._decision_reason}")
        require(not self._own_requests_due, "sends no own requests")
        if self._mute.on:
            until_ms = self._mute.until_ms
            if self._hold.is_on(self._first, now_ms) and self._hold.since_ms is not None:
                until_ms = min(until_ms, self._hold.until_ms(self._in_flight[0]))
            woken = self._wake_at == until_ms or (not self._next_is_whole and self._wake_at == self._mute.until_ms)
            require(woken, f"muted until {self._mute.until_ms}, to be woken at {self._wake_at}")
        head = None
        if self._request_left:
            require(not self._requests, f"{len(self._requests)} bytes of a request that has begun are held back")
        elif self._requests:
            head = self._next()
            if isinstance(head, wire.Head):
                require(not self._may_take(head), f"held back for no reason: {head}")
                if not self._connected and not self._mute.on and not self._full:
                    require(self._opened, "the upstream connection is not opened")
            elif (
                isinstance(head, wire.Bad)
                and not (head.late and not self._connected)
                and not (self._mute.on or self._full or self._asking(CLIENT))
            ):
                raise Violation(f"does not close for {head.reason}")
        if self._eof[CLIENT]:
            require(self._waits_with_requests, "does not close for client_closed though nothing waits")
        until_woken = self._hold.since_ms is not None and self._mute.on
        if not (until_woken or self._hold.is_on(self._first, now_ms)):
            self._check_responses()
        self._check_reading()
        self._check_bounds()

    def _check_responses(self) -> None:
        if self._eof[NODE]:
            raise Violation("does not close for node_closed")
        if self._asking(NODE):
            return
        if self._in_flight and self._in_flight[0].own_response is not None:
            begun = self._responses and self._responses[0].sent_bytes
            require(bool(begun), "an own response is held back though it is due")
        if self._responses:
            written = self._responses[0]
            require(
                not written.is_due, f"a response that is here is held back or not refused ({written.response.reason})"
            )

    def _check_reading(self) -> None:
        held = len(self._requests)
        muted = (self._mute.on and not self._next_passes_mute) or self._full
        waiting = muted or not self._connected or self._asking(CLIENT) or self._blocked[CLIENT]
        between = not self._request_left
        if self._paused[CLIENT]:
            why = self._blocked[NODE] or (waiting and between and held >= 14)
            require(why, f"the client is not read, for no reason; {held} bytes held")
        else:
            require(not self._blocked[NODE], "the client is read though the node takes nothing")
            unread = (muted or self._blocked[CLIENT]) and between and held >= 14
            require(not (unread and self._client_acted), f"a muted client is read though {held} bytes are held")
            require(not (waiting and between and held >= wire.HEAD_BYTES), f"read on with {held} bytes held")
        if self._connected:
            held = self._responses_held()
            if self._paused[NODE]:
                why = self._blocked[CLIENT] or (self._asking(NODE) and held >= wire.HEAD_BYTES)
                why = why or self._hold.since_ms is not None
                require(why, "the node is not read, for no reason")
            else:
                require(not self._blocked[CLIENT], "the node is read though the client takes nothing")

    def _responses_held(self) -> int:
        return sum(max(written.fed_bytes - written.sent_bytes, 0) for written in self._responses)

    def _check_bounds(self) -> None:
        held = self._responses_held()
        head = self._next() if not self._request_left and self._requests else None
        asked = isinstance(head, wire.Head) and self._is_asked(head) is not False
        most = HELD_BYTES + (MAX_ASKED_BYTES if asked else 0)
        require(len(self._requests) < most, f"{len(self._requests)} bytes of requests held")
        first = len(self._responses[0].response.frame) if self._responses else 0
        gathered = first if first > wire.HEAD_BYTES and not self._responses[0].response.reason else 0
        require(held < HELD_BYTES + wire.HEAD_BYTES + gathered, f"{held} bytes of responses held")
        require(self._relay.held_bytes < 2 * HELD_BYTES + gathered, f"holds {self._relay.held_bytes} bytes")
        idle = not (self._in_flight or self._requests or self._request_left or self._responses)
        require(self._relay.idle == idle, f"idle is {self._relay.idle}, {idle} is right")
        require(self._relay.answered or not idle, "nothing is in flight, and something is waited for")
        muted = self._mute.on or self._full or not self._connected or self._asking(CLIENT)
        require(self._relay.muted == (muted and not self._request_left), f"muted is {self._relay.muted}")

    def _check_counters(self) -> None:
        relay = self._relay
        counted = (relay.requests, relay.request_bytes, relay.responses, relay.response_bytes)
        seen = (self.requests, self._request_bytes, self._responses_sent, self._response_bytes)
        require(counted == seen, f"counted {counted}, {seen} is right")

    def _check_close(self, close: Close) -> None:
        reason = close.reason.value
        allowed = {self._as_reported(reason) for reason in self._reasons_to_close()}
        require(reason in allowed, f"closes for {reason} ({close.detail}), allowed: {sorted(allowed)}")

    def _as_reported(self, reason: str) -> str:
        """An end after a failed login is reported as such; a node that takes no bare token only closes."""
        by_node = reason in ("node_closed", "node_lost")
        if not by_node and reason not in ("client_closed", "client_lost"):
            return reason
        refused = by_node and (self._bare or self._may_be_over) and bool(self._in_flight)
        return "authentication_failed" if self._login_failed or refused else reason

    def _reasons_to_close(self) -> set[str]:
        if self._lost_reason:
            return {self._lost_reason}
        reasons = {self._decision_reason} if self._decision_reason else set()
        head = None
        held = self._full or (self._mute.on and not self._next_passes_mute)
        if not self._request_left and self._requests and not held:
            head = self._next()
            if isinstance(head, wire.Bad):
                reasons.add(head.reason)
        all_taken = not (isinstance(head, wire.Head) and self._may_take(head))
        if self._eof[CLIENT] and all_taken and not self._waits_with_requests:
            reasons.add("client_closed")
        if self._pays and (self._left or self._eof[CLIENT]):
            reasons.add("client_closed")
        written = self._responses[0] if self._responses else None
        if written is not None and written.response.reason:
            reasons.add(written.response.reason)
        if (
            self._asking(NODE)
            and len(self._responses) > 1
            and self._responses[1].response.reason == "response_not_kafka"
        ):
            reasons.add("response_not_kafka")  # a response that is held is out of the way
        seen = reasons & {"response_not_kafka"} and written and written.fed_bytes >= 4
        if self._eof[NODE] and (not seen or self._asking(NODE)):
            reasons.add("node_closed")  # behind a response that needs a decision nothing is looked at
        return reasons

    # ------------------------------------------------------------------- time-outs

    @property
    def waiting_for(self) -> str:
        """What the client is waited for, empty if it is not its turn."""
        if self._request_left:
            return "" if self._paused[CLIENT] else REQUEST
        muted = self._mute.on and not (self._requests and self._next_passes_mute)
        waits = muted or self._full or self._asking(CLIENT) or (self._opened and not self._connected)
        if waits or self._paused[CLIENT] or self._eof[CLIENT]:
            return ""
        if self._requests:
            return REQUEST
        if not self.requests:
            return FIRST_BYTE
        return "" if self._in_flight or self._responses else USE

    # ----------------------------------------------------------------- at the end

    @property
    def waits_for(self) -> str:
        """Why an open connection rests, empty if it has no reason: for a node's response, or for the client's bytes."""
        if self._mute.on or self._asks or any(self._blocked.values()):
            return ""
        if self._request_left or (self._requests and not self._full and not self._next_is_here):
            return "client"
        if self._in_flight:
            return "more malformed responses" if self._own_response_is_malformed else "node"
        return "" if self._requests else "idle"

    @property
    def _next_is_here(self) -> bool:
        """Whether as much of the next request has come as it is judged by: all of one that the proxy responds to, or
        that is collected, although quotas may have changed since.
        """
        if self._relay.missing_bytes:
            return False
        head = self._next()
        if isinstance(head, wire.Head) and (head.answered_by_proxy or self._is_asked(head) is not False):
            return self._is_whole(head)
        return head is not None

    def has_ended(self, side: Side) -> bool:
        """Whether this side has ended its stream."""
        return self._eof[side]

    def is_paused(self, side: Side) -> bool:
        """Whether the relay has this side unread."""
        return self._paused[side]
