"""Waits of equal length on one timer."""

import asyncio

from kafka_throttle.proxy.net.deadlines import Deadlines
from tests.support.timeouts import TIMEOUT_S


async def test_waits_that_are_too_long_end_in_turn_and_cancelled_ones_do_not():
    overdue, last = [], asyncio.Event()
    deadlines = Deadlines(0.001, lambda name: (overdue.append(name), last.set() if name == "d" else None))
    for name in "abc":
        deadlines.add(name)
    deadlines.discard("b")
    deadlines.discard("nobody")
    assert (len(deadlines), list(deadlines)) == (2, ["a", "c"])
    await asyncio.sleep(0)
    deadlines.add("d")
    await asyncio.wait_for(last.wait(), TIMEOUT_S)
    assert overdue == ["a", "c", "d"]
    assert len(deadlines) == 0


async def test_it_begins_again_after_all_are_over():
    reported = asyncio.Event()
    deadlines = Deadlines(0.001, lambda _: reported.set())
    for name in ("first", "second"):
        deadlines.add(name)
        await asyncio.wait_for(reported.wait(), TIMEOUT_S)
        reported.clear()


async def test_one_timer_does_for_all():
    timers = []
    deadlines = Deadlines(3600, print)
    loop = asyncio.get_running_loop()
    deadlines._loop = type(
        "Loop", (), {"time": loop.time, "call_later": lambda self, *call: timers.append(call) or 1}
    )()
    for number in range(1000):
        deadlines.add(number)
    assert len(timers) == 1


async def test_an_error_with_one_that_is_overdue_is_none_of_the_others():
    overdue, last, errors = [], asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))

    def end(name):
        if name == "bad":
            raise ValueError(name)
        overdue.append(name)
        if name == "c":
            last.set()

    deadlines = Deadlines(0.001, end)
    for name in ("a", "bad", "b", "c"):
        deadlines.add(name)
    await asyncio.wait_for(last.wait(), TIMEOUT_S)
    assert overdue == ["a", "b", "c"]
    assert [str(error) for error in errors] == ["bad"]
