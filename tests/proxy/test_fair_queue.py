"""Which connection is next when many have come at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gate.fair_queue import FairQueue

COMERS = st.lists(st.sampled_from("abcd"), max_size=60)


def filled(comers):
    queue = FairQueue()
    for number, whose in enumerate(comers):
        queue.put(whose, (whose, number))
    return queue


def test_one_that_comes_behind_a_crowd_is_next_but_one():
    queue = filled("aaaaaaaaab")
    assert [queue.take()[0] for _ in range(4)] == ["a", "b", "a", "a"]


@given(COMERS)
def test_all_come_out_once_and_those_of_one_in_their_order(comers):
    queue = filled(comers)
    assert len(queue) == len(comers)
    taken = list(queue.take_all())
    assert sorted(taken, key=lambda item: item[1]) == list(zip(comers, range(len(comers)), strict=True))
    for whose in set(comers):
        numbers = [number for name, number in taken if name == whose]
        assert numbers == sorted(numbers)
    assert len(queue) == 0


@given(COMERS, st.sampled_from("abcd"))
def test_each_waits_for_at_most_one_of_every_other_before_each_of_its_own(comers, whose):
    taken = [name for name, _ in filled(comers).take_all()]
    own_before = 0
    for at, name in enumerate(taken):
        if name == whose:
            assert all(taken[:at].count(other) <= own_before + 1 for other in set(comers) - {whose})
            own_before += 1


def test_an_empty_queue_has_nothing_to_take():
    with pytest.raises(IndexError):
        FairQueue().take()
