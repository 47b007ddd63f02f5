"""What was measured as tables and as JSON, and whether the proxy charges what the broker does."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fidelity.runs import FROZEN, HALF, LEVELS, STEADY, Figures, Measured

LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.25
MOST_FROZEN_MS = 50.0
"""The most that may be charged beyond the usual when the node stood still: eight connections waited for 500 ms each."""
QUANTILES = {"min": 0.0, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p90": 0.9}


def ratio(runs: Sequence[Figures]) -> float:
    """What the proxy charged by what the broker did for the same requests: the median of the runs."""
    return statistics.median((run.proxy_us or 0.0) / run.broker_us if run.broker_us > 0 else math.inf for run in runs)


def table(loads: Sequence[Measured]) -> str:
    """A line for each load and level."""
    lines = [
        "| API | level | requests/s | broker, us/request | proxy, us/request | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for found in loads:
        for level in LEVELS:
            if runs := found.runs[level]:
                of_both = (_with_spread(runs, "broker"), _with_spread(runs, "proxy"))
                lines.append(
                    f"| {_name(found)} | {level} | {_rate(runs)} | {of_both[0]} | {of_both[1]} | {ratio(runs):.2f} |"
                )
    return "\n".join(lines)


def _name(found: Measured) -> str:
    return f"{found.load.name} (exempt)" if found.load.exempt else found.load.name


def _rate(runs: Sequence[Figures]) -> str:
    return f"{statistics.fmean(run.requests / run.seconds for run in runs):,.0f}"


def _with_spread(runs: Sequence[Figures], side: str) -> str:
    values = [run.broker_us_per_request if side == "broker" else run.proxy_us_per_request or 0.0 for run in runs]
    return f"{statistics.median(values):.0f} ({min(values):.0f} - {max(values):.0f})"


def frozen_table(loads: Sequence[Measured]) -> str:
    """What both sides charged for the time in which the node stood still."""
    lines = ["| API | requests | broker, ms | proxy, ms |", "|---|---|---|---|"]
    for found in loads:
        for run, of_broker, of_proxy in frozen_ms(found):
            lines.append(f"| {found.load.name} | {run.requests:,} | {of_broker:.1f} | {of_proxy:.1f} |")
    return "\n".join(lines)


def frozen_ms(found: Measured) -> Iterator[tuple[Figures, float, float]]:
    """For each run with a frozen node what broker and proxy charged beyond the same requests without."""
    for usual, run in zip(found.runs[STEADY], found.runs[FROZEN], strict=True):
        of_broker = run.broker_us - usual.broker_us_per_request * run.requests
        of_proxy = (run.proxy_us or 0.0) - (usual.proxy_us_per_request or 0.0) * run.requests
        yield run, of_broker / 1000, of_proxy / 1000


def problems(loads: Sequence[Measured]) -> list[str]:
    """What does not meet the goals: the ratio at half load, and nobody charged for a node that stands still."""
    outside = [
        f"{found.load.name}: the proxy charges {ratio(found.runs[HALF]):.2f} of what the broker does at half load"
        for found in loads
        if found.runs[HALF] and not LOWEST_RATIO <= ratio(found.runs[HALF]) <= HIGHEST_RATIO
    ]
    charged = [
        f"{found.load.name}: {of_proxy:.1f} ms charged for a node that stood still"
        for found in loads
        for _, _, of_proxy in frozen_ms(found)
        if of_proxy > MOST_FROZEN_MS
    ]
    return outside + charged


def service_table(loads: Sequence[Measured]) -> str:
    """For each load and level the broker's thread time beside what a client sees, and how the broker's log parts it."""
    lines = [
        f"{'':32}{'':11}{'req/s':>7}{'broker us':>18}  service us: {''.join(f'{name:>8}' for name in QUANTILES)}   rtt"
    ]
    for found in loads:
        for level in LEVELS:
            if runs := found.runs[level]:
                seen = "".join(f"{us:8.0f}" for us in _quantiles(runs).values())
                head = f"{found.load.name:32}{level:11}{_rate(runs):>7}{_with_spread(runs, 'broker'):>18}"
                lines.append(f"{head}{'':14}{seen}{min(run.min_rtt_us for run in runs):6}")
        if found.parts_us:
            lines.append("    " + ", ".join(f"{part} {us:.0f}" for part, us in found.parts_us.items()))
    return "\n".join(lines)


def _quantiles(runs: Sequence[Figures]) -> dict[str, float]:
    together = sorted(us for run in runs for us in run.service_us)
    last = len(together) - 1
    return {name: together[int(last * share)] if together else 0.0 for name, share in QUANTILES.items()}


def as_json(loads: Sequence[Measured], costs: Any = None) -> dict[str, Any]:
    """All that was measured; service times as quantiles. `costs` is the proxy's model at the end."""
    return {
        "within": [LOWEST_RATIO, HIGHEST_RATIO],
        "problems": problems(loads) if costs is not None else [],
        "costs": costs,
        "loads": [
            {
                "name": found.load.name,
                "size_bytes": found.load.size_bytes,
                "exempt": found.load.exempt,
                "parts_us": {part: round(us, 1) for part, us in found.parts_us.items()},
                "levels": {level: [_figures_as_json(run) for run in runs] for level, runs in found.runs.items()},
            }
            for found in loads
        ],
    }


def _figures_as_json(run: Figures) -> dict[str, Any]:
    return {
        "requests": run.requests,
        "seconds": round(run.seconds, 2),
        "broker_us": round(run.broker_us_per_request, 2),
        "proxy_us": None if run.proxy_us_per_request is None else round(run.proxy_us_per_request, 2),
        "min_rtt_us": run.min_rtt_us,
        "service_us": {name: round(us, 1) for name, us in _quantiles([run]).items()},
    }
