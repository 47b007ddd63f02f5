"""The order of turns in a fair queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.entities import ANONYMOUS, NOBODY
from kafka_throttle.quotas.fair_queue import FairQueue, Whose, entity_of

WHOSE = st.builds(Whose, st.sampled_from("abcd"), st.sampled_from([None, "x", "y"]))
COMERS = st.lists(WHOSE, max_size=60)


def filled(comers):
    queue = FairQueue()
    for number, whose in enumerate(comers):
        queue.put((whose, number), whose)
    return queue


def all_of(entity, parts):
    return [Whose(entity, part) for part in parts]


def test_one_that_comes_behind_two_hundred_of_another_entity_is_next_but_one():
    queue = filled([*all_of("tenant", range(200)), Whose("small", 0)])
    assert [queue.take()[0].entity for _ in range(4)] == ["tenant", "small", "tenant", "tenant"]


def test_within_an_entity_one_that_comes_behind_two_hundred_of_another_part_is_next_but_one():
    queue = filled([Whose("tenant", "batch")] * 200 + [Whose("tenant", "small")])
    assert [queue.take()[0].part for _ in range(4)] == ["batch", "small", "batch", "batch"]


def test_parts_bring_their_entity_no_more_turns():
    queue = filled([*all_of("many parts", range(10)), *[Whose("one part", 0)] * 10])
    assert [queue.take()[0].entity for _ in range(20)] == ["many parts", "one part"] * 10


@given(COMERS)
def test_all_come_out_once_and_those_of_one_part_in_their_order(comers):
    queue = filled(comers)
    assert len(queue) == len(comers)
    taken = list(queue.take_all())
    assert sorted(taken, key=lambda item: item[1]) == list(zip(comers, range(len(comers)), strict=True))
    for whose in set(comers):
        numbers = [number for name, number in taken if name == whose]
        assert numbers == sorted(numbers)
    assert len(queue) == 0


@given(COMERS, WHOSE)
def test_each_waits_for_one_turn_of_every_other_at_most_before_each_of_its_own(comers, whose):
    def holds(names, mine):
        own_before = 0
        for at, name in enumerate(names):
            if name == mine:
                assert all(names[:at].count(other) <= own_before + 1 for other in set(names) - {mine})
                own_before += 1

    taken = [name for name, _ in filled(comers).take_all()]
    holds([name.entity for name in taken], whose.entity)
    holds([name.part for name in taken if name.entity == whose.entity], whose.part)


CALLS = st.lists(
    st.tuples(st.just("put"), WHOSE)
    | st.tuples(st.just("take"), st.none())
    | st.tuples(st.just("remove"), st.integers(0, 60)),
    max_size=80,
)


@given(CALLS)
def test_nobody_waits_for_ever_whoever_comes_and_goes_meanwhile(calls):
    queue, waiting, others_turns = FairQueue(), {}, {}
    for number, (call, what) in enumerate(calls):
        if call == "put":
            queue.put(number, what)
            waiting[number] = what
            others_turns.setdefault(what.entity, {})
        elif call == "take" and waiting:
            entity = waiting.pop(queue.take()).entity
            others_turns[entity] = {}
            for other in {whose.entity for whose in waiting.values()} - {entity}:
                others_turns[other][entity] = others_turns[other].get(entity, 0) + 1
                assert others_turns[other][entity] <= 1
        elif call == "remove":
            assert queue.remove(what, waiting.get(what, Whose("a"))) == (what in waiting)
            waiting.pop(what, None)
        for gone in others_turns.keys() - {whose.entity for whose in waiting.values()}:
            del others_turns[gone]
        assert len(queue) == len(waiting)


@given(COMERS, st.sets(st.integers(0, 59)))
def test_those_who_leave_take_no_turn_and_are_forgotten(comers, leaving):
    queue = filled(comers)
    for number in leaving:
        if number < len(comers):
            assert queue.remove((comers[number], number), comers[number])
            assert not queue.remove((comers[number], number), comers[number])
    taken = list(queue.take_all())
    for whose in set(comers):
        stay = [number for number, name in enumerate(comers) if name == whose and number not in leaving]
        assert [number for name, number in taken if name == whose] == stay
    assert not queue._entities


def test_an_entity_that_has_not_used_up_its_turn_keeps_it():
    queue = filled([*all_of("a", "xxyy"), *all_of("b", "z")])
    taken = [queue.take()]
    queue.keep_turn(Whose("a", "x"))
    taken += [queue.take(), queue.take(), queue.take()]
    assert [whose for whose, _ in taken] == [Whose("a", "x"), Whose("a", "x"), Whose("b", "z"), Whose("a", "y")]


def test_an_entity_that_does_not_wait_any_more_keeps_no_turn():
    queue = filled(all_of("b", "z"))
    queue.keep_turn(Whose("a", "x"))
    queue.keep_turn(Whose("b", "gone"))
    assert queue.take() == (Whose("b", "z"), 0)


@pytest.mark.parametrize("user", [ANONYMOUS, NOBODY])
def test_a_client_without_a_user_takes_the_turns_of_its_address_and_with_ipv6_of_its_network(user):
    assert entity_of(user, "192.0.2.1") != entity_of(user, "192.0.2.2")
    assert entity_of(user, "2001:db8:0:1::1") == entity_of(user, "2001:db8:0:1:ffff::2")
    assert entity_of(user, "2001:db8:0:1::1") != entity_of(user, "2001:db8:0:2::1")
    assert entity_of(user, "fe80::1%eth0") == entity_of(user, "fe80::2%eth0")
    assert entity_of(user, "192.0.2.0/24") == "192.0.2.0/24"
    assert entity_of(user, "2001:db8:0:1:5::/80") == entity_of(user, "2001:db8:0:1::1")
    assert entity_of(user, "2001:db8::/48") == "2001:db8::/48"


def test_a_client_with_a_user_takes_the_turns_of_its_user_wherever_it_connects_from():
    assert entity_of("alice", "192.0.2.1") == entity_of("alice", "2001:db8::1") != entity_of("bob", "192.0.2.1")
    assert entity_of("192.0.2.1", "198.51.100.1") != entity_of(ANONYMOUS, "192.0.2.1")


def test_an_empty_queue_has_nothing_to_take():
    with pytest.raises(IndexError):
        FairQueue().take()
