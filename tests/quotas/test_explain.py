"""The rule that binds a client, the rules that have lower precedence and why, and the clients that share it."""

from itertools import chain, combinations

import pytest

from kafka_throttle.quotas.changes import Limit, Tables, tables_of
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope, SensorTags
from kafka_throttle.quotas.explain import Client, Precedence, always_overridden_by, explain, level_of
from kafka_throttle.quotas.quota_table import QuotaTable

PRODUCE, SHADOW_PRODUCE = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.PRODUCE, shadow=True)
EIGHT = [
    Entity("alice", "etl"),
    Entity("alice", DEFAULT),
    Entity("alice"),
    Entity(DEFAULT, "etl"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(client_id="etl"),
    Entity(client_id=DEFAULT),
]
SUBSETS = list(chain.from_iterable(combinations(EIGHT, count) for count in range(9)))
CLIENTS = [Client(user, client_id) for user in ("alice", "bob") for client_id in ("etl", "web", "")]


def quotas_of(*entities, key=PRODUCE):
    return {entity: {key: Limit(1000.0 + level_of(entity), "proxy.yaml")} for entity in entities}


def explained(quotas, client, key=PRODUCE):
    [found] = [one for one in explain(quotas, tables_of(quotas), client) if one.key == key]
    return found


def test_the_levels_are_kafkas():
    assert [level_of(entity) for entity in EIGHT] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [level_of(Entity(ip="10.0.0.1")), level_of(Entity(ip=DEFAULT))] == [1, 2]


@pytest.mark.parametrize("key", [PRODUCE, SHADOW_PRODUCE])
def test_the_rule_is_the_tables_and_every_other_one_that_covers_the_client_is_overridden_by_it(key):
    for entities in SUBSETS:
        quotas = quotas_of(*entities, key=key)
        table = tables_of(quotas)[key.shadow]
        for client in CLIENTS:
            covering = {e for e in entities if covers(e, client)}
            if key.shadow and not entities:
                continue
            found = explained(quotas, client, key)
            standing = table.tags_and_limit(PRODUCE.quota_type, client.user, client.client_id)
            assert (found.rule and found.rule.entity) == standing.entity
            assert {overridden.rule.entity for overridden in found.overridden} == covering - {standing.entity}
            if found.tags is not None:
                assert found.tags == standing.tags
            for overridden in found.overridden:
                by_level = found.rule is not None and found.rule.level < overridden.rule.level
                assert by_level == overridden.why.startswith("level")
                assert by_level or client.client_id == ""


def covers(entity, client):
    users = (client.user, DEFAULT, None)
    client_ids = (client.client_id or DEFAULT, DEFAULT, None)
    return entity.user in users and entity.client_id in client_ids


def test_the_entity_that_always_has_precedence_is_found():
    """Compared with the rules of all possible clients: of a named user and another, with and without client-ids."""
    for entities in SUBSETS:
        table = QuotaTable({entity: {PRODUCE.quota_type: 1.0} for entity in entities})
        bound = [(c, table.tags_and_limit(PRODUCE.quota_type, c.user, c.client_id).entity) for c in CLIENTS]
        for entity in entities:
            binds = [client.client_id for client, binding in bound if binding == entity]
            first = always_overridden_by(entity, entities)
            if not binds:
                assert first is not None
                assert (entity.client_id is None) == first.but_for_empty
            elif not any(binds):
                assert first is not None
                assert first.but_for_empty
            else:
                assert first is None


def test_a_quota_of_a_client_id_beside_one_of_all_users_binds_no_client():
    others = [Entity("alice"), Entity(DEFAULT)]
    assert always_overridden_by(Entity(client_id="etl"), others) == Precedence(Entity(DEFAULT), but_for_empty=False)
    assert always_overridden_by(Entity(client_id="etl"), others[:1]) is None
    assert always_overridden_by(Entity(ip=DEFAULT), [Entity(ip="10.0.0.1")]) is None


def test_a_rule_has_its_level_its_layer_and_the_clients_that_share_it():
    quotas = {
        Entity("alice"): {PRODUCE: Limit(5000.0, "state.yaml")},
        Entity(client_id="etl"): {PRODUCE: Limit(10.0, "proxy.yaml")},
    }
    found = explained(quotas, Client("alice", "etl"))
    assert found.rule == (Entity("alice"), 3, 5000.0, "state.yaml", Scope.NODE)
    assert found.overridden == (
        ((Entity(client_id="etl"), 7, 10.0, "proxy.yaml", Scope.NODE), "level 3 comes before level 7"),
    )
    assert found.tags == SensorTags("alice", "")
    assert found.shared_by == "all client-ids of user=alice, at each node by itself"
    assert found.notes == ()


@pytest.mark.parametrize(
    ("entity", "client", "shared_by"),
    [
        (Entity(DEFAULT), Client("a", "b"), "all client-ids of user=a, at each node by itself"),
        (Entity(DEFAULT, DEFAULT), Client("a", "b"), "only user=a, client-id=b, at each node by itself"),
        (Entity(client_id=DEFAULT), Client("a", "b"), "client-id=b of all users, at each node by itself"),
        (Entity(client_id="x"), Client("a", ""), "all clients with an empty client-id, at each node by itself"),
    ],
)
def test_the_clients_that_are_measured_together(entity, client, shared_by):
    assert explained(quotas_of(entity), client).shared_by == shared_by


def test_partitions_are_counted_for_the_cluster_as_a_whole():
    key = QuotaKey(QuotaType.CONTROLLER_MUTATION)
    assert (
        explained(quotas_of(Entity("a"), key=key), Client("a", "b"), key).shared_by
        == "all client-ids of user=a, at all nodes together"
    )


def test_the_explanation_of_an_empty_client_id_says_why_a_default_does_not_cover_it():
    quotas = quotas_of(Entity("alice", DEFAULT), Entity(DEFAULT), Entity(client_id=DEFAULT))
    found = explained(quotas, Client("alice", ""))
    assert found.rule.entity == Entity(DEFAULT)
    assert [(overridden.rule.level, overridden.why) for overridden in found.overridden] == [
        (2, "an empty client-id is covered by no default for client-ids"),
        (8, "level 6 comes before level 8"),
    ]
    [unbound] = explained(quotas_of(Entity(client_id=DEFAULT)), Client("alice", "")).overridden
    assert unbound.why == "an empty client-id is covered by no default for client-ids"


def test_a_client_without_a_quota_is_measured_where_the_kinds_ever_in_use_say():
    tables = tables_of(quotas_of(Entity(client_id="x")))
    remembered = QuotaTable().succeeding(tables.enforced)
    [found] = [e for e in explain({}, Tables(remembered, QuotaTable()), Client("a", "b")) if e.key == PRODUCE]
    assert (found.rule, found.tags) == (None, SensorTags("", "b"))
    assert found.notes == ("no quota applies",)
    [user] = [e for e in explain(*both(Entity("x")), Client("a", "b")) if e.key == PRODUCE]
    assert user.tags == SensorTags("a", "")


def both(*entities):
    quotas = quotas_of(*entities)
    return quotas, tables_of(quotas)


def test_a_quota_that_no_entity_has_is_explained():
    found = {one.key.text: one for one in explain({}, tables_of({}), Client("a", "b", "10.0.0.1"))}
    assert list(found) == [quota_type.value for quota_type in QuotaType]
    assert found["producer_byte_rate"].notes == ("no entity has this quota, so use is not measured",)
    [note] = found["connection_creation_rate"].notes
    assert note == "no quota covers this address, so its connections are not measured"


def test_addresses_have_levels_of_their_own_and_one_spelling():
    key = QuotaKey(QuotaType.CONNECTION)
    quotas = quotas_of(Entity(ip="10.0.0.1"), Entity(ip=DEFAULT), key=key)
    found = explained(quotas, Client("a", "b", "::ffff:10.0.0.1"), key)
    assert found.rule[:2] == (Entity(ip="10.0.0.1"), 1)
    assert (found.tags, found.shared_by) == (SensorTags("", ""), "all connections from 10.0.0.1, at all listeners")
    assert [overridden.why for overridden in found.overridden] == ["a quota of the address comes before the default"]
    assert explained(quotas, Client("a", "b", "10.0.0.2"), key).rule[:2] == (Entity(ip=DEFAULT), 2)
    assert all(one.key != key for one in explain(quotas, tables_of(quotas), Client("a", "b")))


def test_a_host_name_stands_between_its_address_and_the_default():
    key = QuotaKey(QuotaType.CONNECTION)
    quotas = quotas_of(Entity(ip="a.example"), Entity(ip="b.example"), Entity(ip=DEFAULT), key=key)

    def reported(quotas):
        made = explain(quotas, tables_of(quotas), Client("a", "b", "10.0.0.1"), ("b.example", "a.example"))
        [found] = [one for one in made if one.key == key]
        return found.rule.entity.ip, [(one.rule.entity.ip, one.why) for one in found.overridden]

    default = (DEFAULT, "a quota of the address comes before the default")
    lowest = ("a.example", "of host names the lowest limit comes first")
    assert reported(quotas) == ("b.example", [lowest, default])
    own = {Entity(ip="10.0.0.1"): {key: Limit(9_000.0, "x")}}
    named = [(host, "the address itself comes before host names") for host in ("b.example", "a.example")]
    assert reported({**quotas, **own}) == ("10.0.0.1", [*named, default])


def test_a_shadow_is_looked_up_among_shadows_only():
    quotas = {Entity("alice"): {PRODUCE: Limit(1.0, "x")}, Entity(client_id="etl"): {SHADOW_PRODUCE: Limit(2.0, "x")}}
    found = explained(quotas, Client("alice", "etl"), SHADOW_PRODUCE)
    assert (found.rule.entity, found.tags, found.overridden) == (Entity(client_id="etl"), SensorTags("", "etl"), ())
    other = explained(quotas, Client("alice", "web"), SHADOW_PRODUCE)
    assert (other.rule, other.tags) == (None, None)
    assert other.notes == ("no shadow quota covers this client, so none is measured",)


def test_until_the_quotas_are_known_only_what_has_been_read_of_them_is_explained():
    quotas = quotas_of(Entity("alice"))
    found = explain(quotas, tables_of(quotas), Client("alice", "etl", "10.0.0.1"), known=False)
    assert found[0] == explained(quotas, Client("alice", "etl"))
    assert {one.key.quota_type for one in found} == set(QuotaType)
    assert {one.notes for one in found[1:]} == {("the source of the quotas has not been read yet",)}


def test_who_shares_a_quota_depends_on_its_scope():
    quotas = {Entity("alice"): {PRODUCE: Limit(1.0, "x", Scope.CLUSTER)}}
    found = explained(quotas, Client("alice", "etl"))
    assert (found.rule.scope, found.shared_by) == (Scope.CLUSTER, "all client-ids of user=alice, at all nodes together")
