"""Requests about quotas on a relay: decided about whole, responded to in their turn, never sent to the node."""

from struct import pack

import pytest

from kafka_throttle.protocol.frames import MAX_ASKED_BYTES
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.relay.actions import CloseReason, Decision, DecisionKind
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.changes import Alteration, Limit
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from tests.relay.frames import heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, NOW_US, Script, quota_manager_with
from tests.support.quota_frames import alter_request, altered, correlation_id, describe_request, described
from tests.support.whole_messages import finish

PRODUCE = QuotaKey(QuotaType.PRODUCE)
ETL = (("client-id", "etl"),)


def asking(make_relay, **quota):
    """A connected relay whose user may do everything."""
    script = Script(make_relay, quota_manager_with(**quota)).connected()
    script.facts.may_alter = script.facts.may_describe = True
    script.facts.listener.quotas = lambda: {Entity(client_id="etl"): {PRODUCE: Limit(5.0, "file")}}
    return script


def split(stream):
    """The frames in a stream of bytes."""
    frames, at = [], 0
    while at < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        frames.append(bytes(stream[at:end]))
        at = end
    return frames


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_request_to_describe_gets_a_response_and_does_not_reach_the_node(make_relay, version, cut):
    script = asking(make_relay)
    frame = describe_request([("client-id", 0, "etl")], version=version, corr=9)
    for at in range(0, len(frame), cut):
        assert script.client(frame[at : at + cut]) == b""
    [response] = split(script.sent[Side.CLIENT])
    assert correlation_id(response) == 9
    assert described(response, version).entries == {frozenset(ETL): {"producer_byte_rate": 5.0}}
    assert script.relay.idle


def test_responses_of_the_proxy_and_of_the_node_keep_the_order_of_their_requests(make_relay):
    script = asking(make_relay)
    to_node = script.client(heartbeat(1) + describe_request([], corr=2) + heartbeat(3) + describe_request([], corr=4))
    assert to_node == heartbeat(1) + heartbeat(3)
    assert script.sent[Side.CLIENT] == b""
    script.node(heartbeaten(1))
    assert [correlation_id(frame) for frame in split(script.sent[Side.CLIENT])] == [1, 2]
    script.node(heartbeaten(3))
    assert [correlation_id(frame) for frame in split(script.sent[Side.CLIENT])] == [1, 2, 3, 4]


def test_what_follows_waits_for_what_has_to_be_written_and_the_nodes_responses_do_not(make_relay):
    script = asking(make_relay)
    script.hold_decisions = True
    script.client(heartbeat(1))
    script.response_asks()
    request = alter_request([(ETL, [("producer_byte_rate", 7.0, False)])], corr=2)
    assert script.client(request + heartbeat(3)) == b""
    [ask] = script.asks
    assert (ask.kind, ask.frame) == (DecisionKind.QUOTA_API, request)
    alteration_request = decide(ask, script.facts, NOW_MS)
    assert isinstance(alteration_request, QuotaAlteration)
    assert alteration_request.alterations == (Alteration(Entity(client_id="etl"), {PRODUCE: 7.0}),)
    assert script.node(heartbeaten(1)) == heartbeaten(1)
    script.asks.clear()
    script.do(
        script.relay.on_decision(ask.ticket, finish(alteration_request.reply([None])), NOW_US + 50_000), NOW_MS + 50
    )
    *_, response = split(script.sent[Side.CLIENT])
    assert altered(response) == [(0, None, ETL)]
    assert script.sent[Side.NODE] == heartbeat(1) + heartbeat(3)


def test_a_response_that_comes_after_the_end_of_its_connection_is_dropped(make_relay):
    script = asking(make_relay)
    script.hold_decisions = True
    script.client(heartbeat(1))
    script.response_asks()
    script.client(alter_request([(ETL, [("producer_byte_rate", 7.0, False)])]))
    [ask] = script.asks
    script.asks.clear()
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "reset"))
    assert script.relay.on_decision(ask.ticket, Decision(response=b"late"), NOW_US + 50_000) == []


def test_a_throttled_client_waits_and_gets_a_throttle_time(make_relay):
    script = asking(make_relay, produce=100)
    script.client(produce(1, size=1500) + describe_request([], corr=2))
    script.node(produced(1))
    assert [correlation_id(frame) for frame in split(script.sent[Side.CLIENT])] == [1]
    script.time(script.wake_at)
    assert [correlation_id(frame) for frame in split(script.sent[Side.CLIENT])] == [1, 2]


def test_a_request_that_is_too_large_to_be_held_is_refused_at_its_head(make_relay):
    script = asking(make_relay)
    frame = describe_request([], corr=2)
    script.client(pack(">i", MAX_ASKED_BYTES + 1) + frame[4:])
    assert script.close_reason is CloseReason.REQUEST_TOO_LARGE


@pytest.mark.parametrize("frame", [describe_request([("user", 0, "a")]), alter_request([(ETL, [])])])
def test_a_request_that_is_cut_short_closes_the_connection(make_relay, frame):
    script = asking(make_relay)
    broken = pack(">i", len(frame) - 4 - 3) + frame[4:-3]
    script.client(broken)
    assert script.close_reason is CloseReason.REQUEST_MALFORMED
    assert script.sent[Side.NODE] == b""
