"""Requests that need a decision as a whole are put together once, however small the pieces are in which they come."""

import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.protocol.frames import MAX_SASL_BYTES
from kafka_throttle.proxy.relay import request_direction
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.relay.frames import heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, NOW_US, Script, manager_of, quota_manager_with
from tests.support.quota_frames import describe_request
from tests.support.sasl_frames import authenticate, authenticated, log_in
from tests.support.topic_frames import create_topics, new_topic

LARGE = authenticate(bytes(MAX_SASL_BYTES - 100))


@pytest.fixture
def looks(monkeypatch):
    """How often a request was read."""
    found = []

    def read_request(*arguments):
        found.append(arguments)
        return sound(*arguments)

    sound = request_direction.read_request
    monkeypatch.setattr(request_direction, "read_request", read_request)
    return found


def in_pieces(script, data, length):
    for at in range(0, len(data), length):
        script.client(data[at : at + length])


def throttled(script):
    log_in(script)
    script.client(heartbeat(1))
    script.node(heartbeaten(1, throttle_time_ms=3_600_000))
    assert script.relay.muted
    return script


@pytest.mark.pure
@pytest.mark.parametrize("muted", [False, True])
def test_a_large_frame_is_put_together_once(make_relay, looks, muted):
    script = Script(make_relay).connected()
    script.checks_usage = False
    if muted:
        throttled(script)
    before = len(script.sent[Side.NODE])
    script.client(LARGE[:20])
    looks.clear()
    in_pieces(script, LARGE[20:], 64)
    assert len(looks) == 2  # when it was asked about, and when it was decided
    assert script.sent[Side.NODE][before:] == LARGE
    script.check_usage()
    script.client(heartbeat(3))
    assert script.node(authenticated()) == authenticated()


def test_how_much_is_missing_is_what_a_muted_client_is_read(make_relay):
    script = throttled(Script(make_relay).connected())
    script.client(LARGE[:500])
    assert (script.relay.missing_bytes, script.reads[Side.CLIENT]) == (len(LARGE) - 500, True)
    script.client(LARGE[500:900])
    assert (script.relay.missing_bytes, script.relay.held_bytes) == (len(LARGE) - 900, 900)
    script.client(LARGE[900:])
    assert (script.relay.missing_bytes, script.relay.held_bytes) == (0, 0)


def test_what_comes_behind_a_frame_with_its_last_piece_follows(make_relay):
    script = Script(make_relay).connected()
    wanted = request(API_VERSIONS, 99, tags=True)
    script.client(wanted[:20])
    assert script.client(wanted[20:] + heartbeat(2) + heartbeat(3)[:10]) == heartbeat(2)
    assert script.client(heartbeat(3)[10:]) == heartbeat(3)
    assert script.sent[Side.CLIENT]


def test_something_that_happens_meanwhile_loses_nothing(make_relay):
    script = Script(make_relay, quota_manager_with(produce=1000)).connected()
    log_in(script)
    script.client(produce(1, size=100_000))
    frame = authenticate(bytes(1000))
    script.client(frame[:400])
    script.client(frame[400:600])
    script.node(produced(1))
    assert script.time(script.wake_at) == b""
    assert script.client(frame[600:700]) == b""
    assert script.client(frame[700:] + heartbeat(3)) == frame
    script.node(authenticated())
    assert bytes(script.sent[Side.NODE]).endswith(frame + heartbeat(3))


@pytest.mark.pure
@pytest.mark.parametrize("cut", [1, 1000])
def test_what_is_no_longer_asked_about_is_not_waited_for_whole(make_relay, looks, cut):
    quota_manager = manager_of({Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1.0}})
    script = Script(make_relay, quota_manager).connected()
    frame = create_topics(7, [new_topic(7, b"t%d" % n, 1) for n in range(500)])
    in_pieces(script, frame[:3000], 500)
    assert not script.sent[Side.NODE]
    quota_manager.replace(QuotaTable(), NOW_MS)
    looks.clear()
    assert script.client(frame[3000 : 3000 + cut]) == frame[: 3000 + cut]
    in_pieces(script, frame[3000 + cut :], 500)
    assert bytes(script.sent[Side.NODE]) == frame
    assert len(looks) == 1


@pytest.mark.pure
def test_a_change_of_the_quotas_of_others_has_it_looked_at_once_more(make_relay, looks):
    quotas = {Entity(client_id="etl"): {QuotaType.CONTROLLER_MUTATION: 1.0}}
    quota_manager = manager_of(quotas)
    script = Script(make_relay, quota_manager).connected()
    frame = create_topics(7, [new_topic(7, b"t%d" % n, 1) for n in range(500)])
    in_pieces(script, frame[:3000], 500)
    quota_manager.replace(QuotaTable({**quotas, Entity(client_id="web"): {QuotaType.PRODUCE: 1.0}}), NOW_MS)
    looks.clear()
    in_pieces(script, frame[3000:6000], 500)
    assert (len(looks), bytes(script.sent[Side.NODE])) == (1, b"")


def test_the_end_amid_a_request_is_reported_and_all_bytes_are_metered(make_relay):
    script = Script(make_relay).connected()
    in_pieces(script, LARGE[:5000], 500)
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert (script.close_reason, script.closed.detail) == (CloseReason.CLIENT_CLOSED, "in the middle of a request")
    assert sum(one.in_bytes for one in script.usage()) == 5000


def test_a_muted_client_whose_frame_does_not_pass_is_not_read_on(make_relay):
    script = throttled(Script(make_relay).connected())
    script.client(describe_request([("client-id", 0, "x" * 200)], version=1, corr=9)[:100])
    assert not script.reads[Side.CLIENT]
