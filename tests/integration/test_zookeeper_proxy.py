"""A proxy with its quotas in ZooKeeper: a change there is felt, and quotas hold while ZooKeeper is gone."""

import threading
import time

import pytest

from kafka_throttle.proxy.decisions.quota_api import REQUEST_TIMED_OUT
from kafka_throttle.quotas.sources.znodes import notification
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.integration.raw_client import RawClient
from tests.integration.test_quota_changes import delay_s, is_soon
from tests.integration.zookeeper_process import ZooKeeper

CHROOT = "/kafka-throttle/main"
RATE = 20_000
_REQUEST_BYTES = 10_000
_HELD = 2.5
"""By how much two windows may exceed the rate at worst: by the burst from rest, when a process stood still before,
and the request that is too much. A client that is not held has ten times the rate and more.
"""


@pytest.fixture
def zookeeper():
    with ZooKeeper() as process:
        yield process


def write(client, client_id, rate):
    """As kafka-configs does: the node, then the notification."""
    path = f"{CHROOT}/config/clients/{client_id}"
    client.ensure_path(path)
    client.set(path, b'{"version":1,"config":{"producer_byte_rate":"%d"}}' % rate)
    client.create(f"{CHROOT}/config/changes/config_change_", notification(f"clients/{client_id}"), sequence=True)


class Load(threading.Thread):
    """Sends requests as fast as it may, and counts responses; a lost connection is made again."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.answered_bytes = 0
        self._port = port
        self._ended = threading.Event()

    def run(self):
        while not self._ended.is_set():
            try:
                with RawClient((HOST, self._port), "noisy") as client:
                    while not self._ended.is_set():
                        client.produce(_REQUEST_BYTES)
                        self.answered_bytes += _REQUEST_BYTES
            except (OSError, AssertionError):
                time.sleep(0.1)

    def end(self):
        self._ended.set()

    def rate_over(self, seconds):
        began, before = time.monotonic(), self.answered_bytes
        time.sleep(seconds)
        return (self.answered_bytes - before) / (time.monotonic() - began)


def test_a_change_in_zookeeper_is_felt_within_a_second(zookeeper, newest_kafka):
    source = {"source": "zookeeper", "zookeeper": {"servers": [zookeeper.address]}}
    with ProxyProcess(newest_kafka, source=source) as proxy, zookeeper.client() as client:
        assert is_soon(lambda: delay_s(proxy.node_ports[1], lambda client_id: write(client, client_id, 1)))


def test_who_changes_a_quota_while_zookeeper_is_away_is_told_to_try_again(newest_kafka):
    source = {"source": "zookeeper", "zookeeper": {"servers": [f"{HOST}:1"]}, "admin_listeners": ["plain"]}
    with ProxyProcess(newest_kafka, source=source, ready=False) as proxy:
        with QuotaClient((HOST, proxy.port)) as client:
            [refused] = client.alter([((("user", "alice"),), [("producer_byte_rate", 1000.0, False)])])
        assert refused.error_code == REQUEST_TIMED_OUT
        assert refused.error_message.endswith("nothing is written")
        of_alice = ("--entity-type", "users", "--entity-name", "alice")
        with pytest.raises(RuntimeError, match=r"TimeoutException: .*nothing is written"):
            newest_kafka.tool(
                "kafka-configs", "--bootstrap-server", proxy.bootstrap, "--alter",
                "--add-config", "producer_byte_rate=5", *of_alice,
            )  # fmt: skip


@pytest.mark.nightly
def test_quotas_hold_while_zookeeper_is_gone_also_over_a_restart_of_the_proxy(zookeeper, newest_kafka, tmp_path):
    source = {
        "source": "zookeeper",
        "zookeeper": {"servers": [zookeeper.address]},
        "state_file": str(tmp_path / "last-good.json"),
    }
    soon = {"ZooKeeperConfig.session_timeout_ms": 4000}
    with ProxyProcess(newest_kafka, source=source, limits={"drain_s": 1}, constants=soon) as proxy:
        with zookeeper.client() as client:
            write(client, "noisy", RATE)
        load = Load(proxy.node_ports[1])
        load.start()
        time.sleep(11)  # the burst from rest
        assert load.rate_over(11) < RATE * _HELD
        zookeeper.kill()
        proxy.wait_for(lambda: proxy.events("quota_problem"), 20, "word that ZooKeeper is gone")
        assert load.rate_over(11) < RATE * _HELD
        proxy.stop()
        proxy.start()
        time.sleep(11)  # a restart forgets what was measured
        assert load.rate_over(11) < RATE * _HELD
        assert proxy.events("quota_problem")
        zookeeper.start()
        with zookeeper.client() as client:
            client.delete(f"{CHROOT}/config/clients/noisy")
            client.create(f"{CHROOT}/config/changes/config_change_", notification("clients/noisy"), sequence=True)
            assert proxy.wait_for(lambda: load.rate_over(1) > 10 * RATE, 60, "the end of the quota")
        load.end()
