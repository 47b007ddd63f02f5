"""The memory of the last throttles: bounded, and not filled by one client."""

import pytest

from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.observe.last_throttles import MAX_CLIENTS, LastThrottles
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock

PRODUCE = QuotaType.PRODUCE


@pytest.fixture
def quota_manager():
    return ClientQuotaManager(Sensors(64), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 100.0}}))


@pytest.fixture
def throttles(quota_manager):
    return LastThrottles(quota_manager, FakeClock(epoch_ms=7000))


def note(throttles, quota_manager, client_id=b"etl", quota_type=PRODUCE, throttle_ms=500, ip="10.0.0.1", node_id=1):
    facts = ConnectionFacts(ListenerFacts("main", None, quota_manager, None), node_id, "alice")
    throttles.note(ip, Throttled(quota_type, throttle_ms, client_id), facts, 0)


def test_a_client_that_is_throttled_all_the_time_takes_one_place(quota_manager, throttles):
    note(throttles, quota_manager, b"other")
    for throttle_ms in range(1, 2 * MAX_CLIENTS):
        note(throttles, quota_manager, throttle_ms=throttle_ms)
    [etl] = throttles.of_sensor(PRODUCE, SensorTags("", "etl"), 10)
    assert (etl.throttles, etl.throttle_time_ms, etl.at_epoch_ms) == (2 * MAX_CLIENTS - 1, 2 * MAX_CLIENTS - 1, 7000)
    assert len(throttles.of_sensor(PRODUCE, SensorTags("", "other"), 10)) == 1


def test_the_client_that_was_throttled_longest_ago_is_forgotten_first(quota_manager, throttles):
    for number in range(MAX_CLIENTS + 1):
        note(throttles, quota_manager, b"c%d" % number)
    assert throttles.of_sensor(PRODUCE, SensorTags("", "c0"), 10) == []
    assert len(throttles.of_sensor(PRODUCE, SensorTags("", f"c{MAX_CLIENTS}"), 10)) == 1


def test_each_address_node_and_quota_type_stands_by_itself_the_latest_first(quota_manager, throttles):
    note(throttles, quota_manager)
    note(throttles, quota_manager, ip="10.0.0.2")
    note(throttles, quota_manager, node_id=2)
    note(throttles, quota_manager, quota_type=None)
    reported = throttles.of_sensor(PRODUCE, SensorTags("", "etl"), 2)
    assert [(past.ip, past.node_id) for past in reported] == [("10.0.0.1", 2), ("10.0.0.2", 1)]
    assert [past.quota_type for past in throttles.by_nodes("alice", "etl", 10)] == [None]
    assert throttles.by_nodes("bob", "etl", 10) == []


def test_a_throttle_has_the_measurement_of_its_moment(quota_manager, throttles):
    sensor = quota_manager.bind("main", 1, "alice", "etl", 0).produce
    quota_manager.sensors.charge(sensor, 800, 0)
    quota_manager.sensors.charge(sensor, 900, 0)
    note(throttles, quota_manager)
    [past] = throttles.of_sensor(PRODUCE, SensorTags("", "etl"), 10)
    assert (past.rate, past.limit, past.entity) == (170.0, 100.0, Entity(client_id=DEFAULT))


def test_a_sensor_that_is_gone_leaves_the_limit_to_tell(quota_manager, throttles):
    note(throttles, quota_manager)
    [past] = throttles.of_sensor(PRODUCE, SensorTags("", "etl"), 10)
    assert (past.rate, past.limit) == (None, 100.0)
