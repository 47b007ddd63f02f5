"""Draws a storm on several doors, from the JSON of a run: python -m tests.storm.plot FILE.json FILE.svg"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLORS = ("#1f5fbf", "#7a7a7a", "#d9730d")
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": "#bbbbbb",
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "storm",
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Above: what one bad address was admitted by then; below: how long good clients waited for their first
    response.
    """
    gates, seconds = found["doors"], found["seconds"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        above, below = figure.subplots(2, 1)
        above.plot([0, seconds], [10 * found["rate"], (10 + seconds) * found["rate"]], color="#bbbbbb", linestyle=":")
        for color, (name, of) in zip(_COLORS, gates.items(), strict=False):
            _draw_admitted(above, of["storm_admitted"], seconds, color, name)
            _draw_waits(below, of, color, name)
        above.set_title(
            f"connections admitted from one of {found['addresses']} bad addresses, mean; the quota is"
            f" {found['rate']}/s (dotted: ten seconds' worth and then that)",
            fontsize=8,
        )
        above.set_xlabel("time, s")
        above.set_ylim(bottom=0)
        below.set_title("good clients in the storm (dashed: without it): share that had an answer within", fontsize=8)
        below.set_xlabel("ms from connecting to the first answer")
        below.set_xscale("log")
        for axes in (above, below):
            axes.legend(frameon=False, loc="lower right")
            axes.grid(color="#eeeeee", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, **({"metadata": {"Date": None}} if path.suffix == ".svg" else {"dpi": 110}))


def _draw_admitted(axes: Axes, admitted: Sequence[Sequence[int]], seconds: float, color: str, name: str) -> None:
    at = [step / 2 for step in range(int(2 * seconds) + 1)]
    mean = [sum(sum(ms <= s * 1000 for ms in of) for of in admitted) / len(admitted) for s in at]
    axes.plot(at, mean, color=color, label=name, linewidth=1.4)


def _draw_waits(axes: Axes, of: Mapping[str, Any], color: str, name: str) -> None:
    for took, style, label in ((of["good_took_ms"], "-", name), (of["calm_took_ms"], "--", None)):
        ordered = sorted(took)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axes.plot(ordered, shares, color=color, linestyle=style, label=label, linewidth=1.2)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
