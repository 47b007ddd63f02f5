"""The background tasks of a part of the process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from common.duties import Duty

log = structlog.get_logger()


class Tasks:
    """Tasks that run until they end, or are cancelled together. One that fails is logged; the others go on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, duty: Duty, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start background work that goes on after errors, until it is cancelled."""
        return self.spawn(duty.keep(run))

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_failed", exc_info=error)
