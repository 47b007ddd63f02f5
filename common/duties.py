"""Duties: the background work of a process for as long as it runs, such as looking for timeouts.

An error never ends a duty, neither an error of the duty itself nor one about an object that it looks after. The error
is logged, counted and, for a minute, shown; the duty goes on.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import structlog

from kafka_throttle.common.at_most_every import AtMostEvery
from kafka_throttle.common.printable import printable

_AGAIN_S = 1.0
_SHOWN_S = 60.0
_REPORTED_EVERY_S = 60.0

_kept: list["Duty"] = []
"""All duties of this process."""
_failures: Counter[str] = Counter()

log = structlog.get_logger()


class Duty:
    """Background work that goes on after errors. As a context manager it notes an exception about one object.

    `name` says what the work is, and is the same for each `place` where it is done.
    """

    def __init__(self, name: str, place: str = "", now_s: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._place = place
        self._now_s = now_s
        self._reports = AtMostEvery(_REPORTED_EVERY_S)
        self._failed_s: float | None = None
        self._problem = ""

    @property
    def trouble(self) -> str | None:
        """The text about the last error within the last minute, None if there was none."""
        if self._failed_s is None or self._now_s() - self._failed_s > _SHOWN_S:
            return None
        where = f"{self._place}: " if self._place else ""
        return f"{where}an error in the proxy itself, in {self.name}: {self._problem}"

    def failed(self, error: BaseException) -> None:
        """Note an error. It is counted, and logged at most once a minute."""
        _failures[self.name] += 1
        self._failed_s, self._problem = self._now_s(), printable(repr(error))
        if failures := self._reports.times(self._failed_s):
            place = self._place or None
            log.error("background_task_failed", task=self.name, place=place, failures=failures, exc_info=error)

    def __enter__(self) -> None:
        """Begin with one object."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note an exception, and suppress it."""
        if isinstance(error, Exception):
            self.failed(error)
            return True
        return False

    async def keep(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `run` until it returns, or this task is cancelled. After an error it is called again 1 s later."""
        with self._shown():
            while True:
                try:
                    return await run()
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    self.failed(error)  # something that it has waited for was cancelled
                except Exception as error:
                    self.failed(error)
                await asyncio.sleep(_AGAIN_S)

    def keep_in_thread(self, run: Callable[[], None], stopping: threading.Event) -> None:
        """The same in a thread: until `run` returns, or fails after `stopping` was set."""
        with self._shown():
            while True:
                try:
                    return run()
                except Exception as error:
                    self.failed(error)
                if stopping.wait(_AGAIN_S):
                    return None

    @contextmanager
    def _shown(self) -> Iterator[None]:
        _kept.append(self)
        _failures.setdefault(self.name, 0)
        try:
            yield
        finally:
            _kept.remove(self)


def troubles() -> list[str]:
    """The errors of this process's duties within the last minute, one line for each duty."""
    return [trouble for duty in list(_kept) if (trouble := duty.trouble) is not None]


def failures() -> Mapping[str, int]:
    """How often each duty of this process has failed, by its name."""
    return dict(_failures)
