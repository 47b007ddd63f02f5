"""Whole units are divided as fairly as can be, and every member sees the same division."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.shares.division import Claim, divide
from kafka_throttle.quotas.shares.whole import divide_whole, whole_parts

DEMANDS = st.dictionaries(st.text("abcde", min_size=1, max_size=2), st.integers(0, 40), min_size=1, max_size=6)


@given(DEMANDS, st.integers(0, 60))
def test_no_unit_could_go_to_a_member_with_less(demands, units):
    parts = whole_parts(demands, units)
    assert sum(parts.values()) == min(units, sum(demands.values()))
    for member, part in parts.items():
        assert 0 <= part <= demands[member]
        if part < demands[member]:
            assert all(part >= other - 1 for other in parts.values())


def test_of_equals_the_first_by_id_has_what_cannot_be_divided():
    assert whole_parts({"b": 9, "a": 9, "c": 1}, 6) == {"a": 3, "b": 2, "c": 1}
    assert whole_parts({"b": 9, "a": 9, "c": 9}, 1) == {"a": 1, "b": 0, "c": 0}
    assert whole_parts({"a": 2, "b": 3}, 9) == {"a": 2, "b": 3}


@given(DEMANDS, st.integers(1, 60))
def test_members_that_see_the_same_claims_never_want_more_than_there_is(demands, units):
    claims = {member: Claim(0.0, min(demand / units, 1.0)) for member, demand in demands.items()}
    of_each = {
        member: divide_whole(member, mine, {other: claims[other] for other in claims if other != member}, 1 / units)
        for member, mine in claims.items()
    }
    targets = [division.target * units for division in of_each.values()]
    assert targets == pytest.approx([round(target) for target in targets])
    assert sum(targets) == pytest.approx(units if any(demands.values()) else 0)
    assert all(division.target >= division.fair for division in of_each.values())


def test_one_of_two_gives_up_a_part_that_is_of_no_use():
    mine, other = Claim(0.5, 0.62), Claim(0.5, 1.0)
    assert divide(mine, [other], 1.0).lacking == 0
    first, second = divide_whole("a", mine, {"b": other}, 1.0), divide_whole("b", other, {"a": mine}, 1.0)
    assert (first.fair, first.target, first.lacking) == (1.0, 1.0, 0.0)
    assert (second.fair, second.target, second.lacking) == (0.0, 0.0, 0.5)


@pytest.mark.parametrize(("demand", "units", "part"), [(0.3333, 3, 1), (0.4286, 7, 3), (0.001, 3, 1), (0.0, 3, 0)])
def test_a_demand_that_was_rounded_is_the_units_it_stands_for(demand, units, part):
    assert divide_whole("a", Claim(0.0, demand), {}, 1 / units).fair == pytest.approx(part / units)
