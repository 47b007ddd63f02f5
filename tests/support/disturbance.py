"""Tells whether anybody stood still while something was measured, so that it is measured again or judged generously."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

import psutil

LONGEST_S = 0.25
"""Who is woken later than that, or is stopped for longer, spoils what is measured over some seconds."""
MOST_CORES = 0.3
"""So do others who take more than that of the machine."""

_BEAT_S = 0.02
_FAMILY_S = 0.5
_MOMENT_S = 1.0
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_T = TypeVar("_T")


class Disturbance:
    """Watches the cores, and the processes below this one; use it as a context manager.

    On each core a thread sleeps a moment, over and over: `longest_s` is by how much it was woken late at worst, or for
    how long a process below was seen to be stopped. `others_cores` is, in the end or when stock is taken, how many
    cores were busy on average with what is none of ours.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.others_cores = 0.0
        self._began = (-_MOMENT_S, 0.0)
        self._done = threading.Event()
        watches = [(self._watch_core, core) for core in sorted(os.sched_getaffinity(0))]
        self._threads = [threading.Thread(target=watch, args=(core,), daemon=True) for watch, core in watches]
        self._threads.append(threading.Thread(target=self._watch_family, daemon=True))

    def __enter__(self) -> Self:
        self.begin_anew()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self.take_stock()

    def begin_anew(self) -> None:
        """Forget what was seen. What others do is reckoned from now, or from a moment ago: asking takes a while."""
        self.longest_s = self.others_cores = 0.0
        if (now_s := time.monotonic()) - self._began[0] > _MOMENT_S:
            self._began = now_s, _busy_with_others_s()

    def take_stock(self) -> None:
        """Reckon `others_cores` since the beginning."""
        began_s, busy_s = self._began
        self.others_cores = (_busy_with_others_s() - busy_s) / (time.monotonic() - began_s)

    def __str__(self) -> str:
        return f"somebody late by {self.longest_s * 1000:.0f} ms at most, others busy on {self.others_cores:.2f} cores"

    @property
    def seen(self) -> bool:
        """Whether what was measured meanwhile says little."""
        return self.longest_s > LONGEST_S or self.others_cores > MOST_CORES

    def _watch_core(self, core: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        due_s = time.monotonic()
        while not self._done.is_set():
            due_s += _BEAT_S
            time.sleep(max(due_s - time.monotonic(), 0))
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - due_s)
            due_s = now_s

    def _watch_family(self) -> None:
        """Of processes that are stopped now and then, by their state."""
        family: list[psutil.Process] = []
        look_s, stopped_since_s = 0.0, {}
        while not self._done.wait(_BEAT_S):
            if (now_s := time.monotonic()) > look_s:
                family, look_s = psutil.Process().children(recursive=True), now_s + _FAMILY_S
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    if process.status() not in _STOPPED:
                        stopped_since_s.pop(process.pid, None)
                        continue
                    self.longest_s = max(self.longest_s, now_s - stopped_since_s.setdefault(process.pid, now_s))


def _busy_with_others_s() -> float:
    """CPU time of the machine so far, but for that of this process and all below it, and of those that test beside it.

    What was stolen from it counts, and so does what it idled away while somebody waited for a disk.
    """
    of_all = psutil.cpu_times()
    ours = 0.0
    run = psutil.Process(os.getppid()) if "PYTEST_XDIST_WORKER" in os.environ else psutil.Process()
    for process in (run, *run.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            ours += times.user + times.system + times.children_user + times.children_system
    busy = (of_all.user, of_all.nice, of_all.system, of_all.irq, of_all.softirq, of_all.steal, of_all.iowait)
    return float(sum(busy)) - ours


def undisturbed(measure: Callable[[], _T], attempts: int = 3) -> tuple[_T, bool]:
    """What `measure` gives in the first attempt in which nobody stood still, and True; else of the last, and False."""
    for _ in range(attempts):
        with Disturbance() as disturbance:
            found = measure()
        if not disturbance.seen:
            break
    print(f"meanwhile: {disturbance}")
    return found, not disturbance.seen
