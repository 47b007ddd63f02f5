"""Messages and questions between the supervisor and a worker."""

import asyncio
import socket

import pytest

from kafka_throttle.proxy.server.workers.link import Link, LinkLost
from tests.support.timeouts import TIMEOUT_S


class Ends:
    """Both ends of a link, and what the far one was told."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.told = []
        self.near = Link(ours, {}, {})
        self.far = Link(
            theirs,
            {"note": self.told.append},
            {"echo": self.echo, "told": self.all_told, "fail": self.fail, "sleep": self.sleep},
        )

    async def echo(self, value):
        return value

    async def all_told(self):
        return list(self.told)

    async def fail(self, error):
        raise error

    async def sleep(self):
        await asyncio.sleep(TIMEOUT_S)


@pytest.fixture
async def ends():
    made = Ends()
    await made.near.open()
    await made.far.open()
    running = [asyncio.create_task(end.run()) for end in (made.near, made.far)]
    yield made
    made.near.close()
    made.far.close()
    await asyncio.gather(*running)


async def test_an_answer_comes_to_its_question(ends):
    answers = await asyncio.gather(*(ends.near.ask("echo", number) for number in range(100)))
    assert answers == list(range(100))


async def test_messages_arrive_in_order_and_before_a_later_question(ends):
    for number in range(1000):
        ends.near.tell("note", number)
    assert await ends.near.ask("told") == list(range(1000))


async def test_what_is_raised_is_raised_where_it_was_asked(ends):
    with pytest.raises(ValueError, match="so it is"):
        await ends.near.ask("fail", ValueError("so it is"))


async def test_an_exception_that_cannot_be_sent_is_its_text(ends):
    class Local(Exception):
        pass

    ends.far._asks = {"fail": lambda: ends.fail(Local("here"))}
    with pytest.raises(RuntimeError, match="here"):
        await ends.near.ask("fail")


async def test_a_question_that_is_not_answered_in_time_is_given_up_and_others_are_answered(ends):
    with pytest.raises(TimeoutError):
        await ends.near.ask("sleep", timeout_s=0.01)
    assert await ends.near.ask("echo", 1) == 1


async def test_the_end_of_the_other_process_ends_open_questions_and_later_ones(ends):
    asking = asyncio.create_task(ends.near.ask("sleep"))
    await ends.near.ask("echo", 1)
    ends.far.close()
    with pytest.raises(LinkLost):
        await asking
    with pytest.raises(LinkLost):
        await ends.near.ask("echo", 1)
    ends.near.tell("note", "nobody hears it")
