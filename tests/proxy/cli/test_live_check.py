"""`check --connect`: which differences between the file and what is there are found, without a cluster."""

import asyncio
import contextlib
import datetime
import json
import re
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo.proxy_process import free_port_run
from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.cli.certificate_check import certificate_findings
from kafka_throttle.proxy.cli.findings import Finding
from kafka_throttle.proxy.cli.listener_check import listener_findings
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.cli.node_check import ClientFault, reach
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.settings import ListenerConfig, UpstreamConfig
from tests.quotas.sources.test_cluster_faults import WANTS_SASL, Listener
from tests.quotas.sources.test_cluster_nodes import metadata
from tests.support.certificates import Authority, server_context
from tests.support.timeouts import TIMEOUT_S


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def found(nodes=(), **settings):
    """The findings at a listener, as (place, problem, whether it is a warning)."""
    config = {"name": "plain", "bind": "127.0.0.1", "port": 9092, **settings}
    findings = listener_findings("at", ListenerConfig.model_validate(config), nodes)
    return [(*each.problem[:2], each.is_warning) for each in findings]


def said_of_certificates(nodes=(), upstream=None, **settings):
    """The same of the certificates, which need no cluster, and of those for the names of nodes."""
    config = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1], **settings}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["a:1"], **(upstream or {})}, "listeners": [config]}
    findings = certificate_findings(config_of({"virtual_clusters": [cluster]}))
    said = [(*each.problem[:2], each.is_warning) for each in findings]
    return said + [each for each in found(nodes, **config) if "tls" in each[0]]


def certified(authority, *hosts, days=100, **settings):
    issued = authority.issue(*hosts, valid=datetime.timedelta(days=days))
    return {"tls": {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file), **settings}}


def test_each_node_needs_a_port():
    assert found([1, 2, 3], node_ids=["1-3"]) == []
    assert found([1, 2, 7], node_ids=["1-2"], spare_ports=[9100]) == []
    problem = "expected a port in node_ids or spare_ports for each node of the cluster, got none for 5, 6"
    assert found([1, 2, 4, 5, 6], node_ids=["1-2"], spare_ports=[9100]) == [("at.node_ids", problem, False)]


def test_a_port_for_a_node_that_the_cluster_does_not_have_is_a_warning():
    assert found([1], node_ids=["1-3"]) == [("at.node_ids", "the cluster does not have the nodes 2, 3 now", True)]


def test_nodes_are_not_compared_where_the_cluster_has_named_none():
    assert found([], node_ids=["1-3"]) == []


def test_an_advertised_name_that_is_not_known_here_is_a_warning(monkeypatch):
    async def look_up(host):
        raise OSError(None, "Name or service not known")

    monkeypatch.setattr("kafka_throttle.proxy.cli.listener_check.look_up", look_up)
    problem = "'kafka.example.com' is not known on this machine: Name or service not known"
    assert found(advertised_host="kafka.example.com") == [("at.advertised_host", problem, True)]


@pytest.fixture
def all_names_are_known(monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.cli.listener_check.look_up", lambda host: asyncio.sleep(0))


CERTIFICATE_FILE = "virtual_clusters[0].listeners[0].tls.certificate_file"


@pytest.mark.usefixtures("all_names_are_known")
def test_a_certificate_has_to_be_for_each_advertised_name(authority):
    names = {"advertised_host": "boot.kafka.test", "advertised_node_host": "b{node_id}.nodes.test", "node_ids": []}
    said = said_of_certificates([1, 2], **names, **certified(authority, "boot.kafka.test", "*.nodes.test"))
    assert said == []
    [(place, problem, is_warning)] = said_of_certificates(
        [1, 2], **names, **certified(authority, "boot.kafka.test", "b1.nodes.test")
    )
    assert (place, is_warning) == ("at.tls.certificate_file", False)
    assert problem.startswith("clients refuse the certificate for b2.nodes.test: Hostname mismatch")


def test_a_certificate_has_to_be_for_the_advertised_host_whatever_the_cluster_is(authority):
    assert said_of_certificates(**certified(authority, "127.0.0.1")) == []
    [(place, problem, is_warning)] = said_of_certificates(**certified(authority, "127.0.0.2"))
    assert (place, is_warning) == (CERTIFICATE_FILE, False)
    assert problem.startswith("clients refuse the certificate for 127.0.0.1: IP address mismatch")


def test_a_certificate_has_to_be_valid_now(authority):
    [(place, problem, is_warning)] = said_of_certificates(**certified(authority, "127.0.0.1", days=-1))
    assert (place, is_warning) == (CERTIFICATE_FILE, False)
    assert re.fullmatch(r"the certificate of CN=127.0.0.1 in /.*leaf.pem has expired, at 20.* UTC", problem)


def test_an_expired_authority_that_nobody_needs_is_no_finding_and_hides_none(authority, tmp_path):
    cross_signed = Authority(tmp_path, "old-root").certify(authority, datetime.timedelta(days=-700))

    def with_it(host):
        settings = certified(authority, host)
        with Path(settings["tls"]["certificate_file"]).open("ab") as file:
            file.write(cross_signed)
        return settings

    assert said_of_certificates(**with_it("127.0.0.1")) == []
    [(_, problem, _)] = said_of_certificates(**with_it("127.0.0.2"))
    assert problem.startswith("clients refuse the certificate for 127.0.0.1: IP address mismatch")


def test_a_certificate_that_expires_soon_is_a_warning(authority):
    [(place, problem, is_warning)] = said_of_certificates(**certified(authority, "127.0.0.1", days=0.9))
    assert (place, is_warning) == (CERTIFICATE_FILE, True)
    assert re.fullmatch(r"the certificate of CN=127.0.0.1 in /.*leaf.pem expires soon, at 20.* UTC", problem)


def test_a_listener_that_wants_certificates_of_clients_is_looked_at_too(authority):
    authority.renew(datetime.timedelta(days=100))
    wanted = {"client_auth": "required", "ca_file": str(authority.file)}
    assert said_of_certificates(**certified(authority, "127.0.0.1", **wanted)) == []
    assert len(said_of_certificates(**certified(authority, "localhost", **wanted))) == 1


def test_trusted_certificates_that_have_all_expired_are_a_problem(authority):
    authority.renew(datetime.timedelta(days=-1))
    wanted = {"client_auth": "required", "ca_file": str(authority.file)}
    [of_clients] = said_of_certificates(**certified(authority, "127.0.0.1", **wanted))
    [of_nodes] = said_of_certificates(upstream={"tls": {"ca_file": str(authority.file)}})
    assert (of_clients[0], of_nodes[0]) == (
        "virtual_clusters[0].listeners[0].tls.ca_file",
        "virtual_clusters[0].upstream.tls.ca_file",
    )
    for _, problem, is_warning in (of_clients, of_nodes):
        assert re.fullmatch(r"the certificate in /.*authority.pem has expired, at 20.* UTC", problem)
        assert not is_warning


def test_one_trusted_certificate_that_is_valid_suffices(authority):
    authority.renew(datetime.timedelta(days=100))
    with authority.file.open("ab") as file:
        file.write(authority.certify(authority, datetime.timedelta(days=-1)))
    assert said_of_certificates(upstream={"tls": {"ca_file": str(authority.file)}}) == []


# ---------------------------------------------------------------- where nodes are


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("127.0.0.1:PORT", "it is a listener of this proxy"),
        ("localhost:PORT", "it is a listener of this proxy"),
        ("192.0.2.1:9092", "it is outside of upstream.node_networks"),
    ],
)
def test_a_node_that_a_running_proxy_would_not_connect_to_is_named(tmp_path, node, problem):
    port = free_port_run(4)[0]
    host, node_port = node.replace("PORT", str(port + 1)).split(":")
    listener = Listener(responses=metadata((1, host.encode(), int(node_port))))
    with contextlib.closing(listener.server):
        upstream = {"bootstrap_servers": [listener.address], "node_networks": ["127.0.0.0/8", "::1"]}
        plain = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
        clusters = [{"name": "main", "upstream": upstream, "listeners": [plain]}]
        (tmp_path / "proxy.yaml").write_text(json.dumps({"virtual_clusters": clusters}))
        result = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "proxy.yaml"), "--connect"])
    assert result.exit_code == 2
    said = f"virtual_clusters[0].upstream: node 1 at {host}:{node_port} (as the cluster says): {problem}"
    assert said in result.stderr


@pytest.mark.parametrize(("source", "status"), [("file", 0), ("upstream", 2)])
def test_a_login_that_is_missing_is_a_problem_only_where_the_proxy_needs_it(tmp_path, source, status):
    listener = Listener(responses={3: b"", **WANTS_SASL})
    with contextlib.closing(listener.server):
        port = free_port_run(3)[0]
        plain = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
        upstream = {"bootstrap_servers": [listener.address]}
        clusters = [{"name": "main", "upstream": upstream, "listeners": [plain], "quotas": {"source": source}}]
        (tmp_path / "proxy.yaml").write_text(json.dumps({"virtual_clusters": clusters}))
        result = CliRunner().invoke(main, ["check", "-c", str(tmp_path / "proxy.yaml"), "--connect"])
    assert result.exit_code == status
    said = f"virtual_clusters[0].upstream.admin.security_protocol: {listener.address}: it requires a SASL login"
    assert (f"warning: {said}, and the proxy has none: " if status == 0 else said) in result.stderr


# -------------------------------------------------- as connections of clients


@contextlib.asynccontextmanager
async def tls_node(context):
    """The port of a node that speaks TLS and says nothing else."""

    async def serve(reader, writer):
        with contextlib.suppress(OSError):
            await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


def trusting(authority):
    return ssl.create_default_context(cafile=str(authority.file))


async def reach_at(port, context, **settings):
    upstream = {"bootstrap_servers": ["a:1"], "connect_timeout_ms": round(TIMEOUT_S * 1000), **settings}
    return await reach(HostPort("127.0.0.1", port), UpstreamConfig.model_validate(upstream), context)


async def test_a_handshake_with_a_node_shows_until_when_its_certificate_is_valid(authority):
    issued = authority.issue("127.0.0.1")
    async with tls_node(server_context(issued)) as port:
        validity = await reach_at(port, trusting(authority))
    assert validity.ends_s == issued.certificate.not_valid_after_utc.timestamp()


async def test_a_handshake_in_vain_shows_the_setting_to_look_at(authority, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    async with tls_node(server_context(authority.issue("127.0.0.1"))) as port:
        fault = await reach_at(port, trusting(other))
    assert fault.setting == "upstream.tls.ca_file"
    async with tls_node(server_context(authority.issue("127.0.0.2"))) as port:
        fault = await reach_at(port, trusting(authority))
    assert fault.setting == "upstream.tls.endpoint_identification"
    demanding = server_context(authority.issue("127.0.0.1"))
    demanding.verify_mode = ssl.CERT_REQUIRED
    demanding.load_verify_locations(authority.file)
    async with tls_node(demanding) as port:
        fault = await reach_at(port, trusting(authority))
    assert fault.setting == "upstream.tls.certificate_file"
    async with tls_node(None) as port:
        fault = await reach_at(port, trusting(authority))
    assert (fault.setting, fault.is_connected) == ("upstream.tls", True)
    nobody = await reach_at(port, trusting(authority))
    assert nobody == ClientFault("upstream", "Connection refused", is_connected=False)


async def test_a_node_is_reached_from_the_source_addresses_and_only_where_nodes_may_be():
    async with tls_node(None) as port:
        assert await reach_at(port, None) is None
        assert await reach_at(port, None, source_addresses=["127.0.0.9"]) is None
        fault = await reach_at(port, None, source_addresses=["192.0.2.1"])
        outside = await reach_at(port, None, node_networks=["10.0.0.0/8"])
    assert fault.setting == "upstream.source_addresses"
    assert fault.problem.startswith("cannot connect from 192.0.2.1: ")
    assert outside == ClientFault("upstream", "it is outside of upstream.node_networks", is_connected=False)


def check_with(tmp_path, upstream, **cluster):
    """What `check --connect` says of a cluster of one node, behind these settings of `upstream`."""
    port = free_port_run(4)[0]
    plain = {"name": "plain", "bind": "127.0.0.1", "port": port, "node_ids": [1]}
    clusters = [{"name": "main", "upstream": upstream, "listeners": [plain], **cluster}]
    (tmp_path / "proxy.yaml").write_text(json.dumps({"virtual_clusters": clusters}))
    return CliRunner().invoke(main, ["check", "-c", str(tmp_path / "proxy.yaml"), "--connect"])


@contextlib.contextmanager
def cluster_of_one_node():
    responses = {0: b""}
    listener = Listener(responses=responses)
    host, port = listener.address.split(":")
    responses.update(metadata((1, host.encode(), int(port))))
    with contextlib.closing(listener.server):
        yield listener.address


def test_what_only_clients_connections_would_meet_is_found(tmp_path):
    with cluster_of_one_node() as address:
        fine = check_with(tmp_path, {"bootstrap_servers": [address]})
        done = check_with(tmp_path, {"bootstrap_servers": [address], "source_addresses": ["192.0.2.1"]})
    assert fine.exit_code == 0
    assert done.exit_code == 2
    said = f"source_addresses: node 1 at {address} (as the cluster says): a client's connection: cannot connect"
    assert said in done.stderr


def test_a_cluster_that_does_not_demand_the_login_that_clients_have_to_make_is_found(tmp_path):
    with cluster_of_one_node() as address:
        done = check_with(tmp_path, {"bootstrap_servers": [address]}, sasl={"required": True})
    assert done.exit_code == 2
    assert "virtual_clusters[0].sasl.required: expected false, as the nodes serve the proxy without SASL" in done.stderr


@pytest.mark.parametrize(
    ("tls", "required", "protocol"),
    [(False, False, "PLAINTEXT"), (False, True, "SASL_PLAINTEXT"), (True, False, "SSL"), (True, True, "SASL_SSL")],
)
def test_check_says_which_security_protocol_clients_of_a_listener_need(authority, tmp_path, tls, required, protocol):
    plain = {"name": "l", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    listener = plain | (certified(authority, "127.0.0.1") if tls else {})
    upstream = {"bootstrap_servers": ["a:1"]}
    clusters = [{"name": "main", "upstream": upstream, "listeners": [listener], "sasl": {"required": required}}]
    (tmp_path / "proxy.yaml").write_text(json.dumps({"virtual_clusters": clusters}))
    done = check(tmp_path / "proxy.yaml")
    assert done.exit_code == 0
    assert f"  listener l: {protocol}, 127.0.0.1, ports 9092, 9093 of 127.0.0.1\n" in done.stdout


# ---------------------------------------------------------------- the command


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "proxy.yaml"
    path.write_text(
        "virtual_clusters:\n"
        "- name: main\n"
        "  upstream:\n"
        "    bootstrap_servers: ['127.0.0.1:9']\n"
        "  listeners:\n"
        "  - {name: plain, bind: 127.0.0.1, port: 9092, node_ids: [1]}\n"
        "  quotas:\n"
        "    entries:\n"
        "    - {user: alice, producer_byte_rate: 1000}\n"
    )
    return path


def check(path, *options):
    return CliRunner().invoke(main, ["check", "-c", str(path), *options])


def test_a_problem_has_its_line_and_the_status_of_check(file):
    assert check(file).exit_code == 0
    done = check(file, "--connect")
    assert (done.exit_code, done.stdout) == (2, "")
    place = "virtual_clusters[0].upstream.bootstrap_servers[0]"
    assert done.stderr.splitlines()[-1] == f"{place}: 127.0.0.1:9: Connection refused (line 4)"


def test_the_cluster_of_the_usage_records_is_looked_at_too(file, tmp_path):
    usage = f"usage:\n  directory: {tmp_path}/spool\n  kafka: {{bootstrap_servers: ['127.0.0.1:9'], topic: usage}}\n"
    file.write_text(file.read_text() + usage)
    assert check(file).exit_code == 0
    last = check(file, "--connect").stderr.splitlines()[-1]
    assert last == "usage.kafka.bootstrap_servers[0]: 127.0.0.1:9: Connection refused (line 12)"


def test_warnings_do_not_fail(file, monkeypatch):
    finding = Finding(Problem("virtual_clusters[0].listeners[0].node_ids", "is strange"), is_warning=True)
    monkeypatch.setattr("kafka_throttle.proxy.cli.main.findings_at", lambda config, path: [finding])
    done = check(file, "--connect")
    assert done.exit_code == 0
    assert done.stderr.splitlines()[-1] == "warning: virtual_clusters[0].listeners[0].node_ids: is strange (line 6)"
    assert done.stdout.startswith(f"{file} is valid and fits its clusters\n")
