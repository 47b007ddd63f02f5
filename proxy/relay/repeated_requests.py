"""The fast way for requests like the one before: same API, client and settings, only another length and id."""

from struct import Struct
from typing import Final

from kafka_throttle.protocol.api_key import PRODUCE
from kafka_throttle.proxy.relay.accounting import Accounting
from kafka_throttle.proxy.relay.charging import Charges
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.plans import ResponseKind, plan_key
from kafka_throttle.proxy.relay.request import Request
from kafka_throttle.proxy.relay.service_times import ServiceTimes
from kafka_throttle.proxy.relay.throttle_state import ThrottleState
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.proxy.relay.use import UsageCounter
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors

_HEAD: Final = Struct(">iIi")
"""size, api_key and api_version as one number, correlation_id"""
_INT32: Final = Struct(">i")

_LONGEST_BYTES: Final = 1024
_NO_ID: Final = 1 << 40
"""Equal to no int32."""

_LOOKED_AT_EACH_TIME: Final = -1


class RepeatPattern:
    """What the next requests have in common with `request`, so that they need not be read field by field.

    `api` is key and version. `same` are the bytes after the correlation id up to `end`, an offset from the frame's
    start: client id, header tags, and the fields of the body that were read. `shadow` is the sensor of the shadow quota
    that their bytes are charged to, if there is one. While `version` is the version of the quotas, the requests may be
    taken without looking up their sensors. Of a client with a quota of request time (`is_limited`), only `allowed` more
    requests are taken, and how many that are is looked up each time.
    """

    __slots__ = ("allowed", "api", "client_sensors", "end", "is_limited", "request", "same", "shadow", "version")

    def __init__(self, request: Request, client_sensors: ClientSensors, same: bytes, end: int) -> None:
        plan = request.plan
        self.request = request
        self.client_sensors = client_sensors
        self.api = plan_key(plan.api_key, plan.api_version)
        self.same = same
        self.end = end
        self.shadow = client_sensors.shadow_produce if plan.api_key == PRODUCE else None
        self.is_limited = client_sensors.limits_requests and request.head.answered
        self.allowed = 0
        self.version = _LOOKED_AT_EACH_TIME if self.is_limited else client_sensors.version

    def run(self, buf: bytes, at: int, most: int, max_frame_bytes: int) -> tuple[int, int, int]:
        """Find the whole requests at `at` that fit the pattern, `most` at most, with ids that count up by one.

        Returns the first of their ids, how many they are, and where they end.
        """
        api, same, same_end, end = self.api, self.same, self.end, len(buf)
        least_size, last_head = same_end - 4, end - same_end
        first_id, due, count = 0, _NO_ID, 0
        while at <= last_head and count < most:
            size, its_api, correlation_id = _HEAD.unpack_from(buf, at)
            frame_end = at + 4 + size
            if (
                its_api != api
                or frame_end > end
                or not least_size <= size <= max_frame_bytes
                or buf[at + 12 : at + same_end] != same
            ):
                break
            if correlation_id != due:
                if count:
                    break
                first_id = due = correlation_id
            at = frame_end
            due += 1
            count += 1
        return first_id, count, at


def pattern_of(request: Request, client_sensors: ClientSensors, buf: bytes, at: int) -> RepeatPattern | None:
    """What further requests may have in common with the one that begins at `at`; None if that is too long.

    Requests whose responses need a decision have no pattern: they do not come in runs.
    """
    end = request.head.decided_at
    if end > _LONGEST_BYTES or request.plan.response is ResponseKind.HEAD:
        return None
    return RepeatPattern(request, client_sensors, buf[at + _HEAD.size : at + end], end)


class RepeatedRequests:
    """Takes requests that are like the one before, without reading each of them."""

    __slots__ = (
        "_accounting",
        "_charges",
        "_in_flight",
        "_manager",
        "_max_frame_bytes",
        "_sensors",
        "_shadows",
        "_throttle",
        "_times",
        "_turn",
        "pattern",
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
        max_frame_bytes: int,
    ) -> None:
        self.pattern: RepeatPattern | None = None
        """What the next requests may have in common with the latest one; None: they must be read."""
        self._turn = turn
        self._accounting = accounting
        self._throttle = throttle
        self._in_flight = in_flight
        self._times = times
        self._charges = charges
        self._manager = manager
        self._shadows = manager.shadow_sensors
        self._sensors = manager.sensors
        self._max_frame_bytes = max_frame_bytes

    def take(self, buf: bytes, at: int) -> int:
        """Take the whole requests at `at` that fit the pattern, up to one that begins a mute; return where they end.

        A request that may fill the queue or needs a decision is left to the general way.
        """
        pattern = self.pattern
        if pattern is None:
            return at
        if pattern.version != self._manager.version and not self._goes_on(pattern):
            return at
        in_flight = self._in_flight
        while True:
            room = in_flight.max_requests - in_flight.waiting - 1
            if pattern.is_limited and pattern.allowed < room:
                room = pattern.allowed
            first_id, count, end = pattern.run(buf, at, room, self._max_frame_bytes)
            if not count:
                return at
            if not self._take_run(pattern, first_id, count, end - at):
                return self._take_each(pattern, first_id, buf, at, end)
            if pattern.is_limited:
                pattern.allowed -= count
            if pattern.shadow is not None:
                self._charge_shadow(pattern.shadow, pattern.request.use, buf, at, end, count)
            at = end
            if at == len(buf):
                return at

    def _goes_on(self, pattern: RepeatPattern) -> bool:
        """Whether requests that fit the pattern may be taken; with a limit of request time, also set how many."""
        client_sensors = pattern.client_sensors
        if not self._manager.renews(client_sensors):
            return False
        if pattern.is_limited:
            pattern.allowed = self._times.allowed(pattern.request.head, client_sensors, self._turn.now_ms)
            return pattern.allowed > 0
        pattern.version = client_sensors.version
        return True

    def _take_run(self, pattern: RepeatPattern, first_id: int, count: int, frames_bytes: int) -> bool:
        """Charge and count `count` requests; if one of them may throttle, do nothing and return False."""
        request, client_sensors = pattern.request, pattern.client_sensors
        sizes_bytes = frames_bytes - 4 * count
        produces = request.plan.api_key == PRODUCE
        if produces:
            sensor = client_sensors.produce
            if sensor is not None and not self._sensors.charge_unthrottled(
                sensor, sizes_bytes, count, self._turn.now_ms
            ):
                return False
        accounting = self._accounting
        accounting.count_requests(request, count, frames_bytes)
        if (use := request.use) is not None:
            use.in_bytes += frames_bytes
            if produces:
                use.used += sizes_bytes
        if request.head.answered:
            pattern.request = self._in_flight.add_run(request, first_id, count, sizes_bytes)
        else:
            self._charges.exempt(request, sizes_bytes, count)
        return True

    def _take_each(self, pattern: RepeatPattern, first_id: int, buf: bytes, at: int, end: int) -> int:
        """Take the Produce requests between `at` and `end`, up to one that begins a mute; return where they end."""
        accounting, first_at, count = self._accounting, at, 0
        while at < end and not self._throttle.reasons:
            request, size_bytes = pattern.request, _INT32.unpack_from(buf, at)[0]
            accounting.count_requests(request, 1, size_bytes + 4)
            self._charges.came_whole(request, size_bytes)
            if request.head.answered:
                pattern.request = self._in_flight.add_run(request, first_id + count, 1, size_bytes)
            else:
                self._charges.exempt(request, size_bytes, 1)
            at += 4 + size_bytes
            count += 1
        pattern.allowed -= count
        accounting.coming = use = pattern.request.use
        if use is not None:
            use.in_bytes += at - first_at
        return at

    def _charge_shadow(self, sensor: int, use: UsageCounter | None, buf: bytes, at: int, end: int, count: int) -> None:
        """Charge the `count` requests between `at` and `end` to a shadow quota, which throttles nobody."""
        if self._shadows.charge_unthrottled(sensor, end - at - 4 * count, count, self._turn.now_ms):
            return
        while at < end:
            size_bytes = _INT32.unpack_from(buf, at)[0]
            self._charges.shadow(sensor, use, size_bytes)
            at += 4 + size_bytes
