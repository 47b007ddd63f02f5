"""Runs as Spark hands them on, row by row, and what comes of each: one run after the other.

All windows of a run are in memory while it is replayed, and all requests that they are retold as;
`simulation.MOST_REQUESTS` bounds these.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from re import match
from typing import Any

import pyarrow as pa

from pipeline.simulate.candidate import Candidate, Rules
from pipeline.simulate.meter import PERCENT_SECONDS_PER_MS
from pipeline.simulate.record_replay import Explained, Replayed, explained, replay_run
from pipeline.simulate.recorded import Window
from pipeline.simulate.replay import Throttling

RUN = ("sensor_id", "run", "virtual_cluster", "quota_type", "new_limit")
CLIENT = ("user", "client_id", "ip")
SHARER = (*CLIENT, "live_node_id")
"""A client, and the node at which its quota measured it live: under a quota over all nodes one sensor measures what
several did.
"""
WINDOW = Window._fields
IN_FORCE = ("limit", "rule")
COLUMNS = (*RUN, *SHARER, *WINDOW, *IN_FORCE)
"""What rows must have, in this order; those of a run together and in the order of `begin_ms`."""

Sharer = tuple[str, str, str, int]


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
    in_force: dict[Sharer, tuple[Any, ...]] = field(default_factory=dict)
    """Limit and rule of each client's last window."""
    throttled: set[Sharer] = field(default_factory=set)

    def add(self, sharer: Sharer, window: tuple[Any, ...], in_force: tuple[Any, ...]) -> None:
        """One row."""
        windows, one = self.windows.setdefault(sharer, []), Window(*window)
        # Several records tell of a window that was cut in two, as at a restart of the proxy, or used through several.
        if windows and windows[-1].begin_ms == one.begin_ms:
            windows[-1] = _together(windows[-1], one)
        else:
            windows.append(one)
        self.in_force[sharer] = in_force
        if one.throttled_ms:
            self.throttled.add(sharer)

    def replayed(self, candidate: Candidate, end_ms: int) -> list[tuple[Any, ...]]:
        """simulation.REPLAYED: a row for each client, and one for all. What is held is sent until `end_ms`."""
        rules = candidate.rules(self.virtual_cluster)
        assert rules is not None
        groups = self._explained(rules)
        outcome = replay_run(groups, rules, self.quota_type, self.limit, end_ms)
        fit = (float(sum(group.recorded_ms for group in groups)), float(sum(group.model_ms for group in groups)))
        return self._rows(outcome, fit)

    def _explained(self, rules: Rules) -> list[Explained]:
        """How the use came about of each group that shared a sensor that was throttled live, and of all others."""
        others = dict(self.windows)
        groups = []
        for live_limit, members in self._live_groups():
            shared = {client: others.pop(client) for client in members}
            groups.append(explained(shared, rules, self.quota_type, live_limit, self.limit))
        if others:
            groups.append(explained(others, rules, self.quota_type, None, self.limit))
        return groups

    def _live_groups(self) -> Iterator[tuple[float, list[Hashable]]]:
        """The limit in force, and the clients, of each sensor that was throttled live."""
        groups: dict[tuple[str, str, int], list[Hashable]] = {}
        limits: dict[tuple[str, str, int], float] = {}
        throttled: set[tuple[str, str, int]] = set()
        for sharer, (limit, rule) in self.in_force.items():
            user, client_id, _, node_id = sharer
            tags = (*live_tags(rule, user, client_id), node_id)
            groups.setdefault(tags, []).append(sharer)
            if sharer in self.throttled:
                throttled.add(tags)
            if limit is not None and limit > 0:
                limits[tags] = limit
        for tags, members in groups.items():
            if tags in throttled and tags in limits:
                yield limits[tags], members

    def _rows(self, outcome: Replayed, fit: tuple[float, float]) -> list[tuple[Any, ...]]:
        none = Throttling()
        rows: list[tuple[Any, ...]] = []
        total = 0.0
        for sharer, windows in self.windows.items():
            recorded = sum(window.used for window in windows)
            total += recorded
            paced, greedy = outcome.paced.get(sharer, none), outcome.greedy.get(sharer, none)
            rows.append(self._row(sharer, False, recorded, paced, greedy, (0.0, 0.0), len(windows)))
        number = len({window.begin_ms for windows in self.windows.values() for window in windows})
        paced, greedy = outcome.sensor, outcome.greedy_sensor
        rows.append(self._row(("", "", "", 0), True, total, paced, greedy, fit, number))
        return rows

    def _row(
        self,
        sharer: Any,
        of_sensor: bool,
        recorded: float,
        paced: Throttling,
        greedy: Throttling,
        fit: tuple[float, float],
        windows: int,
    ) -> tuple[Any, ...]:
        factor = 1 / PERCENT_SECONDS_PER_MS if self.quota_type == "request" else 1.0
        used = (recorded, paced.used * factor, greedy.used * factor)
        times = (paced.throttles, paced.throttled_ms, greedy.throttled_ms, paced.longest_ms, paced.muted_ms)
        return (self.sensor_id, *sharer[: len(CLIENT)], of_sensor, *used, *times, *fit, windows)


def runs_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Run]:
    """Rows of COLUMNS -> their runs, one at a time."""
    run, current = None, None
    sharer, window = len(RUN), len(RUN) + len(SHARER)
    in_force = window + len(WINDOW)
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            if row[:2] != current:
                if run is not None:
                    yield run
                sensor_id, _, *known = row[:sharer]
                run, current = Run(sensor_id, *known), row[:2]
            assert run is not None
            run.add(row[sharer:window], row[window:in_force], row[in_force:])
    if run is not None:
        yield run


def live_tags(rule: str, user: str, client_id: str) -> tuple[str, str]:
    """Under which user and client-id a client was measured, by the entity whose quota it had."""
    part = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)"
    found = match(rf"(user={part})?(?:, )?(client-id={part})?$", rule or "")
    if found is None:
        return user, client_id
    return user if found[1] else "", client_id if found[2] else ""
