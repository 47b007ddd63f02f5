"""What a member of a fleet is told of the rows, and what its moves do to them."""

import pytest

from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_counts import CountKey
from kafka_throttle.quotas.connection_quotas import (
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
    RateKey,
)
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.row_copies import values_of
from kafka_throttle.quotas.sensors.rows import WAITS_MS
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.share_rows import RETRY_MS, SharedRows
from kafka_throttle.quotas.shares.member import Member
from kafka_throttle.quotas.shares.moves import EVERY_KEY, Move, Use

PRODUCE, MUTATION = QuotaType.PRODUCE, QuotaType.CONTROLLER_MUTATION
LISTENER = ListenerKey("main", "plain")
ALICE, BOB = (SensorKey("main", 1, PRODUCE, SensorTags(name, "")) for name in ("alice", "bob"))
TOPICS = SensorKey("main", WHOLE_CLUSTER, MUTATION, SensorTags("alice", ""))
HERE, SHADOW = RateKey("main", "", "10.0.0.1"), RateKey("main", "", "10.0.0.1", True)
ALICES, BOBS, TOPICS_OF_ALICE, FROM_HERE = map(values_of, (ALICE, BOB, TOPICS, HERE))


class Instance:
    """The rows of one instance, with a member that is set by hand."""

    def __init__(self, shares=None, watched=(), rows=64):
        self.manager = ClientQuotaManager(
            Sensors(rows), QuotaTable({Entity(user=DEFAULT): {PRODUCE: 1000.0, MUTATION: 2.0}})
        )
        self.connections = ConnectionQuotas(ConnectionLimits(), 0)
        self.connections.add_virtual_cluster("main", 11, 1000)
        self.connections.add_listener(LISTENER, ConnectionLimits(), 0)
        self.connections.set_address_limits("main", AddressLimits(4.0, shadow_rate=2.0))
        self.is_known, self.is_cut_off, self.members = True, False, 1
        self.shares, self.own, self.waits, self.watched_keys = shares or {}, set(), set(), list(watched)
        self.rows = SharedRows(self.manager, self.connections, "main", self)

    def watched(self):
        return self.watched_keys

    def share_of(self, key):
        return self.shares.get(key, 1.0)

    def pace_of(self, key):
        return 50.0 if key in self.waits else 0.0

    def has_own_share(self, key):
        return key in self.own

    def produce(self, user, value, now_ms):
        return self.manager.sensors.charge(self.manager.bind("main", 1, user, "c", now_ms).produce, value, now_ms)

    def mutate(self, user, value, now_ms):
        return self.manager.buckets.spend_strictly(
            self.manager.bind("main", 1, user, "c", now_ms).mutation, value, now_ms
        )

    def connect(self, now_ms, address="10.0.0.1"):
        self.connections.measure_shadow("main", address, now_ms)
        return self.connections.admit(LISTENER, address, now_ms)

    def limit(self, key):
        return self.manager.reading(key, 0).limit


def test_only_what_is_pressed_or_watched_is_looked_at():
    one = Instance(watched=[BOBS])
    one.produce("alice", 5_000.0, 0)
    assert one.rows.uses(0) == [Use(BOBS, 0.0, False, ())]
    assert one.produce("alice", 8_000.0, 500) == 2_500
    assert one.rows.uses(1_000) == [
        Use(BOBS, 0.0, False, ()),
        Use(ALICES, 13.0, True, (13.0, *(0.0,) * 10), waits_ms=2_000),
    ]
    assert one.rows.uses(1_500) == [Use(BOBS, 0.0, False, ())]


def test_a_rate_is_what_was_recorded_since_the_last_look():
    one = Instance(watched=[ALICES])
    one.produce("alice", 1_000.0, 0)
    assert one.rows.uses(500)[0].rate == pytest.approx(1.0)
    one.produce("alice", 250.0, 600)
    assert one.rows.uses(1_000)[0].rate == pytest.approx(0.5)
    assert one.rows.uses(1_250)[0].rate == 0.0
    one.watched_keys.clear()
    assert one.rows.uses(1_500) == []
    one.produce("alice", 1_000.0, 2_000)
    one.watched_keys.append(ALICES)
    assert one.rows.uses(2_250)[0].rate == pytest.approx(1.0)
    one.watched_keys.clear()
    assert one.rows.uses(15_000) == []
    one.watched_keys.append(ALICES)
    assert one.rows.uses(15_000)[0].rate == 0.0


def test_an_address_that_is_banned_uses_nothing_and_stops_nothing():
    one = Instance(watched=[FROM_HERE])
    for _ in range(60):
        one.connect(0)
    assert one.rows.uses(0)[0].is_pressed
    one.connections.set_address_limits("main", AddressLimits(4.0, rates={"10.0.0.1": 0.0}))
    assert one.connect(500).outcome is Outcome.TOO_FAST
    [use] = one.rows.uses(1_000)
    assert (use.rate, use.used) == (0.0, ())


def test_clients_wait_as_long_as_the_latest_throttle_lasts():
    one = Instance(watched=[ALICES])
    one.produce("alice", 13_000.0, 0)
    waits = [(use.is_pressed, use.waits_ms) for now_ms in (0, 1_000, 4_000) for use in one.rows.uses(now_ms)]
    assert waits == [(True, 3_000), (False, 2_000), (False, 0)]


def test_buckets_and_rates_of_addresses_are_rows_too():
    one = Instance()
    one.mutate("alice", 50, 0)
    assert one.mutate("alice", 1, 0) == 14_000
    for _ in range(21):
        one.connect(0)
    bucket, shadow = one.rows.uses(0)
    assert bucket == Use(TOPICS_OF_ALICE, pytest.approx(25 / 11), True, (25.0,), waits_ms=14_000)
    assert (shadow.key, shadow.is_pressed, shadow.used[0]) == (values_of(SHADOW), True, 10.0)
    while one.connect(0).outcome is Outcome.ADMITTED:
        pass
    rate = next(use for use in one.rows.uses(0) if use.key == FROM_HERE)
    assert (rate.is_pressed, rate.used[0], rate.waits_ms) == (True, 10.0, 250)


@pytest.mark.parametrize(
    "key",
    [
        ("client", "other", 1, "producer_byte_rate", "u", "", None),
        ("client", "main", "1", "producer_byte_rate", "u", "", None),
        ("client", "main", 1, "producer_byte_rate", ("u",), "", None),
        ("client", "main", 1, "speed", "u", "", None),
        ("client", "main", 1, "producer_byte_rate", "u"),
        ("client", "main", 1, "producer_byte_rate", "u", "", (("user", None, 3),)),
        ("client", "main", 1, 3, "u", "", None),
        ("connection", "main", "plain", None, False),
        ("connection", "main", "", "10.0.0.1", False, 1),
        ("connection", "other", "", "10.0.0.1", False),
        ("connection", "", "", None, False),
        ("anything",),
        (None,),
    ],
)
def test_keys_of_others_that_are_no_rows_here_are_not_used_and_not_opened(key):
    one = Instance(watched=[key])
    assert one.rows.uses(0) == [Use(key, 0.0, False, ())]
    one.rows.apply([Move(key, 0.5, 1.0, (1.0,), 0.0)], 0)
    assert one.manager.sensor_keys == []
    assert list(one.connections.rate_keys("main")) == []


def test_a_move_changes_the_row_of_its_key_and_no_other():
    one = Instance()
    for user in ("alice", "bob"):
        one.produce(user, 6_000.0, 0)
        one.mutate(user, 4, 0)
    one.rows.apply([Move(ALICES, 0.5, 0.25, (0.0, 1.0), 50.0), Move(TOPICS_OF_ALICE, 0.25, 0.5, (3.0,), 0.0)], 0)
    assert (one.limit(ALICE), one.limit(BOB), one.limit(TOPICS)) == (500.0, 1000.0, 0.5)
    one.watched_keys = [ALICES, TOPICS_OF_ALICE]
    alices, topics = one.rows.uses(0)
    assert alices.used[:3] == (1.5, 1.0, 0.0)
    assert topics.used == (pytest.approx(4.0),)
    assert one.produce("alice", 50_000.0, 0) == WAITS_MS
    assert one.produce("bob", 50_000.0, 0) == 20_000


def test_a_row_that_is_opened_has_the_share_of_its_key():
    one = Instance({ALICES: 0.5, TOPICS_OF_ALICE: 0.25, FROM_HERE: 0.5})
    one.waits = {ALICES}
    assert (one.produce("alice", 50_000.0, 0), one.produce("bob", 50_000.0, 0)) == (WAITS_MS, 20_000)
    assert (one.limit(ALICE), one.limit(BOB), one.limit(TOPICS)) == (500.0, 1000.0, 0.5)
    admitted = [one.connect(0).outcome is Outcome.ADMITTED for _ in range(40)]
    assert (sum(admitted), one.connections.rates("main").reading("10.0.0.1", 0).limit) == (20, 2.0)


def test_nobody_waits_any_more_also_if_the_quota_was_unlimited_when_that_ended():
    one = Instance({ALICES: 0.05})
    one.produce("alice", 1.0, 0)
    one.rows.apply([Move(ALICES, 0.05, 1.0, (), 0.5)], 0)
    one.manager.replace(QuotaTable({Entity(user=DEFAULT): {PRODUCE: UNLIMITED}}), 1_000)
    one.shares.clear()
    one.rows.apply([Move(ALICES, 1.0, 1.0, (), 0.0)], 2_000)
    one.manager.replace(QuotaTable({Entity(user=DEFAULT): {PRODUCE: 1_000.0}}), 3_000)
    assert one.produce("alice", 14_000.0, 100_000) == 4_000


def test_a_move_for_all_concerns_rows_without_a_share_of_their_own():
    one = Instance()
    for user in ("alice", "bob", "carol"):
        one.produce(user, 4_000.0, 0)
    one.connect(0)
    one.own = {ALICES}
    carol = values_of(SensorKey("main", 1, PRODUCE, SensorTags("carol", "")))
    one.rows.apply([Move(EVERY_KEY, 0.5, 0.5, (), 0.0), Move(carol, 0.125, 1.0, (), 0.0)], 0)
    readings = {key.tags.user: reading for key, reading in one.manager.readings(0)}
    limits = {user: (reading.limit, round(reading.rate * 10)) for user, reading in readings.items()}
    assert limits == {"alice": (1000.0, 4_000), "bob": (500.0, 2_000), "carol": (125.0, 4_000)}
    here = one.connections.rates("main").reading("10.0.0.1", 0)
    assert (here.limit, here.rate) == (2.0, 0.05)
    one.rows.apply([Move(EVERY_KEY, 1.0, 2.0, (), 0.0)], 0)
    assert {key.tags.user: reading.limit for key, reading in one.manager.readings(0)} == {
        "alice": 1000.0,
        "bob": 1000.0,
        "carol": 1000.0,
    }


def test_a_move_for_all_takes_steps_between_which_rows_open():
    one = Instance(rows=1024)
    for number in range(350):
        one.produce(f"user-{number}", 2_000.0, 0)
    one.shares = {values_of(SensorKey("main", 1, PRODUCE, SensorTags("late", ""))): 0.5}
    one.rows.apply([Move(EVERY_KEY, 0.5, 0.5, (), 0.0)], 0)
    assert 0 < sum(reading.limit == 500 for _, reading in one.manager.readings(0)) < 350
    one.produce("late", 1.0, 0)
    steps = 0
    while one.rows.go_on(0):
        steps += 1
    assert steps > 2
    readings = {key.tags.user: reading for key, reading in one.manager.readings(0)}
    assert len(readings) == 351
    assert {(user == "late", reading.limit, reading.total) for user, reading in readings.items()} == {
        (False, 500.0, 2_000.0),
        (True, 500.0, 1.0),
    }


def test_the_rate_of_an_address_moves_with_its_history():
    giver, taker = Instance(), Instance({FROM_HERE: 0.02})
    while giver.connect(0).outcome is Outcome.ADMITTED:
        pass
    used = next(use for use in giver.rows.uses(0) if use.key == FROM_HERE).used
    giver.rows.apply([Move(FROM_HERE, 0.02, 0.0, (), 0.0)], 0)
    taker.shares[FROM_HERE] = 1.0
    taker.rows.apply([Move(FROM_HERE, 1.0, 1.0, used, 0.0)], 0)
    assert taker.connect(0).outcome is Outcome.TOO_FAST
    assert taker.connections.share_history(HERE, 0) == (0.0, 4.0, (40.0, *(0.0,) * 10))
    for share in (0.0, -1.0):
        with pytest.raises(ValueError):
            taker.connections.reshare(HERE, share, 1.0, (), 0)


def test_an_instance_that_is_alone_has_all_of_each_limit():
    one, plain = Instance(), Instance()
    member = Member("one#1", 11, 1000, 0, cut_off_ms=5_000)
    one.rows = SharedRows(one.manager, one.connections, "main", member)
    for step in (0, 300, 1_500):
        member.heard(step)
        member.view({}, step)
        member.look(one.rows.uses(step), step)
        if (document := member.document(step)) is not None:
            member.published(document.seq, step)
        one.rows.apply(member.take_moves(), step)
    for now_ms in range(2_000, 40_000, 700):
        assert one.produce("alice", 900.0, now_ms) == plain.produce("alice", 900.0, now_ms)
        assert one.mutate("alice", 3, now_ms) == plain.mutate("alice", 3, now_ms)
        assert one.connect(now_ms) == plain.connect(now_ms)
        member.heard(now_ms)
        member.look(one.rows.uses(now_ms), now_ms)
        one.rows.apply(member.take_moves(), now_ms)
    assert one.limit(ALICE) == 1000.0


# ------------------------------------------------------------ numbers of connections


def from_address(address="10.0.0.1"):
    return ("connections", "main", "address", address)


def test_an_instance_may_have_its_part_of_a_number_of_connections():
    one = Instance({from_address(): 0.5})
    one.connections.set_address_limits("main", AddressLimits(connections=5))
    outcomes = [one.connect(0).outcome for _ in range(3)]
    assert outcomes == [Outcome.ADMITTED, Outcome.ADMITTED, Outcome.TOO_MANY]
    assert one.rows.uses(0) == [Use(from_address(), 0.0, True, (), 0.4, RETRY_MS, 0.2)]
    one.shares[from_address()] = 0.2
    assert one.connect(0).outcome is Outcome.TOO_MANY
    assert one.connections.connections == 2  # none is closed
    for _ in range(2):
        one.connections.leave(LISTENER, "10.0.0.1")
    assert one.connect(0).outcome is Outcome.ADMITTED
    assert one.connect(0, "10.0.0.2").outcome is Outcome.ADMITTED


def test_a_share_that_was_rounded_down_is_the_number_it_stands_for():
    one = Instance({from_address(): 0.428571})
    one.connections.set_address_limits("main", AddressLimits(connections=7))
    assert sum(one.connect(0).outcome is Outcome.ADMITTED for _ in range(9)) == 3


def test_connections_of_users_are_shared_too():
    one = Instance({("connections", "main", "user", "alice"): 0.34})
    counts = one.connections.counts("main")
    counts.limit("user", {"alice": 3, "bob": 1}.get)
    alice, bob = CountKey("user", "alice"), CountKey("user", "bob")
    assert [counts.enter(key) for key in (alice, alice, bob, bob)] == [True, False, True, False]
    pressed = {use.key[3]: use.held for use in one.rows.uses(0)}
    assert pressed == {"alice": pytest.approx(1 / 3), "bob": 1.0}
    counts.leave(bob)
    with pytest.raises(ValueError):
        counts.leave(bob)


def test_a_member_that_is_not_known_yet_has_no_part_of_a_number():
    one = Instance()
    one.connections.set_address_limits("main", AddressLimits(connections=1000))
    one.is_known = False
    assert one.connect(0).outcome is Outcome.TOO_MANY
    assert one.connect(0, "10.0.0.2").outcome is Outcome.TOO_MANY
    one.is_cut_off = True
    assert one.connect(0).outcome is Outcome.ADMITTED


def test_what_is_open_beyond_an_equal_part_is_said_unasked():
    one = Instance()
    one.connections.set_address_limits("main", AddressLimits(connections=6, counts={"10.0.0.3": 100}))
    for address in ["10.0.0.1"] * 3 + ["10.0.0.2"] * 2 + ["10.0.0.3"] * 30:
        assert one.connect(0, address).outcome is Outcome.ADMITTED
    assert one.rows.uses(0) == []
    one.members = 2
    assert {use.key[3]: use.held for use in one.rows.uses(0)} == {"10.0.0.1": 0.5}
    one.members = 4
    assert {use.key[3] for use in one.rows.uses(0)} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_unlimited_numbers_are_not_shared():
    one = Instance({from_address(): 0.01})
    assert all(one.connect(0).outcome is Outcome.ADMITTED for _ in range(9))
    one.members = 5
    assert one.rows.uses(0) == []
    one.watched_keys = [from_address(), ("connections", "main", "city", "Rome"), ("connections", "main", "user")]
    assert [use[1:4] for use in one.rows.uses(0)] == [(0.0, False, ())] * 3
