"""Cutting a failing world down to what it needs to fail."""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

from tests.simulation.plan import Burst, ConnectionPlan, GatePlan, RequestPlan, ResponsePlan, StormPlan, WorldPlan

FailureOf = Callable[[WorldPlan], str]
Cut = Callable[[WorldPlan], None]

_PLAIN_WORLD = WorldPlan(0, [])
_PLAIN_CONNECTION = ConnectionPlan(0, delay_ms=0, capacity=4_194_304, connect_ms=0)
_PLAIN_REQUEST = RequestPlan(0, 0)
_PLAIN_RESPONSE = ResponsePlan()
_PLAIN_GATE = GatePlan()
_PLAIN_STORM = StormPlan(0, 1, 1)


def shrink(plan: WorldPlan, failure_of: FailureOf, most_runs: int) -> WorldPlan:
    """The smallest world that was found, with so many runs, to fail in the same way."""
    kind = kind_of(failure_of(plan))
    runs, shrunk = 0, True
    while shrunk and runs < most_runs:
        shrunk = False
        for cut in _cuts(plan):
            smaller = deepcopy(plan)
            cut(smaller)
            if smaller == plan:
                continue
            runs += 1
            if kind_of(failure_of(smaller)) == kind:
                plan, shrunk = smaller, True
                break
            if runs >= most_runs:
                break
    return plan


def kind_of(failure: str) -> str:
    """What two failures of the same kind have in common."""
    return re.sub(r"[0-9]+|b'.*", "N", failure)[:40]


def _cuts(plan: WorldPlan) -> Iterator[Cut]:
    """Ways to make a world smaller, those that take most away first."""
    yield from _of_list(lambda world: world.connections, len(plan.connections))
    yield from _of_list(lambda world: world.changes, len(plan.changes))
    yield from _of_list(lambda world: world.storms, len(plan.storms))
    for i, connection in enumerate(plan.connections):
        yield from _of_list(lambda world, i=i: world.connections[i].steps, len(connection.steps))
        yield from _of_list(lambda world, i=i: world.connections[i].faults, len(connection.faults))
        for k, step in enumerate(connection.steps):
            if isinstance(step, Burst):
                yield from _of_list(
                    lambda world, i=i, k=k: world.connections[i].steps[k].requests,
                    len(step.requests),
                )
    for i in range(len(plan.quotas)):
        yield lambda world, i=i: setattr(world, "quotas", world.quotas[:i] + world.quotas[i + 1 :])
    lists = ("seed", "connections", "quotas", "changes", "storms", "gate")
    yield from _to_plain(lambda world: world, plan, _PLAIN_WORLD, lists)
    yield from _of_gate(plan)
    for i, connection in enumerate(plan.connections):
        yield from _to_plain(
            lambda world, i=i: world.connections[i],
            connection,
            _PLAIN_CONNECTION,
            ("seed", "steps", "faults"),
        )
        for k, request in enumerate(connection.requests()):
            yield from _of_request(i, k, request)


def _of_gate(plan: WorldPlan) -> Iterator[Cut]:
    yield from _to_plain(lambda world: world.gate, plan.gate, _PLAIN_GATE, ())
    for i, change in enumerate(plan.changes):
        yield from _to_plain(lambda world, i=i: world.changes[i].gate, change.gate, _PLAIN_GATE, ())
    for i, storm in enumerate(plan.storms):
        yield from _to_plain(lambda world, i=i: world.storms[i], storm, _PLAIN_STORM, ())
        for name in ("addresses", "tries", "at_once"):
            if getattr(storm, name) > 1:
                less = getattr(storm, name) // 2
                yield lambda world, i=i, name=name, less=less: setattr(world.storms[i], name, less)


def _of_request(i: int, k: int, request: RequestPlan) -> Iterator[Cut]:
    def find(world: WorldPlan) -> RequestPlan:
        return list(world.connections[i].requests())[k]

    for name in ("topics", "entries", "filters"):
        yield from _of_list(lambda world, name=name: getattr(find(world), name), len(getattr(request, name)))
    lists = ("topics", "entries", "filters", "token")
    yield from _to_plain(find, request, _PLAIN_REQUEST, ("api_key", "version", "correlation_id", "response", *lists))
    yield from _to_plain(lambda world: find(world).response, request.response, _PLAIN_RESPONSE, ())
    for holder, value in (
        (find, request.filler_bytes),
        (lambda world: find(world).response, request.response.filler_bytes),
    ):
        if value > 1:
            yield lambda world, holder=holder, value=value: setattr(holder(world), "filler_bytes", value // 2)


def _of_list(find: Callable[[WorldPlan], list[Any]], length: int) -> Iterator[Cut]:
    """Take out a half, a quarter, ... one."""
    part = length // 2 or length
    while part:
        for start in range(0, length, part):
            yield lambda world, start=start, end=start + part: find(world).__delitem__(slice(start, end))
        part //= 2


def _to_plain(find: Callable[[WorldPlan], Any], current: Any, plain: Any, but: tuple[str, ...]) -> Iterator[Cut]:
    """Give one field its plainest value."""
    for field in fields(plain):
        value = getattr(plain, field.name)
        if field.name not in but and getattr(current, field.name) != value:
            yield lambda world, name=field.name, value=value: setattr(find(world), name, value)


# ---------------------------------------------------------------------- in words


def described(plan: Any, indent: int = 0) -> str:
    """A plan with only those fields that are not as usual."""
    pad = "  " * indent
    if isinstance(plan, list | tuple):
        return "".join(described(item, indent) for item in plan)
    printed, below = [], ""
    for field in fields(plan):
        value = getattr(plan, field.name)
        if is_dataclass(value) or (isinstance(value, list | tuple) and value and is_dataclass(value[0])):
            below += described(value, indent + 1)
        elif not _is_usual(field, value):
            printed.append(f"{field.name}={_printable(value)}")
    return f"{pad}{type(plan).__name__}({', '.join(printed)})\n{below}" if printed or below or indent < 3 else ""


def _is_usual(field: Any, value: Any) -> bool:
    return bool(value == field.default) or value in ([], ())


def _printable(value: Any) -> str:
    return f"{value[:40]!r}... ({len(value)} bytes)" if isinstance(value, bytes) and len(value) > 60 else repr(value)
