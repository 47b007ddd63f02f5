"""Reading and writing quotas in a topic: what holds when, and what an unusable topic changes."""

import threading
from contextlib import contextmanager

import pytest

from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Limit, SourceUnavailable, following
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.topic import TopicSettings, TopicSource
from kafka_throttle.quotas.sources.topic_table import key_of, records_of
from tests.fakes.kafka_topic import GOOD, FakeTopic, FakeTopicCluster
from tests.quotas.sources.test_upstream import Changes
from tests.support.timeouts import TIMEOUT_S
from tests.support.unreadable_batches import compressed_batch, gzip_batch, nonsense_batch
from tests.support.waiting import wait_until

PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
SHADOW = QuotaKey(QuotaType.PRODUCE, shadow=True)
ALICE, BOB = Entity("alice"), Entity("bob")
TOPIC = "quotas"
PLACE = "topic quotas"


@contextmanager
def started(cluster, changes=lambda: None, last_good=NO_QUOTAS, **settings):
    settings = TopicSettings(**{"topic": TOPIC, "bootstrap_servers": ("a:9092",), "timeout_s": TIMEOUT_S, **settings})
    own = set()

    def connect(*args):
        own.add(client := cluster.connect(*args))
        return client

    source = TopicSource(settings, connect, lambda: 5)
    source.start(changes, last_good)
    try:
        yield source
    finally:
        source.stop()
        assert not cluster.open_connections & own


def limits(rate, key=PRODUCE):
    return {key: Limit(rate, TOPIC)}


def cluster_with(*alterations, **configs):
    cluster = FakeTopicCluster()
    cluster.topics[TOPIC] = FakeTopic({**GOOD, **configs})
    write(cluster, *alterations)
    return cluster


def write(cluster, *alterations):
    with cluster.lock:
        for alteration in alterations:
            for key, value in records_of(alteration):
                cluster.topics[TOPIC].append(key, value)


def last_good(**rates):
    return following(NO_QUOTAS, {Entity(name): limits(rate) for name, rate in rates.items()})


def test_the_quotas_are_there_when_it_has_started():
    with started(cluster_with(Alteration(ALICE, {PRODUCE: 5.0, SHADOW: 4.0}))) as source:
        assert source.quotas == {ALICE: {PRODUCE: Limit(5.0, TOPIC), SHADOW: Limit(4.0, TOPIC)}}
        assert source.problems == {}
        assert source.state[:2] == (True, True)
        assert 0 <= source.state.age_s < 60


CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "message.timestamp.type": "LogAppendTime",
}


def test_a_topic_that_is_missing_is_created_compacted_and_with_three_copies_two_of_which_have_each_change():
    cluster = FakeTopicCluster()
    with started(cluster) as source:
        assert source.problems == {}
        assert source.state.known
    assert cluster.created == [(TOPIC, 3, {**CONFIGS, "min.insync.replicas": "2"})]


def test_in_a_cluster_of_one_node_it_has_one_copy():
    cluster = FakeTopicCluster(nodes=1)
    with started(cluster):
        assert cluster.created == [(TOPIC, 1, {**CONFIGS, "min.insync.replicas": "1"})]


def test_a_topic_that_cannot_be_created_is_a_problem():
    cluster = FakeTopicCluster()
    cluster.errors["CreateTopics"] = 44
    with started(cluster) as source:
        assert source.problems == {PLACE: "there is no topic quotas, and it cannot be created: no room (error 44)"}
        assert source.state[:2] == (False, False)


def test_one_that_must_not_create_it_waits_until_there_is_something_to_write():
    cluster = FakeTopicCluster()
    with started(cluster, creates=False) as source:
        assert source.is_missing
        assert source.problems[PLACE].startswith("there is no topic quotas yet: ")
        assert cluster.created == []
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
        assert source.quotas == {ALICE: limits(5.0)}
        assert not source.is_missing


def test_what_is_altered_is_in_force_when_it_is_answered_and_soon_elsewhere():
    cluster, changes = cluster_with(Alteration(BOB, {PRODUCE: 1.0})), Changes()
    with started(cluster) as one, started(cluster, changes) as other:
        assert (
            one.alter([Alteration(ALICE, {PRODUCE: 5.0, SHADOW: 6.0}), Alteration(BOB, {PRODUCE: None})]) == [None] * 2
        )
        assert one.quotas == {ALICE: {**limits(5.0), **limits(6.0, SHADOW)}}
        changes.until(lambda: other.quotas == one.quotas)
        assert other.alter([Alteration(ALICE, {SHADOW: None})]) == [None]
        assert other.quotas == {ALICE: limits(5.0)}


def test_a_scope_is_refused_where_no_quota_would_have_it_and_goes_with_the_last_one():
    with started(cluster_with()) as source:
        refused, taken = source.alter(
            [Alteration(BOB, {}, Scope.CLUSTER), Alteration(ALICE, {PRODUCE: 5.0}, Scope.CLUSTER)]
        )
        assert isinstance(refused, AlterationRefused)
        assert taken is None
        assert source.quotas == {ALICE: {PRODUCE: Limit(5.0, TOPIC, Scope.CLUSTER)}}
        again = [Alteration(ALICE, {PRODUCE: None}), Alteration(ALICE, {PRODUCE: 6.0})]
        assert source.alter(again) == [None, None]
        assert source.quotas == {ALICE: limits(6.0)}


def test_of_alterations_at_the_same_time_the_last_record_holds_everywhere():
    cluster, first, second = cluster_with(), Changes(), Changes()
    with started(cluster, first) as one, started(cluster, second) as other:
        threads = [
            threading.Thread(target=source.alter, args=([Alteration(ALICE, {PRODUCE: rate})],))
            for rate in range(1, 9)
            for source in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        (_, value) = cluster.topics[TOPIC].records[15]
        rate = int(value.split(b":")[2].split(b".")[0])
        first.until(lambda: one.quotas == {ALICE: limits(float(rate))})
        second.until(lambda: other.quotas == one.quotas)


def test_alterations_of_many_entities_are_few_batches_each_of_which_is_whole():
    cluster = cluster_with()
    alterations = [Alteration(Entity(f"user-{i}"), {PRODUCE: 5.0, FETCH: 6.0}) for i in range(3_000)]
    with started(cluster) as source:
        assert source.alter(alterations) == [None] * 3_000
        assert len(source.quotas) == 3_000
        assert source.alter([]) == []
        assert source.alter([Alteration(ALICE, {})]) == [None]
    assert 2 <= sum(name == "Produce" for _, name in cluster.asked) < 10


@pytest.mark.parametrize(("error", "kind", "text"), [
    (10, AlterationRefused, "the record is too large (error 10)"),
    (29, AlterationRefused, "the proxy's own credentials are not allowed to Write (error 29)"),
    (19, SourceUnavailable, "in sync (min.insync.replicas) (error 19); nothing is written"),
    (7, SourceUnavailable, "(error 7); it may be written"),
    (99, SourceUnavailable, "the node refuses (error 99); it may be written"),
])  # fmt: skip
def test_what_the_node_says_to_a_record_is_the_outcome(error, kind, text):
    cluster = cluster_with()
    cluster.errors["Produce"] = error
    with started(cluster) as source:
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert type(outcome) is kind
        assert text in str(outcome)
        assert source.quotas == {}


def test_a_record_that_went_to_a_node_that_does_not_lead_is_written_again():
    cluster = cluster_with()
    cluster.errors["Produce"] = 6
    with started(cluster) as source:
        results = []
        altering = threading.Thread(target=lambda: results.extend(source.alter([Alteration(ALICE, {PRODUCE: 5.0})])))
        altering.start()
        wait_until(lambda: sum(name == "Produce" for _, name in cluster.asked) >= 2)
        cluster.errors.clear()
        altering.join(TIMEOUT_S)
        assert results == [None]


def test_another_leader_is_found_and_all_is_read_again():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0}), Alteration(BOB, {PRODUCE: 6.0})), Changes()
    with started(cluster, changes) as source:
        with cluster.lock:  # the new leader had not been in sync: the last record is lost, and another in its place
            del cluster.topics[TOPIC].records[1]
            cluster.topics[TOPIC].end = 1
            write(cluster, Alteration(ALICE, {PRODUCE: 7.0}), Alteration(Entity("carol"), {PRODUCE: 8.0}))
            cluster.epoch += 1
        changes.until(lambda: source.quotas == {ALICE: limits(7.0), Entity("carol"): limits(8.0)})
        assert source.problems == {}


def test_a_connection_that_is_lost_does_not_make_it_read_all_again():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        cluster.down = {"a:9092", "node:9001"}
        changes.until(lambda: PLACE in source.problems)
        assert source.problems[PLACE] in ("a:9092: down", "node:9001: down")
        assert source.state[:2] == (True, False)
        assert source.quotas == {ALICE: limits(5.0)}
        del cluster.topics[TOPIC].records[0]  # read already
        write(cluster, Alteration(BOB, {PRODUCE: 6.0}))
        cluster.down = set()
        changes.until(lambda: not source.problems)
        assert source.quotas == {ALICE: limits(5.0), BOB: limits(6.0)}


def test_the_next_server_is_asked_when_one_is_down():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    cluster.down = {"a:1"}
    with started(cluster, changes, bootstrap_servers=("a:1", "b:2")) as source:
        changes.until(lambda: source.quotas == {ALICE: limits(5.0)})
        source.replace_servers(("c:3",), TIMEOUT_S)
        cluster.epoch += 1
        wait_until(lambda: ("c:3", "Metadata") in cluster.asked)


def test_nodes_that_the_cluster_has_named_are_asked_when_no_bootstrap_server_answers():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        changes.until(lambda: source.quotas == {ALICE: limits(5.0)})
        cluster.down = {"a:9092", "node:9002"}
        cluster.epoch += 1
        write(cluster, Alteration(ALICE, {PRODUCE: 6.0}))
        changes.until(lambda: source.quotas == {ALICE: limits(6.0)})


def test_an_alteration_while_the_cluster_is_gone_says_that_nothing_is_written():
    cluster, changes = cluster_with(), Changes()
    with started(cluster, changes, alter_s=0.05) as source:
        cluster.down = {"a:9092", "node:9001"}
        changes.until(lambda: PLACE in source.problems)
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert isinstance(outcome, SourceUnavailable)
        assert str(outcome).endswith(": down; nothing is written")


def test_an_alteration_that_is_not_answered_says_that_it_may_be_written():
    cluster = cluster_with()
    with started(cluster, alter_s=0.05) as source:
        cluster.frozen = True
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert "it may be written" in str(outcome)
        cluster.frozen = False


def test_an_alteration_that_is_not_read_back_says_so():
    cluster = cluster_with()
    with started(cluster, alter_s=0.3) as source:
        cluster.hides = True
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert isinstance(outcome, SourceUnavailable)
        assert str(outcome).endswith("; it is written, but was not read back")
        assert cluster.topics[TOPIC].end == 1


def test_a_topic_that_is_deleted_leaves_the_quotas_until_it_is_made_again():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        topic = cluster.topics.pop(TOPIC)
        changes.until(lambda: "it was deleted" in source.problems.get(PLACE, ""))
        assert source.quotas == {ALICE: limits(5.0)}
        assert source.state[:2] == (True, False)
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 6.0})])
        assert "it was deleted" in str(outcome)
        assert "nothing is written" in str(outcome)
        assert cluster.created == []
        again = FakeTopic()
        assert again.id != topic.id
        cluster.topics[TOPIC] = again
        write(cluster, Alteration(BOB, {PRODUCE: 6.0}))
        changes.until(lambda: not source.problems)
        assert source.quotas == {BOB: limits(6.0)}


def test_last_good_quotas_hold_until_the_topic_is_read_and_no_longer():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    cluster.topics[TOPIC].append(key_of(BOB, PRODUCE), b"nonsense")
    cluster.down = {"a:9092"}
    with started(cluster, changes, last_good(bob=6.0, carol=7.0)) as source:
        assert source.quotas == last_good(bob=6.0, carol=7.0)
        assert source.state[:2] == (False, False)
        cluster.down = set()
        changes.until(lambda: source.state.known)
        assert source.quotas == {ALICE: limits(5.0), BOB: limits(6.0)}
        assert list(source.problems) == ["offset 1 of quotas"]


def test_a_missing_topic_is_not_made_anew_by_one_that_has_last_good_quotas():
    cluster = FakeTopicCluster()
    with started(cluster, last_good=last_good(bob=6.0)) as source:
        assert "it was deleted; the last good quotas stay" in source.problems[PLACE]
        assert cluster.created == []


BAD_TOPICS = [
    ({"cleanup.policy": "delete"}, "expected cleanup.policy to be compact, got delete"),
    ({"cleanup.policy": "compact,delete"}, "expected cleanup.policy to be compact, got compact,delete"),
    ({"max.message.bytes": "99999999"}, "expected max.message.bytes to be at most 8388608, got 99999999"),
    ({"delete.retention.ms": "1"}, "expected delete.retention.ms to be at least 60000, got 1"),
    ({"compression.type": "zstd"}, "expected compression.type to be uncompressed, got zstd"),
    ({"compression.type": "producer"}, "expected compression.type to be uncompressed, got producer"),
]


@pytest.mark.parametrize(("configs", "problem"), BAD_TOPICS)
def test_a_topic_with_other_settings_is_refused(configs, problem):
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0}), **configs), Changes()
    with started(cluster, changes) as source:
        assert source.problems == {PLACE: f"topic quotas: {problem}"}
        assert source.quotas == {}
        [outcome] = source.alter([Alteration(BOB, {PRODUCE: 5.0})])
        assert str(outcome) == f"topic quotas: {problem}; nothing is written"
        cluster.topics[TOPIC].configs = GOOD
        changes.until(lambda: source.quotas == {ALICE: limits(5.0)})


def test_a_topic_with_several_partitions_is_refused():
    cluster = FakeTopicCluster()
    cluster.topics[TOPIC] = FakeTopic(partitions=2)
    with started(cluster) as source:
        assert source.problems == {PLACE: "topic quotas: expected 1 partition, it has 2"}


def test_a_topic_that_was_compacted_and_whose_beginning_was_deleted_is_read():
    cluster = cluster_with(*(Alteration(ALICE, {PRODUCE: float(rate)}) for rate in range(1, 500)))
    cluster.topics[TOPIC].compact()
    cluster.topics[TOPIC].first = 400
    with started(cluster) as source:
        assert source.quotas == {ALICE: limits(499.0)}


def test_a_position_that_is_gone_makes_it_read_all_again():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        with cluster.lock:  # all records deleted, beyond those that were read
            cluster.topics[TOPIC].records.clear()
            cluster.topics[TOPIC].first = cluster.topics[TOPIC].end = 10
        changes.until(lambda: source.quotas == {})
        assert source.problems == {}


def test_records_that_are_nonsense_are_problems_while_they_last():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        cluster.topics[TOPIC].append(b"foreign", b"record")
        changes.until(lambda: source.problems)
        assert list(source.problems) == ["offset 1 of quotas"]
        assert source.quotas == {ALICE: limits(5.0)}
        assert source.state.up
        cluster.topics[TOPIC].append(b"foreign", None)
        changes.until(lambda: not source.problems)


@pytest.mark.parametrize("make", [gzip_batch, compressed_batch, nonsense_batch])
def test_a_batch_that_cannot_be_read_is_a_problem_and_what_is_behind_it_is_read(make):
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        cluster.topics[TOPIC].append_batch(make(records_of(Alteration(ALICE, {PRODUCE: 6.0, FETCH: 7.0}))))
        changes.until(lambda: source.problems)
        assert list(source.problems) == ["offset 1 of quotas"]
        assert source.alter([Alteration(BOB, {PRODUCE: 8.0})]) == [None]
        assert source.quotas == {ALICE: limits(5.0), BOB: limits(8.0)}
        assert source.state.up
    with started(cluster) as other:
        assert other.quotas == {ALICE: limits(5.0), BOB: limits(8.0)}
        assert list(other.problems) == ["offset 1 of quotas"]


def test_a_batch_that_came_damaged_is_read_again():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes) as source:
        [record] = records_of(Alteration(BOB, {PRODUCE: 6.0}))
        good = nonsense_batch([record])
        with cluster.lock:
            cluster.topics[TOPIC].append_batch(good[:-1] + bytes([good[-1] ^ 1]))
        changes.until(lambda: "CRC" in source.problems.get(PLACE, ""))
        with cluster.lock:
            cluster.topics[TOPIC].records[1] = record
        changes.until(lambda: source.quotas == {ALICE: limits(5.0), BOB: limits(6.0)})
        assert source.problems == {}


def test_a_quota_of_a_name_that_no_record_may_have_is_refused():
    cluster = cluster_with()
    with started(cluster) as source:
        for name in ("a" * 32_768, "half \udc80"):
            [outcome] = source.alter([Alteration(Entity(name), {PRODUCE: 5.0})])
            assert isinstance(outcome, AlterationRefused)
            assert "expected a user of 1 to 32767 bytes in UTF-8" in str(outcome)
        assert cluster.topics[TOPIC].end == 0


def test_nothing_is_reported_while_nothing_changes():
    cluster, changes = cluster_with(Alteration(ALICE, {PRODUCE: 5.0})), Changes()
    with started(cluster, changes):
        fetches = len(cluster.asked)
        wait_until(lambda: len(cluster.asked) > fetches + 3)
        assert changes.count == 1


def test_stop_does_not_wait_for_a_cluster_that_is_silent_and_ends_an_alteration():
    cluster = cluster_with()
    with started(cluster) as source:
        cluster.frozen = True
        results = []
        altering = threading.Thread(target=lambda: results.extend(source.alter([Alteration(ALICE, {PRODUCE: 5.0})])))
        altering.start()
        wait_until(lambda: ("node:9001", "Produce") in cluster.asked)
        source.stop()
        altering.join(TIMEOUT_S)
        assert "stopped; it may be written" in str(results[0])
        source.stop()
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert str(outcome) == "stopped; nothing is written"


def test_start_ends_when_it_is_stopped_meanwhile():
    cluster = cluster_with()
    cluster.frozen = True
    source = TopicSource(TopicSettings(TOPIC, ("a:9092",), timeout_s=600.0), cluster.connect)
    starting = threading.Thread(target=source.start, args=(lambda: None,), daemon=True)
    starting.start()
    wait_until(lambda: cluster.asked)
    source.stop()
    starting.join(TIMEOUT_S)
    assert not starting.is_alive()
    assert not cluster.open_connections
