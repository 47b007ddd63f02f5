"""Looking names up: each by itself, once at a time, remembered for a moment."""

import asyncio
import socket
import threading

import pytest

from kafka_throttle.common.look_ups import LookUps, _in_turn, at_port, look_up
from tests.fakes.clock import FakeClock
from tests.support.timeouts import TIMEOUT_S

A, B = ((socket.AF_INET, (address, 0)) for address in ("10.0.0.1", "10.0.0.2"))
SIX = (socket.AF_INET6, ("2001:db8::1", 0, 0, 0))


class Resolver:
    """Answers when it is told to."""

    def __init__(self):
        self.asked, self.responses = [], {}

    async def __call__(self, host):
        self.asked.append(host)
        return await self.responses.setdefault(host, asyncio.get_running_loop().create_future())

    async def response(self, host, response):
        async with asyncio.timeout(TIMEOUT_S):
            while host not in self.responses:  # noqa: ASYNC110
                await asyncio.sleep(0)
        future = self.responses.pop(host)
        future.set_exception(response) if isinstance(response, OSError) else future.set_result(response)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def resolver():
    return Resolver()


@pytest.fixture
def look_ups(clock, resolver):
    return LookUps(clock.now_us, resolver)


async def learn(look_ups, resolver, host, response):
    task = asyncio.create_task(look_ups.of(host))
    await resolver.response(host, response)
    return await task


async def test_a_name_is_asked_for_once_by_many_and_again_when_the_response_is_old(look_ups, resolver, clock):
    tasks = [asyncio.create_task(look_ups.of("a")) for _ in range(3)]
    await resolver.response("a", [A])
    assert await asyncio.gather(*tasks) == [[A]] * 3
    clock.advance(4_999)
    assert await look_ups.of("a") == [A]
    assert resolver.asked == ["a"]
    clock.advance(1)
    assert await learn(look_ups, resolver, "a", [B]) == [B]
    assert resolver.asked == ["a", "a"]


async def test_a_name_that_takes_long_delays_no_other(look_ups, resolver):
    slow = asyncio.create_task(look_ups.of("slow"))
    assert await learn(look_ups, resolver, "a", [A]) == [A]
    assert not slow.done()
    await resolver.response("slow", OSError("no answer"))
    with pytest.raises(OSError, match="no answer"):
        await slow


async def test_an_older_response_serves_where_none_comes_but_not_for_ever(look_ups, resolver, clock, monkeypatch):
    await learn(look_ups, resolver, "a", [A])
    clock.advance(299_000)
    assert await learn(look_ups, resolver, "a", OSError("no answer")) == [A]
    monkeypatch.setattr("kafka_throttle.common.look_ups._LONGEST_WAIT_S", 0)
    assert await look_ups.of("a") == [A]
    await resolver.response("a", OSError("no answer"))
    clock.advance(2_000)
    with pytest.raises(OSError, match="no answer"):
        await learn(look_ups, resolver, "a", OSError("no answer"))


async def test_what_did_not_work_is_asked_for_again(look_ups, resolver):
    await learn(look_ups, resolver, "a", [A])
    look_ups.penalty("a")
    assert await learn(look_ups, resolver, "a", [B]) == [B]
    look_ups.penalty("never heard of")


async def test_who_gives_up_leaves_the_response_to_the_others(look_ups, resolver):
    first, second = (asyncio.create_task(look_ups.of("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await resolver.response("a", [A])
    assert await second == [A]


async def test_a_hundred_slow_names_of_the_system_delay_no_other(monkeypatch):
    """They have threads of their own: of the event loop's there are two for look-ups, of Python's six on two cores."""
    gate = threading.Event()

    def getaddrinfo(host, port, **settings):
        if settings["flags"]:
            raise socket.gaierror
        if host != "quick":
            gate.wait(TIMEOUT_S)
        return [(*A[:1], socket.SOCK_STREAM, 0, "", A[1])]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    look_ups = LookUps(FakeClock().now_us)
    slow = [asyncio.create_task(look_ups.of(f"slow-{number}")) for number in range(100)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(look_ups.of("quick"), TIMEOUT_S) == [A]
    assert not any(task.done() for task in slow)
    gate.set()
    assert await asyncio.gather(*slow) == [[A]] * 100


async def test_addresses_need_no_look_up_and_families_take_turns():
    assert await look_up("127.0.0.1") == [(socket.AF_INET, ("127.0.0.1", 0))]
    assert await look_up("::1") == [(socket.AF_INET6, ("::1", 0, 0, 0))]
    assert _in_turn([SIX, SIX, A, B]) == [SIX, A, SIX, B]
    assert at_port(SIX, 9092) == (socket.AF_INET6, ("2001:db8::1", 9092, 0, 0))
    with pytest.raises(OSError, match="zero byte"):
        await look_up("127.0.0.1\0")
