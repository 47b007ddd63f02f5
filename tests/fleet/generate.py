"""A random plan for a seed: what clients want, and what goes wrong; the end of each plan is quiet."""

from dataclasses import replace
from random import Random
from typing import Final

from tests.fleet.ensemble import EnsemblePlan
from tests.fleet.plan import GREEDY, Entity, Fault, Load, Plan

QUIET_S: Final = 40
"""Nothing changes and nothing goes wrong in the last seconds of a plan, so that it can be judged where it leads."""

_ENTITIES: Final = (
    Entity(1e6, "producer_byte_rate"),
    Entity(2e6, "consumer_byte_rate"),
    Entity(200.0, "request_percentage"),
    Entity(40.0, "controller_mutation_rate"),
    Entity(50.0, "connection_creation_rate"),
)
_FAULTS: Final = ("kill", "leave", "cut", "cut_up", "cut_down", "suspend", "down")


def plan_of(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    instances, seconds = rng.choice((1, 2, 2, 3, 3, 4, 6)), rng.randrange(20, 80) + QUIET_S
    entities = tuple(rng.choice(_ENTITIES) for _ in range(rng.randrange(1, 4)))
    changing_ms = (seconds - QUIET_S) * 1000
    loads = tuple(
        _load(rng, entity, entities[entity], instances, changing_ms)
        for entity in range(len(entities))
        for _ in range(rng.randrange(1, 5))
    )
    is_calm = rng.random() < 0.3
    faults = () if is_calm else tuple(_fault(rng, instances, changing_ms) for _ in range(rng.randrange(1, 6)))
    starts_ms = tuple(rng.choice((0, 0, rng.randrange(20_000))) for _ in range(instances))
    latency_ms = rng.choice((0.5, 2.0, 20.0))
    return Plan(
        seconds,
        instances,
        entities,
        loads,
        faults,
        seed,
        starts_ms,
        latency_ms,
        loss=rng.choice((0.0, 0.0, 0.001, 0.02)),
        drift=rng.choice((0.0, 1e-4)),
        ensemble=EnsemblePlan(
            servers=rng.choice((1, 3, 5)),
            commit_ms=rng.choice((1, 5, 50)),
            lag_ms=rng.choice((0, 3, 60)),
            tick_ms=rng.choice((100, 2000)),
            session_timeout_ms=rng.choice((4000, 6000, 10_000)),
        ),
    )


def _load(rng: Random, number: int, entity: Entity, instances: int, changing_ms: int) -> Load:
    from_ms = rng.choice((0, rng.randrange(changing_ms)))
    load = Load(
        number,
        rng.randrange(instances),
        rng.choice((GREEDY, GREEDY, rng.random() * 1.5 + 0.02)),
        rng.choice((1, 1, 2, 5)),
        from_ms,
        rng.choice((10**9, rng.randrange(from_ms, changing_ms + 1))),
        request_s=1 / entity.limit if entity.limit < 1000 else rng.choice((0.01, 0.05, 0.3)),
    )
    if load.rate < GREEDY and rng.random() < 0.3:
        return replace(load, on_ms=rng.randrange(500, 5000), off_ms=rng.randrange(500, 10_000))
    if load.until_ms <= changing_ms and rng.random() < 0.4:
        return replace(load, moves_ms=rng.randrange(2000, 25_000))
    return load


def _fault(rng: Random, instances: int, changing_ms: int) -> Fault:
    kind = rng.choice(_FAULTS)
    at_ms = rng.randrange(changing_ms)
    most_ms = max(changing_ms - at_ms, 200)
    for_ms = min(rng.choice((rng.randrange(100, 3000), rng.randrange(100, 40_000))), most_ms)
    return Fault(at_ms, kind, rng.randrange(instances), for_ms)
