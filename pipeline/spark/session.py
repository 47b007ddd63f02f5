"""The one place that starts Spark."""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

LOCAL = "local[*]"
"""The master if none is named: this machine, all its cores."""

_OURS = ("common", "quotas", "pipeline")
"""The packages of the project that executors need."""
_ARCHIVE = "kafka_throttle_pipeline.zip"

MOST_LINE_BYTES = 1 << 20
"""Longer lines are not read: the proxy writes none of that length, and a line without an end would fill the memory."""

_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # Days and virtual clusters are written side by side; otherwise each task would sort its rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "200",
    # The JVM never compiles a method above 8,000 bytes: several stages are better than one that is interpreted.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # One simulation has 170 generated classes; if only 100 are cached, the next one generates and compiles all of them
    # again.
    "spark.sql.codegen.cache.maxEntries": "500",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": str(MOST_LINE_BYTES),
    # Whole commits are read, so listing a directory needs no Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "2000",
}
_ON_ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}


def spark_session(
    master: str = LOCAL, memory: str = "2g", name: str = "kafka-throttle", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Spark on `master`, for one command. `memory` is the driver's, as `4g`; `settings` are Spark's own and override
    ours.
    """
    chosen = {**_ALWAYS, "spark.driver.memory": memory}
    if _is_local(master):
        chosen |= _ON_ONE_MACHINE
        # Within the process this is the only way: the setting spark.pyspark.python is for spark-submit.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if _ARCHIVE not in spark.sparkContext._python_includes:
        spark.sparkContext.addPyFile(str(_zipped()))
    return spark


def on_one_machine(spark: SparkSession) -> bool:
    """Whether this process does all the work, so that no executor that holds a part of it can be lost."""
    return _is_local(spark.sparkContext.master)


def _is_local(master: str) -> bool:
    return master.startswith("local[") or master == "local"


def _zipped() -> Path:
    """The project's packages in one file, as addPyFile takes them; executors fetch it as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="kafka-throttle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / _ARCHIVE
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _OURS:
            for file in sorted((root / package).rglob("*.py")):
                packed.write(file, file.relative_to(root))
    return archive
