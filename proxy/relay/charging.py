"""The quotas of the clients of one connection: which sensors measure them, what they owe, and what they are charged."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from protocol.api_key import PRODUCE
from proxy.relay.accounting import MAX_CLIENT_IDS, Accounting, forgotten_for
from proxy.relay.actions import CloseReason, DecisionKind
from proxy.relay.in_flight import InFlight
from proxy.relay.plans import is_strict
from proxy.relay.request import LONG_CLIENT_ID_BYTES, Refusal, Request, RequestHead
from proxy.relay.service_times import ServiceTimes
from proxy.relay.throttle_state import NO_ROOM, ThrottleState
from proxy.relay.turn import Turn
from proxy.relay.use import UsageCounter
from quotas.client_quotas import ClientQuotaManager, ClientSensors
from quotas.entities import QuotaType
from quotas.sensors.windowed_rate import StaleSensor

Bind = Callable[[bytes, int], ClientSensors]
"""Returns the sensors that measure a raw client-id, at a time in ms."""

_MAX_LOOKS: Final = 4 * MAX_CLIENT_IDS


class KnownSensors:
    """The sensors that measure each client-id of one connection, and whether a first request waits for what is owed."""

    __slots__ = (
        "_bind",
        "_by_client_id",
        "_client_left",
        "_in_flight",
        "_looked_at",
        "_manager",
        "_pays",
        "_throttle",
        "_times",
        "_turn",
        "_waited_ms",
    )

    def __init__(
        self,
        turn: Turn,
        throttle: ThrottleState,
        times: ServiceTimes,
        in_flight: InFlight,
        manager: ClientQuotaManager,
        bind: Bind,
    ) -> None:
        self._turn = turn
        self._in_flight = in_flight
        self._throttle = throttle
        self._times = times
        self._manager = manager
        self._bind = bind
        self._by_client_id: dict[bytes, ClientSensors] = {}
        self._looked_at: set[tuple[QuotaType, int | None]] = set()
        """The sensors that a first limited request was checked with: their entity owed nothing, or has waited."""
        self._client_left = False
        self._pays = False
        """Whether the next request waits for what its entity owes of fetches or request time, or has waited."""
        self._waited_ms = 0
        """How long the first Fetch of this connection has waited for Fetches whose clients have left."""

    def of(self, client_id: bytes) -> ClientSensors:
        """The sensors of a client-id, looked up now if none are known or they are out of date."""
        client_sensors = self._by_client_id.get(client_id)
        if client_sensors is None or (
            client_sensors.version != self._manager.version and not self._manager.renews(client_sensors)
        ):
            client_sensors = self._look_up(client_id)
        return client_sensors

    def known(self, client_id: bytes) -> ClientSensors | None:
        """The sensors of a client-id, if they were looked up before."""
        return self._by_client_id.get(client_id)

    def forget(self) -> None:
        """The user is another from now on."""
        self._by_client_id.clear()

    def _look_up(self, client_id: bytes) -> ClientSensors:
        """Look up the sensors of a client-id that has none yet, or whose quotas have changed.

        When the quotas of a client change on an open connection, the client does not wait for what it owes: that wait
        is for new connections.
        """
        known = self._by_client_id
        is_known = client_id in known
        if len(known) >= MAX_CLIENT_IDS or len(client_id) > LONG_CLIENT_ID_BYTES:
            for forgotten in forgotten_for(client_id, known):
                del known[forgotten]
        client_sensors = known[client_id] = self._bind(client_id, self._turn.now_ms)
        if is_known:
            self._note_looks(
                (QuotaType.PRODUCE, client_sensors.produce),
                (QuotaType.FETCH, client_sensors.fetch),
                (QuotaType.REQUEST, client_sensors.request),
                (QuotaType.CONTROLLER_MUTATION, client_sensors.mutation),
            )
        if client_sensors.costs is not None:
            self._times.begin_to_measure(self._turn.now_us)
        return client_sensors

    # ---------------------------------------------------------------------- waits

    def hold_back(self, head: RequestHead) -> bool:
        """Whether a request that the proxy responds to, or that the node may find out of place, must wait."""
        client_sensors = self.of(head.client_id)
        return client_sensors.limits and self.waits_first(head, client_sensors)

    def waits_first(self, head: RequestHead, client_sensors: ClientSensors) -> bool:
        """Whether a limited request waits: for what its entity owes, or for responses that make room for it.

        If its client leaves while it waits for a quota that is charged at the response, the connection ends, and the
        request is not sent. Otherwise a client that always leaves could have any number of requests sent.
        """
        if self._pays and self._client_left:
            raise Refusal(CloseReason.CLIENT_CLOSED, f"while {head.plan.name} waited for what its entity owed")
        self._pays = False
        if self._must_pay_first(head, client_sensors):
            return True
        if not (self._in_flight.waiting and client_sensors.limits_requests and head.answered):
            return False
        if self._times.allowed(head, client_sensors, self._turn.now_ms):
            return False
        self._throttle.reasons |= NO_ROOM
        return True

    def _must_pay_first(self, head: RequestHead, client_sensors: ClientSensors) -> bool:
        """Whether the first request of a limited kind on this connection waits for what its entity owes.

        Without this wait a client could avoid a throttle by reconnecting. Strict mutations do not wait: they are
        refused when their quota is exceeded.
        """
        plan, manager = head.plan, self._manager
        waits = False
        if plan.api_key == PRODUCE and client_sensors.limits_produces:
            waits = self._owes(client_sensors.produce, QuotaType.PRODUCE, manager.sensors.owed_ms, head)
        elif plan.fetches and client_sensors.limits_fetches:
            waits = self._owes(client_sensors.fetch, QuotaType.FETCH, manager.sensors.owed_ms, head)
        elif plan.asked is DecisionKind.MUTATION and client_sensors.limits_mutations and not is_strict(plan):
            owed_ms = manager.buckets.throttle_ms
            waits = self._owes(client_sensors.mutation, QuotaType.CONTROLLER_MUTATION, owed_ms, head)
        if client_sensors.limits_requests and head.answered:
            owed_ms = manager.request_sensors.owed_ms
            waits |= self._owes(client_sensors.request, QuotaType.REQUEST, owed_ms, head)
        return waits

    def _owes(
        self, sensor: int | None, quota_type: QuotaType, owed_ms: Callable[[int, int], int], head: RequestHead
    ) -> bool:
        """Whether the entity owes something when a sensor is first checked on this connection. Mutes the client."""
        if sensor is None or (quota_type, sensor) in self._looked_at:
            return False
        throttle_time_ms = owed_ms(sensor, self._turn.now_ms)
        if not throttle_time_ms and quota_type is QuotaType.FETCH and self._waits_for_unheard(sensor):
            throttle_time_ms = self._manager.sensors.window_ms
        else:
            self._note_looks((quota_type, sensor))
        if throttle_time_ms:
            self._pays |= quota_type is QuotaType.FETCH or quota_type is QuotaType.REQUEST
            self._throttle.throttle(throttle_time_ms, quota_type, head.client_id)
        return throttle_time_ms > 0

    def note_left(self) -> None:
        """The client has left."""
        self._client_left = True

    def _waits_for_unheard(self, sensor: int) -> bool:
        """Whether the Fetches in flight whose clients have left may bring more than there is room for.

        The first Fetch of a connection then waits for one window and is looked at again, for `max_throttle_ms` in all.
        """
        sensors, unheard_bytes = self._manager.sensors, self._manager.unheard_bytes.get(sensor, 0)
        if not unheard_bytes or sensors.room(sensor, self._turn.now_ms) >= unheard_bytes:
            return False
        self._waited_ms += sensors.window_ms
        return self._waited_ms <= sensors.max_throttle_ms

    def _note_looks(self, *looks: tuple[QuotaType, int | None]) -> None:
        """On this connection, no request waits any more for what is owed on these sensors."""
        if len(self._looked_at) + len(looks) > _MAX_LOOKS:
            self._looked_at.clear()
        self._looked_at.update(looks)


class Charges:
    """Charges requests and responses of one connection to the quotas of bytes and of request time."""

    __slots__ = ("_accounting", "_buckets", "_sensors", "_shadows", "_throttle", "_times", "_turn", "_unheard")

    def __init__(
        self,
        turn: Turn,
        accounting: Accounting,
        throttle: ThrottleState,
        times: ServiceTimes,
        manager: ClientQuotaManager,
    ) -> None:
        self._turn = turn
        self._accounting = accounting
        self._throttle = throttle
        self._times = times
        self._sensors = manager.sensors
        self._shadows = manager.shadow_sensors
        self._buckets = manager.buckets
        self._unheard = manager.unheard_bytes

    def produce(self, request: Request, size_bytes: int) -> int:
        """Charge `size_bytes` of a Produce; return the throttle time in ms."""
        client_sensors = request.client_sensors
        assert client_sensors is not None
        self._accounting.used(request.use, size_bytes)
        if client_sensors.shadow_produce is not None:
            self.shadow(client_sensors.shadow_produce, request.use, size_bytes)
        if client_sensors.produce is None:
            return 0
        return self._sensors.charge(client_sensors.produce, size_bytes, self._turn.now_ms)

    def shadow(self, sensor: int, use: UsageCounter | None, size_bytes: int) -> None:
        """Charge a shadow quota, which throttles nobody."""
        reported_ms = self._shadows.charge(sensor, size_bytes, self._turn.now_ms)
        if reported_ms and use is not None:
            use.note_shadow(reported_ms, self._turn.now_us)

    def shadow_fetch(self, sensor: int, use: UsageCounter | None, value: int) -> None:
        """Charge the response of a Fetch to a shadow quota, if its sensor still exists."""
        try:
            self.shadow(sensor, use, value)
        except StaleSensor:
            pass

    def use_bucket(self, sensor: int) -> None:
        """Note that a bucket of controller mutations is used, by a request that is charged nothing."""
        self._buckets.spend_permissively(sensor, 0, self._turn.now_ms)

    def time(self, request: Request, response_bytes: int) -> int:
        """Charge what the request cost the node, or would have, if that is measured; return the throttle time in ms.

        The client is muted for that time, and all responses report it until it is over.
        """
        request.timed = True
        client_sensors = request.client_sensors
        if client_sensors is None or client_sensors.costs is None:
            self._accounting.model_time(request, 1, response_bytes)
            return 0
        charge = self._times.charge if request.response is None else self._times.charge_own
        turn = self._turn
        throttle_time_ms = charge(request, client_sensors, response_bytes, turn.now_ms, turn.now_us)
        if throttle_time_ms:
            self._throttle.throttle_with_responses(throttle_time_ms, QuotaType.REQUEST, request.head.client_id)
        return throttle_time_ms

    def fetch(self, request: Request, value: int) -> bool:
        """Charge the response of a Fetch or ShareFetch: first its time, then its size as a broker counts it.

        `value` is the size without length prefix, header tags and, if the response is here whole, NodeEndpoints.
        Returns whether an empty response must go out instead: as in a broker, a client that is over its quota of
        request time or of bytes gets no data, and is charged none. A response that cannot be replaced is charged for
        good.
        """
        request.charged = True
        client_sensors = request.client_sensors
        if client_sensors is None:
            return False
        may_be_emptied = request.incremental is not None
        over_time = not request.timed and self.time(request, value) > 0
        throttle_time_ms = 0
        if client_sensors.fetch is not None:
            try:
                throttle_time_ms = self._fetched_bytes(client_sensors.fetch, value, may_be_emptied, over_time)
            except StaleSensor:
                pass
        is_emptied = may_be_emptied and (over_time or throttle_time_ms > 0)
        if not is_emptied:
            self._accounting.used(request.use, value)
            if client_sensors.shadow_fetch is not None:
                self.shadow_fetch(client_sensors.shadow_fetch, request.use, value)
        if throttle_time_ms:
            used = 0 if is_emptied else value
            self._throttle.throttle_with_responses(throttle_time_ms, QuotaType.FETCH, request.head.client_id, used)
        return is_emptied

    def expect_fetch(self, request: Request) -> None:
        """Count a Fetch whose client has left with as much as it may bring (its room), until its response is here."""
        client_sensors = request.client_sensors
        if request.room_bytes and client_sensors is not None and client_sensors.fetch is not None:
            self._unheard[client_sensors.fetch] = self._unheard.get(client_sensors.fetch, 0) + request.room_bytes

    def unheard_fetch(self, request: Request, value: int) -> None:
        """Charge `value` for a Fetch whose client has left, when its response is known, or no longer waited for."""
        client_sensors = request.client_sensors
        assert client_sensors is not None
        sensor = client_sensors.fetch
        if request.room_bytes and sensor is not None:
            left_bytes = self._unheard.pop(sensor, 0) - request.room_bytes
            if left_bytes > 0:
                self._unheard[sensor] = left_bytes
        if not value:
            return
        self._accounting.used(request.use, value)
        if client_sensors.shadow_fetch is not None:
            self.shadow_fetch(client_sensors.shadow_fetch, request.use, value)
        if sensor is not None:
            with suppress(StaleSensor):
                self._sensors.charge(sensor, value, self._turn.now_ms)

    def _fetched_bytes(self, sensor: int, value: int, may_be_emptied: bool, over_time: bool) -> int:
        """Charge the bytes that were fetched, if they go out; return the throttle time in ms."""
        sensors, now_ms = self._sensors, self._turn.now_ms
        if not may_be_emptied:
            return sensors.charge(sensor, value, now_ms)
        throttle_time_ms = sensors.charge_if_within(sensor, value, now_ms)
        if over_time and not throttle_time_ms:
            sensors.give_back(sensor, value, now_ms)
        return throttle_time_ms
