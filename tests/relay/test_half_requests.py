"""A request is counted and charged with its last byte, as by a broker; of one that is abandoned, what has come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import HEARTBEAT, PRODUCE
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.relay.frames import fetch, heartbeat, heartbeaten, produce, produced
from tests.relay.script import NOW_MS, NOW_US, Script, manager_of, quota_manager_with, table_with

SIZE = 10_000


def charged(script, shadow=False):
    """How many bytes of Produce were charged to the one quota that there is."""
    found = script.quota_manager.readings(NOW_MS)
    return sum(reading.total for key, reading in found if key.quota_type is QuotaType.PRODUCE and key.shadow == shadow)


def shadow_manager(rate):
    return manager_of({}, {Entity(client_id=DEFAULT): {QuotaType.PRODUCE: rate}})


def used(script):
    """What is metered of Produce: use, requests, bytes that were read."""
    found = [one for one in script.usage() if one.quota_type is QuotaType.PRODUCE]
    return sum(one.used for one in found), sum(one.requests for one in found), sum(one.in_bytes for one in found)


def test_a_request_that_is_only_announced_charges_nothing_and_holds_no_client(make_relay):
    quota_manager = quota_manager_with(produce=100)
    stranger, victim = Script(make_relay, quota_manager).connected(), Script(make_relay, quota_manager).connected()
    head = produce(1, size=100_000_000)[:40]
    assert stranger.client(head) == head
    assert (charged(stranger), stranger.throttles) == (0, [])
    assert (stranger.counters.requests_by_api[PRODUCE], stranger.counters.request_bytes) == (0, 0)
    assert victim.client(produce(1, size=100)) == produce(1, size=100)
    assert victim.node(produced(1)) == produced(1)
    assert victim.throttles == []


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_the_last_byte_charges_the_whole_request_and_begins_the_mute(make_relay, acks):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    data = produce(1, size=SIZE, acks=acks)
    for at in range(0, SIZE, 2500):
        assert script.throttles == []
        script.client(data[at : at + 2500], NOW_MS + at)
    assert (charged(script), script.throttles) == (0, [])
    script.client(data[SIZE:] + heartbeat(2), NOW_MS + SIZE)
    assert bytes(script.sent[Side.NODE]) == data
    assert charged(script) == SIZE
    [throttled] = script.throttles
    assert script.wake_at == NOW_MS + SIZE + throttled.throttle_time_ms
    assert (script.counters.requests_by_api[PRODUCE], script.counters.request_bytes) == (1, SIZE + 4)
    if acks:
        assert script.node(produced(1), NOW_MS + SIZE + 7) == produced(1, throttled.throttle_time_ms - 7)
    assert script.time(script.wake_at) == heartbeat(2)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(20, 3000), min_size=1, max_size=8), st.data())
def test_charges_and_throttle_times_do_not_depend_on_how_tcp_cuts_requests(make_relay, sizes, data):
    stream = b"".join(produce(corr, size=max(size, 60)) for corr, size in enumerate(sizes, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    whole, cut = (Script(make_relay, quota_manager_with(produce=1_000_000)).connected() for _ in range(2))
    whole.client(stream)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if end > start:
            cut.client(stream[start:end])
    assert cut.sent == whole.sent
    assert charged(cut) == charged(whole) == len(stream) - 4 * len(sizes)
    assert cut.counters == whole.counters
    assert used(cut) == used(whole) == (len(stream) - 4 * len(sizes), len(sizes), len(stream))
    for corr in range(1, len(sizes) + 1):
        assert cut.node(produced(corr)) == whole.node(produced(corr))


def hangs_up(script):
    script.do(script.relay.on_eof(Side.CLIENT, NOW_US))
    return CloseReason.CLIENT_CLOSED


def is_lost(script):
    script.do(script.relay.on_lost(CloseReason.REQUEST_TIMEOUT, now_us=NOW_US))
    return CloseReason.REQUEST_TIMEOUT


def loses_its_node(script):
    script.do(script.relay.on_eof(Side.NODE, NOW_US))
    return CloseReason.NODE_CLOSED


@pytest.mark.parametrize("ends", [hangs_up, is_lost, loses_its_node])
def test_the_part_of_an_abandoned_request_that_came_is_charged_and_throttles_no_client(make_relay, ends):
    script = Script(make_relay, quota_manager_with(produce=100)).connected()
    script.client(produce(1, size=SIZE)[:3004])
    assert charged(script) == 0
    reason = ends(script)
    assert script.close_reason is reason
    assert charged(script) == 3000
    assert used(script) == (3000, 1, 3004)
    assert (script.counters.requests_by_api[PRODUCE], script.counters.request_bytes) == (1, 3004)
    assert (script.relay.requests, script.relay.request_bytes) == (1, 3004)
    assert (script.throttles, sum(script.counters.throttles.values())) == ([], 0)


def test_a_request_that_came_whole_before_the_end_is_charged_once(make_relay):
    script = Script(make_relay, quota_manager_with(produce=1_000_000)).connected()
    script.client(produce(1, size=SIZE)[:3004])
    script.client(produce(1, size=SIZE)[3004:])
    hangs_up(script)
    assert (charged(script), used(script)) == (SIZE, (SIZE, 1, SIZE + 4))


def test_other_requests_are_counted_with_their_last_byte_too(make_relay):
    script = Script(make_relay).connected()
    script.client(fetch(1)[:40])
    assert (script.relay.requests, script.counters.request_bytes) == (0, 0)
    script.client(fetch(1)[40:])
    assert (script.relay.requests, script.counters.request_bytes) == (1, len(fetch(1)))


def test_the_quota_at_the_last_byte_counts(make_relay):
    """The quota that was found with the head may be gone by then."""
    script = Script(make_relay, quota_manager_with(produce=1_000_000)).connected()
    data = produce(1, size=SIZE)
    script.client(data[:3000])
    script.quota_manager.replace(table_with(), NOW_MS)
    script.quota_manager.replace(table_with(produce=100), NOW_MS)
    script.client(data[3000:])
    assert charged(script) == SIZE
    assert script.throttles


@pytest.mark.parametrize("ends", [True, False])
def test_a_sensor_that_was_closed_meanwhile_is_opened_again(make_relay, ends):
    """As a sensor is that was not used for an hour."""
    script = Script(make_relay, quota_manager_with(produce=1_000_000)).connected()
    data = produce(1, size=SIZE)
    script.client(data[:3004])
    script.quota_manager.expire(NOW_MS + 24 * 3_600_000)
    assert not list(script.quota_manager.readings(NOW_MS))
    if ends:
        hangs_up(script)
    else:
        script.client(data[3004:])
    assert charged(script) == (3000 if ends else SIZE)


def test_a_shadow_quota_is_charged_with_the_last_byte_too(make_relay):
    script = Script(make_relay, shadow_manager(100.0)).connected()
    script.client(produce(1, size=SIZE)[:3004])
    assert (charged(script, shadow=True), script.usage()) == (0, script.counted)
    script.client(produce(1, size=SIZE)[3004:])
    assert charged(script, shadow=True) == SIZE
    script.client(produce(2, size=SIZE)[:3004])
    hangs_up(script)
    assert charged(script, shadow=True) == SIZE + 3000
    assert sum(one.shadow_throttles for one in script.usage()) == 2


def test_the_time_of_a_request_begins_with_its_last_byte(make_relay):
    """The time that a client takes to send a request is not what the request costs the node."""
    table = QuotaTable({Entity(client_id="etl"): {QuotaType.REQUEST: 100.0}})
    costs = RequestCosts(pinned={PRODUCE: Cost(1_000_000)})
    script = Script(make_relay, manager_of(table, costs=costs)).connected()
    script.client(produce(1, size=SIZE)[:3000])
    script.client(produce(1, size=SIZE)[3000:], NOW_MS + 700)
    script.node(produced(1), NOW_MS + 705)
    [(_, reading)] = [
        row for row in script.quota_manager.readings(NOW_MS + 705) if row[0].quota_type is QuotaType.REQUEST
    ]
    assert 0 < reading.total <= 0.5


def test_requests_like_one_that_came_in_parts_go_on_behind_it(make_relay):
    script = Script(make_relay, quota_manager_with(produce=1_000_000)).connected()
    frames = [produce(corr, size=200) for corr in range(1, 6)]
    script.client(frames[0][:100])
    script.client(frames[0][100:] + frames[1] + frames[2][:50])
    script.client(frames[2][50:] + frames[3] + frames[4])
    assert bytes(script.sent[Side.NODE]) == b"".join(frames)
    for corr in range(1, 6):
        assert script.node(produced(corr)) == produced(corr)
    assert (charged(script), script.relay.requests, script.relay.responses) == (1000, 5, 5)


def test_a_throttle_for_another_request_does_not_stop_one_that_is_half_way(make_relay):
    script = Script(make_relay, quota_manager_with(produce=1000)).connected()
    data = produce(2, size=SIZE)
    script.client(heartbeat(1) + data[:3000])
    script.node(heartbeaten(1, throttle_time_ms=60_000))
    assert script.client(data[3000:]) == data[3000:]
    assert charged(script) == SIZE
    assert script.client(heartbeat(3)) == b""


def test_a_response_that_is_delayed_goes_out_in_time_though_a_longer_throttle_begins_meanwhile(make_relay):
    table = QuotaTable({Entity(client_id="etl"): {QuotaType.REQUEST: 1.0, QuotaType.PRODUCE: 100.0}})
    quota_manager = manager_of(table, costs=RequestCosts(pinned={HEARTBEAT: Cost(500_000)}))
    script = Script(make_relay, quota_manager, RelayLimits(delays=True)).connected()
    data = produce(2, size=SIZE, acks=0)
    script.client(heartbeat(1) + data[:3000])
    assert script.node(heartbeaten(1), NOW_MS + 500) == b""
    held_until_ms = script.wake_at
    assert script.client(data[3000:], NOW_MS + 600) == data[3000:]
    assert script.wake_at == held_until_ms
    script.time(held_until_ms)
    assert bytes(script.sent[Side.CLIENT])[:8] == heartbeaten(1)[:8]
    assert script.wake_at > held_until_ms
