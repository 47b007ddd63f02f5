"""The clients that a question without a user, or without a client-id, is about: throttled ones first."""

from types import SimpleNamespace

import pytest

from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.net.turns import finish_at_once
from kafka_throttle.proxy.observe.known_clients import (
    MAX_EXPLAINED,
    KnownClient,
    KnownClients,
    Names,
    known_clients,
    merged_clients,
)
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients, ThrottleEpisode
from kafka_throttle.proxy.relay.actions import Throttled
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock

PRODUCE = QuotaKey(QuotaType.PRODUCE)


class Cluster(SimpleNamespace):
    """A virtual cluster with a quota for each user with each client-id."""

    def __init__(self):
        self.clock, manager = FakeClock(), ClientQuotaManager(Sensors(10_000), QuotaTable())
        manager.replace(tables_of({Entity(DEFAULT, DEFAULT): {PRODUCE: Limit(9.0, "file")}}).enforced, 0)
        super().__init__(quota_manager=manager, throttled=ThrottledClients(), open=[])
        self.last_throttles = LastThrottles(manager, self.clock)

    def clients(self):
        return self.open

    def connect(self, user, client_id, ip="10.0.0.1"):
        self.open.append(Client(user, client_id, ip))

    def measure(self, user, client_id):
        self.quota_manager.bind("main", 1, user, client_id, 0)

    def throttle(self, user, client_id, throttle_time_ms, ip="10.0.0.1", *, is_over=False):
        facts = ConnectionFacts(ListenerFacts("main", None, self.quota_manager, None), 1, user)
        cause, now_ms = Throttled(QuotaType.PRODUCE, throttle_time_ms, client_id.encode()), self.clock.now_ms()
        episode = ThrottleEpisode(self.last_throttles.note(ip, cause, facts, now_ms), now_ms, now_ms)
        episode.note(throttle_time_ms, now_ms)
        if not is_over:
            self.throttled.add(episode)

    def known(self, **names):
        return finish_at_once(known_clients(self, Names(**names), self.clock.now_ms()))


@pytest.fixture
def cluster():
    return Cluster()


def found(known):
    return [client[:2] for client in known.first]


def test_without_a_user_those_with_the_client_id_are_found_and_throttled_ones_are_first(cluster):
    cluster.measure("zoe", "etl")
    cluster.connect("bob", "etl")
    cluster.connect("bob", "etl")
    cluster.connect("bob", "web")
    cluster.connect("ANONYMOUS", "etl")
    cluster.throttle("carol", "etl", 100)
    cluster.throttle("alice", "etl", 5_000)
    cluster.throttle("dora", "etl", 9_000, is_over=True)
    assert cluster.known(client_id="etl") == KnownClients(
        [
            KnownClient("alice", "etl", 5_000),
            KnownClient("carol", "etl", 100),
            KnownClient("ANONYMOUS", "etl", None, 1),
            KnownClient("bob", "etl", None, 2),
            KnownClient("dora", "etl"),
            KnownClient("zoe", "etl"),
        ],
        6,
    )


def test_without_a_client_id_those_of_the_user_are_found_the_empty_one_too(cluster):
    cluster.connect("alice", "")
    cluster.connect("alice", "web")
    cluster.connect("bob", "etl")
    cluster.throttle("alice", "etl", 5)
    assert found(cluster.known(user="alice")) == [("alice", "etl"), ("alice", ""), ("alice", "web")]
    assert found(cluster.known(client_id="")) == [("alice", "")]
    assert cluster.known(user="nobody") == KnownClients([], 0)


def test_an_address_alone_finds_who_is_connected_or_throttled_from_there(cluster):
    cluster.connect("alice", "etl", "10.0.0.1")
    cluster.connect("bob", "etl", "10.0.0.2")
    cluster.throttle("carol", "etl", 5, "10.0.0.2")
    cluster.measure("zoe", "etl")
    assert found(cluster.known(ip="::ffff:10.0.0.2")) == [("carol", "etl"), ("bob", "etl")]
    assert found(cluster.known(client_id="etl", ip="10.0.0.1")) == [("alice", "etl")]


def test_of_very_many_clients_the_first_ones_are_named_and_the_others_counted(cluster):
    for i in range(2_000):
        cluster.connect(f"u{i:04}", "etl")
    cluster.throttle("u1999", "etl", 5)
    known = cluster.known(client_id="etl")
    assert found(known) == [("u1999", "etl"), *((f"u{i:04}", "etl") for i in range(MAX_EXPLAINED - 1))]
    assert (known.total, known.more) == (2_000, 2_000 - MAX_EXPLAINED)
    steps = sum(1 for _ in known_clients(cluster, Names(client_id="etl"), 0))
    assert steps > 2_000 // 500


def test_a_long_client_id_is_found_under_the_name_it_is_measured_by(cluster):
    cluster.throttle("alice", "x" * 2_000, 5)
    [client] = cluster.known(client_id="x" * 2_000).first
    assert "sha256" in client.client_id


def test_clients_of_several_workers_are_counted_once():
    one = KnownClients([KnownClient("alice", "etl", 5, 1), KnownClient("bob", "etl", None, 2)], 30)
    other = KnownClients([KnownClient("carol", "etl", 9), KnownClient("alice", "etl", 7, 2)], 5)
    assert merged_clients([one, other]) == KnownClients(
        [KnownClient("carol", "etl", 9), KnownClient("alice", "etl", 7, 3), KnownClient("bob", "etl", None, 2)], 34
    )


def test_what_is_explained_where_nobody_fits_is_said():
    [client], notes = KnownClients().explained(Names(client_id="etl"), is_one_of_several=False)
    assert client == Client("ANONYMOUS", "etl", None)
    assert notes == [
        "no client with client_id='etl' is connected, and none was measured: what follows is for the user ANONYMOUS "
        "(clients that do not log in)"
    ]
    [client], notes = KnownClients().explained(Names(user="alice", ip="10.0.0.1"), is_one_of_several=True)
    assert client == Client("alice", "", "10.0.0.1")
    assert notes == [
        "no client with user='alice', ip='10.0.0.1' is connected, and none was measured: what follows is for an empty "
        "client-id",
        "only clients of this instance are known here: other instances may have more",
    ]
