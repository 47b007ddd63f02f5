"""With `throttle.fetch: empty` a client over quota gets a broker's empty response, whatever the node has sent."""

from struct import pack

import pytest
from kafka.protocol.consumer import FetchResponse

from kafka_throttle.protocol.api_key import FETCH
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits, Throttled
from kafka_throttle.proxy.relay.response_direction import ResponseDirection
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import PERCENT_PER_US, Cost, RequestCosts
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, manager_of, quota_manager_with, table_with
from tests.relay.test_share_fetch import share_fetch, share_fetched

WITHHOLDS = RelayLimits(withholds=True)
SESSION = 77


def withholding(make_relay, fetch=100, **caps):
    return Script(make_relay, quota_manager_with(fetch=fetch, **caps), WITHHOLDS).connected()


def versioned_fetch(version, epoch, session_id=0, corr=1):
    """A Fetch request of any version, without topics."""
    body = b"" if version >= 15 else pack(">i", -1)
    body += pack(">ii", 500, 1) + (pack(">i", 1000) if version >= 3 else b"") + (b"\0" if version >= 4 else b"")
    body += pack(">ii", session_id, epoch) if version >= 7 else b""
    rest = b"\1\1\1\0" if version >= 12 else bytes(4)
    return request(FETCH, version, body + rest + bytes(20), corr=corr, tags=version >= 12)


def versioned_response(version, corr=1, *, size, throttle_ms=0, error=0, session_id=0, data=b"f"):
    """A response of `size` bytes without its length prefix."""
    head = pack(">i", corr) + (b"\0" if version >= 12 else b"") + (pack(">i", throttle_ms) if version else b"")
    head += pack(">hi", error, session_id) if version >= 7 else b""
    if version < 16:
        return frame(head + data * (size - len(head)))
    records = size - len(head) - 58
    assert 126 < records < 16_383
    partition = bytes(30) + b"\1" + pack(">i", -1) + bytes([(records + 1) & 127 | 128, (records + 1) >> 7])
    return frame(head + b"\2" + bytes(16) + b"\2" + partition + data * records + b"\0\0\0")


def empty(version, corr=1, *, throttle_ms, error=0, session_id=0):
    """Kafka's empty response: protocol-surface 5.3."""
    if version == 0:
        return frame(pack(">ii", corr, 0))
    if version < 7:
        return frame(pack(">iii", corr, throttle_ms, 0))
    if version < 12:
        return frame(pack(">iihii", corr, throttle_ms, error, session_id, 0))
    return frame(pack(">ibihi", corr, 0, throttle_ms, error, session_id) + b"\1\0")


@pytest.mark.parametrize("version", range(19))
def test_each_version_has_its_empty_response(make_relay, version):
    script = withholding(make_relay)
    script.client(versioned_fetch(version, epoch=-1))
    charged = 1500 + (version >= 12)
    reported = script.node(versioned_response(version, size=charged, session_id=SESSION))
    assert reported == empty(version, throttle_ms=5000)
    assert script.throttles == [Throttled(QuotaType.FETCH, 5000, b"etl")]
    assert script.relay.responses == 1
    assert script.relay.response_bytes == len(reported)
    assert script.client(heartbeat(2), NOW_MS + 10) == b""
    assert script.time(NOW_MS + 5000) == heartbeat(2)
    assert not any(second.reported for counts in script.usage() for second in counts.seconds)


@pytest.mark.parametrize("version", range(4, 18))
def test_clients_understand_it(make_relay, version):
    script = withholding(make_relay)
    script.client(versioned_fetch(version, epoch=3, session_id=SESSION))
    reported = script.node(versioned_response(version, size=1500 + (version >= 12), session_id=SESSION))
    response = FetchResponse.decode(reported[4:], version=version, header=True)
    assert response.throttle_time_ms == 5000
    assert not response.responses
    if version >= 7:
        assert (response.error_code, response.session_id) == (0, SESSION)


@pytest.mark.parametrize("version", [7, 11, 12, 15, 18])
@pytest.mark.parametrize(
    ("epoch", "nodes_error", "nodes_session", "told_error", "reported_session"),
    [
        (0, 0, SESSION, 0, 0),
        (-1, 0, 0, 0, 0),
        (0, 70, 0, 0, 0),
        (5, 0, SESSION, 0, SESSION),
        (5, 71, SESSION, 71, SESSION),
        (5, 71, 0, 0, 0),
        (5, 70, 0, 0, 0),
    ],
)
def test_the_session_in_an_empty_response(
    make_relay, version, epoch, nodes_error, nodes_session, told_error, reported_session
):
    script = withholding(make_relay)
    script.client(versioned_fetch(version, epoch, session_id=SESSION if epoch else 0))
    size = 1500 + (version >= 12)
    reported = script.node(versioned_response(version, size=size, error=nodes_error, session_id=nodes_session))
    assert reported == empty(version, throttle_ms=5000, error=told_error, session_id=reported_session)


def test_what_is_withheld_is_taken_back_but_leaves_a_sample(make_relay):
    script = withholding(make_relay)
    for corr, now_ms in ((1, NOW_MS), (2, NOW_MS + 5000)):
        script.client(fetch(corr), now_ms)
        script.node(fetched(corr, size=1500), now_ms)
        [(_, reading)] = list(script.quota_manager.readings(now_ms))
        assert (reading.total, reading.throttles, reading.debt_ms) == (0, corr, 0)
        script.time(now_ms + 5000)
    assert len(script.throttles) == 2


def test_what_is_within_the_quota_is_delivered_and_charged(make_relay):
    script = withholding(make_relay)
    script.client(fetch(1))
    assert script.node(fetched(1, size=1000)) == fetched(1, size=1000)
    script.client(fetch(2))
    assert script.node(fetched(2, size=100)) == empty(11, 2, throttle_ms=1000)
    [(_, reading)] = list(script.quota_manager.readings(NOW_MS))
    assert reading.total == 1000


def test_a_large_response_is_dropped_as_it_comes(make_relay):
    script = withholding(make_relay)
    script.client(fetch(1))
    whole = fetched(1, size=3_000_000)
    assert script.node(whole[:17]) == b""
    assert script.node(whole[17:100_000]) == empty(11, throttle_ms=20_000)
    assert script.counters.withheld_bytes == len(whole)
    for at in range(100_000, len(whole), 100_000):
        assert not script.relay.idle
        assert script.node(whole[at : at + 100_000]) == b""
        assert script.relay.held_bytes == 0
        assert script.reads[Side.NODE]
    assert script.relay.idle


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_it_does_not_matter_how_a_response_is_cut(make_relay, version):
    whole = versioned_response(version, size=1500 + (version >= 12), session_id=SESSION)
    for cut in range(1, 60):
        script = withholding(make_relay)
        asked = versioned_fetch(version, epoch=4, session_id=SESSION)
        script.client(asked[:cut])
        script.client(asked[cut:])
        session_id = SESSION if version >= 7 else 0
        reported = script.node(whole[:cut]) + script.node(whole[cut:])
        assert reported == empty(version, throttle_ms=5000, session_id=session_id)
        assert script.relay.idle


def test_what_comes_before_and_behind_keeps_its_order(make_relay):
    script = withholding(make_relay)
    script.client(heartbeat(1) + produce(2) + fetch(3) + heartbeat(4))
    responses = heartbeaten(1) + produced(2) + fetched(3, size=1500)
    assert script.node(responses) == heartbeaten(1) + produced(2) + empty(11, 3, throttle_ms=5000)
    assert script.time(NOW_MS + 5000) == heartbeat(4)
    assert script.node(heartbeaten(4), NOW_MS + 5000) == heartbeaten(4)


def test_a_new_connection_waits_for_the_throttle_of_its_entity(make_relay):
    quota_manager = quota_manager_with(fetch=100)
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    script.client(fetch(1, max_bytes=900))
    assert script.node(fetched(1, size=1500)) == empty(11, 1, throttle_ms=5000)
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    assert script.client(fetch(2, max_bytes=900)) == b""
    assert script.time(NOW_MS + 1000) == fetch(2, max_bytes=500), "an equal part of what is left"
    assert script.node(fetched(2, size=900), NOW_MS + 1000) == fetched(2, size=900)


def test_the_larger_of_our_throttle_time_and_the_nodes_is_reported(make_relay):
    script = withholding(make_relay)
    script.client(fetch(1))
    assert script.node(fetched(1, size=1500, throttle_time_ms=9000)) == empty(11, throttle_ms=9000)
    assert script.wake_at == NOW_MS + 9000
    assert script.counters.throttles_by_node == 1


def test_the_nodes_throttle_counts_up_to_the_cap_in_an_empty_response_too(make_relay):
    limits = RelayLimits(withholds=True, max_throttle_ms=8_000)
    script = Script(make_relay, quota_manager_with(fetch=100), limits).connected()
    script.client(fetch(1))
    assert script.node(fetched(1, size=1500, throttle_time_ms=60_000)) == empty(11, throttle_ms=8_000)
    assert script.wake_at == NOW_MS + 8_000


def test_no_debt_is_left_where_max_debt_ms_is_0(make_relay):
    script = withholding(make_relay, max_throttle_ms=1000, max_debt_ms=0)
    script.client(fetch(1))
    assert script.node(fetched(1, size=100_000)) == empty(11, throttle_ms=1000)
    [(_, reading)] = list(script.quota_manager.readings(NOW_MS))
    assert (reading.debt_ms, reading.capped) == (0, 1)
    script.time(NOW_MS + 1000)
    script.client(fetch(2), NOW_MS + 1000)
    assert script.node(fetched(2, size=900), NOW_MS + 1000) == fetched(2, size=900)


def test_only_what_is_delivered_counts_for_a_shadow_quota(make_relay):
    shadow = QuotaTable({Entity(client_id="etl"): {QuotaType.FETCH: 10.0}})
    quota_manager = manager_of(table_with(fetch=100), shadow)
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    script.client(fetch(1))
    script.node(fetched(1, size=1500))
    totals = {key.shadow: reading.total for key, reading in quota_manager.readings(NOW_MS)}
    assert totals == {False: 0, True: 0}


def test_a_fetch_that_was_sent_before_there_was_a_quota_is_delivered_and_charged(make_relay):
    quota_manager = manager_of(table_with(fetch=2**62))
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    script.client(versioned_fetch(12, 4, SESSION, 1) + versioned_fetch(12, 0, 0, 2))
    quota_manager.replace(table_with(fetch=100), NOW_MS)
    responses = [versioned_response(12, corr, size=901, session_id=SESSION) for corr in (1, 2)]
    reported = [responses[0], versioned_response(12, 2, size=901, throttle_ms=8000, session_id=SESSION)]
    assert script.node(b"".join(responses)) == b"".join(reported)
    [(_, reading)] = list(quota_manager.readings(NOW_MS))
    assert reading.total == 1800
    assert script.client(versioned_fetch(12, 5, SESSION, 3)) == b""
    script.time(NOW_MS + 8000)
    late = versioned_response(12, 3, size=901, session_id=SESSION)
    assert script.node(late, NOW_MS + 8000) == empty(12, 3, throttle_ms=17_000, session_id=SESSION)


def test_a_shared_fetch_over_quota_is_delivered_and_charged_as_its_records_are_acquired(make_relay):
    quota_manager = quota_manager_with(fetch=100)
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    script.client(share_fetch(max_bytes=900))
    assert script.node(share_fetched(size=1501)) == share_fetched(size=1501, throttle_time_ms=5000)
    [(_, reading)] = list(quota_manager.readings(NOW_MS))
    assert reading.total == 1500
    assert script.client(heartbeat(2)) == b""
    again = Script(make_relay, quota_manager, WITHHOLDS).connected()
    assert again.client(share_fetch(max_bytes=900)) == b""
    assert again.time(NOW_MS + 5000) == share_fetch(max_bytes=1)


def test_no_session_is_looked_for_where_no_quota_can_have_a_fetch_withheld(make_relay):
    far = quota_manager_with(fetch=10**12)
    assert Script(make_relay, far, WITHHOLDS).connected().client(cut := fetch(1)[:36]) == cut
    near = quota_manager_with(fetch=10_000)
    assert Script(make_relay, near, WITHHOLDS).connected().client(cut) == b""


def test_fetches_within_their_quota_are_counted_at_a_glance(make_relay, monkeypatch):
    script = withholding(make_relay, fetch=1_000_000)
    script.client(fetch(1))
    script.node(fetched(1, size=1000))
    monkeypatch.setattr(ResponseDirection, "_begin_response", None)
    script.client(fetch(2))
    assert script.node(fetched(2, size=1000)) == fetched(2, size=1000)
    [(_, reading)] = list(script.quota_manager.readings(NOW_MS))
    assert reading.total == 2000


def test_the_time_of_a_fetch_that_is_looked_at_twice_is_charged_once(make_relay):
    limits = {QuotaType.REQUEST: 100.0, QuotaType.FETCH: 100.0}
    quota_manager = manager_of({Entity(client_id="etl"): limits})
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    for corr, size in ((1, 900), (2, 600)):
        script.client(fetch(corr))
        reported = script.node(fetched(corr, size=size), NOW_MS + 0.05)
    assert reported == empty(11, 2, throttle_ms=5000)
    client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
    assert quota_manager.request_sensors.reading(client_sensors.request, NOW_MS).charges == 2
    assert quota_manager.sensors.reading(client_sensors.fetch, NOW_MS).total == 900


def test_a_response_too_short_for_its_session_ends_the_connection(make_relay):
    script = withholding(make_relay, fetch=1, max_throttle_ms=1000)
    script.client(fetch(1))
    script.node(frame(pack(">iih", 1, 0, 0)) + bytes(100))
    assert script.close_reason is CloseReason.RESPONSE_MALFORMED


def test_a_fetch_too_short_for_its_session_ends_the_connection(make_relay):
    script = withholding(make_relay)
    script.client(request(FETCH, 11, pack(">iiiib", -1, 500, 1, 1000, 0)))
    assert script.close_reason is CloseReason.REQUEST_MALFORMED


@pytest.mark.parametrize("fetch_quota", [None, 10_000])
def test_a_client_over_the_quota_of_request_time_gets_no_data_and_is_charged_none(make_relay, fetch_quota):
    limits = {QuotaType.REQUEST: 1e-4} | ({} if fetch_quota is None else {QuotaType.FETCH: float(fetch_quota)})
    costs = RequestCosts({}, {FETCH: Cost(50.0)})
    quota_manager = manager_of({Entity(client_id="etl"): limits}, costs=costs)
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    assert script.client(fetch(1))
    assert script.node(fetched(1, size=900), NOW_MS + 0.05) == empty(11, throttle_ms=1000)
    assert script.throttles[0].quota_type is QuotaType.REQUEST
    client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
    assert quota_manager.request_sensors.reading(client_sensors.request, NOW_MS).total == pytest.approx(
        50 * PERCENT_PER_US
    )
    if client_sensors.fetch is not None:
        assert quota_manager.sensors.reading(client_sensors.fetch, NOW_MS).total == 0


def test_a_client_within_both_quotas_gets_the_data(make_relay):
    limits = {QuotaType.REQUEST: 100.0, QuotaType.FETCH: 10_000.0}
    quota_manager = manager_of({Entity(client_id="etl"): limits})
    script = Script(make_relay, quota_manager, WITHHOLDS).connected()
    for corr in (1, 2):
        script.client(fetch(corr))
        assert script.node(fetched(corr, size=900), NOW_MS + 0.05) == fetched(corr, size=900)
    client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", "etl", NOW_MS)
    assert quota_manager.request_sensors.reading(client_sensors.request, NOW_MS).charges == 2


# ------------------------------------------------------------------- the node's part


def test_a_fetch_asks_for_what_is_left_but_for_a_batch_at_least(make_relay):
    script = withholding(make_relay)
    assert script.client(fetch(1, max_bytes=5000, min_bytes=2000)) == fetch(1, max_bytes=1000, min_bytes=1000)
    script.node(fetched(1, size=700))
    assert script.client(fetch(2, max_bytes=5000)) == fetch(2, max_bytes=299)
    script.node(fetched(2, size=300))
    assert script.client(fetch(3)) == fetch(3, max_bytes=1)


def test_what_others_may_still_bring_is_not_asked_for_twice(make_relay):
    quota_manager = quota_manager_with(fetch=100)
    first, second = (Script(make_relay, quota_manager, WITHHOLDS).connected() for _ in range(2))
    assert first.client(fetch(1, max_bytes=800)) == fetch(1, max_bytes=800)
    assert second.client(fetch(1)) == fetch(1, max_bytes=100)


@pytest.mark.parametrize("version", [7, 12, 17])
@pytest.mark.parametrize("epoch", [0, -1])
def test_a_session_that_the_node_made_for_a_withheld_response_is_closed_by_the_next_full_fetch(
    make_relay, version, epoch
):
    script = withholding(make_relay)
    script.client(versioned_fetch(version, 0))
    response = versioned_response(version, size=1500 + (version >= 12), session_id=SESSION)
    assert script.node(response) == empty(version, throttle_ms=5000)
    script.time(NOW_MS + 5000)
    closing = versioned_fetch(version, epoch, SESSION, 3)
    assert script.client(versioned_fetch(version, epoch, 0, 3), NOW_MS + 60_000) == closing
    script.node(versioned_response(version, 3, size=200, session_id=SESSION + 1), NOW_MS + 60_000)
    script.client(versioned_fetch(version, epoch, 0, 4), NOW_MS + 120_000)
    assert script.sent[Side.NODE].endswith(versioned_fetch(version, epoch, 0, 4)), "once is enough"


def test_a_full_fetch_that_closes_a_session_of_its_client_is_sent_as_it_is(make_relay):
    script = withholding(make_relay)
    script.client(versioned_fetch(12, 0))
    script.node(versioned_response(12, size=1501, session_id=SESSION))
    script.time(NOW_MS + 5000)
    own = versioned_fetch(12, 0, SESSION + 5, 3)
    assert script.client(own, NOW_MS + 60_000) == own
