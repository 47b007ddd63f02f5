"""Slow decisions are made a few at a time; entities take turns at them."""

import asyncio

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS, DELETE_TOPICS, DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.proxy.relay.actions import DecisionKind, DecisionRequest
from kafka_throttle.proxy.relay.memory import MEMORY_BYTES, Holding
from kafka_throttle.proxy.server.sharing import DecisionTurns, Sharing
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.fair_queue import Whose

MIB = 1 << 20


def ask(size_bytes=MIB, api_key=DELETE_TOPICS):
    return DecisionRequest(1, DecisionKind.MUTATION, Side.CLIENT, api_key, 5, bytes(size_bytes))


class Turns:
    """Decisions that are made until they are told to end."""

    def __init__(self):
        self.turns = DecisionTurns()
        self.made, self.ends, self.tasks = [], {}, {}

    async def begin(self, name, entity, asked):
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._decide(name, Whose(entity, name), asked))
        await self.settle()

    async def _decide(self, name, whose, asked):
        async with self.turns.turn(whose, asked):
            self.made.append(name)
            await self.ends[name].wait()

    async def end(self, name):
        self.ends[name].set()
        await self.settle()

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)


async def test_two_of_the_largest_at_a_time_and_other_entities_first():
    turns = Turns()
    for number in range(4):
        await turns.begin(f"hostile-{number}", "hostile", ask())
    await turns.begin("good", "good", ask())
    assert turns.made == ["hostile-0", "hostile-1"]
    await turns.end("hostile-0")
    await turns.end("hostile-1")
    assert turns.made[2:] == ["hostile-2", "good"]


async def test_a_small_one_does_not_wait():
    turns = Turns()
    await turns.begin("alters", "a", ask(MIB, ALTER_CLIENT_QUOTAS))
    await turns.begin("describes", "b", ask(50, DESCRIBE_CLIENT_QUOTAS))
    await turns.begin("small", "c", ask(1000))
    assert turns.made == ["alters", "small"]
    await turns.end("alters")
    assert turns.made == ["alters", "small", "describes"]


async def test_who_no_longer_waits_takes_no_turn():
    turns = Turns()
    await turns.begin("first", "a", ask(2 * MIB))
    await turns.begin("gone", "b", ask(2 * MIB))
    await turns.begin("last", "c", ask(2 * MIB))
    turns.tasks["gone"].cancel()
    await turns.end("first")
    assert turns.made == ["first", "last"]
    await turns.end("last")
    await turns.begin("another", "d", ask(2 * MIB))
    assert turns.made[-1] == "another"


async def test_who_waits_for_memory_is_woken_in_another_turn_of_the_loop():
    class Client:
        def __init__(self, entity):
            self.whose = Whose(entity)

    memory, woken = Sharing().memory, []
    holdings = [Holding(memory, Client(str(number))) for number in range(2)]
    assert holdings[0].may_hold_request(MEMORY_BYTES // 4)
    assert not holdings[1].may_hold_request(MEMORY_BYTES // 4)
    holdings[1].wake = lambda: woken.append(1)
    holdings[0].close()
    assert not woken
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == [1]
