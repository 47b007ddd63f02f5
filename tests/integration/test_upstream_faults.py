"""Why the proxy's own connections come to nothing, as real nodes have it that want TLS, or SASL, or neither."""

import contextlib

import pytest

from protocol.messages.metadata import nodes_request
from quotas.sources.cluster_connection import ClusterConnection, Credentials
from quotas.sources.cluster_faults import CA_FILE, LOGIN, OWN_CERTIFICATE, PROTOCOL, ConnectionFault
from tests.certificates import Authority
from tests.integration import certified, logins
from tests.timeouts import TIMEOUT_S

REFUSED_TLS = f"{OWN_CERTIFICATE}, {PROTOCOL}"
WRONG = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "proxy", "sasl_plain_password": "wrong"}
SCRAM = WRONG | {"sasl_mechanism": "SCRAM-SHA-256"}
WANTS_SASL, WANTS_CERTIFICATES, PLAIN = logins.LISTENER, certified.LISTENER, ""

CASES = {
    "a wrong password": (WANTS_SASL, "SASL_PLAINTEXT", WRONG, "authentication_failed", LOGIN),
    "a wrong password by SCRAM": (WANTS_SASL, "SASL_PLAINTEXT", SCRAM, "authentication_failed", LOGIN),
    "no login": (WANTS_SASL, "PLAINTEXT", {}, "authentication_expected", PROTOCOL),
    "a login to whom wants none": (PLAIN, "SASL_PLAINTEXT", WRONG, "authentication_unexpected", PROTOCOL),
    "plain to TLS": (WANTS_CERTIFICATES, "PLAINTEXT", {}, "tls_expected", PROTOCOL),
    "TLS to plain": (PLAIN, "SSL", {"ssl_cafile": "ours"}, "tls_unexpected", PROTOCOL),
    "an unknown authority": (WANTS_CERTIFICATES, "SSL", {"ssl_cafile": "strange"}, "certificate_refused", CA_FILE),
    "no certificate": (WANTS_CERTIFICATES, "SSL", {"ssl_cafile": "ours"}, "tls_refused", REFUSED_TLS),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_that_cannot_be_asked_is_told_with_the_setting_to_look_at(
    case, newest_kafka, certificates, tmp_path, monkeypatch
):
    monkeypatch.setattr("quotas.sources.cluster_look._WORD_S", TIMEOUT_S)
    listener, protocol, settings, reason, setting = CASES[case]
    authorities = {"ours": certificates.authority, "strange": Authority(tmp_path)}
    if "ssl_cafile" in settings:
        settings = {"ssl_cafile": str(authorities[settings["ssl_cafile"]].file)}
    servers = newest_kafka.bootstrap(listener) if listener else newest_kafka.bootstrap_servers
    own = ClusterConnection(servers.split(",")[0], Credentials(security_protocol=protocol, **settings), TIMEOUT_S)
    with contextlib.closing(own), pytest.raises(ConnectionFault) as raised:
        own.ask(nodes_request())
    assert (raised.value.fault.reason, raised.value.fault.setting) == (reason, setting), raised.value
    assert "wrong" not in str(raised.value)
