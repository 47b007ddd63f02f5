"""What the proxy writes down of everybody's use, and how one line of it reads: the one place that knows.

A line is tab-separated UTF-8: version, kind, the columns of that kind in order, and in the end the CRC-32 of all
before it as eight hexadecimal digits. In texts a backslash, tab, line feed and carriage return are written `\\\\`,
`\\t`, `\\n` and `\\r`; a value that is not there is `\\N`. A later version only adds columns behind the last one, so
who knows fewer reads what he knows, and who knows more takes the defaults.

A file of the spool is a `header`, records, and an `end`; it has its name only when it is complete. Usage and trace have
files, and sequences, of their own: each record has the next number of its (instance, epoch, stream), so whoever reads
them can tell what is missing and what is there twice. What the proxy itself had to drop is told by a `dropped` line.
An epoch whose last file is not `final`, though a later one has begun, lost its end: what was not on disk when its
process was killed. What a killed process had on disk is completed by the next one, under the same name.
"""

import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar
from zlib import crc32

VERSION = 2

USAGE = "usage"
TRACE = "trace"
"""The streams, and the kinds of their records."""

_NULL = "\\N"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CRC_DIGITS = 8
_VERSION_DIGITS = 9
"""At most: Python refuses to read a number of thousands of digits."""
_Row = TypeVar("_Row", bound="Row")


class BadLine(ValueError):
    """A line that cannot be read; the message says why, and which column is meant."""


def _column(unit: str, about: str, **default: Any) -> Any:
    return field(metadata={"unit": unit, "about": about}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What has a line of its own."""

    KIND: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Row):
    """The first line of a file."""

    KIND = "header"

    stream: str = _column("", "`usage` or `trace`")
    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    file: int = _column("", "number of the file among those of its stream and epoch, from 1")
    first_sequence: int = _column("", "number that its first record has, or would have")


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Row):
    """The last line of a complete file."""

    KIND = "end"

    records: int = _column("", "records in this file")
    next_sequence: int = _column("", "number that the next file's first record has")
    final: int = _column("", "1: the process was stopped in order and wrote no more in this epoch; else 0", default=0)
    stream: str = _column("", "as in the header, for those who get lines one by one; empty: only there", default="")
    instance: str = _column("", "as in the header", default="")
    epoch: int = _column("ms since 1970", "as in the header", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Row):
    """Records that the proxy had no room for. Their numbers are used up; the line itself has none."""

    KIND = "dropped"

    instance: str = _column("", "which proxy dropped them")
    epoch: int = _column("ms since 1970", "when its process began")
    stream: str = _column("", "`usage` or `trace`")
    first_sequence: int = _column("", "number of the first")
    last_sequence: int = _column("", "number of the last")
    reason: str = _column("", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord(Row):
    """What one client did of one quota type at one node in one window of time.

    `used` and `peak` are in the unit that the quota counts: bytes for produce and fetch, ms of handler time for
    request, partitions for controller_mutation, connections for connection. Sums over all records of a stretch of time
    are what happened in it: no request, byte or throttle is in two records.
    """

    KIND = USAGE

    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    sequence: int = _column("", "number of this record, from 1, without gaps")
    begin_ms: int = _column("ms since 1970", "when the window began")
    end_ms: int = _column("ms since 1970", "when it was closed")
    virtual_cluster: str = _column("", "virtual cluster")
    node_id: int = _column("", "node that served; -2: all of them; -1: none yet")
    user: str = _column("", "principal's name; empty: not known yet")
    client_id: str = _column("", "as the client gave it; `<overflow>`: of clients that were too many to tell apart")
    ip: str = _column("", "address of the client, for connection; else empty")
    quota_type: str = _column("", "`produce`, `fetch`, `request`, `controller_mutation`, `connection`")
    used: float = _column("by type", "what the quota counts")
    peak: float = _column("by type, per s", "the most that was used in one second")
    requests: int = _column("", "Produce requests, Fetch requests; for request: all others")
    in_bytes: int = _column("bytes", "of those requests, as the client sent them, with their length prefixes")
    out_bytes: int = _column("bytes", "of their answers, as the client got them")
    throttles: int = _column("", "how often this quota throttled")
    throttled_ms: int = _column("ms", "by how much they prolonged mutes of its connections")
    backlogged_ms: int = _column("ms", "of mutes by this quota at whose end a request was already waiting")
    limit: float | None = _column("by type, per s", "bound in force at the end of the window; percent for request")
    rule: str = _column("", "entity whose quota that is, as `user=alice, client-id=<default>`; empty: none")
    shadow_limit: float | None = _column("by type, per s", "bound of the shadow quota")
    shadow_rule: str = _column("", "entity whose shadow quota that is")
    shadow_throttles: int = _column("", "how often the shadow quota would have throttled")
    shadow_throttled_ms: int = _column("ms", "sum of those")
    unsent_bytes: int = _column(
        "bytes", "of out_bytes, here or in earlier records: what the client did not get before its end", default=0
    )
    muted_ms: int = _column(
        "ms", "of throttled_ms, what was not at the same time as another mute by this quota of this client", default=0
    )
    profile: str = _column(
        "",
        "of each second with use `at:used`, or `at:used:throttled_ms:requests:throttles` if it was throttled, and "
        "behind that `:at=used,at=used` of each Produce or Fetch that was, if they were 16 at most, with blanks "
        "between: `at` is when its first use came, or when that one was charged, in ms from begin_ms; empty: every "
        "second was used about evenly and nothing throttled, or window_s > 60",
        default="",
    )


LONGEST_PROFILE_S = 60
"""Windows that are longer have no profile."""

_EVEN = 1.5


def is_even(seconds: int, window_s: int, peak: float, used: float) -> bool:
    """Whether a window in which so many seconds were used needs no profile if nothing was throttled."""
    return seconds == window_s and peak * window_s <= _EVEN * used


MOST_REPORTED = 16
"""Of a second in which more requests than that were throttled no single one is told."""


class ThrottledUse(NamedTuple):
    """One request that was throttled: when it was charged, and what it used."""

    at_ms: int
    used: float


class SecondOfUse(NamedTuple):
    """What a profile tells of one second. `requests` are known only if it was throttled; 0 also if they are not.

    `reported` are those that were throttled, all of them, in their order; none if that is not known. What was throttled
    again when it was paid for is told once.
    """

    at_ms: int
    used: float
    throttled_ms: int = 0
    requests: int = 0
    throttles: int = 0
    reported: tuple[ThrottledUse, ...] = ()


def profile_text(seconds: Iterable[SecondOfUse]) -> str:
    """A record's profile, from its seconds; times in ms from the record's begin."""
    return " ".join([_second_text(second) for second in seconds])


def _second_text(second: SecondOfUse) -> str:
    text = f"{second.at_ms}:{second.used:.12g}"
    if not second.throttled_ms:
        return text
    text += f":{second.throttled_ms}:{second.requests}:{second.throttles}"
    reported = ",".join([f"{at_ms}={used:.12g}" for at_ms, used in second.reported])
    return f"{text}:{reported}" if reported else text


def read_profile(text: str) -> list[SecondOfUse]:
    """The seconds of a profile; none of one that cannot be read.

    Earlier proxies wrote no requests and throttles, or told of none; what later ones may write behind it is left out.
    """
    try:
        return [_read_second(*second.split(":")) for second in text.split()]
    except (TypeError, ValueError):
        return []


_TOO_MUCH = 1 << 53
"""For a time in ms, or a count, within one record."""


def _read_second(
    at_ms: str,
    used: str,
    throttled_ms: str = "0",
    requests: str = "0",
    throttles: str = "0",
    reported: str = "",
    *_later: str,
) -> SecondOfUse:
    each = tuple(_read_use(*one.split("=")) for one in reported.split(",")) if reported else ()
    second = SecondOfUse(int(at_ms), float(used), int(throttled_ms), int(requests), int(throttles), each)
    whole = (second.at_ms, *second[2:-1], *(one.at_ms for one in each))
    if not math.isfinite(second.used) or not all(0 <= number < _TOO_MUCH for number in whole):
        raise ValueError(second)
    return second


def _read_use(at_ms: str, used: str) -> ThrottledUse:
    use = ThrottledUse(int(at_ms), float(used))
    if not 0 <= use.used < math.inf:
        raise ValueError(use)
    return use


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent(Row):
    """One thing that was done to a sensor, in the order in which it was done."""

    KIND = TRACE

    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    sequence: int = _column("", "number of this event, from 1, without gaps")
    at_ms: int = _column("ms", "the sensors' clock; its zero is the same throughout an epoch")
    wall_ms: int = _column("ms since 1970", "the same moment by the wall clock")
    virtual_cluster: str = _column("", "virtual cluster")
    node_id: int = _column("", "node; -2: all of them")
    user: str = _column("", "principal's name")
    client_id: str = _column("", "as the client gave it")
    ip: str = _column("", "address of the client, for connection; else empty")
    quota_type: str = _column("", "as in usage records")
    operation: str = _column("", "what was done: see quotas.records.trace")
    value: float = _column("by type", "with which value")
    throttle_ms: int = _column("ms", "throttle time that came of it")
    limit: float | None = _column("by type, per s", "bound that was in force; percent for request")
    rule: str = _column("", "entity whose quota that is; empty: none")
    sensor: int = _column("", "which sensor of this quota type: a number that no other one has, in an epoch", default=0)
    shadow: int = _column("", "1: of a quota that is measured and never felt; else 0", default=0)
    count: int = _column("", "of how many requests; for run", default=1)


ROWS: Mapping[str, type[Row]] = {row.KIND: row for row in (Header, End, Dropped, UsageRecord, TraceEvent)}


def file_name(header: Header) -> str:
    """The name of a complete file; while it is written it has a dot before that and `.part` behind."""
    return f"{header.stream}-{header.instance}-{header.epoch}-{header.file:06}.tsv"


def columns(row: type[Row]) -> Mapping[str, tuple[type, bool]]:
    """Each column's type, which is str, int or float, and whether it may be missing, in the order of the line."""
    return _COLUMNS[row.KIND]


def _columns_of(row: type[Row]) -> Mapping[str, tuple[type, bool]]:
    kinds = typing.get_type_hints(row)
    return {column.name: _kind(kinds[column.name]) for column in fields(row)}


def _kind(annotation: Any) -> tuple[type, bool]:
    if isinstance(annotation, types.UnionType):
        [kind] = [part for part in typing.get_args(annotation) if part is not type(None)]
        return kind, True
    return annotation, False


_COLUMNS = {kind: _columns_of(row) for kind, row in ROWS.items()}


def line_of(row: Row) -> str:
    """The row as a line, with its line feed."""
    parts = [str(VERSION), row.KIND, *(_written(getattr(row, name)) for name in columns(type(row)))]
    body = "\t".join(parts)
    return f"{body}\t{crc32(body.encode()):0{_CRC_DIGITS}x}\n"


def _written(value: str | float | None) -> str:
    if value is None:
        return _NULL
    if isinstance(value, str):
        return value.translate(_TRANSLATION).encode("utf-8", "backslashreplace").decode()
    return repr(value)


_TRANSLATION = str.maketrans(_ESCAPES)


def read_line(line: str) -> Row:
    """The row that a line holds. BadLine if it is none, or of a kind that this version does not know."""
    body, _, crc = line.removesuffix("\n").rpartition("\t")
    if crc != f"{crc32(body.encode()):0{_CRC_DIGITS}x}":
        raise BadLine("the checksum is wrong")
    version, *parts = body.split("\t")
    if not version.isdecimal() or len(version) > _VERSION_DIGITS or int(version) < 1:
        raise BadLine(f"expected a version, got {version[:40]!r}")
    row = ROWS.get(parts[0]) if parts else None
    if row is None:
        raise BadLine(f"unknown kind {parts[0][:40] if parts else ''!r}")
    return _row_of(row, parts[1:], int(version))


def _row_of(row: type[_Row], parts: list[str], version: int) -> _Row:
    known = fields(row)
    if len(parts) > len(known) and version <= VERSION:
        raise BadLine(f"expected {len(known)} columns, got {len(parts)}")
    missing = known[len(parts) :]
    if any(_has_no_default(column) for column in missing):
        raise BadLine(f"expected {len(known)} columns, got {len(parts)}: {missing[0].name} is missing")
    kinds = columns(row)
    return row(
        **{
            column.name: _read(part, column.name, *kinds[column.name])
            for column, part in zip(known, parts, strict=False)
        }
    )


def _has_no_default(column: "Field[Any]") -> bool:
    return column.default is MISSING and column.default_factory is MISSING


def _read(part: str, name: str, kind: type, optional: bool) -> str | float | None:
    if part == _NULL and optional:
        return None
    if kind is str:
        return unescaped(part)
    try:
        value: float = kind(part)
    except ValueError:
        raise BadLine(f"{name}: expected {kind.__name__}, got {part[:40]!r}") from None
    if kind is int and not -(2**63) <= value < 2**63:
        raise BadLine(f"{name}: expected 64 bits, got {part[:40]}")
    if not math.isfinite(value):
        raise BadLine(f"{name}: expected a finite number, got {part!r}")
    return value


_UNESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def unescaped(part: str) -> str:
    """A text as it was before it was written."""
    if "\\" not in part:
        return part
    pieces = iter(part.split("\\"))
    text = [next(pieces)]
    for piece in pieces:
        if piece:
            text.append(_UNESCAPES.get(piece[0], "\\" + piece[0]) + piece[1:])
        else:
            text.append("\\" + next(pieces, ""))
    return "".join(text)
