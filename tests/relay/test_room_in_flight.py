"""Requests that are charged at their responses are bounded: only as many are in flight as their limit has room for."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import API_VERSIONS, HEARTBEAT, METADATA, PRODUCE
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.relay.frames import heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, manager_of, us
from tests.support.sasl_frames import handshake, handshaken, log_in

MODEL = {HEARTBEAT: Cost(50.0), PRODUCE: Cost(50.0), METADATA: Cost(50.0, 1.0), API_VERSIONS: Cost(50.0)}
OF_A_BURST = 100
"""So many requests of 50 us are what 0.05 % allow at one instant."""

UNKNOWN = request(API_VERSIONS, 99, b"\1\1\0", tags=True)


def quota_manager_of(percent=0.05, shadow=False, entity=None):
    table = QuotaTable({entity or Entity(client_id="etl"): {QuotaType.REQUEST: percent}})
    tables = (QuotaTable(), table) if shadow else (table, None)
    return manager_of(*tables, costs=RequestCosts({}, MODEL))


def client_of(make_relay, quota_manager, limits=None):
    return Script(make_relay, quota_manager, limits).connected()


def heartbeats(first, count, client_id=b"etl"):
    return b"".join(heartbeat(first + number, client_id=client_id) for number in range(count))


def taken(sent, client_id=b"etl"):
    """How many heartbeats these bytes are."""
    count, rest = divmod(len(sent), len(heartbeat(client_id=client_id)))
    assert not rest
    return count


def spend(script, count, now_ms=NOW_MS):
    """The client has got so many responses, one after another, each 1 ms after its request was sent."""
    for number in range(count):
        script.client(heartbeat(number), now_ms + number)
        script.node(heartbeaten(number), now_ms + number + 1)


@pytest.mark.parametrize("trains", [[1000], [1] * 1000, [7] * 140, [99, 5, 896]])
def test_no_more_is_in_flight_than_the_quota_has_room_for(make_relay, trains):
    script = client_of(make_relay, quota_manager_of())
    sent = b""
    for number, count in enumerate(trains):
        sent += script.client(heartbeats(1000 * number, count))
    assert taken(sent) == OF_A_BURST
    assert not script.reads[Side.CLIENT]


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_client_over_the_quota_has_one_request_in_flight(make_relay, cut):
    script = client_of(make_relay, quota_manager_of())
    spend(script, OF_A_BURST)
    now_ms = NOW_MS + 1000
    frames = heartbeats(0, 10)
    sent = b"".join(script.client(frames[at : at + cut], now_ms) for at in range(0, len(frames), cut))
    assert sent == heartbeat(0)
    for corr in range(9):
        throttled = len(script.throttles)
        script.node(heartbeaten(corr), now_ms + 1)
        assert len(script.throttles) == throttled + 1, "what Kafka's arithmetic says is not changed"
        now_ms = script.wake_at
        assert script.time(now_ms) == heartbeat(corr + 1)


def test_a_train_goes_on_as_its_responses_make_room(make_relay):
    script = client_of(make_relay, quota_manager_of())
    script.client(heartbeats(0, 1000))
    before = len(script.sent[Side.NODE])
    script.node(b"".join(map(heartbeaten, range(OF_A_BURST))), NOW_MS + 1)  # in 1 ms, so they cost 1 ms in all
    assert taken(script.sent[Side.NODE][before:]) == 80


def test_connections_of_one_entity_share_the_room_and_each_has_one(make_relay):
    quota_manager = quota_manager_of(entity=Entity(user=DEFAULT))
    scripts = [client_of(make_relay, quota_manager) for _ in range(5)]
    sent = [taken(script.client(heartbeats(0, 70, b"x-%d" % n)), b"x-0") for n, script in enumerate(scripts)]
    assert sent == [70, 30, 1, 1, 1]
    for corr in range(70):
        scripts[0].node(heartbeaten(corr), NOW_MS + 1 + corr)
    assert scripts[4].client(heartbeat(100, client_id=b"x-4"), NOW_MS + 80) == b"", "its first has no response yet"


def test_another_client_is_not_held_back(make_relay):
    quota_manager = quota_manager_of(entity=Entity(client_id=DEFAULT))
    script, other = client_of(make_relay, quota_manager), client_of(make_relay, quota_manager)
    script.client(heartbeats(0, 1000))
    assert taken(other.client(heartbeats(0, 50, b"sql"))) == 50


@pytest.mark.parametrize("ends", ["answered", "hung up", "node lost"])
def test_room_comes_back_however_requests_end(make_relay, ends):
    quota_manager = quota_manager_of()
    script = client_of(make_relay, quota_manager)
    script.client(heartbeats(0, 60))
    if ends == "answered":
        script.node(b"".join(map(heartbeaten, range(60))))
    elif ends == "hung up":
        script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS)))
    else:
        script.do(script.relay.on_eof(Side.NODE, us(NOW_MS)))
    assert quota_manager.time_in_flight == {}
    charged = 60 if ends == "hung up" else 0
    assert taken(client_of(make_relay, quota_manager).client(heartbeats(0, 1000))) == OF_A_BURST - charged


@pytest.mark.parametrize("ends", ["accepted", "out of place", "amid it"])
def test_an_authentication_keeps_no_room(make_relay, ends):
    quota_manager = quota_manager_of()
    for _ in range(3):
        script = client_of(make_relay, quota_manager)
        if ends == "accepted":
            log_in(script)
            log_in(script)
        else:
            script.client(handshake())
            script.node(handshaken(error=34 if ends == "out of place" else 0))
        assert quota_manager.time_in_flight == {}
        script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS)))
    assert taken(client_of(make_relay, quota_manager).client(heartbeats(0, 1000), NOW_MS + 12_000)) == OF_A_BURST


@pytest.mark.parametrize("ends", ["answered", "half-way"])
@pytest.mark.parametrize("limited", [None, Entity(user="ANONYMOUS")])
def test_a_request_whose_quota_changes_half_way_keeps_no_room(make_relay, limited, ends):
    """With its last byte its sensors are looked up anew."""
    quota_manager = quota_manager_of()
    script = client_of(make_relay, quota_manager)
    frame = produce(1, size=1000)
    script.client(frame[:500])
    before = dict(quota_manager.time_in_flight)
    quota_manager.replace(QuotaTable({limited: {QuotaType.REQUEST: 0.05}} if limited else {}), NOW_MS)
    if ends == "answered":
        script.client(frame[500:])
        client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
        assert quota_manager.time_in_flight == (
            {} if limited is None else {client_sensors.request: next(iter(before.values()))}
        )
        script.node(produced(1))
    else:
        script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS)))
    assert before
    assert quota_manager.time_in_flight == {}


@given(data=st.data())
@settings(max_examples=60)
def test_what_is_reserved_is_what_is_in_flight(make_relay, data):
    quota_manager = quota_manager_of(percent=1e6)
    script = client_of(make_relay, quota_manager)
    sent = answered = 0
    for _ in range(data.draw(st.integers(1, 8))):
        count = data.draw(st.integers(0, 30))
        script.client(heartbeats(sent, count))
        sent += count
        count = data.draw(st.integers(0, sent - answered))
        script.node(b"".join(map(heartbeaten, range(answered, answered + count))), NOW_MS)
        answered += count
        assert sum(quota_manager.time_in_flight.values()) == pytest.approx((sent - answered) * 0.005)
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS)))
    assert quota_manager.time_in_flight == {}


def test_responses_that_were_dear_are_expected_to_be_so_again(make_relay):
    def metadata(corr):
        return request(METADATA, 0, pack(">i", 0), corr=corr)

    def response(corr):
        topics = (pack(">hh", 3, 1) + b"t" + pack(">i", 0)) * 22_000
        body = pack(">ii", corr, 0) + pack(">i", 22_000) + topics
        return pack(">i", len(body)) + body

    script = client_of(make_relay, quota_manager_of(percent=0.05), RelayLimits())
    assert script.client(metadata(0) + metadata(1)) == metadata(0) + metadata(1)
    script.node(response(0) + response(1), NOW_MS + 500)
    now_ms = NOW_MS + 12_000
    got = script.client(b"".join(metadata(corr) for corr in range(2, 102)), now_ms)
    assert len(got) == 20 * len(metadata(0)), "5,000 us are enough for 20 at 50 us and 1 us for each of 193 KiB"


@pytest.mark.parametrize("percent", [10, 1e6])
def test_far_from_the_quota_a_thousand_are_in_flight(make_relay, percent):
    script = client_of(make_relay, quota_manager_of(percent))
    assert taken(script.client(heartbeats(0, 2000))) == 1000


def test_without_a_quota_and_under_a_shadow_quota_a_thousand_are(make_relay):
    for quota_manager in (manager_of(), quota_manager_of(shadow=True)):
        script = client_of(make_relay, quota_manager)
        assert taken(script.client(heartbeats(0, 2000))) == 1000
        assert quota_manager.time_in_flight == {}


def test_of_another_client_id_on_the_same_connection_as_many_as_ever_are(make_relay):
    script = client_of(make_relay, quota_manager_of())
    spend(script, OF_A_BURST)
    script.client(heartbeat(500), NOW_MS + 1001)
    assert taken(script.client(heartbeats(0, 50, b"sql"), NOW_MS + 1001)) == 50


def test_what_is_exempt_needs_no_room(make_relay):
    script = client_of(make_relay, quota_manager_of())
    spend(script, OF_A_BURST)
    script.client(heartbeat(500), NOW_MS + 1001)
    silent = produce(1, acks=0) * 5
    assert script.client(silent, NOW_MS + 1001) == silent


def test_a_request_that_the_proxy_responds_to_needs_room_too(make_relay):
    script = client_of(make_relay, quota_manager_of())
    spend(script, OF_A_BURST)
    script.client(heartbeat(500) + UNKNOWN * 3, NOW_MS + 1001)
    before = len(script.sent[Side.CLIENT])
    script.node(heartbeaten(500), NOW_MS + 1002)
    assert script.throttles
    assert script.sent[Side.CLIENT][before:] == heartbeaten(500, script.throttles[-1].throttle_time_ms)


def test_a_limit_that_comes_or_goes_counts_from_the_next_request_on(make_relay):
    quota_manager = quota_manager_of(percent=1e6)
    script = client_of(make_relay, quota_manager)
    assert taken(script.client(heartbeats(0, 300))) == 300
    quota_manager.replace(QuotaTable({Entity(client_id="etl"): {QuotaType.REQUEST: 0.05}}), NOW_MS)
    assert script.client(heartbeats(300, 10)) == b""
    quota_manager.replace(QuotaTable({}), NOW_MS)
    before = len(script.sent[Side.NODE])
    script.node(b"".join(map(heartbeaten, range(300))))
    assert taken(script.sent[Side.NODE][before:]) == 10
    assert taken(script.client(heartbeats(310, 500))) == 500
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS)))
    assert quota_manager.time_in_flight == {}
