"""Writes one batch of lines into the table, exactly once.

Spark's streaming defines and remembers what a batch is: batch n of a checkpoint has the same lines whenever it is run.
A batch is up to four commits, one to each Delta table, each with the identity of the checkpoint and the number of the
batch (Delta's txnAppId and txnVersion). If an ingest is killed between them, Spark runs the batch once more, and Delta
skips the commits that it has. `numbers` comes last, so what it knows to be taken is in the table.

A record that comes again in another batch, or from another checkpoint, is recognised by its number: records are
merged by (instance, epoch, sequence). If somebody else has committed the same numbers meanwhile, Delta refuses the
commit, and the merge is done again.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from kafka_throttle.pipeline.ingest import frames
from kafka_throttle.pipeline.ingest.frames import Frames
from kafka_throttle.pipeline.ingest.rules import (
    Rule,
    is_broken,
    kind_of,
    reason_of,
    rule_of_kinds,
    rules_of_all,
    rules_of_messages,
    rules_of_record,
    split_lines,
    with_columns,
)
from kafka_throttle.pipeline.ingest.spool import Unreadable
from kafka_throttle.pipeline.spark.day import now_ms
from kafka_throttle.pipeline.spark.unreadable import SPARK_ERRORS
from kafka_throttle.pipeline.table.accounts import Account, Accounts, Writer, added, read_accounts, rows_of
from kafka_throttle.pipeline.table.intervals import Interval, union
from kafka_throttle.pipeline.table.schemas import MOST, NUMBERS, QUARANTINE, ROWS
from kafka_throttle.pipeline.table.table import TABLES, make_tables, root_of, sql_name, stored
from kafka_throttle.quotas.records.usage_record import Row

_KEY = ("instance", "epoch")
_PLACED = T.StructType([field for field in QUARANTINE.fields if field.name != "at_ms"])
_WRITTEN = 6
"""The part of a line that says when it was written: `end_ms` of usage records, `wall_ms` of trace events."""
_MOST_TEXT = 1_000
"""At most this many characters of a rejected line are stored."""
_MOST_RANGES = 64
"""With more writers in a batch than that, the files that a merge looks at are found by one range for all of them."""
_MOST_TRIES = 20
_CONFLICT = re.compile(r"DELTA_CONCURRENT|Concurrent\w+Exception")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Batch:
    """The lines of a batch, and the files that they come from."""

    query: str
    """The identity of the checkpoint that gives the numbers. If the checkpoint is lost, numbers begin again."""
    number: int
    lines: DataFrame
    """`text`, `file` and `block`, the block's first byte in the file."""
    files: Sequence[str]
    """Each of these files must have a header and an end; empty where lines come one by one."""
    latest_ms: int
    """Records later than this are refused; ms since 1970."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: counts of records and duplicates by stream, and of rejected lines by reason."""

    batch: int
    files: int
    counts: Mapping[str, int] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=dict)
    """What the batch has learned."""
    newest_ms: int = 0
    """When the newest of its records was written, in ms since 1970; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class _Range:
    """The lines of a writer in a batch, good or bad: how many, with how many numbers, the least and the largest."""

    writer: Writer
    lines: int
    numbers: int
    interval: Interval

    @property
    def is_whole(self) -> bool:
        """Whether no number of the interval is missing."""
        return self.numbers == self.interval[1] - self.interval[0] + 1


class Ingest:
    """Takes batches into one table."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._table = table
        make_tables(spark, table)
        self._known: Accounts = read_accounts(spark, table)

    def take(self, batch: Batch) -> Outcome:
        """Make the batch part of the table; what is part of it already is not written again."""
        taken = _Batch(self._table, batch, self._known)
        found = taken.run()
        self._known = added(self._known, found)
        return Outcome(batch.number, len(batch.files), dict(+taken.counts), found, taken.newest_ms)


class _Batch:
    """A batch on its way into the table."""

    def __init__(self, table: str, batch: Batch, known: Accounts) -> None:
        self._spark = batch.lines.sparkSession
        self._table = table
        self._root = root_of(table)
        self._batch = batch
        self._lines = batch.lines
        self._known = known
        self._frames = Frames()
        self._refused: list[tuple[Any, ...]] = []
        """Lines of frames.KINDS with a right checksum that cannot be read: text, file, block, number and reason."""
        self.counts: Counter[str] = Counter()
        self.newest_ms = 0

    def run(self) -> Accounts:
        """Commit everything; what was learned of the numbers."""
        ranges, others = self._look_at_readable()
        self._read_frames()
        problems = self._frames.incomplete(self._batch.files)
        for kind in ROWS:
            self.counts[f"{kind} records"] = self._merge(kind, ranges[kind]) if ranges[kind] else 0
        lines = {kind: sum(of_writer.lines for of_writer in ranges[kind]) for kind in ROWS}
        suspect = [kind for kind in ROWS if self.counts[f"{kind} records"] < lines[kind]]
        rejected: Counter[str] = Counter()
        if suspect or others or problems or self._refused:
            rejected = self._reject(suspect, bool(others), problems)
        for kind in suspect:
            self.counts[f"{kind} duplicates"] = lines[kind] - rejected[kind] - self.counts[f"{kind} records"]
        accounts: Accounts = self._frames.accounts
        for kind in ROWS:
            # Where every line was new and none is missing between them, that is known without a look at the table.
            if kind not in suspect and all(of_writer.is_whole for of_writer in ranges[kind]):
                present = {of_writer.writer: Account((of_writer.interval,)) for of_writer in ranges[kind]}
            else:
                present = self._present(kind, ranges[kind])
            accounts = added(accounts, present)
        self._append("numbers", self._spark.createDataFrame(rows_of(accounts), NUMBERS))
        return accounts

    # ------------------------------------------------------------------ looking

    def _look_at_readable(self) -> tuple[Mapping[str, list[_Range]], int]:
        """As `_look`, without files that are gone; of damaged ones what can be read of them."""
        unreadable = Unreadable()
        while True:
            try:
                return self._look()
            except SPARK_ERRORS as error:
                if not unreadable.take(self._spark, error):
                    raise
                self._lines = unreadable.others(self._spark, self._batch.files)

    def _look(self) -> tuple[Mapping[str, list[_Range]], int]:
        """By stream what is there of each writer, and how many lines are of no kind or not sound enough to have one."""
        begins = self._lines.select(F.split(F.substring_index("text", "\t", _WRITTEN + 1), "\t").alias("parts"))
        kind = F.get("parts", F.lit(1))
        is_record = F.coalesce(kind.isin(*ROWS), F.lit(False))
        instance, epoch, sequence, written_ms = (
            F.when(is_record, F.get("parts", F.lit(number))) for number in (2, 3, 4, _WRITTEN)
        )
        sequence, written_ms = sequence.try_cast("long"), written_ms.try_cast("long")
        lines = begins.select(
            F.when(is_record, kind).when(kind.isin(*frames.KINDS), F.lit("frame")).otherwise(F.lit("")).alias("stream"),
            instance.alias("instance"),
            epoch.try_cast("long").alias("epoch"),
            # Others are no record's.
            F.when(sequence.between(0, MOST), sequence).alias("sequence"),
            F.when(written_ms <= self._batch.latest_ms, written_ms).alias("written_ms"),
        )
        ranges: dict[str, list[_Range]] = {kind: [] for kind in ROWS}
        others = 0
        for row in _spans(lines, "stream", F.max("written_ms").alias("written_ms")).collect():
            writer = Writer(row["stream"], row["instance"] or "", row["epoch"] or 0)
            if row["stream"] in ranges:
                interval = (row["first"] or 0, row["last"] or 0)
                ranges[row["stream"]].append(_Range(writer, row["lines"], row["numbers"] or 0, interval))
                self.newest_ms = max(self.newest_ms, row["written_ms"] or 0)
            elif not row["stream"]:
                others += row["lines"]
        return ranges, others

    def _numbered(self) -> DataFrame:
        """The lines with `number`, which grows by one from line to line of a block."""
        return self._lines.withColumn("number", F.monotonically_increasing_id())

    def _read_frames(self) -> None:
        lines = split_lines(self._numbered().where(kind_of(F.col("text")).isin(*frames.KINDS)))
        for row in lines.where("is_sound").select("text", "file", "block", "number").toLocalIterator():
            if reason := self._frames.take(row["text"], row["file"]):
                self._refused.append((*row, reason))

    # ------------------------------------------------------------------ records

    def _judged(self, kind: str, lines: DataFrame) -> tuple[DataFrame, list[Rule]]:
        """The lines of a stream as columns, with `is_good`, and what must hold for them."""
        row: type[Row] = ROWS[kind]
        of_kind = lines.where(kind_of(F.col("text")) == kind)
        rules = [*rules_of_all(), *rules_of_record(row, self._batch.latest_ms)]
        # As a column: otherwise Spark moves the rules below the columns, and computes many of those twice.
        return with_columns(split_lines(of_kind), row).withColumn("is_good", ~is_broken(rules)), rules

    def _merge(self, kind: str, ranges: list[_Range]) -> int:
        """Add the records of a stream that are not in the table; how many."""
        rows, _ = self._judged(kind, self._lines)
        names = TABLES[kind].names
        new = rows.where("is_good").select(*names)
        if known := self._known_rows(kind, ranges):
            taken = F.broadcast(
                self._spark.createDataFrame(known, "instance string, epoch long, first long, last long")
            )
            within = (new.instance == taken.instance) & (new.epoch == taken.epoch)
            new = new.join(taken, within & new.sequence.between(taken["first"], taken["last"]), "left_anti")
        if any(of_writer.numbers < of_writer.lines for of_writer in ranges):
            new = new.dropDuplicates([*_KEY, "sequence"])
        view = f"new_{kind}"
        new.createOrReplaceTempView(view)
        columns = ", ".join(names)
        values = ", ".join(f"s.{name}" for name in names)
        same = " AND ".join(f"t.{name} = s.{name}" for name in (*_KEY, "sequence"))
        statement = (
            f"MERGE INTO {sql_name(self._root, kind)} t USING {view} s ON {same} AND ({_condition(ranges, 't.')}) "
            f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
        )

        def merge() -> int:
            with self._transaction():
                rows = self._spark.sql(statement).collect()
            return rows[0]["num_inserted_rows"] if rows else 0

        return self.commit(kind, merge)

    def _known_rows(self, kind: str, ranges: list[_Range]) -> list[tuple[str, int, int, int]]:
        """The numbers of these writers that were taken before."""
        known = []
        for of_writer in ranges:
            first, last = of_writer.interval
            writer = of_writer.writer
            for interval in self._known.get(writer, Account()).present:
                if interval[0] <= last and first <= interval[1]:
                    known.append((writer.instance, writer.epoch, *interval))
        return known

    def _present(self, kind: str, ranges: list[_Range]) -> dict[Writer, Account]:
        """The numbers that the table has where the batch has any."""
        if not ranges:
            return {}
        rows = stored(self._spark, self._table, kind).where(_condition(ranges, "")).select(*_KEY, "sequence")
        found: dict[Writer, list[Interval]] = {}
        holed = []
        for row in _spans(rows.withColumn("bucket", _bucket()), "bucket").collect():
            if row["numbers"] == row["last"] - row["first"] + 1:
                found.setdefault(Writer(kind, row["instance"], row["epoch"]), []).append((row["first"], row["last"]))
            else:
                holed.append((row["instance"], row["epoch"], row["bucket"]))
        for row in self._pieces(rows, holed):
            found.setdefault(Writer(kind, row["instance"], row["epoch"]), []).append((row["first"], row["last"]))
        return {writer: Account(union(intervals)) for writer, intervals in found.items()}

    def _pieces(self, rows: DataFrame, holed: list[tuple[str, int, int]]) -> list[Any]:
        """The rows of buckets in which numbers are missing, as intervals without gaps."""
        if not holed:
            return []
        keys = self._spark.createDataFrame(holed, "instance string, epoch long, bucket long")
        in_order = Window.partitionBy(*_KEY, "bucket").orderBy("sequence")
        pieces: list[Any] = (
            rows.withColumn("bucket", _bucket())
            .join(F.broadcast(keys), [*_KEY, "bucket"], "left_semi")
            .dropDuplicates([*_KEY, "sequence"])
            .withColumn("piece", F.col("sequence") - F.row_number().over(in_order))
            .groupBy(*_KEY, "bucket", "piece")
            .agg(F.min("sequence").alias("first"), F.max("sequence").alias("last"))
            .collect()
        )
        return pieces

    # --------------------------------------------------------------- quarantine

    def _reject(self, suspect: list[str], others: bool, problems: list[tuple[str, str]]) -> Counter[str]:
        """Write what is wrong to the quarantine, and count it; how many lines of each of the suspect streams."""
        rejects = self._rejects(suspect, others).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            of_files = [(file, None, reason, None) for file, reason in problems]
            placed = self._placed(rejects).union(self._spark.createDataFrame(of_files, _PLACED))
            self._append("quarantine", placed.withColumn("at_ms", F.lit(now_ms())))
            rejected: Counter[str] = Counter()
            short = F.substring_index("reason", ", got", 1).alias("reason")
            for row in rejects.groupBy("stream", short).count().collect():
                self.counts[f"rejected: {row['reason']}"] += row["count"]
                rejected[row["stream"]] += row["count"]
        finally:
            rejects.unpersist()
        self.counts.update(f"rejected: {reason}" for _, reason in problems)
        return rejected

    def _rejects(self, suspect: list[str], others: bool) -> DataFrame:
        """The bad lines with their `stream`, if they have one, and `reason`."""
        lines, place = self._numbered(), ("text", "file", "block", "number")
        schema = "stream string, text string, file string, block long, number long, reason string"
        found = self._spark.createDataFrame([("", *refused) for refused in self._refused], schema)
        for kind in suspect:
            rows, rules = self._judged(kind, lines)
            bad = rows.where("not is_good").select(
                F.lit(kind).alias("stream"), *place, reason_of(rules).alias("reason")
            )
            found = found.unionByName(bad)
        if others or suspect:
            kind = F.coalesce(kind_of(F.col("text")), F.lit(""))
            rest = split_lines(lines.where(~kind.isin(*ROWS)))
            rules = [*rules_of_messages(), *rules_of_all(), rule_of_kinds()]
            bad = rest.where(~kind.isin(*frames.KINDS) | ~F.col("is_sound"))
            found = found.unionByName(bad.select(F.lit("").alias("stream"), *place, reason_of(rules).alias("reason")))
        return found

    def _placed(self, rejects: DataFrame) -> DataFrame:
        """As _PLACED."""
        # Of JSON what it tells, and not its schema.
        begin = F.when(F.startswith("text", F.lit("{")), F.locate('"payload"', F.col("text")))
        begin = F.greatest(F.lit(1), begin)
        text = F.make_valid_utf8(F.substring("text", begin, F.lit(_MOST_TEXT))).alias("text")
        if not self._batch.files:
            return rejects.select("file", F.lit(None).cast("long").alias("line"), "reason", text)
        before = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
        blocks = (
            self._numbered()
            .join(F.broadcast(rejects.select("file").distinct()), "file", "left_semi")
            .groupBy("file", "block")
            .agg(F.min("number").alias("begin"), F.count(F.lit(1)).alias("lines"))
            .withColumn("before", F.coalesce(F.sum("lines").over(before), F.lit(0)))
        )
        line = (F.col("number") - F.col("begin") + F.col("before") + 1).alias("line")
        placed = rejects.join(blocks, ["file", "block"])
        return placed.select(_plain(F.col("file")), line, "reason", text)

    # ------------------------------------------------------------------ commits

    def _append(self, name: str, rows: DataFrame) -> None:
        writer = rows.coalesce(1).write.format("delta").mode("append")
        writer = writer.option("txnAppId", self._batch.query).option("txnVersion", self._batch.number)
        self.commit(name, lambda: writer.save(f"{self._root}/{name}"))

    def commit(self, name: str, do: Callable[[], _Result]) -> _Result:
        """Commit to one of the Delta tables; again as long as somebody else commits first."""
        for left in reversed(range(_MOST_TRIES)):
            try:
                return do()
            except SPARK_ERRORS as error:
                if not left or not _CONFLICT.search(str(error)):
                    raise
        raise AssertionError(name)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Within it a statement that this batch has committed before does nothing."""
        settings = {"txnAppId": self._batch.query, "txnVersion": str(self._batch.number)}
        for name, value in settings.items():
            self._spark.conf.set(f"spark.databricks.delta.write.{name}", value)
        try:
            yield
        finally:
            for name in settings:
                self._spark.conf.unset(f"spark.databricks.delta.write.{name}")


def _spans(rows: DataFrame, by: str, *others: Column) -> DataFrame:
    """By writer and another column: how many `lines` and different `numbers`, the `first` and the `last`, and others
    whose aggregates can be aggregated again.

    Numbers are counted as bits of words. Spark sorts all rows for its own bitmaps.
    """
    word, bit = F.shiftright("sequence", 6), F.expr("shiftleft(1L, cast(sequence & 63 as int))")
    words = rows.groupBy(by, *_KEY, word.alias("word")).agg(
        F.count(F.lit(1)).alias("lines"),
        F.bit_count(F.bit_or(bit)).alias("numbers"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        *others,
    )
    sums = [F.sum(name).alias(name) for name in ("lines", "numbers")]
    return words.groupBy(by, *_KEY).agg(*sums, F.min("first").alias("first"), F.max("last").alias("last"), *others)


def _bucket() -> Column:
    """Numbers are sought in so many pieces that the driver has room for, and not all of them."""
    return F.shiftright("sequence", 15)


def _condition(ranges: list[_Range], table: str) -> str:
    """Where records of these writers may be, in numbers only: files are skipped by it."""
    if len(ranges) > _MOST_RANGES:
        epochs = [of_writer.writer.epoch for of_writer in ranges]
        first = min(of_writer.interval[0] for of_writer in ranges)
        last = max(of_writer.interval[1] for of_writer in ranges)
        return f"{table}epoch BETWEEN {min(epochs)} AND {max(epochs)} AND {table}sequence BETWEEN {first} AND {last}"
    return " OR ".join(
        f"({table}epoch = {one.writer.epoch} AND {table}sequence BETWEEN {one.interval[0]} AND {one.interval[1]})"
        for one in ranges
    )


def _plain(file: Column) -> Column:
    """As `frames.plain`."""
    path = F.regexp_replace(file, "^file:/+", "/")
    return F.coalesce(F.try_url_decode(F.replace(path, F.lit("+"), F.lit("%2B"))), path).alias("file")
