"""Numbers of connections: no floors, and what is held is not given away."""

import pytest

from kafka_throttle.quotas.shares.member import Why
from kafka_throttle.quotas.shares.moves import Use
from tests.quotas.shares.fleet import Fleet
from tests.quotas.shares.test_member import settle

KEY = ("connections", "vc", "address", "10.0.0.1")


def held(part, is_pressed=False):
    return Use(KEY, part, is_pressed, (), held=part)


@pytest.fixture
def fleet():
    return Fleet(is_count=lambda key: key[0] == "connections")


def joined(fleet, count):
    instances = []
    for _ in range(count):
        instances.append(fleet.join())
        settle(fleet, *instances)
    return instances


def test_one_member_can_have_all_connections_and_the_others_none(fleet):
    one, two, three = joined(fleet, 3)
    settle(fleet, one, two, three, uses={"m1": held(0.3, is_pressed=True)})
    assert one.member.share_of(KEY) == 1.0
    assert two.member.share_of(KEY) == three.member.share_of(KEY) == 0.0


def test_what_is_held_is_given_away_when_it_is_closed(fleet):
    one, two = joined(fleet, 2)
    settle(fleet, one, two, uses={"m1": held(0.4, is_pressed=True)})
    settle(fleet, one, two, uses={"m1": held(0.8, is_pressed=True), "m2": held(0.0, is_pressed=True)})
    assert one.member.share_of(KEY) == 0.8
    assert two.member.share_of(KEY) == pytest.approx(0.2, abs=2e-6)
    settle(fleet, one, two, uses={"m1": held(0.5, is_pressed=True), "m2": held(0.2, is_pressed=True)})
    assert one.member.share_of(KEY) == two.member.share_of(KEY) == pytest.approx(0.5, abs=2e-6)


def test_a_member_that_holds_more_than_its_coming_part_claims_it_before_another_member_is_known(fleet):
    one, two = joined(fleet, 2)
    three = fleet.join()
    uses = {"m1": held(0.4), "m2": held(0.1)}
    for _ in range(5):
        settle(fleet, three, one, two, uses=uses, rounds=1, step_ms=250)
        assert fleet.excess(KEY) <= 1e-9
        assert one.member.share_of(KEY) >= 0.4
        assert two.member.share_of(KEY) >= 0.1
    assert three.member.is_known
    assert three.member.explain(KEY).why is Why.FLOOR


def test_a_member_that_was_alone_claims_all_that_it_holds(fleet):
    (one,) = joined(fleet, 1)
    two = fleet.join()
    settle(fleet, two, one, uses={"m1": held(0.9)})
    assert two.member.is_known
    assert one.member.share_of(KEY) >= 0.9
    assert one.member.share_of(KEY) + two.member.share_of(KEY) <= 1
