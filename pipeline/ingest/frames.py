"""Headers and ends of files, and what they and the `dropped` lines say of the sequence numbers."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from urllib.parse import unquote

from kafka_throttle.pipeline.table.accounts import Account, Writer
from kafka_throttle.pipeline.table.schemas import MOST
from kafka_throttle.quotas.records.usage_record import BadLine, Dropped, End, Header, read_line

KINDS = tuple(row.KIND for row in (Header, End, Dropped))


def plain(file: str) -> str:
    """A file's name as people write it; Spark has several ways to write it as a URI."""
    return unquote(without_scheme(file))


def without_scheme(uri: str) -> str:
    """The path if the URI is of this machine."""
    return re.sub("^file:/+", "/", uri)


@dataclass(slots=True)
class Frames:
    """What lines of KINDS say."""

    accounts: dict[Writer, Account] = field(default_factory=dict)
    _headers: dict[str, Header] = field(default_factory=dict)
    _ends: dict[str, End] = field(default_factory=dict)

    def take(self, text: str, file: str) -> str:
        """Take one line of a file; the reason why it is refused, or nothing."""
        try:
            row = read_line(text)
        except BadLine as error:
            return str(error)
        for name, value in asdict(row).items():
            # So Spark can add one to any of them.
            if isinstance(value, int) and not 0 <= value <= MOST:
                return f"{name}: expected a number from 0 to {MOST}, got {value}"
        match row:
            case Header():
                self._headers[plain(file)] = row
                self._note(_writer_of(row), Account(flush_ms=row.flush_ms))
            case End():
                self._ends[plain(file)] = row
                if row.instance:
                    self._note(_writer_of(row), _told_by(row))
            case Dropped():
                dropped = (row.first_sequence, row.last_sequence)
                self._note(_writer_of(row), Account(dropped=(dropped,) if dropped[0] <= dropped[1] else ()))
        return ""

    def close(self, files: Iterable[str]) -> list[tuple[str, str]]:
        """All lines of these files have been taken: note what their ends say. The files that are not whole, and why."""
        problems = []
        for file in map(plain, files):
            header, end = self._headers.get(file), self._ends.get(file)
            if problem := _problem_of(header, end):
                problems.append((file, problem))
            if header and end:
                self._note(_writer_of(header), _told_by(end))
        return problems

    def _note(self, writer: Writer, account: Account) -> None:
        self.accounts[writer] = self.accounts.get(writer, Account()) + account


def _writer_of(row: Header | End | Dropped) -> Writer:
    return Writer(row.stream, row.instance, row.epoch)


def _told_by(end: End) -> Account:
    return Account(reported=end.next_sequence - 1, final=bool(end.final), alone=not end.beside)


def _problem_of(header: Header | None, end: End | None) -> str:
    if header is None and end is None:
        return "the file has neither header nor end: it is empty, foreign or cannot be read"
    if header is None:
        return "the file has no header"
    if end is None:
        return "the file has no end: it is cut short, or damaged from somewhere on"
    return ""
