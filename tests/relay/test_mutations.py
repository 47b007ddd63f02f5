"""What a relay makes of topic mutations of clients with a quota, as scripts of bytes and times."""

import tracemalloc
from itertools import chain, pairwise
from struct import pack

import pytest

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.protocol.messages.topic_mutations import NO_TOPIC_ID
from kafka_throttle.protocol.messages.topic_partitions import partitions_by_id_request, partitions_by_name_request
from kafka_throttle.protocol.primitives import compact_string
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.recent_topics import MAX_TOPICS, REMEMBERED_MS, RecentTopics
from kafka_throttle.proxy.relay.actions import OWN_REQUEST_ID, CloseReason, DecisionKind, DecisionRequest, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.relay.frames import heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, NOW_US, FixedNodes, Script, manager_of
from tests.support.topic_frames import (
    create_partitions,
    create_topics,
    created,
    delete_topics,
    deleted,
    grown,
    grown_topic,
    metadata_by_id,
    metadata_by_name,
    mutated,
    new_topic,
)
from tests.support.whole_messages import finish, read_mutation_response

MUTATION = QuotaType.CONTROLLER_MUTATION
ID_A, ID_B = b"id-of-a-topic...", b"id-of-another..."


def mutation_table(rate: float | None, client_id: str = "etl") -> QuotaTable:
    return QuotaTable({} if rate is None else {Entity(client_id=client_id): {MUTATION: rate}})


def mutation_manager(rate: float | None = 1.0, shadow: float | None = None) -> ClientQuotaManager:
    return manager_of(mutation_table(rate), mutation_table(shadow))


def connected(make_relay, rate: float | None = 1.0, shadow: float | None = None, **how) -> Script:
    return Script(make_relay, mutation_manager(rate, shadow), **how).connected()


def tokens(script: Script, now_ms: int = NOW_MS, shadow: bool = False) -> float:
    [left] = [r.tokens for key, r in script.quota_manager.bucket_readings(now_ms) if key.shadow is shadow]
    return left


def ask(names, corr: int = OWN_REQUEST_ID) -> bytes:
    return partitions_by_name_request(names, corr)


def tell(script: Script, topics: dict[bytes, int], now_ms: int = NOW_MS) -> bytes:
    """Respond to the relay's own request for topics by name; returns what goes to the node then."""
    before = len(script.sent[Side.NODE])
    assert b"cluster" not in script.node(metadata_by_name(OWN_REQUEST_ID, topics), now_ms)
    return bytes(script.sent[Side.NODE][before:])


def create(*topics: tuple[bytes, int], version: int = 7, corr: int = 1, **how) -> bytes:
    return create_topics(version, [new_topic(version, name, count) for name, count in topics], corr=corr, **how)


def made(*results: bytes, corr: int = 1, version: int = 7, throttle_time_ms: int = 0) -> bytes:
    return mutated(CREATE_TOPICS, version, results, corr=corr, throttle_time_ms=throttle_time_ms)


def unknown(*names: bytes) -> dict[bytes, int]:
    return dict.fromkeys(names, -1)


def run_create(script: Script, *topics: tuple[bytes, int], corr: int = 1, now_ms: int = NOW_MS, version: int = 7):
    """Create unknown topics; returns what went to the node after the relay's own request, and to the client."""
    reported = len(script.sent[Side.CLIENT])
    names = [name for name, _ in topics]
    assert script.client(create(*topics, corr=corr, version=version), now_ms) == ask(names)
    sent = tell(script, unknown(*names), now_ms)
    return sent, bytes(script.sent[Side.CLIENT][reported:])


# ------------------------------------------------------------------------------ untouched


@pytest.mark.parametrize("version", range(8))
def test_without_a_mutation_quota_nothing_changes(make_relay, version):
    script = connected(make_relay, None)
    request = create((b"t", 1000), version=version)
    response = made(created(version, b"t", 0, partitions=1000), version=version)
    assert script.client(request + request) == request + request
    assert script.node(response + response) == response + response


def test_clients_without_a_quota_pass_untouched_where_others_have_one_and_their_bucket_is_looked_at(make_relay):
    script = Script(make_relay, manager_of(mutation_table(1.0, "other"))).connected()
    request = create((b"t", 1000))
    assert script.client(request) == request
    assert script.node(made(created(7, b"t"))) == made(created(7, b"t"))
    [reading] = [reading for _, reading in script.quota_manager.bucket_readings(NOW_MS)]
    assert (reading.charges, reading.total) == (1, 0)


def test_validation_alone_is_neither_charged_nor_refused_unless_that_is_wished(make_relay):
    script = connected(make_relay)
    assert run_create(script, (b"a", 12))[0] == create((b"a", 12))
    only = create((b"t", 1000), validate_only=True, corr=2)
    assert script.client(only) == only
    assert tokens(script) == -1.0
    assert script.node(made(created(7, b"a")) + made(created(7, b"t"), corr=2)) != b""
    script.facts.listener.charge_validate_only = True
    script.client(create((b"t", 1000), validate_only=True, corr=3))
    assert tell(script, unknown(b"t")) == b""
    assert script.sent[Side.CLIENT].endswith(made(created(7, b"t", 89), corr=3, throttle_time_ms=1000))


# ------------------------------------------------------------------------------ creation


def test_a_topic_is_looked_up_first_then_charged_and_sent_on(make_relay):
    script = connected(make_relay)
    request = create((b"t", 5))
    assert script.client(request) == ask([b"t"])
    assert script.sent[Side.CLIENT] == b""
    assert not script.relay.idle
    assert tell(script, unknown(b"t")) == request
    assert tokens(script) == 6.0
    assert script.node(made(created(7, b"t"))) == made(created(7, b"t"))
    assert script.relay.idle
    assert (script.relay.requests, script.relay.responses) == (1, 1)
    assert script.wake_at is None
    assert tokens(script) == 6.0


def test_the_request_that_overdraws_passes_and_the_next_is_refused_with_the_time_to_wait(make_relay):
    script = connected(make_relay)
    sent, reported = run_create(script, (b"a", 14))
    assert (sent, reported, script.wake_at) == (create((b"a", 14)), b"", None)
    script.node(made(created(7, b"a")))
    sent, reported = run_create(script, (b"b", 1), corr=2, now_ms=NOW_MS + 500)
    assert (sent, reported) == (b"", made(created(7, b"b", 89), corr=2, throttle_time_ms=2500))
    assert script.wake_at == NOW_MS + 3000
    assert script.counters.mutations_refused == 1
    assert script.counters.throttles[MUTATION] == 1
    assert [(t.quota_type, t.throttle_time_ms) for t in script.throttles] == [(MUTATION, 2500)]
    assert script.client(create((b"b", 1), corr=3), NOW_MS + 600) == b""
    assert script.time(NOW_MS + 3000) == ask([b"b"])
    assert tell(script, unknown(b"b"), NOW_MS + 3000) == create((b"b", 1), corr=3)


@pytest.mark.rule("bucket")
def test_topics_of_one_request_are_decided_one_by_one_and_their_results_keep_its_order(make_relay):
    script = connected(make_relay)
    names = [b"a", b"b", b"c", b"d"]
    script.client(create((b"a", 12), (b"b", 1), (b"c", 0), (b"d", 3)))
    sent = tell(script, unknown(*names))
    assert sent == create((b"a", 12), (b"c", 0))
    response = made(created(7, b"c", 37, message=b"no"), created(7, b"a", partitions=12, configs=2))
    merged = [
        created(7, b"a", partitions=12, configs=2),
        created(7, b"b", 89),
        created(7, b"c", 37, message=b"no"),
        created(7, b"d", 89),
    ]
    assert script.node(response) == made(*merged, throttle_time_ms=1000)
    assert tokens(script) == -1.0
    assert script.counters.mutations_refused == 2
    assert script.relay.idle


def test_old_versions_pass_whole_are_charged_and_mute_the_client_at_once(make_relay):
    script = connected(make_relay)
    request = create((b"a", 12), (b"b", 3), version=5)
    script.client(request + heartbeat(2))
    assert tell(script, unknown(b"a", b"b")) == request
    assert tokens(script) == -4.0
    assert script.wake_at == NOW_MS + 4000
    response = made(created(5, b"a"), created(5, b"b"), version=5)
    assert script.node(response, NOW_MS + 100) == made(
        created(5, b"a"), created(5, b"b"), version=5, throttle_time_ms=3900
    )
    assert script.time(NOW_MS + 4000) == heartbeat(2)


def test_the_last_overdraft_counts_not_the_sum(make_relay):
    script = connected(make_relay, 10.0)
    script.client(create((b"a", 200), (b"b", 0), version=5))
    tell(script, unknown(b"a", b"b"))
    assert script.wake_at == NOW_MS + 9000


def test_what_exists_or_cannot_be_costs_nothing_and_is_never_refused(make_relay):
    script = connected(make_relay)
    topics = [
        new_topic(7, b"there", 1000),
        new_topic(7, b"none", 0),
        new_topic(7, b"fewer", -2),
        new_topic(7, b"twice", 1000),
        new_topic(7, b"twice", 1000),
        new_topic(7, b"bad name", 1000),
        new_topic(7, b"", 1000),
        new_topic(7, b"..", 1000),
        new_topic(7, b"n" * 250, 1000),
        new_topic(7, b"both", 5, -1, assigned=[0, 1]),
        new_topic(7, b"gap", -1, -1, assigned=[0, 2]),
        new_topic(7, b"replicas", 1000, 0),
    ]
    request = create_topics(7, topics)
    names = [b"there", b"none", b"fewer", b"twice", b"both", b"gap", b"replicas"]
    assert script.client(request) == ask(names)
    assert tell(script, {**unknown(*names), b"there": 3}) == request
    assert tokens(script) == 11.0
    script.node(made(created(7, b"there", 36)))
    run_create(script, (b"a", 12), corr=2)
    script.node(made(created(7, b"a"), corr=2))
    assert script.client(request) == ask(names)
    assert tell(script, {**unknown(*names), b"there": 3}) == request


def test_assignments_and_the_default_of_the_cluster_are_counted(make_relay):
    script = connected(make_relay)
    script.facts.listener.default_partitions = lambda: 4
    topics = [new_topic(7, b"a", -1, -1, assigned=[2, 0, 1]), new_topic(7, b"b", -1), new_topic(7, b"c", 1, 3)]
    script.client(create_topics(7, topics))
    tell(script, unknown(b"a", b"b", b"c"))
    assert tokens(script) == 11.0 - 3 - 4 - 1


def test_the_response_corrects_a_wrong_idea_of_the_default_and_of_what_exists(make_relay):
    script = connected(make_relay)
    script.client(create((b"a", -1), (b"b", -1), (b"c", 2)))
    tell(script, {**unknown(b"a", b"b"), b"c": 2})
    assert tokens(script) == 9.0
    script.node(made(created(7, b"c", partitions=2), created(7, b"a", partitions=6), created(7, b"b")))
    assert tokens(script) == 11.0 - 6 - 1 - 2


@pytest.mark.parametrize("version", [4, 7])
def test_what_fails_is_given_back_unless_it_may_still_happen(make_relay, version):
    script = connected(make_relay, 1.0)
    request = create((b"a", 1), (b"b", 2), (b"c", 3), version=version)
    script.client(request)
    assert tell(script, unknown(b"a", b"b", b"c")) == request
    assert tokens(script) == 5.0
    results = (created(version, b"b", 36), created(version, b"c", 7), created(version, b"a"))
    assert script.node(made(*results, version=version)) == made(*results, version=version)
    assert tokens(script) == 7.0


def test_what_a_client_that_is_gone_has_spent_stays_spent(make_relay):
    script = connected(make_relay)
    run_create(script, (b"a", 5))
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    assert tokens(script) == 6.0


# ------------------------------------------------------------------------------ deletion, growth


def test_deletions_cost_the_partitions_there_are(make_relay):
    script = connected(make_relay)
    request = delete_topics(6, [b"a", b"nobody", b"b", ID_A])
    assert script.client(request) == ask([b"a", b"nobody", b"b"]) + partitions_by_id_request([ID_A], OWN_REQUEST_ID)
    assert tell(script, {b"a": 8, b"nobody": -1, b"b": 4}) == b""
    before = len(script.sent[Side.NODE])
    script.node(metadata_by_id(OWN_REQUEST_ID, {ID_A: 3}))
    assert script.sent[Side.NODE][before:] == delete_topics(6, [b"a", b"nobody", b"b"])
    results = [deleted(6, b"b"), deleted(6, b"a"), deleted(6, b"nobody", 3)]
    by_id = compact_string(ID_A) + ID_A + pack(">h", 89) + b"\0\0"
    merged = [deleted(6, b"a"), deleted(6, b"nobody", 3), deleted(6, b"b"), by_id]
    expected = mutated(DELETE_TOPICS, 6, merged, throttle_time_ms=1000)
    assert script.node(mutated(DELETE_TOPICS, 6, results)) == expected
    assert tokens(script) == -1.0


def test_a_topic_named_twice_is_deleted_once_or_refused_twice(make_relay):
    script = connected(make_relay)
    script.client(delete_topics(5, [b"a", b"b", b"a"]))
    assert tell(script, {b"a": 6, b"b": 7}) == delete_topics(5, [b"a", b"b", b"a"])
    assert tokens(script) == -2.0
    script.client(delete_topics(5, [b"a", b"b", b"a"], corr=2))
    assert tell(script, {b"a": 6, b"b": 7}) == b""


@pytest.mark.parametrize("version", range(5))
def test_deletions_of_old_versions_all_pass(make_relay, version):
    script = connected(make_relay)
    request = delete_topics(version, [b"a", b"b"])
    script.client(request)
    assert tell(script, {b"a": 20, b"b": 1}) == request
    assert script.wake_at == NOW_MS + 10_000


def test_a_deletion_that_names_nothing_or_too_much_passes_for_nothing(make_relay):
    script = connected(make_relay)
    for i, names in enumerate(([], [b"\xff\xfe"], [b""])):
        request = delete_topics(6, names, corr=i)
        assert script.client(request) == request
    assert tokens(script) == 11.0


def test_added_partitions_are_charged(make_relay):
    script = connected(make_relay)
    topics = [
        grown_topic(3, b"a", 5),
        grown_topic(3, b"fewer", 2),
        grown_topic(3, b"nobody", 9),
        grown_topic(3, b"unfit", 9, 2),
        grown_topic(3, b"fit", 6, 3),
        grown_topic(3, b"twice", 100),
        grown_topic(3, b"twice", 100),
    ]
    request = create_partitions(3, topics)
    names = [b"a", b"fewer", b"nobody", b"unfit", b"fit", b"twice"]
    assert script.client(request) == ask(names)
    assert tell(script, {**dict.fromkeys(names, 3), b"nobody": -1}) == request
    assert tokens(script) == 11.0 - 2 - 3


@pytest.mark.parametrize(("version", "refuses"), [(1, False), (2, False), (3, True)])
def test_growth_is_refused_from_version_3_on(make_relay, version, refuses):
    script = connected(make_relay)
    topics = [grown_topic(version, b"a", 13), grown_topic(version, b"b", 2), grown_topic(version, b"c", 1)]
    script.client(create_partitions(version, topics))
    kept = [topics[0], topics[2]] if refuses else topics
    assert tell(script, {b"a": 1, b"b": 1, b"c": 1}) == create_partitions(version, kept)
    results = [grown(version, b"c", 37), grown(version, b"a"), grown(version, b"b", 89)]
    reported = script.node(mutated(CREATE_PARTITIONS, version, results[: 3 - refuses]), NOW_MS + 10)
    order = [results[1], results[2], results[0]] if refuses else results
    expected = mutated(CREATE_PARTITIONS, version, order, throttle_time_ms=990 if refuses else 1990)
    assert reported == expected


# ------------------------------------------------------------------------------ nodes that lag behind


def test_partitions_that_a_node_does_not_know_of_yet_are_charged(make_relay):
    """A node responds before its own view of the cluster has the change that it has just had made."""
    script = connected(make_relay, 10.0)
    run_create(script, (b"t", 5))
    grow = create_partitions(3, [grown_topic(3, b"t", 100)], corr=2)
    assert script.client(grow) == ask([b"t"])
    script.node(made(created(7, b"t", partitions=5)) + metadata_by_name(OWN_REQUEST_ID, unknown(b"t")))
    assert script.sent[Side.NODE].endswith(grow)
    assert tokens(script) == 110.0 - 5 - 95
    script.node(mutated(CREATE_PARTITIONS, 3, [grown(3, b"t")], corr=2))
    script.client(delete_topics(6, [b"t"], corr=3))
    tell(script, {b"t": 5})
    assert tokens(script) == 10.0 - 100


def test_a_topic_that_a_node_does_not_know_of_yet_costs_its_partitions_by_its_id_too(make_relay):
    script = connected(make_relay)
    run_create(script, (b"t", 5))
    topic_id = b"idt" + b"." * 13
    assert created(7, b"t").count(topic_id) == 1
    script.node(made(created(7, b"t")))
    script.client(delete_topics(6, [topic_id], corr=2))
    script.node(metadata_by_id(OWN_REQUEST_ID, {topic_id: -1}))
    assert tokens(script) == 1.0


def test_a_topic_that_is_gone_may_be_created_anew_and_is_charged(make_relay):
    script = connected(make_relay)
    script.client(delete_topics(5, [b"t"]))
    tell(script, {b"t": 12})
    script.node(mutated(DELETE_TOPICS, 5, [deleted(5, b"t")]))
    script.client(create((b"t", 12), corr=2))
    assert tell(script, {b"t": 12}) == b""
    assert script.sent[Side.CLIENT].endswith(made(created(7, b"t", 89), corr=2, throttle_time_ms=1000))
    script.time(NOW_MS + 11_000)
    script.client(create((b"t", 12), corr=3), NOW_MS + 11_000)
    assert tell(script, {b"t": 12}, NOW_MS + 11_000) == create((b"t", 12), corr=3)
    assert tokens(script, NOW_MS + 11_000) == 10.0


def test_what_was_only_validated_has_changed_nothing(make_relay):
    script = connected(make_relay)
    script.facts.listener.charge_validate_only = True
    script.client(create((b"t", 3), validate_only=True))
    tell(script, unknown(b"t"))
    script.node(made(created(7, b"t", partitions=3)))
    assert tokens(script) == 8.0
    script.client(delete_topics(5, [b"t"], corr=2))
    tell(script, unknown(b"t"))
    assert tokens(script) == 8.0


def test_only_the_latest_changes_are_remembered():
    recent = RecentTopics()
    for i in range(MAX_TOPICS + 5):
        recent.note(b"%d" % i, NO_TOPIC_ID, i, NOW_MS)
    assert recent.partitions((b"4", NO_TOPIC_ID), NOW_MS) is None
    assert recent.partitions((b"5", NO_TOPIC_ID), NOW_MS + REMEMBERED_MS - 1) == 5
    assert recent.partitions((b"5", NO_TOPIC_ID), NOW_MS + REMEMBERED_MS) is None
    assert recent.partitions((None, NO_TOPIC_ID), NOW_MS) is None


# ------------------------------------------------------------------------------ among other requests


def test_requests_behind_a_mutation_wait_and_keep_their_order(make_relay):
    script = connected(make_relay)
    stream = heartbeat(1) + create((b"a", 1), corr=2) + heartbeat(3)
    assert script.client(stream) == heartbeat(1) + ask([b"a"])
    assert script.client(heartbeat(4)) == b""
    before = len(script.sent[Side.NODE])
    responses = heartbeaten(1) + metadata_by_name(OWN_REQUEST_ID, unknown(b"a"))
    assert script.node(responses) == heartbeaten(1)
    assert script.sent[Side.NODE][before:] == create((b"a", 1), corr=2) + heartbeat(3) + heartbeat(4)
    responses = made(created(7, b"a"), corr=2) + heartbeaten(3) + heartbeaten(4)
    assert script.node(responses) == responses
    assert script.relay.responses == 4


@pytest.mark.parametrize("corr", [OWN_REQUEST_ID, 1])
def test_ids_may_be_those_of_the_proxy_itself(make_relay, corr):
    script = connected(make_relay)
    request = create((b"a", 1), corr=corr)
    assert script.client(heartbeat(corr) + request) == heartbeat(corr) + ask([b"a"])
    responses = heartbeaten(corr) + metadata_by_name(OWN_REQUEST_ID, unknown(b"a"))
    assert script.node(responses[:-5]) == heartbeaten(corr)
    assert script.node(responses[-5:]) == b""
    assert script.node(made(created(7, b"a"), corr=corr)) == made(created(7, b"a"), corr=corr)


def test_our_own_response_waits_for_those_before_it(make_relay):
    script = connected(make_relay)
    run_create(script, (b"a", 12))
    script.client(produce(2) + create((b"b", 1), corr=3))
    assert script.node(made(created(7, b"a"))) == made(created(7, b"a"))
    reported = script.node(produced(2) + metadata_by_name(OWN_REQUEST_ID, unknown(b"b")))
    assert reported == produced(2) + made(created(7, b"b", 89), corr=3, throttle_time_ms=1000)


def test_connections_share_one_bucket(make_relay):
    quota_manager = mutation_manager()
    one, two = Script(make_relay, quota_manager).connected(), Script(make_relay, quota_manager).connected()
    one.client(create((b"a", 12)))
    two.client(create((b"b", 12)))
    assert tokens(one) == 11.0
    assert tell(two, unknown(b"b")) == create((b"b", 12))
    assert tell(one, unknown(b"a")) == b""
    assert one.sent[Side.CLIENT] == made(created(7, b"a", 89), throttle_time_ms=1000)


def test_a_quota_that_comes_or_goes_while_the_node_is_asked_counts(make_relay):
    script = connected(make_relay)
    run_create(script, (b"a", 12))
    script.node(made(created(7, b"a")))
    script.client(create((b"b", 1), corr=2))
    script.quota_manager.replace(mutation_table(None), NOW_MS)
    assert tell(script, unknown(b"b"), NOW_MS + 1) == create((b"b", 1), corr=2)
    assert script.client(create((b"c", 1), corr=3), NOW_MS + 1) == create((b"c", 1), corr=3)
    script.quota_manager.replace(mutation_table(1.0), NOW_MS + 1)
    assert script.client(create((b"d", 1), corr=4), NOW_MS + 1) == ask([b"d"])


def test_a_decision_made_while_the_client_was_muted_is_carried_out_when_that_is_over(make_relay):
    """An earlier response brings the node's own throttle time; what is left of the proxy's is then less."""
    script = connected(make_relay)
    run_create(script, (b"a", 13))
    script.node(made(created(7, b"a")))
    script.client(heartbeat(2) + create((b"b", 1), corr=3))
    script.node(heartbeaten(2, throttle_time_ms=500))
    script.node(metadata_by_name(OWN_REQUEST_ID, unknown(b"b")))
    assert not script.sent[Side.CLIENT].endswith(made(created(7, b"b", 89), corr=3, throttle_time_ms=2000))
    script.time(NOW_MS + 500)
    assert script.sent[Side.CLIENT].endswith(made(created(7, b"b", 89), corr=3, throttle_time_ms=1500))
    assert script.wake_at == NOW_MS + 2000


def test_a_muted_client_that_goes_has_spent_nothing_on_what_waited_behind_the_mute(make_relay):
    script = connected(make_relay)
    script.client(heartbeat(1) + create((b"a", 5), corr=2))
    script.node(heartbeaten(1, throttle_time_ms=500) + metadata_by_name(OWN_REQUEST_ID, unknown(b"a")))
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    assert script.quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS).mutation is not None
    assert tokens(script) == 11.0


def test_a_client_that_has_hung_up_meanwhile_has_its_request_carried(make_relay):
    script = connected(make_relay)
    script.client(create((b"a", 1)))
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.closed is None
    assert tell(script, unknown(b"a")) == create((b"a", 1))
    assert script.close_reason is CloseReason.CLIENT_CLOSED


def test_what_a_client_asked_before_it_hung_up_waits_until_it_reads_again(make_relay):
    script = connected(make_relay)
    script.do(script.relay.on_blocked(Side.CLIENT))
    assert script.client(create((b"a", 1))) == b""
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.closed is None
    script.do(script.relay.on_writable(Side.CLIENT, NOW_US))
    assert tell(script, unknown(b"a")) == create((b"a", 1))
    assert script.close_reason is CloseReason.CLIENT_CLOSED


# ------------------------------------------------------------------------------ shadows


def test_a_shadow_quota_refuses_no_request_and_counts_what_it_would_have_refused(make_relay):
    script = connected(make_relay, None, 1.0)
    for i, expected in ((1, -1.0), (2, -1.0)):
        sent, reported = run_create(script, (b"t%d" % i, 12), corr=i)
        assert (sent, reported) == (create((b"t%d" % i, 12), corr=i), b"")
        assert tokens(script, shadow=True) == expected
        response = made(created(7, b"t", 41 * (i - 1)), corr=i)
        assert script.node(response) == response
    [(key, reading)] = list(script.quota_manager.bucket_readings(NOW_MS))
    assert (key.shadow, reading.refusals, reading.tokens) == (True, 1, -1.0)
    assert script.wake_at is None
    assert script.counters.mutations_refused == 0


def test_a_shadow_beside_a_quota_is_charged_what_passes_and_given_back_what_fails(make_relay):
    script = connected(make_relay, 1.0, 2.0)
    script.client(create((b"a", 11), (b"b", 1), (b"c", 5)))
    assert tell(script, unknown(b"a", b"b", b"c")) == create((b"a", 11), (b"b", 1))
    assert (tokens(script), tokens(script, shadow=True)) == (-1.0, 10.0)
    script.node(made(created(7, b"a", 41), created(7, b"b")))
    assert (tokens(script), tokens(script, shadow=True)) == (10.0, 21.0)


def test_a_request_too_large_to_judge_passes_a_shadow_and_is_refused_by_a_quota(make_relay):
    large = create(*((b"t%040d" % i, 1) for i in range(25_000)))
    script = connected(make_relay, None, 1.0)
    assert script.client(large) == large
    script = connected(make_relay, 1.0, 1.0)
    script.client(large[:100])
    assert script.close_reason is CloseReason.REQUEST_TOO_LARGE


# ------------------------------------------------------------------------------ bad bytes, bounds


def test_what_cannot_be_understood_ends_the_connection(make_relay):
    script = connected(make_relay)
    request = create((b"a", 1))
    script.client(pack(">i", len(request) - 3) + request[4:] + b"\0")
    assert script.close_reason is CloseReason.REQUEST_MALFORMED
    assert script.sent[Side.NODE] == b""


MANY = [b"topic-%05d" % i for i in range(12_000)]


@pytest.mark.parametrize("version", [4, 7])
def test_more_than_ten_thousand_topics_are_created_as_without_a_quota(make_relay, version):
    script = connected(make_relay, 1e6)
    request = create(*[(name, 2) for name in MANY], version=version)
    assert script.client(request) == ask(MANY)
    assert tell(script, unknown(*MANY)) == request
    assert tokens(script) == 11e6 - 24_000
    response = made(*[created(version, name) for name in reversed(MANY)], version=version)
    assert script.node(response) == response
    assert tokens(script) == 11e6 - 24_000


@pytest.mark.parametrize("rate", [0.001, 10.0, 1000.0])
def test_of_more_than_ten_thousand_topics_each_gets_a_result(make_relay, rate):
    """As by a broker: topics pass until one of them has overdrawn the bucket."""
    script = connected(make_relay, rate)
    passing = int(11 * rate) + 1
    script.client(create_partitions(3, [grown_topic(3, name, 2) for name in MANY]))
    sent = tell(script, dict.fromkeys(MANY, 1))
    assert sent == create_partitions(3, [grown_topic(3, name, 2) for name in MANY[:passing]])
    assert script.counters.mutations_refused == len(MANY) - passing
    reported = script.node(mutated(CREATE_PARTITIONS, 3, [grown(3, name) for name in MANY[:passing]]))
    errors = [result.error_code for result in read_mutation_response(reported, CREATE_PARTITIONS, 3).results]
    assert errors == [0] * passing + [89] * (len(MANY) - passing)


def test_a_topic_of_more_than_ten_thousand_assignments_is_created(make_relay):
    script = connected(make_relay, 1e6)
    request = create_topics(7, [new_topic(7, b"t", -1, assigned=range(12_000))])
    script.client(request)
    assert tell(script, unknown(b"t")) == request
    assert tokens(script) == 11e6 - 12_000


def test_very_many_topics_are_decided_and_settled_in_steps(make_relay):
    script = connected(make_relay, 1e6)
    script.hold_decisions = True
    responses = [metadata_by_name(OWN_REQUEST_ID, unknown(*MANY)), made(*[created(7, name, 37) for name in MANY])]
    script.client(create(*[(name, 2) for name in MANY]))
    for most_topics_a_step, response in ((100, b""), (100, responses[0]), (100, responses[1])):
        if response:
            script.node(response)
        [one] = script.asks
        script.asks = []
        work = decide(one, script.facts, NOW_MS)
        decision, steps = None, 1
        while decision is None:
            try:
                next(work.steps)
            except StopIteration as end:
                decision = end.value
            steps += 1
        assert steps >= len(MANY) // most_topics_a_step
        script.do(script.relay.on_decision(one.ticket, decision, NOW_US))
    assert tokens(script) == 11e6
    assert script.sent[Side.CLIENT] == responses[1]


def test_a_quota_that_is_removed_while_very_many_topics_are_decided_charges_the_rest_nothing(make_relay):
    script = connected(make_relay, 1e6)
    script.client(create(*[(name, 2) for name in MANY]))
    script.hold_decisions = True
    script.node(metadata_by_name(OWN_REQUEST_ID, unknown(*MANY)))
    [one] = script.asks
    script.asks = []
    work = decide(one, script.facts, NOW_MS)
    while tokens(script) == 11e6:
        next(work.steps)
    script.quota_manager.replace(mutation_table(None), NOW_MS)
    script.quota_manager.expire(NOW_MS + 4_000_000)
    decision = finish(work.steps)
    script.do(script.relay.on_decision(one.ticket, decision, NOW_US))
    assert script.sent[Side.NODE].endswith(create(*[(name, 2) for name in MANY]))


def test_the_refusal_of_a_topic_by_its_id_has_its_name(make_relay):
    script = connected(make_relay)
    script.client(delete_topics(6, [ID_A, ID_B]))
    known = topic_partitions_by_id({ID_A: (b"orders", 12), ID_B: (b"payments", 3)})
    assert b"cluster" not in script.node(known)
    assert script.sent[Side.NODE].endswith(delete_topics(6, [ID_A]))
    reported = script.node(mutated(DELETE_TOPICS, 6, [compact_string(b"orders") + ID_A + b"\0\0\0\0"]))
    results = read_mutation_response(reported, DELETE_TOPICS, 6).results
    assert [(r.name, r.topic_id, r.error_code) for r in results] == [(b"orders", ID_A, 0), (b"payments", ID_B, 89)]


def test_a_topic_that_was_deleted_before_the_node_reported_it_is_known_as_deleted(make_relay):
    script = connected(make_relay, rate=5.0)
    script.client(delete_topics(5, [b"known", b"early"]))
    script.node(metadata_by_name(OWN_REQUEST_ID, {b"known": 1, b"early": -1}))
    script.node(mutated(DELETE_TOPICS, 5, [deleted(5, b"known"), deleted(5, b"early")]))
    before = tokens(script)
    script.client(create((b"early", 3)))
    script.node(metadata_by_name(OWN_REQUEST_ID, {b"early": 2}))
    assert tokens(script) == before - 3


def topic_partitions_by_id(topics: dict[bytes, tuple[bytes, int]]) -> bytes:
    """The response to Metadata v12, the relay's own request by id, with the names of the topics."""
    frame = metadata_by_id(OWN_REQUEST_ID, {topic_id: count for topic_id, (_, count) in topics.items()})
    for topic_id, (name, _) in topics.items():
        frame = frame.replace(compact_string(topic_id) + topic_id, compact_string(name) + topic_id)
    return pack(">i", len(frame) - 4) + frame[4:]


@pytest.mark.parametrize(
    "response",
    [metadata_by_name(OWN_REQUEST_ID, {b"a": 2})[:-1], made(created(7, b"a"), corr=OWN_REQUEST_ID)],
    ids=["too short", "something else"],
)
def test_an_own_request_with_a_malformed_response_ends_the_connection(make_relay, response):
    script = connected(make_relay)
    script.client(create((b"a", 1)))
    script.node(pack(">i", len(response) - 4) + response[4:])
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED
    assert script.sent[Side.CLIENT] == b""


def test_what_came_before_a_response_that_ends_the_connection_goes_out_once(make_relay):
    script = connected(make_relay)
    script.client(heartbeat(1) + create((b"a", 1), corr=2))
    script.node(heartbeaten(1) + metadata_by_name(OWN_REQUEST_ID + 1, unknown(b"a")))
    assert script.close_reason is CloseReason.RESPONSE_UNEXPECTED
    assert script.sent[Side.CLIENT] == heartbeaten(1)


def test_a_malformed_response_ends_the_connection(make_relay):
    script = connected(make_relay)
    run_create(script, (b"a", 1))
    script.node(made(created(6, b"a")))
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED
    assert script.sent[Side.CLIENT] == b""


def test_a_response_too_large_to_be_held_ends_the_connection(make_relay):
    script = connected(make_relay)
    script.client(create((b"a", 1)))
    script.node(pack(">ii", 33 * 1024 * 1024, OWN_REQUEST_ID))
    assert script.close_reason is CloseReason.RESPONSE_TOO_LARGE


@pytest.mark.parametrize("size", [1, 3, 8, 50])
def test_everything_may_come_in_pieces(make_relay, size):
    script = connected(make_relay)
    requests = heartbeat(1) + create((b"a", 12), (b"b", 1), corr=2) + heartbeat(3)
    expected = heartbeaten(1) + made(created(7, b"a"), created(7, b"b", 89), corr=2, throttle_time_ms=1000)
    for i in range(0, len(requests), size):
        script.client(requests[i : i + size])
    for responses in (
        heartbeaten(1) + metadata_by_name(OWN_REQUEST_ID, unknown(b"a", b"b")),
        made(created(7, b"a"), corr=2),
    ):
        for i in range(0, len(responses), size):
            script.node(responses[i : i + size])
    script.time(NOW_MS + 1000)
    script.node(heartbeaten(3), NOW_MS + 1000)
    assert script.sent[Side.CLIENT] == expected + heartbeaten(3)
    assert script.sent[Side.NODE] == heartbeat(1) + ask([b"a", b"b"]) + create((b"a", 12), corr=2) + heartbeat(3)


def test_a_full_queue_does_not_keep_the_proxy_from_its_own_requests(make_relay):
    script = connected(make_relay, limits=RelayLimits(max_in_flight=1))
    assert script.client(create((b"a", 1)) + heartbeat(2)) == ask([b"a"])
    assert tell(script, unknown(b"a")) == create((b"a", 1))
    before = len(script.sent[Side.NODE])
    assert script.node(made(created(7, b"a"))) == made(created(7, b"a"))
    assert script.sent[Side.NODE][before:] == heartbeat(2)


def test_what_is_held_is_counted_and_a_slow_client_is_not_asked_for_more(make_relay):
    script = connected(make_relay)
    script.client(create((b"a", 1)))
    script.node(metadata_by_name(OWN_REQUEST_ID, unknown(b"a"))[:40])
    assert script.relay.held_bytes == len(create((b"a", 1))) + 40
    script.do(script.relay.on_blocked(Side.CLIENT))
    assert not script.reads[Side.NODE]


# ------------------------------------------------------------------------------ behind the end of the client

HUGE = 2_000_000_000
MOST_OWED = 60.0
"""What a rate of 1/s may owe for topics that no response has confirmed: `max_debt_ms`."""
REFUSED = made(created(7, b"big", 37, message=b"too many"), corr=2)
GONE = [CloseReason.CLIENT_LOST, CloseReason.IDLE_TIMEOUT, CloseReason.CLIENT_READS_NOTHING]


def huge(make_relay, **how) -> Script:
    """A creation of very many partitions is in flight between two heartbeats."""
    script = connected(make_relay, **how)
    script.client(heartbeat(1) + create((b"big", HUGE), corr=2) + heartbeat(3))
    script.node(heartbeaten(1))
    assert tell(script, unknown(b"big")) == create((b"big", HUGE), corr=2) + heartbeat(3)
    return script


def lose_client(script: Script, reason: CloseReason = CloseReason.CLIENT_LOST, now_ms: int = NOW_MS) -> None:
    script.do(script.relay.on_lost(reason, "", 1000 * now_ms), now_ms)
    assert script.closed is not None


def test_what_is_not_confirmed_overdraws_by_no_more_than_the_longest_debt(make_relay):
    script = huge(make_relay)
    assert tokens(script) == -MOST_OWED
    script.node(REFUSED)
    assert tokens(script) == 11.0


@pytest.mark.parametrize(("rate", "charged"), [(1.0, 71), (100.0, 7100), (0.001, 1)])
def test_what_was_done_is_charged_whole_however_much(make_relay, rate, charged):
    script = connected(make_relay, rate, shadow=rate)
    run_create(script, (b"big", 50_000))
    assert [tokens(script, shadow=shadow) for shadow in (False, True)] == [pytest.approx(11 * rate - charged)] * 2
    script.node(made(created(7, b"big", partitions=50_000)))
    assert [tokens(script, shadow=shadow) for shadow in (False, True)] == [pytest.approx(11 * rate - 50_000)] * 2


def test_old_versions_are_charged_for_all_topics_that_were_done(make_relay):
    script = connected(make_relay, 1.0, shadow=1.0)
    names = (b"a", b"b", b"c")
    run_create(script, *[(name, 100) for name in names], version=5)
    assert tokens(script) == tokens(script, shadow=True) == -MOST_OWED
    script.node(made(*[created(5, name) for name in names], version=5))
    assert tokens(script) == tokens(script, shadow=True) == 11.0 - 300


@pytest.mark.parametrize("reason", GONE)
@pytest.mark.parametrize("cut", [*range(0, len(REFUSED) + 1, 7), len(REFUSED)])
def test_what_the_node_refuses_is_given_back_when_the_client_has_gone_meanwhile(make_relay, reason, cut):
    script = huge(make_relay)
    script.node(REFUSED[:cut])
    lose_client(script, reason)
    for at in range(cut, len(REFUSED)):
        assert script.relay.unsettled
        assert script.hung_up == 0
        script.node(REFUSED[at : at + 1])
    assert tokens(script) == 11.0
    assert not script.relay.unsettled
    assert script.hung_up == (cut < len(REFUSED))


def test_a_client_that_goes_before_its_request_was_sent_gets_its_tokens_back(make_relay):
    script = connected(make_relay, rate=1.0, shadow=1.0)
    script.client(create((b"big", HUGE)))
    script.hold_decisions = True
    script.node(metadata_by_name(OWN_REQUEST_ID, unknown(b"big")))
    [ask_of_it] = script.asks
    script.asks = []
    decision = decide(ask_of_it, script.facts, NOW_MS)
    assert tokens(script) == tokens(script, shadow=True) == -MOST_OWED
    lose_client(script)
    script.hold_decisions = False
    script.do(script.relay.on_decision(ask_of_it.ticket, decision, NOW_US))
    assert tokens(script) == tokens(script, shadow=True) == 11.0
    assert script.relay.on_decision(ask_of_it.ticket, decision, NOW_US) == []


@pytest.mark.parametrize(
    "bytes_of_node", [heartbeaten(9), b"\xff" * 12, REFUSED[:-1] + b"\1", pack(">ii", 2**31 - 1, 2)]
)
def test_a_node_that_says_something_else_behind_the_end_is_hung_up_on_and_the_charge_stays(make_relay, bytes_of_node):
    script = huge(make_relay)
    lose_client(script)
    script.node(bytes_of_node)
    assert (script.hung_up, script.relay.unsettled) == (1, False)
    assert tokens(script) == -MOST_OWED
    assert script.relay.on_bytes(Side.NODE, REFUSED, NOW_US) == []


def test_a_node_that_closes_behind_the_end_is_hung_up_on_and_the_charge_stays(make_relay):
    script = huge(make_relay)
    lose_client(script)
    script.do(script.relay.on_eof(Side.NODE, NOW_US))
    assert (script.hung_up, script.relay.unsettled, tokens(script)) == (1, False, -MOST_OWED)


@pytest.mark.parametrize("reason", [CloseReason.NODE_LOST, CloseReason.SHUTDOWN, CloseReason.INTERNAL_ERROR])
def test_where_no_response_can_come_none_is_waited_for(make_relay, reason):
    script = huge(make_relay)
    lose_client(script, reason)
    assert not script.relay.unsettled
    assert tokens(script) == -MOST_OWED


def test_a_connection_that_owes_no_mutation_ends_as_ever(make_relay):
    script = connected(make_relay)
    script.client(heartbeat(1))
    lose_client(script)
    assert not script.relay.unsettled
    assert script.node(heartbeaten(1)) == b""
    assert script.hung_up == 0


def test_a_node_that_was_not_read_is_read_again_behind_the_end(make_relay):
    script = huge(make_relay)
    script.do(script.relay.on_blocked(Side.CLIENT))
    assert not script.reads[Side.NODE]
    lose_client(script, CloseReason.CLIENT_READS_NOTHING)
    assert script.reads[Side.NODE]
    script.node(REFUSED)
    assert tokens(script) == 11.0


def test_a_response_that_is_being_decided_about_when_the_client_goes_is_settled(make_relay):
    script = huge(make_relay)
    script.hold_decisions = True
    script.node(REFUSED)
    lose_client(script)
    assert not script.relay.unsettled
    script.response_asks()
    assert tokens(script) == 11.0


def test_a_response_that_is_held_when_the_client_goes_is_settled_once(make_relay):
    script = connected(make_relay, 1.0, limits=RelayLimits(delays=True))
    run_create(script, (b"a", 5), (b"b", 15), version=5)
    assert script.node(made(created(5, b"a"), created(5, b"b", 37), version=5)) == b""
    assert tokens(script) == 6.0
    lose_client(script)
    assert tokens(script) == 6.0


def _decide_about(frame, responses=()):
    """The steps of a decision about a request."""
    quota_manager = manager_of({Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 5.0}})
    facts = ConnectionFacts(ListenerFacts("main", FixedNodes(), quota_manager, carried), 1, "ANONYMOUS")
    ask = DecisionRequest(1, DecisionKind.MUTATION, Side.CLIENT, DELETE_TOPICS, 5, frame, b"etl", 0, responses)
    return decide(ask, facts, NOW_MS).steps


def _most_bytes(steps):
    """The most memory that was taken at a time while these steps were taken."""
    tracemalloc.start()
    finish(steps)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_a_name_takes_tens_of_bytes_until_it_is_decided_about():
    names = [b"%x" % number for number in range(20_000)]
    frame = delete_topics(5, names)
    response = metadata_by_name(OWN_REQUEST_ID, dict.fromkeys(names, -1))
    assert _most_bytes(_decide_about(frame)) < 50 * len(names)
    assert _most_bytes(_decide_about(frame, (response,))) < 50 * len(names)


def _changes(steps):
    """By how many bytes each step of these changes the memory that is taken."""
    tracemalloc.start()
    sizes = [tracemalloc.get_traced_memory()[0] for _ in chain(steps, range(1))]
    tracemalloc.stop()
    return [abs(after - before) for before, after in pairwise(sizes)]


@pytest.mark.parametrize("known", [False, True])
def test_no_step_of_a_decision_takes_or_frees_much_memory(known):
    names = [b"%x" % number for number in range(40_000)]
    responses = (metadata_by_name(OWN_REQUEST_ID, dict.fromkeys(names, -1)),) if known else ()
    frame = delete_topics(5, names)
    runs = [_changes(_decide_about(frame, responses)) for _ in range(3)]
    same_steps = zip(*runs, strict=True)  # another thread of the test run may take memory meanwhile, but not each time
    assert max(map(min, same_steps)) < 20 * len(names)
