"""The queries of the dashboards, as Grafana would send them for all proxies, clusters and clients."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.deploy.prometheus import WINDOW_S
from tests.deploy.tools import DEPLOY

DASHBOARDS = ("fleet", "tenant")
_VARIABLE = re.compile(r"\$(\w+)")
_VALUES = {"__rate_interval": f"{WINDOW_S}s", "__range": "1m"}


class PanelQuery(NamedTuple):
    """A query of a panel; `legend` has labels in double braces."""

    dashboard: str
    number: int
    panel: str
    unit: str
    is_number: bool
    expression: str
    legend: str


def panel_queries(dashboard: str) -> Iterator[PanelQuery]:
    """The queries of one dashboard, in the order of its panels. Every choice is "all", whose value is `.*`."""
    for panel in json.loads((DEPLOY / "grafana" / f"{dashboard}.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = _VARIABLE.sub(lambda match: _VALUES.get(match[1], ".*"), target["expr"])
            unit = panel["fieldConfig"]["defaults"]["unit"]
            is_number = panel["type"] == "stat"
            yield PanelQuery(
                dashboard, panel["id"], panel["title"], unit, is_number, expression, target["legendFormat"]
            )
