"""Shows where the proxy's CPU time goes, per request, in one column of speed.py, beside HAProxy.

    python tests/bench/cpu_profile.py [--column produce-1] [--seconds 3] [--candidates HAProxy,kafka-throttle]

Three looks at the same load, one after the other, because each of them slows the proxy: `perf` (time by system call
and by library), `strace` (how many system calls), `py-spy` (time by Python function and line; of Python proxies only).
Shares are scaled to the CPU time per request of a run without any of them. A tool that is missing is named and left
out: perf is Debian's linux-perf (any version will do), py-spy comes from PyPI. Prints Markdown.
"""

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.candidates import CANDIDATES, Candidate
from tests.bench.columns import COLUMNS, Column
from tests.bench.figures import Figures
from tests.bench.processes import Cores, family_of, find_tool, say, two_or_three_cores
from tests.bench.rig import START_TIMEOUT_S, backend, rig_program, serving
from tests.bench.speed import measure
from tests.support.places import ROOT

SAMPLES_PER_SECOND = 499
SYSTEM_CALL = re.compile(r"__(?:x64|arm64)_sys_(\w+)")
# Where a library's time is shown, by the beginning of its file name.
LIBRARIES = {"libpython": "CPython", "python": "CPython", "loop.cpython": "uvloop", "libc": "libc", "[vdso]": "libc"}

IDLE_THREAD = "_worker (concurrent/futures/thread.py"
"""A thread of a pool that waits for work; py-spy takes it for busy."""

Shares = Counter[str]
"""Samples by where they were taken."""


@dataclass(slots=True)
class Profile:
    """What was seen of one candidate."""

    plain: Figures
    places: Shares = field(default_factory=Counter)
    symbols: Shares = field(default_factory=Counter)
    system_calls: dict[str, float] = field(default_factory=dict)
    """Per request, by name."""
    functions: Shares = field(default_factory=Counter)
    lines: Shares = field(default_factory=Counter)

    def us_per_request(self, shares: Shares, key: str) -> float:
        """A share of the CPU time of a request, microseconds."""
        whole = sum(shares.values())
        return float(self.plain["cpu_us_per_request"]) * shares[key] / whole if whole else 0.0


# ---- the tools -----------------------------------------------------------------------------------


@contextlib.contextmanager
def watching(command: Sequence[str], said: Path, has_begun: Callable[[], bool]) -> Iterator[None]:
    """A tool that watches a process, from when it `has_begun` until SIGINT; what it says goes to the file `said`.

    A tool that gets its SIGINT too early leaves nothing behind, and the first start after a boot can take seconds.
    Raises RuntimeError if it does not begin, or complains and fails.
    """
    with said.open("wb") as output:
        tool = subprocess.Popen(command, stdout=output, stderr=output)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not has_begun() and tool.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        if not has_begun():
            raise RuntimeError(f"{command[0]} does not begin: {said.read_text()}")
        yield
    finally:
        tool.send_signal(signal.SIGINT)
        tool.wait(timeout=60)
    # perf and strace end as if by the signal, which is how they are asked to end.
    if tool.returncode not in (0, -signal.SIGINT, 128 + signal.SIGINT):
        raise RuntimeError(f"{command[0]}: {said.read_text()}")


def is_traced(pid: int) -> bool:
    """Whether strace has attached to it."""
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def perf_command(pid: int, file: Path) -> list[str]:
    pids = ",".join(map(str, family_of(pid)))
    # A timer, not a counter of the processor: virtual machines often have none.
    return ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "-g", "-p", pids, "-o", str(file)]


def strace_command(pid: int, file: Path) -> list[str]:
    pids = [word for process in family_of(pid) for word in ("-p", str(process))]
    return ["strace", "-f", "-c", "-U", "name,calls", "-o", str(file), *pids]


def py_spy_command(pid: int, file: Path) -> list[str]:
    rate = str(SAMPLES_PER_SECOND // 2)
    return [py_spy() or "py-spy", "record", "-p", str(pid), "-r", rate, "-d", "600", "-f", "raw", "-o", str(file)]


def py_spy() -> str | None:
    """The path of py-spy: beside this Python, or wherever it is installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else find_tool("py-spy")


# ---- what they found -----------------------------------------------------------------------------


def place_of(stack: Sequence[tuple[str, str]]) -> str:
    """Where a sample belongs: a system call, or a library. `stack` are symbol and file, innermost first."""
    symbol, file = stack[0]
    if not file.startswith("[kernel") and file != "[vdso]":
        name = Path(file).name
        return next((place for prefix, place in LIBRARIES.items() if name.startswith(prefix)), name)
    for symbol, _ in stack:
        if match := SYSTEM_CALL.match(symbol):
            return f"kernel: {match[1]}"
    return "libc" if file == "[vdso]" else "kernel: interrupts, scheduling"


def read_perf(printed: str) -> tuple[Shares, Shares]:
    """Samples by place and by symbol, from `perf script -F ip,sym,dso`."""
    places, symbols = Shares(), Shares()
    for sample in printed.split("\n\n"):
        stack = [(match[1], match[2]) for match in re.finditer(r"^\s+[0-9a-f]+ (\S+).* \((.*)\)$", sample, re.M)]
        if stack:
            place = place_of(stack)
            places[place] += 1
            symbols[f"{stack[0][0]} ({place.partition(':')[0]})"] += 1
    return places, symbols


def read_strace(printed: str) -> dict[str, int]:
    """Calls by name, from `strace -c -U name,calls`."""
    found = re.findall(r"^(\w+) +(\d+)$", printed, re.M)
    return {name: int(calls) for name, calls in found if name != "total"}


def read_py_spy(printed: str) -> tuple[Shares, Shares]:
    """Samples by function and by line of the innermost Python frame, from `py-spy record -f raw`."""
    functions, lines = Shares(), Shares()
    for line in printed.splitlines():
        frames, _, count = line.rpartition(" ")
        innermost = frames.rpartition(";")[2].replace(f"{ROOT}/", "")
        if innermost.startswith(IDLE_THREAD):
            continue
        lines[innermost] += int(count)
        functions[re.sub(r":\d+\)$", ")", innermost)] += int(count)
    return functions, lines


def profile(candidate: Candidate, column: Column, cores: Cores, seconds: float) -> Profile:
    """All looks at one candidate under the load of one column."""
    rig = rig_program()
    arguments = [*column.rig, "--seconds", str(seconds)]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, node = stack.enter_context(backend(rig, cores.backend, directory))
        target, pid = stack.enter_context(serving(rig, candidate, cores, port, directory))
        assert pid, "a direct connection has no process to look at"

        def load() -> Figures:
            return measure(rig, arguments, target, pid, node, cores)

        say(f"{candidate.name}: alone")
        found = Profile(load())
        said = directory / "said"
        if find_tool("perf"):
            say(f"{candidate.name}: perf")
            file = directory / "perf"
            with watching(perf_command(pid, file), said, file.exists):
                load()
            script = ["perf", "script", "-F", "ip,sym,dso", "-i", str(file)]
            printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
            found.places, found.symbols = read_perf(printed)
        if find_tool("strace"):
            say(f"{candidate.name}: strace")
            file = directory / "strace"
            with watching(strace_command(pid, file), said, lambda: is_traced(pid)):
                requests = load()["requests_in_all"]
            found.system_calls = {name: calls / requests for name, calls in read_strace(file.read_text()).items()}
        if py_spy() and Path(f"/proc/{pid}/exe").resolve().name.startswith("python"):
            say(f"{candidate.name}: py-spy")
            file = directory / "py-spy"
            with watching(py_spy_command(pid, file), said, lambda: said.stat().st_size > 0):
                load()
            found.functions, found.lines = read_py_spy(file.read_text())
    return found


# ---- Markdown ------------------------------------------------------------------------------------


def overview(column: Column, profiles: Mapping[str, Profile]) -> str:
    """Time by place and system calls, a column for each candidate."""
    rows = [
        ("requests/s", [f"{found.plain['requests_per_second']:,.0f}" for found in profiles.values()]),
        ("CPU, us/request", [f"{found.plain['cpu_us_per_request']:.2f}" for found in profiles.values()]),
    ]
    places = sum((found.places for found in profiles.values()), Shares())
    for place, _ in places.most_common(14):
        rows.append((f"- {place}", [f"{found.us_per_request(found.places, place):.2f}" for found in profiles.values()]))
    rows.append(("system calls/request", [f"{sum(found.system_calls.values()):.2f}" for found in profiles.values()]))
    calls: dict[str, float] = {}
    for found in profiles.values():
        calls |= {name: max(count, calls.get(name, 0)) for name, count in found.system_calls.items()}
    for name in sorted((name for name, count in calls.items() if count >= 0.01), key=calls.__getitem__, reverse=True):
        rows.append((f"- {name}", [f"{found.system_calls.get(name, 0):.2f}" for found in profiles.values()]))
    lines = [f"| {column.title} | " + " | ".join(profiles) + " |", "|---" * (len(profiles) + 1) + "|"]
    return "\n".join(lines + [f"| {title} | " + " | ".join(cells) + " |" for title, cells in rows])


def details(title: str, found: Profile, shares: Shares, top: int) -> str:
    """The places with the most time of their own."""
    lines = [f"| {title} | us/request |", "|---|---|"]
    for key, _ in shares.most_common(top):
        lines.append(f"| {key} | {found.us_per_request(shares, key):.2f} |")
    return "\n".join(lines)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    columns = {column.key: column for column in COLUMNS if column.rig}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", choices=columns, default="produce-1")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each look")
    parser.add_argument("--candidates", default="HAProxy,kafka-throttle", help="names as speed.py prints them")
    parser.add_argument("--top", type=int, default=15, help="how many functions and lines are shown")
    options = parser.parse_args(arguments)
    options.column = columns[options.column]
    named = {candidate.name: candidate for candidate in CANDIDATES if candidate.command}
    if unknown := set(options.candidates.split(",")) - set(named):
        parser.error(f"--candidates: unknown: {', '.join(sorted(unknown))}")
    options.candidates = [named[name] for name in options.candidates.split(",")]
    return options


def main() -> None:
    options = parse_options()
    for tool, source in (("perf", "apt-get install -y linux-perf"), ("strace", "apt-get install -y strace")):
        if not find_tool(tool):
            say(f"{tool} is missing and left out. Install it with: {source}")
    if not py_spy():
        say(f"py-spy is missing and left out. Install it with: {sys.executable} -m pip install py-spy")
    cores = two_or_three_cores()
    profiles = {
        candidate.name: profile(candidate, options.column, cores, options.seconds) for candidate in options.candidates
    }
    print(overview(options.column, profiles))
    for name, found in profiles.items():
        for title, shares in (
            ("symbols", found.symbols),
            ("Python functions, own time", found.functions),
            ("Python lines, own time", found.lines),
        ):
            if shares:
                print("\n" + details(f"{name}: {title}", found, shares, options.top))


if __name__ == "__main__":
    main()
