"""What a relay does, as scripts of bytes and times."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.common.kinds import INT32_MAX
from kafka_throttle.protocol.api_key import API_VERSIONS
from kafka_throttle.proxy.config.settings import ListenerConfig
from kafka_throttle.proxy.relay.actions import CloseReason, Decision, RelayLimits
from kafka_throttle.proxy.relay.repeated_requests import RepeatPattern
from kafka_throttle.proxy.side import Side
from kafka_throttle.proxy.upstream.topology import ListenerPorts, NodeDirectory
from kafka_throttle.quotas.entities import QuotaType
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, NOW_US, Script, quota_manager_with, table_with
from tests.support.quota_frames import describe_request


def test_nothing_is_opened_for_a_client_that_has_sent_no_whole_header(make_relay):
    script = Script(make_relay)
    first = produce()
    assert script.client(first[:13]) == b""
    assert script.opened == 0
    assert script.client(first[13:40]) == b""
    assert script.opened == 1


@pytest.mark.parametrize("cut", range(1, 27))
def test_the_first_request_may_come_in_any_two_parts(make_relay, cut):
    script = Script(make_relay)
    script.client(produce()[:cut])
    assert script.reads[Side.CLIENT] or script.opened
    script.client(produce()[cut:])
    assert script.opened == 1


def test_what_came_while_connecting_goes_out_once_connected(make_relay):
    script = Script(make_relay)
    script.client(produce(1) + produce(2))
    assert not script.reads[Side.CLIENT]
    script.connected()
    assert script.sent[Side.NODE] == produce(1) + produce(2)
    assert script.reads[Side.CLIENT]


def test_requests_and_responses_pass_unchanged(make_relay):
    script = Script(make_relay).connected()
    assert script.client(produce(7) + heartbeat(8) + fetch(9)) == produce(7) + heartbeat(8) + fetch(9)
    assert script.node(produced(7) + heartbeaten(8) + fetched(9)) == produced(7) + heartbeaten(8) + fetched(9)
    assert script.relay.requests == script.relay.responses == 3
    assert script.relay.idle


@pytest.mark.rule("mute")
def test_a_violating_produce_goes_through_and_then_mutes_the_client(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    assert script.client(produce(1, size=1500)) == produce(1, size=1500)
    assert script.wake_at == NOW_MS + 5000
    assert script.client(produce(2, size=40), NOW_MS + 10) == b""
    assert not script.reads[Side.CLIENT]
    assert script.node(produced(1), NOW_MS + 20) == produced(1, throttle_time_ms=4980)
    assert script.time(NOW_MS + 5000) == produce(2, size=40)


def test_a_muted_client_is_read_until_one_head_is_here(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500))
    assert script.reads[Side.CLIENT]
    script.client(produce(2)[:10])
    assert script.reads[Side.CLIENT]
    script.client(produce(2)[10:20])
    assert not script.reads[Side.CLIENT]


def test_the_body_of_a_violating_request_is_read_to_its_end(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    large = produce(1, size=50_000)
    assert script.client(large[:2000]) == large[:2000]
    assert script.reads[Side.CLIENT]
    assert script.client(large[2000:] + heartbeat(2)) == large[2000:]
    assert not script.reads[Side.CLIENT]


def test_a_wake_up_that_comes_too_early_is_asked_for_again(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500) + heartbeat(2))
    script.wake_at = None
    assert script.time(NOW_MS + 4999) == b""
    assert script.wake_at == NOW_MS + 5000
    assert script.time(NOW_MS + 5000) == heartbeat(2)


@pytest.mark.rule("mute")
def test_acks_0_is_muted_without_a_response(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500, acks=0) + heartbeat(2))
    assert script.sent[Side.NODE] == produce(1, size=1500, acks=0)
    script.time(NOW_MS + 5000)
    assert script.node(heartbeaten(2), NOW_MS + 5001) == heartbeaten(2)


def test_a_response_to_an_earlier_request_does_not_report_a_later_ones_throttle(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(heartbeat(1) + produce(2, size=1500))
    assert script.node(heartbeaten(1) + produced(2), NOW_MS + 100) == heartbeaten(1) + produced(2, 4900)


def test_a_throttle_of_the_nodes_own_is_obeyed_and_reported_up_to_the_cap(make_relay):
    script = Script(make_relay, limits=RelayLimits(max_throttle_ms=20_000)).connected()
    script.client(heartbeat(1) + heartbeat(2))
    assert script.node(heartbeaten(1, throttle_time_ms=INT32_MAX)) == heartbeaten(1, throttle_time_ms=20_000)
    assert script.wake_at == NOW_MS + 20_000
    assert script.client(heartbeat(3)) == b""
    assert script.node(heartbeaten(2, throttle_time_ms=20_000)) == heartbeaten(2, throttle_time_ms=20_000)
    assert script.time(NOW_MS + 20_000) == heartbeat(3)


@pytest.mark.rule("throttle time")
def test_the_larger_throttle_time_is_reported_and_mutes(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500) + heartbeat(2))
    assert script.node(produced(1, throttle_time_ms=9000)) == produced(1, throttle_time_ms=9000)
    assert script.counters.throttles_by_node == 1
    assert script.time(NOW_MS + 5000) == b""
    assert script.time(NOW_MS + 9000) == heartbeat(2)


def test_a_cap_bounds_the_mute_and_the_debt_keeps_the_rest(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100, max_throttle_ms=2000, max_debt_ms=60_000)).connected()
    script.client(produce(1, size=3000))
    assert script.wake_at == NOW_MS + 2000
    script.client(produce(2, size=40), NOW_MS + 2000)
    script.time(NOW_MS + 2000)
    assert script.wake_at == NOW_MS + 4000


@pytest.mark.rule("live")
def test_a_quota_change_is_felt_by_the_next_request(make_relay):
    script = Script(make_relay, quota_manager_with()).connected()
    script.client(produce(1, size=1500))
    assert script.throttles == []
    script.quota_manager.replace(table_with(produce=100), NOW_MS)
    script.client(produce(2, size=1500))
    assert len(script.throttles) == 1


def test_a_decision_that_comes_late_holds_only_its_own_direction(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1, client_id=b"a"))
    script.hold_decisions = True
    assert script.client(describe_request([], corr=2) + heartbeat(3, client_id=b"a")) == b""
    assert script.node(heartbeaten(1)) == heartbeaten(1)
    script.response_asks()
    assert script.sent[Side.NODE].endswith(heartbeat(3, client_id=b"a"))


def test_client_ids_that_are_met_for_the_first_time_hold_nothing_up(make_relay):
    script = Script(make_relay).connected()
    script.hold_decisions = True
    requests = b"".join(heartbeat(i, client_id=b"c%d" % (i % 7)) for i in range(20))
    assert script.client(requests) == requests
    assert script.asks == []


def test_a_decision_with_a_stale_ticket_is_dropped(make_relay):
    script = Script(make_relay).connected()
    script.hold_decisions = True
    script.client(describe_request([]) + heartbeat(2))
    assert script.relay.on_decision(99, Decision(), NOW_US) == []
    script.response_asks()
    assert script.sent[Side.NODE] == heartbeat(2)


def test_a_null_client_id_is_the_empty_one(make_relay):
    script = Script(make_relay).connected()
    assert script.client(heartbeat(1, client_id=None)) == heartbeat(1, client_id=None)
    assert script.client(heartbeat(2, client_id=b"")) == heartbeat(2, client_id=b"")


@pytest.mark.rule("order")
def test_the_response_to_an_unknown_version_of_api_versions_comes_in_its_turn(make_relay):
    script = Script(make_relay).connected()
    newer = request(API_VERSIONS, 99, b"whatever", corr=2, tags=True)
    assert script.client(heartbeat(1) + newer + heartbeat(3)) == heartbeat(1) + heartbeat(3)
    expected = frame(pack(">ihihhh", 2, 35, 1, 18, 0, 4))
    assert script.node(heartbeaten(1)) == heartbeaten(1) + expected
    assert script.node(heartbeaten(3)) == heartbeaten(3)


def test_api_versions_of_an_unknown_version_waits_for_the_node_as_its_quota_is_that_of_a_node(make_relay):
    script = Script(make_relay)
    script.client(request(API_VERSIONS, 99, tags=True))
    assert (script.sent[Side.CLIENT], script.opened) == (b"", 1)
    script.connected()
    assert script.sent[Side.CLIENT][8:10] == pack(">h", 35)
    assert script.sent[Side.NODE] == b""


def test_a_blocked_side_stops_the_reading_of_the_other(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1))
    script.do(script.relay.on_blocked(Side.CLIENT))
    assert not script.reads[Side.NODE]
    script.do(script.relay.on_writable(Side.CLIENT, NOW_US))
    assert script.reads[Side.NODE]
    script.do(script.relay.on_blocked(Side.NODE))
    assert not script.reads[Side.CLIENT]
    script.do(script.relay.on_writable(Side.NODE, NOW_US))
    assert script.reads[Side.CLIENT]


def test_more_requests_than_may_be_in_flight_wait_for_responses(make_relay):
    script = Script(make_relay, limits=RelayLimits(max_in_flight=2)).connected()
    assert script.client(heartbeat(1) + heartbeat(2) + heartbeat(3)) == heartbeat(1) + heartbeat(2)
    script.node(heartbeaten(1))
    assert script.sent[Side.NODE].endswith(heartbeat(3))


def test_what_a_client_sent_before_it_hung_up_is_carried_when_the_mute_ends(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500, acks=0) + produce(2, acks=0))
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US + 10_000), NOW_MS + 10)
    assert script.closed is None
    assert script.time(NOW_MS + 5000).startswith(produce(2, acks=0))


def test_a_client_that_hangs_up_closes_its_connection(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1))
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.close_reason is CloseReason.CLIENT_CLOSED


def test_a_client_that_hangs_up_without_a_word_closes_its_connection(make_relay):
    script = Script(make_relay)
    script.client(b"\0\0")
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.close_reason is CloseReason.CLIENT_CLOSED
    assert script.opened == 0


def test_a_muted_client_with_nothing_left_to_send_is_let_go_at_once(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500))
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.close_reason is CloseReason.CLIENT_CLOSED


def test_what_a_client_sent_before_it_hung_up_waits_for_the_connection(make_relay):
    script = Script(make_relay)
    script.client(produce(1, acks=0))
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    assert script.closed is None
    script.connected()
    assert script.sent[Side.NODE] == produce(1, acks=0)
    assert script.close_reason is CloseReason.CLIENT_CLOSED


def test_a_node_that_hangs_up_closes_the_connection(make_relay):
    script = Script(make_relay).connected()
    script.client(fetch(1))
    script.node(fetched(1)[:50])
    script.do(script.relay.on_eof(Side.NODE, NOW_US))
    assert script.close_reason is CloseReason.NODE_CLOSED
    assert "middle of a response" in script.closed.detail


BAD_REQUESTS = {
    "a TLS hello": (bytes.fromhex("16030100a5010000a10303"), CloseReason.TLS_UNEXPECTED, "TLS handshake"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", CloseReason.REQUEST_NOT_KAFKA, "HTTP request"),
    "SSH": (b"SSH-2.0-OpenSSH\r\n", CloseReason.REQUEST_NOT_KAFKA, "SSH"),
    "a PROXY header": (b"PROXY TCP4 1.2.3.4", CloseReason.REQUEST_NOT_KAFKA, "PROXY protocol v1"),
    "a negative length": (pack(">i", -5) + b"x" * 20, CloseReason.REQUEST_MALFORMED, "-5"),
    "an empty frame": (pack(">i", 0), CloseReason.REQUEST_MALFORMED, "0"),
    "a whole frame without a client id": (frame(pack(">hhi", 12, 2, 1)), CloseReason.REQUEST_MALFORMED, "prefix of 8"),
    "with half of its length": (frame(pack(">hhib", 12, 2, 1, 0)), CloseReason.REQUEST_MALFORMED, "prefix of 9"),
    "too large a frame": (pack(">i", 104_857_601), CloseReason.REQUEST_TOO_LARGE, "104857601"),
    "an unknown api": (request(999, 3), CloseReason.UNSUPPORTED_API, "api key 999 version 3"),
    "a negative api": (request(-1, 3), CloseReason.UNSUPPORTED_API, "api key -1 version 3"),
    "an unknown version": (request(0, 77), CloseReason.UNSUPPORTED_VERSION, "Produce (api key 0) version 77"),
    "a negative version": (request(18, -1), CloseReason.UNSUPPORTED_VERSION, "version -1"),
    "a client id beyond the frame": (
        frame(pack(">hhih", 12, 2, 1, 3000) + b"x"),
        CloseReason.REQUEST_MALFORMED,
        "client id of 3000",
    ),
    "a produce without acks": (
        frame(pack(">hhih", 0, 7, 1, -1)),
        CloseReason.REQUEST_MALFORMED,
        "Produce v7",
    ),
    "tags beyond the frame": (
        frame(pack(">hhih", 12, 4, 1, -1) + b"\x05\x01"),
        CloseReason.REQUEST_MALFORMED,
        "Heartbeat v4",
    ),
}


@pytest.mark.parametrize(("data", "reason", "detail"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_bad_request_closes_and_is_not_sent_on(make_relay, data, reason, detail):
    script = Script(make_relay).connected()
    assert script.client(heartbeat(1) + data) == heartbeat(1)
    assert script.close_reason is reason
    assert detail in script.closed.detail
    assert script.client(heartbeat(2)) == b""


def test_a_frame_of_exactly_the_limit_passes(make_relay):
    script = Script(make_relay, limits=RelayLimits(max_frame_bytes=2000)).connected()
    assert script.client(produce(1, size=2000)) == produce(1, size=2000)
    script.client(produce(2, size=2001))
    assert script.close_reason is CloseReason.REQUEST_TOO_LARGE


BAD_RESPONSES = {
    "TLS": (bytes.fromhex("160303004a02000046"), CloseReason.RESPONSE_NOT_KAFKA, "TLS handshake"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n", CloseReason.RESPONSE_NOT_KAFKA, "HTTP response"),
    "a negative length": (pack(">i", -1), CloseReason.RESPONSE_MALFORMED, "-1"),
    "another correlation id": (heartbeaten(8), CloseReason.RESPONSE_UNEXPECTED, "Heartbeat 1 is due"),
    "too short": (frame(pack(">i", 1)), CloseReason.RESPONSE_MALFORMED, "Heartbeat v2"),
}


@pytest.mark.parametrize(("data", "reason", "detail"), BAD_RESPONSES.values(), ids=BAD_RESPONSES.keys())
def test_a_bad_response_closes_and_is_not_sent_on(make_relay, data, reason, detail):
    script = Script(make_relay).connected()
    script.client(heartbeat(1))
    assert script.node(data) == b""
    assert script.close_reason is reason
    assert detail in script.closed.detail


def test_a_node_that_hangs_up_after_a_tls_alert_is_named(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1))
    assert script.node(bytes.fromhex("15030300020228")) == b""
    script.do(script.relay.on_eof(Side.NODE, NOW_US))
    assert script.close_reason is CloseReason.RESPONSE_NOT_KAFKA
    assert "TLS alert" in script.closed.detail


def test_a_response_without_a_request_closes(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1))
    assert script.node(heartbeaten(1) + heartbeaten(2)) == heartbeaten(1)
    assert script.close_reason is CloseReason.RESPONSE_UNEXPECTED


def test_a_response_above_the_limit_closes(make_relay):
    script = Script(make_relay, limits=RelayLimits(max_response_bytes=2000)).connected()
    script.client(fetch(1) + fetch(2))
    assert script.node(fetched(1, size=2000)) == fetched(1, size=2000)
    script.node(fetched(2, size=2001))
    assert script.close_reason is CloseReason.RESPONSE_TOO_LARGE


def metadata_response(node_id: int, host: bytes = b"10.0.0.7", port: int = 9092, corr: int = 1) -> bytes:
    broker = pack(">i", node_id) + pack(">h", len(host)) + host + pack(">i", port) + pack(">h", -1)
    return frame(pack(">i", corr) + pack(">i", 1) + broker + pack(">i", node_id) + pack(">i", 0))


@pytest.mark.rule("addresses")
def test_node_addresses_are_rewritten_and_learned(make_relay):
    script = Script(make_relay).connected()
    script.client(request(3, 1, pack(">i", 0)))
    assert script.node(metadata_response(3)) == metadata_response(3, b"proxy.example", 20_003)
    assert script.nodes.learned == {3: ("10.0.0.7", 9092)}


def test_a_node_at_a_port_that_there_cannot_be_is_advertised_as_ever_and_not_learned(make_relay):
    config = ListenerConfig.model_validate({"name": "plain", "bind": "127.0.0.1", "port": 19_000, "node_ids": [3]})
    directory = NodeDirectory()
    script = Script(make_relay, nodes=ListenerPorts(config, directory)).connected()
    script.client(request(3, 1, pack(">i", 0)) * 2)
    assert script.node(metadata_response(3, port=70_000)) == metadata_response(3, b"127.0.0.1", 19_001)
    assert directory.address(3) is None
    script.node(metadata_response(3))
    assert directory.address(3) == ("10.0.0.7", 9092)


FRAMES = st.sampled_from(["produce", "acks0", "fetch", "heartbeat"])


@pytest.mark.rule("unchanged")
@settings(max_examples=200, deadline=None)
@given(kinds=st.lists(FRAMES, min_size=1, max_size=12), data=st.data())
def test_what_passes_does_not_depend_on_how_tcp_cut_it(make_relay, kinds, data):
    sizes = data.draw(st.lists(st.integers(40, 3000), min_size=len(kinds), max_size=len(kinds)))
    requests, responses = b"", b""
    for corr, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        if kind in ("produce", "acks0"):
            requests += produce(corr, size=size, acks=kind == "produce")
            responses += produced(corr) if kind == "produce" else b""
        elif kind == "fetch":
            requests += fetch(corr)
            responses += fetched(corr, size=size)
        else:
            requests += heartbeat(corr)
            responses += heartbeaten(corr)
    script = Script(make_relay).connected()
    for piece in _cut(requests, data):
        script.client(piece)
    for piece in _cut(responses, data):
        script.node(piece)
    assert script.sent[Side.NODE] == requests
    assert script.sent[Side.CLIENT] == responses
    assert script.relay.idle


def _cut(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if b > a]


@pytest.mark.rule("any bytes")
@settings(max_examples=300, deadline=None)
@given(garbage=st.binary(max_size=400), side=st.sampled_from(Side))
def test_whatever_arrives_a_relay_returns_actions_and_raises_nothing(make_relay, garbage, side):
    script = Script(make_relay, quota_manager_with(produce=100, fetch=100)).connected()
    script.client(fetch(1) + heartbeat(2))
    script.do(script.relay.on_bytes(side, garbage, NOW_US))


@pytest.mark.rule("order")
def test_own_responses_take_their_turn_between_two_responses_that_come_at_once(make_relay):
    script = Script(make_relay).connected()
    script.client(heartbeat(1) + request(API_VERSIONS, 99, corr=2, tags=True) + heartbeat(3))
    ours = frame(pack(">ihihhh", 2, 35, 1, 18, 0, 4))
    assert script.node(heartbeaten(1) + heartbeaten(3)) == heartbeaten(1) + ours + heartbeaten(3)


def test_requests_that_the_proxy_responds_to_are_bounded_too(make_relay):
    script = Script(make_relay, limits=RelayLimits(max_in_flight=10)).connected()
    script.client(heartbeat(0) + request(API_VERSIONS, 99, tags=True) * 100)
    assert not script.reads[Side.CLIENT]
    script.node(heartbeaten(0))
    assert script.sent[Side.CLIENT].count(pack(">ihihhh", 1, 35, 1, 18, 0, 4)) == 100
    assert script.reads[Side.CLIENT]
    assert script.relay.idle


def test_a_client_that_does_not_read_gets_no_further_responses_of_ours(make_relay):
    script = Script(make_relay).connected()
    script.do(script.relay.on_blocked(Side.CLIENT))
    script.client(request(API_VERSIONS, 99, tags=True) * 2)
    assert script.sent[Side.CLIENT] == b""
    assert not script.reads[Side.CLIENT]
    script.do(script.relay.on_writable(Side.CLIENT, NOW_US))
    assert len(script.sent[Side.CLIENT]) == 2 * 20
    assert script.reads[Side.CLIENT]


def test_a_header_with_too_many_tags_is_refused_before_they_come(make_relay):
    script = Script(make_relay).connected()
    script.client(pack(">ihhih", 1_000_000, 12, 4, 1, -1) + b"\xff\xff\xff\xff\x0f")
    assert script.close_reason is CloseReason.REQUEST_MALFORMED
    assert "tagged fields" in script.closed.detail


@pytest.mark.rule("addresses")
def test_an_address_that_belongs_to_no_node_is_not_passed_on(make_relay):
    script = Script(make_relay).connected()
    script.client(request(3, 1, pack(">i", 0)))
    assert script.node(metadata_response(-5)) == b""
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED


def test_a_large_response_half_way_is_not_idle(make_relay):
    script = Script(make_relay).connected()
    script.client(fetch(1))
    script.node(fetched(1, size=300_000)[:200_000])
    assert not script.relay.idle


def test_long_client_ids_are_measured_under_a_digest(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    long = b"\xff" * 30_000
    assert script.client(heartbeat(1, client_id=long)) == heartbeat(1, client_id=long)
    keys = [key for key, _ in script.quota_manager.readings(NOW_MS)]
    assert [len(key.tags.client_id) < 200 for key in keys] == [True]


def over_quota(make_relay):
    """A client that has just fetched what its quota allows in 5 s."""
    script = Script(make_relay, quota_manager_with(fetch=100)).connected()
    script.client(fetch(1, max_bytes=1000))
    assert script.node(fetched(1, size=500)) == fetched(1, size=500, throttle_time_ms=4200)
    return script


def fetched_bytes(script):
    [total] = [
        reading.total for key, reading in script.quota_manager.readings(NOW_MS) if key.quota_type is QuotaType.FETCH
    ]
    return total


def reported_of_throttled(script):
    """Of each second in which any was, what they used."""
    seconds = [second for counts in script.usage() for second in counts.seconds]
    return [[used for _, used in second.reported] for second in seconds if second.throttled_ms]


def test_the_usage_of_a_second_has_the_fetches_that_were_throttled(make_relay):
    script = over_quota(make_relay)
    assert reported_of_throttled(script) == [[500]]


def test_the_usage_of_a_second_has_the_produces_that_were_throttled(make_relay):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    size_bytes = len(produce(1, size=1500)) - 4
    script.client(produce(1, size=10) + produce(2, size=1500) + heartbeat(3))
    assert reported_of_throttled(script) == [[size_bytes]]


def test_the_usage_of_a_second_begins_with_its_first_use_on_the_fast_ways_too(make_relay):
    """A response of the second before goes out in this one, then comes the next request."""
    script = Script(make_relay, quota_manager_with(), checks_usage=False).connected()
    began_ms = NOW_MS - NOW_MS % 10_000 + 10_000
    script.client(produce(1, size=90) + produce(2, size=90), began_ms + 300)
    script.node(produced(1), began_ms + 310)
    script.node(produced(2), began_ms + 1_050)
    for corr, at_ms in ((3, 1_850), (4, 1_900)):
        script.client(produce(corr, size=90), began_ms + at_ms)
    size_bytes = len(produce(3, size=90)) - 4
    [of_produces] = [counts for counts in script.usage() if counts.quota_type is QuotaType.PRODUCE]
    assert [(second.at_ms, second.used) for second in of_produces.seconds] == [
        (300, 2 * size_bytes),
        (1_850, 2 * size_bytes),
    ]


def test_the_usage_of_a_second_begins_with_the_response_to_a_fetch_not_with_the_fetch(make_relay):
    script = Script(make_relay, quota_manager_with(), checks_usage=False).connected()
    began_ms = NOW_MS - NOW_MS % 10_000 + 10_000
    for number in range(3):
        script.client(fetch(number + 1), began_ms + number * 1_000 + 50)
        script.node(fetched(number + 1, size=90), began_ms + number * 1_000 + 850)
    [of_fetches] = [counts for counts in script.usage() if counts.quota_type is QuotaType.FETCH]
    assert [second.at_ms for second in of_fetches.seconds] == [850, 1_850, 2_850]


def test_a_response_whose_sensor_was_closed_meanwhile_passes(make_relay):
    script = Script(make_relay, quota_manager_with(fetch=100)).connected()
    script.client(fetch(1, max_bytes=500))
    script.quota_manager.replace(table_with(), NOW_MS)
    assert script.node(fetched(1, size=900)) == fetched(1, size=900)
    assert script.closed is None


def test_fetches_without_a_quota_need_not_wait_for_each_other(make_relay):
    script = Script(make_relay, quota_manager_with(fetch=10**12)).connected()
    assert script.client(fetch(1) + fetch(2)) == fetch(1) + fetch(2)


def test_a_train_at_the_edge_of_its_quota_is_looked_at_once_per_request(make_relay, monkeypatch):
    """What costs is scanning: of a thousand frames that may be throttled, each is read a few times at most."""
    scanned = []
    run = RepeatPattern.run
    monkeypatch.setattr(
        RepeatPattern, "run", lambda self, *args: (found := run(self, *args), scanned.append(found[1]))[0]
    )
    script = Script(make_relay, quota_manager_with(produce=1000, max_throttle_ms=1)).connected()
    for number in range(100):
        script.client(produce(number, size=101))
    script.time(NOW_MS + 1)
    scanned.clear()
    script.client(b"".join(produce(number, size=100, acks=0) for number in range(1000)), NOW_MS + 1)
    assert sum(scanned) <= 2000


def test_a_quota_that_does_not_prolong_the_mute_is_reported_once_in_it(make_relay):
    """The relay reports Throttled for each quota, also if another one mutes the client for longer."""
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=1500))
    throttle = script.relay._throttle
    turn = throttle._turn
    for quota_type in (QuotaType.REQUEST, QuotaType.REQUEST, QuotaType.PRODUCE, None, None):
        actions = turn.begin(NOW_US + 1_000)
        throttle.throttle(10, quota_type, b"etl")
        turn.do_after()
        script.do(actions)
    reported = [(each.quota_type, each.throttle_time_ms) for each in script.throttles]
    assert reported == [(QuotaType.PRODUCE, 5000), (QuotaType.REQUEST, 10), (None, 10)]
    assert script.wake_at == NOW_MS + 5000
