"""What work on Spark costs: by the clock, and in processor time of everybody who had a part in it.

The machine may be shared, so processor seconds count more than the clock.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.processes import TICKS_PER_SECOND

CORES = 2
KINDS = ("driver", "jvm", "workers")
"""This process; Java, that of a cluster's executors included; and the Python workers that Java starts."""


def cpu_seconds() -> dict[tuple[str, int], float]:
    """User and system time by kind and process, of this one and all below it, with what each waited for.

    By process: Spark's idle Python workers end when they like, and nobody is told what they have used. All of the
    machine's are looked at once: a thread that ends meanwhile would hide what it has started.
    """
    parents, used, is_java = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            fields, process = rest.split(), int(folder.name)
            parents[process], used[process] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_SECOND
            is_java[process] = name.partition("(")[2] == "java"
    family, found = {os.getpid()}, 0
    while len(family) > found:
        found = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return {(_kind(process, is_java[process]), process): used[process] for process in family}


def _kind(process: int, is_java: bool) -> str:
    if process == os.getpid():
        return "driver"
    return "jvm" if is_java else "workers"


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
