"""The files of the history: segments, each written by one process, each readable without the others.

    past-1-<first second>-<writer>-<number>.log

1 is the version of the records; the number counts the segments of the writer. A process never changes a segment of
another one. Only the oldest segments are deleted, of all processes, but none that a process still has open.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from kafka_throttle.common.atomic_file import is_at, own_as
from kafka_throttle.common.file_lock import Lock, lock
from kafka_throttle.proxy.observe.past.moments import Held
from kafka_throttle.proxy.observe.past.records import Damaged, Head, read_head

SEGMENTS = 8
"""How many segments of full size there is room for."""

_VERSION = 1
_NAME = re.compile(rf"past-{_VERSION}-(?P<first>[0-9]{{1,15}})-(?P<writer>[A-Za-z0-9.]+)-[0-9]+\.log")
MAX_SEGMENTS = 1_000
"""The most segments, however small: a process that is started again and again begins one each time."""
_LONGEST_LINE_BYTES = 32 << 20
_IDLE_S = 60


class Found(NamedTuple):
    """A segment in the directory. `written_s` is when it was last written to."""

    first_s: int
    writer: str
    path: Path
    written_s: float
    size_bytes: int

    def is_live(self, now_s: float) -> bool:
        """Whether its writer still has it open; without locks, whether it may have, as all write every 10 s."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            found = lock(file.fileno(), fcntl.LOCK_SH)
            return found is Lock.HELD or (found is Lock.NONE and now_s - self.written_s <= _IDLE_S)
        return False


def segments_in(directory: Path) -> list[Found]:
    """The segments in a directory, the oldest first. None if it is missing or cannot be read."""
    found = []
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if name := _NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    state = path.stat()
                    if S_ISREG(state.st_mode):
                        found.append(Found(int(name["first"]), name["writer"], path, state.st_mtime, state.st_size))
    return sorted(found)


def held_in(directory: Path, keep_s: int, now_s: float) -> Held | None:
    """The range of seconds of which there are records."""
    found = segments_in(directory)
    last_s = max((int(each.written_s) for each in found), default=0)
    first_s = max(min((each.first_s for each in found), default=0), int(now_s) - keep_s)
    return Held(first_s, min(last_s, int(now_s) - 1)) if found and first_s <= last_s else None


def may_hold(directory: Path, second: int) -> Iterator[Path]:
    """The segments that may have records of a second, the oldest first."""
    return (found.path for found in segments_in(directory) if found.first_s <= second <= found.written_s)


@dataclass(slots=True)
class Reading:
    """The undamaged lines of one segment, in their order. `damaged` counts the others that were met so far."""

    path: Path
    damaged: int = 0

    def heads(self) -> Iterator[Head]:
        """The heads of the lines. A segment that is deleted meanwhile, or cannot be read, ends."""
        try:
            with self.path.open("rb") as file:
                while line := file.readline(_LONGEST_LINE_BYTES):
                    try:
                        yield read_head(line)
                    except Damaged:
                        self.damaged += 1
        except FileNotFoundError:
            return
        except OSError:
            self.damaged += 1


class Segment:
    """A segment that is being written, and locked as long as it is open.

    After a failed write it ends with what was written before, and is closed.
    """

    def __init__(self, directory: Path, writer: str, number: int, first_s: int, begin: bytes) -> None:
        """Write the first lines. Raises OSError; then nothing of the file is left."""
        self.first_s = first_s
        self.size_bytes = 0
        self.seconds = 0
        """How many seconds were written; who writes them counts."""
        self._path = directory / f"past-{_VERSION}-{first_s}-{writer}-{number}.log"
        self._fd: int | None = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            lock(self._fd)
            own_as(self._fd, directory)
            self.append(begin)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            raise

    def is_in_place(self) -> bool:
        """Whether the file is still in its place, neither removed nor moved. Raises OSError."""
        return self._fd is not None and is_at(self._path, self._fd)

    def append(self, lines: bytes) -> None:
        """Write lines. Raises OSError; then the segment ends with the lines before, and is closed."""
        assert self._fd is not None
        at, view = self.size_bytes, memoryview(lines)
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                at, view = at + written, view[written:]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            self.close()
            raise
        self.size_bytes = at

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def make_room(directory: Path, own: str, max_bytes: int, keep_s: int, now_s: float) -> int:
    """Delete the oldest segments until one more of full size has room, and those that are older than `keep_s`.

    Segments that other processes have open count as full. Returns the size of those that are left. Raises OSError.
    """
    full_bytes = max_bytes // SEGMENTS
    found = segments_in(directory)
    live = {each.path for each in found if each.writer != own and each.is_live(now_s)}
    total = sum(max(each.size_bytes, full_bytes) if each.path in live else each.size_bytes for each in found)
    left, left_bytes = len(found), sum(each.size_bytes for each in found)
    for each in found:
        has_room = total + full_bytes <= max_bytes and left < MAX_SEGMENTS
        if each.path in live or (has_room and now_s - each.written_s <= keep_s):
            continue
        each.path.unlink(missing_ok=True)
        left -= 1
        total -= each.size_bytes
        left_bytes -= each.size_bytes
    return left_bytes
