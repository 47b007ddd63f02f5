"""Run a command while processes below it stand still at random moments, as they do on a busy or small machine.

    python -m tests.support.stalls [--longest 2] [--every 1.5] [--seed 7] [--log FILE] -- python -m tests.run

Any process below may be stopped (SIGSTOP) for up to `--longest` seconds: pytest itself, clients, proxies, JVMs. A test
that fails here fails, now and then, where the suite is run by a machine that has more to do; a suite that holds here
does not depend on how fast anybody is. What somebody else has stopped stays stopped: tests freeze nodes themselves.
The exit status is the command's. What was stopped goes into the log, with the time, to lay beside a failure.
"""

import argparse
import ctypes
import heapq
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.05
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(slots=True)
class Stalls:
    """Stops processes below this one, one every `every_s` on average, each for up to `longest_s`."""

    longest_s: float
    every_s: float
    dice: random.Random
    log: TextIO | None = None
    stopped: list[tuple[float, int, psutil.Process]] = field(default_factory=list)
    """When each is to go on, by `time.monotonic`; a heap."""
    counts: Counter[str] = field(default_factory=Counter)
    next_s: float = 0.0

    def step(self, now_s: float) -> None:
        """Let go on what has stood still for long enough, and stop another one when it is time."""
        while self.stopped and self.stopped[0][0] <= now_s:
            go_on(heapq.heappop(self.stopped)[2])
        if now_s >= self.next_s:
            self.next_s = now_s + self.dice.expovariate(1 / self.every_s)
            self._stop_one(now_s)

    def end(self) -> None:
        """Let everybody go on."""
        while self.stopped:
            go_on(heapq.heappop(self.stopped)[2])

    def _stop_one(self, now_s: float) -> None:
        with suppress(psutil.NoSuchProcess):
            awake = sorted(_awake(), key=lambda process: process.pid)
            if not awake:
                return
            process = self.dice.choice(awake)
            stall_s = self.dice.uniform(0, self.longest_s)
            name = name_of(process)
            process.send_signal(signal.SIGSTOP)
            heapq.heappush(self.stopped, (now_s + stall_s, process.pid, process))
            self.counts[name] += 1
            if self.log:
                print(f"{time.strftime('%H:%M:%S')} {stall_s:.2f} s {process.pid} {name}", file=self.log, flush=True)


def _awake() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() not in _AT_REST:
                found.append(process)
    return found


def go_on(process: psutil.Process) -> None:
    """SIGCONT, but not for one that somebody else has stopped meanwhile: his signal is pending, and would be lost."""
    with suppress(psutil.NoSuchProcess, OSError):
        if not _stop_is_pending(process.pid):
            process.send_signal(signal.SIGCONT)


def _stop_is_pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (signal.SIGSTOP - 1) & 1)


def name_of(process: psutil.Process) -> str:
    """What it runs, in short: a Java process by its main class, a Python one by its module."""
    words = process.cmdline() or [process.name()]
    reported = [word for word in words[1:] if not word.startswith("-") and "/" not in word.strip("/")]
    return " ".join([Path(words[0]).name, *reported[:2]])[:60]


def run(argv: Sequence[str], stalls: Stalls) -> int:
    """Run the command in a session of its own; its exit status, or 128 and the signal that has ended it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(argv, start_new_session=True)
    try:
        while (status := command.poll()) is None:
            stalls.step(time.monotonic())
            _bury_orphans(command.pid)
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        os.killpg(command.pid, signal.SIGTERM)
        stalls.end()
        status = command.wait()
    finally:
        stalls.end()
    return status if status >= 0 else 128 - status


def _bury_orphans(command_pid: int) -> None:
    """As init would do, whose children they were without us."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != command_pid:
            os.waitpid(ended.si_pid, 0)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.stalls", description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=float, default=2.0, metavar="SECONDS", help="the longest stall")
    parser.add_argument("--every", type=float, default=1.5, metavar="SECONDS", help="the mean time between two stalls")
    parser.add_argument("--seed", type=int, default=None, help="of what is stopped and for how long")
    parser.add_argument("--log", type=argparse.FileType("a"), default=None, help="gets a line for each stall")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    stalls = Stalls(given.longest, given.every, random.Random(seed), given.log)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = run(given.command, stalls)
    reported = ", ".join(f"{count} of {name}" for name, count in stalls.counts.most_common())
    print(f"stalls: seed {seed}, stopped {reported or 'nobody'}; status {status}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
