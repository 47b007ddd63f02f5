"""A real fleet under load, beside a single instance and a broker's own quota: how close all of it stays to one limit.

    python -m tests.live_fleet [--scenario NAME]... [--chaos SECONDS] [--cost ENTITIES] [--part 1.0]
                               [--rate 1000000] [--fetch empty|paced] [--again]
                               [--json FILE] [--plot FILE.webp] [--page FILE.md]

A ZooKeeper ensemble of three, three nodes of Kafka, up to three instances on machines of their own (network
namespaces), HAProxy before them, clients of librdkafka, Java and kafka-python. All scenarios take about 25 minutes.

--chaos kills an instance every five seconds and starts it again, and accounts for every record at the end; --cost has
so many entities throttled at two of three instances each, and compares the CPU time of the instances with that
without a fleet. With either of them, scenarios are run only if they are named.

With --json a scenario that the file has already is not run again, so that a run that was interrupted goes on; --again
runs it. Prints Markdown of all that the file has; --page writes it. Needs root, or a system on which users may have
network namespaces. Exit status 1 if a record was lost, doubled or out of order.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka_throttle.common.jars import kafka_jars
from tests.live_fleet import cost, page, plot
from tests.live_fleet.chaos import Chaos
from tests.live_fleet.network import enter_own_network
from tests.live_fleet.rig import LIMIT, Rig
from tests.live_fleet.run import Run
from tests.live_fleet.scenarios import SCENARIOS, Scenario, shortened

_FORMAT = 1


def say(line: str) -> None:
    """Progress, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.live_fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", action="append", choices=names, default=[], help="all by default")
    parser.add_argument("--chaos", type=int, metavar="SECONDS")
    parser.add_argument("--cost", type=int, metavar="ENTITIES")
    parser.add_argument("--part", type=float, default=1.0, help="multiplies all times of scenarios")
    parser.add_argument("--rate", type=int, default=LIMIT, help="the limit in bytes/s; less for a slow machine")
    parser.add_argument("--fetch", default="empty", choices=("empty", "paced"), help="throttle.fetch of all instances")
    parser.add_argument("--again", action="store_true", help="also scenarios that the JSON file has")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.webp")
    parser.add_argument("--page", type=Path, metavar="FILE.md")
    return parser.parse_args(arguments)


def read(file: Path | None) -> dict[str, Any]:
    """What was found before."""
    if file is None or not file.exists():
        return {"format": _FORMAT, "scenarios": {}}
    kept: dict[str, Any] = json.loads(file.read_text())
    if kept["format"] != _FORMAT:
        raise SystemExit(f"{file}: format {kept['format']}, expected {_FORMAT}")
    return kept


def keep(file: Path | None, found: dict[str, Any]) -> None:
    """As JSON, whole at any moment; scenarios in their order."""
    found["scenarios"] = {one.name: found["scenarios"][one.name] for one in SCENARIOS if one.name in found["scenarios"]}
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(found) + "\n")
        aside.replace(file)


def scenarios_of(options: argparse.Namespace, had: Mapping[str, Any]) -> list[Scenario]:
    """What has to be run."""
    named = options.scenario or ([] if options.chaos or options.cost else [one.name for one in SCENARIOS])
    wanted = [one for one in SCENARIOS if one.name in named and (options.again or one.name not in had)]
    return [shortened(one, options.part) for one in wanted]


def run(options: argparse.Namespace, found: dict[str, Any], wanted: Sequence[Scenario]) -> None:
    """Add to what was found, one thing after the other."""
    say("starting ZooKeeper, Kafka, instances and HAProxy")
    with Rig(options.rate, options.fetch) as rig:
        for scenario in wanted:
            say(f"{scenario.name}: {scenario.title}, {scenario.seconds} s")
            found["scenarios"][scenario.name] = Run(rig, scenario, say).go()
            keep(options.json, found)
        if options.chaos:
            found["chaos"] = Chaos(rig, options.chaos, say).go()
            keep(options.json, found)
        if options.cost:
            found["cost"] = cost.measure(rig, options.cost, say)
            keep(options.json, found)


def main() -> int:
    """As the head of this file says."""
    options = parse_options()
    kafka_jars("4.3.1", say)  # here, as the network of the run has no way out
    kafka_jars("3.9.2", say)
    enter_own_network()
    found = read(options.json)
    wanted = scenarios_of(options, found["scenarios"])
    if wanted or options.chaos or options.cost:
        run(options, found, wanted)
    print(page.markdown(found))
    if options.page is not None:
        options.page.write_text(page.markdown(found, options.plot and options.plot.name) + "\n")
    if options.plot is not None:
        plot.draw(found["scenarios"], options.plot)
    return 1 if options.chaos and found["chaos"]["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
