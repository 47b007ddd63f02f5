"""Measures how fast the proxy is beside a direct connection, HAProxy and nginx as TCP proxies, and any other proxy.

    python tests/bench/speed.py [--rounds 5] [--seconds 1.5] [--columns produce-1,fetch-1m] \
        [--json FILE] [--plot FILE] [--other 'name=command with {listen} and {upstream}']

The proxy under test has one core, `rig` (node and client, see rig.c) another. Candidates take turns within
a round, so that whatever drifts on the machine drifts for all; figures are medians over the rounds with their
range, ratios are medians of the ratios within one round. A run during which anybody else used more than a
tenth of either core is thrown away and repeated. Prints Markdown tables. Needs cc, taskset, haproxy and nginx.

`--plot` draws the ratios; with `--from FILE` nothing is measured: tables and plot are made of an earlier `--json`.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench import machine, memory, tls
from tests.bench.candidates import CANDIDATES, Candidate, other
from tests.bench.columns import COLUMNS, Column
from tests.bench.figures import PEERS, Figures, summary, summary_table, table
from tests.bench.processes import (
    Cores,
    allow_many_files,
    busy_seconds,
    cpu_seconds_of,
    cpu_seconds_of_others,
    family_of,
    say,
    two_or_three_cores,
)
from tests.bench.rig import backend, rig_program, serving


@dataclass(slots=True)
class Runs:
    """All runs so far: by column key and candidate name, one entry a round."""

    figures: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    discarded: int = 0
    spoilt_but_kept: int = 0


# ---- measuring -----------------------------------------------------------------------------------


def measure(rig: Path, arguments: Sequence[str], target: str, proxy: int | None, node: int, cores: Cores) -> Figures:
    """What `rig` prints, and `cpu_us_per_request` of the proxy, and three shares of one core.

    `proxy_busy`; `rig_busy`, of the fuller of its cores; `others`, what anybody else used. That is the larger of
    what a core did for none of ours (ticks: coarse, and too low for processes that sleep often) and of what other
    processes have on their accounts (exact, but the short-lived escape).
    """
    command = [str(rig), *arguments, "--target", target, "--cpu", str(cores.client)]

    def run() -> Figures:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{shlex.join(command)}: {result.stderr}")
        figures: Figures = json.loads(result.stdout)
        return figures

    figures = watched(run, proxy, node, cores)
    if figures.get("throttled"):
        raise RuntimeError(f"{shlex.join(command)}: {figures['throttled']} answers were throttled")
    return figures


def watched(run: Callable[[], Figures], proxy: int | None, node: int | None, cores: Cores) -> Figures:
    """The figures of a run, and those that are seen around it: see `measure`. No node: it is where the client is."""
    our_processes = {os.getpid(), *(family_of(node) if node else ()), *(family_of(proxy) if proxy else ())}
    began = time.monotonic()
    used_cores = {cores.proxy, cores.backend, cores.client}
    foreign = cpu_seconds_of_others(our_processes)
    busy, of_proxy, of_node = (
        busy_seconds(),
        cpu_seconds_of(proxy) if proxy else 0.0,
        cpu_seconds_of(node) if node else 0.0,
    )
    figures = run()
    took = time.monotonic() - began
    of_proxy = (cpu_seconds_of(proxy) if proxy else 0.0) - of_proxy
    of_node = (cpu_seconds_of(node) if node else 0.0) - of_node
    used = {core: seconds - busy[core] for core, seconds in busy_seconds().items()}
    foreign_now = cpu_seconds_of_others(our_processes, used_cores)
    on_accounts = sum(max(0.0, now - foreign.get(pid, 0.0)) for pid, now in foreign_now.items())
    ours = dict.fromkeys(used, 0.0)
    ours[cores.proxy] += of_proxy
    ours[cores.backend] += of_node
    ours[cores.client] += figures["cpu_seconds"]
    figures["cpu_us_per_request"] = of_proxy / figures["requests_in_all"] * 1e6
    figures["proxy_busy"] = of_proxy / took
    figures["rig_busy"] = max(ours[cores.backend], ours[cores.client]) / took
    unexplained = max(used[core] - ours[core] for core in used_cores)
    figures["others"] = max(unexplained, on_accounts) / took
    return figures


def measure_unspoilt(run: Callable[[], Figures], runs: Runs, tolerance: float, repeats: int) -> Figures:
    """The first run that nobody disturbed, or the least disturbed of 1 + `repeats`; counts the discarded."""
    attempts = [run()]
    while attempts[-1]["others"] > tolerance and len(attempts) <= repeats:
        attempts.append(run())
    best = min(attempts, key=lambda figures: figures["others"] > tolerance and figures["others"])
    runs.discarded += len(attempts) - 1
    runs.spoilt_but_kept += best["others"] > tolerance
    return best


def measure_all(options: argparse.Namespace, columns: Sequence[Column], candidates: Sequence[Candidate]) -> Runs:
    """Every candidate in every column, `options.rounds` times, taking turns; memory once."""
    runs, rig, cores = Runs(), rig_program(), options.cores
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, node = stack.enter_context(backend(rig, cores.backend, directory))
        served = [
            (candidate, *stack.enter_context(serving(rig, candidate, cores, port, directory)))
            for candidate in candidates
        ]
        tls_loads = {}
        if any(column.tls for column in columns):
            wanted = {candidate.name for candidate in candidates}
            tls_loads = stack.enter_context(tls.loads(wanted, cores, options.seconds))
        timed = [column for column in columns if column.is_timed]
        for number, column in itertools.product(range(options.rounds), timed):
            say(f"round {number + 1} of {options.rounds}: {column.title}")
            of_column = runs.figures.setdefault(column.key, {})
            measured: list[tuple[str, Callable[[], Figures]]] = [
                (name, partial(watched, partial(load, column.tls), proxy, None, cores))
                for name, (load, proxy) in tls_loads.items()
                if column.tls
            ]
            arguments = [*column.rig, "--seconds", str(options.seconds)]
            measured += [
                (candidate.name, partial(measure, rig, arguments, target, proxy, node, cores))
                for candidate, target, proxy in served
                if column.rig and (not candidate.columns or column.key in candidate.columns)
            ]
            for name, run in measured:
                figures = measure_unspoilt(run, runs, options.tolerance, options.repeats)
                of_column.setdefault(name, []).append(figures)
    for column in columns:
        if not column.is_timed:
            runs.figures[column.key] = measure_memory(column, candidates, cores)
    return runs


def measure_memory(column: Column, candidates: Sequence[Candidate], cores: Cores) -> dict[str, list[Figures]]:
    """What an idle connection takes of each candidate, started anew."""
    found = {}
    for candidate in candidates:
        if candidate.command and (not candidate.columns or column.key in candidate.columns):
            say(f"{column.title}: {candidate.name}")
            found[candidate.name] = [memory.measure_part(memory.idle_connections, candidate, cores)]
    return found


# ---- the report ----------------------------------------------------------------------------------


def report_of(options: argparse.Namespace, runs: Runs) -> dict[str, Any]:
    """All that is known, ready for JSON."""
    return {
        "machine": machine.facts(),
        "cores": {"proxy": options.cores.proxy, "backend": options.cores.backend, "client": options.cores.client},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "tolerance": options.tolerance,
        "discarded": runs.discarded,
        "spoilt_but_kept": runs.spoilt_but_kept,
        "columns": {key: summary(of_column) for key, of_column in runs.figures.items()},
        "runs": runs.figures,
    }


def show(report: dict[str, Any]) -> None:
    """Print a report as Markdown."""
    columns = [column for column in COLUMNS if column.key in report["columns"]]
    for column in columns:
        print(table(column, report["columns"][column.key]) + "\n")
    print(summary_table(columns, report["columns"]) + "\n")
    print(
        f"{report['rounds']} rounds of {report['seconds']:g} s; medians (lowest - highest). "
        f"Thrown away because others used over {report['tolerance']:.0%} of a core: {report['discarded']} runs; "
        f"kept in spite of it: {report['spoilt_but_kept']}.\n"
        "* the rig's core was full: the proxy could do this or more; its CPU per request tells.\n"
        "TLS: ratios are of processor time, as the clients there, in Python, are the limit.\n"
        "What is added to p99 is a proxy's p99 less the direct connection's in the same round.\n"
        f"{machine.sentence(report['machine'])}"
    )
    if columns == list(COLUMNS):
        print(PEERS)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    keys = [column.key for column in COLUMNS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run")
    parser.add_argument("--columns", type=columns_named, default=list(COLUMNS), help=", ".join(keys))
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave a candidate out")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="leave all others out")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios: .svg or .png")
    parser.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="show an earlier --json; measure nothing"
    )
    parser.add_argument("--tolerance", type=float, default=0.10, help="share of a core that others may use in a run")
    parser.add_argument("--repeats", type=int, default=4, help="how often a spoilt run is repeated")
    options = parser.parse_args(arguments)
    candidates = [*CANDIDATES, *map(other, options.other)]
    if unknown := {*options.only, *options.without} - {candidate.name for candidate in candidates}:
        parser.error(f"no such candidate: {'; '.join(sorted(unknown))}")
    wanted = set(options.only or (candidate.name for candidate in candidates)) - set(options.without)
    options.candidates = [candidate for candidate in candidates if candidate.name in wanted]
    return options


def columns_named(keys: str) -> list[Column]:
    """The columns of a list such as "latency,produce-1", in our order."""
    wanted = keys.split(",")
    if unknown := set(wanted) - {column.key for column in COLUMNS}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return [column for column in COLUMNS if column.key in wanted]


def main() -> None:
    options = parse_options()
    if options.earlier:
        report = json.loads(options.earlier.read_text())
    else:
        allow_many_files()
        options.cores = two_or_three_cores()
        report = report_of(options, measure_all(options, options.columns, options.candidates))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report)
    if options.plot:
        from tests.bench.plot import draw  # imported late: matplotlib takes a second, and few want the plot

        draw([column for column in COLUMNS if column.key in report["columns"]], report["columns"], options.plot)


if __name__ == "__main__":
    main()
