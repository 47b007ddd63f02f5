"""Intervals against plain sets of numbers."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.pipeline.table import accounts
from kafka_throttle.pipeline.table.accounts import Account, Writer, added, read_accounts, rows_of
from kafka_throttle.pipeline.table.intervals import size, union, without
from kafka_throttle.pipeline.table.schemas import NUMBERS
from kafka_throttle.pipeline.table.table import make_tables

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


def test_accounts_add_up():
    one, other = Writer("usage", "a", 1), Writer("usage", "a", 2)
    both = added({one: Account(((1, 5),), (), 5)}, {one: Account(((8, 9),), ((6, 7),), 9), other: Account()})
    assert both == {one: Account(((1, 5), (8, 9)), ((6, 7),), 9), other: Account()}
    assert both[one].gaps == ()


def write(spark, table, *batches):
    """A table whose batches have learned this."""
    make_tables(spark, table, {"numbers": NUMBERS})
    for learned in batches:
        rows = spark.createDataFrame(rows_of(learned), NUMBERS)
        rows.coalesce(1).write.format("delta").mode("append").save(f"{table}/numbers")


def test_accounts_are_read_as_they_were_written_and_as_the_sum_of_all_batches(spark, tmp_path):
    one, other, third = Writer("usage", "a", 1), Writer("usage", "a", 2), Writer("trace", "a", 1)
    batches = [
        {one: Account(((1, 5), (20, 30)), ((6, 7),), 9, flush_ms=100), other: Account(alone=True)},
        {one: Account(((5, 5), (8, 9), (22, 24)), ((40, 2**48),), 4), third: Account(((1, 1),), (), 7, final=True)},
        {one: Account(((10, 10), (28, 33)), (), 3, alone=True, flush_ms=50), third: Account(((3, 4),), ((1, 1),))},
    ]
    table = str(tmp_path / "table")
    write(spark, table, *batches[:1])
    assert read_accounts(spark, table) == batches[0]
    write(spark, table, *batches[1:])
    assert read_accounts(spark, table) == {
        one: Account(((1, 5), (8, 10), (20, 33)), ((6, 7), (40, 2**48)), 9, alone=True, flush_ms=100),
        other: Account(alone=True),
        third: Account(((1, 1), (3, 4)), ((1, 1),), 7, final=True),
    }


def test_many_intervals_that_touch_are_brought_as_one(spark, tmp_path, monkeypatch):
    one = Writer("usage", "a", 1)
    chance = random.Random(5)
    pieces = [(first, first + chance.randrange(1, 25)) for first in range(1, 100_000, 2)]
    apart = [(200_000 + 10 * number, 200_000 + 10 * number + 8) for number in range(3)]
    chance.shuffle(pieces)
    make_tables(spark, str(tmp_path), {"numbers": NUMBERS})
    rows = [(*one, what, *interval) for what in ("present", "dropped") for interval in (*pieces, *apart)]
    rows += [(*one, "reported", 0, number) for number in range(1_000)]
    spark.createDataFrame(rows, NUMBERS).write.format("delta").mode("append").save(f"{tmp_path}/numbers")
    brought = []
    monkeypatch.setattr(accounts, "union", lambda intervals: brought.extend(intervals) or union(intervals))
    found = read_accounts(spark, str(tmp_path))
    assert found == {one: Account(union([*pieces, *apart]), union([*pieces, *apart]), 999)}
    assert len(brought) == 2 * (1 + len(apart))
