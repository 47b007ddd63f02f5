"""Draws the panels of both dashboards from the results of their queries, out of a real Prometheus, under load.

    python -m tests.deploy.picture docs/reference/dashboards.webp [--seconds 90]

It is not what Grafana draws; it shows which series each query has.
"""

import argparse
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo.kafka_cluster import KafkaCluster
from tests.deploy.load import loaded_proxy
from tests.deploy.panels import DASHBOARDS, PanelQuery, panel_queries
from tests.deploy.prometheus import PrometheusProcess

_WIDTH_INCHES = 16.0
_NUMBERS, _NUMBER_INCHES = 6, 0.8
"""How many panels of one number stand in a row, and its height."""
_CHARTS, _CHART_INCHES = 4, 2.1
_MOST_SERIES = 6
_LABEL = re.compile(r"{{(\w+)}}")
_FACTORS = {"percentunit": (100, "%"), "Bps": (1e-3, "kB/s"), "bytes": (1e-6, "MB"), "percent": (1, "%"), "s": (1, "s")}
_UNITS = {"ops": "/s", "reqps": "/s", "cps": "/s"}

_Panel = list[tuple[PanelQuery, list[Any]]]
"""The queries of a panel, each with its series."""


def main() -> None:
    """Start everything, let it run for a while, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=int, default=90)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaCluster(nodes=1) as kafka:
        folder = Path(name)
        with PrometheusProcess(folder) as prometheus, loaded_proxy(kafka, folder) as proxy:
            prometheus.scrape(proxy)
            time.sleep(options.seconds)
            drawn(_panels(prometheus, options.seconds)).savefig(options.out)


def _panels(prometheus: PrometheusProcess, seconds: float) -> list[_Panel]:
    """Each panel's queries with their series, in order."""
    panels: dict[tuple[str, int], _Panel] = {}
    for query in (query for dashboard in DASHBOARDS for query in panel_queries(dashboard)):
        at_once = prometheus.query(query.expression) if query.is_number else None
        series = prometheus.query_range(query.expression, seconds) if at_once is None else at_once
        panels.setdefault((query.dashboard, query.number), []).append((query, series))
    return list(panels.values())


def drawn(panels: Sequence[_Panel]) -> Figure:
    """The figure: first the panels that are one number, then the others."""
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False})
    numbers = [panel for panel in panels if panel[0][0].is_number]
    charts = [panel for panel in panels if not panel[0][0].is_number]
    heights = [-(-len(numbers) // _NUMBERS) * _NUMBER_INCHES, -(-len(charts) // _CHARTS) * _CHART_INCHES]
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), dpi=100, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    for part, chosen, columns, draw in (
        (above, numbers, _NUMBERS, _draw_number),
        (below, charts, _CHARTS, _draw_lines),
    ):
        places = list(part.subplots(-(-len(chosen) // columns), columns).flat)
        for place, panel in zip(places, chosen, strict=False):
            place.set_title(f"{panel[0][0].dashboard}: {panel[0][0].panel}", loc="left")
            draw(place, panel)
        for place in places[len(chosen) :]:
            place.set_axis_off()
    return figure


def _draw_number(place: Axes, panel: _Panel) -> None:
    [(query, series)] = panel
    factor, unit = _scale(query.unit)
    value = f"{float(series[0]['value'][1]) * factor:.3g} {unit}" if series else "no data"
    place.set_axis_off()
    place.text(0, 0.5, value, fontsize=18, va="center")


def _draw_lines(place: Axes, panel: _Panel) -> None:
    factor, unit = _scale(panel[0][0].unit)
    place.set_ylabel(unit)
    lines = [
        ([(float(at), float(value) * factor) for at, value in one["values"]], _name(query, one["metric"]))
        for query, series in panel
        for one in series
    ]
    for points, name in sorted(lines, key=lambda line: -max(value for _, value in line[0]))[:_MOST_SERIES]:
        end_s = points[-1][0]
        place.plot([at - end_s for at, _ in points], [value for _, value in points], label=name, linewidth=1)
    if lines:
        place.set_ylim(min(0, place.get_ylim()[0]), place.get_ylim()[1] * 1.5 or 1)
        place.legend(fontsize=6, frameon=False, loc="upper left", ncols=2)
    else:
        place.text(0.5, 0.5, "no series", transform=place.transAxes, ha="center", color="grey")


def _name(query: PanelQuery, labels: Mapping[str, str]) -> str:
    """The legend of a series."""
    text = _LABEL.sub(lambda match: labels.get(match[1], ""), query.legend)
    return " ".join(text.replace("ANONYMOUS", "").split()) or "all"


def _scale(unit: str) -> tuple[float, str]:
    return _FACTORS.get(unit, (1, _UNITS.get(unit, "")))


if __name__ == "__main__":
    main()
