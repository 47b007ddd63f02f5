"""Claims in a topic: who sees what, who is dropped and knows it, and what late, lost and foreign records change."""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.proxy.server.fleet.topic import CLAIMS, TopicTransport, _key, _packed
from kafka_throttle.proxy.server.fleet.transport import TransportLost
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.shares.document import MAX_BYTES
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from tests.fakes.kafka_topic import FakeTopic, FakeTopicCluster
from tests.fakes.virtual_time import VirtualClock, run
from tests.support.unreadable_batches import gzip_batch, nonsense_batch

TOPIC = "claims"
T_MS = 6_000
GOOD = {
    **CLAIMS.configs,
    "cleanup.policy": "compact,delete",
    "max.message.bytes": "1048588",
    "delete.retention.ms": "86400000",
    "compression.type": "uncompressed",
}


class Gate:
    """What becomes of the requests of one member: `open`, `lost`, or written `late` without a response."""

    def __init__(self, late_s=3.0):
        self.fetch = self.produce = "open"
        self.late_s = late_s

    def set(self, state):
        self.fetch = self.produce = state


class GatedClient:
    def __init__(self, client, gate, timeout_s):
        self._client = client
        self._gate = gate
        self._timeout_s = timeout_s

    async def ask(self, request):
        state = self._gate.produce if request.name == "Produce" else self._gate.fetch
        if state == "open":
            return await self._client.ask(request)
        if state == "late" and request.name == "Produce":
            asyncio.get_running_loop().call_later(self._gate.late_s, self._client._cluster.answer, request)
        await asyncio.sleep(self._timeout_s)
        raise SourceUnavailable("no answer")

    def close(self):
        self._client.close()


class Members:
    """Members of one fleet, whose clocks have nothing in common."""

    def __init__(self, cluster, stack):
        self.cluster = cluster
        self._stack = stack
        self.gates = {}
        self.transports = {}

    async def add(self, name, offset_ms=0):
        gate = self.gates[name] = Gate()

        def connect(server, credentials, timeout_s):
            return GatedClient(self.cluster.connect(server, credentials, timeout_s), gate, timeout_s)

        clock = VirtualClock(asyncio.get_running_loop(), offset_ms)
        transport = TopicTransport(TOPIC, ["a:9092"], Credentials(), T_MS, clock, 10.0, connect)
        self.transports[name] = transport
        await transport.start(name, lambda: None)
        self._stack.push_async_callback(transport.stop)
        return transport

    async def joined(self, name, content=b"0", offset_ms=0):
        transport = await self.add(name, offset_ms)
        await published(transport, content)
        return transport

    def kill(self, name):
        for task in self.transports.pop(name)._tasks:
            task.cancel()


@asynccontextmanager
async def fleet(cluster=None):
    if cluster is None:
        cluster = FakeTopicCluster()
        cluster.topics[TOPIC] = FakeTopic(GOOD)
    cluster.looks_every_s = 0.03
    async with AsyncExitStack() as stack:
        yield Members(cluster, stack)


async def published(transport, content):
    async with asyncio.timeout(60):
        while True:
            try:
                return await transport.publish(content)
            except TransportLost:
                await asyncio.sleep(0.05)


async def until(condition, within_s=60):
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_member(transport):
    """Whether it takes itself for a member that is heard."""
    heard_ms = transport.heard_ms
    is_heard = heard_ms is not None and transport._clock.now_ms() - heard_ms <= transport.cut_off_ms
    return is_heard and transport._writing.content is not None


def test_what_was_ordered_before_a_document_is_in_view_when_it_is_published():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2", offset_ms=-500_000)
            for number in range(30):
                await a.publish(b"a%d" % number)
                await b.publish(b"b%d" % number)
                assert b.view() == {"a#1": b"a%d" % number}
            await a.publish(b"last")
            assert a.view() == {"b#2": b"b29"}
            assert (a.losses, b.losses, a.problems, b.problems) == (0, 0, {}, {})

    run(check())


def test_of_two_that_publish_at_once_at_least_one_sees_the_other():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            for number in range(50):
                content = b"%d" % number
                saw = {}

                async def publish(one, saw=saw, content=content):
                    await one.publish(content)
                    saw[one] = content in one.view().values()

                await asyncio.gather(publish(a), publish(b))
                assert saw[a] or saw[b]

    run(check())


def test_a_member_that_says_nothing_stays_and_one_that_leaves_is_gone_at_once():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2", b"claims")
            await asyncio.sleep(10 * T_MS / 1000)
            assert a.view() == {"b#2": b"claims"}
            assert is_member(a)
            assert is_member(b)
            produced = sum(name == "Produce" for _, name in members.cluster.asked)
            assert produced <= 2 * (10 * 3 + 5), "a record each third of the time-out"
            await b.stop()
            await until(lambda: a.view() == {}, T_MS / 4 / 1000)

    run(check())


def test_a_member_that_dies_is_dropped_after_the_time_out_and_not_before():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            c = await members.joined("c#3")
            await until(lambda: len(a.view()) == 2)
            loop = asyncio.get_running_loop()
            last_s = b._writing.last_ms / 1000
            members.kill("b#2")
            await until(lambda: "b#2" not in a.view() and "b#2" not in c.view())
            assert T_MS / 1000 <= loop.time() - last_s < T_MS / 1000 + 1
            assert a.view() == {"c#3": b"0"}
            assert (a.losses, c.losses) == (0, 0)

    run(check())


@pytest.mark.parametrize(("fetch", "produce"), [("lost", "lost"), ("open", "lost"), ("lost", "open")])
def test_a_member_that_is_cut_off_knows_it_before_the_others_drop_it_and_learns_of_that(fetch, produce):
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2", b"claims", offset_ms=77_000)
            gate = members.gates["b#2"]
            gate.fetch, gate.produce = fetch, produce
            while "b#2" in a.view():
                assert asyncio.get_running_loop().time() < 1_100
                await asyncio.sleep(0.01)
                if fetch == "lost" and produce == "open" and not is_member(b):
                    break  # it cannot see its records; the others do, and keep it
            assert not is_member(b)
            assert b.view().keys() == {"a#1"}, "it drops nobody meanwhile"
            if produce == "lost":
                await asyncio.sleep(60)
                assert b.losses == (1 if fetch == "open" else 0)
            gate.set("open")
            await until(lambda: is_member(b) or b.losses == 1)
            if produce == "lost":
                await until(lambda: b.losses == 1)
                assert not is_member(b)
            await published(b, b"anew")
            await until(lambda: a.view() == {"b#2": b"anew"})
            assert a.losses == 0

    run(check())


def test_an_outage_of_the_topic_drops_nobody_and_costs_no_membership():
    async def check():
        async with fleet() as members:
            everybody = [await members.joined(name) for name in ("a#1", "b#2", "c#3")]
            members.cluster.down = {"a:9092", "node:9001"}
            await until(lambda: not any(map(is_member, everybody)))
            assert all("down" in each.problems[""] for each in everybody)
            await asyncio.sleep(2 * T_MS / 1000)
            members.cluster.down = set()
            await until(lambda: all(map(is_member, everybody)))
            await asyncio.sleep(3 * T_MS / 1000)
            assert [(each.losses, len(each.view()), each.problems) for each in everybody] == [(0, 2, {})] * 3

    run(check())


def test_who_has_not_joined_or_was_dropped_is_heard_as_long_as_it_reads():
    async def check():
        async with fleet() as members:
            a = await members.add("a#1")
            await until(lambda: a.heard_ms is not None)
            heard_ms = a.heard_ms
            await until(lambda: a.heard_ms > heard_ms + T_MS)
            await published(a, b"0")
            members.gates["a#1"].produce = "lost"
            await until(lambda: not is_member(a))
            members.cluster.topics[TOPIC].append(_key("alive", "a#1"), None)
            await until(lambda: a.losses == 1 and a._clock.now_ms() - a.heard_ms < T_MS / 4)

    run(check())


def test_a_machine_that_stood_still_counts_as_dropped():
    async def check():
        async with fleet() as members:
            a = await members.joined("a#1")
            epoch_ms = a._clock.epoch_ms
            a._clock.epoch_ms = lambda: epoch_ms() + 60_000  # its monotonic clock stood still
            await until(lambda: a.losses == 1)

    run(check())


def test_a_document_that_comes_late_says_nothing():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2", b"old")
            members.gates["b#2"].produce = "late"
            with pytest.raises(TransportLost, match="no answer; it may be written"):
                await b.publish(b"late")
            members.gates["b#2"].produce = "open"
            await b.publish(b"new")
            await asyncio.sleep(5)
            contents = [value for _, value in members.cluster.topics[TOPIC].records.values() if b"\n" in (value or b"")]
            assert contents[-1].endswith(b"\nlate"), "it was written after the new one"
            assert a.view() == {"b#2": b"new"}

    run(check())


def test_what_is_published_while_others_drop_the_member_is_not_published():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            members.cluster.hides = True
            publishing = asyncio.create_task(b.publish(b"claims"))
            drop = {"format": 1, "number": a._writing.number + 1, "drops": {"b#2": b._writing.number}}
            members.cluster.topics[TOPIC].append(_key("alive", "a#1"), _packed(drop))
            await until(lambda: members.cluster.topics[TOPIC].end >= 6)
            members.cluster.hides = False
            with pytest.raises(TransportLost, match="the others have dropped this member"):
                await publishing
            assert b.losses == 1

    run(check())


def test_a_drop_does_not_count_if_its_member_has_written_since():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            drop = {"format": 1, "number": 99, "drops": {"b#2": b._writing.number - 1, "nobody#9": 7}}
            members.cluster.topics[TOPIC].append(_key("alive", "c#3"), _packed(drop))
            await until(lambda: "c#3" in a.view() and "c#3" in b.view())
            assert "b#2" in a.view()
            assert b.losses == 0

    run(check())


def test_a_member_whose_records_somebody_removes_is_a_member_anew():
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            members.cluster.topics[TOPIC].append(_key("document", "b#2"), None)
            await until(lambda: b.losses == 1 and a.view() == {})
            await published(b, b"anew")
            await until(lambda: a.view() == {"b#2": b"anew"})

    run(check())


def test_a_topic_that_is_created_or_made_anew_is_joined_after_the_time_out():
    async def check():
        cluster = FakeTopicCluster()
        async with fleet(cluster) as members:
            a = await members.add("a#1")
            await until(lambda: TOPIC in cluster.topics)
            assert dict(cluster.created[0][2]) == {
                **CLAIMS.configs, "cleanup.policy": "compact,delete", "min.insync.replicas": "2",
                "compression.type": "uncompressed",
            }  # fmt: skip
            cluster.topics[TOPIC].configs = GOOD
            began_s = asyncio.get_running_loop().time()
            await published(a, b"0")
            assert asyncio.get_running_loop().time() - began_s >= T_MS / 1000 * 0.9
            b = await members.joined("b#2")
            cluster.topics[TOPIC] = FakeTopic(GOOD)
            began_s = asyncio.get_running_loop().time()
            await until(lambda: a.losses == 1 and b.losses == 1)
            assert a.view() == b.view() == {}
            await asyncio.gather(published(a, b"1"), published(b, b"2"))
            assert asyncio.get_running_loop().time() - began_s >= T_MS / 1000
            await until(lambda: (a.view(), b.view()) == ({"b#2": b"2"}, {"a#1": b"1"}))

    run(check())


async def taken(transport):
    """What the transport has refused, as soon as that is something."""
    refused = []

    def take():
        refused.extend(transport.take_refused())
        return refused

    await until(take)
    return refused


def test_each_record_that_no_member_writes_is_told_once_however_many_there_are():
    async def check():
        async with fleet() as members:
            a = await members.joined("a#1")
            for number in range(50):
                members.cluster.topics[TOPIC].append(b"%d" % number, b"{}")
            refused = []
            await until(lambda: refused.extend(a.take_refused()) or len(refused) >= 50)
            assert len({record.problem for record in refused}) == len(refused) == 50

    run(check())


@pytest.mark.parametrize(("key", "value"), [
    (b"", b""), (b"[]", b"1"), (b'{"format":2}', b"{}"), (b'{"format":1,"member":5,"part":"alive"}', b"{}"),
    (_key("alive", "x#1").replace(b":", b": "), b"{}"), (_key("other", "x#1"), b"{}"),
    (_key("alive", "x#1"), b"nonsense"), (_key("alive", "x#1"), b"[1]"), (_key("alive", "x#1"), b'{"format":1}'),
    (_key("alive", "x#1"), b'{"format":1,"number":0}'), (_key("alive", "x#1"), b'{"format":1,"number":true}'),
    (_key("alive", "x#1"), b'{"format":1,"number":1,"drops":[]}'),
    (_key("alive", "x#1"), b'{"format":1,"number":1,"drops":{"b#2":"all"}}'),
    (_key("alive", "half \udc80"), b"{}"), (_key("alive", "x" * 32_768), b"{}"),
    (_key("document", "x#1"), b"\n\n"), (_key("document", "x#1"), b"[" * 10_000),
])  # fmt: skip
def test_foreign_records_are_problems_and_nothing_more(key, value):
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            offset = members.cluster.topics[TOPIC].end
            members.cluster.topics[TOPIC].append(key, value)
            [refused] = await taken(a)
            assert (refused.place, refused.problem.partition(":")[0]) == ("topic claims", f"offset {offset}")
            await a.publish(b"1")
            assert a.view() == {"b#2": b"0"}
            assert (a.losses, b.losses) == (0, 0)
            assert (a.take_refused(), a.problems) == ([], {})

    run(check())


@pytest.mark.parametrize("make", [gzip_batch, nonsense_batch])
def test_a_batch_that_cannot_be_read_is_a_problem_and_what_is_behind_it_is_read(make):
    async def check():
        async with fleet() as members:
            a, b = await members.joined("a#1"), await members.joined("b#2")
            topic = members.cluster.topics[TOPIC]
            offset = topic.end
            topic.append_batch(make([(_key("alive", "x#1"), b'{"format":1,"number":1}')] * 3))
            [refused] = await taken(a)
            assert refused.problem.startswith(f"offset {offset}: ")
            await a.publish(b"1")
            await until(lambda: (a.view(), b.view()) == ({"b#2": b"0"}, {"a#1": b"1"}))
            assert (a.losses, b.losses) == (0, 0)
            assert "" not in a.problems

    run(check())


def test_a_document_that_is_too_large_is_not_published():
    async def check():
        async with fleet() as members:
            a = await members.joined("a#1")
            with pytest.raises(TransportLost, match="expected at most"):
                await a.publish(bytes(MAX_BYTES + 1))

    run(check())


def test_a_document_is_written_again_before_it_is_deleted_for_its_age():
    async def check():
        async with fleet() as members:
            await members.joined("a#1", b"claims")
            await asyncio.sleep(320)
            written = [value for key, value in members.cluster.topics[TOPIC].records.values() if b"document" in key]
            assert len(written) == 3
            assert all(value.endswith(b"\nclaims") for value in written)

    run(check())


# ------------------------------------------------------------------- all together


def agree(members):
    """Whoever takes itself for a member is in the view of each that has read its last record that it has read back."""
    at = {}
    for offset, (key, value) in members.cluster.topics[TOPIC].records.items():
        if value is not None and b'"alive"' in key:
            number = int(value.split(b'"number":')[1].split(b",")[0])
            name = key.split(b'"member":"')[1].split(b'"')[0].decode()
            at[name, number] = offset
    for name, transport in members.transports.items():
        if is_member(transport):
            offset = at[name, transport._reading.own_number]
            for other, reader in members.transports.items():
                if other != name and reader._reading.offset > offset:
                    assert name in reader.view(), f"{other} has dropped {name}, which is a member"


STEPS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["lost", "late", "open", "deaf", "mute", "publish", "kill", "move"]),
    st.integers(50, 9_000),
)


@given(steps=st.lists(STEPS, max_size=25), seed=st.integers(0, 1 << 30))
@settings(max_examples=20, deadline=None)
def test_nobody_is_dropped_that_takes_itself_for_a_member(steps, seed):
    async def check():
        chance = random.Random(seed)
        async with fleet() as members:
            names = [f"m#{number}" for number in range(4)]
            for name in names:
                await members.joined(name, offset_ms=chance.randrange(10**9))
            for number, step, wait_ms in [*steps, (0, "open", 100)]:
                name = names[number]
                if step == "kill" and name in members.transports:
                    members.kill(name)
                elif step == "move":
                    members.cluster.epoch += 1
                elif name in members.transports:
                    act(members, name, step, chance)
                end_s = asyncio.get_running_loop().time() + wait_ms / 1000
                while asyncio.get_running_loop().time() < end_s:
                    await asyncio.sleep(0.03)
                    agree(members)
            for name in members.transports:
                members.gates[name].set("open")
            await asyncio.sleep(15)  # what is late has come
            for transport in members.transports.values():
                await published(transport, b"end")
            agree(members)
            for name, transport in members.transports.items():
                others = dict.fromkeys(members.transports.keys() - {name}, b"end")
                await until(lambda transport=transport, others=others: transport.view() == others, 3 * T_MS / 1000)

    run(check())


def act(members, name, step, chance):
    gate, transport = members.gates[name], members.transports[name]
    gate.late_s = chance.uniform(0.1, 12)
    if step in ("lost", "late", "open"):
        gate.set(step)
    elif step == "deaf":
        gate.fetch, gate.produce = "lost", "open"
    elif step == "mute":
        gate.fetch, gate.produce = "open", chance.choice(["lost", "late"])
    else:
        task = asyncio.create_task(transport.publish(b"%d" % chance.randrange(100)))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
