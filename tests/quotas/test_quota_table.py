"""Kafka's eight levels, the kinds in use, and what is refused (quota semantics 2)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaType, Scope, SensorTags
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable

PRODUCE, FETCH = QuotaType.PRODUCE, QuotaType.FETCH
LEVELS = [
    (Entity("u", "c"), ("u", "c")),
    (Entity("u", DEFAULT), ("u", "c")),
    (Entity("u"), ("u", "")),
    (Entity(DEFAULT, "c"), ("u", "c")),
    (Entity(DEFAULT, DEFAULT), ("u", "c")),
    (Entity(DEFAULT), ("u", "")),
    (Entity(client_id="c"), ("", "c")),
    (Entity(client_id=DEFAULT), ("", "c")),
]
ALL_KINDS = {Entity("x"): {PRODUCE: 9.0}, Entity("x", "x"): {PRODUCE: 9.0}, Entity(client_id="x"): {PRODUCE: 9.0}}


@pytest.mark.rule("levels")
@given(st.sets(st.integers(0, 7)))
def test_the_first_configured_of_eight_levels_decides_tags_and_limit(levels):
    quotas = dict(ALL_KINDS) | {LEVELS[i][0]: {PRODUCE: float(i + 1)} for i in levels}
    standing = QuotaTable(quotas).tags_and_limit(PRODUCE, "u", "c")
    if levels:
        entity, tags = LEVELS[min(levels)]
        assert standing == (SensorTags(*tags), min(levels) + 1.0, entity)
    else:
        assert standing == (SensorTags("", "c"), UNLIMITED, None)


@pytest.mark.parametrize(
    ("entity", "tags"), [(Entity("x"), ("u", "")), (Entity("x", "x"), ("u", "c")), (Entity(client_id="x"), ("", "c"))]
)
def test_with_one_kind_in_use_every_client_is_measured_under_its_tags(entity, tags):
    standing = QuotaTable({entity: {PRODUCE: 9.0}}).tags_and_limit(PRODUCE, "u", "c")
    assert standing == (SensorTags(*tags), UNLIMITED, None)


def test_kinds_are_remembered_after_their_last_quota_is_gone():
    both = QuotaTable({Entity("x"): {PRODUCE: 9.0}, Entity(client_id="x"): {PRODUCE: 9.0}})
    only_user = QuotaTable({Entity("x"): {PRODUCE: 9.0}})
    assert only_user.tags_and_limit(PRODUCE, "u", "c").tags == SensorTags("u", "")
    assert only_user.succeeding(both).tags_and_limit(PRODUCE, "u", "c").tags == SensorTags("", "c")
    assert QuotaTable().succeeding(only_user).is_on(PRODUCE)


def test_the_kinds_that_are_remembered_can_be_stored():
    both = QuotaTable({Entity("x"): {PRODUCE: 9.0}, Entity(client_id="x"): {PRODUCE: 9.0}})
    assert QuotaTable().kinds() == {}
    assert both.kinds().keys() == {PRODUCE.value}
    restored = QuotaTable().remembering(both.kinds())
    assert restored.measures_as(both)
    assert not restored.is_on(FETCH)


def test_a_type_is_off_until_an_entity_has_a_quota_of_that_type():
    table = QuotaTable({Entity("x"): {PRODUCE: 9.0}})
    assert table.is_on(PRODUCE)
    assert not table.is_on(FETCH)


@pytest.mark.parametrize("pair", [Entity("u", DEFAULT), Entity(DEFAULT, DEFAULT)])
def test_an_empty_client_id_at_a_pair_default_has_the_limit_of_its_user(pair):
    table = QuotaTable(
        {pair: {PRODUCE: 1.0}, Entity(DEFAULT): {PRODUCE: 2.0}, Entity(client_id=DEFAULT): {PRODUCE: 3.0}}
    )
    assert table.tags_and_limit(PRODUCE, "u", "").limit == 2.0
    alone = QuotaTable({pair: {PRODUCE: 1.0}, Entity(client_id=DEFAULT): {PRODUCE: 3.0}})
    assert alone.tags_and_limit(PRODUCE, "u", "").limit == UNLIMITED


def test_an_empty_client_id_is_covered_by_no_client_id_default():
    table = QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 3.0}})
    assert table.tags_and_limit(PRODUCE, "u", "") == (SensorTags("", ""), UNLIMITED, None)


def test_a_user_called_like_the_default_is_not_the_default():
    table = QuotaTable({Entity("<default>"): {PRODUCE: 1.0}, Entity(DEFAULT): {PRODUCE: 2.0}})
    assert table.tags_and_limit(PRODUCE, "<default>", "c").limit == 1.0
    assert table.tags_and_limit(PRODUCE, "u", "c").limit == 2.0
    assert str(Entity("<default>", DEFAULT)) == "user='<default>', client-id=<default>"


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf, 0, -1, 0.5, 1e-9, 10000.5, 2.0**64, 10**400])
def test_invalid_limits_are_refused(limit):
    with pytest.raises(InvalidQuota):
        QuotaTable({Entity("u"): {PRODUCE: limit}})


@pytest.mark.parametrize("limit", [math.nan, math.inf, -1, 1e-9, 0.5, 2.0**31])
def test_a_connection_rate_of_0_bans_and_invalid_rates_are_refused(limit):
    QuotaTable({Entity(ip="10.0.0.1"): {QuotaType.CONNECTION: 0}})
    with pytest.raises(InvalidQuota):
        QuotaTable({Entity(ip="10.0.0.1"): {QuotaType.CONNECTION: limit}})


def test_an_entity_has_a_part_and_no_empty_name():
    for parts in ((None, None), ("", None), ("u", "")):
        with pytest.raises(InvalidQuota):
            Entity(*parts)


def test_connection_rates_are_found_by_address_and_follow_changes():
    table = QuotaTable(
        {
            Entity(ip=DEFAULT): {QuotaType.CONNECTION: 5},
            Entity(ip="::ffff:10.0.0.1"): {QuotaType.CONNECTION: 0},
            Entity(ip="example.com"): {QuotaType.CONNECTION: 7},
            Entity(user="alice"): {QuotaType.PRODUCE: 1000},
        }
    )
    assert table.connection_rates == (5, {"10.0.0.1": 0}, {"example.com": 7})
    changed = table.changed({Entity(ip="10.0.0.1"): {}, Entity(ip="2001:DB8::1"): {QuotaType.CONNECTION: 3}})
    assert changed.connection_rates == (5, {"2001:db8::1": 3}, {"example.com": 7})
    assert changed.changed({Entity(ip=DEFAULT): {}, Entity(ip="example.com"): {}}).connection_rates == (
        None,
        {"2001:db8::1": 3},
        {},
    )
    assert QuotaTable({}).connection_rates == (None, {}, {})


def test_a_scope_is_changed_with_the_quotas_of_its_entity_and_goes_with_them():
    alice, bob = Entity("alice"), Entity("bob")
    first = QuotaTable({alice: {PRODUCE: 1.0}, bob: {PRODUCE: 1.0}}, {alice})
    assert set(first.of_cluster) == {alice}
    both = first.changed({bob: {PRODUCE: 2.0}}, {bob})
    assert set(both.succeeding(first).of_cluster) == {alice, bob}
    assert set(both.changed({alice: {PRODUCE: 1.0}}).of_cluster) == {bob}
    assert set(both.changed({bob: {}}, {bob}).of_cluster) == set(first.of_cluster) == {alice}
    assert both.scope_of(PRODUCE, None) is Scope.NODE
