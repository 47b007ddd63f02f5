"""The direction from the node to the client: matches responses, charges them, puts throttle times in, sends them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from struct import Struct
from typing import Final

from kafka_throttle.protocol.api_key import API_VERSIONS, PRODUCE
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError, TruncatedMessage
from kafka_throttle.protocol.frames import MAX_ASKED_BYTES, MAX_HEAD_BYTES, MAX_HELD_BYTES
from kafka_throttle.protocol.messages.addresses import hiding_splices, hints_bytes, leaderless_splices, rewritable
from kafka_throttle.protocol.messages.fetch import decisive_bytes, empty_fetch_response, session_of
from kafka_throttle.protocol.messages.produce import lone_partition_throttle_at
from kafka_throttle.protocol.primitives import MAX_HEADER_TAGS, Reader
from kafka_throttle.protocol.splices import Splice, splice_frame
from kafka_throttle.protocol.walk import Walk
from kafka_throttle.proxy.relay.accounting import Accounting
from kafka_throttle.proxy.relay.actions import CloseReason, Decision, DecisionKind, RelayLimits
from kafka_throttle.proxy.relay.charging import Charges
from kafka_throttle.proxy.relay.flow import Flow
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.plans import NO_THROTTLE, SASL_TOKEN, Plan, ResponseKind
from kafka_throttle.proxy.relay.quick_responses import QuickResponses
from kafka_throttle.proxy.relay.recognise import looks_like
from kafka_throttle.proxy.relay.request import Refusal, Request
from kafka_throttle.proxy.relay.throttle_state import THROTTLED, UNCONNECTED, ThrottleState
from kafka_throttle.proxy.relay.turn import NO_TICKET, STOP, Passage, Piece, Turn
from kafka_throttle.proxy.side import QuickEnum, Side

_CLIENT: Final = Side.CLIENT
_NODE: Final = Side.NODE
_PLAIN: Final = ResponseKind.PLAIN
_HEAD: Final = ResponseKind.HEAD

_SMALLEST_RESPONSE: Final = 4
_RESPONSE_PREFIX_BYTES: Final = 13
"""The length prefix, correlation id, an empty tag buffer and the throttle time: enough for most responses."""

_RESPONSE_HEAD: Final = Struct(">ii")
_INT32: Final = Struct(">i")


class ResponseState(QuickEnum):
    """What happens to the response that is next.

    - IDLE: it has not begun, or too little of it has come.
    - PASSING: what comes of it goes to the client.
    - WALKING: the same, but it is large and is walked meanwhile, because something in it has to be changed.
    - COLLECTING: it is collected whole, for a decision or for the proxy.
    - DROPPING: an empty one has gone out in its place, and what comes of it is dropped.
    - ASKED: a decision about it is due.
    - GATHERING: for a decision, more of it must come than is usually enough.
    - DELAYED: it waits until a throttle is over.
    """

    IDLE = "idle"
    PASSING = "passing"
    WALKING = "walking"
    COLLECTING = "collecting"
    DROPPING = "dropping"
    ASKED = "asked"
    GATHERING = "gathering"
    DELAYED = "delayed"


IDLE: Final = ResponseState.IDLE
PASSING: Final = ResponseState.PASSING
WALKING: Final = ResponseState.WALKING
COLLECTING: Final = ResponseState.COLLECTING
DROPPING: Final = ResponseState.DROPPING
ASKED: Final = ResponseState.ASKED
GATHERING: Final = ResponseState.GATHERING
DELAYED: Final = ResponseState.DELAYED

FOLLOWS: Mapping[ResponseState, frozenset[ResponseState]] = {
    IDLE: frozenset({PASSING, WALKING, COLLECTING, DROPPING, ASKED, DELAYED}),
    PASSING: frozenset({IDLE}),
    WALKING: frozenset({IDLE}),
    COLLECTING: frozenset({IDLE, ASKED}),
    DROPPING: frozenset({IDLE}),
    ASKED: frozenset({IDLE, PASSING, WALKING, GATHERING, DELAYED}),
    GATHERING: frozenset({ASKED}),
    DELAYED: frozenset({IDLE}),
}
"""Which states may follow each state."""

_AMID: Final = frozenset({PASSING, WALKING, COLLECTING, DROPPING})
_WHOLE: Final = frozenset({COLLECTING, ASKED, GATHERING, DELAYED})


class _Walked:
    """A large response that is walked while it passes: `sent` of its `frame_bytes` have gone out."""

    __slots__ = ("frame_bytes", "request", "sent", "walk")

    def __init__(self, walk: Walk, frame_bytes: int, sent: int, request: Request) -> None:
        self.walk = walk
        self.frame_bytes = frame_bytes
        self.sent = sent
        self.request = request


class _Asked:
    """The response that a decision is asked for.

    - `head_bytes`: how much of the next response must be here before it can be decided about.
    - `frame`: the response, if it was collected whole; else it is the first one that is unread.
    - `decision`: what was decided, if the response is delayed.
    """

    __slots__ = ("decision", "frame", "head_bytes", "ticket")

    def __init__(self) -> None:
        self.ticket = NO_TICKET
        self.head_bytes = MAX_HEAD_BYTES
        self.frame = b""
        self.decision: Decision | None = None


class _Next:
    """A response that begins: where, how long its frame is, how much of it is here, and where in it the body begins."""

    __slots__ = ("at", "body_at", "frame_bytes", "here_bytes", "request")

    def __init__(self, request: Request, at: int, frame_bytes: int, here_bytes: int, body_at: int) -> None:
        self.request = request
        self.at = at
        self.frame_bytes = frame_bytes
        self.here_bytes = here_bytes
        self.body_at = body_at


class ResponseDirection:
    """The responses of one connection, in the order of their requests."""

    __slots__ = (
        "_accounting",
        "_asked",
        "_charges",
        "_flow",
        "_in_flight",
        "_left",
        "_limits",
        "_parts",
        "_quick",
        "_throttle",
        "_turn",
        "_walked",
        "state",
        "unread",
        "waits",
    )

    def __init__(
        self,
        turn: Turn,
        accounting: Accounting,
        throttle: ThrottleState,
        in_flight: InFlight,
        charges: Charges,
        quick: QuickResponses,
        flow: Flow,
        limits: RelayLimits,
    ) -> None:
        self.state = IDLE
        self.unread = b""
        """What has come of the node and is not judged yet. While GATHERING, more of it is in `_parts`."""
        self._turn = turn
        self._accounting = accounting
        self._throttle = throttle
        self._in_flight = in_flight
        self._charges = charges
        self._quick = quick
        self._flow = flow
        self._limits = limits
        self._left = 0
        """How many bytes are still to come of a response that is PASSING, COLLECTING or DROPPING."""
        self._walked: _Walked | None = None
        self._parts: BytesIO | None = None
        """The parts that have come of a response that is COLLECTING or GATHERING."""
        self._asked = _Asked()
        self.waits = False
        """Whether a response waits for room in the memory."""

    @property
    def has_whole(self) -> bool:
        """Whether a response is collected, or is here whole and has not gone out."""
        return self.state in _WHOLE

    @property
    def ticket(self) -> int:
        """Of the decision that is due."""
        return self._asked.ticket

    @property
    def delayed_decision(self) -> Decision | None:
        """What was decided about the response that is DELAYED, if it needed a decision."""
        return self._asked.decision

    @property
    def amid(self) -> bool:
        """Whether a part of a response has been taken, and the rest of it is still to come."""
        return self.state in _AMID

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes are here that have not gone out."""
        return bool(self.unread or self._parts is not None or self._asked.frame)

    @property
    def held_bytes(self) -> int:
        """How many bytes are here that have not gone out."""
        return len(self.unread) + self._parts_bytes() + len(self._asked.frame)

    def _parts_bytes(self) -> int:
        return 0 if self._parts is None else self._parts.tell()

    def _become(self, state: ResponseState) -> None:
        assert state in FOLLOWS[self.state], f"{state} after {self.state}"
        self.state = state

    # -------------------------------------------------------------------- events

    def try_fast(self, data: bytes) -> int:
        """Pass, of bytes that have just come, the whole responses that need only be counted; return where they end."""
        return 0 if self.unread or self.state is not IDLE else self._quick.take(data, 0)

    def add(self, data: bytes) -> bool:
        """Store bytes that have come; return whether it is worth while to look at them."""
        if self.state is not GATHERING:
            self.unread = self.unread + data if self.unread else data
            return True
        self._put(data)
        if len(self.unread) + self._parts_bytes() < self._asked.head_bytes:
            return False
        self.unread += self._take_parts()
        return True

    def _put(self, part: bytes) -> None:
        """Store a part of a response. Memory grows with each: to join many at the end would hold the event loop."""
        if self._parts is None:
            self._parts = BytesIO()
        self._parts.write(part)

    def _take_parts(self) -> bytes:
        """The parts of a response that are here, in one piece."""
        parts, self._parts = self._parts, None
        return b"" if parts is None else parts.getvalue()

    def take(self, at: int = 0) -> None:
        """Send on all that may be sent, with throttle times put in; stop at a response that needs a decision.

        `at` is where the next frame begins in what is unread; everything before it passes.
        """
        passage = Passage(self.unread)
        end = len(self.unread)
        try:
            while at < end:
                next_at = self._step(passage, at, end)
                if next_at == STOP:
                    break
                at = next_at
        finally:
            passage.cut(at, at)
            self.unread = passage.buf[at:]
            self._turn.send(_CLIENT, passage.pieces)

    def _step(self, passage: Passage, at: int, end: int) -> int:
        """Go on with the response that has begun, or begin the next one; return where the next step begins."""
        state = self.state
        if state is PASSING or state is DROPPING:
            step = min(self._left, end - at)
            self._left -= step
            if not self._left:
                self._become(IDLE)
            if state is PASSING:
                self._accounting.written(self._accounting.going, step)
            else:
                passage.cut(at, at + step)
            return at + step
        if state is ASKED or self._asked.decision is not None:
            return STOP
        if state is WALKING:
            return self._walk_on(passage, at)
        if state is COLLECTING:
            return self._collect(passage, at)
        return self._begin(passage, at)

    def _begin(self, passage: Passage, at: int) -> int:
        queue = self._in_flight.queue
        if queue:
            if queue[0].plan is SASL_TOKEN:
                self._in_flight.forget_unanswered_tokens()
            if queue[0].response is not None:
                passage.cut(at, at)
                passage.pieces += self._own_responses()
                if self.state is DELAYED:
                    return STOP
            if queue and queue[0].note is not None:
                return self._collect(passage, at)
        if self.state is IDLE and not self._throttle.reasons & THROTTLED:  # a mute is reported
            quick_to = self._quick.take(passage.buf, at)
            if quick_to != at:
                return quick_to
        return self._begin_response(passage, at)

    def settle_node(self) -> None:
        """Pause or resume reading the node if that must change. Before it is connected there is nothing to pause."""
        if self._throttle.reasons & UNCONNECTED:
            return
        pause = self._flow.client_blocked or self.state is DELAYED or self.waits
        self._flow.pause_node(pause or (self.state is ASKED and len(self.unread) >= MAX_HEAD_BYTES))

    # --------------------------------------------------------------- one by one

    def _begin_response(self, passage: Passage, at: int) -> int:
        """Begin with the response at `at`. Nothing passes while more bytes must come first or a decision is due."""
        buf = passage.buf
        frame_bytes = self._response_bytes(buf, at)
        here_bytes = min(len(buf) - at, frame_bytes)
        if not frame_bytes or here_bytes < min(frame_bytes, _RESPONSE_PREFIX_BYTES):
            return STOP
        request = self._in_flight.queue[0]
        plan = request.plan
        body_at = 8
        if plan.response_tags:
            if frame_bytes < 9:
                raise _too_short(plan, frame_bytes)
            body_at = 9 if not buf[at + 8] else _after_header_tags(buf[at : at + here_bytes], frame_bytes)
            if not body_at:
                return STOP
        begun = _Next(request, at, frame_bytes, here_bytes, body_at)
        if plan.fetches and not request.charged and (plan.response is _PLAIN or frame_bytes > MAX_HEAD_BYTES):
            decisive_at = body_at + decisive_bytes(plan.api_version)
            if request.incremental is not None and here_bytes < min(frame_bytes, decisive_at):
                return STOP
            if self._charges.fetch(request, frame_bytes - (body_at - 4)):
                return self._withhold(passage, begun)
        if plan.response is _PLAIN:
            return self._begin_plain(passage, begun)
        if here_bytes < min(frame_bytes, self._asked.head_bytes):
            return STOP
        if plan.response is _HEAD:
            head_end = at + min(here_bytes, self._asked.head_bytes)
            return self._ask(plan, buf[at:head_end])
        return self._begin_tail(passage, begun)

    def _begin_plain(self, passage: Passage, begun: _Next) -> int:
        """Begin with a response whose throttle time, if it has one, is at a fixed place near its start."""
        plan = begun.request.plan
        throttle_at = plan.throttle_at
        if throttle_at >= 0:
            throttle_at += begun.body_at - 8 - plan.response_tags
            if throttle_at + 4 > begun.frame_bytes:
                raise _too_short(plan, begun.frame_bytes)
            if throttle_at + 4 > begun.here_bytes:
                return STOP
        return self._pass(passage, begun, throttle_at)

    def _begin_tail(self, passage: Passage, begun: _Next) -> int:
        """Begin with a response whose last part matters: collected whole, or walked while it streams if it is large."""
        request, at, frame_bytes, body_at = begun.request, begun.at, begun.frame_bytes, begun.body_at
        plan = request.plan
        streams = frame_bytes > MAX_HEAD_BYTES
        if not streams:
            throttle_at = _throttle_behind(plan, passage.buf, at, frame_bytes)
            if throttle_at >= 0:
                return self._pass(passage, begun, throttle_at)
        assert plan.shape is not None
        walk = Walk(plan.shape, body_at)
        here = memoryview(passage.buf)[at : at + frame_bytes]
        walk.advance(here, 0, stop_at_tail=streams)
        if streams:
            if not walk.done and walk.offset >= frame_bytes:
                raise _too_short(plan, frame_bytes)
            return self._pass(passage, begun, walk.throttle_at, walk)
        if not walk.fits(frame_bytes):
            raise _too_short(plan, frame_bytes)
        if plan.fetches and not request.charged:
            value = frame_bytes - (body_at - 4) - hints_bytes(walk, frame_bytes)
            if self._charges.fetch(request, value):
                return self._withhold(passage, begun)
        if walk.endpoints and rewritable(walk):
            return self._ask(plan, bytes(here))
        return self._pass(passage, begun, walk.throttle_at)

    def _pass(self, passage: Passage, begun: _Next, throttle_at: int, walk: Walk | None = None) -> int:
        """Let a response pass, by the next steps if more is to come; with a walk, what it has been through passes."""
        request, at, frame_bytes = begun.request, begun.at, begun.frame_bytes
        splices = self._release(request, passage.buf, at, throttle_at, frame_bytes)
        if splices is None:
            return STOP
        for splice in splices:
            passage.replace(splice, at)
        if walk is None:
            if begun.here_bytes == frame_bytes:
                self._accounting.written(request.use, frame_bytes)
                return at + frame_bytes
            self._become(PASSING)
            self._left = frame_bytes
            return at
        passed = min(walk.offset, begun.here_bytes)
        self._walked = _Walked(walk, frame_bytes, passed, request.another())
        self._become(WALKING)
        self._accounting.written(request.use, passed)
        return at + passed

    def _release(
        self, request: Request, buf: bytes, at: int, throttle_at: int, frame_bytes: int
    ) -> Sequence[Splice] | None:
        """The oldest request has its response: charge and count it; return the splices for its throttle time.

        None: the response is delayed.
        """
        if not request.timed:
            self._charges.time(request, frame_bytes - 4)
        if self._is_delayed(request):
            return None
        self._in_flight.done(1)
        self._accounting.count_responses(1, frame_bytes)
        self._accounting.going = request.use
        if throttle_at < 0:
            return ()
        return self._throttle.splices(request, throttle_at, _INT32.unpack_from(buf, at + throttle_at)[0])

    def _is_delayed(self, request: Request) -> bool:
        if not self._throttle.delays:
            return False
        if self._throttle.has_delayed(request):
            if self.state is not DELAYED:
                self._become(DELAYED)
            return True
        if self.state is DELAYED:
            self._become(IDLE)
        return False

    def _response_bytes(self, buf: bytes, at: int) -> int:
        """The length of the frame that begins at `at`, checked against what is in flight; 0 while it is unknown."""
        if len(buf) - at < _RESPONSE_HEAD.size:
            if len(buf) - at >= 4:
                self._check_size(buf[at : at + 4])
            return 0
        size, correlation_id = _RESPONSE_HEAD.unpack_from(buf, at)
        if not _SMALLEST_RESPONSE <= size <= self._limits.max_response_bytes:
            self._check_size(buf[at : at + 4])
        queue = self._in_flight.queue
        if not queue or queue[0].correlation_id != correlation_id:
            raise self._unexpected(buf[at : at + 4], correlation_id)
        return int(size) + 4

    def _check_size(self, first_bytes: bytes) -> None:
        size = _INT32.unpack(first_bytes)[0]
        allowed = self._limits.max_response_bytes
        if _SMALLEST_RESPONSE <= size <= allowed:
            return
        if name := looks_like(first_bytes):
            raise Refusal(CloseReason.RESPONSE_NOT_KAFKA, f"looks like {name}")
        if size > allowed:
            raise Refusal(CloseReason.RESPONSE_TOO_LARGE, f"{size} bytes announced, {allowed} allowed")
        raise MalformedMessage(f"a length prefix of {size}")

    def _unexpected(self, first_bytes: bytes, correlation_id: int) -> Refusal:
        if name := looks_like(first_bytes):
            return Refusal(CloseReason.RESPONSE_NOT_KAFKA, f"looks like {name}")
        due = "none"
        if self._in_flight.queue:
            first = self._in_flight.queue[0]
            due = f"{first.plan.name} {first.correlation_id}"
        return Refusal(CloseReason.RESPONSE_UNEXPECTED, f"correlation id {correlation_id}, {due} is due")

    # ---------------------------------------------------------------- walked

    def _walk_on(self, passage: Passage, at: int) -> int:
        """Continue a large response: what was walked passes; its last part waits until it is here whole."""
        walked = self._walked
        assert walked is not None
        begun_at = at - walked.sent
        here = min(len(passage.buf) - at, walked.frame_bytes - walked.sent)
        data = memoryview(passage.buf)[at : at + here]
        splices: Sequence[Splice] = ()
        if walked.walk.leaders:
            passed = self._walk_led(walked, data)
            splices = leaderless_splices(walked.walk)
        else:
            passed = 0 if walked.walk.tail_at >= 0 else self._walk_array(walked, data)
            if not passed and walked.walk.tail_at >= 0:
                if walked.frame_bytes - walked.sent > MAX_HELD_BYTES:
                    detail = f"{walked.frame_bytes - walked.sent} bytes after the partitions of a response"
                    raise MalformedMessage(detail)
                if walked.sent + here == walked.frame_bytes:
                    passed, splices = here, self._walk_tail(walked, data)
        if not passed:
            return STOP
        for splice in splices:
            passage.replace(splice, begun_at)
        self._accounting.written(self._accounting.going, passed)
        return at + passed

    def _walk_array(self, walked: _Walked, data: memoryview) -> int:
        """Walk as far as the array reaches that comes before the last part; return how many more bytes pass."""
        walk, frame_bytes = walked.walk, walked.frame_bytes
        walk.advance(data, walked.sent, stop_at_tail=True)
        ends_early = walk.done or walked.sent + len(data) == frame_bytes
        if (walk.tail_at < 0 and ends_early) or (not walk.done and walk.offset >= frame_bytes):
            raise _too_short(walked.request.plan, frame_bytes)
        passed = min(walk.offset - walked.sent, len(data))
        walked.sent += passed
        return passed

    def _walk_tail(self, walked: _Walked, data: memoryview) -> Sequence[Splice]:
        """Walk the last part of a response, which is here whole; return what has to be changed in it."""
        walk, frame_bytes = walked.walk, walked.frame_bytes
        throttled_before = walk.throttle_at
        walk.advance(data, walked.sent)
        if not walk.fits(frame_bytes):
            raise _too_short(walked.request.plan, frame_bytes)
        self._walked = None
        self._become(IDLE)
        splices: Sequence[Splice] = hiding_splices(walk, frame_bytes)
        if throttled_before < 0 <= walk.throttle_at:
            node_ms = _INT32.unpack_from(data, walk.throttle_at - walked.sent)[0]
            splices = [*self._throttle.splices(walked.request, walk.throttle_at, node_ms), *splices]
        return splices

    def _walk_led(self, walked: _Walked, data: memoryview) -> int:
        """Continue a response to Metadata after its nodes; return how many more bytes pass.

        Partitions whose leader was left out get no leader.
        """
        walk, frame_bytes = walked.walk, walked.frame_bytes
        is_all = walked.sent + len(data) == frame_bytes
        walk.advance(data, walked.sent)
        passed = min(walk.offset - walked.sent, len(data))
        walked.sent += passed
        if (walk.done and walk.offset != frame_bytes) or (is_all and not walk.done):
            raise _too_short(walked.request.plan, frame_bytes)
        if walked.sent == frame_bytes:
            self._walked = None
            self._become(IDLE)
        return passed

    # ---------------------------------------------------------------- decisions

    def _ask(self, plan: Plan, head: bytes) -> int:
        """Ask for a decision about a response, or its first bytes."""
        kind = DecisionKind.API_VERSIONS if plan.api_key == API_VERSIONS else DecisionKind.ADDRESSES
        self._become(ASKED)
        self._asked.ticket = self._turn.ask(kind, _NODE, plan, head).ticket
        return STOP

    def _collect(self, passage: Passage, at: int) -> int:
        """Take the part that is here of a response that is collected whole; return where that part ends."""
        request = self._in_flight.queue[0]
        if self.state is not COLLECTING:
            buf = passage.buf
            frame_bytes = _token_bytes(buf, at) if request.plan is SASL_TOKEN else self._response_bytes(buf, at)
            if frame_bytes + sum(map(len, self._in_flight.own_responses)) > MAX_HELD_BYTES:
                detail = f"{request.plan.name}: {frame_bytes} bytes announced, {MAX_HELD_BYTES} can be held"
                raise Refusal(CloseReason.RESPONSE_TOO_LARGE, detail)
            if not frame_bytes or not self._may_hold(frame_bytes):
                return STOP
            self._become(COLLECTING)
            self._left = frame_bytes
        part = passage.buf[at : at + self._left]
        self._put(part)
        self._left -= len(part)
        passage.cut(at, at + len(part))
        if not self._left:
            self._take_collected(request, self._take_parts())
        return at + len(part)

    def _may_hold(self, size_bytes: int) -> bool:
        """Whether there is room to collect so many bytes of a response; if not, the relay waits for it."""
        self.waits = not self._flow.may_hold_response(size_bytes)
        return not self.waits

    def _take_collected(self, request: Request, frame: bytes) -> None:
        if request.is_own_request:
            self._become(IDLE)
            self._in_flight.done(1)
            self._in_flight.own_responses.append(frame)
            return
        plan = request.plan
        assert plan.asked is not None
        self._become(ASKED)
        self._asked.frame = frame
        ask = self._turn.ask(plan.asked, _NODE, plan, frame)
        ask.note = request.note
        self._asked.ticket = ask.ticket

    def decide(self, decision: Decision) -> None:
        """Carry out a decision: send the response unless it is delayed, or wait until more of it has come."""
        self._asked.ticket = NO_TICKET
        if decision.more:
            self._want_more(decision.more)
        else:
            self._send_decided(decision)

    def _want_more(self, head_bytes: int) -> None:
        """Wait until `head_bytes` of the next response are here, or all of it: so much is needed to decide about it."""
        frame_bytes = _INT32.unpack_from(self.unread, 0)[0] + 4
        allowed = min(self._limits.max_frame_bytes, MAX_HELD_BYTES)
        if frame_bytes > allowed:
            name = self._in_flight.queue[0].plan.name
            detail = f"{name}: {frame_bytes} bytes announced, {allowed} can be held for its addresses"
            raise Refusal(CloseReason.RESPONSE_TOO_LARGE, detail)
        self._asked.head_bytes = min(head_bytes, frame_bytes)
        if self._may_hold(self._asked.head_bytes):
            self._become(GATHERING)
        else:
            self._turn.do_after()

    def memory_came(self) -> None:
        """There is room now for the response that waited for it."""
        self.waits = False
        if self.state is ASKED:
            self._become(GATHERING)

    def _send_decided(self, decision: Decision) -> None:
        """Send the part of a response that was decided about, with its splices; the rest follows as it comes."""
        asked = self._asked
        if asked.frame:
            head = asked.frame
            frame_bytes, rest = len(head), self.unread
        else:
            frame_bytes = _INT32.unpack_from(self.unread, 0)[0] + 4
            most = asked.head_bytes if decision.rest is None else decision.rest.offset
            head_bytes = min(frame_bytes, most)
            head, rest = self.unread[:head_bytes], self.unread[head_bytes:]
        request = self._in_flight.queue[0]
        throttle = self._release(request, head, 0, decision.throttle_at, frame_bytes)
        if throttle is None:
            asked.decision = decision
            self._turn.do_after()
            return
        asked.decision, asked.frame, asked.head_bytes = None, b"", MAX_HEAD_BYTES
        splices: Sequence[Splice] = decision.splices
        if throttle:
            splices = sorted((*splices, *throttle), key=lambda splice: splice.start)
        pieces = splice_frame(head, frame_bytes - 4, splices)
        self._accounting.written(request.use, sum(map(len, pieces)))
        self._turn.send(_CLIENT, pieces)
        self.unread = rest
        self._left = frame_bytes - len(head)
        if decision.rest is not None:
            self._walked = _Walked(decision.rest, frame_bytes, len(head), request.another())
            self._become(WALKING)
        elif self._left:
            self._become(PASSING)
        elif self.state is not IDLE:
            self._become(IDLE)

    # -------------------------------------------------- responses of the proxy

    def send_own(self) -> None:
        """Send the proxy's own responses whose turn it is. Something must be in flight."""
        first = self._in_flight.queue[0]
        if (first.response is None and first.plan is not SASL_TOKEN) or self.amid:
            return
        if first.plan is SASL_TOKEN and self.state is not ASKED:
            self._in_flight.forget_unanswered_tokens()
        was_delayed = self.state is DELAYED
        self._turn.send(_CLIENT, self._own_responses())
        if was_delayed:
            self.settle_node()

    def _own_responses(self) -> list[Piece]:
        """Take the proxy's own responses that come before the node's next one off the queue, and return them."""
        queue, accounting = self._in_flight.queue, self._accounting
        responses: list[Piece] = []
        while queue and (response := queue[0].response) is not None:
            request = queue[0]
            if not request.timed:
                self._charges.time(request, len(response) - 4)
            if self._is_delayed(request):
                break
            self._in_flight.done(1)
            accounting.count_responses(1, len(response))
            accounting.going = request.use
            accounting.written(request.use, len(response))
            responses += self._throttle.own_response(request, response)
        return responses

    # ---------------------------------------------------- empty Fetch responses

    def _withhold(self, passage: Passage, begun: _Next) -> int:
        """Send an empty response in place of one to a Fetch over quota; the next steps drop that, however large."""
        request, at, body_at = begun.request, begun.at, begun.body_at
        plan = request.plan
        decisive_at = body_at + decisive_bytes(plan.api_version)
        if begun.frame_bytes < decisive_at:
            raise _too_short(plan, begun.frame_bytes)
        self._in_flight.done(1)
        reported_ms = 0
        if plan.throttle_at >= 0:
            reported_ms = self._throttle.reported_ms(request, _INT32.unpack_from(passage.buf, at + body_at)[0])
        head = memoryview(passage.buf)[at : at + decisive_at]
        instead = empty_fetch_response(head, body_at, plan.api_version, request.incremental is True, reported_ms)
        if not request.incremental:
            self._in_flight.lost_session = session_of(head, body_at, plan.api_version)
        passage.cut(at, at)
        passage.pieces.append(instead)
        self._become(DROPPING)
        self._left = begun.frame_bytes
        accounting = self._accounting
        accounting.counters.withheld_bytes += begun.frame_bytes
        accounting.count_responses(1, len(instead))
        accounting.going = request.use
        accounting.written(request.use, len(instead))
        return at

    # -------------------------------------------------------------------- the end

    def let_go(self) -> None:
        """The connection ends: send what was delayed at once, with what is left of the throttle."""
        decision, self._asked.decision = self._asked.decision, None
        self._throttle.delays, self._throttle.delayed_since_ms = False, None
        self._become(IDLE)
        with suppress(ProtocolError):
            if decision is not None:
                self._send_decided(decision)
            self.take()
            if self._in_flight.queue:
                self.send_own()

    def forget(self) -> None:
        """The connection ends: forget what is here."""
        self.unread = self._asked.frame = b""
        self._parts = None

    def give_up(self) -> tuple[int, bytes]:
        """As `forget`. Returns how many bytes are still to come of a response that was taken, and what is here of those
        behind it.
        """
        parts = self._take_parts()
        here = self.unread + parts if self.state is GATHERING else parts + self.unread
        left = 0
        if self.state is PASSING or self.state is DROPPING:
            left = self._left
        elif self._walked is not None:
            left = self._walked.frame_bytes - self._walked.sent
        if self._asked.frame:
            self._in_flight.done(1)
        self.forget()
        return left, here


def _token_bytes(buf: bytes, at: int) -> int:
    """The length of the bare token that begins at `at`, its length prefix included; 0 while it is unknown."""
    if len(buf) - at < 4:
        return 0
    size: int = _INT32.unpack_from(buf, at)[0]
    if not 0 <= size <= MAX_ASKED_BYTES:
        raise MalformedMessage(f"a SASL token of {size} bytes")
    return size + 4


def _after_header_tags(head: bytes, frame_bytes: int) -> int:
    """Where the body begins after the header tags of a response; 0 while they are not all here."""
    reader = Reader(head, 8)
    try:
        reader.tags(MAX_HEADER_TAGS)
    except TruncatedMessage:
        if len(head) >= min(frame_bytes, MAX_HEAD_BYTES):
            raise
        return 0
    return reader.offset


def _throttle_behind(plan: Plan, buf: bytes, at: int, frame_bytes: int) -> int:
    """Where throttle_time_ms is in a whole response that need not be walked to find it; -1 for all others.

    Most responses to Produce are about one partition without an error: in these its place follows from their length.
    """
    if plan.response is ResponseKind.LAST:
        return frame_bytes - 4 if frame_bytes >= 16 else NO_THROTTLE
    if plan.api_key == PRODUCE:
        return lone_partition_throttle_at(buf, at, frame_bytes, plan.api_version)
    return NO_THROTTLE


def _too_short(plan: Plan, frame_bytes: int) -> MalformedMessage:
    return MalformedMessage(f"{plan.name} v{plan.api_version}: {frame_bytes} bytes do not hold what they announce")
