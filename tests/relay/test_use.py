"""What usage counters record: windows, peaks, profiles and throttles; and how many clients are counted at most."""

import pytest

from kafka_throttle.proxy.relay import use
from kafka_throttle.proxy.relay.use import OVERFLOW, Meter
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.records.usage_record import MOST_REPORTED, SecondOfUse
from kafka_throttle.quotas.request_costs import RequestCosts

S = 1_000_000


@pytest.fixture
def meter():
    return Meter("main", 10, 4, RequestCosts())


def taken(meter, now_us=None):
    for window, one in meter.take_open():
        meter.settle(window, one, now_us)
    found = list(meter.closed)
    meter.closed.clear()
    return found


def test_a_window_ends_at_a_multiple_of_its_length_by_the_wall_clock(meter):
    meter.offset_us = 1_700_000_003 * S
    client = meter.hold(1, "alice", "etl")
    produce = client.of(use.PRODUCE)
    produce.add(5, 0)
    produce.add(7, 7 * S - 1)
    produce.add(11, 7 * S)
    [first] = taken(meter, 7 * S)
    assert (first.begin_ms, first.used, first.quota_type) == (1_700_000_000_000, 12, QuotaType.PRODUCE)
    [second] = taken(meter)
    assert (second.begin_ms, second.used) == (1_700_000_010_000, 11)
    assert taken(meter) == []


def test_the_peak_is_the_most_in_one_second(meter):
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)
    for at_us, value in ((0, 3), (1 * S, 4), (2 * S - 1, 4), (5 * S, 6)):
        fetch.add(value, at_us)
    [counts] = taken(meter)
    assert (counts.used, counts.peak) == (17, 8)


def test_the_first_second_of_a_window_is_one_second(meter):
    """Even if the window before it is closed only when the client uses the quota again."""
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)
    fetch.add(1, 5 * S)
    for at_us in (10 * S, 10 * S + 1_000, 10 * S + 2_000):
        fetch.add(500, at_us)
    fetch.add(1, 12 * S)
    _, counts = taken(meter)
    assert (counts.used, counts.peak) == (1_501, 1_500)
    assert counts.seconds == (SecondOfUse(0, 1_500), SecondOfUse(2_000, 1))


def test_the_profile_has_each_second_with_use_and_what_was_throttled_in_it(meter):
    meter.offset_us = 1_700_000_000 * S
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    produce.add(5, 300_000)
    produce.add(2, 900_000)
    produce.note_throttle(1_500, 950_000)
    produce.add(4, 3 * S + 7_000)
    produce.add(3, 9 * S)
    produce.add(-3, 9 * S + 1)
    produce.add(9, 10 * S + 40_000)
    first, second = taken(meter)
    assert first.seconds == (SecondOfUse(300, 7, 1_500, 0, 1), SecondOfUse(3_007, 4))
    assert second.seconds == (SecondOfUse(40, 9),)


def test_a_second_has_its_requests_and_those_before_it_that_had_no_use_yet(meter):
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)
    for at_us, value in ((0, 3), (1 * S, 0), (2 * S, 4), (2 * S + 1, 5)):
        fetch.add(value, at_us)
        fetch.requests += 1
    fetch.note_throttle(700, 2 * S + 1)
    fetch.note_throttle(300, 2 * S + 2)
    [counts] = taken(meter)
    assert counts.seconds == (SecondOfUse(0, 3, 0, 1), SecondOfUse(2_000, 9, 1_000, 3, 2))


def test_a_second_has_each_request_that_was_throttled_unless_they_are_many(meter):
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)

    def answered(value, at_ms, *throttle_ms):
        fetch.add(value, at_ms * 1000)
        for ms in throttle_ms:
            fetch.note_throttle(ms, at_ms * 1000, value)

    answered(5, 100)
    answered(900, 700, 600)
    fetch.note_throttle(100, 900 * 1000)  # a second throttle of the same request
    answered(800, 1_400, 300)
    answered(700, 1_800, 300)
    fetch.note_throttle(250, 2_100 * 1000)
    answered(600, 3_100)
    for i in range(MOST_REPORTED):
        answered(1, 4_000 + i, 7)
    for i in range(MOST_REPORTED + 1):
        answered(1, 5_000 + i, 7)
    [counts] = taken(meter)
    assert counts.seconds == (
        SecondOfUse(100, 905, 700, 0, 2, ((700, 900),)),
        SecondOfUse(1_400, 1_500, 600, 0, 2, ((1_400, 800), (1_800, 700))),
        SecondOfUse(2_100, 0, 250, 0, 1),
        SecondOfUse(3_100, 600),
        SecondOfUse(4_000, 16, 112, 0, 16, tuple((4_000 + i, 1) for i in range(16))),
        SecondOfUse(5_000, 17, 119, 0, 17),
    )


def test_a_second_begins_with_its_first_use_and_not_with_a_throttle_before_it(meter):
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)
    fetch.note_throttle(20, 5 * S + 10_000)
    for at_ms, value in ((5_070, 3), (5_090, 4)):
        fetch.add(value, at_ms * 1000)
    [counts] = taken(meter)
    assert counts.seconds == (SecondOfUse(5_070, 7, 20, 0, 1),)


def test_a_second_begins_with_its_first_use_and_not_with_bytes_before_it(meter):
    """As relays count on their fast ways: a response of the second before goes out, and then the next request comes."""
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    for at_ms, value in ((1_300, 5), (2_050, 0), (2_400, 0), (2_850, 7), (2_900, 1)):
        now_us = at_ms * 1000
        if now_us >= produce.until_us:
            if value:
                produce.turn_used(now_us)
            else:
                produce.turn(now_us)
        produce.used += value
    assert produce.until_us == 3 * S
    [counts] = taken(meter)
    assert counts.seconds == (SecondOfUse(1_300, 5), SecondOfUse(2_850, 8))


def test_a_second_begins_where_it_began_though_the_clocks_are_compared_anew(meter):
    meter.offset_us = 1_700_000_000 * S
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    produce.add(5, 4 * S)
    meter.offset_us -= 900
    [counts] = taken(meter)
    assert counts.seconds == (SecondOfUse(4_000, 5),)


def test_times_stay_within_the_window_when_the_wall_clock_is_set(meter):
    fetch = meter.hold(1, "alice", "etl").of(use.FETCH)
    fetch.note_throttle(20, 10 * S)
    meter.offset_us = -2 * S
    fetch.add(3, 10 * S + 1)
    fetch.note_throttle(30, 10 * S + 1, 3)
    meter.offset_us = 90 * S
    fetch.note_throttle(40, 10 * S + 2, 4)
    [counts] = taken(meter)
    assert (counts.begin_ms, counts.seconds) == (10_000, (SecondOfUse(0, 3, 90, 0, 3, ((0, 3), (9_999, 4))),))


@pytest.mark.parametrize(("last", "throttled_ms", "is_even"), [(100, 0, True), (150, 0, False), (100, 20, False)])
def test_what_is_even_and_not_throttled_needs_no_profile(meter, last, throttled_ms, is_even):
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    for second in range(10):
        produce.add(last + 10 if second == 9 else 100, second * S + 3_000)
    if throttled_ms:
        produce.note_throttle(throttled_ms, 9 * S + 4_000)
    [counts] = taken(meter)
    assert (counts.seconds == ()) == is_even


def test_a_long_window_has_no_profile():
    meter = Meter("main", 300, 4, RequestCosts())
    meter.hold(1, "alice", "etl").of(use.PRODUCE).add(5, 0)
    [counts] = taken(meter)
    assert counts.seconds == ()


def test_mutes_at_the_same_time_count_once(meter):
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    for prolonged_ms, now_ms in ((500, 0), (500, 100), (100, 200), (300, 2_000)):
        produce.note_throttle(prolonged_ms, now_ms * 1000)
    [counts] = taken(meter)
    assert (counts.throttled_ms, counts.muted_ms) == (1_400, 900)


def test_a_mute_that_goes_on_in_the_next_window_counts_in_the_first(meter):
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    produce.note_throttle(3_000, 9 * S)
    produce.note_throttle(2_500, 10 * S)
    first, second = taken(meter)
    assert (first.throttled_ms, first.muted_ms) == (3_000, 3_000)
    assert (second.throttled_ms, second.muted_ms) == (2_500, 500)


def test_throttles_of_the_shadow_quota_and_backlogs_are_counted_apart(meter):
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    produce.note_shadow(70, 0)
    produce.note_shadow(80, 1)
    produce.note_backlog(900, 2)
    [counts] = taken(meter)
    assert (counts.throttles, counts.throttled_ms, counts.muted_ms) == (0, 0, 0)
    assert (counts.shadow_throttles, counts.shadow_throttled_ms, counts.backlogged_ms) == (2, 150, 900)


def test_an_idle_client_has_no_usage_and_is_forgotten_when_it_is_released(meter):
    staying, going = meter.hold(1, "alice", "etl"), meter.hold(1, "bob", "etl")
    for client in (staying, going):
        client.of(use.REQUEST).add(1, 0)
    going.release()
    assert len(meter) == 2
    assert len(taken(meter, 20 * S)) == 2
    assert len(meter) == 1
    assert taken(meter, 30 * S) == []
    staying.release()
    assert len(meter) == 0


def test_a_counter_that_is_used_in_each_window_is_settled_once_a_window(meter):
    produce = meter.hold(1, "alice", "etl").of(use.PRODUCE)
    for window in range(5):
        produce.add(1, window * 10 * S + 1)
        produce.add(1, window * 10 * S + 9 * S)
        assert len(taken(meter, window * 10 * S + 9 * S)) == (window > 0)
        assert len(meter._open) == 1


def test_too_many_clients_are_counted_as_one_for_each_user_and_then_as_one_for_all(meter):
    for number in range(50):
        meter.hold(1, "mallory", f"id-{number}").of(use.REQUEST).add(1, 0)
    for number in range(50):
        meter.hold(1, f"user-{number}", "id").of(use.REQUEST).add(1, 0)
    found = taken(meter)
    assert sum(counts.used for counts in found) == 100
    assert len(found) == 4 + 1 + 1
    assert [(c.client.user, c.client.client_id) for c in found[4:]] == [("mallory", OVERFLOW), (OVERFLOW, OVERFLOW)]
    assert meter.overflowed == 96


def test_mutations_are_counted_for_the_whole_cluster(meter):
    meter.hold(1, "alice", "etl").of(use.MUTATION).add(3, 0)
    meter.hold(2, "alice", "etl").of(use.MUTATION).add(4, 0)
    [counts] = taken(meter)
    assert (counts.client.node_id, counts.used, counts.quota_type) == (-2, 7, QuotaType.CONTROLLER_MUTATION)


def test_a_throttle_by_mutations_and_the_next_mutations_are_in_one_record_of_a_window(meter):
    """The mute that begins in one window ends in the next one, in which the client sends again."""
    connected = meter.hold(1, "alice", "etl")
    meter.client(-2, "alice", "etl").of(use.MUTATION).add(5, 0)
    throttled = connected.of(use.MUTATION)
    throttled.note_throttle(12_000, 0)
    assert [(counts.used, counts.muted_ms) for counts in taken(meter, 10 * S)] == [(5, 12_000)]
    throttled.note_backlog(12_000, 12 * S)
    meter.client(-2, "alice", "etl").of(use.MUTATION).add(7, 12 * S)
    assert [(counts.used, counts.backlogged_ms) for counts in taken(meter, 20 * S)] == [(7, 12_000)]


def test_a_client_that_was_throttled_by_mutations_is_forgotten_with_its_last_connection(meter):
    both = [meter.hold(node_id, "alice", "etl") for node_id in (1, 2)]
    for connected in both:
        connected.of(use.MUTATION).note_throttle(1_000, 0)
    taken(meter, 10 * S)
    both[0].release()
    assert len(meter) == 2, "node 2, and the whole cluster"
    both[1].release()
    assert len(meter) == 0
