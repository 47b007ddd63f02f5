"""After a client has left, charges what its node still works on, by responses that go to no client."""

from struct import Struct
from typing import Final

from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.frames import MAX_HELD_BYTES
from kafka_throttle.proxy.relay.actions import DecisionKind
from kafka_throttle.proxy.relay.charging import Charges
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.memory import SMALL_BYTES, Holding
from kafka_throttle.proxy.relay.plans import SASL_TOKEN
from kafka_throttle.proxy.relay.request import Request
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.proxy.side import Side

_HEAD: Final = Struct(">ii")
_SMALLEST_RESPONSE: Final = 4


class Settlement:
    """Reads the responses of the node after a Close, as far as they are needed for charges, and drops them.

    A Fetch is charged the size of its response, which is never taken back. If its response does not come, it is charged
    as much as it was allowed to bring (its room). The response to a mutation corrects what was charged, by a
    DecisionRequest.

    `due`: how many such responses are still to come.
    """

    __slots__ = ("_charges", "_holding", "_in_flight", "_left", "_turn", "_unread", "due")

    def __init__(self, turn: Turn, in_flight: InFlight, charges: Charges, holding: Holding) -> None:
        self.due = 0
        self._turn = turn
        self._in_flight = in_flight
        self._charges = charges
        self._holding = holding
        self._left = 0
        """How many bytes of a response are still to be dropped."""
        self._unread = bytearray()

    def begin(self, half: Request | None) -> None:
        """Find what is to be settled: the connection ends. The node has not got the last byte of `half`."""
        queue = self._in_flight.queue
        if half is not None and queue and queue[-1] is half:
            self._charges.free_room(queue.pop())
        for request in queue:
            self.due += _due(request)
            if _due(request):
                self._charges.expect_fetch(request)

    def take(self, data: bytes, left: int = 0) -> None:
        """Take bytes of the node. The first `left` of them belong to a response that was taken already.

        These `left` bytes may be more than have come so far. Raises ProtocolError if the bytes after them are not the
        next response.
        """
        unread, queue = self._unread, self._in_flight.queue
        unread += data
        self._left += left
        while self.due:
            dropped = min(self._left, len(unread))
            del unread[:dropped]
            self._left -= dropped
            while queue[0].response is not None or queue[0].plan is SASL_TOKEN:
                queue.popleft()
            if self._left or len(unread) < _HEAD.size:
                return
            size, correlation_id = _HEAD.unpack_from(unread)
            if size < _SMALLEST_RESPONSE or correlation_id != queue[0].correlation_id:
                raise MalformedMessage(f"a response of {size} bytes with correlation id {correlation_id}")
            if not self._settle(queue[0], size):
                return
            self._left = size + 4

    def _settle(self, request: Request, size: int) -> bool:
        """Settle the oldest request, whose response has begun. False if more of the response must come first."""
        plan = request.plan
        if _is_charged_mutation(request):
            if size + 4 > MAX_HELD_BYTES:
                raise MalformedMessage(f"{plan.name}: {size} bytes announced, {MAX_HELD_BYTES} can be held")
            if size + 4 > SMALL_BYTES:
                self._holding.may_hold_response(size + 4)  # it is closed: it counts, and never waits
            if len(self._unread) < size + 4:
                return False
            ask = self._turn.ask(DecisionKind.MUTATION, Side.NODE, plan, bytes(self._unread[: size + 4]))
            ask.note = request.note
            self._holding.settle(0, 0, 0)
            self.due -= 1
        elif _is_measured_fetch(request) and not request.charged:
            self._charges.unheard_fetch(request, size - plan.response_tags)
            self.due -= 1
        self._in_flight.done(1)
        return True

    def end(self, charges: bool) -> None:
        """Wait for no more responses. With `charges`, Fetches are charged as much as they were allowed to bring."""
        self.due = 0
        self._unread.clear()
        self._holding.settle(0, 0, 0)
        for request in self._in_flight.queue:
            if _due(request):
                may_bring = 0 if request.place is None else request.place.granted
                self._charges.unheard_fetch(request, may_bring if charges else 0)


def _due(request: Request) -> int:
    """How many responses are still to come that are needed for a charge."""
    if _is_measured_fetch(request):
        return request.waiting - request.charged
    return int(_is_charged_mutation(request))


def _is_measured_fetch(request: Request) -> bool:
    client_sensors = request.client_sensors
    if not request.plan.fetches or client_sensors is None or request.response is not None:
        return False
    return client_sensors.fetch is not None or client_sensors.shadow_fetch is not None


def _is_charged_mutation(request: Request) -> bool:
    return request.plan.asked is DecisionKind.MUTATION and request.note is not None
