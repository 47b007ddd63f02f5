"""What was found, as the page docs/proofs/fleet-measured.md."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.live_fleet.figures import claims_fair_after_s, figures
from tests.live_fleet.rig import BROKER, FLEET, SIDES, SINGLE

NAMES = {FLEET: "fleet", SINGLE: "one instance", BROKER: "Kafka's own quota"}

_HEAD = """\
# A fleet, measured

Written by `python -m tests.live_fleet --json FILE --plot docs/proofs/fleet.webp --page docs/proofs/fleet-measured.md`;
the same command with `--chaos 600` and `--cost 1000` adds the last two sections. How a fleet works:
[fleet](../reference/fleet.md).

One entity has a limit of {limit} KB/s for each direction, and six greedy clients for each direction: producers of
librdkafka, Java and kafka-python, consumers of librdkafka and kafka-python, all at one node of a cluster of three. The
same clients run at the same time on three sides: through HAProxy and the instances of a fleet, through HAProxy and one
instance without a fleet, and through HAProxy to the node itself with a quota in the cluster. Where connections are
cut to move the load, they are cut on all three sides. Each instance is in a network namespace of its own; ZooKeeper is
an ensemble of three. What is written is measured on the disk of the node, what is read by the clients.
"""
_COLUMNS = ("scenario", "", "held by", "long run", "any 60 s", "burst, s", "Jain", "settled, s")
_EXPLAINED = """\
- **long run**: the mean rate divided by the limit, without the first 22 s or more, over a multiple of 11 s.
- **any 60 s**: what the worst 60 s in a row had above the limit, in seconds of the limit; after the comma without the
  first 22 s. Below 0: the worst 60 s had less than the limit.
- **burst**: by how many seconds of the limit the worst stretch of up to 60 s was above it, without the first 22 s.
  Kafka's own arithmetic allows ten seconds at once after a pause.
- **Jain**: fairness among the greedy clients, 1 is equal.
- **settled**: after each change of demand, seconds until all clients were within 10 % of max-min fair rates, as means
  over 3 s. Kafka's arithmetic, which all three sides have, holds the sum to a limit and does not divide it evenly.
"""


def markdown(found: Mapping[str, Any], picture: str | None = None) -> str:
    """The page; `picture` is the file name of the plot."""
    return "\n".join(_parts(found, picture))


def _parts(found: Mapping[str, Any], picture: str | None) -> Iterator[str]:
    limits = {one["limit"] for one in (*found["scenarios"].values(), *([found["chaos"]] if "chaos" in found else ()))}
    yield _HEAD.format(limit=" or ".join(f"{limit // 1000:,}" for limit in sorted(limits)))
    if found["scenarios"]:
        yield "## Rates\n"
        if picture:
            yield f"![rates of one entity in all scenarios]({picture})\n"
        yield table(found["scenarios"])
        yield f"\n{_EXPLAINED}"
        yield from _of_claims(found["scenarios"].values())
    if "chaos" in found:
        yield f"## Instances that are killed all the time\n\n{of_chaos(found['chaos'])}\n"
    if "cost" in found:
        yield f"## What it costs\n\n{of_cost(found['cost'])}"


def _of_claims(scenarios: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The changes of demand, if there are any."""
    rows = [
        (words, "not before the next change" if after_s is None else f"{after_s:.1f}")
        for scenario in scenarios
        for words, after_s in claims_fair_after_s(scenario)
    ]
    if rows:
        yield "## After a change of demand\n"
        yield "How long it took until each instance had claimed its max-min fair part of the limit, but for a tenth:\n"
        yield _markdown(("change", "claims are fair after, s"), rows) + "\n"


def table(scenarios: Mapping[str, Any]) -> str:
    """A line for each scenario, kind and side."""
    rows = [
        _row(scenario, kind, side) for scenario in scenarios.values() for kind in scenario["kinds"] for side in SIDES
    ]
    return _markdown(_COLUMNS, rows)


def _row(scenario: Mapping[str, Any], kind: str, side: str) -> Sequence[str]:
    one = figures(scenario)[side][kind]
    first = side == SIDES[0]
    return (
        scenario["title"] if first and kind == scenario["kinds"][0] else "",
        kind if first else "",
        NAMES[side],
        f"{one['long_run']:.3f}",
        ", ".join(_signed(over) for over in (one["over_s"], one["over_later_s"]) if over is not None),
        f"{one['burst_later_s']:.1f}",
        f"{one['jain']:.3f}",
        ", ".join("never" if s is None else str(s) for s in one["settled_after_s"]),
    )


def _signed(over_s: float | None) -> str:
    return "?" if over_s is None else f"{over_s:+.1f}"


def of_chaos(found: Mapping[str, Any]) -> str:
    """One paragraph, and what was wrong."""
    records = found["records"]
    wrong, remarks = found["violations"], found.get("remarks", [])
    told = (
        f"In {found['seconds']} s instances were killed {found['kills']} times (SIGKILL), in turn, and started "
        "again, under three idempotent producers of librdkafka that always had more than the limit allows. Long run: "
        f"{found['long_run']:.3f} of the limit; the worst 60 s: {_signed(found['over_s'])} s of it. "
        f"{records['acknowledged']:,} records were acknowledged, {records['present']:,} are there; "
        f"{len(wrong) or 'none'} lost, doubled or out of order."
    )
    told += " What librdkafka itself has doubled (its issue 4953):" if remarks else ""
    return "\n".join([told, *(f"- {one}" for one in [*wrong[:20], *remarks[:20]])])


def of_cost(found: Mapping[str, Any]) -> str:
    """A line for each way."""
    head = ("", "CPU of each instance, % of a core", "requests/s", "writes to ZooKeeper/s", "document, KB")
    rows = []
    for name, title in (("without", "without a fleet"), ("fleet", "in a fleet")):
        one = found[name]
        carried = one.get("zookeeper")
        rows.append(
            (
                title,
                " / ".join(f"{100 * part:.0f}" for part in one["cpu"]),
                f"{one['requests_per_second']:.0f}",
                f"{carried['writes_per_second']:.1f}" if carried else "",
                " / ".join(f"{size / 1000:.0f}" for size in carried["document_bytes"]) if carried else "",
            )
        )
    told = (
        f"Three instances, {found['entities']:,} entities, each throttled at two of them. Without a fleet each "
        "instance has half the limit, so that both carry the same requests."
    )
    return f"{told}\n\n{_markdown(head, rows)}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
