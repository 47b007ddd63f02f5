"""Summaries of whole days, in the Delta table `usage_2h`: `simulate` need not read everything each time.

A row has `day`, `made_of` and what `summarised` makes. `made_of` says of which files of the usage table, so what is
ingested, merged or expired later has the day summarised anew. `usage compact` makes the summaries of days that are
over, and `simulate` first those that it needs. Where nothing can be written, as in a table that belongs to somebody
else, everything is read each time.
"""

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.simulate.simulation import BUCKET_MS, LATE_MS, summarised
from kafka_throttle.pipeline.spark.day import DAY_MS, begin_of
from kafka_throttle.pipeline.spark.unreadable import SPARK_ERRORS, cause_of
from kafka_throttle.pipeline.table.table import (
    DAY,
    BadTable,
    make_tables,
    read_usage,
    root_of,
    sql_name,
    stored,
    version_of,
)
from kafka_throttle.quotas.records.usage_record import USAGE

NAME = "usage_2h"
VERSION = 1
"""Of what `summarised` makes."""
_MADE_OF = "made_of"

Span = tuple[int, int]
"""From a time up to another one; ms since 1970."""


def summary_of(
    spark: SparkSession, table: str, version: int, since_ms: int | None = None, until_ms: int | None = None
) -> DataFrame:
    """`summarised` of the usage records of that time, as they are in this version of the table.

    Days that were asked for before are not read again; others are, and their summaries kept, except for days of which
    less than half is asked for.
    """
    made_of = _made_of(spark, table, version)
    asked = dict(_asked(made_of, since_ms, until_ms))
    rows, kept = _kept(spark, table, made_of)
    missing = [day for day, (begin_ms, end_ms) in asked.items() if day not in kept and end_ms - begin_ms >= DAY_MS / 2]
    if missing and _make(spark, table, version, {day: made_of[day] for day in missing}):
        rows, kept = _kept(spark, table, made_of)
    whole = {day: inner for day, span in asked.items() if day in kept and (inner := _buckets_in(span))}
    if rows is None or not whole:
        return summarised(read_usage(spark, table, since_ms, until_ms, version))
    rows = rows.where(_is_made_of({day: made_of[day] for day in whole})).drop(DAY, _MADE_OF)
    rest = _joined(outer for day, span in asked.items() for outer in _around(span, whole.get(day)))
    frames = [summarised(read_usage(spark, table, *span, version)) for span in rest]
    return reduce(DataFrame.unionByName, frames, rows.where(reduce(or_, map(_is_of, _joined(whole.values())))))


def keep_summaries(spark: SparkSession, table: str, version: int, before_ms: int) -> int:
    """Have a summary of each day that ended before `before_ms`, and of no day that is gone; how many were made."""
    made_of = _made_of(spark, table, version)
    over = {day: files for day, files in made_of.items() if begin_of(day) + DAY_MS <= before_ms}
    _, kept = _kept(spark, table, over)
    missing = {day: files for day, files in over.items() if day not in kept}
    made = len(missing) if missing and _make(spark, table, version, missing) else 0
    try:
        gone = stored(spark, table, NAME).where(~F.col(DAY).cast("string").isin(*made_of)).select(DAY).distinct()
        days = ", ".join(f"DATE'{row[DAY]}'" for row in gone.collect())
        if days:
            spark.sql(f"DELETE FROM {sql_name(root_of(table), NAME)} WHERE {DAY} IN ({days})")
    except BadTable:
        pass
    return made


def _made_of(spark: SparkSession, table: str, version: int) -> dict[str, str]:
    """By day, in their order, a digest of the names of its files and of what the summary is."""
    days = defaultdict(list)
    for file in stored(spark, table, USAGE, version).inputFiles():
        folder, _, name = unquote(file).rpartition("/")
        days[folder.rpartition(f"{DAY}=")[2]].append(name)
    of = [str(number) for number in (VERSION, BUCKET_MS, LATE_MS)]
    return {
        day: hashlib.sha256("\n".join([*of, *sorted(names)]).encode()).hexdigest()
        for day, names in sorted(days.items())
    }


def _kept(spark: SparkSession, table: str, made_of: Mapping[str, str]) -> tuple[DataFrame | None, set[str]]:
    """The summaries as they are at this moment, and the days whose summaries are of these files."""
    try:
        rows = stored(spark, table, NAME, version_of(spark, table, NAME))
        days = rows.select(DAY, _MADE_OF).distinct().collect()
    except BadTable:
        return None, set()
    return rows, {str(row[DAY]) for row in days if made_of.get(str(row[DAY])) == row[_MADE_OF]}


def _make(spark: SparkSession, table: str, version: int, made_of: Mapping[str, str]) -> bool:
    """Put the summaries of these days in the place of older ones; False where nothing can be written."""
    usage = read_usage(spark, table, version=version).where(F.col(DAY).cast("string").isin(*made_of))
    # Not by a timestamp: which day that is depends on the session's time zone.
    day = F.date_from_unix_date(F.floor(F.col("bucket") / (DAY_MS // BUCKET_MS)).cast("int"))
    digests = F.create_map(*(F.lit(text) for pair in made_of.items() for text in pair))
    rows = summarised(usage).withColumn(DAY, day).withColumn(_MADE_OF, digests[F.col(DAY).cast("string")])
    days = ", ".join(f"DATE'{day}'" for day in made_of)
    try:
        make_tables(spark, table, {NAME: rows.schema})
        writer = rows.repartition(DAY).write.format("delta").mode("overwrite")
        writer.option("replaceWhere", f"{DAY} IN ({days})").save(f"{root_of(table)}/{NAME}")
    except (OSError, BadTable, *SPARK_ERRORS) as error:
        why = f"summaries cannot be kept, so all is read again next time: {cause_of(error)}"
        print(f"{table}/{NAME}: {why}", file=sys.stderr)
        return False
    return True


def _is_made_of(made_of: Mapping[str, str]) -> Column:
    return reduce(
        or_, ((F.col(DAY) == F.lit(day).cast("date")) & (F.col(_MADE_OF) == of) for day, of in made_of.items())
    )


def _asked(days: Iterable[str], since_ms: int | None, until_ms: int | None) -> Iterator[tuple[str, Span]]:
    """The days that are asked for, in their order, and what of each."""
    for day in days:
        begin_ms = begin_of(day)
        end_ms = begin_ms + DAY_MS
        if since_ms is not None:
            begin_ms = max(begin_ms, since_ms)
        if until_ms is not None:
            end_ms = min(end_ms, until_ms)
        if begin_ms < end_ms:
            yield day, (begin_ms, end_ms)


def _buckets_in(span: Span) -> Span | None:
    """All whole buckets of a span."""
    begin_ms, end_ms = -(-span[0] // BUCKET_MS) * BUCKET_MS, span[1] // BUCKET_MS * BUCKET_MS
    return (begin_ms, end_ms) if begin_ms < end_ms else None


def _around(span: Span, inner: Span | None) -> Iterator[Span]:
    """What of a span is before and behind another one in it."""
    parts = [span] if inner is None else [(span[0], inner[0]), (inner[1], span[1])]
    return ((begin_ms, end_ms) for begin_ms, end_ms in parts if begin_ms < end_ms)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same with those together that follow one another."""
    joined: list[Span] = []
    for begin_ms, end_ms in spans:
        if joined and joined[-1][1] == begin_ms:
            joined[-1] = joined[-1][0], end_ms
        else:
            joined.append((begin_ms, end_ms))
    return joined


def _is_of(span: Span) -> Column:
    """Whether a bucket belongs to it."""
    return F.col("bucket").between(span[0] // BUCKET_MS, span[1] // BUCKET_MS - 1)
