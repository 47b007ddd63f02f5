"""Lines without an accepted record: headers and ends of files, and bad lines with the reason."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from pipeline.table.accounts import Account, Writer
from pipeline.table.schemas import (
    HAS_IP,
    HAS_NO_MOST,
    LONGEST_NAME,
    MAY_BE_NEGATIVE,
    MOST,
    NO_NAME_HAS,
    PARTITION,
    QUOTA_TYPES,
    time_column,
)
from quotas.records.usage_record import BadLine, Dropped, End, Header, TraceEvent, UsageRecord, columns, read_line

MOST_TEXT = 1_000
"""At most this many characters of a rejected line are stored."""


NO_VALUE = "(no value)"
"""The text of a message without a value in the quarantine: null would not be a text."""


class Line(NamedTuple):
    """A line and its place: see pipeline.ingest.lines.LINES."""

    text: str
    file: str
    block: int
    number: int


def plain(file: str) -> str:
    """A file's name as people write it; Spark has several ways to write it as a URI."""
    return unquote(re.sub("^file:/+", "/", file))


class Reject(NamedTuple):
    """Something that is refused; `line` is None if it is the file as a whole."""

    file: str
    line: Line | None
    reason: str


@dataclass(slots=True)
class Sorted:
    """The result of sorting the lines without a record."""

    rejects: list[Reject] = field(default_factory=list)
    accounts: dict[Writer, Account] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)

    def take(self, line: Line, latest_ms: int) -> None:
        """Sort one line."""
        if line.text == NO_VALUE:
            self._reject(line, "the message has no value")
            return
        try:
            row = read_line(line.text)
        except BadLine as error:
            self._reject(line, str(error))
            return
        match row:
            case Header():
                self.headers[plain(line.file)] = row
                self._note(_writer_of(row), Account(flush_ms=row.flush_ms))
            case End():
                self.ends[plain(line.file)] = row
                if row.instance:
                    self._note(_writer_of(row), _told_by(row))
            case Dropped():
                dropped = (row.first_sequence, row.last_sequence)
                self._note(_writer_of(row), Account(dropped=(dropped,) if dropped[0] <= dropped[1] else ()))
            case UsageRecord() | TraceEvent():
                self._reject(line, why_not(row, latest_ms))

    def _reject(self, line: Line, reason: str) -> None:
        self.rejects.append(Reject(plain(line.file), line._replace(text=line.text[:MOST_TEXT]), reason))

    def _note(self, writer: Writer, account: Account) -> None:
        self.accounts[writer] = self.accounts.get(writer, Account()) + account

    def close(self, files: Iterable[str]) -> None:
        """All lines of these files have been taken: use their headers and ends, and note what is wrong with them."""
        for file in map(plain, files):
            header, end = self.headers.get(file), self.ends.get(file)
            if problem := _problem_of_frame(header, end):
                self.rejects.append(Reject(file, None, problem))
            if header and end:
                self._note(_writer_of(header), _told_by(end))


def _writer_of(row: Header | End | Dropped) -> Writer:
    return Writer(row.stream, row.instance, row.epoch)


def _told_by(end: End) -> Account:
    return Account(reported=end.next_sequence - 1, final=bool(end.final), alone=not end.beside)


def _problem_of_frame(header: Header | None, end: End | None) -> str:
    if header is None and end is None:
        return "the file has neither header nor end: it is empty, foreign or cannot be read"
    if header is None:
        return "the file has no header"
    if end is None:
        return "the file has no end: it is cut short, or damaged from somewhere on"
    return ""


def why_not(row: UsageRecord | TraceEvent, latest_ms: int) -> str:
    """The reason why a record that can be read is refused; empty if it is accepted."""
    for name, (kind, _) in columns(type(row)).items():
        value = getattr(row, name)
        if value is None or kind is str:
            continue
        if value < 0 and name not in MAY_BE_NEGATIVE[row.KIND]:
            return f"{name}: expected 0 or more, got {value}"
        if abs(value) > MOST and name not in HAS_NO_MOST:
            return f"{name}: expected {MOST} at most, got {value}"
    if len((name := row.virtual_cluster).encode()) > LONGEST_NAME:
        return f"{PARTITION}: expected {LONGEST_NAME} bytes at most, got {name[:LONGEST_NAME]}..."
    if NO_NAME_HAS in name:
        return f"{PARTITION}: expected a name without NUL, got {name!r}"
    if (quota_type := row.quota_type) not in QUOTA_TYPES:
        return f"quota_type: expected one of {', '.join(QUOTA_TYPES)}, got {quota_type[:40]!r}"
    of_addresses, value = HAS_IP[row.KIND]
    if getattr(row, of_addresses) == value and not row.ip:
        return f"ip: expected an address, as {of_addresses} is {value}"
    at = getattr(row, time_column(type(row)))
    if at > latest_ms:
        return f"{time_column(type(row))}: in the future, got {at}"
    if isinstance(row, UsageRecord) and row.end_ms < row.begin_ms:
        return f"end_ms: expected begin_ms or later, got {row.end_ms}"
    if isinstance(row, UsageRecord) and row.end_ms > latest_ms:
        return f"end_ms: in the future, got {row.end_ms}"
    return ""


def in_short(reason: str) -> str:
    """The reason without the value that was found: the same text for all lines with the same mistake."""
    return reason.partition(", got")[0]
