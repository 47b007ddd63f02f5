"""What a run is judged by."""

from tests.fleet.figures import ShareTimeline, overshoot_s


def test_overshoot_is_what_exceeds_a_single_instance_after_the_begin_too():
    single = [10.0, *[0.0] * 9, *[1.0] * 80]
    assert overshoot_s(single, single, 1.0) == 0
    assert overshoot_s([5.0, *single[1:]], single, 1.0) == 0
    assert overshoot_s([13.0, *single[1:]], single, 1.0) == 3
    later = single.copy()
    later[50:52] = [3.0, 3.0]
    assert overshoot_s(later, single, 1.0) == 4


def test_overshoot_counts_in_seconds_of_the_limit():
    assert overshoot_s([200.0] * 40, [100.0] * 40, 100.0) == 40


def timeline() -> ShareTimeline:
    steps = ShareTimeline()
    for at_ms, instance, share in ((0, 0, 0.5), (0, 1, 0.5), (1000, 0, 0.9), (1000, 1, 0.005), (5000, 1, 0.4)):
        steps.add(at_ms, instance, share)
    for at_ms, instance, share in ((5200, 0, 0.6), (6000, 1, 0.46), (7000, 0, 0.46)):
        steps.add(at_ms, instance, share)
    return steps


def test_shares_are_fair_when_everybody_has_nine_tenths_of_its_due_and_keeps_it():
    half = {0: 0.5, 1: 0.5}
    assert timeline().fair_after_ms(0, 500, half) == 0
    assert timeline().fair_after_ms(0, 2000, half) is None
    assert timeline().fair_after_ms(4000, 10_000, half) == 2000
    assert timeline().fair_after_ms(6500, 10_000, half) == 0
    assert timeline().fair_after_ms(4000, 10_000, {0: 0.5}) == 0


def test_a_share_that_was_never_seen_is_nothing():
    assert ShareTimeline().fair_after_ms(0, 1000, {0: 0.1}) is None
