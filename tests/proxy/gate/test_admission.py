"""Which connections are admitted, wait or are closed, by script and beside a model."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.proxy.gate.admission import HELD, Admission, ClusterRules, ConnectionSlot, Refused, Step
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.quotas.connection_quotas import (
    NO_LIMIT,
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
)
from kafka_throttle.quotas.entities import ANONYMOUS
from tests.proxy.gate.naive_gate import MANY, WINDOW_MS, Limits, NaiveGate

FRONT, BACK = ListenerKey("main", "front"), ListenerKey("main", "back")
HERE, THERE = "10.0.0.1", "10.0.0.2"
TOO_FAST, TOO_MANY_HELD = CloseReason.IP_RATE_EXCEEDED, Refused(CloseReason.TOO_MANY_HELD, reset=True)


def gate(max_held=1_000, samples=11, **rules):
    admission = Admission(ConnectionQuotas(ConnectionLimits(), 0, samples, 1_000), max_held)
    admission.add_virtual_cluster("main", samples, 1_000)
    for key in (FRONT, BACK):
        admission.add_listener(key, 0)
    admission.set_rules("main", ClusterRules(**rules))
    return admission


def limit(admission, **limits):
    admission.quotas.set_address_limits("main", AddressLimits(**limits))


numbers = itertools.count(1)


def connect(admission, address=HERE, now_ms=0, listener=FRONT, ticket=None):
    """What becomes of a connection that need not wait for its listener."""
    ticket = next(numbers) if ticket is None else ticket
    assert admission.arrive(listener, ticket, now_ms)
    return admission.admit(listener, ticket, address, now_ms)


def due(admission, now_ms):
    return [(what.ticket, what.reason or what.step) for what in admission.due(now_ms)]


# ----------------------------------------------------------- rates of addresses


@pytest.mark.rule("connection rate")
def test_a_connection_that_comes_too_fast_is_held_for_its_delay_and_then_closed():
    admission = gate()
    limit(admission, creation_rate=2.0)
    places = [connect(admission) for _ in range(20)]
    assert all(isinstance(place, ConnectionSlot) for place in places)
    assert connect(admission, ticket="late") is HELD
    assert (admission.wake_at(), admission.held, due(admission, 499)) == (500, 1, [])
    assert due(admission, 500) == [("late", TOO_FAST)]
    assert (admission.wake_at(), admission.held) == (None, 0)
    counts = admission.counts[FRONT]
    assert (counts.address_throttles, counts.address_throttled_ms, counts.throttles) == (1, 500, 0)


def test_what_is_not_measured_spends_no_rate_and_waits_for_none_but_counts():
    admission = gate()
    limit(admission, creation_rate=1.0, counts={HERE: 15})
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(creation_rate=2.0), 0)
    admission.quotas.set_instance_limits(ConnectionLimits(creation_rate=2.0), 0)

    def unmeasured(number):
        assert admission.arrive(FRONT, number, 0)
        return admission.admit(FRONT, number, HERE, 0, measured=False)

    for number in range(100):
        admission.left(unmeasured(number))
    places = [connect(admission) for _ in range(10)]
    assert all(isinstance(place, ConnectionSlot) for place in places)
    assert connect(admission) is HELD
    assert [isinstance(unmeasured(number), ConnectionSlot) for number in range(5)] == [True] * 5
    assert unmeasured("one too many") == Refused(CloseReason.TOO_MANY_FROM_IP)
    assert admission.quotas.listener_reading(FRONT, 0).rate == admission.quotas.instance_reading(0).rate == 1.0


def test_each_that_is_held_ends_at_its_own_time():
    admission = gate()
    limit(admission, rates={HERE: 1.0, THERE: 4.0})
    for address, count in ((HERE, 10), (THERE, 40)):
        for _ in range(count):
            connect(admission, address)
    assert connect(admission, HERE, ticket="long") is HELD
    assert connect(admission, THERE, ticket="short") is HELD
    assert connect(admission, HERE, 100, ticket="later") is HELD
    assert due(admission, 250) == [("short", TOO_FAST)]
    assert due(admission, 999) == []
    assert due(admission, 1_000) == [("long", TOO_FAST), ("later", TOO_FAST)]


def test_a_refused_connection_delays_no_other():
    admission = gate()
    limit(admission, rates={HERE: 0.0})
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(creation_rate=1.0), 0)
    for _ in range(100):
        connect(admission, HERE)
    assert [isinstance(connect(admission, THERE), ConnectionSlot) for _ in range(10)] == [True] * 10


def test_more_than_may_be_held_of_one_address_or_in_all_are_reset_at_once():
    admission = gate(max_held=3)
    admission.set_rules("main", ClusterRules(max_held=2))
    limit(admission, creation_rate=0.0)
    assert [connect(admission, HERE) for _ in range(3)] == [HELD, HELD, TOO_MANY_HELD]
    assert [connect(admission, THERE) for _ in range(2)] == [HELD, TOO_MANY_HELD]
    assert len(due(admission, 1_000)) == 3
    assert connect(admission, THERE, 1_000) is HELD


def test_addresses_of_one_ipv6_network_are_held_together_and_have_a_rate_each():
    admission = gate()
    admission.set_rules("main", ClusterRules(max_held=2))
    limit(admission, creation_rate=0.0, rates={"2001:db8::9": NO_LIMIT})
    assert [connect(admission, f"2001:db8::{number}") for number in range(1, 4)] == [HELD, HELD, TOO_MANY_HELD]
    assert connect(admission, "2001:db8:0:1::1") is HELD
    assert isinstance(connect(admission, "2001:db8::9"), ConnectionSlot)
    assert len(due(admission, 1_000)) == 3
    assert connect(admission, "2001:db8::4", 1_000) is HELD


def test_fifty_thousand_of_one_address_do_not_touch_another():
    admission = gate()
    limit(admission, creation_rate=5.0)
    for _ in range(50_000):
        connect(admission, HERE)
    assert admission.held == 200
    assert isinstance(connect(admission, THERE), ConnectionSlot)
    assert admission.counts[FRONT].throttles == 0


def test_a_hundred_thousand_addresses_take_a_bounded_number_of_rows():
    admission = gate()
    limit(admission, creation_rate=1.0)
    outcomes = [connect(admission, f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}") for i in range(100_000)]
    rates = admission.quotas.rates("main")
    assert (rates.used, rates.overflowed) == (rates.capacity * 15 // 16, 100_000 - rates.capacity * 15 // 16)
    assert sum(isinstance(outcome, ConnectionSlot) for outcome in outcomes) == rates.used + 10
    assert admission.held == 1_000


def test_addresses_of_one_prefix_are_one_unless_something_is_said_about_one():
    admission = gate(ipv6_prefix=64, ipv4_prefix=24)
    limit(admission, creation_rate=0.1, rates={"2001:db8::9": NO_LIMIT}, counts={"10.0.0.9": 5})
    assert connect(admission, "2001:db8::1").origin == "2001:db8::/64"
    assert connect(admission, "2001:db8::ffff") is HELD
    assert connect(admission, "2001:db8:0:1::1").origin == "2001:db8:0:1::/64"
    assert connect(admission, "2001:db8::9").origin == "2001:db8::9"
    assert connect(admission, "10.0.0.1").origin == "10.0.0.0/24"
    assert connect(admission, "10.0.0.9").origin == "10.0.0.9"
    assert connect(admission, "fe80::1%eth0").origin == "fe80::/64"


@pytest.mark.rule("shadow")
def test_a_shadow_counts_every_attempt_and_holds_none():
    admission = gate(waits=True)
    limit(admission, creation_rate=2.0, shadow_rate=1.0)
    for _ in range(25):
        connect(admission)
    assert admission.quotas.rates("main", shadow=True).throttles == 15
    assert admission.held == 5


# ------------------------------------------------------------- ip_refusal: wait


def test_with_wait_the_head_comes_in_when_the_rate_allows_and_newcomers_stand_behind_it():
    admission = gate(waits=True)
    limit(admission, creation_rate=2.0)
    for _ in range(20):
        connect(admission, now_ms=0)
    outcomes = [connect(admission, now_ms=10_100, ticket=name) for name in "abc"]
    assert isinstance(outcomes[0], ConnectionSlot) or outcomes[0] is HELD
    first = admission.wake_at()
    assert first is not None
    reported = []
    for now_ms in range(first, 11_101):
        reported += due(admission, now_ms)
    assert [name for name, _ in reported] == [
        name for name, outcome in zip("abc", outcomes, strict=True) if outcome is HELD
    ]
    assert set(dict(reported).values()) <= {Step.ADMITTED, TOO_FAST}
    assert admission.held == 0


def test_with_wait_no_connection_overtakes_and_none_is_held_longer_than_a_window():
    admission = gate(waits=True)
    limit(admission, creation_rate=1.0)
    for _ in range(10):
        connect(admission, now_ms=0)
    assert connect(admission, now_ms=10_500, ticket="a") is HELD
    limit(admission, creation_rate=100.0)
    assert connect(admission, now_ms=10_600, ticket="b") is HELD
    assert connect(admission, THERE, now_ms=10_600).origin == THERE
    at_ms = admission.wake_at()
    assert due(admission, at_ms) == [("a", Step.ADMITTED), ("b", Step.ADMITTED)]


def test_with_wait_no_connection_is_left_behind_by_a_gate_that_takes_one_event_at_a_time():
    admission = gate(waits=True)
    limit(admission, creation_rate=1.0)
    for address in (HERE, THERE):
        for _ in range(10):
            connect(admission, address)
        assert [connect(admission, address, ticket=(address, n)) for n in range(3)] == [HELD] * 3
    reported = []
    while (now_ms := admission.wake_at()) is not None:
        for what in itertools.islice(admission.due(now_ms), 1):
            reported.append(what.ticket)
    assert reported == [(address, n) for address in (HERE, THERE) for n in range(3)]
    assert admission.held == 0
    assert connect(admission, HERE, 60_000).origin == HERE


def test_with_wait_one_that_is_admitted_takes_a_slot_or_is_closed_for_want_of_one():
    admission = gate(waits=True)
    limit(admission, creation_rate=1.0)
    place = connect(admission)
    for _ in range(9):
        connect(admission)
    assert connect(admission, ticket="a") is HELD
    limit(admission, creation_rate=NO_LIMIT)
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(connections=10), 0)
    assert due(admission, 1_000) == [("a", CloseReason.TOO_MANY_CONNECTIONS)]
    assert admission.held == 0
    admission.left(place)
    assert isinstance(connect(admission, now_ms=1_000), ConnectionSlot)


def test_a_queue_that_is_left_over_when_it_is_to_be_closed_ends_too():
    admission = gate(waits=True)
    limit(admission, creation_rate=0.0)
    assert [connect(admission, ticket=name) for name in "ab"] == [HELD, HELD]
    admission.set_rules("main", ClusterRules())
    assert connect(admission, ticket="c") is HELD
    assert sorted(due(admission, 1_000)) == [(name, TOO_FAST) for name in "abc"]
    assert admission.wake_at() is None


# ------------------------------------------------------- listeners and instance


def test_a_listener_over_its_rate_has_one_wait_and_the_other_goes_on():
    admission = gate()
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(creation_rate=2.0), 0)
    for _ in range(20):
        connect(admission)
    assert not admission.arrive(FRONT, "waits", 0)
    assert (admission.wake_at(), admission.somebody_waits) == (500, True)
    assert isinstance(connect(admission, listener=BACK), ConnectionSlot)
    assert due(admission, 499) == []
    assert due(admission, 500) == [("waits", Step.GO_ON)]
    assert isinstance(admission.admit(FRONT, "waits", HERE, 500), ConnectionSlot)
    counts = admission.counts[FRONT]
    assert (counts.throttles, counts.throttled_ms, admission.counts[BACK].throttles) == (1, 500, 0)


def test_a_connection_without_a_slot_waits_until_another_leaves():
    admission = gate()
    admission.quotas.set_instance_limits(ConnectionLimits(connections=1), 0)
    place = connect(admission)
    assert not admission.arrive(FRONT, "front", 0)
    assert not admission.arrive(BACK, "back", 1)
    assert (admission.wake_at(), due(admission, 10_000)) == (None, [])
    admission.left(place)
    assert admission.wake_at() == 0
    assert due(admission, 10_000) == [("front", Step.GO_ON)]
    assert isinstance(admission.admit(FRONT, "front", HERE, 10_000), ConnectionSlot)


def test_a_connection_on_its_way_in_takes_a_slot_until_it_is_given_up():
    admission = gate()
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(connections=1), 0)
    assert admission.arrive(FRONT, "reads its header", 0)
    assert not admission.arrive(FRONT, "waits", 0)
    admission.give_up(FRONT)
    assert due(admission, 0) == [("waits", Step.GO_ON)]


def test_at_the_end_all_that_wait_or_are_held_are_closed():
    admission = gate(waits=True)
    limit(admission, creation_rate=0.0)
    connect(admission, ticket="held")
    connect(admission, ticket="behind it")
    admission.quotas.set_listener_limits(FRONT, ConnectionLimits(connections=0), 0)
    assert not admission.arrive(FRONT, "waits", 0)
    reported = [(what.ticket, what.reason, what.listener) for what in admission.empty(0)]
    names = ["waits", "held", "behind it"]
    assert reported == [(name, CloseReason.SHUTDOWN, FRONT) for name in names]
    assert (admission.held, admission.wake_at(), due(admission, 60_000)) == (0, None, [])


# -------------------------------------------------------------- counts and users


@pytest.mark.rule("connections")
def test_an_address_and_a_user_have_as_many_as_they_may():
    admission = gate(per_user=1, counts_of_users={"bob": 2, ANONYMOUS: 3})
    limit(admission, connections=9, counts={THERE: 1})
    places = [connect(admission) for _ in range(9)]
    assert connect(admission) == Refused(CloseReason.TOO_MANY_FROM_IP)
    there = connect(admission, THERE)
    assert connect(admission, THERE) == Refused(CloseReason.TOO_MANY_FROM_IP)
    assert [admission.change_user(place, ANONYMOUS) for place in places[:4]] == [True, True, True, False]
    assert [admission.change_user(place, "alice") for place in places[4:6]] == [True, False]
    assert [admission.change_user(place, "bob") for place in places[6:9]] == [True, True, False]
    assert admission.change_user(places[0], "bob") is False
    assert admission.change_user(places[6], "bob")
    assert admission.change_user(places[6], "carol")
    assert admission.change_user(places[0], "bob")
    for place in (*places, there):
        admission.left(place)
    assert admission.quotas.connections == 0
    users = [*[ANONYMOUS] * 3, "alice", "bob", "bob", "carol"]
    assert all(admission.change_user(connect(admission), user) for user in users)


def test_anonymous_clients_are_not_limited_without_an_override():
    admission = gate(per_user=0)
    places = [connect(admission) for _ in range(5)]
    assert all(admission.change_user(place, ANONYMOUS) for place in places)
    assert not admission.change_user(places[0], "alice")


def test_the_reading_of_an_address():
    admission = gate(ipv4_prefix=24)
    limit(admission, creation_rate=5.0, connections=7)
    connect(admission)
    connect(admission, THERE)
    standing = admission.standing_of("main", "::ffff:10.0.0.77", 0, shadow=False)
    assert (standing.origin, standing.connections, standing.most) == ("10.0.0.0/24", 2, 7)
    assert (standing.reading.limit, standing.reading.rate) == (5.0, 0.2)
    assert admission.standing_of("main", "192.0.2.1", 0, shadow=True).reading is None


# --------------------------------------------------------------- beside a model

some_limits = st.builds(
    Limits,
    instance_rate=st.sampled_from([MANY, 3, 8]),
    listener_rate=st.sampled_from([MANY, 2, 5]),
    address_rate=st.sampled_from([1, 2, 3, MANY]),
    instance=st.sampled_from([MANY, 4]),
    listener=st.sampled_from([MANY, 3]),
    address=st.sampled_from([MANY, 3]),
    held=st.sampled_from([MANY, 3]),
    held_of_address=st.sampled_from([MANY, 2]),
    waits=st.booleans(),
)
events = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 10, 130, 400, 1_000, 3_000]),
        st.sampled_from(["connect", "connect", "connect", "leave"]),
        st.sampled_from(["front", "back"]),
        st.sampled_from([HERE, HERE, THERE]),
    ),
    max_size=60,
)


class Driven:
    """Drives an Admission as `ConnectionGate` does, and notes the outcome of each connection."""

    def __init__(self, limits):
        self.log, self.places, self.addresses, self.limits, self.now = [], {}, {}, limits, 0
        self.admission = Admission(ConnectionQuotas(ConnectionLimits(), 0, 3, WINDOW_MS), limits.held)
        self.admission.add_virtual_cluster("main", 3, WINDOW_MS)
        for key in (FRONT, BACK):
            self.admission.add_listener(key, 0)
            listener = ConnectionLimits(limited(limits.listener_rate), limited(limits.listener))
            self.admission.quotas.set_listener_limits(key, listener, 0)
        instance = ConnectionLimits(limited(limits.instance_rate), limited(limits.instance))
        self.admission.quotas.set_instance_limits(instance, 0)
        self.admission.set_rules("main", ClusterRules(limits.waits, limits.held_of_address))
        of_addresses = AddressLimits(limited(limits.address_rate), limited(limits.address))
        self.admission.quotas.set_address_limits("main", of_addresses)

    def arrive(self, number, listener, address, now):
        self.addresses[number] = address
        key = ListenerKey("main", listener)
        if self.admission.arrive(key, number, now):
            self._admit(key, number, now)

    def _admit(self, key, number, now):
        match self.admission.admit(key, number, self.addresses[number], now):
            case ConnectionSlot() as place:
                self._open(number, place)
            case Refused(reason):
                self.log.append((number, reason.value))

    def _open(self, number, place):
        self.places[number] = place
        self.log.append((number, "admitted"))

    def leave(self, number):
        self.admission.left(self.places.pop(number))

    def advance(self, to):
        while (at := self.admission.wake_at()) is not None and at <= to:
            now = self.now = max(at, self.now)  # who waits for a slot has been due for a while
            for what in self.admission.due(now):
                if what.step is Step.GO_ON:
                    self._admit(what.listener, what.ticket, now)
                elif what.step is Step.ADMITTED:
                    self._open(what.ticket, what.place)
                else:
                    self.log.append((what.ticket, what.reason.value))
            assert self.admission.held <= self.limits.held
        self.now = to


def limited(number):
    return NO_LIMIT if number == MANY else number


@pytest.mark.rule("connection rate")
@settings(max_examples=400, deadline=None)
@given(some_limits, events)
def test_what_becomes_of_each_connection_is_what_the_model_says(limits, events):
    real, model, now = Driven(limits), NaiveGate(limits, ("front", "back")), 1_000
    for number, (gap, what, listener, address) in enumerate(events):
        now += gap
        for side in (real, model):
            side.advance(now)
        assert real.log == model.log
        if what == "connect" and model.may_accept(listener):
            for side in (real, model):
                side.arrive(number, listener, address, now)
        elif what == "leave" and model.open:
            going = min(model.open)
            for side in (real, model):
                side.leave(going)
        assert real.log == model.log
        assert real.admission.quotas.connections == len(model.open)
    for side in (real, model):
        side.advance(now + 10 * WINDOW_MS)
    assert real.log == model.log
    assert real.admission.held == 0
    assert len({number for number, _ in real.log}) == len(real.log)


@settings(max_examples=100, deadline=None)
@given(some_limits, events)
def test_no_address_is_hurt_by_another(limits, events):
    """With limits for addresses only, what becomes of one address is what would if it were alone."""
    of_addresses = replace(limits, instance_rate=MANY, listener_rate=MANY, instance=MANY, listener=MANY, held=MANY)
    among_others, alone, now = Driven(of_addresses), Driven(of_addresses), 1_000
    for number, (gap, what, listener, address) in enumerate(events):
        now += gap
        for side in (among_others, alone):
            side.advance(now)
            if what == "connect" and (address == THERE or side is among_others):
                side.arrive(number, listener, address, now)
    for side in (among_others, alone):
        side.advance(now + 10 * WINDOW_MS)
    there = {number for number, (_, _, _, address) in enumerate(events) if address == THERE}
    assert [reported for reported in among_others.log if reported[0] in there] == alone.log
