"""One file of the spool: written under a hidden name, renamed when complete, salvaged if its writer is killed."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quotas.records.usage_record import (
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

_LONGEST_LINE_BYTES = 1 << 20


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

    While the file is open it is locked, so that no other process salvages it.
    """

    def __init__(self, directory: Path, header: Header) -> None:
        """Raises OSError if the file cannot be started; then nothing of it is left."""
        self.header = header
        self.records = 0
        self.sequence = header.first_sequence
        self.size_bytes = 0
        self._directory = directory
        self._part = part_of(directory, header)
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._put(line_of(header).encode())
        except OSError:
            self.abandon()
            raise

    def add(self, rows: Sequence[Row]) -> int:
        """Write records and `dropped` lines. Returns the number of bytes. Raises OSError if a write failed."""
        data = "".join(map(line_of, rows)).encode()
        self._put(data)
        for row in rows:
            self.sequence = next_sequence(row, self.sequence)
            self.records += isinstance(row, UsageRecord | TraceEvent)
        return len(data)

    def _put(self, data: bytes) -> None:
        at, view = self.size_bytes, memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            at, view = at + written, view[written:]
        self.size_bytes = at

    def finish(self, sync: bool, *, final: bool = False, beside: bool = False) -> Path:
        """Write the end line and give the file its name. Raises OSError on failure; it may be tried again.

        `final` and `beside` are columns of the end.
        """
        before = self.size_bytes
        try:
            self._put(_end_of(self.header, self.records, self.sequence, final=final, beside=beside))
            os.ftruncate(self._fd, self.size_bytes)
            path = _publish(self._fd, self._directory, self._part, self.header, sync)
        except OSError:
            self.size_bytes = before
            raise
        os.close(self._fd)
        return path

    def abandon(self) -> None:
        """Delete the file."""
        os.close(self._fd)
        self._part.unlink(missing_ok=True)


def _publish(fd: int, directory: Path, part: Path, header: Header, sync: bool) -> Path:
    if sync:
        os.fsync(fd)
    path = directory / file_name(header)
    part.rename(path)
    if sync:
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory_fd)
        finally:
            os.close(directory_fd)
    return path


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A file whose writer is gone. `path` is None if it had no record, or cannot be salvaged because of `problem`."""

    part: Path
    path: Path | None
    records: int
    problem: str = ""


def salvage(directory: Path, sync: bool) -> Iterator[Salvaged]:
    """Complete the files of killed writers, with the whole lines that they contain; delete those without records.

    Files that are being written are left alone, and so are files without a header, which are reported as a `problem`.
    """
    for part in sorted(directory.glob(".*.tsv.part")):
        try:
            fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            yield Salvaged(part, None, 0, str(error))
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield _salvage_one(directory, part, fd, sync)
        except BlockingIOError:
            continue
        except OSError as error:
            yield Salvaged(part, None, 0, str(error))
        finally:
            os.close(fd)


def _salvage_one(directory: Path, part: Path, fd: int, sync: bool) -> Salvaged:
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
    os.ftruncate(fd, end)
    os.pwrite(fd, _end_of(header, records, sequence), end)
    return Salvaged(part, _publish(fd, directory, part, replace(header), sync), records)


def _row_of(data: bytes) -> Row | None:
    """The row of a line; None if the line is incomplete or invalid."""
    if not data.endswith(b"\n"):
        return None
    try:
        return read_line(data.decode())
    except (BadLine, UnicodeDecodeError):
        return None
