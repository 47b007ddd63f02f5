"""The shipper: sends the lines of complete spool files to a topic, in order, each line at least once.

The spool remains the primary copy. When the cluster has all lines of a file, the file is noted as sent in the position
file, which is written under another name and renamed. A shipper that is killed in between sends some lines twice,
which readers recognise by their sequence numbers, and leaves none out. Files that retention deletes before they were
sent are counted and logged.

Each line becomes a message of the topic (quotas/records/topic_message.py). Its key is its writer,
`stream:instance:epoch`, so the lines that one process wrote of one stream are in one partition, in order.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import structlog

from kafka_throttle.common.atomic_file import write_whole
from kafka_throttle.common.file_lock import locked
from kafka_throttle.proxy.usage.spool import FILE_NAME

log = structlog.get_logger()

POSITION = ".shipped.json"
_LOCK = ".shipping.lock"
_FORMAT = 1
_LINES_AT_ONCE = 1_000
LONGEST_BYTES = 900_000
"""Of a line, and of a message: less than the default limit of a cluster. No line of kafka-throttle comes near it."""


class TopicUnavailable(Exception):
    """The topic does not take messages; the text says why."""


class SpoolBusy(Exception):
    """Another process ships from this spool."""


class Topic(Protocol):
    """The destination of lines."""

    name: str

    def send(self, key: bytes, lines: Sequence[bytes]) -> None:
        """Return when the cluster has all lines. Raises TopicUnavailable; then the cluster may have some of them."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(slots=True)
class Shipped:
    """Totals since the process started, and what is still to be sent."""

    lines: int = 0
    line_bytes: int = 0
    files: int = 0
    lost_files: int = 0
    """Files that were deleted before they were sent."""
    long_lines: int = 0
    """Lines that were left out because they are too long for a cluster."""
    failures: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0


class Writer(NamedTuple):
    """The process and stream that a sequence of files belongs to."""

    stream: str
    instance: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.instance}:{self.epoch}"


class SpoolPiece(NamedTuple):
    """A complete file of the spool. Files are sent in the order of these tuples."""

    epoch: int
    number: int
    writer: Writer
    path: Path
    size: int


@dataclass(slots=True)
class Position:
    """The last sent file of each writer, for each topic. Stored in a file of the spool."""

    path: Path
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    is_stored: bool = True

    @classmethod
    def read(cls, directory: Path) -> "Position":
        """The stored position. If it is invalid, all files are sent again, and readers recognise them by their numbers.

        Raises OSError if the file exists and this process cannot read it.
        """
        path = directory / POSITION
        try:
            return cls(path, _topics_in(json.loads(path.read_bytes())))
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError) as error:
            log.warning("usage_position_unreadable", file=str(path), problem=f"{error}: all is sent again")
        return cls(path)

    def until(self, topic: str, writer: Writer) -> int:
        """The number of the last file of this writer that the topic has; 0 if it has none."""
        return self.topics.get(topic, {}).get(str(writer), 0)

    def note(self, topic: str, writer: Writer, number: int, found: set[str]) -> None:
        """Note that the topic has this file. `found` are the writers of all files in the spool; others are removed."""
        known = {**self.topics.get(topic, {}), str(writer): number}
        kept = found | _newest(known)
        self.topics[topic] = {of: until for of, until in known.items() if of in kept}
        self.is_stored = False

    def store(self) -> None:
        """Write down what was noted. Raises OSError; it may be called again."""
        if not self.is_stored:
            write_whole(self.path, [json.dumps({"format": _FORMAT, "topics": self.topics}).encode()])
            self.is_stored = True


def _newest(writers: Iterable[str]) -> set[str]:
    """The latest writer of each stream and instance: it may write a next file even if it has no file now."""
    newest: dict[str, int] = {}
    for writer in writers:
        of, _, epoch = writer.rpartition(":")
        newest[of] = max(newest.get(of, 0), int(epoch))
    return {f"{of}:{epoch}" for of, epoch in newest.items()}


def _topics_in(form: Any) -> dict[str, dict[str, int]]:
    topics = form.get("topics") if isinstance(form, Mapping) and form.get("format") == _FORMAT else None
    if not isinstance(topics, dict) or not all(map(_is_position, topics.values())):
        raise ValueError(f"expected positions in format {_FORMAT}")
    return topics


def _is_position(form: Any) -> bool:
    return isinstance(form, dict) and all(
        re.fullmatch(r"[0-9]{1,15}", of.rpartition(":")[2]) and type(number) is int for of, number in form.items()
    )


@contextlib.contextmanager
def alone_at(directory: Path) -> Iterator[None]:
    """Hold the lock for shipping from this spool. Raises SpoolBusy, or OSError if the spool cannot be written to."""
    lock = locked(directory / _LOCK)
    if lock is None:
        raise SpoolBusy(f"{directory}: another process ships from it")
    with lock:
        yield


class Shipper:
    """Sends the files of one spool to one topic. For use by one thread, and one process (`alone_at`), at a time."""

    def __init__(self, directory: Path, topic: Topic, tell: Callable[[Shipped], None] = lambda totals: None) -> None:
        self.totals = Shipped()
        self._directory = directory
        self._topic = topic
        self._tell = tell
        self._known: Position | None = None
        self._partly: dict[Path, int] = {}
        """Files that are partly sent after a failed attempt: how many bytes of them the topic has."""
        self._nameless: set[Path] = set()
        """Files with a name that is not UTF-8, which were logged."""

    @property
    def _position(self) -> Position:
        if self._known is None:
            self._known = Position.read(self._directory)
        return self._known

    def ship(self) -> None:
        """Send all complete files that are not sent yet. Raises TopicUnavailable or OSError; then call it again later.

        A file that cannot be read delays the later files of its writer, and no others. What was sent is not sent again
        by this process, even if the position cannot be stored.
        """
        found = self._found()
        self._count_waiting(found)  # counts all files in case the position cannot be read
        waiting = [piece for piece in found if piece.number > self._position.until(self._topic.name, piece.writer)]
        writers = {str(piece.writer) for piece in found}
        self._count_waiting(waiting)
        self._partly = {piece.path: self._partly[piece.path] for piece in waiting if piece.path in self._partly}
        unreadable: dict[Writer, OSError] = {}
        for piece in waiting:
            if piece.writer in unreadable:
                continue
            try:
                self._send(piece)
            except OSError as error:
                unreadable[piece.writer] = error
                continue
            self._note_lost(piece)
            self._position.note(self._topic.name, piece.writer, piece.number, writers)
            self.totals.waiting_files -= 1
            self.totals.waiting_bytes -= piece.size
            self._tell(self.totals)
            with contextlib.suppress(OSError):  # it is told below
                self._position.store()
        self._position.store()
        if unreadable:
            raise next(iter(unreadable.values()))

    def _count_waiting(self, pieces: Sequence[SpoolPiece]) -> None:
        self.totals.waiting_files = len(pieces)
        self.totals.waiting_bytes = sum(piece.size for piece in pieces)

    def _found(self) -> list[SpoolPiece]:
        found = []
        for path in self._directory.iterdir():
            if (name := FILE_NAME.fullmatch(path.name)) and self._is_text(path):
                writer = Writer(name["stream"], name["instance"], int(name["epoch"]))
                with contextlib.suppress(FileNotFoundError):  # retention has just deleted it
                    found.append(SpoolPiece(writer.epoch, int(name["file"]), writer, path, _size(path)))
        return sorted(found)

    def _is_text(self, path: Path) -> bool:
        """Whether the file name is UTF-8, as keys of messages must be. Other files are logged once and left alone."""
        try:
            path.name.encode()
        except UnicodeEncodeError:
            if path not in self._nameless:
                self._nameless.add(path)
                log.warning("usage_file_not_shipped", file=ascii(str(path)), problem="its name is not UTF-8")
            return False
        return True

    def _note_lost(self, piece: SpoolPiece) -> None:
        before = self._position.until(self._topic.name, piece.writer)
        if lost := piece.number - before - 1:
            self._count_lost(piece.writer, lost)

    def _count_lost(self, writer: Writer, files: int) -> None:
        self.totals.lost_files += files
        log.warning("usage_files_lost_unshipped", topic=self._topic.name, writer=str(writer), files=files)

    def _send(self, piece: SpoolPiece) -> None:
        try:
            file = piece.path.open("rb")
        except FileNotFoundError:
            self._count_lost(piece.writer, 1)
            return
        with file:
            file.seek(self._partly.get(piece.path, 0))
            while lines := self._some_lines(file):
                self._topic.send(str(piece.writer).encode(), lines)
                self._partly[piece.path] = file.tell()
                self.totals.lines += len(lines)
                self.totals.line_bytes += sum(map(len, lines))
                self._tell(self.totals)
        self.totals.files += 1

    def _some_lines(self, file: BinaryIO) -> list[bytes]:
        lines: list[bytes] = []
        is_rest = False
        while len(lines) < _LINES_AT_ONCE and (data := file.readline(LONGEST_BYTES)):
            is_whole = data.endswith(b"\n") or len(data) < LONGEST_BYTES
            if is_whole and not is_rest:
                lines.append(data.removesuffix(b"\n"))
            elif not is_rest:
                self.totals.long_lines += 1
                log.warning("usage_line_too_long", file=file.name, bytes_at_least=LONGEST_BYTES)
            is_rest = not is_whole
        return lines


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise
    except OSError:  # the error is reported when the file is read
        return 0
