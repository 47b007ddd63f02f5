"""Work in steps leaves the event loop to others between any two of them, however much work there is."""

import asyncio
from itertools import pairwise

import pytest

from proxy.net.turns import finish_in_turns


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
