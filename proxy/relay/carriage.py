"""What both directions of a relay share: the requests in flight, the mute, and what is counted."""

from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.relay.actions import Action, RelayLimits, Send, Side, Throttled, WakeAt
from proxy.relay.request import Request
from proxy.relay.service_times import ServiceTimes
from proxy.relay.tally import Tally
from quotas.entities import QuotaType
from quotas.ledger import Ledger

Piece = bytes | memoryview

# Why no further request is taken: a set of reasons. Reading goes on until one request head is here, so that a peer
# that hangs up is noticed. Behind a Fetch with a quota nothing is taken until it is answered: a broker, too, has one
# request of a connection at a time, and a client that sends a hundred ahead must not have them all delivered.
UNCONNECTED: Final = 1
THROTTLED: Final = 2
ASKING: Final = 4
IN_FLIGHT_FULL: Final = 8
FETCHING: Final = 16
ENQUIRING: Final = 32
AUTHENTICATING: Final = 64

NO_TICKET: Final = -1


class Carriage:
    """The state of a relay that its request side and its answer side both work on."""

    __slots__ = (
        "_charge",
        "_charge_unthrottled",
        "_client_blocked",
        "_delays",
        "_enquired",
        "_in_flight",
        "_ledger",
        "_max_in_flight",
        "_mute",
        "_muted_until_ms",
        "_now_us",
        "_shadows",
        "_tally",
        "_ticket",
        "_times",
        "_waiting",
        "_withholds",
        "answer_bytes",
        "answers",
        "request_bytes",
        "requests",
        "throttled_ms",
    )

    def __init__(self, ledger: Ledger, tally: Tally, limits: RelayLimits) -> None:
        self._ledger = ledger
        self._charge: Callable[[int, float, int], int] = ledger.sensors.charge
        self._charge_unthrottled = ledger.sensors.charge_unthrottled
        self._shadows = ledger.shadow_sensors
        self._times = ServiceTimes(ledger)
        self._tally = tally
        self._withholds = limits.withholds
        self._delays = limits.delays
        self._max_in_flight = limits.max_in_flight

        self._now_us = 0
        self._ticket = 0
        self._mute = UNCONNECTED
        self._muted_until_ms = 0
        self._client_blocked = False
        self._in_flight: deque[Request] = deque()
        self._waiting = 0
        self._enquired: list[bytes] = []

        self.requests = 0
        self.request_bytes = 0
        self.answers = 0
        self.answer_bytes = 0
        self.throttled_ms = 0

    def _await_answer(self, request: Request) -> None:
        if not self._waiting:
            self._times.sent(self._now_us)
        self._in_flight.append(request)
        request.waiting = 1
        request.waiting_bytes = request.size_bytes
        self._waiting += 1
        if self._waiting >= self._max_in_flight:
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
    ) -> None:
        """Take no further request for `throttle_time_ms` from now, or longer if that was so already."""
        until_ms = now_ms + throttle_time_ms
        prolonged_ms = until_ms - max(self._muted_until_ms, now_ms)
        if quota_type is not None:
            self._tally.throttles[quota_type] += 1
            self._tally.throttled_ms[quota_type] += max(prolonged_ms, 0)
        if prolonged_ms <= 0 and self._mute & THROTTLED:
            return
        self.throttled_ms += prolonged_ms
        self._muted_until_ms = until_ms
        self._mute |= THROTTLED
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
