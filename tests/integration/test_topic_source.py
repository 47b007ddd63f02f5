"""Quotas in a topic of a real cluster: read, written, compacted, lost and found again; by two proxies and the CLI."""

import contextlib
import itertools
import logging
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from kafka_throttle.quotas.sources.last_good import LastGood
from kafka_throttle.quotas.sources.topic import TopicSettings, TopicSource
from kafka_throttle.quotas.sources.topic_table import key_of
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.integration.test_explain import kafka_throttle
from tests.integration.test_kafka_cluster import healed
from tests.integration.test_quota_changes import alter_client_quotas, delay_s, is_soon, quota
from tests.integration.test_upstream_source import certificate, servers_of, with_logins
from tests.support.waiting import wait_until

PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
SHADOW = QuotaKey(QuotaType.PRODUCE, shadow=True)
ALICE, BOB = Entity("alice"), Entity("bob")
MANY = 20_000
CONFIGS = ("--config=cleanup.policy=compact", "--config=compression.type=uncompressed")


@contextlib.contextmanager
def source_of(servers, topic, path=None, **settings):
    source = TopicSource(TopicSettings(topic, tuple(servers), **{"timeout_s": 10.0, **settings}))
    kept = LastGood(source, path) if path else source
    kept.start(lambda: None)
    try:
        yield kept
    finally:
        kept.stop()


def values(source, entity):
    return {key: limit.value for key, limit in source.quotas.get(entity, {}).items()}


def topics(cluster, *args):
    return cluster.tool("kafka-topics", "--bootstrap-server", cluster.bootstrap_servers, *args)


def configure(cluster, topic, config):
    args = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", config)
    return cluster.tool("kafka-configs", "--bootstrap-server", cluster.bootstrap_servers, *args)


def leader_of(cluster, topic):
    return int(topics(cluster, "--describe", "--topic", topic).split("Leader: ")[1].split()[0])


# ------------------------------------------------------------- three nodes


def test_the_topic_is_made_compacted_with_a_copy_on_each_node(newest_kafka):
    with source_of(servers_of(newest_kafka), "made") as source:
        wait_until(lambda: source.state.known)
        assert source.quotas == {}
    described = topics(newest_kafka, "--describe", "--topic", "made")
    assert "PartitionCount: 1" in described
    assert "ReplicationFactor: 3" in described
    assert "cleanup.policy=compact" in described
    assert "compression.type=uncompressed" in described
    assert "min.insync.replicas=2" in described


def test_what_one_writes_another_has_and_a_third_reads_from_the_beginning(newest_kafka):
    alterations = [Alteration(ALICE, {PRODUCE: 5.0, SHADOW: 6.5e6}), Alteration(BOB, {FETCH: 7.0})]
    with source_of(servers_of(newest_kafka), "shared") as one, source_of(servers_of(newest_kafka), "shared") as other:
        wait_until(lambda: one.state.up and other.state.up)
        assert one.alter(alterations) == [None, None]
        assert one.quotas[ALICE] == {PRODUCE: Limit(5.0, "shared"), SHADOW: Limit(6.5e6, "shared")}
        wait_until(lambda: other.quotas == one.quotas)
        assert (
            other.alter([Alteration(ALICE, {PRODUCE: None, SHADOW: 8.0}), Alteration(BOB, {FETCH: None})]) == [None] * 2
        )
        assert other.quotas == {ALICE: {SHADOW: Limit(8.0, "shared")}}
        wait_until(lambda: one.quotas == other.quotas)
        with source_of(servers_of(newest_kafka), "shared") as third:
            wait_until(lambda: third.quotas == one.quotas)
            assert third.problems == {}


@pytest.mark.parametrize("end", ["killed", "frozen"])
@pytest.mark.nightly
def test_a_leader_that_is_lost_leaves_the_quotas_and_another_takes_changes(newest_kafka, end, tmp_path):
    topic = f"led-{end}"
    with (
        source_of(servers_of(newest_kafka), topic, timeout_s=3.0) as source,
        source_of(servers_of(newest_kafka), topic, timeout_s=3.0) as other,
        healed(newest_kafka),
    ):
        wait_until(lambda: source.state.up and other.state.up)
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
        leader = leader_of(newest_kafka, topic)
        (newest_kafka.kill if end == "killed" else newest_kafka.freeze)(leader)
        wait_until(lambda: not source.state.up)
        assert values(source, ALICE) == {PRODUCE: 5.0}
        wait_until(lambda: source.alter([Alteration(BOB, {PRODUCE: 6.0})]) == [None], timeout_s=90)
        assert source.quotas == {ALICE: {PRODUCE: Limit(5.0, topic)}, BOB: {PRODUCE: Limit(6.0, topic)}}
        wait_until(lambda: other.quotas == source.quotas)
        wait_until(lambda: source.problems == other.problems == {})


# ------------------------------------------------------------- two proxies


@pytest.fixture(scope="module")
def proxies(newest_kafka):
    source = {"source": "topic", "admin_listeners": ["plain"]}
    with ProxyProcess(newest_kafka, source=source) as first, ProxyProcess(newest_kafka, source=source) as second:
        yield first, second


def test_what_is_altered_at_one_proxy_is_felt_at_another_within_a_second(proxies):
    here, there = (proxy.node_ports[1] for proxy in proxies)
    assert is_soon(lambda: delay_s(there, lambda client_id: alter_client_quotas((HOST, here), [quota(client_id)])))


def test_kafka_configs_and_the_command_line_change_quotas_of_both(proxies, newest_kafka):
    first, second = proxies
    newest_kafka.tool(
        "kafka-configs", "--bootstrap-server", f"{HOST}:{first.port}", "--alter", "--entity-type", "users",
        "--entity-name", "zoë", "--add-config", "producer_byte_rate=1e9,request_percentage=12.5",
    )  # fmt: skip
    with QuotaClient((HOST, first.port)) as client:
        here = client.describe().entries
    zoe = frozenset({("user", "zoë")})
    assert here[zoe] == {"producer_byte_rate": 1e9, "request_percentage": 12.5}
    with QuotaClient((HOST, second.port)) as client:
        wait_until(lambda: client.describe().entries.get(zoe) == here[zoe])
    config = ("-c", second.config_path)
    kafka_throttle("quotas", "set", *config, "--user", "zoë", "producer_byte_rate=2e9", "shadow_producer_byte_rate=5")
    kafka_throttle("quotas", "unset", *config, "--user", "zoë", "request_percentage")
    described = kafka_throttle("quotas", "describe", *config)
    for shown in ("source topic", "2000000000", "shadow_producer_byte_rate", "__kafka_throttle_quotas_main"):
        assert shown in described
    assert "request_percentage" not in described
    with QuotaClient((HOST, first.port)) as client:
        wait_until(lambda: client.describe().entries.get(zoe) == {"producer_byte_rate": 2e9})


# ------------------------------------------------- one node with everything


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One node with logins, an authorizer, and a cleaner that is always about."""
    folder = tmp_path_factory.mktemp("certificates")
    _, node_cert, node_pem = certificate(folder, "node")
    _, client_cert, _ = certificate(folder, "client")
    cleaner = {
        "log.cleaner.backoff.ms": "50",
        "auto.create.topics.enable": "false",
        "log.retention.check.interval.ms": "50",
    }
    listeners = {"LOGINS": "SASL_SSL", "PLAIN": "SASL_PLAINTEXT", "CERTS": "SSL"}
    extra = {**with_logins(node_pem, client_cert), **cleaner}
    with KafkaCluster(nodes=1, listeners=listeners, extra=lambda _: extra) as cluster:
        cluster.node_cert = str(node_cert)
        yield cluster


@pytest.mark.kafka
@pytest.mark.xdist_group("topic-source-alone")
def test_a_login_over_tls_is_used_and_missing_permissions_are_named(alone, caplog):
    caplog.set_level(logging.DEBUG)
    alone.tool(
        "kafka-configs", "--bootstrap-server", alone.bootstrap_servers, "--alter", "--add-config",
        "SCRAM-SHA-256=[password=sesame]", "--entity-type", "users", "--entity-name", "proxy",
    )  # fmt: skip
    topics(alone, "--create", "--topic", "secret", *CONFIGS)
    login = Credentials("SASL_SSL", alone.node_cert, None, None, "SCRAM-SHA-256", "proxy", "sesame")

    def allow(operation):
        args = ("--add", "--allow-principal", "User:proxy", "--topic", "secret", "--operation", operation)
        alone.tool("kafka-acls", "--bootstrap-server", alone.bootstrap_servers, *args)

    with source_of([alone.bootstrap("LOGINS")], "secret", credentials=login) as source:
        place = "topic secret"
        for operation in ("Describe", "DescribeConfigs", "Read"):
            expected = f"credentials are not allowed to {operation} (error 29)"
            wait_until(lambda expected=expected: expected in source.problems.get(place, ""))
            allow(operation)
        wait_until(lambda: source.state.up)
        [refused] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert isinstance(refused, AlterationRefused)
        assert "not allowed to Write" in str(refused)
        allow("Write")
        wait_until(lambda: source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None])
        assert values(source, ALICE) == {PRODUCE: 5.0}
    with source_of([alone.bootstrap("LOGINS")], "other", credentials=login) as source:
        assert "not allowed to Describe" in source.problems["topic other"]
    wrong = Credentials("SASL_PLAINTEXT", None, None, None, "PLAIN", "proxy", "open")
    with source_of([alone.bootstrap("PLAIN")], "secret", credentials=wrong) as source:
        assert "before 'proxy' was authenticated with PLAIN" in source.problems[place]
    assert "sesame" not in caplog.text


@pytest.mark.kafka
@pytest.mark.xdist_group("topic-source-alone")
def test_compaction_while_it_is_read_and_written_loses_nothing(alone):
    users = [Entity(f"user-{i}") for i in range(50)]
    configs = "segment.ms=50,min.cleanable.dirty.ratio=0.01,max.compaction.lag.ms=50"
    topics(alone, "--create", "--topic", "compacted", *CONFIGS, *(f"--config={each}" for each in configs.split(",")))
    with source_of([alone.bootstrap_servers], "compacted") as writer, reader_of(alone, "compacted") as read:
        wait_until(lambda: writer.state.up)
        deadline = time.monotonic() + 300
        for turn in itertools.count(1):
            alterations = [Alteration(user, {PRODUCE: turn if turn % 3 else None}) for user in users]
            assert writer.alter([*alterations, Alteration(ALICE, {PRODUCE: turn})]) == [None] * (len(users) + 1)
            with source_of([alone.bootstrap_servers], "compacted") as newcomer:
                wait_until(lambda newcomer=newcomer: newcomer.quotas == writer.quotas)
            if turn > 20 and len(read()) < turn * len(users) // 2:
                break
            assert time.monotonic() < deadline, "most of it should have been compacted away"
        assert values(writer, ALICE) == {PRODUCE: turn}
        assert len(writer.quotas) == (len(users) + 1 if turn % 3 else 1)


@contextlib.contextmanager
def reader_of(cluster, topic):
    """What gives all offsets that are in the topic now."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])

    def read():
        end = consumer.end_offsets([partition])[partition]
        consumer.seek(partition, 0)
        offsets = []
        while not offsets or (offsets[-1] < end - 1):
            offsets += [record.offset for found in consumer.poll(1000).values() for record in found]
        return offsets

    try:
        yield read
    finally:
        consumer.close()


@pytest.mark.kafka
@pytest.mark.xdist_group("topic-source-alone")
def test_records_of_others_are_problems_and_batches_of_others_are_read(alone):
    with source_of([alone.bootstrap_servers], "foreign") as source:
        wait_until(lambda: source.state.up)
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
        producer = KafkaProducer(bootstrap_servers=alone.bootstrap_servers, compression_type="gzip", acks="all")
        key = key_of(ALICE, PRODUCE)
        sent = [(key, b"nonsense"), (b"foreign", b"record"), (key_of(BOB, FETCH), b'{"format":1,"value":9}')]
        for each_key, value in sent:
            producer.send("foreign", value, key=each_key)
        producer.flush()
        producer.close()
        wait_until(lambda: values(source, BOB) == {FETCH: 9.0})
        assert values(source, ALICE) == {PRODUCE: 5.0}
        assert set(source.problems) == {"offset 1 of foreign", "offset 2 of foreign"}
        assert source.state.up
        assert source.alter([Alteration(ALICE, {PRODUCE: 6.0})]) == [None]
        assert set(source.problems) == {"offset 2 of foreign"}


@pytest.mark.kafka
@pytest.mark.xdist_group("topic-source-alone")
def test_a_topic_with_another_policy_is_refused_and_one_that_is_deleted_leaves_the_quotas(alone, tmp_path):
    topics(alone, "--create", "--topic", "lost")
    path = tmp_path / "last-good.json"
    with source_of([alone.bootstrap_servers], "lost", path) as source:
        wait_until(lambda: "expected cleanup.policy to be compact, got delete" in source.problems.get("topic lost", ""))
        [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 5.0})])
        assert isinstance(outcome, SourceUnavailable)
        configure(alone, "lost", "cleanup.policy=compact,compression.type=uncompressed")
        wait_until(lambda: source.state.up)
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
        topics(alone, "--delete", "--topic", "lost")
        wait_until(lambda: "it was deleted" in source.problems.get("topic lost", ""))
        assert values(source, ALICE) == {PRODUCE: 5.0}
        [outcome] = source.alter([Alteration(BOB, {PRODUCE: 5.0})])
        assert "nothing is written" in str(outcome)
    with source_of([alone.bootstrap_servers], "lost", path) as source:
        assert values(source, ALICE) == {PRODUCE: 5.0}
        assert not source.state.up
        topics(alone, "--create", "--topic", "lost", *CONFIGS)
        wait_until(lambda: source.state.up)
        assert source.quotas == {}
        assert source.alter([Alteration(BOB, {PRODUCE: 6.0})]) == [None]
        assert list(source.quotas) == [BOB]


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.xdist_group("topic-source-alone")
def test_very_many_quotas_are_written_and_read_and_hold_over_a_restart_of_the_node(alone):
    alterations = [Alteration(Entity(f"user-{i}", f"client-{i}"), {PRODUCE: 1e6 + i}) for i in range(MANY)]
    with source_of([alone.bootstrap_servers], "many", timeout_s=60.0, alter_s=60.0) as source:
        wait_until(lambda: source.state.up)
        assert set(source.alter(alterations)) == {None}
        began = time.monotonic()
        with source_of([alone.bootstrap_servers], "many", timeout_s=60.0) as other:
            wait_until(lambda: other.quotas == source.quotas)
            print(f"{MANY} quotas were read in {time.monotonic() - began:.1f} s")
            alone.kill(1)
            wait_until(lambda: source.problems and other.problems)
            assert len(source.quotas) == MANY
            alone.restart(1)
            wait_until(lambda: not source.problems and not other.problems)
            assert other.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
            wait_until(lambda: source.quotas == other.quotas)
            assert len(source.quotas) == MANY + 1
