"""The JSON API: its responses, which clients get them, and its errors for bad requests."""

import json
from types import SimpleNamespace

import aiohttp
import pytest

from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.gate.admission import AddressStanding
from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.explained import Origin
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.metrics import CapTotals
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.request_costs import SAMPLES, Cost
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.shares.division import Claim
from kafka_throttle.quotas.shares.member import Explained, Why
from tests.fakes.clock import FakeClock
from tests.fakes.http import admin_listener
from tests.fakes.responses import checked

OBJECT = 'expected a JSON object like {"user": "alice", "client-id": null}'
PRODUCE, SHADOW_FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH, shadow=True)
QUOTAS = {
    Entity("alice"): {PRODUCE: Limit(100.0, "proxy.yaml"), SHADOW_FETCH: Limit(50.0, "state.json")},
    Entity(client_id=DEFAULT): {PRODUCE: Limit(9.0, "proxy.yaml")},
}


class Cluster(SimpleNamespace):
    """A virtual cluster with nodes 1 and 2, in which alice's etl has produced at node 2."""

    def __init__(self, name, clock, quotas=QUOTAS, capacity=64):
        quota_manager = ClientQuotaManager(Sensors(capacity), QuotaTable())
        tables = tables_of(quotas)
        quota_manager.replace(tables.enforced, clock.now_ms(), tables.shadow)
        throttles = LastThrottles(quota_manager, clock)
        origin = Origin(name, "file", {"state.json": "cannot be read"})
        super().__init__(name=name, quota_manager=quota_manager, last_throttles=throttles, quotas=quotas, origin=origin)
        self.throttled = ThrottledClients()
        self.share = None
        self.user_names = {}
        self.open = []
        self.is_one_of_several = False
        self.open_connections = 0

    def clients(self):
        return self.open

    def node_ids(self):
        return [2, 1]

    def share_of(self, sensor):
        return self.share

    def standing_of(self, address, shadow):
        sensors, now_ms = Sensors(1), 0
        row = sensors.open(5.0, now_ms)
        sensors.charge(row, 30.0, now_ms)
        return AddressStanding("10.0.0.0/8", 3, 4, sensors.reading(row, now_ms))

    def cap_totals(self):
        return [CapTotals(self.name, "plain", "ingress", 1000, 5, 2, 30, 1)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def clusters(clock):
    return [Cluster("main", clock)]


@pytest.fixture
async def api(clusters, clock):
    api = AdminApi(clusters, clock)
    listener = admin_listener(api.routes())
    port = await listener.start("127.0.0.1", 0)

    async def get(path, method="GET", **headers):
        async with session.request(method, f"http://127.0.0.1:{port}/api/v1/{path}", headers=headers) as response:
            assert response.content_type == "application/json"
            body = json.loads(await response.read())
            if response.status == 200:
                checked(f"/api/v1/{path.partition('?')[0]}", body)
            return response.status, body, response.headers

    async with aiohttp.ClientSession() as session:
        yield SimpleNamespace(get=get, server=api)
    await listener.stop()


def use_and_be_throttled(cluster, clock, user="alice", client_id=b"etl", node_id=2, value=1500):
    facts = ConnectionFacts(ListenerFacts("main", None, cluster.quota_manager, None), node_id, user)
    client_sensors = cluster.quota_manager.bind("main", node_id, user, client_id.decode(), clock.now_ms())
    throttle_ms = cluster.quota_manager.sensors.charge(client_sensors.produce, value, clock.now_ms())
    throttled = Throttled(QuotaType.PRODUCE, throttle_ms, client_id)
    cluster.last_throttles.note("10.0.0.1", throttled, facts, clock.now_ms())
    return client_sensors


async def quota(api, name, query):
    status, body, _ = await api.get(f"explain?{query}")
    assert status == 200
    return next(reported for reported in body["quotas"] if reported["quota"] == name)


async def test_the_explanation_of_a_client_has_its_rule_what_it_beats_and_who_shares(api):
    reported = await quota(api, "producer_byte_rate", "user=alice&client_id=etl")
    assert reported == {
        "quota": "producer_byte_rate",
        "unit": "bytes/s",
        "enforced": True,
        "rule": {"entity": {"user": "alice"}, "level": 3, "limit": 100, "layer": "proxy.yaml", "scope": "node"},
        "overridden": [
            {
                "entity": {"client-id": None},
                "level": 8,
                "limit": 9,
                "layer": "proxy.yaml",
                "scope": "node",
                "why": "level 3 comes before level 8",
            }
        ],
        "measured_as": {"user": "alice", "client_id": ""},
        "shared_by": "all client-ids of user=alice, at each node by itself",
        "notes": [],
        "use": [],
        "throttles": [],
    }


async def test_the_explanation_has_the_present_use_and_the_last_throttles_of_all_who_share(api, clusters, clock):
    use_and_be_throttled(clusters[0], clock)
    use_and_be_throttled(clusters[0], clock, client_id=b"web", value=100)
    clock.advance(1000)
    reported = await quota(api, "producer_byte_rate", "user=alice&client_id=other")
    [use] = reported["use"]
    assert (use["node_id"], use["limit"], use["throttles"], use["throttled_ms"]) == (2, 100, 2, 11_000)
    assert use["rate"] == 160.0
    web, etl = reported["throttles"]
    assert (web["client_id"], etl["client_id"]) == ("web", "etl")
    assert etl["at"].endswith("Z")
    del etl["at"]
    assert etl == {
        "left_ms": 4000,
        "throttle_time_ms": 5000,
        "user": "alice",
        "client_id": "etl",
        "ip": "10.0.0.1",
        "node_id": 2,
        "entity": {"user": "alice"},
        "rate": 150.0,
        "limit": 100,
        "tokens": None,
        "throttles": 1,
    }


SHARE = Explained(0.25, 0.24, 0.3, {"b#2": Claim(0.2, 0.2), "c#3": Claim(0.5, 0.6)}, Why.SHORT)


async def test_the_explanation_in_a_fleet_has_the_share_of_the_instance_and_the_claims_of_the_others(
    api, clusters, clock
):
    use_and_be_throttled(clusters[0], clock)
    clusters[0].share = SHARE
    reported = await quota(api, "producer_byte_rate", "user=alice&client_id=etl")
    assert reported["use"][0]["share"] == {
        "share": 0.25,
        "why": "this instance needs more, and others have not yet lowered their claims",
        "claim": 0.24,
        "demand": 0.3,
        "others_claim": 0.7,
        "others": [
            {"instance": "c#3", "claim": 0.5, "demand": 0.6},
            {"instance": "b#2", "claim": 0.2, "demand": 0.2},
        ],
    }
    clusters[0].quotas = {Entity(ip=DEFAULT): {QuotaKey(QuotaType.CONNECTION): Limit(5.0, "proxy.yaml")}}
    reported = await quota(api, "connection_creation_rate", "ip=10.0.0.1")
    assert [(use["limit"], use["share"]["share"]) for use in reported["use"]] == [(1.25, 0.25)]


async def test_a_client_that_is_throttled_in_a_fleet_has_the_share_of_the_instance(api, clusters, clock):
    begin_episode(clusters[0], clock, 5000)
    assert [client["share"] for client in (await throttled(api))["throttled"]] == [None]
    clusters[0].share = SHARE
    [client] = (await throttled(api))["throttled"]
    assert (client["limit"], client["share"]) == (100, 0.25)


async def test_the_explanation_has_shadow_quotas_with_their_use(api, clusters, clock):
    client_sensors = clusters[0].quota_manager.bind("main", 1, "alice", "etl", clock.now_ms())
    clusters[0].quota_manager.shadow_sensors.charge(client_sensors.shadow_fetch, 500, clock.now_ms())
    reported = await quota(api, "shadow_consumer_byte_rate", "user=alice&client_id=etl")
    assert reported["enforced"] is False
    assert reported["rule"]["limit"] == 50
    assert reported["rule"]["layer"] == "state.json"
    assert [(use["node_id"], use["rate"]) for use in reported["use"]] == [(1, 50.0)]


async def test_the_explanation_of_an_address_has_its_use_and_the_network_that_it_counts_as(api, clusters):
    clusters[0].quotas = {Entity(ip=DEFAULT): {QuotaKey(QuotaType.CONNECTION): Limit(5.0, "proxy.yaml")}}
    reported = await quota(api, "connection_creation_rate", "ip=10.0.0.1")
    assert (reported["enforced"], reported["rule"]["limit"]) == (True, 5)
    assert reported["shared_by"] == "all connections from 10.0.0.0/8, at all listeners"
    assert reported["notes"] == ["open connections from 10.0.0.0/8: 3, 4 at a time are allowed"]
    [use] = reported["use"]
    assert (use["node_id"], use["rate"], use["limit"]) == (None, 3.0, 5)


async def test_the_bucket_of_controller_mutations_is_that_of_all_nodes(clock, clusters, api):
    quotas = {Entity("alice"): {QuotaKey(QuotaType.CONTROLLER_MUTATION): Limit(2.0, "proxy.yaml")}}
    clusters[0].quotas = quotas
    quota_manager = clusters[0].quota_manager
    quota_manager.replace(tables_of(quotas).enforced, clock.now_ms())
    bucket = quota_manager.bind("main", 1, "alice", "etl", clock.now_ms()).mutation
    quota_manager.buckets.spend_permissively(bucket, 30, clock.now_ms())
    facts = ConnectionFacts(ListenerFacts("main", None, quota_manager, None), 1, "alice")
    throttled = Throttled(QuotaType.CONTROLLER_MUTATION, 4000, b"etl")
    clusters[0].last_throttles.note("10.0.0.1", throttled, facts, clock.now_ms())
    reported = await quota(api, "controller_mutation_rate", "user=alice&client_id=etl")
    [use] = reported["use"]
    assert (use["node_id"], use["bucket"], use["limit"]) == (None, {"tokens": -8.0, "burst": 22.0}, 2)
    [past] = reported["throttles"]
    assert (past["node_id"], past["rate"], past["tokens"]) == (1, None, -8.0)
    unbound = await quota(api, "controller_mutation_rate", "user=bob")
    assert (unbound["rule"], unbound["use"]) == (None, [])


async def test_throttles_by_nodes_are_listed_apart(api, clusters, clock):
    facts = ConnectionFacts(ListenerFacts("main", None, clusters[0].quota_manager, None), 1, "alice")
    clusters[0].last_throttles.note("10.0.0.1", Throttled(None, 700, b"etl"), facts, clock.now_ms())
    _, body, _ = await api.get("explain?user=alice&client_id=etl")
    [past] = body["node_throttles"]
    assert (past["throttle_time_ms"], past["rate"], past["ip"]) == (700, None, "10.0.0.1")
    _, other, _ = await api.get("explain?user=alice&client_id=web")
    assert other["node_throttles"] == []


async def test_the_explanation_says_if_new_clients_share_a_sensor(api, clock, clusters):
    quota_manager = clusters[0].quota_manager
    for number in range(80):
        client_sensors = quota_manager.bind("main", 1, "bob", f"c{number}", clock.now_ms())
        quota_manager.sensors.charge(client_sensors.produce, 1, clock.now_ms())
    reported = await quota(api, "producer_byte_rate", "user=bob&client_id=c79")
    assert [(use["node_id"], use["shared_by"]) for use in reported["use"]] == [(1, {"client-id": None})]


async def test_a_client_id_alone_is_explained_for_the_users_that_have_it_throttled_ones_first(api, clusters, clock):
    clusters[0].open = [Client("bob", "etl", "10.0.0.2"), Client("carol", "web", "10.0.0.2")]
    use_and_be_throttled(clusters[0], clock)
    past = next(iter(clusters[0].last_throttles))
    clusters[0].throttled.add(ThrottleEpisode(past, clock.now_ms(), clock.now_ms() + 5_000))
    _, body, _ = await api.get("explain?client_id=etl")
    assert body["client"] == {"user": "alice", "client_id": "etl", "ip": None}
    assert body["throttled"] is True
    [produce] = [reported for reported in body["quotas"] if reported["quota"] == "producer_byte_rate"]
    assert produce["rule"]["entity"] == {"user": "alice"}
    assert produce["throttles"][0]["user"] == "alice"
    [other] = body["others"]
    assert other["client"] == {"user": "bob", "client_id": "etl", "ip": None}
    assert other["throttled"] is False
    [produce] = [reported for reported in other["quotas"] if reported["quota"] == "producer_byte_rate"]
    assert produce["rule"]["entity"] == {"client-id": None}
    assert (body["more"], body["notes"]) == (0, [])
    _, body, _ = await api.get("explain?ip=10.0.0.2")
    assert [each["client"] for each in (body, *body["others"])] == [
        {"user": user, "client_id": client_id, "ip": "10.0.0.2"}
        for user, client_id in (("bob", "etl"), ("carol", "web"))
    ]
    _, body, _ = await api.get("explain?user=bob")
    assert (body["client"]["client_id"], body["others"]) == ("etl", [])
    _, body, _ = await api.get("explain?user=bob&client_id=")
    assert (body["client"]["client_id"], body["others"], body["notes"]) == ("", [], [])


async def test_of_very_many_clients_ten_are_explained_and_the_others_counted(api, clusters):
    clusters[0].open = [Client(f"u{i:02}", "etl", "10.0.0.2") for i in range(25)]
    clusters[0].is_one_of_several = True
    _, body, _ = await api.get("explain?client_id=etl")
    assert [each["client"]["user"] for each in (body, *body["others"])] == [f"u{i:02}" for i in range(10)]
    assert body["more"] == 15
    assert body["notes"] == ["only clients of this instance are known here: other instances may have more"]


async def test_where_nobody_is_connected_it_is_said_whose_quotas_are_explained(api):
    _, body, headers = await api.get("explain")
    [note] = body["notes"]
    assert note.startswith("no client is connected, and none was measured: what follows is for the user ANONYMOUS")
    assert note.endswith(" (clients that do not log in) and an empty client-id")
    assert body["client"] == {"user": "ANONYMOUS", "client_id": "", "ip": None}
    assert body["live"] is True
    assert body["known"] is True
    assert body["problems"] == {"state.json": "cannot be read"}
    assert headers["Cache-Control"] == "no-store"
    [reported] = [reported for reported in body["quotas"] if reported["quota"] == "producer_byte_rate"]
    assert reported["overridden"][0]["why"] == "an empty client-id is covered by no default for client-ids"


async def test_the_explanation_of_a_user_names_the_logins_that_are_this_user(api, clusters):
    clusters[0].user_names = {"AKIA2": "team-a", "AKIA1": "team-a", "?GSSAPI": "kerberos", "bob": "bob"}

    async def notes_on(user):
        return (await api.get(f"explain?user={user}&client_id=etl"))[1]["notes"]

    assert await notes_on("team-a") == ["logins that show 'AKIA1', 'AKIA2' are this user, by sasl.user_names"]
    assert await notes_on("AKIA1") == [
        "logins that show this name are the user 'team-a', by sasl.user_names: explain that user"
    ]
    assert await notes_on("bob") == ["logins that show 'bob' are this user, by sasl.user_names"]
    assert await notes_on("alice") == []
    clusters[0].user_names = {f"k{i:03}\n": "team-a" for i in range(50)}
    [note] = await notes_on("team-a")
    assert "'k019\\n' and 30 more are this user" in note
    assert "\n" not in note


async def test_hostile_names_are_carried_and_never_believed(api):
    status, body, _ = await api.get("explain?client_id=%22%7D%0a%00%3Cscript%3E&user=%F0%9F%92%A9")
    assert status == 200
    assert body["client"]["client_id"] == '"}\n\x00<script>'
    assert body["client"]["user"] == "💩"


async def test_a_long_client_id_is_explained_under_the_name_it_is_measured_by(api):
    _, body, _ = await api.get(f"explain?client_id={'x' * 2000}")
    assert body["client"]["client_id"].startswith("x" * 64 + "… sha256 ")


async def test_quotas_come_with_their_layers_in_parts(api):
    _, body, _ = await api.get("quotas?limit=1")
    assert body["quotas"] == [
        {
            "entity": {"user": "alice"},
            "limits": {
                "producer_byte_rate": {"limit": 100, "layer": "proxy.yaml", "scope": "node"},
                "shadow_consumer_byte_rate": {"limit": 50, "layer": "state.json", "scope": "node"},
            },
        }
    ]
    assert (body["total"], body["offset"], body["source"]) == (2, 0, "file")
    _, body, _ = await api.get("quotas?offset=1&virtual_cluster=main")
    assert [entry["entity"] for entry in body["quotas"]] == [{"client-id": None}]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("explain?user=", "user: expected a name, got an empty one"),
        ("explain?ip=300.1.1.1", "ip: expected an IP address, got '300.1.1.1'"),
        ("explain?usr=a", "usr: unknown parameter, expected at, client_id, ip, user, virtual_cluster"),
        ("explain?user=a&user=b", "user: expected once, got 2 times"),
        ("quotas?limit=0", "limit: expected a whole number from 1 to 5000, got '0'"),
        ("quotas?limit=5001", "limit: expected a whole number from 1 to 5000, got '5001'"),
        ("quotas?offset=-1", "offset: expected a whole number from 0 to 2147483647, got '-1'"),
        ("quotas?offset=%D9%A3", "offset: expected a whole number from 0 to 2147483647, got '٣'"),
        ("quotas?limit=99999999999999999999", "limit: expected a whole number from 1 to 5000, got '" + "9" * 20 + "'"),
        ("quotas?%0a=1", r"\n: unknown parameter, expected entity, limit, offset, virtual_cluster"),
        ("quotas?limit=%1b%5c", r"limit: expected a whole number from 1 to 5000, got '\x1b\\'"),
        ("quotas?entity=alice", f"entity: {OBJECT}, got 'alice'"),
        ("quotas?entity={}", f"entity: {OBJECT}, got '{{}}'"),
        ('quotas?entity={"group":"a"}', f'entity: {OBJECT}, got \'{{"group":"a"}}\''),
        ('quotas?entity={"user":7}', f"entity: {OBJECT}, got '{{\"user\":7}}'"),
    ],
)
async def test_the_error_says_what_is_wrong_with_a_request(api, path, error):
    assert (await api.get(path))[:2] == (400, {"error": error})


async def test_the_costs_of_requests_are_listed(api, clusters):
    costs = clusters[0].quota_manager.costs
    assert (await api.get("request-costs?virtual_cluster=main"))[1] == {"virtual_cluster": "main", "nodes": []}
    costs.pin({3: Cost(40.0, 0.25)})
    node = costs.of_node(7)
    for _ in range(SAMPLES):
        node.learn(0, 1024, 88.0, 0)
    [reported] = (await api.get("request-costs?virtual_cluster=main"))[1]["nodes"]
    assert reported["node_id"] == 7
    assert reported["apis"]["Metadata"] == {"base_us": 40.0, "per_kib_us": 0.25, "origin": "pinned", "samples": 0}
    assert reported["apis"]["Produce"]["origin"] == "learned"
    assert reported["apis"]["Produce"]["samples"] == SAMPLES


async def test_byte_caps_are_listed(api):
    reported = {
        "listener": "plain",
        "direction": "ingress",
        "limit": 1000,
        "read_bytes": 5,
        "waits": 2,
        "waited_ms": 30,
    }
    cap = {"virtual_cluster": "main", **reported, "waiting": 1}
    assert (await api.get("caps"))[1] == {"virtual_cluster": "main", "caps": [cap]}


def begin_episode(cluster, clock, *throttle_times_ms, user="alice", client_id=b"etl", quota_type=QuotaType.PRODUCE):
    """The client begins to be throttled, on one connection more."""
    facts = ConnectionFacts(ListenerFacts("main", None, cluster.quota_manager, None), 2, user)
    episode = None
    for throttle_ms in throttle_times_ms:
        past = cluster.last_throttles.note("10.0.0.1", Throttled(quota_type, throttle_ms, client_id), facts, 0)
        episode = episode or ThrottleEpisode(past, clock.now_ms(), clock.now_ms())
        episode.note(throttle_ms, clock.now_ms())
    cluster.throttled.add(episode)
    return episode


async def throttled(api, query=""):
    status, body, _ = await api.get(f"throttled{query}")
    assert status == 200
    return body


async def test_no_client_is_throttled_at_first(api):
    nothing = {"clients": 0, "total": 0, "more": 0, "throttled": [], "quotas_unknown": []}
    nothing |= {"connections": 0, "entities": 2, "other_instances": False}
    assert await throttled(api) == {"sort": "left", **nothing}


async def test_quotas_that_are_not_known_yet_are_reported_as_such(api, clusters):
    origin = {"virtual_cluster": "main", "source": "upstream", "problems": {"upstream cluster": "a:9092: down"}}
    clusters[0].origin = Origin(**origin, known=False)
    assert (await throttled(api))["quotas_unknown"] == [{**origin, "known": False}]
    assert (await api.get("quotas"))[1]["known"] is False
    _, body, _ = await api.get("explain?user=bob")
    assert body["known"] is False
    unread = [reported for reported in body["quotas"] if reported["rule"] is None]
    assert unread
    assert all(reported["notes"] == ["the source of the quotas has not been read yet"] for reported in unread)


async def test_a_client_that_is_throttled_is_listed_with_its_rule_and_what_it_uses(api, clusters, clock):
    use_and_be_throttled(clusters[0], clock)
    begin_episode(clusters[0], clock, 5000)
    clock.advance(1000)
    begin_episode(clusters[0], clock, 2000, 3000)
    clock.advance(500)
    [client] = (await throttled(api))["throttled"]
    assert client.pop("rate") == pytest.approx(1500 / 11, rel=0.1)
    assert client == {
        "virtual_cluster": "main",
        "user": "alice",
        "client_id": "etl",
        "ip": "10.0.0.1",
        "node_id": 2,
        "quota_type": "produce",
        "unit": "bytes/s",
        "rule": {
            "quota": "producer_byte_rate",
            "entity": {"user": "alice"},
            "level": 3,
            "source": "file",
            "layer": "proxy.yaml",
        },
        "limit": 100,
        "share": None,
        "bucket": None,
        "left_ms": 3500,
        "since": "2023-11-14T22:13:20.123Z",
        "throttles": 3,
        "throttled_ms": 2000,
        "connections": 2,
    }


async def test_a_client_whose_episodes_are_over_is_listed_no_longer(api, clusters, clock):
    first, second = (begin_episode(clusters[0], clock, 10) for _ in range(2))
    clock.advance(50)
    assert [client["left_ms"] for client in (await throttled(api))["throttled"]] == [0]
    clusters[0].throttled.remove(first, clock.now_ms())
    assert (await throttled(api))["throttled"][0]["connections"] == 1
    clusters[0].throttled.remove(second, clock.now_ms())
    assert (await throttled(api))["total"] == len(clusters[0].throttled) == 0


async def test_a_throttle_of_the_node_and_a_rule_that_is_gone_are_listed_as_such(api, clusters, clock):
    begin_episode(clusters[0], clock, 500, quota_type=None)
    begin_episode(clusters[0], clock, 400)
    clusters[0].quotas = {}
    by_node, of_old_rule = (await throttled(api))["throttled"]
    assert (by_node["quota_type"], by_node["unit"], by_node["rule"], by_node["limit"]) == ("node", None, None, None)
    assert of_old_rule["rule"]["entity"] == {"user": "alice"}
    assert of_old_rule["rule"]["layer"] is None
    assert (of_old_rule["limit"], of_old_rule["rate"]) == (100, None)


async def test_throttled_clients_have_an_order_and_a_bound(api, clusters, clock):
    for client_id, value, times in (("a", 300, [900, 1000]), ("b", 20, [4000]), ("c", 2000, [50, 60, 700])):
        user = f"user of {client_id}"
        use_and_be_throttled(clusters[0], clock, user=user, client_id=client_id.encode(), value=value)
        begin_episode(clusters[0], clock, *times, user=user, client_id=client_id.encode())
        clock.advance(100)
    clock.advance(2000)
    orders = {"left": "bac", "rate": "cab", "since": "abc", "throttled": "bac"}
    for sort, order in orders.items():
        clients = (await throttled(api, f"?sort={sort}"))["throttled"]
        assert "".join(client["client_id"] for client in clients) == order
    body = await throttled(api, "?sort=since&limit=2&virtual_cluster=main")
    assert [client["client_id"] for client in body["throttled"]] == ["a", "b"]
    assert (body["clients"], body["total"], body["more"]) == (3, 3, 1)


async def test_each_line_has_the_limit_of_its_rule_and_a_client_counts_once(api, clusters, clock):
    [cluster] = clusters
    of_default, of_web = Entity(client_id=DEFAULT), Entity(client_id="web")

    def put_in_force(**limits):
        entities = {"default": of_default, "web": of_web}
        cluster.quotas = {
            entities[name]: {QuotaKey(QuotaType.PRODUCE): Limit(limit, "proxy.yaml")} for name, limit in limits.items()
        }
        cluster.quota_manager.replace(tables_of(cluster.quotas).enforced, clock.now_ms())

    def be_throttled():
        use_and_be_throttled(cluster, clock, user="bob", client_id=b"web", value=90_000)
        return begin_episode(cluster, clock, 5000, user="bob", client_id=b"web")

    put_in_force(default=1000.0)
    before = be_throttled()
    put_in_force(default=1000.0, web=3000.0)
    be_throttled()
    body = await throttled(api)
    reported = {client["rule"]["entity"]["client-id"]: client["limit"] for client in body["throttled"]}
    assert reported == {None: 1000, "web": 3000}
    assert (body["clients"], body["total"]) == (1, 2)

    put_in_force(default=2000.0)
    body = await throttled(api)
    reported = {client["rule"]["entity"]["client-id"]: client["limit"] for client in body["throttled"]}
    assert reported == {None: 2000, "web": 3000}, "of a rule that is gone, the limit that began the throttle"
    cluster.throttled.remove(before, clock.now_ms())
    assert (await throttled(api))["clients"] == 1
    begin_episode(cluster, clock, 5000, user="bob", client_id=b"other")
    assert (await throttled(api))["clients"] == 2


async def test_a_throttled_bucket_has_its_tokens(clock, clusters, api):
    key = QuotaKey(QuotaType.CONTROLLER_MUTATION)
    clusters[0].quotas = {Entity("alice"): {key: Limit(2.0, "proxy.yaml")}}
    quota_manager = clusters[0].quota_manager
    quota_manager.replace(tables_of(clusters[0].quotas).enforced, clock.now_ms())
    bucket = quota_manager.bind("main", 2, "alice", "etl", clock.now_ms()).mutation
    quota_manager.buckets.spend_strictly(bucket, 30, clock.now_ms())
    begin_episode(clusters[0], clock, 4000, quota_type=QuotaType.CONTROLLER_MUTATION)
    [client] = (await throttled(api, "?sort=rate"))["throttled"]
    assert (client["rate"], client["limit"], client["bucket"]) == (None, 2, {"tokens": -8.0, "burst": 22.0})


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("?sort=name", "sort: expected one of left, rate, since, throttled, got 'name'"),
        ("?limit=0", "limit: expected a whole number from 1 to 1000, got '0'"),
        ("?user=alice", "user: unknown parameter, expected at, limit, sort, virtual_cluster"),
    ],
)
async def test_a_wrong_request_for_throttled_clients_is_refused(api, query, error):
    assert (await api.get(f"throttled{query}"))[:2] == (400, {"error": error})


async def test_what_is_not_there_is_not_found(api):
    assert (await api.get("explain?virtual_cluster=x"))[:2] == (
        404,
        {"error": "virtual_cluster: expected one of main, got 'x'"},
    )
    status, body, _ = await api.get("top")
    assert (status, body["error"]) == (
        404,
        "no such page; there are /api/v1/caps, /api/v1/explain, /api/v1/openapi.json, /api/v1/quotas,"
        " /api/v1/request-costs, /api/v1/throttled",
    )
    status, body, headers = await api.get("quotas", method="POST")
    assert (status, headers["Allow"]) == (405, "GET")
    assert "error" in body


async def test_one_of_several_virtual_clusters_has_to_be_named(clock, clusters, api):
    api.server._clusters["other"] = Cluster("other", clock, {})
    assert (await api.get("quotas"))[:2] == (
        400,
        {"error": "virtual_cluster: expected one of main, other, got nothing"},
    )
    _, body, _ = await api.get("quotas?virtual_cluster=other")
    assert body["quotas"] == []
