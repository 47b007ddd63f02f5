"""The way of a connection: it waits for rates and slots, then its address decides."""

import pytest

from kafka_throttle.quotas.connection_quotas import (
    ADMITTED,
    NO_LIMIT,
    AddressKey,
    AddressLimits,
    Admission,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)

FRONT = ListenerKey("main", "front")
BACK = ListenerKey("main", "back")
OTHER = ListenerKey("other", "front")

HERE, THERE = "10.0.0.1", "10.0.0.2"

FREE = ConnectionLimits()


def quotas(instance=FREE, front=FREE, back=FREE, protected=False, **settings):
    made = ConnectionQuotas(instance, now_ms=0, **settings)
    made.add_listener(FRONT, front, now_ms=0)
    made.add_listener(BACK, back, now_ms=0, protected=protected)
    made.add_listener(OTHER, FREE, now_ms=0)
    return made


def limit(limited, **limits):
    limited.set_address_limits("main", AddressLimits(**limits))


def connect(limited, listener=FRONT, address=HERE, now_ms=0):
    limited.arrive(listener, now_ms)
    return limited.admit(listener, address, now_ms)


def test_without_limits_no_connection_waits_and_no_row_is_used():
    free = quotas()
    for _ in range(100):
        assert connect(free) == ADMITTED
    assert (free.connections, free.connections_from(AddressKey("main", HERE))) == (100, 100)
    assert list(free.address_readings(0)) == []


def test_a_rate_lets_ten_seconds_worth_in_at_once_and_then_one_window_is_the_longest_wait():
    limited = quotas(front=ConnectionLimits(creation_rate=2.0))
    assert [limited.arrive(FRONT, 0) for _ in range(21)] == [0] * 20 + [500]
    assert [limited.arrive(FRONT, 0) for _ in range(9)] == [1000] * 9
    assert limited.arrive(BACK, 0) == 0


def test_the_instance_and_the_listener_are_both_asked_and_the_longer_wait_counts():
    limited = quotas(instance=ConnectionLimits(creation_rate=4.0), front=ConnectionLimits(creation_rate=2.0))
    for _ in range(20):
        limited.arrive(FRONT, 0)
        limited.arrive(BACK, 0)
    assert (limited.arrive(BACK, 0), limited.arrive(FRONT, 0)) == (250, 500)


def test_a_protected_listener_obeys_its_own_limits_only():
    full = ConnectionLimits(creation_rate=0.0, connections=1)
    limited = quotas(instance=full, back=ConnectionLimits(connections=2), protected=True)
    connect(limited, FRONT)
    assert (limited.arrive(FRONT, 0), limited.has_slot(FRONT)) == (1000, False)
    assert (limited.arrive(BACK, 0), limited.has_slot(BACK)) == (0, True)
    connect(limited, BACK)
    assert (limited.must_close_one(FRONT), limited.must_close_one(BACK)) == (True, False)
    connect(limited, BACK)
    assert not limited.has_slot(BACK)


def test_the_only_listener_is_never_protected():
    alone = ConnectionQuotas(ConnectionLimits(connections=0), now_ms=0)
    alone.add_listener(BACK, FREE, now_ms=0, protected=True)
    assert not alone.has_slot(BACK)


def test_a_slot_is_free_again_when_a_connection_leaves():
    limited = quotas(instance=ConnectionLimits(connections=2), front=ConnectionLimits(connections=1))
    connect(limited, FRONT)
    assert [limited.has_slot(listener) for listener in (FRONT, BACK)] == [False, True]
    connect(limited, BACK)
    assert not limited.has_slot(BACK)
    limited.leave(FRONT, HERE)
    assert limited.has_slot(FRONT)
    assert limited.has_slot(BACK)


def test_an_address_that_comes_too_fast_is_held_and_takes_no_slot():
    limited = quotas(instance=ConnectionLimits(creation_rate=1e6))
    limit(limited, creation_rate=1.0)
    assert [connect(limited) for _ in range(10)] == [ADMITTED] * 10
    for _ in range(5):
        assert connect(limited) == Admission(Outcome.TOO_FAST, 1.0, 1000)
    assert connect(limited, address=THERE) == ADMITTED
    readings = (limited.instance_reading(0), limited.listener_reading(FRONT, 0))
    assert [reading.rate for reading in readings] == [1.1, 1.1]
    assert limited.address_reading(AddressKey("main", HERE), 0).rate == 1.0
    assert limited.connections == 11


def test_an_address_may_have_a_rate_of_its_own_and_a_rate_of_0_bans_it():
    limited = quotas()
    limit(limited, creation_rate=0.0, rates={HERE: 2.0})
    assert [connect(limited).outcome for _ in range(21)] == [Outcome.ADMITTED] * 20 + [Outcome.TOO_FAST]
    assert connect(limited, address=THERE) == Admission(Outcome.TOO_FAST, 0.0, 1000)


def test_what_was_measured_stays_while_the_limit_is_lifted():
    limited = quotas()
    limit(limited, rates={HERE: 1.0})
    for _ in range(10):
        connect(limited)
    limit(limited)
    for _ in range(10):
        assert connect(limited) == ADMITTED
    limit(limited, creation_rate=1.1)
    assert connect(limited).outcome is Outcome.ADMITTED
    assert connect(limited).outcome is Outcome.TOO_FAST


@pytest.mark.rule("connection rate")
def test_an_address_has_one_rate_over_all_listeners_of_a_virtual_cluster():
    limited = quotas()
    for virtual_cluster in ("main", "other"):
        limited.set_address_limits(virtual_cluster, AddressLimits(creation_rate=1.0, connections=11))
    outcomes = [connect(limited, listener).outcome for listener in (FRONT, BACK) * 5 + (FRONT,)]
    assert outcomes == [Outcome.ADMITTED] * 10 + [Outcome.TOO_FAST]
    assert connect(limited, OTHER) == ADMITTED
    assert limited.connections_from(AddressKey("main", HERE)) == 10


def test_one_connection_too_many_is_not_counted_but_its_rates_are():
    limited = quotas()
    limit(limited, connections=2, counts={THERE: 1}, creation_rate=100.0)
    assert [connect(limited).outcome for _ in range(3)] == [Outcome.ADMITTED] * 2 + [Outcome.TOO_MANY]
    assert connect(limited, address=THERE) == ADMITTED
    assert connect(limited, address=THERE) == Admission(Outcome.TOO_MANY, 1)
    assert (limited.connections, limited.connections_of(FRONT)) == (3, 3)
    assert limited.address_reading(AddressKey("main", HERE), 0).rate == 0.3
    limited.leave(FRONT, THERE)
    assert connect(limited, address=THERE) == ADMITTED


def test_limits_change_while_it_runs():
    limited = quotas()
    connect(limited)
    connect(limited)
    limited.set_instance_limits(ConnectionLimits(creation_rate=0.1, connections=1), 0)
    assert (limited.arrive(BACK, 0), limited.has_slot(BACK), limited.must_close_one(BACK)) == (1000, False, True)
    limited.set_instance_limits(FREE, 0)
    limited.set_listener_limits(FRONT, ConnectionLimits(creation_rate=0.1, connections=2), 0)
    assert (limited.arrive(FRONT, 0), limited.has_slot(FRONT), limited.has_slot(BACK)) == (1000, False, True)


def test_a_listener_that_goes_leaves_its_connections_to_the_others():
    limited = quotas(instance=ConnectionLimits(connections=1))
    connect(limited)
    limited.remove_listener(FRONT)
    assert not limited.has_slot(BACK)
    limited.add_listener(FRONT, FREE, now_ms=0)
    limited.leave(FRONT, HERE)
    assert (limited.connections, limited.connections_of(FRONT)) == (0, 0)


def test_a_connection_that_was_not_counted_cannot_leave():
    with pytest.raises(ValueError, match=HERE):
        quotas().leave(FRONT, HERE)


def test_rows_go_when_their_window_is_empty():
    limited = quotas()
    limit(limited, creation_rate=1.0)
    for i in range(100):
        connect(limited, address=f"10.0.1.{i}", now_ms=i)
    for i in range(60):
        connect(limited, address=f"10.0.2.{i}", now_ms=11_100)
    assert len(list(limited.address_readings(11_100))) == 60


def test_when_rows_run_out_new_addresses_share_one_except_those_with_their_own_rate():
    limited = quotas(max_addresses=16)
    limit(limited, creation_rate=1.0, rates={HERE: 1.0, THERE: 1.0})
    for i in range(15):
        connect(limited, address=f"10.0.1.{i}")
    newcomers = [connect(limited, address=f"10.0.2.{i}").outcome for i in range(11)]
    assert newcomers == [Outcome.ADMITTED] * 10 + [Outcome.TOO_FAST]
    assert limited.rates("main").overflowed == 11
    assert connect(limited, address=HERE) == connect(limited, address=THERE) == ADMITTED
    measured = [key.address for key, _ in limited.address_readings(0)]
    assert measured == [*(f"10.0.1.{i}" for i in range(1, 15)), HERE, THERE]
    limit(limited, creation_rate=1.1)
    assert connect(limited, address="10.0.2.99").outcome is Outcome.ADMITTED


def test_connections_on_their_way_in_take_slots_too():
    limited = quotas(instance=ConnectionLimits(connections=3), front=ConnectionLimits(connections=2))
    connect(limited)
    assert limited.has_slot(FRONT)
    assert not limited.has_slot(FRONT, on_the_way=1, on_the_way_here=1)
    assert limited.has_slot(BACK, on_the_way=1)
    assert not limited.has_slot(BACK, on_the_way=2)


def test_a_shadow_counts_the_connections_that_it_would_have_refused_and_refuses_none():
    limited = quotas()
    limit(limited, shadow_rate=1.0, shadow_rates={THERE: NO_LIMIT})
    for _ in range(15):
        limited.measure_shadow("main", HERE, 0)
        limited.measure_shadow("main", THERE, 0)
        assert connect(limited) == ADMITTED
    assert limited.rates("main", shadow=True).throttles == 5
    assert limited.address_reading(AddressKey("main", HERE), 0, shadow=True).limit == 1.0
    assert limited.address_reading(AddressKey("main", HERE), 0) is None


def test_virtual_clusters_may_have_windows_of_their_own():
    limited = ConnectionQuotas(FREE, now_ms=0)
    limited.add_virtual_cluster("main", samples=2, window_ms=3_000)
    limited.add_listener(FRONT, ConnectionLimits(creation_rate=1.0), now_ms=0)
    limit(limited, creation_rate=1.0)
    assert [limited.arrive(FRONT, 0) for _ in range(4)] == [0, 0, 0, 1_000]
    assert [limited.admit(FRONT, HERE, 0).throttle_ms for _ in range(4)] == [0, 0, 0, 1_000]


def test_the_limit_in_a_reading_is_the_one_in_force():
    limited = quotas()
    limit(limited, creation_rate=5.0)
    connect(limited)
    limit(limited, creation_rate=7.0, rates={HERE: 3.0})
    assert [reading.limit for _, reading in limited.address_readings(0)] == [3.0]
