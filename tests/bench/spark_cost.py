"""What work on Spark costs: by the clock, and in processor time of everybody who had a part in it.

The machine may be shared, so processor seconds count more than the clock.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.processes import TICKS_PER_SECOND, processes_of

CORES = 2
KINDS = ("driver", "jvm", "workers")
"""This process; Java, that of a cluster's executors included; and the Python workers that Java starts."""


def cpu_seconds() -> dict[tuple[str, int], float]:
    """User and system time by kind and process, with what it waited for.

    By process: Spark's idle Python workers end when they like, and nobody is told what they have used.
    """
    seconds = {}
    for process in _ours():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
            java = name.partition("(")[2] == "java"
            kind = "driver" if process == os.getpid() else "jvm" if java else "workers"
            seconds[kind, process] = sum(map(int, rest.split()[11:15])) / TICKS_PER_SECOND
    return seconds


def _ours() -> list[int]:
    """This process and all below it; some may end while they are counted."""
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return processes_of(os.getpid())


def measured(run: Callable[[], object], rows: int) -> dict[str, float]:
    """Rows/s by the clock, and processor microseconds per row: in all, and by kind."""
    before, began = cpu_seconds(), time.monotonic()
    run()
    seconds, after = time.monotonic() - began, cpu_seconds()
    cpu = dict.fromkeys(KINDS, 0.0)
    for (kind, process), used in after.items():
        cpu[kind] += used - before.get((kind, process), 0.0)
    total = sum(cpu.values())
    return {
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "cpu_us_per_row": total / rows * 1e6,
        "rows_per_second_by_cpu": rows / (total / CORES),
        **{f"{kind}_us_per_row": seconds / rows * 1e6 for kind, seconds in cpu.items()},
    }
