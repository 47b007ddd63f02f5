"""The proxy's own logins at real nodes: tokens from an endpoint and from a file, passwords that are rotated.

The nodes take each login for good for some seconds only, so that all of the proxy's connections log in all the time.
"""

import contextlib
import json
import threading
import time
import urllib.request

import pytest
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.login_secrets import PasswordFile, TokenFile
from kafka_throttle.common.token_endpoint import TokenEndpoint
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from tests.fakes.authorization_server import AUDIENCE, AuthorizationServer
from tests.integration.proxy_process import ProxyProcess
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.nightly, pytest.mark.xdist_group("own-logins"), pytest.mark.timeout(300)]

SESSION_MS = 3_000
PASSWORDS = ("first one", "second one", "third one")
CLIENT, CLIENT_SECRET = "proxy", "the client's secret"
_SASL = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def authority():
    with AuthorizationServer({CLIENT: CLIENT_SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(authority):
    """One node that takes tokens of that server, and passwords."""
    tokens = "listener.name.tokens"
    properties = {
        f"{tokens}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{tokens}.oauthbearer.sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
        f"{tokens}.oauthbearer.sasl.server.callback.handler.class": (
            f"{_SASL}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{tokens}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": authority.keys_url,
        f"{tokens}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{tokens}.oauthbearer.connections.max.reauth.ms": str(SESSION_MS),
        "listener.name.passwords.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.passwords.scram-sha-256.sasl.jaas.config": f"{_SASL}.scram.ScramLoginModule required;",
        "listener.name.passwords.scram-sha-256.connections.max.reauth.ms": str(SESSION_MS),
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={authority.keys_url}"
    listeners = {"TOKENS": "SASL_PLAINTEXT", "PASSWORDS": "SASL_PLAINTEXT"}
    options = ("-XX:TieredStopAtLevel=1", allowed)
    with KafkaCluster(nodes=1, listeners=listeners, extra=lambda _: properties, jvm_options=options) as cluster:
        set_password(cluster, PASSWORDS[0])
        set_password(cluster, "app's", "app")
        yield cluster


def configs(cluster, *args):
    cluster.tool("kafka-configs", "--bootstrap-server", cluster.bootstrap_servers, "--alter", *args)


class OneToken(AbstractTokenProvider):
    """The token of a client."""

    def __init__(self, token):
        self._token = token

    def token(self):
        return self._token


def set_password(cluster, password, user=CLIENT):
    scram = ("--add-config", f"SCRAM-SHA-256=[password={password}]")
    configs(cluster, *scram, "--entity-type", "users", "--entity-name", user)


def test_without_a_login_of_its_own_the_proxy_learns_the_nodes_from_clients(cluster):
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "app", "sasl_plain_password": "app's"}
    with ProxyProcess(cluster.bootstrap("PASSWORDS"), [{"client_id": "app", "producer_byte_rate": 1_000}]) as proxy:
        [remark] = json.loads(proxy.get("readyz")[1])["remarks"]
        assert remark.endswith("it learns the nodes from the cluster's responses to clients, none yet")
        settings = {"bootstrap_servers": proxy.bootstrap, "security_protocol": "SASL_PLAINTEXT", "client_id": "app"}
        with contextlib.closing(KafkaProducer(**settings, **login)) as producer:
            for _ in range(3):
                producer.send("data", bytes(5_000)).get(TIMEOUT_S)
        [remark] = json.loads(proxy.get("readyz")[1])["remarks"]
        assert remark.endswith("1 so far")
        assert proxy.events("throttle_started")
        assert len(proxy.events("own_login_missing")) == 1
        assert proxy.events("cluster_unreachable") == []


def set_quota(cluster, rate):
    configs(cluster, "--add-config", f"producer_byte_rate={rate}", "--entity-type", "users", "--entity-name", "alice")


def refused_logins(cluster):
    """How many logins the node has refused since it started."""
    return cluster.log_tail(1, 1_000_000).count("Failed authentication with")


def quota_of_alice(proxy):
    with contextlib.suppress(OSError, StopIteration, KeyError):
        with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/api/v1/quotas", timeout=5) as response:
            quotas = json.load(response)["quotas"]
        return next(each["limits"]["producer_byte_rate"]["limit"] for each in quotas)
    return None


def asked_for(seconds, cluster, listener, credentials):
    """Ask over one connection for so long; whether it stood all the time."""
    with contextlib.closing(ClusterConnection(cluster.bootstrap(listener), credentials, TIMEOUT_S)) as own:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            assert own.ask(nodes_request()).nodes
            assert own._client._conversation.lifetime_ms in range(1, SESSION_MS + 1)
            stream = own._client._stream
            time.sleep(0.2)
        return stream is own._client._stream


def by_token(secret):
    return Credentials("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", secret=secret)


def test_a_login_is_done_again_on_one_connection_with_a_token_and_with_a_password(cluster, authority, tmp_path):
    (tmp_path / "token").write_text(authority.token("proxy"))
    (tmp_path / "secret").write_text(CLIENT_SECRET)
    (tmp_path / "password").write_text(PASSWORDS[0])
    before = refused_logins(cluster)
    endpoint = TokenEndpoint(authority.token_url, CLIENT, str(tmp_path / "secret"))
    password = PasswordFile(str(tmp_path / "password"), "proxy")
    by_password = Credentials("SASL_PLAINTEXT", None, None, None, "SCRAM-SHA-256", CLIENT, secret=password)
    for listener, credentials in (
        ("TOKENS", by_token(endpoint)),
        ("TOKENS", by_token(TokenFile(str(tmp_path / "token")))),
        ("PASSWORDS", by_password),
    ):
        assert asked_for(2.5 * SESSION_MS / 1000, cluster, listener, credentials)
    assert refused_logins(cluster) == before


def test_a_token_that_the_cluster_refuses_is_not_shown(cluster, authority, tmp_path):
    token = authority.token("proxy", -60)
    (tmp_path / "token").write_text(token)
    with pytest.raises(SourceUnavailable, match=r"it refuses the login: .*invalid_token") as refused:
        asked_for(1, cluster, "TOKENS", by_token(TokenFile(str(tmp_path / "token"))))
    assert token not in str(refused.value)
    assert "upstream.admin.token_file" in str(refused.value)


@contextlib.contextmanager
def traffic(proxy, **login):
    """A client that sends two records a second, so that there are usage records."""
    stop = threading.Event()

    def send():
        settings = {"bootstrap_servers": proxy.bootstrap, "security_protocol": "SASL_PLAINTEXT", "client_id": "app"}
        with contextlib.closing(KafkaProducer(**settings, **login)) as producer:
            while not stop.wait(0.5):
                producer.send("data", b"x")

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(TIMEOUT_S)


def is_shipping(proxy):
    """Whether more lines come to the topic of usage records than there are now."""
    before = proxy.metric("usage_shipped_lines_total")
    wait_until(lambda: proxy.metric("usage_shipped_lines_total") > before)
    return True


def settings_with(admin, cluster, listener, tmp_path):
    """A proxy whose own connections are all of them: nodes, quotas, a fleet, usage records."""
    admin = {"security_protocol": "SASL_PLAINTEXT", **admin}
    servers = [cluster.bootstrap(listener)]
    return {
        "upstream": {"admin": admin, "metadata_refresh_s": 1},
        "source": {"source": "upstream", "poll_interval_ms": 500},
        "fleet": {"topic": f"claims-{listener.lower()}", "session_timeout_ms": 6_000},
        "usage": {
            "directory": str(tmp_path / "spool"),
            "window_s": 1,
            "file_s": 1,
            "kafka": {"bootstrap_servers": servers, "topic": f"usage-{listener.lower()}", **admin},
        },
    }


def alarms(proxy):
    return [
        (line["event"], line.get("error") or line.get("problem") or line.get("problems"))
        for line in proxy.log()
        if line.get("level") in ("warning", "error")
    ]


def test_all_connections_of_a_proxy_go_on_with_tokens_from_an_endpoint_that_are_soon_over(cluster, authority, tmp_path):
    authority.lifetime_s = 6
    set_quota(cluster, 1_000)
    (tmp_path / "secret").write_text(f"{CLIENT_SECRET}\n")
    endpoint = {"url": authority.token_url, "client_id": CLIENT, "client_secret_file": str(tmp_path / "secret")}
    admin = {"sasl_mechanism": "OAUTHBEARER", "token_endpoint": endpoint}
    before = refused_logins(cluster)
    login = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": OneToken(authority.token("app", 3600))}
    with (
        ProxyProcess(cluster.bootstrap("TOKENS"), **settings_with(admin, cluster, "TOKENS", tmp_path)) as proxy,
        traffic(proxy, **login),
    ):
        wait_until(lambda: quota_of_alice(proxy) == 1_000)
        at_start, given, began_s = alarms(proxy), authority.given, time.monotonic()
        for rate in (2_000, 3_000, 4_000):
            time.sleep(5)
            set_quota(cluster, rate)
            wait_until(lambda rate=rate: quota_of_alice(proxy) == rate)
            assert is_shipping(proxy)
        took_s = time.monotonic() - began_s
        # each of the two processes asks for a token each 4.8 s
        assert authority.given - given <= 2 * (took_s / 4.8 + 1)
        assert proxy.get("readyz")[0] == 200
        assert alarms(proxy) == at_start
        text = proxy.tail(10_000)
    assert refused_logins(cluster) == before
    assert authority.refused == 0
    assert CLIENT_SECRET not in text
    assert "eyJ" not in text


def test_a_rotated_password_goes_on_everywhere_with_few_wrong_logins(cluster, tmp_path):
    """The file is changed first, then the account; then the account first, then the file."""
    set_quota(cluster, 1_000)
    file = tmp_path / "password"

    def write(password):
        (tmp_path / ".new").write_text(f"{password}\n")
        (tmp_path / ".new").replace(file)

    write(PASSWORDS[0])
    admin = {"sasl_mechanism": "SCRAM-SHA-256", "username": CLIENT, "password_file": str(file)}
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "app", "sasl_plain_password": "app's"}
    with (
        ProxyProcess(cluster.bootstrap("PASSWORDS"), **settings_with(admin, cluster, "PASSWORDS", tmp_path)) as proxy,
        traffic(proxy, **login),
    ):
        wait_until(lambda: quota_of_alice(proxy) == 1_000)
        assert is_shipping(proxy)
        before, at_start = refused_logins(cluster), alarms(proxy)
        write(PASSWORDS[1])
        time.sleep(10)
        set_password(cluster, PASSWORDS[1])
        set_quota(cluster, 2_000)
        wait_until(lambda: quota_of_alice(proxy) == 2_000)
        time.sleep(5)
        assert is_shipping(proxy)
        assert alarms(proxy) == at_start
        wrong = refused_logins(cluster) - before
        print("wrong logins, file first:", wrong)
        assert wrong <= 2 * 3  # of two processes: the proxy, and the one that ships usage records
        before = refused_logins(cluster)
        set_password(cluster, PASSWORDS[2])
        time.sleep(10)
        write(PASSWORDS[2])
        set_quota(cluster, 3_000)
        wait_until(lambda: quota_of_alice(proxy) == 3_000)
        wait_until(lambda: proxy.get("readyz")[0] == 200)
        assert is_shipping(proxy)
        wrong = refused_logins(cluster) - before
        print("wrong logins, account first:", wrong, alarms(proxy)[len(at_start) :])
        assert wrong <= 2 * 3
        text = proxy.tail(10_000)
    assert not any(password in text for password in PASSWORDS)
