"""A change of a few quotas comes to the same as putting all of them in force anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.client_quotas import KEYS_PER_STEP, ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

PRODUCE, FETCH, REQUEST = QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST
MUTATION = QuotaType.CONTROLLER_MUTATION
USERS, CLIENT_IDS, NODES = ("u", "v"), ("c", "d", ""), (1, 2)
NAMED = st.sampled_from(["u", "v", DEFAULT, None]), st.sampled_from(["c", "d", DEFAULT, None])
ENTITIES = st.one_of(
    st.tuples(*NAMED).filter(any).map(lambda names: Entity(*names)),
    st.just(Entity(ip="10.0.0.1")),
)
LIMITS = st.dictionaries(st.sampled_from([PRODUCE, FETCH, REQUEST, MUTATION]), st.integers(1, 3).map(float), max_size=2)


def _of_kind(entity, limits):
    return {QuotaType.CONNECTION: 1.0} if entity.ip is not None and limits else limits


CHANGES = st.dictionaries(ENTITIES, LIMITS, max_size=3).map(
    lambda changes: {entity: _of_kind(entity, limits) for entity, limits in changes.items()}
)
CLIENTS = st.tuples(st.sampled_from(NODES), st.sampled_from(USERS), st.sampled_from(CLIENT_IDS))
STEPS = st.lists(st.one_of(st.tuples(CHANGES, CHANGES), CLIENTS, st.just("an hour")), max_size=12)


class Both:
    """The same quotas and clients, with a table that is changed, and with one that is made anew each time."""

    def __init__(self, capacity):
        self.quotas, self.shadows = {}, {}
        self.plain, self.changed = (ClientQuotaManager(Sensors(capacity), QuotaTable()) for _ in range(2))
        self.now_ms = 0
        self.given = []

    def change(self, quotas, shadows):
        self.quotas = {e: limits for e, limits in {**self.quotas, **quotas}.items() if limits}
        self.shadows = {e: limits for e, limits in {**self.shadows, **shadows}.items() if limits}
        self.plain.replace(QuotaTable(self.quotas), self.now_ms, QuotaTable(self.shadows))
        tables = self.changed.table.changed(quotas), self.changed.shadow.changed(shadows)
        self.changed.replace(tables[0], self.now_ms, tables[1], quotas.keys() | shadows.keys())

    def bind(self, node_id, user, client_id):
        who = ("main", node_id, user, client_id)
        self.plain.bind(*who, self.now_ms)
        self.given.append((who, self.changed.bind(*who, self.now_ms)))

    def pass_time(self):
        self.now_ms += 4_000_000
        for quota_manager in (self.plain, self.changed):
            quota_manager.expire(self.now_ms)

    def take(self, step):
        if step == "an hour":
            self.pass_time()
        elif len(step) == 2:
            self.change(*step)
        else:
            self.bind(*step)

    def check_tables(self):
        for table, plain in ((self.changed.table, self.plain.table), (self.changed.shadow, self.plain.shadow)):
            assert table == plain
            for quota_type in (PRODUCE, FETCH, REQUEST, MUTATION):
                for user in USERS:
                    for client_id in CLIENT_IDS:
                        who = quota_type, user, client_id
                        found, expected = table.tags_and_limit(*who), plain.tags_and_limit(*who)
                        assert found[1:] == expected[1:]
                        assert found == expected or (table is self.changed.shadow and found.entity is None)
        assert self.changed.table.measures_as(self.plain.table)

    def check_sensors(self):
        assert _limits(self.changed, self.now_ms) == _limits(self.plain, self.now_ms)

    def check_client_sensors(self):
        """What holds on is what would be made anew."""
        quota_manager = self.changed
        for who, client_sensors in self.given:
            if quota_manager.renews(client_sensors):
                anew = quota_manager._make_client_sensors(*who, self.now_ms)
                assert client_sensors == anew, who


def _limits(quota_manager, now_ms):
    readings = [*quota_manager.readings(now_ms), *quota_manager.bucket_readings(now_ms)]
    return {key: reading.limit for key, reading in readings}


@given(STEPS)
def test_limits_sensors_and_bindings_are_those_of_a_table_made_anew(steps):
    both = Both(capacity=512)
    for step in steps:
        both.take(step)
        both.check_tables()
        both.check_sensors()
        both.check_client_sensors()


@given(STEPS)
def test_a_binding_that_holds_is_right_where_tables_are_full(steps):
    both = Both(capacity=3)
    for step in steps:
        both.take(step)
        before = both.changed.version
        for who, client_sensors in both.given:
            if both.changed.renews(client_sensors):
                handles = (client_sensors.produce, client_sensors.fetch)
                for handle in handles:
                    assert handle is None or both.changed.sensors.limit(handle) == _limit_of(both.changed, handle)
                assert who[2:] == (client_sensors.user, client_sensors.client_id)
        assert both.changed.version == before


def _limit_of(quota_manager, handle):
    [key] = [
        key
        for key, found in quota_manager._handles.items()
        if found == handle and key.quota_type in (PRODUCE, FETCH) and not key.shadow
    ]
    return quota_manager._limit(key)


@pytest.mark.pure
def test_a_change_of_one_entity_looks_at_its_own_sensors_only():
    quota_manager = ClientQuotaManager(
        Sensors(30_000), QuotaTable({Entity(client_id=f"c{i}"): {PRODUCE: 1.0} for i in range(20_000)})
    )
    all_client_sensors = [quota_manager.bind("main", 1, "u", f"c{i}", 0) for i in range(20_000)]
    looked_at = []
    quota_manager._adjust = lambda key, now_ms: looked_at.append(key)
    entity = Entity(client_id="c5")
    quota_manager.replace(quota_manager.table.changed({entity: {PRODUCE: 2.0}}), 0, changed=[entity])
    assert len(looked_at) < 50
    assert [i for i, client_sensors in enumerate(all_client_sensors) if not quota_manager.renews(client_sensors)] == [5]


def test_a_change_of_everything_comes_in_steps():
    quota_manager = ClientQuotaManager(Sensors(30_000), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 1.0}}))
    for i in range(20_000):
        quota_manager.bind("main", 1, "u", f"c{i}", 0)
    steps = quota_manager.replacing(QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 2.0}}), 0)
    assert sum(1 for _ in steps) == 20_000 / KEYS_PER_STEP
    assert {reading.limit for _, reading in quota_manager.readings(0)} == {2.0}


def test_with_a_full_table_only_clients_whose_sensors_were_closed_ask_again():
    names = {Entity(client_id=f"c{i}"): {PRODUCE: 100.0} for i in range(1300)}
    quota_manager = ClientQuotaManager(Sensors(1024), QuotaTable(names))
    all_client_sensors = [quota_manager.bind("main", 1, "u", f"c{i}", i) for i in range(1024)]
    quota_manager.bind("main", 1, "u", "c1024", 1024)
    stale = [i for i, client_sensors in enumerate(all_client_sensors) if not quota_manager.renews(client_sensors)]
    assert stale == list(range(8))
    assert quota_manager.sensors.used == 1024 - 8 + 1


def test_a_client_that_shares_a_sensor_is_bound_again_when_there_is_room_and_not_before():
    quota_manager = ClientQuotaManager(Sensors(16), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 100.0}}))
    first, *_, shared = [quota_manager.bind("main", 1, "u", f"c{i}", 0) for i in range(20)]
    quota_manager.replace(
        quota_manager.table.changed({Entity(client_id="x"): {PRODUCE: 1.0}}), 0, changed=[Entity(client_id="x")]
    )
    assert quota_manager.renews(shared)
    quota_manager.sensors.charge(shared.produce, 1.0, 11_001)
    quota_manager.expire(11_002)
    assert not quota_manager.renews(shared)
    assert not quota_manager.renews(first)
    assert quota_manager.bind("main", 1, "u", "c19", 11_002).crowded == ()


def test_very_many_changes_are_forgotten_and_clients_that_were_away_are_bound_again():
    quota_manager = ClientQuotaManager(Sensors(64), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 1.0}}))
    away, here = quota_manager.bind("main", 1, "u", "a", 0), quota_manager.bind("main", 1, "u", "b", 0)
    for i in range(3):
        entities = {Entity(client_id=f"x{i}-{k}"): {PRODUCE: 1.0} for k in range(9_000)}
        quota_manager.replace(quota_manager.table.changed(entities), 0, changed=entities)
        assert quota_manager.renews(here)
    assert not quota_manager.renews(away)
    assert len(quota_manager._touched) + len(quota_manager._touched_before) <= 20_000


def test_a_client_that_is_bound_amid_a_change_has_the_new_limit_already():
    quota_manager = ClientQuotaManager(
        Sensors(4 * KEYS_PER_STEP), QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 1.0}})
    )
    all_client_sensors = [quota_manager.bind("main", 1, "u", f"c{i}", 0) for i in range(3 * KEYS_PER_STEP)]
    next(quota_manager.replacing(QuotaTable({Entity(client_id=DEFAULT): {PRODUCE: 2.0}}), 0))
    assert not quota_manager.renews(all_client_sensors[-1])
    assert quota_manager.sensors.limit(all_client_sensors[-1].produce) == 1.0
    assert (
        quota_manager.sensors.limit(quota_manager.bind("main", 1, "u", f"c{3 * KEYS_PER_STEP - 1}", 0).produce) == 2.0
    )


def test_a_quota_for_a_very_long_client_id_counts_though_it_was_measured_under_another_name():
    quota_manager = ClientQuotaManager(Sensors(16), QuotaTable({Entity(client_id="c"): {PRODUCE: 1.0}}))
    before = quota_manager.bind("main", 1, "u", "xxx… sha256 0", 0)
    entity = Entity(client_id="x" * 2000)
    quota_manager.replace(quota_manager.table.changed({entity: {PRODUCE: 5.0}}), 0, changed=[entity])
    assert not quota_manager.renews(before)
