"""Runs attempts that start one after another, and takes the first that succeeds (RFC 8305)."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka_throttle.common.bounded import Bounded

Result = TypeVar("Result")
Way = TypeVar("Way", bound=Hashable)

_TRIED_LAST_US = 30_000_000
_MOST_SLOW = 10_000


class AllFailed(Exception):
    """No attempt succeeded; `failures` are in the order of the attempts."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


async def race(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, Result]]], delay_s: float, drop: Callable[[Result], object]
) -> tuple[int, Result]:
    """The number of the first attempt that succeeds, and its result. Raises AllFailed.

    The next attempt starts after `delay_s`, or after a failure. Once an attempt has succeeded, the others are
    cancelled. `drop` is called with the result of an attempt that succeeds in spite of that.
    """
    running: dict[asyncio.Task[Result], int] = {}
    failures: dict[int, Exception] = {}
    waiting = list(enumerate(attempts))[::-1]
    try:
        while waiting or running:
            if waiting:
                number, attempt = waiting.pop()
                running[asyncio.ensure_future(attempt())] = number
            done, _ = await asyncio.wait(running, timeout=delay_s if waiting else None, return_when="FIRST_COMPLETED")
            for task in [task for task in running if task in done]:
                number = running.pop(task)
                try:
                    return number, task.result()
                except Exception as error:
                    failures[number] = error
    finally:
        for task in running:
            task.add_done_callback(partial(_drop, drop))
            task.cancel()
    raise AllFailed([failures[number] for number in sorted(failures)])


def _drop(drop: Callable[[Result], object], task: asyncio.Task[Result]) -> None:
    if not task.cancelled() and task.exception() is None:
        drop(task.result())


class Slow:
    """The ways (such as addresses) that failed or were slower than others in the last 30 s. They are tried last."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._until_us: Bounded[Hashable, int] = Bounded(_MOST_SLOW)

    def note(self, ways: Iterable[Hashable]) -> None:
        """Note that these ways failed or were slower than others."""
        for way in ways:
            self._until_us[way] = self._now_us() + _TRIED_LAST_US

    def has(self, way: Hashable) -> bool:
        """Whether a way is one of them."""
        if not self._until_us:
            return False
        now_us = self._now_us()
        return self._until_us.get(way, now_us) > now_us

    def last(self, ways: Iterable[Way]) -> list[Way]:
        """The same ways, with the slow ones behind the others."""
        return sorted(ways, key=self.has)
