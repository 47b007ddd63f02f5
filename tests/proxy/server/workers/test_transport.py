"""Claims of workers through the supervisor: ordered, and those of a worker that ends are gone."""

import asyncio
import socket
from functools import partial

import pytest

from kafka_throttle.proxy.server.workers.link import Link
from kafka_throttle.proxy.server.workers.transport import Claims, WorkerTransport
from tests.fakes.clock import FakeClock


class Group:
    """A supervisor and workers, each with its transport, over real links."""

    def __init__(self):
        self.clock = FakeClock()
        self.links = {}
        self.transports = {}
        self.claims = Claims(lambda: list(self.links), lambda number, *message: self.links[number].tell(*message))
        self._running = []

    async def start(self, number):
        ours, theirs = socket.socketpair()
        asks = {name: partial(answer, number) for name, answer in self.claims.asks.items()}
        near = self.links[number] = Link(ours, {}, asks)
        far = Link(theirs, {"claims": lambda cluster, member, content: transport.take(member, content)}, {})
        transport = WorkerTransport("main", far, self.claims.of("main"), self.clock.now_ms)
        for end in (near, far):
            await end.open()
            self._running.append(asyncio.create_task(end.run()))
        self.transports[number] = transport
        await transport.start(f"w{number}#1", lambda: None)
        return transport

    async def stop(self):
        for link in self.links.values():
            link.close()
        for transport in self.transports.values():
            await transport.stop()
        await asyncio.gather(*self._running)


@pytest.fixture
async def group():
    made = Group()
    yield made
    await made.stop()


async def test_what_is_published_is_seen_by_all_others_and_by_those_that_come_later(group):
    one, two = await group.start(0), await group.start(1)
    await one.publish(b"first")
    await two.publish(b"second")
    assert two.view() == {"w0#1": b"first"}, "what was ordered before is there"
    await one.publish(b"third")
    assert one.view() == {"w1#1": b"second"}
    late = await group.start(2)
    assert late.view() == {"w0#1": b"third", "w1#1": b"second"}


async def test_a_worker_that_ends_is_gone_for_the_others(group):
    one, two = await group.start(0), await group.start(1)
    await one.publish(b"mine")
    await two.publish(b"yours")
    group.links.pop(0).close()
    group.claims.end(0)
    await two.publish(b"yours again")
    assert two.view() == {}


async def test_a_worker_that_leaves_is_gone_for_the_others(group):
    one, two = await group.start(0), await group.start(1)
    await one.publish(b"mine")
    await one.stop()
    await two.publish(b"yours")
    assert two.view() == {}


async def test_it_is_heard_when_an_answered_request_was_sent(group):
    transport = await group.start(0)
    group.clock.advance(500)
    sent_ms = group.clock.now_ms()
    await transport.publish(b"mine")
    assert transport.heard_ms == sent_ms
    assert transport.problems == {}
