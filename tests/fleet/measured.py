"""A real run of `tests.live_fleet`, simulated: the same clients, the same things done at the same seconds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.fleet.plan import GREEDY, Entity, Fault, Load, Plan
from tests.fleet.tables import Beside
from tests.fleet.world import Outcome, World
from tests.live_fleet.figures import SETTLED_AFTER_S, burst_s, long_run, total_of

_JOINED_S: Final = 10
"""The instances of a real run have joined before the clients come; so much earlier the simulation starts."""

_REQUEST_BYTES: Final = {"produce": 32_000, "fetch": 64_000}
_QUOTAS: Final = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate"}


def beside(file: Path) -> list[Beside]:
    """What was measured and what is simulated, for each scenario of the file and each kind of load."""
    found = []
    for run in json.loads(file.read_text())["scenarios"].values():
        if not run["fleet"]:
            continue
        outcome = World(plan_of(run)).run()
        for number, kind in enumerate(_kinds(run)):
            measured = total_of(run["sides"]["fleet"][kind])
            simulated = units_of(outcome, number)
            found.append(
                Beside(run["title"], kind, _figures(measured, run["limit"]), _figures(simulated, run["limit"]))
            )
    return found


def units_of(outcome: Outcome, entity: int) -> list[float]:
    """What went through in each second since the clients came."""
    return outcome.units(entity)[_JOINED_S:]


def _figures(series: list[float], limit: float) -> dict[str, float]:
    return {
        "long run / limit": long_run(series, limit),
        "most above, s": burst_s(series, limit),
        "after the start, s": burst_s(series, limit, SETTLED_AFTER_S),
    }


def _kinds(run: Mapping[str, Any]) -> list[str]:
    return list(run["sides"]["fleet"])


def plan_of(run: Mapping[str, Any]) -> Plan:
    """The plan of a scenario as it was run."""
    kinds, limit, begin_ms = _kinds(run), run["limit"], _JOINED_S * 1000
    names = [client["name"] for client in run["clients"]]
    loads = [_load(client, kinds.index(client["kind"]), limit, begin_ms) for client in run["clients"]]
    faults = [_fault(event, names, limit, begin_ms) for event in run["events"]]
    if run["open_first"]:
        faults.insert(0, Fault(0, "open", places=tuple(number - 1 for number in run["open_first"])))
    return Plan(
        run["seconds"] + _JOINED_S,
        run["instances"],
        tuple(Entity(limit, _QUOTAS[kind]) for kind in kinds),
        tuple(loads),
        tuple(faults),
    )


def _load(client: Mapping[str, Any], entity: int, limit: float, begin_ms: int) -> Load:
    """A client has one connection. Without a place of its own the load balancer gives it one."""
    demand, at = client["demand"], client["at"]
    return Load(
        entity,
        0 if at is None else at - 1,
        GREEDY if demand is None else demand / limit,
        from_ms=begin_ms,
        request_s=_REQUEST_BYTES[client["kind"]] / limit,
        is_balanced=at is None,
    )


def _fault(event: Mapping[str, Any], names: list[str], limit: float, begin_ms: int) -> Fault:
    at_ms = begin_ms + round(event["at"] * 1000)
    numbers = tuple(number - 1 for number in event["instances"])
    match event["action"]:
        case "open":
            return Fault(at_ms, "open", places=numbers)
        case "demand":
            rate = GREEDY if event["rate"] is None else event["rate"] / limit
            return Fault(at_ms, "demand", load=names.index(event["client"]), rate=rate)
        case "kill" | "start" as kind:
            return Fault(at_ms, kind, numbers[0])
        case "cut":
            return Fault(at_ms, "cut", numbers[0], 10**9)
        case "join":
            return Fault(at_ms, "mend", numbers[0])
        case unknown:
            raise ValueError(f"expected an action that is known, got {unknown!r}")
