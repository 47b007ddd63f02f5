"""Whether the interval of a simulation has what a live run has, by kind of load.

    python -m tests.pipeline.record_fidelity [--seconds 600] [--seed 1] [--factor 1] [--only TEXT]

Each load runs on the proxy's own quota manager and sensors with clients on a virtual clock, and its 10 s records are
simulated under `factor` times its quota. Then the load itself runs under that quota. Prints a Markdown table: throttle
times of that run, and of the paced and the greedy client; how far the middle of the two is off; and what both used, as
a share of what that run used.
"""

import argparse
from collections import defaultdict
from collections.abc import Hashable, Iterator
from random import Random
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.backlog import Window, replay_run
from kafka_throttle.pipeline.simulate.candidate import Rules
from kafka_throttle.pipeline.simulate.meter import type_of, value_of
from kafka_throttle.quotas.entities import DEFAULT, Entity
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.pipeline.live_runs import (
    CONNECTION,
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    Connection,
    LiveRun,
    Load,
    Request,
    bursty,
    greedy,
    live_run,
    steady,
)

MB = 1_000_000
RULES = Rules()
WITHHOLDING = Rules(paces_fetches=False)


def one_user(rate: float, quota_type: str = PRODUCE) -> QuotaTable:
    """Everybody by himself has this quota, whatever his client-id; every address that for connections."""
    if quota_type == CONNECTION:
        return QuotaTable({Entity(ip=DEFAULT): {type_of(quota_type): rate}})
    return QuotaTable({Entity(user=DEFAULT): {type_of(quota_type): rate}})


def on_and_off(rate: float, size: int, on_ms: int, off_ms: int) -> Load:
    """As many bytes/s for a while, then nothing."""

    def requests(random: Random) -> Iterator[Request]:
        step_ms = size / rate * 1000
        cycle = 0
        while True:
            begin_ms = cycle * (on_ms + off_ms) + random.random() * 2000
            for i in range(int(on_ms / step_ms)):
                yield Request(int(begin_ms + i * step_ms), size)
            cycle += 1

    return requests


def random_sizes(rate: float, least: int, most: int) -> Load:
    """As many bytes/s on average, in requests of random sizes that come at random."""

    def requests(random: Random) -> Iterator[Request]:
        at_ms = 0.0
        while True:
            size = random.randrange(least, most)
            at_ms += random.expovariate(rate / ((least + most) / 2)) * 1000
            yield Request(int(at_ms), size)

    return requests


def greedy_sizes(least: int, most: int) -> Load:
    """Always one more, of a random size."""

    def requests(random: Random) -> Iterator[Request]:
        while True:
            yield Request(0, random.randrange(least, most))

    return requests


def greedy_costs(mean: float) -> Load:
    """Always one request more; each takes about so many percent * s of a thread."""

    def requests(random: Random) -> Iterator[Request]:
        while True:
            yield Request(0, mean * random.uniform(0.5, 1.5))

    return requests


def from_one_address(*loads: Load, service_ms: int = 3) -> list[Connection]:
    return [Connection("192.0.2.1", "", load, service_ms) for load in loads]


def alone(*loads: Load) -> list[Connection]:
    return [Connection("a", "x", load) for load in loads]


def several(*loads: Load) -> list[Connection]:
    return [Connection("a", f"c{i}", load) for i, load in enumerate(loads)]


class Kind(NamedTuple):
    """A kind of load: its connections, and the quota in bytes/s, or in percent of a thread."""

    connections: list[Connection]
    quota: float = MB
    quota_type: str = PRODUCE
    delivers: bool = False
    """What is over the quota passes, and mutes after that."""
    paces: bool = False
    """Fetches wait for their turns."""


def alone_slowly(load: Load) -> list[Connection]:
    return [Connection("a", "x", load, service_ms=200)]


KINDS = {
    "one greedy, 100 KB": Kind(alone(greedy(100_000))),
    "one greedy, 10 to 500 KB": Kind(alone(greedy_sizes(10_000, 500_000))),
    "three greedy, 1 MB": Kind(alone(*[greedy(MB)] * 3)),
    "five greedy, 100 KB": Kind(alone(*[greedy(100_000)] * 5)),
    "ten greedy, 60 KB": Kind(alone(*[greedy(60_000)] * 10)),
    "twenty greedy, 100 KB": Kind(alone(*[greedy(100_000)] * 20)),
    "one greedy, 1 MiB, quota of 100 KB/s": Kind(alone(greedy(1 << 20)), 100_000),
    "one greedy, 1 MiB, quota of 10 KB/s": Kind(alone(greedy(1 << 20)), 10_000),
    "one greedy, 1 MiB, quota of 1 KB/s": Kind(alone(greedy(1 << 20)), 1_000),
    "open, 80 %": Kind(alone(steady(0.8 * MB, 20_000))),
    "open, 95 %": Kind(alone(steady(0.95 * MB, 20_000))),
    "open, 105 %": Kind(alone(steady(1.05 * MB, 20_000))),
    "open, 130 %": Kind(alone(steady(1.3 * MB, 20_000))),
    "random sizes and times, 70 %": Kind(alone(random_sizes(0.7 * MB, 10_000, 2_000_000))),
    "random sizes and times, 95 %": Kind(alone(random_sizes(0.95 * MB, 10_000, 2_000_000))),
    "random sizes and times, 120 %": Kind(alone(random_sizes(1.2 * MB, 10_000, 500_000))),
    "bursts of 4 s every 5 s": Kind(alone(bursty(4 * MB, 100_000, 5_000))),
    "bursts of 13 s every 10 s": Kind(alone(bursty(13 * MB, 100_000, 10_000))),
    "bursts of 18 s every 20 s": Kind(alone(bursty(18 * MB, 100_000, 20_000))),
    "bursts of 30 s every 45 s": Kind(alone(bursty(30 * MB, 100_000, 45_000))),
    "bursts of 18 s every 60 s": Kind(alone(bursty(18 * MB, 100_000, 60_000))),
    "bursts of 12 s every 30 s": Kind(alone(bursty(12 * MB, 100_000, 30_000))),
    "bursts of 40 s every 120 s, 1 MB": Kind(alone(bursty(40 * MB, MB, 120_000))),
    "on at 150 % for 30 s, off for 30 s": Kind(alone(on_and_off(1.5 * MB, 50_000, 30_000, 30_000))),
    "on at 300 % for 8 s, off for 20 s": Kind(alone(on_and_off(3 * MB, 50_000, 8_000, 20_000))),
    "three that burst together every 60 s": Kind(alone(*[bursty(9 * MB, 100_000, 60_000)] * 3)),
    "ten that burst together every 30 s": Kind(alone(*[bursty(3 * MB, 50_000, 30_000)] * 10)),
    "shared: greedy, open, bursty": Kind(
        several(greedy(100_000), steady(0.3 * MB, 20_000), bursty(6 * MB, 100_000, 30_000))
    ),
    "shared: ten clients, open, 130 % in all": Kind(several(*[steady(0.13 * MB, 10_000)] * 10)),
    "shared: four bursty": Kind(
        several(*[bursty(8 * MB, 100_000, period) for period in (20_000, 35_000, 47_000, 61_000)])
    ),
    "shared: five greedy": Kind(several(*[greedy(100_000)] * 5)),
    "fetches, one greedy, 100 KB": Kind(alone(greedy(100_000)), MB, FETCH),
    "fetches, one greedy, 1 MB": Kind(alone(greedy(MB)), MB, FETCH),
    "fetches, one greedy, 10 to 500 KB": Kind(alone(greedy_sizes(10_000, 500_000)), MB, FETCH),
    "fetches, one greedy, 10 KB to 5 MB": Kind(alone(greedy_sizes(10_000, 5 * MB)), MB, FETCH),
    "fetches, five greedy, 100 KB": Kind(alone(*[greedy(100_000)] * 5), MB, FETCH),
    "fetches, three greedy, 1 MB": Kind(alone(*[greedy(MB)] * 3), MB, FETCH),
    "fetches, two greedy, 100 KB to 3 MB": Kind(alone(*[greedy_sizes(100_000, 3 * MB)] * 2), MB, FETCH),
    "fetches, random sizes and times, 95 %": Kind(alone(random_sizes(0.95 * MB, 10_000, 2 * MB)), MB, FETCH),
    "fetches, open, 80 %": Kind(alone(steady(0.8 * MB, 20_000)), MB, FETCH),
    "fetches, open, 130 %": Kind(alone(steady(1.3 * MB, 20_000)), MB, FETCH),
    "fetches, bursts of 18 s every 20 s": Kind(alone(bursty(18 * MB, 100_000, 20_000)), MB, FETCH),
    "paced fetches, one greedy, 16 KB": Kind(alone(greedy(16_000)), MB, FETCH, paces=True),
    "paced fetches, one greedy, 200 KB": Kind(alone(greedy(200_000)), MB, FETCH, paces=True),
    "paced fetches, one greedy, 10 to 500 KB": Kind(alone(greedy_sizes(10_000, 500_000)), MB, FETCH, paces=True),
    "paced fetches, five greedy, 100 KB": Kind(alone(*[greedy(100_000)] * 5), MB, FETCH, paces=True),
    "paced fetches, three greedy, 1 MB": Kind(alone(*[greedy(MB)] * 3), MB, FETCH, paces=True),
    "paced fetches, random sizes and times, 95 %": Kind(
        alone(random_sizes(0.95 * MB, 10_000, 500_000)), MB, FETCH, paces=True
    ),
    "paced fetches, open, 80 %": Kind(alone(steady(0.8 * MB, 20_000)), MB, FETCH, paces=True),
    "paced fetches, open, 130 %": Kind(alone(steady(1.3 * MB, 20_000)), MB, FETCH, paces=True),
    "paced fetches, bursts of 18 s every 20 s": Kind(alone(bursty(18 * MB, 100_000, 20_000)), MB, FETCH, paces=True),
    "paced fetches, bursts of 4 s every 20 s": Kind(alone(bursty(4 * MB, 100_000, 20_000)), MB, FETCH, paces=True),
    "shared: paced fetches, greedy, open, bursty": Kind(
        several(greedy(100_000), steady(0.3 * MB, 20_000), bursty(6 * MB, 100_000, 30_000)), MB, FETCH, paces=True
    ),
    "requests of 80 us, 1 %": Kind(alone(greedy_costs(0.008)), 1.0, REQUEST),
    "requests of 200 us, 1 %": Kind(alone(greedy_costs(0.02)), 1.0, REQUEST),
    "requests of 1 ms, 2 %": Kind(alone(greedy_costs(0.1)), 2.0, REQUEST),
    "requests of 5 ms, 5 %": Kind(alone(greedy_costs(0.5)), 5.0, REQUEST),
    "three that ask, 200 us, 2 %": Kind(alone(*[greedy_costs(0.02)] * 3), 2.0, REQUEST),
    "one that connects, 5/s": Kind(from_one_address(greedy(1)), 5.0, CONNECTION),
    "one that connects slowly, 5/s": Kind(from_one_address(greedy(1), service_ms=25), 5.0, CONNECTION),
    "three that connect, 5/s": Kind(from_one_address(*[greedy(1)] * 3), 5.0, CONNECTION),
    "120 connections every 20 s, 5/s": Kind(from_one_address(bursty(120, 1, 20_000)), 5.0, CONNECTION),
    "connects, 95 % of 20/s": Kind(from_one_address(steady(19, 1)), 20.0, CONNECTION),
    "connects, 130 % of 20/s": Kind(from_one_address(steady(26, 1)), 20.0, CONNECTION),
    "mutations, one greedy, 1 partition, 5/s": Kind(alone(greedy(1)), 5.0, MUTATION),
    "mutations, one greedy, 10 partitions, 2/s": Kind(alone(greedy(10)), 2.0, MUTATION),
    "mutations, one greedy and slow, 10 partitions, 2/s": Kind(alone_slowly(greedy(10)), 2.0, MUTATION),
    "mutations, one greedy, 1 to 12 partitions, 2/s": Kind(alone(greedy_sizes(1, 12)), 2.0, MUTATION),
    "mutations, three greedy, 3 partitions, 2/s": Kind(alone(*[greedy(3)] * 3), 2.0, MUTATION),
    "mutations, bursts of 60 every 60 s, 2/s": Kind(alone(bursty(60, 3, 60_000)), 2.0, MUTATION),
    "mutations, open, 80 %": Kind(alone(steady(1.6, 2)), 2.0, MUTATION),
    "mutations, open, 130 %": Kind(alone(steady(2.6, 2)), 2.0, MUTATION),
    "shared: mutations, greedy, open, bursty": Kind(
        several(greedy(3), steady(0.5, 2), bursty(20, 2, 30_000)), 2.0, MUTATION
    ),
    "mutations let through, one greedy, 2 partitions": Kind(alone(greedy(2)), 2.0, MUTATION, delivers=True),
    "mutations let through, one greedy, 1 to 12": Kind(alone(greedy_sizes(1, 12)), 2.0, MUTATION, delivers=True),
    "mutations let through, bursts of 60 every 60 s": Kind(alone(bursty(60, 3, 60_000)), 2.0, MUTATION, delivers=True),
}


def windows_of(run: LiveRun) -> dict[Hashable, list[Window]]:
    """Its records as the replay takes them."""
    clients: dict[Hashable, list[Window]] = defaultdict(list)
    for record in run.records:
        clients[record.user, record.client_id].append(Window.of(record))
    return dict(clients)


class Found(NamedTuple):
    """What came of a load: throttle times in ms, use as charged."""

    live_ms: int
    paced_ms: int
    greedy_ms: int
    live_used: float
    paced_used: float
    greedy_used: float

    @property
    def outside_ms(self) -> int:
        """How far the live throttle time is outside of the interval; 0 inside."""
        low_ms, high_ms = sorted((self.paced_ms, self.greedy_ms))
        return max(low_ms - self.live_ms, self.live_ms - high_ms, 0)

    @property
    def off(self) -> float:
        """How far the middle of the interval is off: 0.01 is 1 % too much."""
        return (self.paced_ms + self.greedy_ms) / 2 / self.live_ms - 1 if self.live_ms else 0.0


def found(kind: Kind, seconds: int, seed: int = 1, factor: float = 1) -> Found:
    """Its records under so many times its quota, and a live run under that."""
    limit = factor * kind.quota
    before = _live(kind, 1, seconds, seed)
    clients, live = windows_of(before), before if factor == 1 else _live(kind, factor, seconds, seed)
    end_ms = max(windows[-1].end_ms for windows in clients.values())
    rules = RULES if kind.paces else WITHHOLDING
    outcome = replay_run(clients, rules, kind.quota_type, limit, end_ms)
    throttled_ms = sum(record.throttled_ms for record in live.records)
    used = value_of(kind.quota_type, sum(record.used for record in live.records))
    paced, greedy = outcome.sensor, outcome.greedy_sensor
    return Found(throttled_ms, paced.throttled_ms, greedy.throttled_ms, used, paced.used, greedy.used)


def _live(kind: Kind, factor: float, seconds: int, seed: int) -> LiveRun:
    table = one_user(factor * kind.quota, kind.quota_type)
    return live_run(table, kind.connections, seconds, seed, kind.quota_type, kind.delivers, kind.paces)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--factor", type=float, default=1.0, help="times the quota that was in force")
    parser.add_argument("--only", default="", help="loads whose name has this in it")
    arguments = parser.parse_args()
    print("| load | throttled, live | paced to greedy | middle | used, paced to greedy |")
    print("|---|---|---|---|---|")
    for name, kind in KINDS.items():
        if arguments.only in name:
            print(_line(name, found(kind, arguments.seconds, arguments.seed, arguments.factor)), flush=True)


def _line(name: str, one: Found) -> str:
    low_ms, high_ms = sorted((one.paced_ms, one.greedy_ms))
    outside = " (outside)" if one.outside_ms else ""
    interval = f"{low_ms / 1000:.0f} to {high_ms / 1000:.0f} s{outside}"
    off = f"{one.off:+.0%}" if one.live_ms else "-"
    used = f"{one.paced_used / one.live_used:.0%} to {one.greedy_used / one.live_used:.0%}"
    return f"| {name} | {one.live_ms / 1000:.0f} s | {interval} | {off} | {used} |"


if __name__ == "__main__":
    main()
