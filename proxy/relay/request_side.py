"""The request side of a relay: reads what the client sends, charges it, asks for decisions, sends it on to the node."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from struct import Struct

from protocol.api_key import FETCH, PRODUCE
from protocol.errors import TruncatedMessage
from protocol.frames import HEAD, INT32_MAX, LIMITS_BYTES, MAX_ASKED_BYTES, MAX_HEAD_BYTES, fetch_clamp, limits_clamp
from protocol.messages.api_versions import unsupported_version_response
from protocol.splices import Splice, splice_frame
from proxy.relay.actions import (
    Action,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    OpenUpstream,
    Pause,
    RelayLimits,
    Resume,
    Send,
    WakeAt,
)
from proxy.relay.authentication import Authentication
from proxy.relay.carriage import (
    ASKING,
    ASKING_FIRST,
    AUTHENTICATING,
    FETCHING,
    IN_FLIGHT_FULL,
    MAX_CLIENT_IDS,
    NO_ROOM,
    THROTTLED,
    UNCONNECTED,
    Bind,
    Piece,
    UsageOf,
    add_run,
    forgotten_for,
    send_through,
)
from proxy.relay.plans import SASL_TOKEN, UNKNOWN_API_VERSIONS, Plan, is_strict
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.repeat_pattern import LimitedPattern, RepeatPattern, pattern_of
from proxy.relay.request import LONG_CLIENT_ID_BYTES, Refusal, Request, read_request
from proxy.relay.use import UsageCounter
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager, ClientSensors
from quotas.entities import QuotaType

_CLIENT = Side.CLIENT
_NODE = Side.NODE
_INT32 = Struct(">i")
_MAX_LOOKS = 4 * MAX_CLIENT_IDS
_ALL_ANSWERED = IN_FLIGHT_FULL | FETCHING | AUTHENTICATING | NO_ROOM
"""The reasons that end at the latest when nothing is in flight."""

_OPEN_UPSTREAM = OpenUpstream()
_PAUSE = Pause(_CLIENT)
_RESUME = Resume(_CLIENT)


class RequestSide(Authentication):
    """The direction from the client to the node."""

    __slots__ = (
        "_asked_plan",
        "_buckets",
        "_client_paused",
        "_decided",
        "_decided_ms",
        "_gathered",
        "_half",
        "_looked_at",
        "_missing",
        "_node_blocked",
        "_opening",
        "_own_requests",
        "_pattern",
        "_read_before",
        "_request_left",
        "_requests",
        "_wanted_version",
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
        self._buckets = quota_manager.buckets
        self._pattern: RepeatPattern | None = None
        self._requests = b""
        self._gathered: bytes | bytearray = b""
        """What has come after `_requests` of a request that is collected whole."""
        self._missing = 0
        """How many bytes of it are still to come. It is put together once, when it is complete, not with each piece."""
        self._wanted_version = 0
        """The version of the quotas that made the relay collect it."""
        self._half: Request | None = None
        """The incomplete request: `_request_left` bytes are still to come, and the last one counts and charges it."""
        self._request_left = 0
        self._opening = False
        self._client_paused = False
        self._looked_at: set[tuple[QuotaType, int | None]] = set()
        """The sensors that a first limited request was checked with: their entity owed nothing, or has waited."""
        self._node_blocked = False
        self._own_requests = 0
        self._decided: Decision | None = None
        self._decided_ms = 0
        self._read_before: Request | None = None
        self._asked_plan: Plan | None = None
        """The plan of the latest request that a decision was asked for."""

    def _take_requests(self, actions: list[Action], now_ms: int, at: int = 0) -> None:
        """Send on all that may be sent: whole frames, and the beginning of a frame if its decisive fields are in it.

        `at` is where the next frame begins; everything before it is taken already. `run` is where the bytes begin that
        go out unchanged.
        """
        buf = self._requests
        end = len(buf)
        run = 0
        quick = True
        pieces: list[Piece] = []
        after: list[Action] = []
        read_before, self._read_before = self._read_before, None
        try:
            while True:
                if self._request_left:
                    at = self._go_on(at, end, now_ms, after)
                if at == end or (self._mute & ~UNCONNECTED and not self._passes_mute(buf, at)):
                    break
                if quick and not self._mute and self._pattern is not None:
                    at, quick = self._take_repeated(buf, at, now_ms)
                    if at == end:
                        break
                if self._bare:
                    request = self._read_next(buf, at, end)
                elif read_before is not None and not at:
                    request = read_before
                else:
                    request = read_request(buf, at, end, self._max_frame_bytes)
                if request is None:
                    break
                if self._mute & UNCONNECTED:
                    self._open_upstream(after)
                    self._keep(request, at)
                    break
                plan = request.plan
                frame_bytes = request.size_bytes + 4
                if self._mute and plan.asked is not DecisionKind.SASL:
                    break
                if self._decided is not None:
                    add_run(pieces, buf, run, at)
                    run = at + frame_bytes
                    pieces += self._carry_out(self._decided, request, memoryview(buf)[at:run], now_ms, after)
                    self._read(request.use, frame_bytes)
                    at = run
                    continue
                if plan.asked is DecisionKind.SASL:
                    if not self._may_authenticate and self._holds_back(request, now_ms, after):
                        break
                    self._bound_login()
                    self._ask_about_request(request, buf, at, after)
                    break
                if self._unproven or self._exchange is not None:
                    uncharged = self._passes_uncharged(request, after)
                    if uncharged is None:
                        break
                    if uncharged and plan is not UNKNOWN_API_VERSIONS:
                        self._await_response(request)
                        at = self._pass(request, at, end, now_ms, after)
                        continue
                if plan is UNKNOWN_API_VERSIONS:
                    if at + frame_bytes > end:
                        self._want_whole(at + frame_bytes - end)
                    if at + frame_bytes > end or self._client_blocked:
                        break
                    if not self._unproven and self._holds_back(request, now_ms, after):
                        break
                    self._decided = Decision(response=unsupported_version_response(request.correlation_id))
                    continue
                client_sensors = self._client_sensors_by_id.get(request.client_id)
                if client_sensors is None or (
                    client_sensors.version != self._quota_manager.version
                    and not self._quota_manager.renews(client_sensors)
                ):
                    client_sensors = self._bound(request.client_id, now_ms)
                request.client_sensors = client_sensors
                if client_sensors.limits and not self._may_begin(request, client_sensors, buf, at, end, now_ms, after):
                    break
                if plan.asked is not None:
                    if _is_asked(request, client_sensors):
                        self._ask_about_request(request, buf, at, after)
                        break
                    self._own_responses = []
                splice = self._take(request, client_sensors, buf, now_ms)
                if splice is None:
                    if not self._mute & FETCHING and request.incremental is None:
                        self._pattern = pattern_of(request, client_sensors, buf, at)
                else:
                    add_run(pieces, buf, run, splice.start)
                    pieces.append(splice.data)
                    run = splice.end
                at = self._pass(request, at, end, now_ms, after)
        finally:
            if at:
                self._requests = send_through(actions, _NODE, pieces, buf, run, at)
            actions += after

    def _want_whole(self, missing: int) -> None:
        """Collect the next request whole: `missing` bytes of it are still to come."""
        self._missing, self._gathered = missing, bytearray()
        self._wanted_version = self._quota_manager.version

    def _put_together(self) -> None:
        """Put together what has come of a request that was collected, so that it is looked at."""
        self._requests += self._gathered
        self._missing, self._gathered = 0, b""

    def _keep(self, request: Request, at: int) -> None:
        """Remember the request that was read at `at`: its bytes move to the beginning, and need not be read again."""
        request.body_at -= at
        request.decided_at -= at
        self._read_before = request

    def _become_unlike(self) -> None:
        self._pattern = None

    def _take(self, request: Request, client_sensors: ClientSensors, buf: bytes, now_ms: int) -> Splice | None:
        """Wait for the response of a request that is sent on; return the splice that limits the bytes of a Fetch."""
        plan = request.plan
        if request.answered:
            self._await_response(request)
        if plan.fetches and client_sensors.limits_fetches:
            if plan.api_key == FETCH:
                return fetch_clamp(buf, request.body_at, plan.api_version, client_sensors.fetch_ceiling_bytes)
            return limits_clamp(buf, request.decided_at - LIMITS_BYTES, client_sensors.fetch_ceiling_bytes)
        if plan.asked is DecisionKind.MUTATION and client_sensors.mutation is not None:
            self._buckets.spend_permissively(client_sensors.mutation, 0, now_ms)
        return None

    def _pass(self, request: Request, at: int, end: int, now_ms: int, after: list[Action]) -> int:
        """Let the part of a request that is here pass to the node; return where that part ends."""
        frame_end = at + 4 + request.size_bytes
        if frame_end <= end:
            self._came_whole(request, now_ms, after)
        else:
            self._half, self._request_left = request, frame_end - end
            if self._usage_of is not None:
                request.use = self._client(request.client_id).of(request.plan.use)
            frame_end = end
        self._coming = request.use
        self._read(request.use, frame_end - at)
        return frame_end

    def _go_on(self, at: int, end: int, now_ms: int, after: list[Action]) -> int:
        """Let more of the incomplete request pass; return where that part ends."""
        step = min(self._request_left, end - at)
        self._request_left -= step
        self._read(self._coming, step)
        if not self._request_left:
            request = self._take_half(now_ms)
            if request.reserved:
                self._times.reserve_anew(request)
            if self._waiting == 1 and request.answered:
                self._times.sent(self._now_us)
            self._came_whole(request, now_ms, after)
        return at + step

    def _take_half(self, now_ms: int) -> Request:
        """Take the request that was incomplete; for a Produce, look up the sensors that now measure its client."""
        request, self._half = self._half, None
        assert request is not None
        if request.plan.api_key == PRODUCE:
            request.client_sensors = self._client_sensors(request.client_id, now_ms)
        return request

    def _came_whole(self, request: Request, now_ms: int, after: list[Action]) -> None:
        """Count and charge a request whose last byte is here; a broker charges at that moment, too."""
        size_bytes = request.size_bytes
        self._count_requests(request, 1, size_bytes + 4)
        if request.plan.api_key == PRODUCE and (throttle_time_ms := self._charge_produce(request, size_bytes, now_ms)):
            self._mute_until(now_ms, throttle_time_ms, QuotaType.PRODUCE, request.client_id, after, size_bytes)
            if self._held_since_ms is not None:  # a response before it waits for the end of a shorter throttle
                after.append(WakeAt(min(self._held_until_ms, self._muted_until_ms)))
        if request.answered:
            request.muted_until_ms = self._muted_until_ms
            if size_bytes > LONG_CLIENT_ID_BYTES and len(request.client_id) > LONG_CLIENT_ID_BYTES:
                self._keep_for(request)
        elif request.client_sensors is not None and request.client_sensors.costs is not None:
            self._counters.exempt_us += request.client_sensors.costs.us(request.plan.cost_kind, size_bytes)

    def _charge_produce(self, request: Request, size_bytes: int, now_ms: int) -> int:
        """Charge `size_bytes` of a Produce; return the throttle time in ms."""
        client_sensors = request.client_sensors
        assert client_sensors is not None
        self._used(request.use, size_bytes)
        if client_sensors.shadow_produce is not None:
            reported_ms = self._shadows.charge(client_sensors.shadow_produce, size_bytes, now_ms)
            if reported_ms and request.use is not None:
                request.use.note_shadow(reported_ms, self._now_us)
        return 0 if client_sensors.produce is None else self._charge(client_sensors.produce, size_bytes, now_ms)

    def _abandon_half(self, now_ms: int) -> None:
        """No more bytes of the incomplete request will come: count and charge those that have come."""
        if self._half is None:
            return
        request = self._take_half(now_ms)
        came_bytes = request.size_bytes - self._request_left
        self._count_requests(request, 1, came_bytes + 4)
        if request.plan.api_key == PRODUCE:
            self._charge_produce(request, came_bytes, now_ms)

    def _may_begin(
        self,
        request: Request,
        client_sensors: ClientSensors,
        buf: bytes,
        at: int,
        end: int,
        now_ms: int,
        after: list[Action],
    ) -> bool:
        """Whether a request of a client with a quota may go on; False: it must wait, or more of it must come first."""
        if self._waits_first(request, client_sensors, now_ms, after):
            return False
        limits_fetches = request.plan.fetches and client_sensors.limits_fetches
        may_be_emptied = self._withholds and (limits_fetches or client_sensors.limits_requests)
        if may_be_emptied and not _note_session(request, buf, at, end):
            return False
        if limits_fetches:
            self._mute |= FETCHING
        return True

    def _holds_back(self, request: Request, now_ms: int, after: list[Action]) -> bool:
        """Whether a request that the proxy responds to, or that the node may find out of place, must wait."""
        client_sensors = self._client_sensors(request.client_id, now_ms)
        return client_sensors.limits and self._waits_first(request, client_sensors, now_ms, after)

    def _waits_first(self, request: Request, client_sensors: ClientSensors, now_ms: int, after: list[Action]) -> bool:
        """Whether a limited request waits: for what its entity owes, or for responses that make room for it."""
        if self._must_pay_first(request, client_sensors, now_ms, after):
            return True
        if not (self._waiting and client_sensors.limits_requests and request.answered):
            return False
        if self._times.allowed(request, client_sensors, now_ms):
            return False
        self._mute |= NO_ROOM
        return True

    def _must_pay_first(
        self, request: Request, client_sensors: ClientSensors, now_ms: int, after: list[Action]
    ) -> bool:
        """Whether the first request of a limited kind on this connection waits for what its entity owes.

        Without this wait a client could avoid a throttle by reconnecting. Strict mutations do not wait: they are
        refused when their quota is exceeded.
        """
        plan, sensors = request.plan, self._quota_manager.sensors
        waits = False
        if plan.api_key == PRODUCE and client_sensors.limits_produces:
            waits = self._owes(client_sensors.produce, QuotaType.PRODUCE, sensors.owed_ms, request, now_ms, after)
        elif plan.fetches and client_sensors.limits_fetches:
            waits = self._owes(client_sensors.fetch, QuotaType.FETCH, sensors.owed_ms, request, now_ms, after)
        elif plan.asked is DecisionKind.MUTATION and client_sensors.limits_mutations and not is_strict(plan):
            owed_ms = self._buckets.throttle_ms
            waits = self._owes(client_sensors.mutation, QuotaType.CONTROLLER_MUTATION, owed_ms, request, now_ms, after)
        if client_sensors.limits_requests and request.answered:
            owed_ms = self._quota_manager.request_sensors.owed_ms
            waits |= self._owes(client_sensors.request, QuotaType.REQUEST, owed_ms, request, now_ms, after)
        return waits

    def _owes(
        self,
        sensor: int | None,
        quota_type: QuotaType,
        owed_ms: Callable[[int, int], int],
        request: Request,
        now_ms: int,
        after: list[Action],
    ) -> bool:
        """Whether the entity owes something when a sensor is first checked on this connection. Mutes the client."""
        if sensor is None or (quota_type, sensor) in self._looked_at:
            return False
        self._note_looks((quota_type, sensor))
        throttle_time_ms = owed_ms(sensor, now_ms)
        if throttle_time_ms:
            self._mute_until(now_ms, throttle_time_ms, quota_type, request.client_id, after)
        return throttle_time_ms > 0

    def _note_looks(self, *looks: tuple[QuotaType, int | None]) -> None:
        """On this connection, no request waits any more for what is owed on these sensors."""
        if len(self._looked_at) + len(looks) > _MAX_LOOKS:
            self._looked_at.clear()
        self._looked_at.update(looks)

    def _take_repeated(self, buf: bytes, at: int, now_ms: int) -> tuple[int, bool]:
        """Take the whole requests at `at` that are like the one before; return where they end.

        A request that may throttle, may fill the queue or needs a decision is left to `_take_requests`. The second
        value is False when a throttle is near: looking at the same bytes again would give the same result.
        """
        pattern = self._pattern
        if pattern is None:
            return at, True
        if pattern.version != self._quota_manager.version and not self._goes_on(pattern, now_ms):
            return at, True
        while True:
            room = self._max_in_flight - self._waiting - 1
            first_id, count, end = pattern.run(buf, at, room, self._max_frame_bytes)
            if not count:
                return at, True
            if not self._take_run(pattern, first_id, count, end - at, now_ms):
                return at, False
            if pattern.shadow is not None:
                self._charge_shadow_run(pattern.shadow, pattern.request.use, buf, at, end, count, now_ms)
            at = end
            if at == len(buf):
                return at, True

    def _goes_on(self, pattern: RepeatPattern, now_ms: int) -> bool:
        """Whether requests that fit the pattern may be taken; with a limit of request time, also set how many."""
        client_sensors = pattern.client_sensors
        if not self._quota_manager.renews(client_sensors):
            return False
        if isinstance(pattern, LimitedPattern):
            pattern.allowed = self._times.allowed(pattern.request, client_sensors, now_ms)
            return pattern.allowed > 0
        pattern.version = client_sensors.version
        return True

    def _take_run(self, pattern: RepeatPattern, first_id: int, count: int, frames_bytes: int, now_ms: int) -> bool:
        """Charge and count `count` requests; if one of them may throttle, do nothing and return False."""
        request, client_sensors = pattern.request, pattern.client_sensors
        api_key = request.plan.api_key
        sizes = frames_bytes - 4 * count
        sensor = client_sensors.produce if api_key == PRODUCE else None
        if sensor is not None and not self._charge_unthrottled(sensor, sizes, count, now_ms):
            return False
        self._count_requests(request, count, frames_bytes)
        if (use := request.use) is not None:
            use.in_bytes += frames_bytes
            if api_key == PRODUCE:
                use.used += sizes
        if not request.answered:
            if client_sensors.costs is not None:
                self._counters.exempt_us += client_sensors.costs.us(request.plan.cost_kind, sizes, count)
            return True
        if self._timed and not self._waiting:
            self._times.sent(self._now_us)
        self._waiting += count
        if not request.waiting:
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
            pattern.request = replace(
                request,
                correlation_id=first_id,
                muted_until_ms=self._muted_until_ms,
                charged=False,
                timed=False,
                waiting=count,
                waiting_bytes=sizes,
                reserved=0.0,
            )
            self._in_flight.append(pattern.request)
        if self._timed:
            self._times.reserve(pattern.request, count, sizes)
        return True

    def _charge_shadow_run(
        self, sensor: int, use: UsageCounter | None, buf: bytes, at: int, end: int, count: int, now_ms: int
    ) -> None:
        """Charge the `count` requests between `at` and `end` to a shadow quota, which throttles nobody."""
        if self._shadows.charge_unthrottled(sensor, end - at - 4 * count, count, now_ms):
            return
        while at < end:
            size_bytes = _INT32.unpack_from(buf, at)[0]
            reported_ms = self._shadows.charge(sensor, size_bytes, now_ms)
            if reported_ms and use is not None:
                use.note_shadow(reported_ms, self._now_us)
            at += 4 + size_bytes

    def _open_upstream(self, after: list[Action]) -> None:
        if not self._opening:
            self._opening = True
            after.append(_OPEN_UPSTREAM)

    def _client_sensors(self, client_id: bytes, now_ms: int) -> ClientSensors:
        """The sensors of a client-id, looked up now if none are known or they are out of date."""
        client_sensors = self._client_sensors_by_id.get(client_id)
        if client_sensors is None or not self._quota_manager.renews(client_sensors):
            client_sensors = self._bound(client_id, now_ms)
        return client_sensors

    def _bound(self, client_id: bytes, now_ms: int) -> ClientSensors:
        """Look up the sensors of a client-id that has none yet, or whose quotas have changed.

        When the quotas of a client change on an open connection, the client does not wait for what it owes: that wait
        is for new connections.
        """
        is_known = client_id in self._client_sensors_by_id
        if len(self._client_sensors_by_id) >= MAX_CLIENT_IDS or len(client_id) > LONG_CLIENT_ID_BYTES:
            for forgotten in forgotten_for(client_id, self._client_sensors_by_id):
                del self._client_sensors_by_id[forgotten]
        client_sensors = self._client_sensors_by_id[client_id] = self._bind(client_id, now_ms)
        if is_known:
            self._note_looks(
                (QuotaType.PRODUCE, client_sensors.produce),
                (QuotaType.FETCH, client_sensors.fetch),
                (QuotaType.REQUEST, client_sensors.request),
                (QuotaType.CONTROLLER_MUTATION, client_sensors.mutation),
            )
        if client_sensors.costs is not None and not self._timed:
            self._timed = True
            self._times.sent(self._now_us)
            self._times.held_up()
        return client_sensors

    def _take_up_again(self) -> bool:
        """End the reasons that depend on what is in flight and are over; return whether there were any."""
        over = ASKING_FIRST if len(self._own_responses) == self._own_requests else 0
        if not self._waiting:
            self._kept_bytes = 0
            over |= _ALL_ANSWERED
        elif self._waiting < self._max_in_flight and self._kept_bytes <= self._max_kept_bytes:
            over |= IN_FLIGHT_FULL
        over &= self._mute
        self._mute &= ~over
        return over != 0

    def _ask_about_request(self, request: Request, buf: bytes, at: int, after: list[Action]) -> None:
        """Ask for a decision about the request at `at` once it is here whole."""
        plan, end = request.plan, at + 4 + request.size_bytes
        if request.size_bytes > MAX_ASKED_BYTES:
            detail = f"{plan.name}: {request.size_bytes} bytes announced, {MAX_ASKED_BYTES} allowed"
            raise Refusal(CloseReason.REQUEST_TOO_LARGE, detail)
        if end > len(buf):
            self._want_whole(end - len(buf))
        elif not self._client_blocked:
            assert plan.asked is not None
            self._mute |= ASKING
            self._asked_plan = plan
            self._request_ticket = self._next_ticket()
            ask = DecisionRequest(
                self._request_ticket, plan.asked, _CLIENT, plan.api_key, plan.api_version, buf[at:end]
            )
            ask.client_id, ask.body_at = request.client_id, request.body_at - at
            ask.own_responses, self._own_responses = tuple(self._own_responses), []
            after.append(ask)

    def _send_own_requests(self, frames: Sequence[bytes], actions: list[Action]) -> None:
        """Send the proxy's own requests. When their responses are here, the same decision is asked for again.

        No request is taken before. The decision is asked for only when it can be carried out: a client that may
        disconnect meanwhile must not be charged.
        """
        self._mute = self._mute & ~ASKING | ASKING_FIRST
        for frame in frames:
            request = read_request(frame, 0, len(frame), INT32_MAX)
            assert request is not None
            request.held = request.is_own_request = True
            self._await_response(request)
        self._own_requests = len(frames)
        actions.append(Send(_NODE, frames))

    def _carry_out(
        self, decision: Decision, request: Request, frame: memoryview, now_ms: int, after: list[Action]
    ) -> Sequence[Piece]:
        """Carry out the decision about a request; return the pieces of its frame that go to the node."""
        self._decided = None
        self._counters.mutations_refused += decision.refused
        throttle_time_ms = self._decided_ms + decision.throttle_time_ms - now_ms
        if throttle_time_ms > 0:
            self._mute_until(now_ms, throttle_time_ms, QuotaType.CONTROLLER_MUTATION, request.client_id, after)
        if decision.response is not None:
            self._response(request, decision.response)
            return ()
        self._count_requests(request, 1, request.size_bytes + 4)
        request.note, request.held = decision.note, decision.note is not None
        if request.plan.asked is DecisionKind.SASL:
            self._sent_sasl(request)
            if not self._unproven and request.plan is not SASL_TOKEN:
                request.client_sensors = self._client_sensors(request.client_id, now_ms)
            self._await_response(request)
        else:
            request.client_sensors = self._client_sensors_by_id.get(request.client_id)
            request.muted_until_ms = self._muted_until_ms
            self._await_response(request)
            self._keep_for(request)
        return splice_frame(frame, request.size_bytes, decision.splices)

    def _response(self, request: Request, response: bytes) -> None:
        """Respond to a request without the node, when its turn comes."""
        self._count_requests(request, 1, request.size_bytes + 4)
        request.client_sensors = self._client_sensors_by_id.get(request.client_id)
        request.response = response
        request.muted_until_ms = self._muted_until_ms
        self._await_response(request)
        self._keep_for(request)

    def _settle_client(self, actions: list[Action]) -> None:
        """Pause or resume reading the client if that must change.

        A decision is quick, so reading goes on while one is due. Reading must also go on until a whole head is here,
        because only then the upstream connection is opened: nothing else would end that wait.
        """
        mute, pause = self._mute, self._node_blocked
        if (mute or self._client_blocked) and not (pause or self._request_left):
            waits = mute & ~(ASKING | ASKING_FIRST) and (self._opening or mute != UNCONNECTED)
            enough_bytes = HEAD.size if waits or self._client_blocked else MAX_HEAD_BYTES
            if waits and mute == THROTTLED and self._passes_mute(self._requests, 0) and not self._client_blocked:
                enough_bytes = 4 + MAX_ASKED_BYTES
            pause = len(self._requests) + len(self._gathered) >= enough_bytes
        if pause != self._client_paused:
            self._client_paused = pause
            actions.append(_PAUSE if pause else _RESUME)


def _note_session(request: Request, buf: bytes, at: int, end: int) -> bool:
    """Note whether a Fetch continues a session: its epoch is above 0. False while the epoch is not here yet."""
    epoch_at = request.plan.epoch_at
    if not epoch_at:
        request.incremental = None if epoch_at is None else False
        return True
    epoch_at += request.body_at
    frame_end = at + 4 + request.size_bytes
    if epoch_at + 4 > (end if end < frame_end else frame_end):
        if end >= frame_end:
            raise TruncatedMessage(epoch_at, 4, frame_end)
        return False
    request.incremental = _INT32.unpack_from(buf, epoch_at)[0] > 0
    return True


def _is_asked(request: Request, client_sensors: ClientSensors) -> bool:
    """Whether a request of ASKED_REQUESTS needs a decision; a shadow quota alone never has one refused for its size."""
    if request.plan.asked is not DecisionKind.MUTATION or client_sensors.limits_mutations:
        return True
    return client_sensors.shadow_mutation is not None and request.size_bytes <= MAX_ASKED_BYTES
