"""From a trace to demand: what clients wanted of a sensor, with the throttling that was recorded taken out.

A trace does not tell connections. They are told apart by their mutes: while a lane is muted nothing more comes from it,
so what comes nevertheless is another lane's. What comes within HELD_MS of the end of a lane's mute was waiting for it,
here or in the client: as demand it came when the mute began. With the quotas that were in force, the replay gives each
request its own time again, and so the same throttle times.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from kafka_throttle.pipeline.simulate.backlog import HELD_MS, Client
from kafka_throttle.pipeline.simulate.replay import Demand, Lane
from kafka_throttle.quotas.records.trace import NO_USE, Operation
from kafka_throttle.quotas.records.usage_record import TraceEvent

_WANTS_MORE = frozenset(
    {Operation.CHARGE, Operation.CHARGE_IF_WITHIN, Operation.SPEND, Operation.SPEND_STRICTLY, Operation.CONNECT}
)
"""What makes a client wait that would have gone on."""


@dataclass(slots=True)
class _LiveLane:
    """A lane as it went live."""

    lane: Lane
    muted_ms: int = -(2**62)
    free_ms: int = -(2**62)
    used_ms: int = -(2**62)

    def holds(self, at_ms: int) -> bool:
        return self.used_ms <= self.muted_ms and 0 <= at_ms - self.free_ms <= HELD_MS


@dataclass(slots=True)
class TracedClient:
    """The lanes of one client at one sensor, made from its events in their order."""

    client: Hashable
    kind: Client = Client.PACED
    _lanes: list[_LiveLane] = field(default_factory=list)

    def add(self, event: TraceEvent) -> tuple[Lane, Demand] | None:
        """The next event as the demand of one of its lanes; None for one that is no use of the sensor."""
        operation = _operation(event)
        if operation is None or operation in NO_USE or event.shadow:
            return None
        live = self._lane_of(event)
        held = live.holds(event.at_ms) and operation != Operation.GIVE_BACK
        demand = Demand(event.at_ms, event.value, event.sequence, event.count, operation=operation)
        if operation == Operation.CHARGE_IF_WITHIN:
            demand.insists = not event.throttle_ms
            demand.is_retried = self.kind is Client.PACED and event.throttle_ms > 0
        if held:
            demand.lag_ms = event.at_ms - live.free_ms
            if self.kind is Client.PACED:
                demand.due_ms = live.muted_ms
        live.used_ms = event.at_ms
        if event.throttle_ms:
            live.muted_ms, live.free_ms = event.at_ms, event.at_ms + event.throttle_ms
            if self.kind is Client.GREEDY and demand.operation in _WANTS_MORE:
                demand.greedy_until_ms = live.free_ms
        return live.lane, demand

    def _lane_of(self, event: TraceEvent) -> _LiveLane:
        at_ms = event.at_ms
        free = [live for live in self._lanes if live.free_ms <= at_ms]
        held = [live for live in free if live.holds(at_ms)]
        if held:
            return max(held, key=lambda live: live.free_ms)
        if event.operation == Operation.GIVE_BACK and self._lanes:
            return max(self._lanes, key=lambda live: live.used_ms)
        if free:
            return max(free, key=lambda live: live.used_ms)
        self._lanes.append(_LiveLane(Lane(self.client)))
        return self._lanes[-1]


def _operation(event: TraceEvent) -> str:
    """What is done."""
    return Operation.CHARGE if event.operation == Operation.RUN else event.operation


def in_order(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Each event once, in the order in which they were done."""
    return list({event.sequence: event for event in sorted(events, key=lambda event: event.sequence)}.values())
