"""Memory that this process shares with those that are forked from it, as workers are."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final


class ForkedMemory:
    """Values by key, as JSON, for few and small ones. Make it before the processes are forked.

    Where the system has no such memory, each process has values of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}
        try:
            self._file = os.memfd_create("kafka-throttle")
        except OSError:
            self._file = -1

    @contextmanager
    def value(self, key: str) -> Iterator[dict[str, Any]]:
        """The value of a key, {} at first, for this process alone. What the block makes of it is kept."""
        with self._lock:
            if self._file < 0:
                yield self._values.setdefault(key, {})
                return
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                values = self._read()
                try:
                    yield values.setdefault(key, {})
                finally:
                    self._write(values)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(os.pread(self._file, os.fstat(self._file).st_size, 0) or b"{}")
        except ValueError:  # a process was killed while it wrote
            return {}
        return found

    def _write(self, values: dict[str, Any]) -> None:
        data = json.dumps(values).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))


LOGINS: Final = ForkedMemory()
"""What came of logins."""
