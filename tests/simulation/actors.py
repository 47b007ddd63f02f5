"""The peers of a relay: a client that carries out its steps, and a node that responds as its plans say."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tests.simulation import quota_calls, topics, wire
from tests.simulation.exchange import ForClient, Taken
from tests.simulation.model import Model
from tests.simulation.network import Endpoint, Events, Link
from tests.simulation.plan import (
    Burst,
    ConnectionPlan,
    Drain,
    Dribble,
    End,
    Raw,
    RequestPlan,
    ResponsePlan,
    Stall,
    Step,
    Wait,
)


class Client:
    """Writes what its steps say, and reads responses; an obedient one waits for throttle times."""

    def __init__(self, plan: ConnectionPlan, events: Events, link: Link, cluster: topics.Cluster) -> None:
        self.model: Model | None = None
        """Once it is let in."""
        self.plans_by_place: dict[int, RequestPlan] = {}
        """Where in the stream each request begins."""
        self.due = 0
        """How many responses are still to come."""
        self.responses = 0
        self.written_bytes = 0
        self.gone = ""
        self.left_unread = False
        self._events = events
        self._cluster = cluster
        self._obedient = plan.obedient
        self._depth = plan.depth
        self._steps: deque[Step] = deque(plan.steps)
        self._burst: deque[RequestPlan] = deque()
        self._dribble: deque[bytes] = deque()
        self._every_ms = 0
        self._pauses_until_ms = 0
        self._unread_bytes = 0
        self._draining = False
        self._wake: list[Callable[[], None] | None] | None = None
        self.endpoint = Endpoint(events, link, self._on_data, self._on_gone)

    def begin(self) -> None:
        """Take the first step."""
        self._go_on()

    def _go_on(self) -> None:
        while not self.gone:
            if self._events.now_ms < self._pauses_until_ms:
                self._wake_at(self._pauses_until_ms)
                return
            if self._dribble:
                self._send(self._dribble.popleft())
                self._pauses_until_ms = self._events.now_ms + self._every_ms
                continue
            if self._burst:
                if not self._write_some():
                    return
                continue
            if self._draining and self.due > 0:
                return
            self._draining = False
            if not self._steps:
                return
            self._take(self._steps.popleft())

    def _write_some(self) -> bool:
        """Write as many requests as may be in flight; whether any could be."""
        data = bytearray()
        while self._burst and self.due < self._depth:
            request = self._burst.popleft()
            self.plans_by_place[self.written_bytes + len(data)] = request
            data += self._frame(request)
        self._send(bytes(data))
        return bool(data)

    def _frame(self, request: RequestPlan) -> bytes:
        self.due += request.api_key != wire.PRODUCE or request.acks != 0
        return wire.request_frame(request, self._body(request))

    def _body(self, request: RequestPlan) -> bytes | None:
        if request.api_key in wire.MUTATIONS:
            return topics.request_body(request, self._cluster)
        return quota_calls.request_body(request) if request.api_key in wire.OWN_KEYS else None

    def _send(self, data: bytes) -> None:
        self.written_bytes += len(data)
        if data:
            self.endpoint.send(data)

    def _take(self, step: Step) -> None:
        match step:
            case Burst(requests):
                self._burst.extend(requests)
            case Dribble(request, pieces, every_ms):
                self.plans_by_place[self.written_bytes] = request
                frame = self._frame(request)
                part = -(-len(frame) // pieces)
                self._dribble.extend(frame[at : at + part] for at in range(0, len(frame), part))
                self._every_ms = every_ms
            case Raw():
                self._send(step.data)
            case Wait(ms):
                self._pauses_until_ms = self._events.now_ms + ms
            case Stall(ms):
                self.endpoint.stall(ms)
            case Drain():
                self._draining = True
            case End("close"):
                self.gone = "closed"
                self.left_unread = self.due > 0
                self.endpoint.close()
            case End("half_close"):
                self.endpoint.half_close()
            case End():
                self.gone = "reset"
                self.endpoint.reset()

    def _wake_at(self, at_ms: int) -> None:
        if self._wake is not None:
            self._events.cancel(self._wake)
        self._wake = self._events.at(at_ms, self._go_on)

    def _on_data(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        assert self.model is not None
        for_client = self.model.for_client
        while for_client and self._unread_bytes >= for_client[0].frame_bytes:
            self._unread_bytes -= for_client[0].frame_bytes
            self._read_response(for_client.popleft())
        self._go_on()

    def _read_response(self, response: ForClient) -> None:
        self.responses += 1
        self.due -= 1
        if self._obedient and response.throttle_ms > 0:
            self._pauses_until_ms = max(self._pauses_until_ms, self._events.now_ms + response.throttle_ms)

    def _on_gone(self, how: str) -> None:
        if not self.gone:
            self.gone = how
            self.endpoint.close()


class Node:
    """Responds to the requests that it has received whole, in order."""

    def __init__(
        self,
        plan: ConnectionPlan,
        events: Events,
        link: Link,
        model: Model,
        client: Client,
        around: wire.Surroundings,
        cluster: topics.Cluster,
    ) -> None:
        self.received_bytes = 0
        self.received = 0
        self.silent = ""
        """Why it sends no more responses."""
        self._events = events
        self._model = model
        self._client = client
        self._around = around
        self._cluster = cluster
        self._frame = bytearray()
        self._flush_ms = plan.flush_ms
        self._left = 0
        self._taken: Taken | None = None
        self._in_exchange = False
        self._response_ms = 0
        self._ready: list[wire.Response] = []
        self._flushing = False
        self.endpoint = Endpoint(events, link, self._on_data, self._on_gone)

    def babble(self) -> None:
        """Send bytes before any request."""
        self._write([wire.unasked_alert()])

    def _on_data(self, data: bytes) -> None:
        self.received_bytes += len(data)
        at = 0
        while at < len(data):
            if self._taken is None:
                self._taken = self._model.for_node.popleft()
                self._left = self._taken.sent_bytes or self._taken.head.frame_bytes
            step = min(len(data) - at, self._left)
            if self._taken.is_own_request or self._taken.head.about_topics:
                self._frame += data[at : at + step]
            self._left -= step
            at += step
            if not self._left:
                taken, self._taken = self._taken, None
                frame, self._frame = bytes(self._frame), bytearray()
                self._received(taken, frame)

    def _received(self, taken: Taken, frame: bytes) -> None:
        self.received += 1
        if self.silent or not taken.head.answered:
            return
        request = self._client.plans_by_place.get(taken.at)
        unknown = taken.head.about_credentials
        if request is None or unknown or (request.api_key != taken.head.api_key and not taken.is_own_request):
            self._hang_up()
            return
        plan = request.is_own_request if taken.is_own_request else request.response
        if taken.is_own_request and taken.head.api_key == wire.API_VERSIONS:
            plan = replace(plan, kind="right")
        if plan.kind == "close":
            self._hang_up()
            return
        if plan.kind == "never":
            self._fall_silent("never")
            return
        if plan.kind in ("cut_tail", "too_short") and taken.head.about_topics and taken.settlement is None:
            plan = replace(plan, kind="right")  # this would not be seen
        try:
            responses = [self._response_to(taken, frame, request, plan)]
        except topics.Unreadable:
            self._hang_up()
            return
        if plan.kind == "extra":
            responses.append(wire.extra_response())
        self._response_ms = max(self._response_ms, self._events.now_ms + plan.delay_ms)
        if request.token is not None and request.token.hangs_up:
            self._fall_silent("closed")
            self._events.at(self._response_ms + self._flush_ms + 1, self.endpoint.close)
        if any(response.reason for response in responses):
            self._fall_silent("wrong")
        self._events.at(self._response_ms, lambda: self._response(responses))

    def _response_to(self, taken: Taken, frame: bytes, request: RequestPlan, plan: ResponsePlan) -> wire.Response:
        """The response to a request. What it wants done to topics is done when it is here whole."""
        head = taken.head
        if taken.is_own_request and head.api_key == wire.API_VERSIONS:
            return wire.proof_response(head, through=not self._in_exchange)
        if taken.is_own_request:
            reported = self._cluster.reported(topics.read_own_request(frame, head.version))
            return wire.response(head, plan, self._around, topics.metadata_body(head.version, reported, plan))
        if request.token is not None:
            ongoing = request.token.outcome in ("begun", "ongoing", "unproven")
            self._in_exchange = ongoing and not request.token.over
            return wire.token_response(head, request.token.response, self._around)
        if not head.about_topics:
            return wire.response(head, plan, self._around)
        call = topics.read_call(frame, head.api_key, head.version, head.body_at)
        results = self._cluster.do(call, request)
        response = wire.response(head, plan, self._around, topics.response_body(call, plan, results))
        response.results = tuple(results)
        return response

    def _hang_up(self) -> None:
        self._fall_silent("closed")
        self._events.at(self._response_ms, self.endpoint.close)

    def _fall_silent(self, why: str) -> None:
        self.silent = why

    def _response(self, responses: list[wire.Response]) -> None:
        self._ready += responses
        if not self._flush_ms:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._events.at(self._events.now_ms + self._flush_ms, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        ready, self._ready = self._ready, []
        self._write(ready)

    def _write(self, responses: list[wire.Response]) -> None:
        if self.endpoint.closed or not responses:
            return
        for response in responses:
            self._model.node_writes(response)
        self.endpoint.send(b"".join(response.frame for response in responses))
        match responses[-1].ending:
            case "close":
                self.endpoint.close()
            case "reset":
                self.endpoint.reset_when_sent()

    def _on_gone(self, how: str) -> None:
        self.endpoint.close()
