"""`kafka-throttle init` among simulated nodes; with a real cluster: tests/integration/test_init.py."""

import json
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.warnings import ephemeral_ports, warnings_of
from tests.quotas.sources.test_cluster_faults import TAKES_PLAIN, WANTS_SASL, Listener
from tests.quotas.sources.test_cluster_nodes import metadata
from tests.support.places import ROOT


def init(path, servers, *arguments):
    return CliRunner().invoke(main, ["init", "--bootstrap", servers, "--out", str(path), *map(str, arguments)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "proxy.yaml"


@pytest.fixture
def start_node():
    """Starts a node that names others, by (id, host, port)."""
    nodes = []

    def start(*named, **settings):
        nodes.append(Listener(responses={**metadata(*named), **settings.pop("responses", {})}, **settings))
        return nodes[-1].address

    yield start
    for node in nodes:
        node.server.close()


def only(config):
    [cluster] = config.virtual_clusters
    [listener] = cluster.listeners
    return cluster, listener


def test_each_node_gets_a_port_of_its_own_and_there_are_some_for_those_that_come_later(path, start_node):
    server = start_node((1, b"a", 9092), (2, b"b", 9092), (3, b"c", 9092), (1001, b"d", 9092))
    result = init(path, server, "--advertised-host", "kafka.example.com", "--port", 21092)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"{path} is written: {server}, its nodes are 1-3, 1001; clients bootstrap at kafka.example.com:21092\n"
        f"next: kafka-throttle check -c {path} --connect\n"
    )
    cluster, listener = only(load_config(path))
    named = ["a:9092", "b:9092", "c:9092", "d:9092"]
    assert [str(each) for each in cluster.upstream.bootstrap_servers] == [server, *named]
    assert listener.ports() == {1: 21093, 2: 21094, 3: 21095, 1001: 21096}
    assert listener.spares() == list(range(21097, 21106))
    assert "# The nodes that the cluster has: 1 at port 21093, 2 at port 21094," in path.read_text()


def test_nothing_in_it_is_worth_a_warning(path, start_node):
    init(path, start_node((1, b"a", 9092)))
    assert warnings_of(load_config(path), ephemeral_ports()) == []
    checked = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert (checked.exit_code, checked.stderr) == (0, "")


def test_ports_are_free_ones(path, start_node):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        server = start_node((1, b"a", 9092))
        init(path, server)
        config = load_config(path)
        _, listener = only(config)
        ports = [listener.port, *listener.ports().values(), *listener.spares(), config.metrics.port, config.admin.port]
        assert taken.getsockname()[1] not in ports
        for port in ports:
            with socket.create_server((listener.bind, port)):
                pass


def test_the_host_is_the_address_towards_the_cluster(path, start_node):
    init(path, start_node((1, b"a", 9092)))
    _, listener = only(load_config(path))
    assert (listener.advertised_host, listener.bind) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("proxy.example", "0.0.0.0"),
        ("10.0.0.1", "0.0.0.0"),
        ("2001:db8::1", "::"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"),
    ],
)
def test_all_addresses_are_bound_unless_clients_elsewhere_cannot_reach_the_host(path, host, bind):
    assert init(path, "[::1]:9", "--offline", "--advertised-host", host).exit_code == 0
    _, listener = only(load_config(path))
    assert (listener.advertised_host, listener.bind) == (host, bind)


def test_offline_nodes_get_ports_as_they_appear(path):
    result = init(path, "nowhere.invalid:9092", "--offline")
    assert result.exit_code == 0
    assert "its nodes were not asked for" in result.stdout
    cluster, listener = only(load_config(path))
    assert str(*cluster.upstream.bootstrap_servers) == "nowhere.invalid:9092"
    assert (listener.ports(), len(listener.spares())) == ({}, 9)
    assert warnings_of(load_config(path), ephemeral_ports()) == []


def test_a_cluster_that_cannot_be_reached_is_said_and_nothing_is_written(path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"127.0.0.1:{closed.getsockname()[1]}"
    result = init(path, f"{server},nowhere.invalid:9092")
    assert result.exit_code == 1
    refused, unknown, nothing = result.stderr.splitlines()
    assert refused == f"{server}: Connection refused (look at --bootstrap)"
    assert unknown.startswith("nowhere.invalid:9092: ")
    assert nothing == "nothing is written (--offline writes a configuration without asking the cluster)"
    assert not path.exists()


def test_one_server_that_names_the_nodes_is_enough(path, start_node):
    result = init(path, f"{start_node((5, b'a', 9092))},nowhere.invalid:9092")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: nowhere.invalid:9092: ")
    assert only(load_config(path))[1].node_ids == (range(5, 6),)


def test_nodes_that_want_a_login_are_said_to_want_one(path, start_node):
    result = init(path, start_node(responses={3: b"", **WANTS_SASL}))
    assert (result.exit_code, path.exists()) == (1, False)
    assert "it requires a SASL login" in result.stderr
    assert "(look at --security-protocol)" in result.stderr


def test_a_login_stands_in_the_file_and_its_password_does_not(path, tmp_path, start_node):
    (tmp_path / "password").write_text("opensesame")
    login = ["--sasl-mechanism", "PLAIN", "--username", "proxy", "--password-file", tmp_path / "password"]
    server = start_node((1, b"a", 9092), responses={17: TAKES_PLAIN, 36: b"\0\0\xff\xff\0\0\0\0"})
    result = init(path, server, "--security-protocol", "SASL_PLAINTEXT", *login)
    assert (result.exit_code, result.stderr) == (0, "")
    admin = only(load_config(path))[0].upstream.admin
    assert (admin.security_protocol, admin.username) == ("SASL_PLAINTEXT", "proxy")
    assert admin.password_file == str(tmp_path / "password")
    assert "opensesame" not in path.read_text() + result.output


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--token-file", "token"], {"token_file": "token"}),
        (
            ["--token-endpoint", "https://id/token", "--client-id", "me", "--client-secret-file", "s", "--scope", "k"],
            {"token_endpoint": {"url": "https://id/token", "client_id": "me", "client_secret_file": "s", "scope": "k"}},
        ),
    ],
)
def test_a_login_with_a_token_stands_in_the_file(path, tmp_path, monkeypatch, options, settings):
    monkeypatch.chdir(tmp_path)
    sasl = ["--security-protocol", "SASL_PLAINTEXT", "--sasl-mechanism", "OAUTHBEARER"]
    assert init(path, "a:9092", "--offline", *sasl, *options).exit_code == 0
    found = only(load_config(path))[0].upstream.admin.model_dump(exclude_defaults=True)
    assert found == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        **json.loads(json.dumps(settings).replace('"token"', f'"{tmp_path}/token"').replace('"s"', f'"{tmp_path}/s"')),
    }


def test_where_the_nodes_speak_tls_connections_of_clients_do_too(path, tmp_path):
    result = init(path, "a:9093", "--offline", "--security-protocol", "SSL", "--ca-file", tmp_path / "ca.pem")
    assert result.exit_code == 0
    upstream = only(load_config(path))[0].upstream
    assert (upstream.admin.ca_file, upstream.tls.ca_file) == (str(tmp_path / "ca.pem"),) * 2
    assert warnings_of(load_config(path), ephemeral_ports()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--username", "proxy"],
            "upstream.admin: expected security_protocol SASL_PLAINTEXT or SASL_SSL with a login, got PLAINTEXT",
        ),
        (["--client-id", "me"], "upstream.admin.token_endpoint.url: "),
        (["--advertised-host", "not a host"], "advertised_host: expected a host name or IP address"),
        (["--port", 65530], "spare_ports"),
        (["--password-file", "no-such-file", "--username", "me", "--sasl-mechanism", "PLAIN"], "upstream.admin: "),
    ],
)
def test_arguments_that_make_no_configuration_are_refused(path, start_node, arguments, problem):
    result = init(path, start_node((1, b"a", 9092)), *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not path.exists()


def test_a_server_without_a_port_is_refused(path):
    result = init(path, "kafka-1")
    assert (result.exit_code, path.exists()) == (2, False)
    assert "--bootstrap: expected HOST:PORT" in result.stderr


def test_a_file_that_is_there_stays_as_it_is(path):
    path.write_text("mine")
    result = init(path, "127.0.0.1:9", "--offline")
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert result.stderr == f"--out: expected a file that does not exist, got {path}\n"


def test_a_folder_that_is_not_there_is_said(tmp_path):
    result = init(tmp_path / "none" / "proxy.yaml", "127.0.0.1:9", "--offline")
    assert result.exit_code == 2
    assert "cannot be written: No such file or directory" in result.stderr


def test_on_a_full_disk_nothing_is_left(path):
    program = f"""if True:
        import resource, signal
        from kafka_throttle.proxy.cli.main import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        main(["init", "--offline", "--bootstrap", "a:1", "--out", {str(path)!r}])
    """
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"--out: {path} cannot be written: File too large\n")
    assert not path.exists()


def test_a_state_file_that_is_a_folder_is_no_reason_to_stop(path):
    result = init(path, "127.0.0.1:9", "--offline", "--state-file", "/")
    assert (result.exit_code, result.stderr) == (0, "")
    assert load_config(path).history.directory == "/history"
