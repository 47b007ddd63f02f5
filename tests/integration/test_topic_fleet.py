"""Claims in a topic of a real cluster: members that write, die, or do not reach it; two proxies that divide a limit."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.server.fleet.topic import TopicTransport
from kafka_throttle.proxy.server.fleet.transport import TransportLost
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_fleet import QUOTAS, SESSION_S, Load, are_dividing, are_known, share
from tests.integration.test_kafka_cluster import healed
from tests.integration.test_upstream_source import servers_of
from tests.proxy.server.fleet.test_topic_transport import Gate, GatedClient, is_member, published
from tests.support.waiting import until, wait_until

_topics = map("claims-{}".format, itertools.count())


class Fleet:
    def __init__(self, cluster, stack):
        self._servers = servers_of(cluster)
        self._stack = stack
        self.topic = next(_topics)
        self.gates = {}

    async def joined(self, name, content):
        gate = self.gates[name] = Gate()

        def connect(*args):
            return GatedClient(ClusterClient(*args), gate, args[2])

        clock, session_ms = SystemClock(), SESSION_S * 1000
        transport = TopicTransport(self.topic, self._servers, Credentials(), session_ms, clock, 10.0, connect)
        await transport.start(name, lambda: None)
        self._stack.push_async_callback(transport.stop)
        await published(transport, content)
        return transport


@pytest.mark.kraft
async def test_members_see_each_other_in_order_and_who_leaves_or_dies_is_gone(newest_kafka):
    async with AsyncExitStack() as stack:
        fleet = Fleet(newest_kafka, stack)
        a = await fleet.joined("a#1", b"a")
        b, c = await fleet.joined("b#2", b"b"), await fleet.joined("c#3", b"c")
        for number in range(20):
            await a.publish(b"a%d" % number)
            await b.publish(b"b%d" % number)
            assert b.view()["a#1"] == b"a%d" % number
        large = bytes(range(256)) * 3_000
        await c.publish(large)
        await until(lambda: a.view()["c#3"] == large)
        await c.stop()
        await until(lambda: a.view().keys() == {"b#2"})
        for task in b._tasks:
            task.cancel()  # it dies
        began_s = asyncio.get_running_loop().time()
        await until(lambda: a.view() == {})
        assert asyncio.get_running_loop().time() - began_s > SESSION_S * 0.6
        assert a.losses == 0


@pytest.mark.nightly
@pytest.mark.kraft
async def test_a_member_that_does_not_reach_the_cluster_is_cut_off_before_it_is_dropped_and_learns_of_it(newest_kafka):
    async with AsyncExitStack() as stack:
        fleet = Fleet(newest_kafka, stack)
        a, b = await fleet.joined("a#1", b"a"), await fleet.joined("b#2", b"b")
        await until(lambda: "b#2" in a.view())
        fleet.gates["b#2"].set("lost")
        while "b#2" in a.view():
            was_member = is_member(b)
            await asyncio.sleep(0.02)
        assert not was_member
        fleet.gates["b#2"].set("open")
        await until(lambda: b.losses == 1)
        with pytest.raises(TransportLost):
            await b.publish(bytes(1 << 20))
        await published(b, b"anew")
        await until(lambda: a.view() == {"b#2": b"anew"})
        assert a.losses == 0


@pytest.mark.kraft
@pytest.mark.nightly
async def test_a_leader_that_is_killed_costs_nobody_the_membership(newest_kafka):
    async with AsyncExitStack() as stack:
        fleet = Fleet(newest_kafka, stack)
        a, b = await fleet.joined("a#1", b"a"), await fleet.joined("b#2", b"b")
        await until(lambda: len(a.view()) == len(b.view()) == 1)
        leader = a._reading.place.leader
        [node_id] = [each for each in newest_kafka.node_ids if f"127.0.0.1:{newest_kafka.ports[each]}" == leader]
        with healed(newest_kafka):
            await asyncio.to_thread(newest_kafka.kill, node_id)
            for each, content in ((a, b"a2"), (b, b"b2")):
                await published(each, content)
            assert a._reading.place.leader != leader
            await until(lambda: (a.view(), b.view()) == ({"b#2": b"b2"}, {"a#1": b"a2"}))
            assert (a.losses, b.losses) == (0, 0)


def test_two_proxies_divide_a_limit_by_a_topic_and_the_one_that_is_left_has_it_all(newest_kafka):
    def proxy_of(name):
        fleet = {"topic": "claims-of-proxies", "session_timeout_ms": 1000 * SESSION_S}
        return ProxyProcess(newest_kafka, QUOTAS, fleet=fleet, usage={"instance": name}, source={"instances": 2})

    with proxy_of("a") as a, proxy_of("b") as b:
        wait_until(lambda: are_known(a, b))
        with Load(a), Load(b):
            wait_until(lambda: are_dividing(a, b))
            assert share(a) + share(b) <= 1
            b.kill()
            wait_until(lambda: share(a) == 1)
        assert are_known(a)
