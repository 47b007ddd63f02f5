"""Users that log in by SASL at the nodes have their own quotas at the proxy: real nodes, real clients."""

import contextlib
import json
import socket
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from kafka_throttle.protocol.messages.api_versions import versions_request
from kafka_throttle.proxy.cli.main import main
from tests.integration import logins, steady_producers
from tests.integration.logins import LIBRARIES, MECHANISMS, OAUTHBEARER, PASSWORDS, PLAIN, SHA_512, Client
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.integration.steady_producers import Load, with_franz_go
from tests.integration.topics import make_topic
from tests.support.sasl_frames import authenticate, handshake, plain
from tests.support.timeouts import TIMEOUT_S

RATE = 10_000
A_SECOND_OVER = bytes(11 * RATE)
"""As one record it is throttled for a second at this rate."""

QUOTAS = [
    {"user": "alice", "default_client_id": True, "producer_byte_rate": RATE},
    {"user": "bob", "producer_byte_rate": RATE},
    {"user": "a=b,c", "client_id": "odd", "producer_byte_rate": RATE},
]


@pytest.fixture(scope="module")
def sasl_kafka(newest_kafka):
    """The newest cluster; its listener for clients knows all users."""
    logins.add_scram_users(newest_kafka.bootstrap_servers)
    return newest_kafka


@pytest.fixture(scope="module")
def topic(sasl_kafka):
    make_topic(sasl_kafka.bootstrap_servers, "sasl")
    return "sasl"


@pytest.fixture(scope="module")
def password_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sasl") / "password"
    path.write_text(PASSWORDS["proxy"] + "\n")
    return path


def admin(password_file):
    """How the proxy itself logs in."""
    return {
        "admin": {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": PLAIN,
            "username": "proxy",
            "password_file": str(password_file),
        }
    }


@pytest.fixture(scope="module")
def sasl_proxy(sasl_kafka, password_file):
    """A proxy before that listener; as it logs in itself, its clients must. Each connection has a line in its log."""
    upstream = sasl_kafka.bootstrap(logins.LISTENER)
    with ProxyProcess(upstream, QUOTAS, upstream=admin(password_file), log={"level": "debug"}) as process:
        yield process


def throttled(proxy, client_id):
    """The throttle of a client, once it is logged."""
    [line] = proxy.wait_for(
        lambda: [line for line in proxy.events("throttle_started") if line["client_id"] == client_id],
        TIMEOUT_S,
        f"a throttle of {client_id}",
    )[:1]
    return line["user"], line["entity"]


def endings(proxy, **keys):
    """The ends of connections so far with these values in their log lines."""
    return [line for line in proxy.events("connection_closed") if all(line.get(k) == v for k, v in keys.items())]


@pytest.mark.rule("sasl")
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_mechanism_has_the_quota_of_its_user(sasl_proxy, topic, library):
    for mechanism in MECHANISMS:
        client_id = f"{library}-{mechanism}"
        LIBRARIES[library](Client(sasl_proxy.bootstrap, mechanism, "alice", client_id), topic, A_SECOND_OVER)
        assert throttled(sasl_proxy, client_id) == ("alice", "user=alice, client-id=<default>")
        sasl_proxy.wait_for(
            lambda mechanism=mechanism: endings(sasl_proxy, user="alice", mechanism=mechanism),
            TIMEOUT_S,
            f"the end of a connection with {mechanism}",
        )


def explained(proxy, *options):
    """The clients in an explanation, and the limits of what they produce."""
    done = CliRunner().invoke(main, ["explain", "-c", str(proxy.config_path), "--json", *options])
    assert done.exit_code == 0, done.output
    form = json.loads(done.stdout)
    rules = [
        (each["client"]["user"], each.get("throttled"), quota["rule"] and quota["rule"]["limit"])
        for each in (form, *form["others"])
        for quota in each["quotas"]
        if quota["quota"] == "producer_byte_rate"
    ]
    return rules, form["notes"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_throttled_client_is_explained_without_naming_its_user(
    sasl_kafka, password_file, topic, workers, tmp_path_factory
):
    past = tmp_path_factory.mktemp("past", numbered=True)
    past.chmod(0o700)
    history = {"history": {"directory": str(past)}} if workers == 1 else {}
    servers = sasl_kafka.bootstrap(logins.LISTENER)
    with ProxyProcess(servers, QUOTAS, upstream=admin(password_file), workers=workers, **history) as proxy:

        def producer(user):
            login = logins.confluent_settings(PLAIN, user, PASSWORDS[user])
            return Producer({"bootstrap.servers": proxy.bootstrap, "client.id": "nightly", **login})

        bob, odd = producer("bob"), producer("proxy")
        odd.produce(topic, b"x", partition=0)
        assert odd.flush(TIMEOUT_S) == 0
        bob.produce(topic, bytes(60 * RATE), partition=0)  # muted for 49 s, or as long as the cap lets it
        assert bob.flush(TIMEOUT_S) == 0
        throttled(proxy, "nightly")
        expected = [("bob", True, RATE), ("proxy", False, None)]
        assert explained(proxy, "--client-id", "nightly") == (expected, [])
        assert explained(proxy, "--user", "bob") == ([("bob", True, RATE)], [])
        [(anonymous, _, limit)], [note] = explained(proxy, "--client-id", "weekly")
        assert (anonymous, limit) == ("ANONYMOUS", None)
        assert note.startswith("no client with client_id='weekly' is connected, and none was measured: what follows is")
        if workers == 1:
            time.sleep(2)
            assert explained(proxy, "--client-id", "nightly", "--at", "-1s")[0] == [("bob", None, RATE)]


def test_odd_names_are_users(sasl_proxy, topic):
    client = Client(sasl_proxy.bootstrap, SHA_512, "a=b,c", "odd")
    logins.send_with_confluent_kafka(client, topic, A_SECOND_OVER)
    assert throttled(sasl_proxy, "odd") == ("a=b,c", "user='a=b,c', client-id=odd")


@pytest.mark.parametrize(
    "library", ["aiokafka", "confluent-kafka", pytest.param("kafka-python", marks=pytest.mark.nightly)]
)
def test_a_wrong_password_is_reported_by_the_node_and_spends_nothing(sasl_proxy, topic, library):
    """kafka-python tries for half a minute."""
    failures = sasl_proxy.metric("authentications_total", result="failure")
    before = sasl_proxy.closed().get("authentication_failed", 0)
    client = Client(sasl_proxy.bootstrap, PLAIN, "bob", f"{library}-wrong", "wrong")
    with pytest.raises(Exception, match=REFUSALS[library]) as refused:
        LIBRARIES[library](client, topic, A_SECOND_OVER)
    assert not isinstance(refused.value, AssertionError)
    sasl_proxy.wait_for(
        lambda: sasl_proxy.closed().get("authentication_failed", 0) > before, TIMEOUT_S, "the end of a refusal"
    )
    [line, *_] = endings(sasl_proxy, reason="authentication_failed", claimed_user="bob")
    assert (line.get("user"), line["mechanism"], line["error"]) == (None, "PLAIN", "SASL_AUTHENTICATION_FAILED")
    assert "Invalid username or password" in line["error_message"]
    assert sasl_proxy.metric("authentications_total", result="failure") > failures
    assert endings(sasl_proxy, user="bob") == []
    assert [line for line in sasl_proxy.events("throttle_started") if line["user"] == "bob"] == []


REFUSALS = {
    "kafka-python": "Authentication|Unable to bootstrap|NoBrokers",
    "aiokafka": "Authentication|Unable to bootstrap",
    "confluent-kafka": "Invalid username or password",
}


@pytest.fixture
def start(sasl_kafka, tmp_path):
    """Starts a producer of a library, which logs in as bob by the mechanism with short sessions."""

    def started(library, servers, topic):
        login = (SHA_512, "bob", PASSWORDS["bob"])
        python = {"bootstrap_servers": servers, "client_id": library, **logins.python(*login)}
        match library:
            case "kafka-python":
                return steady_producers.WithKafkaPython(topic, **python)
            case "aiokafka":
                return steady_producers.WithAiokafka(topic, **python)
            case "confluent-kafka":
                confluent = {"bootstrap.servers": servers, "client.id": library, **logins.confluent_settings(*login)}
                return steady_producers.WithConfluentKafka(topic, **confluent)
            case "Java":
                java = {"bootstrap.servers": servers, "client.id": library, **logins.java(*login)}
                return steady_producers.with_java(sasl_kafka, topic, tmp_path / "java.properties", java)
        go = {"bootstrap": servers, "client_id": library, "sasl": logins.go(*login)}
        return steady_producers.with_franz_go(topic, go)

    return started


AT_ONCE = ["confluent-kafka"]
RENEWING = [*AT_ONCE, *(pytest.param(name, marks=pytest.mark.nightly) for name in ("kafka-python", "Java", "franz-go"))]


@pytest.mark.parametrize("library", RENEWING)
def test_authenticating_anew_under_load_loses_nothing(sasl_kafka, password_file, start, library):
    """The nodes end sessions of this mechanism after a few seconds; a client is throttled before and after that.

    It logs in anew when a tenth of a session is left. If it stands still then, it connects anew.
    """
    topic = f"again-{library}"
    make_topic(sasl_kafka.bootstrap_servers, topic, steady_producers.PARTITIONS)
    with sasl_proxy_of_its_own(sasl_kafka, password_file) as proxy:
        with Load(start(library, proxy.bootstrap, topic), 600) as load:
            is_throttled(proxy, load)
            load.go_on_until(lambda: renewals(proxy) >= 3, "renewed sessions")
            is_throttled(proxy, load)
            load.assert_all_are_there_once_and_in_order(sasl_kafka, topic)
        assert throttled(proxy, library) == ("bob", "user=bob")
        assert {line["user"] for line in proxy.events("throttle_started")} == {"bob"}
        assert endings(proxy, reason="authentication_failed") == []


def sasl_proxy_of_its_own(cluster, password_file):
    """It does not keep clients waiting until their session is over."""
    soon = {"max_throttle_ms": 100, "max_debt_ms": 0}
    return ProxyProcess(cluster.bootstrap(logins.LISTENER), QUOTAS, upstream=admin(password_file), throttle=soon)


def is_throttled(proxy, load):
    """More than the quota allows, to each node."""
    before = proxy.metric("throttles_total", quota_type="produce")
    for _ in range(steady_producers.PARTITIONS):
        load.send(len(A_SECOND_OVER))
    load.arrive()
    assert proxy.metric("throttles_total", quota_type="produce") > before


def renewals(proxy):
    """How many logins on connections that had one already, while no other client connects."""
    logged_in = proxy.metric("authentications_total", result="success")
    return logged_in - proxy.metric("connections_opened_total")


@pytest.mark.nightly
def test_aiokafka_connects_anew_when_its_session_is_over_and_loses_nothing(sasl_kafka, password_file, start):
    """It does not know KIP-368: the node closes its connection (0.14)."""
    topic = "anew"
    make_topic(sasl_kafka.bootstrap_servers, topic, steady_producers.PARTITIONS)
    with sasl_proxy_of_its_own(sasl_kafka, password_file) as proxy:
        with Load(start("aiokafka", proxy.bootstrap, topic), 600) as load:
            is_throttled(proxy, load)

            def closed_by_nodes():
                return [line for line in endings(proxy, reason="node_closed") if line.get("user") == "bob"]

            load.go_on_until(lambda: len(closed_by_nodes()) >= 4, "ends of sessions")
            is_throttled(proxy, load)
            load.assert_all_are_there_once_and_in_order(sasl_kafka, topic)
        assert {line["user"] for line in proxy.events("throttle_started")} == {"bob"}
        assert renewals(proxy) <= 0


def test_the_quotas_of_the_cluster_itself_are_learned_over_sasl(sasl_kafka, topic, password_file):
    entity = (("user", "alice"),)
    with QuotaClient(sasl_kafka.address(1)) as quotas:
        quotas.alter([(entity, [("producer_byte_rate", float(RATE), False)])])
    servers = sasl_kafka.bootstrap(logins.LISTENER)
    with ProxyProcess(servers, upstream=admin(password_file), source={"source": "upstream"}) as proxy:
        proxy.wait_for(lambda: proxy.events("quotas_changed"), TIMEOUT_S, "the quotas of the cluster")
        logins.send_with_confluent_kafka(Client(proxy.bootstrap, OAUTHBEARER, "alice", "learned"), topic, A_SECOND_OVER)
        assert throttled(proxy, "learned") == ("alice", "user=alice")


@pytest.mark.nightly
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_own_tools_log_in(sasl_kafka, sasl_proxy, topic, mechanism, tmp_path):
    client_id = f"java-{mechanism}"
    properties = tmp_path / "client.properties"
    login = logins.java(mechanism, "alice", PASSWORDS["alice"])
    settings = {**login, "bootstrap.servers": sasl_proxy.bootstrap, "client.id": client_id}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    sasl_kafka.tool(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "1", "--record-size", str(len(A_SECOND_OVER)), "--throughput", "-1"),
        *("--command-config", str(properties)),
    )
    assert throttled(sasl_proxy, client_id) == ("alice", "user=alice, client-id=<default>")


@pytest.mark.nightly
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_franz_go_logs_in(sasl_proxy, topic, mechanism):
    client_id = f"go-{mechanism}"
    login = logins.go(mechanism, "alice", PASSWORDS["alice"])
    go = with_franz_go(topic, {"bootstrap": sasl_proxy.bootstrap, "client_id": client_id, "sasl": login})
    go.send(0, " " * len(A_SECOND_OVER))
    go.close()
    assert len(go.acknowledged()) == 1
    assert throttled(sasl_proxy, client_id) == ("alice", "user=alice, client-id=<default>")


def test_a_user_has_so_many_connections_and_one_that_only_claims_to_be_that_user_takes_none(sasl_proxy):
    """The proxy alone has this user; its own connections go to the nodes directly."""
    user, too_many = "proxy", lambda: sasl_proxy.closed().get("too_many_of_user", 0)
    before = too_many()
    with of_users(sasl_proxy, {user: 2}), contextlib.ExitStack() as sockets:
        first, second = (sockets.enter_context(logged_in(sasl_proxy, user, PASSWORDS[user])) for _ in range(2))
        with pytest.raises(ConnectionError):
            logged_in(sasl_proxy, user, "wrong").close()
        third = sockets.enter_context(logged_in(sasl_proxy, user, PASSWORDS[user]))
        assert third.recv(1) == b""
        assert too_many() == before + 1
        for sock in (first, second):
            assert answered(sock, versions_request(1))
        first.close()
        sasl_proxy.wait_for(lambda: comes_in(sasl_proxy, user), TIMEOUT_S, "a place that is free again")
        assert answered(sockets.enter_context(logged_in(sasl_proxy, "alice", PASSWORDS["alice"])), versions_request(1))


@contextlib.contextmanager
def of_users(proxy, counts):
    """Users may have so many connections for a while."""
    made = proxy.config(QUOTAS)
    made["virtual_clusters"][0]["connections"] = {"max_connections_per_user_overrides": counts}
    reloads = len(proxy.events("config_reloaded"))
    proxy.write_text(json.dumps(made))
    proxy.wait_for(lambda: len(proxy.events("config_reloaded")) > reloads, TIMEOUT_S, "the bound")
    yield
    proxy.write_config(QUOTAS)
    proxy.wait_for(lambda: len(proxy.events("config_reloaded")) > reloads + 1, TIMEOUT_S, "the bound to be gone")


def logged_in(proxy, user, password):
    """A connection with a login that the node has accepted. ConnectionError if it has not."""
    sock = socket.create_connection((HOST, proxy.node_ports[1]), TIMEOUT_S)
    answered(sock, handshake(PLAIN))
    response = answered(sock, authenticate(plain(user.encode(), password.encode())))
    if response[4:6] != b"\0\0":
        sock.close()
        raise ConnectionError(response)
    return sock


def comes_in(proxy, user):
    with logged_in(proxy, user, PASSWORDS[user]) as sock, contextlib.suppress(ConnectionError):
        return answered(sock, versions_request(1))


def answered(sock, request):
    """The response to a request, without its length."""
    sock.sendall(request)
    size = int.from_bytes(exactly(sock, 4), "big")
    return exactly(sock, size)


def exactly(sock, size):
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
