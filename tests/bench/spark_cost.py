"""What work on Spark costs: by the clock, and in processor time of everybody who had a part in it.

The machine may be shared, so processor seconds count more than the clock.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_throttle.pipeline.spark.session import spark_session
from tests.bench.processes import Process, family_of
from tests.pipeline.spark_cluster import ON_CLUSTER, spark_cluster
from tests.support.places import ROOT

CORES = 2
CLUSTER = "cluster"
"""The master of a cluster that is started here, with two workers of a core each."""
FOLDER = ROOT / "build" / "bench" / "pipeline"
KINDS = ("driver", "jvm", "workers")
"""This process; Java, that of a cluster's executors included; and the Python workers that Java starts."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that say where it runs, and where the files are."""
    parser.add_argument("--master", default=f"local[{CORES}]", help=f"or `{CLUSTER}`: started here")
    parser.add_argument("--folder", type=lambda text: Path(text).absolute(), default=FOLDER)


def cpu_seconds() -> dict[tuple[str, int], float]:
    """User and system time by kind and process, of this one and all below it, with what each waited for.

    By process: Spark's idle Python workers end when they like, and nobody is told what they have used.
    """
    family = family_of(os.getpid()).items()
    return {(_kind(number, process), number): process.seconds + process.ended_seconds for number, process in family}


def _kind(number: int, process: Process) -> str:
    if number == os.getpid():
        return "driver"
    return "jvm" if process.name == "java" else "workers"


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


@contextlib.contextmanager
def session(master: str, memory: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Spark on `master`, and the cluster if it is to be started. Paths are URIs then."""
    with contextlib.ExitStack() as stack:
        if master == CLUSTER:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-cluster-"))
            master = stack.enter_context(spark_cluster(Path(folder)))
            settings = {**ON_CLUSTER, **settings}
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = spark_session(master, memory, "benchmark", settings)
        try:
            yield spark
        finally:
            spark.stop()
