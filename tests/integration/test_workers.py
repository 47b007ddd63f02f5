"""Several workers behind the same ports: what an operator and a client see is one proxy."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import Producer

from kafka_throttle.pipeline.table.accounts import Writer, lost_ends
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_admins import altering, ask_with_kafka_python, describing
from tests.integration.restarts import ActivatedProxy, Prober, is_running
from tests.integration.small_node import api_versions_request, small_node
from tests.integration.steady_producers import Load, WithConfluentKafka, WithKafkaPython
from tests.integration.test_restart import Pumped
from tests.integration.test_usage import (
    Observed,
    accounts_of_spool,
    assert_nothing_is_missing,
    produce_and_consume,
    records_of,
    wire_sums,
)
from tests.integration.topics import make_topic
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

NOBODY = f"{HOST}:9"
"""No cluster is there."""

WORKERS = 2
SIZE = 10_000
"""Bytes of a record."""

LIMIT = 200_000
"""Bytes/s of the client over all workers."""


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@contextmanager
def of_workers(*args, cls=ProxyProcess, workers=WORKERS, **settings):
    """A proxy with so many workers, all of which serve."""
    with cls(*args, workers=workers, **{"limits": {"drain_s": 1}, **settings}) as proxy:
        proxy.wait_for(lambda: len(proxy.events("listening")) >= workers, 10, "open ports of all workers")
        yield proxy


def pids(proxy):
    """The process of each worker."""
    [forker] = psutil.Process(proxy.pid).children()
    return sorted(child.pid for child in forker.children())


def connections(pid, port):
    """How many connections to a port a worker has."""
    found = psutil.Process(pid).net_connections("tcp")
    return sum(1 for one in found if one.status == "ESTABLISHED" and one.laddr.port == port)


def connected(stack, proxy, count):
    """So many connections that send nothing."""
    return [stack.enter_context(socket.create_connection((HOST, proxy.port), TIMEOUT_S)) for _ in range(count)]


def is_open(sock):
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True


# -------------------------------------------------------------- without a cluster


def test_connections_are_spread_over_the_workers_and_counted_once(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    connected(stack, proxy, 60)
    proxy.wait_for(lambda: proxy.metric("client_sockets") == 60, 10, "all connections")
    of_each = [connections(pid, proxy.port) for pid in pids(proxy)]
    assert sum(of_each) == 60
    assert min(of_each) > 5
    assert proxy.metric("workers") == WORKERS
    assert proxy.metric("client_sockets_limit") == 10_000, "what is written, though each has a part"
    [page] = [proxy.admin("explain?user=alice&client_id=etl")]
    assert page["virtual_cluster"] == "main"
    assert {line["worker"] for line in proxy.events("listening")} == {0, 1}


def test_a_worker_that_is_killed_is_replaced_and_only_its_connections_are_lost(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    sockets = connected(stack, proxy, 40)
    proxy.wait_for(lambda: proxy.metric("client_sockets") == 40, 10, "all connections")
    victim, survivor = pids(proxy)
    left = connections(survivor, proxy.port)
    os.kill(victim, signal.SIGKILL)
    with Prober([proxy.port]) as prober:
        proxy.wait_for(lambda: proxy.events("worker_replaced"), 10, "another worker")
        proxy.wait_for(lambda: prober.connects > 50, 10, "new connections")
    assert prober.failures == {}
    assert sum(map(is_open, sockets)) == left
    [lost] = proxy.events("worker_lost")
    assert (lost["worker_pid"], lost["status"]) == (victim, -signal.SIGKILL)
    assert survivor in pids(proxy)
    assert proxy.metric("worker_restarts_total") == 1


def test_a_worker_that_stands_still_is_replaced_and_new_clients_are_served(stack):
    with small_node() as node:
        proxy = stack.enter_context(of_workers(node, listener={"node_ids": [1]}))
        victim, survivor = pids(proxy)
        os.kill(victim, signal.SIGSTOP)
        proxy.wait_for(lambda: proxy.events("worker_replaced"), TIMEOUT_S, "another worker")
        assert proxy.status("livez") == 200
        proxy.wait_for(lambda: proxy.status("readyz") == 200, TIMEOUT_S, "being ready")
        assert survivor in pids(proxy)
        assert victim not in pids(proxy)
        for _ in range(40):
            with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as sock:
                sock.sendall(api_versions_request())
                assert len(sock.recv(4_096)) > 20
    [lost] = proxy.events("worker_lost")
    assert (lost["worker_pid"], lost["status"]) == (victim, -signal.SIGKILL)


@pytest.mark.nightly
def test_workers_go_on_after_their_supervisor_and_all_of_them_stood_still(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    workers = pids(proxy)
    for pid in (proxy.pid, *workers):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(15)
    for pid in (proxy.pid, *workers):
        os.kill(pid, signal.SIGCONT)
    proxy.wait_for(lambda: proxy.status("livez") == 200, TIMEOUT_S, "being live")
    time.sleep(4)
    assert pids(proxy) == workers
    assert proxy.events("worker_lost") == []


@pytest.mark.nightly
def test_the_proxy_is_not_live_if_no_worker_can_be_started_any_more(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    [forker] = psutil.Process(proxy.pid).children()
    victim, _ = pids(proxy)
    os.kill(forker.pid, signal.SIGSTOP)
    os.kill(victim, signal.SIGKILL)
    proxy.wait_for(lambda: proxy.status("livez") == 503, 2 * TIMEOUT_S, "not being live")
    os.kill(forker.pid, signal.SIGCONT)
    proxy.wait_for(lambda: proxy.status("livez") == 200, TIMEOUT_S, "being live")
    assert len(pids(proxy)) == WORKERS


def test_a_changed_file_is_in_force_in_all_workers(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    config = json.loads(proxy.config_path.read_text())
    config["limits"]["max_connections"] = 11
    config["virtual_clusters"][0]["quotas"] = {"entries": [{"user": "alice", "producer_byte_rate": 5}]}
    proxy.write_text(json.dumps(config))
    proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the new file")
    assert proxy.metric("client_sockets_limit") == 11
    assert proxy.metric("config_reloads_total", result="applied") == 1
    [entity] = proxy.admin("quotas")["quotas"]
    assert entity["limits"]["producer_byte_rate"]["limit"] == 5
    [quota] = [one for one in proxy.admin("explain?user=alice")["quotas"] if one["quota"] == "producer_byte_rate"]
    assert quota["rule"]["limit"] == 5
    config["workers"] = 3
    proxy.write_text(json.dumps(config))
    [refused] = proxy.wait_for(lambda: proxy.events("config_rejected"), 10, "a refusal")
    assert refused["problems"] == ["workers (needs a restart)"]


def test_another_process_cannot_take_over(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    os.kill(proxy.pid, signal.SIGUSR2)
    [line] = proxy.wait_for(lambda: proxy.events("handover_failed"), 10, "a refusal")
    assert "workers" in line["problem"]
    assert proxy.status("livez") == 200


def test_the_workers_end_with_their_supervisor(stack):
    proxy = stack.enter_context(of_workers(NOBODY, ready=False))
    connected(stack, proxy, 4)
    workers = pids(proxy)
    os.kill(proxy.pid, signal.SIGKILL)
    proxy.wait_for_exit()
    wait_until(lambda: not any(map(is_running, workers)))
    proxy.start()
    proxy.wait_for(lambda: len(proxy.events("listening")) == 2 * WORKERS, 10, "open ports")
    assert len(pids(proxy)) == WORKERS


def test_the_proxy_stops_with_the_process_that_forks_workers(stack):
    proxy = ProxyProcess(NOBODY, ready=False, workers=WORKERS, limits={"drain_s": 0})
    stack.callback(proxy.kill)
    proxy.start()
    proxy.wait_for(lambda: len(proxy.events("listening")) == WORKERS, 10, "open ports")
    [forker] = psutil.Process(proxy.pid).children()
    workers = pids(proxy)
    forker.kill()
    assert proxy.wait_for_exit() == 1
    assert proxy.events("worker_forker_lost")
    assert not any(map(is_running, workers))


def test_a_signal_to_the_process_group_stops_all_once(stack):
    proxy = ProxyProcess(NOBODY, ready=False, workers=WORKERS, limits={"drain_s": 0})
    stack.callback(proxy.kill)
    proxy.start()
    proxy.wait_for(lambda: len(proxy.events("listening")) == WORKERS, 10, "open ports")
    processes = [proxy.pid, *(child.pid for child in psutil.Process(proxy.pid).children(recursive=True))]
    for pid in processes:
        os.kill(pid, signal.SIGTERM)
    assert proxy.wait_for_exit() == 0
    assert len(proxy.events("worker_stopped")) == WORKERS
    assert not proxy.events("worker_lost")
    assert not any(map(is_running, processes))


def test_a_port_that_another_process_has_is_a_problem(stack):
    proxy = ProxyProcess(NOBODY, ready=False, workers=WORKERS)
    stack.callback(proxy.kill)
    with (
        socket.create_server((HOST, proxy.port), reuse_port=True),
        pytest.raises(AssertionError, match="already in use"),
    ):
        proxy.start()


def test_sockets_of_systemd_are_shared_by_the_workers(stack):
    proxy = stack.enter_context(of_workers(NOBODY, cls=ActivatedProxy, ready=False, limits={"drain_s": 0}))
    with Prober([*proxy.ports, proxy.metrics_port, proxy.admin_port]) as prober:
        proxy.restart()
    assert prober.connects > 50
    assert prober.failures == {}


# ----------------------------------------------------------------- with a cluster


@pytest.mark.timeout(240)
def test_quotas_that_are_altered_at_one_worker_are_in_force_at_all(newest_kafka, stack, tmp_path):
    settings = {"source": {"admin_users": ["ANONYMOUS"], "state_file": str(tmp_path / "state")}}
    proxy = stack.enter_context(of_workers(newest_kafka, **settings))
    entity = frozenset({("client-id", "etl")})
    for limit in (1000.0, 2000.0, None):
        [altered] = ask_with_kafka_python(proxy.bootstrap, [altering({entity: {"producer_byte_rate": limit}})])
        assert altered.results == {entity: (0, None)}
        expected = {} if limit is None else {entity: {"producer_byte_rate": limit}}
        seen = Counter(
            str(ask_with_kafka_python(proxy.bootstrap, [describing(("client-id", "exact", "etl"))])[0].entries)
            for _ in range(12)  # each on a connection of its own, so that each worker is asked
        )
        assert seen == {str(expected): 12}
    lines = proxy.events("quota_altered")
    assert [line.get("new") for line in lines] == [1000.0, 2000.0, None]
    assert all(line["worker"] in (0, 1) for line in lines)
    assert not proxy.events("quota_changed"), "an alteration is reported once, with its client"


@pytest.mark.timeout(300)
def test_records_of_all_workers_are_what_crossed_the_wire(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"workers-{uuid4().hex}")
    with Observed(newest_kafka, tmp_path / "spool", workers=WORKERS) as observed:
        proxy, observer = observed.proxy, observed.observer
        produce_and_consume(observed.bootstrap, topic)
        observed.clients_are_gone()
        crossed = observer.counts
        requests = sum(value for name, _, value in proxy.series() if name == "kafka_throttle_requests_total")
        proxy.wait_for(lambda: wire_sums(records_of(observed.files)) == crossed, TIMEOUT_S, "records of all of it")
        proxy.stop()
        files = observed.files
    assert wire_sums(records_of(files)) == crossed
    assert requests > 20
    instances = {rows[0].instance for rows in files}
    assert instances == {"here.0", "here.1"}
    for instance in instances:
        assert_nothing_is_missing([rows for rows in files if rows[0].instance == instance])


@pytest.mark.timeout(300)
def test_only_a_worker_that_was_killed_has_lost_the_end_of_its_records(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"workers-{uuid4().hex}")
    with Observed(newest_kafka, tmp_path / "spool", workers=WORKERS) as observed:
        proxy = observed.proxy
        for run in range(2):
            if run:
                proxy.start()
            produce_and_consume(observed.bootstrap, topic)
            proxy.stop()
            assert lost_ends(accounts_of_spool(observed.directory)) == [], "all workers ended in order"
        proxy.start()
        known = {rows[0].epoch for rows in observed.files}
        produce_and_consume(observed.bootstrap, topic)
        [newest, *_] = proxy.wait_for(
            lambda: [rows[0] for rows in observed.files if rows[0].epoch not in known], TIMEOUT_S, "records"
        )
        os.kill(pids(proxy)[int(newest.instance.removeprefix("here."))], signal.SIGKILL)
        proxy.wait_for(lambda: proxy.events("worker_replaced"), 10, "another worker")
        proxy.stop()
        lost = [one.writer for one in lost_ends(accounts_of_spool(observed.directory))]
    assert lost == [Writer("usage", newest.instance, newest.epoch)]


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_under_load_loses_no_record(newest_kafka, stack):
    topics = [f"killed-{uuid4().hex}" for _ in range(2)]
    for topic in topics:
        make_topic(newest_kafka.bootstrap_servers, topic, partitions=3)
    quotas = [{"client_id": "steady", "producer_byte_rate": 50_000}]
    proxy = stack.enter_context(of_workers(newest_kafka, quotas))
    producers = [
        WithKafkaPython(topics[0], bootstrap_servers=proxy.bootstrap, client_id="steady"),
        WithConfluentKafka(topics[1], **{"bootstrap.servers": proxy.bootstrap, "client.id": "steady"}),
    ]
    loads = [Pumped(stack.enter_context(Load(producer, 2_000))) for producer in producers]
    for killed in range(1, 4):
        time.sleep(2)
        os.kill(pids(proxy)[killed % WORKERS], signal.SIGKILL)
        proxy.wait_for(lambda killed=killed: len(proxy.events("worker_replaced")) == killed, 10, "another worker")
    time.sleep(2)
    for load, topic in zip(loads, topics, strict=True):
        load.stop()
        load.load.assert_all_are_there_once_and_in_order(newest_kafka, topic)
    assert not proxy.events("internal_error")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_client_at_all_workers_gets_its_quota_as_at_one(newest_kafka, stack):
    quotas = [{"client_id": "spread", "producer_byte_rate": LIMIT}]
    floods = []
    for workers in (1, WORKERS):
        make_topic(newest_kafka.bootstrap_servers, topic := f"spread-{workers}-{uuid4().hex}")
        proxy = stack.enter_context(of_workers(newest_kafka, quotas, workers=workers))
        floods.append(Flood(proxy, topic))
        stack.callback(floods[-1].stop)
    of_one, of_all = floods
    ports = list(of_all.proxy.node_ports.values())
    while not all(sum(connections(pid, port) for port in ports) for pid in pids(of_all.proxy)):
        of_all.begin_anew()
        time.sleep(2)
    time.sleep(20)
    before, begin = [flood.bytes() for flood in floods], time.monotonic()
    time.sleep(110)  # ten times the window of a quota, in which rates come in bursts
    after, seconds = [flood.bytes() for flood in floods], time.monotonic() - begin
    one, all_ = ((now - then) / seconds / LIMIT for now, then in zip(after, before, strict=True))
    assert all_ <= 1.05, (all_, one)
    assert all_ >= 0.95 * min(one, 1.0), (all_, one)
    assert not of_all.proxy.events("internal_error")
    assert not of_one.proxy.events("internal_error")


class Flood:
    """Producers of one client-id that together want somewhat more than its quota: much more would come in bursts."""

    PRODUCERS = 8

    def __init__(self, proxy, topic):
        self.proxy = proxy
        self._topic = topic
        self._start()

    def bytes(self):
        """What the proxy has passed on."""
        return self.proxy.metric("request_bytes_total")

    def begin_anew(self):
        """The same with other connections."""
        self.stop()
        self._start()

    def _start(self):
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.PRODUCERS)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        settings = {"client.id": "spread", "linger.ms": 0, "batch.size": SIZE, "max.in.flight": 1}
        producer = Producer({"bootstrap.servers": self.proxy.bootstrap, **settings})
        while not self._done.is_set():
            if len(producer) < 2:
                producer.produce(self._topic, bytes(SIZE))
            producer.poll(self.PRODUCERS * SIZE / LIMIT / 1.3)
        producer.purge()

    def stop(self):
        """End all of them."""
        self._done.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
