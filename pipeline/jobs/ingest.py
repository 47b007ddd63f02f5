"""`usage ingest`: from a spool or a topic into the table, once or repeatedly."""

import fcntl
import hashlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from threading import Event, Lock, current_thread, main_thread
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.ingest.ingest import Batch, Ingest, Outcome
from pipeline.ingest.summary import Totals, gap_lines
from pipeline.ingest.topic import Topic, problem_of_topic, topic_lines
from pipeline.spark.session import spark_session
from pipeline.table.accounts import read_accounts
from pipeline.table.table import root_of

FUTURE_TOLERANCE_S = 3_600
_MOST_FILES = 5_000
"""The largest number of files in one batch."""


def main(
    table: str,
    spools: Sequence[str] = (),
    topic: tuple[str, str, Mapping[str, str]] | None = None,
    once: bool = True,
    every_s: int = 10,
    future_tolerance_s: int = FUTURE_TOLERANCE_S,
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Take all that is new in the spools or in the topic, once, or unless `once` again every `every_s` seconds; 0.

    `topic` is its name, its servers, and settings of Kafka's consumer: see pipeline.ingest.topic.Topic. Raises
    ValueError if there is no such spool or topic, or if the table cannot be read.
    """
    print("starting Spark", file=sys.stderr)
    spark = spark_session(master, memory, "kafka-throttle usage ingest", settings)
    every = None if once else every_s
    if topic is not None:
        ingest_topic(spark, Topic(*topic), table, every, future_tolerance_s)
    elif spools:
        ingest_spool(spark, spools, table, every, future_tolerance_s)
    else:
        raise ValueError("expected --from or --from-topic, got neither")
    return 0


def ingest_spool(
    spark: SparkSession,
    spools: str | Sequence[str],
    table: str,
    every_s: int | None = None,
    future_tolerance_s: int = FUTURE_TOLERANCE_S,
    say: Any = print,
) -> Totals:
    """See `main`; without `every_s` once. Messages go to `say`, one line at a time."""

    def files(checkpoint: str, number: int) -> Sequence[str]:
        return batch_files(spark, checkpoint, number)

    inlets = {}
    for spool in [spools] if isinstance(spools, str) else spools:
        root = root_of(spool)
        _check(spool, root, say)
        inlets[root] = _Inlet(root, _lines(spark, root), files)
    return _ingest(spark, list(inlets.values()), table, every_s, future_tolerance_s, say)


def ingest_topic(
    spark: SparkSession,
    topic: Topic,
    table: str,
    every_s: int | None = None,
    future_tolerance_s: int = FUTURE_TOLERANCE_S,
    say: Any = print,
) -> Totals:
    """As `ingest_spool`. Spark needs the jars of its Kafka source."""
    try:
        lines = topic_lines(spark, topic.servers, topic.name, topic.settings)
        inlet = _Inlet(f"kafka://{topic.servers}/{topic.name}", lines, lambda checkpoint, number: ())
        return _ingest(spark, [inlet], table, every_s, future_tolerance_s, say)
    except (AnalysisException, StreamingQueryException, IllegalArgumentException) as error:
        if problem := problem_of_topic(error):
            raise ValueError(f"--from-topic: {topic.name} at {topic.servers}: {problem}") from error
        raise


@dataclass(frozen=True, slots=True)
class _Inlet:
    """The origin of lines."""

    name: str
    """The name of its checkpoint."""
    lines: DataFrame
    """As those of a Batch, as a stream."""
    files: Callable[[str, int], Sequence[str]]
    """The files that batch n of a checkpoint has."""


def _ingest(
    spark: SparkSession, inlets: Sequence[_Inlet], table: str, every_s: int | None, future_tolerance_s: int, say: Any
) -> Totals:
    totals, one_batch_at_a_time = Totals(), Lock()
    every = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    with _alone_at(table):
        ingest = Ingest(spark, table)

        def started(inlet: _Inlet) -> Any:
            source = hashlib.sha256(inlet.name.encode()).hexdigest()[:8]
            checkpoint = f"{root_of(table)}/_checkpoint/{source}"

            def take(lines: DataFrame, number: int) -> None:
                files = inlet.files(checkpoint, number)
                # By the minute: Spark compiles the rules again for each other time.
                latest_ms = -(-begun_ms(spark, checkpoint, number) // 60_000) * 60_000 + 1000 * future_tolerance_s
                batch = Batch(query_of(spark, checkpoint), number, lines, files, latest_ms)
                with one_batch_at_a_time:
                    outcome = ingest.take(batch)
                    totals.add(outcome)
                say(_in_short(outcome))

            query = inlet.lines.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
            return query.queryName(f"ingest {source}").trigger(**every).start()

        _await([started(inlet) for inlet in inlets])
    for line in (*totals.lines(), *gap_lines(read_accounts(spark, table))):
        say(line)
    return totals


@contextmanager
def _alone_at(table: str) -> Iterator[None]:
    """Refuse a second ingest at a table of this machine. ValueError if there is one."""
    root = root_of(table)
    if not root.startswith("file://"):
        yield
        return
    folder = Path(root.removeprefix("file://"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "_ingest.lock").open("w")
    except OSError as error:
        raise ValueError(f"--table: expected a directory to write to, got {table!r}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--table: another ingest writes to {table}; one ingest takes several spools: repeat --from"
            ) from None
        yield


def _check(spool: str, root: str, say: Any) -> None:
    if not root.startswith("file://"):
        return
    path = root.removeprefix("file://")
    folders = [Path(found) for found in sorted(glob(path)) if Path(found).is_dir()]  # noqa: PTH207, it may be absolute
    if not folders:
        raise ValueError(f"--from: expected a directory, got {spool!r}")
    for folder in folders:
        for found in sorted(folder.iterdir()):
            if found.is_dir() and found.name[0] not in "._":
                say(f"not taken: {found}: it is a directory")


def _lines(spark: SparkSession, spool: str) -> DataFrame:
    """A file that cannot be read is left out; it then lacks its end, which is reported."""
    return (
        spark.readStream.format("text")
        .option("lineSep", "\n")
        .option("maxFilesPerTrigger", _MOST_FILES)
        # No file is too old: files that come late are taken.
        .option("maxFileAge", "36500d")
        .option("ignoreCorruptFiles", True)
        .option("ignoreMissingFiles", True)
        .load(spool)
        .select(
            F.col("value").alias("text"),
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_block_start").alias("block"),
        )
    )


def query_of(spark: SparkSession, checkpoint: str) -> str:
    """The identity that Spark gives a checkpoint when it makes it."""
    [row] = spark.read.text(f"{checkpoint}/metadata").collect()
    identity: str = json.loads(row["value"])["id"]
    return identity


def begun_ms(spark: SparkSession, checkpoint: str, number: int) -> int:
    """When a batch was begun for the first time, in ms since 1970: a batch that is run again is judged as before."""
    lines = spark.read.text(f"{checkpoint}/offsets/{number}").where("value like '{%'").collect()
    [begun] = [form["batchTimestampMs"] for row in lines if "batchTimestampMs" in (form := json.loads(row["value"]))]
    at_ms: int = begun
    return at_ms


def batch_files(spark: SparkSession, checkpoint: str, number: int) -> Sequence[str]:
    """The files of a batch, as Spark has written them down before it began the batch."""
    written = spark.read.text(f"{checkpoint}/sources/0/{{{number},{number}.compact}}")
    entries = [json.loads(row["value"]) for row in written.where("value like '{%'").collect()]
    return sorted({entry["path"] for entry in entries if entry["batchId"] == number})


def _await(queries: Sequence[Any]) -> None:
    """Wait until all queries have ended, one has failed, or this process is asked to end; the next start takes
    unfinished batches.
    """
    stopped = Event()
    before = {}
    if current_thread() is main_thread():
        before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stopped.is_set() and not all(query.awaitTermination(1) for query in queries):
            pass
    finally:
        for query in queries:
            query.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_short(outcome: Outcome) -> str:
    files = f"{outcome.files} files, " if outcome.files else ""
    return f"batch {outcome.batch}: {files}{Totals.of(outcome).in_short()}"
