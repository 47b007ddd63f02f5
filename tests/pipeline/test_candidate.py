"""A candidate file is read as the proxy reads its own, and every mistake is told with its place."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.yaml_file import parse_yaml
from kafka_throttle.pipeline.simulate.candidate import candidate_of, load_candidate
from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.settings import quota_entries
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.overlay import Change, Changed, format_overlay

ENTRIES = """
entries:
  - {user: alice, producer_byte_rate: 1000, shadow_consumer_byte_rate: 5}
  - {default_user: true, client_id: etl, request_percentage: 12.5}
windows: {quota_window_num: 5}
throttle: {max_throttle_ms: 7000}
"""


def parse_candidate(text):
    return candidate_of(parse_yaml(text, "a.yaml"))


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(Problems) as raised:
        parse_candidate(text)
    return {problem.path: problem.problem for problem in raised.value.problems}


def test_entries_by_themselves_are_for_all_virtual_clusters():
    rules = parse_candidate(ENTRIES).rules("any")
    assert rules is not None
    assert dict(rules.table) == {
        Entity(user="alice"): {QuotaType.PRODUCE: 1000.0},
        Entity(user=DEFAULT, client_id="etl"): {QuotaType.REQUEST: 12.5},
    }
    assert (rules.samples, rules.window_ms, rules.max_throttle_ms, rules.max_debt_ms) == (5, 1000, 7000, 60_000)


def test_a_whole_proxy_file_tells_each_virtual_cluster():
    candidate = load_candidate(Path("deploy/proxy.example.yaml"))
    rules = candidate.rules("main")
    assert rules is not None
    assert rules.table[Entity(user=DEFAULT)][QuotaType.FETCH] == 10_000_000
    assert candidate.rules("another") is None


def test_a_state_file_is_a_candidate_too(tmp_path):
    path = tmp_path / "state.json"
    key = QuotaKey(QuotaType.PRODUCE)
    overlay = {Entity(user="a"): Changed({key: Change(7.0, None)}), Entity(user="b"): Changed({key: Change(None, 5.0)})}
    path.write_bytes(format_overlay(overlay))
    rules = load_candidate(path).rules("main")
    assert rules is not None
    assert dict(rules.table) == {Entity(user="a"): {QuotaType.PRODUCE: 7.0}}


def test_every_mistake_is_told_with_its_place():
    problems = problems_of(
        """
        quotas:
          entries:
            - {user: a, producer_byte_rate: 0}
            - {user: a, producr_byte_rate: 3}
            - {user: 7, default_client_id: yes please, producer_byte_rate: 1}
            - {user: b, ip: 10.0.0.1, producer_byte_rate: 1}
            - {user: c, connection_creation_rate: 1}
            - {user: d, producer_byte_rate: 1}
            - {user: d, consumer_byte_rate: 1}
            - {user: e}
            - nonsense
          windows: {quota_window_num: 0, quota_window: 3}
        throttle: {max_throttle_ms: "long"}
        listeners: []
        """
    )
    assert sorted(problems) == [
        "listeners",
        "quotas.entries[0].producer_byte_rate",
        "quotas.entries[1].producr_byte_rate",
        "quotas.entries[2].default_client_id",
        "quotas.entries[2].user",
        "quotas.entries[3]",
        "quotas.entries[4]",
        "quotas.entries[6]",
        "quotas.entries[7]",
        "quotas.entries[8]",
        "quotas.windows.quota_window",
        "quotas.windows.quota_window_num",
        "throttle.max_throttle_ms",
    ]
    assert problems["quotas.entries[6]"] == "expected one entry for each entity, got the entity of quotas.entries[5]"
    assert problems["quotas.entries[0].producer_byte_rate"].endswith("got 0")


def test_a_mistake_in_a_file_is_told_with_the_file_and_the_line(tmp_path):
    path = tmp_path / "quotas.yaml"
    path.write_text("entries:\n  - {user: a, producer_byte_rate: 1}\n  - {user: a, consumer_byte_rate: 1}\n")
    with pytest.raises(Problems) as raised:
        load_candidate(path)
    problem = "expected one entry for each entity, got the entity of entries[0]"
    assert str(raised.value) == f"{path}: entries[1]: {problem} (line 3)"


def test_a_mistake_in_a_list_of_entries_is_told_with_its_line(tmp_path):
    path = tmp_path / "quotas.yaml"
    path.write_text("- {user: a, producer_byte_rate: 1}\n- user: b\n  producer_byte_rate: no\n- {user: c}\n")
    with pytest.raises(Problems) as raised:
        load_candidate(path)
    assert [(each.path.removeprefix(f"{path}: "), each.line) for each in raised.value.problems] == [
        ("[1].producer_byte_rate", 3),
        ("[2]", 4),
    ]


@pytest.mark.parametrize("name", ["ä" * 16_384, "\\ud800"], ids=["long", "half a character"])
def test_a_name_that_kafka_cannot_carry_is_refused(name):
    problems = problems_of(f'entries: [{{user: "{name}", producer_byte_rate: 1}}]')
    assert list(problems) == ["entries[0].user"]
    assert problems["entries[0].user"].startswith("expected a string of 1 to 32767 bytes")


@pytest.mark.parametrize("text", ["", "7", "[a, b", "virtual_clusters: []", "virtual_clusters: [{name: ''}]"])
def test_what_is_no_candidate_is_refused(text):
    assert problems_of(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Problems, match=r"nowhere\.yaml.*cannot be read"):
        load_candidate(tmp_path / "nowhere.yaml")


def read_or_refused(read, data):
    """What a file holds, or what is wrong with it."""
    try:
        return read(data), ()
    except Problems as errors:
        return None, errors.problems


_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-1, 2**63), st.floats(), st.text(max_size=3), st.just({}))
_KEYS = ["user", "default_user", "client_id", "default_client_id", "ip", "default_ip", "odd"]
_ENTRY = st.dictionaries(st.sampled_from(_KEYS + [t.value for t in QuotaType]), _VALUES, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.lists(_ENTRY, max_size=3))
def test_the_proxy_takes_the_same_entries(entries):
    listener = {"name": "l", "bind": "127.0.0.1", "port": 1, "advertised_host": "h", "node_ids": [0]}
    cluster = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["h:9092"]},
        "listeners": [listener],
        "quotas": {"entries": entries},
    }
    config, refused = read_or_refused(config_of, {"virtual_clusters": [cluster]})
    candidate, refused_too = read_or_refused(candidate_of, {"virtual_clusters": [cluster]})
    assert refused_too == refused
    if config is not None:
        read, expected = candidate.rules("main"), quota_entries(config.virtual_clusters[0])
        enforced = {
            entity: {key.quota_type: limit for key, limit in entry.limits.items() if not key.shadow}
            for entity, entry in expected.items()
        }
        assert dict(read.table) == {entity: limits for entity, limits in enforced.items() if limits}
        of_cluster = {entity for entity, entry in expected.items() if entry.scope is Scope.CLUSTER and enforced[entity]}
        assert set(read.table.of_cluster) == set(pickle.loads(pickle.dumps(read)).table.of_cluster) == of_cluster
        assert read.shadows == sum(key.shadow for entry in expected.values() for key in entry.limits)


def test_a_candidate_of_lists_and_mappings():
    assert candidate_of([{"user": "a", "producer_byte_rate": 5}]).rules("x") is not None


def test_rules_hold_in_another_process_too():
    candidate = parse_candidate(ENTRIES)
    code = """
import pickle, sys
rules = pickle.loads(sys.stdin.buffer.read()).rules("any")
from kafka_throttle.quotas.entities import QuotaType
print(rules.table.tags_and_limit(QuotaType.PRODUCE, "alice", "x").limit, rules.samples, rules.max_throttle_ms)
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(candidate), capture_output=True, env=environment, check=True
    )
    assert ran.stdout.split() == [b"1000.0", b"5", b"7000"]


def test_a_limit_that_no_double_can_have_is_told():
    with pytest.raises(Problems, match=r"\[0\].request_percentage: expected a number above 0, got 1000"):
        candidate_of([{"user": "a", "request_percentage": 10**400}])
