"""What a replay costs: processor time for one client in one window, by kind of load.

    python -m tests.bench.replay_cost [--only TEXT] [--rounds 5]

Of each kind a run is made as `usage simulate` would find it, replayed as often as given; the least counts,
which is what others on the machine disturb least. Prints a Markdown table.
"""

import argparse
import time
from collections.abc import Callable, Hashable
from functools import partial
from random import Random
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.backlog import Window, replay_run
from kafka_throttle.pipeline.simulate.candidate import Rules
from tests.bench.usage_table import BIG_LIMITS, LIMITS, PER_LIMIT, WINDOW_MS, throttled_records

_MINUTES = 10
_SHARERS = 33
_LEAD_IN, _BEHIND = 2, 7
"""So many windows a run has before and behind those that were throttled: 13 s, and a debt of 60 s."""

RULES = Rules()


class Kind(NamedTuple):
    """The windows of all clients that share a sensor, and the candidate's limit."""

    quota_type: str
    clients: dict[Hashable, list[Window]]
    limit: float

    windows: int
    """So many of them count."""

    def replay(self) -> None:
        """Once."""
        end_ms = max(windows[-1].end_ms for windows in self.clients.values())
        replay_run(self.clients, RULES, self.quota_type, self.limit, end_ms)


def throttled(quota_type: str, factor: float) -> Kind:
    """One client that was throttled in some windows from the beginning to the end, under a candidate with so many times
    its quota. Before them, and for as long behind, it used nothing, then less than its quota; these belong to the
    run, but do not count.
    """
    records = [record for record in throttled_records() if record.quota_type == quota_type]
    live = [Window.of(record) for record in records]
    random, limit = Random(1), LIMITS[quota_type]
    beside = [_unthrottled(random, quota_type, 0.0) for _ in range(_LEAD_IN)]
    later = [_unthrottled(random, quota_type, 0.6 * random.random() * limit) for _ in range(_BEHIND - _LEAD_IN)]
    windows = _in_order([*beside, *live, *beside, *later])
    return Kind(quota_type, {"a": windows}, factor * limit, len(live))


def unthrottled(quota_type: str, clients: int, load: float, limit: float) -> Kind:
    """Clients that were not throttled and use as much of a sensor of the candidate together, each by chance more or
    less of it.
    """
    random, number = Random(1), _MINUTES * 60_000 // WINDOW_MS
    each = load / clients * limit

    def windows() -> list[Window]:
        return _in_order([_unthrottled(random, quota_type, each * (0.5 + random.random())) for _ in range(number)])

    return Kind(quota_type, {name: windows() for name in range(clients)}, limit, clients * number)


def _unthrottled(random: Random, quota_type: str, per_s: float) -> Window:
    used = float(int(per_s * PER_LIMIT[quota_type] * WINDOW_MS / 1000))
    requests = max(1, int(used / (2 if quota_type == "request" else 20_000)))
    return Window(0, 0, used, used / (WINDOW_MS / 1000) * (1 + 0.3 * random.random()), requests, 0, 0)


def _in_order(windows: list[Window]) -> list[Window]:
    return [window._replace(begin_ms=i * WINDOW_MS, end_ms=(i + 1) * WINDOW_MS) for i, window in enumerate(windows)]


def alone(quota_type: str) -> Kind:
    """One client that wants twice its limit."""
    return unthrottled(quota_type, 1, 2.0, LIMITS[quota_type])


def shared(quota_type: str, load: float) -> Kind:
    """Clients of the big user."""
    return unthrottled(quota_type, _SHARERS, load, BIG_LIMITS[quota_type])


KINDS: dict[str, Callable[[], Kind]] = {
    f"{name}, {kind}": partial(make, kind)
    for name, make in {
        f"{_SHARERS} clients share a sensor, at 92 % of its limit": partial(shared, load=0.92),
        f"{_SHARERS} clients share a sensor, at 115 % of its limit": partial(shared, load=1.15),
        "one client at twice its limit, unthrottled live": alone,
        "throttled live all the time, twice the quota": partial(throttled, factor=2.0),
        "throttled live all the time, the same quota": partial(throttled, factor=1.0),
    }.items()
    for kind in LIMITS
}


def cost_us(kind: Kind, rounds: int) -> float:
    """Processor microseconds for one client in one window: the least of so many rounds."""
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        kind.replay()
        least = min(least, time.process_time() - began)
    return least / kind.windows * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| | us |\n|---|---|")
    for name, kind in KINDS.items():
        if arguments.only in name:
            print(f"| {name} | {cost_us(kind(), arguments.rounds):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
