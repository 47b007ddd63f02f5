"""Why the proxy's own connections come to nothing, as real nodes have it that want TLS, or SASL, or neither."""

import contextlib
import json
from collections import Counter

import pytest
from click.testing import CliRunner

from demo.proxy_process import free_port_run
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.cluster_faults import CA_FILE, LOGIN, OWN_CERTIFICATE, PROTOCOL, ConnectionFault
from tests.integration import certified, logins
from tests.support.certificates import Authority
from tests.support.timeouts import TIMEOUT_S

REFUSED_TLS = f"{OWN_CERTIFICATE}, {PROTOCOL}"
WRONG = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "proxy", "sasl_plain_password": "wrong"}
SCRAM = WRONG | {"sasl_mechanism": "SCRAM-SHA-256"}
WANTS_SASL, WANTS_CERTIFICATES, PLAIN = logins.LISTENER, certified.LISTENER, ""

CASES = {
    "a wrong password": (WANTS_SASL, "SASL_PLAINTEXT", WRONG, "authentication_failed", LOGIN),
    "a wrong password by SCRAM": (WANTS_SASL, "SASL_PLAINTEXT", SCRAM, "authentication_failed", LOGIN),
    "no login": (WANTS_SASL, "PLAINTEXT", {}, "authentication_expected", PROTOCOL),
    "a login where none is wanted": (PLAIN, "SASL_PLAINTEXT", WRONG, "authentication_unexpected", PROTOCOL),
    "plain to TLS": (WANTS_CERTIFICATES, "PLAINTEXT", {}, "tls_expected", PROTOCOL),
    "TLS to plain": (PLAIN, "SSL", {"ssl_cafile": "ours"}, "tls_unexpected", PROTOCOL),
    "an unknown authority": (WANTS_CERTIFICATES, "SSL", {"ssl_cafile": "strange"}, "certificate_refused", CA_FILE),
    "no certificate": (WANTS_CERTIFICATES, "SSL", {"ssl_cafile": "ours"}, "tls_refused", REFUSED_TLS),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_that_does_not_respond_is_reported_with_the_setting_to_look_at(
    case, newest_kafka, certificates, tmp_path, monkeypatch
):
    monkeypatch.setattr("kafka_throttle.quotas.sources.cluster_look._WORD_S", TIMEOUT_S)
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


# ------------------------------------------------------------- check --connect


def checked(tmp_path, servers, listener=None, quotas=None, sasl=None, **upstream):
    """The exit status of `check --connect` for a file like this, and its lines without their numbers in the file."""
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": ["1-3"], **(listener or {})}
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": servers.split(","), **upstream},
        "listeners": [listener],
        "quotas": quotas or {"entries": [{"user": "alice", "producer_byte_rate": 1000}]},
        "sasl": sasl or {},
    }
    path = tmp_path / "proxy.yaml"
    path.write_text(json.dumps({"virtual_clusters": [cluster]}, indent=1))
    done = CliRunner().invoke(main, ["check", "-c", str(path), "--connect"])
    lines = [line.removeprefix("virtual_clusters[0].") for line in done.stderr.splitlines() if "state_file" not in line]
    assert all(" (line " in line for line in lines), lines
    return done.exit_code, [line.rpartition(" (line ")[0] for line in lines]


def password_file(tmp_path, password):
    path = tmp_path / "password"
    path.write_text(password)
    return str(path)


def test_a_file_that_fits_its_cluster_passes_the_check(newest_kafka, tmp_path):
    quotas = {"source": "upstream", "admin_users": ["root"]}
    assert checked(tmp_path, newest_kafka.bootstrap_servers, quotas=quotas) == (0, [])


def test_the_check_finds_a_wrong_port_and_a_node_without_one(newest_kafka, tmp_path):
    [wrong] = free_port_run(1)
    servers = [*newest_kafka.bootstrap_servers.split(",")[:1], f"127.0.0.1:{wrong}"]
    assert checked(tmp_path, ",".join(servers), listener={"node_ids": ["1-2", 7]}) == (
        2,
        [
            "warning: virtual_clusters[0].listeners[0].node_ids: the cluster does not have the nodes 7 now",
            f"upstream.bootstrap_servers[1]: 127.0.0.1:{wrong}: Connection refused",
            "listeners[0].node_ids: expected a port in node_ids or spare_ports for each node of the cluster, got none"
            " for 3",
        ],
    )


def test_the_check_finds_a_wrong_password_once_with_all_servers_that_refuse_it(newest_kafka, tmp_path):
    servers = newest_kafka.bootstrap(WANTS_SASL)
    admin = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "username": "proxy",
        "password_file": password_file(tmp_path, logins.PASSWORDS["proxy"]),
    }
    assert checked(tmp_path, servers, admin=admin) == (0, [])
    (other := tmp_path / "other").mkdir()  # the password at this place was accepted once in this process
    admin["password_file"] = password_file(other, "wrong")
    status, [line] = checked(tmp_path, servers, admin=admin)
    assert status == 2
    assert line.startswith(f"upstream.admin.username: {servers.replace(',', ', ')}: it refuses the login: ")
    assert line.endswith("(see also upstream.admin.password_file)")


def test_the_check_finds_certificates_that_are_refused(newest_kafka, certificates, tmp_path):
    servers = newest_kafka.bootstrap(WANTS_CERTIFICATES)
    ours = certificates.of_upstream
    status, lines = checked(tmp_path, servers, **ours)
    assert status == 0
    soon = Counter(line.removeprefix("warning: virtual_clusters[0].").partition(": ")[0] for line in lines)
    own = [f"upstream.{section}.{file}" for section in ("tls", "admin") for file in ("certificate_file", "ca_file")]
    assert soon == {**dict.fromkeys(own, 1), "upstream.tls": 3}, "certificates of tests end within a day"
    assert all(" expires soon, at 20" in line for line in lines)
    strange = {**ours["tls"], "ca_file": str(Authority(tmp_path).file)}
    status, lines = checked(tmp_path, servers, tls=strange, admin=ours["admin"])
    assert (status, places_of_problems(lines)) == (2, {"upstream.tls.ca_file"})
    status, lines = checked(tmp_path, servers, tls={"ca_file": ours["tls"]["ca_file"]}, admin=ours["admin"])
    assert (status, places_of_problems(lines)) == (2, {"upstream.tls.certificate_file"})


def places_of_problems(lines):
    return {line.partition(": ")[0] for line in lines if not line.startswith("warning: ")}


def test_the_check_finds_that_clients_log_in_where_the_nodes_know_no_login(newest_kafka, tmp_path):
    status, lines = checked(tmp_path, newest_kafka.bootstrap_servers, sasl={"required": True})
    assert (status, places_of_problems(lines)) == (2, {"sasl.required"})


def test_the_check_connects_from_the_addresses_that_connections_of_clients_come_from(newest_kafka, tmp_path):
    servers = newest_kafka.bootstrap_servers
    assert checked(tmp_path, servers, source_addresses=["127.0.0.9"]) == (0, [])
    status, lines = checked(tmp_path, servers, source_addresses=["192.0.2.1"])
    assert (status, places_of_problems(lines)) == (2, {"upstream.source_addresses"})
