"""Writes log lines to a descriptor in a separate thread, so that the event loop never waits for them to be read."""

import io
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

_MOST_WAITING_BYTES = 4 << 20
_MOST_AT_ONCE_BYTES = select.PIPE_BUF - 1
"""Other processes write to the same pipe. The system never mixes their lines with ours in writes up to this size."""


class LogWriter:
    """A bounded queue of log lines, and the thread that writes them.

    Lines for which there is no room, or that cannot be written, are dropped and counted. `notice` returns the line that
    says how many were dropped; it is written as soon as lines can be written again.
    """

    def __init__(self, fd: int, notice: Callable[[int], bytes], most_waiting_bytes: int = _MOST_WAITING_BYTES) -> None:
        self.dropped = 0
        """How many lines were dropped."""
        self._fd = fd
        self._notice = notice
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting_bytes = 0
        self._lock = threading.RLock()  # a garbage collection amid `put` may log
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._left: bytes | threading.Event | None = None
        """An item that was taken from the queue, and is not in a batch yet."""
        self._reported = 0
        self._is_cut = False
        """Whether the last line has no end, because the rest of it could not be written."""
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def put(self, lines: bytes) -> None:
        """Queue lines. Never waits: drops them if too much waits already. May be called by any thread."""
        size_bytes = len(lines)
        with self._lock:
            if self._waiting_bytes + size_bytes > self._most_waiting_bytes:
                self.dropped += _count(lines)
                return
            self._waiting_bytes += size_bytes
        self._queue.put(lines)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that is queued was written or dropped, at most this long. False if it was not."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    # ------------------------------------------------------- for the own thread

    def _run(self) -> None:
        while True:
            lines, done = self._next_batch()
            rest = self._write(lines)
            if not rest:
                with suppress(Exception):  # a bug in the notice must not end the log
                    self._report_dropped()
            with self._lock:
                self._waiting_bytes -= len(lines)
                self.dropped += _count(rest)
            if done is not None:
                done.set()

    def _next_batch(self) -> tuple[bytes, threading.Event | None]:
        """The lines that wait, as many as are written at once, or the event to set because none wait before it."""
        item = self._queue.get() if self._left is None else self._left
        self._left = None
        if isinstance(item, threading.Event):
            return b"", item
        found, size_bytes = [item], len(item)
        with suppress(Empty):
            while self._left is None:
                item = self._queue.get_nowait()
                if isinstance(item, threading.Event) or size_bytes + len(item) > _MOST_AT_ONCE_BYTES:
                    self._left = item
                else:
                    found.append(item)
                    size_bytes += len(item)
        return b"".join(found), None

    def _write(self, lines: bytes) -> bytes:
        """Write lines, and wait for the reader as long as that takes. Returns what could not be written."""
        whole = b"\n" + lines if self._is_cut and lines else lines
        rest = memoryview(whole)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process that has this descriptor, too, does not want to block
                self._wait()
            except OSError:
                if written := whole[: len(whole) - len(rest)]:
                    self._is_cut = not written.endswith(b"\n")
                return bytes(rest)
        self._is_cut = self._is_cut and not lines
        return b""

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll()

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if dropped != self._reported and not self._write(self._notice(dropped - self._reported)):
            self._reported = dropped


class LogStream(io.RawIOBase):
    """A raw stream in place of standard error: what is written to it goes to the writer."""

    def __init__(self, writer: LogWriter, fd: int) -> None:
        self._writer = writer
        self._fd = fd

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The descriptor that the lines are written to."""
        return self._fd

    def isatty(self) -> bool:
        """Whether a terminal shows the lines."""
        return os.isatty(self._fd)

    def write(self, data: Any) -> int:
        """Queue bytes."""
        lines = bytes(data)
        self._writer.put(lines)
        return len(lines)


def _count(lines: bytes) -> int:
    """How many lines these are; a part of one counts as one."""
    return max(lines.count(b"\n"), bool(lines))
