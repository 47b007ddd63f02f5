"""Which ticket leaves a full pool."""

from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.proxy.gate.fair_pool import FairPool

TICKETS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40)


def filled(tickets):
    pool = FairPool()
    for number, (origin, _) in enumerate(tickets):
        pool.enter(number, origin)
    return pool


@given(TICKETS)
def test_of_those_that_give_way_the_oldest_of_the_origin_with_most_of_them_leaves(tickets):
    leaves = filled(tickets).oldest(lambda number: tickets[number][1])
    giving_way = [(origin, number) for number, (origin, gives_way) in enumerate(tickets) if gives_way]
    if leaves is None:
        assert not giving_way
        return
    of = {origin: [number for whose, number in giving_way if whose == origin] for origin in "abcd"}
    own = of[tickets[leaves][0]]
    assert leaves == own[0]
    assert len(own) == max(map(len, of.values()))


@given(TICKETS, st.sampled_from("abcde"))
def test_the_oldest_of_the_origin_with_most_leaves_for_one_that_would_have_fewer(tickets, comer):
    pool = filled(tickets)
    of = {origin: [number for number, (whose, _) in enumerate(tickets) if whose == origin] for origin in "abcde"}
    most = max(map(len, of.values()))
    leaves = pool.victim_for(comer)
    assert (leaves is not None) == (most > len(of[comer]) + 1)
    if leaves is not None:
        own = of[tickets[leaves][0]]
        assert (leaves, len(own)) == (own[0], most)
        pool.leave(leaves)
        assert leaves not in pool
