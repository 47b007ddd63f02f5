"""Draws the throttle times of all cells on both sides, from the JSON of a run.

python -m tests.parity.plot FILE.json FILE.webp
"""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.parity.cells import CONNECTIONS, QUOTAS, ROLES, VERSIONS

_STEP_S = 3
_PIXELS_PER_INCH = 96
_SIDES = {"broker": ("#d9730d", "a broker's own quota"), "proxy": ("#1f5fbf", "kafka-throttle before a broker without")}
_GREY = "#666666"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": "#bbbbbb",
    "axes.linewidth": 0.6,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """One small picture for each cell: a line for the mean throttle time, a band up to the longest."""
    of_cell = {(c["role"], c["quota"], c["connections"], c["versions"]): c for c in found["cells"]}
    rows = [row for row in product(ROLES, QUOTAS) if any(key[:2] == row for key in of_cell)]
    columns = [column for column in product(CONNECTIONS, VERSIONS) if any(key[2:] == column for key in of_cell)]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.2 + 1.75 * len(columns), 1.1 + 1.15 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), len(columns), sharex=True, squeeze=False)
        for (row, axes_of_row), (column, axes) in _each(rows, columns, grid):
            cell = of_cell.get((*row, *column))
            if cell is None:
                axes.set_visible(False)
                continue
            _draw_cell(axes, cell, found["seconds"])
            axes.set_ylim(0, 1.3 * _longest(of_cell.values(), row[0], column[0]))
            if axes is axes_of_row[0]:
                axes.set_ylabel(f"{row[0]}\n{row[1]}", color="black")
        _label(figure, grid, columns, found)
        figure.savefig(path, dpi=_PIXELS_PER_INCH, pil_kwargs={"quality": 75, "method": 6})


def _each(rows: Sequence[Any], columns: Sequence[Any], grid: Any) -> Any:
    for row, axes_of_row in zip(rows, grid, strict=True):
        for column, axes in zip(columns, axes_of_row, strict=True):
            yield (row, axes_of_row), (column, axes)


def _draw_cell(axes: Axes, cell: Mapping[str, Any], seconds: int) -> None:
    for side, (color, _) in _SIDES.items():
        at, mean, longest = _series(cell[side]["throttles_by_second"])
        axes.fill_between(at, mean, longest, color=color, alpha=0.16, linewidth=0)
        axes.plot(at, mean, color=color, linewidth=1.0)
    axes.set_xlim(0, seconds)
    axes.text(0.98, 0.97, f"{cell['ratio']:.3f}", transform=axes.transAxes, ha="right", va="top", color="black")
    axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2, labelsize=7)
    axes.locator_params(axis="y", nbins=4)
    axes.xaxis.set_major_locator(mpl.ticker.MultipleLocator(44 if seconds > 66 else 11))


def _series(by_second: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Stretches of `_STEP_S` with throttles: their middles, the means, the longest."""
    of_step: dict[int, list[Sequence[float]]] = {}
    for second in by_second:
        of_step.setdefault(int(second[0]) // _STEP_S, []).append(second)
    return (
        [(step + 0.5) * _STEP_S for step in of_step],
        [sum(mean for _, mean, _ in found) / len(found) for found in of_step.values()],
        [max(longest for _, _, longest in found) for found in of_step.values()],
    )


def _longest(cells: Any, role: str, connections: int) -> float:
    alike = [cell for cell in cells if (cell["role"], cell["connections"]) == (role, connections)]
    return max((cell[side]["longest_throttle_s"] for cell in alike for side in _SIDES), default=0) or 1.0


def _label(figure: Figure, grid: Any, columns: Sequence[tuple[int, str]], found: Mapping[str, Any]) -> None:
    for axes, (connections, versions) in zip(grid[0], columns, strict=True):
        noun = "connection" if connections == 1 else "connections"
        axes.set_title(f"{connections} {noun}, {versions} versions", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("time, s", color=_GREY, labelpad=1)
    figure.suptitle(
        f"Throttle times that clients got, in seconds; a quota of {found['rate'] // 1000} KB/s for each cell\n"
        "line: mean, band: up to the longest, number: our mean rate divided by the broker's",
        fontsize=9,
    )
    handles = [mpl.lines.Line2D([], [], color=color, linewidth=2, label=name) for color, name in _SIDES.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
