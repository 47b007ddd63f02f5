"""How many of Python's bytecodes, and calls of its functions, a request takes: what a noisy machine cannot blur.

    python tests/bench/bytecodes.py [--column accept] [--seconds 2] [--top 30] [--fleet]

The load is that of a column of speed.py with one connection, and the proxy runs under counting_proxy.py, many times
slower: what it does by time, and not for a request, has a larger share than it really has, some per cent. Prints a
Markdown table. Bytecodes are not time: one that calls into C may take long. With --fleet the load is counted twice, by
one instance alone and by one of two in a fleet, and the table has the files that a request passes through.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from demo.proxy_process import free_port_run
from tests.bench.candidates import Candidate, kafka_throttle
from tests.bench.columns import COLUMNS, Column
from tests.bench.processes import allow_many_files, running, two_or_three_cores
from tests.bench.rig import START_TIMEOUT_S, backend, rig_program, serving
from tests.bench.speed import measure
from tests.integration.zookeeper_process import ZooKeeper
from tests.support.places import ROOT

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
    parser.add_argument("--fleet", action="store_true", help="beside one of two instances in a fleet")
    arguments = parser.parse_args()
    [column] = [column for column in COLUMNS if column.key == arguments.column]
    alone = taken(column, arguments.seconds)
    if not arguments.fleet:
        print(as_markdown(alone, arguments.top))
        return
    with a_fleet_of_another() as fleet:
        print(compared(alone, taken(column, arguments.seconds, fleet), arguments.top))


@contextlib.contextmanager
def a_fleet_of_another() -> Iterator[dict[str, Any]]:
    """The section of a fleet that has one member: the one that is counted is its second."""
    with ZooKeeper() as zookeeper, tempfile.TemporaryDirectory(prefix="bytecodes-") as name:
        fleet = {"zookeeper": {"servers": [zookeeper.address]}}
        command = kafka_throttle(quotas=True, fleet=fleet)(*free_port_run(2), Path(name))
        with running(command, two_or_three_cores().client, Path(name) / "log"), zookeeper.client() as client:
            members, deadline = "/kafka-throttle/bench/fleet/members", time.monotonic() + START_TIMEOUT_S
            while not (client.exists(members) and client.get_children(members)):
                if time.monotonic() > deadline:
                    raise TimeoutError((Path(name) / "log").read_text())
                time.sleep(0.05)
            yield fleet


def compared(alone: Sequence[Taken], in_fleet: Sequence[Taken], top: int) -> str:
    """Bytecodes by file, of the files that have most of them."""
    sums: list[dict[str, float]] = [{}, {}]
    for counted, functions in zip(sums, (alone, in_fleet), strict=True):
        for one in functions:
            file = one.where.partition(":")[0]
            counted[file] = counted.get(file, 0.0) + one.bytecodes
    rows = [(file, sums[0].get(file, 0.0), sums[1].get(file, 0.0)) for file in sums[0] | sums[1]]
    rows.sort(key=lambda row: max(row[1:]), reverse=True)
    lines = [f"| {file} | {without:.1f} | {within:.1f} |" for file, without, within in rows[:top]]
    return "\n".join(["| a request takes bytecodes in | alone | in a fleet |", "|---|---|---|", *lines])


def taken(column: Column, seconds: float, fleet: Mapping[str, Any] | None = None) -> list[Taken]:
    """By function, the dearest first."""
    allow_many_files()
    rig, cores = rig_program(), two_or_three_cores()
    with tempfile.TemporaryDirectory(prefix="bytecodes-") as name:
        directory = Path(name)
        file = directory / "counts.json"
        with (
            backend(rig, cores.backend, directory) as (port, node),
            serving(rig, counting(file, fleet), cores, port, directory) as (target, proxy),
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


def counting(file: Path, fleet: Mapping[str, Any] | None = None) -> Candidate:
    """Our proxy, which counts into `file`."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        python, *rest = kafka_throttle(quotas=True, fleet=fleet)(listen_port, upstream_port, directory)
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
    file = Path(path).resolve()
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.parent.name, file.name)
    return f"{shown}:{line} {name}"


def as_markdown(functions: Sequence[Taken], top: int) -> str:
    """As a table, with what all take together in its first line."""
    of_all = Taken("all", sum(one.calls for one in functions), sum(one.bytecodes for one in functions))
    lines = [f"| {one.where} | {one.bytecodes:.1f} | {one.calls:.2f} |" for one in (of_all, *functions[:top])]
    return "\n".join(["| a request takes | bytecodes | calls |", "|---|---|---|", *lines])


if __name__ == "__main__":
    main()
