"""The scenarios that a fleet is shown with: one entity of 1 MB/s at one, two and three instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.fleet.figures import overshoot_s
from tests.fleet.plan import GREEDY, Entity, Fault, Load, Plan
from tests.fleet.world import Outcome, World
from tests.live_fleet.figures import SETTLED_AFTER_S, burst_s, jain, long_run, max_min

BEGIN_MS: Final = 10_000
"""When the clients come: after the instances know each other."""
CHANGE_MS: Final = BEGIN_MS + 60_000
"""When the demand changes in scenarios in which it does."""
_BEGIN_S: Final = BEGIN_MS // 1000
SECONDS: Final = _BEGIN_S + 180

_ONE = (Entity(1e6, "producer_byte_rate"),)


@dataclass(frozen=True)
class Change:
    """A change of demand: from `at_ms` on each instance wants this much, as times of the limit."""

    at_ms: int
    demands: tuple[float, ...]


@dataclass(frozen=True)
class Scenario:
    """A plan, and when its demand changes."""

    name: str
    plan: Plan
    changes: tuple[Change, ...]
    equal: tuple[int, ...] = ()
    """Instances whose demand is the same throughout."""


def _plan(instances: int, loads: Sequence[Load], faults: Sequence[Fault] = (), seconds: int = SECONDS) -> Plan:
    return Plan(seconds, instances, _ONE, tuple(loads), tuple(faults))


def _greedy(instances: int) -> list[Load]:
    return [Load(0, instance, connections=2, from_ms=BEGIN_MS) for instance in range(instances)]


def _all_on_one(instances: int) -> Scenario:
    """Everything at the first instance."""
    demands = (GREEDY, *[0.0] * (instances - 1))
    return Scenario(
        "all on one", _plan(instances, [Load(0, 0, connections=4, from_ms=BEGIN_MS)]), (Change(BEGIN_MS, demands),)
    )


def _spread(instances: int) -> Scenario:
    """The same load at each instance."""
    plan, everybody = _plan(instances, _greedy(instances)), tuple(range(instances))
    return Scenario("spread", plan, (Change(BEGIN_MS, (GREEDY,) * instances),), everybody)


def _moving(instances: int) -> Scenario:
    """Everything at one instance, at the next after 20 s, and so on."""
    changes = tuple(
        Change(BEGIN_MS + at_ms, tuple(GREEDY if at_ms // 20_000 % instances == n else 0.0 for n in range(instances)))
        for at_ms in range(0, 180_000, 20_000)
    )
    loads = [Load(0, 0, connections=4, from_ms=BEGIN_MS, moves_ms=20_000)]
    return Scenario("moving every 20 s", _plan(instances, loads), changes)


def _comes(instances: int) -> Scenario:
    """Everything at the first instance, and after a minute the same at the others too."""
    loads = [replace(load, from_ms=CHANGE_MS if load.instance else BEGIN_MS) for load in _greedy(instances)]
    changes = Change(BEGIN_MS, (GREEDY, *[0.0] * (instances - 1))), Change(CHANGE_MS, (GREEDY,) * instances)
    return Scenario("others come", _plan(instances, loads), changes)


def _goes(instances: int) -> Scenario:
    """Everything at all instances, and after a minute at the first one only."""
    loads = [replace(load, until_ms=CHANGE_MS if load.instance else 10**9) for load in _greedy(instances)]
    changes = Change(BEGIN_MS, (GREEDY,) * instances), Change(CHANGE_MS, (GREEDY, *[0.0] * (instances - 1)))
    return Scenario("others go", _plan(instances, loads), changes)


def _uneven(instances: int) -> Scenario:
    """A client that wants a tenth of the limit at the first instance, greedy ones at the others."""
    loads = [Load(0, 0, 0.1, from_ms=BEGIN_MS), *_greedy(instances)[1:]]
    changes = (Change(BEGIN_MS, (0.1, *[GREEDY] * (instances - 1))),)
    return Scenario("a tenth and greedy", _plan(instances, loads), changes, tuple(range(1, instances)))


def _bursty(instances: int) -> Scenario:
    """At each instance 2 s with twice its part of the limit, 4 s without, not in step: two thirds of the limit."""
    loads = [
        Load(0, number, 2 / instances, from_ms=BEGIN_MS + number * 2000, on_ms=2000, off_ms=4000)
        for number in range(instances)
    ]
    return Scenario("bursty", _plan(instances, loads), ())


def _killed(instances: int) -> Scenario:
    """The same load at each instance; the last one is killed after a minute, and its clients go to the others."""
    last = instances - 1
    changes = Change(BEGIN_MS, (GREEDY,) * instances), Change(CHANGE_MS, (*[GREEDY] * last, 0.0))
    plan = _plan(instances, _greedy(instances), [Fault(CHANGE_MS, "kill", last)])
    return Scenario("one killed", plan, changes, tuple(range(last)))


def _cut_off(instances: int) -> Scenario:
    """The same load at each instance; the last one is cut off from the ensemble after a minute, for a minute."""
    plan = _plan(instances, _greedy(instances), [Fault(CHANGE_MS, "cut", instances - 1, 60_000)])
    return Scenario("one cut off", plan, (Change(BEGIN_MS, (GREEDY,) * instances),), tuple(range(instances)))


def _rolling(instances: int) -> Scenario:
    """The same load at each instance; one after another leaves, and is back after 5 s."""
    faults = [Fault(CHANGE_MS + number * 15_000, "leave", number, 5000) for number in range(instances)]
    return Scenario("rolling restart", _plan(instances, _greedy(instances), faults), ())


def _demand(instances: int) -> Scenario:
    """A tenth of the limit at the first instance, all it can get at the others; then the first wants all it can get,
    later the last one nothing for a while. The begin is judged in another scenario."""
    last = instances - 1
    loads = [Load(0, number, GREEDY if number else 0.1, from_ms=BEGIN_MS) for number in range(instances)]
    faults = [
        Fault(CHANGE_MS, "demand", load=0, rate=GREEDY),
        Fault(CHANGE_MS + 30_000, "demand", load=last, rate=0.0),
        Fault(CHANGE_MS + 60_000, "demand", load=last, rate=GREEDY),
    ]
    greedy = (GREEDY,) * instances
    changes = (
        Change(CHANGE_MS, greedy),
        Change(CHANGE_MS + 30_000, (*greedy[1:], 0.0)),
        Change(CHANGE_MS + 60_000, greedy),
    )
    return Scenario("demands change", _plan(instances, loads, faults), changes)


ALONE: Final[tuple[Callable[[int], Scenario], ...]] = (_all_on_one,)
TOGETHER: Final[tuple[Callable[[int], Scenario], ...]] = (
    _all_on_one,
    _spread,
    _moving,
    _comes,
    _goes,
    _uneven,
    _demand,
    _bursty,
    _killed,
    _cut_off,
    _rolling,
)


def scenarios(instances: int) -> list[Scenario]:
    """All scenarios for so many instances."""
    return [make(instances) for make in (ALONE if instances == 1 else TOGETHER)]


def single(plan: Plan) -> Plan:
    """The same load under one instance, to which nothing happens."""
    loads = tuple(replace(load, instance=0, moves_ms=0) for load in plan.loads)
    changes = tuple(fault for fault in plan.faults if fault.kind == "demand")
    return replace(plan, instances=1, loads=loads, faults=changes, starts_ms=())


@dataclass(frozen=True)
class Figures:
    """What a scenario came to. `fair_s` is the longest time until fair after a change, None if it was not reached."""

    instances: int
    name: str
    long_run: float
    single_long_run: float
    excess_s: float
    later_excess_s: float
    overshoot_s: float
    fair_s: float | None
    has_change: bool
    jain: float | None
    broken: str | None


def figures(scenario: Scenario, outcome: Outcome, alone: Outcome) -> Figures:
    """The figures of one run beside the single instance under the same load."""
    plan, limit = scenario.plan, scenario.plan.entities[0].limit
    units, single_units = outcome.units(0)[_BEGIN_S:], alone.units(0)[_BEGIN_S:]
    times = [_fair_after_s(scenario, outcome, number) for number in range(len(scenario.changes))]
    equal = [sum(outcome.units_at(0, number)[_BEGIN_S + SETTLED_AFTER_S :]) for number in scenario.equal]
    return Figures(
        plan.instances,
        scenario.name,
        long_run(units, limit),
        long_run(single_units, limit),
        burst_s(units, limit),
        burst_s(units, limit, SETTLED_AFTER_S),
        overshoot_s(units, single_units, limit),
        None if None in times else max((time for time in times if time is not None), default=0.0),
        bool(times),
        jain(equal) if len(equal) > 1 else None,
        outcome.broken,
    )


def _fair_after_s(scenario: Scenario, outcome: Outcome, number: int) -> float | None:
    change = scenario.changes[number]
    later = [other.at_ms for other in scenario.changes if other.at_ms > change.at_ms]
    until_ms = min([*later, scenario.plan.seconds * 1000])
    # A fleet that is cut off or restarted is judged by what it does until then.
    faults = [f.at_ms for f in scenario.plan.faults if f.at_ms > change.at_ms and f.kind != "demand"]
    fair = max_min(change.demands, 1.0)
    wanting = {number: share for number, share in enumerate(fair) if share}
    after_ms = outcome.shares[0].fair_after_ms(change.at_ms, min([until_ms, *faults]) - 1, wanting)
    return None if after_ms is None else after_ms / 1000


def run(scenario: Scenario, seed: int = 1) -> tuple[Outcome, Outcome]:
    """A scenario, and its load under one instance."""
    return World(replace(scenario.plan, seed=seed)).run(), World(replace(single(scenario.plan), seed=seed)).run()
