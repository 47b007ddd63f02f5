"""Summaries of a table's days, kept beside it: who asks about quotas need not read everything each time.

<table>/_summaries/<name>/day=2026-11-22/*.parquet
<table>/_summaries/<name>.json                    which days these are, and of which parts each was made

`usage compact` makes those of days that are over, and who asks about a day first the one that is missing. It counts as
long as its day has the very parts that it was made of, and its own files are all there: what is ingested or merged
later has it made anew. It is there as soon as the JSON file is, which is written last, and whole or not at all. Where
nothing can be written, as in a table that belongs to somebody else, everything is read each time.
"""

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from re import fullmatch
from typing import TypedDict

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.simulate.simulation import BUCKET_MS, LATE_MS, summarised
from pipeline.spark.day import DAY_MS, begin_of
from pipeline.table.files import Files, Found, Taken, files_at, folders
from pipeline.table.schemas import ROWS
from pipeline.table.table import read_parts, read_usage
from pipeline.table.table_log import Part, State
from quotas.records.usage_record import USAGE

FOLDER = "_summaries"
VERSION = 1
"""Of what `summarised` makes."""

Span = tuple[int, int]
"""From a time up to another one; ms since 1970."""

_OF = [VERSION, BUCKET_MS, LATE_MS]
"""What a summary is of; one of anything else is not read."""
_PARTITION = "day"
_MANIFEST, _BEGUN, _STALE = "json", "begun", "stale"
"""Files beside a directory: what it has, that it may not be whole yet, and that it is to go."""
_FAULTS = (OSError, Py4JError, PySparkException)
"""Of file systems, of this machine or Hadoop's, and of Spark when it writes to them."""


class _Day(TypedDict):
    """Of which parts a day's summary was made, by path, and how large its files are together."""

    parts: list[str]
    bytes: int


_Days = Mapping[str, _Day]


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
    if not whole:
        return summarised(read_usage(spark, table, since_ms, until_ms, state))
    kept = _read(spark, files, [days[day] for day in whole]).where(reduce(or_, map(_is_of, _joined(whole.values()))))
    rest = _joined(outer for day, span in asked.items() for outer in _around(span, whole.get(day)))
    frames = [summarised(read_usage(spark, table, *span, state)) for span in rest]
    return reduce(DataFrame.unionByName, frames, kept)


def keep_summaries(spark: SparkSession, files: Files, state: State, before_ms: int) -> int:
    """Have a summary of each day that ended before `before_ms`; of how many it was made just now."""
    parts = {day: of_day for day, of_day in _parts_by_day(state).items() if begin_of(day) + DAY_MS <= before_ms}
    kept = _kept(files, parts)
    missing = {day: of_day for day, of_day in parts.items() if day not in kept}
    return len(_made(spark, files, missing)) if missing else 0


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
    with suppress(*_FAULTS):
        for name, made_of in _manifests(files, _listed(files)):
            current = [day for day, kept in made_of.items() if kept["parts"] == _paths(parts.get(day, ()))]
            sizes = dict(folders(files, f"{FOLDER}/{name}", 1)) if current else {}
            for day in current:
                where = _folder_of(name, day)
                if sizes.get(where) == made_of[day]["bytes"]:
                    days[day] = where
    return days


def _folder_of(name: str, day: str) -> str:
    return f"{FOLDER}/{name}/{_PARTITION}={day}"


def _listed(files: Files) -> dict[str, Found]:
    """What is there of ours, by name."""
    return {found.name: found for found in files.listed(FOLDER) if fullmatch(r"[0-9a-f]{32}(\.\w+)?", found.name)}


def _manifests(files: Files, there: Iterable[str]) -> Iterator[tuple[str, _Days]]:
    """Each directory of summaries, and what its days were made of; nothing of a file that does not say it."""
    for file in there:
        name, _, kind = file.partition(".")
        if kind == _MANIFEST and (data := files.read(f"{FOLDER}/{file}")) is not None:
            try:
                form = json.loads(data)
                days = form["days"].items() if form["of"] == _OF else ()
                yield name, {day: _Day(parts=of["parts"], bytes=of["bytes"]) for day, of in days}
            except (ValueError, LookupError, TypeError, AttributeError):
                yield name, {}


def _paths(parts: Iterable[Part]) -> list[str]:
    return sorted(part.path for part in parts)


def _made(spark: SparkSession, files: Files, parts: Mapping[str, Sequence[Part]]) -> dict[str, str]:
    """Summaries of these days, which are kept from now on: where they are. None where nothing can be written."""
    name = uuid.uuid4().hex
    into = f"{FOLDER}/{name}"
    try:
        files.put_new(f"{into}.{_BEGUN}", b"")  # where that fails, nothing need be read in vain
        _write(spark, files, parts, into)
        sizes = dict(folders(files, into, 1))
        days = {day: where for day in parts if (where := _folder_of(name, day)) in sizes}
        made_of = {day: _Day(parts=_paths(parts[day]), bytes=sizes[where]) for day, where in days.items()}
        files.put_new(f"{into}.{_MANIFEST}", json.dumps({"of": _OF, "days": made_of}).encode())
        files.remove(f"{into}.{_BEGUN}")
    except _FAULTS as error:
        _say(files, "summaries cannot be kept, so all is read again next time", error)
        with suppress(*_FAULTS):
            _remove(files, name)
        return {}
    return days


def _write(spark: SparkSession, files: Files, parts: Mapping[str, Sequence[Part]], into: str) -> None:
    usage = read_parts(spark, files.root, ROWS[USAGE], [part for of_day in parts.values() for part in of_day])
    # Not by a timestamp: which day that is depends on the session's time zone.
    day = F.date_from_unix_date(F.floor(F.col("bucket") / (DAY_MS // BUCKET_MS)).cast("int"))
    rows = summarised(usage).withColumn(_PARTITION, day).repartition(_PARTITION)
    rows.write.partitionBy(_PARTITION).parquet(f"{files.root}/{into}")
    files.make_durable(into)


def _read(spark: SparkSession, files: Files, where: Iterable[str]) -> DataFrame:
    schema = summarised(read_parts(spark, files.root, ROWS[USAGE], ())).schema
    return spark.read.schema(schema).parquet(*(f"{files.root}/{folder}" for folder in where))


def forget_stale(files: Files, state: State, before_ms: int, orphans_before_ms: int) -> None:
    """Remove the summaries of which none counts any more if they were marked so before `before_ms`: who reads one has
    time. And what somebody left who was killed, if it lies there since `orphans_before_ms`.
    """
    try:
        _forget_stale(files, state, before_ms, orphans_before_ms)
    except _FAULTS as error:
        _say(files, "summaries that count no more cannot be removed", error)


def _forget_stale(files: Files, state: State, before_ms: int, orphans_before_ms: int) -> None:
    there, parts = _listed(files), _parts_by_day(state)
    in_use = {
        name
        for name, made_of in _manifests(files, there)
        if any(kept["parts"] == _paths(parts.get(day, ())) for day, kept in made_of.items())
    }
    for name in {name.partition(".")[0] for name in there}:
        mark = there.get(f"{name}.{_STALE}")
        if name in in_use:
            if mark is not None:
                files.remove(f"{FOLDER}/{mark.name}")
        elif f"{name}.{_MANIFEST}" not in there:
            if max(found.modified_ms for file, found in there.items() if file.startswith(name)) < orphans_before_ms:
                _remove(files, name)
        elif mark is None:
            with suppress(Taken):
                files.put_new(f"{FOLDER}/{name}.{_STALE}", b"")
        elif mark.modified_ms < before_ms:
            _remove(files, name)


def _remove(files: Files, name: str) -> None:
    """The manifest first: what is left then counts for nothing."""
    for suffix in (f".{_MANIFEST}", "", f".{_BEGUN}", f".{_STALE}"):
        files.remove(f"{FOLDER}/{name}{suffix}")


def _say(files: Files, what: str, error: Exception) -> None:
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    reason = str(error) if cause is None else str(cause.toString())
    print(f"{files.root}/{FOLDER}: {what}: {reason.splitlines()[0]}", file=sys.stderr)
