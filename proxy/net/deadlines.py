"""Many timeouts of equal length on one timer of the event loop. Nearly all are cancelled long before they are over."""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting", bound=Hashable)


class Deadlines(Generic[Waiting]):
    """Calls `overdue` with each object that has waited for `delay_s`."""

    def __init__(self, delay_s: float, overdue: Callable[[Waiting], None]) -> None:
        self.delay_s = delay_s
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._due_s: dict[Waiting, float] = {}
        """The deadline of each waiting object, the earliest first."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiting: Waiting) -> None:
        """Let an object begin to wait."""
        self._due_s[waiting] = self._loop.time() + self.delay_s
        if self._timer is None:
            self._timer = self._loop.call_later(self.delay_s, self._look)

    def discard(self, waiting: Waiting) -> None:
        """Let an object wait no longer, if it waits."""
        self._due_s.pop(waiting, None)

    def __len__(self) -> int:
        return len(self._due_s)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._due_s)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        try:
            while (waiting := self._first(now_s)) is not None:
                del self._due_s[waiting]
                self._overdue(waiting)
        finally:
            self._look_again()

    def _look_again(self) -> None:
        if self._timer is not None:  # somebody has begun to wait meanwhile
            self._timer.cancel()
        due_s = next(iter(self._due_s.values()), None)
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._look)

    def _first(self, now_s: float) -> Waiting | None:
        """The first object whose time is over."""
        return next((waiting for waiting, due_s in islice(self._due_s.items(), 1) if due_s <= now_s), None)
