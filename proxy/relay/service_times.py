"""The request time of one connection: what its requests cost the node."""

from collections.abc import Iterable
from typing import Final

from kafka_throttle.protocol.frames import INT32_MAX
from kafka_throttle.proxy.relay.plans import Plan
from kafka_throttle.proxy.relay.request import Request, RequestHead
from kafka_throttle.proxy.relay.use import REQUEST
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.request_costs import PERCENT_PER_US
from kafka_throttle.quotas.sensors.windowed_rate import StaleSensor

_ROUNDING: Final = 1e-6
"""What rounding may take of the room for a last request, as a part of a request."""
_NOTHING: Final = 1e-9
"""A smaller rest of a sum than this, in percent, comes from rounding."""


def _meter(request: Request, cost_us: float, now_us: int) -> None:
    if (use := request.use) is not None:
        times = use.client.uses[REQUEST] or use.client.of(REQUEST)
        if now_us >= times.until_us:
            times.turn_used(now_us)
        times.used += cost_us / 1000


class ServiceTimes:
    """Charges for each response the smaller of two: the time that it took, and what requests like it cost the node.

    The time of a request begins when it is sent or, if another one is in flight, when the response of that one is here:
    a node handles one request of a connection at a time. Responses that come in one piece share the time before it.
    """

    __slots__ = (
        "_alone",
        "_came_us",
        "_charged_us",
        "_in_flight",
        "_last_us",
        "_sensors",
        "_shadows",
        "_since_us",
        "measures",
    )

    def __init__(self, quota_manager: ClientQuotaManager) -> None:
        self._sensors = quota_manager.request_sensors
        self._shadows = quota_manager.shadow_request_sensors
        self._in_flight = quota_manager.time_in_flight
        self._last_us = 0.0
        """What the latest response cost that came from the node: the next ones may cost as much."""
        self._since_us = 0
        self._came_us = 0
        self._charged_us = 0
        self._alone = False
        self.measures = False
        """Whether request time is measured for any client-id of this connection."""

    def begin_to_measure(self, now_us: int) -> None:
        """From now on request time is measured; what is in flight by now shows no costs."""
        if not self.measures:
            self.measures = True
            self.sent(now_us)
            self.held_up()

    def sent(self, now_us: int) -> None:
        """A request is sent while none is in flight."""
        self._since_us = now_us
        self._alone = True

    def came(self, now_us: int) -> None:
        """Bytes of the node have come: of a new response, or the rest of one that is charged already."""
        self._came_us = now_us
        if self._charged_us > self._since_us:
            self._since_us = self._charged_us

    def held_up(self) -> None:
        """Something other than the node delays responses."""
        self._alone = False

    # ------------------------------------------------------------- in flight

    def allowed(self, head: RequestHead, client_sensors: ClientSensors, now_ms: int) -> int:
        """How many further requests like this one the quota has room for, beside all that are in flight."""
        assert client_sensors.request is not None
        percent = self._expected(head.plan, client_sensors, 1, head.size_bytes)
        if not percent:
            return INT32_MAX
        try:
            room = self._sensors.room(client_sensors.request, now_ms) - self._in_flight.get(client_sensors.request, 0.0)
        except StaleSensor:
            return 0
        return int(min(max(room / percent + _ROUNDING, 0.0), INT32_MAX))

    def reserve(self, request: Request, count: int, size_bytes: int) -> None:
        """Note that `count` further requests, all counted in `request`, are in flight."""
        client_sensors = request.client_sensors
        if client_sensors is not None and client_sensors.limits_requests and client_sensors.request is not None:
            if not request.reserved:
                request.reserved_at = client_sensors.request
            percent = self._expected(request.plan, client_sensors, count, size_bytes)
            request.reserved += percent
            self._in_flight[request.reserved_at] = self._in_flight.get(request.reserved_at, 0.0) + percent

    def _expected(self, plan: Plan, client_sensors: ClientSensors, count: int, size_bytes: int) -> float:
        """What requests are expected to cost, in percent.

        At least as much as the latest response cost, because the size of the responses is not known yet.
        """
        assert client_sensors.costs is not None
        cost_us = client_sensors.costs.us(plan.cost_kind, size_bytes, count)
        return max(cost_us, count * self._last_us) * PERCENT_PER_US

    def release(self, request: Request) -> None:
        """Free what is reserved for a request: it will not be charged."""
        self._free(request, request.waiting)

    def free(self, in_flight: Iterable[Request]) -> None:
        """Free what is reserved for these requests."""
        for request in in_flight:
            self.release(request)

    def reserve_anew(self, request: Request) -> None:
        """Reserve again for a request in flight, because another sensor may measure it now."""
        self.release(request)
        self.reserve(request, 1, request.head.size_bytes)

    def _free(self, request: Request, count: int) -> None:
        """Free what is reserved for `count` of the requests, because they are charged now."""
        if request.reserved:
            percent = request.reserved if count == request.waiting else request.reserved * count / request.waiting
            request.reserved -= percent
            self._forget(request.reserved_at, percent)

    def _forget(self, sensor: int, percent: float) -> None:
        left = self._in_flight.get(sensor, 0.0) - percent
        if left > _NOTHING:
            self._in_flight[sensor] = left
        else:
            self._in_flight.pop(sensor, None)

    def charge_unanswered(self, in_flight: Iterable[Request], half: Request | None, now_ms: int, now_us: int) -> None:
        """The client has left: charge all requests that have no response yet what requests like them cost the node.

        A node carries out all that it has got. `half` is the request of which it has not got all; of those to which the
        proxy responds it gets nothing.
        """
        for request in in_flight:
            client_sensors, count = request.client_sensors, request.waiting - request.timed
            if request is half or request.response is not None or not count:
                continue
            if client_sensors is None or client_sensors.costs is None:
                continue
            size_bytes = request.waiting_bytes * count // request.waiting
            cost_us = client_sensors.costs.us(request.plan.cost_kind, size_bytes, count)
            _meter(request, cost_us, now_us)
            self._charge(request, client_sensors, cost_us * PERCENT_PER_US, now_ms, now_us)

    # ---------------------------------------------------------------- charge

    def charge_unthrottled(
        self, request: Request, client_sensors: ClientSensors, count: int, response_bytes: int, now_ms: int, now_us: int
    ) -> bool:
        """Charge `count` responses of `response_bytes` in all if it is certain that none throttles; else do nothing."""
        cost_us = self._cost_us(request, client_sensors, count, response_bytes)
        percent = cost_us * PERCENT_PER_US
        sensor = client_sensors.request
        try:
            if sensor is not None and not self._sensors.charge_unthrottled(sensor, percent, count, now_ms):
                return False
        except StaleSensor:
            return False
        if client_sensors.shadow_request is not None:
            self._charge_shadow(client_sensors.shadow_request, request, percent, now_ms, now_us)
        _meter(request, cost_us, now_us)
        self._free(request, count)
        self._last_us = cost_us / count
        self._settle(request, client_sensors, count, response_bytes, cost_us, now_us)
        return True

    def charge(
        self, request: Request, client_sensors: ClientSensors, response_bytes: int, now_ms: int, now_us: int
    ) -> int:
        """Charge one response; return the throttle time in ms."""
        cost_us = self._cost_us(request, client_sensors, 1, response_bytes)
        throttle_ms = self._charge(request, client_sensors, cost_us * PERCENT_PER_US, now_ms, now_us)
        _meter(request, cost_us, now_us)
        self._free(request, 1)
        self._last_us = cost_us
        self._settle(request, client_sensors, 1, response_bytes, cost_us, now_us)
        return throttle_ms

    def charge_own(
        self, request: Request, client_sensors: ClientSensors, response_bytes: int, now_ms: int, now_us: int
    ) -> int:
        """Charge a response of the proxy what it would cost the node; return the throttle time in ms."""
        assert client_sensors.costs is not None
        cost_us = client_sensors.costs.us(request.plan.cost_kind, request.head.size_bytes + response_bytes)
        _meter(request, cost_us, now_us)
        self._free(request, 1)
        return self._charge(request, client_sensors, cost_us * PERCENT_PER_US, now_ms, now_us)

    def _charge(self, request: Request, client_sensors: ClientSensors, percent: float, now_ms: int, now_us: int) -> int:
        if client_sensors.shadow_request is not None:
            self._charge_shadow(client_sensors.shadow_request, request, percent, now_ms, now_us)
        if client_sensors.request is not None:
            try:
                return self._sensors.charge(client_sensors.request, percent, now_ms)
            except StaleSensor:
                return 0
        return 0

    def _charge_shadow(self, sensor: int, request: Request, percent: float, now_ms: int, now_us: int) -> None:
        try:
            reported_ms = self._shadows.charge(sensor, percent, now_ms)
        except StaleSensor:
            return
        if reported_ms and request.use is not None:
            request.use.client.of(REQUEST).note_shadow(reported_ms, now_us)

    def _cost_us(self, request: Request, client_sensors: ClientSensors, count: int, response_bytes: int) -> float:
        costs = client_sensors.costs
        assert costs is not None
        waiting = request.waiting
        size_bytes = request.waiting_bytes if count == waiting else request.waiting_bytes * count // waiting
        modelled_us = costs.us(request.plan.cost_kind, size_bytes + response_bytes, count)
        observed_us = self._came_us - self._since_us - (costs.floor_us if self._alone else 0.0)
        if observed_us >= modelled_us:
            return modelled_us
        return observed_us if observed_us > 0 else 0.0

    def _settle(
        self,
        request: Request,
        client_sensors: ClientSensors,
        count: int,
        response_bytes: int,
        cost_us: float,
        now_us: int,
    ) -> None:
        """The responses are charged: learn from their time, and leave the rest of it to others that came with them."""
        costs = client_sensors.costs
        assert costs is not None
        since_us = self._since_us
        if self._alone:
            least_bytes = request.plan.telling_bytes
            telling = least_bytes is not None and response_bytes >= least_bytes and request.head.learned_from
            if telling and request.waiting == 1:
                size_bytes = request.waiting_bytes + response_bytes
                costs.learn(request.plan.cost_kind, size_bytes, self._came_us - since_us - costs.floor_us, now_us)
            self._alone = False
            cost_us += costs.floor_us
        since_us += int(cost_us)
        self._since_us = since_us if since_us < now_us else now_us
        self._came_us = self._charged_us = now_us
