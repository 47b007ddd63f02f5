"""Division is max-min fair, and tells when a claim has to change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.shares.division import (
    TOTAL,
    Claim,
    divide,
    fair_level,
    floor_share,
    implicit_share,
    is_ample,
    is_short,
)

DEMANDS = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_demands_that_fit_are_met_and_the_rest_is_divided_equally():
    division = divide(Claim(0.5, 0.3), [Claim(0.2, 0.2), Claim(0.0, 0.0)], TOTAL)
    assert division.fair == pytest.approx(0.3)
    assert division.target == pytest.approx(0.3 + (TOTAL - 0.5) / 2)
    assert division.lacking == 0
    assert division.free == pytest.approx(TOTAL - 0.7)
    assert not division.is_contended


def test_demands_that_do_not_fit_are_met_up_to_one_level():
    division = divide(Claim(TOTAL, 1.0), [Claim(0.0, 0.2), Claim(0.0, 1.0)], TOTAL)
    assert division.target == division.fair == pytest.approx((TOTAL - 0.2) / 2)
    assert division.lacking == pytest.approx(0.2 + (TOTAL - 0.2) / 2)
    assert division.is_contended


def test_a_member_without_demand_has_no_target():
    assert divide(Claim(0.5, 0.0), [Claim(0.0, 0.1)], TOTAL).target == 0


def test_small_differences_change_nothing():
    assert not is_short(0.39, 0.4)
    assert is_short(0.37, 0.4)
    assert not is_ample(0.41, 0.4)
    assert is_ample(0.45, 0.4)
    assert not is_short(0.0, 0.001)


@given(DEMANDS)
def test_parts_are_max_min_fair(demands):
    level = fair_level(demands, TOTAL)
    parts = [min(demand, level) for demand in demands]
    assert sum(parts) == pytest.approx(min(sum(demands), TOTAL))
    assert all(part in (demand, level) for part, demand in zip(parts, demands, strict=True))


@given(DEMANDS)
def test_targets_are_the_same_for_all_and_add_up_to_the_total(demands):
    claims = [Claim(0.0, demand) for demand in demands]
    targets = [divide(claim, claims[:index] + claims[index + 1 :], TOTAL).target for index, claim in enumerate(claims)]
    assert sum(targets) == pytest.approx(TOTAL if any(demands) else 0)


@given(st.integers(2, 1000))
def test_implicit_shares_and_the_floors_of_joining_members_fit(members):
    assert members * implicit_share(members) + floor_share(members + 1) <= 1
    assert 0 < floor_share(members) < implicit_share(members) < 1


def test_a_member_alone_has_exactly_the_limit():
    assert implicit_share(1) == 1.0
