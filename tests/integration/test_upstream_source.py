"""Quotas of real clusters, read and written by the proxy's own source; and clusters that are none."""

import contextlib
import gc
import logging
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.protocol.messages.client_quotas import Verbatim, all_quotas_request
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.last_good import LastGood
from kafka_throttle.quotas.sources.upstream import THE_CLUSTER, UpstreamSettings, UpstreamSource
from tests.integration.test_kafka_cluster import healed
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

PRODUCE, FETCH, REQUEST, MUTATIONS, CONNECTIONS = (
    QuotaKey(quota_type)
    for quota_type in (
        QuotaType.PRODUCE,
        QuotaType.FETCH,
        QuotaType.REQUEST,
        QuotaType.CONTROLLER_MUTATION,
        QuotaType.CONNECTION,
    )
)
HUGE = 1e12
"""No test that shares the cluster feels a limit as high as this."""


@contextlib.contextmanager
def source_of(servers, path=None, **settings):
    """A source that is started, and for the time of a test the only one to set quotas."""
    upstream = UpstreamSource(UpstreamSettings(tuple(servers), **{"interval_s": 0.2, **settings}))
    source = LastGood(upstream, path) if path else upstream
    source.start(lambda: None)
    try:
        yield source
    finally:
        source.stop()


@contextlib.contextmanager
def cleaned(source):
    """Without any quota at first and in the end, also of other tests."""
    remove_all(source)
    try:
        yield source
    finally:
        remove_all(source)


def remove_all(source):
    left = [Alteration(entity, dict.fromkeys(limits)) for entity, limits in source.quotas.items()]
    assert [result for result in source.alter(left) if result] == []
    assert source.quotas == {}


def servers_of(cluster):
    return cluster.bootstrap_servers.split(",")


def kafka_configs(cluster, *args):
    return cluster.tool("kafka-configs", "--bootstrap-server", cluster.bootstrap_servers, *args)


def values(source, entity):
    return {key: limit.value for key, limit in source.quotas.get(entity, {}).items()}


# ----------------------------------------------------------------- a cluster


def test_what_kafka_configs_sets_is_read_and_what_is_written_kafka_configs_shows(kafka):
    config = f"producer_byte_rate={HUGE:.0f},request_percentage=1234.5"
    with source_of(servers_of(kafka)) as source, cleaned(source):
        kafka_configs(
            kafka, "--alter", "--add-config", config, "--entity-type", "users", "--entity-name", "mirror",
            "--entity-type", "clients", "--entity-default",
        )  # fmt: skip
        wait_until(lambda: values(source, Entity("mirror", DEFAULT)) == {PRODUCE: HUGE, REQUEST: 1234.5})
        assert source.quotas[Entity("mirror", DEFAULT)][PRODUCE] == Limit(HUGE, "cluster")
        limits = {FETCH: HUGE, MUTATIONS: 1e6, PRODUCE: None}
        assert source.alter([Alteration(Entity("mirror", DEFAULT), limits)]) == [None]
        assert values(source, Entity("mirror", DEFAULT)) == {FETCH: HUGE, MUTATIONS: 1e6, REQUEST: 1234.5}
        described = kafka_configs(kafka, "--describe", "--entity-type", "users", "--entity-type", "clients")
    assert "'mirror'" in described
    assert "consumer_byte_rate" in described
    assert "controller_mutation_rate" in described
    assert "producer_byte_rate" not in described


def test_every_kind_of_entity_is_written_and_read_back(kafka):
    rates = {
        Entity("ユーザー +/%~*\"'"): PRODUCE,
        Entity("<default>"): PRODUCE,
        Entity(DEFAULT): FETCH,
        Entity(client_id="a b"): REQUEST,
        Entity(client_id=DEFAULT): MUTATIONS,
        Entity("u", "c"): PRODUCE,
        Entity("u", DEFAULT): PRODUCE,
        Entity(DEFAULT, "c"): FETCH,
        Entity(DEFAULT, DEFAULT): FETCH,
        Entity(ip="10.1.2.3"): CONNECTIONS,
        Entity(ip=DEFAULT): CONNECTIONS,
    }
    alterations = [Alteration(entity, {key: 2_000_000.0}) for entity, key in rates.items()]
    with source_of(servers_of(kafka)) as source, cleaned(source):
        assert source.alter(alterations) == [None] * len(alterations)
        assert source.quotas == {entity: {key: Limit(2_000_000.0, "cluster")} for entity, key in rates.items()}
        with source_of(servers_of(kafka)) as another:
            assert another.quotas == source.quotas
            assert another.problems == {}


def test_the_cluster_names_what_it_refuses_and_takes_the_rest(kafka):
    with source_of(servers_of(kafka)) as source, cleaned(source):
        unknown, taken = source.alter(
            [
                Alteration(Entity(ip="no-such-host.invalid"), {CONNECTIONS: 5.0}),
                Alteration(Entity("taken"), {PRODUCE: HUGE}),
            ]
        )
        assert isinstance(unknown, AlterationRefused)
        assert "no-such-host.invalid" in str(unknown)
        assert taken is None
        assert list(source.quotas) == [Entity("taken")]


def test_an_unchanged_response_is_byte_for_byte_the_same(kafka):
    """Else each read would cost what the first one does."""
    entities = [Entity(f"user-{n}", f"client-{n}") for n in range(200)]
    with source_of(servers_of(kafka)[:1]) as source, cleaned(source):
        assert not any(source.alter([Alteration(entity, {PRODUCE: HUGE, FETCH: HUGE}) for entity in entities]))
        connection = ClusterConnection(servers_of(kafka)[0], Credentials(), 10.0)
        with contextlib.closing(connection):
            responses = [connection.ask(all_quotas_request()) for _ in range(5)]
    assert isinstance(responses[0], Verbatim)
    assert len(responses[0].body) > 200 * 20
    assert responses[1:] == responses[:-1]


def test_a_node_that_no_longer_responds_is_left_for_the_next(newest_kafka):
    second = servers_of(newest_kafka)[1]
    with (
        source_of([second]) as writer,
        cleaned(writer),
        frozen_later(newest_kafka.address(1)) as (way_to_first, freeze),
        source_of([way_to_first, second], timeout_s=1.0) as source,
    ):
        wait_until(lambda: source.problems == {})
        freeze()
        assert writer.alter([Alteration(Entity("unfrozen"), {PRODUCE: HUGE})]) == [None]
        wait_until(lambda: source.quotas == writer.quotas)
        wait_until(lambda: source.problems == {})


@contextlib.contextmanager
def frozen_later(address):
    """A way to a node, and what stops all that goes over it without a word."""
    frozen = threading.Event()

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not frozen.is_set():
                    target.sendall(data)

    def serve(connection):
        node = stack.enter_context(socket.create_connection(address))
        for ends in ((connection, node), (node, connection)):
            threading.Thread(target=pump, args=ends, daemon=True).start()

    with contextlib.ExitStack() as stack:
        yield stack.enter_context(listening(serve)), frozen.set


@pytest.mark.nightly
def test_a_cluster_that_goes_and_comes_back_is_followed_again(newest_kafka, tmp_path):
    path = tmp_path / "last-good.json"
    [server] = servers_of(newest_kafka)[:1]
    alice = Alteration(Entity("alice"), {PRODUCE: HUGE})
    with source_of(servers_of(newest_kafka)[1:]) as writer, cleaned(writer):
        assert writer.alter([alice]) == [None]
        with source_of([server], path) as source, healed(newest_kafka):
            wait_until(lambda: source.quotas == writer.quotas)
            newest_kafka.kill(1)
            bob = Alteration(Entity("bob"), {FETCH: HUGE})
            wait_until(lambda: writer.alter([bob]) == [None], timeout_s=90)  # it may have been the controller
            wait_until(lambda: source.quotas == writer.quotas)  # the other nodes are asked
            for node_id in (2, 3):
                newest_kafka.freeze(node_id)
            wait_until(lambda: THE_CLUSTER in source.problems)
            assert server in source.problems[THE_CLUSTER]
            [refused] = source.alter([alice])
            assert isinstance(refused, SourceUnavailable)
            source.stop()
            with source_of([server], path) as next_process:
                assert set(next_process.quotas) == {Entity("alice"), Entity("bob")}
                for node_id in (2, 3):
                    newest_kafka.thaw(node_id)
                newest_kafka.restart(1)
                wait_until(lambda: next_process.problems == {}, timeout_s=90)
                wait_until(lambda: next_process.quotas == writer.quotas)


# --------------------------------------------------------------- credentials


def certificate(folder, name):
    """A key with a certificate that it has signed itself, in one PEM file."""
    key, cert, both = (folder / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
    subjectful = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run([*command, *subjectful], check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return key, cert, both


def with_logins(node_pem, client_cert):
    """A node that knows `proxy` and `stranger` by password, the owner of a certificate, and what each may do."""
    logins = 'username="x" password="x" user_proxy="sesame" user_stranger="sesame"'
    modules = "org.apache.kafka.common.security"
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": node_pem}
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {logins};",
        "scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
    }
    mutual = {"ssl.client.auth": "required", "ssl.truststore.type": "PEM", "ssl.truststore.location": client_cert}
    return {
        **{f"listener.name.logins.{key}": str(value) for key, value in {**tls, **sasl}.items()},
        **{f"listener.name.plain.{key}": value for key, value in sasl.items()},
        **{f"listener.name.certs.{key}": str(value) for key, value in {**tls, **mutual}.items()},
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client",
    }


@pytest.mark.kafka
@pytest.mark.nightly
def test_credentials_of_every_kind_are_used_and_missing_permissions_are_named(tmp_path, caplog):
    _, node_cert, node_pem = certificate(tmp_path, "node")
    key, cert, _ = certificate(tmp_path, "client")
    listeners = {"LOGINS": "SASL_SSL", "PLAIN": "SASL_PLAINTEXT", "CERTS": "SSL"}
    with KafkaCluster(nodes=1, listeners=listeners, extra=lambda _: with_logins(node_pem, cert)) as cluster:
        kafka_configs(
            cluster, "--alter", "--add-config", "SCRAM-SHA-256=[password=sesame]", "--entity-type", "users",
            "--entity-name", "proxy",
        )  # fmt: skip
        caplog.set_level(logging.DEBUG)
        logins = [cluster.bootstrap("LOGINS")]
        over_tls = Credentials("SASL_SSL", str(node_cert), None, None, "SCRAM-SHA-256", "proxy", "sesame")
        produce = Alteration(Entity("alice"), {PRODUCE: 5.0})

        stranger = Credentials("SASL_SSL", str(node_cert), None, None, "PLAIN", "stranger", "sesame")
        with source_of(logins, credentials=stranger) as source:
            assert "credentials need DescribeConfigs on the Cluster resource" in source.problems[THE_CLUSTER]

        acls = (
            "--bootstrap-server",
            cluster.bootstrap_servers,
            "--add",
            "--allow-principal",
            "User:proxy",
            "--cluster",
        )
        cluster.tool("kafka-acls", *acls, "--operation", "DescribeConfigs")
        with source_of(logins, credentials=over_tls) as source:
            wait_until(lambda: source.problems == {})
            [refused] = source.alter([produce])
            assert isinstance(refused, AlterationRefused)
            assert "credentials need AlterConfigs on the Cluster resource" in str(refused)
            cluster.tool("kafka-acls", *acls, "--operation", "AlterConfigs")
            wait_until(lambda: source.alter([produce]) == [None])
            assert values(source, Entity("alice")) == {PRODUCE: 5.0}

        in_plain = Credentials("SASL_PLAINTEXT", None, None, None, "PLAIN", "proxy", "sesame")
        by_certificate = Credentials("SSL", str(node_cert), str(cert), str(key))
        for listener, credentials in (("PLAIN", in_plain), ("CERTS", by_certificate)):
            with source_of([cluster.bootstrap(listener)], credentials=credentials) as source:
                assert values(source, Entity("alice")) == {PRODUCE: 5.0}

        wrong = Credentials("SASL_PLAINTEXT", None, None, None, "PLAIN", "proxy", "open")
        with source_of([cluster.bootstrap("PLAIN")], credentials=wrong) as source:
            assert "before 'proxy' was authenticated with PLAIN" in source.problems[THE_CLUSTER]
        unknown_ca = Credentials("SASL_SSL", None, None, None, "PLAIN", "proxy", "sesame")
        with source_of(logins, credentials=unknown_ca) as source:
            assert "its certificate is refused: self-signed certificate" in source.problems[THE_CLUSTER]
        with source_of(logins, credentials=Credentials("SSL", str(tmp_path / "none.pem"))) as source:
            assert "none.pem" in source.problems[THE_CLUSTER]
    assert "sesame" not in caplog.text


# --------------------------------------------------------- what is no cluster


@contextlib.contextmanager
def listening(serve=lambda connection: None):
    """The address of a server that does with each connection what `serve` does, and keeps it."""
    kept = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                kept.append(server.accept()[0])
                serve(kept[-1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


SETTING = " (setting: upstream.bootstrap_servers)"


def problem_with(server, timeout_s=10.0):
    with source_of([server], timeout_s=timeout_s) as source:
        return (
            wait_until(lambda: source.problems.get(THE_CLUSTER, "not read yet") != "not read yet")
            and (source.problems[THE_CLUSTER])
        )


def test_a_port_without_a_listener_is_named():
    with listening() as server:
        pass
    assert problem_with(server) == f"{server}: Connection refused{SETTING}"


def test_a_host_that_is_not_known_is_named():
    assert problem_with("no-such-host.invalid:9092").startswith("no-such-host.invalid:9092: ")


def test_a_server_that_is_silent_is_named():
    with listening() as server:
        assert problem_with(server, timeout_s=0.3) == f"{server}: no response within 0.3 s{SETTING}"


@pytest.mark.parametrize(
    "rubbish", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x7f" * 100, b"\0\0\0\x05\0\0\0\1\0" * 9, b""]
)
def test_a_server_that_talks_nonsense_is_named(rubbish):
    def talk(connection):
        connection.sendall(rubbish)
        connection.shutdown(socket.SHUT_WR)

    with listening(talk) as server:
        problem = problem_with(server)
    print(problem)
    assert problem.startswith(f"{server}: ")
    assert not re.search(r"[a-z]Error|Exception", problem), "the words of a library"


def test_stop_and_alter_do_not_wait_for_a_server_that_is_silent():
    asked = threading.Event()
    with listening(lambda connection: asked.set()) as server:
        source = UpstreamSource(UpstreamSettings((server,), timeout_s=600.0))
        start = threading.Thread(target=source.start, args=(lambda: None,), daemon=True)
        start.start()
        assert asked.wait(TIMEOUT_S)
        results = []
        alterations = [Alteration(Entity("alice"), {PRODUCE: 5.0})]
        altering = threading.Thread(target=lambda: results.extend(source.alter(alterations)), daemon=True)
        altering.start()
        source.stop()
        for thread in (start, altering):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        assert isinstance(results[0], SourceUnavailable)


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_connection_that_failed_leaves_nothing_behind_also_before_garbage_is_collected(listens, protocol):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(lambda connection: connection.close()))
        if not listens:
            stack.close()
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        before = threading.active_count(), open_files()
        for _ in range(20):
            connection = ClusterConnection(server, Credentials(protocol), 5.0)
            with pytest.raises(SourceUnavailable):
                connection.ask(all_quotas_request())
            connection.close()
            connection.interrupt()
        wait_until(lambda: (threading.active_count(), open_files()) == before)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))
