"""Runs as Spark hands them on, row by row, and what comes of each: one run after the other.

All windows of a run are in memory while it is replayed, and all their requests; `simulation.MOST_REQUESTS` limits
these.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kafka_throttle.pipeline.simulate.backlog import Window, replay_run
from kafka_throttle.pipeline.simulate.candidate import Candidate
from kafka_throttle.pipeline.simulate.meter import PERCENT_SECONDS_PER_MS
from kafka_throttle.pipeline.simulate.replay import Throttling

RUN = ("sensor_id", "run", "virtual_cluster", "quota_type", "new_limit")
CLIENT = ("user", "client_id", "ip")
SHARER = (*CLIENT, "node_id")
"""A client at a node: under a quota over all nodes one sensor measures several."""
WINDOW = Window._fields
COLUMNS = (*RUN, *SHARER, *WINDOW)
"""What rows must have, in this order; those of a run together and in the order of `begin_ms`."""


def _together(one: Window, other: Window) -> Window:
    return Window(
        one.begin_ms,
        max(one.end_ms, other.end_ms),
        one.used + other.used,
        max(one.peak, other.peak),
        one.requests + other.requests,
        one.throttles + other.throttles,
        one.throttled_ms + other.throttled_ms,
        one.muted_ms + other.muted_ms,
        f"{one.profile} {other.profile}" if one.profile and other.profile else "",
    )


@dataclass(slots=True)
class Run:
    """What is known of one run of one sensor."""

    sensor_id: int
    virtual_cluster: str
    quota_type: str
    limit: float
    windows: dict[Hashable, list[Window]] = field(default_factory=dict)

    def add(self, sharer: tuple[Any, ...], window: tuple[Any, ...]) -> None:
        """One row."""
        windows, one = self.windows.setdefault(sharer, []), Window(*window)
        # Several records have parts of one window, as after a restart of the proxy, or of use through several proxies.
        if windows and windows[-1].begin_ms == one.begin_ms:
            windows[-1] = _together(windows[-1], one)
        else:
            windows.append(one)

    def replayed(self, candidate: Candidate, end_ms: int) -> list[tuple[Any, ...]]:
        """simulation.REPLAYED: a row for each client, and one for all. What waits is sent until `end_ms`.

        How much a client could use of a sensor that it shares depends on the others: its share is held as recorded.
        """
        rules = candidate.rules(self.virtual_cluster)
        assert rules is not None
        outcome = replay_run(self.windows, rules, self.quota_type, self.limit, end_ms)
        recorded = {sharer: sum(window.used for window in windows) for sharer, windows in self.windows.items()}
        total, none = sum(recorded.values()), Throttling()
        rows = []
        for sharer, used in recorded.items():
            paced, greedy = outcome.paced.get(sharer, none), outcome.greedy.get(sharer, none)
            share = used / total if total else 0.0
            sums = (used, outcome.sensor.used * share, outcome.greedy_sensor.used * share)
            rows.append(self._row(sharer, False, sums, paced, greedy, len(self.windows[sharer])))
        number = len({window.begin_ms for windows in self.windows.values() for window in windows})
        sums = (total, outcome.sensor.used, outcome.greedy_sensor.used)
        rows.append(self._row(("", "", "", 0), True, sums, outcome.sensor, outcome.greedy_sensor, number))
        return rows

    def _row(
        self,
        sharer: Any,
        of_sensor: bool,
        used: tuple[float, float, float],
        paced: Throttling,
        greedy: Throttling,
        windows: int,
    ) -> tuple[Any, ...]:
        factor = 1 / PERCENT_SECONDS_PER_MS if self.quota_type == "request" else 1.0
        recorded, *replayed = used
        sums = (recorded, *(one * factor for one in replayed))
        times = (paced.throttles, paced.throttled_ms, greedy.throttled_ms, paced.longest_ms, paced.muted_ms)
        return (self.sensor_id, *sharer[: len(CLIENT)], of_sensor, *sums, *times, windows, len(self.windows))


def runs_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Run]:
    """Rows of COLUMNS -> their runs, one at a time."""
    run, current = None, None
    sharer, window = len(RUN), len(RUN) + len(SHARER)
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            if row[:2] != current:
                if run is not None:
                    yield run
                sensor_id, _, *known = row[:sharer]
                run, current = Run(sensor_id, *known), row[:2]
            assert run is not None
            run.add(row[sharer:window], row[window:])
    if run is not None:
        yield run
