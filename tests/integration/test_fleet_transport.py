"""The claims of a fleet in a real ZooKeeper: who sees what, and what is left of a member that is gone."""

import asyncio
import contextlib
import itertools
import subprocess
import sys

import pytest
from kazoo.security import make_digest_acl

from kafka_throttle.common.zookeeper import Ensemble, Login
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.server.fleet.member_id import member_id
from kafka_throttle.proxy.server.fleet.transport import TransportLost
from kafka_throttle.proxy.server.fleet.zookeeper import ZooKeeperTransport
from kafka_throttle.quotas.shares.document import MAX_BYTES
from tests.integration.zookeeper_process import ZooKeeper, ZooKeeperEnsemble
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

SESSION_MS = 6_000
_MEMBER_ID = "from kafka_throttle.proxy.server.fleet.member_id import member_id; print(member_id('a'))"

_paths = map("/kafka-throttle/test-{}/fleet".format, itertools.count())


@pytest.fixture(scope="module")
def zookeeper():
    with ZooKeeper({"tickTime": "1000"}) as process:
        yield process


@pytest.fixture
def kazoo(zookeeper):
    """A client that is not the one under test."""
    with zookeeper.client() as client:
        yield client


@pytest.fixture
def path():
    """Another one for each test; it does not exist yet."""
    return next(_paths)


@contextlib.asynccontextmanager
async def member(address, path, name, **ensemble):
    """A transport that is started, and left at the end."""
    settings = Ensemble(address.split(","), **{"session_timeout_ms": SESSION_MS, **ensemble})
    transport = ZooKeeperTransport(settings, path, SystemClock().now_ms)
    await transport.start(name, lambda: None)
    try:
        yield transport
    finally:
        await transport.stop()
        transport._thread.join(TIMEOUT_S)
        assert not transport._thread.is_alive()


async def published(transport, content):
    """Publish as soon as there is a connection."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await transport.publish(content)
            except TransportLost:
                await asyncio.sleep(0.05)


@pytest.fixture
def ended():
    """The id of a process that has ended."""
    return subprocess.run([sys.executable, "-c", _MEMBER_ID], capture_output=True, check=True, text=True).stdout.strip()


async def test_what_a_killed_process_has_left_is_deleted_by_the_next_one_of_its_name(zookeeper, path, ended):
    async with (
        member(zookeeper.address, path, ended) as left_behind,
        member(zookeeper.address, path, "b#2") as other,
        member(zookeeper.address, path, member_id("a")) as successor,
    ):
        await published(left_behind, b"left")
        await published(other, b"other")
        await published(successor, b"new")
        assert successor.view() == {"b#2": b"other"}
        await until(lambda: other.view() == {successor._name: b"new"})
        await until(lambda: left_behind.losses == 1)


async def test_what_was_ordered_before_a_write_is_in_view_when_it_returns(zookeeper, path):
    async with member(zookeeper.address, path, "a#1") as a, member(zookeeper.address, path, "b#2") as b:
        await published(a, b"0")
        for number in range(30):
            await published(a, b"a%d" % number)
            await published(b, b"b%d" % number)
            assert b.view() == {"a#1": b"a%d" % number}
        await published(a, b"last")
        assert a.view() == {"b#2": b"b29"}


async def refused(transport, content, meanwhile=lambda: None):
    """Publish until it is refused, and return why."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            meanwhile()
            try:
                await transport.publish(content)
            except TransportLost as lost:
                return str(lost)


async def test_the_others_see_a_write_and_a_member_that_leaves_without_asking(zookeeper, kazoo, path):
    async with member(zookeeper.address, path, "a#1") as a:
        async with member(zookeeper.address, path, "b#2") as b:
            await published(b, b"one")
            await until(lambda: a.view() == {"b#2": b"one"})
            await published(b, b"two")
            await until(lambda: a.view() == {"b#2": b"two"})
            assert kazoo.get_children(f"{path}/members") == ["b#2"], "who has published nothing has joined nothing"
        await until(lambda: a.view() == {})
        assert kazoo.get_children(f"{path}/members") == []


async def test_members_without_anything_to_say_are_heard_of(zookeeper, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        heard = a.heard_ms
        await until(lambda: a.heard_ms > heard + SESSION_MS)
        assert a.losses == 0


async def test_members_of_a_server_that_is_gone_stay_members_at_another(path):
    with ZooKeeperEnsemble() as ensemble:
        async with contextlib.AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(member(",".join(ensemble.addresses), path, f"m#{number}"))
                for number in range(4)
            ]
            for each in members:
                await published(each, b"one")
            ensemble.servers[0].kill()
            for each in members:
                await published(each, b"two")
                assert each.losses == 0
            await until(lambda: all(list(each.view().values()) == [b"two"] * 3 for each in members))


async def test_a_zookeeper_that_does_not_respond_is_given_up_and_the_membership_with_it(zookeeper, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        with zookeeper.frozen():
            heard = a.heard_ms
            with pytest.raises(TransportLost):
                await a.publish(b"two")
            await until(lambda: a.problems.get("") and a.losses == 1)
            assert a.heard_ms == heard
        await published(a, b"three")
        assert a.problems == {}


async def test_a_zookeeper_that_has_lost_its_data_gets_members_anew(zookeeper, path):
    async with member(zookeeper.address, path, "a#1") as a, member(zookeeper.address, path, "b#2") as b:
        await published(a, b"a1")
        await published(b, b"b1")
        zookeeper.kill()
        zookeeper.start("other")
        try:
            await until(lambda: a.losses and b.losses)
            await published(a, b"a2")
            await published(b, b"b2")
            await until(lambda: (a.view(), b.view()) == ({"b#2": b"b2"}, {"a#1": b"a2"}))
        finally:
            zookeeper.kill()
            zookeeper.start()


async def test_a_znode_that_somebody_deletes_or_overwrites_is_noticed(zookeeper, kazoo, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        kazoo.delete(f"{path}/members/a#1")
        await until(lambda: a.losses == 1)
        await published(a, b"two")
        why = await refused(a, b"three", lambda: kazoo.set(f"{path}/members/a#1", b"foreign"))
        assert "overwritten" in why or "dropped" in why
        await published(a, b"four")
        assert kazoo.get(f"{path}/members/a#1")[0] == b"four"


async def test_a_document_made_before_the_membership_was_lost_is_not_published(zookeeper, kazoo, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        kazoo.delete(f"{path}/members/a#1")
        assert await refused(a, b"before")
        await until(lambda: a.losses == 1)
        assert kazoo.exists(f"{path}/members/a#1") is None


async def test_a_znode_that_may_not_be_read_is_a_member_all_the_same(zookeeper, kazoo, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        kazoo.create(f"{path}/members/x", b"secret", ephemeral=True, acl=[make_digest_acl("who", "knows", all=True)])
        kazoo.create(f"{path}/members/y", b"", ephemeral=True)
        await until(lambda: a.view() == {"x": b"", "y": b""})
        assert a.problems == {"x": "cannot be read: not allowed"}
        assert a.losses == 0


async def test_a_znode_that_goes_with_no_session_is_no_member(zookeeper, kazoo, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"one")
        kazoo.create(f"{path}/members/left", b"claims")
        kazoo.create(f"{path}/members/other", b"claims", ephemeral=True)
        await until(lambda: a.view() == {"other": b"claims"})
        kazoo.set(f"{path}/members/left", b"other claims")
        kazoo.delete(f"{path}/members/other")
        kazoo.create(f"{path}/members/other", b"by hand")
        await until(lambda: a.view() == {})
        kazoo.delete(f"{path}/members/other")
        kazoo.create(f"{path}/members/other", b"again", ephemeral=True)
        await until(lambda: a.view() == {"other": b"again"})
        assert (a.problems, a.losses) == ({}, 0)


async def test_who_may_not_write_says_so(zookeeper, kazoo, path):
    kazoo.ensure_path(path)
    kazoo.create(f"{path}/members", b"", acl=[make_digest_acl("who", "knows", all=True)])
    async with member(zookeeper.address, path, "a#1") as a:
        await until(lambda: a.problems.get("", "").endswith("not allowed"))
        with pytest.raises(TransportLost):
            await a.publish(b"one")
    login = Login("who", "knows")
    async with member(zookeeper.address, path, "b#1", digest=login, acl="creator") as b:
        await published(b, b"one")
        [acl, *_] = kazoo.get_acls(f"{path}/members/b#1")[0]
        assert acl.id.scheme == "digest"


async def test_claims_that_would_have_the_server_close_the_connection_are_not_sent(zookeeper, path):
    async with member(zookeeper.address, path, "a#1") as a:
        await published(a, b"x" * MAX_BYTES)
        with pytest.raises(TransportLost, match="expected at most"):
            await a.publish(b"x" * (MAX_BYTES + 1))
        assert a.losses == 0


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:2181"])
async def test_a_transport_without_zookeeper_says_so_and_ends_at_once(address, path):
    async with member(address, path, "a#1") as a:
        await until(lambda: "" in a.problems)
        with pytest.raises(TransportLost):
            await a.publish(b"one")
        assert a.heard_ms is None
        assert a.view() == {}
