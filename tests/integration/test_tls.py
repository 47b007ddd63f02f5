"""TLS to a real cluster and from real clients: certificates name users, server names lead to nodes, files change."""

import asyncio
import itertools
import shutil
import socket
import ssl

import aiokafka
import confluent_kafka
import kafka
import pytest
from cryptography.x509.oid import NameOID

from proxy.demo.kafka_cluster import KafkaCluster
from proxy.demo.proxy_process import free_port_run
from tests.certificates import Authority, client_context
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.patience import PATIENCE_S

RECORDS, RECORD_BYTES = 5, 40_000
QUOTA = {"user": "etl", "producer_byte_rate": 1_000}
"""What each client sends costs it a throttle, which `SOON` keeps short."""
SOON = {"max_throttle_ms": 200, "max_debt_ms": 0}
RULES = "RULE:^CN=(.*?),O=Acme$/$1/L, DEFAULT"
DOMAIN = "kafka.test"

_topics = (f"tls-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def etl(authority):
    subject = ((NameOID.ORGANIZATION_NAME, "Acme"), (NameOID.COMMON_NAME, "ETL"))
    issued = authority.issue(subject=subject, name="etl")
    (authority.folder / "etl-both.pem").write_text(issued.in_one_file())
    return issued


@pytest.fixture(scope="module")
def cluster(authority):
    """One node, whose listener for the proxy wants to be shown a certificate."""
    keys = authority.folder / "node-both.pem"
    keys.write_text(authority.issue(HOST, name="node").in_one_file())
    tls = {
        "keystore.type": "PEM",
        "keystore.location": str(keys),
        "truststore.type": "PEM",
        "truststore.location": str(authority.file),
        "client.auth": "required",
    }
    extra = {f"listener.name.secured.ssl.{name}": value for name, value in tls.items()}
    with KafkaCluster(nodes=1, listeners={"SECURED": "SSL"}, extra=lambda _: extra) as made:
        yield made


@pytest.fixture(scope="module")
def proxy(cluster, authority):
    """Two listeners: of one the nodes have ports, of the other names."""
    listener = authority.issue(HOST, f"*.{DOMAIN}", name="listener")
    own = authority.issue("proxy", name="proxy")
    ours = {"certificate_file": str(listener.certificate_file), "key_file": str(listener.key_file)}
    ours |= {"client_auth": "required", "ca_file": str(authority.file), "principal_mapping_rules": RULES}
    upstream = {"ca_file": str(authority.file), "certificate_file": str(own.certificate_file)}
    upstream["key_file"] = str(own.key_file)
    [port] = free_port_run(1)
    names = {"name": "names", "bind": HOST, "port": port, "tls": ours}
    names |= {"advertised_host": f"boot.{DOMAIN}", "advertised_node_host": f"b{{node_id}}.{DOMAIN}"}
    with ProxyProcess(
        cluster.bootstrap("SECURED"),
        [QUOTA],
        upstream={"tls": upstream, "admin": {"security_protocol": "SSL", **upstream}},
        listener={"tls": ours},
        more_listeners=[names],
        throttle=SOON,
        limits={"drain_s": 1},
    ) as process:
        process.names = f"boot.{DOMAIN}:{port}"
        process.listener_certificate = listener
        yield process


@pytest.fixture
def topic(cluster):
    name = next(_topics)
    with_admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    with_admin.create_topics([kafka.admin.NewTopic(name, 1, 1)])
    with_admin.close()
    return name


# ---------------------------------------------------------------- the clients


def with_kafka_python(bootstrap, topic, authority, etl):
    tls = {"security_protocol": "SSL", "ssl_context": client_context(authority, etl)}
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **tls)
    for number in range(RECORDS):
        producer.send(topic, str(number).encode().ljust(RECORD_BYTES)).get(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **tls)
    found = [int(next(consumer).value) for _ in range(RECORDS)]
    consumer.close()
    return found


def with_aiokafka(bootstrap, topic, authority, etl):
    async def both():
        tls = {"security_protocol": "SSL", "ssl_context": client_context(authority, etl)}
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **tls)
        await producer.start()
        for number in range(RECORDS):
            await producer.send_and_wait(topic, str(number).encode().ljust(RECORD_BYTES))
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **tls)
        await consumer.start()
        found = [int((await consumer.getone()).value) for _ in range(RECORDS)]
        await consumer.stop()
        return found

    return asyncio.run(asyncio.wait_for(both(), PATIENCE_S))


def confluent_tls(bootstrap, authority, etl):
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.file),
        "ssl.certificate.location": str(etl.certificate_file),
        "ssl.key.location": str(etl.key_file),
    }


def with_confluent_kafka(bootstrap, topic, authority, etl):
    tls = confluent_tls(bootstrap, authority, etl)
    producer = confluent_kafka.Producer(tls | {"linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode().ljust(RECORD_BYTES))
        assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer(tls | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = consumer.consume(RECORDS, PATIENCE_S)
    consumer.close()
    return [int(message.value()) for message in found]


@pytest.fixture
def names_resolve(monkeypatch):
    """Within this process the names of the listener are this machine's."""
    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **more: getaddrinfo(address_of(host), *args, **more))


def address_of(host):
    named = isinstance(host, str | bytes) and (host if isinstance(host, str) else host.decode()).endswith(DOMAIN)
    return HOST if named else host


def throttles_of_etl(proxy):
    started = proxy.events("throttle_started")
    assert {line["user"] for line in started} <= {"etl"}
    return len(started), proxy.metric("throttles_total", quota_type="produce")


@pytest.mark.parametrize("client", [with_kafka_python, with_aiokafka, with_confluent_kafka])
def test_clients_speak_tls_and_their_certificate_names_the_user_of_the_quota(client, proxy, topic, authority, etl):
    episodes, throttles = throttles_of_etl(proxy)
    assert client(proxy.bootstrap, topic, authority, etl) == list(range(RECORDS))
    now_episodes, now_throttles = throttles_of_etl(proxy)
    assert now_throttles - throttles >= RECORDS
    assert now_episodes > episodes


@pytest.mark.parametrize("client", [with_kafka_python, with_aiokafka])
def test_all_nodes_are_reached_by_name_at_one_port(client, proxy, topic, authority, etl, names_resolve):
    opened = proxy.metric("connections_opened_total", listener="names", node_id="1")
    assert client(proxy.names, topic, authority, etl) == list(range(RECORDS))
    assert proxy.metric("connections_opened_total", listener="names", node_id="1") > opened


def test_java_reaches_nodes_by_name_with_its_certificate(proxy, cluster, topic, authority, etl, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{HOST} boot.{DOMAIN} b1.{DOMAIN}\n")
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={authority.file}\nssl.keystore.location={authority.folder / 'etl-both.pem'}\n"
    )
    _, throttles = throttles_of_etl(proxy)
    tool = cluster._tool_class("kafka-console-producer")
    options = ("-XX:TieredStopAtLevel=1", f"-Djdk.net.hosts.file={hosts}")
    arguments = ("--bootstrap-server", proxy.names, "--topic", topic, "--command-config", str(settings))
    lines = "".join(str(number).ljust(RECORD_BYTES) + "\n" for number in range(RECORDS))
    done = cluster.run(cluster.java_command(tool, *arguments, options=options), stdin=lines)
    assert done.returncode == 0, done.stdout + done.stderr
    assert throttles_of_etl(proxy)[1] > throttles
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    assert [int(next(consumer).value) for _ in range(RECORDS)] == list(range(RECORDS))
    consumer.close()


def test_certificates_change_under_load_and_no_record_is_lost(proxy, cluster, topic, authority, etl):
    """One producer goes on through all changes, another one comes after each; who comes sees the new certificate."""
    tls = confluent_tls(proxy.bootstrap, authority, etl)
    delivered = []
    steady = confluent_kafka.Producer(tls | {"enable.idempotence": True, "linger.ms": 0, "client.id": "steady"})

    def note(error, message):
        assert error is None, error
        delivered.append(message.value())

    numbers = itertools.count()
    before = proxy.closed()
    port = proxy.port
    for change in range(1, 4):
        renewed = authority.issue(HOST, f"*.{DOMAIN}", name="renewed")
        shutil.copy(renewed.key_file, proxy.listener_certificate.key_file)
        shutil.copy(renewed.certificate_file, proxy.listener_certificate.certificate_file)

        def goes_on(change=change):
            steady.produce(topic, str(next(numbers)).encode(), on_delivery=note)
            steady.poll(0.02)
            return proxy.metric("certificate_reloads_total", listener="plain", result="applied") >= change

        proxy.wait_for(goes_on, PATIENCE_S, "new certificates")
        context = client_context(authority, etl)
        with socket.create_connection((HOST, port)) as sock, context.wrap_socket(sock, server_hostname=HOST) as shown:
            assert shown.getpeercert(binary_form=True) == renewed.der
        late = confluent_kafka.Producer(tls | {"client.id": "late"})
        late.produce(topic, str(next(numbers)).encode(), on_delivery=note)
        assert late.flush(PATIENCE_S) == 0
    assert steady.flush(PATIENCE_S) == 0
    count = next(numbers)
    assert sorted(map(int, delivered)) == list(range(count))
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    assert sorted(int(next(consumer).value) for _ in range(count)) == list(range(count))
    consumer.close()
    ended = {reason for reason, times in proxy.closed().items() if times > before.get(reason, 0)}
    assert ended <= {"client_closed", "client_lost"}


def test_a_client_without_a_certificate_is_told_and_so_is_the_operator(proxy, authority):
    before = proxy.closed().get("client_certificate_missing", 0)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required|handshake.failure"):
        _speak(proxy.port, client_context(authority))
    proxy.wait_for(lambda: proxy.closed().get("client_certificate_missing", 0) == before + 1, PATIENCE_S, "the refusal")


def _speak(port, context):
    """With TLS 1.3 the client learns what the server thinks of its certificate when it first reads."""
    connected = socket.create_connection((HOST, port), PATIENCE_S)
    with connected as sock, context.wrap_socket(sock, server_hostname=HOST) as shown:
        shown.recv(1)
