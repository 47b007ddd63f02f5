"""Logins of connections of the proxy's own: passwords that change, logins that end, tokens; on real sockets."""

import contextlib
import socket
import time
from math import inf
from struct import pack

import pytest

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.common.token_endpoint import TokenEndpoint
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.quotas.sources import cluster_connection
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.cluster_faults import LOGIN, TOKEN_ENDPOINT, ConnectionFault
from tests.fakes.listener import Listener, text
from tests.support.timeouts import TIMEOUT_S

NODES = pack(">i", 1) + pack(">i", 7) + text(b"kafka") + pack(">ihii", 9092, -1, 7, 0)


class Node(Listener):
    """A node that wants a password, and says for how long a login is good."""

    def __init__(self, password, lifetime_ms=0, mechanism=b"PLAIN"):
        self.password, self.lifetime_ms, self.mechanism = password, lifetime_ms, mechanism
        self.logins = []
        """What came in each login."""
        super().__init__(versions={36: (0, 1)})

    def _body(self, frame):
        match int.from_bytes(frame[:2], "big"):
            case 3:
                return NODES
            case 17:
                return pack(">hi", 0, 1) + text(self.mechanism)
            case 36:
                return self._answer(frame[28:])
        return super()._body(frame)

    def _answer(self, token):
        self.logins.append(token.decode())
        if token.endswith(b"\0" + self.password.encode()):
            return pack(">hhiq", 0, -1, 0, self.lifetime_ms)
        return pack(">h", 58) + text(b"no") + pack(">iq", 0, 0)

    @property
    def passwords(self):
        return [token.rpartition("\0")[2] for token in self.logins]


class StrictNode(Node):
    """A node that closes a connection as Kafka does: for a request after the end of its login, for a login that comes
    within a second of the last one."""

    logged_in_at_s = -inf

    def _body(self, frame):
        since_s = time.monotonic() - self.logged_in_at_s
        match int.from_bytes(frame[:2], "big"):
            case 3 if since_s * 1000 > self.lifetime_ms:
                return b""
            case 17 if since_s < 1:
                return b""
        return super()._body(frame)

    def _answer(self, token):
        self.logged_in_at_s = time.monotonic()
        return super()._answer(token)


@pytest.fixture
def node():
    node = Node("one")
    yield node
    node.server.close()


@pytest.fixture
def credentials(node, tmp_path):
    (tmp_path / "password").write_text("one\n")
    secret = PasswordFile(str(tmp_path / "password"), f"proxy at {node.address}")
    return Credentials("SASL_PLAINTEXT", None, None, None, "PLAIN", "proxy", secret=secret)


def ask(node, credentials):
    """The nodes that a new connection is told."""
    with contextlib.closing(ClusterConnection(node.address, credentials, TIMEOUT_S)) as own:
        return [each.node_id for each in own.ask(nodes_request()).nodes]


def due_at_once(monkeypatch):
    """Each request finds that the login is due again, if it is only good for a while."""
    monkeypatch.setattr(cluster_connection, "_LEAST_LOGIN_S", 0.0)
    monkeypatch.setattr(cluster_connection, "_PART_OF_LIFETIME", 0.0)


def test_a_rotated_password_is_used_for_the_next_login(node, credentials, tmp_path):
    assert ask(node, credentials) == [7]
    (tmp_path / "password").write_text("two\n")
    node.password = "two"
    assert ask(node, credentials) == [7]
    assert node.passwords == ["one", "two"]


def test_a_file_that_changed_before_its_account_stops_nothing(node, credentials, tmp_path):
    """The connection that is refused is replaced by one with the password that was accepted last, and none fails."""
    assert ask(node, credentials) == [7]
    (tmp_path / "password").write_text("two\n")
    for _ in range(5):
        assert ask(node, credentials) == [7]
    node.password = "two"
    for _ in range(5):
        assert ask(node, credentials) == [7]
    assert node.passwords == ["one", "two", *["one"] * 6, *["two"] * 5]


def test_a_wrong_password_is_offered_once_by_connections_that_come_together(node, credentials):
    node.password = "two"
    for _ in range(5):
        with pytest.raises(ConnectionFault) as refused:
            ask(node, credentials)
        assert refused.value.fault.reason == "authentication_failed"
        assert refused.value.fault.setting == LOGIN
        assert "it refuses the login: no, before 'proxy' was authenticated with PLAIN" in str(refused.value)
    assert node.passwords == ["one"]


def test_a_password_file_that_is_gone_is_named(node, credentials, tmp_path):
    (tmp_path / "password").unlink()
    with pytest.raises(ConnectionFault, match="password cannot be read: No such file or directory") as unusable:
        ask(node, credentials)
    assert unusable.value.fault.reason == "files_unusable"
    assert node.logins == []


def test_a_login_that_is_good_for_a_while_is_done_again_on_the_same_connection(node, credentials, monkeypatch):
    due_at_once(monkeypatch)
    node.lifetime_ms = 1
    with contextlib.closing(ClusterConnection(node.address, credentials, TIMEOUT_S)) as own:
        for count in range(1, 4):
            own.ask(nodes_request())
            assert node.passwords == ["one"] * count
        node.lifetime_ms = 0
        for _ in range(3):
            own.ask(nodes_request())
    assert node.passwords == ["one"] * 4


def test_a_login_that_ends_before_the_next_is_taken_holds_requests_up_and_loses_none(credentials):
    node = StrictNode("one", lifetime_ms=1_100)
    with (
        contextlib.closing(node.server),
        contextlib.closing(ClusterConnection(node.address, credentials, TIMEOUT_S)) as own,
    ):
        for _ in range(3):
            own.ask(nodes_request())
            time.sleep(1.25)
    assert node.passwords == ["one"] * 3


def test_a_password_that_changed_meanwhile_is_found_out_when_a_login_is_done_again(
    node, credentials, tmp_path, monkeypatch
):
    due_at_once(monkeypatch)
    node.lifetime_ms = 1
    with contextlib.closing(ClusterConnection(node.address, credentials, TIMEOUT_S)) as own:
        own.ask(nodes_request())
        (tmp_path / "password").write_text("two\n")
        own.ask(nodes_request())
        node.password = "two"
        own.ask(nodes_request())
    assert node.passwords == ["one", "two", "one", "one", "two"]


def test_without_a_token_from_its_endpoint_the_node_is_told_nothing(node, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_address = f"127.0.0.1:{closed.getsockname()[1]}"
    (tmp_path / "secret").write_text("sesame")
    endpoint = TokenEndpoint(f"http://{closed_address}/token", "proxy", str(tmp_path / "secret"))
    credentials = Credentials("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", secret=endpoint)
    with pytest.raises(ConnectionFault) as unavailable:
        ask(node, credentials)
    assert unavailable.value.fault.reason == "token_unavailable"
    assert unavailable.value.fault.setting == TOKEN_ENDPOINT
    assert f"http://{closed_address}/token: Connection refused" in str(unavailable.value)
    assert node.logins == []
