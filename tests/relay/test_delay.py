"""With the throttle mode `delay` a response over quota is held until the mute is over, in its order."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH, HEARTBEAT, METADATA, PRODUCE
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits, Throttled
from kafka_throttle.proxy.relay.costs import cost_kind
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, NOW_US, Script, manager_of, quota_manager_with

DELAYS = RelayLimits(delays=True)
END_MS = NOW_MS + 5000


def delaying(make_relay, produce=None, fetch=None, **caps):
    return Script(make_relay, quota_manager_with(produce=produce, fetch=fetch, **caps), DELAYS).connected()


def responses_by(script, now_ms):
    """What goes to the client when time has come; the node gets what waited."""
    before = len(script.sent[Side.CLIENT])
    script.time(now_ms)
    return bytes(script.sent[Side.CLIENT][before:])


def old_produce(version, corr=1, *, size):
    """A Produce request below v6, whose client does not wait by itself."""
    head = (pack(">h", -1) if version >= 3 else b"") + pack(">hi", 1, 30_000)
    filler = size - len(request(PRODUCE, version, head)) + 4
    return request(PRODUCE, version, head + bytes(filler), corr=corr)


def old_fetched(version, corr=1, *, size, throttle_ms=0):
    head = pack(">ii", corr, throttle_ms) + (pack(">hi", 0, 0) if version >= 7 else b"")
    return frame(head + b"f" * (size - len(head)))


def test_a_response_over_quota_is_held_and_has_no_throttle_time(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    assert script.node(produced(1), NOW_MS + 10) == b""
    assert script.throttles == [Throttled(QuotaType.PRODUCE, 5000, b"etl")]
    assert not script.relay.idle
    assert responses_by(script, END_MS) == produced(1)
    assert script.relay.idle
    assert script.client(heartbeat(2), END_MS) == heartbeat(2)
    assert script.node(heartbeaten(2), END_MS + 1) == heartbeaten(2)


def test_a_response_that_comes_after_the_mute_is_not_late_for_it(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.time(END_MS)
    assert script.node(produced(1), END_MS + 100) == produced(1)


def test_no_further_request_is_taken_meanwhile(make_relay):
    script = delaying(make_relay, produce=100)
    assert script.client(produce(1, size=1500) + heartbeat(2)) == produce(1, size=1500)
    script.node(produced(1))
    assert script.client(heartbeat(3), NOW_MS + 1) == b""
    assert script.time(END_MS) == heartbeat(2) + heartbeat(3)
    assert script.node(heartbeaten(2) + heartbeaten(3), END_MS) == heartbeaten(2) + heartbeaten(3)


def test_responses_to_earlier_requests_go_out_at_once(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(heartbeat(1) + produce(2, size=1500))
    assert script.node(heartbeaten(1) + produced(2)) == heartbeaten(1)
    assert responses_by(script, END_MS) == produced(2)


@pytest.mark.parametrize(("version", "reported_ms"), [(1, 4990), (5, 4990), (6, 0), (7, 0)])
def test_clients_that_do_not_wait_by_themselves_get_the_time_of_the_delay(make_relay, version, reported_ms):
    script = delaying(make_relay, produce=100)
    script.client(old_produce(version, size=1500))
    response = frame(pack(">ii", 1, 0) + pack(">i", 0))
    assert script.node(response, NOW_MS + 10) == b""
    assert responses_by(script, END_MS) == frame(pack(">ii", 1, 0) + pack(">i", reported_ms))


@pytest.mark.parametrize(("version", "reported_ms"), [(4, 5000), (7, 5000), (8, 0), (11, 0)])
def test_a_fetch_over_quota_is_held_once_its_size_is_known(make_relay, version, reported_ms):
    script = delaying(make_relay, fetch=100)
    body = pack(">iiiib", -1, 500, 1, 900, 0) + pack(">ii", 0, -1) + bytes(10)
    script.client(request(FETCH, version, body))
    whole = old_fetched(version, size=1500)
    assert script.node(whole[:20]) == b""
    assert not script.reads[Side.NODE]
    assert responses_by(script, END_MS - 1) == b""
    assert responses_by(script, END_MS) == old_fetched(version, size=1500, throttle_ms=reported_ms)[:20]
    assert script.reads[Side.NODE]
    assert script.node(whole[20:], END_MS) == whole[20:]


def test_a_large_response_that_is_held_is_not_read(make_relay):
    script = delaying(make_relay, fetch=1_000_000)
    script.client(fetch(1) + heartbeat(2))
    whole = fetched(1, size=15_000_000)
    assert script.node(whole[:256_000]) == b""
    assert not script.reads[Side.NODE]
    assert script.relay.held_bytes < 300_000
    assert responses_by(script, END_MS) == whole[:256_000]
    assert script.reads[Side.NODE]
    assert script.node(whole[256_000:] + heartbeaten(2)[:0], END_MS) == whole[256_000:]
    assert script.node(heartbeaten(2), END_MS) == heartbeaten(2)


def test_a_response_that_must_be_asked_about_is_held_too(make_relay):
    script = Script(make_relay, quota_manager_with(), DELAYS).connected()
    quota_manager = script.quota_manager
    quota_manager.replace(QuotaTable({Entity(client_id="etl"): {QuotaType.FETCH: 100.0}}), NOW_MS)
    script.client(fetch(1))
    script.node(fetched(1, size=1500))
    script.client(request(METADATA, 1, pack(">i", 0), corr=2))
    assert responses_by(script, END_MS) == fetched(1, size=1500)
    broker = pack(">i", 1) + pack(">ih4sih", 1, 4, b"node", 9092, -1)
    reported = script.node(frame(pack(">i", 2) + broker + pack(">ii", 1, 0)), END_MS)
    assert b"proxy.example" in reported


def test_an_unknown_version_of_api_versions_keeps_its_turn(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.client(request(API_VERSIONS, 99, b"\1\1\0", corr=2, tags=True))
    script.node(produced(1))
    reported = responses_by(script, END_MS)
    assert reported.startswith(produced(1))
    assert reported[len(produced(1)) + 4 :].startswith(pack(">ih", 2, 35))


def test_acks_0_is_muted_without_a_response(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500, acks=0))
    assert script.client(heartbeat(2), NOW_MS + 1) == b""
    assert script.relay.idle is False
    assert script.time(END_MS) == heartbeat(2)
    assert script.node(heartbeaten(2), END_MS) == heartbeaten(2)


def test_the_cap_and_the_debt_hold_as_in_a_mute(make_relay):
    script = delaying(make_relay, produce=100, max_throttle_ms=1000, max_debt_ms=3000)
    script.client(produce(1, size=10_000))
    script.node(produced(1))
    assert responses_by(script, NOW_MS + 999) == b""
    assert responses_by(script, NOW_MS + 1000) == produced(1)
    script.client(produce(2, size=10), NOW_MS + 1000)
    script.node(produced(2), NOW_MS + 1000)
    assert responses_by(script, NOW_MS + 2000) == produced(2)
    assert script.quota_manager.sensors.capped == 2


def test_the_nodes_own_throttle_time_is_reported_as_far_as_the_delay_was_shorter(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.node(produced(1, throttle_time_ms=9000))
    assert responses_by(script, END_MS) == produced(1, throttle_time_ms=4000)
    assert script.wake_at == NOW_MS + 9000
    assert script.counters.throttles_by_node == 1
    assert script.client(heartbeat(2), END_MS + 1) == b""


def test_of_the_nodes_own_throttle_no_more_than_the_cap_is_waited_for(make_relay):
    limits = RelayLimits(delays=True, max_throttle_ms=8_000)
    script = Script(make_relay, quota_manager_with(produce=100), limits).connected()
    script.client(produce(1, size=1500))
    script.node(produced(1, throttle_time_ms=60_000))
    assert responses_by(script, END_MS) == produced(1, throttle_time_ms=3_000)
    assert script.wake_at == NOW_MS + 8_000


def test_the_nodes_own_throttle_is_not_waited_for_twice(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.node(produced(1, throttle_time_ms=3000))
    assert responses_by(script, END_MS) == produced(1)
    assert script.counters.throttles_by_node == 0


def test_a_throttle_of_the_node_alone_goes_through(make_relay):
    script = delaying(make_relay, produce=10_000)
    script.client(produce(1))
    assert script.node(produced(1, throttle_time_ms=700)) == produced(1, throttle_time_ms=700)
    assert script.wake_at == NOW_MS + 700


def test_a_shadow_quota_holds_nothing(make_relay):
    shadow = QuotaTable({Entity(client_id="etl"): {QuotaType.PRODUCE: 1.0, QuotaType.FETCH: 1.0}})
    script = Script(make_relay, manager_of({}, shadow), DELAYS).connected()
    script.client(produce(1, size=1500) + fetch(2))
    responses = produced(1) + fetched(2, size=1500)
    assert script.node(responses) == responses


@pytest.mark.parametrize("reason", [CloseReason.SHUTDOWN, CloseReason.NODE_LOST])
def test_what_is_held_goes_out_before_the_connection_ends(make_relay, reason):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.node(produced(1))
    script.do(script.relay.on_lost(reason, "", 1000 * (NOW_MS + 2000)))
    assert script.sent[Side.CLIENT] == produced(1, throttle_time_ms=3000)
    assert script.close_reason is reason


@pytest.mark.parametrize("side", Side)
def test_a_side_that_hangs_up_early_does_not_cost_the_client_its_response(make_relay, side):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.node(produced(1))
    script.do(script.relay.on_eof(side, NOW_US))
    assert script.sent[Side.CLIENT] == produced(1, throttle_time_ms=5000)
    assert script.close_reason in (CloseReason.NODE_CLOSED, CloseReason.CLIENT_CLOSED)


def test_nothing_is_sent_to_a_client_that_is_gone(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500))
    script.node(produced(1))
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    assert not script.sent[Side.CLIENT]


def test_bytes_that_come_before_a_late_timer_bring_the_response_along(make_relay):
    script = delaying(make_relay, produce=100)
    script.client(produce(1, size=1500) + produce(2, size=10))
    script.node(produced(1)[:-2])
    assert script.node(produced(1)[-2:], END_MS + 50) == produced(1)
    assert script.time(END_MS + 51) == produce(2, size=10)


def test_an_own_response_that_is_held_for_its_time_goes_out_when_that_is_over(make_relay):
    quota_manager = manager_of({Entity(client_id="etl"): {QuotaType.REQUEST: 1e-4}})
    script = Script(make_relay, quota_manager, DELAYS).connected()
    script.client(heartbeat(1))
    script.node(heartbeaten(1))
    unknown = request(API_VERSIONS, 99, b"\1\1\0", corr=7, tags=True)
    before = len(script.sent[Side.CLIENT])
    script.client(unknown, NOW_MS + 1)
    assert script.sent[Side.CLIENT][before:] == b""
    assert [throttled.quota_type for throttled in script.throttles] == [QuotaType.REQUEST]
    assert script.wake_at == NOW_MS + 1 + script.throttles[0].throttle_time_ms
    assert responses_by(script, script.wake_at)[4:8] == pack(">i", 7)


def test_the_time_of_a_response_that_is_let_go_is_charged_once(make_relay):
    table = QuotaTable({Entity(client_id="etl"): {QuotaType.REQUEST: 1e-4}})
    quota_manager = manager_of(table, costs=RequestCosts(pinned={cost_kind(HEARTBEAT): Cost(10_000.0)}))
    script = Script(make_relay, quota_manager, DELAYS).connected()
    script.client(heartbeat(1))
    assert script.node(heartbeaten(1), NOW_MS + 50) == b""
    script.do(script.relay.on_lost(CloseReason.SHUTDOWN, "", 1000 * (NOW_MS + 100)), NOW_MS + 100)
    assert len(script.sent[Side.CLIENT]) == len(heartbeaten(1))
    client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS + 100)
    assert quota_manager.request_sensors.reading(client_sensors.request, NOW_MS + 100).total == 1.0
