"""Attempts that race: who wins, who is called off, what is told when all fail, and what is tried last next time."""

import asyncio

import pytest

from kafka_throttle.common.race import AllFailed, Slow, race
from tests.fakes.clock import FakeClock
from tests.support.timeouts import TIMEOUT_S

NEVER_S = 1_000_000


class Attempts:
    """Attempts by name: `open` ones wait until they are told what comes of them."""

    def __init__(self):
        self.begun, self.called_off, self.dropped, self.outcomes = [], [], [], {}

    def __call__(self, *names):
        return [self._attempt(name) for name in names]

    def _attempt(self, name):
        async def run():
            self.begun.append(name)
            outcome = self.outcomes.setdefault(name, asyncio.get_running_loop().create_future())
            try:
                return await outcome
            except asyncio.CancelledError:
                self.called_off.append(name)
                raise

        return run

    async def begun_are(self, *names):
        async with asyncio.timeout(TIMEOUT_S):
            while self.begun != list(names):  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.fixture
def attempts():
    return Attempts()


def racing(attempts, *names, delay_s=NEVER_S):
    return asyncio.create_task(race(attempts(*names), delay_s, attempts.dropped.append))


async def test_the_next_one_begins_at_once_when_one_fails(attempts):
    task = racing(attempts, "a", "b", "c")
    await attempts.begun_are("a")
    attempts.outcomes["a"].set_exception(OSError("refused"))
    await attempts.begun_are("a", "b")
    attempts.outcomes["b"].set_result("won")
    assert await task == (1, "won")
    assert attempts.begun == ["a", "b"]


async def test_the_next_one_begins_when_one_takes_long_and_the_first_to_succeed_wins(attempts):
    task = racing(attempts, "a", "b", "c", delay_s=0)
    await attempts.begun_are("a", "b", "c")
    attempts.outcomes["b"].set_result("won")
    assert await task == (1, "won")
    await asyncio.sleep(0)
    assert attempts.called_off == ["a", "c"]


async def test_whatever_comes_too_late_is_dropped(attempts):
    task = racing(attempts, "a", "b", delay_s=0)
    await attempts.begun_are("a", "b")
    for name in ("b", "a"):
        attempts.outcomes[name].set_result(name)
    assert await task == (0, "a")
    await asyncio.sleep(0)
    assert attempts.dropped == ["b"]


async def test_when_all_fail_their_failures_are_told_in_order(attempts):
    task = racing(attempts, "a", "b", delay_s=0)
    await attempts.begun_are("a", "b")
    for name in ("b", "a"):
        attempts.outcomes[name].set_exception(OSError(f"{name} failed"))
        await asyncio.sleep(0)
    with pytest.raises(AllFailed, match="a failed; b failed"):
        await task


async def test_who_gives_up_the_race_calls_off_all(attempts):
    task = racing(attempts, "a", "b", delay_s=0)
    await attempts.begun_are("a", "b")
    task.cancel()
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert attempts.called_off == ["a", "b"]


def test_what_was_slow_is_tried_last_for_a_while():
    clock = FakeClock()
    slow = Slow(clock.now_us)
    slow.note(["a", "c"])
    assert slow.last("abcd") == ["b", "d", "a", "c"]
    clock.advance(29_999)
    assert slow.last("abcd") == ["b", "d", "a", "c"]
    clock.advance(1)
    assert slow.last("abcd") == ["a", "b", "c", "d"]
