"""Simulate until time is up, or one seed; the exit status is 1 if an invariant does not hold.

python -m tests.simulation --seconds 600            new seeds, ten minutes long
python -m tests.simulation --seed 123               this seed; if it fails, cut down to what it needs
python -m tests.simulation --seed 123 --trace       every step of it
"""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module

from tests.simulation.generate import world_of
from tests.simulation.plan import WorldPlan
from tests.simulation.shrink import described, kind_of, shrink
from tests.simulation.world import MakeRelay, Outcome, run_world

SEEDS_AT_ONCE = 20
SHRINKING_RUNS = 3000
_PROGRESS_S = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, simulate, print what failed; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate proxies on fake time.")
    parser.add_argument("--seconds", type=float, help="how long; without it one seed is run")
    parser.add_argument("--seed", type=int, help="the (first) seed; without it a new one")
    parser.add_argument("--only", type=_numbers, help="these connections of the seed alone, as 0,2")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--relay", default="kafka_throttle.proxy.relay.relay:Relay", help="module:Class of the relay to be simulated"
    )
    parser.add_argument("--trace", action="store_true", help="print every step of one seed")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    if options.seconds is None:
        return _run_one(_world(seed, options.only), options.relay, options.trace)
    return _run_many(seed, options.seconds, options.processes, options.relay)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def relay_of(name: str) -> MakeRelay:
    """The class that `module:Class` names."""
    module, _, cls = name.partition(":")
    make: MakeRelay = getattr(import_module(module), cls)
    return make


def _world(seed: int, only: list[int] | None) -> WorldPlan:
    world = world_of(seed)
    if only is not None:
        world.connections = [world.connections[number] for number in only]
    return world


def _run_one(world: WorldPlan, relay: str, trace: bool) -> int:
    lines: list[str] | None = [] if trace else None
    outcome = run_world(world, relay_of(relay), lines)
    for line in lines or ():
        print(line)
    print(_summary(outcome))
    if outcome.failure:
        _print_failure(world, outcome.failure, relay)
        return 1
    return 0


def _print_failure(world: WorldPlan, failure: str, relay: str) -> None:
    print(f"\nSeed {world.seed} FAILS: {failure}", flush=True)
    make = relay_of(relay)
    smallest = shrink(world, lambda plan: run_world(plan, make).failure, SHRINKING_RUNS)
    lines: list[str] = []
    shrunk = run_world(smallest, make, lines)
    print(f"What it needs to fail ({shrunk.failure}):\n\n{described(smallest)}")
    print("\n".join(lines[-30:]))
    kept = [connection.seed for connection in smallest.connections]
    numbers = [number for number, connection in enumerate(world_of(world.seed).connections) if connection.seed in kept]
    only = _world(world.seed, numbers)
    alone = kind_of(run_world(only, make).failure) == kind_of(failure) and len(numbers) < len(world.connections)
    selection = f" --only {','.join(map(str, numbers))}" if alone else ""
    chosen = "" if relay == "kafka_throttle.proxy.relay.relay:Relay" else f" --relay {relay}"
    print(f"\nAgain: python -m tests.simulation --seed {world.seed}{selection}{chosen} --trace", flush=True)


def _run_many(first_seed: int, seconds: float, processes: int, relay: str) -> int:
    print(f"seeds from {first_seed} on, {seconds:g} s", flush=True)
    begin = reported = time.monotonic()
    total, seeds = Outcome(), 0
    for outcome, seed in _outcomes(first_seed, processes, relay, begin + seconds):
        total.add(outcome)
        seeds += outcome.worlds
        if outcome.failure:
            print(_summary(total))
            _print_failure(world_of(seed), outcome.failure, relay)
            return 1
        if time.monotonic() > reported + _PROGRESS_S:
            reported = time.monotonic()
            print(
                f"{reported - begin:6.0f} s  {seeds} seeds, {total.connections} connections, {total.requests} requests",
                flush=True,
            )
    print(_summary(total))
    return 0


def _outcomes(first_seed: int, processes: int, relay: str, until: float) -> Iterator[tuple[Outcome, int]]:
    """Outcomes of batches of seeds, the last with the seed that failed, until it is late."""
    run = partial(run_seeds, count=SEEDS_AT_ONCE, relay=relay)
    seed = first_seed
    if processes == 1:
        while time.monotonic() < until:
            yield run(seed)
            seed += SEEDS_AT_ONCE
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(run, seed + i * SEEDS_AT_ONCE) for i in range(processes)]
        seed += processes * SEEDS_AT_ONCE
        while waiting:
            yield waiting.pop(0).result()
            if time.monotonic() < until:
                waiting.append(pool.submit(run, seed))
                seed += SEEDS_AT_ONCE


def run_seeds(first_seed: int, count: int, relay: str) -> tuple[Outcome, int]:
    """What happens in `count` worlds, and the last seed; it stops at one that fails."""
    total, make = Outcome(), relay_of(relay)
    for seed in range(first_seed, first_seed + count):
        outcome = run_world(world_of(seed), make)
        total.add(outcome)
        if outcome.failure:
            total.failure = outcome.failure
            return total, seed
    return total, seed


def _summary(outcome: Outcome) -> str:
    def counted(counter: dict[str, int]) -> str:
        return (
            ", ".join(f"{name} {count}" for name, count in sorted(counter.items(), key=lambda item: -item[1])) or "none"
        )

    return "\n".join(
        (
            f"seeds            {outcome.worlds}",
            f"simulated hours  {outcome.simulated_ms / 3_600_000:.1f}",
            f"connections      {outcome.connections}",
            f"requests         {outcome.requests} ({outcome.request_bytes / 1e6:.1f} MB)",
            f"responses        {outcome.responses} ({outcome.response_bytes / 1e6:.1f} MB)",
            f"throttles        {outcome.throttles}",
            f"topics refused   {outcome.refused} ({outcome.own_requests} own requests)",
            f"quotas altered   {outcome.altered}",
            f"logins           {outcome.logins} ({outcome.logins_failed} failed)",
            f"gate             {counted(outcome.gate)}; {outcome.worst_held} held at a time",
            f"ended by time    {outcome.timed_out}",
            f"events           {outcome.events}",
            f"faults           {counted(outcome.faults)}",
            f"closes           {counted(outcome.closes)}",
            f"worst held       {outcome.worst_held_bytes} bytes in a relay, {outcome.worst_kept_bytes} unwritten",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
