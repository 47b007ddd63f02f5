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
    _headers: set[str] = field(default_factory=set)
    _ends: set[str] = field(default_factory=set)

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
                self._headers.add(plain(file))
                self._note(_writer_of(row), Account(flush_ms=row.flush_ms))
            case End():
                self._ends.add(plain(file))
                told = Account(reported=row.next_sequence - 1, final=bool(row.final), alone=not row.beside)
                self._note(_writer_of(row), told)
            case Dropped():
                dropped = (row.first_sequence, row.last_sequence)
                self._note(_writer_of(row), Account(dropped=(dropped,) if dropped[0] <= dropped[1] else ()))
        return ""

    def incomplete(self, files: Iterable[str]) -> list[tuple[str, str]]:
        """Which of these files, of which all lines have been taken, are not whole, and why."""
        problems = [(file, self._problem_of(file)) for file in map(plain, files)]
        return [(file, problem) for file, problem in problems if problem]

    def _problem_of(self, file: str) -> str:
        if file in self._headers:
            return "" if file in self._ends else "the file has no end: it is cut short, or damaged from somewhere on"
        if file in self._ends:
            return "the file has no header"
        return "the file has neither header nor end: it is empty, foreign or cannot be read"

    def _note(self, writer: Writer, account: Account) -> None:
        self.accounts[writer] = self.accounts.get(writer, Account()) + account


def _writer_of(row: Header | End | Dropped) -> Writer:
    return Writer(row.stream, row.instance, row.epoch)
