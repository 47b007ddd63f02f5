"""How tests are divided: nightly ones among the shards of `make nightly`, those of one run among its workers.

A *unit* is the tests of one module that need the same kind of cluster; it is never divided. A *group* is run by one
worker: all that shares a cluster or a Spark session, otherwise a unit.
"""

import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARDS = 6
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that each nightly test took in the run that `make durations` kept."""
MOST_UNKNOWN = 0.1
"""The part of a shard's tests that may have no duration in DURATIONS before the run says so."""
_COST_ALONE = 2
"""A second of an exclusive test costs a second of each of two workers."""


def unit_of(item: pytest.Item) -> str:
    """The module, and the kind of cluster if the test runs with several."""
    kind = item.callspec.params.get("kafka") if hasattr(item, "callspec") else None
    module = item.nodeid.partition("::")[0]
    return f"{module} {kind}" if kind else module


def group_of(item: pytest.Item) -> str:
    """The name in the marker `xdist_group`, or the unit."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else unit_of(item)


def costs_of(items: Iterable[pytest.Item], durations: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each unit is expected to take; a test that has no duration yet counts as the mean of the others."""
    mean = sum(durations.values()) / len(durations) if durations else 1.0
    costs: dict[str, float] = {}
    for item in items:
        weight = _COST_ALONE if item.get_closest_marker("exclusive") else 1
        unit = unit_of(item)
        costs[unit] = costs.get(unit, 0.0) + weight * durations.get(item.nodeid, mean)
    return costs


def shards_of(costs: Mapping[str, float], count: int = SHARDS) -> list[set[str]]:
    """Units by shard. The most expensive unit comes first; each goes to the shard that has the least so far."""
    shards: list[set[str]] = [set() for _ in range(count)]
    sums = [0.0] * count
    for unit in sorted(costs, key=lambda unit: (-costs[unit], unit)):
        least = sums.index(min(sums))
        shards[least].add(unit)
        sums[least] += costs[unit]
    return shards


def known_durations() -> dict[str, float]:
    """What DURATIONS has, by test."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def unknown_among(tests: Collection[str], durations: Mapping[str, float]) -> str:
    """A warning if so many tests have no duration that shards may take unequal times, otherwise nothing."""
    unknown = sum(test not in durations for test in tests)
    if unknown <= MOST_UNKNOWN * len(tests):
        return ""
    return f"{unknown} of {len(tests)} tests are not in tests/{DURATIONS.name}: run all shards, then `make durations`"


def longest_first(items: list[pytest.Item], durations: Mapping[str, float]) -> list[pytest.Item]:
    """All tests group by group: those with a cluster or Spark before others, then those that take longest."""
    members: dict[str, list[pytest.Item]] = {}
    for item in items:
        members.setdefault(group_of(item), []).append(item)

    def rank(group: list[pytest.Item]) -> tuple[float, bool]:
        shared = any(item.get_closest_marker("xdist_group") for item in group)
        return -sum(durations.get(item.nodeid, 0.0) for item in group), not shared

    return [item for group in sorted(members.values(), key=rank) for item in group]


class GroupScheduling(LoadScopeScheduling):
    """Gives each group to one worker, in the order of `longest_first`. Needs `--no-loadscope-reorder`.

    Workers know the markers, the controller schedules: the first worker writes down the groups (`write_groups`). It
    has not if its collection failed; then nothing will run.
    """

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    @cached_property
    def _groups(self) -> dict[str, str]:
        file = _groups_file(self.nodes[0].workerinput)
        groups: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        file.unlink(missing_ok=True)
        return groups


def write_groups(workerinput: Mapping[str, str], items: Sequence[pytest.Item]) -> None:
    """Tell the controller of this run the group of each test."""
    if items and workerinput["workerid"] == "gw0":
        _groups_file(workerinput).write_text(json.dumps({item.nodeid: group_of(item) for item in items}))


def _groups_file(workerinput: Mapping[str, str]) -> Path:
    return Path(tempfile.gettempdir()) / f"test-groups-{workerinput['testrunuid']}.json"


def main() -> None:
    """Keep what the last runs of all shards took, to balance the next ones."""
    runs = json.loads(Path("build/durations.json").read_text())
    taken = {
        test: round(seconds, 1)
        for name, of_run in runs.items()
        if name.startswith("shard-")
        for test, seconds in of_run.items()
    }
    DURATIONS.write_text(json.dumps(taken, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
