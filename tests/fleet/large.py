"""Large fleets: what claims cost at ZooKeeper, how fast they converge, and where ZooKeeper should give way."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Final

from tests.fleet.figures import overshoot_s
from tests.fleet.plan import GREEDY, Entity, Fault, Load, Plan
from tests.fleet.world import Outcome, World
from tests.live_fleet.figures import SETTLED_AFTER_S, jain, max_min

SECONDS: Final = 120
BEGIN_MS: Final = 15_000
"""When the clients come: after the instances know each other."""
SHIFT_MS: Final = 60_000
"""When a part of the load moves to other instances."""
_BEGIN_S: Final = BEGIN_MS // 1000

_SAMPLED: Final = 60
_REQUEST_S: Final = 0.25


@dataclass(frozen=True)
class LargeFigures:
    """What a large fleet came to. Rates are means over the time after the first bursts; the peak is one second's."""

    instances: int
    entities: int
    what: str
    read_bytes_per_second: float
    peak_read_bytes: int
    written_bytes_per_second: float
    writes_per_second: float
    operations_per_second: float
    largest_document_bytes: int
    fair_s_median: float | None
    fair_s_worst: float | None
    unfair: int
    overshoot_s: float
    jain: float
    cpu_ms_per_instance_second: float
    broken: str | None


def _flapping(instances: int) -> list[Fault]:
    """Every 5 s an instance is killed, and begins again 2 s later."""
    return [Fault(at_ms, "kill", number % instances, 2000) for number, at_ms in enumerate(range(30_000, 110_000, 5000))]


def _partition(instances: int) -> list[Fault]:
    """A tenth of the instances is cut off for half a minute."""
    return [Fault(SHIFT_MS + 15_000, "cut", number, 30_000) for number in range(max(instances // 10, 1))]


FAULTS: Final[dict[str, Callable[[int], list[Fault]]]] = {
    "loss and delay": lambda _: [],
    "flapping": _flapping,
    "partition": _partition,
    "election": lambda _: [Fault(SHIFT_MS + 15_000, "down", 0, 10_000)],
}
"""What can go wrong in a large fleet, by name."""


def plan(instances: int, entities: int, seed: int = 1, seconds: int = SECONDS, fault: str = "") -> Plan:
    """Each entity is used at one to four instances, by a Zipf law of how much it wants; a tenth of them move.

    The first tenth of the entities wants more than its limit at each of its instances, the others less and less of
    it, down to a hundredth.
    """
    rng = Random(seed)
    loads = []
    for entity in range(entities):
        places = rng.sample(range(instances), min(rng.choice((1, 2, 3, 4)), instances))
        wanted = 0.9 * (entities / 10) / (entity + 1) if entity >= entities / 10 else GREEDY
        moves = rng.random() < 0.1
        for place in places:
            rate = wanted if wanted >= GREEDY else max(wanted, 0.01) / len(places)
            # Who wants little sends at least once a second: one large request in many seconds would be no demand.
            request_s, connections = min(_REQUEST_S, rate), 2 if rate >= GREEDY else 1
            load = Load(entity, place, rate, connections, BEGIN_MS + rng.randrange(1000), request_s=request_s)
            if moves:
                loads.append(replace(load, until_ms=SHIFT_MS))
                loads.append(replace(load, instance=(place + 1) % instances, from_ms=SHIFT_MS))
            else:
                loads.append(load)
    is_lossy = fault == "loss and delay"
    return Plan(
        seconds,
        instances,
        (Entity(1e6, "producer_byte_rate"),) * entities,
        tuple(loads),
        tuple(FAULTS[fault](instances)) if fault else (),
        seed,
        latency_ms=20.0 if is_lossy else 1.0,
        loss=0.01 if is_lossy else 0.0,
    )


def sampled(made: Plan) -> list[int]:
    """Entities that are looked at closely: greedy ones and others, moved ones and others."""
    count = len(made.entities)
    step = max(count // _SAMPLED, 1)
    return list(range(0, count, step))


def measure(made: Plan, what: str = "") -> LargeFigures:
    """Run a large plan."""
    entities = sampled(made)
    world = World(made, judged=entities, judged_each_ms=1000)
    begin = time.process_time()
    outcome = world.run()
    cpu_s = time.process_time() - begin
    traffic, from_s = outcome.traffic, _BEGIN_S + SETTLED_AFTER_S
    seconds = range(from_s, made.seconds)
    operations = sum(traffic.operations.values()) / made.seconds
    moved = {load.entity for load in made.loads if load.from_ms == SHIFT_MS}
    times = [_fair_after_s(outcome, entity) for entity in entities if entity in moved or not made.faults]
    reached = sorted(time for time in times if time is not None)
    return LargeFigures(
        made.instances,
        len(made.entities),
        what,
        sum(traffic.bytes_out[second] for second in seconds) / len(seconds),
        max(traffic.bytes_out[second] for second in seconds),
        sum(traffic.bytes_in[second] for second in seconds) / len(seconds),
        sum(traffic.writes[second] for second in seconds) / len(seconds),
        operations,
        traffic.largest_bytes,
        median(reached) if reached else None,
        reached[-1] if reached else None,
        len(times) - len(reached),
        _worst_overshoot_s(made, outcome, entities),
        _least_jain(made, outcome, entities),
        cpu_s * 1000 / made.instances / made.seconds,
        outcome.broken,
    )


def _demands(loads: Sequence[Load], instances: int, at_ms: int) -> list[float]:
    demands = [0.0] * instances
    for load in loads:
        if load.from_ms <= at_ms < load.until_ms:
            demands[load.instance] += load.rate
    return demands


def _fair_after_s(outcome: Outcome, entity: int) -> float | None:
    """How long after the shift each instance has its fair share of this entity, but for a tenth."""
    made = outcome.plan
    loads = [load for load in made.loads if load.entity == entity]
    fair = max_min(_demands(loads, made.instances, SHIFT_MS), 1.0)
    wanting = {number: share for number, share in enumerate(fair) if share}
    after_ms = outcome.shares[entity].fair_after_ms(SHIFT_MS, made.seconds * 1000, wanting)
    return None if after_ms is None else after_ms / 1000


def _worst_overshoot_s(made: Plan, outcome: Outcome, entities: Sequence[int]) -> float:
    """The most that one of these entities got more than at a single instance, in any 60 s."""
    numbers = {entity: number for number, entity in enumerate(entities)}
    loads = tuple(
        replace(load, entity=numbers[load.entity], instance=0) for load in made.loads if load.entity in numbers
    )
    few = tuple(made.entities[entity] for entity in entities)
    alone = World(replace(made, instances=1, entities=few, loads=loads, faults=())).run()
    return max(
        overshoot_s(outcome.units(entity)[_BEGIN_S:], alone.units(number)[_BEGIN_S:], made.entities[entity].limit)
        for entity, number in numbers.items()
    )


def _least_jain(made: Plan, outcome: Outcome, entities: Sequence[int]) -> float:
    """The least even division of a greedy entity among its instances, from the shift on."""
    least = 1.0
    for entity in entities:
        demands = _demands([load for load in made.loads if load.entity == entity], made.instances, SHIFT_MS)
        greedy = [number for number, demand in enumerate(demands) if demand >= GREEDY]
        if len(greedy) > 1:
            begin = SHIFT_MS // 1000 + 15
            least = min(least, jain([sum(outcome.units_at(entity, number)[begin:]) for number in greedy]))
    return least
