"""Produce requests like the one before, of a client over its quota: the first that exceeds it begins the mute."""

import pytest

from kafka_throttle.protocol.api_key import PRODUCE
from kafka_throttle.proxy.relay.actions import RelayLimits, Throttled
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import QuotaType
from tests.relay.frames import heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, Script, quota_manager_with

# A limit of 100 B/s allows 1000 bytes at one instant: the third request of 400 bytes exceeds it by 200, that is 2 s.
SIZE = 400
MUTE_MS = 2000


def run(first, last, acks=1):
    return b"".join(produce(corr, size=SIZE, acks=acks) for corr in range(first, last + 1))


@pytest.fixture
def script(make_relay):
    """The first request has come, and has its response: the next ones may be like it."""
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(run(1, 1))
    script.node(produced(1))
    return script


def reading_of(script):
    [reading] = [reading for _, reading in script.quota_manager.readings(NOW_MS)]
    return reading


def test_a_request_that_exceeds_the_quota_goes_out_and_begins_the_mute(script):
    script.client(run(2, 2))
    assert script.throttles == []
    assert script.client(run(3, 3)) == run(3, 3)
    assert script.throttles == [Throttled(QuotaType.PRODUCE, MUTE_MS, b"etl")]
    assert script.wake_at == NOW_MS + MUTE_MS
    assert (script.counters.throttles[QuotaType.PRODUCE], script.relay.throttled_ms) == (1, MUTE_MS)
    assert (reading_of(script).charges, reading_of(script).total) == (3, 3 * SIZE)


def test_of_a_run_nothing_is_taken_behind_the_request_that_exceeds_the_quota(script):
    assert script.client(run(2, 6)) == run(2, 3)
    assert reading_of(script).charges == 3
    assert not script.reads[Side.CLIENT]
    assert script.time(NOW_MS + MUTE_MS) == run(4, 4)
    assert script.throttles[1:] == [Throttled(QuotaType.PRODUCE, 6000, b"etl")]


def test_a_client_that_has_sent_nothing_more_is_read_on(script):
    script.client(run(2, 3))
    assert script.reads[Side.CLIENT]
    assert script.client(run(4, 4), NOW_MS + 1) == b""
    assert not script.reads[Side.CLIENT]
    assert script.time(NOW_MS + MUTE_MS) == run(4, 4)
    assert script.reads[Side.CLIENT]


def test_only_the_response_to_the_request_that_exceeds_the_quota_reports_it(script):
    script.client(run(2, 3))
    assert script.node(produced(2) + produced(3), NOW_MS + 500) == produced(2) + produced(3, MUTE_MS - 500)


@pytest.mark.parametrize("cut", [1, 8, 20, len(produced(1)) - 1])
def test_the_throttle_time_is_in_a_response_that_comes_in_two_pieces(script, cut):
    script.client(run(2, 3))
    script.node(produced(2) + produced(3)[:cut], NOW_MS + 500)
    script.node(produced(3)[cut:], NOW_MS + 500)
    assert bytes(script.sent[Side.CLIENT]) == produced(1) + produced(2) + produced(3, MUTE_MS - 500)


def test_responses_behind_it_pass_while_the_client_is_muted(script):
    script.client(heartbeat(2) + run(3, 4))
    assert script.node(heartbeaten(2) + produced(3) + produced(4)) == heartbeaten(2) + produced(3) + produced(
        4, MUTE_MS
    )


def test_the_next_request_after_the_mute_begins_another(script):
    script.client(run(2, 3))
    script.node(produced(2) + produced(3), NOW_MS + 1)
    script.time(NOW_MS + MUTE_MS)
    assert script.client(run(4, 4), NOW_MS + MUTE_MS) == run(4, 4)
    assert script.node(produced(4), NOW_MS + MUTE_MS) == produced(4, 6000)


def test_requests_without_a_response_mute_too(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(run(1, 1, acks=0))
    assert script.client(run(2, 4, acks=0)) == run(2, 3, acks=0)
    assert script.wake_at == NOW_MS + MUTE_MS
    assert script.relay.answered


def test_where_responses_are_delayed_that_to_it_is(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100), RelayLimits(delays=True)).connected()
    script.client(run(1, 1))
    script.client(run(2, 3))
    assert script.node(produced(1) + produced(2) + produced(3)) == produced(1) + produced(2)
    script.time(NOW_MS + MUTE_MS)
    assert bytes(script.sent[Side.CLIENT])[: len(produced(1) + produced(2)) + 8].endswith(produced(3)[:8])


def test_each_request_is_metered_with_what_it_used(script):
    script.client(run(2, 3))
    [throttled] = [counts for counts in script.usage() if counts.throttles]
    assert (throttled.used, throttled.requests, throttled.throttles) == (2 * SIZE, 2, 1)
    assert [use.used for second in throttled.seconds for use in second.reported] == [SIZE]
    assert script.counters.requests_by_api[PRODUCE] == 3
