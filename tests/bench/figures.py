"""From runs to medians, ratios and Markdown tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.bench.candidates import DIRECT, HAPROXY, NGINX, OURS
from tests.bench.columns import Column, Comparison

# The rig's core counts as full from here on: the proxy might have done more.
RIG_IS_FULL = 0.97

Figures = dict[str, Any]
"""What one run of `rig` printed, and what was seen around it (speed.measure); or spreads of these."""
Spread = dict[str, float]
"""`median`, `min` and `max` over the rounds."""
Summaries = Mapping[str, Mapping[str, Figures]]
"""Spreads by column key and candidate name: see `summary`."""
Compare = Callable[[Figures, Figures, Figures, Figures], float]
"""Makes a figure of one round's runs: of a candidate, of HAProxy, of the direct connection and of nginx."""

PEERS = (
    "Other proxies that read Kafka's frames, measured separately on the same kind of rig, relative to HAProxy in the "
    "first eight lines: kafka-proxy (Go) 0.25, 0.02, 0.06, 0.21, 0.29, 0.72, 0.94, 0.31; "
    "Kroxylicious (JVM) 0.58, 0.07, 0.24, 0.58, 0.61, 1.18, 1.25, 0.11."
)


def spread(values: Sequence[float]) -> Spread:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _ratio(key: str) -> Compare:
    return lambda mine, haproxy, direct, nginx: mine[key] / haproxy[key]


def _added(key: str) -> Compare:
    return lambda mine, haproxy, direct, nginx: mine[key] - direct[key]


def _added_ratio(key: str) -> Compare:
    """Undefined (ZeroDivisionError) in a round in which HAProxy added nothing."""

    def compare(mine: Figures, haproxy: Figures, direct: Figures, nginx: Figures) -> float:
        of_haproxy: float = haproxy[key] - direct[key]
        added: float = mine[key] - direct[key]
        return added / max(of_haproxy, 0)

    return compare


WITHIN_A_ROUND: dict[str, Compare] = {
    "ratio_to_haproxy": _ratio("requests_per_second"),
    "cpu_ratio_to_haproxy": lambda mine, haproxy, direct, nginx: (
        haproxy["cpu_us_per_request"] / mine["cpu_us_per_request"]
    ),
    "ratio_to_nginx": lambda mine, haproxy, direct, nginx: mine["requests_per_second"] / nginx["requests_per_second"],
    "p99_ratio_to_haproxy": _ratio("p99_us"),
    "added_p50_us": _added("p50_us"),
    "added_p99_us": _added("p99_us"),
    "added_p99_ratio_to_haproxy": _added_ratio("p99_us"),
    "memory_ratio_to_haproxy": _ratio("bytes_per_idle_connection"),
}
"""Figures made of one round's runs of a candidate and of the others that it is compared with."""


def summary(of_column: Mapping[str, Sequence[Figures]]) -> dict[str, Figures]:
    """By candidate: spreads of what was measured and of WITHIN_A_ROUND, as far as they can be made."""
    result = {}
    for name, rounds in of_column.items():
        figures: Figures = {
            key: spread([run[key] for run in rounds])
            for key, value in rounds[0].items()
            if isinstance(value, float | int)
        }
        nobody: Sequence[Figures] = [{}] * len(rounds)
        others = [of_column.get(peer.name, nobody) for peer in (HAPROXY, DIRECT, NGINX)]
        for key, compare in WITHIN_A_ROUND.items():
            compared = []
            for compared_runs in zip(rounds, *others, strict=True):
                try:
                    compared.append(compare(*compared_runs))
                except (KeyError, ZeroDivisionError):
                    continue
            if compared:
                figures[key] = spread(compared)
        result[name] = figures
    return result


def rig_was_full(figures: Figures) -> bool:
    """Whether the rig, not the candidate, was the limit in half of the runs or more."""
    return bool(figures.get("rig_busy", {"median": 0})["median"] >= RIG_IS_FULL)


# ---- Markdown ------------------------------------------------------------------------------------


def cell(values: Spread | None, digits: int = 0, with_range: bool = True) -> str:
    if values is None:
        return ""
    median, low, high = (f"{values[key]:,.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} ({low} - {high})" if with_range else median


def table(column: Column, of_candidate: Mapping[str, Figures]) -> str:
    """One column as Markdown: a line for each candidate."""
    return _speed_table(column, of_candidate) if column.is_timed else _memory_table(column, of_candidate)


def _speed_table(column: Column, of_candidate: Mapping[str, Figures]) -> str:
    lines = [
        f"**{column.title}**",
        "",
        "| | requests/s | MB/s | x HAProxy | proxy CPU, us/request | x HAProxy by CPU | p50, us | p99, us "
        "| added to p50, us | added to p99, us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in of_candidate.items():
        is_proxy = name != DIRECT.name
        cells = [
            name,
            cell(figures["requests_per_second"]) + (" *" if rig_was_full(figures) else ""),
            cell(figures.get("megabytes_per_second"), with_range=False),
            cell(figures.get("ratio_to_haproxy"), 2),
            cell(figures["cpu_us_per_request"], 2) if is_proxy else "",
            cell(figures.get("cpu_ratio_to_haproxy"), 2, with_range=False) if is_proxy else "",
            cell(figures.get("p50_us"), with_range=False),
            cell(figures.get("p99_us"), with_range=False),
            cell(figures.get("added_p50_us")) if is_proxy else "",
            cell(figures.get("added_p99_us")) if is_proxy else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _memory_table(column: Column, of_candidate: Mapping[str, Figures]) -> str:
    lines = [f"**{column.title}**", "", "| | KiB | x HAProxy |", "|---|---|---|"]
    for name, figures in of_candidate.items():
        kib = figures["bytes_per_idle_connection"]["median"] / 1024
        lines.append(f"| {name} | {kib:,.1f} | {cell(figures.get('memory_ratio_to_haproxy'), 1, with_range=False)} |")
    return "\n".join(lines)


def comparisons(columns: Sequence[Column], summaries: Summaries, name: str) -> list[tuple[Comparison, Spread, bool]]:
    """A candidate's ratios to HAProxy in the order of the columns, and whether the rig was one side's limit."""
    found = []
    for column in columns:
        of_column = summaries.get(column.key, {})
        for comparison in column.comparisons:
            if comparison.of and name != OURS.name:
                continue
            mine, peer = of_column.get(comparison.of or name, {}), of_column.get(_peer(comparison), {})
            limited = comparison.figure.startswith("ratio_to") and (rig_was_full(mine) or rig_was_full(peer))
            if comparison.figure in mine:
                found.append((comparison, mine[comparison.figure], limited))
    return found


def _peer(comparison: Comparison) -> str:
    return NGINX.name if comparison.figure == "ratio_to_nginx" else HAPROXY.name


def summary_table(columns: Sequence[Column], summaries: Summaries) -> str:
    """This project's proxy beside HAProxy as Markdown: a line for each comparison, with its goal."""
    lines = [f"| | {OURS.name} / {HAPROXY.name} | goal | met |", "|---|---|---|---|"]
    for comparison, ratio, limited in comparisons(columns, summaries, OURS.name):
        met = comparison.is_met(ratio["median"])
        goal = f"{comparison.goal:g} or {'less' if comparison.less_is_better else 'more'}" if comparison.goal else ""
        decision = "" if met is None else "yes" if met else "**no**"
        star = " *" if limited else ""
        lines.append(f"| {comparison.title} | {cell(ratio, 2)}{star} | {goal} | {decision} |")
    return "\n".join(lines)
