"""Tokens, passwords and hosts of the HTTP listeners, from the configuration and the files that it names."""

import pytest

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.reload import changes_needing_restart
from kafka_throttle.proxy.config.settings import AdminConfig, MetricsConfig
from kafka_throttle.proxy.observe.http_access import Access, Account, Right
from kafka_throttle.proxy.observe.http_secrets import admin_access, metrics_access
from tests.proxy.config.test_config import MINIMAL

TOKEN, OTHER = "a-token-of-24-characters", "another-token-to-write-with"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "read").write_text(f"{TOKEN}\n")
    (tmp_path / "write").write_text(OTHER)
    (tmp_path / "password").write_text("pass word\n")
    return tmp_path


def admin(folder, **settings):
    return admin_access(AdminConfig(**settings), folder / "proxy.yaml")


def test_tokens_are_read_from_beside_the_configuration(folder):
    reader, writer = Account(Right.READ, TOKEN), Account(Right.WRITE, OTHER)
    assert admin(folder, token_file="read") == Access((reader,), None)
    assert admin(folder, token_file="read", write_token_file="write") == Access((reader, writer), None)


def test_without_a_token_to_read_only_this_machine_may_ask(folder):
    assert admin(folder) == Access((), frozenset())
    assert admin(folder, write_token_file="write") == Access((Account(Right.WRITE, OTHER),), frozenset())


def test_with_a_token_hosts_and_the_own_address_are_known(folder):
    access = admin(folder, token_file="read", bind="10.0.0.1", hosts=["Proxy.Example"])
    assert access.hosts == {"proxy.example", "10.0.0.1"}


def test_two_rights_have_two_tokens(folder):
    (folder / "write").write_text(TOKEN)
    with pytest.raises(ConfigErrors) as caught:
        admin(folder, token_file="read", write_token_file="write")
    problem = "expected another token than that of token_file, got the same"
    assert str(caught.value) == f"admin.write_token_file: {problem}"


@pytest.mark.parametrize("setting", ["token_file", "write_token_file"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "expected a file that can be read, got {}: No such file or directory"),
        (b"", "expected a token of at least 16 characters without spaces in {}, got 0 characters"),
        (b"short", "expected a token of at least 16 characters without spaces in {}, got 5 characters"),
        (b"with spaces in it, and long", "expected a token of at least 16 characters without spaces in {}, got 27 "),
        (b"\xff" * 20, "expected a token of ASCII characters in {}, got others"),
    ],
)
def test_an_invalid_token_is_reported_with_its_setting(tmp_path, content, problem, setting):
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigErrors) as caught:
        admin(tmp_path, **{setting: "token"})
    assert str(caught.value).startswith(f"admin.{setting}: " + problem.format(tmp_path / "token"))


def test_metrics_have_a_user_with_a_password(folder):
    settings = {"username": "prometheus", "password_file": str(folder / "password")}
    account = Account(Right.READ, "pass word", "prometheus")
    assert metrics_access(MetricsConfig(**settings)) == Access((account,), None)
    with pytest.raises(ConfigErrors, match=r"metrics\.password_file: /nothing cannot be read"):
        metrics_access(MetricsConfig(username="a", password_file="/nothing"))


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        ({}, {"127.0.0.1"}),
        ({"hosts": ["metrics.example"]}, {"127.0.0.1", "metrics.example"}),
        ({"bind": "0.0.0.0"}, None),
        ({"bind": "0.0.0.0", "hosts": ["metrics.example"]}, {"0.0.0.0", "metrics.example"}),
    ],
)
def test_metrics_without_a_password_are_for_hosts_that_are_known_where_others_cannot_come(settings, hosts):
    assert metrics_access(MetricsConfig(**settings)).hosts == hosts


@pytest.mark.parametrize(
    ("section", "settings", "problem"),
    [
        ("admin", {"hosts": ["a"]}, "admin: expected token_file with hosts: without a token only this machine may ask"),
        ("admin", {"hosts": ["a:1"], "token_file": "t"}, "admin.hosts[0]: expected a host name or an IP address"),
        ("admin", {"tls": {}}, "admin.tls.certificate_file: expected the path of a file"),
        ("admin", {"tls": {"certificate_file": "c", "client_auth": "none"}}, "admin.tls.client_auth: unknown key"),
        ("metrics", {"username": "a:b", "password_file": "p"}, "metrics.username: expected a name without colons"),
        ("metrics", {"password_file": "p"}, "metrics: expected username and password_file together"),
    ],
)
def test_wrong_settings_of_http_listeners_are_reported(section, settings, problem):
    with pytest.raises(ConfigErrors) as caught:
        config_of(MINIMAL | {section: settings})
    assert any(str(each).startswith(problem) for each in caught.value.problems), str(caught.value)


@pytest.mark.parametrize("section", ["admin", "metrics"])
def test_no_line_less_has_an_http_listener_speak_plain(section):
    one, another = (config_of(MINIMAL | {section: {"tls": {"certificate_file": name}}}) for name in "ab")
    assert changes_needing_restart(one, another) == []
    assert changes_needing_restart(one, config_of(MINIMAL)) == [f"{section}.tls: removed"]
    assert changes_needing_restart(config_of(MINIMAL), one) == [f"{section}.tls: added"]
