"""What a simulated fleet is told: a plan is plain data, so that a seed, a scenario and a regression are the same."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tests.fleet.ensemble import EnsemblePlan

GREEDY: Final = 1e18
"""A wanted rate that no line carries."""


@dataclass(frozen=True)
class Load:
    """Connections of one entity at one instance that want `rate` units/s together, as times of a limit.

    From `from_ms` to `until_ms` a load that is `on_ms` long and `off_ms` not wants its rate in the time on. What it
    could not send it sends later, at `line` times the limit at most: the speed of a client that nobody throttles.
    If its instance is gone, it connects to the next one that lives.
    """

    entity: int
    instance: int
    rate: float = GREEDY
    connections: int = 1
    from_ms: int = 0
    until_ms: int = 10**9
    on_ms: int = 0
    off_ms: int = 0
    moves_ms: int = 0
    """Every so many ms it connects to the next instance; 0: never."""
    request_s: float = 0.05
    """The size of a request, in seconds of the limit."""
    line: float = 10.0
    is_balanced: bool = False
    """A load balancer leads each of its connections to an instance in turn; see the fault open."""


@dataclass(frozen=True)
class Fault:
    """Something happens at `at_ms`, most of it for `for_ms`.

    kill: the process of an instance ends, and another begins after `for_ms` (0: none does). leave: the same, in order.
    cut, mend: the network between an instance and the ensemble. suspend: a process stands still. down: the ensemble.
    cut_up, cut_down: one direction of the network. start: a process begins. open: the load balancer cuts all
    connections, and leads new ones to `places` only. demand: a load wants another rate from then on.
    """

    at_ms: int
    kind: str
    instance: int = 0
    for_ms: int = 0
    places: tuple[int, ...] = ()
    load: int = 0
    rate: float = 0.0


@dataclass(frozen=True)
class Entity:
    """Who has a quota: `limit` in units/s of this type."""

    limit: float = 1e6
    quota_type: str = "producer_byte_rate"


@dataclass(frozen=True)
class Plan:
    """One simulated fleet over `seconds`."""

    seconds: int
    instances: int
    entities: tuple[Entity, ...]
    loads: tuple[Load, ...]
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    starts_ms: tuple[int, ...] = ()
    """When each instance starts; without it all start at 0."""
    latency_ms: float = 1.0
    loss: float = 0.0
    drift: float = 0.0
    """How much faster or slower the clock of an instance may run, as a part of 1."""
    ensemble: EnsemblePlan = field(default_factory=EnsemblePlan)
    windows: int = 11
    window_ms: int = 1000


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as values that JSON has."""
    return asdict(plan)


def from_json(values: dict[str, Any]) -> Plan:
    """The plan of what `as_json` gave."""
    made = dict(values)
    made["entities"] = tuple(Entity(**each) for each in values["entities"])
    made["loads"] = tuple(Load(**each) for each in values["loads"])
    made["faults"] = tuple(Fault(**{**each, "places": tuple(each["places"])}) for each in values["faults"])
    made["starts_ms"] = tuple(values["starts_ms"])
    made["ensemble"] = EnsemblePlan(**values["ensemble"])
    return Plan(**made)
