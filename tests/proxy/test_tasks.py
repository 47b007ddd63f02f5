import asyncio

import structlog

from proxy.server.tasks import Tasks
from tests.timeouts import TIMEOUT_S


async def test_a_task_that_has_ended_is_kept_no_longer():
    tasks = Tasks()

    async def work():
        pass

    async def fail():
        raise ValueError("x")

    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(tasks.spawn(work()) for _ in range(100)), tasks.spawn(fail()), return_exceptions=True)
        await asyncio.sleep(0)
    assert len(tasks) == 0
    assert [line["event"] for line in logs] == ["background_task_failed"]


async def test_those_that_run_are_cancelled_together():
    tasks = Tasks()
    running = [tasks.spawn(asyncio.Event().wait()) for _ in range(3)]
    assert len(tasks) == 3
    async with asyncio.timeout(TIMEOUT_S):
        await tasks.cancel()
    assert all(task.cancelled() for task in running)
