"""Fake time: events in order, and an asyncio loop on it, so that the product's own coroutines run there."""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, ContextVar
from math import ceil
from typing import Any, Final

_Entry = tuple[int, int, Callable[..., None], tuple[Any, ...]]


class Events:
    """What will happen, by time in ms; what is due at the same time happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.count = 0
        self._planned: list[_Entry] = []
        self._order = 0

    def at(self, at_ms: int, callback: Callable[..., None], *args: Any) -> None:
        """Plan a call; a time that has passed is now."""
        self._order += 1
        heapq.heappush(self._planned, (max(at_ms, self.now_ms), self._order, callback, args))

    def after(self, delay_ms: int, callback: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ms + delay_ms, callback, *args)

    def run(self, until_ms: int | None, enough: Callable[[], bool]) -> None:
        """Let events happen until this time, or until there is `enough`."""
        planned = self._planned
        while planned and (until_ms is None or planned[0][0] <= until_ms):
            self.now_ms, _, callback, args = heapq.heappop(planned)
            self.count += 1
            callback(*args)
            if enough():
                return
        if until_ms is None:
            raise RuntimeError("nothing will ever happen again")
        self.now_ms = max(self.now_ms, until_ms)


_LONG_AGO_MS: Final = -(10**9)


class Process:
    """What runs in one simulated process; it can be suspended, as by a long pause of the machine, or be killed."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.is_alive = True
        self.suspended_until_ms = _LONG_AGO_MS
        self.left: list[tuple[SimulatedLoop, asyncio.Handle]] = []
        """What the process would have gone on with."""

    def kill(self) -> None:
        """Stop for good."""
        self.is_alive = False

    def revive(self) -> None:
        """Go on with everything that was left, so that coroutines can be cancelled."""
        self.is_alive, self.suspended_until_ms = True, _LONG_AGO_MS
        left, self.left = self.left, []
        for loop, handle in left:
            loop.make_ready(handle)

    def suspend(self, for_ms: int) -> None:
        self.suspended_until_ms = max(self.suspended_until_ms, self._events.now_ms + for_ms)

    @property
    def is_suspended(self) -> bool:
        return self._events.now_ms < self.suspended_until_ms

    def run(self, callback: Callable[..., None], *args: Any) -> None:
        """Call now, or at the end of the suspension; never if the process has been killed."""
        if not self.is_alive:
            return
        if self.is_suspended:
            self._events.at(self.suspended_until_ms, self.run, callback, *args)
        else:
            callback(*args)


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process in whose name a coroutine runs."""


def _run_in_process(handle: asyncio.Handle, run: Callable[[], None]) -> None:
    """Run what a loop has ready; at the end of its process's suspension, and not while the process is dead."""
    process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    loop: SimulatedLoop = handle._loop  # type: ignore[attr-defined]
    if process is None:
        run()
    elif not process.is_alive:
        process.left.append((loop, handle))
    elif process.is_suspended:
        loop.events.at(process.suspended_until_ms, loop.make_ready, handle)
    else:
        run()


class _Handle(asyncio.Handle):
    def _run(self) -> None:
        _run_in_process(self, super()._run)  # type: ignore[misc]


class _TimerHandle(asyncio.TimerHandle):
    def _run(self) -> None:
        _run_in_process(self, super()._run)  # type: ignore[misc]


class SimulatedLoop(asyncio.BaseEventLoop):
    """An asyncio loop whose time is that of the events. What runs in the name of a Process stops with it."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events
        self._selector = self
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.events.now_ms / 1000

    def select(self, timeout: float | None) -> tuple[()]:
        """In place of waiting for sockets: let time pass until the loop has something to do."""
        until_ms = None if timeout is None else self.events.now_ms + ceil(timeout * 1000 - 1e-3)
        if not self._ready:  # type: ignore[attr-defined]
            self.events.run(until_ms, self._has_work)
        return ()

    def make_ready(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)  # type: ignore[attr-defined]

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _has_work(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
