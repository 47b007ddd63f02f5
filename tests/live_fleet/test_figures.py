"""The arithmetic of the measurement."""

import pytest

from tests.live_fleet.figures import (
    burst_s,
    by_second,
    claims_fair_after_s,
    figures,
    jain,
    long_run,
    max_min,
    over_s,
    settled_after_s,
)


def test_totals_between_samples_are_divided_evenly():
    assert by_second([(0.0, 0), (0.5, 100), (2.5, 300), (3.0, 300)], 3) == [150, 100, 50]


def test_before_the_first_sample_and_after_the_last_nothing_comes():
    assert by_second([(1.5, 10), (2.0, 20)], 4) == [0, 10, 0, 0]


def test_the_long_run_is_of_whole_windows_at_the_end():
    assert long_run([1000] * 22 + [90] * 5 + [110] * 11, 100, begin=22) == 1.1


def test_the_burst_is_that_of_the_worst_stretch():
    assert burst_s([100, 300, 250, 0, 0, 100], 100) == pytest.approx(3.5)
    assert burst_s([0, 0, 50], 100) == 0
    assert burst_s([900, 100, 100], 100, begin=1) == 0


def test_a_stretch_has_at_most_a_minute():
    assert burst_s([150] * 100, 100) == pytest.approx(30)


def test_a_burst_after_a_pause_is_a_burst_and_no_minute_is_over_the_limit():
    series = [0] * 50 + [500] + [100] * 10
    assert burst_s(series, 100) == pytest.approx(4)
    assert over_s(series, 100) == pytest.approx(-45)


def test_the_worst_minute_is_found_wherever_it_begins():
    series = [100] * 30 + [1000] + [100] * 60
    assert over_s(series, 100) == pytest.approx(9)
    assert over_s(series, 100, begin=31) == pytest.approx(0)
    assert over_s(series, 100, begin=32) is None


def test_jain():
    assert jain([5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 1


@pytest.mark.parametrize(
    ("demands", "fair"),
    [([1000, 1000], [500, 500]), ([100, 1000, 1000], [100, 450, 450]), ([1, 2], [1, 2]), ([0, 1000], [0, 1000])],
)
def test_the_fair_division(demands, fair):
    assert max_min(demands, 1000) == fair


def test_clients_have_settled_when_all_are_close_to_their_fair_rates():
    first, second = [10, 10, 10, 50, 50, 50, 50], [90, 90, 90, 80, 50, 51, 49]
    assert settled_after_s([first, second], [50, 50], 2, 7) == 2
    assert settled_after_s([first, second], [10, 90], 0, 7) == 0
    assert settled_after_s([first, second], [100, 0], 0, 7) is None


def test_figures_of_a_scenario_follow_the_changes_of_demand():
    found = {
        "limit": 100,
        "seconds": 60,
        "clients": [{"name": name, "kind": "produce", "demand": demand} for name, demand in (("a", 0.2), ("b", None))],
        "events": [{"at": 30.0, "action": "demand", "client": "a", "rate": None}],
        "sides": {"fleet": {"produce": {"a": [20] * 32 + [50] * 28, "b": [80] * 32 + [50] * 28}}},
    }
    assert figures(found)["fleet"]["produce"] == {
        "long_run": 1,
        "over_s": 0,
        "over_later_s": None,
        "burst_s": 0,
        "burst_later_s": 0,
        "jain": 1,
        "settled_after_s": [2],
    }


def test_claims_are_fair_when_each_instance_has_its_part_of_the_demand_now():
    looks = [(10, 0.1, 0.88), (30.2, 0.3, 0.68), (31.5, 0.45, 0.53), (41, 0.45, 0.53), (59, 0.45, 0.55)]
    found = {
        "seconds": 60,
        "clients": [{"name": "a", "at": 1, "demand": 0.1}, {"name": "b", "at": 2, "demand": None}],
        "events": [
            {"at": 30.0, "action": "demand", "client": "a", "rate": None, "words": "a: all"},
            {"at": 40.0, "action": "demand", "client": "a", "rate": 0.0, "words": "a: none"},
        ],
        "claims": [
            {"at": at, "claims": [{"member": "i1#x", "claim": one}, {"member": "i2#y", "claim": other}]}
            for at, one, other in looks
        ],
    }
    assert list(claims_fair_after_s(found)) == [("a: all", 1.5), ("a: none", None)]
