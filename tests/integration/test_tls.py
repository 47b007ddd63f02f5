"""TLS to a real cluster and from real clients: certificates name users, server names lead to nodes, files change."""

import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import ssl

import aiokafka
import confluent_kafka
import kafka
import pytest

from demo.proxy_process import free_port_run
from kafka_throttle.protocol.messages.api_versions import versions_request
from tests.integration import certified, steady_producers
from tests.integration.certified import BOOTSTRAP_NAME, DOMAIN, NODE_NAME, USER
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.steady_producers import Load
from tests.integration.topics import leaders_of, make_topic
from tests.support.certificates import client_context
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

RECORDS, RECORD_BYTES = 6, 40_000
QUOTA = {"user": USER, "producer_byte_rate": 1_000}
"""What each client sends costs it a throttle, which `SOON` keeps short."""
SOON = {"max_throttle_ms": 200, "max_debt_ms": 0}
NODES = ("1", "2", "3")

_topics = (f"tls-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def proxy(newest_kafka, certificates):
    """Two listeners: at one the nodes have ports, at the other names. To the nodes it shows its own certificate."""
    ours = certificates.of_listener(HOST, f"*.{DOMAIN}")
    [port] = free_port_run(1)
    names = {"name": "names", "bind": HOST, "port": port, "tls": ours}
    names |= {"advertised_host": BOOTSTRAP_NAME, "advertised_node_host": NODE_NAME}
    with ProxyProcess(
        newest_kafka.bootstrap(certified.LISTENER),
        [QUOTA],
        upstream=certificates.of_upstream,
        listener={"tls": ours},
        more_listeners=[names],
        throttle=SOON,
        limits={"drain_s": 1},
    ) as process:
        process.names = f"{BOOTSTRAP_NAME}:{port}"
        process.listener_certificate = ours
        yield process


@pytest.fixture
def topic(newest_kafka):
    """Each node leads one of its partitions, unless one was away for a moment."""
    for name in itertools.islice(_topics, 10):
        leaders = make_topic(newest_kafka.bootstrap_servers, name, steady_producers.PARTITIONS)
        if len(set(leaders.values())) == len(NODES):
            return name
    raise AssertionError(f"a node leads nothing: {leaders}")


@pytest.fixture
def hosts(tmp_path):
    """A file by which the names of the listener are this machine's."""
    names = (BOOTSTRAP_NAME, *(NODE_NAME.format(node_id=node_id) for node_id in NODES))
    path = tmp_path / "hosts"
    path.write_text(f"{HOST} localhost {' '.join(names)}\n")
    return path


# ---------------------------------------------------------------- the clients


def of_kafka_python(servers, topic, certificates, count):
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", **certificates.python()
    )
    found = [next(consumer).value for _ in range(count)]
    consumer.close()
    return found


def of_aiokafka(servers, topic, certificates, count):
    async def read():
        tls = certificates.python()
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest", **tls)
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(count)]
        await consumer.stop()
        return found

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def of_confluent_kafka(servers, topic, certificates, count):
    start = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(certificates.confluent() | start)
    consumer.subscribe([topic])
    found = consumer.consume(count, TIMEOUT_S)
    consumer.close()
    return [message.value() for message in found]


READERS = {"kafka-python": of_kafka_python, "aiokafka": of_aiokafka, "confluent-kafka": of_confluent_kafka}


@pytest.fixture
def start(newest_kafka, certificates, tmp_path):
    """Starts a producer of a library with the client's certificate; with `hosts`, in a separate process."""

    def started(library, servers, topic, hosts=None):
        python = {"bootstrap_servers": servers, "client_id": library, **certificates.python()}
        confluent = {"bootstrap.servers": servers, "client.id": library, **certificates.confluent()}
        match library:
            case "kafka-python":
                return steady_producers.WithKafkaPython(topic, **python)
            case "aiokafka":
                return steady_producers.WithAiokafka(topic, **python)
            case "confluent-kafka" if hosts:
                return steady_producers.piped(library, topic, confluent, hosts)
            case "confluent-kafka":
                return steady_producers.WithConfluentKafka(topic, **confluent)
            case "Java":
                java = {"bootstrap.servers": servers, "client.id": library, **certificates.java()}
                return steady_producers.with_java(newest_kafka, topic, tmp_path / "java.properties", java, hosts)
            case "franz-go":
                go = {"bootstrap": servers, "client_id": library, "tls": certificates.go()}
                return steady_producers.with_franz_go(topic, go, hosts)

    return started


def throttles(proxy):
    """How many there were at each node, all of the same user."""
    assert {line["user"] for line in proxy.events("throttle_started")} <= {USER}
    return {node: proxy.metric("throttles_total", quota_type="produce", node_id=node) for node in NODES}


def sends_and_is_throttled(proxy, cluster, topic, producer):
    """Some records to each node, which cost a throttle each."""
    before = throttles(proxy)
    with Load(producer, RECORD_BYTES) as load:
        for _ in range(RECORDS):
            load.send()
            load.arrive()
        load.assert_all_are_there_once_and_in_order(cluster, topic)
    after = throttles(proxy)
    assert sum(after.values()) - sum(before.values()) >= RECORDS
    assert grown_at_leaders(cluster, topic, before, after)


def grown_at_leaders(cluster, topic, before, after):
    """Whether a count has grown at each node that leads a partition: all of them, except one that was away."""
    leaders = wait_until(lambda: leaders_of(cluster.bootstrap_servers, topic))
    return all(after[str(node)] > before[str(node)] for node in leaders.values() if node > 0)


BY_PORT = [
    *READERS,
    pytest.param("Java", marks=pytest.mark.nightly),
    pytest.param("franz-go", marks=pytest.mark.nightly),
]
IN_THIS_PROCESS = ["kafka-python", "aiokafka"]
BY_NAME = [*IN_THIS_PROCESS, "confluent-kafka", "Java", pytest.param("franz-go", marks=pytest.mark.nightly)]


@pytest.mark.rule("certificate")
@pytest.mark.parametrize("library", BY_PORT)
def test_clients_speak_tls_and_their_certificate_names_the_user_of_the_quota(
    library, proxy, newest_kafka, topic, start, certificates
):
    sends_and_is_throttled(proxy, newest_kafka, topic, start(library, proxy.bootstrap, topic))
    started = proxy.wait_for(
        lambda: [line for line in proxy.events("throttle_started") if line["client_id"] == library],
        TIMEOUT_S,
        "word of a throttle",
    )
    assert {line["entity"] for line in started} == {f"user={USER}"}
    if library in READERS:
        found = READERS[library](proxy.bootstrap, topic, certificates, RECORDS)
        assert sorted(map(int, found)) == list(range(RECORDS))


@pytest.fixture
def names_resolve(monkeypatch):
    """Within this process the names of the listener are this machine's."""
    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **more: getaddrinfo(address_of(host), *args, **more))


def address_of(host):
    named = isinstance(host, str | bytes) and (host if isinstance(host, str) else host.decode()).endswith(DOMAIN)
    return HOST if named else host


@pytest.mark.parametrize("library", BY_NAME)
def test_all_nodes_are_reached_by_name_at_one_port(
    library, proxy, newest_kafka, topic, start, certificates, names_resolve, hosts
):
    def opened():
        return {node: proxy.metric("connections_opened_total", listener="names", node_id=node) for node in NODES}

    before = opened()
    producer = start(library, proxy.names, topic, None if library in IN_THIS_PROCESS else hosts)
    sends_and_is_throttled(proxy, newest_kafka, topic, producer)
    if library in IN_THIS_PROCESS:
        found = READERS[library](proxy.names, topic, certificates, RECORDS)
        assert sorted(map(int, found)) == list(range(RECORDS))
    assert grown_at_leaders(newest_kafka, topic, before, opened())


STEADY = [
    "confluent-kafka",
    pytest.param("Java", marks=pytest.mark.nightly),
    pytest.param("franz-go", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("library", STEADY)
def test_certificates_change_under_load_and_no_record_is_lost(library, proxy, newest_kafka, topic, start, certificates):
    """One producer goes on through all changes, another one comes after each and sees the new certificate."""
    late_topic = f"{topic}-late"
    make_topic(newest_kafka.bootstrap_servers, late_topic)
    before = proxy.closed()
    reloads = proxy.metric("certificate_reloads_total", listener="plain", result="applied")
    with Load(start(library, proxy.bootstrap, topic)) as load:
        load.send()
        load.arrive()
        for change in range(1, 4):
            renewed = certificates.authority.issue(HOST, f"*.{DOMAIN}", name="renewed")
            shutil.copy(renewed.key_file, proxy.listener_certificate["key_file"])
            shutil.copy(renewed.certificate_file, proxy.listener_certificate["certificate_file"])
            load.go_on_until(
                lambda change=change: (
                    proxy.metric("certificate_reloads_total", listener="plain", result="applied") >= reloads + change
                ),
                "new certificates",
            )
            context = certificates.context()
            connected = socket.create_connection((HOST, proxy.port), TIMEOUT_S)
            with connected as sock, context.wrap_socket(sock, server_hostname=HOST) as shown:
                assert shown.getpeercert(binary_form=True) == renewed.der
            late = start("confluent-kafka", proxy.bootstrap, late_topic)
            late.send(0, "")
            late.close()
            assert len(late.acknowledged()) == 1
        load.assert_all_are_there_once_and_in_order(newest_kafka, topic)
    ended = {reason for reason, times in proxy.closed().items() if times > before.get(reason, 0)}
    assert ended <= {"client_closed", "client_lost", "client_sent_nothing"}


def test_a_missing_client_certificate_is_reported_to_client_and_operator(proxy, certificates):
    before = proxy.closed().get("client_certificate_missing", 0)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required|handshake.failure"):
        _speak(proxy.port, client_context(certificates.authority))
    proxy.wait_for(lambda: proxy.closed().get("client_certificate_missing", 0) == before + 1, TIMEOUT_S, "the refusal")


def _speak(port, context):
    """With TLS 1.3 the client learns what the server thinks of its certificate when it first reads."""
    connected = socket.create_connection((HOST, port), TIMEOUT_S)
    with connected as sock, context.wrap_socket(sock, server_hostname=HOST) as shown:
        shown.recv(1)


def test_a_user_that_a_certificate_names_has_so_many_connections(proxy, certificates):
    made = proxy.config([QUOTA])
    made["virtual_clusters"][0]["connections"] = {"max_connections_per_user_overrides": {USER: 2}}
    reloads, before = len(proxy.events("config_reloaded")), proxy.closed().get("too_many_of_user", 0)
    proxy.wait_for(lambda: proxy.metric("connections") == 0, TIMEOUT_S, "others to be gone")
    proxy.write_text(json.dumps(made))
    proxy.wait_for(lambda: len(proxy.events("config_reloaded")) > reloads, TIMEOUT_S, "the bound")
    with contextlib.ExitStack() as sockets:
        kept = [sockets.enter_context(shown(proxy, certificates)) for _ in range(2)]
        with contextlib.suppress(OSError), shown(proxy, certificates) as third:
            assert third.recv(1) == b""
        proxy.wait_for(lambda: proxy.closed().get("too_many_of_user", 0) == before + 1, TIMEOUT_S, "one too many")
        for sock in kept:
            sock.sendall(versions_request(1))
            assert sock.recv(1)
    proxy.write_config([QUOTA])
    proxy.wait_for(lambda: len(proxy.events("config_reloaded")) > reloads + 1, TIMEOUT_S, "the bound to be gone")


def shown(proxy, certificates):
    """A connection with a client certificate."""
    sock = socket.create_connection((HOST, proxy.node_ports[1]), TIMEOUT_S)
    return certificates.context().wrap_socket(sock, server_hostname=HOST)
