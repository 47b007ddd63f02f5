"""Figures as Markdown tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fleet.large import LargeFigures
from tests.fleet.scenarios import Figures


@dataclass(frozen=True)
class Beside:
    """What was measured of one load of one scenario, and what the simulation of it has."""

    scenario: str
    kind: str
    measured: dict[str, float]
    simulated: dict[str, float]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def scenario_table(found: Sequence[Figures]) -> str:
    """A line for each scenario."""
    head = (
        "instances",
        "scenario",
        "long run / limit",
        "the same under one instance",
        "most above, s",
        "after the start, s",
        "overshoot, s",
        "fair after, s",
        "Jain",
    )
    return table(head, [_scenario_row(figures) for figures in found])


def _scenario_row(figures: Figures) -> Sequence[str]:
    fair = "never" if figures.fair_s is None else f"{figures.fair_s:.1f}"
    return (
        str(figures.instances),
        figures.name + (f" ({figures.broken})" if figures.broken else ""),
        f"{figures.long_run:.3f}",
        f"{figures.single_long_run:.3f}",
        f"{figures.excess_s:.1f}",
        f"{figures.later_excess_s:.1f}",
        f"{figures.overshoot_s:.1f}",
        fair if figures.has_change else "",
        "" if figures.jain is None else f"{figures.jain:.3f}",
    )


def large_table(found: Sequence[LargeFigures]) -> str:
    """A line for each fleet."""
    head = (
        "instances",
        "entities",
        "what goes wrong",
        "read, MB/s",
        "peak, MB",
        "written, MB/s",
        "writes/s",
        "operations/s",
        "largest document, KB",
        "fair after, s: median, worst",
        "not fair",
        "overshoot, s",
        "Jain, least",
    )
    return table(head, [_large_row(figures) for figures in found])


def _large_row(figures: LargeFigures) -> Sequence[str]:
    times = [time for time in (figures.fair_s_median, figures.fair_s_worst) if time is not None]
    return (
        str(figures.instances),
        str(figures.entities),
        (figures.what or "nothing") + (f" ({figures.broken})" if figures.broken else ""),
        f"{figures.read_bytes_per_second / 1e6:.2f}",
        f"{figures.peak_read_bytes / 1e6:.2f}",
        f"{figures.written_bytes_per_second / 1e6:.3f}",
        f"{figures.writes_per_second:.1f}",
        f"{figures.operations_per_second:.0f}",
        f"{figures.largest_document_bytes / 1e3:.1f}",
        ", ".join(f"{time:.1f}" for time in times),
        str(figures.unfair),
        f"{figures.overshoot_s:.1f}",
        f"{figures.jain:.3f}",
    )


def measured_table(found: Sequence[Beside]) -> str:
    """A line for each scenario and kind of load: measured, simulated, and the difference."""
    names = list(found[0].measured) if found else []
    head = ["scenario", "", *(f"{name}: measured, simulated, difference" for name in names)]
    return table(head, [[each.scenario, each.kind, *(_both(each, name) for name in names)] for each in found])


def _both(each: Beside, name: str) -> str:
    measured, simulated = each.measured[name], each.simulated[name]
    return f"{measured:.3f}, {simulated:.3f}, {simulated - measured:+.3f}"
