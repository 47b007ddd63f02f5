"""`kafka-throttle quotas`: what it shows, changes and refuses, and with which exit status."""

import json
import re

import pytest
from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.installed import build_in_use
from kafka_throttle.quotas.changes import Limit, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.source import SourceState
from tests.support.places import ROOT

CLUSTER = """
  - name: {name}
    upstream: {{bootstrap_servers: ["127.0.0.1:9"]}}
    listeners: [{{name: plain, bind: 127.0.0.1, port: {port}, node_ids: ["0-2"]}}]
    quotas:
      state_file: state-{name}.json
      entries:
      - {{user: alice, producer_byte_rate: 1000, shadow_consumer_byte_rate: 9}}
      - {{client_id: etl, consumer_byte_rate: 50}}
"""
NO_PROXY = "admin: {port: 9}\n"
"""A proxy with the default port may run on this machine, and would be asked."""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "proxy.yaml"
    path.write_text("virtual_clusters:" + CLUSTER.format(name="main", port=19092) + NO_PROXY)
    return path


def quotas(path, command, *arguments):
    """The exit status, standard output, and standard error without the line that no proxy answers."""
    done = CliRunner().invoke(main, ["quotas", command, "-c", str(path), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    no_proxy = ("no proxy answers at ", "saved; no proxy answered at ")
    errors = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith(no_proxy)]
    return done.exit_code, done.stdout, "".join(errors)


def test_quotas_are_shown_with_their_layers(path):
    assert quotas(path, "describe") == (
        0,
        "virtual cluster main, source file: 2 entities\n"
        "client-id=etl\n"
        "  consumer_byte_rate  50  proxy.yaml\n"
        "user=alice\n"
        "  producer_byte_rate         1000  proxy.yaml\n"
        "  shadow_consumer_byte_rate     9  proxy.yaml\n",
        "",
    )


def test_limits_are_shown_as_they_are_written(path):
    out = quotas(path, "set", "--user", "bob", "request_percentage=0.2", f"producer_byte_rate={2**63 - 1}")[1]
    assert [line.split()[:-1] for line in out.splitlines()[1:]] == [
        ["producer_byte_rate", "no", "limit"],
        ["request_percentage", "0.2"],
    ]


def test_a_quota_that_is_set_stands_over_the_file_until_it_is_unset(path):
    status, out, err = quotas(path, "set", "--user", "alice", "producer_byte_rate=5", "request_percentage=12.5")
    assert (status, err) == (0, "")
    assert out == (
        "user=alice\n"
        "  producer_byte_rate            5  state-main.json\n"
        "  request_percentage         12.5  state-main.json\n"
        "  shadow_consumer_byte_rate     9  proxy.yaml\n"
    )
    status, out, err = quotas(path, "unset", "--user", "alice", "producer_byte_rate", "request_percentage")
    assert (status, err) == (0, "")
    assert "producer_byte_rate         1000  proxy.yaml" in out
    assert "request_percentage" not in out


def test_a_scope_is_set_shown_kept_and_unset(path):
    shown = "  scope                      cluster  all nodes share each byte rate and request percentage\n"
    status, out, err = quotas(path, "set", "--user", "alice", "--scope", "cluster")
    assert (status, err) == (0, "")
    assert out == (
        "user=alice\n"
        "  producer_byte_rate            1000  proxy.yaml\n"
        "  shadow_consumer_byte_rate        9  proxy.yaml\n" + shown
    )
    assert shown in quotas(path, "set", "--user", "alice", "producer_byte_rate=5")[1]
    assert shown in quotas(path, "describe", "--user", "alice")[1]
    form = json.loads(quotas(path, "describe", "--user", "alice", "--json")[1])["virtual_clusters"][0]
    assert {limit["scope"] for limit in form["quotas"][0]["limits"].values()} == {"cluster"}
    status, out, err = quotas(path, "unset", "--user", "alice", "scope", "producer_byte_rate")
    assert (status, "scope" in out, err) == (0, False, "")


def test_a_scope_needs_a_quota_that_has_one(path):
    status, out, err = quotas(path, "set", "--user", "bob", "--scope", "cluster", "controller_mutation_rate=5")
    assert (status, out) == (1, "")
    assert err.startswith("scope of user=bob: expected producer_byte_rate or consumer_byte_rate")
    assert quotas(path, "set", "--user", "bob")[::2] == (2, "expected KEY=VALUE or --scope, got nothing\n")


def test_the_scope_in_the_operators_file_is_not_unset(path):
    path.write_text(path.read_text().replace("{user: alice, ", "{user: alice, scope: cluster, "))
    status, _, err = quotas(path, "unset", "--user", "alice", "scope")
    assert (status, err) == (1, "scope of user=alice: set in proxy.yaml itself, remove it there\n")


def test_shadow_quotas_and_every_kind_of_entity_can_be_set(path):
    for entity in (
        ["--default-user"],
        ["--default-client-id"],
        ["--user", "bob", "--client-id", "web"],
        ["--user", "bob", "--default-client-id"],
    ):
        assert quotas(path, "set", *entity, "shadow_producer_byte_rate=7")[0] == 0
    for entity in (["--ip", "10.0.0.1"], ["--default-ip"]):
        assert quotas(path, "set", *entity, "connection_creation_rate=0")[0] == 0
    _, out, _ = quotas(path, "describe", "--json")
    [cluster] = json.loads(out)["virtual_clusters"]
    reported = [(entry["entity"], entry["limits"]) for entry in cluster["quotas"]]
    shadow = {"shadow_producer_byte_rate": {"limit": 7, "layer": "state-main.json", "scope": "node"}}
    ban = {"connection_creation_rate": {"limit": 0, "layer": "state-main.json", "scope": "cluster"}}
    for expected in [
        ({"user": None}, shadow),
        ({"client-id": None}, shadow),
        ({"user": "bob", "client-id": "web"}, shadow),
        ({"user": "bob", "client-id": None}, shadow),
        ({"ip": "10.0.0.1"}, ban),
        ({"ip": None}, ban),
    ]:
        assert expected in reported


def test_what_a_change_overrides_is_shown_and_warned_about(path):
    quotas(path, "set", "--user", "alice", "producer_byte_rate=5", "shadow_consumer_byte_rate=9")
    state = path.with_name("state-main.json")
    overlay = json.loads(state.read_text())
    removed = {"entity": {"client-id": "etl"}, "limits": {"consumer_byte_rate": {"limit": None, "over": 50}}}
    state.write_text(json.dumps({**overlay, "overlay": [*overlay["overlay"], removed]}))
    assert quotas(path, "describe") == (
        0,
        "virtual cluster main, source file: 1 entity\n"
        "client-id=etl\n"
        "  no quotas\n"
        "  overridden: consumer_byte_rate 50 of proxy.yaml, by state-main.json: removed\n"
        "user=alice\n"
        "  producer_byte_rate         5  state-main.json\n"
        "  shadow_consumer_byte_rate  9  state-main.json\n"
        "  overridden: producer_byte_rate 1000 of proxy.yaml, by state-main.json: 5\n",
        "",
    )
    assert "overridden" not in quotas(path, "describe", "--user", "bob")[1]
    [form] = json.loads(quotas(path, "describe", "--client-id", "etl", "--json")[1])["virtual_clusters"]
    by = {"limit": None, "layer": "state-main.json"}
    of_file = {"quota": "consumer_byte_rate", "limit": 50.0, "layer": "proxy.yaml"}
    assert form["overridden"] == [{"entity": {"client-id": "etl"}, **of_file, "by": by}]
    done = CliRunner().invoke(main, ["check", "-c", str(path)])
    entries = "virtual_clusters[0].quotas.entries"
    again = "`kafka-throttle quotas unset` puts it in force again"
    warnings = [line for line in done.stderr.splitlines() if "overridden" in line]
    assert (done.exit_code, warnings) == (
        0,
        [
            f"warning: {entries}[0].producer_byte_rate: is overridden in state-main.json: 5; {again} (line 8)",
            f"warning: {entries}[1].consumer_byte_rate: is overridden in state-main.json: removed; {again} (line 9)",
        ],
    )


def test_only_those_with_the_parts_given_are_shown(path):
    quotas(path, "set", "--user", "alice", "--client-id", "web", "producer_byte_rate=7")
    entities = [line for line in quotas(path, "describe", "--user", "alice")[1].splitlines() if line[0] == "u"]
    assert entities == ["user=alice", "user=alice, client-id=web"]
    assert quotas(path, "describe", "--default-user")[1] == "virtual cluster main, source file: no entities\n"
    assert quotas(path, "describe", "--client-id", "etl")[1].startswith(
        "virtual cluster main, source file: 1 entity\nc"
    )


def test_what_the_operators_file_says_itself_is_not_unset(path):
    status, _, err = quotas(path, "unset", "--user", "alice", "producer_byte_rate", "request_percentage")
    assert (status, err) == (
        1,
        "producer_byte_rate of user=alice: set in proxy.yaml itself, remove it there\n",
    )


def test_a_quota_that_will_bind_nobody_is_warned_about(path):
    quotas(path, "set", "--default-user", "consumer_byte_rate=5")
    status, _, err = quotas(path, "set", "--client-id", "etl", "consumer_byte_rate=5")
    assert (status, err) == (0, "warning: consumer_byte_rate: binds nobody, as user=<default> always comes before\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["producer_byte_rate=1"],
            "expected an entity (--user, --client-id, --ip, or the default of one), got nothing",
        ),
        (
            ["--user", "a", "producer_byte_rat=1"],
            "'producer_byte_rat': unknown quota, did you mean 'producer_byte_rate'?",
        ),
        (
            ["--user", "a", "x=1"],
            "'x': unknown quota, expected producer_byte_rate, consumer_byte_rate, request_percent",
        ),
        (["--user", "a", "producer_byte_rate"], "expected KEY=VALUE, got 'producer_byte_rate'"),
        (["--user", "a", "producer_byte_rate=much"], "producer_byte_rate: expected a number, got 'much'"),
        (["--user", "a", "producer_byte_rate=1_0"], "producer_byte_rate: expected a number, got '1_0'"),
        (["--user", "a", "request_percentage=nan"], "request_percentage: expected a number, got 'nan'"),
        (["--user", "a", "producer_byte_rate="], "producer_byte_rate: expected a number, got ''"),
        (
            ["--user", "a", "producer_byte_rate=0"],
            "producer_byte_rate of user=a: expected a whole number from 1 to 2^63-1, got 0.0",
        ),
        (
            ["--user", "a", "producer_byte_rate=1", "producer_byte_rate=2"],
            "producer_byte_rate: expected once, got it again",
        ),
        (["--user", "\udcff", "producer_byte_rate=1"], "--user: expected UTF-8, got '\\udcff'"),
        (["--user", "a", "--default-user", "x=1"], "expected either --user or --default-user, got both"),
        (
            ["--user", "a", "--ip", "1.1.1.1", "x=1"],
            "expected an ip by itself, got it together with a user or a client-id",
        ),
        (["--user", "", "x=1"], "expected a user or its default, got an empty name"),
        (
            ["--ip", "1.1.1.1", "producer_byte_rate=1"],
            "producer_byte_rate of ip=1.1.1.1: expected connection_creation_rate, the only quota of an address, "
            "got producer_byte_rate",
        ),
        (
            ["--virtual-cluster", "x", "--user", "a", "producer_byte_rate=1"],
            "--virtual-cluster: expected main, got 'x'",
        ),
    ],
)
def test_bad_input_is_reported_and_ends_with_2_before_anything_is_written(path, arguments, problem):
    status, out, err = quotas(path, "set", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(problem)
    assert not path.with_name("state-main.json").exists()


def test_without_an_argument_the_usage_is_printed(path):
    assert quotas(path, "set", "--user", "a")[0] == 2
    assert quotas(path, "unset", "--user", "a")[0] == 2


def test_a_source_that_takes_no_changes_ends_with_1(path):
    path.write_text(path.read_text().replace("state_file: state-main.json", ""))
    problem = "expected a file to keep changes in, got nothing; setting it needs a restart (docs/reference/quotas.md)"
    expected = (1, "", f"virtual_clusters[].quotas.state_file of proxy.yaml: {problem}\n")
    assert quotas(path, "set", "--user", "a", "producer_byte_rate=1") == expected
    assert quotas(path, "unset", "--user", "a", "producer_byte_rate") == expected


def test_quotas_can_be_changed_with_the_smallest_configuration_of_the_readme(path):
    readme = (ROOT / "README.md").read_text()
    [configuration] = re.findall(r"^```yaml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    [command] = re.findall(r"^kafka-throttle quotas set -c proxy.yaml (.*)$", readme, re.MULTILINE)
    path.write_text(configuration + NO_PROXY)
    status, out, err = quotas(path, "set", *command.split())
    assert (status, err) == (0, "")
    assert out == "client-id=etl\n  producer_byte_rate  2097152  quotas.json\n"


def test_a_state_file_that_cannot_be_read_is_warned_about_and_ends_with_1(path):
    path.with_name("state-main.json").write_text("{")
    status, out, err = quotas(path, "describe")
    assert status == 1
    assert "user=alice" in out
    assert err.startswith(f"warning: {path.with_name('state-main.json')}: expected JSON in UTF-8")


def test_one_of_several_virtual_clusters_has_to_be_named_for_a_change(path):
    path.write_text(
        "virtual_clusters:"
        + CLUSTER.format(name="main", port=19092)
        + CLUSTER.format(name="other", port=19192)
        + NO_PROXY
    )
    assert quotas(path, "set", "--user", "a", "producer_byte_rate=1") == (
        2,
        "",
        "--virtual-cluster: expected main or other, got nothing\n",
    )
    assert quotas(path, "set", "--virtual-cluster", "other", "--user", "a", "producer_byte_rate=1")[0] == 0
    assert quotas(path, "describe")[1].count("virtual cluster ") == 2
    assert "user=a\n" in quotas(path, "describe", "--virtual-cluster", "other")[1]
    assert "user=a\n" not in quotas(path, "describe", "--virtual-cluster", "main")[1]


class AwaySource:
    """A source that is not to be had."""

    name = "zookeeper"

    def __init__(self):
        self.problems = {"zookeeper": "10.0.0.1:2181: no session"}
        self.state = SourceState(known=False, up=False, age_s=None)
        self.quotas = {Entity("a\nb"): {QuotaKey(QuotaType.PRODUCE): Limit(1.0, "/config/users/a%0Ab")}}

    def start(self, changed):
        pass

    def stop(self):
        pass

    def alter(self, alterations):
        return [SourceUnavailable("10.0.0.1:2181: no session") for _ in alterations]


def test_a_source_that_is_away_ends_with_1(path, monkeypatch):
    monkeypatch.setattr(
        "kafka_throttle.proxy.server.quota_sources.source_of", lambda config, path, remembers: AwaySource()
    )
    status, out, err = quotas(path, "describe")
    assert (status, err) == (1, "warning: zookeeper: 10.0.0.1:2181: no session\n")
    assert r"user='a\nb'" in out
    [form] = json.loads(quotas(path, "describe", "--json")[1])["virtual_clusters"]
    assert form["known"] is False
    assert quotas(path, "set", "--user", "a", "producer_byte_rate=1") == (1, "", "10.0.0.1:2181: no session\n")
    assert quotas(path, "unset", "--user", "a", "producer_byte_rate") == (1, "", "10.0.0.1:2181: no session\n")


def test_a_bad_configuration_ends_with_2(tmp_path):
    (tmp_path / "proxy.yaml").write_text("virtual_clusters: 1")
    status, _, err = quotas(tmp_path / "proxy.yaml", "describe")
    assert (status, err) == (2, "virtual_clusters: expected a list, got 1 (line 1)\n")


def test_the_version_is_printed():
    done = CliRunner().invoke(main, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("kafka-throttle, version ")
    assert done.output.endswith(f", {build_in_use()}\n")


def test_the_commands_are_documented():
    help_text = CliRunner().invoke(main, ["quotas", "--help"]).output
    for quota_type in ("producer_byte_rate", "shadow_producer_byte_rate", "describe", "set", "unset"):
        assert quota_type in help_text
