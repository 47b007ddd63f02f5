"""`usage ingest`: from a spool or a topic into the table, once or repeatedly."""

import hashlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, current_thread, main_thread
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kafka_throttle.common.file_lock import locked
from kafka_throttle.pipeline.ingest.checkpoint import planned
from kafka_throttle.pipeline.ingest.frames import plain, without_scheme
from kafka_throttle.pipeline.ingest.ingest import Batch, Ingest, Outcome
from kafka_throttle.pipeline.ingest.spool import check_spool, spool_lines
from kafka_throttle.pipeline.ingest.summary import Totals, gap_lines
from kafka_throttle.pipeline.ingest.topic import Topic, problem_of_topic, topic_lines
from kafka_throttle.pipeline.spark.day import now_ms
from kafka_throttle.pipeline.spark.session import refuse_connect, spark_session
from kafka_throttle.pipeline.spark.unreadable import cause_of, file_of
from kafka_throttle.pipeline.table.accounts import read_accounts
from kafka_throttle.pipeline.table.table import local_path, refuse_colon, refuse_local, root_of

FUTURE_TOLERANCE_S = 3_600


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

    `topic` is its name, its servers, and settings of Kafka's consumer: see `Topic` in pipeline/ingest/topic.py. Raises
    ValueError if there is no such spool or topic, or if the table cannot be read.
    """
    refuse_colon(table)
    print("starting Spark", file=sys.stderr)
    spark = spark_session(master, memory, "kafka-throttle usage ingest", settings)
    refuse_connect("usage ingest", "its batches are taken by a function that needs this process")
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
    """See `main`; without `every_s` once. Messages go to `say`, one line at a time.

    Raises ValueError if a file cannot be read. Its batch is then run again by the next ingest.
    """
    inlets = {}
    for spool in [spools] if isinstance(spools, str) else spools:
        refuse_local(spark, spool)
        root = root_of(spool)
        check_spool(spool, root, say)
        inlets[root] = _Inlet(root, spool_lines(spark, root), True)
    try:
        return _ingest(spark, list(inlets.values()), table, every_s, future_tolerance_s, say)
    except StreamingQueryException as error:
        file = file_of(error)
        if file and not plain(file).startswith(f"{without_scheme(root_of(table))}/"):
            problem = f"{file} cannot be read: {cause_of(error)}"
            raise ValueError(f"--from: {problem}; its batch is not taken yet: run again, or move it away") from error
        raise


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
        inlet = _Inlet(f"kafka://{topic.servers}/{topic.name}", lines, False)
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
    of_files: bool


def _ingest(
    spark: SparkSession, inlets: Sequence[_Inlet], table: str, every_s: int | None, future_tolerance_s: int, say: Any
) -> Totals:
    refuse_local(spark, table)
    refuse_colon(table)
    totals, one_batch_at_a_time = Totals(), Lock()
    every = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    with _alone_at(table):
        ingest = Ingest(spark, table)

        def started(inlet: _Inlet) -> Any:
            source = hashlib.sha256(inlet.name.encode()).hexdigest()[:8]
            checkpoint = f"{root_of(table)}/_checkpoint/{source}"

            def take(lines: DataFrame, number: int) -> None:
                plan = planned(spark, checkpoint, number, inlet.of_files)
                # By the minute: Spark compiles the rules again for each other time.
                latest_ms = -(-plan.begun_ms // 60_000) * 60_000 + 1000 * future_tolerance_s
                with one_batch_at_a_time:
                    outcome = ingest.take(Batch(plan.query, number, lines, plan.files, latest_ms))
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
    folder = local_path(root_of(table))
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = locked(folder / "_ingest.lock", 0o666, certainly=True)
    except OSError as error:
        raise ValueError(f"--table: expected a directory to write to, got {table!r}: {error.strerror}") from error
    if lock is None:
        raise ValueError(f"--table: another ingest writes to {table}; one ingest takes several spools: repeat --from")
    with lock:
        yield


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
    age_s = (now_ms() - outcome.newest_ms) / 1000
    newest = f", the newest {age_s:,.0f} s old" if outcome.newest_ms else ""
    return f"batch {outcome.batch}: {files}{Totals.of(outcome).in_short()}{newest}"
