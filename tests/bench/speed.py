"""Measures how fast the proxy is beside a direct connection, HAProxy in TCP mode and any other proxy.

    python tests/bench/speed.py [--rounds 5] [--seconds 3] [--json FILE] [--columns produce-1,fetch] \
        [--other 'name=command with {listen} and {upstream}']

The proxy under test has one core, `rig` (node and client, see rig.c) another. Candidates take turns within
a round, so that whatever drifts on the machine drifts for all; figures are medians over the rounds with their
range, ratios are medians of the ratios within one round. A run during which anybody else used more than a
tenth of either core is thrown away and repeated. Needs cc, taskset and haproxy. Prints Markdown tables.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import operator
import os
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 60
# The rig's core counts as full from here on: the proxy might have done more.
RIG_IS_FULL = 0.97

Figures = dict[str, Any]
"""What one run of `rig` printed, and what was seen around it: see `measure`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that is measured: how `rig` is run for it."""

    key: str
    title: str
    rig: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core each process is pinned to. The node and the client share one where there are only two."""

    proxy: int
    backend: int
    client: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that stands between client and node.

    `command` gets the port to listen on, the node's port and a directory of its own for files.
    `columns` are the keys of the columns it takes part in; empty: all.
    """

    name: str
    command: Callable[[int, int, Path], Sequence[str]] | None
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class Runs:
    """All runs so far: by column key and candidate name, one entry a round."""

    figures: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    discarded: int = 0
    spoilt_but_kept: int = 0


COLUMNS = (
    Column(
        "produce-1",
        "100 B produce, depth 1, 100 connections",
        ("load", "--api", "produce", "--size", "100", "--connections", "100", "--depth", "1"),
    ),
    Column(
        "produce-16",
        "100 B produce, depth 16, 100 connections",
        ("load", "--api", "produce", "--size", "100", "--connections", "100", "--depth", "16"),
    ),
    Column(
        "fetch",
        "1 MiB fetch, depth 1, 10 connections",
        ("load", "--api", "fetch", "--size", str(1 << 20), "--connections", "10", "--depth", "1"),
    ),
    Column(
        "latency",
        "100 B produce, depth 1, one connection",
        ("load", "--api", "produce", "--size", "100", "--connections", "1", "--depth", "1"),
    ),
    Column("accept", "connect, ApiVersions, close; 16 at a time", ("accept", "--connections", "16")),
)
DEFAULT_COLUMNS = "produce-1,produce-16,fetch,latency"
DIRECT = Candidate("direct", None)


# ---- the programs --------------------------------------------------------------------------------


def rig_program() -> Path:
    """The path of the compiled rig.c, built into the cache directory when the source is new."""
    source = Path(__file__).with_name("rig.c")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-throttle"
    cache = Path(os.environ.get("KAFKA_THROTTLE_CACHE") or cache)
    program = cache / f"rig-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", unfinished, source], check=True)
        unfinished.rename(program)
    return program


def haproxy(bufsize: int | None = None) -> Callable[[int, int, Path], Sequence[str]]:
    """A command that starts HAProxy as a TCP proxy on one thread; `bufsize` in bytes, None: its default."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        configuration = f"""
global
  nbthread 1
  maxconn 4096
  {f"tune.bufsize {bufsize}" if bufsize else ""}
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind 127.0.0.1:{listen_port}
  default_backend nodes
backend nodes
  server node 127.0.0.1:{upstream_port}
"""
        file = directory / "haproxy.cfg"
        file.write_text(configuration)
        # Debian keeps it in /usr/sbin, which an ordinary user's PATH leaves out.
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise SystemExit("haproxy is not installed")
        return [program, "-db", "-q", "-f", str(file)]

    return command


def kafka_throttle(quotas: bool) -> Callable[[int, int, Path], Sequence[str]]:
    """A command that starts this project's proxy, with quotas that nothing here can exceed, or with none."""

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        # Far above what can be reached here: charged, never exceeded.
        quota = {"default_client_id": True, "producer_byte_rate": 10**15, "consumer_byte_rate": 10**15}
        entries = [quota] if quotas else []
        (metrics_port,) = free_ports(1)
        listener = {"name": "clients", "bind": "127.0.0.1", "port": listen_port, "node_ids": ["1"]}
        configuration = {
            "virtual_clusters": [
                {
                    "name": "bench",
                    "upstream": {"bootstrap_servers": [f"127.0.0.1:{upstream_port}"]},
                    "listeners": [listener],
                    "quotas": {"source": "file", "entries": entries},
                }
            ],
            "metrics": {"bind": "127.0.0.1", "port": metrics_port},
            "log": {"level": "warning"},
        }
        file = directory / "proxy.yaml"
        file.write_text(json.dumps(configuration))  # JSON is YAML
        return [sys.executable, "-m", "proxy", "run", "-c", str(file)]

    return command


def other(definition: str) -> Candidate:
    """The candidate of an `--other` option: a name; a command with `{listen}`, `{upstream}` (host:port)."""
    name, _, template = definition.partition("=")
    if not name or "{listen}" not in template or "{upstream}" not in template:
        raise SystemExit(f"--other: expected name=command with {{listen}} and {{upstream}}, got {definition!r}")

    def command(listen_port: int, upstream_port: int, directory: Path) -> Sequence[str]:
        filled = template.replace("{listen}", f"127.0.0.1:{listen_port}")
        return shlex.split(filled.replace("{upstream}", f"127.0.0.1:{upstream_port}"))

    return Candidate(name, command)


HAPROXY = Candidate("HAProxy", haproxy())
OURS = Candidate("kafka-throttle", kafka_throttle(quotas=True))
CANDIDATES = (
    DIRECT,
    HAPROXY,
    Candidate("HAProxy, tune.bufsize 262144", haproxy(262144), ("fetch",)),
    OURS,
    Candidate("kafka-throttle, no quota", kafka_throttle(quotas=False)),
)


# ---- processes -----------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """`count` consecutive ports of 127.0.0.1 below the ephemeral range that nobody listens on now."""
    for first in range(20000 + os.getpid() % 8000, 32000):
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + count):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            if first not in _taken:
                _taken.update(range(first, first + count))
                return list(range(first, first + count))
    raise RuntimeError("no free ports")


_taken: set[int] = set()


@contextlib.contextmanager
def running(command: Sequence[str], cpu: int, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process pinned to one core for the length of a `with` block; what it says on stderr goes to `log`."""
    with log.open("a") as stderr:
        pinned = ["taskset", "-c", str(cpu), *command]
        # In a group of its own: a script that starts the proxy proper takes it along when it ends.
        process = subprocess.Popen(pinned, cwd=ROOT, stderr=stderr, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        process.wait()


@contextlib.contextmanager
def backend(rig: Path, cpu: int, directory: Path) -> Iterator[tuple[int, int]]:
    """A `rig backend` that serves: its port and process id."""
    (port,) = free_ports(1)
    command = [str(rig), "backend", "--port", str(port)]
    with running(command, cpu, directory / "backend.log", stdout=subprocess.PIPE) as process:
        assert process.stdout
        if json.loads(process.stdout.readline() or "null") != {"port": port}:
            raise RuntimeError("the backend does not start: " + (directory / "backend.log").read_text())
        yield port, process.pid


@contextlib.contextmanager
def serving(
    rig: Path, candidate: Candidate, cores: Cores, node: int, directory: Path
) -> Iterator[tuple[str, int | None]]:
    """A candidate that answers: where clients connect (host:port), and its process id (direct: None)."""
    if candidate.command is None:
        yield f"127.0.0.1:{node}", None
        return
    directory = Path(tempfile.mkdtemp(dir=directory))
    # Room for the node's port behind the bootstrap port.
    port = free_ports(4)[0]
    command = candidate.command(port, node, directory)
    log = directory / "stderr"
    with running(command, cores.proxy, log, stdout=subprocess.DEVNULL) as process:
        target = f"127.0.0.1:{port}"
        probe = [str(rig), "load", "--target", target, "--seconds", "0.1"]
        deadline = time.monotonic() + START_TIMEOUT_S
        while (result := subprocess.run(probe, capture_output=True, text=True)).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{candidate.name} does not serve: {result.stderr}{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield target, process.pid


def processes_of(pid: int) -> list[int]:
    """A process and all that it started, and they."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def cpu_seconds_of(pid: int) -> float:
    """CPU time used by all threads of a process and of those it started."""
    total = 0
    for process in processes_of(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_SECOND


def cpu_seconds_of_others(ours: Collection[int], cores: Collection[int] = ()) -> dict[int, float]:
    """CPU time of every process that is not `ours` and, if `cores` are given, ran on one of them last."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(stat.parent.name) not in ours and (not cores or int(fields[36]) in cores):
                found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return found


def busy_seconds() -> dict[int, float]:
    """Time each core has spent on anything, or was withheld by the hypervisor (steal)."""
    busy = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, numbers[:8])
            busy[int(name[3:])] = (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND
    return busy


# ---- measuring -----------------------------------------------------------------------------------


def measure(rig: Path, arguments: Sequence[str], target: str, proxy: int | None, node: int, cores: Cores) -> Figures:
    """What `rig` prints, and `cpu_us_per_request` of the proxy, and three shares of one core.

    `proxy_busy`; `rig_busy`, of the fuller of its cores; `others`, what anybody else used. That is the larger of
    what a core did for none of ours (ticks: coarse, and too low for processes that sleep often) and of what other
    processes have on their accounts (exact, but the short-lived escape).
    """
    began = time.monotonic()
    used_cores = {cores.proxy, cores.backend, cores.client}
    our_processes = {os.getpid(), node, *(processes_of(proxy) if proxy else ())}
    foreign = cpu_seconds_of_others(our_processes)
    busy, of_proxy, of_node = busy_seconds(), cpu_seconds_of(proxy) if proxy else 0.0, cpu_seconds_of(node)
    command = [str(rig), *arguments, "--target", target, "--cpu", str(cores.client)]
    result = subprocess.run(command, capture_output=True, text=True)
    took = time.monotonic() - began
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {result.stderr}")
    figures: Figures = json.loads(result.stdout)
    of_proxy = (cpu_seconds_of(proxy) if proxy else 0.0) - of_proxy
    of_node = cpu_seconds_of(node) - of_node
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
    if figures.get("throttled"):
        raise RuntimeError(f"{shlex.join(command)}: {figures['throttled']} answers were throttled")
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
    """Every candidate in every column, `options.rounds` times, taking turns."""
    runs, rig, cores = Runs(), rig_program(), options.cores
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, node = stack.enter_context(backend(rig, cores.backend, directory))
        served = [
            (candidate, *stack.enter_context(serving(rig, candidate, cores, port, directory)))
            for candidate in candidates
        ]
        for number, column in itertools.product(range(options.rounds), columns):
            say(f"round {number + 1} of {options.rounds}: {column.title}")
            arguments = [*column.rig, "--seconds", str(options.seconds)]
            if column.rig[0] == "load":
                arguments += ["--warmup", "0.3"]
            of_column = runs.figures.setdefault(column.key, {})
            for candidate, target, proxy in served:
                if candidate.columns and column.key not in candidate.columns:
                    continue

                def run(target: str = target, proxy: int | None = proxy, arguments: list[str] = arguments) -> Figures:
                    return measure(rig, arguments, target, proxy, node, cores)

                figures = measure_unspoilt(run, runs, options.tolerance, options.repeats)
                of_column.setdefault(candidate.name, []).append(figures)
    return runs


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- figures -------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(of_column: dict[str, list[Figures]]) -> dict[str, Figures]:
    """By candidate: spreads of what was measured, of the ratio to HAProxy and of the added latency."""
    result = {}
    for name, rounds in of_column.items():
        figures: Figures = {
            key: spread([run[key] for run in rounds])
            for key, value in rounds[0].items()
            if isinstance(value, float | int)
        }
        for key, reference, figure, compare in (
            ("ratio_to_haproxy", HAPROXY.name, "requests_per_second", operator.truediv),
            ("added_latency_us", DIRECT.name, "p50_us", operator.sub),
        ):
            if reference in of_column and figure in rounds[0]:
                pairs = zip(rounds, of_column[reference], strict=True)
                figures[key] = spread([compare(mine[figure], theirs[figure]) for mine, theirs in pairs])
        result[name] = figures
    return result


def cell(values: dict[str, float] | None, digits: int = 0, with_range: bool = True) -> str:
    if values is None:
        return ""
    median, low, high = (f"{values[key]:,.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} ({low} - {high})" if with_range else median


def table(column: Column, of_candidate: dict[str, Figures]) -> str:
    """One column as Markdown: a line for each candidate."""
    lines = [
        f"**{column.title}**",
        "",
        "| | requests/s | MB/s | x HAProxy | proxy CPU, us/request | p50, us | p99, us | added to p50, us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in of_candidate.items():
        full = " *" if figures["rig_busy"]["median"] >= RIG_IS_FULL else ""
        cells = [
            name,
            cell(figures["requests_per_second"]) + full,
            cell(figures.get("megabytes_per_second"), with_range=False),
            cell(figures.get("ratio_to_haproxy"), 2),
            cell(figures["cpu_us_per_request"], 2) if name != DIRECT.name else "",
            cell(figures.get("p50_us"), with_range=False),
            cell(figures.get("p99_us"), with_range=False),
            cell(figures.get("added_latency_us")) if name != DIRECT.name else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run")
    parser.add_argument("--columns", default=DEFAULT_COLUMNS, help=", ".join(c.key for c in COLUMNS))
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave a candidate out")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--tolerance", type=float, default=0.10, help="share of a core that others may use in a run")
    parser.add_argument("--repeats", type=int, default=4, help="how often a spoilt run is repeated")
    options = parser.parse_args(arguments)
    options.cores = two_or_three_cores()
    return options


def two_or_three_cores() -> Cores:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("one core is not enough: the proxy under test needs one to itself")
    return Cores(usable[0], usable[1], usable[min(2, len(usable) - 1)])


def main() -> None:
    options = parse_options()
    wanted = options.columns.split(",")
    if unknown := set(wanted) - {column.key for column in COLUMNS}:
        raise SystemExit(f"--columns: unknown: {', '.join(sorted(unknown))}")
    columns = [column for column in COLUMNS if column.key in wanted]
    candidates = [*CANDIDATES, *map(other, options.other)]
    candidates = [candidate for candidate in candidates if candidate.name not in options.without]
    runs = measure_all(options, columns, candidates)
    summaries = {key: summary(of_column) for key, of_column in runs.figures.items()}
    for column in columns:
        print(table(column, summaries[column.key]) + "\n")
    print(
        f"{options.rounds} rounds of {options.seconds:g} s; medians (lowest - highest). "
        f"Thrown away because others used over {options.tolerance:.0%} of a core: {runs.discarded} runs; "
        f"kept in spite of it: {runs.spoilt_but_kept}.\n"
        "* the rig's core was full: the proxy could do this or more; its CPU per request tells."
    )
    if options.json:
        report = {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "discarded": runs.discarded,
            "spoilt_but_kept": runs.spoilt_but_kept,
            "columns": summaries,
            "runs": runs.figures,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
