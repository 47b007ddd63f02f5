"""Settings of TLS: what is wrong with them, each by itself and together."""

import copy
import datetime
import json

import pytest
from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.reload import changes_needing_restart
from kafka_throttle.proxy.config.warnings import warnings_of
from tests.proxy.config.test_config import LISTENER, MINIMAL
from tests.support.certificates import Authority


def with_tls(upstream=None, **listener):
    data = copy.deepcopy(MINIMAL)
    [cluster] = data["virtual_clusters"]
    cluster["listeners"][0] |= listener
    cluster["upstream"] |= {"tls": upstream} if upstream is not None else {}
    return data


def reported(data):
    with pytest.raises(ConfigErrors) as raised:
        config_of(data)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({}, "certificate_file: expected the path of a file"),
        ({"certificate_file": "c", "client_auth": "required"}, ": expected ca_file with client_auth"),
        ({"certificate_file": "c", "ca_file": "c"}, ": expected ca_file with client_auth"),
        ({"certificate_file": "c", "client_auth": "maybe"}, "client_auth: expected 'none', 'requested' or 'required'"),
        ({"certificate_file": "c", "min_version": "TLSv1.1"}, "min_version: expected 'TLSv1.2' or 'TLSv1.3', got"),
        ({"certificate_file": "c", "principal_mapping_rules": "RULE:a/b/"}, ": expected client_auth 'requested' or"),
        ({"certificate_file": "c", "principal_mapping_rules": "nonsense"}, "'nonsense' is neither DEFAULT nor RULE:"),
        (
            {"certificate_file": "c", "principal_mapping_rules": ","},
            ": expected a rule in principal_mapping_rules",
        ),
        ({"certificate_file": "c", "certifcate": "c"}, "certifcate: unknown key, did you mean 'certificate_file'?"),
    ],
)
def test_wrong_settings_of_tls_are_reported(tls, expected):
    problems = reported(with_tls(tls=tls))
    assert all(problem.startswith(f"{LISTENER}.tls") for problem in problems)
    assert any(expected in problem for problem in problems), problems


def test_names_of_nodes_want_tls_and_no_ports():
    problems = reported(with_tls(advertised_node_host="b{node_id}.kafka.test"))
    assert problems == [
        f"{LISTENER}.advertised_node_host: expected neither node_ids nor spare_ports beside it: "
        "every node has a name at the one port",
        f"{LISTENER}.advertised_node_host: expected tls beside it, as only its clients say which name they want, "
        "got nothing",
    ]
    problem, *_ = reported(with_tls(advertised_node_host="b.kafka.test"))
    assert problem.startswith(f"{LISTENER}.advertised_node_host: expected a host name with one {{node_id}} in it, got")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("b{node_id}.kafka.test", None),
        ("broker{node_id}", "has no dot"),
        ("kafka_{node_id}.test", "has an underscore"),
        ("b{node_id}.local_net.test", "has an underscore"),
        ("b{node_id}.kafka.test.", "ends with a dot"),
    ],
)
def test_names_for_which_java_sends_no_server_name_are_warned_about(host, why):
    reported = [line for line in named(advertised_node_host=host) if "advertised_node_host" in line]
    problem = f"{host!r} {why}: a Java client sends no server name for it, so it comes to whichever node bootstraps"
    assert reported == ([] if why is None else [f"{LISTENER}.advertised_node_host: {problem}"])


@pytest.mark.parametrize(
    ("host", "why"), [("boot.kafka.test", None), ("kafka", "has no dot"), ("127.0.0.1", "is an IP address")]
)
def test_a_name_to_bootstrap_matters_only_where_one_is_demanded(host, why):
    settings = {"advertised_host": host, "advertised_node_host": "b{node_id}.kafka.test"}
    assert not [line for line in named(**settings) if "advertised_host" in line]
    reported = [line for line in named(**settings, require_server_name=True) if "advertised_host" in line]
    problem = f"{host!r} {why}: a Java client sends no server name for it, so it is closed"
    assert reported == ([] if why is None else [f"{LISTENER}.advertised_host: {problem}"])


def test_demanding_a_name_where_nodes_have_none_is_warned_about():
    warnings = [str(warning) for warning in warnings_of(config_of(with_tls(require_server_name=True)), range(0))]
    assert f"{LISTENER}.require_server_name: is without effect without advertised_node_host" in warnings


def named(**listener):
    """What is warned about a listener whose nodes have names."""
    data = with_tls(tls={"certificate_file": "c"}, **listener)
    for setting in ("node_ids", "spare_ports"):
        data["virtual_clusters"][0]["listeners"][0].pop(setting, None)
    return [str(warning) for warning in warnings_of(config_of(data), range(0))]


def test_a_key_towards_the_nodes_wants_its_certificate():
    [problem] = reported(with_tls({"key_file": "k"}))
    assert problem == (
        "virtual_clusters[0].upstream.tls: expected certificate_file with key_file or key_password_file, got nothing"
    )


def test_plain_connections_of_the_proxys_own_are_warned_about_where_those_of_clients_speak_tls():
    warnings = [str(warning) for warning in warnings_of(config_of(with_tls({})), range(0))]
    assert any("upstream.admin.security_protocol: expected SSL or SASL_SSL" in warning for warning in warnings)


def test_certificates_of_a_listener_change_without_a_restart():
    one, another = (config_of(with_tls(tls={"certificate_file": name})) for name in "ab")
    assert changes_needing_restart(one, another) == []


def test_no_line_less_has_a_running_listener_speak_plain():
    plain, secured = config_of(MINIMAL), config_of(with_tls(tls={"certificate_file": "c"}))
    assert changes_needing_restart(secured, plain) == [f"{LISTENER}.tls: removed"]
    assert changes_needing_restart(plain, secured) == [f"{LISTENER}.tls: added"]


def test_that_the_nodes_demand_sasl_of_the_proxy_too_is_warned_about():
    data = with_tls()
    data["virtual_clusters"][0]["sasl"] = {"required": True}
    warnings = [str(warning) for warning in warnings_of(config_of(data), range(0))]
    assert any("upstream.admin.security_protocol: expected SASL_PLAINTEXT or SASL_SSL" in each for each in warnings)


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority")).issue("localhost")


def checked(tmp_path, data):
    path = tmp_path / "proxy.yaml"
    path.write_text(json.dumps(data))
    done = CliRunner().invoke(main, ["check", "-c", str(path)])
    return done.exit_code, done.stderr


def test_check_says_why_a_certificate_cannot_be_used(tmp_path, issued):
    certificate, key = str(issued.certificate_file), str(issued.key_file)
    alone, nonsense = tmp_path / "alone.pem", tmp_path / "nonsense.pem"
    alone.write_bytes(issued.certificate_file.read_bytes().partition(b"-----BEGIN PRIVATE")[0])
    nonsense.write_text("nonsense")
    for tls, setting, reason in (
        (
            {"certificate_file": str(alone)},
            "key_file",
            "holds no private key in PEM: expected one there, or in key_file",
        ),
        ({"certificate_file": key, "key_file": key}, "certificate_file", "holds no certificate in PEM"),
        ({"certificate_file": certificate, "key_file": str(nonsense)}, "key_file", "holds no private key in PEM"),
        (
            {"certificate_file": certificate, "key_file": "/nowhere"},
            "key_file",
            "/nowhere cannot be read: No such file",
        ),
    ):
        status, reported = checked(tmp_path, with_tls(tls=tls))
        assert status == 2
        assert reported.startswith(f"{LISTENER}.tls.{setting}: "), reported
        assert reason in reported


def test_check_reads_every_file_that_is_named(tmp_path):
    data = with_tls({})
    data["admin"] = {"token_file": "/no/token"}
    data["virtual_clusters"][0]["upstream"]["admin"] = {
        "security_protocol": "SASL_SSL",
        "ca_file": "/no/ca",
        "sasl_mechanism": "PLAIN",
        "username": "proxy",
        "password_file": "/no/password",
    }
    status, reported = checked(tmp_path, data)
    assert status == 2
    assert [line.partition(":")[0] for line in reported.splitlines()] == [
        "virtual_clusters[0].upstream.admin.password_file",
        "virtual_clusters[0].upstream.admin.ca_file",
        "admin.token_file",
    ]
    data["log"] = {"levle": "info"}
    assert checked(tmp_path, data) == (2, f"log.levle: unknown key, did you mean 'level'? (line 1)\n{reported}")


def test_check_reports_files_beside_other_problems_but_not_those_of_invalid_sections(tmp_path):
    data = with_tls({"ca_file": "/no/ca", "ciphers": 5}, tls={"certificate_file": "/no/own"})
    data["virtual_clusters"][0]["listeners"].append(5)
    data["virtual_clusters"] += [7, {"listeners": [{"tls": {"certificate_file": "/no/other"}}]}]
    status, reported = checked(tmp_path, data)
    assert status == 2
    read = [line.partition(":")[0] for line in reported.splitlines() if "cannot be read" in line]
    assert read == [f"{LISTENER}.tls.certificate_file", "virtual_clusters[2].listeners[0].tls.certificate_file"]
    assert "virtual_clusters[0].upstream.tls.ciphers: expected" in reported


# ---------------------------------------------- connections of the proxy's own

SECTIONS = {
    "virtual_clusters[0].upstream.admin": {"security_protocol": "SSL"},
    "virtual_clusters[0].quotas.zookeeper": {"servers": ["a:1"], "tls": True},
    "virtual_clusters[0].fleet.zookeeper": {"servers": ["a:1"], "tls": True},
    "usage.kafka": {"bootstrap_servers": ["a:1"], "topic": "usage", "security_protocol": "SSL"},
}
"""Each section with files for connections of the proxy's own."""


def with_own(tmp_path, path, **files):
    """A configuration in which one of these sections names these files."""
    data = with_tls({})
    [cluster] = data["virtual_clusters"]
    section = SECTIONS[path] | {setting: str(file) for setting, file in files.items()}
    match path.rpartition(".")[0].rpartition(".")[2], path.rpartition(".")[2]:
        case "usage", _:
            data["usage"] = {"directory": str(tmp_path / "spool"), "kafka": section}
        case "quotas", _:
            cluster["quotas"] = {"source": "zookeeper", "zookeeper": section}
        case "fleet", _:
            cluster["fleet"] = {"zookeeper": section}
        case _:
            cluster["upstream"]["admin"] = section
    return data


@pytest.mark.parametrize("path", SECTIONS)
def test_check_tries_the_files_of_each_connection_of_the_proxys_own(tmp_path, path):
    authority = Authority(tmp_path)
    one, other = authority.issue("proxy", name="one"), authority.issue("proxy", name="other")
    old = authority.issue("proxy", name="old", valid=datetime.timedelta(days=-1))
    (tmp_path / "junk").write_text("junk")
    good = {"ca_file": authority.file, "certificate_file": one.certificate_file, "key_file": one.key_file}
    assert checked(tmp_path, with_own(tmp_path, path, **good))[0] == 0
    for files, setting, problem in (
        ({"ca_file": "junk"}, "ca_file", "no certificate or crl found"),
        ({"key_file": other.key_file}, "certificate_file", "the key does not belong to the certificate"),
        (
            {"certificate_file": old.certificate_file, "key_file": old.key_file},
            "certificate_file",
            "the certificate of CN=proxy in ",
        ),
    ):
        status, reported = checked(tmp_path, with_own(tmp_path, path, **(good | files)))
        assert status == 2
        [line] = [line for line in reported.splitlines() if not line.startswith("warning: ")]
        assert line.startswith(f"{path}.{setting}: ")
        assert problem in line
