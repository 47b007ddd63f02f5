"""Why the proxy's own connection to a node fails: on real sockets, with simulated listeners."""

import contextlib
import socket
import ssl
from struct import pack

import pytest

from kafka_throttle.protocol.messages.client_quotas import all_quotas_request
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.cluster_faults import (
    ADDRESSES,
    CA_FILE,
    LOGIN,
    MECHANISM,
    OWN_CERTIFICATE,
    PROTOCOL,
    ConnectionFault,
)
from tests.fakes.listener import Listener, text
from tests.support.certificates import Authority, server_context
from tests.support.timeouts import TIMEOUT_S

TLS_HANDSHAKE = b"\x16"
AS_PROXY = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "proxy", "sasl_plain_password": "opensesame"}


WANTS_SASL = {17: pack(">hi", 33, 1) + text(b"SCRAM-SHA-256")}
TAKES_PLAIN = pack(">hi", 0, 1) + text(b"PLAIN")
REFUSES = pack(">h", 58) + text(b"Invalid username or password") + pack(">i", 0)
NO_SASL = {17: pack(">hi", 34, 0)}


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    ours, strange = Authority(folder), Authority(folder, "stranger")
    return ours, strange, server_context(ours.issue("127.0.0.1", name="node"))


def fault(listener, address=None, **credentials):
    """What a connection with these credentials comes to."""
    try:
        with (
            contextlib.closing(
                ClusterConnection(address or listener.address, Credentials(**credentials), TIMEOUT_S)
            ) as own,
            pytest.raises(ConnectionFault) as raised,
        ):
            own.ask(nodes_request())
    finally:
        listener.server.close()
    assert "opensesame" not in str(raised.value)
    assert raised.value.fault.setting in str(raised.value)
    return raised.value.fault


def test_a_dead_node():
    listener = Listener()
    listener.server.close()
    found = fault(listener)
    assert (found.reason, found.setting) == ("unreachable", ADDRESSES)


def test_an_api_in_versions_that_the_proxy_does_not_use():
    found = fault(Listener(versions={3: (90, 99)}))
    assert found.problem == "it offers the API Metadata in versions 90 to 99, the proxy asks in 1 to 13"
    assert found.reason == "api_missing"


def test_an_api_that_came_with_a_later_kafka():
    listener = Listener()
    with contextlib.closing(ClusterConnection(listener.address, Credentials(), TIMEOUT_S)) as own:
        reported = f"{listener.address}: it does not offer the API DescribeClientQuotas: Kafka 2.6 and later do"
        with listener.server, pytest.raises(ConnectionFault, match=reported):
            own.ask(all_quotas_request())


def test_a_malformed_response():
    found = fault(Listener(responses={3: b"\0\0\0\7"}))
    assert (found.reason, found.problem) == ("response_malformed", "its response to Metadata cannot be read")


def test_tls_spoken_to_in_plain(paper):
    found = fault(Listener(paper[2]))
    assert (found.reason, found.setting) == ("tls_expected", PROTOCOL)
    assert "it speaks TLS" in found.problem


def test_a_node_that_speaks_tls_may_say_so_before_it_closes(paper):
    """Java's does, and its alert is taken for a response that cannot be read."""

    class Alerting(Listener):
        def _serve(self, sock):
            if sock.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE:
                super()._serve(sock)
            else:
                sock.recv(1024)
                sock.sendall(bytes.fromhex("15030300020250"))
                with contextlib.suppress(OSError):
                    sock.recv(1024)  # until it has gone

    found = fault(Alerting(paper[2]))
    assert (found.reason, found.setting) == ("tls_expected", PROTOCOL)


def test_a_plain_listener_spoken_to_in_tls(paper):
    found = fault(Listener(), security_protocol="SSL", ssl_cafile=str(paper[0].file))
    assert (found.reason, found.setting) == ("tls_unexpected", PROTOCOL)


def test_a_certificate_of_an_unknown_authority(paper):
    found = fault(Listener(paper[2]), security_protocol="SSL", ssl_cafile=str(paper[1].file))
    assert (found.reason, found.setting) == ("certificate_refused", CA_FILE)


def test_a_certificate_for_another_name(paper):
    listener = Listener(paper[2])
    address = listener.address.replace("127.0.0.1", "localhost")
    found = fault(listener, address, security_protocol="SSL", ssl_cafile=str(paper[0].file))
    assert (found.reason, found.setting) == ("certificate_refused", ADDRESSES)


def test_no_login_where_one_is_wanted():
    found = fault(Listener(responses=WANTS_SASL))
    assert (found.reason, found.setting) == ("authentication_expected", PROTOCOL)


def test_a_node_that_wants_nothing_and_closes():
    assert fault(Listener(responses=NO_SASL)).reason == "closed"


def test_a_mechanism_that_the_node_does_not_take():
    found = fault(Listener(responses=WANTS_SASL), security_protocol="SASL_PLAINTEXT", **AS_PROXY)
    assert (found.reason, found.setting) == ("mechanism_refused", MECHANISM)


def test_a_login_where_none_is_wanted():
    found = fault(Listener(responses=NO_SASL), security_protocol="SASL_PLAINTEXT", **AS_PROXY)
    assert (found.reason, found.setting) == ("authentication_unexpected", PROTOCOL)


@pytest.mark.parametrize("said", [REFUSES, b""])
def test_a_wrong_password_whether_the_node_says_so_or_only_closes(said):
    listener = Listener(responses={17: TAKES_PLAIN, 36: said})
    found = fault(listener, security_protocol="SASL_PLAINTEXT", **AS_PROXY)
    assert (found.reason, found.setting) == (
        "authentication_failed",
        LOGIN,
    )
    assert ("Invalid username or password" in found.problem) == (said == REFUSES)


def test_a_node_that_wants_a_certificate_and_is_shown_none(paper, monkeypatch):
    """Its alert comes after the handshake, and is lost if we write before it is read."""
    monkeypatch.setattr("kafka_throttle.quotas.sources.cluster_look._WORD_S", TIMEOUT_S)
    wants = server_context(paper[0].issue("127.0.0.1", name="strict"))
    wants.verify_mode = ssl.CERT_REQUIRED
    wants.load_verify_locations(paper[0].file)
    found = fault(Listener(wants), security_protocol="SSL", ssl_cafile=str(paper[0].file))
    assert (found.reason, found.setting) == ("tls_refused", f"{OWN_CERTIFICATE}, {PROTOCOL}")


def test_a_file_that_is_not_there(tmp_path):
    found = fault(Listener(), security_protocol="SSL", ssl_cafile=str(tmp_path / "none.pem"))
    assert found.reason == "files_unusable"
