"""Words for quotas, limits and throttles, as commands print them."""

from collections.abc import Iterator

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.quotas.entities import Scope
from kafka_throttle.quotas.sources.entry_forms import entity_of


def entity_text(parts: dict[str, str | None]) -> str:
    """An entity of a JSON response, as quotas are printed."""
    return printable(str(entity_of(parts)), 1_000)


def amount(limit: float | None, unit: str) -> str:
    """A limit in words; None means no limit."""
    return "no limit" if limit is None else f"{limit} {unit}"


def past_lines(reported: Form) -> Iterator[str]:
    """What is known of one quota in a second of the past, beside its rules."""
    unit = reported["unit"]
    for change in reported["changes"]:
        old = "no quota" if change["old"] is None else amount(change["old"], unit)
        new = (
            "no quota" if change["layer"] is None else f"{amount(change['new'], unit)}, of {printable(change['layer'])}"
        )
        if change.get("scope") == Scope.CLUSTER.value:
            new += ", over all nodes"
        yield f"  {entity_text(change['entity'])}: {new} since {change['at']}; before: {old}"
    for line in reported["throttled"]:
        yield f"  {_throttled(line)}"
    for operation in reported["operations"]:
        yield f"  {_operation(operation)}"
    if reported["more_operations"]:
        yield f"  and {reported['more_operations']} more operations"


def throttled_by_node(line: Form) -> str:
    """A client that a node throttled in a second of the past."""
    return f"node {line['node_id']} itself: {_throttled(line)}"


def _throttled(line: Form) -> str:
    who = f"user={printable(repr(line['user']))}, client_id={printable(repr(line['client_id']))} from {line['ip']}"
    words = [f"muted for {_s(line['throttled_ms'])}"]
    if line["throttles"]:
        throttles = "1 throttle" if line["throttles"] == 1 else f"{line['throttles']} throttles"
        words.append(f"{throttles} of {_s(line['given_ms'])} in all")
    words.append(f"{_s(line['left_ms'])} left at its end")
    if line["bucket"] is not None:
        words.append(f"{line['bucket']['tokens']:.1f} of {line['bucket']['burst']:.1f} tokens left")
    elif line["rate"] is not None:
        words.append(f"measured {line['rate']:.1f} of {amount(line['limit'], line['unit'])}")
    if line["charged"] is not None:
        words.append(f"charged {line['charged']:g}")
    return f"throttled at node {line['node_id']}: {who}: {', '.join(words)}"


def _operation(operation: Form) -> str:
    who = f"user={printable(repr(operation['user']))}, client_id={printable(repr(operation['client_id']))}"
    throttle = f", throttled for {_s(operation['throttle_time_ms'])}" if operation["throttle_time_ms"] else ""
    what = f"{printable(operation['operation'])} {operation['value']:g}"
    return f"{operation['at']} at node {operation['node_id']}: {what}, {who}{throttle}"


def _s(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f} s"
