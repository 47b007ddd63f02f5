"""Rows do Kafka's arithmetic whatever shortcut they take; a cap turns what it cuts off into a debt."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas import sensors as sensors_module
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, Sensors, SensorsFull, StaleSensor, rounded
from tests.quotas.windowed_rate import WindowedRate, nearest

LIMITS = st.one_of(st.integers(1, 2000).map(float), st.sampled_from([1e4, 1e15, UNLIMITED]), st.floats(1e-3, 1e6))
VALUES = st.one_of(
    st.integers(0, 30_000).map(float), st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 1e18, -1e18, 1e300, 1e-300])
)
STEPS = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 1500), st.integers(9_000, 13_000), st.just(10**7))
EVENTS = st.lists(
    st.tuples(st.sampled_from(["charge"] * 8 + ["give_back", "limit", "read"]), STEPS, VALUES, LIMITS), max_size=60
)


def kafka_like(samples: int = 11, window_ms: int = 1000) -> Sensors:
    return Sensors(4, samples, window_ms, MAX_THROTTLE_MS)


@pytest.mark.rule("rates")
@settings(max_examples=400, deadline=None)
@given(st.sampled_from([1, 2, 3, 11]), st.sampled_from([1, 10, 1000]), LIMITS, EVENTS)
@example(
    11,
    1000,
    100.0,
    [("charge", 0, 1e18, 1.0), ("charge", 0, 1.0, 1.0), ("charge", 0, -1e18, 1.0), ("charge", 0, 1200.0, 1.0)],
)
def test_every_charge_and_reading_equals_the_slow_way(samples, window_ms, limit, events):
    now, sensors, model = 5, kafka_like(samples, window_ms), WindowedRate(limit, samples, window_ms)
    handle = sensors.open(limit, now)
    for kind, step, value, new_limit in events:
        now += step
        if kind == "charge":
            assert sensors.charge(handle, value, now) == model.charge(value, now)
            assert sensors.reading(handle, now).rate == model.measure(now)[0]
        elif kind == "give_back":
            sensors.give_back(handle, value, now)
            model.record(-value, now)
        elif kind == "limit":
            sensors.set_limit(handle, new_limit, now)
            model.limit = new_limit
        else:
            sensors.reading(handle, now)


@pytest.mark.rule("rates")
@pytest.mark.parametrize("add", [sum, math.fsum])
def test_samples_are_added_one_after_the_other_as_java_does(monkeypatch, add):
    """Up to Python 3.11 sum() does so too, from 3.12 on it is more exact, as math.fsum() is on all of them."""
    assert math.fsum([1e16, 1.0, -1e16, 120.0]) != 1e16 + 1.0 - 1e16 + 120.0
    monkeypatch.setattr(sensors_module, "sum", add, raising=False)
    sensors, model = kafka_like(), WindowedRate(1.0, 11, 1000)
    handle = sensors.open(1.0, 0)
    for now, value in enumerate([1e16, 1.0, -1e16, 120.0, 0.0]):
        assert sensors.charge(handle, value, now * 1000) == model.charge(value, now * 1000)
    assert sensors.charge(handle, 0.0, 4000) == 110_000  # with the 1.0 it would be a second more


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1200)), min_size=50, max_size=300), st.integers(90, 130))
def test_a_client_around_its_limit_is_throttled_as_the_slow_way(events, limit):
    now, sensors, model = 0, kafka_like(3, 100), WindowedRate(float(limit * 30), 3, 100)
    handle = sensors.open(model.limit, now)
    for step, value in events:
        now += step
        assert sensors.charge(handle, value / 10, now) == model.charge(value / 10, now)


@pytest.mark.parametrize("limit", [1e12, 100.0])
def test_reading_changes_nothing(limit):
    one, other = kafka_like(), kafka_like()
    a, b = one.open(limit, 0), other.open(limit, 0)
    for now in range(0, 60_000, 777):
        one.reading(a, now + 500)
        one.reading(a, now + 50_000)
        assert one.charge(a, 90.0, now) == other.charge(b, 90.0, now)


@pytest.mark.rule("burst")
def test_a_fresh_client_may_use_ten_seconds_worth_at_one_instant():
    sensors = kafka_like()
    handle = sensors.open(100.0, 0)
    assert sensors.charge(handle, 1000, 0) == 0
    assert sensors.charge(handle, 1, 0) == 10
    assert sensors.charge(handle, 999, 0) == 10_000


def test_a_burst_counts_in_full_until_its_sample_expires():
    sensors = kafka_like()
    handle = sensors.open(100.0, 0)
    sensors.charge(handle, 1500, 0)
    assert [sensors.charge(handle, 0, now) for now in (1000, 10_999)] == [5000, 4001]
    assert sensors.charge(handle, 0, 11_000) == 0


def test_a_new_limit_is_felt_by_a_record_of_nothing():
    sensors = kafka_like()
    handle = sensors.open(UNLIMITED, 0)
    assert sensors.charge(handle, 1500, 0) == 0
    sensors.set_limit(handle, 100.0, 0)
    assert sensors.charge(handle, 0, 0) == 5000
    sensors.set_limit(handle, 150.0, 0)
    assert sensors.charge(handle, 0, 0) == 0


def test_what_would_wrap_at_a_broker_is_cut_to_int32():
    sensors = kafka_like()
    assert sensors.charge(sensors.open(1.0, 0), 1e12, 0) == MAX_THROTTLE_MS


@given(st.one_of(st.floats(allow_nan=False), st.integers(-100, 100).map(lambda n: n / 2)))
@example(0.49999999999999994)
@example(-0.5)
@example(4503599627370497.5)
@example(math.inf)
def test_rounding_is_to_the_nearest_with_halves_up(value):
    assert rounded(value) == max(min(nearest(value), 2**63 - 1), -(2**63))


def test_not_a_number_rounds_to_nothing():
    assert rounded(math.nan) == 0


@pytest.mark.rule("debt")
@given(st.integers(1, 10**7), st.integers(1, 5000))
def test_a_client_that_waits_its_throttle_time_and_n_windows_owes_nothing(value, limit):
    """Waiting alone does not lower the rate during the first N-1 windows (quota semantics 3.1), hence the windows."""
    sensors = kafka_like()
    handle = sensors.open(float(limit), 0)
    delay = sensors.charge(handle, value, 0)
    assert sensors.charge(handle, 0, max(delay, 11_000)) == 0


# ------------------------------------------------------------------ cap, debt


@settings(max_examples=50, deadline=None)
@given(st.integers(31, 200), st.integers(1, 10), st.integers(200, 9999))
def test_what_is_admitted_in_debt_is_paid_to_the_last_byte(burst_s, callers, value):
    debt_is_paid(burst_s, callers, value)


@pytest.mark.nightly
@settings(max_examples=50, deadline=None)
@given(st.integers(31, 200), st.integers(1, 10), st.integers(1, 200))
def test_what_is_admitted_in_debt_is_paid_to_the_last_byte_also_in_small_coins(burst_s, callers, value):
    debt_is_paid(burst_s, callers, value)


def debt_is_paid(burst_s, callers, value):
    """After a burst, callers that wait their throttle times never send more above the limit than the debt that is left.

    Ten seconds' worth is what a broker, too, gives a fresh client for nothing. In the end the callers are paced by
    the limit: the debt has shrunk to what they themselves add while they wait.
    """
    limit = 1000.0
    sensors = Sensors(1, max_throttle_ms=20_000, max_debt_ms=10**9)
    handle = sensors.open(limit, 0)
    sent = limit * burst_s
    wake = [sensors.charge(handle, sent, 0)] * callers
    while sensors.reading(handle, now := min(wake)).debt_ms > 0 and now < burst_s * 3000:
        sent += value / callers
        wake[wake.index(now)] = now + sensors.charge(handle, value / callers, now)
        owed_ms = sent / limit * 1000 - 10_000 - now
        assert sensors.reading(handle, now).debt_ms >= owed_ms - 1e-3
    assert sensors.reading(handle, now).debt_ms <= 20_000 + value
    assert sent / limit * 1000 <= now + 10_000 + sensors.reading(handle, now).debt_ms + 1e-3


@pytest.mark.parametrize("value", [1_000.0, 50_000.0, 1e9])
@pytest.mark.parametrize("burst_s", [35, 60, 1_000])
def test_what_is_refused_neither_makes_a_debt_nor_pays_one(burst_s, value):
    sensors = Sensors(4)
    handle, fresh = sensors.open(1000.0, 0), sensors.open(1000.0, 0)
    sensors.charge(handle, 1000.0 * burst_s, 0)
    debt_ms = sensors.reading(handle, 500).debt_ms
    assert sensors.charge_if_within(handle, value, 500) == 20_000
    assert sensors.reading(handle, 500).debt_ms == debt_ms
    sensors.charge_if_within(fresh, 1e9, 500)
    assert sensors.reading(fresh, 500).debt_ms == 0


def test_ten_callers_leave_the_debt_that_one_caller_leaves():
    debts = []
    for parts in (1, 10):
        sensors = Sensors(1, max_debt_ms=10**9)
        handle = sensors.open(1000.0, 0)
        sensors.charge(handle, 40_000, 0)
        for now in (5_000, 10_000, 15_000):
            for _ in range(parts):
                sensors.charge(handle, 3000 / parts, now)
        debts.append(sensors.reading(handle, 15_000).debt_ms)
    assert debts[0] == pytest.approx(debts[1])


@settings(deadline=None)
@given(EVENTS, st.integers(1, 30_000), st.integers(0, 70_000))
def test_throttles_and_debts_are_bounded_and_never_below_kafkas_cut_to_the_cap(events, cap, max_debt):
    now, model = 0, WindowedRate(100.0, 11, 1000)
    sensors = Sensors(1, max_throttle_ms=cap, max_debt_ms=max_debt)
    handle = sensors.open(100.0, 0)
    for kind, step, value, new_limit in events:
        now += step
        if kind == "limit":
            sensors.set_limit(handle, new_limit, now)
            model.limit = new_limit
        else:
            throttle = sensors.charge(handle, value, now)
            assert min(model.charge(value, now), cap) <= throttle <= cap
        assert sensors.reading(handle, now).debt_ms <= max_debt + 1e-6


@pytest.mark.rule("debt")
def test_a_debt_is_felt_until_it_is_paid():
    sensors = Sensors(1)
    handle = sensors.open(100.0, 0)
    assert sensors.charge(handle, 5000, 0) == 20_000
    assert sensors.reading(handle, 0).debt_ms == 40_000
    assert sensors.charge(handle, 50, 20_000) == 20_000
    assert sensors.reading(handle, 20_000).debt_ms == 20_500
    assert sensors.charge(handle, 0.01, 40_000) == 501
    assert sensors.charge(handle, 0, 40_501) == 0
    assert sensors.reading(handle, 40_501).debt_ms == 0
    assert (sensors.capped, sensors.reading(handle, 0).capped) == (2, 2)


def test_a_debt_is_given_back_rescaled_and_dropped_with_the_quota():
    sensors = Sensors(1)
    handle = sensors.open(100.0, 0)
    sensors.charge(handle, 5000, 0)
    sensors.give_back(handle, 1000, 0)
    assert sensors.reading(handle, 0).debt_ms == 30_000
    sensors.set_limit(handle, 200.0, 10_000)
    assert sensors.reading(handle, 10_000).debt_ms == 10_000
    sensors.set_limit(handle, 1.0, 10_000)
    assert sensors.reading(handle, 10_000).debt_ms == 60_000
    sensors.set_limit(handle, UNLIMITED, 10_000)
    assert sensors.reading(handle, 10_000).debt_ms == 0
    assert sensors.charge(handle, 0, 10_000) == 0


# -------------------------------------------------------------------- handles


def test_a_closed_row_is_stale_for_its_old_handle_and_empty_for_its_next():
    sensors = Sensors(1)
    first = sensors.open(100.0, 0)
    sensors.charge(first, 1500, 0)
    with pytest.raises(SensorsFull):
        sensors.open(1.0, 0)
    sensors.close(first)
    second = sensors.open(100.0, 0)
    for use in (lambda: sensors.charge(first, 1, 0), lambda: sensors.close(first), lambda: sensors.reading(first, 0)):
        with pytest.raises(StaleSensor):
            use()
    assert sensors.charge(second, 1000, 0) == 0
    assert (sensors.used, sensors.reading(second, 0).charges) == (1, 1)


def test_totals_count_what_was_recorded_less_what_was_given_back():
    sensors = kafka_like()
    handle = sensors.open(UNLIMITED, 0)
    for now in range(0, 50_000, 300):
        sensors.charge(handle, 10, now)
    sensors.give_back(handle, 10, 50_000)
    reading = sensors.reading(handle, 50_000)
    assert (reading.total, reading.charges, reading.charged_ms) == (1660.0, 167, 50_000)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 4_000)), max_size=60))
def test_charging_several_at_once_leaves_the_same_row_as_one_by_one(steps):
    one, several, now_ms = Sensors(4), Sensors(4), 0
    handle, its_handle = one.open(1000.0, 0), several.open(1000.0, 0)
    for pause_ms, value in steps:
        now_ms += pause_ms
        values = (value, 2 * value, 1)
        throttles = [one.charge(handle, each, now_ms) for each in values]
        if several.charge_unthrottled(its_handle, sum(values), len(values), now_ms):
            assert throttles == [0, 0, 0]
        else:
            assert throttles == [several.charge(its_handle, each, now_ms) for each in values]
        assert one.reading(handle, now_ms) == several.reading(its_handle, now_ms)


@given(
    st.lists(st.tuples(st.integers(-300, 3_000), st.floats(0, 4_000)), max_size=80),
    st.sampled_from([40, 20_000]),
    st.sampled_from([0, 60_000]),
)
def test_charging_one_after_the_other_leaves_the_same_row_as_one_by_one(steps, max_throttle_ms, max_debt_ms):
    one, each = (Sensors(1, max_throttle_ms=max_throttle_ms, max_debt_ms=max_debt_ms) for _ in range(2))
    handle, its_handle = one.open(1000.0, 0), each.open(1000.0, 0)
    uses = [(10_000 + sum(pause_ms for pause_ms, _ in steps[: i + 1]), value) for i, (_, value) in enumerate(steps)]
    throttles = [throttle_ms for now_ms, value in uses if (throttle_ms := one.charge(handle, value, now_ms))]
    left = iter(uses)
    assert list(iter(lambda: each.charge_each(its_handle, left), 0)) == throttles
    assert each.copied(its_handle) == one.copied(handle)


def test_requests_behind_a_throttled_one_are_not_charged():
    sensors = Sensors(1)
    handle = sensors.open(1000.0, 0)
    uses = iter([(0, 9_000.0), (10, 2_000.0), (20, 1.0)])
    assert sensors.charge_each(handle, uses) > 0
    assert next(uses) == (20, 1.0)
    assert sensors.reading(handle, 20).total == 11_000


def test_a_closed_row_is_not_charged_one_after_the_other():
    sensors = Sensors(1)
    handle = sensors.open(1000.0, 0)
    sensors.close(handle)
    with pytest.raises(StaleSensor):
        sensors.charge_each(handle, iter([(0, 1.0)]))
