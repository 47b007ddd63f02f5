"""Draws the rate of every side in every scenario beside the limit, from the JSON of a run.

python -m tests.live_fleet.plot FILE.json FILE.webp
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.live_fleet.figures import figures, total_of
from tests.live_fleet.page import NAMES

_MEAN_OVER_S = 11
"""The window of the quotas: within it all rates come in bursts."""
_PIXELS_PER_INCH = 96
_GREY = "#666666"
_SIDES = {"broker": ("#d9730d", 0.9), "single": ("#2f8f5b", 0.9), "fleet": ("#1f5fbf", 1.8)}
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": "#bbbbbb",
    "axes.linewidth": 0.6,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """A row for each scenario, a column for each kind."""
    kinds = ("produce", "fetch")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 0.9 + 1.5 * len(found)), layout="constrained")
        grid = figure.subplots(len(found), len(kinds), squeeze=False)
        for axes_of_row, scenario in zip(grid, found.values(), strict=True):
            for axes, kind in zip(axes_of_row, kinds, strict=True):
                if kind in scenario["sides"]["fleet"]:
                    _draw_load(axes, scenario, kind)
                else:
                    axes.set_visible(False)
            axes_of_row[0].set_title(scenario["title"], loc="left", fontsize=8.5)
        for axes in grid[-1]:
            axes.set_xlabel("time, s", color=_GREY, labelpad=1)
        figure.suptitle(
            f"Rate of one entity as a part of its limit, {' left and '.join(kinds)} right, means over {_MEAN_OVER_S} s",
            fontsize=9,
        )
        handles = [
            mpl.lines.Line2D([], [], color=color, linewidth=2, label=NAMES[side])
            for side, (color, _) in reversed(_SIDES.items())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
        figure.savefig(path, dpi=_PIXELS_PER_INCH, pil_kwargs={"quality": 75, "method": 6})


def _draw_load(axes: Axes, scenario: Mapping[str, Any], kind: str) -> None:
    highest = 2.5
    for side, (color, width) in _SIDES.items():
        rate = _smooth([value / scenario["limit"] for value in total_of(scenario["sides"][side][kind])])
        axes.plot([at + 0.5 for at in range(len(rate))], rate, color=color, linewidth=width)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    for event in scenario["events"]:
        axes.axvline(event["at"], color="#999999", linewidth=0.6)
        axes.text(event["at"] + 0.6, highest * 0.99, event["words"], fontsize=6.5, color=_GREY, va="top")
    long_run = figures(scenario)["fleet"][kind]["long_run"]
    axes.text(
        0.995, 0.03, f"{long_run:.3f}", transform=axes.transAxes, ha="right", va="bottom", color=_SIDES["fleet"][0]
    )
    axes.set_xlim(0, scenario["seconds"])
    axes.set_ylim(0, highest)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2, labelsize=7)


def _smooth(series: Sequence[float]) -> list[float]:
    """Running means, centred; at the ends over what there is."""
    half = _MEAN_OVER_S // 2
    around = [series[max(0, at - half) : at + half + 1] for at in range(len(series))]
    return [sum(values) / len(values) for values in around]


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["scenarios"], Path(sys.argv[2]))
