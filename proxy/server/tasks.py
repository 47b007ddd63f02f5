"""The background tasks of a part of the process."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kafka_throttle.common.duties import Duty


class Tasks:
    """Tasks that run until they end, or are cancelled together. One that fails is logged; the others go on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._duties: dict[str, Duty] = {}
        """Count and log the failures of tasks that end, by what they do."""

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; `what` says in words what it does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, what))
        return task

    def keep(self, duty: Duty, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start background work that goes on after errors, until it is cancelled."""
        return self.spawn(duty.name, duty.keep(run))

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._duties.setdefault(what, Duty(what)).failed(error)
