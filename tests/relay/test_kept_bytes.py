"""The memory for the requests in flight of one connection is bounded: beyond it the client is not read."""

import pytest

from kafka_throttle.proxy.relay.actions import Decision, RelayLimits
from kafka_throttle.proxy.side import Side
from tests.relay.frames import heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_US, Script, quota_manager_with
from tests.support.quota_frames import describe_request

LIMITS = RelayLimits(max_kept_bytes=100_000)
RESPONSE = bytes(30_000)


def kept(script):
    return sum(len(one.response or b"") + len(one.head.client_id) for one in script.relay._in_flight.queue)


def behind_one_that_the_node_owes(make_relay, limits=LIMITS):
    script = Script(make_relay, limits=limits).connected()
    script.hold_decisions = True
    script.client(heartbeat(1))
    return script


def describes(corr):
    return describe_request([("client-id", 0, "etl")], version=1, corr=corr)


def answer_all(script, most=100):
    """Decides each request about quotas with a large response; returns how many there were."""
    for answered in range(most):
        if not script.asks:
            return answered
        ask = script.asks.pop()
        response = (len(RESPONSE)).to_bytes(4, "big") + ask.frame[8:12] + RESPONSE[4:]
        script.do(script.relay.on_decision(ask.ticket, Decision(response=response), NOW_US))
    return most


def test_responses_of_the_proxy_that_wait_for_their_turn_are_bounded(make_relay):
    script = behind_one_that_the_node_owes(make_relay)
    script.client(b"".join(describes(corr) for corr in range(2, 22)))
    assert answer_all(script) == 4
    assert kept(script) < LIMITS.max_kept_bytes + len(RESPONSE) + 100
    assert not script.reads[Side.CLIENT]
    script.node(heartbeaten(1))
    while answer_all(script):
        pass
    responses = bytes(script.sent[Side.CLIENT])[len(heartbeaten(1)) :]
    ids = [responses[at + 4 : at + 8] for at in range(0, len(responses), 4 + len(RESPONSE))]
    assert ids == [corr.to_bytes(4, "big") for corr in range(2, 22)]
    assert script.relay.idle
    assert script.reads[Side.CLIENT]


def test_one_response_beyond_the_bound_goes_out(make_relay):
    script = behind_one_that_the_node_owes(make_relay, RelayLimits(max_kept_bytes=5000))
    script.client(describes(2) + heartbeat(3))
    assert answer_all(script) == 1
    assert bytes(script.sent[Side.NODE]) == heartbeat(1)
    script.node(heartbeaten(1))
    assert len(script.sent[Side.CLIENT]) == len(heartbeaten(1)) + 4 + len(RESPONSE)
    assert bytes(script.sent[Side.NODE]) == heartbeat(1) + heartbeat(3)


@pytest.mark.parametrize("cut", [False, True])
def test_long_client_ids_in_flight_are_bounded(make_relay, cut):
    script = Script(make_relay, limits=LIMITS).connected()
    frames = [produce(corr, client_id=b"%05d" % corr * 6000, size=40_000) for corr in range(1, 11)]
    for frame in frames:
        script.client(frame[:35_000] if cut else frame)
        if cut:
            script.client(frame[35_000:])
    assert bytes(script.sent[Side.NODE]) == b"".join(frames[:4])
    assert kept(script) <= LIMITS.max_kept_bytes + 30_000
    for corr in range(1, 4):
        script.node(produced(corr))
    assert bytes(script.sent[Side.NODE]) == b"".join(frames[:4])
    script.node(produced(4))
    assert bytes(script.sent[Side.NODE]) == b"".join(frames[:8])


def test_a_client_with_a_long_id_that_waits_for_each_response_is_not_held_up(make_relay):
    script = Script(make_relay, limits=LIMITS).connected()
    for corr in range(1, 50):
        assert script.client(heartbeat(corr, client_id=b"x" * 32_000)) == heartbeat(corr, client_id=b"x" * 32_000)
        assert script.reads[Side.CLIENT]
        script.node(heartbeaten(corr))


def test_ordinary_requests_are_bounded_by_their_number_alone(make_relay):
    script = Script(make_relay, quota_manager_with(produce=10**9), RelayLimits(max_kept_bytes=4096)).connected()
    for corr in range(1, 1000):
        script.client(produce(corr, client_id=b"a-client-id-%03d" % (corr % 7)))
    assert script.relay.requests == 999
