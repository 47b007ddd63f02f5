"""Writes log lines to a descriptor in a thread of its own, so that whoever does not read them holds up nobody."""

import io
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

_MOST_WAITING_BYTES = 4 << 20
_MOST_AT_ONCE_BYTES = 64 << 10


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
        self._reported = 0
        self._is_cut = False
        """Whether the last line that was written has no end, because the rest of it could not be written."""
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
            if self._write(lines):
                with suppress(Exception):  # a bug in the notice must not end the log
                    self._report_dropped()
            with self._lock:
                self._waiting_bytes -= len(lines)
            if done is not None:
                done.set()

    def _next_batch(self) -> tuple[bytes, threading.Event | None]:
        """The lines that wait, up to a bound, and the event to set when they are written, if somebody waits for it."""
        found, size_bytes = [], 0
        item = self._queue.get()
        while not isinstance(item, threading.Event):
            found.append(item)
            size_bytes += len(item)
            if size_bytes >= _MOST_AT_ONCE_BYTES:
                return b"".join(found), None
            try:
                item = self._queue.get_nowait()
            except Empty:
                return b"".join(found), None
        return b"".join(found), item

    def _write(self, lines: bytes) -> bool:
        """Write lines, and wait for the reader as long as that takes. False if not all of them could be written."""
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
                with self._lock:
                    self.dropped += _count(bytes(rest))
                return False
        self._is_cut = self._is_cut and not lines
        return True

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll()

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if dropped != self._reported and self._write(self._notice(dropped - self._reported)):
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
    return max(lines.count(b"\n"), 1)
