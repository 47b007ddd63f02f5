"""Draws the panels of both dashboards from the results of their queries, out of a real Prometheus, under load.

    python -m tests.deploy.picture docs/dashboards.webp [--seconds 90]

It is not what Grafana draws; it shows which series each query has.
"""

import argparse
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo.kafka_cluster import KafkaCluster
from tests.deploy.load import loaded_proxy
from tests.deploy.panels import DASHBOARDS, PanelQuery, panel_queries
from tests.deploy.prometheus import PrometheusProcess

_COLUMNS = 4
_PANEL_INCHES = (4.0, 2.3)
_MOST_SERIES = 8
_LABEL = re.compile(r"{{(\w+)}}")
_FACTORS = {"percentunit": (100, "%"), "Bps": (1e-3, "kB/s"), "bytes": (1e-6, "MB"), "percent": (1, "%"), "s": (1, "s")}
_UNITS = {"ops": "/s", "reqps": "/s", "cps": "/s"}


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
            drawn([*_panels(prometheus, options.seconds)]).savefig(options.out)


def _panels(prometheus: PrometheusProcess, seconds: float) -> list[tuple[list[PanelQuery], list[list[Any]]]]:
    """Each panel's queries with their series, in order."""
    panels: dict[tuple[str, str], tuple[list[PanelQuery], list[list[Any]]]] = {}
    for query in (query for dashboard in DASHBOARDS for query in panel_queries(dashboard)):
        queries, results = panels.setdefault((query.dashboard, query.panel), ([], []))
        queries.append(query)
        at_once = query.is_number
        results.append(
            prometheus.query(query.expression) if at_once else prometheus.query_range(query.expression, seconds)
        )
    return list(panels.values())


def drawn(panels: Sequence[tuple[list[PanelQuery], list[list[Any]]]]) -> Figure:
    """The figure of all panels."""
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False})
    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), dpi=100, layout="constrained")
    axes = figure.subplots(rows, _COLUMNS).flat
    for place, (queries, results) in zip(axes, panels, strict=False):
        place.set_title(f"{queries[0].dashboard}: {queries[0].panel}", loc="left")
        (_draw_number if queries[0].is_number else _draw_lines)(place, queries, results)
    for place in list(axes)[len(panels) :]:
        place.set_axis_off()
    return figure


def _draw_number(place: Axes, queries: list[PanelQuery], results: list[list[Any]]) -> None:
    factor, unit = _scale(queries[0].unit)
    value = f"{float(results[0][0]['value'][1]) * factor:.3g} {unit}" if results[0] else "no data"
    place.set_axis_off()
    place.text(0.5, 0.5, value, fontsize=22, ha="center", va="center")


def _draw_lines(place: Axes, queries: list[PanelQuery], results: list[list[Any]]) -> None:
    factor, unit = _scale(queries[0].unit)
    place.set_ylabel(unit)
    drawn = 0
    for query, series in zip(queries, results, strict=True):
        for one in series[:_MOST_SERIES]:
            times = [float(at) for at, _ in one["values"]]
            values = [float(value) * factor for _, value in one["values"]]
            name = _LABEL.sub(lambda match, one=one: one["metric"].get(match[1], ""), query.legend)
            place.plot([at - times[-1] for at in times], values, label=name.strip() or "all", linewidth=1)
            drawn += 1
    if drawn:
        place.legend(fontsize=5, frameon=False, loc="upper left")
        place.set_ylim(bottom=min(0, place.get_ylim()[0]))
    else:
        place.text(0.5, 0.5, "no series", transform=place.transAxes, ha="center", color="grey")


def _scale(unit: str) -> tuple[float, str]:
    return _FACTORS.get(unit, (1, _UNITS.get(unit, "")))


if __name__ == "__main__":
    main()
