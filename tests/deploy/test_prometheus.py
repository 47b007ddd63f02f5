"""A real Prometheus and real proxies: every query is run, and each alert fires for its cause."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from demo.kafka_cluster import KafkaCluster
from tests.deploy.load import loaded_proxy
from tests.deploy.panels import DASHBOARDS, panel_queries
from tests.deploy.prometheus import WINDOW_S, PrometheusProcess
from tests.deploy.test_monitoring import alert_rules
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import RawClient
from tests.integration.zookeeper_process import ZooKeeper
from tests.support.certificates import Authority
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.nightly, pytest.mark.kafka]

NOWHERE = f"{HOST}:9"
NOT_PRODUCED = {"CpuBusy", "InternalErrors"}
"""Alerts whose causes are not produced here: a core that is full for minutes, and a bug. promtool tests their rules."""
PRODUCED = set()
"""Alerts whose causes the tests below produce."""
NO_SERIES = {("fleet", "Failed connections to nodes"), ("fleet", "Problems with quotas")}
"""Panels that are empty while all is well."""
METADATA_OF_ALL = b"\xff\xff\xff\xff"


def fires(*alerts):
    """Notes that a test produces the cause of these alerts."""
    PRODUCED.update(alerts)
    return lambda test: test


@pytest.fixture(scope="module")
def kafka():
    with KafkaCluster(nodes=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    with PrometheusProcess(tmp_path_factory.mktemp("prometheus")) as process:
        yield process


@pytest.fixture
def start(kafka, prometheus):
    """Starts a proxy that Prometheus scrapes; `change` may change its configuration first."""
    with contextlib.ExitStack() as stack:

        def start_one(quotas=(), servers=None, change=lambda config: None, **settings):
            settings.setdefault("limits", {}).setdefault("drain_s", 0)
            proxy = ProxyProcess(servers or kafka, quotas, **settings)
            stack.callback(proxy.kill)
            config = proxy.config(quotas)
            change(config)
            proxy.write_text(json.dumps(config))
            proxy.start()
            proxy.instance = prometheus.scrape(proxy)
            stack.callback(prometheus.forget, proxy.instance)
            return proxy

        yield start_one


def connect(proxy, client_id="someone"):
    return RawClient((HOST, proxy.node_ports[1]), client_id)


@pytest.fixture
def clients():
    """Holds connections open until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield stack


# ------------------------------------------------------------------- queries


def test_every_query_is_one_and_every_panel_has_series_under_load(kafka, prometheus, tmp_path):
    with loaded_proxy(kafka, tmp_path) as proxy:
        instance = prometheus.scrape(proxy)
        time.sleep(2 * WINDOW_S)
        without = {(query.dashboard, query.panel) for query in all_queries() if not series_of(prometheus, query)}
        for rule in alert_rules():
            prometheus.query(rule["expr"])
        prometheus.forget(instance)
    assert without == NO_SERIES


def all_queries():
    return [query for dashboard in DASHBOARDS for query in panel_queries(dashboard)]


def series_of(prometheus, query):
    return prometheus.query(query.expression) if query.is_number else prometheus.query_range(query.expression, 20)


# -------------------------------------------------------------------- alerts


def test_nothing_fires_while_all_is_well(start, prometheus):
    proxy = start([{"client_id": "someone", "producer_byte_rate": 1_000_000}])
    with connect(proxy) as client:
        for _ in range(10 * WINDOW_S):
            client.produce(1_000)
            time.sleep(0.1)
    assert prometheus.fired(proxy.instance) <= {"KafkaThrottleEventLoopLag"}  # of a machine that stood still


@fires("NotReady", "ClusterUnreachable", "QuotaSourceDown", "QuotaSourceStale", "QuotaProblems", "NodeUnreachable")
def test_a_node_that_stops(kafka, start, prometheus):
    upstream = {"metadata_refresh_s": 1, "connect_timeout_ms": 1000}
    proxy = start(upstream=upstream, source={"source": "upstream", "poll_interval_ms": 200})
    time.sleep(3)
    kafka.kill(1)
    try:
        proxy.wait_for(lambda: proxy.status("readyz") == 503, TIMEOUT_S, "being not ready")
        for _ in range(10):
            with contextlib.suppress(AssertionError, OSError), connect(proxy) as client:
                client.produce(100)
        names = ("NotReady", "ClusterUnreachable", "QuotaSourceDown", "QuotaSourceStale", "QuotaProblems")
        prometheus.wait_for_alerts(proxy.instance, *names, "NodeUnreachable")
    finally:
        kafka.restart(1)


@fires("QuotasUnknown")
def test_quotas_that_were_never_read(start, prometheus):
    proxy = start(servers=NOWHERE, ready=False, source={"source": "upstream"})
    prometheus.wait_for_alerts(proxy.instance, "QuotasUnknown")


@fires("Down")
def test_a_proxy_that_dies(start, prometheus):
    proxy = start()
    time.sleep(2)
    os.kill(proxy.pid, signal.SIGKILL)
    prometheus.wait_for_alerts(proxy.instance, "Down")


@fires("NodeLeftOut")
def test_a_node_without_a_port(start, prometheus):
    proxy = start(listener={"node_ids": [7]}, ready=False)
    proxy.wait_for(lambda: proxy.events("cluster_reached"), TIMEOUT_S, "the nodes of the cluster")
    time.sleep(2)
    with RawClient((HOST, proxy.port), "someone") as client:
        client.send(3, 1, METADATA_OF_ALL)
        client.receive(0)
    prometheus.wait_for_alerts(proxy.instance, "NodeLeftOut")


@fires("SensorsOverflow")
def test_more_entities_than_sensors(start, prometheus):
    proxy = start([{"default_client_id": True, "producer_byte_rate": 100_000}], limits={"max_sensors": 16})
    time.sleep(2)
    for number in range(40):
        with connect(proxy, f"client-{number}") as client:
            client.produce(100)
    prometheus.wait_for_alerts(proxy.instance, "SensorsOverflow")


@fires("ClientThrottled")
def test_a_client_far_over_its_quota(start, prometheus):
    proxy = start([{"client_id": "noisy", "producer_byte_rate": 10_000}], throttle={"max_throttle_ms": 2000})
    over = threading.Event()

    def produce():
        with contextlib.suppress(AssertionError, OSError), connect(proxy, "noisy") as client:
            while not over.is_set():
                client.produce(50_000)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        prometheus.wait_for_alerts(proxy.instance, "ClientThrottled")
    finally:
        over.set()
        thread.join(TIMEOUT_S)


@fires("ConnectionsRefused")
def test_a_client_that_connects_more_often_than_it_may(start, clients, prometheus):
    def change(config):
        config["virtual_clusters"][0]["connections"] = {"max_connections_per_ip": 1}

    proxy = start(change=change)
    clients.enter_context(connect(proxy)).produce(100)
    deadline = time.monotonic() + TIMEOUT_S
    while "KafkaThrottleConnectionsRefused" not in prometheus.fired(proxy.instance):
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError), socket.create_connection((HOST, proxy.port)) as sock:
            sock.recv(1)
        time.sleep(0.2)


@fires("ListenerFull")
def test_a_listener_with_as_many_connections_as_it_may_have(start, clients, prometheus):
    proxy = start(listener={"connections": {"max_connections": 2}})
    for _ in range(2):
        clients.enter_context(connect(proxy)).produce(100)
    prometheus.wait_for_alerts(proxy.instance, "ListenerFull")


@fires("SocketsNearLimit")
def test_nearly_as_many_clients_as_may_be(start, clients, prometheus):
    proxy = start(limits={"max_connections": 10})
    for _ in range(9):
        clients.enter_context(connect(proxy)).produce(100)
    prometheus.wait_for_alerts(proxy.instance, "SocketsNearLimit")


@fires("DescriptorsNearLimit")
def test_few_descriptors(start, prometheus):
    proxy = start()
    descriptors = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
    _, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (descriptors + 3, hard))
    prometheus.wait_for_alerts(proxy.instance, "DescriptorsNearLimit")


@fires("EventLoopLag")
def test_a_process_that_stands_still(start, prometheus):
    proxy = start()
    os.kill(proxy.pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(proxy.pid, signal.SIGCONT)
    prometheus.wait_for_alerts(proxy.instance, "EventLoopLag")


@fires("WorkerLost")
def test_a_worker_that_dies(start, prometheus):
    proxy = start(workers=2)
    time.sleep(3)
    [forker] = psutil.Process(proxy.pid).children()
    forker.children()[0].kill()
    prometheus.wait_for_alerts(proxy.instance, "WorkerLost")


@fires("ReloadFailed", "HandoverFailed")
def test_a_file_with_a_mistake(start, prometheus):
    proxy = start()
    proxy.write_text("virtual_clusters: none")
    prometheus.wait_for_alerts(proxy.instance, "ReloadFailed")
    os.kill(proxy.pid, signal.SIGUSR2)
    prometheus.wait_for_alerts(proxy.instance, "HandoverFailed")


@fires("CertificateExpiresSoon", "CertificateExpires", "CertificateRejected")
def test_certificates(start, tmp_path, prometheus):
    authority = Authority(tmp_path)
    issued = authority.issue(HOST, valid=timedelta(hours=20))  # it has begun three days ago
    files = {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file)}
    proxy = start(listener={"tls": files})
    prometheus.wait_for_alerts(proxy.instance, "CertificateExpiresSoon")
    assert "KafkaThrottleCertificateExpires" not in prometheus.fired(proxy.instance)
    shutil.copy(authority.issue(HOST, valid=timedelta(hours=1), name="next").certificate_file, issued.certificate_file)
    prometheus.wait_for_alerts(proxy.instance, "CertificateRejected")  # its key is another one
    shutil.copy(tmp_path / "next.key", issued.key_file)
    prometheus.wait_for_alerts(proxy.instance, "CertificateExpires")


def produce_as_many(proxy, count):
    """One small request each of so many client-ids."""
    with connect(proxy) as client:
        for number in range(count):
            client._client_id = b"client-%d" % number
            client.produce(100)


@fires("UsageWritesFail", "UsageRecordsLost", "HistoryNotWritten")
def test_a_disk_that_takes_no_more(start, tmp_path, prometheus):
    usage = {"directory": str(tmp_path / "usage"), "window_s": 1, "file_s": 1, "queue_records": 1000}
    proxy = start(usage=usage, history={"directory": str(tmp_path / "history")})
    time.sleep(2)
    resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (0, 0))
    produce_as_many(proxy, 2_500)
    prometheus.wait_for_alerts(proxy.instance, "UsageWritesFail", "UsageRecordsLost", "HistoryNotWritten")


@fires("UsageShippingStuck", "UsageFilesLost")
def test_a_topic_that_cannot_be_reached_for_a_while(kafka, start, tmp_path, prometheus):
    """The way to it is a proxy that starts late."""
    way = ProxyProcess(kafka, limits={"drain_s": 0})
    usage = {
        "directory": str(tmp_path / "usage"),
        "window_s": 1,
        "file_s": 1,
        "total_mib": 1,
        "kafka": {"bootstrap_servers": [way.bootstrap], "topic": "usage"},
    }
    proxy = start(usage=usage, constants={"UsageConfig.file_mib": 1, "UsageConfig.keep_at_least_s": 0})
    produce_as_many(proxy, 10)
    prometheus.wait_for_alerts(proxy.instance, "UsageShippingStuck")
    while not proxy.metric("usage_files_deleted_total"):
        produce_as_many(proxy, 1_000)
    with way:
        prometheus.wait_for_alerts(proxy.instance, "UsageFilesLost")


@fires("CutOffFromFleet", "FleetClaimsRefused")
def test_a_fleet_whose_claims_make_no_sense_and_whose_zookeeper_is_gone(start, prometheus):
    with ZooKeeper() as zookeeper:
        proxy = start(fleet={"path": "/fleet", "zookeeper": {"servers": [zookeeper.address]}})
        with zookeeper.client() as client:
            client.create("/fleet/members/foreign", b"foreign", ephemeral=True)
            prometheus.wait_for_alerts(proxy.instance, "FleetClaimsRefused")
        zookeeper.kill()
        prometheus.wait_for_alerts(proxy.instance, "CutOffFromFleet")


def test_the_cause_of_every_alert_is_produced():
    assert {rule["alert"].removeprefix("KafkaThrottle") for rule in alert_rules()} == PRODUCED | NOT_PRODUCED
