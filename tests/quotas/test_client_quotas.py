"""Which sensor measures a client, and what a change of quotas does to sensors in use."""

import pytest

from kafka_throttle.quotas.client_quotas import IDLE_MS, WHOLE_CLUSTER, ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType, Scope
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

PRODUCE, FETCH, MUTATION = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.CONTROLLER_MUTATION
REQUEST = QuotaType.REQUEST
ALICE = Entity("alice")
INT32_MAX = 2**31 - 1


def table(limit: float, quota_type: QuotaType = PRODUCE, entity: Entity | None = None) -> QuotaTable:
    return QuotaTable({entity or Entity(client_id=DEFAULT): {quota_type: limit}})


def quota_manager(capacity: int = 64, quotas: QuotaTable | None = None, samples: int = 11) -> ClientQuotaManager:
    return ClientQuotaManager(
        Sensors(capacity, samples, max_throttle_ms=INT32_MAX), table(100.0) if quotas is None else quotas
    )


@pytest.mark.rule("default")
def test_each_node_and_each_client_id_of_a_default_has_a_sensor_of_its_own():
    made = quota_manager()
    one = made.bind("main", 1, "u", "c", 0).produce
    assert one == made.bind("main", 1, "other", "c", 0).produce
    assert one not in (made.bind("main", 2, "u", "c", 0).produce, made.bind("main", 1, "u", "d", 0).produce)
    assert made.bind("main", 1, "u", "c", 0).fetch is None


def test_no_client_is_measured_before_the_first_quota():
    made = quota_manager(quotas=QuotaTable())
    assert made.bind("main", 1, "u", "c", 0).produce is None
    made.replace(table(100.0), 0)
    made.replace(QuotaTable(), 0)
    assert made.bind("main", 1, "u", "c", 0).produce is not None


def test_a_fetch_may_ask_for_what_an_idle_client_may_use():
    for limit, samples, expected in ((2000.0, 11, 20_000), (2000.0, 3, 4000), (1e12, 11, INT32_MAX), (2000.0, 1, 0)):
        made = quota_manager(quotas=table(limit, FETCH), samples=samples)
        assert made.bind("main", 1, "u", "c", 0).fetch_ceiling_bytes == expected
    assert quota_manager().bind("main", 1, "u", "c", 0).fetch_ceiling_bytes == INT32_MAX


def test_a_client_without_a_quota_has_no_ceiling_even_with_a_single_window():
    made = quota_manager(quotas=table(2000.0, FETCH, Entity("alice")), samples=1)
    assert made.bind("main", 1, "u", "c", 0).fetch_ceiling_bytes == INT32_MAX


@pytest.mark.rule("live")
def test_a_change_reaches_living_sensors_and_keeps_their_use():
    made = quota_manager()
    before = made.bind("main", 1, "u", "c", 0)
    made.sensors.charge(before.produce, 1000, 0)
    made.replace(table(50.0), 0)
    assert made.version == before.version + 1
    assert made.bind("main", 1, "u", "c", 0).produce == before.produce
    assert made.sensors.charge(before.produce, 0, 0) == 10_000


def test_a_more_specific_quota_starts_empty_and_its_end_brings_the_old_sensor_back():
    made = quota_manager()
    old = made.bind("main", 1, "u", "c", 0).produce
    made.replace(QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 100.0}, Entity("u"): {PRODUCE: 7.0}}), 0)
    assert made.bind("main", 1, "u", "c", 0).produce != old
    made.replace(table(100.0), 0)
    assert made.bind("main", 1, "u", "c", 0).produce == old


def test_sensors_idle_for_more_than_an_hour_are_closed():
    made = quota_manager()
    made.bind("main", 1, "u", "c", 0)
    kept = made.bind("main", 1, "u", "d", 0)
    made.sensors.charge(kept.produce, 1, 1)
    made.expire(IDLE_MS)
    assert (made.sensors.used, made.version) == (2, kept.version)
    made.expire(IDLE_MS + 1)
    assert (made.sensors.used, made.version) == (1, kept.version + 1)
    assert [key.tags.client_id for key, _ in made.readings(0)] == ["d"]


def test_a_full_table_has_newcomers_share_a_sensor_and_keeps_their_quota():
    made = quota_manager(capacity=16)
    own = {made.bind("main", 1, "u", f"c{i}", 0).produce for i in range(15)}
    shared = {made.bind("main", 1, "u", f"new{i}", 0).produce for i in range(20)}
    assert (len(own), len(shared), made.overflowed) == (15, 1, 20)
    (handle,) = shared
    assert made.sensors.charge(handle, 1500, 0) == 5000
    made.replace(table(1000.0), 0)
    assert made.sensors.charge(handle, 0, 0) == 0
    made.replace(QuotaTable({Entity("x"): {PRODUCE: 1.0}}), 0)
    assert made.sensors.used == 15


def test_an_exhausted_reserve_takes_the_row_that_was_idle_longest():
    made = quota_manager(capacity=16)
    for i in range(15):
        made.bind("main", 1, "u", f"c{i}", i)
    version = made.bind("main", 1, "u", "new", 20).version
    other_node = made.bind("main", 2, "u", "new", 30)
    assert other_node.produce is not None
    assert other_node.version == made.version == version + 1
    assert "c0" not in {key.tags.client_id for key, _ in made.readings(30)}


def test_a_large_table_makes_room_for_several_at_once():
    quota_manager = ClientQuotaManager(
        Sensors(256), QuotaTable({Entity(client_id=f"c{i}"): {QuotaType.PRODUCE: 100.0} for i in range(300)})
    )
    for i in range(300):
        quota_manager.bind("main", 1, "u", f"c{i}", i)
    assert quota_manager.sensors.used == 256
    assert quota_manager.version == 1 + (300 - 256) / 4
    assert {key.tags.client_id for key, _ in quota_manager.readings(300)} == {f"c{i}" for i in range(44, 300)}


def test_a_binding_never_holds_a_sensor_that_was_closed_for_its_other_half():
    limits = {QuotaType.PRODUCE: 100.0, QuotaType.FETCH: 100.0}
    quota_manager = ClientQuotaManager(Sensors(16), QuotaTable({Entity(client_id=f"c{i}"): limits for i in range(12)}))
    for now_ms in range(2000):
        client_sensors = quota_manager.bind("main", 1, "ANONYMOUS", f"c{now_ms * 7 % 12}", now_ms)
        assert client_sensors.version == quota_manager.version
        quota_manager.sensors.charge(client_sensors.produce, 1, now_ms)
        quota_manager.sensors.charge(client_sensors.fetch, 1, now_ms)


def test_without_room_sensors_whose_window_is_empty_make_place():
    quota_manager = ClientQuotaManager(Sensors(32), QuotaTable({Entity(client_id=DEFAULT): {QuotaType.PRODUCE: 100.0}}))
    for i in range(40):
        quota_manager.bind("main", 1, "ANONYMOUS", f"c{i}", 0)
    assert quota_manager.overflowed > 0
    used = quota_manager.sensors.used
    quota_manager.expire(11_000)
    assert quota_manager.sensors.used == used
    quota_manager.expire(11_001)
    assert quota_manager.sensors.used == 0


def shadowed(capacity: int = 64, enforced: QuotaTable | None = None) -> ClientQuotaManager:
    return ClientQuotaManager(Sensors(capacity), enforced or QuotaTable(), table(100.0))


def test_shadows_take_no_row_from_quotas_in_force():
    made, plain = shadowed(16, table(100.0)), quota_manager(16)
    for i in range(40):
        both = made.bind("main", 1, "u", f"c{i}", 0)
        assert both.produce == plain.bind("main", 1, "u", f"c{i}", 0).produce
        assert both.shadow_produce is not None
    assert (made.overflowed, made.sensors.used) == (plain.overflowed, plain.sensors.used)
    assert made.shadow_overflowed == made.overflowed > 0


def test_a_shadow_takes_no_row_from_another_as_all_clients_would_be_bound_anew():
    limits = {Entity(f"u{i}"): {PRODUCE: 100.0} for i in range(20)}
    made = ClientQuotaManager(Sensors(16), QuotaTable(), QuotaTable(limits))
    version = made.version
    bound = [made.bind("main", 1, f"u{i}", "c", 0).shadow_produce for i in range(20)]
    assert None not in bound[:16]
    assert bound[16:] == [None] * 4
    assert (made.version, made.shadow_overflowed) == (version, 5)


def test_what_shadows_would_have_throttled_is_counted_beyond_the_life_of_their_sensors():
    made = shadowed()
    sensor = made.bind("main", 1, "u", "c", 0).shadow_produce
    made.shadow_sensors.charge(sensor, 1500, 0)
    assert made.shadow_throttles() == {("main", 1, PRODUCE): (1, 5000)}
    made.replace(QuotaTable(), 0)
    assert made.bind("main", 1, "u", "c", 0).shadow_produce is None
    assert made.shadow_throttles() == {("main", 1, PRODUCE): (1, 5000)}
    made.replace(QuotaTable(), 0, table(100.0))
    made.shadow_sensors.charge(made.bind("main", 1, "u", "c", 0).shadow_produce, 1500, 0)
    assert made.shadow_throttles() == {("main", 1, PRODUCE): (2, 10_000)}
    assert made.sensors.used == 0


def test_caps_hold_for_shadows_too():
    made = shadowed()
    made.set_caps(2000, 3000)
    sensor = made.bind("main", 1, "u", "c", 0).shadow_produce
    assert made.shadow_sensors.charge(sensor, 1500, 0) == made.sensors.max_throttle_ms == 2000
    assert made.sensors.capped == 0


def test_only_the_table_that_is_full_has_idle_sensors_make_place_early():
    made = ClientQuotaManager(Sensors(16), table(100.0), table(100.0, entity=Entity(client_id="c0")))
    for i in range(15):
        made.bind("main", 1, "u", f"c{i}", 0)
    assert (made.sensors.used, made.shadow_sensors.used) == (15, 1)
    made.expire(12_000)
    assert (made.sensors.used, made.shadow_sensors.used) == (0, 1)


def test_all_nodes_share_the_bucket_of_controller_mutations():
    made = quota_manager(quotas=table(10.0, MUTATION))
    one, two = made.bind("main", 1, "u", "c", 0), made.bind("main", 2, "u", "c", 0)
    assert one.limits_mutations
    assert one.mutation == two.mutation is not None
    assert one.mutation != made.bind("main", 1, "u", "d", 0).mutation
    assert {key.node_id for key, _ in made.bucket_readings(0)} == {WHOLE_CLUSTER}
    assert not list(made.readings(0))
    assert one.produce is one.shadow_mutation is None


def of_cluster(quota_type=PRODUCE, entity=ALICE):
    return QuotaTable({entity: {quota_type: 100.0}}, {entity})


@pytest.mark.rule("scope")
def test_all_nodes_share_a_sensor_of_a_quota_with_the_scope_cluster():
    for quota_type in (PRODUCE, FETCH, REQUEST):
        made = quota_manager(quotas=of_cluster(quota_type))
        one, two = made.bind("main", 1, "alice", "c", 0), made.bind("main", 2, "alice", "c", 0)
        handles = [getattr(sensors, quota_type.name.lower()) for sensors in (one, two)]
        assert handles[0] == handles[1] is not None
        assert [key.node_id for key, _ in made.readings(0)] == [WHOLE_CLUSTER]
    assert one.costs is not two.costs


def test_the_scope_is_that_of_the_quota_that_binds():
    quotas = QuotaTable({Entity(DEFAULT): {PRODUCE: 9.0, MUTATION: 1.0}, ALICE: {PRODUCE: 5.0}}, {Entity(DEFAULT)})
    made = ClientQuotaManager(Sensors(64), quotas, QuotaTable({ALICE: {FETCH: 1.0}}, {ALICE}))
    for user, node_ids in (("alice", {1, 2}), ("bob", {WHOLE_CLUSTER})):
        for node_id in (1, 2):
            made.bind("main", node_id, user, "c", 0)
        found = {key.node_id for key, _ in made.readings(0) if key.tags.user == user and not key.shadow}
        assert found == node_ids
    assert {key.node_id for key, _ in made.readings(0) if key.shadow} == {WHOLE_CLUSTER}
    assert [quotas.scope_of(t, ALICE) for t in (PRODUCE, MUTATION)] == [Scope.NODE, Scope.CLUSTER]


def test_a_changed_scope_binds_clients_anew_and_closes_the_old_sensors_when_their_window_is_empty():
    made = quota_manager(quotas=table(100.0, entity=ALICE))
    before = [made.bind("main", node_id, "alice", "c", 0) for node_id in (1, 2)]
    others = made.bind("main", 1, "bob", "c", 0)
    made.sensors.charge(before[0].produce, 10, 0)
    made.replace(of_cluster(), 0, changed=[ALICE])
    assert not any(map(made.renews, before))
    assert made.renews(others)
    shared = made.bind("main", 2, "alice", "c", 0).produce
    assert shared not in (before[0].produce, before[1].produce)
    made.expire(11_000)
    assert made.sensors.used == 4
    made.sensors.charge(shared, 1, 11_001)
    made.expire(11_001)
    assert [key.node_id for key, _ in made.readings(0) if key.tags.user == "alice"] == [WHOLE_CLUSTER]


def changed_scope(made, scope, now_ms):
    quotas = of_cluster() if scope is Scope.CLUSTER else table(100.0, entity=ALICE)
    made.replace(quotas, now_ms, changed=[ALICE])


@pytest.mark.rule("scope")
def test_a_change_to_one_limit_over_all_nodes_adds_up_what_was_used_at_each():
    made = quota_manager(quotas=table(100.0, entity=ALICE))
    for node_id, used in ((1, 600), (2, 300)):
        made.sensors.charge(made.bind("main", node_id, "alice", "c", 0).produce, used, 0)
    changed_scope(made, Scope.CLUSTER, 500)
    shared = made.bind("main", 3, "alice", "c", 500).produce
    assert (sum(made.sensors.history(shared, 500)), made.sensors.total(shared)) == (900.0, 0.0)
    assert made.sensors.charge(shared, 90, 500) == 0
    assert made.sensors.charge(shared, 60, 500) > 0
    made.expire(11_501)
    assert {key.node_id for key in made.sensor_keys} == {WHOLE_CLUSTER}


def test_a_change_to_a_limit_at_each_node_lets_none_begin_anew():
    made = quota_manager(quotas=of_cluster())
    made.sensors.charge(made.bind("main", 1, "alice", "c", 0).produce, 1000, 0)
    changed_scope(made, Scope.NODE, 500)
    at_nodes = [made.bind("main", node_id, "alice", "c", 500).produce for node_id in (1, 2)]
    assert [made.sensors.charge(handle, 1, 500) > 0 for handle in at_nodes] == [True, True]
    made.expire(11_501)
    assert {key.node_id for key in made.sensor_keys} == {1, 2}


def test_a_debt_outlives_a_change_of_scope():
    made = ClientQuotaManager(Sensors(64, max_throttle_ms=1000), table(100.0, entity=ALICE))
    made.sensors.charge(made.bind("main", 1, "alice", "c", 0).produce, 4000, 0)
    changed_scope(made, Scope.CLUSTER, 500)
    shared = made.bind("main", 1, "alice", "c", 500).produce
    made.sensors.charge(shared, 0, 500)
    assert made.sensors.reading(shared, 500).debt_ms > 20_000


def test_newcomers_of_a_default_with_the_scope_cluster_share_one_sensor_for_all_nodes():
    made = quota_manager(4, of_cluster(entity=Entity(DEFAULT)))
    for i in range(3):
        made.bind("main", 1, f"u{i}", "c", 0)
    shared = [made.bind("main", node_id, f"v{node_id}", "c", 0).produce for node_id in (1, 2)]
    assert shared[0] == shared[1]
    assert len(made.sensor_keys) == 4


def test_a_bucket_keeps_its_tokens_when_its_limit_changes_or_is_removed():
    made = quota_manager(quotas=table(10.0, MUTATION))
    bucket = made.bind("main", 1, "u", "c", 0).mutation
    made.buckets.spend_permissively(bucket, 150, 0)
    made.replace(table(20.0, MUTATION), 0)
    client_sensors = made.bind("main", 1, "u", "c", 0)
    assert (client_sensors.mutation, made.buckets.tokens(bucket, 1000)) == (bucket, -20.0)
    made.replace(QuotaTable(), 1000)
    client_sensors = made.bind("main", 1, "u", "c", 1000)
    assert (client_sensors.mutation, client_sensors.limits_mutations) == (bucket, False)


def test_shadows_of_controller_mutations_have_buckets_of_their_own():
    made = ClientQuotaManager(Sensors(64), table(10.0, MUTATION), table(5.0, MUTATION))
    client_sensors = made.bind("main", 1, "u", "c", 0)
    assert made.buckets.spend_permissively(client_sensors.mutation, 110, 0) is None
    assert made.shadow_buckets.spend_permissively(client_sensors.shadow_mutation, 110, 0) == 11_000
    assert made.shadow_throttles() == {("main", WHOLE_CLUSTER, MUTATION): (1, 11_000)}
    made.set_caps(2000, 3000)
    assert made.shadow_buckets.max_throttle_ms == made.buckets.max_throttle_ms == 2000


def test_a_full_table_of_buckets_falls_to_one_that_newcomers_share_and_full_ones_make_place():
    made = quota_manager(16, table(10.0, MUTATION))
    all_client_sensors = [made.bind("main", 1, "u", f"c{i}", 0) for i in range(20)]
    assert all_client_sensors[-1].mutation == all_client_sensors[-2].mutation != all_client_sensors[0].mutation
    assert (made.buckets.used, made.overflowed, made.sensors.used) == (16, 5, 0)
    made.buckets.spend_permissively(all_client_sensors[0].mutation, 200, 0)
    made.expire(12_000)
    assert [reading.total for _, reading in made.bucket_readings(12_000)] == [200]
    made.expire(IDLE_MS + 1)
    assert made.buckets.used == 0


def test_of_very_many_shadow_sensors_each_call_reads_a_part_and_none_is_lost(monkeypatch):
    made = ClientQuotaManager(Sensors(4_000), QuotaTable(), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 100}}))
    for number in range(3_500):
        made.shadow_sensors.charge(made.bind("main", 1, "u", f"c{number}", 0).shadow_produce, 1500, 0)
    sums = [made.shadow_throttles()["main", 1, PRODUCE] for _ in range(5)]
    assert [throttles for throttles, _ in sums] == [1_000, 2_000, 3_000, 3_500, 3_500]
    for number in range(3_500):
        made.shadow_sensors.charge(made.bind("main", 1, "u", f"c{number}", 0).shadow_produce, 1500, 0)
    for _ in range(4):
        made.expire(0)
    assert made.shadow_throttles()["main", 1, PRODUCE].throttles == 7_000
