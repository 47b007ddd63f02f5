"""Fleets of real proxies in front of a real cluster, with a real ZooKeeper: limits are divided whatever happens."""

import contextlib
import json
import os
import signal
import threading
import time

import psutil
import pytest

from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import RawClient
from tests.integration.restarts import RelayedProxy
from tests.integration.zookeeper_process import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

SESSION_S = 6
LIMIT = 200_000
REQUEST_BYTES = 2_000
QUOTAS = [{"default_client_id": True, "producer_byte_rate": LIMIT}]
NODE = 1


@pytest.fixture(scope="module")
def zookeeper():
    with ZooKeeper({"tickTime": "1000"}) as process:
        yield process


@pytest.fixture
def proxy_of(newest_kafka, zookeeper, request):
    """Makes a proxy of this test's fleet that is not started; its name is that of the instance."""
    path = f"/fleets/{request.node.name}"

    def make(name, kind=ProxyProcess, instances=2, **settings):
        return kind(
            newest_kafka,
            QUOTAS,
            fleet={"path": path, "zookeeper": {"servers": [zookeeper.address]}, "session_timeout_ms": 1000 * SESSION_S},
            usage={"instance": name},
            source={"instances": instances},
            **settings,
        )

    make.path = path
    return make


class Load:
    """A client that produces at one proxy as fast as it is let, and connects again when it is thrown out."""

    def __init__(self, proxy, client_id="app"):
        self.bytes = 0
        self._proxy = proxy
        self._client_id = client_id
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()

    def _run(self):
        while not self._stopping.is_set():
            with contextlib.suppress(OSError, AssertionError), self._client() as client:
                while not self._stopping.is_set():
                    client.produce(REQUEST_BYTES)
                    self.bytes += REQUEST_BYTES
            self._stopping.wait(0.1)

    def _client(self):
        return RawClient((HOST, self._proxy.node_ports[NODE]), self._client_id)


def share_form(proxy, client_id="app"):
    """What a proxy says about its share of the limit; None while nothing is measured."""
    form = proxy.admin(f"explain?client_id={client_id}")
    [produce] = [each for each in form["quotas"] if each["quota"] == "producer_byte_rate"]
    shares = [(use["share"], use["limit"]) for use in produce["use"] if use["node_id"] == NODE]
    if not shares:
        return None
    [(share, limit)] = shares
    assert limit == pytest.approx(share["share"] * LIMIT)
    return share


def claimed(proxy):
    """What all together claim, as a proxy sees it."""
    form = share_form(proxy)
    return form["claim"] + form["others_claim"]


def share(proxy, client_id="app"):
    form = share_form(proxy, client_id)
    return 0.0 if form is None else form["share"]


def are_dividing(*proxies):
    """Whether each of them claims its part of the limit, and sees that the others do."""
    forms = [share_form(proxy) for proxy in proxies]
    return all(form and form["claim"] and form["others"] for form in forms) and min(
        form["share"] for form in forms
    ) > 0.9 / len(proxies)


def are_known(*proxies):
    """Whether each of them counts all of them, and none is cut off."""
    return all((proxy.metric("fleet_members"), proxy.metric("fleet_cut_off")) == (len(proxies), 0) for proxy in proxies)


@pytest.mark.rule("fleet")
def test_two_instances_give_out_one_limit_and_one_alone_has_it_all(proxy_of):
    with proxy_of("a") as a, proxy_of("b") as b:
        wait_until(lambda: are_known(a, b))
        with Load(a) as one, Load(b) as other:
            wait_until(lambda: are_dividing(a, b))
            assert share(a) + share(b) <= 1
            assert share_form(a)["others"][0]["instance"].startswith("b#")
            wait_until(lambda: claimed(a) <= 0.98)  # before that one may ask for what the other still has
            began, before = time.monotonic(), one.bytes + other.bytes
            time.sleep(22)  # two windows: what a client gets is steady over these only
            passed = time.monotonic() - began
            given = one.bytes + other.bytes - before
            assert given <= 1.1 * LIMIT * passed + LIMIT, "the limit, and what a request may go over it"
        with Load(a):
            wait_until(lambda: share(a) > 0.9)
            b.stop()
            wait_until(lambda: share(a) == 1)
        assert are_known(a)


@pytest.mark.nightly
def test_each_worker_of_an_instance_is_a_member_of_the_fleet(proxy_of, zookeeper):
    with proxy_of("a", workers=2) as a, proxy_of("b", workers=2) as b, zookeeper.client() as kazoo:
        wait_until(lambda: len(kazoo.get_children(f"{proxy_of.path}/members")) == 4)
        with contextlib.ExitStack() as stack:
            loads = [stack.enter_context(Load(proxy)) for proxy in (a, a, a, b)]
            time.sleep(20)  # until claims have settled, and the bursts are over
            began, before = time.monotonic(), sum(load.bytes for load in loads)
            time.sleep(22)
            given, passed = sum(load.bytes for load in loads) - before, time.monotonic() - began
            assert 0.8 * LIMIT * passed <= given <= 1.1 * LIMIT * passed + LIMIT
            for worker in list(psutil.Process(a.pid).children()[0].children()):
                worker.kill()
            wait_until(lambda: len(a.events("worker_replaced")) == 2)
            wait_until(lambda: len(kazoo.get_children(f"{proxy_of.path}/members")) == 4)
            had = [load.bytes for load in loads]
            wait_until(lambda: all(load.bytes > before for load, before in zip(loads, had, strict=True)))


def test_the_share_of_an_instance_that_is_killed_moves_to_the_others(proxy_of):
    with proxy_of("a") as a, proxy_of("b") as b:
        wait_until(lambda: are_known(a, b))
        with Load(a), Load(b):
            wait_until(lambda: are_dividing(a, b))
            b.kill()
            assert share(a) < 0.55
            wait_until(lambda: share(a) == 1)
        [left] = a.events("fleet_member_left")
        assert left["other"].startswith("b#")


@pytest.mark.nightly
def test_instances_without_zookeeper_give_out_their_parts_and_say_so(proxy_of, zookeeper):
    with proxy_of("a") as a, proxy_of("b") as b:
        wait_until(lambda: are_known(a, b))
        with Load(a) as one:
            wait_until(lambda: share(a) > 0.9)
            zookeeper.kill()
            try:
                wait_until(lambda: a.metric("fleet_cut_off") and b.metric("fleet_cut_off"))
                assert share(a) == pytest.approx(0.5, abs=0.02)
                status, body = a.get("readyz")
                assert status == 200
                [remark] = json.loads(body)["remarks"]
                assert remark.startswith(
                    "virtual cluster main: this instance is cut off from its fleet, and it gives out at most 1/2 of"
                )
                before = one.bytes
                wait_until(lambda: one.bytes > before)
                with proxy_of("c", instances=3) as c, Load(c):
                    # The number of instances is all that is known. It counts when nothing was heard for a session.
                    wait_until(lambda: share(c) == pytest.approx(1 / 3, abs=0.02))
            finally:
                zookeeper.start()
            wait_until(lambda: are_known(a, b))
            wait_until(lambda: share(a) > 0.9)
        for proxy in (a, b):
            assert len(proxy.events("fleet_cut_off")) == len(proxy.events("fleet_reached")) == 1


@pytest.mark.nightly
def test_an_instance_that_stood_still_for_too_long_does_not_go_on_with_what_others_have(proxy_of):
    with proxy_of("a") as a, proxy_of("b") as b:
        wait_until(lambda: are_known(a, b))
        with Load(a), Load(b) as other:
            wait_until(lambda: are_dividing(a, b))
            os.kill(a.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: share(b) == 1)
            finally:
                os.kill(a.pid, signal.SIGCONT)
            wait_until(lambda: a.events("fleet_cut_off"))
            wait_until(lambda: are_known(a, b))
            wait_until(lambda: are_dividing(a, b))
            assert share(a) + share(b) <= 1
            assert other.bytes


@pytest.mark.nightly
def test_what_is_no_claim_harms_nobody(proxy_of, zookeeper):
    with proxy_of("a") as a, proxy_of("b") as b, zookeeper.client() as kazoo, Load(a):
        wait_until(lambda: share(a) > 0.9)
        bad = {"empty": b"", "foreign": b"PNG", "huge": b" " * 1_000_000, "older": b'{"format": 0}', "b#0": b"{}"}
        for name, content in bad.items():
            kazoo.create(f"{proxy_of.path}/members/{name}", content, ephemeral=True)
        wait_until(lambda: {line["other"] for line in a.events("fleet_document_refused")} == set(bad))
        wait_until(lambda: a.metric("fleet_members") == 2 + len(bad))
        assert a.metric("fleet_refused_documents_total") >= len(bad)
        assert share(a) <= 1
        for name in bad:
            kazoo.delete(f"{proxy_of.path}/members/{name}")
        wait_until(lambda: are_known(a, b))
        wait_until(lambda: share(a) > 0.9)


@pytest.mark.nightly
def test_a_process_that_takes_over_is_a_member_beside_the_one_before_it(proxy_of):
    with proxy_of("a", RelayedProxy, limits={"drain_s": 5}) as a, Load(a) as one:
        wait_until(lambda: share(a) == 1)
        a.take_over()
        wait_until(lambda: [line for line in a.events("fleet_member_left") if line["members"] == 1])
        wait_until(lambda: share(a) == 1)
        before = one.bytes
        wait_until(lambda: one.bytes > before)
        first, second = a.events("fleet_joined")
        assert first["member"] != second["member"]
        assert second["others"] == [first["member"]]
