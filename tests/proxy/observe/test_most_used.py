"""The quotas that are used most: which are chosen among very many, and what is said of each."""

from collections import deque

import pytest

from kafka_throttle.proxy.gate.gate_metrics import AddressUse
from kafka_throttle.proxy.observe import most_used
from kafka_throttle.proxy.observe.most_used import MostUsed
from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.fakes.clock import FakeClock
from tests.proxy.observe.page.shown import NODE, Cluster

MUTATIONS = QuotaKey(QuotaType.CONTROLLER_MUTATION)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def cluster(clock):
    return Cluster("main", clock)


def chosen(clock, clusters, addresses=(), most=5):
    used = MostUsed(clusters, lambda: addresses, clock, most)
    deque(used.read_on(), maxlen=0)
    return used


def test_those_with_the_highest_share_of_their_limit_come_first(clock, cluster):
    cluster.use("alice", "etl", 8_000_000)
    cluster.use("bob", "web", 45_000)
    cluster.use("bob", "idle", 0)
    used = chosen(clock, [cluster])
    rows = used.enforced()
    assert [(row.user, row.client_id, round(row.share, 2)) for row in rows] == [
        ("alice", "", 0.8),
        ("", "web", 0.5),
        ("", "idle", 0.0),
    ]
    assert (rows[1].entity, rows[1].layer, rows[1].limit) == (Entity(client_id=DEFAULT), "proxy.yaml", 9_000)
    assert (used.choice.enforced.count, used.choice.exceeded) == (3, 0)


def test_of_very_many_the_highest_are_chosen_and_all_are_counted(clock):
    cluster = Cluster("main", clock, capacity=4_000)
    for number in range(2_000):
        cluster.use("bob", f"client-{number}", 100 * number)
    used = chosen(clock, [cluster])
    assert [row.client_id for row in used.enforced()] == [f"client-{1999 - number}" for number in range(5)]
    assert (used.choice.enforced.count, used.choice.exceeded) == (2_000, 1_099)


def test_what_was_chosen_is_measured_anew_and_closed_sensors_are_left_out(clock, cluster):
    cluster.use("alice", "etl", 8_000_000)
    used = chosen(clock, [cluster])
    cluster.use("alice", "etl", 8_000_000)
    assert [round(row.share, 2) for row in used.enforced()] == [1.6]
    cluster.quota_manager.replace(QuotaTable(), clock.now_ms())
    assert used.enforced() == []


def test_addresses_are_among_them(clock, cluster):
    cluster.use("alice", "etl", 5_000_000)
    rows = chosen(clock, [cluster], [AddressUse("main", "10.0.0.1", 9.0, 10.0, 2)]).enforced()
    assert (rows[0].ip, rows[0].quota_type, rows[0].share) == ("10.0.0.1", QuotaType.CONNECTION, 0.9)


def test_of_a_token_bucket_the_share_is_what_is_missing(clock):
    quotas = {Entity("alice"): {MUTATIONS: Limit(1.0, "proxy.yaml")}}
    cluster = Cluster("main", clock, quotas)
    manager = cluster.quota_manager
    bucket = manager.bind("main", NODE, "alice", "etl", clock.now_ms()).mutation
    manager.buckets.spend_permissively(bucket, 3, clock.now_ms())
    [row] = chosen(clock, [cluster]).enforced()
    assert (row.node_id, row.rate) == (None, None)
    assert row.share == pytest.approx((row.burst - row.tokens) / row.burst)
    assert row.share > 0


def test_shadow_quotas_are_apart(clock, cluster):
    cluster.use("alice", "etl", 50_000, "shadow_fetch")
    used = chosen(clock, [cluster])
    [row] = used.shadows()
    assert (row.user, row.quota_type, row.limit) == ("alice", QuotaType.FETCH, 50)
    assert row.throttled_ms > 0
    assert used.choice.shadows.count == 1
    assert QuotaType.FETCH not in {row.quota_type for row in used.enforced()}


def test_a_sensor_that_is_shared_says_by_whom(clock):
    quotas = {Entity(client_id=DEFAULT): {QuotaKey(QuotaType.PRODUCE): Limit(9_000.0, "proxy.yaml")}}
    cluster = Cluster("main", clock, quotas, capacity=16)
    for number in range(40):
        cluster.use("bob", f"client-{number}", 100)
    rows = chosen(clock, [cluster], most=50).enforced()
    assert [row.shared_by for row in rows if row.shared_by] == [Entity(client_id=DEFAULT)]
    assert rows[0].shared_by


def test_a_throttled_client_is_marked(clock, cluster):
    cluster.throttle("alice", "etl")
    assert chosen(clock, [cluster]).enforced()[0].throttled


def test_of_very_many_a_part_is_looked_at_in_one_go(clock, monkeypatch):
    monkeypatch.setattr(most_used, "MOST_READ", 1_000)
    cluster = Cluster("main", clock, capacity=4_000)
    for number in range(2_500):
        cluster.use("bob", f"client-{number}", 100 * number % 77_777)
    used = chosen(clock, [cluster])
    assert (used.choice.looked_at, used.choice.is_whole) == (1_000, False)
    assert len(used.enforced()) == 5
    for _ in range(2):
        deque(used.read_on(), maxlen=0)
    assert (used.choice.looked_at, used.choice.is_whole) == (2_500, True)
    best = sorted((100 * number % 77_777 for number in range(2_500)), reverse=True)[:5]
    assert [round(row.share * 9_000 * 10) for row in used.enforced()] == best
    deque(used.read_on(), maxlen=0)
    assert used.choice.is_whole
