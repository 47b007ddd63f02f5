"""Hanging up is no way around a throttle: the first limited request on a connection waits for the entity's debt."""

from struct import pack

import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS, HEARTBEAT
from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import Cost, RequestCosts
from tests.relay.frames import fetch, fetched, heartbeat, heartbeaten, produce, produced, request
from tests.relay.script import NOW_MS, Script, manager_of, us
from tests.support.topic_frames import create_topics, new_topic

CAP_MS = 20_000
UNKNOWN = request(API_VERSIONS, 99, b"\1\1\0", corr=1, tags=True)
HANDSHAKE = request(17, 1, pack(">h", 5) + b"PLAIN")


def mutation(version):
    return create_topics(version, [new_topic(version, b"t", 1)])


def quota_manager_of(**limits):
    table = QuotaTable({Entity(client_id=DEFAULT): {QuotaType[name]: float(limit) for name, limit in limits.items()}})
    costs = RequestCosts({}, {HEARTBEAT: Cost(50.0), API_VERSIONS: Cost(50.0)})
    return manager_of(table, costs=costs)


def client_of(make_relay, quota_manager, limits=None):
    script = Script(make_relay, quota_manager, limits).connected()
    script.hold_decisions = True
    return script


def overdraw(quota_manager, quota_type, now_ms, times=1.5, client_id="etl"):
    """Another client has used so many times what the quota allows at one instant."""
    client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", client_id, now_ms)
    if quota_type is QuotaType.CONTROLLER_MUTATION:
        limit = quota_manager.buckets.limit(client_sensors.mutation)
        quota_manager.buckets.spend_permissively(
            client_sensors.mutation, times * quota_manager.buckets.burst(limit), now_ms
        )
        return
    sensors = quota_manager.request_sensors if quota_type is QuotaType.REQUEST else quota_manager.sensors
    sensor = {
        QuotaType.PRODUCE: client_sensors.produce,
        QuotaType.FETCH: client_sensors.fetch,
        QuotaType.REQUEST: client_sensors.request,
    }
    handle = sensor[quota_type]
    sensors.charge(handle, times * sensors.burst(sensors.limit(handle)), now_ms)


KINDS = {
    "produce": ({"PRODUCE": 100}, QuotaType.PRODUCE, produce(), {}),
    "produce without acks": ({"PRODUCE": 100}, QuotaType.PRODUCE, produce(acks=0), {}),
    "fetch that is paced": ({"FETCH": 100}, QuotaType.FETCH, fetch(max_bytes=9), {"withholds": False}),
    "fetch that is withheld": ({"FETCH": 100}, QuotaType.FETCH, fetch(max_bytes=9), {"withholds": True}),
    "request time": ({"REQUEST": 0.1}, QuotaType.REQUEST, heartbeat(), {}),
    "request time, delayed responses": ({"REQUEST": 0.1}, QuotaType.REQUEST, heartbeat(), {"delays": True}),
    "topics": ({"CONTROLLER_MUTATION": 1}, QuotaType.CONTROLLER_MUTATION, mutation(5), {}),
}


def went_on(script):
    """Whether the first request of the client went to the node, or is being decided about."""
    return bool(script.sent[Side.NODE] or script.asks)


@pytest.mark.rule("reconnect")
@pytest.mark.parametrize(("limits", "quota_type", "ask", "how"), KINDS.values(), ids=KINDS.keys())
def test_the_first_request_on_a_new_connection_waits_for_what_is_owed(make_relay, limits, quota_type, ask, how):
    quota_manager = quota_manager_of(**limits)
    overdraw(quota_manager, quota_type, NOW_MS)
    for _ in range(3):
        script = client_of(make_relay, quota_manager, RelayLimits(**how))
        script.client(ask, NOW_MS + 1)
        assert not went_on(script)
        [throttled] = script.throttles
        assert throttled.quota_type is quota_type
        most_ms = 1000 if quota_type is QuotaType.REQUEST else CAP_MS
        assert 0 < throttled.throttle_time_ms <= most_ms
        assert script.wake_at == NOW_MS + 1 + throttled.throttle_time_ms
        script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS + 2)))
    script = client_of(make_relay, quota_manager, RelayLimits(**how))
    script.client(ask, NOW_MS + 3)
    script.time(script.wake_at)
    assert went_on(script), "it waits once"


@pytest.mark.parametrize(("limits", "quota_type", "ask", "how"), KINDS.values(), ids=KINDS.keys())
def test_a_client_without_a_debt_does_not_wait(make_relay, limits, quota_type, ask, how):
    quota_manager = quota_manager_of(**limits)
    overdraw(quota_manager, quota_type, NOW_MS, times=1.0)
    script = client_of(make_relay, quota_manager, RelayLimits(**how))
    script.client(ask, NOW_MS + 1)
    assert went_on(script)


@pytest.mark.parametrize(("limits", "quota_type", "ask", "how"), KINDS.values(), ids=KINDS.keys())
def test_a_client_on_a_connection_that_another_used_before_waits_as_on_a_new_one(
    make_relay, limits, quota_type, ask, how
):
    quota_manager = quota_manager_of(**limits)
    overdraw(quota_manager, quota_type, NOW_MS)
    script = client_of(make_relay, quota_manager, RelayLimits(**how))
    other = heartbeat(7, client_id=b"other")
    assert script.client(other, NOW_MS + 1) == other
    script.node(heartbeaten(7), NOW_MS + 1)
    script.client(ask, NOW_MS + 1)
    assert bytes(script.sent[Side.NODE]) == other
    assert not script.asks


def test_a_quota_that_is_new_is_felt_at_once_on_a_connection_that_is_not(make_relay):
    """What was used before there was a quota counts, as at a broker; the request goes on, its response has the time."""
    quota_manager = quota_manager_of(PRODUCE=2**62)
    script = client_of(make_relay, quota_manager)
    script.client(produce(1, size=20_000), NOW_MS)
    script.node(produced(1), NOW_MS)
    quota_manager.replace(QuotaTable({Entity(client_id=DEFAULT): {QuotaType.PRODUCE: 100.0}}), NOW_MS + 1)
    assert script.client(produce(2), NOW_MS + 2)
    reported = script.node(produced(2), NOW_MS + 3)
    assert int.from_bytes(reported[-4:], "big") == CAP_MS - 1
    new = client_of(make_relay, quota_manager)
    assert new.client(produce(3), NOW_MS + 4) == b""


@pytest.mark.parametrize(("limits", "quota_type", "ask", "how"), KINDS.values(), ids=KINDS.keys())
def test_a_shadow_quota_has_no_client_wait(make_relay, limits, quota_type, ask, how):
    of_default = {QuotaType[name]: float(limit) for name, limit in limits.items()}
    quota_manager = manager_of({}, {Entity(client_id=DEFAULT): of_default})
    for _ in range(3):
        script = client_of(make_relay, quota_manager, RelayLimits(**how))
        script.client(ask, NOW_MS)
        assert went_on(script)
        assert not script.throttles


@pytest.mark.parametrize("ask", [heartbeat(), fetch(), mutation(5)], ids=["heartbeat", "fetch", "topics"])
def test_requests_under_another_quota_do_not_wait(make_relay, ask):
    quota_manager = quota_manager_of(PRODUCE=100)
    overdraw(quota_manager, QuotaType.PRODUCE, NOW_MS)
    script = client_of(make_relay, quota_manager)
    script.client(ask, NOW_MS + 1)
    assert went_on(script)


def test_of_two_quotas_the_longer_wait_holds_and_both_are_reported(make_relay):
    quota_manager = quota_manager_of(PRODUCE=100, REQUEST=0.1)
    overdraw(quota_manager, QuotaType.PRODUCE, NOW_MS)
    overdraw(quota_manager, QuotaType.REQUEST, NOW_MS)
    script = client_of(make_relay, quota_manager)
    script.client(produce(), NOW_MS + 1)
    times_ms = {throttled.quota_type: throttled.throttle_time_ms for throttled in script.throttles}
    assert times_ms.keys() == {QuotaType.PRODUCE, QuotaType.REQUEST}
    assert script.wake_at == NOW_MS + 1 + times_ms[QuotaType.PRODUCE] > NOW_MS + 1000
    assert times_ms[QuotaType.REQUEST] < times_ms[QuotaType.PRODUCE]


def test_topics_of_a_version_that_knows_the_error_are_refused_at_once(make_relay):
    quota_manager = quota_manager_of(CONTROLLER_MUTATION=1)
    overdraw(quota_manager, QuotaType.CONTROLLER_MUTATION, NOW_MS)
    script = client_of(make_relay, quota_manager)
    script.client(mutation(7), NOW_MS + 1)
    assert went_on(script)


@pytest.mark.parametrize("ask", [UNKNOWN, HANDSHAKE], ids=["the proxy responds", "out of place"])
def test_requests_that_cost_a_node_nothing_wait_too(make_relay, ask):
    quota_manager = quota_manager_of(REQUEST=0.1)
    overdraw(quota_manager, QuotaType.REQUEST, NOW_MS)
    script = client_of(make_relay, quota_manager)
    script.client(ask, NOW_MS + 1)
    assert (bytes(script.sent[Side.CLIENT]), went_on(script)) == (b"", False)
    script.time(script.wake_at)
    assert script.sent[Side.CLIENT] or went_on(script)


def test_a_fetch_that_gets_nothing_is_not_asked_for_again_on_a_new_connection(make_relay):
    """There is no debt, as the charge was taken back, but one window to wait: else nodes send data for nothing."""
    quota_manager = quota_manager_of(FETCH=100)
    limits = RelayLimits(withholds=True)
    script = client_of(make_relay, quota_manager, limits)
    script.client(fetch(1), NOW_MS)
    script.node(fetched(1, size=1500), NOW_MS)
    [throttled] = script.throttles
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(NOW_MS + 1)))
    script = client_of(make_relay, quota_manager, limits)
    assert script.client(fetch(2), NOW_MS + 2) == b""
    assert throttled.throttle_time_ms > 1000
    assert script.wake_at == NOW_MS + 1000
    assert script.time(script.wake_at)
    quota_manager.replace(QuotaTable({Entity(client_id=DEFAULT): {QuotaType.FETCH: 200.0}}), NOW_MS + 3)
    script = client_of(make_relay, quota_manager, limits)
    assert script.client(fetch(3), NOW_MS + 4), "another limit, another wait"


def test_a_client_that_hangs_up_after_each_produce_moves_one_request_per_cap_beyond_the_quota_at_most(make_relay):
    quota_manager, now_ms, moved = quota_manager_of(PRODUCE=1000), NOW_MS, 0
    while now_ms < NOW_MS + 660_000:
        script = client_of(make_relay, quota_manager)
        if not script.client(produce(1, size=20_000), now_ms):
            now_ms = script.wake_at
            script.time(now_ms)
        moved += 20_000
        script.node(produced(1), now_ms + 1)
        script.do(script.relay.on_lost(CloseReason.CLIENT_LOST, "", us(now_ms + 1)))
        now_ms += 2
    assert moved <= 1.1 * 660 * 1000
