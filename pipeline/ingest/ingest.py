"""Writes one batch of lines into the table, exactly once.

Spark's streaming defines and remembers what a batch is: batch n of a checkpoint has the same files whenever it is run.
Here the batch is written to directories that the table's log does not name. Then one commit to the log makes them part
of the table, together with the sequence numbers in them and the batch's number. An ingest that is killed before the
commit has changed nothing. If it is killed after the commit, the log has the batch's number when Spark runs the batch
once more, and the batch is skipped. A record that comes again in another batch, or from another checkpoint, is
recognised by its sequence number.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.ingest.duplicates import Decision, Run, judged
from pipeline.ingest.line_columns import OTHER
from pipeline.ingest.lines import LINES, parsed, written
from pipeline.ingest.rejects import Line, Reject, Sorted, in_short
from pipeline.table.accounts import Accounts, Writer, added
from pipeline.table.files import Files, Taken, folders
from pipeline.table.schemas import OFFSET, QUARANTINE, ROWS, schema_of
from pipeline.table.table_log import Commit, Part, State, now_ms, part_at, read_state, write_commit
from quotas.records.usage_record import TRACE, USAGE, Row

STAGING = "_staging"
_MOST_RUNS = 200_000
"""If there are more runs than that the rows are sorted first: then there are only as many runs as there are real gaps.
"""
_REJECTS_AT_ONCE = 50_000
_KEY = ("instance", "epoch")


@dataclass(frozen=True, slots=True)
class Batch:
    """The lines of a batch: LINES without the number, and the files that they come from."""

    source: str
    """The origin of the lines, as a few letters that may be part of a file's name."""
    query: str
    """The identity of the checkpoint that gives the numbers. If the checkpoint is lost, numbers begin again."""
    number: int
    lines: DataFrame
    files: Sequence[str]
    """Each of these files must have a header and an end; empty where lines come one by one."""
    latest_ms: int
    """Records later than this are refused; ms since 1970."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: counts as in the table's log, and the accounts of the writers, with what is missing."""

    batch: int
    files: int
    counts: Mapping[str, int] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=dict)


class Ingest:
    """Takes batches into one table."""

    def __init__(self, spark: SparkSession, files: Files) -> None:
        self._spark = spark
        self._files = files

    def take(self, batch: Batch) -> Outcome | None:
        """Make the batch part of the table. None if it is part of it already."""
        state = read_state(self._files)
        if state.batches.get(batch.query, -1) >= batch.number:
            return None
        name = f"{batch.source}-{batch.number:08d}-{uuid.uuid4().hex[:8]}"
        staged = _Staged(self._spark, self._files, batch, name)
        try:
            staged.write()
            return self._commit(staged, batch, name, state)
        finally:
            self._files.remove(f"{STAGING}/{name}")

    def _commit(self, staged: "_Staged", batch: Batch, name: str, state: State) -> Outcome:
        quarantine = staged.quarantine()
        runs = {stream: staged.runs(stream) for stream in ROWS}
        while True:
            decisions = {stream: judged(of_stream, state.accounts) for stream, of_stream in runs.items()}
            attempt = f"{name}-{state.version}"
            parts = [part for stream in ROWS for part in staged.keep(stream, decisions[stream], attempt)] + quarantine
            accounts: Accounts = staged.sorted.accounts
            for decision in decisions.values():
                accounts = added(accounts, decision.accounts)
            counts = Counter(staged.counts)
            for stream, decision in decisions.items():
                counts += Counter({f"{stream} records": decision.new, f"{stream} duplicates": decision.duplicates})
            commit = Commit(now_ms(), batch.query, batch.number, tuple(parts), (), accounts, counts)
            try:
                now = write_commit(self._files, state, commit)
            except Taken:
                # Another ingest, or a compaction, has committed first: what is new must be decided again.
                state = read_state(self._files)
                continue
            touched = {writer: now.accounts[writer] for writer in accounts}
            return Outcome(batch.number, len(batch.files), dict(counts), touched)

    def tidy(self, source: str) -> None:
        """Remove what runs of this source left behind when they were killed."""
        state = read_state(self._files)
        known = {path.split("/")[1] for path in (*state.parts, *state.removed_ms)}
        for found in self._files.listed(STAGING):
            if found.name.startswith(f"{source}-"):
                self._files.remove(f"{STAGING}/{found.name}")
        for stream in (*ROWS, "quarantine"):
            for found in self._files.listed(stream):
                if found.name.startswith(f"commit={source}-") and found.name not in known:
                    self._files.remove(f"{stream}/{found.name}")


class _Staged:
    """A batch that is not yet part of the table."""

    def __init__(self, spark: SparkSession, files: Files, batch: Batch, name: str) -> None:
        self._spark = spark
        self._files = files
        self._batch = batch
        self._name = name
        self._folder = f"{STAGING}/{name}"
        self.sorted = Sorted()
        self.counts: Counter[str] = Counter()
        self._spans: dict[str, list[Any]] = {}
        """By stream, where the tasks that wrote the rows have told them."""
        self._records_in = {stream: f"{self._folder}/{into}/kind={stream}" for stream, into in _WRITTEN.items()}

    # ---------------------------------------------------------------- writing

    def write(self) -> None:
        """Read the lines, once."""
        self._write(ROWS[USAGE], self._numbered())
        if raw := self._path("first", TRACE):
            self._write(ROWS[TRACE], self._spark.read.schema(LINES).parquet(raw).select(*LINES.names))

    def _numbered(self) -> DataFrame:
        return self._batch.lines.withColumn("number", F.monotonically_increasing_id())

    def _write(self, row: type[Row], lines: DataFrame) -> None:
        into = f"{self._folder}/{_WRITTEN[row.KIND]}"
        if not self._files.root.startswith("file://"):
            rows = parsed(lines, row, self._batch.latest_ms)
            rows.write.partitionBy("kind", "day", "virtual_cluster").parquet(self._at(into))
            return
        aside = f"{into}/_written"
        shared = Path(self._at(aside).removeprefix("file://"))
        spans = []
        for response in written(lines, row, self._batch.latest_ms, shared).collect():
            if response["file"] is not None:
                self._files.move(f"{aside}/{response['file']}", f"{into}/{response['folder']}/{response['file']}")
            else:
                spans.append(response)
        if all(span["instance"] is not None for span in spans):
            self._spans[row.KIND] = spans

    def _at(self, path: str) -> str:
        return f"{self._files.root}/{path}"

    def _path(self, into: str, kind: str) -> str | None:
        """The path of the lines of a kind, if there are any."""
        path = f"{self._folder}/{into}/kind={kind}"
        return self._at(path) if self._files.listed(path) else None

    def _records(self, stream: str) -> DataFrame | None:
        folder = self._records_in[stream]
        if not self._files.listed(folder):
            return None
        schema = schema_of(ROWS[stream]).add(OFFSET, "long").add("day", "date")
        return self._spark.read.schema(schema).parquet(self._at(folder))

    # ------------------------------------------------------------- duplicates

    def runs(self, stream: str) -> list[Run]:
        """All rows of a stream, as runs."""
        records = self._records(stream)
        if records is None:
            return []
        spans = self._spans.get(stream) or _spans(records).limit(_MOST_RUNS + 1).collect()
        if len(spans) > _MOST_RUNS:
            records = self._sorted(stream, records)
            spans = _spans(records).collect()
        whole = [span for span in spans if _is_whole(span)]
        holed = [(span["instance"], span["epoch"], span[OFFSET]) for span in spans if not _is_whole(span)]
        return [_run(stream, span) for span in (*whole, *self._pieces(records, holed))]

    def _pieces(self, records: DataFrame, offsets: list[tuple[str, int, int]]) -> list[Any]:
        """The rows of offsets in which lines are missing, as intervals without gaps."""
        if not offsets:
            return []
        keys = self._spark.createDataFrame(offsets, f"instance string, epoch long, {OFFSET} long")
        ordered = Window.partitionBy(*_KEY, OFFSET).orderBy("sequence")
        pieces: list[Any] = (
            records.join(F.broadcast(keys), [*_KEY, OFFSET], "left_semi")
            .select(*_KEY, OFFSET, "sequence", (F.col("sequence") - F.row_number().over(ordered)).alias("piece"))
            .groupBy(*_KEY, OFFSET, "piece")
            .agg(F.min("sequence").alias("first"), F.max("sequence").alias("last"))
            .collect()
        )
        return pieces

    def _sorted(self, stream: str, records: DataFrame) -> DataFrame:
        """For rows that come in no order at all: write them again, each once, in runs that are as long as possible."""
        once = records.dropDuplicates([*_KEY, "sequence"])
        self.counts[f"{stream} duplicates"] = records.count() - once.count()
        ordered = Window.partitionBy(*_KEY).orderBy("sequence")
        anew = once.withColumn(OFFSET, F.col("sequence") - F.row_number().over(ordered))
        self._records_in[stream] = f"{self._folder}/sorted-{stream}"
        anew.write.partitionBy("day", "virtual_cluster").parquet(self._at(self._records_in[stream]))
        written = self._records(stream)
        assert written is not None
        return written

    def keep(self, stream: str, decision: Decision, attempt: str) -> list[Part]:
        """Bring the rows that are taken to their final place. Costs nothing if that is all rows."""
        if not decision.taken:
            return []
        into = f"{stream}/commit={attempt}"
        if decision.duplicates:
            self._write_taken(stream, decision, into)
        else:
            self._files.move(self._records_in[stream], into)
            self._records_in[stream] = into
        self._files.make_durable(into)
        return [part_at(stream, path, size) for path, size in folders(self._files, into, 2)]

    def _write_taken(self, stream: str, decision: Decision, into: str) -> None:
        records = self._records(stream)
        assert records is not None
        rows = [(run.writer.instance, run.writer.epoch, run.offset, *run.interval) for run in decision.taken]
        keys = self._spark.createDataFrame(
            rows, f"instance string, epoch long, {OFFSET} long, first_taken long, last_taken long"
        )
        chosen = (
            records.join(F.broadcast(keys), [*_KEY, OFFSET])
            .where("sequence between first_taken and last_taken")
            .drop("first_taken", "last_taken")
        )
        chosen.write.partitionBy("day", "virtual_cluster").parquet(self._at(into))

    # ------------------------------------------------------------- quarantine

    def quarantine(self) -> list[Part]:
        """Sort the lines without a record, and write the bad ones to the quarantine, a limited number at a time."""
        into = f"quarantine/commit={self._name}"
        first: dict[tuple[str, int], int] = {}
        for line in self._other():
            self.sorted.take(line, self._batch.latest_ms)
            if len(self.sorted.rejects) >= _REJECTS_AT_ONCE:
                self._write_rejects(into, first)
        self.sorted.close(self._batch.files)
        self._write_rejects(into, first)
        if not self._files.listed(into):
            return []
        self._files.make_durable(into)
        return [Part("quarantine", into, "", "", sum(file.bytes for file in self._files.listed(into)))]

    def _other(self) -> Iterator[Line]:
        for into in _WRITTEN.values():
            if path := self._path(into, OTHER):
                rows = self._spark.read.schema(LINES).parquet(path).select(*LINES.names)
                yield from (Line(*row) for row in rows.toLocalIterator())

    def _write_rejects(self, into: str, first: dict[tuple[str, int], int]) -> None:
        """`first` caches the results of `_first_numbers`; this method adds to it."""
        rejects, self.sorted.rejects = self.sorted.rejects, []
        if not rejects:
            return
        self.counts.update(f"rejected: {in_short(reject.reason)}" for reject in rejects)
        if self._batch.files:
            known = {file for file, _ in first}
            first |= self._first_numbers({reject.line.file for reject in rejects if reject.line} - known)
        rows = [_reported(reject, first, now_ms()) for reject in rejects]
        self._spark.createDataFrame(rows, QUARANTINE).coalesce(1).write.mode("append").parquet(self._at(into))

    def _first_numbers(self, files: set[str]) -> dict[tuple[str, int], int]:
        """The number that the first line of each file would have if the whole file were in this block."""
        if not files:
            return {}
        wanted = self._spark.createDataFrame([(file,) for file in files], "file string")
        rows = (
            self._numbered()
            .join(F.broadcast(wanted), ["file"], "left_semi")
            .groupBy("file", "block")
            .agg(F.min("number").alias("first"), F.count("*").alias("lines"))
            .collect()
        )
        numbers, before = {}, Counter[str]()
        for row in sorted(rows, key=lambda row: (row["file"], row["block"])):
            numbers[row["file"], row["block"]] = row["first"] - before[row["file"]]
            before[row["file"]] += row["lines"]
        return numbers


_WRITTEN = {USAGE: "first", TRACE: "second"}


def _reported(
    reject: Reject, first: Mapping[tuple[str, int], int], at_ms: int
) -> tuple[str, int | None, str, str | None, int]:
    if (line := reject.line) is None:
        return reject.file, None, reject.reason, None, at_ms
    # A line that came as a message has no number in a file.
    before = first.get((line.file, line.block))
    number = None if before is None else line.number - before + 1
    return reject.file, number, reject.reason, line.text, at_ms


def _spans(records: DataFrame) -> DataFrame:
    return records.groupBy(*_KEY, OFFSET).agg(
        F.min("sequence").alias("first"), F.max("sequence").alias("last"), F.count("*").alias("rows")
    )


def _is_whole(span: Any) -> bool:
    return bool(span["last"] - span["first"] + 1 == span["rows"])


def _run(stream: str, span: Any) -> Run:
    return Run(Writer(stream, span["instance"], span["epoch"]), span[OFFSET], (span["first"], span["last"]))
