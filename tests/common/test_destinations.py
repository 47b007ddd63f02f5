"""Where connections to nodes may go."""

import socket
from ipaddress import ip_network

import pytest

from kafka_throttle.common.destinations import ANYWHERE, Destinations

OWN = "it is a listener of this proxy"
OUTSIDE = "it is outside of upstream.node_networks"
PORTS = range(19_092, 19_096)
NOT_HERE = "192.0.2.1"


@pytest.mark.parametrize(
    ("bind", "address", "is_own"),
    [
        ("127.0.0.5", "127.0.0.5", True),
        ("127.0.0.5", "::ffff:127.0.0.5", True),
        ("127.0.0.5", "127.0.0.6", False),
        ("0.0.0.0", "127.0.0.6", True),
        ("0.0.0.0", "0.0.0.0", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("::1", "::", True),
        ("0.0.0.0", "::1", False),
        ("::", "127.0.0.6", True),
        ("0.0.0.0", NOT_HERE, False),
        ("::", NOT_HERE, False),
        ("::", "2001:db8::1", False),
        ("fe80::1%lo", "fe80::1%eth0", True),
    ],
)
def test_an_own_listener_is_recognized_by_whatever_address_leads_to_it(bind, address, is_own):
    destinations = Destinations([("127.0.0.9", range(1, 2)), (bind, PORTS)])
    for port in (PORTS.start, PORTS.stop - 1):
        assert destinations.refusal(address, address, port) == (OWN if is_own else None)
    for port in (PORTS.start - 1, PORTS.stop):
        assert destinations.refusal(address, address, port) is None


@pytest.mark.parametrize(
    ("host", "address", "refusal"),
    [
        ("10.1.2.3", "10.1.2.3", None),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3", None),
        ("10.2.0.1", "10.2.0.1", OUTSIDE),
        ("anything.test", "10.1.2.3", None),
        ("anything.test", "10.2.0.1", OUTSIDE),
        ("B1.kafka.test.", "10.2.0.1", None),
        ("kafka.test", "10.2.0.1", OUTSIDE),
        ("evilkafka.test", "10.2.0.1", OUTSIDE),
        ("one.test", "10.2.0.1", None),
        ("two.one.test", "10.2.0.1", OUTSIDE),
    ],
)
def test_where_networks_and_names_are_given_nodes_are_there_and_nowhere_else(host, address, refusal):
    destinations = Destinations(places=[ip_network("10.1.0.0/16"), ".kafka.test", "one.test"])
    assert destinations.refusal(host, address, 9092) == refusal


def test_without_a_descriptor_no_address_is_known_to_be_of_this_machine(monkeypatch):
    """A connection to it cannot be made then, either."""

    def none_left(*_):
        raise OSError(24, "Too many open files")

    destinations = Destinations([("0.0.0.0", PORTS)])
    assert destinations.refusal("127.0.0.6", "127.0.0.6", PORTS.start) == OWN
    monkeypatch.setattr(socket, "socket", none_left)
    assert destinations.refusal("127.0.0.6", "127.0.0.6", PORTS.start) is None
    for nonlocal_bind in (True, False):
        monkeypatch.setattr(
            "kafka_throttle.common.destinations._can_be_bound_to", lambda _address, can=nonlocal_bind: can
        )
        assert destinations.refusal("10.0.0.6", "10.0.0.6", PORTS.start) is None


def test_where_any_address_can_be_bound_to_only_those_of_this_machine_are_of_a_listener(monkeypatch):
    """So it is with the system's setting ip_nonlocal_bind, beside balancers whose address moves."""
    monkeypatch.setattr("kafka_throttle.common.destinations._can_be_bound_to", lambda address: True)
    for_all = Destinations([("0.0.0.0", PORTS), ("::", PORTS)])
    for own in ("127.0.0.1", "127.9.9.9"):
        assert for_all.refusal(own, own, PORTS.start)
    for other in ("192.0.2.9", "2001:db8::9"):
        assert for_all.refusal(other, other, PORTS.start) is None


def test_an_own_listener_is_refused_also_inside_of_the_networks():
    destinations = Destinations([("10.1.0.1", PORTS)], [ip_network("10.1.0.0/16"), ".kafka.test"])
    assert destinations.refusal("b1.kafka.test", "10.1.0.1", PORTS.start) == OWN


def test_what_is_known_of_a_host_before_its_name_is_looked_up():
    own = Destinations([("127.0.0.1", PORTS)])
    assert own.refusal_of_host("127.0.0.1", PORTS.start) == OWN
    assert own.refusal_of_host("localhost", PORTS.start) is None
    assert Destinations(places=[".kafka.test"]).refusal_of_host("other.test", 9092) == OUTSIDE
    assert Destinations(places=[".kafka.test"]).refusal_of_host("10.1.2.3", 9092) == OUTSIDE
    assert Destinations(places=[ip_network("10.1.0.0/16")]).refusal_of_host("other.test", 9092) is None
    assert ANYWHERE.refusal_of_host("other.test", 9092) is None


def test_of_several_addresses_those_stay_that_may_be_connected_to_and_none_is_an_error():
    own, other = (socket.AF_INET, ("127.0.0.1", PORTS.start)), (socket.AF_INET, ("127.0.0.2", PORTS.start))
    destinations = Destinations([("127.0.0.1", PORTS)])
    assert destinations.allowed("two.test", [own, other]) == [other]
    with pytest.raises(OSError, match=OWN):
        destinations.allowed("one.test", [own])
    assert destinations.allowed("none.test", []) == []
