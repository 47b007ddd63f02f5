"""A Spark standalone cluster of real processes on 127.0.0.1, from PySpark's own jars."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from kafka_throttle.common.child_process import die_with_parent
from tests.bench.processes import end_group

ON_CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "4",
}
"""Settings with which a session uses all of it; by itself Spark makes 200 tasks of everything on a cluster."""

SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For programs that run once, on few rows, the fast compiler and the smallest collector are the quicker ones."""

SPARK = Path(pyspark.__file__).parent
_TIMEOUT_S = 120.0


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[str]:
    """A master and so many workers of one core each, as long as the `with` block goes on; the master's URL.

    What they say, and what executors leave, is in `folder`: `master.log`, `worker-1.log`, `worker-1/app-.../0/stderr`.
    """
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(_running(log, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        [url] = _reported(log, r"Starting Spark master at (spark://\S+)", 1)
        for number in range(1, workers + 1):
            own = ["--host", "127.0.0.1", "--cores", "1", "--memory", memory, "--webui-port", "0"]
            work = folder / f"worker-{number}"
            stack.enter_context(
                _running(folder / f"worker-{number}.log", "worker.Worker", *own, "--work-dir", str(work), url)
            )
        _reported(log, r"Registering worker (\S+) with", workers)
        yield url


@contextlib.contextmanager
def _running(log: Path, program: str, *arguments: str) -> Iterator[None]:
    environment = os.environ | {
        "SPARK_HOME": str(SPARK),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=log.parent, start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield
    finally:
        # In the order in which they were started the last ends first: a worker, and with it its executors.
        end_group(process, 20)


def _reported(log: Path, pattern: str, times: int) -> list[str]:
    """What the log says so many times; RuntimeError with the log if it does not."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        found = re.findall(pattern, log.read_text())
        if len(found) >= times:
            return found
        time.sleep(0.1)
    raise RuntimeError(f"{pattern} is not told {times} times within {_TIMEOUT_S:.0f} s:\n{log.read_text()}")
