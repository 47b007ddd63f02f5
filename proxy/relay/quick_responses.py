"""The fast way for responses that have no throttle time and no addresses, and get none. Most have none."""

from struct import Struct
from typing import Final

from kafka_throttle.protocol.api_key import FETCH
from kafka_throttle.protocol.frames import MAX_HEAD_BYTES
from kafka_throttle.protocol.messages.produce import lone_partition_throttle_at
from kafka_throttle.proxy.relay.accounting import Accounting
from kafka_throttle.proxy.relay.charging import Charges
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.plans import NO_THROTTLE, Plan, ResponseKind
from kafka_throttle.proxy.relay.request import Request
from kafka_throttle.proxy.relay.service_times import ServiceTimes
from kafka_throttle.proxy.relay.throttle_state import ThrottleState
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.sensors.windowed_rate import StaleSensor

_QUICK_BYTES: Final = MAX_HEAD_BYTES - 4
"""The largest response, without its length prefix, that is recognised this way."""

_HEAD: Final = Struct(">ii")
_SMALLEST_BYTES: Final = 16
_ZERO: Final = b"\0\0\0\0"


def quick_run(plan: Plan, buf: bytes, at: int, due: int, most: int, max_response_bytes: int) -> tuple[int, int]:
    """How many whole responses at `at` need only be passed on, and where they end.

    They are for requests of a `plan` that is `quick`, `most` at most, and their correlation ids count up from `due`.
    """
    plain, last = plan.response is ResponseKind.PLAIN, plan.response is ResponseKind.LAST
    offset, tags, end, count = plan.throttle_at, plan.response_tags, len(buf), 0
    while count < most and end - at >= _SMALLEST_BYTES:
        size, correlation_id = _HEAD.unpack_from(buf, at)
        frame_end = at + 4 + size
        if correlation_id != due or frame_end > end or not _SMALLEST_BYTES - 4 <= size <= max_response_bytes:
            break
        if last:
            throttle_at = frame_end - 4
        elif plain:
            throttle_at = at + offset
        else:
            offset = lone_partition_throttle_at(buf, at, size + 4, plan.api_version)
            throttle_at = at + offset
        if offset == NO_THROTTLE or throttle_at + 4 > frame_end or buf[throttle_at : throttle_at + 4] != _ZERO:
            break
        if tags and buf[at + 8]:
            break
        at = frame_end
        due += 1
        count += 1
    return count, at


class QuickResponses:
    """Passes small responses that need only be counted and charged, without reading each of them."""

    __slots__ = (
        "_accounting",
        "_charges",
        "_in_flight",
        "_max_response_bytes",
        "_near_throttle_us",
        "_sensors",
        "_throttle",
        "_times",
        "_turn",
    )

    def __init__(
        self,
        turn: Turn,
        accounting: Accounting,
        throttle: ThrottleState,
        in_flight: InFlight,
        times: ServiceTimes,
        charges: Charges,
        manager: ClientQuotaManager,
        max_response_bytes: int,
    ) -> None:
        self._turn = turn
        self._accounting = accounting
        self._throttle = throttle
        self._in_flight = in_flight
        self._times = times
        self._charges = charges
        self._sensors = manager.sensors
        self._max_response_bytes = min(max_response_bytes, _QUICK_BYTES)
        self._near_throttle_us = -1
        """When a response was last found that may throttle: at that time it is not looked for others."""

    def take(self, buf: bytes, at: int) -> int:
        """Pass the whole responses at `at`, of one run of requests, that need only be counted; return where they end.

        They are small, have no throttle time, and the proxy has none to put in.
        """
        queue = self._in_flight.queue
        if not queue:
            return at
        request = queue[0]
        plan = request.plan
        if not plan.quick or request.charged or request.timed or request.note is not None:
            return at
        now_ms, now_us = self._turn.now_ms, self._turn.now_us
        if request.muted_until_ms > now_ms or self._throttle.responses_until_ms > now_ms:
            return at
        if self._near_throttle_us == now_us:
            return at
        fetches = plan.api_key == FETCH
        most = 1 if fetches else request.waiting
        count, end = quick_run(plan, buf, at, request.correlation_id, most, self._max_response_bytes)
        if not count:
            return at
        client_sensors, sizes_bytes = request.client_sensors, end - at - 4 * count
        if client_sensors is not None and client_sensors.costs is not None:
            if not self._times.charge_unthrottled(request, client_sensors, count, sizes_bytes, now_ms, now_us):
                self._near_throttle_us = now_us
                return at
        elif request.use is not None:
            self._accounting.model_time(request, count, sizes_bytes)
        if fetches and not self._charge_fetch(request, end - at):
            request.timed = True
            return at
        self._in_flight.done(count)
        self._accounting.count_responses(count, end - at)
        if (use := request.use) is not None:
            if now_us >= use.until_us:
                use.turn(now_us)
            use.out_bytes += end - at
        return end

    def _charge_fetch(self, request: Request, frame_bytes: int) -> bool:
        """Charge the response to a Fetch if it certainly exceeds nothing; return whether it need only pass."""
        client_sensors = request.client_sensors
        if client_sensors is None:
            return True
        value = frame_bytes - 4 - request.plan.response_tags
        if client_sensors.fetch is not None:
            try:
                if not self._sensors.charge_unthrottled(client_sensors.fetch, value, 1, self._turn.now_ms):
                    return False
            except StaleSensor:
                return False
        if client_sensors.shadow_fetch is not None:
            self._charges.shadow_fetch(client_sensors.shadow_fetch, request.use, value)
        if (use := request.use) is not None:
            now_us = self._turn.now_us
            if now_us >= use.until_us:
                use.turn_used(now_us)
            use.used += value
        if request.place is None:
            return True
        wait_ms = self._charges.room_again_ms(request.place, value)
        if wait_ms:
            request.charged = True
            self._throttle.throttle_with_responses(wait_ms, QuotaType.FETCH, request.head.client_id, value)
        return not wait_ms
