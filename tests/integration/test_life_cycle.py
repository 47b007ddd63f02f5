"""The process: starting without its cluster, losing it, ports in use, stopping."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.topics import make_topic
from tests.integration.workloads.scenarios import read_all
from tests.integration.workloads.with_kafka_python import KafkaPython
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

SOON_BELIEVED_DEAD = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
"""The next life of a killed node waits for that of the last one to be over."""


@pytest.mark.kafka
def test_the_proxy_starts_before_its_cluster_and_serves_when_that_comes():
    """The cluster's only node does not respond, as if it were gone, until it is started again."""
    with KafkaCluster(nodes=1, extra=lambda node_id: SOON_BELIEVED_DEAD) as cluster:
        cluster.kill(1)
        upstream = {"connect_timeout_ms": 2000, "metadata_refresh_s": 1}
        with ProxyProcess(cluster, ready=False, upstream=upstream, source={"source": "upstream"}) as proxy:
            proxy.wait_for(lambda: proxy.events("cluster_unreachable"), 10, "word of the cluster")
            status, body = proxy.get("readyz")
            unknown, unreachable = sorted(json.loads(body)["reasons"])
            assert status == 503
            assert unreachable.startswith(
                f"virtual cluster main: the cluster is unreachable: {cluster.bootstrap_servers}: "
            )
            assert unknown == "virtual cluster main: quotas are not known yet (source upstream)"
            assert (proxy.metric("cluster_up"), proxy.metric("quota_source_up"), proxy.metric("ready")) == (0, 0, 0)
            assert proxy.status("livez") == 200
            line, *_ = proxy.events("cluster_unreachable")
            assert line["bootstrap_servers"] == [cluster.bootstrap_servers]
            with socket.create_connection((HOST, proxy.port)) as sock:
                sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0")
                sock.settimeout(TIMEOUT_S)
                assert sock.recv(100) == b""
                client = "{}:{}".format(*sock.getsockname())
            assert proxy.closing_line(client)["reason"] == "node_unreachable"
            cluster.restart(1)
            proxy.wait_for(lambda: proxy.status("readyz") == 200, 30, "being ready")
            proxy.wait_for(lambda: proxy.events("ready") and proxy.events("quotas_known"), 10, "word of that")
            assert any(unknown in line["reasons"] for line in proxy.events("not_ready"))
            assert (proxy.metric("cluster_up"), proxy.metric("cluster_nodes"), proxy.metric("ready")) == (1, 1, 1)
            assert (proxy.metric("quota_source_up"), proxy.metric("quotas_known")) == (1, 1)
            assert proxy.events("cluster_reached")
            assert proxy.metric("metadata_refresh_failures_total") >= 1
            brokers_are_reported(proxy)
            the_cluster_goes_and_comes_back(cluster, proxy)


def the_cluster_goes_and_comes_back(cluster, proxy):
    with socket.create_connection((HOST, proxy.node_ports[1])) as sock:
        sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0")
        assert sock.recv(100)
        cluster.kill(1)
        sock.settimeout(TIMEOUT_S)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
        client = "{}:{}".format(*sock.getsockname())
    assert proxy.closing_line(client)["reason"] in ("node_closed", "node_lost")
    assert proxy.status("livez") == 200
    proxy.wait_for(lambda: proxy.status("readyz") == 503, 30, "being not ready")
    cluster.restart(1)
    proxy.wait_for(lambda: proxy.status("readyz") == 200, 30, "being ready")
    brokers_are_reported(proxy)
    assert not proxy.events("internal_error")


def brokers_are_reported(proxy):
    """Soon: a cluster of one node may take that for dead for a moment, when it has stood still."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(KafkaError, OSError):
            if brokers(proxy) == {1: proxy.node_ports[1]}:
                return
        assert time.monotonic() < deadline, "the proxy does not find its way to the node"


def brokers(proxy):
    admin = KafkaAdminClient(bootstrap_servers=proxy.bootstrap, bootstrap_timeout_ms=10_000, request_timeout_ms=10_000)
    try:
        return {broker["broker_id"]: broker["port"] for broker in admin.describe_cluster()["brokers"]}
    finally:
        admin.close()


def test_connections_are_refused_while_quotas_are_not_known_if_that_is_wanted():
    source = {"source": "upstream", "when_unknown": "refuse"}
    with ProxyProcess(f"{HOST}:9", ready=False, source=source, limits={"drain_s": 0}) as proxy:
        proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
        [line] = proxy.wait_for(lambda: proxy.events("quotas_unknown"), 10, "word of the quotas")
        assert (line["level"], line["setting"]) == ("error", "quotas.when_unknown")
        with socket.create_connection((HOST, proxy.port)) as sock:
            sock.settimeout(TIMEOUT_S)
            assert sock.recv(1) == b""
        proxy.wait_for(lambda: proxy.closed() == {"quotas_unknown": 1}, 10, "its reason")
        proxy.write_text(json.dumps(proxy.config()).replace("refuse", "serve"))
        proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the change")
        with socket.create_connection((HOST, proxy.port)):
            proxy.wait_for(lambda: proxy.metric("client_sockets"), 10, "a connection that is served")


def test_changed_bootstrap_servers_are_where_quotas_are_read_from(newest_kafka):
    with ProxyProcess(f"{HOST}:9", ready=False, source={"source": "upstream"}, limits={"drain_s": 0}) as proxy:
        proxy.wait_for(lambda: proxy.events("quotas_unknown"), 10, "word of the quotas")
        command = [sys.executable, "-m", "proxy", "explain", "-c", str(proxy.config_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
        assert (done.returncode, "not known yet" in done.stdout) == (1, True), done
        config = proxy.config()
        config["virtual_clusters"][0]["upstream"]["bootstrap_servers"] = newest_kafka.bootstrap_servers.split(",")
        proxy.write_text(json.dumps(config))
        proxy.wait_for(lambda: proxy.events("quotas_known"), TIMEOUT_S, "quotas of the other cluster")
        proxy.wait_for(lambda: proxy.status("readyz") == 200, TIMEOUT_S, "being ready")


def run_to_its_end(config_path):
    command = [sys.executable, "-m", "proxy", "run", "-c", str(config_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)


@pytest.mark.parametrize(
    "which", ["node", "admin", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bootstrap", "metrics"))]
)
def test_a_port_in_use_ends_the_start_with_its_place_in_the_configuration(which):
    proxy = ProxyProcess(f"{HOST}:9", ready=False)
    clients = "virtual_clusters[0].listeners[0].port"
    port, setting = {
        "bootstrap": (proxy.port, clients),
        "node": (proxy.node_ports[2], clients),
        "metrics": (proxy.metrics_port, "metrics.port"),
        "admin": (proxy.admin_port, "admin.port"),
    }[which]
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        done = run_to_its_end(proxy.config_path)
    proxy.kill()
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{setting}: ")
    assert str(port) in line
    assert "in use" in line
    assert done.stdout == ""


def test_a_wrong_configuration_ends_the_start_with_every_problem():
    proxy = ProxyProcess(f"{HOST}:9", ready=False)
    config = proxy.config([{"user": "a"}])
    config["virtual_clusters"][0]["listeners"][0]["prot"] = 1
    proxy.write_text(json.dumps(config))
    done = run_to_its_end(proxy.config_path)
    proxy.kill()
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "virtual_clusters[0].listeners[0].prot",
        "virtual_clusters[0].quotas.entries[0]",
    ]


@pytest.mark.parametrize("source", ["upstream", "zookeeper"])
def test_sigterm_during_the_start_does_not_wait_for_a_source_that_is_silent(source):
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        quotas = {"source": source, **({"zookeeper": {"servers": [address]}} if source == "zookeeper" else {})}
        upstream = {"connect_timeout_ms": 300_000}
        with ProxyProcess(address, ready=False, source=quotas, upstream=upstream, limits={"drain_s": 0}) as proxy:
            proxy.stop()


def test_after_sigterm_the_proxy_is_not_ready_at_once_and_stops_after_a_while():
    with ProxyProcess(f"{HOST}:9", ready=False, drain={"lame_duck_s": 1}, limits={"drain_s": 0}) as proxy:
        proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
        assert proxy.terminate() == 0
        [unready] = [line for line in proxy.events("not_ready") if line["reasons"] == ["shutting down"]]
        [stopping] = proxy.events("stopping")
        at = [datetime.fromisoformat(line["timestamp"]) for line in (unready, stopping)]
        assert at[1] - at[0] > timedelta(seconds=0.9)
        assert proxy.log()[-1]["event"] == "stopped"


def test_a_proxy_that_is_not_ready_any_more_accepts_connections_until_a_second_sigterm_ends_it_at_once():
    with ProxyProcess(f"{HOST}:9", ready=False, drain={"lame_duck_s": 3600}, limits={"drain_s": 3600}) as proxy:
        os.kill(proxy.pid, signal.SIGTERM)
        proxy.wait_for(lambda: reasons_of(proxy) == ["shutting down"], 10, "being not ready")
        with socket.create_connection((HOST, proxy.port)) as sock:
            proxy.wait_for(lambda: proxy.metric("client_sockets"), 10, "a connection")
            assert proxy.terminate() == 0
            assert sock.recv(1) == b""
        assert proxy.events("stopping_at_once")
        assert proxy.log()[-1]["event"] == "stopped"


def reasons_of(proxy):
    return json.loads(proxy.get("readyz")[1])["reasons"]


def test_sigterm_under_load_closes_all_and_exits_well_and_no_acknowledged_record_is_lost(newest_kafka):
    with ProxyProcess(newest_kafka, limits={"drain_s": 3}) as proxy:
        make_topic(proxy.bootstrap, "sigterm", 3)
        load = Load(proxy.bootstrap, "sigterm")
        load.start()
        proxy.wait_for(lambda: len(load.acknowledged) > 500, 20, "the load to flow")
        assert proxy.terminate() == 0
        load.stop()
        reasons = {line["reason"] for line in proxy.events("connection_closed")}
        assert "shutdown" in reasons
        assert "internal_error" not in reasons
        [stopping] = proxy.events("stopping")
        assert stopping["connections"] >= 1
        assert proxy.log()[-1]["event"] == "stopped"
    with pytest.raises(OSError):
        socket.create_connection((HOST, proxy.port))
    library = KafkaPython(newest_kafka.bootstrap_servers)
    found = {record.value for record in read_all(library, "sigterm", len(load.acknowledged))}
    library.close()
    assert load.acknowledged <= found


class Load:
    """A producer that does not stop by itself, and what of it was acknowledged."""

    def __init__(self, bootstrap, topic):
        self.acknowledged = set()
        self._bootstrap, self._topic = bootstrap, topic
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(TIMEOUT_S)

    def _run(self):
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, linger_ms=2)
        number = 0
        while not self._done.is_set():
            value = f"number {number}"
            sent = producer.send(self._topic, value.encode(), partition=number % 3)
            sent.add_callback(lambda _, value=value: self.acknowledged.add(value))
            number += 1
            time.sleep(0.001)
        with contextlib.suppress(KafkaError):  # the proxy may be gone, with what is left to send
            producer.close(timeout=1)
