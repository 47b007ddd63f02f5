"""Draws every candidate's ratios to HAProxy, with their ranges and our goals, as one small picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tests.bench.candidates import DIRECT, HAPROXY, OURS
from tests.bench.columns import Column, Comparison
from tests.bench.figures import Spread, Summaries, comparisons

# Okabe and Ito's colours, which colour-blind readers can tell apart.
OUR_COLOUR, OUR_MARKER = "#0072B2", "o"
COLOURS = ("#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("s", "D", "^", "v", "P", "X")
LARGEST = 10.0
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, LARGEST)


def draw(columns: Sequence[Column], summaries: Summaries, file: Path) -> None:
    """Write the plot; the suffix of `file` says in which format (.svg, .png)."""
    names = dict.fromkeys((OURS.name, *(name for of_column in summaries.values() for name in of_column)))
    drawn = {
        name: {comparison: ratio for comparison, ratio, _ in comparisons(columns, summaries, name)}
        for name in names
        if name not in (DIRECT.name, HAPROXY.name)
    }
    rows = [row for column in columns for row in column.comparisons if any(row in ratios for ratios in drawn.values())]
    with matplotlib.rc_context({"svg.hashsalt": "bench", "font.size": 8.5}):
        figure = Figure(figsize=(7.6, 1.1 + 0.36 * len(rows)), layout="constrained", facecolor="white")
        axes = figure.add_subplot(facecolor="white")
        _furnish(axes, rows)
        _draw_goals(axes, rows)
        others = iter(zip(COLOURS * len(drawn), MARKERS * len(drawn), strict=True))
        for number, (name, ratios) in enumerate(drawn.items()):
            colour, marker = (OUR_COLOUR, OUR_MARKER) if name == OURS.name else next(others)
            offset = 0.6 * ((number + 0.5) / len(drawn) - 0.5)
            _draw_candidate(axes, {rows.index(row) + offset: row for row in ratios}, ratios, name, colour, marker)
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, metadata=metadata, facecolor="white", dpi=110)


def _furnish(axes: Axes, rows: Sequence[Comparison]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(rows)), [row.title + (", inverse" if row.less_is_better else "") for row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.axvline(1, color="#444444", linewidth=1, zorder=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"times {HAPROXY.name} in TCP mode, right is better (medians, lowest to highest)")


def _draw_goals(axes: Axes, rows: Sequence[Comparison]) -> None:
    style: dict[str, Any] = {"color": OUR_COLOUR, "linewidth": 4, "alpha": 0.3, "zorder": 1, "solid_capstyle": "butt"}
    for at, row in enumerate(rows):
        if row.goal is not None:
            goal = 1 / row.goal if row.less_is_better else row.goal
            axes.plot([goal, goal], [at - 0.42, at + 0.42], **style)
    axes.plot([], [], label=f"{OURS.name}: goal", **style)


def _draw_candidate(
    axes: Axes, places: dict[float, Comparison], ratios: dict[Comparison, Spread], name: str, colour: str, marker: str
) -> None:
    ours = name == OURS.name
    for at, row in places.items():
        low, median, high = (better_to_the_right(row, ratios[row][key]) for key in ("min", "median", "max"))
        axes.plot([low, high], [at, at], color=colour, linewidth=1.2, zorder=2)
        axes.plot(median, at, marker, color=colour, markersize=6 if ours else 4, zorder=4 if ours else 3)
    axes.plot([], [], marker, color=colour, label=name, markersize=6 if ours else 4)


def better_to_the_right(row: Comparison, ratio: float) -> float:
    """A ratio as it is drawn: inverted if less is better, at most LARGEST (also for a latency below a direct one's)."""
    if not row.less_is_better:
        return min(ratio, LARGEST)
    return 1 / ratio if ratio > 1 / LARGEST else LARGEST
