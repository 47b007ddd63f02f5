import asyncio

import structlog

from kafka_throttle.common.duties import failures
from kafka_throttle.proxy.server.tasks import Tasks
from tests.support.timeouts import TIMEOUT_S


async def test_a_task_that_has_ended_is_kept_no_longer():
    tasks = Tasks()

    async def work():
        pass

    async def fail():
        raise ValueError("x")

    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(
            *(tasks.spawn("working", work()) for _ in range(100)),
            *(tasks.spawn("failing", fail()) for _ in range(3)),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
    assert len(tasks) == 0
    [line] = logs
    assert (line["event"], line["task"], line["failures"]) == ("background_task_failed", "failing", 1)
    assert failures()["failing"] == 3


async def test_those_that_run_are_cancelled_together():
    tasks = Tasks()
    running = [tasks.spawn("waiting", asyncio.Event().wait()) for _ in range(3)]
    assert len(tasks) == 3
    async with asyncio.timeout(TIMEOUT_S):
        await tasks.cancel()
    assert all(task.cancelled() for task in running)
