"""The records that the proxy writes about use, and the format of their lines. No other module knows the format.

A line is tab-separated UTF-8: version, kind, the columns of that kind in order, and the CRC-32 of everything before
it as eight hexadecimal digits. In texts a backslash, tab, line feed and carriage return are written `\\\\`, `\\t`,
`\\n` and `\\r`; a missing value is `\\N`. Numbers are written as Python's `repr` writes them. What only
some languages take for a number, such as ` 5`, `+5`, `1_000` or `0x1p3`, is none. A later version only adds columns
behind the last one: an older reader ignores columns that it does not know.

A file of the spool is a `header`, records, and an `end`; it gets its name only when it is complete. Usage and trace
have separate files and sequences: each record has the next number of its (instance, epoch, stream), so a reader can
find missing and duplicate records. Records that the proxy had to drop are reported by a `dropped` line.

If a later epoch exists and no end of an epoch is `final`, the end of the epoch is lost: the records that were not on
disk when its process was killed. The next process completes what was on disk, under the same name. An epoch whose ends
all say `beside` is no sign of that: the process before it may still have written then.
"""

import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar
from zlib import crc32

VERSION = 3

USAGE = "usage"
TRACE = "trace"
"""The two streams, and the kinds of their records."""

_NULL = "\\N"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CRC_DIGITS = 8
_VERSION_DIGITS = 9
"""The most digits that are read: Python refuses to convert numbers of thousands of digits."""
FLOAT = r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|-?inf|nan"
"""How `repr` writes floats, as a regular expression."""
_NUMBERS = {int: re.compile("0|-?[1-9][0-9]{0,18}"), float: re.compile(FLOAT)}
_Row = TypeVar("_Row", bound="Row")


class BadLine(ValueError):
    """A line that cannot be read; the text says why, and names the column."""


def _column(unit: str, about: str) -> Any:
    return field(metadata={"unit": unit, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The base of all kinds of lines."""

    KIND: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Row):
    """The first line of a file."""

    KIND = "header"

    stream: str = _column("", "`usage` or `trace`")
    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    file: int = _column("", "number of the file within its stream and epoch, from 1")
    first_sequence: int = _column("", "number of its first record, or of the next record if it has none")
    flush_ms: int = _column(
        "ms",
        "how long records are in memory before they are written: the longest time of which a killed process loses "
        "the records",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Row):
    """The last line of a complete file."""

    KIND = "end"

    records: int = _column("", "records in this file")
    next_sequence: int = _column("", "number of the next file's first record")
    final: int = _column("", "1: the process stopped in an orderly way, and this epoch has no further records; else 0")
    stream: str = _column("", "as in the header, for readers that get single lines")
    instance: str = _column("", "as in the header")
    epoch: int = _column("ms since 1970", "as in the header")
    beside: int = _column(
        "",
        "1: the process that this one took over from (SIGUSR2) still ran when the file was completed, so the epoch "
        "before may have further records; else 0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Row):
    """Records that the proxy dropped. Their numbers are used up; the line itself has no number."""

    KIND = "dropped"

    instance: str = _column("", "which proxy dropped them")
    epoch: int = _column("ms since 1970", "when its process began")
    stream: str = _column("", "`usage` or `trace`")
    first_sequence: int = _column("", "number of the first dropped record")
    last_sequence: int = _column("", "number of the last dropped record")
    reason: str = _column(
        "", "why they were dropped: `no_room`, `too_fast`, `file_lost`, or `internal_error` (a bug of the proxy)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord(Row):
    """What one client used of one quota type at one node in one window of time.

    `used` and `peak` are in the unit that the quota counts: bytes for produce and fetch, ms of handler time for
    request, partitions for controller_mutation, connections for connection. No request, byte or throttle is in two
    records, so the sums over the records of a period are the totals of that period.
    """

    KIND = USAGE

    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    sequence: int = _column("", "number of this record, from 1, without gaps")
    begin_ms: int = _column("ms since 1970", "when the window began")
    end_ms: int = _column("ms since 1970", "when it was closed")
    virtual_cluster: str = _column("", "virtual cluster")
    node_id: int = _column("", "node that served the client; -2: all nodes; -1: no node yet")
    user: str = _column("", "principal's name; empty: not known yet")
    client_id: str = _column(
        "", "as the client gave it; `<overflow>`: further clients, which are not counted separately"
    )
    ip: str = _column("", "address of the client, for connection; else empty")
    quota_type: str = _column("", "`produce`, `fetch`, `request`, `controller_mutation`, `connection`")
    used: float = _column("by type", "what the quota counts")
    peak: float = _column("by type, per s", "the highest use in one second")
    requests: int = _column("", "number of Produce requests, or Fetch requests; for request: of all others")
    in_bytes: int = _column("bytes", "bytes of these requests, as the client sent them, with their length prefixes")
    out_bytes: int = _column("bytes", "bytes of their responses, as the client got them")
    throttles: int = _column("", "how often this quota throttled")
    throttled_ms: int = _column("ms", "by how much these throttles prolonged mutes of the client's connections")
    backlogged_ms: int = _column("ms", "time of mutes by this quota at whose end a request was already waiting")
    limit: float | None = _column("by type, per s", "limit in force at the end of the window; percent for request")
    rule: str = _column("", "entity that this limit is set on, as `user=alice, client-id=<default>`; empty: none")
    shadow_limit: float | None = _column("by type, per s", "limit of the shadow quota")
    shadow_rule: str = _column("", "entity that the shadow quota is set on")
    shadow_throttles: int = _column("", "how often the shadow quota would have throttled")
    shadow_throttled_ms: int = _column("ms", "sum of these throttle times")
    unsent_bytes: int = _column(
        "bytes", "part of out_bytes, of this or earlier records, that the client had not got when it ended"
    )
    muted_ms: int = _column(
        "ms", "part of throttled_ms without the time in which another mute of this client by this quota ran"
    )
    profile: str = _column(
        "",
        "each second with use, separated by blanks: `at:used`, or `at:used:throttled_ms:requests:throttles` if "
        "something was throttled in it, followed by `:at=used,at=used` for the Produce or Fetch requests that were "
        "throttled, if there were 16 at most; `at` is when the first use of the second came, or when that request was "
        "charged, in ms from begin_ms; empty: every second was used about evenly and nothing was throttled, or "
        "window_s > 60",
    )
    scope: str = _column(
        "", "where the limit holds: `node`, at each node by itself; `cluster`, over all nodes together"
    )
    share: float = _column(
        "", "part of the limit that this instance enforced at the end of the window; below 1 only in a fleet"
    )


LONGEST_PROFILE_S = 60
"""Longer windows have no profile."""

_EVEN = 1.5


def is_even(seconds: int, window_s: int, peak: float, used: float) -> bool:
    """Whether a window with use in `seconds` seconds was used evenly: without throttles it needs no profile."""
    return seconds == window_s and peak * window_s <= _EVEN * used


MOST_REPORTED = 16
"""A second in which more requests were throttled has no entries of single requests."""


class ThrottledUse(NamedTuple):
    """One request that was throttled: when it was charged, and what it used."""

    at_ms: int
    used: float


class SecondOfUse(NamedTuple):
    """One second of a profile. `requests` is 0 if nothing was throttled in it: then the number is not recorded.

    `reported` are all throttled requests in their order; empty if they are not recorded. A request that was throttled a
    second time when it was paid for is listed once.
    """

    at_ms: int
    used: float
    throttled_ms: int = 0
    requests: int = 0
    throttles: int = 0
    reported: tuple[ThrottledUse, ...] = ()


def profile_text(seconds: Iterable[SecondOfUse]) -> str:
    """The profile of a record as text, from its seconds. Times are in ms from the begin of the record."""
    return " ".join([_second_text(second) for second in seconds])


def _second_text(second: SecondOfUse) -> str:
    text = f"{second.at_ms}:{second.used:.12g}"
    if not second.throttled_ms:
        return text
    text += f":{second.throttled_ms}:{second.requests}:{second.throttles}"
    reported = ",".join([f"{at_ms}={used:.12g}" for at_ms, used in second.reported])
    return f"{text}:{reported}" if reported else text


def read_profile(text: str) -> list[SecondOfUse]:
    """The seconds of a profile; empty if it cannot be read.

    Numbers that later proxies may add at the end of a second are ignored.
    """
    try:
        return [_read_second(*second.split(":")) for second in text.split()]
    except (TypeError, ValueError):
        return []


_TOO_MUCH = 1 << 53
"""No time in ms and no count within one record can be this large."""


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
    """One operation on a sensor. The events are in the order of the operations."""

    KIND = TRACE

    instance: str = _column("", "which proxy wrote this")
    epoch: int = _column("ms since 1970", "when its process began")
    sequence: int = _column("", "number of this event, from 1, without gaps")
    at_ms: int = _column("ms", "by the monotonic clock of the sensors; its zero is the same throughout an epoch")
    wall_ms: int = _column("ms since 1970", "the same time by the wall clock")
    virtual_cluster: str = _column("", "virtual cluster")
    node_id: int = _column("", "node; -2: all nodes")
    user: str = _column("", "principal's name")
    client_id: str = _column("", "as the client gave it")
    ip: str = _column("", "address of the client, for connection; else empty")
    quota_type: str = _column("", "as in usage records")
    operation: str = _column("", "what was done: see kafka_throttle.quotas.records.trace")
    value: float = _column("by type", "the value of the operation")
    throttle_ms: int = _column("ms", "the resulting throttle time")
    limit: float | None = _column("by type, per s", "limit that was in force; percent for request")
    rule: str = _column("", "entity that this limit is set on; empty: none")
    sensor: int = _column("", "number of the sensor, unique for its quota type within an epoch")
    shadow: int = _column("", "1: of a shadow quota, which is measured and not enforced; else 0")
    count: int = _column("", "for `run`: number of requests; for `add_history`: how many windows ago; else 1")


ROWS: Mapping[str, type[Row]] = {row.KIND: row for row in (Header, End, Dropped, UsageRecord, TraceEvent)}


def file_name(header: Header) -> str:
    """The name of a complete file. While it is written, its name begins with a dot and ends with `.part`."""
    return f"{header.stream}-{header.instance}-{header.epoch}-{header.file:06}.tsv"


def columns(row: type[Row]) -> Mapping[str, tuple[type, bool]]:
    """The type of each column (str, int or float) and whether its value may be missing, in the order of the line."""
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
        return value.encode("utf-8", "backslashreplace").decode().translate(_TRANSLATION)
    return repr(value)


_TRANSLATION = str.maketrans(_ESCAPES)


def read_line(line: str) -> Row:
    """The row of a line. Raises BadLine if the line is invalid or of an unknown kind."""
    body, tab, crc = line.removesuffix("\n").rpartition("\t")
    if not tab or crc != f"{crc32(body.encode()):0{_CRC_DIGITS}x}":
        raise BadLine("the checksum is wrong")
    version, *parts = body.split("\t")
    if not version.isascii() or not version.isdecimal() or len(version) > _VERSION_DIGITS or int(version) < 1:
        raise BadLine(f"expected a version, got {version[:40]!r}")
    row = ROWS.get(parts[0]) if parts else None
    if row is None:
        raise BadLine(f"unknown kind {parts[0][:40] if parts else ''!r}")
    return _row_of(row, parts[1:], int(version))


def _row_of(row: type[_Row], parts: list[str], version: int) -> _Row:
    kinds = columns(row)
    if len(parts) > len(kinds) and version <= VERSION:
        raise BadLine(f"expected {len(kinds)} columns, got {len(parts)}")
    if missing := list(kinds)[len(parts) :]:
        raise BadLine(f"expected {len(kinds)} columns, got {len(parts)}: {missing[0]} is missing")
    return row(**{name: _read(part, name, *kind) for (name, kind), part in zip(kinds.items(), parts, strict=False)})


def _read(part: str, name: str, kind: type, optional: bool) -> str | float | None:
    if part == _NULL and optional:
        return None
    if kind is str:
        return unescaped(part)
    value: float | None = kind(part) if _NUMBERS[kind].fullmatch(part) else None
    if value is None or (kind is int and not -(2**63) <= value < 2**63):
        raise BadLine(f"{name}: expected {kind.__name__}, got {part[:40]!r}")
    if not math.isfinite(value):
        raise BadLine(f"{name}: expected a finite number, got {part[:40]!r}")
    return value


_UNESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def unescaped(part: str) -> str:
    """A text with its escapes replaced."""
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
