"""The direction from the client to the node: reads requests, charges them, asks for decisions, and sends them on."""

from collections.abc import Sequence
from enum import Enum
from io import BytesIO
from struct import Struct
from typing import Final

from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH, PRODUCE
from kafka_throttle.protocol.errors import TruncatedMessage
from kafka_throttle.protocol.frames import (
    HEAD,
    INT32_MAX,
    LIMITS_BYTES,
    MAX_ASKED_BYTES,
    MAX_HEAD_BYTES,
    MAX_SASL_BYTES,
    fetch_clamp,
    fetch_max_bytes,
    limits_clamp,
)
from kafka_throttle.protocol.messages.api_versions import unsupported_version_response
from kafka_throttle.protocol.messages.fetch import own_fetch_response
from kafka_throttle.protocol.own_requests import CLIENT_ID
from kafka_throttle.protocol.splices import Splice, splice_frame
from kafka_throttle.proxy.relay.accounting import Accounting
from kafka_throttle.proxy.relay.actions import (
    CloseReason,
    Decision,
    DecisionKind,
    Exchange,
    OpenUpstream,
    RelayLimits,
)
from kafka_throttle.proxy.relay.charging import FREE, NONE_FOR_LONG, Charges, KnownSensors
from kafka_throttle.proxy.relay.connection_timeouts import WaitingFor
from kafka_throttle.proxy.relay.flow import Flow
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.memory import SMALL_BYTES
from kafka_throttle.proxy.relay.plans import SASL_TOKEN, UNKNOWN_API_VERSIONS, Plan
from kafka_throttle.proxy.relay.repeated_requests import RepeatedRequests, pattern_of
from kafka_throttle.proxy.relay.request import (
    LONG_CLIENT_ID_BYTES,
    OWN_REQUEST,
    Refusal,
    Request,
    RequestHead,
    read_request,
)
from kafka_throttle.proxy.relay.sasl_state import BEHIND_AN_EXCHANGE, Login, SaslState
from kafka_throttle.proxy.relay.throttle_state import (
    ASKING,
    ASKING_FIRST,
    AUTHENTICATING,
    FETCHING,
    NO_MEMORY,
    THROTTLED,
    UNCONNECTED,
    ThrottleState,
)
from kafka_throttle.proxy.relay.turn import NO_TICKET, STOP, Passage, Turn
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.entities import QuotaType

MOST_FIRST_BYTES: Final = 512
"""How much of the first request of a client is stored: more than what clients begin with has."""

_CLIENT: Final = Side.CLIENT
_NODE: Final = Side.NODE
_INT32: Final = Struct(">i")
_FOR_A_CLIENT: Final = OpenUpstream()


class Disposition(Enum):
    """What is done with a request whose head is here.

    - CONNECT: it waits for the connection to the node.
    - WAIT: it waits for the end of a mute.
    - CARRY_OUT: a decision about it is here.
    - AUTHENTICATE: it is SASL: a decision about it is needed.
    - PROVE: the node must show first that the login before it has succeeded.
    - REFUSE: the connection is closed, because no login has succeeded.
    - RESPOND: the proxy responds to it.
    - UNCHARGED: it belongs to a login and is sent on.
    - FORWARD: it is sent on as its quotas allow, perhaps after a decision.
    """

    CONNECT = "connect"
    WAIT = "wait"
    CARRY_OUT = "carry_out"
    AUTHENTICATE = "authenticate"
    PROVE = "prove"
    REFUSE = "refuse"
    RESPOND = "respond"
    UNCHARGED = "uncharged"
    FORWARD = "forward"


CONNECT: Final = Disposition.CONNECT
WAIT: Final = Disposition.WAIT
CARRY_OUT: Final = Disposition.CARRY_OUT
AUTHENTICATE: Final = Disposition.AUTHENTICATE
PROVE: Final = Disposition.PROVE
REFUSE: Final = Disposition.REFUSE
RESPOND: Final = Disposition.RESPOND
UNCHARGED: Final = Disposition.UNCHARGED
FORWARD: Final = Disposition.FORWARD


def classify(plan: Plan, reasons: int, is_decided: bool, login: Login) -> Disposition:
    """What is done with a request: by its API, why none is taken now, what was decided, and where the login stands."""
    is_sasl = plan.asked is DecisionKind.SASL
    if reasons & UNCONNECTED:
        return CONNECT
    if reasons and not is_sasl:  # where only THROTTLED is left, `SaslState.passes_throttle` has looked at the API key
        return WAIT
    if is_decided:
        return CARRY_OUT
    if is_sasl:
        return AUTHENTICATE
    if login is Login.MAY_BE_OVER:
        return PROVE
    if login is Login.UNPROVEN and plan.api_key != API_VERSIONS:
        return REFUSE
    if plan is UNKNOWN_API_VERSIONS:
        return RESPOND
    return FORWARD if login is Login.NONE else UNCHARGED


class _Unread:
    """The bytes of the client that are not taken yet.

    Of a request that is collected whole, `missing` bytes are still to come, and `gathered` has those of `data` and what
    came after them. Its memory grows with each piece: to join them at the end would hold the event loop.
    """

    __slots__ = ("_manager", "_wanted_version", "data", "first_bytes", "gathered", "long_head", "missing")

    def __init__(self, manager: ClientQuotaManager) -> None:
        self.data = b""
        self.first_bytes = b""
        """How the first request of the client begins, once it was taken; or ApiVersions as the first after a login."""
        self.long_head = False
        """Whether the head of a request is not here whole though it is large already, and there is room for it."""
        self.gathered: BytesIO | None = None
        self.missing = 0
        self._manager = manager
        self._wanted_version = 0
        """The version of the quotas that made the relay collect it."""

    def __len__(self) -> int:
        return len(self.data) if self.gathered is None else self.gathered.tell()

    def note_first(self, buf: bytes, at: int) -> None:
        """The request at `at` is one by which clients name themselves."""
        self.first_bytes = buf[at : at + MOST_FIRST_BYTES]  # no copy, unless there are more

    def want(self, missing: int) -> None:
        """Collect the next request whole: `missing` bytes of it are still to come."""
        self.missing = missing
        self._wanted_version = self._manager.version

    def gather(self, data: bytes) -> bool:
        """Store bytes of a request that is collected whole; return whether it is to be looked at.

        It is when it is complete, or quotas have changed: then it may not be needed whole any more.
        """
        if self.gathered is None:
            self.gathered = BytesIO()
            self.gathered.write(self.data)
        self.gathered.write(data)
        self.missing -= len(data)
        if self.missing > 0 and self._wanted_version == self._manager.version:
            return False
        self.put_together()
        return True

    def put_together(self) -> None:
        """Put together what has come of a request that was collected, so that it is looked at."""
        if self.gathered is not None:
            self.data = self.gathered.getvalue()
        self.missing, self.gathered = 0, None


class _Asked:
    """The request that a decision is asked for: the first one that is unread.

    `plan` is that of the latest request that was asked about, `decided_ms` when the decision came.
    """

    __slots__ = ("decided_ms", "decision", "plan", "ticket")

    def __init__(self) -> None:
        self.ticket = NO_TICKET
        self.plan: Plan | None = None
        self.decision: Decision | None = None
        self.decided_ms = 0


class RequestDirection:
    """The requests of one connection, in order."""

    __slots__ = (
        "_accounting",
        "_charges",
        "_fast",
        "_flow",
        "_in_flight",
        "_left",
        "_limits",
        "_read_before",
        "_sasl",
        "_sensors",
        "_throttle",
        "_turn",
        "asked",
        "half",
        "opening",
        "unread",
    )

    def __init__(
        self,
        turn: Turn,
        accounting: Accounting,
        throttle: ThrottleState,
        in_flight: InFlight,
        sasl: SaslState,
        sensors: KnownSensors,
        charges: Charges,
        fast: RepeatedRequests,
        flow: Flow,
        limits: RelayLimits,
        manager: ClientQuotaManager,
    ) -> None:
        self.unread = _Unread(manager)
        self.asked = _Asked()
        self.half: Request | None = None
        """The incomplete request: `_left` bytes are still to come, and the last one counts and charges it."""
        self.opening = False
        """Whether the connection to the node was asked for."""
        self._left = 0
        self._read_before: RequestHead | None = None
        """The first request that is unread, if its head was read before."""
        self._turn = turn
        self._accounting = accounting
        self._throttle = throttle
        self._in_flight = in_flight
        self._sasl = sasl
        self._sensors = sensors
        self._charges = charges
        self._fast = fast
        self._flow = flow
        self._limits = limits

    @property
    def has_whole(self) -> bool:
        """Whether a request is collected, or is here whole and not yet decided about."""
        asked = self.asked
        is_asked = asked.ticket != NO_TICKET or asked.decision is not None or self.unread.long_head
        return is_asked or self.unread.missing > 0 or self._throttle.reasons & ASKING_FIRST != 0

    @property
    def client_waits(self) -> bool:
        """Whether the client has sent something that may still be taken."""
        reasons = self._throttle.reasons
        return bool(self.unread.data) and (
            self._flow.client_blocked or bool(reasons and (self.opening or reasons != UNCONNECTED))
        )

    @property
    def waiting_for(self) -> WaitingFor:
        """What the proxy waits for the client to do, if it does."""
        if self.half is not None:
            return WaitingFor.NOTHING if self._flow.client_paused else WaitingFor.REQUEST
        reasons, data = self._throttle.reasons, self.unread.data
        may_not_begin = reasons & ~UNCONNECTED or (self.opening and reasons)
        if self._flow.client_paused or (may_not_begin and not (data and self._passes_mute(data, 0))):
            return WaitingFor.NOTHING
        if data:
            holding = self._flow.holding
            return WaitingFor.CROWDED_REQUEST if holding is not None and holding.hinders else WaitingFor.REQUEST
        return WaitingFor.USE if self._accounting.requests else WaitingFor.FIRST_BYTE

    # -------------------------------------------------------------------- events

    def try_fast(self, data: bytes) -> int:
        """Take, of bytes that have just come, whole requests that are like the one before; return where they end."""
        if self.unread.data or self._throttle.reasons or self.half is not None:
            return 0
        return self._fast.take(data, 0)

    def add(self, data: bytes) -> bool:
        """Store bytes that have come; return whether it is worth while to look at them."""
        unread = self.unread
        if unread.missing:
            return unread.gather(data)
        unread.data = unread.data + data if unread.data else data
        if len(unread.data) > SMALL_BYTES:
            self._flow.hold()
        return True

    def take(self, at: int = 0) -> None:
        """Send on all that may be sent: whole frames, and the beginning of a frame if its decisive fields are in it.

        `at` is where the next frame begins in what is unread; everything before it is taken already.
        """
        if self.unread.missing:
            self.unread.put_together()
        buf = self.unread.data
        end = len(buf)
        passage = Passage(buf)
        read_before, self._read_before = self._read_before, None
        self.unread.long_head = False
        try:
            while True:
                if self.half is not None:
                    at = self._go_on(self.half, at, end)
                reasons = self._throttle.reasons
                if at == end or (reasons & ~UNCONNECTED and not self._passes_mute(buf, at)):
                    break
                if not reasons and self._fast.pattern is not None:
                    at = self._fast.take(buf, at)
                    if at == end or self._throttle.reasons:
                        continue
                if self._sasl.bare:
                    head = self._sasl.read_token(buf, at, end, self._limits.max_frame_bytes)
                elif read_before is not None and not at:
                    head = read_before
                else:
                    head = read_request(buf, at, end, self._limits.max_frame_bytes)
                if head is None:
                    self._await_head(end - at)
                    break
                next_at = self._take_one(passage, head, at, end)
                if next_at == STOP:
                    break
                at = next_at
        finally:
            if at:
                passage.cut(at, at)
                self.unread.data = buf[at:]
                self._turn.send(_NODE, passage.pieces)
            else:
                self._turn.do_after()

    def _passes_mute(self, buf: bytes, at: int) -> bool:
        """Whether the frame at `at` is taken all the same."""
        return self._throttle.reasons == THROTTLED and self._sasl.passes_throttle(buf, at)

    def _take_one(self, passage: Passage, head: RequestHead, at: int, end: int) -> int:
        """Do with the request at `at` what is to be done now; return where the next one begins."""
        sasl = self._sasl
        disposition = classify(head.plan, self._throttle.reasons, self.asked.decision is not None, sasl.login)
        if disposition is FORWARD:
            if sasl.exchange is not None:
                sasl.end_exchange()
                if head.plan.api_key == API_VERSIONS:  # before its login, a client of Java does not name its software
                    self.unread.note_first(passage.buf, at)
            return self._forward(passage, head, at, end)
        if disposition is CARRY_OUT:
            return self._carry_out(passage, head, at)
        if disposition is AUTHENTICATE:
            if sasl.may_authenticate or not self._sensors.hold_back(head):
                sasl.bound(self._accounting.requests)
                self._ask(head, passage.buf, at)
        elif disposition is CONNECT:
            self._connect(head)
        elif disposition is PROVE:
            self._ask_whether_proven()
        elif disposition is not WAIT:
            sasl.end_exchange()
            if disposition is REFUSE:
                detail = f"{head.plan.name} before an authentication has succeeded"
                raise Refusal(CloseReason.NOT_AUTHENTICATED, detail)
            sasl.bound(self._accounting.requests)
            if disposition is RESPOND:
                return self._respond(passage, head, at, end)
            request = Request(head)
            self._in_flight.add(request)
            return self._pass(request, at, end)
        return STOP

    def settle_client(self) -> None:
        """Pause or resume reading the client if that must change.

        A decision is quick, so reading goes on while one is due. Reading must also go on until a whole head is here,
        because only then the upstream connection is opened: nothing else would end that wait.
        """
        reasons, blocked, pause = self._throttle.reasons, self._flow.client_blocked, self._flow.node_blocked
        if (reasons or blocked) and not (pause or self.half is not None):
            waits = reasons & ~(ASKING | ASKING_FIRST) and (self.opening or reasons != UNCONNECTED)
            enough_bytes = HEAD.size if waits or blocked else MAX_HEAD_BYTES
            here_bytes = len(self.unread)
            pause = here_bytes >= enough_bytes
            if pause and waits and not blocked and self._passes_mute(self.unread.data, 0):
                pause = here_bytes >= 4 + MAX_ASKED_BYTES
        self._flow.pause_client(pause)

    # ----------------------------------------------------------------- one by one

    def _connect(self, head: RequestHead) -> None:
        """Open the connection to the node; the request that waits for it need not be read again."""
        if not self.opening:
            self.opening = True
            self.unread.note_first(self.unread.data, 0)
            is_of_a_proxy = head.client_id == CLIENT_ID
            self._turn.after.append(OpenUpstream(head.correlation_id) if is_of_a_proxy else _FOR_A_CLIENT)
        self._read_before = head

    def _forward(self, passage: Passage, head: RequestHead, at: int, end: int) -> int:
        """Send a request on if no quota has it wait and no decision is needed; return where the next one begins."""
        buf, plan = passage.buf, head.plan
        client_sensors = self._sensors.of(head.client_id)
        request = Request(head, client_sensors)
        if client_sensors.limits and not self._may_begin(request, client_sensors, buf, at, end):
            return STOP if self.asked.decision is None else self._carry_out(passage, head, at)
        if plan.asked is not None:
            if _is_asked(head, client_sensors):
                self._ask(head, buf, at)
                return STOP
            self._in_flight.own_responses = []
            if plan.asked is DecisionKind.MUTATION and client_sensors.mutation is not None:
                self._charges.use_bucket(client_sensors.mutation)
        if head.answered:
            self._in_flight.add(request)
        if plan.fetches and client_sensors.limits_fetches:
            if (clamp := _clamped(request, client_sensors, buf, at)) is not None:
                passage.replace(clamp)
        elif request.incremental is None:  # a Fetch whose response may be replaced is looked at each time
            self._fast.pattern = pattern_of(request, client_sensors, buf, at)
            return self._pass(request, at, end)
        if self._in_flight.lost_session and (closing := self._lost_session_closed(head, buf, at, end)) is not None:
            passage.replace(closing)
        return self._pass(request, at, end)

    def _may_begin(self, request: Request, client_sensors: ClientSensors, buf: bytes, at: int, end: int) -> bool:
        """Whether a request of a client with a quota may go on; False: it must wait, or more of it must come first.

        If a Fetch has waited for too long, False, too: its response is decided then.
        """
        head = request.head
        if self._sensors.waits_first(head, client_sensors):
            return False
        limits_fetches = head.plan.fetches and client_sensors.limits_fetches
        if self._limits.withholds and (limits_fetches or client_sensors.limits_requests):
            if not _has_session(head, at, end):
                return False
            request.incremental = _continues_session(head, buf, at)
        if limits_fetches:
            if client_sensors.fetch is not None and not self._has_room(request, buf, at, end):
                return False
            self._throttle.reasons |= FETCHING
        return True

    # ----------------------------------------------------------- Fetches with a quota

    def _has_room(self, request: Request, buf: bytes, at: int, end: int) -> bool:
        """Whether there is room for a Fetch, which is then reserved for it; see `_may_begin`."""
        found = self._sensors.find_room(request, _asked_bytes(request.head, buf, at))
        if found is NONE_FOR_LONG:
            self._answer_without_data(request.head, buf, at, end)
        return found is FREE

    def _answer_without_data(self, head: RequestHead, buf: bytes, at: int, end: int) -> None:
        """Respond to a Fetch for which there was no room for too long, when it is here whole.

        Its client keeps its turn, and what comes behind the Fetch, a heartbeat perhaps, is taken after another wait.
        """
        if not self._is_whole(head, at, end) or not _has_session(head, at, end) or self._flow.client_blocked:
            return
        plan = head.plan
        is_incremental = _continues_session(head, buf, at) is True
        if not is_incremental and plan.epoch_at and (session_id := _session_of(head, buf, at)):
            self._in_flight.lost_session = session_id
        self._sensors.wait_for_room_anew(head)
        self.asked.decision = Decision(
            response=own_fetch_response(head.correlation_id, plan.api_version, is_incremental)
        )

    def _lost_session_closed(self, head: RequestHead, buf: bytes, at: int, end: int) -> Splice | None:
        """The splice by which a full fetch closes the session that its client does not know of; None if it is none, or
        if what says that is not here.
        """
        if not head.plan.epoch_at:
            return None
        session_at = at + head.body_at + head.plan.epoch_at - 4
        if session_at + 8 > min(end, at + 4 + head.size_bytes):
            return None
        if _continues_session(head, buf, at) or _session_of(head, buf, at):
            return None
        session_id, self._in_flight.lost_session = self._in_flight.lost_session, 0
        return Splice(session_at, session_at + 4, _INT32.pack(session_id))

    # ------------------------------------------------------------------------ bytes

    def _pass(self, request: Request, at: int, end: int) -> int:
        """Let the part of a request that is here pass to the node; return where that part ends."""
        accounting = self._accounting
        frame_end = at + 4 + request.head.size_bytes
        if frame_end <= end:
            self._came_whole(request)
        else:
            self.half, self._left = request, frame_end - end
            accounting.meter(request)
            frame_end = end
        accounting.coming = request.use
        accounting.read(request.use, frame_end - at)
        return frame_end

    def _go_on(self, request: Request, at: int, end: int) -> int:
        """Let more of the incomplete request pass; return where that part ends."""
        step = min(self._left, end - at)
        self._left -= step
        self._accounting.read(self._accounting.coming, step)
        if not self._left:
            self._take_half(request)
            self._in_flight.came_whole(request)
            self._came_whole(request)
        return at + step

    def _take_half(self, request: Request) -> None:
        """The request is no longer incomplete; for a Produce, look up the sensors that now measure its client."""
        self.half = None
        if request.plan.api_key == PRODUCE:
            request.client_sensors = self._sensors.of(request.head.client_id)

    def _came_whole(self, request: Request) -> None:
        """Count and charge a request whose last byte is here."""
        size_bytes = request.head.size_bytes
        self._accounting.count_requests(request, 1, size_bytes + 4)
        if request.plan.api_key == PRODUCE:
            self._charges.came_whole(request, size_bytes)
        if request.head.answered:
            request.muted_until_ms = self._throttle.muted_until_ms
            if size_bytes > LONG_CLIENT_ID_BYTES and len(request.head.client_id) > LONG_CLIENT_ID_BYTES:
                self._keep_for(request)
        else:
            self._charges.exempt(request, size_bytes, 1)

    def _keep_for(self, request: Request) -> None:
        """Count the bytes that are stored for the latest request."""
        self._in_flight.keep_for(request)
        if self._in_flight.keeps > SMALL_BYTES:
            self._flow.hold()

    # ------------------------------------------------------------------ decisions

    def _ask(self, head: RequestHead, buf: bytes, at: int) -> None:
        """Ask for a decision about the request at `at` once it is here whole."""
        plan, end = head.plan, at + 4 + head.size_bytes
        most_bytes = MAX_SASL_BYTES if plan.asked is DecisionKind.SASL else MAX_ASKED_BYTES
        if head.size_bytes > most_bytes:
            detail = f"{plan.name}: {head.size_bytes} bytes announced, {most_bytes} allowed"
            raise Refusal(CloseReason.REQUEST_TOO_LARGE, detail)
        if not self._may_hold(head.size_bytes):
            return
        if end > len(buf):
            self.unread.want(end - len(buf))
        elif not self._flow.client_blocked:
            assert plan.asked is not None
            self._throttle.reasons |= ASKING
            ask = self._turn.ask(plan.asked, _CLIENT, plan, buf[at:end])
            ask.client_id, ask.body_at = head.client_id, head.body_at
            ask.own_responses = self._in_flight.take_own_responses()
            self.asked.plan, self.asked.ticket = plan, ask.ticket

    def _is_whole(self, head: RequestHead, at: int, end: int) -> bool:
        """Whether all of a request to which the proxy responds is here; if not, it is collected."""
        missing_bytes = at + 4 + head.size_bytes - end
        if missing_bytes > 0 and self._may_hold(head.size_bytes):
            self.unread.want(missing_bytes)
        return missing_bytes <= 0

    def _may_hold(self, size_bytes: int) -> bool:
        """Whether there is room to collect a request of this size; if not, the relay waits for it."""
        has_room = self._flow.may_hold_request(size_bytes)
        if not has_room:
            self._throttle.reasons |= NO_MEMORY
        return has_room

    def _await_head(self, here_bytes: int) -> None:
        """Wait for more of the head of a request; for more of a long head only if there is room for it."""
        if here_bytes > SMALL_BYTES:
            self.unread.long_head = self._may_hold(MAX_HEAD_BYTES)

    def _ask_whether_proven(self) -> None:
        """Ask the node, by a request of the proxy, whether the exchange is over; no client request passes before."""
        self._throttle.reasons |= ASKING
        ask = self._turn.ask(DecisionKind.SASL, _CLIENT, SASL_TOKEN, BEHIND_AN_EXCHANGE)
        ask.own_responses = self._in_flight.take_own_responses()
        self.asked.ticket = ask.ticket

    def decide(self, decision: Decision) -> None:
        """The decision that was due is here."""
        self.asked.ticket = NO_TICKET
        self._throttle.reasons &= ~ASKING
        if decision.own_requests:
            self._send_own_requests(decision.own_requests)
        elif decision.exchange is not None:
            self.note_exchange(decision.exchange)
        else:
            self.asked.decision, self.asked.decided_ms = decision, self._turn.now_ms

    def note_exchange(self, exchange: Exchange) -> None:
        """Take up the state of the login that a decision has found."""
        if self._sasl.note(exchange):
            self._fast.pattern = None
        if exchange is Exchange.SUCCEEDED:
            self._sensors.forget()
            self._accounting.forget_clients()

    def _send_own_requests(self, frames: Sequence[bytes]) -> None:
        """Send the proxy's own requests. When their responses are here, the same decision is asked for again.

        No request is taken before. The decision is asked for only when it can be carried out: a client that may
        disconnect meanwhile must not be charged.
        """
        self._throttle.reasons |= ASKING_FIRST
        for frame in frames:
            head = read_request(frame, 0, len(frame), INT32_MAX)
            assert head is not None
            self._in_flight.add(Request(head, note=OWN_REQUEST))
        self._in_flight.own_sent = len(frames)
        self._turn.send(_NODE, list(frames))

    def _carry_out(self, passage: Passage, head: RequestHead, at: int) -> int:
        """Carry out the decision about a request; return where the next one begins."""
        decision, self.asked.decision = self.asked.decision, None
        assert decision is not None
        end = at + 4 + head.size_bytes
        passage.cut(at, end)
        self._accounting.counters.mutations_refused += decision.refused
        throttle_time_ms = self.asked.decided_ms + decision.throttle_time_ms - self._turn.now_ms
        if throttle_time_ms > 0:
            self._throttle.throttle(throttle_time_ms, QuotaType.CONTROLLER_MUTATION, head.client_id)
        request = Request(head)
        self._accounting.count_requests(request, 1, head.size_bytes + 4)
        request.response = decision.response
        if decision.response is None:
            request.note = decision.note
            passage.pieces += splice_frame(memoryview(passage.buf)[at:end], head.size_bytes, decision.splices)
        if decision.response is None and head.plan.asked is DecisionKind.SASL:
            self._send_sasl(request)
        else:
            request.client_sensors = self._sensors.known(head.client_id)
            request.muted_until_ms = self._throttle.muted_until_ms
            self._in_flight.add(request)
            self._keep_for(request)
        self._accounting.read(request.use, end - at)
        return end

    def _send_sasl(self, request: Request) -> None:
        """A SASL frame is sent: its response comes before anything else, unless it may have none."""
        if request.plan is not SASL_TOKEN or not self._sasl.may_stay_unanswered:
            self._throttle.reasons |= AUTHENTICATING
        if not self._sasl.unproven and request.plan is not SASL_TOKEN:
            request.client_sensors = self._sensors.of(request.head.client_id)
        self._in_flight.add(request)

    def _respond(self, passage: Passage, head: RequestHead, at: int, end: int) -> int:
        """Respond to ApiVersions of an unknown version when it is here whole (KIP-511)."""
        if (
            not self._is_whole(head, at, end)
            or self._flow.client_blocked
            or (not self._sasl.unproven and self._sensors.hold_back(head))
        ):
            return STOP
        self.asked.decision = Decision(response=unsupported_version_response(head.correlation_id))
        return self._carry_out(passage, head, at)

    # -------------------------------------------------------------------- the end

    def note_left(self) -> None:
        """The client has left, though not all that it sent may have been read."""
        self._sensors.note_left()

    def abandon(self) -> None:
        """No more bytes of the client will come: count and charge those that have come of an incomplete request."""
        request = self.half
        self._sensors.leave_room()
        if request is not None:
            self._take_half(request)
            came_bytes = request.head.size_bytes - self._left
            self._accounting.count_requests(request, 1, came_bytes + 4)
            if request.plan.api_key == PRODUCE:
                self._charges.produce(request, came_bytes)
        self._accounting.read_unjudged(len(self.unread))
        self.unread.put_together()
        self.unread.data = b""


def _asked_bytes(head: RequestHead, buf: bytes, at: int) -> int:
    """How many bytes a Fetch asks for."""
    if head.plan.api_key == FETCH:
        return fetch_max_bytes(buf, at + head.body_at, head.plan.api_version)
    most_bytes: int = _INT32.unpack_from(buf, at + head.decided_at - LIMITS_BYTES + 4)[0]
    return most_bytes


def _clamped(request: Request, client_sensors: ClientSensors, buf: bytes, at: int) -> Splice | None:
    """The splice that limits a Fetch to what it may bring, None if it asks for no more."""
    most_bytes, head = client_sensors.fetch_ceiling_bytes, request.head
    if request.place is not None:
        most_bytes = min(most_bytes, request.place.granted)
    if head.plan.api_key == FETCH:
        return fetch_clamp(buf, at + head.body_at, head.plan.api_version, most_bytes)
    return limits_clamp(buf, at + head.decided_at - LIMITS_BYTES, most_bytes)


def _has_session(head: RequestHead, at: int, end: int) -> bool:
    """Whether the part of a Fetch is here that says whether it continues a session; other requests need no such part.

    Raises TruncatedMessage if it does not fit into the frame.
    """
    if not head.plan.epoch_at:
        return True
    epoch_end = at + head.body_at + head.plan.epoch_at + 4
    frame_end = at + 4 + head.size_bytes
    if epoch_end <= end and epoch_end <= frame_end:
        return True
    if end >= frame_end:
        raise TruncatedMessage(epoch_end - 4, 4, frame_end)
    return False


def _continues_session(head: RequestHead, buf: bytes, at: int) -> bool | None:
    """Whether a Fetch continues a session: its epoch is above 0. None: it cannot have an empty response."""
    epoch_at = head.plan.epoch_at
    if not epoch_at:
        return None if epoch_at is None else False
    epoch: int = _INT32.unpack_from(buf, at + head.body_at + epoch_at)[0]
    return epoch > 0


def _session_of(head: RequestHead, buf: bytes, at: int) -> int:
    """The session of a Fetch whose epoch is here, 0: none."""
    assert head.plan.epoch_at
    session_id: int = _INT32.unpack_from(buf, at + head.body_at + head.plan.epoch_at - 4)[0]
    return session_id


def _is_asked(head: RequestHead, client_sensors: ClientSensors) -> bool:
    """Whether a request of ASKED_REQUESTS needs a decision; a shadow quota alone never has one refused for its size."""
    if head.plan.asked is not DecisionKind.MUTATION or client_sensors.limits_mutations:
        return True
    return client_sensors.shadow_mutation is not None and head.size_bytes <= MAX_ASKED_BYTES
