"""Instances with real members: together they never have more connections than the limit, and nobody is kept out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import (
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.share_rows import SharedRows, is_count
from tests.quotas.shares.fleet import Fleet

LISTENER = ListenerKey("main", "plain")
HERE = "10.0.0.1"
TURN_MS = 250


class Gate:
    """One instance: its connections, and its member in the fleet."""

    def __init__(self, fleet, most):
        self.fleet, self.instance = fleet, fleet.join()
        self.connections = ConnectionQuotas(ConnectionLimits(), 0)
        self.connections.add_virtual_cluster("main", 11, 1000)
        self.connections.add_listener(LISTENER, ConnectionLimits(), 0)
        self.connections.set_address_limits("main", AddressLimits(connections=most))
        manager = ClientQuotaManager(Sensors(1), QuotaTable())
        self.rows = SharedRows(manager, self.connections, "main", self.instance.member)
        self.published_ms = 0

    @property
    def open(self):
        return self.connections.connections

    def connect(self):
        return self.connections.admit(LISTENER, HERE, self.fleet.now_ms).outcome is Outcome.ADMITTED

    def close(self, count=1):
        for _ in range(min(count, self.open)):
            self.connections.leave(LISTENER, HERE)

    def look(self):
        self.fleet.deliver(self.instance)
        self.fleet.look(self.instance, self.rows.uses(self.fleet.now_ms))
        self.rows.apply(self.instance.member.take_moves(), self.fleet.now_ms)

    def publish(self):
        """At most once a second, as a Fleet does. Whether there is a document on its way."""
        if self.instance.in_flight is None and self.fleet.now_ms - self.published_ms >= 1_000:
            if self.fleet.publish(self.instance):
                self.published_ms = self.fleet.now_ms
            self.rows.apply(self.instance.member.take_moves(), self.fleet.now_ms)

    def carry(self):
        """What is on its way is ordered, or confirmed."""
        if self.instance.in_flight is not None:
            if self.instance.is_ordered:
                self.fleet.confirm(self.instance)
            else:
                self.fleet.order(self.instance)


def run(gates, until_ms):
    while gates[0].fleet.now_ms < until_ms:
        gates[0].fleet.now_ms += TURN_MS
        for gate in gates:
            gate.fleet.hear(gate.instance)
            gate.look()
            gate.publish()
            gate.carry()
            gate.carry()


def joined(count, most):
    fleet = Fleet(is_count=is_count)
    gates = []
    for _ in range(count):
        gates.append(Gate(fleet, most))
        run(gates, fleet.now_ms + 5_000)
    assert all(gate.instance.member.is_known for gate in gates)
    return fleet, gates


@pytest.mark.parametrize(("count", "most"), [(2, 1), (3, 2), (5, 1), (2, 3), (4, 100)])
def test_a_client_that_comes_to_one_instance_again_and_again_is_admitted_within_seconds(count, most):
    fleet, gates = joined(count, most)
    for gate in gates:
        begin_ms = fleet.now_ms
        while gate.open < most:
            if not gate.connect():
                run(gates, fleet.now_ms + 500)
            assert fleet.now_ms - begin_ms <= 4_000
        assert not gate.connect()
        gate.close(most)
        run(gates, fleet.now_ms + 10_000)


@pytest.mark.parametrize(("count", "most"), [(2, 1), (3, 1), (3, 2)])
def test_clients_that_come_to_all_instances_in_turn_get_all_that_there_is(count, most):
    fleet, gates = joined(count, most)
    begin_ms = fleet.now_ms
    while sum(gate.open for gate in gates) < most:
        for gate in gates:
            gate.connect()
            run(gates, fleet.now_ms + 250)
        assert fleet.now_ms - begin_ms <= 6_000
    for _ in range(20):
        assert not any(gate.connect() for gate in gates)
        run(gates, fleet.now_ms + 250)


def test_connections_move_to_where_clients_come_when_they_are_closed_elsewhere():
    fleet, (one, two) = joined(2, 10)
    while one.open < 10:
        one.connect()
        run([one, two], fleet.now_ms + 250)
    for still_open in range(9, -1, -1):
        one.close()
        begin_ms = fleet.now_ms
        while not two.connect():
            run([one, two], fleet.now_ms + 250)
            assert fleet.now_ms - begin_ms <= 3_000
        for _ in range(8):
            assert not two.connect()
            run([one, two], fleet.now_ms + 250)
        assert (one.open, two.open) == (still_open, 10 - still_open)


@pytest.mark.parametrize("held", [(9,), (4, 4), (3, 3, 3)])
def test_what_is_open_when_an_instance_joins_is_not_given_to_it(held):
    fleet, gates = joined(len(held), 10)
    for gate, number in zip(gates, held, strict=True):
        while gate.open < number:
            gate.connect() or run(gates, fleet.now_ms + 250)
    run(gates, fleet.now_ms + 70_000)  # what was pressed at first is forgotten
    late = Gate(fleet, 10)
    run([*gates, late], fleet.now_ms + 5_000)
    assert late.instance.member.is_known
    for _ in range(40):
        late.connect() or run([*gates, late], fleet.now_ms + 250)
    assert late.open == 10 - sum(held)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["connect"] * 5 + ["close", "join", "leave"]),
        st.integers(0, 3),
        st.integers(1, 12),
        st.lists(st.sets(st.integers(0, 3), max_size=2), max_size=12),
    ),
    max_size=20,
)


@pytest.mark.rule("fleet")
@settings(max_examples=100, deadline=None)
@given(st.sampled_from([1, 2, 5, 12]), ACTIONS)
def test_there_are_never_more_connections_than_the_limit(most, actions):
    """Whatever comes in which order, with members that are slow to look, to publish and to hear of others."""
    fleet, gates = joined(2, most)
    for what, at, number, turns in actions:
        gate = gates[at % len(gates)]
        if what == "connect":
            for _ in range(number):
                gate.connect()
        elif what == "close":
            gate.close(number)
        elif what == "join" and len(gates) < 4:
            gates.append(Gate(fleet, most))
        elif what == "leave" and len(gates) > 1:
            gate.close(gate.open)
            fleet.remove(gate.instance)
            del fleet.instances[gate.instance.member.id]
            gates.remove(gate)
        assert sum(one.open for one in gates) <= most
        for slow in turns:
            fleet.now_ms += TURN_MS
            for place, one in enumerate(gates):
                fleet.hear(one.instance)
                if place not in slow:
                    one.carry()
                if place not in slow or fleet.now_ms - one.instance.looked_ms > 3_000:
                    one.look()
                    one.publish()
            if what == "connect" and gate in gates:
                gate.connect()
            assert sum(one.open for one in gates) <= most
