"""Background work: an error does not end it, and is logged, counted and shown."""

import asyncio
import threading

import pytest
import structlog

from kafka_throttle.common import duties
from kafka_throttle.common.duties import Duty
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(duties, "_AGAIN_S", 0)


class Work:
    """Fails in its first turns, `failures` of them; then it goes on for good."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.goes_on = asyncio.Event()

    async def run(self):
        if self.failures:
            raise self.failures.pop(0)
        self.goes_on.set()
        await asyncio.Event().wait()


async def kept(duty, work):
    """The task of a duty whose work goes on."""
    task = asyncio.create_task(duty.keep(work.run))
    async with asyncio.timeout(TIMEOUT_S):
        await work.goes_on.wait()
    return task


async def ended(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_fails_is_begun_again_and_shown_for_a_minute():
    now_s = [100.0]
    duty = Duty("testing", "virtual cluster main", lambda: now_s[0])
    before = duties.failures().get("testing", 0)
    task = await kept(duty, Work(ValueError("\x1b[2J"), LookupError("again")))
    assert duties.failures()["testing"] == before + 2
    assert duties.troubles() == ["virtual cluster main: an error in the proxy itself, in testing: LookupError('again')"]
    now_s[0] += 61
    assert duties.troubles() == []
    await ended(task)


async def test_what_was_cancelled_is_no_longer_shown():
    task = await kept(Duty("testing"), Work(ValueError("once")))
    assert len(duties.troubles()) == 1
    await ended(task)
    assert duties.troubles() == []


async def test_something_inside_that_is_cancelled_does_not_end_it():
    task = await kept(Duty("testing"), Work(asyncio.CancelledError(), ValueError("another")))
    await ended(task)


async def test_errors_are_logged_once_a_minute_with_their_number():
    now_s = [0.0]
    duty = Duty("testing", now_s=lambda: now_s[0])
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            duty.failed(ValueError("x"))
        now_s[0] = 60.0
        duty.failed(ValueError("x"))
    assert [(line["event"], line["task"], line["failures"]) for line in logs] == [
        ("background_task_failed", "testing", 1),
        ("background_task_failed", "testing", 3),
    ]


def test_an_error_of_one_object_is_none_of_the_others():
    duty, looked_after = Duty("testing"), []
    for number in range(4):
        with duty:
            looked_after.append(10 // (number - 1))
    assert looked_after == [-10, 10, 5]
    assert "ZeroDivisionError" in duty.trouble


def test_an_end_of_the_process_is_no_error():
    with pytest.raises(KeyboardInterrupt), Duty("testing"):
        raise KeyboardInterrupt


def test_a_thread_is_kept_too_until_it_is_to_stop():
    duty, stopping, turns = Duty("testing"), threading.Event(), []

    def run():
        turns.append(duties.troubles())
        if len(turns) == 3:
            stopping.set()
        raise ValueError(len(turns))

    duty.keep_in_thread(run, stopping)
    assert [len(troubles) for troubles in turns] == [0, 1, 1]
    assert duties.troubles() == []
