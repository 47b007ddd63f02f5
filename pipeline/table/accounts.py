"""Which records are in the table, and which are missing, by their sequence numbers and by the ends of epochs.

The Delta table `numbers` has what each batch has learned: intervals of numbers that were taken or dropped, and, as
`last`, the largest of the other values of an Account.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.table.intervals import Interval, Intervals, union, without
from kafka_throttle.pipeline.table.table import stored

NAME = "numbers"
PRESENT, DROPPED, REPORTED, FINAL, ALONE, FLUSH_MS = "present", "dropped", "reported", "final", "alone", "flush_ms"
_INTERVALS = (PRESENT, DROPPED)


class Writer(NamedTuple):
    """Whose numbers they are: each run of a proxy counts its usage records and its trace events from 1."""

    stream: str
    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of one writer's numbers."""

    present: Intervals = ()
    """In the table."""
    dropped: Intervals = ()
    """The proxy had no room for them, and has told so."""
    reported: int = 0
    """The highest number that a file's end tells to exist; what comes later is not known of."""
    final: bool = False
    """Whether an end says that there are no further records."""
    alone: bool = False
    """Whether an end says that no earlier process of the instance ran any more."""
    flush_ms: int = 0
    """The time of which a killed process loses the records; 0: not known."""

    def __add__(self, other: "Account") -> "Account":
        """What both know."""
        return Account(
            union(self.present + other.present),
            union(self.dropped + other.dropped),
            max(self.reported, other.reported),
            self.final or other.final,
            self.alone or other.alone,
            max(self.flush_ms, other.flush_ms),
        )

    @property
    def gaps(self) -> Intervals:
        """Numbers of records that exist, or did: they are neither here nor told to be dropped."""
        known = union(self.present + self.dropped)
        top = max(self.reported, known[-1][1] if known else 0)
        return without(((1, top),), known) if top else ()


Accounts = Mapping[Writer, Account]


def added(one: Accounts, other: Accounts) -> dict[Writer, Account]:
    """What both know of everybody."""
    nothing = Account()
    return {writer: one.get(writer, nothing) + other.get(writer, nothing) for writer in one.keys() | other.keys()}


class LostEnd(NamedTuple):
    """The end of an epoch whose process was killed: how many records were in it is not known."""

    writer: Writer
    before_ms: int
    """When the next process of the instance began, in ms since 1970: the use that is lost came earlier."""
    flush_ms: int
    """See Account."""


def lost_ends(accounts: Accounts) -> list[LostEnd]:
    """The epochs without a final end that a later epoch of the instance follows, in any stream.

    An epoch that began while the process before it still ran does not count as a later one until an end of it says that
    it runs alone.
    """
    begun: defaultdict[str, set[int]] = defaultdict(set)
    for writer, account in accounts.items():
        if account.alone:
            begun[writer.instance].add(writer.epoch)
    epochs = {instance: sorted(found) for instance, found in begun.items()}
    lost = []
    for writer, account in sorted(accounts.items()):
        later = epochs.get(writer.instance, [])
        at = bisect_right(later, writer.epoch)
        if not account.final and at < len(later):
            lost.append(LostEnd(writer, later[at], account.flush_ms))
    return lost


def read_accounts(spark: SparkSession, table: str) -> dict[Writer, Account]:
    """What the table knows of everybody. Raises BadTable."""
    intervals: defaultdict[tuple[Writer, str], list[Interval]] = defaultdict(list)
    values: dict[tuple[Writer, str], int] = {}
    for row in _joined(stored(spark, table, NAME)).collect():
        writer = Writer(row["stream"], row["instance"], row["epoch"])
        if row["what"] in _INTERVALS:
            intervals[writer, row["what"]].append((row["first"], row["last"]))
        else:
            values[writer, row["what"]] = row["last"]
    return {
        writer: Account(
            union(intervals[writer, PRESENT]),
            union(intervals[writer, DROPPED]),
            values.get((writer, REPORTED), 0),
            bool(values.get((writer, FINAL), 0)),
            bool(values.get((writer, ALONE), 0)),
            values.get((writer, FLUSH_MS), 0),
        )
        for writer in {writer for writer, _ in (*intervals, *values)}
    }


def rows_of(accounts: Accounts) -> list[tuple[str, str, int, str, int, int]]:
    """The accounts as rows of NUMBERS."""
    rows = []
    for writer, account in sorted(accounts.items()):
        rows += [(*writer, PRESENT, *interval) for interval in account.present]
        rows += [(*writer, DROPPED, *interval) for interval in account.dropped]
        values = {REPORTED: account.reported, FINAL: account.final, ALONE: account.alone, FLUSH_MS: account.flush_ms}
        rows += [(*writer, what, 0, int(value)) for what, value in values.items()]
    return rows


def _joined(rows: DataFrame) -> DataFrame:
    """The same with intervals that touch as one: as many rows as there are gaps, however many batches there were."""
    before = Window.partitionBy("stream", "instance", "epoch", "what").orderBy("first", "last")
    reached = F.max("last").over(before.rowsBetween(Window.unboundedPreceding, -1))
    is_new = F.coalesce(F.col("first") > reached + 1, F.lit(True)) & F.col("what").isin(*_INTERVALS)
    marked = rows.withColumn("is_new", is_new.cast("int"))
    numbered = marked.withColumn("island", F.sum("is_new").over(before))
    groups = numbered.groupBy("stream", "instance", "epoch", "what", "island")
    return groups.agg(F.min("first").alias("first"), F.max("last").alias("last"))
