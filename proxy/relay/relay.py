"""The relay in Python: the reference that any other make is held to."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from struct import Struct

from protocol.addresses import hiding_splices, hints_bytes, rewritable
from protocol.api_versions import unsupported_version_answer
from protocol.empty_fetch import is_incremental
from protocol.errors import MalformedMessage, ProtocolError, TruncatedMessage
from protocol.primitives import MAX_HEADER_TAGS, Reader, int32
from protocol.produce_answer import lone_partition_throttle_at
from protocol.requests import (
    HEAD,
    INT32_MAX,
    LIMITS_BYTES,
    MAX_ASKED_BYTES,
    MAX_HEAD_BYTES,
    MAX_HELD_BYTES,
    fetch_clamp,
    limits_clamp,
)
from protocol.splices import Splice, splice_frame
from protocol.walk import Walk
from proxy.relay.actions import (
    Action,
    Ask,
    AskKind,
    Close,
    CloseReason,
    OpenUpstream,
    Pause,
    Resume,
    Send,
    Side,
    Throttled,
    Verdict,
    WakeAt,
)
from proxy.relay.likeness import Likeness, likeness_of
from proxy.relay.loans import Loans
from proxy.relay.plans import (
    API_VERSIONS,
    FETCH,
    NO_THROTTLE,
    PRODUCE,
    UNKNOWN_API_VERSIONS,
    AnswerKind,
    Plan,
)
from proxy.relay.quick_answers import QUICK_BYTES, quick_run
from proxy.relay.recognise import looks_like
from proxy.relay.request import LONG_CLIENT_ID_BYTES, Refusal, Request, read_request
from proxy.relay.service_times import ServiceTimes
from proxy.relay.tally import Tally
from proxy.relay.withheld import decisive_bytes, empty_answer
from quotas.entities import QuotaType
from quotas.ledger import Binding, Ledger
from quotas.sensors import StaleSensor

Piece = bytes | memoryview
Passing = tuple[int, Sequence[Splice]]
"""How many bytes of what is here pass now, and the splices among them, in offsets from their start."""

_NOTHING: Passing = (0, ())

_CLIENT = Side.CLIENT
_NODE = Side.NODE
_PLAIN = AnswerKind.PLAIN
_HEAD = AnswerKind.HEAD

# Why no further request is taken: a set of reasons. Reading goes on until one request head is here, so that a peer
# that hangs up is noticed. Behind a Fetch with a quota nothing is taken until it is answered: a broker, too, has one
# request of a connection at a time, and a client that sends a hundred ahead must not have them all delivered.
_UNCONNECTED = 1
_THROTTLED = 2
_ASKING = 4
_IN_FLIGHT_FULL = 8
_FETCHING = 16
_ENQUIRING = 32

_NOBODY_LISTENS = frozenset({CloseReason.CLIENT_LOST, CloseReason.INTERNAL_ERROR})

_NO_TICKET = -1
_SMALLEST_ANSWER = 4
_ANSWER_PREFIX_BYTES = 13
"""Length prefix, correlation id, an empty tag buffer, throttle time: what most answers are judged by."""

_ANSWER_HEAD = Struct(">ii")
_INT32 = Struct(">i")
_MAX_BINDINGS = 64


@dataclass(slots=True, frozen=True)
class RelayLimits:
    """Bounds of one relay: frames in bytes, and requests whose answers are still to come; and how it throttles.

    With `withholds` the answer to a Fetch over quota is replaced by an empty one, as by a broker. With `delays` answers
    are held until the mute is over, as by brokers before 2.0; clients that would wait again hear of no throttle time.
    """

    max_frame_bytes: int = 104_857_600
    max_answer_bytes: int = INT32_MAX
    max_in_flight: int = 1000
    withholds: bool = False
    delays: bool = False


@dataclass(slots=True)
class _StreamedAnswer:
    """A large answer that is walked while it passes: `sent` of its `frame_bytes` have gone out."""

    walk: Walk
    frame_bytes: int
    sent: int
    request: Request


class Relay:
    """One client connection with its upstream connection. Does no I/O and reads no clock.

    Each `on_*` method takes what happened and when (`now_us`, monotonic), and returns what to do, in order; after a
    Close it returns nothing.
    Requests and answers keep their order, and a frame that is not understood is not sent on.
    """

    def __init__(self, ledger: Ledger, tally: Tally, limits: RelayLimits) -> None:
        self._ledger = ledger
        self._charge: Callable[[int, float, int], int] = ledger.sensors.charge
        self._charge_unthrottled = ledger.sensors.charge_unthrottled
        self._loans = Loans(ledger.sensors)
        self._times = ServiceTimes(ledger)
        self._timed = False
        self._slow_us = -1
        self._shadows = ledger.shadow_sensors
        self._buckets = ledger.buckets
        self._tally = tally
        self._closed = False
        self._now_us = 0
        self._ticket = 0
        self._bindings: dict[bytes, Binding] = {}
        self._in_flight: deque[Request] = deque()
        self._waiting = 0
        self._likeness: Likeness | None = None

        self._max_frame_bytes = limits.max_frame_bytes
        self._max_in_flight = limits.max_in_flight
        self._max_answer_bytes = limits.max_answer_bytes
        self._quick_bytes = min(limits.max_answer_bytes, QUICK_BYTES)
        self._withholds = limits.withholds
        self._delays = limits.delays
        self._held_since_ms: int | None = None
        self._held_until_ms = 0
        self._held_ms = 0
        self._held_verdict: Verdict | None = None

        self._requests = b""
        self._request_left = 0
        self._mute = _UNCONNECTED
        self._muted_until_ms = 0
        self._opening = False
        self._client_paused = False
        self._client_eof = False
        self._fetched_from: set[int] = set()
        self._node_blocked = False
        self._request_ticket = _NO_TICKET
        self._asked_client_id = b""
        self._decided: Verdict | None = None
        self._decided_ms = 0

        self._answers = b""
        self._answer_left = 0
        self._streamed: _StreamedAnswer | None = None
        self._instead = b""
        self._to_drop = 0
        self._collecting: list[bytes] = []
        self._to_collect = 0
        self._enquired: list[bytes] = []
        self._enquiries = 0
        self._held_answer = b""
        self._answered_until_ms = 0
        self._node_paused = False
        self._client_blocked = False
        self._answer_ticket = _NO_TICKET

        self.requests = 0
        self.request_bytes = 0
        self.answers = 0
        self.answer_bytes = 0
        self.throttled_ms = 0

    @property
    def muted(self) -> bool:
        """True while the client is read only to see its next request head."""
        return self._mute != 0 and not self._request_left

    @property
    def held_bytes(self) -> int:
        """How many bytes the relay keeps by itself."""
        collected = sum(map(len, self._collecting)) + sum(map(len, self._enquired))
        return len(self._requests) + len(self._answers) + collected + len(self._held_answer)

    @property
    def idle(self) -> bool:
        """True between requests: nothing in flight, nothing half-way."""
        return not (self._in_flight or self.held_bytes or self._request_left or self._amid_answer)

    @property
    def _amid_answer(self) -> bool:
        return self._answer_left > 0 or self._streamed is not None or self._to_collect > 0 or self._to_drop > 0

    # ------------------------------------------------------------------ inputs

    def on_held_up(self) -> None:
        """Something but the node has its answers wait: the time that they take tells nothing."""
        self._times.held_up()

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        """Bytes from the client or the node."""
        if self._closed:
            return []
        self._now_us = now_us
        if side is _NODE:
            return self._answers_came(data, now_us // 1000)
        return self._requests_came(data, now_us // 1000)

    def _requests_came(self, data: bytes, now_ms: int) -> list[Action]:
        at = 0
        if self._requests or self._mute or self._request_left:
            self._requests += data
        else:
            at, _ = self._take_alike(data, 0, now_ms)
            if at == len(data):
                return [Send(_NODE, (data,))]
            self._requests = data
        actions: list[Action] = []
        self._go_on_with_requests(actions, now_ms, at)
        return actions

    def _answers_came(self, data: bytes, now_ms: int) -> list[Action]:
        at = 0
        if self._timed and not self._answers:
            self._times.came(self._now_us)
        if self._answers or self._amid_answer or self._answer_ticket != _NO_TICKET or self._held_since_ms is not None:
            self._answers += data
        else:
            at = self._pass_alike(data, 0, now_ms)
            if at == len(data) and not self._mute and not (self._in_flight and self._in_flight[0].answer):
                return [Send(_CLIENT, (data,))]
            self._answers = data
        actions: list[Action] = []
        self._go_on_with_answers(actions, now_ms, at=at)
        return actions

    def on_verdict(self, ticket: int, verdict: Verdict, now_us: int) -> list[Action]:
        """The answer to an Ask; one that is no longer waited for is dropped."""
        actions: list[Action] = []
        now_ms = self._at(now_us)
        if self._closed or ticket not in (self._request_ticket, self._answer_ticket):
            return actions
        if verdict.close is not None:
            self._close(actions, verdict.close.reason, verdict.close.detail)
        elif ticket == self._request_ticket:
            self._request_ticket = _NO_TICKET
            if verdict.enquiries:
                self._enquire(verdict.enquiries, actions)
                return actions
            self._mute &= ~_ASKING
            if verdict.binding is None:
                self._decided, self._decided_ms = verdict, now_ms
            else:
                self._bind(verdict.binding)
            self._go_on_with_requests(actions, now_ms)
        else:
            self._answer_ticket = _NO_TICKET
            self._go_on_with_answers(actions, now_ms, verdict)
        return actions

    def on_time(self, now_us: int) -> list[Action]:
        """A wake-up that was asked for: the throttle is over, unless it has grown meanwhile."""
        actions: list[Action] = []
        now_ms = self._at(now_us)
        if self._closed or not self._mute & _THROTTLED:
            return actions
        if now_ms < self._muted_until_ms:
            if self._held_since_ms is not None and now_ms >= self._held_until_ms:
                self._go_on_with_answers(actions, now_ms, self._held_verdict)
            if not self._closed:
                until_ms = self._muted_until_ms
                actions.append(WakeAt(until_ms if self._held_since_ms is None else min(self._held_until_ms, until_ms)))
            return actions
        self._mute &= ~_THROTTLED
        unpaid = self._loans.repay(now_ms)
        if unpaid is None:
            if self._held_since_ms is not None:
                self._go_on_with_answers(actions, now_ms, self._held_verdict)
            if not self._closed:
                self._go_on_with_requests(actions, now_ms)
        else:
            loan, wait_ms = unpaid
            self._mute_until(now_ms, wait_ms, QuotaType.FETCH, loan.client_id, actions)
        return actions

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        """A side takes bytes (again); for the node, the first time: the connection stands."""
        actions: list[Action] = []
        now_ms = self._at(now_us)
        if self._closed:
            return actions
        if side is _NODE:
            self._node_blocked = False
            self._mute &= ~_UNCONNECTED
            self._settle_node(actions)
            self._go_on_with_requests(actions, now_ms)
        else:
            self._client_blocked = False
            self._settle_node(actions)
            self._go_on_with_requests(actions, now_ms)
        return actions

    def on_blocked(self, side: Side) -> list[Action]:
        """A side takes no more bytes for now: the other one is not read until it does."""
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
        now_ms = self._at(now_us)
        if self._closed:
            return actions
        if side is _NODE:
            name = None if self._amid_answer else looks_like(self._answers[:4])
            if name:
                self._close(actions, CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
            else:
                detail = "in the middle of an answer" if self._answers or self._amid_answer else ""
                self._close(actions, CloseReason.NODE_CLOSED, detail)
        else:
            self._client_eof = True
            self._go_on_with_requests(actions, now_ms)
        return actions

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        """A side is gone, cannot be had, or must be given up."""
        actions: list[Action] = []
        self._at(max(now_us, self._now_us))
        if not self._closed:
            self._close(actions, reason, detail)
        return actions

    def _at(self, now_us: int) -> int:
        """Note the time of this step; return it in ms."""
        self._now_us = now_us
        return now_us // 1000

    # ---------------------------------------------------------------- requests

    def _go_on_with_requests(self, actions: list[Action], now_ms: int, at: int = 0) -> None:
        try:
            self._take_requests(actions, now_ms, at)
            self._send_own_answers(actions, now_ms)
            while self._take_up_again():
                self._take_requests(actions, now_ms)
                self._send_own_answers(actions, now_ms)
        except Refusal as refusal:
            self._close(actions, refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(actions, CloseReason.REQUEST_MALFORMED, str(error))
        else:
            waits = self._mute and (self._opening or self._mute != _UNCONNECTED)
            if self._client_eof and not (waits and self._requests):
                detail = "in the middle of a request" if self._requests or self._request_left else ""
                self._close(actions, CloseReason.CLIENT_CLOSED, detail)
            else:
                self._settle_client(actions)

    def _take_requests(self, actions: list[Action], now_ms: int, at: int = 0) -> None:
        """Send on all that may be sent: whole frames, and what is here of a frame whose decisive fields are.

        `at` is where the next frame begins (before it, all is taken already), `run` where the bytes begin that go out
        as they are.
        """
        buf = self._requests
        end = len(buf)
        run = 0
        quick = True
        pieces: list[Piece] = []
        after: list[Action] = []
        try:
            while True:
                if self._request_left:
                    step = min(self._request_left, end - at)
                    self._request_left -= step
                    at += step
                if at == end or self._mute & ~_UNCONNECTED:
                    break
                if quick and not self._mute:
                    at, quick = self._take_alike(buf, at, now_ms)
                    if at == end:
                        break
                request = read_request(buf, at, end, self._max_frame_bytes)
                if request is None:
                    break
                frame_bytes = request.size_bytes + 4
                if request.plan is UNKNOWN_API_VERSIONS:
                    if at + frame_bytes > end or self._client_blocked:
                        break
                    _add_run(pieces, buf, run, at)
                    at = run = at + frame_bytes
                    self._answer(request, unsupported_version_answer(request.correlation_id))
                    continue
                if self._mute:
                    self._open_upstream(after)
                    break
                if self._decided is not None:
                    _add_run(pieces, buf, run, at)
                    run = at + frame_bytes
                    pieces += self._carry_out(self._decided, request, memoryview(buf)[at:run], now_ms, after)
                    at = run
                    continue
                binding = self._bindings.get(request.client_id)
                if binding is None or (binding.version != self._ledger.version and not self._ledger.renews(binding)):
                    self._ask_for_binding(request, after)
                    break
                request.binding = binding if request.plan.charged else None
                if request.plan.asked is not None:
                    if _is_asked(request, binding):
                        self._ask_about_request(request, buf, at, after)
                        break
                    self._enquired = []
                if self._withholds and request.plan.fetches and not _note_session(request, buf, at, end):
                    break
                if request.plan.fetches and binding.limits_fetches:
                    if self._must_pay_first(request, binding, now_ms, after):
                        break
                    self._mute |= _FETCHING
                splice = self._take(request, binding, buf, now_ms, after)
                if splice is None:
                    if not (self._mute & _FETCHING or (self._withholds and request.plan.fetches)):
                        self._likeness = likeness_of(request, binding, buf, at)
                else:
                    _add_run(pieces, buf, run, splice.start)
                    pieces.append(splice.data)
                    run = splice.end
                self._request_left = frame_bytes
        finally:
            self._requests = _send_through(actions, _NODE, pieces, buf, run, at)
            actions += after

    def _take(self, request: Request, binding: Binding, buf: bytes, now_ms: int, after: list[Action]) -> Splice | None:
        """Count and charge a request that is being sent on; return the splice that clamps a Fetch."""
        plan = request.plan
        self._count_requests(plan.api_key, 1, request.size_bytes + 4)
        splice = None
        if plan.api_key == PRODUCE:
            if binding.produce is not None:
                throttle_time_ms = self._charge(binding.produce, request.size_bytes, now_ms)
                if throttle_time_ms:
                    self._mute_until(now_ms, throttle_time_ms, QuotaType.PRODUCE, request.client_id, after)
            if binding.shadow_produce is not None:
                self._shadows.charge(binding.shadow_produce, request.size_bytes, now_ms)
        elif plan.fetches and binding.limits_fetches:
            if plan.api_key == FETCH:
                splice = fetch_clamp(buf, request.body_at, plan.api_version, binding.fetch_ceiling_bytes)
            else:
                splice = limits_clamp(buf, request.decided_at - LIMITS_BYTES, binding.fetch_ceiling_bytes)
        elif plan.asked is AskKind.MUTATION and binding.mutation is not None:
            self._buckets.spend_permissively(binding.mutation, 0, now_ms)
        if request.answered:
            request.muted_until_ms = self._muted_until_ms
            self._await_answer(request)
        elif binding.costs is not None:
            self._tally.exempt_us += binding.costs.us(request.plan.cost_kind, request.size_bytes)
        return splice

    def _must_pay_first(self, request: Request, binding: Binding, now_ms: int, after: list[Action]) -> bool:
        """Whether an entity's first Fetch on this connection waits: else hanging up were a way around a throttle."""
        if binding.fetch is None or self._withholds or binding.fetch in self._fetched_from:
            return False
        if len(self._fetched_from) >= _MAX_BINDINGS:
            self._fetched_from.clear()
        self._fetched_from.add(binding.fetch)
        owed_ms = self._ledger.sensors.owed_ms(binding.fetch, now_ms)
        if owed_ms:
            self._mute_until(now_ms, owed_ms, QuotaType.FETCH, request.client_id, after)
        return owed_ms > 0

    def _take_alike(self, buf: bytes, at: int, now_ms: int) -> tuple[int, bool]:
        """Take the whole requests at `at` that are like the one before; return where they end.

        Whatever may throttle, fill the queue or need a decision is left to `_take_requests`. The second value is False
        when a throttle is near: to look at the same bytes again would be in vain.
        """
        likeness = self._likeness
        if likeness is None:
            return at, True
        binding = likeness.binding
        if binding.version != self._ledger.version and not self._ledger.renews(binding):
            return at, True
        while True:
            room = self._max_in_flight - self._waiting - 1
            first_id, count, end = likeness.run(buf, at, room, self._max_frame_bytes)
            if not count:
                return at, True
            if not self._take_run(likeness, first_id, count, end - at, now_ms):
                return at, False
            if likeness.shadow is not None:
                self._charge_shadow_run(likeness.shadow, buf, at, end, count, now_ms)
            at = end
            if at == len(buf):
                return at, True

    def _take_run(self, likeness: Likeness, first_id: int, count: int, frames_bytes: int, now_ms: int) -> bool:
        """Charge, count and await `count` requests; False, and nothing done, where one of them may be throttled."""
        request, binding = likeness.request, likeness.binding
        api_key = request.plan.api_key
        sizes = frames_bytes - 4 * count
        sensor = binding.produce if api_key == PRODUCE else None
        if sensor is not None and not self._charge_unthrottled(sensor, sizes, count, now_ms):
            return False
        self._count_requests(api_key, count, frames_bytes)
        if not request.answered:
            if binding.costs is not None:
                self._tally.exempt_us += binding.costs.us(request.plan.cost_kind, sizes, count)
            return True
        if not self._waiting:
            self._times.sent(self._now_us)
        self._waiting += count
        if not request.waiting:
            if self._streamed is not None:
                request = likeness.request = replace(request)
            request.correlation_id = first_id
            request.muted_until_ms = self._muted_until_ms
            request.charged = request.timed = False
            request.waiting = count
            request.waiting_bytes = sizes
            self._in_flight.append(request)
        elif (
            self._in_flight[-1] is request
            and request.correlation_id + request.waiting == first_id
            and request.muted_until_ms == self._muted_until_ms
        ):
            request.waiting += count
            request.waiting_bytes += sizes
        else:
            likeness.request = replace(
                request,
                correlation_id=first_id,
                muted_until_ms=self._muted_until_ms,
                charged=False,
                timed=False,
                waiting=count,
                waiting_bytes=sizes,
            )
            self._in_flight.append(likeness.request)
        return True

    def _charge_shadow_run(self, sensor: int, buf: bytes, at: int, end: int, count: int, now_ms: int) -> None:
        """Charge the `count` requests between `at` and `end` to a shadow quota, which nobody feels."""
        if self._shadows.charge_unthrottled(sensor, end - at - 4 * count, count, now_ms):
            return
        while at < end:
            size_bytes = _INT32.unpack_from(buf, at)[0]
            self._shadows.charge(sensor, size_bytes, now_ms)
            at += 4 + size_bytes

    def _open_upstream(self, after: list[Action]) -> None:
        if not self._opening:
            self._opening = True
            after.append(OpenUpstream())

    def _ask_for_binding(self, request: Request, after: list[Action]) -> None:
        self._mute |= _ASKING
        self._request_ticket = self._next_ticket()
        self._asked_client_id = request.client_id
        plan = request.plan
        after.append(
            Ask(
                self._request_ticket,
                AskKind.BINDING,
                _CLIENT,
                plan.api_key,
                plan.api_version,
                request.client_id,
            )
        )

    def _bind(self, binding: Binding) -> None:
        if len(self._bindings) >= _MAX_BINDINGS or len(self._asked_client_id) > LONG_CLIENT_ID_BYTES:
            self._bindings.clear()
        self._bindings[self._asked_client_id] = binding
        self._timed |= binding.costs is not None

    def _take_up_again(self) -> bool:
        """True, once, when what is in flight no longer keeps further requests from being taken."""
        over = _ENQUIRING if len(self._enquired) == self._enquiries else 0
        if self._waiting < self._max_in_flight:
            over |= _IN_FLIGHT_FULL
        if not self._waiting:
            over |= _FETCHING
        over &= self._mute
        self._mute &= ~over
        return over != 0

    def _await_answer(self, request: Request) -> None:
        if not self._waiting:
            self._times.sent(self._now_us)
        self._in_flight.append(request)
        request.waiting = 1
        request.waiting_bytes = request.size_bytes
        self._waiting += 1
        if self._waiting >= self._max_in_flight:
            self._mute |= _IN_FLIGHT_FULL

    def _no_longer_await(self, request: Request, count: int) -> None:
        """The oldest `count` of the queue, all of `request`, are answered."""
        self._waiting -= count
        request.waiting_bytes -= request.waiting_bytes * count // request.waiting
        request.waiting -= count
        request.correlation_id += count
        request.charged = request.timed = False
        if not request.waiting:
            self._in_flight.popleft()

    def _ask_about_request(self, request: Request, buf: bytes, at: int, after: list[Action]) -> None:
        """Ask about the request at `at` once it is here whole."""
        plan, end = request.plan, at + 4 + request.size_bytes
        if request.size_bytes > MAX_ASKED_BYTES:
            detail = f"{plan.name}: {request.size_bytes} bytes announced, {MAX_ASKED_BYTES} allowed"
            raise Refusal(CloseReason.REQUEST_TOO_LARGE, detail)
        if end <= len(buf) and not self._client_blocked:
            assert plan.asked is not None
            self._mute |= _ASKING
            self._request_ticket = self._next_ticket()
            ask = Ask(self._request_ticket, plan.asked, _CLIENT, plan.api_key, plan.api_version, buf[at:end])
            ask.client_id, ask.body_at = request.client_id, request.body_at - at
            ask.enquired, self._enquired = tuple(self._enquired), []
            after.append(ask)

    def _enquire(self, frames: Sequence[bytes], actions: list[Action]) -> None:
        """Send requests of our own; with their answers the same is asked again, and no request is taken before.

        It is asked when it can be carried out, too: what a decision costs is not for a client that may go meanwhile.
        """
        self._mute = self._mute & ~_ASKING | _ENQUIRING
        for frame in frames:
            request = read_request(frame, 0, len(frame), INT32_MAX)
            assert request is not None
            request.held = request.enquiry = True
            self._await_answer(request)
        self._enquiries = len(frames)
        actions.append(Send(_NODE, frames))

    def _carry_out(
        self, verdict: Verdict, request: Request, frame: memoryview, now_ms: int, after: list[Action]
    ) -> Sequence[Piece]:
        """Do with a request as was decided; what goes to the node of its frame."""
        self._decided = None
        self._tally.mutations_refused += verdict.refused
        throttle_time_ms = self._decided_ms + verdict.throttle_time_ms - now_ms
        if throttle_time_ms > 0:
            self._mute_until(now_ms, throttle_time_ms, QuotaType.CONTROLLER_MUTATION, request.client_id, after)
        if verdict.answer is not None:
            self._answer(request, verdict.answer)
            return ()
        self._count_requests(request.plan.api_key, 1, request.size_bytes + 4)
        request.note, request.held = verdict.note, verdict.note is not None
        request.binding = self._bindings.get(request.client_id)
        request.muted_until_ms = self._muted_until_ms
        self._await_answer(request)
        return splice_frame(frame, request.size_bytes, verdict.splices)

    def _answer(self, request: Request, answer: bytes) -> None:
        """Answer a request by ourselves, when its turn comes."""
        self._count_requests(request.plan.api_key, 1, request.size_bytes + 4)
        request.binding = self._bindings.get(request.client_id)
        request.answer = answer
        request.muted_until_ms = self._muted_until_ms
        self._await_answer(request)

    def _send_own_answers(self, actions: list[Action], now_ms: int) -> None:
        """Send the answers of our own whose turn it is."""
        after: list[Action] = []
        if self._amid_answer:
            return
        if answers := self._own_answers(now_ms, after):
            actions.append(Send(_CLIENT, answers))
        actions += after

    def _own_answers(self, now_ms: int, after: list[Action]) -> list[Piece]:
        """The answers of our own that come before the next one of the node, taken off the queue."""
        answers: list[Piece] = []
        while self._in_flight and (answer := self._in_flight[0].answer) is not None:
            request = self._in_flight[0]
            if not request.timed and (binding := request.binding) is not None and binding.costs is not None:
                request.timed = True
                throttle_time_ms = self._times.charge_own(request, binding, len(answer) - 4, now_ms)
                self._mute_for_time(throttle_time_ms, request, now_ms, after)
            if self._delays and self._holds(request, now_ms, after):
                break
            self._no_longer_await(request, 1)
            self._count_answers(1, len(answer))
            left_ms = max(request.muted_until_ms, self._answered_until_ms) - now_ms
            if self._delays:
                left_ms = 0 if request.plan.client_waits else self._held_ms
            at = request.plan.throttle_at
            if left_ms > 0 and at >= 0:
                answer = answer[:at] + int32(left_ms) + answer[at + 4 :]
            answers.append(answer)
        return answers

    def _settle_client(self, actions: list[Action]) -> None:
        """Read the client or not, as things stand now.

        A verdict is quick: while it is due reading goes on. It must go on, too, until a whole head has had the upstream
        connection opened: nothing else would ever end that wait.
        """
        waits = self._mute & ~(_ASKING | _ENQUIRING) and (self._opening or self._mute != _UNCONNECTED)
        enough_bytes = HEAD.size if waits or self._client_blocked else MAX_HEAD_BYTES
        muted = self._mute or self._client_blocked
        enough = muted and not self._request_left and len(self._requests) >= enough_bytes
        pause = bool(self._node_blocked or enough)
        if pause != self._client_paused:
            self._client_paused = pause
            actions.append(Pause(_CLIENT) if pause else Resume(_CLIENT))

    # ----------------------------------------------------------------- answers

    def _go_on_with_answers(
        self, actions: list[Action], now_ms: int, verdict: Verdict | None = None, at: int = 0
    ) -> None:
        try:
            if verdict is not None:
                self._send_decided_answer(verdict, actions, now_ms)
            self._take_answers(actions, now_ms, at)
            self._send_own_answers(actions, now_ms)
        except Refusal as refusal:
            self._close(actions, refusal.reason, str(refusal))
        except ProtocolError as error:
            self._close(actions, CloseReason.ANSWER_MALFORMED, str(error))
        else:
            self._settle_node(actions)
            if self._take_up_again():
                self._go_on_with_requests(actions, now_ms)
            elif self._mute:
                self._settle_client(actions)

    def _take_answers(self, actions: list[Action], now_ms: int, at: int) -> None:
        """Send on all that may be sent, throttle times patched; stop where an answer must be decided about.

        `at` is where the next frame begins (before it, all is passed already), `run` where the bytes begin that go out
        as they are.
        """
        buf = self._answers
        end = len(buf)
        run = 0
        pieces: list[Piece] = []
        after: list[Action] = []
        try:
            while True:
                if self._answer_left:
                    step = min(self._answer_left, end - at)
                    self._answer_left -= step
                    at += step
                elif self._to_drop:
                    _add_run(pieces, buf, run, at)
                    at = run = self._drop(pieces, at, end)
                if at == end or self._answer_ticket != _NO_TICKET or self._held_verdict is not None:
                    break
                if self._streamed is not None:
                    passed, splices = self._stream(self._streamed, buf, at, now_ms, after)
                else:
                    if self._in_flight and self._in_flight[0].answer is not None:
                        _add_run(pieces, buf, run, at)
                        pieces += self._own_answers(now_ms, after)
                        run = at
                        if self._held_since_ms is not None:
                            break
                    if self._in_flight and self._in_flight[0].held:
                        _add_run(pieces, buf, run, at)
                        run = at
                        at = self._collect(self._in_flight[0], buf, at, after)
                        if run == at:
                            break
                        run = at
                        continue
                    if self._held_since_ms is None:
                        passed_to = self._pass_alike(buf, at, now_ms)
                        if passed_to != at:
                            at = passed_to
                            continue
                    passed, splices = self._start_answer(buf, at, now_ms, after)
                if self._to_drop:
                    continue
                if not passed:
                    break
                for splice in splices:
                    _add_run(pieces, buf, run, at + splice.start)
                    pieces.append(splice.data)
                    run = at + splice.end
                self._answer_left = passed
        finally:
            self._answers = _send_through(actions, _CLIENT, pieces, buf, run, at)
            actions += after

    def _pass_alike(self, buf: bytes, at: int, now_ms: int) -> int:
        """Pass the whole answers at `at` that need only be counted, of one run of requests; return where they end.

        They are small, carry no throttle time, and none of ours is to be put in.
        """
        if not self._in_flight:
            return at
        request = self._in_flight[0]
        plan = request.plan
        if not plan.quick or request.charged or request.timed or request.held:
            return at
        if max(request.muted_until_ms, self._answered_until_ms, self._loans.paid_at_ms) > now_ms:
            return at
        if self._slow_us == self._now_us or (self._withholds and plan.api_key == FETCH):
            return at
        most = 1 if plan.api_key == FETCH else request.waiting
        count, end = quick_run(plan, buf, at, request.correlation_id, most, self._quick_bytes)
        if not count or (plan.api_key == FETCH and not self._charge_quick_fetch(request, end - at, now_ms)):
            return at
        binding = request.binding
        if binding is not None and binding.costs is not None:
            answer_bytes = end - at - 4 * count
            if not self._times.charge_unthrottled(request, binding, count, answer_bytes, now_ms, self._now_us):
                self._slow_us = self._now_us
                request.charged = plan.api_key == FETCH
                return at
        self._no_longer_await(request, count)
        self._count_answers(count, end - at)
        return end

    def _charge_quick_fetch(self, request: Request, frame_bytes: int, now_ms: int) -> bool:
        """Charge the answer to a Fetch if it is plain that it is not throttled."""
        binding = request.binding
        if binding is None:
            return True
        value = frame_bytes - 4 - request.plan.answer_tags
        if binding.fetch is not None:
            try:
                if not self._charge_unthrottled(binding.fetch, value, 1, now_ms):
                    return False
            except StaleSensor:
                return False
        if binding.shadow_fetch is not None:
            self._charge_shadow_fetch(binding.shadow_fetch, value, now_ms)
        return True

    def _charge_shadow_fetch(self, sensor: int, value: int, now_ms: int) -> None:
        """Charge the answer of a Fetch to a shadow quota, if it is measured still."""
        with suppress(StaleSensor):
            self._shadows.charge(sensor, value, now_ms)

    def _start_answer(self, buf: bytes, at: int, now_ms: int, after: list[Action]) -> Passing:
        """Begin with the answer at `at`: nothing passes while more bytes must come first or it is asked about."""
        frame_bytes = self._answer_bytes(buf, at)
        available = min(len(buf) - at, frame_bytes)
        if not frame_bytes or available < min(frame_bytes, _ANSWER_PREFIX_BYTES):
            return _NOTHING
        request = self._in_flight[0]
        plan = request.plan
        body_at = 8
        if plan.answer_tags:
            if frame_bytes < 9:
                return _too_short(plan, frame_bytes)
            body_at = 9 if not buf[at + 8] else _after_header_tags(buf[at : at + available], frame_bytes)
            if not body_at:
                return _NOTHING
        if plan.fetches and not request.charged and (plan.answer is _PLAIN or frame_bytes > MAX_HEAD_BYTES):
            if self._withholds and available < min(frame_bytes, body_at + decisive_bytes(plan)):
                return _NOTHING
            self._charge_fetch(request, frame_bytes - (body_at - 4), now_ms, after)
            if request.withheld:
                return self._withhold(request, buf, at, frame_bytes, body_at, now_ms, after)
        if plan.answer is _PLAIN:
            return self._start_plain(request, buf, at, frame_bytes, body_at, now_ms, after)
        if available < min(frame_bytes, MAX_HEAD_BYTES):
            return _NOTHING
        if plan.answer is _HEAD:
            return self._ask_about_answer(plan, buf[at : at + min(available, MAX_HEAD_BYTES)], after)
        return self._start_tail(request, buf, at, frame_bytes, body_at, now_ms, after)

    def _start_plain(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """An answer whose throttle time, if it has one, stands at a fixed place near its start."""
        plan = request.plan
        throttle_at = plan.throttle_at
        if throttle_at >= 0:
            throttle_at += body_at - 8 - plan.answer_tags
            if throttle_at + 4 > frame_bytes:
                return _too_short(plan, frame_bytes)
            if at + throttle_at + 4 > len(buf):
                return _NOTHING
        return self._pass_answer(request, buf, at, throttle_at, frame_bytes, frame_bytes, now_ms, after)

    def _start_tail(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """An answer that is decided by what stands at its end: here whole, or so large that it is walked on its way."""
        plan = request.plan
        streams = frame_bytes > MAX_HEAD_BYTES
        if not streams:
            throttle_at = _throttle_behind(plan, buf, at, frame_bytes)
            if throttle_at >= 0:
                return self._pass_answer(request, buf, at, throttle_at, frame_bytes, frame_bytes, now_ms, after)
        assert plan.shape is not None
        walk = Walk(plan.shape, body_at)
        here = memoryview(buf)[at : at + frame_bytes]
        walk.advance(here, 0, stop_at_tail=streams)
        if streams:
            if not walk.done and walk.offset >= frame_bytes:
                return _too_short(plan, frame_bytes)
            passed = min(walk.offset, len(here))
            passing = self._pass_answer(request, buf, at, walk.throttle_at, frame_bytes, passed, now_ms, after)
            if self._held_since_ms is None:
                self._streamed = _StreamedAnswer(walk, frame_bytes, passed, request)
            return passing
        if not walk.fits(frame_bytes):
            return _too_short(plan, frame_bytes)
        if plan.fetches and not request.charged:
            self._charge_fetch(request, frame_bytes - (body_at - 4) - hints_bytes(walk, frame_bytes), now_ms, after)
            if request.withheld:
                return self._withhold(request, buf, at, frame_bytes, body_at, now_ms, after)
        if walk.endpoints and rewritable(walk):
            return self._ask_about_answer(plan, bytes(here), after)
        return self._pass_answer(request, buf, at, walk.throttle_at, frame_bytes, frame_bytes, now_ms, after)

    def _pass_answer(
        self,
        request: Request,
        buf: bytes,
        at: int,
        throttle_at: int,
        frame_bytes: int,
        passed: int,
        now_ms: int,
        after: list[Action],
    ) -> Passing:
        """The answer goes out: take its request off the queue, count and time it, and put the throttle time in."""
        if not request.timed:
            self._charge_time(request, frame_bytes - 4, now_ms, after)
        if self._delays and self._holds(request, now_ms, after):
            return _NOTHING
        self._no_longer_await(request, 1)
        self._count_answers(1, frame_bytes)
        if throttle_at < 0:
            return passed, ()
        node_ms = _INT32.unpack_from(buf, at + throttle_at)[0]
        return passed, self._throttle_splices(request, throttle_at, node_ms, now_ms, after)

    def _charge_time(self, request: Request, answer_bytes: int, now_ms: int, after: list[Action]) -> int:
        """Charge what the request cost the node, if that is measured; the throttle time in ms."""
        request.timed = True
        binding = request.binding
        if binding is None or binding.costs is None:
            return 0
        throttle_time_ms = self._times.charge(request, binding, answer_bytes, now_ms, self._now_us)
        self._mute_for_time(throttle_time_ms, request, now_ms, after)
        return throttle_time_ms

    def _mute_for_time(self, throttle_time_ms: int, request: Request, now_ms: int, after: list[Action]) -> None:
        """Mute the client for its request time, and have all answers say so until that is over."""
        if throttle_time_ms:
            self._mute_until(now_ms, throttle_time_ms, QuotaType.REQUEST, request.client_id, after)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + throttle_time_ms)

    def _throttle_splices(
        self, request: Request, throttle_at: int, node_ms: int, now_ms: int, after: list[Action]
    ) -> Sequence[Splice]:
        """The larger of our throttle time and the node's is reported, and mutes the client."""
        if self._delays:
            return self._delayed_splices(request, throttle_at, node_ms, now_ms, after)
        own_ms = max(request.muted_until_ms, self._answered_until_ms, self._loans.paid_at_ms) - now_ms
        if own_ms <= 0 and node_ms <= 0:
            return ()
        if node_ms > own_ms:
            self._tally.throttles_by_node += 1
            self._mute_until(now_ms, node_ms, None, request.client_id, after)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + node_ms)
            return ()
        if node_ms == own_ms:
            return ()
        return (Splice(throttle_at, throttle_at + 4, int32(own_ms)),)

    # ------------------------------------------------------------------- delay

    def _holds(self, request: Request, now_ms: int, after: list[Action]) -> bool:
        """Whether the answer to the oldest request is held, as a throttle is not over; how long it was, when it is."""
        until_ms = max(request.muted_until_ms, self._answered_until_ms)
        if self._loans.paid_at_ms:
            until_ms = self._muted_until_ms
        if until_ms > now_ms and self._mute & _THROTTLED:
            self._held_until_ms = until_ms
            if self._held_since_ms is None:
                self._held_since_ms = now_ms
                if until_ms < self._muted_until_ms:
                    after.append(WakeAt(until_ms))
            return True
        self._held_ms = 0 if self._held_since_ms is None else now_ms - self._held_since_ms
        self._held_since_ms = None
        return False

    def _delayed_splices(
        self, request: Request, throttle_at: int, node_ms: int, now_ms: int, after: list[Action]
    ) -> Sequence[Splice]:
        """A client that waits for what it is told hears of the node's throttle only, as far as it was not held for it.

        Others are told how long they were throttled.
        """
        left_ms = node_ms - self._held_ms
        if left_ms > 0:
            self._tally.throttles_by_node += 1
            self._mute_until(now_ms, left_ms, None, request.client_id, after)
        told_ms = max(left_ms, 0) if request.plan.client_waits else max(self._held_ms, node_ms)
        if told_ms == node_ms or (not self._held_ms and node_ms <= 0):
            return ()
        return (Splice(throttle_at, throttle_at + 4, int32(told_ms)),)

    def _let_go(self, actions: list[Action]) -> None:
        """The connection ends: what was held goes out at once, with what is left of the throttle."""
        now_ms, verdict = self._now_us // 1000, self._held_verdict
        self._delays, self._held_since_ms, self._held_verdict = False, None, None
        with suppress(ProtocolError):
            if verdict is not None:
                self._send_decided_answer(verdict, actions, now_ms)
            self._take_answers(actions, now_ms, 0)
            self._send_own_answers(actions, now_ms)

    def _answer_bytes(self, buf: bytes, at: int) -> int:
        """The length of the frame that begins at `at`, checked against what is in flight; 0 while it is unknown."""
        if len(buf) - at < _ANSWER_HEAD.size:
            if len(buf) - at >= 4:
                self._check_answer_size(buf[at : at + 4])
            return 0
        size, correlation_id = _ANSWER_HEAD.unpack_from(buf, at)
        if not _SMALLEST_ANSWER <= size <= self._max_answer_bytes:
            self._check_answer_size(buf[at : at + 4])
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            raise self._unexpected(buf[at : at + 4], correlation_id)
        return int(size) + 4

    def _unexpected(self, first_bytes: bytes, correlation_id: int) -> Refusal:
        if name := looks_like(first_bytes):
            return Refusal(CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
        due = "none"
        if self._in_flight:
            due = f"{self._in_flight[0].plan.name} {self._in_flight[0].correlation_id}"
        return Refusal(CloseReason.ANSWER_UNEXPECTED, f"correlation id {correlation_id}, {due} is due")

    def _check_answer_size(self, first_bytes: bytes) -> None:
        size = _INT32.unpack(first_bytes)[0]
        allowed = self._max_answer_bytes
        if _SMALLEST_ANSWER <= size <= allowed:
            return
        if name := looks_like(first_bytes):
            raise Refusal(CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
        if size > allowed:
            raise Refusal(CloseReason.ANSWER_TOO_LARGE, f"{size} bytes announced, {allowed} allowed")
        raise MalformedMessage(f"a length prefix of {size}")

    def _stream(self, streamed: _StreamedAnswer, buf: bytes, at: int, now_ms: int, after: list[Action]) -> Passing:
        """Go on with a large answer: what was walked passes; its tail is held until it is here whole."""
        walk, sent, frame_bytes = streamed.walk, streamed.sent, streamed.frame_bytes
        here = min(len(buf) - at, frame_bytes - sent)
        data = memoryview(buf)[at : at + here]
        if walk.tail_at < 0:
            walk.advance(data, sent, stop_at_tail=True)
            ends_early = walk.done or sent + here == frame_bytes
            if (walk.tail_at < 0 and ends_early) or (not walk.done and walk.offset >= frame_bytes):
                return _too_short(streamed.request.plan, frame_bytes)
            passed = min(walk.offset - sent, here)
            streamed.sent += passed
            if passed or walk.tail_at < 0:
                return passed, ()
        if frame_bytes - sent > MAX_HEAD_BYTES:
            raise MalformedMessage(f"{frame_bytes - sent} bytes behind the partitions of an answer")
        if sent + here < frame_bytes:
            return _NOTHING
        throttled_before = walk.throttle_at
        walk.advance(data, sent)
        if not walk.fits(frame_bytes):
            return _too_short(streamed.request.plan, frame_bytes)
        self._streamed = None
        splices = hiding_splices(walk, frame_bytes)
        if throttled_before < 0 <= walk.throttle_at:
            node_ms = _INT32.unpack_from(data, walk.throttle_at - sent)[0]
            splices = [*self._throttle_splices(streamed.request, walk.throttle_at, node_ms, now_ms, after), *splices]
        return here, [Splice(splice.start - sent, splice.end - sent, splice.data) for splice in splices]

    def _charge_fetch(self, request: Request, value: int, now_ms: int, after: list[Action]) -> None:
        """Charge the answer of a Fetch or ShareFetch: its size without length prefix, header tags and, where it is
        here whole, NodeEndpoints, as a broker counts it.
        """
        request.charged = True
        binding = request.binding
        if binding is None:
            return
        throttle_time_ms = 0
        if self._withholds:
            throttle_time_ms = self._charge_or_withhold(request, binding, value, now_ms, after)
        elif binding.fetch is not None:
            throttle_time_ms = self._loans.charge(binding.fetch, value, request.client_id, now_ms)
        if binding.shadow_fetch is not None and not request.withheld:
            self._charge_shadow_fetch(binding.shadow_fetch, value, now_ms)
        if throttle_time_ms:
            self._mute_until(now_ms, throttle_time_ms, QuotaType.FETCH, request.client_id, after)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + throttle_time_ms)

    def _charge_or_withhold(
        self, request: Request, binding: Binding, value: int, now_ms: int, after: list[Action]
    ) -> int:
        """As in a broker: whoever is over the quota of request time or of bytes gets none, and is charged none."""
        over_time = self._charge_time(request, value, now_ms, after) > 0
        throttle_time_ms = 0
        if binding.fetch is not None:
            sensors = self._ledger.sensors
            with suppress(StaleSensor):
                throttle_time_ms = sensors.charge_if_within(binding.fetch, value, now_ms)
                if over_time and not throttle_time_ms:
                    sensors.give_back(binding.fetch, value, now_ms)
        request.withheld = over_time or throttle_time_ms > 0
        return throttle_time_ms

    def _withhold(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """The answer to a Fetch over quota does not go out, however large; an empty one takes its place."""
        plan = request.plan
        if frame_bytes < body_at + decisive_bytes(plan):
            return _too_short(plan, frame_bytes)
        request.withheld = False
        self._no_longer_await(request, 1)
        throttle_at, told_ms = plan.throttle_at, 0
        if throttle_at >= 0:
            told_ms = _INT32.unpack_from(buf, at + body_at)[0]
            if splices := self._throttle_splices(request, throttle_at, told_ms, now_ms, after):
                told_ms = _INT32.unpack(splices[0].data)[0]
        head = memoryview(buf)[at : at + body_at + decisive_bytes(plan)]
        self._instead = empty_answer(plan, head, body_at, request.incremental, told_ms)
        self._to_drop = frame_bytes
        self._count_answers(1, len(self._instead))
        return _NOTHING

    def _drop(self, pieces: list[Piece], at: int, end: int) -> int:
        """Drop what is here of an answer that is withheld; return where that ends."""
        if self._instead:
            pieces.append(self._instead)
            self._instead = b""
        step = min(self._to_drop, end - at)
        self._to_drop -= step
        return at + step

    def _collect(self, request: Request, buf: bytes, at: int, after: list[Action]) -> int:
        """Take what is here of an answer that is wanted whole; return where that ends."""
        if not self._to_collect:
            self._to_collect = self._answer_bytes(buf, at)
            if self._to_collect + sum(map(len, self._enquired)) > MAX_HELD_BYTES:
                detail = f"{request.plan.name}: {self._to_collect} bytes announced, {MAX_HELD_BYTES} can be held"
                raise Refusal(CloseReason.ANSWER_TOO_LARGE, detail)
        if self._to_collect:
            part = buf[at : at + self._to_collect]
            self._collecting.append(part)
            self._to_collect -= len(part)
            at += len(part)
            if not self._to_collect:
                frame, self._collecting = b"".join(self._collecting), []
                self._take_collected(request, frame, after)
        return at

    def _take_collected(self, request: Request, frame: bytes, after: list[Action]) -> None:
        plan = request.plan
        if not request.enquiry:
            self._held_answer = frame
            self._answer_ticket = self._next_ticket()
            ask = Ask(self._answer_ticket, AskKind.MUTATION, _NODE, plan.api_key, plan.api_version, frame)
            ask.note = request.note
            after.append(ask)
            return
        self._no_longer_await(request, 1)
        self._enquired.append(frame)

    def _ask_about_answer(self, plan: Plan, head: bytes, after: list[Action]) -> Passing:
        kind = AskKind.API_VERSIONS if plan.api_key == API_VERSIONS else AskKind.ADDRESSES
        self._answer_ticket = self._next_ticket()
        after.append(Ask(self._answer_ticket, kind, _NODE, plan.api_key, plan.api_version, head))
        return _NOTHING

    def _send_decided_answer(self, verdict: Verdict, actions: list[Action], now_ms: int) -> None:
        """Send the head, or the whole, that was asked about, spliced; the rest of its frame follows as it comes."""
        if self._held_answer:
            head, self._held_answer = self._held_answer, b""
            frame_bytes, rest = len(head), self._answers
        else:
            frame_bytes = _INT32.unpack_from(self._answers, 0)[0] + 4
            head = self._answers[: min(frame_bytes, MAX_HEAD_BYTES)]
            rest = self._answers[len(head) :]
        request = self._in_flight[0]
        after: list[Action] = []
        _, throttle = self._pass_answer(request, head, 0, verdict.throttle_at, frame_bytes, len(head), now_ms, after)
        if self._held_since_ms is not None:
            self._held_verdict = verdict
            self._held_answer = head if rest is self._answers else b""
            actions += after
            return
        self._held_verdict = None
        splices = sorted((*verdict.splices, *throttle), key=lambda splice: splice.start)
        actions.append(Send(_CLIENT, splice_frame(head, frame_bytes - 4, splices)))
        actions += after
        self._answer_left = frame_bytes - len(head)
        self._answers = rest

    def _settle_node(self, actions: list[Action]) -> None:
        """Read the node or not, as things stand now; there is nothing to stop before it is connected."""
        if self._mute & _UNCONNECTED:
            return
        enough = self._answer_ticket != _NO_TICKET and len(self._answers) >= MAX_HEAD_BYTES
        pause = self._client_blocked or enough or self._held_since_ms is not None
        if pause != self._node_paused:
            self._node_paused = pause
            actions.append(Pause(_NODE) if pause else Resume(_NODE))

    # -------------------------------------------------------------------- both

    def _mute_until(
        self,
        now_ms: int,
        throttle_time_ms: int,
        quota_type: QuotaType | None,
        client_id: bytes,
        after: list[Action],
    ) -> None:
        """Take no further request for `throttle_time_ms` from now, or longer if that was so already."""
        until_ms = now_ms + throttle_time_ms
        prolonged_ms = until_ms - max(self._muted_until_ms, now_ms)
        if quota_type is not None:
            self._tally.throttles[quota_type] += 1
            self._tally.throttled_ms[quota_type] += max(prolonged_ms, 0)
        if prolonged_ms <= 0 and self._mute & _THROTTLED:
            return
        self.throttled_ms += prolonged_ms
        self._muted_until_ms = until_ms
        self._mute |= _THROTTLED
        after.append(Throttled(quota_type, throttle_time_ms, client_id))
        after.append(WakeAt(until_ms))

    def _count_requests(self, api_key: int, count: int, frames_bytes: int) -> None:
        self.requests += count
        self.request_bytes += frames_bytes
        self._tally.requests_by_api[api_key] += count
        self._tally.request_bytes += frames_bytes

    def _count_answers(self, count: int, frames_bytes: int) -> None:
        self.answers += count
        self.answer_bytes += frames_bytes
        self._tally.answers += count
        self._tally.answer_bytes += frames_bytes

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _close(self, actions: list[Action], reason: CloseReason, detail: str = "") -> None:
        if self._held_since_ms is not None and reason not in _NOBODY_LISTENS:
            self._let_go(actions)
        self._closed = True
        self._requests = self._answers = self._held_answer = b""
        self._collecting, self._enquired = [], []
        self._in_flight.clear()
        self._loans.call_in()
        actions.append(Close(reason, detail))


def _note_session(request: Request, buf: bytes, at: int, end: int) -> bool:
    """Note whether a Fetch goes on with a session; False while that is not here yet."""
    if request.plan.api_key != FETCH:
        return True
    frame_end = at + 4 + request.size_bytes
    here = memoryview(buf)[: min(end, frame_end)]
    try:
        request.incremental = is_incremental(here, request.body_at, request.plan.api_version)
    except TruncatedMessage:
        if end >= frame_end:
            raise
        return False
    return True


def _is_asked(request: Request, binding: Binding) -> bool:
    """Whether a request of the ask list is asked about; a shadow quota alone never has one refused for its size."""
    if request.plan.asked is not AskKind.MUTATION or binding.limits_mutations:
        return True
    return binding.shadow_mutation is not None and request.size_bytes <= MAX_ASKED_BYTES


def _add_run(pieces: list[Piece], buf: bytes, start: int, end: int) -> None:
    """Append `buf[start:end]`, without a copy."""
    if end > start:
        pieces.append(buf if end - start == len(buf) else memoryview(buf)[start:end])


def _send_through(actions: list[Action], side: Side, pieces: list[Piece], buf: bytes, run: int, at: int) -> bytes:
    """Send `pieces` and `buf[run:at]` behind them; return the bytes that are still to be looked at."""
    _add_run(pieces, buf, run, at)
    if pieces:
        actions.append(Send(side, pieces))
    return buf[at:]


def _after_header_tags(head: bytes, frame_bytes: int) -> int:
    """Where the body begins behind the tags of an answer's header; 0 while they are not all here."""
    reader = Reader(head, 8)
    try:
        reader.tags(MAX_HEADER_TAGS)
    except TruncatedMessage:
        if len(head) >= min(frame_bytes, MAX_HEAD_BYTES):
            raise
        return 0
    return reader.offset


def _throttle_behind(plan: Plan, buf: bytes, at: int, frame_bytes: int) -> int:
    """Where throttle_time_ms stands in a whole answer that need not be walked for it; -1 for the others.

    Most answers to Produce are about one partition without an error: their length alone tells.
    """
    if plan.answer is AnswerKind.LAST:
        return frame_bytes - 4 if frame_bytes >= 16 else NO_THROTTLE
    if plan.api_key == PRODUCE:
        return lone_partition_throttle_at(buf, at, frame_bytes, plan.api_version)
    return NO_THROTTLE


def _too_short(plan: Plan, frame_bytes: int) -> Passing:
    raise MalformedMessage(f"{plan.name} v{plan.api_version}: {frame_bytes} bytes do not hold what they announce")
