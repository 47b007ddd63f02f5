"""The response side of a relay: matches what the node sends, charges it, puts throttle times in, and sends it on."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from struct import Struct

from protocol.api_key import API_VERSIONS, FETCH, PRODUCE
from protocol.errors import MalformedMessage, ProtocolError, TruncatedMessage
from protocol.frames import MAX_ASKED_BYTES, MAX_HEAD_BYTES, MAX_HELD_BYTES
from protocol.messages.addresses import hiding_splices, hints_bytes, leaderless_splices, rewritable
from protocol.messages.fetch import decisive_bytes, empty_fetch_response
from protocol.messages.produce import lone_partition_throttle_at
from protocol.primitives import MAX_HEADER_TAGS, Reader, int32
from protocol.splices import Splice, splice_frame
from protocol.walk import Walk
from proxy.relay.actions import (
    Action,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    Pause,
    RelayLimits,
    Resume,
    Send,
    WakeAt,
)
from proxy.relay.carriage import (
    NO_TICKET,
    THROTTLED,
    UNCONNECTED,
    Bind,
    Carriage,
    Piece,
    UsageOf,
    add_run,
    send_through,
)
from proxy.relay.plans import NO_THROTTLE, SASL_TOKEN, Plan, ResponseKind
from proxy.relay.quick_responses import QUICK_BYTES, quick_run
from proxy.relay.recognise import looks_like
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.request import Refusal, Request
from proxy.relay.use import UsageCounter
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager
from quotas.entities import QuotaType
from quotas.sensors.windowed_rate import StaleSensor

Passing = tuple[int, Sequence[Splice]]
"""How many of the bytes that are here pass now, and the splices among them, in offsets from their start."""

_NOTHING: Passing = (0, ())

_CLIENT = Side.CLIENT
_NODE = Side.NODE
_PLAIN = ResponseKind.PLAIN
_HEAD = ResponseKind.HEAD

_SMALLEST_RESPONSE = 4
_RESPONSE_PREFIX_BYTES = 13
"""The length prefix, correlation id, an empty tag buffer and the throttle time: enough for most responses."""

_RESPONSE_HEAD = Struct(">ii")
_INT32 = Struct(">i")

_PAUSE = Pause(_NODE)
_RESUME = Resume(_NODE)


@dataclass(slots=True)
class _StreamedResponse:
    """A large response that is walked while it passes: `sent` of its `frame_bytes` have gone out."""

    walk: Walk
    frame_bytes: int
    sent: int
    request: Request


class ResponseSide(Carriage):
    """The direction from the node to the client."""

    __slots__ = (
        "_answered_until_ms",
        "_collecting",
        "_gathered_response",
        "_head_bytes",
        "_held_decision",
        "_held_ms",
        "_held_response",
        "_held_since_ms",
        "_held_until_ms",
        "_instead",
        "_max_gathered_bytes",
        "_max_response_bytes",
        "_node_paused",
        "_quick_bytes",
        "_response_left",
        "_response_ticket",
        "_responses",
        "_slow_us",
        "_streamed",
        "_to_collect",
        "_to_drop",
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
        self._slow_us = -1
        self._max_response_bytes = limits.max_response_bytes
        self._max_gathered_bytes = limits.max_frame_bytes
        self._quick_bytes = min(limits.max_response_bytes, QUICK_BYTES)
        self._responses = b""
        self._response_left = 0
        self._streamed: _StreamedResponse | None = None
        self._instead = b""
        self._to_drop = 0
        self._head_bytes = MAX_HEAD_BYTES
        """How many bytes of the next response must be here before it can be decided about."""
        self._gathered_response: list[bytes] = []
        """What has come after `_responses` of a response of which more than MAX_HEAD_BYTES are needed."""
        self._collecting: list[bytes] = []
        self._to_collect = 0
        self._held_response = b""
        self._held_since_ms: int | None = None
        self._held_until_ms = 0
        self._held_ms = 0
        self._held_decision: Decision | None = None
        self._answered_until_ms = 0
        self._node_paused = False
        self._response_ticket = NO_TICKET

    @property
    def _amid_response(self) -> bool:
        return self._response_left > 0 or self._streamed is not None or self._to_collect > 0 or self._to_drop > 0

    def _take_responses(self, actions: list[Action], now_ms: int, at: int) -> None:
        """Send on all that may be sent, with throttle times put in; stop at a response that needs a decision.

        `at` is where the next frame begins; everything before it is passed already. `run` is where the bytes begin that
        go out unchanged.
        """
        buf = self._responses
        end = len(buf)
        run = 0
        pieces: list[Piece] = []
        after: list[Action] = []
        try:
            while True:
                if self._response_left:
                    step = min(self._response_left, end - at)
                    self._response_left -= step
                    at += step
                    self._written(self._going, step)
                elif self._to_drop:
                    add_run(pieces, buf, run, at)
                    at = run = self._drop(pieces, at, end)
                if at == end or self._response_ticket != NO_TICKET or self._held_decision is not None:
                    break
                if self._streamed is not None:
                    passed, splices = self._stream(self._streamed, buf, at, now_ms, after)
                else:
                    if self._in_flight and self._in_flight[0].plan is SASL_TOKEN:
                        self._forget_unanswered_tokens()
                    if self._in_flight and self._in_flight[0].response is not None:
                        add_run(pieces, buf, run, at)
                        pieces += self._pass_own_responses(now_ms, after)
                        run = at
                        if self._held_since_ms is not None:
                            break
                    if self._in_flight and self._in_flight[0].held:
                        add_run(pieces, buf, run, at)
                        run = at
                        at = self._collect(self._in_flight[0], buf, at, after)
                        if run == at:
                            break
                        run = at
                        continue
                    if self._held_since_ms is None:
                        passed_to = self._pass_repeated(buf, at, now_ms)
                        if passed_to != at:
                            at = passed_to
                            continue
                    passed, splices = self._start_response(buf, at, now_ms, after)
                if self._to_drop:
                    continue
                if not passed:
                    break
                for splice in splices:
                    add_run(pieces, buf, run, at + splice.start)
                    pieces.append(splice.data)
                    run = at + splice.end
                self._response_left = passed
        finally:
            self._responses = send_through(actions, _CLIENT, pieces, buf, run, at)
            actions += after

    def _settle_node(self, actions: list[Action]) -> None:
        """Pause or resume reading the node if that must change. Before it is connected there is nothing to pause."""
        if self._mute & UNCONNECTED:
            return
        pause = self._client_blocked or self._held_since_ms is not None
        if self._response_ticket != NO_TICKET and len(self._responses) >= MAX_HEAD_BYTES:
            pause = True
        if pause != self._node_paused:
            self._node_paused = pause
            actions.append(_PAUSE if pause else _RESUME)

    # -------------------------------------------------------------- unchanged

    def _pass_repeated(self, buf: bytes, at: int, now_ms: int) -> int:
        """Pass the whole responses at `at`, of one run of requests, that need only be counted; return where they end.

        They are small, have no throttle time, and the proxy has none to put in.
        """
        if not self._in_flight:
            return at
        request = self._in_flight[0]
        plan = request.plan
        if not plan.quick or request.charged or request.timed or request.held:
            return at
        if max(request.muted_until_ms, self._answered_until_ms) > now_ms or self._slow_us == self._now_us:
            return at
        most = 1 if plan.api_key == FETCH else request.waiting
        count, end = quick_run(plan, buf, at, request.correlation_id, most, self._quick_bytes)
        if not count:
            return at
        client_sensors = request.client_sensors
        if client_sensors is not None and client_sensors.costs is not None:
            response_bytes = end - at - 4 * count
            if not self._times.charge_unthrottled(request, client_sensors, count, response_bytes, now_ms, self._now_us):
                self._slow_us = self._now_us
                return at
        elif request.use is not None:
            self._model_time(request, count, end - at - 4 * count)
        if plan.api_key == FETCH and not self._charge_quick_fetch(request, end - at, now_ms):
            request.timed = True
            return at
        self._no_longer_await(request, count)
        self._count_responses(count, end - at)
        if (use := request.use) is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.out_bytes += end - at
        return end

    def _charge_quick_fetch(self, request: Request, frame_bytes: int, now_ms: int) -> bool:
        """Charge the response to a Fetch if it is certain that it is not throttled; return whether that was done."""
        client_sensors = request.client_sensors
        if client_sensors is None:
            return True
        value = frame_bytes - 4 - request.plan.response_tags
        if client_sensors.fetch is not None:
            try:
                if not self._charge_unthrottled(client_sensors.fetch, value, 1, now_ms):
                    return False
            except StaleSensor:
                return False
        if client_sensors.shadow_fetch is not None:
            self._charge_shadow_fetch(client_sensors.shadow_fetch, request.use, value, now_ms)
        if (use := request.use) is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.used += value
        return True

    # --------------------------------------------------------------- one by one

    def _start_response(self, buf: bytes, at: int, now_ms: int, after: list[Action]) -> Passing:
        """Begin with the response at `at`. Nothing passes while more bytes must come first or a decision is due."""
        frame_bytes = self._response_bytes(buf, at)
        available = min(len(buf) - at, frame_bytes)
        if not frame_bytes or available < min(frame_bytes, _RESPONSE_PREFIX_BYTES):
            return _NOTHING
        request = self._in_flight[0]
        plan = request.plan
        body_at = 8
        if plan.response_tags:
            if frame_bytes < 9:
                return _too_short(plan, frame_bytes)
            body_at = 9 if not buf[at + 8] else _after_header_tags(buf[at : at + available], frame_bytes)
            if not body_at:
                return _NOTHING
        if plan.fetches and not request.charged and (plan.response is _PLAIN or frame_bytes > MAX_HEAD_BYTES):
            decisive_at = body_at + decisive_bytes(plan.api_version)
            if request.incremental is not None and available < min(frame_bytes, decisive_at):
                return _NOTHING
            self._charge_fetch(request, frame_bytes - (body_at - 4), now_ms, after)
            if request.as_empty_fetch:
                return self._withhold(request, buf, at, frame_bytes, body_at, now_ms, after)
        if plan.response is _PLAIN:
            return self._start_plain(request, buf, at, frame_bytes, body_at, now_ms, after)
        if available < min(frame_bytes, self._head_bytes):
            return _NOTHING
        if plan.response is _HEAD:
            return self._ask_about_response(plan, buf[at : at + min(available, self._head_bytes)], after)
        return self._start_tail(request, buf, at, frame_bytes, body_at, now_ms, after)

    def _start_plain(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """Begin with a response whose throttle time, if it has one, is at a fixed place near its start."""
        plan = request.plan
        throttle_at = plan.throttle_at
        if throttle_at >= 0:
            throttle_at += body_at - 8 - plan.response_tags
            if throttle_at + 4 > frame_bytes:
                return _too_short(plan, frame_bytes)
            if at + throttle_at + 4 > len(buf):
                return _NOTHING
        return self._pass_response(request, buf, at, throttle_at, frame_bytes, frame_bytes, now_ms, after)

    def _start_tail(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """Begin with a response whose last part matters: collected whole, or walked while it streams if it is large."""
        plan = request.plan
        streams = frame_bytes > MAX_HEAD_BYTES
        if not streams:
            throttle_at = _throttle_behind(plan, buf, at, frame_bytes)
            if throttle_at >= 0:
                return self._pass_response(request, buf, at, throttle_at, frame_bytes, frame_bytes, now_ms, after)
        assert plan.shape is not None
        walk = Walk(plan.shape, body_at)
        here = memoryview(buf)[at : at + frame_bytes]
        walk.advance(here, 0, stop_at_tail=streams)
        if streams:
            if not walk.done and walk.offset >= frame_bytes:
                return _too_short(plan, frame_bytes)
            passed = min(walk.offset, len(here))
            passing = self._pass_response(request, buf, at, walk.throttle_at, frame_bytes, passed, now_ms, after)
            if self._held_since_ms is None:
                self._streamed = _StreamedResponse(walk, frame_bytes, passed, replace(request))
            return passing
        if not walk.fits(frame_bytes):
            return _too_short(plan, frame_bytes)
        if plan.fetches and not request.charged:
            self._charge_fetch(request, frame_bytes - (body_at - 4) - hints_bytes(walk, frame_bytes), now_ms, after)
            if request.as_empty_fetch:
                return self._withhold(request, buf, at, frame_bytes, body_at, now_ms, after)
        if walk.endpoints and rewritable(walk):
            return self._ask_about_response(plan, bytes(here), after)
        return self._pass_response(request, buf, at, walk.throttle_at, frame_bytes, frame_bytes, now_ms, after)

    def _stream(self, streamed: _StreamedResponse, buf: bytes, at: int, now_ms: int, after: list[Action]) -> Passing:
        """Continue a large response: what was walked passes; its last part waits until it is here whole."""
        walk, sent, frame_bytes = streamed.walk, streamed.sent, streamed.frame_bytes
        here = min(len(buf) - at, frame_bytes - sent)
        data = memoryview(buf)[at : at + here]
        if walk.leaders:
            return self._stream_led(streamed, data)
        if walk.tail_at < 0:
            walk.advance(data, sent, stop_at_tail=True)
            ends_early = walk.done or sent + here == frame_bytes
            if (walk.tail_at < 0 and ends_early) or (not walk.done and walk.offset >= frame_bytes):
                return _too_short(streamed.request.plan, frame_bytes)
            passed = min(walk.offset - sent, here)
            streamed.sent += passed
            if passed or walk.tail_at < 0:
                return passed, ()
        if frame_bytes - sent > MAX_HELD_BYTES:
            raise MalformedMessage(f"{frame_bytes - sent} bytes after the partitions of a response")
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

    def _stream_led(self, streamed: _StreamedResponse, data: memoryview) -> Passing:
        """Continue a response to Metadata after its nodes: partitions whose leader was left out get no leader."""
        walk, sent, frame_bytes = streamed.walk, streamed.sent, streamed.frame_bytes
        walk.advance(data, sent)
        passed = min(walk.offset - sent, len(data))
        streamed.sent += passed
        if walk.done:
            if walk.offset != frame_bytes:
                return _too_short(streamed.request.plan, frame_bytes)
            if streamed.sent == frame_bytes:
                self._streamed = None
        elif sent + len(data) == frame_bytes:
            return _too_short(streamed.request.plan, frame_bytes)
        splices = leaderless_splices(walk)
        return passed, [Splice(splice.start - sent, splice.end - sent, splice.data) for splice in splices]

    def _pass_response(
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
        """Let the response go out: take its request off the queue, count and charge it, put the throttle time in."""
        if not request.timed:
            self._charge_time(request, frame_bytes - 4, now_ms, after)
        if self._delays and self._holds(request, now_ms, after):
            return _NOTHING
        self._no_longer_await(request, 1)
        self._count_responses(1, frame_bytes)
        self._going = request.use
        if throttle_at < 0:
            return passed, ()
        node_ms = _INT32.unpack_from(buf, at + throttle_at)[0]
        return passed, self._throttle_splices(request, throttle_at, node_ms, now_ms, after)

    def _response_bytes(self, buf: bytes, at: int) -> int:
        """The length of the frame that begins at `at`, checked against what is in flight; 0 while it is unknown."""
        if len(buf) - at < _RESPONSE_HEAD.size:
            if len(buf) - at >= 4:
                self._check_response_size(buf[at : at + 4])
            return 0
        size, correlation_id = _RESPONSE_HEAD.unpack_from(buf, at)
        if not _SMALLEST_RESPONSE <= size <= self._max_response_bytes:
            self._check_response_size(buf[at : at + 4])
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            raise self._unexpected(buf[at : at + 4], correlation_id)
        return int(size) + 4

    def _token_bytes(self, buf: bytes, at: int) -> int:
        """The length of the bare token that begins at `at`, its length prefix included; 0 while it is unknown."""
        if len(buf) - at < 4:
            return 0
        size: int = _INT32.unpack_from(buf, at)[0]
        if not 0 <= size <= MAX_ASKED_BYTES:
            raise MalformedMessage(f"a SASL token of {size} bytes")
        return size + 4

    def _forget_unanswered_tokens(self) -> None:
        """When a request follows opaque tokens, take tokens without a response off the queue: the last had none."""
        if not self._to_collect and self._in_flight[-1].plan is not SASL_TOKEN:
            while self._in_flight[0].plan is SASL_TOKEN:
                self._no_longer_await(self._in_flight[0], 1)

    def _check_response_size(self, first_bytes: bytes) -> None:
        size = _INT32.unpack(first_bytes)[0]
        allowed = self._max_response_bytes
        if _SMALLEST_RESPONSE <= size <= allowed:
            return
        if name := looks_like(first_bytes):
            raise Refusal(CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
        if size > allowed:
            raise Refusal(CloseReason.ANSWER_TOO_LARGE, f"{size} bytes announced, {allowed} allowed")
        raise MalformedMessage(f"a length prefix of {size}")

    def _unexpected(self, first_bytes: bytes, correlation_id: int) -> Refusal:
        if name := looks_like(first_bytes):
            return Refusal(CloseReason.ANSWER_NOT_KAFKA, f"looks like {name}")
        due = "none"
        if self._in_flight:
            due = f"{self._in_flight[0].plan.name} {self._in_flight[0].correlation_id}"
        return Refusal(CloseReason.ANSWER_UNEXPECTED, f"correlation id {correlation_id}, {due} is due")

    # ---------------------------------------------------------------- decisions

    def _ask_about_response(self, plan: Plan, head: bytes, after: list[Action]) -> Passing:
        kind = DecisionKind.API_VERSIONS if plan.api_key == API_VERSIONS else DecisionKind.ADDRESSES
        self._response_ticket = self._next_ticket()
        after.append(DecisionRequest(self._response_ticket, kind, _NODE, plan.api_key, plan.api_version, head))
        return _NOTHING

    def _want_more(self, head_bytes: int) -> None:
        """Wait until `head_bytes` of the next response are here, or all of it: so much is needed to decide about it."""
        frame_bytes = _INT32.unpack_from(self._responses, 0)[0] + 4
        if frame_bytes > self._max_gathered_bytes:
            name = self._in_flight[0].plan.name
            detail = f"{name}: {frame_bytes} bytes announced, {self._max_gathered_bytes} can be held for its addresses"
            raise Refusal(CloseReason.ANSWER_TOO_LARGE, detail)
        self._head_bytes = min(head_bytes, frame_bytes)

    def _gather_response(self, data: bytes) -> bool:
        """Store `data` and return True while more of the next response is needed; else put its parts together."""
        self._gathered_response.append(data)
        if len(self._responses) + sum(map(len, self._gathered_response)) < self._head_bytes:
            return True
        self._responses = b"".join((self._responses, *self._gathered_response))
        self._gathered_response = []
        return False

    def _collect(self, request: Request, buf: bytes, at: int, after: list[Action]) -> int:
        """Take the part that is here of a response that is collected whole; return where that part ends."""
        if not self._to_collect:
            self._to_collect = (
                self._token_bytes(buf, at) if request.plan is SASL_TOKEN else self._response_bytes(buf, at)
            )
            if self._to_collect + sum(map(len, self._own_responses)) > MAX_HELD_BYTES:
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
        if not request.is_own_request:
            self._held_response = frame
            self._response_ticket = self._next_ticket()
            assert plan.asked is not None
            ask = DecisionRequest(self._response_ticket, plan.asked, _NODE, plan.api_key, plan.api_version, frame)
            ask.note = request.note
            after.append(ask)
            return
        self._no_longer_await(request, 1)
        self._own_responses.append(frame)

    def _send_decided_response(self, decision: Decision, actions: list[Action], now_ms: int) -> None:
        """Send the part of a response that was decided about, with its splices; the rest follows as it comes."""
        if self._held_response:
            head, self._held_response = self._held_response, b""
            frame_bytes, rest = len(head), self._responses
        else:
            frame_bytes = _INT32.unpack_from(self._responses, 0)[0] + 4
            most = self._head_bytes if decision.rest is None else decision.rest.offset
            head = self._responses[: min(frame_bytes, most)]
            rest = self._responses[len(head) :]
        request = self._in_flight[0]
        after: list[Action] = []
        _, throttle = self._pass_response(request, head, 0, decision.throttle_at, frame_bytes, len(head), now_ms, after)
        if self._held_since_ms is not None:
            self._held_decision = decision
            self._held_response = head if rest is self._responses else b""
            actions += after
            return
        self._held_decision, self._head_bytes = None, MAX_HEAD_BYTES
        splices: Sequence[Splice] = decision.splices
        if throttle:
            splices = sorted((*splices, *throttle), key=lambda splice: splice.start)
        pieces = splice_frame(head, frame_bytes - 4, splices)
        self._written(request.use, sum(map(len, pieces)))
        actions.append(Send(_CLIENT, pieces))
        actions += after
        if decision.rest is None:
            self._response_left = frame_bytes - len(head)
        else:
            self._streamed = _StreamedResponse(decision.rest, frame_bytes, len(head), replace(request))
        self._responses = rest

    # -------------------------------------------------- responses of the proxy

    def _send_own_responses(self, actions: list[Action], now_ms: int) -> None:
        """Send the proxy's own responses whose turn it is. Something must be in flight."""
        first = self._in_flight[0]
        if (first.response is None and first.plan is not SASL_TOKEN) or self._amid_response:
            return
        after: list[Action] = []
        if first.plan is SASL_TOKEN and self._response_ticket == NO_TICKET:
            self._forget_unanswered_tokens()
        if responses := self._pass_own_responses(now_ms, after):
            actions.append(Send(_CLIENT, responses))
        actions += after

    def _pass_own_responses(self, now_ms: int, after: list[Action]) -> list[Piece]:
        """Take the proxy's own responses that come before the node's next one off the queue, and return them."""
        responses: list[Piece] = []
        while self._in_flight and (response := self._in_flight[0].response) is not None:
            request = self._in_flight[0]
            if not request.timed:
                self._charge_time(request, len(response) - 4, now_ms, after)
            if self._delays and self._holds(request, now_ms, after):
                break
            self._no_longer_await(request, 1)
            self._count_responses(1, len(response))
            self._going = request.use
            self._written(request.use, len(response))
            left_ms = max(request.muted_until_ms, self._answered_until_ms) - now_ms
            if self._delays:
                left_ms = 0 if request.plan.client_waits else self._held_ms
            at = request.plan.throttle_at
            if left_ms > 0 and at >= 0:
                response = response[:at] + int32(left_ms) + response[at + 4 :]
            responses.append(response)
        return responses

    # ----------------------------------------------------------- throttle times

    def _charge_time(self, request: Request, response_bytes: int, now_ms: int, after: list[Action]) -> int:
        """Charge what the request cost the node, or would have, if that is measured; return the throttle time in ms.

        The client is muted for that time, and all responses report it until it is over.
        """
        request.timed = True
        client_sensors = request.client_sensors
        if client_sensors is None or client_sensors.costs is None:
            self._model_time(request, 1, response_bytes)
            return 0
        if request.response is None:
            throttle_time_ms = self._times.charge(request, client_sensors, response_bytes, now_ms, self._now_us)
        else:
            throttle_time_ms = self._times.charge_own(request, client_sensors, response_bytes, now_ms, self._now_us)
        if throttle_time_ms:
            self._mute_until(now_ms, throttle_time_ms, QuotaType.REQUEST, request.client_id, after)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + throttle_time_ms)
        return throttle_time_ms

    def _charge_fetch(self, request: Request, value: int, now_ms: int, after: list[Action]) -> None:
        """Charge the response of a Fetch or ShareFetch: first its time, then its size as a broker counts it.

        `value` is the size without length prefix, header tags and, if the response is here whole, NodeEndpoints. A
        response that goes out although it exceeds the quota is charged for good.
        """
        request.charged = True
        client_sensors = request.client_sensors
        if client_sensors is None:
            return
        over_time = not request.timed and self._charge_time(request, value, now_ms, after) > 0
        throttle_time_ms = self._charge_bytes(request, client_sensors.fetch, value, over_time, now_ms)
        if not request.as_empty_fetch:
            self._used(request.use, value)
            if client_sensors.shadow_fetch is not None:
                self._charge_shadow_fetch(client_sensors.shadow_fetch, request.use, value, now_ms)
        if throttle_time_ms:
            used = 0 if request.as_empty_fetch else value
            self._mute_until(now_ms, throttle_time_ms, QuotaType.FETCH, request.client_id, after, used)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + throttle_time_ms)

    def _charge_bytes(self, request: Request, sensor: int | None, value: int, over_time: bool, now_ms: int) -> int:
        """Charge the bytes that were fetched; return the throttle time in ms.

        As in a broker, a client that is over its quota of request time or of bytes gets no data, and is charged none.
        """
        sensors, may_be_emptied = self._quota_manager.sensors, request.incremental is not None
        throttle_time_ms = 0
        if sensor is not None:
            with suppress(StaleSensor):
                charge = sensors.charge_if_within if may_be_emptied else self._charge
                throttle_time_ms = charge(sensor, value, now_ms)
                if may_be_emptied and over_time and not throttle_time_ms:
                    sensors.give_back(sensor, value, now_ms)
        request.as_empty_fetch = may_be_emptied and (over_time or throttle_time_ms > 0)
        return throttle_time_ms

    def _charge_shadow_fetch(self, sensor: int, use: UsageCounter | None, value: int, now_ms: int) -> None:
        """Charge the response of a Fetch to a shadow quota, if its sensor still exists."""
        with suppress(StaleSensor):
            reported_ms = self._shadows.charge(sensor, value, now_ms)
            if reported_ms and use is not None:
                use.note_shadow(reported_ms, self._now_us)

    def _throttle_splices(
        self, request: Request, throttle_at: int, node_ms: int, now_ms: int, after: list[Action]
    ) -> Sequence[Splice]:
        """Have the response report the larger throttle time, the proxy's or the node's; the client is muted for it."""
        if self._delays:
            return self._delayed_splices(request, throttle_at, node_ms, now_ms, after)
        own_ms = max(request.muted_until_ms, self._answered_until_ms) - now_ms
        if own_ms <= 0 and node_ms <= 0:
            return ()
        if node_ms > own_ms:
            self._counters.throttles_by_node += 1
            self._mute_until(now_ms, node_ms, None, request.client_id, after)
            self._answered_until_ms = max(self._answered_until_ms, now_ms + node_ms)
            return ()
        if node_ms == own_ms:
            return ()
        return (Splice(throttle_at, throttle_at + 4, int32(own_ms)),)

    # ---------------------------------------------------- empty Fetch responses

    def _withhold(
        self, request: Request, buf: bytes, at: int, frame_bytes: int, body_at: int, now_ms: int, after: list[Action]
    ) -> Passing:
        """Drop the response to a Fetch over quota, however large, and send an empty one in its place."""
        plan = request.plan
        if frame_bytes < body_at + decisive_bytes(plan.api_version):
            return _too_short(plan, frame_bytes)
        request.as_empty_fetch = False
        self._no_longer_await(request, 1)
        throttle_at, reported_ms = plan.throttle_at, 0
        if throttle_at >= 0:
            reported_ms = _INT32.unpack_from(buf, at + body_at)[0]
            if splices := self._throttle_splices(request, throttle_at, reported_ms, now_ms, after):
                reported_ms = _INT32.unpack(splices[0].data)[0]
        head = memoryview(buf)[at : at + body_at + decisive_bytes(plan.api_version)]
        incremental = request.incremental is True
        self._instead = empty_fetch_response(head, body_at, plan.api_version, incremental, reported_ms)
        self._to_drop = frame_bytes
        self._counters.withheld_bytes += frame_bytes
        self._count_responses(1, len(self._instead))
        self._going = request.use
        self._written(request.use, len(self._instead))
        return _NOTHING

    def _drop(self, pieces: list[Piece], at: int, end: int) -> int:
        """Drop the part that is here of a response that was replaced by an empty one; return where that part ends."""
        if self._instead:
            pieces.append(self._instead)
            self._instead = b""
        step = min(self._to_drop, end - at)
        self._to_drop -= step
        return at + step

    # ------------------------------------------------------------------- delayed

    def _holds(self, request: Request, now_ms: int, after: list[Action]) -> bool:
        """Whether the response to the oldest request is delayed because a throttle is not over.

        When it is over, `_held_ms` is how long the response was delayed.
        """
        until_ms = max(request.muted_until_ms, self._answered_until_ms)
        if request.plan.asked is DecisionKind.SASL:
            until_ms = 0
        if until_ms > now_ms and self._mute & THROTTLED:
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
        """The splice for the throttle time of a response that may have been delayed.

        A client that waits for this time itself gets only what is left of the node's throttle after the delay. Other
        clients get how long they were throttled.
        """
        left_ms = node_ms - self._held_ms
        if left_ms > 0:
            self._counters.throttles_by_node += 1
            self._mute_until(now_ms, left_ms, None, request.client_id, after)
        reported_ms = max(left_ms, 0) if request.plan.client_waits else max(self._held_ms, node_ms)
        if reported_ms == node_ms or (not self._held_ms and node_ms <= 0):
            return ()
        return (Splice(throttle_at, throttle_at + 4, int32(reported_ms)),)

    def _let_go(self, actions: list[Action]) -> None:
        """The connection ends: send what was delayed at once, with what is left of the throttle."""
        now_ms, decision = self._now_us // 1000, self._held_decision
        self._delays, self._held_since_ms, self._held_decision = False, None, None
        with suppress(ProtocolError):
            if decision is not None:
                self._send_decided_response(decision, actions, now_ms)
            self._take_responses(actions, now_ms, 0)
            if self._in_flight:
                self._send_own_responses(actions, now_ms)


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


def _too_short(plan: Plan, frame_bytes: int) -> Passing:
    raise MalformedMessage(f"{plan.name} v{plan.api_version}: {frame_bytes} bytes do not hold what they announce")
