"""Measures what more processors give: one worker and two, beside HAProxy with one thread and with two.

    python tests/bench/workers.py [--rounds 5] [--seconds 2] [--columns produce-1,accept] [--json FILE]

All candidates, the node and the client may use the same processors, and take turns within a round. So on a machine with
two of them the rig takes time from the proxy, from the one with two workers most: requests/s there are a lower bound of
what two free processors would give. Therefore the processor time of a request stands beside it, which tells what a
second worker costs, and how busy the proxy was. Figures are medians over the rounds with their range, ratios are
medians of the ratios within one round. Needs cc, taskset and haproxy.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench import machine
from tests.bench.candidates import Candidate, haproxy, kafka_throttle
from tests.bench.columns import COLUMNS, Column
from tests.bench.processes import allow_many_files, cpu_seconds_of, cpu_seconds_of_others, family_of, say
from tests.bench.rig import backend, rig_program, serving

ONE, TWO = "kafka-throttle", "kafka-throttle, 2 workers"
CANDIDATES = (
    Candidate("HAProxy", haproxy()),
    Candidate("HAProxy, 2 threads", haproxy(threads=2)),
    Candidate(ONE, kafka_throttle(quotas=True)),
    Candidate(TWO, kafka_throttle(quotas=True, workers=2)),
)
PAIRS = ((TWO, ONE), ("HAProxy, 2 threads", "HAProxy"), (TWO, "HAProxy, 2 threads"), (ONE, "HAProxy"))
"""Whose ratios are told."""


def measured(rig: Path, column: Column, target: str, proxy: int, seconds: float) -> dict[str, float]:
    """Requests (or connections) a second, processor time of each in us, and how busy the proxy and all others were."""
    command = [str(rig), *column.rig, "--seconds", str(seconds), "--target", target]
    ours = {os.getpid(), *family_of(proxy)}
    before, others = cpu_seconds_of(proxy), sum(cpu_seconds_of_others(ours).values())
    began = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    took = time.monotonic() - began
    figures: dict[str, Any] = json.loads(result.stdout)
    used = cpu_seconds_of(proxy) - before
    return {
        "per_second": figures["requests_per_second"],
        "cpu_us": used / figures["requests_in_all"] * 1e6,
        "busy": used / took,
        "others": (sum(cpu_seconds_of_others(ours).values()) - others) / took,
    }


def measure_all(options: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    """By column and candidate, an entry for each round."""
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    cores, rig = ",".join(map(str, sorted(os.sched_getaffinity(0)))), rig_program()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, _ = stack.enter_context(backend(rig, cores, directory))
        served = [
            (candidate.name, *stack.enter_context(serving(rig, candidate, cores, port, directory)))
            for candidate in CANDIDATES
        ]
        for number in range(options.rounds):
            for column in options.columns:
                say(f"round {number + 1} of {options.rounds}: {column.title}")
                for name, target, proxy in served:
                    assert proxy is not None
                    figures = measured(rig, column, target, proxy, options.seconds)
                    runs.setdefault(column.key, {}).setdefault(name, []).append(figures)
    return runs


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median and the range."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} - {max(values):,.{digits}f})"


def show(runs: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print the figures as Markdown."""
    titles = {column.key: column.title for column in COLUMNS}
    for key, of_column in runs.items():
        print(
            f"## {titles[key]}\n\n| | per second | CPU us each | cores in use | others |\n"
            "| --- | --- | --- | --- | --- |"
        )
        for name, rounds in of_column.items():
            cells = [spread([one[figure] for one in rounds], digits) for figure, digits in _SHOWN]
            print(f"| {name} | {' | '.join(cells)} |")
        print()
        for one, other in PAIRS:
            rounds = list(zip(of_column[one], of_column[other], strict=True))
            ratios = [mine["per_second"] / theirs["per_second"] for mine, theirs in rounds]
            of_cpu = [mine["cpu_us"] / theirs["cpu_us"] for mine, theirs in rounds]
            print(f"- {one} / {other}: {spread(ratios, 2)} times as many, {spread(of_cpu, 2)} times the CPU of each")
        print()
    print(machine.sentence(machine.facts()))


_SHOWN = (("per_second", 0), ("cpu_us", 1), ("busy", 2), ("others", 2))


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--columns", default="produce-1,fetch-4k,accept")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    keys = options.columns.split(",")
    options.columns = [column for column in COLUMNS if column.key in keys and column.rig]
    allow_many_files()
    runs = measure_all(options)
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    show(runs)


if __name__ == "__main__":
    main()
