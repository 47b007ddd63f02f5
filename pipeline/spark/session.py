"""The one place that starts Spark, connects to a Spark Connect server, or takes the session that is there."""

import atexit
import logging
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkImportError, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql.utils import is_remote

from kafka_throttle.common.jars import delta_package, spark_delta_jars
from kafka_throttle.pipeline.spark.environment import reasons, refuse_nameless_user

LOCAL = "local[*]"
"""The master if nobody names one: this machine, all its cores."""

_BY_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""spark-submit has started the JVM, and says by this variable where it is."""

_NO_JVM = "JAVA_GATEWAY_EXITED"
"""PySpark's name for a JVM that has ended before it said where it is."""

_REMOTE = "SPARK_REMOTE"
"""Spark's own variable for the URL of a Spark Connect server."""
_CONNECT = "sc://"
_REACHED_WITHIN_S = 10.0

_OURS = ("common", "quotas", "pipeline")
"""The packages of the project that executors need."""
_ARCHIVE = "kafka_throttle_pipeline.zip"

MOST_LINE_BYTES = 1 << 20
"""Longer lines are not read: the proxy writes none of that length, and a line without an end would fill the memory."""

_OF_A_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # Days and virtual clusters are written side by side; otherwise each task would sort its rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "200",
    # The JVM never compiles a method above 8,000 bytes: several stages are better than one that is interpreted.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # VACUUM would list directories with 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "200",
    # A batch is of one day or two: repartitioned by day, all of it would be written by one task.
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    # The first columns are those by which files are skipped: instance, epoch, sequence, begin_ms, end_ms.
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "5",
}
_AT_THE_START = {
    # One simulation has 170 generated classes; if only 100 are cached, the next one generates and compiles all of them
    # again.
    "spark.sql.codegen.cache.maxEntries": "500",
    "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": str(MOST_LINE_BYTES),
    # Errors are raised, and then said in a line; Spark's log has each of them two or three times, with all its stacks.
    "spark.log.level": "FATAL",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a Spark Connect server must have been started with, or does without."""
_ON_ONE_MACHINE = {
    # Its page would be open to the whole network, with a button that ends jobs.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # Each look at a table's log would otherwise have 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * (os.cpu_count() or 1)),
}


def spark_session(
    master: str | None = None,
    memory: str = "2g",
    name: str = "kafka-throttle",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark for one command: the session that is there, otherwise one on `master` or SPARK_REMOTE, on that of
    spark-submit, or LOCAL.

    `memory` is the driver's, as `4g`; `settings` are Spark's own and override ours. Both are for a new session only.
    A master of `sc://host:port` is a Spark Connect server, which has its memory already. Raises ValueError if Delta
    Lake or the server cannot be had, or Spark does not start in this environment.
    """
    spark = SparkSession.getActiveSession()
    if spark is None and (url := _server(master)):
        spark = _connected(url, settings or {})
    elif spark is None:
        spark = _started(master, memory, name, settings or {})
    # A file that the session has already is not sent again.
    spark.addArtifacts(str(_zipped()), pyfile=True)
    return spark


def refuse_connect(command: str, why: str) -> None:
    """Raise ValueError if the session that is there is one of Spark Connect."""
    if is_remote():
        raise ValueError(f"{command} does not run over Spark Connect: {why}")


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
    chosen = {**_OF_A_SESSION, **_AT_THE_START, "spark.driver.memory": memory}
    if _is_local(master):
        chosen |= _ON_ONE_MACHINE
        # Within the process this is the only way: the setting spark.pyspark.python is for spark-submit.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in _with_delta({**chosen, **submitted, **settings}).items():
        builder = builder.config(key, value)
    # What it logs is raised, too.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    refuse_nameless_user()
    try:
        return builder.getOrCreate()
    except (PySparkRuntimeError, FileNotFoundError) as error:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() != _NO_JVM:
            raise
        raise ValueError(reasons(os.environ)) from error


def _server(master: str | None) -> str:
    """The URL of the Spark Connect server that is asked for; empty if none is."""
    if master is None:
        return os.environ.get(_REMOTE, "")
    if master.startswith(_CONNECT):
        return master
    os.environ.pop(_REMOTE, None)
    return ""


def _connected(url: str, settings: Mapping[str, str]) -> SparkSession:
    """A new session at a server, which is ended with this process. ValueError if the server cannot be reached."""
    try:
        _reach(url)
        builder = SparkSession.builder.remote(url)
    except (ImportError, PySparkImportError) as error:
        raise ValueError(f"Spark Connect needs more packages: pip install 'pyspark[connect]' ({error})") from error
    for key, value in _OF_A_SESSION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    atexit.register(spark.stop)
    for key, value in settings.items():
        try:
            spark.conf.set(key, value)
        except PySparkException as error:
            raise ValueError(f"--conf {key}: only the start of the Spark Connect server can set it") from error
    return spark


def _reach(url: str) -> None:
    """Raise ValueError if nothing listens there: by itself Spark tries for minutes."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        endpoint = DefaultChannelBuilder(url).endpoint
        host, _, port = endpoint.rpartition(":")
        address = (host.strip("[]"), int(port))
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error
    try:
        socket.create_connection(address, _REACHED_WITHIN_S).close()
    except OSError as error:
        raise ValueError(f"no Spark Connect server at {endpoint}: {error.strerror or error}") from error


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
            "spark-submit: expected the jars of Delta Lake in --jars or --packages, as docs/reference/pipeline.md says"
        )
    try:
        jars = spark_delta_jars(lambda line: print(line, file=sys.stderr))
    except RuntimeError as error:
        packages = f"--conf spark.jars.packages={delta_package()}"
        raise ValueError(f"{error}\nOr have Spark fetch Delta Lake: {packages}") from error
    named = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {**settings, "spark.jars": ",".join([*named, *map(str, jars)])}


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks Spark runs at the same time: as a rule the number of all executors' cores."""
    if not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    # Spark Connect does not say it; a range has as many partitions.
    parts = spark.range(1 << 20).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.count_distinct("part")).collect()[0][0])


def on_one_machine(spark: SparkSession) -> bool:
    """Whether this process does all the work, so that what it can reach is all that is needed."""
    return not is_remote() and _is_local(spark.sparkContext.master)


def _is_local(master: str) -> bool:
    return master.startswith("local[") or master == "local"


@cache
def _zipped() -> Path:
    """The project's packages in one file; executors fetch it as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="kafka-throttle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / _ARCHIVE
    root = Path(__file__).parents[3]
    package = root / "kafka_throttle"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        files = [*package.glob("*.py"), *(file for room in _OURS for file in (package / room).rglob("*.py"))]
        for file in sorted(files):
            packed.write(file, file.relative_to(root))
    return archive
