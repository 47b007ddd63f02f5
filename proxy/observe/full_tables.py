"""Logs that a table of sensors is full."""

from collections.abc import Mapping

import structlog

from kafka_throttle.common.at_most_every import AtMostEvery

_REPORTED_EVERY_US = 60_000_000

_SHARED = "newcomers share a sensor and are throttled together"
_TABLES = {
    "clients": (_SHARED, "limits.max_sensors"),
    "shadow": ("newcomers share a sensor, or are not measured", "limits.max_sensors"),
    "addresses": (_SHARED, None),
}
"""For each table what it means that it is full, and the setting of its size."""


class FullTables:
    """Logs at most once a minute for each table of a virtual cluster how many newcomers found it full since."""

    def __init__(self, virtual_cluster: str) -> None:
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)
        self._reported: dict[str, int] = {}
        self._due: dict[str, AtMostEvery] = {}

    def look(self, overflows: Mapping[str, int], now_us: int) -> None:
        """`overflows` counts for each table the newcomers that found it full since the start."""
        for table, count in overflows.items():
            newcomers = count - self._reported.get(table, 0)
            if newcomers and self._due.setdefault(table, AtMostEvery(_REPORTED_EVERY_US)).is_due(now_us):
                self._reported[table] = count
                problem, setting = _TABLES[table]
                self._log.warning("sensors_full", table=table, newcomers=newcomers, problem=problem, setting=setting)
