"""Sensors that continue from copies are those that were copied: the same throttle times, whatever comes then."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import (
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    RateKey,
)
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.row_copies import Charge, Copier, RowCopy, Sensing
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

PRODUCE, FETCH, REQUEST = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST
MUTATION = QuotaType.CONTROLLER_MUTATION
QUOTAS = {
    Entity(user="u"): {PRODUCE: 100.0, FETCH: 50.0, MUTATION: 2.0},
    Entity(user=DEFAULT, client_id=DEFAULT): {PRODUCE: 10.0, REQUEST: 5.0, MUTATION: 1.0},
}
SHADOWS = {Entity(user="u"): {PRODUCE: 20.0}, Entity(user=DEFAULT): {MUTATION: 0.5}}
LISTENER = ListenerKey("main", "plain")
START_MS = 1_000_000

CLIENTS = st.tuples(st.integers(1, 2), st.sampled_from("uv"), st.sampled_from("cd"))
VALUES = st.one_of(st.integers(0, 3000).map(float), st.floats(0, 3000))
STEPS = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 1500), st.integers(9_000, 12_000))
KINDS = ["produce", "fetch", "fetch_within", "request", "mutate", "mutate_strictly", "give_back", "connect", "owed"]
USES = st.lists(
    st.tuples(st.sampled_from(["produce", "request", "mutate"]), STEPS, CLIENTS, st.floats(1, 3000)), max_size=40
)
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), STEPS, CLIENTS, VALUES), max_size=40)


def sensing(quotas=QUOTAS, capacity=64, window_ms=1000):
    manager = ClientQuotaManager(
        Sensors(capacity, 11, window_ms),
        QuotaTable(quotas),
        QuotaTable(SHADOWS),
        TokenBuckets(capacity, 11, window_ms),
    )
    connections = ConnectionQuotas(ConnectionLimits(3.0), START_MS, max_addresses=16)
    connections.add_virtual_cluster("main", 11, window_ms)
    connections.add_listener(LISTENER, ConnectionLimits(2.0), START_MS)
    connections.set_address_limits("main", AddressLimits(0.5, rates={"10.0.0.1": 1.0}, shadow_rate=0.2))
    return Sensing({"main": manager}, connections)


def happen(one, event, now_ms):
    """What the sensors answer to an event."""
    kind, _, (node_id, user, client_id), value = event
    manager, connections = one.clients["main"], one.connections
    of = manager.bind("main", node_id, user, client_id, now_ms)
    match kind:
        case "produce":
            shadow = of.shadow_produce and manager.shadow_sensors.charge(of.shadow_produce, value, now_ms)
            return manager.sensors.charge(of.produce, value, now_ms), shadow
        case "fetch":
            return of.fetch and manager.sensors.charge(of.fetch, value, now_ms)
        case "fetch_within":
            return of.fetch and manager.sensors.charge_if_within(of.fetch, value, now_ms)
        case "request":
            return of.request and manager.request_sensors.charge(of.request, value, now_ms)
        case "mutate":
            return manager.buckets.spend_permissively(of.mutation, value / 100, now_ms)
        case "mutate_strictly":
            return manager.buckets.spend_strictly(of.mutation, value / 100, now_ms)
        case "give_back":
            return manager.sensors.give_back(of.produce, value, now_ms)
        case "connect":
            address = f"10.0.0.{node_id}"
            connections.measure_shadow("main", address, now_ms)
            return connections.arrive(LISTENER, now_ms), connections.admit(LISTENER, address, now_ms)
        case _:
            return manager.sensors.owed_ms(of.produce, now_ms)


def over_the_wire(copy):
    return RowCopy(tuple(json.loads(json.dumps(copy.key))), copy.words)


def copy_all(source, target, now_ms, copier=None):
    for copies in (copier or Copier(source)).changed():
        for copy in copies:
            assert target.adopt(over_the_wire(copy), now_ms)


@pytest.mark.rule("handed over")
@settings(max_examples=150, deadline=None)
@given(EVENTS, EVENTS)
def test_whatever_comes_after_the_copy_has_the_same_throttle_times(before, after):
    now_ms, old, new = START_MS, sensing(), sensing()
    for event in before:
        now_ms += event[1]
        happen(old, event, now_ms)
    copy_all(old, new, now_ms)
    for event in after:
        now_ms += event[1]
        assert happen(new, event, now_ms) == happen(old, event, now_ms)
    for mine, of_old in zip(readings(new, now_ms), readings(old, now_ms), strict=True):
        assert mine == of_old


def used_of(reading):
    return reading.burst - reading.tokens if hasattr(reading, "tokens") else reading.rate


def test_a_smaller_share_of_a_limit_continues_the_matching_part_of_what_was_used():
    """Where limits are shared, what was used with the rest of the limit is with those that have the rest now."""
    old, new = sensing(), sensing()
    for kind in ("produce", "mutate", "connect"):
        happen(old, (kind, 0, (1, "u", "c"), 900.0), START_MS)
    new.clients["main"].share_of = lambda key: 0.25
    new.connections.share("main", lambda key: 0.25)
    copy_all(old, new, START_MS)
    before, after = list(readings(old, START_MS)), list(readings(new, START_MS))
    for mine, of_old in zip(after[:3], before[:3], strict=True):
        assert mine
        for (key, part), (old_key, whole) in zip(mine, of_old, strict=True):
            assert key == old_key
            used, of_whole = (used_of(part), used_of(whole))
            assert used == pytest.approx(of_whole / 4)


def test_what_the_process_before_is_charged_later_is_its_own_share():
    old, new = sensing(), sensing()
    new.clients["main"].share_of = lambda key: 0.5
    copier = Copier(old)
    copy_all(old, new, START_MS, copier)
    happen(old, ("produce", 0, (1, "u", "c"), 900.0), START_MS)
    charges = [each for charges in copier.charges() for each in charges]
    assert charges
    assert not any(new.record(each, START_MS) for each in charges)


def readings(one, now_ms):
    manager = one.clients["main"]
    yield sorted((str(key), reading) for key, reading in manager.readings(now_ms) if reading.charges)
    yield sorted((str(key), reading) for key, reading in manager.bucket_readings(now_ms) if reading.charges)
    yield sorted((str(key), reading) for key, reading in one.connections.address_readings(now_ms) if reading.rate)
    yield one.connections.instance_reading(now_ms)
    yield one.connections.listener_reading(LISTENER, now_ms)


@settings(max_examples=100, deadline=None)
@given(EVENTS, EVENTS, EVENTS)
def test_rows_that_change_while_others_are_copied_are_copied_again(before, meanwhile, after):
    now_ms, old, new = START_MS, sensing(), sensing()
    copier = Copier(old)
    for events in (before, meanwhile):
        for event in events:
            now_ms += event[1]
            happen(old, event, now_ms)
        copy_all(old, new, now_ms, copier)
    assert not [copies for copies in copier.changed() if copies]
    for event in after:
        now_ms += event[1]
        assert happen(new, event, now_ms) == happen(old, event, now_ms)


@settings(max_examples=100, deadline=None)
@given(EVENTS, USES)
def test_what_the_old_process_charges_later_counts_at_the_new_one(before, after):
    """If each charge arrives at once, both have recorded the same, and the same is left of each window."""
    now_ms, old, new = START_MS, sensing(), sensing()
    for event in before:
        now_ms += event[1]
        happen(old, event, now_ms)
    copier = Copier(old)
    copy_all(old, new, now_ms, copier)
    for event in after:
        now_ms += event[1]
        happen(old, event, now_ms)
        for charges in copier.charges():
            for charge in charges:
                assert new.record(Charge(tuple(json.loads(json.dumps(charge.key))), charge.value), now_ms)
    of_old, of_new = old.clients["main"], new.clients["main"]
    for key, reading in of_old.readings(now_ms):
        found = of_new.reading(key, now_ms)
        assert (found.rate if found else 0.0) == pytest.approx(reading.rate)
    for key, reading in of_old.bucket_readings(now_ms):
        found = of_new.reading(key, now_ms)
        assert (found.tokens if found else reading.burst) == pytest.approx(reading.tokens)


def test_a_sensor_that_was_closed_and_opened_again_takes_nothing_back():
    old = sensing()
    manager = old.clients["main"]
    manager.sensors.charge(manager.bind("main", 1, "u", "c", START_MS).produce, 1000.0, START_MS)
    copier = Copier(old)
    list(copier.changed())
    much_later_ms = START_MS + 4_000_000
    manager.expire(much_later_ms)
    manager.sensors.charge(manager.bind("main", 1, "u", "c", much_later_ms).produce, 10.0, much_later_ms)
    assert [charge.value for charges in copier.charges() for charge in charges] == [10.0]


def test_limits_are_those_of_the_new_tables():
    old, new = sensing(), sensing({Entity(user="u"): {PRODUCE: 1000.0}})
    manager = old.clients["main"]
    manager.sensors.charge(manager.bind("main", 1, "u", "c", START_MS).produce, 2000.0, START_MS)
    copies = [copy for copies in Copier(old).changed() for copy in copies]
    left_out = [copy.key[3] for copy in copies if not new.adopt(over_the_wire(copy), START_MS)]
    assert "consumer_byte_rate" in left_out
    found = {
        (reading.limit, reading.total) for key, reading in new.clients["main"].readings(START_MS) if not key.shadow
    }
    assert found == {(1000.0, 2000.0)}


def test_a_shared_sensor_of_a_full_table_is_copied():
    old, new = sensing(capacity=16), sensing(capacity=16)
    manager = old.clients["main"]
    for number in range(40):
        manager.bind("main", 1, f"user {number}", "c", START_MS)
    assert any(key.shared_by for key, _ in manager.open_sensors)
    copy_all(old, new, START_MS)
    assert dict(new.clients["main"].open_sensors).keys() == dict(manager.open_sensors).keys()


def test_no_more_rows_are_taken_than_there_is_room_for():
    old, new = sensing(capacity=256), sensing(capacity=16)
    for number in range(40):
        old.clients["main"].bind("main", 1, f"user {number}", "c", START_MS)
    adopted = [new.adopt(copy, START_MS) for copies in Copier(old).changed() for copy in copies]
    assert not all(adopted)
    sensors = new.clients["main"].sensors
    assert sensors.used == sensors.capacity - 1


def test_rows_of_other_windows_are_told_apart():
    old, new = sensing(), sensing(window_ms=2000)
    assert old.others(old.layouts) == {}
    assert new.others(old.layouts) == {
        "main": "its windows were [11, 1000, 11, 1000], and are [11, 2000, 11, 2000] now"
    }
    assert new.others({}) == {"main": "it is new"}


@pytest.mark.parametrize(
    "key",
    [
        ("client", "main", 1, "producer_byte_rate", "u", "", None),
        ("connection", "", "", None, False),
        ("connection", "main", "plain", None, False),
        ("connection", "main", "", "10.0.0.1", False),
        ("connection", "main", "", "", True),
    ],
)
def test_a_row_of_another_size_is_refused(key):
    with pytest.raises(ValueError):
        sensing().adopt(RowCopy(key, bytes(24)), START_MS)


def test_rates_of_what_is_not_there_are_left_out():
    one = sensing()
    assert not one.connections.adopt(RateKey("main", "gone"), b"", START_MS)
    assert not one.connections.adopt(RateKey("gone", "", "10.0.0.1"), b"", START_MS)
