"""What both directions of a relay share: the requests in flight, the mute, and what is counted."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from proxy.relay.actions import Action, RelayLimits, Send, Throttled, WakeAt
from proxy.relay.relay_counters import RelayCounters
from proxy.relay.request import LONG_CLIENT_ID_BYTES, Request
from proxy.relay.service_times import ServiceTimes
from proxy.relay.use import PLACE, REQUEST, Client, Use
from proxy.side import Side
from quotas.client_quotas import ClientQuotaManager, ClientSensors
from quotas.entities import QuotaType

Piece = bytes | memoryview

Bind = Callable[[bytes, int], ClientSensors]
"""Says which sensors measure a raw client-id, at a time in ms."""
UsageOf = Callable[[bytes], Client]
"""Says whose use it is that somebody with this raw client-id makes."""

# Why no further request is taken: a set of reasons. Reading goes on until one request head is here, so that a peer
# that hangs up is noticed. Behind a Fetch with a quota nothing is taken until it is answered: a broker, too, has one
# request of a connection at a time, and a client that sends a hundred ahead must not have them all delivered. The same
# holds where a quota of request time has no room for one more beside all that its entity has in flight.
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
"""A connection remembers so many client-ids, and what is measured of them."""

_NOBODY: dict[bytes, Client] = {}


class Carriage:
    """The state of a relay that its request side and its response side both work on."""

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
        "_meet",
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
        self._meet = usage_of
        """None: use is not metered."""
        self._clients: dict[bytes, Client] = _NOBODY if usage_of is None else {}
        self._coming: Use | None = None
        """Of the request that is being sent on."""
        self._going: Use | None = None
        """Of the response that is being sent on."""
        self._mutes: tuple[tuple[Use, int], ...] = ()
        """Whose quotas have muted the client for now, and for how many ms."""
        self._charge: Callable[[int, float, int], int] = quota_manager.sensors.charge
        self._charge_unthrottled = quota_manager.sensors.charge_unthrottled
        self._shadows = quota_manager.shadow_sensors
        self._times = ServiceTimes(quota_manager)
        self._timed = False
        """Whether request time is measured of anybody here."""
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
        """What is kept for requests in flight, and perhaps for some that are answered since."""
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
        """Something is kept for the request that was taken last; if it is too much, all is to be answered first."""
        self._kept_bytes += request.kept_bytes
        if self._kept_bytes > self._max_kept_bytes:
            self._kept_bytes = sum(one.kept_bytes for one in self._in_flight)
            if self._kept_bytes > self._max_kept_bytes:
                self._mute |= IN_FLIGHT_FULL

    def _no_longer_await(self, request: Request, count: int) -> None:
        """The oldest `count` of the queue, all of `request`, are answered."""
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
        """Take no further request for `throttle_time_ms` from now, or longer if that was so already.

        `used` is what the request used that this comes of, if it is on its way, or its response is.
        """
        until_ms = now_ms + throttle_time_ms
        prolonged_ms = until_ms - max(self._muted_until_ms, now_ms)
        if quota_type is not None:
            self._counters.throttles[quota_type] += 1
            self._counters.throttled_ms[quota_type] += max(prolonged_ms, 0)
            if self._meet is not None:
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
        if self._meet is not None:
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
            assert self._meet is not None
            if len(self._clients) >= MAX_CLIENT_IDS or len(client_id) > LONG_CLIENT_ID_BYTES:
                for forgotten in forgotten_for(client_id, self._clients):
                    self._clients.pop(forgotten).release()
            client = self._clients[client_id] = self._meet(client_id)
        return client

    def _forget_clients(self) -> None:
        """From now on it is somebody else, or is somewhere else."""
        for client in self._clients.values():
            client.release()
        self._clients.clear()

    def _read(self, use: Use | None, read_bytes: int) -> None:
        """So many bytes of a request have come."""
        if use is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.in_bytes += read_bytes

    def _written(self, use: Use | None, written_bytes: int) -> None:
        """So many bytes of a response go out."""
        if use is not None:
            if self._now_us >= use.until_us:
                use.turn(self._now_us)
            use.out_bytes += written_bytes

    def _used(self, use: Use | None, value: float) -> None:
        """So much of what the quota counts is used."""
        if use is not None:
            use.add(value, self._now_us)

    def _model_time(self, request: Request, count: int, response_bytes: int) -> None:
        """Where request time is not measured: what such requests cost."""
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
        """So much of what the client was sent was never written: its end came before."""
        use = self._going or self._coming
        if unsent_bytes and use is not None:
            use.note_unsent(unsent_bytes, now_us)

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket


def forgotten_for(client_id: bytes, known: Mapping[bytes, object]) -> list[bytes]:
    """The client-ids that a connection forgets so that there is room for this one.

    It is the oldest one. Which one was used least lately would have to be noted with each request, and one that is
    forgotten in vain is only looked up again. For a very long one all others are forgotten: only one is kept.
    """
    if client_id in known:
        return []
    return list(known) if len(client_id) > LONG_CLIENT_ID_BYTES else [next(iter(known))]


def add_run(pieces: list[Piece], buf: bytes, start: int, end: int) -> None:
    """Append `buf[start:end]`, without a copy."""
    if end > start:
        pieces.append(buf if end - start == len(buf) else memoryview(buf)[start:end])


def send_through(actions: list[Action], side: Side, pieces: list[Piece], buf: bytes, run: int, at: int) -> bytes:
    """Send `pieces` and `buf[run:at]` behind them; return the bytes that are still to be looked at."""
    add_run(pieces, buf, run, at)
    if pieces:
        actions.append(Send(side, pieces))
    return buf[at:]
