"""The requests of one connection that wait for their responses: the client's and the proxy's."""

from collections import deque
from typing import Final

from kafka_throttle.proxy.relay.plans import SASL_TOKEN
from kafka_throttle.proxy.relay.request import Request
from kafka_throttle.proxy.relay.service_times import ServiceTimes
from kafka_throttle.proxy.relay.throttle_state import (
    ASKING_FIRST,
    AUTHENTICATING,
    FETCHING,
    IN_FLIGHT_FULL,
    NO_ROOM,
    ThrottleState,
)
from kafka_throttle.proxy.relay.turn import Turn

_ALL_ANSWERED: Final = IN_FLIGHT_FULL | FETCHING | AUTHENTICATING | NO_ROOM
"""The reasons to wait that end at the latest when nothing is in flight."""


class InFlight:
    """A queue, oldest first. One entry counts for a run of requests that are handled alike; see `Request`.

    Runs grow here (`add_run`) and shrink here (`done`), and nowhere else.

    - `waiting`: how many requests there are.
    - `own_sent`: how many requests of the proxy were sent for the latest decision. `own_responses`: what came for them.
    - `lost_session`: a fetch session that the node has and the client does not know of, because its response had to be
      one without it; 0: none. The next full fetch closes it.
    """

    __slots__ = (
        "_max_kept_bytes",
        "_throttle",
        "_times",
        "_turn",
        "keeps",
        "lost_session",
        "max_requests",
        "own_responses",
        "own_sent",
        "queue",
        "waiting",
    )

    def __init__(
        self, turn: Turn, throttle: ThrottleState, times: ServiceTimes, max_requests: int, max_kept_bytes: int
    ) -> None:
        self.queue: deque[Request] = deque()
        self.waiting = 0
        self.max_requests = max_requests
        self.own_sent = 0
        self.own_responses: list[bytes] = []
        self.lost_session = 0
        self._turn = turn
        self._throttle = throttle
        self._times = times
        self._max_kept_bytes = max_kept_bytes
        self.keeps = 0
        """Bytes that are stored for requests in flight, and perhaps for some that have had their responses since."""

    # ----------------------------------------------------------------------- add

    def add(self, request: Request) -> None:
        """One more request is sent to the node, or waits for a response of the proxy."""
        times = self._times
        if times.measures:
            if not self.waiting:
                times.sent(self._turn.now_us)
            times.reserve(request, 1, request.head.size_bytes)
        self.queue.append(request)
        request.waiting = 1
        request.waiting_bytes = request.head.size_bytes
        self.waiting += 1
        if self.waiting >= self.max_requests:
            self._throttle.reasons |= IN_FLIGHT_FULL

    def add_run(self, request: Request, first_id: int, count: int, sizes_bytes: int) -> Request:
        """`count` more requests like `request` are sent, `sizes_bytes` long in all; return what counts them.

        That is `request`, if they continue its run or it has none; else a new entry.
        """
        queue, muted_until_ms = self.queue, self._throttle.muted_until_ms
        times = self._times
        if times.measures and not self.waiting:
            times.sent(self._turn.now_us)
        self.waiting += count
        if (
            request.waiting
            and queue[-1] is request
            and request.correlation_id + request.waiting == first_id
            and request.muted_until_ms == muted_until_ms
        ):
            request.waiting += count
            request.waiting_bytes += sizes_bytes
        else:
            if request.waiting:
                request = request.another()
            request.correlation_id = first_id
            request.muted_until_ms = muted_until_ms
            request.charged = request.timed = False
            request.waiting = count
            request.waiting_bytes = sizes_bytes
            queue.append(request)
        if times.measures:
            times.reserve(request, count, sizes_bytes)
        return request

    def came_whole(self, request: Request) -> None:
        """The last byte of the latest request, which was incomplete, is sent: its time begins."""
        if request.reserved:
            self._times.reserve_anew(request)
        if self.waiting == 1 and request.head.answered:
            self._times.sent(self._turn.now_us)

    def keep_for(self, request: Request) -> None:
        """Count the bytes that are stored for the latest request. If they are too many, take no further one for now."""
        self.keeps += request.kept_bytes
        if self.keeps > self._max_kept_bytes:
            self.keeps = sum(one.kept_bytes for one in self.queue)
            if self.keeps > self._max_kept_bytes:
                self._throttle.reasons |= IN_FLIGHT_FULL

    def count_kept(self) -> int:
        """How many bytes are stored now for requests in flight."""
        if not self.queue:
            self.keeps = 0
        kept_bytes = sum(one.kept_bytes for one in self.queue) if self.keeps else 0
        return kept_bytes + sum(map(len, self.own_responses))

    # -------------------------------------------------------------------- remove

    def done(self, count: int) -> None:
        """The oldest `count` requests, all of one run, have their responses."""
        request = self.queue[0]
        self.waiting -= count
        request.waiting_bytes -= request.waiting_bytes * count // request.waiting
        request.waiting -= count
        request.correlation_id += count
        request.charged = request.timed = False
        if not request.waiting:
            self.queue.popleft()

    def forget_unanswered_tokens(self) -> None:
        """When a request follows opaque tokens, take tokens without a response off the queue: the last had none."""
        if self.queue[-1].plan is not SASL_TOKEN:
            while self.queue[0].plan is SASL_TOKEN:
                self.done(1)

    def take_own_responses(self) -> tuple[bytes, ...]:
        """The responses to the proxy's own requests, which are used up."""
        taken, self.own_responses = tuple(self.own_responses), []
        return taken

    def clear_finished_waits(self) -> bool:
        """End the reasons to wait that depend on what is in flight and are over; return whether there were any."""
        over = ASKING_FIRST if len(self.own_responses) == self.own_sent else 0
        if not self.waiting:
            self.keeps = 0
            over |= _ALL_ANSWERED
        elif self.waiting < self.max_requests and self.keeps <= self._max_kept_bytes:
            over |= IN_FLIGHT_FULL
        over &= self._throttle.reasons
        self._throttle.reasons &= ~over
        return over != 0
