"""A share of a limit moves from one sensor to another with its history: neither gets a fresh burst."""

from itertools import accumulate
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.rows import WAITS_MS
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, Sensors

PRODUCE, FETCH, MUTATION = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.CONTROLLER_MUTATION
LIMIT = 1000.0
CAPS = st.sampled_from([(MAX_THROTTLE_MS, 0), (20_000, 60_000), (1_000, 60_000), (500, 2_000)])
STEPS = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 1500), st.integers(9_000, 12_500))
USES = st.lists(st.tuples(STEPS, st.integers(0, 6_000).map(float)), max_size=40)
SPARSE = st.lists(st.floats(0, 1e5), max_size=12)


def row(caps=(20_000, 60_000), limit=LIMIT, samples=11):
    sensors = Sensors(4, samples, 1000, *caps)
    return sensors, sensors.open(limit, 0)


def charged(sensors, handle, uses, now_ms=0):
    """Charge all, and return the time of the last one."""
    for step, value in uses:
        now_ms += step
        sensors.charge(handle, value, now_ms)
    return now_ms


# ------------------------------------------------------------------ one row


@settings(max_examples=100, deadline=None)
@given(CAPS, USES, st.sampled_from([1.0, 0.5, 0.0625, 0.3, 0.01]), USES)
def test_a_part_of_the_use_under_the_same_part_of_the_limit_has_the_same_throttle_times(caps, before, part, after):
    (one, a), (other, b) = row(caps), row(caps)
    now_ms = charged(one, a, before)
    charged(other, b, before)
    other.reshare(b, part * LIMIT, part, (), now_ms)
    for step, value in after:
        now_ms += step
        assert other.charge(b, part * value, now_ms) == pytest.approx(one.charge(a, value, now_ms), abs=1)


@settings(max_examples=100, deadline=None)
@given(USES, st.lists(st.tuples(STEPS, st.floats(0, 1), SPARSE), max_size=8), st.integers(0, 1000))
def test_the_total_stays_to_the_last_bit(before, moves, last):
    sensors, handle = row()
    now_ms = charged(sensors, handle, before)
    for step, factor, gain in moves:
        now_ms += step
        sensors.charge(handle, 0.1, now_ms)
        total, mark = sensors.total(handle), sensors.mark(handle)
        sensors.scale(handle, factor, now_ms)
        assert sensors.total(handle) == total
        sensors.add_history(handle, gain, now_ms)
        assert sensors.total(handle) == total
        assert sensors.mark(handle) == mark
    total = sensors.total(handle)
    sensors.charge(handle, float(last), now_ms)
    assert sensors.total(handle) == pytest.approx(total + last)


@settings(max_examples=100, deadline=None)
@given(USES, st.floats(0, 1), SPARSE, st.sampled_from([1, 2, 3, 11]), st.integers(0, 900))
def test_the_history_is_the_part_that_stays_and_what_is_added(before, factor, gain, samples, later_ms):
    sensors, handle = row((MAX_THROTTLE_MS, 0), samples=samples)  # no debt
    now_ms = charged(sensors, handle, before) + later_ms
    history = sensors.history(handle, now_ms)
    assert len(history) == samples
    sensors.scale(handle, factor, now_ms)
    assert sensors.history(handle, now_ms) == pytest.approx([factor * units for units in history], abs=1e-6)
    added = [*gain, *[0.0] * len(history)][: len(history)]
    sensors.add_history(handle, gain, now_ms)
    expected = [factor * units + more for units, more in zip(history, added, strict=True)]
    assert sensors.history(handle, now_ms) == pytest.approx(expected, abs=1e-6)
    span_s = max(samples - 0.5 if expected[-1] else samples - 1, 0.5)
    assert sensors.reading(handle, now_ms).rate * span_s == pytest.approx(sum(expected), rel=1e-6, abs=1e-6)


def test_several_gains_at_one_time_are_one():
    (one, a), (other, b) = row(), row()
    for sensors, handle in ((one, a), (other, b)):
        now_ms = charged(sensors, handle, [(700, 333.3), (800, 100.1), (2_345, 7.0)])
    one.add_history(a, (1.5, 0.0, 3.25), now_ms)
    for gain in ((1.5,), (0.0, 0.0, 3.25)):
        other.add_history(b, gain, now_ms)
    assert one.copied(a) == other.copied(b)


def test_the_history_has_use_where_it_was_and_a_debt_at_the_begin():
    sensors, handle = row((1_000, 60_000))
    for now_ms in range(0, 10_000, 100):
        sensors.charge(handle, 100.0, now_ms)
    assert sensors.history(handle, 9_900) == pytest.approx([1000.0] * 10 + [0.0], abs=101)
    assert sum(sensors.history(handle, 9_900)) == pytest.approx(10_000.0)
    assert sensors.history(handle, 30_000) == (0.0,) * 11
    assert sensors.charge(handle, 40_000.0, 30_000) == 1_000
    # The window lets 40 s wait 30 s. When the use has left the window, the rest of the debt is still owed.
    assert sensors.history(handle, 30_000) == (40_000.0, *(0.0,) * 10)
    assert sensors.history(handle, 45_000)[0] == pytest.approx(25_000.0)  # 15 s of debt behind a window of 10 s


def test_a_row_whose_clients_wait_for_a_larger_limit_has_short_throttles_up_to_its_pace():
    sensors, handle = row((20_000, 60_000))
    sensors.set_pace(handle, 10.0)
    assert sensors.charge(handle, 12_000.0, 0) == 1_200
    assert sensors.charge(handle, 12_000.0, 500) == 1_900  # 2.4 s of it, half a second of which has passed
    assert sensors.owed_ms(handle, 1_000) == 1_400
    assert sensors.charge(handle, 1_000.0, 2_000) == 1_000
    assert sensors.charge(handle, 1e9, 2_000) == 20_000
    sensors.set_pace(handle, 0)
    assert sensors.charge(handle, 0.0, 2_001) == 20_000
    for pace in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError):
            sensors.set_pace(handle, pace)


def test_a_pace_of_a_tiny_limit_is_calculated():
    sensors = Sensors(1, 11, 1000, 1_000, 60_000)
    handle = sensors.open(1e-300, 0)
    sensors.set_pace(handle, 1.0)
    assert sensors.charge(handle, 1e10, 0) == 1_000
    sensors.give_back(handle, 2e10, 1)
    assert 0 <= sensors.charge(handle, 1e-299, 2) <= 1_000


def test_a_throttle_is_not_longer_with_a_pace_than_without():
    (one, a), (other, b) = row(), row()
    one.set_pace(a, 1.0)
    now_ms = 0
    for step, value in [(0, 12_000.0), (1_000, 500.0), (500, 10.0), (30_000, 1.0), (5, 9_900.0), (1, 200.0)]:
        now_ms += step
        assert 0 <= one.charge(a, value, now_ms) <= other.charge(b, value, now_ms)


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.floats(1.0, 5_000.0)), min_size=1, max_size=60), st.floats(1.0, 100.0)
)
def test_clients_that_wait_get_no_more_than_their_pace(steps, pace):
    """Many clients of one row: each sends when its own throttle is over, so a charge comes only then."""
    sensors, handle = row((MAX_THROTTLE_MS, 60_000))
    sensors.set_pace(handle, pace)
    now_ms = total = ready_ms = 0
    for step, value in steps:
        now_ms = max(now_ms + step, ready_ms)
        before, total = total, total + value
        if now_ms < 10_000:  # all of it is in the window
            assert before <= LIMIT * 10 + 10_000 + pace * LIMIT * now_ms / 1000
        ready_ms = now_ms + sensors.charge(handle, value, now_ms)


def test_a_debt_scales_with_the_limit_and_with_the_use():
    sensors, handle = row((1_000, 60_000))
    sensors.charge(handle, 40_000.0, 0)
    assert sensors.reading(handle, 0).debt_ms == 30_000
    sensors.reshare(handle, LIMIT / 2, 0.5, (), 0)
    assert sensors.reading(handle, 0).debt_ms == 30_000
    sensors.reshare(handle, LIMIT, 1.0, (), 0)
    assert sensors.reading(handle, 0).debt_ms == 15_000


def test_rows_that_throttle_or_refuse_are_noted_and_no_others():
    sensors, handle = row()
    other = sensors.open(LIMIT, 0)
    sensors.charge(handle, 20_000.0, 0)
    assert sensors.pressed is None
    sensors.pressed = {}
    sensors.charge(other, 9_000.0, 0)
    assert sensors.owed_ms(handle, 0) == 10_000
    assert sensors.pressed == {}
    sensors.charge_each(handle, [(1, 0.0)])
    assert sensors.pressed == {handle: 10_000}
    sensors.pressed.clear()
    throttle_ms = sensors.charge_if_within(other, 5_000.0, 2)
    assert sensors.pressed == {other: 2 + throttle_ms}


def test_a_copy_leaves_the_pace_of_the_row_that_takes_it():
    sensors, handle = row()
    other = sensors.open(LIMIT, 0)
    sensors.set_pace(handle, 100.0)
    sensors.overwrite(other, sensors.copied(handle))
    assert sensors.charge(other, 50_000.0, 0) == 20_000
    sensors.overwrite(handle, sensors.copied(other))
    assert sensors.charge(handle, 50_000.0, 0) == 1_000


# ------------------------------------------------------------------ two rows


def greedy(sensors, handle, size, begin_ms, end_ms):
    """A client that always sends and waits until it may: what it has sent, and when it may send again."""
    sent, now_ms = 0.0, begin_ms
    while now_ms < end_ms:
        now_ms += max(sensors.charge(handle, size, now_ms), 1)
        sent += size
    return sent, now_ms


@settings(max_examples=100, deadline=None)
@given(USES, st.sampled_from([1.0, 0.5, 0.25]), st.integers(0, 1500), st.integers(1, 5_000))
def test_what_moves_lets_wait_as_it_would_where_it_was(before, part, later_ms, value):
    """Within two windows, 2 s: by so much two rows may differ in how long they count."""
    (old, a), (giver, b), (taker, c) = row((MAX_THROTTLE_MS, 0)), row((MAX_THROTTLE_MS, 0)), row(limit=1.0)
    now_ms = charged(old, a, before) + later_ms
    charged(giver, b, before)
    history = giver.history(b, now_ms)
    taker.set_caps(MAX_THROTTLE_MS, 0)
    giver.reshare(b, (1 - part) * LIMIT or 1.0, 1 - part, (), now_ms)
    taker.reshare(c, part * LIMIT, 1.0, [part * units for units in history], now_ms)
    expected_ms = old.charge(a, float(value), now_ms)
    assert abs(taker.charge(c, part * value, now_ms) - expected_ms) <= 2_000
    if part < 1:
        assert abs(giver.charge(b, (1 - part) * value, now_ms) - expected_ms) <= 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 500_000), st.integers(0, 120_000), st.sampled_from([1.0, 0.5]))
def test_a_debt_moves_too(burst, later_ms, part):
    (giver, b), (taker, c) = row((1_000, 60_000)), row((1_000, 60_000), limit=1.0)
    giver.charge(b, float(burst), 0)
    giver.charge(b, 0.0, later_ms)
    expected_ms = giver.reading(b, later_ms).debt_ms
    taker.reshare(c, part * LIMIT, 1.0, [part * units for units in giver.history(b, later_ms)], later_ms)
    taker.charge(c, 0.0, later_ms)
    assert taker.reading(c, later_ms).debt_ms == pytest.approx(expected_ms, abs=1_000)


MOVES = st.lists(st.integers(300, 20_000), min_size=1, max_size=20)


@pytest.mark.rule("moving")
@settings(max_examples=30, deadline=None)
@given(MOVES, st.sampled_from([(20_000, 60_000), (1_000, 60_000)]), st.sampled_from([100.0, 900.0]))
def test_a_load_that_moves_gets_no_fresh_burst(moves, caps, size):
    """From one of two rows to the other and back, with all of its share and history."""
    sensors = Sensors(4, 11, 1000, *caps)
    busy, idle = sensors.open(LIMIT, 0), sensors.open(1.0, 0)
    sent, may_send_ms, now_ms = 0.0, 0, 0
    for until_ms in accumulate([*moves, 40_000]):
        more, may_send_ms = greedy(sensors, busy, size, may_send_ms, until_ms)
        sent, now_ms = sent + more, until_ms
        history = sensors.history(busy, now_ms)
        sensors.reshare(busy, 1.0, 0.0, (), now_ms)
        sensors.reshare(idle, LIMIT, 1.0, history, now_ms)
        busy, idle = idle, busy
    burst, allowed = 10 * LIMIT, LIMIT * now_ms / 1000
    assert 0.85 * allowed <= sent <= 1.03 * allowed + burst + size


# ------------------------------------------------------------------- buckets


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(STEPS, st.integers(0, 60)), max_size=20),
    st.sampled_from([1.0, 0.5, 0.25]),
    st.lists(st.tuples(STEPS, st.integers(0, 60)), max_size=10),
)
def test_a_bucket_that_moves_continues_as_where_it_was(before, part, after):
    def bucket(limit):
        buckets = TokenBuckets(2)
        return buckets, buckets.open(limit, 0)

    (old, a), (giver, b), (taker, c) = bucket(4.0), bucket(4.0), bucket(0.01)
    now_ms = 0
    for step, value in before:
        now_ms += step
        old.spend_permissively(a, value, now_ms)
        giver.spend_permissively(b, value, now_ms)
    missing, total = giver.history(b, now_ms), giver.total(b)
    assert missing == (44.0 - giver.tokens(b, now_ms),)
    giver.reshare(b, 4.0 * (1 - part) or 0.01, 1 - part, (), now_ms)
    taker.reshare(c, 4.0 * part, 1.0, [part * tokens for tokens in missing], now_ms)
    assert (giver.total(b), taker.total(c)) == (total, 0.0)
    for step, value in after:
        now_ms += step
        waited_ms, expected_ms = (
            taker.spend_permissively(c, part * value, now_ms),
            old.spend_permissively(a, float(value), now_ms),
        )
        assert (waited_ms or 0) == pytest.approx(expected_ms or 0, abs=1)


def test_the_parts_of_a_bucket_add_up():
    buckets = TokenBuckets(2)
    handle = buckets.open(4.0, 0)
    buckets.spend_permissively(handle, 30, 0)
    buckets.scale(handle, 0.5, 0)
    assert buckets.history(handle, 0) == pytest.approx((15.0,))
    buckets.add_history(handle, (2.0, 3.0), 0)
    assert buckets.history(handle, 0) == pytest.approx((20.0,))
    assert buckets.tokens(handle, 0) == pytest.approx(24.0)
    buckets.reshare(handle, 8.0, 1.0, (), 0)
    assert buckets.history(handle, 0) == pytest.approx((20.0,))
    assert buckets.total(handle) == 30


def test_buckets_that_are_overdrawn_are_noted_and_cut_to_their_pace():
    buckets = TokenBuckets(2)
    handle, other = buckets.open(4.0, 0), buckets.open(4.0, 0)
    buckets.pressed = {}
    buckets.spend_strictly(other, 30, 0)
    buckets.set_pace(handle, 100.0)
    assert buckets.spend_strictly(handle, 100, 0) is None
    assert buckets.pressed == {}
    assert (buckets.throttle_ms(handle, 0), buckets.spend_strictly(handle, 1, 0)) == (1_000, 1_000)
    assert buckets.pressed == {handle: 1_000}
    assert (buckets.capped, buckets.reading(handle, 0).capped) == (1, 1)
    buckets.set_pace(handle, 2.0)
    assert buckets.spend_strictly(handle, 1, 0) == 7_000
    buckets.set_pace(handle, 0)
    assert buckets.spend_strictly(handle, 1, 0) == 14_000


# ------------------------------------------------------------------ a manager


def manager(quotas=None, capacity=64):
    quotas = quotas or {Entity(client_id=DEFAULT): {PRODUCE: LIMIT, FETCH: LIMIT, MUTATION: 2.0}}
    return ClientQuotaManager(Sensors(capacity), QuotaTable(quotas))


def key_of(quota_type=PRODUCE, client_id="c"):
    return SensorKey("main", 1, quota_type, SensorTags("", client_id))


def test_a_share_of_one_is_the_limit_and_of_no_limit_there_is_no_share():
    plain, shared = manager(), manager()
    shared.share_of = lambda key: 1.0
    assert plain.bind("main", 1, "u", "c", 0) == shared.bind("main", 1, "u", "c", 0)
    shared.share_of = lambda key: 0.5
    shared.replace(QuotaTable({Entity(client_id="d"): {PRODUCE: LIMIT}}), 0)
    sensors = shared.bind("main", 1, "u", "c", 0)
    assert (shared.sensors.limit(sensors.produce), sensors.limits) == (UNLIMITED, False)
    shared.reshare(key_of(), 0.5, 1.0, (), 1.0, 0)
    assert shared.sensors.limit(sensors.produce) == UNLIMITED
    assert shared.share_history(key_of(), 0) is None


def test_rows_are_opened_and_changed_with_their_share_of_the_limit():
    shares = {key_of(): 0.25, key_of(FETCH): 0.5, key_of(client_id="d"): 1.0}
    made = manager()
    made.share_of = lambda key: shares.get(key, 0.125)
    one, other = made.bind("main", 1, "u", "c", 0), made.bind("main", 1, "u", "d", 0)
    assert (made.sensors.limit(one.produce), made.sensors.limit(other.produce)) == (250.0, LIMIT)
    assert (made.sensors.limit(one.fetch), one.fetch_ceiling_bytes) == (500.0, 5_000)
    assert made.buckets.limit(one.mutation) == 0.25
    made.replace(QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 2 * LIMIT, FETCH: LIMIT, MUTATION: 2.0}}), 0)
    assert (made.sensors.limit(one.produce), made.sensors.limit(other.produce)) == (500.0, 2 * LIMIT)


def test_a_share_moves_with_seconds_of_the_whole_limit():
    made = manager()
    made.share_of = lambda key: 0.5
    handle = made.bind("main", 1, "u", "c", 0).produce
    made.sensors.charge(handle, 4_000.0, 0)
    total, limit, history = made.share_history(key_of(), 0)
    assert (total, limit, history) == (4_000.0, LIMIT, (4_000.0, *(0.0,) * 10))
    made.reshare(key_of(), 0.25, 0.5, (0.0, 3.0), 0.0, 0)
    assert made.sensors.limit(handle) == 250.0
    assert made.share_history(key_of(), 0) == (4_000.0, LIMIT, pytest.approx((2_000.0, 3_000.0, *(0.0,) * 9)))
    for share in (0.0, -1.0, inf - inf):
        with pytest.raises(ValueError):
            made.reshare(key_of(), share, 1.0, (), 0.0, 0)


def test_a_share_that_was_used_elsewhere_opens_its_row_and_one_without_history_does_not():
    made = manager()
    made.share_of = lambda key: 0.5
    made.reshare(key_of(), 0.5, 1.0, (), 0.0, 0)
    assert made.sensor_keys == []
    made.reshare(key_of(), 0.5, 1.0, (0.0, 3.0), 0.0, 0)
    assert made.sensor_keys == [key_of()]
    assert made.sensors.charge(made.bind("main", 1, "u", "c", 0).produce, 2_500.0, 0) == 1_000


def test_a_row_whose_share_is_about_to_grow_has_short_throttles():
    made = manager()
    handle = made.bind("main", 1, "u", "c", 0).produce
    made.reshare(key_of(), 0.01, 1.0, (), 1.0, 0)
    assert made.sensors.charge(handle, LIMIT, 0) == WAITS_MS
    made.reshare(key_of(), 0.01, 1.0, (), 0.0, 0)
    assert made.sensors.charge(handle, LIMIT, 0) == 20_000
    made.share_of, made.pace_of = (lambda key: 0.01), (lambda key: float(key.tags.client_id == "d"))
    sensors = made.bind("main", 1, "u", "d", 0)
    assert made.sensors.charge(sensors.produce, LIMIT, 0) == WAITS_MS
    assert made.sensors.charge(made.bind("main", 1, "u", "e", 0).produce, LIMIT, 0) == 20_000


def test_the_fetch_ceiling_follows_the_share_and_other_clients_keep_their_sensors():
    made = manager()
    one, other = made.bind("main", 1, "u", "c", 0), made.bind("main", 1, "u", "d", 0)
    made.reshare(key_of(PRODUCE), 0.5, 1.0, (), 0.0, 0)
    assert made.renews(one)
    made.reshare(key_of(FETCH), 0.5, 1.0, (), 0.0, 0)
    assert not made.renews(one)
    assert made.renews(other)
    made.share_of = lambda key: 0.5 if key == key_of(FETCH) else 1.0
    one = made.bind("main", 1, "u", "c", 0)
    assert one.fetch_ceiling_bytes == 5_000
    made.reshare(key_of(FETCH), 0.5, 1.0, (), 0.0, 0)
    assert made.renews(one)


def test_the_fetch_ceiling_of_clients_that_share_a_sensor_follows_too():
    made = manager(capacity=64)
    bound = [made.bind("main", 1, "u", f"client {number}", 0) for number in range(80)]
    shared = next(key for key in made.sensor_keys if key.shared_by is not None and key.quota_type is FETCH)
    made.reshare(shared, 0.5, 1.0, (), 0.0, 0)
    assert made.renews(bound[0])
    assert not made.renews(bound[-1])


def test_keys_of_rows_that_throttle_or_refuse():
    made = manager()
    sensors = made.bind("main", 1, "u", "c", 0)
    made.sensors.charge(sensors.produce, 1e6, 0)
    assert made.take_pressed() == {}
    made.watch_pressed()
    later = made.bind("main", 1, "u", "d", 0)
    assert made.take_pressed() == {}
    made.sensors.charge(sensors.produce, 1.0, 1)
    made.sensors.charge_if_within(later.fetch, 1e6, 1)
    made.buckets.spend_permissively(later.mutation, 100, 1)
    mutation = SensorKey("main", WHOLE_CLUSTER, MUTATION, SensorTags("", "d"))
    assert made.take_pressed().keys() == {key_of(), key_of(FETCH, "d"), mutation}
    assert made.take_pressed() == {}
    made.sensors.charge(sensors.produce, 1.0, 1)
    assert made.take_pressed() == {key_of(): 20_001}
    made.sensors.charge(sensors.produce, 1.0, 1)
    made.replace(QuotaTable(), 1)
    made.expire(10**8)
    assert made.sensor_keys == []
    assert made.take_pressed() == {}
