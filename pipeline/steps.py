"""What commands that take long print meanwhile, and their exit status where there is nothing to tell."""

import sys
import time
from threading import Lock

EMPTY = 3
"""The exit status if there are no records, or nothing to recommend: the files are written all the same and say so."""


class Steps:
    """Prints on standard error which step of the work has begun."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._began = time.monotonic()
        self._lock = Lock()

    @property
    def seconds(self) -> float:
        """The time since the first step."""
        return time.monotonic() - self._began

    def next(self, name: str) -> None:
        """Begin the next step."""
        with self._lock:
            self._number += 1
            say(f"[{self._number}/{self._count}] {self.seconds:5.1f} s  {name}")


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)
