"""Summaries of a table's days, kept beside it: who asks again, about other quotas, need not read everything again.

<table>/_summaries/<name>/day=2026-11-22/*.parquet
<table>/_summaries/<name>.json                    which days these are, and of which parts each was made

A summary counts as long as its day has the very parts that it was made of: what is ingested or merged later has it made
anew. It is there as soon as the JSON file is, which is written last, and whole or not at all. Where nothing can be
written, as in a table that belongs to somebody else, everything is read each time.
"""

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.day import DAY_MS, begin_of
from pipeline.files import Files, Taken, files_at
from pipeline.schemas import ROWS
from pipeline.simulation import BUCKET_MS, summarised
from pipeline.table import read_parts, read_usage
from pipeline.table_log import Part, State
from quotas.usage_record import USAGE

FOLDER = "_summaries"
VERSION = 1
"""Of what `summarised` makes: what another one made is not read."""

Span = tuple[int, int]
"""From a time up to another one; ms since 1970."""

_PARTITION = "day"


def summary_of(
    spark: SparkSession, table: str, state: State, since_ms: int | None = None, until_ms: int | None = None
) -> DataFrame:
    """`summarised` of the usage records of that time, as they are in this state of the table.

    Days that were asked for before are not read again; others are, and their summaries kept, but for days of which less
    than half is asked for.
    """
    files, parts = files_at(spark, table), _parts_by_day(state)
    asked = dict(_asked(parts, since_ms, until_ms))
    days = _kept(files, parts)
    missing = [day for day, (begin_ms, end_ms) in asked.items() if day not in days and end_ms - begin_ms >= DAY_MS / 2]
    if missing:
        days |= _made(spark, files, {day: parts[day] for day in missing})
    whole = {day: inner for day, span in asked.items() if day in days and (inner := _buckets_in(span))}
    rest = _joined(outer for day, span in asked.items() for outer in _around(span, whole.get(day)))
    frames = [summarised(read_usage(spark, table, *span, state)) for span in rest]
    if whole:
        kept = _read(spark, files, [days[day] for day in whole])
        frames.append(kept.where(reduce(Column.__or__, map(_is_of, _joined(whole.values())))))
    return reduce(DataFrame.unionByName, frames or [summarised(read_usage(spark, table, since_ms, until_ms, state))])


def _parts_by_day(state: State) -> Mapping[str, list[Part]]:
    days: dict[str, list[Part]] = {}
    for part in state.parts.values():
        if part.stream == USAGE:
            days.setdefault(part.day, []).append(part)
    return dict(sorted(days.items()))


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


def _kept(files: Files, parts: Mapping[str, Sequence[Part]]) -> dict[str, str]:
    """By day, where its summary is, of those that count."""
    days: dict[str, str] = {}
    for name, made_of in _manifests(files):
        for day, paths in made_of.items():
            where = f"{FOLDER}/{name}/{_PARTITION}={day}"
            if paths == _paths(parts.get(day, ())) and files.listed(where):
                days[day] = where
    return days


def _manifests(files: Files) -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
    """Each directory of summaries, and the paths of what its days were made of; of another file, none."""
    for found in files.listed(FOLDER):
        name, _, kind = found.name.rpartition(".")
        data = files.read(f"{FOLDER}/{found.name}") if kind == "json" and name[:1] != "." else None
        if data is not None:
            yield name, _made_of(data)


def _made_of(manifest: bytes) -> Mapping[str, Sequence[str]]:
    try:
        form = json.loads(manifest)
        return dict(form["days"]) if form["version"] == VERSION else {}
    except (ValueError, LookupError, TypeError):
        return {}


def _paths(parts: Iterable[Part]) -> list[str]:
    return sorted(part.path for part in parts)


def _made(spark: SparkSession, files: Files, parts: Mapping[str, Sequence[Part]]) -> dict[str, str]:
    """Summaries of these days, which are kept from now on: where they are. None where nothing can be written."""
    name = uuid.uuid4().hex
    into = f"{FOLDER}/{name}"
    usage = read_parts(spark, files.root, ROWS[USAGE], [part for of_day in parts.values() for part in of_day])
    day = F.timestamp_millis(F.col("bucket") * BUCKET_MS).cast("date")
    try:
        rows = summarised(usage).withColumn(_PARTITION, day).repartition(_PARTITION)
        rows.write.partitionBy(_PARTITION).parquet(f"{files.root}/{into}")
        files.make_durable(into)
        form = {"version": VERSION, "days": {day: _paths(of_day) for day, of_day in parts.items()}}
        files.put_new(f"{into}.json", json.dumps(form).encode())
    except (OSError, Py4JError, PySparkException) as error:
        reason = str(error).partition("\n")[0]
        print(
            f"{files.root}/{FOLDER}: summaries cannot be kept, so all is read again next time: {reason}",
            file=sys.stderr,
        )
        with suppress(OSError, Py4JError):
            files.remove(into)
        return {}
    return {day: f"{into}/{_PARTITION}={day}" for day in parts}


def _read(spark: SparkSession, files: Files, folders: Iterable[str]) -> DataFrame:
    schema = summarised(read_parts(spark, files.root, ROWS[USAGE], ())).schema
    return spark.read.schema(schema).parquet(*(f"{files.root}/{folder}" for folder in folders))


def forget_stale(files: Files, state: State, before_ms: int) -> None:
    """Remove the summaries of which none counts any more and, if they lie there since before then, what somebody left
    who was killed. Who reads one has time: it is only marked first, and removed when the mark is as old as that.
    """
    parts = _parts_by_day(state)
    in_use = {
        name
        for name, made_of in _manifests(files)
        if any(paths == _paths(parts.get(day, ())) for day, paths in made_of.items())
    }
    there = {found.name: found for found in files.listed(FOLDER) if found.name[0] != "."}
    for name in {name.partition(".")[0] for name in there} - in_use:
        mark = there.get(f"{name}.stale")
        oldest = mark if f"{name}.json" in there else there.get(name, mark)
        if oldest is None:
            with suppress(Taken):
                files.put_new(f"{FOLDER}/{name}.stale", b"")
        elif oldest.modified_ms < before_ms:
            for suffix in (".json", "", ".stale"):
                files.remove(f"{FOLDER}/{name}{suffix}")
