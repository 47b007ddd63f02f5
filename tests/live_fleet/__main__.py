"""A real fleet under load, beside a single instance and a broker's own quota: how close all of it stays to one limit.

    python -m tests.live_fleet [--scenario NAME]... [--part 1.0] [--json FILE] [--plot FILE.webp] [--again]
    python -m tests.live_fleet --chaos SECONDS [--json FILE]
    python -m tests.live_fleet --cost ENTITIES [--json FILE]

A ZooKeeper ensemble of three, three nodes of Kafka, up to three instances on machines of their own (network
namespaces), HAProxy before them, clients of librdkafka, Java and kafka-python. With --json a scenario that the file has
already is not run again, so that a run that was interrupted goes on; --again runs it. Prints a Markdown table. Needs
root, or a system on which users may have network namespaces. All scenarios take about 18 minutes.

--chaos kills an instance every five seconds and starts it again; at the end every record is accounted for. Exit status
1 if one was lost, doubled or out of order. --cost has so many entities throttled at two of three instances each, and
prints the CPU time of the instances in a fleet and without.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.jars import kafka_jars
from tests.live_fleet import page, plot
from tests.live_fleet.chaos import Chaos, words
from tests.live_fleet.cost import measure
from tests.live_fleet.cost import words as as_table
from tests.live_fleet.network import enter_own_network
from tests.live_fleet.rig import Rig
from tests.live_fleet.run import Run
from tests.live_fleet.scenarios import SCENARIOS, shortened

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
    parser.add_argument("--part", type=float, default=1.0, help="multiplies all times")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.webp")
    parser.add_argument("--chaos", type=int, metavar="SECONDS", help="instead of the scenarios")
    parser.add_argument("--cost", type=int, metavar="ENTITIES", help="instead of the scenarios")
    parser.add_argument("--again", action="store_true", help="also what the JSON file has already")
    return parser.parse_args(arguments)


def read(file: Path | None) -> dict[str, Any]:
    """Scenario -> what was found before."""
    if file is None or not file.exists():
        return {}
    kept = json.loads(file.read_text())
    if kept["format"] != _FORMAT:
        raise SystemExit(f"{file}: format {kept['format']}, expected {_FORMAT}")
    return dict(kept["scenarios"])


def write(file: Path | None, found: Mapping[str, Any]) -> None:
    """In the order of the scenarios."""
    ordered = {scenario.name: found[scenario.name] for scenario in SCENARIOS if scenario.name in found}
    keep(file, {"format": _FORMAT, "scenarios": ordered})


def chaos(options: argparse.Namespace) -> int:
    """The exit status."""
    with rig() as parts:
        found = Chaos(parts, options.chaos, say).go()
    keep(options.json, found)
    print(words(found), *found["violations"][:20], sep="\n")
    return 1 if found["violations"] else 0


def cost(options: argparse.Namespace) -> int:
    """The exit status."""
    with rig() as parts:
        found = measure(parts, options.cost, say)
    keep(options.json, found)
    print(as_table(found))
    return 0


def rig() -> Rig:
    """The parts of a run."""
    say("starting ZooKeeper, Kafka, instances and HAProxy")
    return Rig()


def keep(file: Path | None, found: Mapping[str, Any]) -> None:
    """As JSON, whole at any moment."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps(found) + "\n")
        aside.replace(file)


def main() -> None:
    """As the head of this file says."""
    options = parse_options()
    kafka_jars("4.3.1", say)  # here, as the network of the run has no way out
    kafka_jars("3.9.2", say)
    enter_own_network()
    if options.chaos or options.cost:
        sys.exit(chaos(options) if options.chaos else cost(options))
    found = read(options.json)
    wanted = [one for one in SCENARIOS if one.name in options.scenario or not options.scenario]
    wanted = [shortened(one, options.part) for one in wanted if options.again or one.name not in found]
    if wanted:
        with rig() as parts:
            for scenario in wanted:
                say(f"{scenario.name}: {scenario.title}, {scenario.seconds} s")
                found[scenario.name] = Run(parts, scenario, say).go()
                write(options.json, found)
    print(page.table(found))
    if options.plot is not None:
        plot.draw(found, options.plot)


if __name__ == "__main__":
    main()
