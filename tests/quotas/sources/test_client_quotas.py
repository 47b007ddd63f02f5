"""Quotas as a cluster reports them, and invalid ones among them (quota semantics 11)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors
from kafka.protocol.admin import DescribeClientQuotasResponse

from kafka_throttle.protocol.messages.client_quotas import AlteredEntity, EntityPart, Verbatim, all_quotas_request
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.client_quotas import alter_request, altered, reported, shows
from tests.fakes.kafka_quotas import FakeCluster

PRODUCE, FETCH, CONNECTION = (
    QuotaKey(quota_type) for quota_type in (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.CONNECTION)
)
ALICE = (("user", "alice"),)


def read(quotas, last_good=NO_QUOTAS):
    return reported(FakeCluster(quotas).response(all_quotas_request()), last_good)


@pytest.mark.parametrize(
    ("parts", "entity"),
    [
        (ALICE, Entity("alice")),
        ((("user", None),), Entity(DEFAULT)),
        ((("user", "<default>"),), Entity("<default>")),
        ((("client-id", "app"),), Entity(client_id="app")),
        ((("client-id", None),), Entity(client_id=DEFAULT)),
        ((("client-id", "app"), ("user", "alice")), Entity("alice", "app")),
        ((("user", "alice"), ("client-id", None)), Entity("alice", DEFAULT)),
        ((("user", None), ("client-id", None)), Entity(DEFAULT, DEFAULT)),
        ((("user", "ユーザー/ +%\n"),), Entity("ユーザー/ +%\n")),
    ],
)
def test_every_kind_of_entity_is_read(parts, entity):
    assert read({parts: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}}) == (
        {entity: {PRODUCE: Limit(1024.0, "cluster"), QuotaKey(QuotaType.REQUEST): Limit(12.5, "cluster")}},
        {},
        {},
    )


@pytest.mark.parametrize("name", ["10.0.0.1", None, "::1"])
def test_quotas_of_addresses_are_read_and_may_be_0(name):
    ip = DEFAULT if name is None else name
    quotas = read({(("ip", name),): {"connection_creation_rate": 0.0}}).quotas
    assert quotas == {Entity(ip=ip): {CONNECTION: Limit(0.0, "cluster")}}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"producer_byte_rate": math.nan}, "producer_byte_rate of user=alice: expected a whole number"),
        ({"producer_byte_rate": 1e-9}, "got 1e-09"),
        ({"producer_byte_rate": 0.0}, "from 1 to 2^63-1"),
        ({"producer_byte_rate": -1.0}, "got -1.0"),
        ({"request_percentage": math.inf}, "expected a number above 0"),
        ({"connection_creation_rate": 5.0}, "expected an address, as nothing else has this quota, got "),
        ({"colour": 5.0}, "unknown quota 'colour'"),
        ({"shadow_producer_byte_rate": 5.0}, "unknown quota 'shadow_producer_byte_rate'"),
    ],
)
def test_an_invalid_or_unknown_quota_is_reported_and_takes_no_other_away(values, problem):
    told = {"consumer_byte_rate": 7.0, **values}
    others = {(("user", "bob"),): {"producer_byte_rate": 9.0}}
    found = read({ALICE: told, **others}, {Entity("gone"): {PRODUCE: Limit(5.0, "cluster")}})
    assert found.quotas == {
        Entity("alice"): {QuotaKey(QuotaType.FETCH): Limit(7.0, "cluster")},
        Entity("bob"): {PRODUCE: Limit(9.0, "cluster")},
    }
    assert list(found.problems) == ["user=alice"]
    assert problem in found.problems["user=alice"]


def test_an_invalid_quota_keeps_its_last_good_value_as_long_as_the_cluster_has_it():
    good = {PRODUCE: Limit(5.0, "cluster")}
    both = {"producer_byte_rate": math.nan, "consumer_byte_rate": 7.0}
    of_fetches = {QuotaKey(QuotaType.FETCH): Limit(7.0, "cluster")}
    assert read({ALICE: both}, {Entity("alice"): good}).quotas == {Entity("alice"): good | of_fetches}
    assert read({ALICE: {"consumer_byte_rate": 7.0}}, {Entity("alice"): good}).quotas == {Entity("alice"): of_fetches}


def test_all_that_is_wrong_with_an_entity_is_reported():
    found = read({ALICE: {"colour": 5.0, "producer_byte_rate": -1.0, "weight": 1.0}})
    assert found.quotas == {}
    assert "colour" in found.problems["user=alice"]
    assert "got -1.0" in found.problems["user=alice"]
    assert "weight" in found.problems["user=alice"]


@pytest.mark.parametrize(
    ("parts", "place", "problem"),
    [
        ((), "an entity without parts", "expected a user, a client-id or an ip, got nothing"),
        ((("group", "x"),), "group='x'", "unknown entity type 'group'"),
        ((("user", ""),), "user=''", "empty name"),
        ((("user", "a"), ("user", "b")), "user='a', user='b'", "two of the entity type 'user'"),
        ((("user", "a"), ("ip", "::1")), "user='a', ip='::1'", "expected an ip by itself"),
    ],
)
def test_an_invalid_entity_is_reported_and_left_out(parts, place, problem):
    found = read({parts: {"producer_byte_rate": 5.0}, ALICE: {"producer_byte_rate": 7.0}})
    assert list(found.quotas) == [Entity("alice")]
    assert problem in found.problems[place]


def test_an_address_under_two_spellings_has_one_quota_or_keeps_its_last_good_one():
    spellings = [(("ip", "::ffff:10.0.0.1"),), (("ip", "10.0.0.1"),)]
    entity = Entity(ip="10.0.0.1")
    same = read({spelling: {"connection_creation_rate": 5.0} for spelling in spellings})
    assert same == ({entity: {CONNECTION: Limit(5.0, "cluster")}}, {}, {entity: "::ffff:10.0.0.1"})
    rates = zip(spellings, (5.0, 6.0), strict=True)
    differing = read({spelling: {"connection_creation_rate": rate} for spelling, rate in rates}, same.quotas)
    assert differing.quotas == same.quotas
    assert "two spellings" in differing.problems["ip=10.0.0.1"]


@pytest.mark.parametrize("code", [29, 31])
def test_a_refused_describe_names_the_permission(code):
    cluster = FakeCluster()
    cluster.error = (code, "Cluster authorization failed.")
    with pytest.raises(SourceUnavailable, match="need DescribeConfigs on the Cluster resource"):
        reported(cluster.response(all_quotas_request()), NO_QUOTAS)


def test_another_error_has_the_message_of_the_cluster():
    cluster = FakeCluster()
    cluster.error = (15, "Coordinator of nothing")
    with pytest.raises(SourceUnavailable, match="Coordinator of nothing"):
        reported(cluster.response(all_quotas_request()), NO_QUOTAS)


@pytest.mark.parametrize(
    "body", [b"", b"\0" * 7, bytes(DescribeClientQuotasResponse(entries=[]).encode(version=1))[:-2]]
)
def test_a_malformed_response_makes_the_source_unavailable(body):
    with pytest.raises(SourceUnavailable, match="no list of quotas"):
        reported(Verbatim(1, body), NO_QUOTAS)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"\0" * 6 + b"\0\3" + tail), st.integers(0, 1))
def test_any_bytes_are_taken_or_refused(body, version):
    try:
        reported(Verbatim(version, body), NO_QUOTAS)
    except SourceUnavailable:
        pass


def alter(cluster, alterations, spellings=None):
    return altered(cluster.response(alter_request(alterations, spellings or {})), alterations, spellings or {})


def test_alterations_are_written_and_each_has_its_result():
    cluster = FakeCluster({ALICE: {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}})
    pair = (("user", None), ("client-id", "app"))
    cluster.refusals = {
        pair: (42, "Invalid configuration key"),
        (("user", "late"),): (7, None),
        (("user", "stranger"),): (31, "Cluster authorization failed."),
    }
    results = alter(
        cluster,
        [
            Alteration(Entity("alice"), {PRODUCE: 8.0, FETCH: None}),
            Alteration(Entity(DEFAULT, "app"), {PRODUCE: 8.0}),
            Alteration(Entity("late"), {PRODUCE: 8.0}),
            Alteration(Entity("stranger"), {PRODUCE: 8.0}),
            Alteration(Entity(ip=DEFAULT), {CONNECTION: 0.0}),
        ],
    )
    assert cluster.quotas == {ALICE: {"producer_byte_rate": 8.0}, (("ip", None),): {"connection_creation_rate": 0.0}}
    assert [type(result) for result in results] == [
        type(None),
        AlterationRefused,
        SourceUnavailable,
        AlterationRefused,
        type(None),
    ]
    assert str(results[1]) == "Invalid configuration key"
    assert "error 7" in str(results[2])
    assert "need AlterConfigs on the Cluster resource" in str(results[3])


def test_errors_after_which_kafkas_clients_try_again_leave_the_source_unavailable():
    """The table is that of kafka-python; all other errors are refusals."""
    alteration = Alteration(Entity("alice"), {PRODUCE: 1.0})
    known = [
        error for error in vars(errors).values() if isinstance(error, type) and (getattr(error, "errno", 0) or 0) > 0
    ]
    assert len(known) > 100
    for error in known:
        [result] = altered([AlteredEntity(error.errno, None, [EntityPart("user", "alice")])], [alteration], {})
        assert type(result) is (SourceUnavailable if error.retriable else AlterationRefused), error


def test_an_address_is_altered_under_the_clusters_spelling():
    spelled = (("ip", "::ffff:10.0.0.1"),)
    cluster = FakeCluster({spelled: {"connection_creation_rate": 5.0}})
    found = reported(cluster.response(all_quotas_request()), NO_QUOTAS)
    assert alter(cluster, [Alteration(Entity(ip="10.0.0.1"), {CONNECTION: None})], found.ip_spellings) == [None]
    assert cluster.quotas == {}


def test_an_entity_that_the_cluster_says_nothing_about_is_not_taken_for_written():
    response = FakeCluster().response(alter_request([], {}))
    [result] = altered(response, [Alteration(Entity("alice"), {PRODUCE: 8.0})], {})
    assert isinstance(result, SourceUnavailable)


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ({PRODUCE: 5.0}, True),
        ({PRODUCE: 5.0000001}, True),
        ({PRODUCE: 5.0, FETCH: None}, True),
        ({PRODUCE: 6.0}, False),
        ({PRODUCE: None}, False),
        ({FETCH: 5.0}, False),
        ({}, True),
    ],
)
def test_an_alteration_shows_when_every_key_is_as_it_says(limits, shown):
    quotas = {Entity("alice"): {PRODUCE: Limit(5.0, "cluster")}}
    assert shows(quotas, Alteration(Entity("alice"), limits)) is shown


def test_a_removal_shows_when_the_entity_is_gone():
    assert shows({}, Alteration(Entity("alice"), {PRODUCE: None}))
