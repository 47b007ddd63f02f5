"""A virtual cluster that speaks TLS on both sides: its listeners, clients and a scripted node on real sockets."""

import asyncio
import contextlib
import datetime
import logging
import re
import shutil
import socket
import ssl
import sys
import time
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import LimitsConfig, ListenerConfig, ListenerTlsConfig, UpstreamTlsConfig
from kafka_throttle.proxy.gate.admission import Admission
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.observe import logs as logging_setup
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.certificate_watcher import CertificateWatcher
from kafka_throttle.proxy.server.sockets import bind_all
from kafka_throttle.proxy.server.tls_material import certify, tls_sections
from kafka_throttle.proxy.server.virtual_cluster import VirtualCluster
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, ListenerNames, NodeDirectory
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from tests.fakes.clock import FakeClock
from tests.relay.frames import heartbeat, heartbeaten, produce, produced
from tests.support.certificates import Authority, client_context, server_context
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

OVER = datetime.timedelta(days=-1)
ETL = ((NameOID.ORGANIZATION_NAME, "Acme"), (NameOID.COMMON_NAME, "etl"))


class Paper:
    """Two authorities and what they have signed; a stranger's are trusted by nobody."""

    def __init__(self, folder):
        self.ours, self.strange = Authority(folder), Authority(folder, "stranger")
        self.listener = self.ours.issue("localhost", "*.kafka.test", name="listener")
        self.node = self.ours.issue("127.0.0.1", name="node")
        self.old_node = self.ours.issue("127.0.0.1", valid=OVER, name="old-node")
        self.other_node = self.ours.issue("elsewhere.test", name="other-node")
        self.strange_node = self.strange.issue("127.0.0.1", name="strange-node")
        self.etl = self.ours.issue(subject=ETL, name="etl")
        self.old_etl = self.ours.issue(subject=ETL, valid=OVER, name="old-etl")
        self.strange_etl = self.strange.issue(subject=ETL, name="strange-etl")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A handshake may take long on a busy machine."""
    monkeypatch.setattr(LimitsConfig, "handshake_timeout_ms", 60_000)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return Paper(tmp_path_factory.mktemp("certificates"))


def files(issued):
    return {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file)}


class Node:
    """Responds to each Heartbeat and Produce; counts connections."""

    def __init__(self):
        self.connections = 0

    async def serve(self, context=None):
        self.server = await asyncio.start_server(self._response, "127.0.0.1", 0, ssl=context)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _response(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > 100_000_000:  # as a broker does with what is not Kafka's
                    break
                frame = await reader.readexactly(size)
                corr = int.from_bytes(frame[4:8], "big")
                writer.write(heartbeaten(corr) if frame[1] == 12 else produced(corr))
                await writer.drain()
        writer.close()


class Proxy:
    """A virtual cluster with one listener on a free port."""

    def __init__(self, node, listener=None, upstream=None, clock=None, **more):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        addressing = {} if more else {"node_ids": [1]}
        listening = {"name": "l", "bind": "127.0.0.1", "port": self.port, **addressing, **more}
        bootstrap = {"bootstrap_servers": [f"127.0.0.1:{node.port}"], "connect_timeout_ms": 60_000}
        cluster = {
            "name": "main",
            "upstream": bootstrap | ({} if upstream is None else {"tls": upstream}),
            "listeners": [listening | ({} if listener is None else {"tls": listener})],
        }
        self.config = config_of({"virtual_clusters": [cluster]})
        self.metrics = Metrics(CollectorRegistry())
        clock = clock or SystemClock()
        poller = Poller()
        [settings] = self.config.virtual_clusters
        gate = self.gate = ConnectionGate(Admission(ConnectionQuotas(ConnectionLimits(), clock.now_ms()), 10), clock)
        self.cluster = VirtualCluster(settings, Path("x"), 100, poller, clock, self.metrics, lambda: True, gate)
        [self.listener] = self.cluster.listeners
        self.listener.set_limits(self.config.limits)
        self.keeper = CertificateWatcher(
            lambda place, context: self.cluster.set_certified(place.listener, context), clock, self.metrics
        )
        self.keeper.take_up(tls_sections(self.config))
        self.listener.serve(bind_all("127.0.0.1", [self.port]))

    async def client(self, context=None, name="localhost"):
        return Client(
            *await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname=name if context else None
            )
        )

    def closed(self, reason):
        labels = {"virtual_cluster": "main", "listener": "l", "reason": reason}
        return self.metrics.registry.get_sample_value("kafka_throttle_connections_closed_total", labels) or 0

    def stop(self):
        self.listener.stop_accepting()
        for connection in [*self.listener.connections, *self.listener.lingering]:
            connection.abort()


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, request):
        self.writer.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return size.to_bytes(4, "big") + await self.reader.readexactly(size)

    def certificate(self):
        return self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    def close(self):
        self.writer.close()


@contextlib.asynccontextmanager
async def proxying(*args, node_context=None, **settings):
    node = await Node().serve(node_context)
    proxy = Proxy(node, *args, **settings)
    proxy.node = node
    try:
        yield proxy
    finally:
        proxy.stop()
        node.server.close()


def mutual(paper, rules="DEFAULT", auth="required"):
    ca_file = str(paper.ours.file)
    return {**files(paper.listener), "client_auth": auth, "ca_file": ca_file, "principal_mapping_rules": rules}


# ------------------------------------------------------------------ what works


async def test_frames_of_all_sizes_go_through_tls_on_both_sides(paper):
    upstream = {"ca_file": str(paper.ours.file)}
    async with proxying(files(paper.listener), upstream, node_context=server_context(paper.node)) as proxy:
        client = await proxy.client(client_context(paper.ours))
        for corr, size in enumerate((100, 20_000, 3_000_000, 200), 1):
            assert await client.ask(produce(corr, size=size)) == produced(corr)
        assert await client.ask(heartbeat(9)) == heartbeaten(9)
        client.close()
        await until(lambda: proxy.closed("client_closed") == 1)
        assert proxy.node.connections == 1


@pytest.mark.parametrize("sides", ["listener", "upstream"])
async def test_either_side_may_be_plain(paper, sides):
    listener = files(paper.listener) if sides == "listener" else None
    upstream = {"ca_file": str(paper.ours.file)} if sides == "upstream" else None
    node_context = server_context(paper.node) if sides == "upstream" else None
    async with proxying(listener, upstream, node_context=node_context) as proxy:
        client = await proxy.client(client_context(paper.ours) if sides == "listener" else None)
        assert await client.ask(produce(3, size=500_000)) == produced(3)
        client.close()


async def test_a_key_may_be_locked_and_stand_in_the_file_of_its_certificate(paper, tmp_path):
    issued = Authority(tmp_path).issue("localhost")
    issued.lock_key("opensesame")
    together = tmp_path / "both.pem"
    together.write_text(issued.in_one_file())
    password = tmp_path / "password"
    password.write_text("opensesame\n")
    async with proxying({"certificate_file": str(together), "key_password_file": str(password)}) as proxy:
        client = await proxy.client(client_context(Authority(tmp_path)) and ssl._create_unverified_context())
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        client.close()


@pytest.mark.rule("certificate")
@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", "CN=etl,O=Acme"),
        ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "ETL"),
        ("RULE:^OU=.*$/x/, DEFAULT", "CN=etl,O=Acme"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_names_the_user(paper, rules, user, version):
    async with proxying(mutual(paper, rules)) as proxy:
        context = client_context(paper.ours, paper.etl)
        context.maximum_version = version
        client = await proxy.client(context)
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        [connection] = proxy.listener.connections
        assert connection.facts.user == user
        client.close()


async def test_a_client_without_a_certificate_is_anonymous_where_none_is_required(paper):
    async with proxying(mutual(paper, auth="requested")) as proxy:
        client = await proxy.client(client_context(paper.ours))
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        [connection] = proxy.listener.connections
        assert connection.facts.user == "ANONYMOUS"
        client.close()


async def test_a_node_is_shown_our_certificate_if_it_wants_one(paper):
    wants = server_context(paper.node)
    wants.verify_mode = ssl.CERT_REQUIRED
    wants.load_verify_locations(paper.ours.file)
    upstream = {"ca_file": str(paper.ours.file), **files(paper.etl)}
    async with proxying(None, upstream, node_context=wants) as proxy:
        client = await proxy.client()
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        client.close()


async def test_the_name_in_a_nodes_certificate_may_be_ignored(paper):
    upstream = {"ca_file": str(paper.ours.file), "endpoint_identification": False}
    async with proxying(None, upstream, node_context=server_context(paper.other_node)) as proxy:
        client = await proxy.client()
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        client.close()


# ------------------------------------------------------------ what is refused


def trusting(paper, issued=None, **settings):
    context = client_context(paper.ours, issued)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


REFUSED = {
    "expired": (lambda paper: trusting(paper, paper.old_etl), "client_certificate_expired", "certificate has expired"),
    "unknown CA": (
        lambda paper: trusting(paper, paper.strange_etl),
        "client_certificate_untrusted",
        "unable to get local",
    ),
    "none": (trusting, "client_certificate_missing", ""),
    "no rule": (lambda paper: trusting(paper, paper.etl), "no_principal_rule", "CN=etl,O=Acme"),
    "old TLS": (
        lambda paper: trusting(paper, paper.etl, maximum_version=ssl.TLSVersion.TLSv1_2),
        "tls_failed",
        "unsupported protocol",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_is_refused_for_a_reason_of_its_own(paper, case, version):
    make, reason, detail = REFUSED[case]
    tls = mutual(paper, "RULE:nobody/x/" if case == "no rule" else "DEFAULT")
    if case == "old TLS":
        tls["min_version"] = "TLSv1.3"
    with capture_logs() as logs:
        async with proxying(tls) as proxy:
            context = make(paper)
            if case != "old TLS":
                context.maximum_version = version
            with contextlib.suppress(OSError):  # some learn of it in the handshake, some with the next read
                client = await proxy.client(context)
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await client.ask(heartbeat(1))
            await until(lambda: proxy.closed(reason) == 1)
            assert proxy.node.connections == 0
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert (line["reason"], line["log_level"]) == (reason, "warning")
    assert detail in line["detail"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_that_does_not_trust_the_listener_says_so(paper, version):
    context = client_context(paper.strange)
    context.maximum_version = version

    def connect(port):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock:
            context.wrap_socket(sock, server_hostname="localhost")

    with capture_logs() as logs:
        async with proxying(files(paper.listener)) as proxy:
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(connect, proxy.port)
            await until(lambda: proxy.closed("tls_refused_by_client") == 1)
    assert any("alert unknown ca" in line.get("detail", "") for line in logs)


async def test_a_client_without_tls_has_another_reason_than_one_whose_tls_is_wrong(paper):
    with capture_logs() as logs:
        async with proxying(files(paper.listener)) as proxy:
            for count, data in enumerate((heartbeat(1), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05garbage"), 1):
                client = await proxy.client()
                client.writer.write(data)
                await until(lambda: sum(line["event"] == "connection_closed" for line in logs) == count)  # noqa: B023
                client.close()
    reported = [(line["reason"], line["detail"]) for line in logs if line["event"] == "connection_closed"]
    assert reported[0] == ("tls_expected", "got bytes that are not TLS, perhaps plaintext Kafka")
    assert reported[1] == ("tls_expected", "got an HTTP request")
    assert reported[2][0] == "tls_failed"


async def test_tls_on_a_plain_listener_is_logged_once(paper, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.observe.logs._threshold", logging.DEBUG)
    with capture_logs() as logs:
        async with proxying() as proxy:
            for count in (1, 2, 3):
                with pytest.raises(OSError):
                    await proxy.client(client_context(paper.ours))
                await until(lambda count=count: proxy.closed("tls_unexpected") == count)
    reported = [line["log_level"] for line in logs if line.get("detail") == "looks like a TLS handshake"]
    assert reported == ["warning", "debug", "debug"]


async def test_a_client_that_often_speaks_no_tls_is_logged_when_it_begins_and_when_it_is_over(paper, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.observe.logs._threshold", logging.DEBUG)
    clock = FakeClock()
    with capture_logs() as logs:
        async with proxying(files(paper.listener), clock=clock) as proxy:
            for count in (1, 2, 3):
                client = await proxy.client()
                client.writer.write(heartbeat(1))
                await until(lambda count=count: proxy.closed("tls_expected") == count)
                client.close()
                clock.advance(19_000)
            proxy.gate.log.sum_up()
            assert "connections_closed" not in [line["event"] for line in logs]
            clock.advance(41_000)
            proxy.gate.log.sum_up()
    closings = [line["log_level"] for line in logs if line["event"] == "connection_closed"]
    assert closings == ["warning", "debug", "debug"]
    [over] = [line for line in logs if line["event"] == "connections_closed"]
    assert (over["counts_as"], over["connections"], over["duration_ms"]) == ("127.0.0.1", 3, 38_000)
    assert over["faults"] == ["3 tls_expected: got bytes that are not TLS, perhaps plaintext Kafka"]


async def test_a_client_that_leaves_in_the_handshake_has_just_left(paper):
    async with proxying(files(paper.listener)) as proxy:
        client = await proxy.client()
        client.writer.write(b"\x16\x03")
        await client.writer.drain()
        client.close()
        await until(lambda: proxy.closed("client_closed") == 1)
        assert proxy.listener.acceptor._secure_stage.under_way == 0


async def test_a_handshake_has_its_time_and_their_number_is_bounded(paper, monkeypatch):
    monkeypatch.setattr(LimitsConfig, "handshake_timeout_ms", 300)
    monkeypatch.setattr(LimitsConfig, "max_handshakes", 2)
    async with proxying(files(paper.listener)) as proxy:
        silent = [await proxy.client() for _ in range(3)]
        await until(lambda: proxy.closed("too_many_handshakes") == 1)
        await until(lambda: proxy.closed("tls_handshake_timeout") == 2)
        assert (proxy.listener.acceptor._secure_stage.under_way, proxy.listener.open_sockets) == (0, 0)
        client = await proxy.client(client_context(paper.ours))
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        for one in (*silent, client):
            one.close()


NODES = {
    "expired": ("old_node", "node_certificate_refused", "certificate has expired"),
    "unknown CA": ("strange_node", "node_certificate_refused", "unable to get local issuer"),
    "another name": ("other_node", "node_certificate_refused", "IP address mismatch"),
    "plain": (None, "node_tls_failed", "TLS: "),
}


@pytest.mark.parametrize("case", NODES)
async def test_a_node_is_refused_for_a_reason_of_its_own(paper, case):
    name, reason, detail = NODES[case]
    context = server_context(getattr(paper, name)) if name else None
    with capture_logs() as logs:
        async with proxying(None, {"ca_file": str(paper.ours.file)}, node_context=context) as proxy:
            client = await proxy.client()
            client.writer.write(heartbeat(1))
            await until(lambda: proxy.closed(reason) == 1)
            client.close()
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert line["detail"].startswith(f"127.0.0.1:{proxy.node.port}: TLS: ")
    assert detail in line["detail"]


class BlockingNode:
    """Takes one connection in a thread of its own; asyncio would not tell the peer why a handshake fails."""

    def __init__(self, context):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(TIMEOUT_S)
        self.port = self.server.getsockname()[1]
        self.context = context

    def fail(self):
        with self.server, self.server.accept()[0] as sock, pytest.raises(ssl.SSLError):
            self.context.wrap_socket(sock, server_side=True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_node_that_wants_a_certificate_and_is_shown_none_says_so(paper, version):
    wants = server_context(paper.node)
    wants.verify_mode = ssl.CERT_REQUIRED
    wants.maximum_version = version
    wants.load_verify_locations(paper.ours.file)
    node = BlockingNode(wants)
    with capture_logs() as logs:
        proxy = Proxy(node, None, {"ca_file": str(paper.ours.file)})
        failing = asyncio.create_task(asyncio.to_thread(node.fail))
        client = await proxy.client()
        client.writer.write(heartbeat(1))
        await until(lambda: proxy.closed("node_tls_failed") == 1)
        client.close()
        await failing
        proxy.stop()
    [line] = [line for line in logs if line["event"] == "connection_closed"]
    assert re.search("alert (certificate required|handshake failure)", line["detail"].lower().replace("_", " "))


@pytest.mark.parametrize("client_auth", ["none", "requested"])
def test_what_is_spoken_is_new_and_offers_no_tricks(paper, client_auth):
    proven = {"client_auth": client_auth} | ({} if client_auth == "none" else {"ca_file": str(paper.ours.file)})
    contexts = {
        "listener": certify("tls", ListenerTlsConfig.model_validate(files(paper.listener) | proven)).context,
        "upstream": certify("tls", UpstreamTlsConfig.model_validate({"ca_file": str(paper.ours.file)})).context,
    }
    for context in contexts.values():
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        for never in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_SSLv3):
            assert context.options & never
        ciphers = [cipher for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
        assert {cipher["kea"] for cipher in ciphers} <= {"kx-ecdhe", "kx-dhe"}
        assert {cipher["digest"] for cipher in ciphers} <= {None, "sha256", "sha384"}
    assert contexts["upstream"].check_hostname
    assert contexts["upstream"].verify_mode is ssl.CERT_REQUIRED
    assert contexts["listener"].num_tickets == (2 if client_auth == "none" else 0)


# ------------------------------------------------------------------ names


BY_NAME = {"advertised_host": "Boot.kafka.test", "advertised_node_host": "b{node_id}.kafka.test"}


def names(**more):
    config = {"name": "l", "bind": "127.0.0.1", "port": 9000, "tls": {"certificate_file": "c"}, **BY_NAME, **more}
    return ListenerNames(ListenerConfig.model_validate(config), NodeDirectory())


def test_a_dot_at_the_end_of_a_name_says_nothing():
    known = names(advertised_host="boot.kafka.test.", advertised_node_host="b{node_id}.kafka.test.")
    for name, node_id in (("boot.kafka.test", BOOTSTRAP_NODE_ID), ("b7.kafka.test.", 7), ("b7.kafka.test", 7)):
        assert known.node_named(name) == node_id


def test_names_stand_for_nodes():
    known = names()
    assert known.advertised(7) == (b"b7.kafka.test", 9000)
    assert [known.node_named(name) for name in ("b7.kafka.test", "B10.KAFKA.test.", "b0.kafka.test")] == [7, 10, 0]
    assert known.node_named("boot.Kafka.test") == BOOTSTRAP_NODE_ID
    for name in (
        "",
        "b.kafka.test",
        "b07.kafka.test",
        "b-1.kafka.test",
        "b1xkafka.test",
        "b9999999999.kafka.test",
        "b1.kafka.test.x",
    ):
        assert known.node_named(name) is None


async def test_a_server_name_leads_to_its_node_and_none_to_any(paper):
    other = await Node().serve()
    async with proxying(files(paper.listener), **BY_NAME) as proxy:
        proxy.cluster.upstream.directory.learn(5, "127.0.0.1", other.port)
        for name in ("boot.kafka.test", "b5.kafka.test"):
            client = await proxy.client(client_context(paper.ours), name)
            assert await client.ask(heartbeat(1)) == heartbeaten(1)
            client.close()
        assert (proxy.node.connections, other.connections) == (1, 1)
        assert {5, BOOTSTRAP_NODE_ID} == set(proxy.listener.relays.counters)
    other.server.close()


async def unnamed(proxy):
    """A client that sends no server name."""
    context = ssl._create_unverified_context()
    return Client(*await asyncio.open_connection("127.0.0.1", proxy.port, ssl=context, server_hostname=""))


async def test_a_client_without_a_server_name_bootstraps_and_is_logged_once_for_each_address(paper):
    clock = FakeClock()
    with capture_logs() as logs:
        async with proxying(files(paper.listener), clock=clock, **BY_NAME) as proxy:
            for _ in range(3):
                client = await unnamed(proxy)
                assert await client.ask(heartbeat(1)) == heartbeaten(1)
                client.close()
            assert set(proxy.listener.relays.counters) == {BOOTSTRAP_NODE_ID}
            clock.advance(61_000)
            proxy.gate.log.sum_up()
    [line] = [line for line in logs if line["event"] == "server_name_missing"]
    assert (line["log_level"], line["served_as"]) == ("warning", "bootstrap")
    [line] = [line for line in logs if line["event"] == "server_names_missing"]
    assert (line["counts_as"], line["connections"]) == ("127.0.0.1", 3)


async def test_a_client_without_a_server_name_is_closed_where_one_is_demanded(paper):
    with capture_logs() as logs:
        async with proxying(files(paper.listener), **BY_NAME, require_server_name=True) as proxy:
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await unnamed(proxy)
            await until(lambda: proxy.closed("server_name_missing") == 1)
            client = await proxy.client(client_context(paper.ours), "boot.kafka.test")
            client.close()
    assert any("expected one of boot.kafka.test and b{node_id}" in line.get("detail", "") for line in logs)


async def test_each_whole_name_of_the_certificate_bootstraps(paper):
    issued = paper.ours.issue("Other.test", "b5.kafka.test", "*.kafka.test", name="several")
    other = await Node().serve()
    async with proxying(files(issued), **BY_NAME) as proxy:
        proxy.cluster.upstream.directory.learn(5, "127.0.0.1", other.port)
        for name, counters in (("OTHER.test", BOOTSTRAP_NODE_ID), ("b5.kafka.test", 5)):
            before = dict.fromkeys((5, BOOTSTRAP_NODE_ID), 0) | {
                node_id: counters.connections_opened for node_id, counters in proxy.listener.relays.counters.items()
            }
            client = await proxy.client(client_context(paper.ours), name)
            assert await client.ask(heartbeat(1)) == heartbeaten(1)
            assert proxy.listener.relays.counters[counters].connections_opened == before[counters] + 1
            client.close()
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await proxy.client(client_context(paper.ours), "typo.kafka.test")
    other.server.close()


async def test_an_unknown_server_name_is_refused(paper):
    with capture_logs() as logs:
        async with proxying(files(paper.listener), **BY_NAME) as proxy:
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await proxy.client(client_context(paper.ours), "c5.kafka.test")
            await until(lambda: proxy.closed("server_name_unknown") == 1)
    assert any("c5.kafka.test is none of boot.kafka.test and b{node_id}" in line.get("detail", "") for line in logs)


def hello_to(name):
    """The first bytes of a client that wants this name, whatever is in it."""
    sent = ssl.MemoryBIO()
    stand_in = "x" * len(name)
    client = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=stand_in)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read().replace(stand_in.encode(), name)


async def test_a_name_that_is_not_ascii_is_refused_in_our_own_words(paper, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", logging_setup._tell_unraisable)
    with capture_logs() as logs:
        async with proxying(files(paper.listener), **BY_NAME) as proxy:
            client = await proxy.client()
            client.writer.write(hello_to("bücher.kafka.test".encode()))
            await until(lambda: proxy.closed("server_name_unknown") == 1)
            client.close()
    reported = [line for line in logs if not line["event"].startswith("certificate_")]
    assert [line.get("reason") for line in reported] == ["server_name_unknown"], reported
    [line] = reported
    assert line["detail"].startswith("a name that is not ASCII is none of boot.kafka.test and b{node_id}")


# ---------------------------------------------------------------- rotation


async def test_new_certificates_are_shown_to_new_clients_and_old_ones_stay(paper, tmp_path):
    first, second = paper.ours.issue("localhost", name="first"), paper.ours.issue("localhost", name="second")
    own = {"certificate_file": str(tmp_path / "c.pem"), "key_file": str(tmp_path / "c.key")}

    def put(issued):
        shutil.copy(issued.key_file, own["key_file"])
        shutil.copy(issued.certificate_file, own["certificate_file"])

    put(first)
    async with proxying(own) as proxy:
        watching = asyncio.create_task(proxy.keeper.watch())
        old = await proxy.client(client_context(paper.ours))
        assert old.certificate() == first.der
        assert await old.ask(heartbeat(1)) == heartbeaten(1)
        put(second)
        await until(lambda: reloads(proxy, "applied") == 1)
        new = await proxy.client(client_context(paper.ours))
        assert new.certificate() == second.der
        with capture_logs() as logs:
            shutil.copy(first.key_file, own["key_file"])
            await until(lambda: reloads(proxy, "rejected") == 1)
        assert "the key does not belong to the certificate" in str(logs)
        third = await proxy.client(client_context(paper.ours))
        assert third.certificate() == second.der
        for client in (old, new, third):
            assert await client.ask(heartbeat(2)) == heartbeaten(2)
            client.close()
        watching.cancel()


def reloads(proxy, result, listener="l"):
    labels = {"virtual_cluster": "main", "listener": listener, "result": result}
    return proxy.metrics.registry.get_sample_value("kafka_throttle_certificate_reloads_total", labels)


async def test_nodes_are_shown_new_certificates_too(paper, tmp_path):
    shutil.copy(paper.strange.file, tmp_path / "ca.pem")
    upstream = {"ca_file": str(tmp_path / "ca.pem")}
    async with proxying(None, upstream, node_context=server_context(paper.node)) as proxy:
        watching = asyncio.create_task(proxy.keeper.watch())
        client = await proxy.client()
        client.writer.write(heartbeat(1))
        await until(lambda: proxy.closed("node_certificate_refused") == 1)
        shutil.copy(paper.ours.file, tmp_path / "ca.pem")
        await until(lambda: reloads(proxy, "applied", "") == 1)
        client = await proxy.client()
        assert await client.ask(heartbeat(1)) == heartbeaten(1)
        client.close()
        watching.cancel()


def gauge(proxy, name):
    return proxy.metrics.registry.get_sample_value(
        f"kafka_throttle_certificate_{name}_timestamp_seconds", {"virtual_cluster": "main", "listener": "l"}
    )


def told(logs):
    return [line for line in logs if line["event"] in ("certificate_expires_soon", "certificate_expired")]


@pytest.mark.parametrize(("days_left", "soon_days"), [(1, 1), (87, 22.5), (362, 30), (3650, 30)])
async def test_a_certificate_expires_soon_when_a_quarter_of_its_validity_is_left_or_a_month(
    paper, days_left, soon_days
):
    """Certificates of tests have begun three days ago."""
    issued = paper.ours.issue("localhost", name=f"for-{days_left}", valid=datetime.timedelta(days=days_left))
    ends_s, soon_s = int(issued.certificate.not_valid_after_utc.timestamp()), soon_days * 86_400
    clock = FakeClock(epoch_ms=int((ends_s - soon_s - 10) * 1000))
    with capture_logs() as logs:
        async with proxying(files(issued), clock=clock) as proxy:
            assert gauge(proxy, "expiry") == ends_s
            assert gauge(proxy, "renewal_due") == pytest.approx(ends_s - soon_s)
            assert told(logs) == []
            clock.advance(20_000)
            proxy.keeper._tell_of_ends()
    [line] = told(logs)
    assert line["event"] == "certificate_expires_soon"


async def test_the_log_names_the_certificate_that_ends_once_a_day_and_at_once_when_it_has_ended(paper):
    ends = paper.listener.certificate.not_valid_after_utc
    clock = FakeClock(epoch_ms=int((ends.timestamp() - 0.7 * 86_400) * 1000))
    with capture_logs() as logs:
        async with proxying(files(paper.listener), clock=clock) as proxy:
            for days in (0.5, 0.3, 0.6, 0.5):
                clock.advance(int(days * 86_400_000))
                proxy.keeper._tell_of_ends()
    lines = told(logs)
    assert [(line["event"], line["days_left"]) for line in lines] == [
        ("certificate_expires_soon", 0),
        ("certificate_expired", -1),
        ("certificate_expired", -2),
    ]
    named = {(line["virtual_cluster"], line["listener"], line["file"], line["subject"], line["ends"]) for line in lines}
    subject = paper.listener.certificate.subject.rfc4514_string()
    assert named == {("main", "l", str(paper.listener.certificate_file), subject, f"{ends:%Y-%m-%dT%H:%M:%SZ}")}


async def test_an_authority_that_ends_soon_is_named_before_a_certificate_that_has_most_of_its_time(paper, tmp_path):
    issued = paper.ours.issue("localhost", name="with-authority", valid=datetime.timedelta(days=80))
    with issued.certificate_file.open("ab") as file:
        file.write(paper.strange.certify(paper.ours, datetime.timedelta(days=0.5)))
    with capture_logs() as logs:
        async with proxying(files(issued)) as proxy:
            assert gauge(proxy, "expiry") < time.time() + 86_400
    [line] = told(logs)
    assert (line["event"], line["subject"]) == ("certificate_expires_soon", "CN=authority")


# ---------------------------------------------------------------- bad files


def problems(tmp_path, **tls):
    listener = {"name": "l", "bind": "127.0.0.1", "port": 9000, "node_ids": [1], "tls": tls}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["a:1"]}, "listeners": [listener]}
    with pytest.raises(ConfigErrors) as raised:
        tls_sections(config_of({"virtual_clusters": [cluster]}, tmp_path))
    return str(raised.value)


def test_files_that_cannot_be_used_are_named_with_what_is_wrong(paper, tmp_path):
    at = r"virtual_clusters\[0\].listeners\[0\].tls"
    own = files(paper.listener)
    locked = Authority(tmp_path).issue("localhost")
    locked.lock_key("secret")
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "wrong").write_text("wrong")
    cases = [
        (
            own | {"certificate_file": "gone.pem"},
            f"^{at}.certificate_file: .*gone.pem cannot be read: No such",
        ),
        (own | {"certificate_file": "junk"}, f"^{at}.certificate_file: .*junk holds no certificate in PEM"),
        (own | {"key_file": str(paper.etl.key_file)}, "the key does not belong to the certificate"),
        (files(locked), f"^{at}.key_password_file: expected a file with the password of "),
        (files(locked) | {"key_password_file": "wrong"}, "cannot be used: .* a wrong password for it"),
        (
            files(locked) | {"key_password_file": "gone"},
            f"^{at}.key_password_file: .*gone cannot be read: No such",
        ),
        (mutual(paper) | {"ca_file": "junk"}, f"^{at}.ca_file: .*junk cannot be used: no certificate"),
        (own | {"ciphers": "NONSENSE"}, f"^{at}.ciphers: NONSENSE cannot be used: no cipher"),
        (
            own | {"ciphers": "aNULL@SECLEVEL=0"},
            f"^{at}.ciphers: expected ciphers that encrypt and authenticate, got A",
        ),
        (own | {"ciphers": "eNULL@SECLEVEL=0"}, f"^{at}.ciphers: expected ciphers that encrypt and authenticate, got "),
    ]
    for tls, expected in cases:
        found = problems(tmp_path, **tls)
        assert re.search(expected, found), found


@pytest.mark.parametrize("label", ["CERTIFICATE", "X509 CERTIFICATE"])
def test_a_certificate_may_be_called_as_of_old_and_have_any_text_beside_it(paper, tmp_path, label):
    pem = paper.listener.certificate_file.read_bytes()
    own = tmp_path / "own.pem"
    own.write_bytes(b"M\xfcller\r\n" + re.sub(b"(BEGIN|END) CERTIFICATE", rb"\1 " + label.encode(), pem))
    tls = ListenerTlsConfig(certificate_file=str(own), key_file=str(paper.listener.key_file))
    [shown] = certify("tls", tls).chain
    assert shown.validity.ends_s == int(paper.listener.certificate.not_valid_after_utc.timestamp())
