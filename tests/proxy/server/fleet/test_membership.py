"""The fleet of a virtual cluster, made from its configuration."""

import asyncio
from pathlib import Path

import pytest

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.server.fleet.membership import fleet_of, renew, transport_of
from kafka_throttle.proxy.server.fleet.zookeeper import ZooKeeperTransport
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from kafka_throttle.quotas.entities import Entity, QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.row_copies import values_of
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.fakes.clock import FakeClock

ALICE = SensorKey("main", 1, QuotaType.PRODUCE, SensorTags("alice", ""))


def cluster(fleet, **quotas):
    config = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["10.0.0.1:9092"]},
        "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
        "quotas": quotas,
        "fleet": fleet,
    }
    return config_of({"virtual_clusters": [config]}, Path("/etc/kafka-throttle")).virtual_clusters[0]


def made(config, instance="proxy-a"):
    """The fleet, and the quotas that it divides."""
    clock = FakeClock()
    manager = ClientQuotaManager(Sensors(16), QuotaTable({Entity("alice"): {QuotaType.PRODUCE: 1000.0}}))
    connections = ConnectionQuotas(ConnectionLimits(), clock.now_ms())
    connections.add_virtual_cluster("main", 11, 1000)
    transport = transport_of(config, clock)
    return fleet_of(config, transport, manager, connections, instance, clock), manager, clock


def test_without_a_fleet_there_is_nothing_to_carry():
    assert transport_of(cluster(None), FakeClock()) is None


@pytest.mark.parametrize(
    ("fleet", "quotas", "section"),
    [
        ({}, {"source": "zookeeper", "zookeeper": {"servers": ["a:1"]}}, "quotas.zookeeper"),
        ({"zookeeper": {"servers": ["b:1"]}}, {}, "fleet.zookeeper"),
    ],
)
def test_the_ensemble_is_its_own_or_that_of_the_quotas(fleet, quotas, section):
    login = {"username": "me", "password_file": "missing"}
    settings = {"fleet": fleet, "quotas": quotas}
    name, _, _ = section.partition(".")
    settings[name]["zookeeper"] |= login
    with pytest.raises(ConfigErrors) as caught:
        transport_of(cluster(settings["fleet"], **settings["quotas"]), FakeClock())
    assert str(caught.value).startswith(f"{section}.password_file: /etc/kafka-throttle/missing cannot be read")


async def test_its_transport_says_why_it_cannot_connect_and_ends_at_once():
    transport = transport_of(
        cluster({"zookeeper": {"servers": ["127.0.0.1:1"]}, "session_timeout_ms": 8_000}), FakeClock()
    )
    assert isinstance(transport, ZooKeeperTransport)
    assert transport.cut_off_ms == 7_333
    changed = asyncio.Event()
    await transport.start("a#1", changed.set)
    async with asyncio.timeout(60):
        await changed.wait()
    assert "Connection refused" in transport.problems[""]
    await transport.stop()


def test_a_topic_is_found_by_the_servers_of_a_changed_file():
    transport = transport_of(cluster({"topic": "claims"}), FakeClock())
    changed = cluster({"topic": "claims"})
    upstream = {"bootstrap_servers": ["10.0.0.2:9092"], "connect_timeout_ms": 700}
    renew(transport, changed.model_copy(update={"upstream": changed.upstream.model_validate(upstream)}))
    assert (transport._log.servers.configured, transport._log.timeout_s) == (("10.0.0.2:9092",), 0.7)
    renew(None, changed)


async def test_an_instance_that_cannot_hear_the_others_gives_out_one_part_of_the_instances():
    fleet, manager, clock = made(cluster({"zookeeper": {"servers": ["127.0.0.1:1"]}}, instances=4))
    handle = manager.bind("main", 1, "alice", "etl", clock.now_ms()).produce
    await fleet.turn()
    clock.advance(6_000)
    await fleet.turn()
    assert fleet.member.is_cut_off
    assert fleet.member.members == 4
    assert manager.sensors.limit(handle) == pytest.approx(250, rel=0.02)
    assert fleet.member.explain(values_of(ALICE)).why.value == "this instance is cut off from the others"
    await fleet.stop()
