"""Work in steps leaves the event loop to others between any two of them, however much work there is."""

import asyncio
from itertools import pairwise

import pytest

from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.quotas.fair_queue import Whose


def steps_of(done, name, count):
    """Work of so many steps; which of them are done is seen in `done`."""
    for _ in range(count):
        done.append(name)
        yield
    return name


async def test_a_hundred_at_once_take_one_step_in_a_turn_of_the_loop():
    done, seen = [], []

    async def watch():
        while True:
            seen.append(len(done))
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    assert await asyncio.gather(*(finish_in_turns(steps_of(done, name, 5)) for name in range(100))) == [*range(100)]
    watcher.cancel()
    assert len(done) == 500
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_each_has_its_step_in_turn():
    done = []
    await asyncio.gather(*(finish_in_turns(steps_of(done, name, 3)) for name in "ab"))
    assert "".join(done) == "ababab"


async def test_work_of_an_entity_waits_for_two_steps_of_another_entity_however_much_work_that_has():
    done = []
    work = [finish_in_turns(steps_of(done, "tenant", 20), Whose("tenant", number)) for number in range(100)]
    await asyncio.gather(*work, finish_in_turns(steps_of(done, "small", 20), Whose("small")))
    last = len(done) - 1 - done[::-1].index("small")
    assert done[:last].count("tenant") <= 41


@pytest.mark.parametrize("after", range(8))
async def test_work_that_is_cancelled_at_any_moment_leaves_its_turn_to_one_other(after):
    done, under_way = [], 0

    def watched(name):
        nonlocal under_way
        for _ in range(20):
            assert under_way == 0
            under_way += 1
            asyncio.get_running_loop().call_soon(end)
            done.append(name)
            yield
        return name

    def end():
        nonlocal under_way
        under_way -= 1

    tasks = [asyncio.create_task(finish_in_turns(watched(name), Whose(str(name % 2), name))) for name in range(9)]
    for _ in range(after):
        await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert ended[1::2] == [1, 3, 5, 7]
    assert all(isinstance(error, asyncio.CancelledError) for error in ended[::2])


async def test_work_that_fails_or_is_cancelled_holds_up_no_other():
    def fails():
        yield
        raise ValueError

    done = []
    endless = asyncio.create_task(finish_in_turns(steps_of(done, "endless", 10**9)))
    failing = asyncio.create_task(finish_in_turns(fails()))
    with pytest.raises(ValueError):
        await failing
    endless.cancel()
    assert await finish_in_turns(steps_of(done, "last", 3)) == "last"
