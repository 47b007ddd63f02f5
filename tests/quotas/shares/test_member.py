"""A member claims, acknowledges, raises and lowers."""

import pytest

from kafka_throttle.quotas.shares.division import TOTAL, floor_share, implicit_share
from kafka_throttle.quotas.shares.member import Member, State, Why
from kafka_throttle.quotas.shares.moves import EVERY_KEY, Move, Use
from tests.quotas.shares.fleet import CUT_OFF_MS, WINDOW_MS, WINDOWS, Fleet

KEY = ("client", "vc", "1", "produce", "alice")
FULL = (1.0,) * 10


@pytest.fixture
def fleet():
    return Fleet()


def settle(fleet, *instances, uses=None, rounds=4, step_ms=1000):
    """Everybody looks and publishes, again and again; returns how many documents were published."""
    published = 0
    for _ in range(rounds):
        fleet.now_ms += step_ms
        for instance in instances:
            fleet.hear(instance)
            fleet.deliver(instance)
            fleet.look(instance, [use for use in [(uses or {}).get(instance.member.id)] if use is not None])
            published += fleet.publish_at_once(instance)
    return published


def joined(fleet, count):
    instances = []
    for _ in range(count):
        instances.append(fleet.join())
        settle(fleet, *instances)
    for instance in instances:
        instance.member.take_moves()
    return instances


def pressed(share):
    return Use(KEY, share, True, tuple(share * second for second in FULL))


def steady(rate):
    return Use(KEY, rate, False, tuple(rate * second for second in FULL))


def test_one_instance_alone_publishes_once_and_has_exactly_the_limit(fleet):
    one = fleet.join()
    assert settle(fleet, one, uses={"m1": pressed(1.0)}, rounds=20) == 1
    assert one.member.is_known
    assert one.member.share_of(KEY) == 1.0
    assert one.member.explain(KEY).why is Why.ALONE
    assert one.member.take_moves() == [Move(EVERY_KEY, 1.0, 1.0, (), 0.0)]
    assert settle(fleet, one, uses={"m1": pressed(1.0)}, rounds=20) == 0
    assert one.member.take_moves() == []


def test_a_new_member_is_on_the_floor_until_all_others_have_acknowledged_it(fleet):
    (one,) = joined(fleet, 1)
    two = fleet.join()
    fleet.publish_at_once(two)
    fleet.look(two)
    assert two.member.state is State.JOINING
    assert two.member.share_of(KEY) == floor_share(2)
    fleet.deliver(one)
    fleet.look(one)
    assert one.member.share_of(KEY) == 1.0
    fleet.publish(one)
    assert one.member.share_of(KEY) == implicit_share(2)
    fleet.order(one)
    fleet.deliver(two)
    fleet.look(two)
    assert two.member.is_known
    assert two.member.share_of(KEY) == implicit_share(2)


def test_without_use_nothing_more_is_published(fleet):
    instances = joined(fleet, 4)
    assert settle(fleet, *instances, rounds=10) == 0
    assert {instance.member.share_of(KEY) for instance in instances} == {implicit_share(4)}
    assert {instance.member.members for instance in instances} == {4}


def test_who_is_pressed_alone_gets_what_the_others_do_not_use(fleet):
    instances = joined(fleet, 3)
    settle(fleet, *instances, uses={"m1": pressed(0.33)}, rounds=3)
    one, two, _ = (instance.member for instance in instances)
    assert one.share_of(KEY) == pytest.approx(TOTAL + floor_share(3))
    assert two.share_of(KEY) == floor_share(3)
    assert two.pace_of(KEY) > 0
    assert two.explain(KEY).why is Why.FLOOR
    assert one.explain(KEY).why is Why.CLAIMED
    assert settle(fleet, *instances, uses={"m1": pressed(0.98)}) == 0


def test_two_greedy_members_have_half_each_and_then_nothing_is_published(fleet):
    instances = joined(fleet, 2)
    one, two = (instance.member for instance in instances)
    settle(fleet, *instances, uses={"m1": pressed(0.5)}, rounds=3)
    settle(fleet, *instances, uses={"m1": pressed(0.98), "m2": pressed(0.005)}, rounds=5)
    assert one.share_of(KEY) == pytest.approx(TOTAL / 2 + floor_share(2), rel=0.01)
    assert two.share_of(KEY) == pytest.approx(TOTAL / 2 + floor_share(2), rel=0.01)
    assert settle(fleet, *instances, uses={"m1": pressed(0.49), "m2": pressed(0.49)}) == 0


def test_a_member_that_uses_a_key_moderately_keeps_its_part_when_another_one_is_pressed(fleet):
    instances = joined(fleet, 2)
    one, two = (instance.member for instance in instances)
    least = 1.0
    for _ in range(12):
        settle(fleet, *instances, uses={"m1": pressed(0.495), "m2": steady(0.3)}, rounds=1, step_ms=250)
        least = min(least, two.share_of(KEY))
    assert least > 0.3
    assert one.share_of(KEY) == pytest.approx(TOTAL - 0.33, abs=0.03)


def test_history_moves_with_the_share(fleet):
    instances = joined(fleet, 2)
    one, two = (instance.member for instance in instances)
    settle(fleet, *instances, uses={"m1": pressed(0.5)}, rounds=3)
    one.take_moves(), two.take_moves()
    settle(fleet, *instances, uses={"m1": pressed(0.98), "m2": pressed(0.005)}, rounds=5)
    lost = 9.8 * (1 - one.take_moves()[0].keep)
    gained = sum(sum(move.gain) for move in two.take_moves())
    assert lost == pytest.approx(4.9, rel=0.02)
    assert gained == pytest.approx(lost, rel=0.25)
    assert gained <= lost * 1.01


def test_an_unused_claim_ends_after_a_minute(fleet):
    instances = joined(fleet, 2)
    one, two = (instance.member for instance in instances)
    settle(fleet, *instances, uses={"m1": pressed(0.5)}, rounds=3)
    settle(fleet, *instances, rounds=66)
    assert one.keys == 0
    assert one.share_of(KEY) == two.share_of(KEY) == implicit_share(2)
    assert two.pace_of(KEY) == 0


def test_shares_of_a_member_that_vanishes_go_to_the_others_with_a_full_window(fleet):
    instances = joined(fleet, 3)
    uses = {"m1": pressed(0.33), "m2": pressed(0.33)}
    settle(fleet, *instances, uses=uses)
    one, two, three = instances
    assert one.member.share_of(KEY) == pytest.approx(0.49, abs=0.01)
    one.member.take_moves()
    fleet.remove(two)
    settle(fleet, one, three, uses={"m1": pressed(0.49)}, rounds=2)
    assert one.member.share_of(KEY) == pytest.approx(TOTAL + floor_share(2))
    gained = sum(sum(move.gain) for move in one.member.take_moves())
    assert 0.49 * (WINDOWS - 2) <= gained <= 0.49 * WINDOWS + 0.01


def test_a_member_that_was_alone_keeps_what_its_clients_use_when_another_one_comes(fleet):
    (one,) = joined(fleet, 1)
    settle(fleet, one, uses={"m1": pressed(1.0)})
    two = fleet.join()
    least = 1.0
    for _ in range(5):
        settle(fleet, two, one, uses={"m1": pressed(1.0)}, rounds=1, step_ms=250)
        least = min(least, one.member.share_of(KEY))
    assert least == pytest.approx(TOTAL + floor_share(2))
    assert two.member.is_known
    assert two.member.share_of(KEY) == floor_share(2)


def test_when_all_others_have_left_the_limit_is_whole_again(fleet):
    one, two = joined(fleet, 2)
    settle(fleet, one, two, uses={"m1": pressed(0.5), "m2": pressed(0.5)})
    fleet.remove(two)
    settle(fleet, one, uses={"m1": pressed(0.5)}, rounds=2)
    assert one.member.share_of(KEY) == one.member.share_of(("other",)) == 1.0
    assert one.member.keys == 0


def test_who_does_not_hear_from_the_others_has_an_equal_part_at_most_and_continues(fleet):
    one, two = joined(fleet, 2)
    settle(fleet, one, two, uses={"m1": pressed(0.5)})
    fleet.now_ms += CUT_OFF_MS + 1
    fleet.look(one, [pressed(0.98)])
    fleet.look(two)
    assert one.member.state is two.member.state is State.CUT_OFF
    assert one.member.share_of(KEY) == one.member.share_of(("other",)) == pytest.approx(implicit_share(2))
    assert two.member.share_of(KEY) == floor_share(2)
    assert one.member.explain(KEY).why is Why.CUT_OFF
    assert one.member.document(fleet.now_ms) is None
    settle(fleet, one, two, uses={"m1": pressed(0.5)}, rounds=3)
    assert one.member.is_known
    assert one.member.share_of(KEY) == pytest.approx(TOTAL + floor_share(2))


def test_after_a_long_silence_every_key_has_an_equal_part_without_a_burst(fleet):
    one, two = joined(fleet, 2)
    settle(fleet, one, two, uses={"m1": pressed(0.5)})
    two.member.take_moves()
    fleet.now_ms += CUT_OFF_MS + 1
    fleet.look(two)
    fleet.now_ms += CUT_OFF_MS
    fleet.look(two)
    assert two.member.state is State.LOST
    assert two.member.share_of(KEY) == implicit_share(2)
    (move,) = two.member.take_moves()
    assert sum(move.gain) == pytest.approx(WINDOWS * (implicit_share(2) - floor_share(2)))
    assert move.pace == 0


def test_a_member_whose_record_was_lost_is_on_the_floor_for_what_others_claim_until_all_know_it_again(fleet):
    one, two, three = instances = joined(fleet, 3)
    settle(fleet, *instances, uses={"m1": pressed(0.33), "m2": pressed(0.33)})
    fleet.remove(one)
    settle(fleet, two, three, uses={"m2": pressed(0.49)}, rounds=2)
    fleet.hear(one)
    assert one.member.state is State.LOST
    assert one.member.share_of(KEY) == implicit_share(3)
    fleet.look(one)
    fleet.deliver(one)
    assert one.member.state is State.RETURNING
    assert one.member.share_of(KEY) == floor_share(3)
    assert one.member.share_of(("other",)) == implicit_share(3)
    settle(fleet, *instances, rounds=3)
    assert one.member.is_known


def test_a_start_without_the_transport_has_the_assumed_part(fleet):
    one = Member("one", WINDOWS, WINDOW_MS, 0, cut_off_ms=CUT_OFF_MS, assumed=3)
    one.look([], CUT_OFF_MS)
    assert one.share_of(KEY) == floor_share(2)
    one.look([], CUT_OFF_MS + 1)
    assert one.is_cut_off
    assert one.share_of(KEY) == implicit_share(3)
    assert one.take_moves() == [Move(EVERY_KEY, implicit_share(3), 1.0, (), 0.0)]


def test_clients_that_wait_have_their_fair_part_as_their_pace_and_an_equal_one_when_their_member_is_cut_off(fleet):
    instances = joined(fleet, 3)
    settle(fleet, *instances, uses={"m1": pressed(0.33)}, rounds=3)
    two = instances[1].member
    assert two.share_of(KEY) == floor_share(3)
    assert TOTAL / 2 <= two.pace_of(KEY) < TOTAL
    moves = {move.key: move for move in two.take_moves()}
    assert moves[KEY].pace == two.pace_of(KEY)
    two.look([], fleet.now_ms + CUT_OFF_MS + 1)
    assert two.state is State.CUT_OFF
    two.lost()
    assert 0 < two.pace_of(KEY) <= implicit_share(3)
    assert two.share_of(KEY) <= implicit_share(3)


def test_a_member_without_a_good_document_counts_and_blocks_raises(fleet):
    one, _ = joined(fleet, 2)
    for _ in range(4):
        fleet.now_ms += 1000
        fleet.hear(one)
        one.member.view({"m2": fleet.registers.histories["m2"][-1], "bad": None}, fleet.now_ms)
        fleet.look(one, [pressed(0.33)])
        one.member.document(fleet.now_ms)
    assert one.member.members == 3
    assert one.member.share_of(KEY) <= implicit_share(2)
    assert one.member.explain(KEY).why is Why.ENTERING


def test_a_document_that_was_lost_is_asked_for_again(fleet):
    one = Member("one", WINDOWS, WINDOW_MS, 0, cut_off_ms=CUT_OFF_MS)
    one.heard(0)
    first = one.document(0)
    second = one.document(100)
    assert first is not None
    assert second is not None
    assert second.seq == first.seq + 1
    one.published(first.seq, 200)
    one.look([], 200)
    assert not one.is_known
    one.published(second.seq, 300)
    one.look([], 300)
    assert one.is_known
    assert one.document(400) is None


def test_a_member_that_is_never_acknowledged_by_a_foreign_record_serves_its_equal_part():
    member = Member("a", WINDOWS, WINDOW_MS, 0, cut_off_ms=CUT_OFF_MS)
    for now_ms in range(0, 2 * CUT_OFF_MS, 500):
        member.heard(now_ms)
        member.view({"foreign": None}, now_ms)
        member.look([], now_ms)
        if (document := member.document(now_ms)) is not None:
            member.published(document.seq, now_ms)
        assert member.state is State.JOINING
        assert member.share_of(KEY) == floor_share(2)
    now_ms = 2 * CUT_OFF_MS + 500
    member.heard(now_ms)
    member.look([], now_ms)
    assert (member.state, member.is_cut_off) == (State.RETURNING, True)
    assert member.share_of(KEY) == implicit_share(2)
    member.view({}, now_ms)
    member.look([], now_ms)
    assert (member.state, member.share_of(KEY)) == (State.MEMBER, 1.0)
