"""Measures what quotas cost a request: none, produce only, all types; with 1 to 100,000 entities that have some.

    python tests/bench/quota_cost.py [--counts 1,100,10000,100000] [--rounds 15] [--blocks 32] \
        [--live-rounds 5] [--seconds 1.5] [--json FILE]

First within one process: frames through relays on real sensors, CPU time in ns per request (quota_relays.py). Then
live: the proxy has one core, `rig` (node and client, see rig.c) another, CPU time of the proxy per request, as in
speed.py; `--live-rounds 0` leaves that out. All that is compared takes turns within a round; figures are medians over
the rounds with their range, ratios are medians of the ratios within one round. *All types* are produce, fetch, request
time and controller mutations, on users, client-ids, pairs and their defaults; nothing ever exceeds them, but
in the row where each request does (within the process only). As many clients as there are entities have come, used
their sensors and gone. Prints Markdown tables. Needs cc and taskset.
"""

import argparse
import contextlib
import json
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from demo.proxy_process import free_port_run
from kafka_throttle.quotas.entities import QuotaKey
from kafka_throttle.quotas.sources.overlay import Change, format_overlay
from tests.bench import machine, quota_relays
from tests.bench.candidates import Candidate, Command
from tests.bench.columns import COLUMNS
from tests.bench.figures import Figures, Spread, cell, spread
from tests.bench.memory import Served
from tests.bench.processes import Cores, allow_many_files, say, two_or_three_cores
from tests.bench.quota_relays import (
    ALL,
    BIND,
    DEFAULTS,
    LOADS,
    NONE,
    OVER,
    PRODUCE_ONLY,
    QUOTAS,
    Cell,
    Found,
    entities,
    ratios,
)
from tests.bench.rig import backend, rig_program, serving
from tests.bench.speed import Runs, measure, measure_unspoilt

TITLES = {NONE: "no quotas", PRODUCE_ONLY: "produce only", ALL: "all types", OVER: "produce, all exceed it"}
BIND_TITLE = "a connection asks for a client's sensors"

# ---- live ----------------------------------------------------------------------------------------


def proxy_with(quotas: str, count: int) -> Command:
    """This project's proxy with the quotas of a cell, in a state file: a YAML file may not be that large."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        limits = {QuotaKey(quota_type): Change(limit, None) for quota_type, limit in QUOTAS[quotas].items()}
        overlay = dict.fromkeys([*entities(count), *DEFAULTS], limits) if limits else {}
        (directory / "state.json").write_bytes(format_overlay(overlay))
        metrics_port, admin_port = free_port_run(2)
        cluster = {
            "name": "bench",
            "upstream": {"bootstrap_servers": [f"127.0.0.1:{upstream_port}"]},
            "listeners": [{"name": "clients", "bind": "127.0.0.1", "port": listen_port, "node_ids": ["1"]}],
            "quotas": {"source": "file", "state_file": "state.json"},
        }
        configuration = {
            "virtual_clusters": [cluster],
            "metrics": {"bind": "127.0.0.1", "port": metrics_port},
            "admin": {"bind": "127.0.0.1", "port": admin_port},
            "log": {"level": "warning"},
            "limits": {"max_sensors": 3 * count + 1000},
        }
        file = directory / "proxy.yaml"
        file.write_text(json.dumps(configuration))  # JSON is YAML
        return [sys.executable, "-m", "proxy", "run", "-c", str(file)]

    return command


def come_and_go(target: str, clients: int) -> None:
    """Have so many clients, each of its own client-id, produce once."""
    host, port = target.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as responses:
        for first in range(0, clients, 500):
            numbers = range(first, min(first + 500, clients))
            connection.sendall(b"".join(quota_relays.one_produce(number) for number in numbers))
            for _ in numbers:
                (size,) = struct.unpack(">i", responses.read(4))
                responses.read(size)


def measure_live(options: argparse.Namespace) -> dict[str, Any]:
    """By column and cell, all runs; and what memory each cell takes."""
    cells = [Cell(NONE, 1), Cell(PRODUCE_ONLY, 1), Cell(ALL, 1), Cell(ALL, max(options.counts))]
    runs, rig, cores = Runs(), rig_program(), two_or_three_cores()
    columns = [column for column in COLUMNS if column.key in LOADS]
    found: dict[str, dict[Cell, list[Figures]]] = {column.key: {cell: [] for cell in cells} for column in columns}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, node = stack.enter_context(backend(rig, cores.backend, directory))
        served, memory = {}, {}
        for one in cells:
            say(f"live: {TITLES[one.quotas]}, entities: {one.count:,}")
            served[one], memory[one] = stack.enter_context(_populated(rig, one, cores, port, directory))
        for number in range(options.live_rounds):
            for column in columns:
                say(f"round {number + 1} of {options.live_rounds}: {column.title}")
                arguments = [*column.rig, "--seconds", str(options.seconds)]
                for one, (target, pid) in served.items():

                    def run(target: str = target, pid: int = pid, arguments: list[str] = arguments) -> Figures:
                        return measure(rig, arguments, target, pid, node, cores)

                    figures = measure_unspoilt(run, runs, options.tolerance, options.repeats)
                    found[column.key][one].append(figures)
    return {"runs": found, "memory": memory, "discarded": runs.discarded, "spoilt_but_kept": runs.spoilt_but_kept}


@contextlib.contextmanager
def _populated(
    rig: Path, one: Cell, cores: Cores, port: int, directory: Path
) -> Iterator[tuple[tuple[str, int], dict[str, int]]]:
    """A proxy that answers, whose sensors are in use; and its resident memory before and after that, in bytes."""
    candidate = Candidate(f"{one.quotas} {one.count}", proxy_with(one.quotas, one.count))
    with serving(rig, candidate, cores, port, directory) as (target, pid):
        assert pid is not None
        process = Served(("", 0), pid)
        started = process.resident_bytes()
        come_and_go(target, one.count)
        yield (target, pid), {"started": started, "sensors_in_use": process.resident_bytes()}


# ---- the report ----------------------------------------------------------------------------------


def report_of(options: argparse.Namespace, found: Found, live: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that is known, ready for JSON."""
    return {
        "machine": machine.facts(),
        "rounds": options.rounds,
        "in_process": {
            load: [
                {
                    "quotas": one.quotas,
                    "entities": one.count,
                    "ns": spread(values),
                    "ratio": spread(ratios(of_load, one)),
                    "rounds": values,
                }
                for one, values in of_load.items()
            ]
            for load, of_load in found.items()
        },
        "live": live and _live_report(live),
    }


def _live_report(live: Mapping[str, Any]) -> dict[str, Any]:
    columns = {}
    for key, of_column in live["runs"].items():
        cpu = {one: [run["cpu_us_per_request"] for run in runs] for one, runs in of_column.items()}
        columns[key] = [
            {
                "quotas": one.quotas,
                "entities": one.count,
                "requests_per_second": spread([run["requests_per_second"] for run in runs]),
                "cpu_us_per_request": spread(cpu[one]),
                "cpu_ratio": spread(ratios(cpu, one)),
            }
            for one, runs in of_column.items()
        ]
    memory = [{"quotas": one.quotas, "entities": one.count, **resident} for one, resident in live["memory"].items()]
    kept = {key: live[key] for key in ("discarded", "spoilt_but_kept")}
    return {"columns": columns, "memory": memory, **kept}


def show(report: Mapping[str, Any]) -> None:
    """Print a report as Markdown."""
    print(_in_process_table(report["in_process"]) + "\n")
    if report["live"]:
        print(_live_table(report["live"]["columns"]) + "\n")
        print(_memory_table(report["live"]["memory"]) + "\n")
    print(f"{report['rounds']} rounds; medians (lowest - highest).\n{machine.sentence(report['machine'])}")


def _in_process_table(loads: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    counts = sorted({row["entities"] for rows in loads.values() for row in rows})
    lines = [
        "**CPU time of a request and its answer within the proxy's own code, ns; ratio to no quotas**",
        "",
        "| | quotas | " + " | ".join(f"{count:,} entit{'y' if count == 1 else 'ies'}" for count in counts) + " |",
        "|---|---|" + "---|" * len(counts),
    ]
    for load, rows in loads.items():
        title = BIND_TITLE if load == BIND else LOADS[load].title
        for quotas in (NONE, PRODUCE_ONLY, ALL, OVER):
            of_count = {row["entities"]: row for row in rows if row["quotas"] == quotas}
            if not of_count:
                continue
            cells = [_ns_and_ratio(of_count.get(count), with_ratio=quotas != NONE and load != BIND) for count in counts]
            lines.append(f"| {title} | {TITLES[quotas]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ns_and_ratio(row: Mapping[str, Any] | None, with_ratio: bool) -> str:
    if row is None:
        return ""
    ratio: Spread = row["ratio"]
    return cell(row["ns"]) + (f" x {ratio['median']:.2f}" if with_ratio else "")


def _live_table(columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [
        "**Live, 100 connections**",
        "",
        "| | quotas | entities | requests/s | proxy CPU, us/request | ratio to no quotas |",
        "|---|---|---|---|---|---|",
    ]
    for key, rows in columns.items():
        for row in rows:
            cells = [
                LOADS[key].title,
                TITLES[row["quotas"]],
                f"{row['entities']:,}",
                cell(row["requests_per_second"]),
                cell(row["cpu_us_per_request"], 2),
                cell(row["cpu_ratio"], 2),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _memory_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "**Resident memory of the proxy**",
        "",
        "| quotas | entities | started, MiB | sensors of as many clients in use, MiB |",
        "|---|---|---|---|",
    ]
    for row in rows:
        sizes = " | ".join(f"{row[key] / (1 << 20):,.0f}" for key in ("started", "sensors_in_use"))
        lines.append(f"| {TITLES[row['quotas']]} | {row['entities']:,} | {sizes} |")
    return "\n".join(lines)


# ---- the command ---------------------------------------------------------------------------------


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=_counts, default=[1, 100, 10_000, 100_000], help="of entities, as 1,1000")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--blocks", type=int, default=32, help="of 4 turns of all connections, in one round")
    parser.add_argument("--live-rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one live run")
    parser.add_argument("--tolerance", type=float, default=0.10, help="share of a core that others may use in a run")
    parser.add_argument("--repeats", type=int, default=4, help="how often a spoilt run is repeated")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def _counts(text: str) -> list[int]:
    counts = sorted({int(count) for count in text.split(",")})
    if counts[0] < 1:
        raise argparse.ArgumentTypeError(f"expected counts from 1, got {counts[0]}")
    return counts


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    allow_many_files()
    found = quota_relays.measure(options.counts, options.rounds, options.blocks, say)
    live = measure_live(options) if options.live_rounds else None
    report = report_of(options, found, live)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
