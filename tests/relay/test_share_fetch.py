"""ShareFetch counts for the quota of consumers, as with brokers since Kafka 4.1 (KIP-932)."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import SHARE_FETCH
from kafka_throttle.protocol.primitives import compact_string
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import QuotaType
from tests.relay.frames import frame, heartbeat, request
from tests.relay.script import NOW_MS, Script, quota_manager_with


def share_fetch(corr: int = 1, *, max_bytes: int = 52_428_800, min_bytes: int = 1, group: bytes = b"g") -> bytes:
    """A ShareFetch v1 request without topics."""
    body = compact_string(group) + compact_string(b"member") + pack(">iiiiii", 0, 500, min_bytes, max_bytes, 500, 500)
    return request(SHARE_FETCH, 1, body + b"\1\1\0", corr=corr, tags=True)


def share_fetched(corr: int = 1, *, size: int = 1000, throttle_time_ms: int = 0, endpoints: bytes = b"\1") -> bytes:
    """The response, `size` bytes long without its length prefix and what `endpoints` have more than none."""
    head = pack(">i", corr) + b"\0" + pack(">ih", throttle_time_ms, 0) + b"\0" + pack(">i", 30_000)
    topic = b"\2" + bytes(16) + b"\2" + pack(">ihbhbii", 0, 0, 0, 0, 0, 1, 1) + b"\0"
    records = size - len(head) - len(topic) - 2 - 3 - 2
    partition = pack(">BB", (records + 1) & 0x7F | 0x80, (records + 1) >> 7) + b"r" * records + b"\1\0\0"
    return frame(head + topic + partition + endpoints + b"\0")


def test_what_is_asked_for_is_held_to_what_is_left(make_relay):
    script = Script(make_relay, quota_manager_with(fetch=100)).connected()
    assert script.client(share_fetch(min_bytes=5000)) == share_fetch(min_bytes=100, max_bytes=100)
    assert script.client(heartbeat(2)) == b""
    script = Script(make_relay).connected()
    assert script.client(share_fetch(min_bytes=5000)) == share_fetch(min_bytes=5000)


@pytest.mark.parametrize("cut", range(14, 48))
def test_a_request_is_sent_on_as_soon_as_its_limits_are_here(make_relay, cut):
    script = Script(make_relay, quota_manager_with(fetch=100)).connected()
    whole = share_fetch(max_bytes=2000)
    assert script.client(whole[:cut]) + script.client(whole[cut:]) == share_fetch(max_bytes=100)


def test_a_response_over_quota_is_delivered_with_its_throttle_time_and_mutes(make_relay):
    script = Script(make_relay, quota_manager_with(fetch=100)).connected()
    script.client(share_fetch(max_bytes=900))
    reported = script.node(share_fetched(size=1501))
    assert reported == share_fetched(size=1501, throttle_time_ms=5000)
    assert [(t.quota_type, t.throttle_time_ms) for t in script.throttles] == [(QuotaType.FETCH, 5000)]
    assert script.client(heartbeat(2), NOW_MS + 10) == b""
    assert script.time(NOW_MS + 5000) == heartbeat(2)


def test_addresses_of_nodes_are_not_charged(make_relay):
    script = Script(make_relay, quota_manager_with(fetch=1_000_000)).connected()
    script.client(share_fetch())
    endpoints = b"\2" + pack(">i", 1) + compact_string(b"node") + pack(">i", 9092) + b"\0\0"
    script.node(share_fetched(size=1500, endpoints=endpoints))
    [(_, reading)] = list(script.quota_manager.readings(NOW_MS))
    assert reading.total == 1499
    assert b"proxy.example" in script.sent[Side.CLIENT]


def test_names_beyond_all_bounds_end_the_connection(make_relay):
    script = Script(make_relay).connected()
    script.client(request(SHARE_FETCH, 1, b"\xff\xff\xff\x7f" + b"g" * 200_000, tags=True))
    assert script.close_reason is CloseReason.REQUEST_MALFORMED
