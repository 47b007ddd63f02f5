"""What both directions of a relay share: the requests in flight, the mute, and what is counted."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from proxy.relay.actions import Action, RelayLimits, Send, Throttled, WakeAt
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.request import LONG_CLIENT_ID_BYTES, Request
from proxy.relay.service_times import ServiceTimes
from proxy.relay.use import PLACE, REQUEST, Client, UsageCounter
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager, ClientSensors
from quotas.entities import QuotaType

Piece = bytes | memoryview

Bind = Callable[[bytes, int], ClientSensors]
"""Returns the sensors that measure a raw client-id, at a time in ms."""
UsageOf = Callable[[bytes], Client]
"""Returns the Client for which the usage under a raw client-id is counted."""

# Why no further request is taken: a set of reasons. Reading goes on until one request head is here, so that a peer
# that hangs up is noticed. FETCHING: after a Fetch with a quota no request is taken until the Fetch has its response.
# A broker, too, handles one request of a connection at a time, and a client that sends a hundred Fetches ahead must not
# get a hundred responses over its quota. NO_ROOM: the quota of request time has no room for one more request beside
# all that its entity has in flight.
UNCONNECTED: Final = 1
THROTTLED: Final = 2
ASKING: Final = 4
IN_FLIGHT_FULL: Final = 8
FETCHING: Final = 16
ASKING_FIRST: Final = 32
AUTHENTICATING: Final = 64
NO_ROOM: Final = 128

ENDS_WITH_RESPONSES: Final = IN_FLIGHT_FULL | FETCHING | ASKING_FIRST | AUTHENTICATING | NO_ROOM

NO_TICKET: Final = -1

MAX_CLIENT_IDS: Final = 64
"""How many client-ids a connection remembers, with their sensors and usage."""

_NOBODY: dict[bytes, Client] = {}


class Carriage:
    """The state of a relay that its request side and its response side share."""

    __slots__ = (
        "_bind",
        "_charge",
        "_charge_unthrottled",
        "_client_blocked",
        "_clients",
        "_coming",
        "_counters",
        "_delays",
        "_going",
        "_in_flight",
        "_kept_bytes",
        "_max_in_flight",
        "_max_kept_bytes",
        "_mute",
        "_muted_until_ms",
        "_mutes",
        "_now_us",
        "_own_responses",
        "_quota_manager",
        "_shadows",
        "_ticket",
        "_timed",
        "_times",
        "_usage_of",
        "_waiting",
        "_withholds",
        "request_bytes",
        "requests",
        "response_bytes",
        "responses",
        "throttled_ms",
    )

    def __init__(
        self,
        quota_manager: ClientQuotaManager,
        counters: RelayCounters,
        limits: RelayLimits,
        bind: Bind,
        usage_of: UsageOf | None = None,
    ) -> None:
        self._quota_manager = quota_manager
        self._bind = bind
        self._usage_of = usage_of
        """None: usage is not metered."""
        self._clients: dict[bytes, Client] = _NOBODY if usage_of is None else {}
        self._coming: UsageCounter | None = None
        """The Use of the request that is being sent on."""
        self._going: UsageCounter | None = None
        """The Use of the response that is being sent on."""
        self._mutes: tuple[tuple[UsageCounter, int], ...] = ()
        """The Use of each quota that mutes the client now, and by how many ms it prolonged the mute."""
        self._charge: Callable[[int, float, int], int] = quota_manager.sensors.charge
        self._charge_unthrottled = quota_manager.sensors.charge_unthrottled
        self._shadows = quota_manager.shadow_sensors
        self._times = ServiceTimes(quota_manager)
        self._timed = False
        """Whether request time is measured for any client-id of this connection."""
        self._counters = counters
        self._withholds = limits.withholds
        self._delays = limits.delays
        self._max_in_flight = limits.max_in_flight
        self._max_kept_bytes = limits.max_kept_bytes

        self._now_us = 0
        self._ticket = 0
        self._mute = UNCONNECTED
        self._muted_until_ms = 0
        self._client_blocked = False
        self._in_flight: deque[Request] = deque()
        self._waiting = 0
        self._kept_bytes = 0
        """Bytes that are stored for requests in flight, and perhaps for some that have had their responses since."""
        self._own_responses: list[bytes] = []

        self.requests = 0
        self.request_bytes = 0
        self.responses = 0
        self.response_bytes = 0
        self.throttled_ms = 0

    def _await_response(self, request: Request) -> None:
        if self._timed:
            if not self._waiting:
                self._times.sent(self._now_us)
            self._times.reserve(request, 1, request.size_bytes)
        self._in_flight.append(request)
        request.waiting = 1
        request.waiting_bytes = request.size_bytes
        self._waiting += 1
        if self._waiting >= self._max_in_flight:
            self._mute |= IN_FLIGHT_FULL

    def _keep_for(self, request: Request) -> None:
        """Count the bytes that are stored for the latest request. If they are too many, take no further one for now."""
        self._kept_bytes += request.kept_bytes
        if self._kept_bytes > self._max_kept_bytes:
            self._kept_bytes = sum(one.kept_bytes for one in self._in_flight)
            if self._kept_bytes > self._max_kept_bytes:
                self._mute |= IN_FLIGHT_FULL

    def _no_longer_await(self, request: Request, count: int) -> None:
        """The oldest `count` requests of the queue, all under `request`, have their responses."""
        self._waiting -= count
        request.waiting_bytes -= request.waiting_bytes * count // request.waiting
        request.waiting -= count
        request.correlation_id += count
        request.charged = request.timed = False
        if not request.waiting:
            self._in_flight.popleft()

    def _mute_until(
        self,
        now_ms: int,
        throttle_time_ms: int,
        quota_type: QuotaType | None,
        client_id: bytes,
        after: list[Action],
        used: float = 0.0,
    ) -> None:
        """Take no further request for `throttle_time_ms` from now; a mute that lasts longer stays.

        `used` is how much of the quota was used by the Produce or Fetch that caused the mute, if its bytes pass; else
        0.
        """
        until_ms = now_ms + throttle_time_ms
        prolonged_ms = until_ms - max(self._muted_until_ms, now_ms)
        if quota_type is not None:
            self._counters.throttles[quota_type] += 1
            self._counters.throttled_ms[quota_type] += max(prolonged_ms, 0)
            if self._usage_of is not None:
                use = self._client(client_id).of(PLACE[quota_type])
                use.note_throttle(max(prolonged_ms, 0), self._now_us, used)
                if prolonged_ms > 0:
                    self._mutes += ((use, prolonged_ms),)
        if prolonged_ms <= 0 and self._mute & THROTTLED:
            return
        self.throttled_ms += prolonged_ms
        self._muted_until_ms = until_ms
        self._mute |= THROTTLED
        after.append(Throttled(quota_type, throttle_time_ms, client_id))
        after.append(WakeAt(until_ms))

    def _count_requests(self, request: Request, count: int, frames_bytes: int) -> None:
        self.requests += count
        self.request_bytes += frames_bytes
        self._counters.requests_by_api[request.plan.api_key] += count
        self._counters.request_bytes += frames_bytes
        if self._usage_of is not None:
            use = request.use
            if use is None:
                use = request.use = self._client(request.client_id).of(request.plan.use)
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.requests += count

    def _count_responses(self, count: int, frames_bytes: int) -> None:
        self.responses += count
        self.response_bytes += frames_bytes
        self._counters.responses += count
        self._counters.response_bytes += frames_bytes

    # ------------------------------------------------------------------- metered

    def _client(self, client_id: bytes) -> Client:
        client = self._clients.get(client_id)
        if client is None:
            assert self._usage_of is not None
            if len(self._clients) >= MAX_CLIENT_IDS or len(client_id) > LONG_CLIENT_ID_BYTES:
                for forgotten in forgotten_for(client_id, self._clients):
                    self._clients.pop(forgotten).release()
            client = self._clients[client_id] = self._usage_of(client_id)
        return client

    def _forget_clients(self) -> None:
        """The user or the node is another from now on: release the clients of the one before."""
        for client in self._clients.values():
            client.release()
        self._clients.clear()

    def _read(self, use: UsageCounter | None, read_bytes: int) -> None:
        """Count bytes of a request that have come."""
        if use is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.in_bytes += read_bytes

    def _written(self, use: UsageCounter | None, written_bytes: int) -> None:
        """Count bytes of a response that go out."""
        if use is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.out_bytes += written_bytes

    def _used(self, use: UsageCounter | None, value: float) -> None:
        """Count what was used of a quota."""
        if use is not None:
            use.add(value, self._now_us)

    def _model_time(self, request: Request, count: int, response_bytes: int) -> None:
        """Count request time by the model of costs, where it is not measured."""
        if (use := request.use) is not None and request.client_sensors is not None:
            waiting = request.waiting
            size_bytes = request.waiting_bytes if count == waiting else request.waiting_bytes * count // waiting
            client = use.client
            times = client.uses[REQUEST] or client.of(REQUEST)
            if self._now_us >= times.until_us:
                times.turn(self._now_us)
            times.used += client.cost_us(request.plan.cost_kind, size_bytes + response_bytes, count) / 1000

    def _mute_is_over(self, somebody_waits: bool) -> None:
        for use, muted_ms in self._mutes if somebody_waits else ():
            use.note_backlog(muted_ms, self._now_us)
        self._mutes = ()

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        """Count bytes that were handed over for the client and never written, because its connection ended first."""
        use = self._going or self._coming
        if unsent_bytes and use is not None:
            use.note_unsent(unsent_bytes, now_us)

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket


def forgotten_for(client_id: bytes, known: Mapping[bytes, object]) -> list[bytes]:
    """The client-ids that a connection forgets to make room for this one.

    Usually this is the oldest one. To find the least recently used one, each request would have to be noted; and a
    client-id that is forgotten too early is only looked up again. For a very long one all others are forgotten, so that
    only one long one is stored.
    """
    if client_id in known:
        return []
    return list(known) if len(client_id) > LONG_CLIENT_ID_BYTES else [next(iter(known))]


def add_run(pieces: list[Piece], buf: bytes, start: int, end: int) -> None:
    """Append `buf[start:end]`, without a copy."""
    if end > start:
        pieces.append(buf if end - start == len(buf) else memoryview(buf)[start:end])


def send_through(actions: list[Action], side: Side, pieces: list[Piece], buf: bytes, run: int, at: int) -> bytes:
    """Send `pieces` and then `buf[run:at]`; return the bytes that are not yet looked at."""
    add_run(pieces, buf, run, at)
    if pieces:
        actions.append(Send(side, pieces))
    return buf[at:]
