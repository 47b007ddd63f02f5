"""Settings of TLS: what is wrong with them, each by itself and together."""

import copy

import pytest

from proxy.config.load import config_of
from proxy.config.problems import ConfigErrors
from proxy.config.reload import changes_needing_restart
from proxy.config.warnings import warnings_of
from tests.proxy.test_config import LISTENER, MINIMAL


def with_tls(upstream=None, **listener):
    data = copy.deepcopy(MINIMAL)
    [cluster] = data["virtual_clusters"]
    cluster["listeners"][0] |= listener
    cluster["upstream"] |= {"tls": upstream} if upstream is not None else {}
    return data


def told(data):
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
def test_what_is_wrong_with_tls_is_told(tls, expected):
    problems = told(with_tls(tls=tls))
    assert all(problem.startswith(f"{LISTENER}.tls") for problem in problems)
    assert any(expected in problem for problem in problems), problems


def test_names_of_nodes_want_tls_and_no_ports():
    problems = told(with_tls(advertised_node_host="b{node_id}.kafka.test"))
    assert problems == [
        f"{LISTENER}.advertised_node_host: expected neither node_ids nor spare_ports beside it: "
        "every node has a name at the one port",
        f"{LISTENER}.advertised_node_host: expected tls beside it, as only its clients say which name they want, "
        "got nothing",
    ]
    problem, *_ = told(with_tls(advertised_node_host="b.kafka.test"))
    assert problem.startswith(f"{LISTENER}.advertised_node_host: expected a host name with one {{node_id}} in it, got")


def test_a_key_towards_the_nodes_wants_its_certificate():
    [problem] = told(with_tls({"key_file": "k"}))
    assert problem == (
        "virtual_clusters[0].upstream.tls: expected certificate_file with key_file or key_password_file, got nothing"
    )


def test_plain_connections_of_the_proxys_own_are_warned_about_where_those_of_clients_speak_tls():
    warnings = [str(warning) for warning in warnings_of(config_of(with_tls({})), range(0))]
    assert any("upstream.admin.security_protocol: expected SSL or SASL_SSL" in warning for warning in warnings)


def test_certificates_of_a_listener_change_without_a_restart():
    plain, secured = config_of(MINIMAL), config_of(with_tls(tls={"certificate_file": "c"}))
    assert changes_needing_restart(plain, secured) == []
