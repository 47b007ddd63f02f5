"""Reading and writing a cluster's quotas: when changes are reported, and what an unreachable cluster changes."""

import re
import threading
from contextlib import contextmanager

import pytest

from kafka_throttle.protocol.messages.metadata import MetadataNode
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from kafka_throttle.quotas.sources.upstream import THE_CLUSTER, Pace, UpstreamSettings, UpstreamSource
from tests.fakes.kafka_quotas import FakeCluster

PRODUCE = QuotaKey(QuotaType.PRODUCE)
SHADOW = QuotaKey(QuotaType.PRODUCE, shadow=True)
ALICE = (("user", "alice"),)
FAST = {"interval_s": 0.001}
ONCE = {"interval_s": 3600.0}


class Changes:
    """Counts the calls of `changed`, and waits for what they bring."""

    def __init__(self):
        self.count = 0
        self._news = threading.Condition()

    def __call__(self):
        with self._news:
            self.count += 1
            self._news.notify_all()

    def until(self, condition):
        with self._news:
            assert self._news.wait_for(condition, timeout=60)


@contextmanager
def started(cluster, changes=lambda: None, last_good=None, **settings):
    settings = UpstreamSettings(**{"bootstrap_servers": ("a:9092",), **ONCE, **settings})
    source = UpstreamSource(settings, cluster.connect)
    source.start(changes, last_good or {})
    try:
        yield source
    finally:
        source.stop()
        assert not cluster.open_connections


def limits(rate):
    return {PRODUCE: Limit(rate, "cluster")}


def test_the_quotas_are_there_when_it_has_started():
    with started(FakeCluster({ALICE: {"producer_byte_rate": 5.0}})) as source:
        assert source.quotas == {Entity("alice"): limits(5.0)}
        assert source.problems == {}


def test_a_change_is_reported_once_and_nothing_else_is():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    with started(cluster, changes, **FAST) as source:
        assert changes.count == 1
        cluster.quotas = {ALICE: {"producer_byte_rate": 6.0}}
        changes.until(lambda: changes.count == 2)
        assert source.quotas == {Entity("alice"): limits(6.0)}
        cluster.quotas = {}
        changes.until(lambda: changes.count == 3)
        assert source.quotas == {}


def test_one_connection_serves_all_reads():
    cluster, changes = FakeCluster(), Changes()
    with started(cluster, changes, **FAST):
        for rate in range(1, 5):
            cluster.quotas = {ALICE: {"producer_byte_rate": float(rate)}}
            changes.until(lambda rate=rate: changes.count == rate + 1)
        assert len(cluster.connections) == 1


def test_an_invalid_quota_leaves_the_last_good_one_and_is_a_problem_while_it_lasts():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    with started(cluster, changes, **FAST) as source:
        cluster.quotas = {ALICE: {"producer_byte_rate": 1e-9}}
        changes.until(lambda: source.problems)
        assert source.quotas == {Entity("alice"): limits(5.0)}
        assert list(source.problems) == ["user=alice"]
        cluster.quotas = {ALICE: {"producer_byte_rate": 7.0}}
        changes.until(lambda: not source.problems)
        assert source.quotas == {Entity("alice"): limits(7.0)}


@pytest.mark.rule("last good")
def test_an_unreachable_cluster_leaves_all_quotas_and_is_a_problem_until_it_is_back():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    with started(cluster, changes, bootstrap_servers=("a:1", "b:2"), **FAST) as source:
        cluster.down = {"a:1", "b:2"}
        changes.until(lambda: source.problems)
        assert set(source.problems[THE_CLUSTER].split("; ")) == {"a:1: down", "b:2: down"}
        assert source.quotas == {Entity("alice"): limits(5.0)}
        cluster.quotas = {}
        cluster.down = set()
        changes.until(lambda: not source.problems)
        assert source.quotas == {}


def test_its_state_says_whether_it_was_read_and_how_long_ago():
    cluster, changes = FakeCluster(), Changes()
    cluster.down = {"a:9092"}
    with started(cluster, changes, {Entity("alice"): limits(5.0)}, **FAST) as source:
        assert source.state == (False, False, None)
        cluster.down = set()
        changes.until(lambda: source.state.known)
        known, up, age_s = source.state
        assert (known, up) == (True, True)
        assert 0 <= age_s < 60
        cluster.down = {"a:9092"}
        changes.until(lambda: source.problems)
        assert source.state[:2] == (True, False)


def test_the_next_server_is_asked_when_one_is_down():
    cluster = FakeCluster({ALICE: {"producer_byte_rate": 5.0}})
    cluster.down = {"a:1", "b:2"}
    with started(cluster, bootstrap_servers=("a:1", "b:2", "c:3")) as source:
        assert source.quotas
        assert source.problems == {}
        assert [connection.server for connection in cluster.open_connections] == ["c:3"]


def test_nodes_that_the_cluster_has_named_are_asked_when_no_bootstrap_server_answers():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    cluster.nodes = [MetadataNode(1, "a", 1), MetadataNode(2, "b", 2), MetadataNode(3, "::3", 3)]
    with started(cluster, changes, bootstrap_servers=("a:1",), **FAST) as source:
        cluster.down = {"a:1", "b:2"}
        cluster.quotas = {ALICE: {"producer_byte_rate": 6.0}}
        changes.until(lambda: source.quotas == {Entity("alice"): limits(6.0)})
        assert source.problems == {}
        assert [connection.server for connection in cluster.open_connections] == ["[::3]:3"]


def test_nodes_of_a_cluster_are_not_asked_once_other_servers_are_configured():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    cluster.nodes = [MetadataNode(2, "b", 2)]
    with started(cluster, changes, bootstrap_servers=("a:1",), **FAST) as source:
        changes.until(lambda: source.quotas)
        cluster.down = {"c:3"}
        source.replace_servers(("c:3",), 3.0)
        changes.until(lambda: source.problems)
        assert source.problems == {THE_CLUSTER: "c:3: down"}


def test_other_servers_are_read_at_once_and_the_last_good_quotas_stay_until_then():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 5.0}}), Changes()
    with started(cluster, changes, bootstrap_servers=("a:1",)) as source:
        cluster.down = {"b:2"}
        source.replace_servers(("b:2",), 3.0)
        changes.until(lambda: source.problems)
        assert source.problems == {THE_CLUSTER: "b:2: down"}
        assert source.quotas == {Entity("alice"): limits(5.0)}
        cluster.quotas = {ALICE: {"producer_byte_rate": 6.0}}
        cluster.down = set()
        changes.until(lambda: not source.problems)
        assert source.quotas == {Entity("alice"): limits(6.0)}
        assert [(one.server, one.timeout_s) for one in cluster.open_connections] == [("b:2", 3.0)]


def test_with_the_same_servers_as_before_the_connection_stays():
    cluster = FakeCluster()
    with started(cluster, timeout_s=5.0) as source:
        source.replace_servers(("a:9092",), 5.0)
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})]) == [None]
        assert len(cluster.connections) == 1
        source.replace_servers(("a:9092",), 6.0)
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: 9.0})]) == [None]
        assert [one.timeout_s for one in cluster.connections] == [5.0, 6.0]


def test_it_begins_with_the_last_good_quotas_and_keeps_those_of_an_entity_with_invalid_ones():
    cluster, changes = FakeCluster({ALICE: {"producer_byte_rate": 1e-9}}), Changes()
    cluster.down = {"a:9092"}
    last_good = {Entity("alice"): limits(5.0), Entity("gone"): limits(6.0)}
    with started(cluster, changes, last_good, **FAST) as source:
        assert source.quotas == last_good
        assert source.problems == {THE_CLUSTER: "a:9092: down"}
        cluster.down = set()
        changes.until(lambda: THE_CLUSTER not in source.problems)
        assert source.quotas == {Entity("alice"): limits(5.0)}


def test_missing_permission_is_a_problem_that_names_server_and_permission():
    cluster = FakeCluster()
    cluster.error = (31, None)
    with started(cluster) as source:
        assert source.problems[THE_CLUSTER].startswith("a:9092: the proxy's own credentials need DescribeConfigs")


def test_an_error_in_reading_a_response_is_a_problem_and_reading_goes_on():
    cluster, changes = FakeCluster(), Changes()
    good, cluster.response = cluster.response, lambda request: "no response"
    with started(cluster, changes, **FAST) as source:
        assert re.search(r"cannot be read: (Attribute|Type)Error", source.problems[THE_CLUSTER])
        cluster.response = good
        changes.until(lambda: not source.problems)


class Silent:
    """A connection on which no response ever comes."""

    def __init__(self):
        self.asked = threading.Event()
        self._interrupted = threading.Event()

    def ask(self, request):
        self.asked.set()
        assert self._interrupted.wait(60)
        raise SourceUnavailable("interrupted")

    def interrupt(self):
        self._interrupted.set()

    def close(self):
        pass


def test_stop_ends_a_read_that_waits_and_nothing_is_reported_after_it():
    silent, changes = Silent(), Changes()
    source = UpstreamSource(UpstreamSettings(("a:9092",), timeout_s=0.0), lambda *_: silent)
    source.start(changes)
    assert silent.asked.wait(60)
    assert source.problems == {THE_CLUSTER: "not read yet"}
    before = threading.active_count()
    source.stop()
    assert threading.active_count() == before - 1
    assert changes.count == 0


def test_stop_before_start_is_no_error():
    UpstreamSource(UpstreamSettings(("a:9092",)), FakeCluster().connect).stop()


def test_an_unreachable_cluster_is_asked_ever_less_often_and_any_other_at_the_interval():
    pace = Pace(2.0)
    assert [pace.after_failure() for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert pace.after_read(0.1, 0.01) == 2.0
    assert pace.after_failure() == 0.25
    slow = Pace(30.0)
    assert [slow.after_failure() for _ in range(9)][-2:] == [30.0, 30.0]


def test_a_slow_node_and_a_busy_processor_are_spared():
    assert Pace(2.0).after_read(took_s=7.0, busy_s=0.5) == 7.0
    assert Pace(2.0).after_read(took_s=3.0, busy_s=2.5) == 10.0


# ----------------------------------------------------------------- writing


def test_what_is_written_is_in_the_quotas_and_was_reported():
    cluster, changes = FakeCluster(), Changes()
    with started(cluster, changes) as source:
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})]) == [None]
        assert source.quotas == {Entity("alice"): limits(8.0)}
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: None})]) == [None]
        assert source.quotas == {}
        assert changes.count == 3


def test_a_cluster_that_lags_is_waited_for():
    cluster = FakeCluster()
    cluster.lag = 3
    with started(cluster, shown_within_s=60.0) as source:
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})]) == [None]
        assert source.quotas == {Entity("alice"): limits(8.0)}


def test_the_error_for_a_change_that_does_not_show_in_time_says_that_it_is_written():
    cluster = FakeCluster()
    cluster.lag = 1_000_000
    with started(cluster, shown_within_s=0.0) as source:
        [result] = source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})])
    assert isinstance(result, SourceUnavailable)
    assert "written, but after 0 s the cluster tells other quotas of user=alice" in str(result)


def test_the_error_for_a_change_that_does_not_show_because_of_an_invalid_quota_says_so():
    cluster = FakeCluster({ALICE: {"producer_byte_rate": 1e-9}})
    cluster.lag = 1_000_000
    with started(cluster, shown_within_s=0.0) as source:
        [result] = source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})])
    assert "producer_byte_rate of user=alice: expected a whole number" in str(result)


def test_a_change_shows_beside_an_invalid_quota_of_the_same_entity():
    cluster = FakeCluster({ALICE: {"consumer_byte_rate": 1e-9}})
    with started(cluster, shown_within_s=0.0) as source:
        assert source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})]) == [None]
        assert source.quotas == {Entity("alice"): limits(8.0)}


def test_shadow_quotas_are_refused_and_their_removal_is_none():
    cluster = FakeCluster()
    with started(cluster) as source:
        refused, removed, both, nothing = source.alter(
            [
                Alteration(Entity("alice"), {SHADOW: 8.0, PRODUCE: 9.0}),
                Alteration(Entity("bob"), {SHADOW: None}),
                Alteration(Entity("carol"), {SHADOW: None, PRODUCE: 9.0}),
                Alteration(Entity("dave"), {}),
            ]
        )
    assert isinstance(refused, AlterationRefused)
    assert "cannot hold shadow quotas (shadow_producer_byte_rate of user=alice)" in str(refused)
    assert [removed, both, nothing] == [None, None, None]
    assert cluster.quotas == {(("user", "carol"),): {"producer_byte_rate": 9.0}}


def test_a_second_alteration_of_an_entity_follows_the_first():
    cluster = FakeCluster()
    with started(cluster) as source:
        alterations = [Alteration(Entity(user), {PRODUCE: rate}) for user, rate in [("a", 1), ("b", 2), ("a", 3)]]
        assert source.alter(alterations) == [None] * 3
    assert cluster.quotas == {(("user", "a"),): {"producer_byte_rate": 3}, (("user", "b"),): {"producer_byte_rate": 2}}
    assert [len(entities) for entities in cluster.alterations] == [2, 1]


def test_refusals_are_per_entity():
    cluster = FakeCluster()
    cluster.refusals = {ALICE: (42, "no")}
    with started(cluster) as source:
        refused, written = source.alter([Alteration(Entity(user), {PRODUCE: 8.0}) for user in ("alice", "bob")])
    assert isinstance(refused, AlterationRefused)
    assert written is None


def test_without_a_cluster_nothing_is_written_and_each_alteration_fails():
    cluster = FakeCluster()
    cluster.down = {"a:9092"}
    with started(cluster) as source:
        results = source.alter([Alteration(Entity(user), {PRODUCE: 8.0}) for user in ("alice", "bob")])
    assert [str(result) for result in results] == ["a:9092: down"] * 2
    assert all(isinstance(result, SourceUnavailable) for result in results)


def test_alterations_from_many_threads_take_turns():
    cluster = FakeCluster()
    with started(cluster, **FAST) as source:
        results = []
        threads = [
            threading.Thread(
                target=lambda n=n: results.extend(source.alter([Alteration(Entity(f"u{n}"), {PRODUCE: 1})]))
            )
            for n in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [None] * 10
        assert len(source.quotas) == 10


def test_a_source_that_was_not_started_writes_too():
    cluster = FakeCluster()
    source = UpstreamSource(UpstreamSettings(("a:9092",)), cluster.connect)
    assert source.alter([Alteration(Entity("alice"), {PRODUCE: 8.0})]) == [None]
    source.stop()
    assert not cluster.open_connections


def test_passwords_are_not_shown():
    shown = repr(UpstreamSettings(("a:1",), Credentials(sasl_plain_password="secret")))
    assert "secret" not in shown
