"""How many of Python's bytecodes, and calls of its functions, a request takes: what a noisy machine cannot blur.

    python tests/bench/bytecodes.py [--column accept] [--seconds 2] [--top 30]

The load is that of a column of speed.py with one connection, and the proxy runs under counting_proxy.py, many times
slower: what it does by time, and not for a request, has a larger share than it really has, some per cent. Prints a
Markdown table. Bytecodes are not time: one that calls into C may take long.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.candidates import Candidate, kafka_throttle
from tests.bench.columns import COLUMNS, Column
from tests.bench.processes import ROOT, allow_many_files, two_or_three_cores
from tests.bench.rig import START_TIMEOUT_S, backend, rig_program, serving
from tests.bench.speed import measure

_CONNECTIONS = "1"
"""What is under way at the end was begun in vain."""


class Taken(NamedTuple):
    """What one function takes of a request, on average."""

    where: str
    calls: float
    bytecodes: float


def main() -> None:
    """Print what the requests of a column take."""
    keys = [column.key for column in COLUMNS if column.rig]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", default="accept", choices=keys)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which it is counted")
    parser.add_argument("--top", type=int, default=30, help="so many functions are shown")
    arguments = parser.parse_args()
    [column] = [column for column in COLUMNS if column.key == arguments.column]
    print(as_markdown(taken(column, arguments.seconds), arguments.top))


def taken(column: Column, seconds: float) -> list[Taken]:
    """By function, the dearest first."""
    allow_many_files()
    rig, cores = rig_program(), two_or_three_cores()
    with tempfile.TemporaryDirectory(prefix="bytecodes-") as name:
        directory = Path(name)
        file = directory / "counts.json"
        with (
            backend(rig, cores.backend, directory) as (port, node),
            serving(rig, counting(file), cores, port, directory) as (target, proxy),
        ):
            assert proxy is not None
            load = [*column.rig, "--connections", _CONNECTIONS, "--seconds", str(seconds)]
            measure(rig, load, target, proxy, node, cores)
            os.kill(proxy, signal.SIGUSR1)
            requests = measure(rig, load, target, proxy, node, cores)["requests_in_all"]
            os.kill(proxy, signal.SIGRTMIN)
            rows = read_when_written(file)
    found = [
        Taken(place(path, line, name), calls / requests, codes / requests) for path, line, name, calls, codes in rows
    ]
    return sorted(found, key=lambda one: one.bytecodes, reverse=True)


def counting(file: Path) -> Candidate:
    """Our proxy, which counts into `file`."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        python, *rest = kafka_throttle(quotas=True)(listen_port, upstream_port, directory)
        assert rest[:2] == ["-m", "proxy"], rest
        return [python, str(Path(__file__).with_name("counting_proxy.py")), str(file), *rest[2:]]

    return Candidate("kafka-throttle, counting", command)


def read_when_written(file: Path) -> list[tuple[str, int, str, int, int]]:
    """The rows of counting_proxy.py. TimeoutError if there are none in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} was not written")
        time.sleep(0.05)
    rows: list[tuple[str, int, str, int, int]] = json.loads(file.read_text())
    return rows


def place(path: str, line: int, name: str) -> str:
    """Where a function stands, as short as can be."""
    file = Path(path)
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.parent.name, file.name)
    return f"{shown}:{line} {name}"


def as_markdown(functions: Sequence[Taken], top: int) -> str:
    """As a table, with what all take together in its first line."""
    of_all = Taken("all", sum(one.calls for one in functions), sum(one.bytecodes for one in functions))
    lines = [f"| {one.where} | {one.bytecodes:.1f} | {one.calls:.2f} |" for one in (of_all, *functions[:top])]
    return "\n".join(["| a request takes | bytecodes | calls |", "|---|---|---|", *lines])


if __name__ == "__main__":
    main()
