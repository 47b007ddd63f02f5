"""A relay of a proxy that ends: requests that it has taken get their responses, and it takes no further ones."""

import pytest

from kafka_throttle.proxy.side import Side
from tests.relay.frames import fetch, fetched, heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, Script, quota_manager_with
from tests.support.quota_frames import alter_request

ETL = (("client-id", "etl"),)


@pytest.fixture
def script(make_relay):
    return Script(make_relay).connected()


@pytest.mark.rule("restart")
def test_what_is_in_flight_is_answered_and_what_comes_later_does_not_reach_the_node(script):
    script.client(heartbeat(1) + heartbeat(2))
    script.relay.take_no_more()
    assert script.client(heartbeat(3)) == b""
    assert not script.relay.answered
    assert script.node(heartbeaten(1)) == heartbeaten(1)
    assert not script.relay.answered
    assert script.node(heartbeaten(2)) == heartbeaten(2)
    assert script.relay.answered


def test_a_client_that_goes_on_sending_is_not_read_further(script):
    script.relay.take_no_more()
    script.client(heartbeat(1))
    assert not script.reads[Side.CLIENT]


def test_a_request_of_which_the_node_has_a_part_is_not_waited_for(script):
    script.client(heartbeat(1) + produce(2, size=5000)[:1000])
    script.relay.take_no_more()
    assert not script.relay.answered
    script.node(heartbeaten(1))
    assert script.relay.answered


def test_a_request_of_which_the_node_has_the_last_byte_is_waited_for(script):
    script.client(produce(1, size=5000)[:1000])
    script.relay.take_no_more()
    assert script.client(produce(1, size=5000)[1000:] + heartbeat(2)) == produce(1, size=5000)[1000:]
    assert not script.relay.answered
    script.node(produced(1))
    assert script.relay.answered


def test_a_response_that_has_begun_is_waited_for(script):
    script.client(fetch(1))
    script.relay.take_no_more()
    response = fetched(1, size=5000)
    script.node(response[:1000])
    assert not script.relay.answered
    script.node(response[1000:])
    assert script.relay.answered


def test_a_produce_without_acknowledgement_waits_for_nothing(script):
    script.client(produce(1, acks=0))
    assert script.relay.answered


def test_a_muted_client_waits_for_nothing_and_gets_nothing_more_when_its_mute_is_over(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500))
    script.node(produced(1))
    script.relay.take_no_more()
    assert script.relay.answered
    script.client(heartbeat(2))
    assert script.time(NOW_MS + 5000) == b""


def test_a_request_that_is_asked_about_is_waited_for(script):
    script.hold_decisions = True
    script.client(alter_request([(ETL, [("producer_byte_rate", 5.0, False)])]))
    script.relay.take_no_more()
    assert not script.relay.answered


def test_before_the_node_is_connected_nothing_is_waited_for(make_relay):
    script = Script(make_relay)
    script.client(heartbeat(1))
    script.relay.take_no_more()
    assert script.relay.answered


def test_no_response_ends_it(script):
    script.client(heartbeat(1))
    script.relay.take_no_more()
    script.node(heartbeaten(1))
    assert script.client(heartbeat(2)) == b""
