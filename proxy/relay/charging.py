"""The quotas of the clients of one connection: which sensors measure them, what they owe, and what they are charged."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from kafka_throttle.protocol.api_key import PRODUCE
from kafka_throttle.proxy.relay.accounting import MAX_CLIENT_IDS, Accounting, forgotten_for
from kafka_throttle.proxy.relay.actions import CloseReason, DecisionKind, WakeAt
from kafka_throttle.proxy.relay.in_flight import InFlight
from kafka_throttle.proxy.relay.plans import is_strict
from kafka_throttle.proxy.relay.request import LONG_CLIENT_ID_BYTES, Refusal, Request, RequestHead
from kafka_throttle.proxy.relay.service_times import ServiceTimes
from kafka_throttle.proxy.relay.throttle_state import NO_ROOM, ThrottleState
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.proxy.relay.use import UsageCounter
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.fetch_rooms import Place
from kafka_throttle.quotas.sensors.windowed_rate import StaleSensor

Bind = Callable[[bytes, int], ClientSensors]
"""Returns the sensors that measure a raw client-id, at a time in ms."""

_MAX_LOOKS: Final = 4 * MAX_CLIENT_IDS


class FoundRoom(Enum):
    """Whether there is room for a Fetch: there is, not yet, or not for so long that its client must hear something."""

    FREE = "free"
    NONE_YET = "none_yet"
    NONE_FOR_LONG = "none_for_long"


FREE: Final = FoundRoom.FREE
NONE_YET: Final = FoundRoom.NONE_YET
NONE_FOR_LONG: Final = FoundRoom.NONE_FOR_LONG


class KnownSensors:
    """The sensors that measure each client-id of one connection, and whether a request waits for what is owed, or for
    room."""

    __slots__ = (
        "_bind",
        "_by_client_id",
        "_client_left",
        "_in_flight",
        "_looked_at",
        "_manager",
        "_paces",
        "_pays",
        "_place",
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
        paces: bool,
    ) -> None:
        """`paces`: Fetches with a quota wait until there is room for what they bring."""
        self._turn = turn
        self._paces = paces
        self._place: Place | None = None
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
        if self._waits_for_debt(head, client_sensors):
            return True
        if not (self._in_flight.waiting and client_sensors.limits_requests and head.answered):
            return False
        if self._times.allowed(head, client_sensors, self._turn.now_ms):
            return False
        self._throttle.reasons |= NO_ROOM
        return True

    def _waits_for_debt(self, head: RequestHead, client_sensors: ClientSensors) -> bool:
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
        is_unpaced_fetch = quota_type is QuotaType.FETCH and not self._paces
        if not throttle_time_ms and is_unpaced_fetch and self._waits_for_unheard(sensor):
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

    # ----------------------------------------------------------------------- room

    def find_room(self, request: Request, most_bytes: int) -> FoundRoom:
        """Reserve room for a Fetch with a quota that asks for so many bytes, or mute its client until there is some."""
        client_sensors, rooms, now_ms = request.client_sensors, self._manager.fetch_rooms, self._turn.now_ms
        assert client_sensors is not None
        assert client_sensors.fetch is not None
        place = self._place_at(client_sensors.fetch)
        wait_ms = rooms.wait_ms(place, most_bytes, now_ms) if place.takes_turns else 0
        if wait_ms:
            left_ms = rooms.left_ms(place, now_ms)
            if left_ms:
                self._pays = True
                self._throttle.throttle(min(wait_ms, left_ms), QuotaType.FETCH, request.head.client_id)
                return NONE_YET
            if request.plan.epoch_at is not None:  # to a ShareFetch nobody but the node can respond
                return NONE_FOR_LONG
            most_bytes = 1
        if wait_ms or not place.takes_turns:
            rooms.grant(place, most_bytes, now_ms)
        request.place = place
        return FREE

    def wait_for_room_anew(self, head: RequestHead) -> None:
        """A Fetch gets a response without data, because there was no room for too long."""
        place, rooms = self._place, self._manager.fetch_rooms
        assert place is not None
        self._throttle.throttle(rooms.wait_anew_ms(place, self._turn.now_ms), QuotaType.FETCH, head.client_id)

    def _place_at(self, sensor: int) -> Place:
        """The place of this connection in the room of a sensor. It has only one: one Fetch is in flight at most."""
        place = self._place
        if place is None or place.room.sensor != sensor:
            self.leave_room()
            place = self._place = self._manager.fetch_rooms.enter(sensor, self._paces)
        return place

    def leave_room(self) -> None:
        """No further Fetch comes."""
        if self._place is not None:
            self._manager.fetch_rooms.leave(self._place)
            self._place = None

    def _waits_for_unheard(self, sensor: int) -> bool:
        """Whether the Fetches in flight whose clients have left may bring more than there is room for.

        The first Fetch of a connection then waits for one window and is looked at again, for `max_throttle_ms` in all.
        Those that are paced wait for what is reserved anyway.
        """
        sensors, unheard_bytes = self._manager.sensors, self._manager.fetch_rooms.unheard_bytes(sensor)
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

    __slots__ = ("_accounting", "_buckets", "_rooms", "_sensors", "_shadows", "_throttle", "_times", "_turn")

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
        self._rooms = manager.fetch_rooms

    def produce(self, request: Request, size_bytes: int) -> int:
        """Charge `size_bytes` of a Produce; return the throttle time in ms."""
        client_sensors = request.client_sensors
        assert client_sensors is not None
        if request.use is not None:
            self._accounting.used(request.use, size_bytes)
        if client_sensors.shadow_produce is not None:
            self.shadow(client_sensors.shadow_produce, request.use, size_bytes)
        if client_sensors.produce is None:
            return 0
        return self._sensors.charge(client_sensors.produce, size_bytes, self._turn.now_ms)

    def came_whole(self, request: Request, size_bytes: int) -> None:
        """Charge a Produce whose last byte is here; its client is muted if that exceeds the quota.

        A broker charges it when its response is ready.
        """
        if throttle_time_ms := self.produce(request, size_bytes):
            throttle = self._throttle
            throttle.throttle(throttle_time_ms, QuotaType.PRODUCE, request.head.client_id, size_bytes)
            if throttle.delayed_since_ms is not None:  # a response before it waits for the end of a shorter throttle
                self._turn.after.append(WakeAt(throttle.next_end_ms))

    def exempt(self, request: Request, sizes_bytes: int, count: int) -> None:
        """Count the time of `count` requests that have no response: no quota limits it."""
        client_sensors = request.client_sensors
        if client_sensors is not None and client_sensors.costs is not None:
            exempt_us = client_sensors.costs.us(request.plan.cost_kind, sizes_bytes, count)
            self._accounting.counters.exempt_us += exempt_us

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
            if request.use is not None:
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
        request time or of bytes gets no data, and is charged none. A response that is not replaced is charged for
        good; if Fetches are paced, it reports until when the next one waits.
        """
        request.charged = True
        client_sensors = request.client_sensors
        if client_sensors is None:
            return False
        may_be_emptied = request.incremental is not None
        over_time = not request.timed and self.time(request, value) > 0
        throttle_time_ms = 0
        if client_sensors.fetch is not None:
            with suppress(StaleSensor):
                throttle_time_ms = self._fetched_bytes(client_sensors.fetch, value, may_be_emptied, over_time)
        if request.place is not None:
            throttle_time_ms = self.room_again_ms(request.place, value, throttle_time_ms)
        is_emptied = may_be_emptied and (over_time or throttle_time_ms > 0)
        if not is_emptied:
            self._accounting.used(request.use, value)
            if client_sensors.shadow_fetch is not None:
                self.shadow_fetch(client_sensors.shadow_fetch, request.use, value)
        if throttle_time_ms:
            used = 0 if is_emptied else value
            self._throttle.throttle_with_responses(throttle_time_ms, QuotaType.FETCH, request.head.client_id, used)
        return is_emptied

    def room_again_ms(self, place: Place, value: int, told_ms: int = 0) -> int:
        """A Fetch that had room is over; for how long the next one waits, `told_ms` at least."""
        self._rooms.came(place, value)
        if place.takes_turns:
            with suppress(StaleSensor):
                return self._rooms.told_ms(place, self._turn.now_ms, told_ms)
        return told_ms

    def expect_fetch(self, request: Request) -> None:
        """Count a Fetch whose client has left with as much as it may bring, until its response is here."""
        if request.place is not None:
            self._rooms.note_left(request.place)

    def free_room(self, request: Request) -> None:
        """A Fetch brings nothing more, or never reaches the node."""
        if request.place is not None:
            self._rooms.release(request.place)

    def unheard_fetch(self, request: Request, value: int) -> None:
        """Charge `value` for a Fetch whose client has left, when its response is known, or no longer waited for."""
        client_sensors = request.client_sensors
        assert client_sensors is not None
        if request.place is not None:
            self._rooms.came(request.place, value)
        if not value:
            return
        self._accounting.used(request.use, value)
        if client_sensors.shadow_fetch is not None:
            self.shadow_fetch(client_sensors.shadow_fetch, request.use, value)
        if client_sensors.fetch is not None:
            with suppress(StaleSensor):
                self._sensors.charge(client_sensors.fetch, value, self._turn.now_ms)

    def _fetched_bytes(self, sensor: int, value: int, may_be_emptied: bool, over_time: bool) -> int:
        """Charge the bytes that were fetched, if they go out; return the throttle time in ms."""
        sensors, now_ms = self._sensors, self._turn.now_ms
        if not may_be_emptied:
            return sensors.charge(sensor, value, now_ms)
        throttle_time_ms = sensors.charge_if_within(sensor, value, now_ms)
        if over_time and not throttle_time_ms:
            sensors.give_back(sensor, value, now_ms)
        return throttle_time_ms
