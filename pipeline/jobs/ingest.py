"""`usage ingest`: from a spool or a topic into the table, once or repeatedly."""

import hashlib
import json
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.ingest.ingest import Batch, Ingest, Outcome
from pipeline.ingest.rejects import plain
from pipeline.ingest.summary import Totals, gap_lines
from pipeline.ingest.topic import Topic, problem_of_topic, topic_lines
from pipeline.spark.session import LOCAL, spark_session
from pipeline.table.compaction import compacted
from pipeline.table.files import Files, files_at
from pipeline.table.table_log import now_ms, read_state

FUTURE_TOLERANCE_S = 3_600
_MOST_FILES = 5_000
"""The largest number of files in one batch."""


def main(
    table: str,
    spool: str | None = None,
    topic: tuple[str, str, Mapping[str, str]] | None = None,
    once: bool = True,
    every_s: int = 10,
    future_tolerance_s: int = FUTURE_TOLERANCE_S,
    master: str = LOCAL,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Take all that is new in the spool or in the topic, once, or unless `once` again every `every_s` seconds; 0.

    `topic` is its name, its servers, and settings of Kafka's consumer: see pipeline.ingest.topic.Topic. Raises
    ValueError if there is no such spool or topic, or if the table cannot be read.
    """
    spark = spark_session(master, memory, "kafka-throttle usage ingest", settings)
    every = None if once else every_s
    if topic is not None:
        ingest_topic(spark, Topic(*topic), table, every, future_tolerance_s)
    elif spool is not None:
        ingest_spool(spark, spool, table, every, future_tolerance_s)
    else:
        raise ValueError("expected --from or --from-topic, got neither")
    return 0


def ingest_spool(
    spark: SparkSession,
    spool: str,
    table: str,
    every_s: int | None = None,
    future_tolerance_s: int = FUTURE_TOLERANCE_S,
    say: Any = print,
) -> Totals:
    """See `main`; without `every_s` once. Messages go to `say`, one line at a time."""
    spool_files = files_at(spark, spool)
    _check(spool, spool_files, say)
    inlet = _Inlet(spool_files.root, _lines(spark, spool_files.root), batch_files)
    return _ingest(spark, inlet, table, every_s, future_tolerance_s, say)


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
        return _ingest(spark, inlet, table, every_s, future_tolerance_s, say)
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
    """LINES without the number, as a stream."""
    files: Callable[[Files, int], Sequence[str]]
    """The files that batch n of a checkpoint has."""


def _ingest(
    spark: SparkSession, inlet: _Inlet, table: str, every_s: int | None, future_tolerance_s: int, say: Any
) -> Totals:
    table_files = files_at(spark, table)
    read_state(table_files)
    source = hashlib.sha256(inlet.name.encode()).hexdigest()[:8]
    checkpoint = f"{table_files.root}/_checkpoint/{source}"
    ingest = Ingest(spark, table_files)
    ingest.tidy(source)
    totals = Totals()

    def take(lines: DataFrame, number: int) -> None:
        latest_ms = now_ms() + 1000 * future_tolerance_s
        files = inlet.files(files_at(spark, checkpoint), number)
        query = query_of(files_at(spark, checkpoint))
        outcome = ingest.take(Batch(source, query, number, lines, files, latest_ms))
        if outcome is not None:
            _tell(outcome, totals, every_s is not None, say)
            if number % 16 == 15:
                compacted(spark, table_files)

    query = (
        inlet.lines.writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .queryName(f"ingest {source}")
    )
    query = query.trigger(availableNow=True) if every_s is None else query.trigger(processingTime=f"{every_s} seconds")
    _await(query.start())
    merged = compacted(spark, table_files)
    for line in totals.lines(merged):
        say(line)
    for line in gap_lines(read_state(table_files).accounts):
        say(line)
    return totals


def _check(spool: str, files: Files, say: Any) -> None:
    if files.root.startswith("file://") and not Path(files.root.removeprefix("file://")).is_dir():
        raise ValueError(f"--from: expected a directory, got {spool!r}")
    for found in files.listed(""):
        if found.is_directory and found.name[0] not in "._":
            say(f"not taken: {plain(files.root)}/{found.name}: it is a directory")


def _lines(spark: SparkSession, spool: str) -> DataFrame:
    """LINES without the number. A file that cannot be read is left out; it then lacks its end, which is reported."""
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


def query_of(checkpoint: Files) -> str:
    """The identity that Spark gives a checkpoint when it makes it."""
    identity: str = json.loads(checkpoint.read("metadata") or b"{}")["id"]
    return identity


def batch_files(checkpoint: Files, number: int) -> Sequence[str]:
    """The files of a batch, as Spark has written them down before it began the batch."""
    for name in (str(number), f"{number}.compact"):
        data = checkpoint.read(f"sources/0/{name}")
        if data is not None:
            entries = [json.loads(line) for line in data.decode().splitlines()[1:]]
            return [entry["path"] for entry in entries if entry["batchId"] == number]
    raise ValueError(f"{checkpoint.root}: the files of batch {number} are not written down")


def _await(query: Any) -> None:
    """Wait until the query has ended or this process is asked to end; the next start takes an unfinished batch."""
    stopped = threading.Event()
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not query.awaitTermination(1):
            if stopped.is_set():
                query.stop()
                break
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(outcome: Outcome, totals: Totals, alone: bool, say: Any) -> None:
    totals.add(outcome)
    if alone:
        files = f"{outcome.files} files, " if outcome.files else ""
        say(f"batch {outcome.batch}: {files}{Totals.of(outcome).in_short()}")
