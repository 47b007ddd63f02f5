"""Intervals against plain sets of numbers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pipeline.table.accounts import Account, Writer, accounts_of, added, form_of
from pipeline.table.intervals import size, union, without

INTERVALS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))))


def numbers(intervals):
    return {number for first, last in intervals for number in range(first, last + 1)}


@given(INTERVALS)
def test_a_union_has_the_numbers_of_all_in_as_few_intervals_as_can_be(intervals):
    merged = union(intervals)
    assert numbers(merged) == numbers(intervals)
    assert size(merged) == len(numbers(merged))
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(merged))


@given(INTERVALS, INTERVALS)
def test_what_is_taken_away_is_gone_and_nothing_else(intervals, taken):
    left = without(union(intervals), union(taken))
    assert numbers(left) == numbers(intervals) - numbers(taken)
    assert size(left) == len(numbers(left))


@given(INTERVALS, INTERVALS, st.integers(0, 40))
def test_gaps_are_what_exists_and_is_neither_here_nor_dropped(present, dropped, reported):
    account = Account(union(present), union(dropped), reported)
    known = numbers(present) | numbers(dropped)
    assert numbers(account.gaps) == set(range(1, max(known | {reported}) + 1)) - known


def test_accounts_add_up_and_are_written_as_they_are():
    one, other = Writer("usage", "a", 1), Writer("usage", "a", 2)
    both = added({one: Account(((1, 5),), (), 5)}, {one: Account(((8, 9),), ((6, 7),), 9), other: Account()})
    assert both == {one: Account(((1, 5), (8, 9)), ((6, 7),), 9), other: Account()}
    assert both[one].gaps == ()
    assert accounts_of(form_of(both)) == both
