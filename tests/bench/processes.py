"""Processes pinned to one core, and who has used how much of which core."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kafka_throttle.common.child_process import die_with_parent
from tests.support.places import ROOT

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SCHED_CLOCK = 2
"""As clock_getcpuclockid(3) numbers it: CPUCLOCK_SCHED of Linux."""


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


def find_tool(program: str) -> str | None:
    """The path of a program, None when it is missing."""
    # Debian keeps daemons in /usr/sbin, which an ordinary user's PATH leaves out.
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def need_tool(program: str, packages: str) -> str:
    """The path of a program; ends the process with the line that installs it when it is missing."""
    if path := find_tool(program):
        return path
    raise SystemExit(f"{program} is missing. Install it with: apt-get install -y {packages}")


def allow_many_files() -> None:
    """Let this process, and those it starts, hold as many connections as the system lets them; often it is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# ---- cores ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core each process is pinned to. The node and the client share one where there are only two."""

    proxy: int
    backend: int
    client: int


def two_or_three_cores() -> Cores:
    """The first of the cores that this process may use; ends it when there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("one core is not enough: the proxy under test needs one to itself")
    return Cores(usable[0], usable[1], usable[min(2, len(usable) - 1)])


# ---- processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def running(command: Sequence[str], cpu: int | str, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process pinned to one core, or to a list of cores like "0,1", for the length of a `with` block.

    What it says on stderr goes to `log`.
    """
    pinned = ["taskset", "-c", str(cpu), *command]
    # In a group of its own: a script that starts the proxy proper takes it along when it ends.
    ends_with_us: dict[str, Any] = {"start_new_session": True, "preexec_fn": die_with_parent}
    with log.open("a") as stderr:
        process = subprocess.Popen(pinned, cwd=ROOT, stderr=stderr, text=True, **ends_with_us, **options)
    try:
        yield process
    finally:
        end_group(process, 10)


def end_group(process: "subprocess.Popen[Any]", timeout_s: float) -> None:
    """End a process that leads a group of its own, and all of the group: asked first, and killed after so long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=timeout_s)
    process.wait()


class Process(NamedTuple):
    """A process; the seconds of processor time of all its threads, and of those that it has waited for."""

    name: str
    parent: int
    seconds: float
    ended_seconds: float
    core: int
    """On which it ran last."""


def all_processes() -> dict[int, Process]:
    """Every process of the machine by its number, in hundredths of seconds."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            fields = rest.split()
            user, system, ended_user, ended_system = map(int, fields[11:15])
            found[int(folder.name)] = Process(
                name.partition("(")[2],
                int(fields[1]),
                (user + system) / TICKS_PER_SECOND,
                (ended_user + ended_system) / TICKS_PER_SECOND,
                int(fields[36]),
            )
    return found


def family_of(pid: int) -> dict[int, Process]:
    """A process and all that it started, and they.

    All of the machine's are looked at once: by its threads, one that ends meanwhile would hide what it has started.
    """
    everybody = all_processes()
    family, found = {pid} & everybody.keys(), 0
    while len(family) > found:
        found = len(family)
        family |= {number for number, process in everybody.items() if process.parent in family}
    return {number: everybody[number] for number in sorted(family)}


# ---- CPU time ------------------------------------------------------------------------------------


def cpu_seconds_of(pid: int) -> float:
    """CPU time used by all threads of a process and of those it started; /proc has it in hundredths only."""
    return sum(time.clock_gettime(~process << 3 | _SCHED_CLOCK) for process in family_of(pid))


def cpu_seconds_with_the_ended(pid: int) -> float:
    """CPU time of a process and its descendants, and of those of them that have ended and were waited for."""
    return sum(process.seconds + process.ended_seconds for process in family_of(pid).values())


def cpu_seconds_of_others(ours: Collection[int], cores: Collection[int] = ()) -> dict[int, float]:
    """CPU time of every process that is not `ours` and, if `cores` are given, ran on one of them last."""
    others = {number: process for number, process in all_processes().items() if number not in ours}
    return {number: process.seconds for number, process in others.items() if not cores or process.core in cores}


def busy_seconds() -> dict[int, float]:
    """Time each core has spent on anything, or was withheld by the hypervisor (steal)."""
    busy = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, numbers[:8])
            busy[int(name[3:])] = (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND
    return busy
