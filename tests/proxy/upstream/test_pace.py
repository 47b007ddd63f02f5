"""New connections to a node at a bounded rate: evenly, in order, on fake time."""

import asyncio
from itertools import pairwise

import pytest

from kafka_throttle.proxy.upstream.pace import Pace
from kafka_throttle.quotas.fair_queue import Whose
from tests.fakes.clock import FakeClock


class Paced:
    """A pace on fake time, and who has had a turn, and when."""

    def __init__(self, per_second):
        self.clock = FakeClock()
        self.wakes = {}
        self.pace = Pace(self.clock.now_us, self._wake_in)
        self.pace.set_rate(per_second)
        self.turns, self.tasks = [], {}

    def _wake_in(self, seconds, serve):
        at_us = self.clock.now_us() + seconds * 1e6
        self.wakes[serve] = at_us
        return lambda: self.wakes.pop(serve)

    async def ask(self, *names):
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take(name))
        await self.settle()

    async def _take(self, name):
        await self.pace.turn(Whose(str(name).partition(" ")[0]))
        self.turns.append((name, self.clock.now_ms() - 5_000_000))

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def advance(self, ms):
        """Let time pass in steps of 1 ms, and make the calls that were asked for."""
        for _ in range(ms):
            self.clock.advance(1)
            for serve in [serve for serve, at_us in self.wakes.items() if at_us <= self.clock.now_us()]:
                del self.wakes[serve]
                serve()
            await self.settle()


async def test_turns_come_evenly_and_in_order():
    paced = Paced(10)
    await paced.ask("a", "b", "c", "d")
    assert (paced.turns, paced.pace.waiting) == ([("a", 0)], 3)
    await paced.advance(1000)
    assert paced.turns == [("a", 0), ("b", 100), ("c", 200), ("d", 300)]
    assert (paced.pace.waiting, paced.wakes, paced.pace.unused) == (0, {}, True)


async def test_an_address_that_asks_for_very_many_waits_for_itself():
    paced = Paced(10)
    await paced.ask("one 1", "one 2", "one 3", "one 4", "two 1", "two 2", "three 1")
    paced.tasks["one 3"].cancel()
    await paced.settle()
    await paced.advance(1000)
    assert [name for name, _ in paced.turns] == ["one 1", "one 2", "two 1", "three 1", "one 4", "two 2"]
    assert (paced.pace.waiting, paced.wakes, paced.pace.unused) == (0, {}, True)


async def test_without_a_rate_no_connection_waits():
    paced = Paced(None)
    await paced.ask(*range(100))
    assert paced.turns == [(number, 0) for number in range(100)]


async def test_a_connection_that_is_given_up_takes_no_turn():
    paced = Paced(10)
    await paced.ask("a", "b", "c", "d")
    paced.tasks["b"].cancel()
    paced.tasks["c"].cancel()
    await paced.advance(100)
    assert paced.turns == [("a", 0), ("d", 100)]


@pytest.mark.parametrize("per_second", [1, 7, 50, 900, 3000])
async def test_in_the_long_run_it_is_the_rate_however_late_timers_are(per_second):
    paced = Paced(per_second)
    await paced.ask(*range(4000))
    await paced.advance(1000)
    assert per_second * 0.97 - 1 <= len(paced.turns) <= per_second * 1.011 + 1
    assert [name for name, _ in paced.turns] == list(range(len(paced.turns)))


async def test_a_pause_is_not_saved_up():
    paced = Paced(10)
    await paced.ask("a")
    await paced.advance(5000)
    await paced.ask("b", "c", "d")
    await paced.advance(1000)
    times = [at for _, at in paced.turns[1:]]
    assert all(later - earlier >= 89 for earlier, later in pairwise(times))


async def test_a_new_rate_counts_for_waiting_connections():
    paced = Paced(0.01)
    await paced.ask(*"abcde")
    await paced.advance(1000)
    assert len(paced.turns) == 1
    paced.pace.set_rate(100)
    await paced.advance(20)
    assert len(paced.turns) == 3
    paced.pace.set_rate(None)
    await paced.settle()
    assert [name for name, _ in paced.turns] == list("abcde")
