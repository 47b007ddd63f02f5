"""The zookeeper source with a real ZooKeeper, and with Kafka 3.9.2 on the same one."""

import contextlib
import itertools
import random
import socket
import subprocess
import threading
import time

import pytest
from confluent_kafka import Producer
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.common.zookeeper import Ensemble, Login, Tls
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.znodes import keys_of, notification, written
from kafka_throttle.quotas.sources.zookeeper import ZooKeeperSettings, ZooKeeperSource
from tests.integration.topics import make_topic
from tests.integration.zookeeper_process import ZooKeeper, client_of
from tests.support.deaf import deaf_address
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

ALICE, BOB = Entity("alice"), Entity("bob")
PRODUCE, FETCH, REQUEST, MUTATIONS = (QuotaKey(quota_type) for quota_type in list(QuotaType)[:4])
SHADOW_PRODUCE = QuotaKey(QuotaType.PRODUCE, shadow=True)
CONNECTIONS = QuotaKey(QuotaType.CONNECTION)

EVERY_KIND = {
    ALICE: "users/alice",
    Entity(DEFAULT): "users/<default>",
    Entity("alice", "a b"): "users/alice/clients/a%20b",
    Entity("alice", DEFAULT): "users/alice/clients/<default>",
    Entity(DEFAULT, "app"): "users/<default>/clients/app",
    Entity(DEFAULT, DEFAULT): "users/<default>/clients/<default>",
    Entity(client_id="<default>"): "clients/%3Cdefault%3E",
    Entity(client_id=DEFAULT): "clients/<default>",
    Entity(ip="10.1.2.3"): "ips/10.1.2.3",
    Entity(ip="::1"): "ips/::1",
    Entity(ip=DEFAULT): "ips/<default>",
}

_chroots = map("/kafka-throttle/test-{}".format, itertools.count())


@pytest.fixture(scope="module")
def zookeeper():
    with ZooKeeper() as process:
        yield process


@pytest.fixture(scope="module")
def kazoo(zookeeper):
    """A client that is not the one under test."""
    with zookeeper.client() as client:
        yield client


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No session ends because a process stood still, unless a test wants it."""
    for name in ("_START_S", "_ALTER_S", "_REQUEST_S"):
        monkeypatch.setattr(f"kafka_throttle.quotas.sources.zookeeper.{name}", TIMEOUT_S)


@pytest.fixture
def chroot():
    """Another one for each test; it does not exist yet."""
    return next(_chroots)


@contextlib.contextmanager
def source_at(address, chroot, last_good=NO_QUOTAS, epoch_ms=None, resync_ms=3_600_000, **ensemble):
    """A source that has been started; at the end it has reported no fault of the proxy.

    It learns of changes from ZooKeeper, not by reading all again, unless `resync_ms` says so.
    """
    settings = ZooKeeperSettings(Ensemble([address], **ensemble), chroot, resync_ms)
    source = ZooKeeperSource(settings, epoch_ms) if epoch_ms else ZooKeeperSource(settings)
    reported = []
    source.start(lambda: reported.append((source.quotas, source.problems)), last_good)
    try:
        yield source
    finally:
        source.stop()
    source._thread.join(TIMEOUT_S)
    assert not source._thread.is_alive()
    assert not [text for _, problems in reported for text in problems.values() if "Error:" in text], reported


def values(source):
    return {entity: {key: limit.value for key, limit in limits.items()} for entity, limits in source.quotas.items()}


def put(client, path, data):
    """Write a node as any tool can, without a notification."""
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True)


def notify(client, chroot, path, data=None):
    """A notification as brokers make it, or of any content."""
    content = notification(path) if data is None else data
    client.create(f"{chroot}/config/changes/config_change_", content, sequence=True)


def set_and_notify(client, chroot, path, **config):
    put(client, f"{chroot}/config/{path}", written({key: str(value) for key, value in config.items()}))
    notify(client, chroot, path)


def changes(client, chroot):
    return sorted(client.get_children(f"{chroot}/config/changes"))


# ------------------------------------------------------------ reading, writing


def test_every_kind_of_entity_and_key_is_written_where_kafka_has_it_and_read_back(zookeeper, kazoo, chroot):
    limits = {
        entity: {key: 10.5 if key.quota_type in (REQUEST[0], MUTATIONS[0]) else 3.0 for key in keys_of(entity)}
        for entity in EVERY_KIND
    }
    with source_at(zookeeper.address, chroot) as source:
        assert source.quotas == {}
        assert source.alter([Alteration(entity, of_it) for entity, of_it in limits.items()]) == [None] * len(limits)
        assert values(source) == limits
        for entity, path in EVERY_KIND.items():
            assert {limit.layer for limit in source.quotas[entity].values()} == {f"{chroot}/config/{path}"}
            assert kazoo.exists(f"{chroot}/config/{path}")
        reported = [kazoo.get(f"{chroot}/config/changes/{name}")[0] for name in changes(kazoo, chroot)]
        assert reported == [notification(path) for path in EVERY_KIND.values()]
        with source_at(zookeeper.address, chroot) as another:
            assert values(another) == limits
        assert source.alter([Alteration(entity, dict.fromkeys(of_it)) for entity, of_it in limits.items()]) == [
            None for _ in limits
        ]
        assert source.quotas == {}
        assert source.problems == {}
    assert {root: kazoo.get_children(f"{chroot}/config/{root}") for root in ("users", "clients", "ips")} == {
        "users": [],
        "clients": [],
        "ips": [],
    }


def test_a_change_with_a_notification_is_in_force_at_once(zookeeper, kazoo, chroot, record_property):
    with source_at(zookeeper.address, chroot, resync_ms=3_600_000) as source:
        delays = []
        for rate in range(1, 20):
            set_and_notify(kazoo, chroot, "users/alice", producer_byte_rate=rate)
            began = time.monotonic()
            wait_until(lambda rate=rate: values(source) == {ALICE: {PRODUCE: rate}})
            delays.append(time.monotonic() - began)
        record_property("seconds until in force", sorted(delays))
        put(kazoo, f"{chroot}/config/clients/app", written({"consumer_byte_rate": "7"}))
        notify(kazoo, chroot, "", b'{"version":1,"entity_type":"clients","entity_name":"app"}')
        wait_until(lambda: values(source).get(Entity(client_id="app")) == {FETCH: 7})
        kazoo.delete(f"{chroot}/config/users/alice")
        notify(kazoo, chroot, "users/alice")
        wait_until(lambda: ALICE not in source.quotas)
        for other in ("topics/t", "brokers/1"):
            notify(kazoo, chroot, other)
        assert source.problems == {}


def test_a_change_without_a_notification_is_found_by_reading_again(zookeeper, kazoo, chroot):
    with source_at(zookeeper.address, chroot, resync_ms=100) as source:
        put(kazoo, f"{chroot}/config/users/alice/clients/app", written({"producer_byte_rate": "5"}))
        wait_until(lambda: values(source) == {Entity("alice", "app"): {PRODUCE: 5}})
        kazoo.delete(f"{chroot}/config/users/alice/clients/app")
        wait_until(lambda: source.quotas == {})


def test_a_notification_that_is_nonsense_has_everything_read_again(zookeeper, kazoo, chroot):
    with source_at(zookeeper.address, chroot, resync_ms=3_600_000) as source:
        put(kazoo, f"{chroot}/config/users/alice", written({"producer_byte_rate": "5"}))
        notify(kazoo, chroot, "", b"user alice has changed")
        wait_until(lambda: values(source) == {ALICE: {PRODUCE: 5}})
        [name] = changes(kazoo, chroot)
        wait_until(lambda: list(source.problems) == [f"{chroot}/config/changes/{name}"])
        kazoo.delete(f"{chroot}/config/changes/{name}")
        wait_until(lambda: source.problems == {})


def test_wrong_values_keep_their_last_good_quotas_and_disturb_no_others(zookeeper, kazoo, chroot):
    nonsense = {
        "no-json": b"5",
        "no-config": b'{"version":1}',
        "number": b'{"version":1,"config":{"producer_byte_rate":5}}',
        "zero": written({"producer_byte_rate": "0"}),
        "word": written({"producer_byte_rate": "9", "request_percentage": "much"}),
        "huge": b'{"version":1,"config":{"x":"' + b"y" * 1_000_000 + b'"}}',
    }
    good = {"producer_byte_rate": "1", "request_percentage": "2"}
    read = {user: {PRODUCE: 1, REQUEST: 2} for user in ("no-json", "no-config", "huge")}
    read |= {"number": {PRODUCE: 1}, "zero": {PRODUCE: 1}, "word": {PRODUCE: 9, REQUEST: 2}}
    for user in nonsense:
        put(kazoo, f"{chroot}/config/users/{user}", written(good))
    with source_at(zookeeper.address, chroot) as source:
        assert values(source) == {Entity(user): {PRODUCE: 1, REQUEST: 2} for user in nonsense}
        for user, data in nonsense.items():
            put(kazoo, f"{chroot}/config/users/{user}", data)
            notify(kazoo, chroot, f"users/{user}")
        put(kazoo, f"{chroot}/config/clients/%", written(good))
        notify(kazoo, chroot, "clients/%")
        set_and_notify(kazoo, chroot, "users/bob", producer_byte_rate=3)
        in_force = {Entity(user): limits for user, limits in read.items()}
        wait_until(lambda: values(source) == {**in_force, BOB: {PRODUCE: 3}})
        wait_until(lambda: f"{chroot}/config/clients/%" in source.problems)
        of_entities = {path: text for path, text in source.problems.items() if "/changes/" not in path}
        assert set(of_entities) == {f"{chroot}/config/users/{user}" for user in nonsense} | {
            f"{chroot}/config/clients/%"
        }
        for user in nonsense:
            assert of_entities[f"{chroot}/config/users/{user}"].endswith("the last good quota stays in force")
        assert source.alter([Alteration(Entity(user), {FETCH: 4.0}) for user in nonsense]) == [None] * len(nonsense)
        assert values(source) == {
            BOB: {PRODUCE: 3},
            **{entity: limits | {FETCH: 4} for entity, limits in in_force.items()},
        }
        assert not any("/users/" in path for path in source.problems)
        last_good = source.quotas
    for user, data in nonsense.items():
        put(kazoo, f"{chroot}/config/users/{user}", data)
    with source_at(zookeeper.address, chroot, last_good) as restarted:
        whole = {Entity(user): {FETCH: 4} for user in ("no-json", "no-config", "huge")}
        expected = {entity: limits | whole.get(entity, {}) for entity, limits in in_force.items()}
        assert values(restarted) == {**expected, BOB: {PRODUCE: 3}}
        assert len([path for path in restarted.problems if "/users/" in path]) == len(nonsense)


def test_secrets_and_strange_keys_survive_and_a_node_goes_with_its_last_key(zookeeper, kazoo, chroot):
    scram = {"SCRAM-SHA-256": "salt=x,stored_key=y,server_key=z,iterations=4096"}
    path = f"{chroot}/config/users/alice"
    put(kazoo, path, written({**scram, "scope": "cluster"}))
    with source_at(zookeeper.address, chroot) as source:
        assert source.problems == {path: "ignored, as this version knows no such quota of user=alice: 'scope'"}
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0, SHADOW_PRODUCE: 4.0})]) == [None]
        everything = {**scram, "scope": "cluster", "producer_byte_rate": "5", "shadow_producer_byte_rate": "4"}
        assert kazoo.get(path)[0] == written(everything)
        assert source.alter([Alteration(ALICE, {PRODUCE: None, SHADOW_PRODUCE: None, FETCH: None})]) == [None]
        assert kazoo.get(path)[0] == written(scram)  # the scope goes with the last quota that has one
        count = len(changes(kazoo, chroot))
        assert source.alter([Alteration(ALICE, {PRODUCE: None})]) == [None]
        assert len(changes(kazoo, chroot)) == count, "there was nothing to report"


def test_the_nodes_of_a_user_go_when_they_are_needed_no_more(zookeeper, kazoo, chroot):
    pair = Entity("alice", "app")
    users = f"{chroot}/config/users"
    with source_at(zookeeper.address, chroot) as source:
        source.alter([Alteration(ALICE, {PRODUCE: 1.0}), Alteration(pair, {PRODUCE: 2.0})])
        source.alter([Alteration(ALICE, {PRODUCE: None})])
        assert kazoo.get(f"{users}/alice")[0] == written({})
        assert values(source) == {pair: {PRODUCE: 2}}
        source.alter([Alteration(pair, {PRODUCE: None})])
        assert kazoo.get_children(users) == []


def test_what_has_no_node_is_refused_and_the_others_are_written(zookeeper, chroot):
    with source_at(zookeeper.address, chroot) as source:
        outcomes = source.alter([Alteration(Entity(name), {PRODUCE: 1.0}) for name in ("alice", "..", "bob")])
        assert [type(outcome) for outcome in outcomes] == [type(None), AlterationRefused, type(None)]
        assert "'..'" in str(outcomes[1])
        assert set(source.quotas) == {ALICE, BOB}
        assert source.alter([]) == []


def test_many_alterations_at_once_are_all_written_in_their_order(zookeeper, chroot):
    many = [Alteration(Entity(client_id=f"app-{i % 150}"), {PRODUCE: float(i + 1)}) for i in range(300)]
    pairs = [Alteration(Entity("alice", f"app-{i}"), {FETCH: 1.0}) for i in range(20)]
    with source_at(zookeeper.address, chroot) as source:
        assert source.alter([*many, *pairs]) == [None] * 320
        of_clients = {Entity(client_id=f"app-{i}"): {PRODUCE: i + 151.0} for i in range(150)}
        expected = {**of_clients, **{alteration.entity: {FETCH: 1.0} for alteration in pairs}}
        assert values(source) == expected
        with source_at(zookeeper.address, chroot) as another:
            assert values(another) == expected


def test_two_proxies_that_write_the_same_entities_lose_no_key_of_each_other(zookeeper, chroot):
    entities = [ALICE, Entity("alice", "app"), Entity(client_id="app")]
    failures = []

    def write(source, key, rounds):
        for i in range(rounds):
            outcomes = source.alter([Alteration(entity, {key: i + 1.0}) for entity in entities])
            outcomes += source.alter([Alteration(entity, {key: None}) for entity in entities])
            failures.extend(filter(None, outcomes))
        failures.extend(filter(None, source.alter([Alteration(entity, {key: 7.0}) for entity in entities])))

    with source_at(zookeeper.address, chroot) as one, source_at(zookeeper.address, chroot) as other:
        keys = {PRODUCE: one, FETCH: other, REQUEST: one, MUTATIONS: other}
        threads = [threading.Thread(target=write, args=(source, key, 20)) for key, source in keys.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
        assert failures == []
        expected = {entity: dict.fromkeys(keys, 7.0) for entity in entities}
        for source in (one, other):
            wait_until(lambda source=source: values(source) == expected)


def test_old_notifications_are_purged_by_the_next_change_and_young_ones_stay(zookeeper, kazoo, chroot):
    ahead_ms = [0]
    with source_at(zookeeper.address, chroot, epoch_ms=lambda: time.time_ns() // 1_000_000 + ahead_ms[0]) as source:
        source.alter([Alteration(Entity(client_id=f"app-{i}"), {PRODUCE: 1.0}) for i in range(100)])
        kazoo.create(f"{chroot}/config/changes/not-a-notification", b"")
        ahead_ms[0] = 14 * 60 * 1000
        source.alter([Alteration(ALICE, {PRODUCE: 1.0})])
        wait_until(lambda: len(changes(kazoo, chroot)) == 102)
        ahead_ms[0] = 16 * 60 * 1000
        set_and_notify(kazoo, chroot, "users/bob", producer_byte_rate=3)
        wait_until(lambda: changes(kazoo, chroot) == ["not-a-notification"])
        wait_until(lambda: BOB in source.quotas)
        assert len(source.quotas) == 102


def random_walk(rng, sources, client, chroot, seconds):
    """Everybody changes the same few entities, each his own keys: the sources, and a tool that may be silent."""
    entities = [ALICE, Entity("alice", "app"), Entity("alice", DEFAULT), Entity(client_id="app"), Entity(DEFAULT)]
    keys = dict(zip((PRODUCE, FETCH), sources, strict=True))
    wanted = {}
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        chosen = rng.sample(entities, rng.randrange(1, 4))
        key, source = rng.choice(list(keys.items()))
        limit = rng.choice([None, float(rng.randrange(1, 1000))])
        assert source.alter([Alteration(entity, {key: limit}) for entity in chosen]) == [None] * len(chosen)
        wanted.update({(entity, key): limit for entity in chosen})
        for entity in chosen:
            assert values(source).get(entity, {}).get(key) == limit, "what is written is not in force on return"
        rate = rng.randrange(1, 1000)
        put(client, f"{chroot}/config/users/bob", written({"producer_byte_rate": str(rate)}))
        wanted[BOB, PRODUCE] = rate
        if rng.random() < 0.5:
            notify(client, chroot, "users/bob")
    result = {}
    for (entity, key), limit in wanted.items():
        if limit is not None:
            result.setdefault(entity, {})[key] = limit
    return result


def test_whatever_happens_in_whatever_order_all_see_the_same_in_the_end(zookeeper, kazoo, chroot):
    with (
        source_at(zookeeper.address, chroot, resync_ms=20) as one,
        source_at(zookeeper.address, chroot, resync_ms=50) as other,
    ):
        expected = random_walk(random.Random(5), (one, other), kazoo, chroot, seconds=3)
        for source in (one, other):
            wait_until(lambda source=source: values(source) == expected)
        assert kazoo.get_children(f"{chroot}/config/users") != []
        left = [Alteration(entity, dict.fromkeys(limits)) for entity, limits in expected.items()]
        assert one.alter(left) == [None] * len(left)
        assert kazoo.get_children(f"{chroot}/config/users") == []


def test_a_client_that_may_only_read_reads_and_is_refused_the_rest(zookeeper, kazoo, chroot):
    for root in ("users", "clients", "changes"):
        kazoo.create(f"{chroot}/config/{root}", makepath=True)
    put(kazoo, f"{chroot}/config/users/alice", written({"producer_byte_rate": "5"}))
    for path in ("", "/users", "/users/alice", "/clients", "/changes"):
        kazoo.set_acls(f"{chroot}/config{path}", READ_ACL_UNSAFE)
    with source_at(zookeeper.address, chroot) as source:
        assert values(source) == {ALICE: {PRODUCE: 5}}
        assert source.problems == {f"{chroot}/config/ips": "is missing and cannot be made: not allowed"}
        outcomes = source.alter([Alteration(entity, {FETCH: 1.0}) for entity in (ALICE, BOB, Entity(client_id="app"))])
        assert [type(outcome) for outcome in outcomes] == [AlterationRefused] * 3
        assert str(outcomes[0]) == f"{chroot}/config/users/alice: not allowed"
        assert values(source) == {ALICE: {PRODUCE: 5}}


# --------------------------------------------------------------------- loss


def test_zookeeper_goes_away_and_returns_with_other_data(chroot, record_property):
    with ZooKeeper() as zookeeper:
        with zookeeper.client() as client:
            put(client, f"{chroot}/config/users/bob", written({"producer_byte_rate": "2"}))
            for i in range(10):  # transactions that the next life, on other data, has never seen
                put(client, f"{chroot}/config/clients/app", written({"producer_byte_rate": str(i + 1)}))
        with source_at(zookeeper.address, chroot, resync_ms=1000) as source:
            before = source.quotas
            assert values(source) == {BOB: {PRODUCE: 2}, Entity(client_id="app"): {PRODUCE: 10}}
            zookeeper.kill()
            wait_until(lambda: "zookeeper" in source.problems)
            assert zookeeper.address in source.problems["zookeeper"]
            began = time.monotonic()
            [refused] = source.alter([Alteration(ALICE, {PRODUCE: 1.0})])
            assert isinstance(refused, SourceUnavailable)
            assert "nothing is written" in str(refused)
            record_property("seconds until refused", time.monotonic() - began)
            assert source.quotas == before

            # It is empty at first: what was below the roots stays in force until they are made again.
            zookeeper.start("other")
            wait_until(lambda: "zookeeper" not in source.problems)
            gone = {f"{chroot}/config/{root}" for root in ("users", "clients")}
            wait_until(lambda: set(source.problems) == gone)
            assert source.quotas == before
            [refused] = source.alter([Alteration(ALICE, {PRODUCE: 1.0})])
            assert f"{chroot}/config/users is gone" in str(refused)
            with zookeeper.client() as client:
                put(client, f"{chroot}/config/clients", b"")
                put(client, f"{chroot}/config/users/alice", written({"producer_byte_rate": "5"}))
            wait_until(lambda: values(source) == {ALICE: {PRODUCE: 5}})
            wait_until(lambda: source.problems == {})

            zookeeper.kill()
            zookeeper.start()
            began = time.monotonic()
            wait_until(lambda: source.quotas == before)
            record_property("seconds until the new data are in force", time.monotonic() - began)
            wait_until(lambda: source.problems == {})
            assert source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None]


def test_without_zookeeper_it_starts_on_the_last_good_quotas_and_tries_until_there_is_one(chroot):
    zookeeper = ZooKeeper()
    last_good = {ALICE: {PRODUCE: Limit(5.0, "a znode")}, BOB: {FETCH: Limit(6.0, "another")}}
    with source_at(zookeeper.address, chroot, last_good, resync_ms=1000) as source:
        assert source.quotas == last_good
        assert source.state == (False, False, None)
        assert "Connection refused" in source.problems["zookeeper"]
        with zookeeper:
            with zookeeper.client() as client:
                put(client, f"{chroot}/config/users/alice", written({"producer_byte_rate": "8"}))
            wait_until(lambda: values(source) == {ALICE: {PRODUCE: 8}})
            wait_until(lambda: source.problems == {})
            wait_until(lambda: source.state[:2] == (True, True))
            assert source.state.age_s < TIMEOUT_S
        wait_until(lambda: source.state[:2] == (True, False))


@pytest.mark.nightly
def test_what_was_acknowledged_stands_however_often_zookeeper_is_killed(chroot):
    with ZooKeeper() as zookeeper, source_at(zookeeper.address, chroot, resync_ms=50) as source:
        outcomes, surprises, done = [], [], threading.Event()

        def write():
            while not done.is_set():
                outcomes.append(source.alter([Alteration(ALICE, {PRODUCE: float(len(outcomes) + 1)})])[0])
                if outcomes[-1] is None and values(source)[ALICE] != {PRODUCE: len(outcomes)}:
                    surprises.append((len(outcomes), values(source)))
                if "nothing is written" in str(outcomes[-1]):
                    time.sleep(0.01)  # so that the log of refusals stays short

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(5):
            before = outcomes.count(None)
            wait_until(lambda before=before: outcomes.count(None) > before + 20)
            zookeeper.kill()
            wait_until(lambda: source.problems)
            zookeeper.start()
        wait_until(lambda: outcomes[-1] is None)
        done.set()
        writer.join(TIMEOUT_S)
        assert surprises == []
        assert values(source) == {ALICE: {PRODUCE: len(outcomes)}}
        refused = {str(outcome).rpartition("; ")[2] for outcome in outcomes if outcome}
        assert refused <= {"nothing is written", "it may be written"}
        with zookeeper.client() as client:
            assert client.get(f"{chroot}/config/users/alice")[0] == written({"producer_byte_rate": str(len(outcomes))})


def test_a_zookeeper_that_does_not_respond_holds_up_nothing_for_ever(zookeeper, chroot, monkeypatch):
    with source_at(zookeeper.address, chroot, session_timeout_ms=4_000) as source:
        # A process that stands still loses a session that is so short, and makes a new one.
        wait_until(lambda: source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None])
        monkeypatch.setattr("kafka_throttle.quotas.sources.zookeeper._REQUEST_S", 2.0)
        with zookeeper.frozen():
            [outcome] = source.alter([Alteration(ALICE, {PRODUCE: 2.0})])
            assert isinstance(outcome, SourceUnavailable)
            wait_until(lambda: "zookeeper" in source.problems)
            assert values(source) == {ALICE: {PRODUCE: 1}}
        monkeypatch.setattr("kafka_throttle.quotas.sources.zookeeper._REQUEST_S", TIMEOUT_S)
        wait_until(lambda: source.problems == {})
        wait_until(lambda: source.alter([Alteration(ALICE, {PRODUCE: 3.0})]) == [None])
        assert values(source) == {ALICE: {PRODUCE: 3}}


def test_deleted_notifications_and_roots_are_made_again_and_quotas_stay(zookeeper, kazoo, chroot):
    with source_at(zookeeper.address, chroot, resync_ms=100) as source:
        source.alter([Alteration(ALICE, {PRODUCE: 1.0})])
        kazoo.delete(f"{chroot}/config/changes", recursive=True)
        wait_until(lambda: kazoo.exists(f"{chroot}/config/changes"))
        wait_until(lambda: source.problems == {})
        kazoo.delete(f"{chroot}/config/ips")
        wait_until(lambda: kazoo.exists(f"{chroot}/config/ips"))
        set_and_notify(kazoo, chroot, "users/bob", producer_byte_rate=3)
        wait_until(lambda: values(source) == {ALICE: {PRODUCE: 1}, BOB: {PRODUCE: 3}})


def test_a_source_that_was_never_started_or_has_been_stopped_refuses(zookeeper, chroot):
    source = ZooKeeperSource(ZooKeeperSettings(Ensemble([zookeeper.address]), chroot))
    for _ in range(2):
        [refused] = source.alter([Alteration(ALICE, {PRODUCE: 1.0})])
        assert isinstance(refused, SourceUnavailable)
        source.stop()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:2181", "bad host:x"])
def test_an_invalid_address_is_reported_and_stops_nothing(address, chroot):
    source = ZooKeeperSource(ZooKeeperSettings(Ensemble([address]), chroot))
    source.start(lambda: None)
    try:
        wait_until(lambda: source.problems.get("zookeeper", "").startswith(f"{address}: "))
    finally:
        source.stop()


def test_servers_that_come_back_under_new_addresses_are_found_within_two_session_time_outs(
    zookeeper, chroot, monkeypatch
):
    """At the old addresses there is no response, as where machines are gone. Only one of three has come back."""
    port, real, moved = zookeeper.port, socket.getaddrinfo, threading.Event()

    def getaddrinfo(host, *args, **settings):
        number = host[3:4] if host.startswith("zk-") else ""
        if number:
            host = "127.0.0.1" if moved.is_set() and number == "1" else f"127.9.{1 + moved.is_set()}.{number}"
        return real(host, *args, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    servers = [f"zk-{number}.test:{port}" for number in "123"]
    session_s = 15
    settings = ZooKeeperSettings(Ensemble(servers, session_timeout_ms=1000 * session_s), chroot)
    with contextlib.ExitStack() as stack:
        for number in "123":
            stack.enter_context(deaf_address(f"127.9.1.{number}", port))
        source = ZooKeeperSource(settings)
        source.start(lambda: None)
        stack.callback(source.stop)
        moved.set()
        began = time.monotonic()
        wait_until(lambda: source.was_read)
        assert source.state[:2] == (True, True)
        assert time.monotonic() - began < 2 * session_s


# ----------------------------------------------------------------- identity


def test_with_a_digest_what_is_made_belongs_to_its_creator(zookeeper, kazoo, chroot):
    login = Login("proxy", "se:cret")
    with source_at(zookeeper.address, chroot, digest=login, acl="creator") as source:
        assert source.alter(
            [Alteration(ALICE, {PRODUCE: 1.0}), Alteration(Entity(client_id="app"), {PRODUCE: 2.0})]
        ) == [
            None,
            None,
        ]
        with pytest.raises(NoAuthError):
            kazoo.get(f"{chroot}/config/users/alice")
        assert kazoo.get(f"{chroot}/config/clients/app")[0] == written({"producer_byte_rate": "2"})
        with pytest.raises(NoAuthError):
            kazoo.set(f"{chroot}/config/clients/app", b"")
        last_good = source.quotas
        with source_at(zookeeper.address, chroot, last_good) as stranger:
            assert stranger.quotas == last_good
            [path] = stranger.problems
            assert path == f"{chroot}/config/users"
            assert "not allowed" in stranger.problems[path]
            outcomes = stranger.alter(
                [Alteration(Entity(client_id="app"), {FETCH: 3.0}), Alteration(BOB, {FETCH: 3.0})]
            )
            assert [type(outcome) for outcome in outcomes] == [AlterationRefused, AlterationRefused]
        with source_at(zookeeper.address, chroot, digest=login) as itself:
            assert itself.quotas == last_good


def test_nodes_for_their_creator_need_a_creator_with_a_name(zookeeper, chroot):
    with source_at(zookeeper.address, chroot, acl="creator") as source:
        wait_until(lambda: "needs a login" in source.problems.get("zookeeper", ""))


def test_sasl_names_the_proxy_and_a_wrong_password_is_reported(tmp_path, chroot):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_proxy="secret"; };')
    sasl = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    with ZooKeeper(sasl, [f"-Djava.security.auth.login.config={jaas}"]) as zookeeper:
        with source_at(zookeeper.address, chroot, sasl=Login("proxy", "secret"), acl="creator") as source:
            assert source.problems == {}
            assert source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None]
            options = {"mechanism": "DIGEST-MD5", "username": "proxy", "password": "secret"}
            with zookeeper.client(sasl_options=options) as client:
                [acl] = client.get_acls(f"{chroot}/config/users/alice")[0]
                assert (acl.id.scheme, acl.id.id) == ("sasl", "proxy")
        with source_at(zookeeper.address, chroot, sasl=Login("proxy", "wrong")) as source:
            wait_until(lambda: "sasl" in source.problems.get("zookeeper", "").lower())
            [refused] = source.alter([Alteration(ALICE, {PRODUCE: 2.0})])
            assert isinstance(refused, SourceUnavailable)
        assert "secret" not in str(source.problems)


def test_with_another_digest_in_its_file_the_source_is_somebody_else_without_a_restart(zookeeper, tmp_path, chroot):
    file = tmp_path / "password"
    file.write_text("one")
    chroot = f"/rotated{chroot.replace('/', '-')}"  # not below a node of other tests
    login = Login("proxy", PasswordFile(str(file), chroot))
    with source_at(zookeeper.address, chroot, digest=login, acl="creator", resync_ms=1_000) as source:
        assert source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None]
        file.write_text("two")
        seconds = [make_digest_acl("proxy", "two", all=True)]
        with zookeeper.client(auth_data=[("digest", "proxy:one")]) as owner:
            for below in ("users/alice", "users", "changes"):
                owner.set_acls(f"{chroot}/config/{below}", seconds)
        wait_until(lambda: source.alter([Alteration(ALICE, {PRODUCE: 2.0})]) == [None])
        assert values(source) == {ALICE: {PRODUCE: 2.0}}


def test_a_rotated_sasl_password_is_used_for_the_next_connection_with_few_wrong_logins(tmp_path, chroot):
    jaas, file = tmp_path / "jaas.conf", tmp_path / "password"

    def rotate(password):
        jaas.write_text(
            f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_proxy="{password}"; }};'
        )

    rotate("one")
    file.write_text("one")
    login = Login("proxy", PasswordFile(str(file), chroot))
    sasl = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    with ZooKeeper(sasl, [f"-Djava.security.auth.login.config={jaas}"]) as zookeeper:
        with source_at(zookeeper.address, chroot, sasl=login, acl="creator") as source:
            assert source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None]
            zookeeper.kill()
            rotate("two")
            zookeeper.start()
            wait_until(lambda: "(refused " in source.problems.get("zookeeper", ""))
            assert str(file) in source.problems["zookeeper"]
            file.write_text("two")
            wait_until(lambda: source.problems == {})
            assert source.alter([Alteration(ALICE, {PRODUCE: 2.0})]) == [None]
        assert 1 <= zookeeper.log().count("failed to SASL authenticate") <= 3


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def certificate(folder, name, signed_by=None, subject_alternative="IP:127.0.0.1"):
    """A key and a certificate; the file `name.both` has both."""
    key, found = folder / f"{name}.key", folder / f"{name}.pem"
    by = ("-CA", folder / f"{signed_by}.pem", "-CAkey", folder / f"{signed_by}.key") if signed_by else ()
    extension = f"subjectAltName={subject_alternative}" if signed_by else "basicConstraints=critical,CA:TRUE"
    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", extension,
        *by, "-keyout", key, "-out", found,
    )  # fmt: skip
    (folder / f"{name}.both").write_bytes(key.read_bytes() + found.read_bytes())


@pytest.mark.nightly
def test_tls_with_certificates_on_both_sides(tmp_path, chroot):
    certificate(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    certificate(tmp_path, "proxy", "ca")
    certificate(tmp_path, "elsewhere")
    tls = {
        "secureClientPort": "SECURE_PORT",
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "ssl.keyStore.location": str(tmp_path / "server.both"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(tmp_path / "ca.pem"),
        "ssl.trustStore.type": "PEM",
    }
    ours = Tls(str(tmp_path / "ca.pem"), str(tmp_path / "proxy.pem"), str(tmp_path / "proxy.key"))
    with ZooKeeper(tls) as zookeeper:
        address = f"127.0.0.1:{zookeeper.secure_port}"
        with source_at(address, chroot, tls=ours, acl="creator") as source:
            assert source.problems == {}
            assert source.alter([Alteration(ALICE, {PRODUCE: 1.0})]) == [None]
            with zookeeper.client() as client, pytest.raises(NoAuthError):
                client.get(f"{chroot}/config/users/alice")
        distrustful = Tls(str(tmp_path / "elsewhere.pem"), ours.certificate, ours.key)
        for settings, word in ((distrustful, "CERTIFICATE_VERIFY_FAILED"), (Tls(str(tmp_path / "ca.pem")), "")):
            with source_at(address, chroot, tls=settings) as source:
                wait_until(lambda source=source, word=word: word in source.problems.get("zookeeper", "-"))
        by_name = f"localhost:{zookeeper.secure_port}"
        with source_at(by_name, chroot, tls=ours) as source:
            wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in source.problems.get("zookeeper", ""))
        unnamed = Tls(ours.ca, ours.certificate, ours.key, verify_host_name=False)
        with source_at(by_name, chroot, tls=unnamed) as source:
            assert values(source) == {ALICE: {PRODUCE: 1}}


# -------------------------------------------------------------- with a broker


@pytest.fixture
def shared(zookeeper_kafka):
    """A source under Kafka's own root; no quota is left after the test."""
    with source_at(zookeeper_kafka.zookeeper, "") as source:
        yield source
        left = [Alteration(entity, dict.fromkeys(limits)) for entity, limits in source.quotas.items()]
        assert [outcome for outcome in source.alter(left) if outcome] == []


def kafka_configs(cluster, *args):
    return cluster.tool("kafka-configs", "--bootstrap-server", cluster.bootstrap_servers, *args)


def test_a_broker_describes_and_enforces_what_is_written_under_its_own_root(zookeeper_kafka, shared):
    limits = {
        ALICE: {PRODUCE: 1024.0, REQUEST: 12.5},
        Entity("alice", "a~b c"): {FETCH: 2048.0, MUTATIONS: 1e7},
        Entity(DEFAULT): {PRODUCE: 4096.0},
        Entity(client_id="throttled"): {PRODUCE: 500.0},
        Entity(ip="10.9.8.7"): {CONNECTIONS: 3.0},
    }
    assert (
        shared.alter([Alteration(entity, of_it) for entity, of_it in limits.items() if entity.user is not DEFAULT])
        == [None] * 4
    )
    described = kafka_configs(zookeeper_kafka, "--describe", "--entity-type", "users")
    assert "user-principal 'alice' are" in described
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=12.5" in described
    described = kafka_configs(
        zookeeper_kafka, "--describe", "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients"
    )
    assert "client-id 'a~b c' are" in described
    assert "consumer_byte_rate=2048.0" in described
    assert "controller_mutation_rate=1.0E7" in described
    assert "ip '10.9.8.7' are connection_creation_rate=3.0" in kafka_configs(
        zookeeper_kafka, "--describe", "--entity-type", "ips"
    )
    make_topic(zookeeper_kafka.bootstrap_servers, "zookeeper-source", 1)
    throttles = []
    producer = Producer(
        {
            "bootstrap.servers": zookeeper_kafka.bootstrap_servers,
            "client.id": "throttled",
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    for _ in range(10):  # a node that stood still meanwhile may first take it, and only then hear of the quota
        producer.produce("zookeeper-source", b"x" * 10_000)
        assert producer.flush(TIMEOUT_S) == 0
        producer.poll(1)
        if throttles:
            break
    assert throttles[0] > 8, "20 times the quota: 10 s' worth is free, so at least as much is owed"


def test_what_kafka_configs_sets_is_in_force_here_and_neither_loses_the_others_keys(zookeeper_kafka, shared):
    pair = ("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default")
    kafka_configs(zookeeper_kafka, "--alter", "--add-config", "producer_byte_rate=77,request_percentage=0.5", *pair)
    wait_until(lambda: values(shared) == {Entity("bob", DEFAULT): {PRODUCE: 77, REQUEST: 0.5}})
    assert shared.alter([Alteration(Entity("bob", DEFAULT), {FETCH: 88.0, REQUEST: None})]) == [None]
    kafka_configs(zookeeper_kafka, "--alter", "--delete-config", "producer_byte_rate", *pair)
    wait_until(lambda: values(shared) == {Entity("bob", DEFAULT): {FETCH: 88}})
    with client_of(zookeeper_kafka.zookeeper) as client:
        assert client.get("/config/users/bob")[0] is None, "the data of a node between are null when a broker makes it"
        assert shared.alter([Alteration(Entity("bob", DEFAULT), {FETCH: None})]) == [None]
        assert not client.exists("/config/users/bob")
    assert shared.problems == {}


def test_a_broker_enforces_a_node_with_strange_keys_but_takes_no_change_of_it_so_that_we_make_none(
    zookeeper_kafka, shared
):
    [refused] = shared.alter([Alteration(Entity(client_id="app"), {SHADOW_PRODUCE: 5.0})])
    assert isinstance(refused, AlterationRefused)
    assert "/config/clients/app is a broker's too" in str(refused)
    with client_of(zookeeper_kafka.zookeeper) as client:
        set_and_notify(client, "", "clients/app", producer_byte_rate=5, shadow_producer_byte_rate=4)
        wait_until(lambda: values(shared) == {Entity(client_id="app"): {PRODUCE: 5, SHADOW_PRODUCE: 4}})
        app = ("--entity-type", "clients", "--entity-name", "app")
        assert "'app' are producer_byte_rate=5.0" in kafka_configs(zookeeper_kafka, "--describe", *app)
        with pytest.raises(RuntimeError, match="UnknownServerException"):
            kafka_configs(zookeeper_kafka, "--alter", "--add-config", "consumer_byte_rate=6", *app)
        assert client.get("/config/clients/app")[0] == written(
            {"producer_byte_rate": "5", "shadow_producer_byte_rate": "4"}
        )
        assert client.get_acls("/config/clients/app")[0] == OPEN_ACL_UNSAFE


def test_a_broker_ignores_the_scope_in_its_own_node_which_survives_its_refusals_and_our_changes(
    zookeeper_kafka, shared
):
    [refused] = shared.alter([Alteration(Entity(client_id="scoped"), {PRODUCE: 500.0}, Scope.CLUSTER)])
    assert isinstance(refused, AlterationRefused)
    assert "/config/clients/scoped is a broker's too, which takes no changes of a node with a scope" in str(refused)
    scoped, of_it = Entity(client_id="scoped"), ("--entity-type", "clients", "--entity-name", "scoped")
    make_topic(zookeeper_kafka.bootstrap_servers, "zookeeper-scope", 1)
    with client_of(zookeeper_kafka.zookeeper) as client:
        set_and_notify(client, "", "clients/scoped", producer_byte_rate=500, scope="cluster")
        wait_until(lambda: shared.quotas == {scoped: {PRODUCE: Limit(500, "/config/clients/scoped", Scope.CLUSTER)}})
        assert "'scoped' are producer_byte_rate=500.0" in kafka_configs(zookeeper_kafka, "--describe", *of_it)
        throttles = []
        producer = Producer(
            {
                "bootstrap.servers": zookeeper_kafka.bootstrap_servers,
                "client.id": "scoped",
                "throttle_cb": lambda event: throttles.append(event.throttle_time),
            }
        )
        deadline = time.monotonic() + TIMEOUT_S
        while not throttles and time.monotonic() < deadline:
            producer.produce("zookeeper-scope", bytes(1000))
            producer.flush(1)
        assert throttles, "the broker does not enforce the limit beside the scope"
        producer.purge()
        with pytest.raises(RuntimeError, match="UnknownServerException"):
            kafka_configs(zookeeper_kafka, "--alter", "--add-config", "producer_byte_rate=6", *of_it)
        assert shared.alter([Alteration(scoped, {PRODUCE: 700.0})]) == [None]
        assert client.get("/config/clients/scoped")[0] == written({"producer_byte_rate": "700", "scope": "cluster"})
        wait_until(lambda: "producer_byte_rate=700.0" in kafka_configs(zookeeper_kafka, "--describe", *of_it))
        assert shared.alter([Alteration(scoped, {PRODUCE: None})]) == [None]
        assert not client.exists("/config/clients/scoped")


def test_a_scope_is_written_kept_and_removed_with_the_last_quota_that_has_one(zookeeper, kazoo, chroot):
    with source_at(zookeeper.address, chroot) as source:
        assert source.alter([Alteration(ALICE, {PRODUCE: 5.0, MUTATIONS: 1.0}, Scope.CLUSTER)]) == [None]
        layer = f"{chroot}/config/users/alice"
        assert source.quotas == {ALICE: {PRODUCE: Limit(5, layer, Scope.CLUSTER), MUTATIONS: Limit(1, layer)}}
        assert source.alter([Alteration(ALICE, {PRODUCE: 6.0})]) == [None]
        with source_at(zookeeper.address, chroot) as another:
            assert another.quotas[ALICE][PRODUCE] == Limit(6, layer, Scope.CLUSTER)
        assert source.alter([Alteration(ALICE, {PRODUCE: None})]) == [None]
        assert kazoo.get(layer)[0] == written({"controller_mutation_rate": "1.0"})
        [refused] = source.alter([Alteration(ALICE, {}, Scope.CLUSTER)])
        assert isinstance(refused, AlterationRefused)
        assert str(refused).startswith("scope of user=alice: expected producer_byte_rate or")
