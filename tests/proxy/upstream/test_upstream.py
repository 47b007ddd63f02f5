"""Connecting to nodes: from which address, how often, and what is said first, on real sockets."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from struct import pack

import pytest
from structlog.testing import capture_logs

from kafka_throttle.protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from kafka_throttle.protocol.messages.client_quotas import all_quotas_request
from kafka_throttle.protocol.messages.metadata import MetadataNode
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import UpstreamConfig
from kafka_throttle.proxy.net.poller import READABLE, Poller
from kafka_throttle.proxy.upstream.connector import Upstream
from kafka_throttle.proxy.upstream.credentials import credentials_of
from kafka_throttle.proxy.upstream.dial import Dial
from kafka_throttle.proxy.upstream.discovery import _brokers
from kafka_throttle.proxy.upstream.node_socket import NodePaced, NodeUnknown, NodeUnreachable
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, NodeDirectory
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.fair_queue import Whose
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, mark_of
from kafka_throttle.quotas.sources.cluster_faults import ConnectionFault, Fault
from tests.fakes.clock import FakeClock
from tests.fakes.listener import Listener, text
from tests.support.certificates import Authority, server_context
from tests.support.deaf import deaf_address
from tests.support.timeouts import TIMEOUT_S

NOT_HERE = "192.0.2.1"


class Node:
    """A listening socket, and the way to it."""

    def __init__(self, **settings):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(TIMEOUT_S)
        self.port = self.server.getsockname()[1]
        self.paced, self.failed = [], []
        config = self.config(**settings)
        directory = NodeDirectory()
        directory.learn(1, "127.0.0.1", self.port)
        self.upstream = Upstream(
            "main", config, directory, Poller(), self.failed.append, bool, self.paced.append, FakeClock().now_us
        )

    def config(self, **settings):
        return UpstreamConfig.model_validate({"bootstrap_servers": [f"127.0.0.1:{self.port}"], **settings})

    async def connect(self, node_id=1, first=b""):
        """From which address it has connected, and the first bytes of it."""
        connected = await self.upstream.connect(node_id, first)
        accepted, peer = self.server.accept()
        with accepted:
            accepted.settimeout(TIMEOUT_S)
            assert connected.socket.getsockname() == peer
            connected.socket.close()
            return peer[0], accepted.recv(100)


@pytest.fixture
async def node():
    made = Node()
    yield made
    made.server.close()


async def test_the_first_words_come_before_all_else(node):
    assert await node.connect(first=b"PROXY") == ("127.0.0.1", b"PROXY")
    assert await node.connect(BOOTSTRAP_NODE_ID, first=b"PROXY") == ("127.0.0.1", b"PROXY")


async def test_source_addresses_are_used_in_turn_and_may_change_at_any_time(node):
    node.upstream.reconfigure(node.config(source_addresses=["127.0.0.2", "127.0.0.3", "::1"]))
    sources = [(await node.connect())[0] for _ in range(6)]
    assert sorted(sources[:3]) == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]
    assert sources[3:] == sources[:3]
    node.upstream.reconfigure(node.config(source_addresses=["127.0.0.9"]))
    assert (await node.connect())[0] == "127.0.0.9"


async def test_without_a_source_address_of_the_nodes_kind_the_system_chooses(node):
    node.upstream.reconfigure(node.config(source_addresses=["::1"]))
    assert (await node.connect())[0] == "127.0.0.1"


async def test_a_source_address_that_is_not_there_is_passed_over_and_named_when_it_is_the_only_one(node):
    node.upstream.reconfigure(node.config(source_addresses=[NOT_HERE, "127.0.0.4"]))
    assert [(await node.connect())[0] for _ in range(4)] == ["127.0.0.4"] * 4
    node.upstream.reconfigure(node.config(source_addresses=[NOT_HERE]))
    with pytest.raises(NodeUnreachable, match=f"127.0.0.1:{node.port}: cannot connect from {NOT_HERE}: Cannot assign"):
        await node.connect()
    assert node.failed == [1]


async def test_a_connection_without_a_turn_in_time_fails_with_the_reason(node):
    node.upstream.reconfigure(node.config(connections_per_second=0.5))
    await node.connect()
    node.upstream.reconfigure(node.config(connections_per_second=0.5, connect_timeout_ms=100))
    bounds = "connections_per_second 0.5, connect_timeout_ms 100"
    reported = rf"127.0.0.1:{node.port}: no turn to connect \({bounds}, 0 more wait\)"
    for node_id in (1, BOOTSTRAP_NODE_ID):
        with pytest.raises(NodePaced, match=reported):
            await node.connect(node_id)
    assert (node.paced, node.failed) == ([], [])


async def test_without_a_pace_waiting_connections_go_on(node):
    node.upstream.reconfigure(node.config(connections_per_second=0.5, connect_timeout_ms=300_000))
    await node.connect()
    waiting = asyncio.create_task(node.connect())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    node.upstream.reconfigure(node.config())
    assert (await waiting)[0] == "127.0.0.1"
    assert node.paced == [1]


@pytest.mark.parametrize("announced", [True, False])
async def test_connections_of_its_own_say_so_where_nodes_want_to_know(node, announced):
    """Both the connections that look for nodes and those that read quotas."""
    config = node.config(send_proxy_protocol=announced, connect_timeout_ms=20_000)

    def ask_for_quotas():
        connection = ClusterConnection(f"127.0.0.1:{node.port}", credentials_of(config), TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(SourceUnavailable):
            connection.ask(all_quotas_request())

    def look_for_nodes():
        with contextlib.suppress(Exception):
            asyncio.run(_brokers(f"127.0.0.1:{node.port}", config))

    for ask in (ask_for_quotas, look_for_nodes):
        threading.Thread(target=ask, daemon=True).start()  # it ends by itself, some time after it is hung up on
        accepted, _ = await asyncio.to_thread(node.server.accept)
        with accepted:
            accepted.settimeout(TIMEOUT_S)
            first = await asyncio.to_thread(accepted.recv, 16, socket.MSG_WAITALL)
        assert (first == LOCAL_PROXY_HEADER) == announced


async def test_what_keeps_the_proxy_from_its_cluster_is_named_once_for_each_reason(tmp_path, monkeypatch):
    """First no server is there, then one that speaks TLS."""
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._LONGEST_LOOK_S", TIMEOUT_S)
    context = server_context(Authority(tmp_path).issue("127.0.0.1"))
    node = Node(connect_timeout_ms=100)
    node.server.close()
    with capture_logs() as logs:
        for _ in range(2):
            assert not await node.upstream.discovery._learn()
        with socket.create_server(("127.0.0.1", node.port)) as server:
            threading.Thread(target=refuse_plain, args=(server, context), daemon=True).start()
            assert not await node.upstream.discovery._learn()
    reported = [line for line in logs if line["event"] == "cluster_unreachable"]
    assert [line["reason"] for line in reported] == ["unreachable", "tls_expected"]
    assert reported[0]["settings"] == ["upstream.bootstrap_servers"]
    assert reported[1]["settings"] == ["upstream.admin.security_protocol"]
    assert reported[1]["problems"][0].startswith(f"127.0.0.1:{node.port}: it speaks TLS")


async def test_a_node_that_is_gone_is_a_warning_and_one_that_has_come_is_none(node, monkeypatch):
    discovery = node.upstream.discovery
    with capture_logs() as logs:
        for node_ids in ((1, 2, 3), (1, 2, 3), (1, 3), (1, 3), (1, 2, 3, 4), (5, 6)):
            named = [MetadataNode(node_id, "127.0.0.1", node.port) for node_id in node_ids]

            async def look(named=named):
                return named

            monkeypatch.setattr(discovery, "_look", look)
            assert await discovery._learn()
    changes = [(line["log_level"], line["gone"], line["come"]) for line in logs if line["event"] == "nodes_changed"]
    assert changes == [("warning", [2], []), ("info", [], [2, 4]), ("warning", [1, 2, 3, 4], [5, 6])]
    assert [line["nodes"] for line in logs if line["event"] == "cluster_reached"] == [[1, 2, 3]]


class WantsSasl(Listener):
    """Closes on whatever is no login, and names the mechanisms that it takes."""

    def __init__(self):
        super().__init__(responses={17: pack(">hi", 33, 1) + text(b"SCRAM-SHA-256")})


async def test_a_cluster_that_wants_a_login_which_the_proxy_has_not_is_left_to_clients(node):
    listener = WantsSasl()
    discovery = node.upstream.discovery
    discovery.reconfigure(node.config(bootstrap_servers=[listener.address], connect_timeout_ms=60_000))
    with capture_logs() as logs, contextlib.closing(listener.server):
        for _ in range(2):
            assert await discovery._learn()
            assert (discovery.lacks_login, discovery.trouble) == (True, None)
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert (line["event"], line["settings"]) == ("own_login_missing", ["upstream.admin"])
    listener.server.close()
    assert not await discovery._learn()
    assert not discovery.lacks_login
    assert discovery.trouble is not None


def refuse_plain(server, context):
    with contextlib.suppress(OSError):
        while True:
            with server.accept()[0] as sock, contextlib.suppress(OSError):
                sock.settimeout(TIMEOUT_S)
                context.wrap_socket(sock, server_side=True).close()


def restricted(listeners=(), places=()):
    config = UpstreamConfig.model_validate({"bootstrap_servers": ["127.0.0.1:9"], "node_networks": places})
    config.belong("main", tuple(listeners))
    return config


@pytest.mark.parametrize("problem", ["it is a listener of this proxy", "it is outside of upstream.node_networks"])
async def test_a_node_at_an_address_that_is_none_of_a_node_is_neither_learned_nor_asked_for(node, problem):
    own = problem == "it is a listener of this proxy"
    config = restricted([("0.0.0.0", range(1, 3))]) if own else restricted(places=["10.1.0.0/16", ".kafka.test"])
    directory = NodeDirectory(destinations=config.destinations)
    directory.learn(3, "10.1.0.9", 9092)
    with capture_logs() as logs:
        for node_id in (3, 7, 7):
            directory.learn(node_id, "127.0.0.1", 2)
    assert (directory.address(7), directory.address(3)) == (None, ("10.1.0.9", 9092))
    assert [(line["event"], line["node_id"], line["problem"]) for line in logs] == [
        ("node_address_refused", node_id, f"{problem}, so the proxy does not connect to it") for node_id in (3, 7)
    ]
    upstream = Upstream("main", config, directory, Poller(), bool, bool, bool, FakeClock().now_us)
    with pytest.raises(NodeUnknown, match=f"node 7 is at 127.0.0.1:2: {problem}"):
        await upstream.discovery.find(7)
    directory.learn(7, "10.1.0.7", 9092)
    assert (directory.address(7), directory.refused.keys()) == (("10.1.0.7", 9092), {3})
    directory.note_all([7])
    assert directory.refused == {}


@pytest.mark.parametrize("settings", [{}, {"source_addresses": ["127.0.0.1"]}])
async def test_a_name_that_leads_to_an_own_listener_is_not_connected_to_when_it_does(node, names, settings):
    """It may have led elsewhere before."""
    names.addresses["moves.test"] = ["127.0.0.1"]
    config = node.config(**settings)
    config.belong("main", (("127.0.0.1", range(node.port, node.port + 1)),))
    upstream = Upstream("main", config, NodeDirectory(), Poller(), bool, bool, bool, FakeClock().now_us)
    upstream.directory.learn(7, "moves.test", node.port)
    for _ in range(2):  # it is looked up, then it is known
        asker = Asker()
        upstream.open(7, b"", Whose, asker.outcome.set_result)
        assert str(await asker.reported()) == f"moves.test:{node.port}: it is a listener of this proxy"
        await upstream._look_ups.of("moves.test")
    with pytest.raises(SourceUnavailable, match="it is a listener of this proxy"):
        await _brokers(f"moves.test:{node.port}", config)
    node.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        node.server.accept()


async def test_no_login_is_sent_outside_of_the_networks_of_the_nodes(node, names):
    names.addresses["elsewhere.test"] = ["127.0.0.1"]
    config = node.config(node_networks=["10.0.0.0/8"])
    with pytest.raises(SourceUnavailable, match=r"it is outside of upstream\.node_networks"):
        await _brokers(f"elsewhere.test:{node.port}", config)
    node.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        node.server.accept()


def comes_back(node, node_id):
    """A connection of the proxy's own comes as that of a client of this node."""
    asker = Asker()
    own = mark_of("main")
    node.upstream.open(node_id, b"", Whose, asker.outcome.set_result, own)
    assert not asker.outcome.done()
    return asker


LEADS_BACK = "the bootstrap servers lead back to this proxy"


async def test_when_a_look_of_its_own_comes_as_a_client_clients_go_no_further_until_a_look_succeeds(node, monkeypatch):
    assert str(await comes_back(node, BOOTSTRAP_NODE_ID).reported()) == LEADS_BACK
    asker, _ = open_(node, BOOTSTRAP_NODE_ID)
    assert str(await asker.reported()) == LEADS_BACK
    to_node, _ = open_(node, 1)
    (await to_node.reported()).socket.close()
    other = Asker()
    another_proxy = mark_of("main") ^ 1
    node.upstream.open(BOOTSTRAP_NODE_ID, b"", Whose, other.outcome.set_result, another_proxy)
    assert str(await other.reported()) == LEADS_BACK

    async def nodes_named_by(*_):
        return [MetadataNode(1, "127.0.0.1", node.port)]

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    node.upstream.reconfigure(node.config(default_partitions=1, metadata_refresh_s=3600))
    assert await node.upstream.discovery._learn()
    asker, _ = open_(node, BOOTSTRAP_NODE_ID)
    (await asker.reported()).socket.close()


def test_the_mark_of_one_cluster_does_not_show_that_of_another():
    """Nodes see the marks, and must not have others taken for ways back: no known number is between two marks."""
    code = (
        "from kafka_throttle.quotas.sources.cluster_connection import mark_of\n"
        "print((mark_of('a') - mark_of('b')) % 2**31)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert runs[0] != runs[1]


async def test_after_a_way_back_the_cluster_is_looked_at_soon(node, monkeypatch):
    looks = asyncio.Queue()

    async def nodes_named_by(*_):
        looks.put_nowait("a look")
        return []

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._FIRST_RETRY_S", 0)
    node.upstream.reconfigure(node.config(default_partitions=1, metadata_refresh_s=3600))
    learning = asyncio.create_task(node.upstream.discovery.keep_learning())
    await asyncio.wait_for(looks.get(), TIMEOUT_S)
    await comes_back(node, BOOTSTRAP_NODE_ID).reported()
    await asyncio.wait_for(looks.get(), TIMEOUT_S)
    learning.cancel()


async def test_a_way_back_is_the_reason_why_the_cluster_cannot_be_reached(node, monkeypatch):
    async def nodes_named_by(*_):
        await comes_back(node, BOOTSTRAP_NODE_ID).reported()
        raise SourceUnavailable("closed")

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._LONGEST_LOOK_S", 0)
    with capture_logs() as logs:
        assert not await node.upstream.discovery._learn()
    assert node.upstream.discovery.trouble == LEADS_BACK
    assert [(line["event"], line["reason"], line["error"]) for line in logs] == [
        ("cluster_unreachable", "leads_back", LEADS_BACK)
    ]


async def test_a_node_whose_address_leads_back_is_no_node_until_it_is_elsewhere(node):
    directory, where = node.upstream.directory, ("127.0.0.1", node.port)
    with capture_logs():
        assert isinstance(await comes_back(node, 1).reported(), NodeUnreachable)
        directory.learn(1, *where)
    asker, _ = open_(node, 1)
    refused = await asker.reported()
    assert isinstance(refused, NodeUnknown)
    assert str(refused).endswith(f"node 1 is at 127.0.0.1:{node.port}: it leads back to this proxy")
    directory.learn(1, "127.0.0.9", node.port)
    assert directory.address(1) == ("127.0.0.9", node.port)


async def test_a_node_whose_address_led_back_is_a_node_again_once_it_responds_there(node, monkeypatch):
    """The cluster's nodes and their addresses stay the same: only what leads there has been mended."""
    directory, mended, looked_at = node.upstream.directory, [], []

    async def nodes_named_by(*_):
        return [MetadataNode(1, "127.0.0.1", node.port)]

    async def response_of(server, *_):
        looked_at.append(server)
        if not mended:
            await comes_back(node, 1).reported()
            raise ConnectionFault(server, Fault("closed", "it was closed", "upstream"))

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.response_of", response_of)
    node.upstream.reconfigure(node.config(default_partitions=1, metadata_refresh_s=3600))

    async def refresh():
        looked_at.clear()
        assert await node.upstream.discovery._learn()
        await node.upstream.discovery._seeing
        return len(looked_at)

    with capture_logs() as logs:
        for _ in range(3):
            assert await refresh() == 1
            assert directory.address(1) is None
    assert [line["event"] for line in logs if "node" in line["event"]] == ["node_address_refused"]
    mended.append(True)
    assert await refresh() == 1
    assert await refresh() == 1, "as any address that is new"
    assert directory.address(1) == ("127.0.0.1", node.port)
    assert (directory.refused, await refresh()) == ({}, 0)


async def test_each_node_is_looked_at_once_at_each_address(node, monkeypatch):
    named, looked_at = [MetadataNode(1, "a", 1), MetadataNode(2, "b", 2)], []

    async def nodes_named_by(*_):
        return named

    async def response_of(server, *_):
        looked_at.append(server)

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.response_of", response_of)
    node.upstream.reconfigure(node.config(default_partitions=1, metadata_refresh_s=3600))
    for _ in range(2):
        assert await node.upstream.discovery._learn()
        await node.upstream.discovery._seeing
    named[0] = MetadataNode(1, "c", 3)
    assert await node.upstream.discovery._learn()
    await node.upstream.discovery._seeing
    assert looked_at == ["a:1", "b:2", "c:3"]


async def test_who_bootstraps_waits_until_other_bootstrap_servers_were_looked_at(node, monkeypatch):
    answers = asyncio.Event()

    async def nodes_named_by(*_):
        await answers.wait()
        return [MetadataNode(1, "127.0.0.1", node.port)]

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._NEXT_LOOK_S", TIMEOUT_S)
    node.upstream.reconfigure(node.config(default_partitions=1, bootstrap_servers=[f"localhost:{node.port}"]))
    learning = asyncio.create_task(node.upstream.discovery.keep_learning())
    asker, _ = open_(node, BOOTSTRAP_NODE_ID)
    given_up, under_way = open_(node, BOOTSTRAP_NODE_ID)
    under_way.cancel()
    await asyncio.sleep(0.01)
    assert not asker.outcome.done()
    other = Asker()
    another_proxy = mark_of("main") ^ 1
    node.upstream.open(BOOTSTRAP_NODE_ID, b"", Whose, other.outcome.set_result, another_proxy)
    (await other.reported()).socket.close()
    answers.set()
    (await asker.reported()).socket.close()
    learning.cancel()
    assert not given_up.outcome.done()


class Asker:
    """Who has a connection opened without waiting for it."""

    def __init__(self):
        self.outcome = asyncio.get_running_loop().create_future()

    async def reported(self):
        return await asyncio.wait_for(self.outcome, TIMEOUT_S)


def open_(node, node_id=1, first=b""):
    asker = Asker()
    return asker, node.upstream.open(node_id, first, Whose, asker.outcome.set_result)


@pytest.mark.parametrize("settings", [{}, {"source_addresses": ["127.0.0.1"]}, {"connections_per_second": 1000}])
@pytest.mark.parametrize("node_id", [1, BOOTSTRAP_NODE_ID])
async def test_an_address_by_number_is_connected_to_with_a_task_or_without(node, settings, node_id):
    node.upstream.reconfigure(node.config(**settings))
    asker, _ = open_(node, node_id, first=b"PROXY")
    connected = await asker.reported()
    accepted, peer = node.server.accept()
    with accepted:
        assert connected.socket.getsockname() == peer
        assert connected.node_id == 1
        assert (connected.socket.getblocking(), connected.round_trip_us is not None) == (False, True)
        assert connected.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.recv(100) == b"PROXY"
        connected.socket.close()


async def test_a_name_is_connected_to_and_needs_no_task_while_its_one_address_is_known(node, names):
    names.addresses["one.test"] = ["127.0.0.1"]
    node.upstream.directory.learn(7, "one.test", node.port)
    for is_known in (False, True):
        asker, under_way = open_(node, 7)
        assert isinstance(under_way, Dial) == is_known
        assert (await asker.reported()).node_id == 7
    assert names.looks == ["one.test"]
    node.server.close()
    asker, _ = open_(node, 7)
    assert str(await asker.reported()) == f"one.test:{node.port}: Connection refused"
    assert node.upstream._look_ups.fresh("one.test") == ()


async def test_a_name_whose_one_address_has_a_zone_is_connected_to_as_any_other(node, monkeypatch):
    async def look_up(host):
        return [(socket.AF_INET6, ("fe80::1%lo", 0, 0, 1))]

    monkeypatch.setattr(node.upstream._look_ups, "_look_up", look_up)
    node.upstream.directory.learn(7, "link.test", node.port)
    for _ in range(2):
        await node.upstream._look_ups.of("link.test")
        asker, under_way = open_(node, 7)
        assert not isinstance(under_way, Dial)
        assert isinstance(await asker.reported(), NodeUnreachable)


@pytest.mark.parametrize("node_id", [1, BOOTSTRAP_NODE_ID])
async def test_a_refusal_of_a_node_is_reported_later_and_counted(node, node_id):
    node.server.close()
    asker, _ = open_(node, node_id)
    assert not asker.outcome.done()
    refused = await asker.reported()
    assert isinstance(refused, NodeUnreachable)
    assert str(refused) == f"127.0.0.1:{node.port}: Connection refused"
    assert node.failed == [node_id]


@pytest.mark.parametrize(("host", "port"), [("255.255.255.255", 1), ("127.0.0.1\0", 1)])
async def test_an_address_that_cannot_be_tried_is_reported_later(node, host, port):
    node.upstream.directory.learn(7, host, port)
    asker, _ = open_(node, 7)
    assert not asker.outcome.done()
    assert isinstance(await asker.reported(), NodeUnreachable)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("beyond", [65_536, -65_536])
async def test_a_node_at_a_port_that_there_cannot_be_is_not_dialled_at_another(node, host, beyond):
    node.upstream.reconfigure(node.config(connect_timeout_ms=100))
    with capture_logs() as logs:
        for _ in range(2):
            node.upstream.directory.learn(7, host, node.port + beyond)
    assert [(line["event"], line["node_id"], line["port"]) for line in logs] == [
        ("node_address_refused", 7, node.port + beyond)
    ]
    asker, _ = open_(node, 7)
    assert isinstance(await asker.reported(), NodeUnknown)
    node.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        node.server.accept()


@pytest.mark.parametrize("port", [0, -1, 65_536, 2**31 - 1])
async def test_a_port_that_there_cannot_be_leaves_a_node_where_it_was(node, port):
    where = node.upstream.directory.address(1)
    node.upstream.directory.learn(1, "elsewhere", port)
    assert node.upstream.directory.address(1) == where


async def test_a_node_that_does_not_accept_is_given_up_in_time_and_an_unwanted_connection_is_dropped(node):
    with deaf_address() as deaf:
        node.upstream.directory.learn(7, *deaf)
        node.upstream.reconfigure(node.config(connect_timeout_ms=100))
        asker, _ = open_(node, 7)
        unwanted, under_way = open_(node, 7)
        under_way.cancel()
        assert str(await asker.reported()) == f"127.0.0.1:{deaf[1]}: no connection within 100 ms"
        assert not unwanted.outcome.done()
        waiting = [*node.upstream._deadlines, *node.upstream._first_deadlines]
        assert (node.failed, waiting, node.upstream._poller._handlers) == ([7], [], {})


class Names:
    """What names stand for in this process."""

    def __init__(self, monkeypatch):
        self.addresses, self.looks = {}, []
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look)

    def _look(self, host, port, *args, flags=0, **settings):
        if host not in self.addresses or flags:
            return self._real(host, port, *args, flags=flags, **settings)
        self.looks.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses[host]]


@pytest.fixture
def names(monkeypatch):
    return Names(monkeypatch)


SLOW_ENOUGH_MS = 60_000


@pytest.mark.parametrize("settings", [{}, {"source_addresses": ["127.0.0.1"]}])
async def test_of_a_name_whose_first_addresses_are_dead_the_next_one_is_reached_and_then_comes_first(
    node, names, settings
):
    names.addresses["two.test"] = ["127.9.9.1", "127.9.9.2", "127.0.0.1"]
    node.upstream.directory.learn(7, "two.test", node.port)
    node.upstream.reconfigure(
        node.config(connect_timeout_ms=SLOW_ENOUGH_MS, bootstrap_servers=[f"two.test:{node.port}"], **settings)
    )
    with deaf_address("127.9.9.1", node.port), deaf_address("127.9.9.2", node.port):
        await node.connect(7)
        slow = node.upstream._slow
        assert [where[0] for _, where in slow.last(at(node.port, *names.addresses["two.test"]))] == [
            "127.0.0.1",
            "127.9.9.1",
            "127.9.9.2",
        ]
        await node.connect(BOOTSTRAP_NODE_ID, first=b"PROXY")
        assert names.looks == ["two.test"]
        assert (node.failed, node.upstream._poller._handlers) == ([], {})


def at(port, *addresses):
    return [(socket.AF_INET, (address, port)) for address in addresses]


async def test_a_name_that_moves_is_found_after_one_failure(node, names):
    names.addresses["moves.test"] = ["127.0.0.1"]
    node.upstream.directory.learn(7, "moves.test", 1)
    with pytest.raises(NodeUnreachable, match=r"moves\.test:1: Connection refused"):
        await node.upstream.connect(7)
    node.upstream.directory.learn(7, "moves.test", node.port)
    await node.connect(7)
    assert names.looks == ["moves.test"] * 2


async def test_a_dead_bootstrap_server_does_not_use_up_the_time_of_the_next(node):
    with deaf_address() as deaf:
        servers = [f"127.0.0.1:{port}" for port in (node.port, deaf[1])]  # the second one's turn is first
        node.upstream.reconfigure(node.config(connect_timeout_ms=SLOW_ENOUGH_MS, bootstrap_servers=servers))
        for _ in range(2):
            await node.connect(BOOTSTRAP_NODE_ID)
        assert node.upstream.discovery.servers_in_turn()[1] == deaf


class Cluster:
    """A cluster whose bootstrap server, node 1, is down or deaf, and whose node 2 is up."""

    def __init__(self, bootstrap, **settings):
        self.other = Node(**settings, bootstrap_servers=["{}:{}".format(*bootstrap)])
        self.upstream, self.directory = self.other.upstream, self.other.upstream.directory
        self.directory.learn(1, *bootstrap)
        self.directory.learn(2, "127.0.0.1", self.other.port)

    def bootstrap(self):
        return open_(self.other, BOOTSTRAP_NODE_ID, b"PROXY")

    def close(self):
        self.other.server.close()


@pytest.fixture
def closed_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


WAYS = [{}, {"source_addresses": ["127.0.0.1"]}, {"connections_per_second": 1000}]


@pytest.mark.parametrize("settings", WAYS)
async def test_while_the_bootstrap_server_is_down_clients_bootstrap_at_another_node(closed_address, settings):
    with contextlib.closing(Cluster(closed_address, **settings)) as cluster:
        asker, _ = cluster.bootstrap()
        connected = await asker.reported()
        accepted, _ = cluster.other.server.accept()
        with accepted, connected.socket:
            assert (connected.node_id, accepted.recv(100)) == (2, b"PROXY")


@pytest.mark.parametrize("settings", WAYS)
async def test_a_bootstrap_server_that_does_not_accept_holds_clients_up_for_a_moment_only(settings):
    with deaf_address() as deaf:
        config = {"connect_timeout_ms": SLOW_ENOUGH_MS, **settings}
        with contextlib.closing(Cluster(deaf, **config)) as cluster:
            asker, _ = cluster.bootstrap()
            connected = await asker.reported()
            assert connected.node_id == 2
            connected.socket.close()


async def test_who_gives_up_while_another_node_is_tried_is_told_nothing(closed_address):
    with deaf_address() as deaf, contextlib.closing(Cluster(closed_address)) as cluster:
        cluster.directory.learn(2, *deaf)
        asker, under_way = cluster.bootstrap()
        while under_way._instead is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        under_way.cancel()
        await asyncio.wait([under_way._instead])
        assert not asker.outcome.done()


async def test_nodes_that_are_gone_from_the_cluster_and_those_of_another_one_are_not_tried(closed_address):
    with contextlib.closing(Cluster(closed_address)) as cluster:
        cluster.directory.note_all([1])
        asker, _ = cluster.bootstrap()
        assert isinstance(await asker.reported(), NodeUnreachable)
        cluster.directory.note_all([1, 2])
        moved = cluster.upstream.config.model_copy(update={"bootstrap_servers": (HostPort("127.0.0.1", 9),)})
        cluster.upstream.reconfigure(moved)
        asker, _ = cluster.bootstrap()
        assert isinstance(await asker.reported(), NodeUnreachable)


async def test_while_one_node_answers_the_cluster_is_reached_and_the_silent_servers_are_named(
    closed_address, monkeypatch
):
    """Also when the node that answers is another one each time."""
    with contextlib.closing(Cluster(closed_address, default_partitions=1)) as cluster:
        dead = {closed_address[1]}
        nodes = [MetadataNode(1, *closed_address), MetadataNode(2, "127.0.0.1", 2), MetadataNode(3, "127.0.0.1", 3)]

        async def nodes_named_by(server, *_):
            if int(server.rpartition(":")[2]) in dead:
                raise SourceUnavailable(f"{server}: down")
            return nodes

        monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
        discovery = cluster.upstream.discovery
        with capture_logs() as logs:
            for down in (set(), {2}, {3}):
                dead = {closed_address[1], *down}
                assert await discovery._learn()
                assert (discovery.trouble, discovery.silent) == (None, [closed_address])
            dead = {closed_address[1], 2, 3}
            assert not await discovery._learn()
            assert discovery.trouble is not None
            dead = {2, 3}
            assert await discovery._learn()
            assert discovery.silent == []
        of_servers = [line["event"] for line in logs if line["event"].startswith("bootstrap_servers")]
        assert of_servers == ["bootstrap_servers_silent", "bootstrap_servers_respond"]


async def test_clients_bootstrap_elsewhere_while_a_server_takes_connections_and_answers_nothing(node, monkeypatch):
    async def nodes_named_by(server, *_):
        if server == f"127.0.0.1:{silent.port}" and is_silent:
            raise SourceUnavailable("no answer")
        return [MetadataNode(2, "127.0.0.1", node.port)]

    silent, is_silent = Node(default_partitions=1), True
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    upstream = silent.upstream
    upstream.directory.learn(2, "127.0.0.1", node.port)
    for expected in (2, 1):
        assert await upstream.discovery._learn()
        upstream._slow._until_us.clear()  # some time later
        upstream.directory.learn(1, "127.0.0.1", silent.port)
        asker, _ = open_(silent, BOOTSTRAP_NODE_ID)
        connected = await asker.reported()
        connected.socket.close()
        assert connected.node_id == expected
        is_silent = False
    silent.server.close()


async def test_the_proxys_own_look_reaches_a_cluster_past_dead_addresses_and_servers(node, names):
    names.addresses["two.test"] = ["127.9.9.1", "127.0.0.1"]
    with deaf_address("127.9.9.1", node.port), deaf_address() as deaf:
        servers = [f"two.test:{node.port}", f"127.0.0.1:{deaf[1]}"]
        node.upstream.reconfigure(node.config(connect_timeout_ms=SLOW_ENOUGH_MS, bootstrap_servers=servers))
        looking = asyncio.create_task(node.upstream.discovery._look())
        accepted, _ = await asyncio.to_thread(node.server.accept)
        with accepted:
            accepted.settimeout(TIMEOUT_S)
            assert await asyncio.to_thread(accepted.recv, 4)
        looking.cancel()


async def test_nodes_that_do_not_report_num_partitions_hold_up_no_client(node, monkeypatch):
    responds = asyncio.Event()

    async def nodes_named_by(*_):
        return [MetadataNode(5, "127.0.0.1", node.port)]

    async def default_partitions_of(*_):
        await responds.wait()
        return 7

    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._LONGEST_EXTRA_LOOK_S", 0)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.nodes_named_by", nodes_named_by)
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery.default_partitions_of", default_partitions_of)
    for _ in range(2):
        assert await node.upstream.discovery._learn()
        assert node.upstream.directory.address(5) == ("127.0.0.1", node.port)
    with capture_logs():
        assert node.upstream.discovery.default_partitions() == 1
    responds.set()
    monkeypatch.setattr("kafka_throttle.proxy.upstream.discovery._LONGEST_EXTRA_LOOK_S", TIMEOUT_S)
    assert await node.upstream.discovery._learn()
    assert node.upstream.discovery.default_partitions() == 7


async def test_the_round_trip_is_asked_for_now_and_then(node):
    asked = []
    for _ in range(3):
        asker, _ = open_(node)
        asked.append((await asker.reported()).round_trip_us is not None)
    assert asked == [True, False, False]


async def test_a_connection_that_is_given_up_before_it_began_never_begins(node):
    asker, under_way = open_(node)
    under_way.cancel()
    other, _ = open_(node)
    (await other.reported()).socket.close()
    assert not asker.outcome.done()
    accepted, _ = node.server.accept()
    accepted.close()
    node.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        node.server.accept()


async def test_the_number_of_a_descriptor_is_not_given_anew_while_a_sweep_may_come_upon_it(node):
    poller = node.upstream._poller
    _, under_way = open_(node)
    await asyncio.sleep(0)
    dialled = under_way._socket
    number = dialled.fileno()
    poller.change(number, 0)  # its turn comes after that of who has it cancelled
    open_meanwhile = []
    with contextlib.ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        theirs.send(b"x")

        def cancel(_events):
            under_way.cancel()
            open_meanwhile.append(dialled.fileno())

        poller.add(ours.fileno(), READABLE, cancel)
        poller._serve()
        poller.remove(ours.fileno())
    assert open_meanwhile == [number]
    assert dialled.fileno() == -1
