"""Relays, and gates before them, with a bug put in on purpose, each around a sound one: what the simulator must find.

They change what goes into a relay and what comes out of it, so they do not depend on how it is made. Parts of the gate,
and the timeouts, are attributes: `admission`, `gate`, `pool`, `make_timeouts`.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts
from kafka_throttle.proxy.decisions.sasl import Identity
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.gate.admission import Admission, ClusterRules, ConnectionSlot, OnHold, Refused
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.gate.fair_pool import FairPool
from kafka_throttle.proxy.relay.actions import (
    Action,
    Close,
    CloseReason,
    Decision,
    DecisionKind,
    DecisionRequest,
    Exchange,
    Pause,
    RelayLimits,
    Resume,
    Send,
    WakeAt,
)
from kafka_throttle.proxy.relay.charging import Bind
from kafka_throttle.proxy.relay.connection_timeouts import ConnectionTimeouts, TimeOuts, Waiting, WaitingFor
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas, ListenerKey
from kafka_throttle.quotas.fetch_rooms import FetchRooms, Place, Room
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.simulation.plan import AMPLE_SENSORS, WorldPlan

CLIENT, NODE = Side.CLIENT, Side.NODE
Piece = bytes | memoryview


def _anywhere(world: WorldPlan) -> bool:
    return True


def _about_topics(world: WorldPlan) -> bool:
    """Some are refused topics, perhaps."""
    limited = any(quota.mutation for quota in world.quotas)
    return limited and any(request.topics for party in world.connections for request in party.requests())


def _without_topics(world: WorldPlan) -> bool:
    return not _about_topics(world)


def _with_other_ids(world: WorldPlan) -> bool:
    return any(request.response.kind == "other_id" for party in world.connections for request in party.requests())


def _with_unknown_versions(world: WorldPlan) -> bool:
    """Those of ApiVersions, to which the proxy responds."""
    return any(
        request.api_key == 18 and request.version > 4 for party in world.connections for request in party.requests()
    )


def _crowded(world: WorldPlan) -> bool:
    """The table of sensors may be full."""
    return world.sensors < AMPLE_SENSORS


def _withholding(world: WorldPlan) -> bool:
    return world.withholds


def _delaying(world: WorldPlan) -> bool:
    return world.delays


def _with_readers(world: WorldPlan) -> bool:
    """They share a fetch quota."""
    return any(quota.client_id == "reader" for quota in world.quotas)


def _with_storms(world: WorldPlan) -> bool:
    return bool(world.storms)


def _with_time_outs(world: WorldPlan) -> bool:
    return any(world.time_outs)


class Mutant:
    """Hands everything through to a sound relay; subclasses change something on the way, which `shows_in` such worlds
    if it does.
    """

    shows_in: Callable[[WorldPlan], bool] = staticmethod(_anywhere)

    def __init__(
        self, quota_manager: ClientQuotaManager, counters: RelayCounters, limits: RelayLimits, bind: Bind
    ) -> None:
        self.sound = Relay(self.seen_manager(quota_manager), counters, limits, bind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return quota_manager

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        return actions

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        return self.changed(self.sound.on_bytes(side, data, now_us), now_us)

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        return self.changed(self.sound.on_decision(ticket, decision, now_us), now_us)

    def on_time(self, now_us: int) -> list[Action]:
        return self.changed(self.sound.on_time(now_us), now_us)

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        return self.changed(self.sound.on_writable(side, now_us), now_us)

    def on_blocked(self, side: Side) -> list[Action]:
        return self.changed(self.sound.on_blocked(side), 0)

    def on_eof(self, side: Side, now_us: int) -> list[Action]:
        return self.changed(self.sound.on_eof(side, now_us), now_us)


def _frames(pieces: Sequence[Piece]) -> list[bytes] | None:
    """What is sent, as whole frames; None if it is anything else."""
    data, frames = b"".join(pieces), []
    while data:
        size = int.from_bytes(data[:4], "big") + 4
        if len(data) < size:
            return None
        frames.append(data[:size])
        data = data[size:]
    return frames


class ResponsesOutOfOrder(Mutant):
    """Of two responses that come at once the second goes out first."""

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        for action in actions:
            if isinstance(action, Send) and action.side is CLIENT:
                frames = _frames(action.pieces)
                if frames and len(frames) > 1:
                    action.pieces = [frames[1], frames[0], *frames[2:]]
        return actions


class EndlessMute(Mutant):
    """The wish to be woken gets lost when other actions come with it."""

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        return [action for action in actions if not isinstance(action, WakeAt)]


class LostPartialFrame(Mutant):
    """The beginning of a request is forgotten if it is too short to be judged."""

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        if side is CLIENT and len(data) < 4 and not self.sound.held_bytes and self.sound.idle:
            return []
        return super().on_bytes(side, data, now_us)


class _Changed:
    """An object with some attributes changed."""

    def __init__(self, of: object, **changes: Any) -> None:
        self._of = of
        vars(self).update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _of_listener(facts: ConnectionFacts, **changes: Any) -> Any:
    """The same facts with other ones of the listener."""
    return _Changed(facts, listener=_Changed(facts.listener, **changes))


class UnchargedFrameOfARun(Mutant):
    """Of several equal frames that are charged together one is left out."""

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        sensors: Sensors = quota_manager.sensors

        def charge_unthrottled(handle: int, value: float, charges: int, now_ms: int) -> bool:
            counted = value - value // charges if charges > 1 else value
            return sensors.charge_unthrottled(handle, counted, charges, now_ms)

        return _Changed(quota_manager, sensors=_Changed(sensors, charge_unthrottled=charge_unthrottled))


class ChargedToAnother(Mutant):
    """In a full table, the bytes of a client are charged to the sensor of another one."""

    shows_in = staticmethod(_crowded)

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        sensors: Any = quota_manager.sensors
        seen: dict[int, None] = {}

        def of_another(handle: int) -> int:
            seen[handle] = None
            return next(other for other in seen if sensors.is_open(other))

        def charge(handle: int, value: float, now_ms: int) -> int:
            return sensors.charge(of_another(handle), value, now_ms)

        def charge_unthrottled(handle: int, value: float, charges: int, now_ms: int) -> bool:
            return sensors.charge_unthrottled(of_another(handle), value, charges, now_ms)

        return _Changed(quota_manager, sensors=_Changed(sensors, charge=charge, charge_unthrottled=charge_unthrottled))


class AbandonedRequestsAreFree(Mutant):
    """When a client goes amid a Produce, what has come of it is not charged."""

    _ends = False

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        sensors: Sensors = quota_manager.sensors

        def charge(handle: int, value: float, now_ms: int) -> int:
            return 0 if self._ends else sensors.charge(handle, value, now_ms)

        return _Changed(quota_manager, sensors=_Changed(sensors, charge=charge))

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        self._ends = True
        return self.sound.on_lost(reason, detail, now_us)


class WhoHangsUpIsFree(Mutant):
    """Fetches that are in flight when their client leaves are not charged."""

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        sensors: Sensors = quota_manager.sensors

        def charge(handle: int, value: float, now_ms: int) -> int:
            return 0 if self.sound.unsettled else sensors.charge(handle, value, now_ms)

        return _Changed(quota_manager, sensors=_Changed(sensors, charge=charge))


class StaleQuota(Mutant):
    """A quota change is not noticed by clients that are bound already."""

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return _Changed(quota_manager, renews=lambda client_sensors: True)


class DelayForgotten(Mutant):
    """Responses that must be delayed go out at once."""

    shows_in = staticmethod(_delaying)

    def __init__(
        self, quota_manager: ClientQuotaManager, counters: RelayCounters, limits: RelayLimits, bind: Bind
    ) -> None:
        super().__init__(quota_manager, counters, replace(limits, delays=False), bind)


class HeldResponseLostAtTheEnd(Mutant):
    """Responses that are delayed when the connection is given up do not go out."""

    shows_in = staticmethod(_delaying)

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        actions = self.sound.on_lost(reason, detail, now_us)
        return [action for action in actions if not isinstance(action, Send)]


class EmptyFetchAndCharged(Mutant):
    """Data that a client over its quota does not get is charged all the same."""

    shows_in = staticmethod(_withholding)

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return _Changed(
            quota_manager, sensors=_Changed(quota_manager.sensors, charge_if_within=quota_manager.sensors.charge)
        )


class _OtherRooms(Mutant):
    """Fetches with a quota find other rooms."""

    shows_in = staticmethod(_with_readers)

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return _Changed(quota_manager, fetch_rooms=self.seen_rooms(quota_manager.fetch_rooms))

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        raise NotImplementedError


class NothingIsReserved(_OtherRooms):
    """A Fetch in flight leaves all the room to others."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        def wait_ms(place: Place, most_bytes: int, now_ms: int) -> int:
            found = rooms.wait_ms(place, most_bytes, now_ms)
            if not found:
                place.room.reserved, place.reserved = place.room.reserved - place.reserved, 0.0
            return found

        return _Changed(rooms, wait_ms=wait_ms)


class OthersAreOverlooked(_OtherRooms):
    """A Fetch is granted what others have reserved."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        def free(place: Place, now_ms: int) -> float:
            return FetchRooms._free(rooms, place, now_ms) + place.room.reserved

        vars(rooms)["_free"] = free
        return rooms


class TurnNeverEnds(_OtherRooms):
    """A turn that was taken goes on to keep room from others."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        def end_turn(place: Place) -> None:
            place.turn = -1.0

        vars(rooms)["_end_turn"] = end_turn
        return rooms


class NobodyIsTold(_OtherRooms):
    """A response does not say how long the next Fetch waits for room."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        return _Changed(rooms, told_ms=lambda place, now_ms, told_ms=0: told_ms + 0 * rooms.told_ms(place, now_ms))


class AnsweredAtOnce(_OtherRooms):
    """A Fetch that would have to wait gets a response without data at once."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        return _Changed(rooms, left_ms=lambda place, now_ms: 0 * rooms.left_ms(place, now_ms))


class WaitsWithoutEnd(_OtherRooms):
    """A Fetch that finds no room gets no response, however long it has waited."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        return _Changed(rooms, left_ms=lambda place, now_ms: max(rooms.left_ms(place, now_ms), 1000))


class RoomStaysReserved(_OtherRooms):
    """What idle Fetches may bring is kept from others for as long as they wait."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        vars(rooms)["_give_back"] = lambda room, now_ms: None
        return rooms


class WindowForABucket(_OtherRooms):
    """Fetches that are paced bring what the window has left, and then nothing for as long."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        def fill(room: Room, now_ms: int) -> None:
            room.tokens = inf
            FetchRooms._fill(rooms, room, now_ms)

        vars(rooms)["_fill"] = fill
        return rooms


class PartsOfBatches(_OtherRooms):
    """A Fetch asks for all that there is room for, though a large part of that comes in vain."""

    def seen_rooms(self, rooms: FetchRooms) -> Any:
        vars(rooms)["_asked"] = lambda place, granted: granted
        return rooms


class LostSessionStaysOpen(Mutant):
    """A session of the node that its client does not know of is not closed."""

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return quota_manager

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        self.sound._in_flight.lost_session = 0
        return actions


class ThrottleOnlyInTheFirstResponse(Mutant):
    """Of several responses that go out together only the first gets its throttle time."""

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        for action in actions:
            if isinstance(action, Send) and action.side is CLIENT:
                patches = [i for i, piece in enumerate(action.pieces) if len(piece) == 4]
                pieces = list(action.pieces)
                for i in patches[1:]:
                    pieces[i] = bytes(4)
                action.pieces = pieces
        return actions


class ResumeLostAfterABlock(Mutant):
    """The node is not read again once the client has caught up."""

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        actions = super().on_writable(side, now_us)
        return [action for action in actions if not (isinstance(action, Resume) and side is CLIENT)]


class UnboundedBuffer(Mutant):
    """A node that takes nothing does not stop the reading of its client."""

    def on_blocked(self, side: Side) -> list[Action]:
        actions = super().on_blocked(side)
        return [action for action in actions if not (isinstance(action, Pause) and side is NODE)]


class OwnResponseTooEarly(Mutant):
    """A response of the proxy's own overtakes what came with it."""

    shows_in = staticmethod(_with_unknown_versions)

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        for action in actions:
            if isinstance(action, Send) and action.side is CLIENT:
                pieces = list(action.pieces)
                action.pieces = sorted(pieces, key=lambda piece: not (len(piece) == 20 and piece[8:10] == b"\0\x23"))
        return actions


class OneByteShort(Mutant):
    """A run ends one byte too early; that byte goes out with the next one."""

    shows_in = staticmethod(_without_topics)

    def __init__(
        self, quota_manager: ClientQuotaManager, counters: RelayCounters, limits: RelayLimits, bind: Bind
    ) -> None:
        super().__init__(quota_manager, counters, limits, bind)
        self._kept = b""

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        for action in actions:
            if isinstance(action, Send) and action.side is NODE:
                data = self._kept + b"".join(action.pieces)
                frames = _frames([data])
                short = frames is not None and len(frames) > 1
                self._kept = data[-1:] if short else b""
                action.pieces = [data[:-1] if short else data]
        return actions


class AnyCorrelationId(Mutant):
    """A response is taken for the one that is due, whatever id it has."""

    shows_in = staticmethod(_with_other_ids)

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        in_flight = self.sound._in_flight.queue
        if (
            side is NODE
            and len(data) >= 8
            and in_flight
            and not self.sound.held_bytes
            and not self.sound._responses.amid
        ):
            in_flight[0].correlation_id = int.from_bytes(data[4:8], "big", signed=True)
        return super().on_bytes(side, data, now_us)


class HangUpForgetsTheRest(Mutant):
    """What a muted client sent before it hung up is not carried."""

    def on_eof(self, side: Side, now_us: int) -> list[Action]:
        actions = super().on_eof(side, now_us)
        closed = any(isinstance(action, Close) for action in actions)
        return actions if side is NODE or closed else [*actions, *self.sound.on_lost(CloseReason.CLIENT_CLOSED)]


class OwnRequestReportedToTheClient(Mutant):
    """Responses to the proxy's own requests go to the client, too."""

    def changed(self, actions: list[Action], now_us: int) -> list[Action]:
        own_responses = [
            frame for action in actions if isinstance(action, DecisionRequest) for frame in action.own_responses
        ]
        return [*actions, Send(CLIENT, own_responses)] if own_responses else actions


class RefusalsLast(Mutant):
    """Refused topics are last in the response, whatever the order of the request was."""

    shows_in = staticmethod(_about_topics)

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        note: Any = ask.note
        if note is not None:
            order = sorted(range(len(note.request.items)), key=lambda i: i in note.refused)
            items = [note.request.items[i] for i in order]
            charges = replace(note.charges, numbers=array("I", map(order.index, note.charges.numbers)))
            refused = {order.index(i): note.refused[i] for i in note.refused}
            request = replace(note.request, items=items)
            ask = replace(ask, note=replace(note, request=request, charges=charges, refused=refused))
        return decide(ask, facts, now_ms)


class TokensNotGivenBack(Mutant):
    """What a node did not do stays charged."""

    shows_in = staticmethod(_about_topics)

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        real = facts.listener.quota_manager
        quota_manager: Any = _Changed(real, buckets=_Changed(real.buckets, give_back=lambda *_: None))
        return decide(ask, _of_listener(facts, quota_manager=quota_manager), now_ms)


class TokensNotSpent(Mutant):
    """With full tables, topics cost no tokens."""

    @staticmethod
    def shows_in(world: WorldPlan) -> bool:
        return _crowded(world) and _about_topics(world)

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        real = facts.listener.quota_manager
        changes = {name: lambda *_: None for name in ("spend_strictly", "spend_permissively")}
        quota_manager: Any = _Changed(real, buckets=_Changed(real.buckets, **changes))
        return decide(ask, _of_listener(facts, quota_manager=quota_manager), now_ms)


class CorrectionsLostWithTheClient(Mutant):
    """What a node did not do stays charged if the client has gone before the response."""

    shows_in = staticmethod(_about_topics)
    unsettled = False


class RefusalWithoutMute(Mutant):
    """A client whose topics are all refused is not muted."""

    shows_in = staticmethod(_about_topics)

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        reported = replace(decision, throttle_time_ms=0) if decision.response is not None else decision
        return super().on_decision(ticket, reported, now_us)


class RefusedTopicsSentOn(Mutant):
    """The node gets refused topics, too."""

    shows_in = staticmethod(_about_topics)

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        reported = replace(decision, splices=()) if decision.refused else decision
        return super().on_decision(ticket, reported, now_us)


class StrictTooEarly(Mutant):
    """Topics are refused in a version whose clients do not know that error."""

    shows_in = staticmethod(_about_topics)

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        early = ask.kind is DecisionKind.MUTATION and (ask.api_key, ask.api_version) == (19, 5)
        return decide(replace(ask, api_version=6) if early else ask, facts, now_ms)


class ValidationCharged(Mutant):
    """Requests that are only to be validated cost tokens although the settings say otherwise."""

    shows_in = staticmethod(_about_topics)

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        return decide(ask, _of_listener(facts, charge_validate_only=True), now_ms)


class FailedAlterationReportedAsDone(Mutant):
    """Alterations are reported as written before that is sure."""

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        decision = decide(ask, facts, now_ms)
        if not isinstance(decision, QuotaAlteration):
            return decision
        return replace(decision, reply=lambda results: decision.reply([None] * len(results)))


class AlterationLost(Mutant):
    """Of an alteration with several entities the last one is not written."""

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Decision | QuotaAlteration:
        decision = decide(ask, facts, now_ms)
        if not isinstance(decision, QuotaAlteration):
            return decision
        *others, last = decision.alterations
        return replace(decision, alterations=(*others, replace(last, limits={})))


# -------------------------------------------------------------------- at the gate


class RefusedStillCount(Mutant):
    """Connections that their address may not have count for the rates of listener and instance."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        def __init__(self, quotas: ConnectionQuotas, max_held: int) -> None:
            super().__init__(quotas, max_held)
            vars(quotas)["take_back"] = lambda key, now_ms: None


class HeldWithoutBound(Mutant):
    """An address may have any number of sockets held."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        def set_rules(self, virtual_cluster: str, rules: ClusterRules) -> None:
            super().set_rules(virtual_cluster, replace(rules, max_held=10**9))


class LaterConnectionOvertakes(Mutant):
    """A later connection is decided about before those of its address that queue."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        def admit(
            self, key: ListenerKey, ticket: Any, address: str, now_ms: int, measured: bool = True
        ) -> ConnectionSlot | OnHold | Refused:
            rules = self._rules[key.virtual_cluster]
            self.set_rules(key.virtual_cluster, replace(rules, waits=False))
            reported = super().admit(key, ticket, address, now_ms)
            self.set_rules(key.virtual_cluster, rules)
            return reported


class NeighboursShareARate(Mutant):
    """Neighbours count as one address, although the prefix is not set."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        def origin_of(self, virtual_cluster: str, address: str) -> str:
            return super().origin_of(virtual_cluster, address.replace("10.0.0.", "10.0.1."))


class SlotNeverFree(Mutant):
    """A connection that ends before its address is known keeps its slot."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        _admits = False

        def give_up(self, key: ListenerKey) -> None:
            if self._admits:
                super().give_up(key)

        def admit(
            self, key: ListenerKey, ticket: Any, address: str, now_ms: int, measured: bool = True
        ) -> ConnectionSlot | OnHold | Refused:
            self._admits = True
            reported = super().admit(key, ticket, address, now_ms)
            self._admits = False
            return reported


class UserCountedForEver(Mutant):
    """A user's connections count after their end, too."""

    shows_in = staticmethod(_with_storms)

    class admission(Admission[Any]):
        def left(self, place: ConnectionSlot) -> None:
            place.user = None
            super().left(place)


class GateAsleep(Mutant):
    """When a slot becomes free, no waiting connection gets it."""

    shows_in = staticmethod(_with_storms)

    class gate(ConnectionGate):
        def _slot_is_free(self) -> None:
            pass


class OldestLeavesAFullStage(Mutant):
    """The oldest connection in a full stage leaves it for others, whatever its origin."""

    shows_in = staticmethod(_with_storms)

    class pool(FairPool[Any]):
        def victim_for(self, origin: str) -> Any:
            return next(iter(self), None)


# ------------------------------------------------------------------------- logins


class ClaimIsEnough(Mutant):
    """A client that names a user is that user before the node has accepted it."""

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Any:
        decision = decide(ask, facts, now_ms)
        if ask.kind is DecisionKind.SASL and ask.side is CLIENT and facts.login._claimed:
            facts.become(Identity(facts.login._claimed, "", visible=True))
        return decision


class FailureIsForgotten(Mutant):
    """A client that fails to log in again has no user."""

    def decide(self, ask: DecisionRequest, facts: ConnectionFacts, now_ms: int) -> Any:
        decision = decide(ask, facts, now_ms)
        if isinstance(decision, Decision) and decision.exchange is Exchange.FAILED:
            facts.become(Identity("ANONYMOUS", "", visible=True))
        return decision


class LoginNotRequired(Mutant):
    """Requests pass before a login has succeeded."""

    def __init__(
        self, quota_manager: ClientQuotaManager, counters: RelayCounters, limits: RelayLimits, bind: Bind
    ) -> None:
        super().__init__(quota_manager, counters, replace(limits, authenticates=False), bind)


# ---------------------------------------------------------------------- time-outs


class _OtherRoom(Mutant):
    """A quota of request time is taken to have `room` for so much, in its unit, whatever is charged."""

    room: float

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        return _Changed(
            quota_manager, request_sensors=_Changed(quota_manager.request_sensors, room=lambda *_: self.room)
        )


class RoomForAll(_OtherRoom):
    room = inf


class NoRoom(_OtherRoom):
    room = 0.0


class RoomNeverBack(Mutant):
    """What was reserved for a request of an authentication stays reserved."""

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        kept = self._time_in_flight
        before = dict(kept) if decision.exchange is not None else {}
        actions = super().on_decision(ticket, decision, now_us)
        for sensor, percent in before.items():
            kept[sensor] = max(percent, kept.get(sensor, 0.0))
        return actions

    def seen_manager(self, quota_manager: ClientQuotaManager) -> Any:
        self._time_in_flight = quota_manager.time_in_flight
        return quota_manager


class BlameForOurWaits(Mutant):
    """While the proxy does not read a client, this counts as the client's silence."""

    shows_in = staticmethod(_with_time_outs)

    class make_timeouts(ConnectionTimeouts):
        def note_held_up(self) -> None:
            pass


class DribblingIsProgress(Mutant):
    """A request that comes byte by byte may take for ever."""

    shows_in = staticmethod(_with_time_outs)

    class make_timeouts(ConnectionTimeouts):
        def look(
            self, relay: Waiting, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
        ) -> CloseReason | None:
            return super().look(relay, unsent_bytes, written_bytes, step_ms, replace(time_outs, request_ms=0))


class SlowResponsesAreIdle(Mutant):
    """A client that waits for a response is taken for one that is idle."""

    shows_in = staticmethod(_with_time_outs)

    class make_timeouts(ConnectionTimeouts):
        def look(
            self, relay: Waiting, unsent_bytes: int, written_bytes: int, step_ms: int, time_outs: TimeOuts
        ) -> CloseReason | None:
            waiting_for = WaitingFor.USE if relay.waiting_for is WaitingFor.NOTHING else relay.waiting_for
            seen: Any = _Changed(relay, waiting_for=waiting_for)
            return super().look(seen, unsent_bytes, written_bytes, step_ms, time_outs)


MUTANTS = {
    ResponsesOutOfOrder: "other bytes to the client",
    EndlessMute: "to be woken at None",
    LostPartialFrame: "",
    UnchargedFrameOfARun: "charge",
    ChargedToAnother: "is not charged",
    AbandonedRequestsAreFree: "is not charged",
    WhoHangsUpIsFree: "nobody was charged",
    StaleQuota: "",
    DelayForgotten: "",
    HeldResponseLostAtTheEnd: "",
    EmptyFetchAndCharged: "taken back",
    NothingIsReserved: "is lacking",
    OthersAreOverlooked: "is lacking",
    TurnNeverEnds: "are right",
    NobodyIsTold: "other bytes to the client",
    AnsweredAtOnce: "gets no data though it has not waited",
    WaitsWithoutEnd: "held back for no reason",
    RoomStaysReserved: "waits though there is room for",
    WindowForABucket: "is lacking",
    PartsOfBatches: "bytes are granted",
    LostSessionStaysOpen: "other bytes to the node",
    ThrottleOnlyInTheFirstResponse: "other bytes to the client",
    ResumeLostAfterABlock: "the node is not read",
    UnboundedBuffer: "the client is read though the node takes nothing",
    OwnResponseTooEarly: "",
    OneByteShort: "held back",
    AnyCorrelationId: "wrong response",
    HangUpForgetsTheRest: "closes for client_closed",
    OwnRequestReportedToTheClient: "",
    RefusalsLast: "other bytes to the client",
    TokensNotGivenBack: "tokens are not given back",
    TokensNotSpent: "tokens are not spent",
    CorrectionsLostWithTheClient: "the node is read on",
    RefusalWithoutMute: "",
    RefusedTopicsSentOn: "other bytes to the node",
    StrictTooEarly: "",
    ValidationCharged: "other bytes to the node",
    FailedAlterationReportedAsDone: "reports of its alterations",
    AlterationLost: "the quotas are",
    RefusedStillCount: "may go on",
    HeldWithoutBound: "too_many_held is right",
    LaterConnectionOvertakes: "",
    NeighboursShareARate: "",
    SlotNeverFree: "",
    UserCountedForEver: "",
    GateAsleep: "waits for ever",
    OldestLeavesAFullStage: "leaves a stage",
    ClaimIsEnough: "",
    FailureIsForgotten: "",
    LoginNotRequired: "",
    RoomForAll: "more are in flight than the quota has room for",
    NoRoom: "waits though there is room",
    RoomNeverBack: "room is reserved",
    BlameForOurWaits: "nothing is right",
    DribblingIsProgress: "request_timeout is right",
    SlowResponsesAreIdle: "nothing is right",
}
"""Each with a part of the failure that it must cause; empty where that depends on what is hit first."""
