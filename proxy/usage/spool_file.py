"""One file of the spool: written under a hidden name, renamed when complete, salvaged if its writer is killed."""

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_throttle.common.atomic_file import is_at, publish, sync, sync_directory
from kafka_throttle.common.file_lock import Lock, lock
from kafka_throttle.quotas.records.usage_record import (
    BadLine,
    Dropped,
    End,
    Header,
    Row,
    TraceEvent,
    UsageRecord,
    file_name,
    line_of,
    read_line,
)

FILE_LOST = "file_lost"
"""The reason for dropped records: their file was removed before it was complete, and cannot be read any more."""

_LONGEST_LINE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20


def part_of(directory: Path, header: Header) -> Path:
    """The path of a file while it is being written."""
    return directory / f".{file_name(header)}.part"


def next_sequence(row: Row, before: int) -> int:
    """The sequence number that follows a line; `before` is the one that was next before it."""
    if isinstance(row, UsageRecord | TraceEvent):
        return row.sequence + 1
    return row.last_sequence + 1 if isinstance(row, Dropped) else before


def _end_of(header: Header, records: int, sequence: int, *, final: bool = False, beside: bool = False) -> bytes:
    end = End(
        records=records,
        next_sequence=sequence,
        final=int(final),
        stream=header.stream,
        instance=header.instance,
        epoch=header.epoch,
        beside=int(beside),
    )
    return line_of(end).encode()


class SpoolFile:
    """A file that is being written. A failed write leaves the earlier content, and may be tried again.

    While the file is open it is locked, so that no other process salvages it; where the file system has no locks, it
    may be salvaged all the same. What somebody has removed or moved is no longer in place: begin another file with it.
    """

    def __init__(self, directory: Path, header: Header, before: "SpoolFile | None" = None) -> None:
        """Begin with the records of `before`, or if these cannot be read any more, with a line that they are lost.

        Raises OSError if the file cannot be started; then nothing of it is left.
        """
        self.header = header
        self.records = 0
        self.lost = 0
        """How many records of `before` are lost."""
        self.sequence = header.first_sequence
        self.size_bytes = 0
        self.part = part_of(directory, header)
        self._path = directory / file_name(header)
        self._is_unsure = False
        """Whether syncing has failed: the system then takes for written what is not."""
        self._is_unreadable = False
        if before is not None and before._is_unreadable:
            before.part.unlink(missing_ok=True)
        self._fd = _made(self.part)
        try:
            _be_alone(self._fd)
            self._put(line_of(header).encode())
            self._begin = self.size_bytes
            if before is not None:
                self._go_on_with(before)
        except OSError:
            self.abandon()
            raise

    def _go_on_with(self, before: "SpoolFile") -> None:
        try:
            for data in before._content(before._begin):
                self._put(data)
            self.records, self.sequence = before.records, before.sequence
        except OSError:
            if not before._is_unreadable:
                raise
            self.size_bytes = self._begin
            os.ftruncate(self._fd, self.size_bytes)
            self._tell_lost(before)

    def _tell_lost(self, before: "SpoolFile") -> None:
        """Write that the records of another file are lost."""
        if before.sequence > before.header.first_sequence:
            dropped = Dropped(
                instance=before.header.instance,
                epoch=before.header.epoch,
                stream=before.header.stream,
                first_sequence=before.header.first_sequence,
                last_sequence=before.sequence - 1,
                reason=FILE_LOST,
            )
            self.add([dropped])
        self.lost = before.records

    def _content(self, begin: int) -> Iterator[bytes]:
        """What was written from `begin` on, as it can be read. OSError if it cannot, which remains so."""
        at = begin
        while at < self.size_bytes:
            try:
                data = os.pread(self._fd, min(_PIECE_BYTES, self.size_bytes - at), at)
                if not data:
                    raise OSError(errno.EIO, "shorter than what was written", str(self.part))
            except OSError:
                self._is_unreadable = True
                raise
            yield data
            at += len(data)

    def is_in_place(self) -> bool:
        """Whether the file is where it was begun, and has what was written to it. Raises OSError."""
        return not self._is_unreadable and is_at(self.part, self._fd)

    def add(self, rows: Sequence[Row]) -> int:
        """Write records and `dropped` lines. Returns the number of bytes. Raises OSError if a write failed."""
        data = "".join(map(line_of, rows)).encode()
        self._put(data)
        for row in rows:
            self.sequence = next_sequence(row, self.sequence)
            self.records += isinstance(row, UsageRecord | TraceEvent)
        return len(data)

    def _put(self, data: bytes) -> None:
        _write_at(self._fd, data, self.size_bytes)
        self.size_bytes += len(data)

    def finish(self, *, final: bool = False, beside: bool = False) -> Path:
        """Write the end line, give the file its name, and close it. Raises OSError on failure; it may be tried again.

        `final` and `beside` are columns of the end. The content is on the disk by then; the new name is not there
        before the directory is synced.
        """
        before = self.size_bytes
        try:
            self._put(_end_of(self.header, self.records, self.sequence, final=final, beside=beside))
            os.ftruncate(self._fd, self.size_bytes)
            self._settle()
            publish(self._fd, self.part, self._path)
        except OSError:
            self.size_bytes = before
            raise
        self.close()
        return self._path

    def _settle(self) -> None:
        """Have the system say now whether it could write what it has taken."""
        try:
            if self._is_unsure:
                self._write_again()
            sync(self._fd)
        except OSError:
            self._is_unsure = True
            raise

    def _write_again(self) -> None:
        at = 0
        for data in self._content(at):
            _write_at(self._fd, data, at)
            at += len(data)
        self._is_unsure = False

    def abandon(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Write no more."""
        with contextlib.suppress(OSError):
            os.close(self._fd)


def _made(part: Path) -> int:
    """A new file. One that has its name is replaced, unless another process writes it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(part, flags, 0o600)
    except FileExistsError:
        left = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _be_alone(left)
            part.unlink(missing_ok=True)
        finally:
            os.close(left)
    return os.open(part, flags, 0o600)


def _be_alone(file: int) -> None:
    if lock(file) is Lock.HELD:
        raise BlockingIOError(errno.EAGAIN, "another process has locked the file")


def _write_at(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        at, view = at + written, view[written:]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A file whose writer is gone. `path` is None if it had no record, or cannot be salvaged because of `problem`."""

    part: Path
    path: Path | None
    records: int
    problem: str = ""


def salvage(directory: Path, idle_s: float = 0.0, own: Collection[Path] = ()) -> Iterator[Salvaged]:
    """Complete the files of killed writers, with the whole lines that they contain; delete those without records.

    Files that are being written are left alone, those in `own` at any rate, and so are files without a header, which
    are reported as a `problem`. Where files cannot be locked, those to which nothing was written for `idle_s` count as
    files of killed writers.
    """
    for part in sorted(set(directory.glob(".*.tsv.part")).difference(own)):
        try:
            fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Salvaged(part, None, 0, str(error))
            continue
        try:
            found = lock(fd)
            is_idle = time.time() - os.fstat(fd).st_mtime >= idle_s
            if found is Lock.TAKEN or (found is Lock.NONE and is_idle):
                yield _salvage_one(directory, part, fd)
        except OSError as error:
            yield Salvaged(part, None, 0, str(error))
        finally:
            os.close(fd)


def _salvage_one(directory: Path, part: Path, fd: int) -> Salvaged:
    header, end = None, 0
    records = sequence = 0
    with os.fdopen(os.dup(fd), "rb") as file:
        while data := file.readline(_LONGEST_LINE_BYTES):
            row = _row_of(data)
            if row is None or isinstance(row, End) or isinstance(row, Header) != (header is None):
                break
            if isinstance(row, Header):
                header, sequence = row, row.first_sequence
            sequence = next_sequence(row, sequence)
            records += isinstance(row, UsageRecord | TraceEvent)
            end += len(data)
    if header is None and part.stat().st_size:
        return Salvaged(part, None, 0, "it does not begin with a header")
    if header is None or sequence == header.first_sequence:
        part.unlink()
        return Salvaged(part, None, 0)
    path = directory / file_name(header)
    if path.exists():
        return Salvaged(part, None, 0, f"there is a complete file {path.name}")
    os.ftruncate(fd, end)
    _write_at(fd, _end_of(header, records, sequence), end)
    sync(fd)
    publish(fd, part, path)
    with contextlib.suppress(OSError):
        sync_directory(directory)
    return Salvaged(part, path, records)


def _row_of(data: bytes) -> Row | None:
    """The row of a line; None if the line is incomplete or invalid."""
    if not data.endswith(b"\n"):
        return None
    try:
        return read_line(data.decode())
    except (BadLine, UnicodeDecodeError):
        return None
