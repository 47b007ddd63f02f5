"""Simulate fleets: random ones until time is up, or what is asked for; the exit status is 1 if an invariant is broken.

python -m tests.fleet --seconds 600              random fleets with faults, new seeds each time
python -m tests.fleet --seed 123                 this one, and what happened in it
python -m tests.fleet --scenarios                one entity of 1 MB/s at one, two and three instances, as a table
python -m tests.fleet --large 30x1000            30 instances, 1,000 active entities: what it costs at ZooKeeper
python -m tests.fleet --measured FILE.json       a run of tests.live_fleet beside the simulation of it
"""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fleet import large, measured, scenarios
from tests.fleet.generate import plan_of
from tests.fleet.tables import large_table, measured_table, scenario_table
from tests.fleet.world import World

SEEDS_AT_ONCE = 5


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, simulate, print; return the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="explore random fleets for so long")
    parser.add_argument("--seed", type=int, help="the (first) seed; without it a new one")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scenarios", action="store_true")
    parser.add_argument("--large", action="append", default=[], metavar="INSTANCESxENTITIES")
    parser.add_argument("--fault", choices=[*large.FAULTS], default="", help="what goes wrong in the large fleet")
    parser.add_argument("--measured", type=Path, metavar="FILE.json")
    options = parser.parse_args(arguments)
    if options.scenarios:
        return _run_scenarios()
    if options.large:
        return _run_large(options.large, options.fault)
    if options.measured:
        print(measured_table(measured.beside(options.measured)))
        return 0
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    return _explore(seed, options.seconds, options.processes) if options.seconds else _run_seed(seed)


def _run_scenarios() -> int:
    found = [
        scenarios.figures(scenario, *scenarios.run(scenario))
        for instances in (1, 2, 3)
        for scenario in scenarios.scenarios(instances)
    ]
    print(scenario_table(found))
    return int(any(figures.broken for figures in found))


def _run_large(sizes: list[str], fault: str) -> int:
    found = []
    for size in sizes:
        instances, entities = map(int, size.split("x"))
        found.append(large.measure(large.plan(instances, entities, fault=fault), fault))
    print(large_table(found))
    return int(any(figures.broken for figures in found))


def broken_of(seed: int) -> str | None:
    """What is broken in the fleet of this seed, None if nothing is."""
    return World(plan_of(seed), has_quiet_end=True).run().broken


def _run_seed(seed: int) -> int:
    world = World(plan_of(seed), has_quiet_end=True, tells=True)
    outcome = world.run()
    for line in outcome.history:
        print(line)
    print(f"seed {seed}: {outcome.broken or 'all invariants hold'}")
    return int(outcome.broken is not None)


def _explore(first_seed: int, seconds: float, processes: int) -> int:
    print(f"seeds from {first_seed} on, {seconds:g} s", flush=True)
    seeds = failed = 0
    for seed, broken in _outcomes(first_seed, processes, time.monotonic() + seconds):
        seeds += 1
        if broken is not None:
            failed += 1
            print(f"seed {seed} FAILS: {broken}", flush=True)
    print(f"{seeds} seeds, {failed} failed; again: python -m tests.fleet --seed SEED", flush=True)
    return int(failed > 0)


def run_seeds(first_seed: int) -> list[tuple[int, str | None]]:
    """Some seeds, and what is broken in them."""
    return [(seed, broken_of(seed)) for seed in range(first_seed, first_seed + SEEDS_AT_ONCE)]


def _outcomes(first_seed: int, processes: int, until: float) -> Iterator[tuple[int, str | None]]:
    with ProcessPoolExecutor(processes) as pool:
        seeds = [first_seed + number * SEEDS_AT_ONCE for number in range(processes)]
        waiting = [pool.submit(run_seeds, seed) for seed in seeds]
        following = first_seed + processes * SEEDS_AT_ONCE
        while waiting:
            yield from waiting.pop(0).result()
            if time.monotonic() < until:
                waiting.append(pool.submit(run_seeds, following))
                following += SEEDS_AT_ONCE


if __name__ == "__main__":
    sys.exit(main())
