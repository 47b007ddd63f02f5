"""Which source a configuration means, for the service and the command line alike."""

import json
from pathlib import Path

import pytest

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.server.quota_sources import renew, source_of, unset, upstream_settings, zookeeper_settings
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.last_good import LastGood
from kafka_throttle.quotas.sources.upstream import UpstreamSource
from tests.fakes.kafka_quotas import FakeCluster

PRODUCE = QuotaKey(QuotaType.PRODUCE)
ALICE = Entity("alice")


FOLDER = Path("/etc/kafka-throttle")


def cluster(rate=1000, upstream=None, **quotas):
    entries = [{"user": "alice", "producer_byte_rate": rate}] if rate else []
    config = {
        "name": "main",
        "upstream": {"bootstrap_servers": ["10.0.0.1:9092"], **(upstream or {})},
        "listeners": [{"name": "plain", "bind": "127.0.0.1", "port": 19092, "node_ids": ["0-2"]}],
        "quotas": {**({"entries": entries} if entries else {}), **quotas},
    }
    return config_of({"virtual_clusters": [config]}, FOLDER).virtual_clusters[0]


def test_a_file_is_its_entries_under_a_state_file_beside_it(tmp_path):
    source = source_of(cluster(state_file=str(tmp_path / "state.json")), tmp_path / "proxy.yaml")
    assert source.quotas == {ALICE: {PRODUCE: Limit(1000.0, "proxy.yaml")}}
    assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
    assert source.quotas == {ALICE: {PRODUCE: Limit(5.0, "state.json")}}
    assert json.loads((tmp_path / "state.json").read_text())["version"] == 1
    unset(source, ALICE, [PRODUCE])
    assert source.quotas == {ALICE: {PRODUCE: Limit(1000.0, "proxy.yaml")}}


def test_without_a_state_file_nothing_can_be_unset(tmp_path):
    with pytest.raises(AlterationRefused):
        unset(source_of(cluster(), tmp_path / "proxy.yaml"), ALICE, [PRODUCE])


def test_a_file_of_several_instances_takes_no_changes(tmp_path):
    settings = cluster(state_file=str(tmp_path / "state.json"), instances=3)
    [problem] = source_of(settings, tmp_path / "proxy.yaml").alter([Alteration(ALICE, {PRODUCE: 5.0})])
    assert "3 instances" in str(problem)
    assert not (tmp_path / "state.json").exists()


def test_a_changed_file_is_taken_up(tmp_path):
    source = source_of(cluster(), tmp_path / "proxy.yaml")
    renew(source, cluster(rate=7))
    assert source.quotas == {ALICE: {PRODUCE: Limit(7.0, "proxy.yaml")}}


@pytest.mark.parametrize("kept", [False, True])
def test_changed_servers_of_the_cluster_are_asked_from_then_on(tmp_path, kept):
    fake = FakeCluster()
    upstream = UpstreamSource(upstream_settings(cluster(rate=None, source="upstream")), fake.connect)
    source = LastGood(upstream, tmp_path / "last-good.json") if kept else upstream
    changed = {"bootstrap_servers": ["10.0.0.2:9092", "[::1]:9092"], "connect_timeout_ms": 500}
    renew(source, cluster(rate=None, source="upstream", upstream=changed))
    assert source.alter([Alteration(ALICE, {PRODUCE: 5.0})]) == [None]
    assert [(one.server, one.timeout_s) for one in fake.connections] == [("10.0.0.2:9092", 0.5)]
    upstream.stop()


class Layerless:
    """A source in which a quota is there or not."""

    def __init__(self, result):
        self.result, self.altered = result, []

    def alter(self, alterations):
        self.altered += alterations
        return [self.result for _ in alterations]


def test_where_there_are_no_layers_unsetting_removes():
    source = Layerless(None)
    unset(source, ALICE, [PRODUCE])
    assert source.altered == [Alteration(ALICE, {PRODUCE: None})]
    with pytest.raises(AlterationRefused):
        unset(Layerless(AlterationRefused("no")), ALICE, [PRODUCE])


def test_last_good_quotas_of_the_cluster_are_on_disk_where_a_file_is_named(tmp_path):
    state_file = str(tmp_path / "last-good.json")
    assert isinstance(source_of(cluster(rate=None, source="upstream"), tmp_path / "proxy.yaml"), UpstreamSource)
    kept = source_of(cluster(rate=None, source="upstream", state_file=state_file), tmp_path / "proxy.yaml")
    assert isinstance(kept, LastGood)
    assert kept.name == "upstream"


def test_zookeeper_is_asked_under_a_root_of_our_own_unless_another_is_named(tmp_path):
    (tmp_path / "password").write_text("secret\n")
    login = {"username": "kt", "password_file": str(tmp_path / "password")}
    for settings, chroot in (({}, "/kafka-throttle/main"), ({"chroot": "/"}, ""), ({"chroot": "/a/b"}, "/a/b")):
        zookeeper = {"servers": ["10.0.0.1:2181", "[::1]:2181"], **login, **settings}
        found = zookeeper_settings(cluster(rate=None, source="zookeeper", zookeeper=zookeeper))
        ensemble = found.ensemble
        assert ensemble.servers == ("10.0.0.1:2181", "[::1]:2181")
        assert found.chroot == chroot
        assert ensemble.digest.user == "kt"
        assert ensemble.digest.begin().secret == "secret"
        assert ensemble.sasl is ensemble.tls is None


def test_a_password_that_cannot_be_read_is_reported_with_its_setting(tmp_path):
    zookeeper = {"servers": ["10.0.0.1:2181"], "username": "kt", "password_file": "password"}
    with pytest.raises(ConfigErrors) as caught:
        source_of(cluster(rate=None, source="zookeeper", zookeeper=zookeeper), tmp_path / "proxy.yaml")
    expected = "/etc/kafka-throttle/password cannot be read: No such file or directory"
    assert str(caught.value) == f"quotas.zookeeper.password_file: {expected}"
