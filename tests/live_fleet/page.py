"""The table of all scenarios."""

from collections.abc import Mapping
from typing import Any

from tests.live_fleet.figures import figures
from tests.live_fleet.rig import SIDES

NAMES = {"fleet": "fleet", "single": "one instance", "broker": "Kafka's own quota"}


def table(found: Mapping[str, Any]) -> str:
    """Markdown: a line for each scenario, kind and side."""
    head = ("scenario", "", "held by", "long run / limit", "most above, s", "after the start, s", "Jain", "settled, s")
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|---|---|---|---|"]
    for scenario in found.values():
        by_side = figures(scenario)
        for kind in scenario["sides"][SIDES[0]]:
            for side in SIDES:
                one = by_side[side][kind]
                settled = ", ".join("never" if s is None else str(s) for s in one["settled_after_s"])
                cells = (
                    scenario["title"] if side == SIDES[0] else "",
                    kind if side == SIDES[0] else "",
                    NAMES[side],
                    f"{one['long_run']:.3f}",
                    f"{one['worst_s']:.1f}",
                    f"{one['worst_later_s']:.1f}",
                    f"{one['jain']:.3f}",
                    settled,
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
