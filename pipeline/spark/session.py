"""The one place that starts Spark, or takes the session that is there."""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from common.jars import ToolMissing, spark_delta_jars

LOCAL = "local[*]"
"""The master if nobody names one: this machine, all its cores."""

_BY_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""spark-submit has started the JVM, and says by this variable where it is."""

_OURS = ("common", "quotas", "pipeline")
"""The packages of the project that executors need."""
_ARCHIVE = "kafka_throttle_pipeline.zip"

MOST_LINE_BYTES = 1 << 20
"""Longer lines are not read: the proxy writes none of that length, and a line without an end would fill the memory."""

_ALWAYS = {
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
    "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": str(MOST_LINE_BYTES),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A batch is of one day or two: repartitioned by day, all of it would be written by one task.
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    # The first columns are those by which files are skipped: instance, epoch, sequence, begin_ms, end_ms.
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "5",
}
_ON_ONE_MACHINE = {
    # Its page would be open to the whole network, with a button that ends jobs.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # Each look at a table's log would otherwise have 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM would list directories with 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * (os.cpu_count() or 1)),
}


def spark_session(
    master: str | None = None,
    memory: str = "2g",
    name: str = "kafka-throttle",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark for one command: the session that is there, otherwise one on `master`, on that of spark-submit, or LOCAL.

    `memory` is the driver's, as `4g`; `settings` are Spark's own and override ours. Both are for a new session only.
    Raises ValueError if Delta Lake cannot be had.
    """
    given = SparkSession.getActiveSession()
    spark = _started(master, memory, name, settings or {}) if given is None else given
    if _ARCHIVE not in spark.sparkContext._python_includes:
        spark.sparkContext.addPyFile(str(_zipped()))
    return spark


@contextmanager
def own_session(
    master: str | None, memory: str, name: str, settings: Mapping[str, str] | None
) -> Iterator[SparkSession]:
    """As `spark_session`; at the end a session that was not there before is stopped."""
    is_ours = SparkSession.getActiveSession() is None
    spark = spark_session(master, memory, name, settings)
    try:
        yield spark
    finally:
        if is_ours:
            spark.stop()


def _started(master: str | None, memory: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    submitted = _submitted()
    master = master or submitted.get("spark.master", LOCAL)
    chosen = {**_ALWAYS, "spark.driver.memory": memory}
    if _is_local(master):
        chosen |= _ON_ONE_MACHINE
        # Within the process this is the only way: the setting spark.pyspark.python is for spark-submit.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in _with_delta({**chosen, **submitted, **settings}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _submitted() -> Mapping[str, str]:
    """The settings of spark-submit, if it has started this program."""
    if _BY_SUBMIT not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _with_delta(settings: Mapping[str, str]) -> Mapping[str, str]:
    """The settings with the jars of Delta Lake, unless they name them. Raises ValueError if they cannot be had."""
    if any("delta-" in settings.get(key, "") for key in ("spark.jars", "spark.jars.packages")):
        return settings
    if _BY_SUBMIT in os.environ:
        raise ValueError(
            "spark-submit: expected the jars of Delta Lake in --jars or --packages, as docs/pipeline.md says"
        )
    try:
        jars = spark_delta_jars(lambda line: print(line, file=sys.stderr))
    except (ToolMissing, RuntimeError) as error:
        packages = "--conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0"
        raise ValueError(f"{error}\nOr have Spark fetch Delta Lake: {packages}") from error
    named = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {**settings, "spark.jars": ",".join([*named, *map(str, jars)])}


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
