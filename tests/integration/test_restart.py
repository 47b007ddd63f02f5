"""Restarts without a refused connection: by SIGUSR2, with sockets that systemd keeps open, with SO_REUSEPORT."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS
from tests.integration import restart_costs
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.restarts import ActivatedProxy, Prober, RelayedProxy, is_running
from tests.integration.steady_producers import PARTITIONS, Load, WithConfluentKafka, WithKafkaPython
from tests.integration.test_leadership import Reader
from tests.integration.topics import make_topic
from tests.integration.workloads.__main__ import library_of
from tests.integration.workloads.scenarios import assert_same, wait_until
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

NOBODY = f"{HOST}:9"
"""No cluster is there."""

LIMIT = 5_000
"""Bytes/s of the producers together, at each node."""

SIZE = 2_000
"""Bytes of each record."""

BURST_S = 10
"""What a client may send at once after a time without use, in seconds of its limit: N-1 windows."""


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def relayed(stack, *args, **settings):
    proxy = RelayedProxy(*args, **{"limits": {"drain_s": 1}, **settings})
    return stack.enter_context(proxy)


# -------------------------------------------------------------- without a cluster


def test_the_next_process_takes_over_all_ports_and_the_old_one_ends(stack):
    proxy = relayed(stack, NOBODY, ready=False)
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    with Prober([*proxy.ports, proxy.metrics_port, proxy.admin_port]) as prober:
        first = proxy.pid
        line = proxy.take_over()
        proxy.wait_for(lambda: not is_running(first), 10, "the end of the old process")
        time.sleep(0.1)
    assert prober.connects > 100
    assert prober.failures == {}
    assert line["successor_pid"] == proxy.pid
    [started] = proxy.events("handover_started")
    assert started["sockets"] == len(proxy.ports) + 2
    assert proxy.status("livez") == 200
    assert not proxy.events("internal_error")
    assert len(proxy.events("stopped")) == 1


@pytest.mark.rule("handed over")
def test_connection_rates_go_on_over_the_restart(stack):
    quotas = [{"default_ip": True, "connection_creation_rate": 1}]
    proxy = relayed(stack, NOBODY, quotas, ready=False)
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    for _ in range(8):
        socket.create_connection((HOST, proxy.port)).close()
    proxy.wait_for(lambda: proxy.metric("ip_connection_accept_rate") > 0.5, 10, "a measured rate")
    proxy.take_over()
    proxy.wait_for(lambda: proxy.events("sensors_taken_over"), 10, "the sensors")
    assert proxy.metric("ip_connection_accept_rate") > 0
    assert proxy.metric("sensors_taken_over") > 2
    [line] = proxy.events("sensors_taken_over")
    assert line["left_out"] == 0


def test_an_idle_connection_is_closed_and_its_client_comes_to_the_next_process(stack):
    proxy = relayed(stack, NOBODY, ready=False, limits={"drain_s": 3600})
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as idle:
        proxy.wait_for(lambda: proxy.metric("client_sockets"), 10, "a connection")
        first = proxy.pid
        proxy.take_over()
        assert idle.recv(1) == b""
    proxy.wait_for(lambda: not is_running(first), 10, "the end of the old process")


def test_of_three_processes_the_second_waits_for_what_the_first_has_to_say(stack):
    proxy = relayed(stack, NOBODY, ready=False, limits={"drain_s": 5})
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as amid:
        amid.sendall(b"\0\0\0\x20\0\x12")  # in the middle of a frame, so it stays as long as it may
        proxy.wait_for(lambda: proxy.metric("client_sockets"), 10, "a connection")
        for _ in range(2):
            proxy.take_over()
        first, second = proxy.pids[:2]
        proxy.wait_for(lambda: not is_running(second), 10, "the end of the second process")
        proxy.wait_for(lambda: not is_running(first), 1, "the end of the first, which may stay for 5 s")
    assert not proxy.events("successor_lost")


@pytest.mark.parametrize("how", ["configuration", "time", pytest.param("death", marks=pytest.mark.nightly)])
def test_if_the_next_process_does_not_start_the_old_one_goes_on(stack, tmp_path, how):
    constants = {"RestartConfig.successor_timeout_s": 8} if how == "time" else {}
    proxy = relayed(stack, NOBODY, ready=False, constants=constants)
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    good, fifo = proxy.config_path.read_text(), tmp_path / "waits"
    os.mkfifo(fifo)
    bad = json.loads(good)
    bad["virtual_clusters"][0]["quotas"] = {"state_file": str(fifo)}  # its reader waits for ever
    proxy.write_text("nonsense: true" if how == "configuration" else json.dumps(bad))
    with socket.create_connection((HOST, proxy.port), TIMEOUT_S) as idle, Prober([proxy.port]) as prober:
        os.kill(proxy.pid, signal.SIGUSR2)
        if how == "death":
            kill_child(proxy)
        [line] = proxy.wait_for(lambda: proxy.events("handover_failed"), TIMEOUT_S, "word of the failure")
        assert {
            "configuration": "the other process has ended, with exit status 2",
            "time": "the new process did not accept connections within 8 s",
            "death": "the other process has ended, with exit status -9",
        }[how] == line["problem"]
        assert proxy.metric("handover_failures_total") == 1
        assert proxy.status("livez") == 200
        idle.setblocking(False)
        with pytest.raises(BlockingIOError):
            idle.recv(1)
        proxy.wait_for(lambda: not psutil.Process(proxy.pid).children(), 10, "the end of the new process")
        proxy.write_text(good)
        proxy.wait_for(lambda: proxy.events("config_reloaded"), 10, "the good configuration")
        proxy.take_over()
    assert prober.failures == {}


def kill_child(proxy):
    """The new process, once it has begun to start."""
    [child] = proxy.wait_for(lambda: psutil.Process(proxy.pid).children(), 10, "a new process")
    child.kill()


@pytest.mark.nightly
def test_sigterm_during_a_handover_ends_both(stack, tmp_path):
    proxy = relayed(stack, NOBODY, ready=False)
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    fifo = tmp_path / "waits"
    os.mkfifo(fifo)
    config = json.loads(proxy.config_path.read_text())
    config["virtual_clusters"][0]["quotas"] = {"state_file": str(fifo)}
    proxy.write_text(json.dumps(config))
    os.kill(proxy.pid, signal.SIGUSR2)
    [child] = proxy.wait_for(lambda: psutil.Process(proxy.pid).children(), 10, "a new process")
    assert proxy.terminate() == 0
    assert not is_running(child.pid)


def test_systemd_is_told_which_process_is_the_service(stack, tmp_path):
    manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(TIMEOUT_S)
    proxy = relayed(stack, NOBODY, ready=False, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert manager.recv(1000).decode() == f"READY=1\nMAINPID={proxy.pid}"
    os.kill(proxy.pid, signal.SIGHUP)
    assert manager.recv(1000).decode().startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert manager.recv(1000).decode() == "READY=1"
    first = proxy.pid
    proxy.take_over()
    assert manager.recv(1000).decode() == f"READY=1\nMAINPID={proxy.pid}"
    proxy.wait_for(lambda: not is_running(first), 10, "the end of the old process")
    proxy.terminate()
    assert manager.recv(1000).decode() == "STOPPING=1"


def test_sockets_of_systemd_stay_open_over_a_restart(stack):
    proxy = stack.enter_context(ActivatedProxy(NOBODY, ready=False, limits={"drain_s": 0}))
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    with Prober([*proxy.ports, proxy.metrics_port, proxy.admin_port]) as prober:
        proxy.restart()
    assert prober.connects > 100
    assert prober.failures == {}


def test_a_socket_of_systemd_without_a_setting_ends_the_start(stack):
    proxy = ActivatedProxy(NOBODY, ready=False)
    stack.callback(proxy.kill)
    proxy.addresses = [(HOST, proxy.port), ("127.0.0.2", proxy.metrics_port)]
    with pytest.raises(AssertionError, match=r"metrics\.bind: expected 127\.0\.0\.2:"):
        proxy.start()


def test_while_nobody_else_accepts_idle_and_incomplete_connections_do_not_hold_up_the_end(stack):
    proxy = stack.enter_context(ProxyProcess(NOBODY, ready=False, limits={"drain_s": 3600}))
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    clients = [stack.enter_context(socket.create_connection((HOST, proxy.port), TIMEOUT_S)) for _ in range(20)]
    for client in clients[::2]:
        client.sendall(b"\0\0\0\x20\0\x12")  # in the middle of a frame
    proxy.wait_for(lambda: proxy.metric("client_sockets") == len(clients), 10, "all connections")
    assert proxy.terminate() == 0
    assert [client.recv(1) for client in clients] == [b""] * len(clients)


def test_a_connection_that_is_not_open_yet_does_not_hold_up_the_end(stack):
    settings = {"ready": False, "listener": {"proxy_protocol": "required", "trusted_networks": ["127.0.0.0/8"]}}
    patient = {"LimitsConfig.proxy_header_timeout_ms": 300_000}
    proxy = stack.enter_context(ActivatedProxy(NOBODY, limits={"drain_s": 3600}, constants=patient, **settings))
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    stack.enter_context(socket.create_connection((HOST, proxy.port), TIMEOUT_S))
    proxy.wait_for(lambda: proxy.metric("client_sockets"), 10, "a connection")
    proxy.restart()


@pytest.fixture
def silent_node(stack):
    """The address of a node that takes requests and answers none."""
    node = stack.enter_context(socket.create_server((HOST, 0)))
    return f"{HOST}:{node.getsockname()[1]}"


def test_the_next_process_starts_while_the_old_one_waits_for_a_response(stack, silent_node):
    old = stack.enter_context(ProxyProcess(silent_node, ready=False, limits={"drain_s": 3600}))
    old.wait_for(lambda: old.events("listening"), 10, "open ports")
    with socket.create_connection((HOST, old.port), TIMEOUT_S) as waits:
        waits.sendall(request(API_VERSIONS, 0))
        old.wait_for(lambda: old.metric("requests_total"), 10, "a request in flight")
        os.kill(old.pid, signal.SIGTERM)
        old.wait_for(lambda: old.events("stopping"), 10, "closed ports")
        new = ProxyProcess(silent_node, ready=False)
        stack.callback(new.kill)
        new.metrics_port, new.admin_port = old.metrics_port, old.admin_port
        new.write_text(old.config_path.read_text())
        new.start()
        new.wait_for(lambda: new.events("listening"), 10, "open ports")
        assert old.running
        waits.setblocking(False)
        with pytest.raises(BlockingIOError):
            waits.recv(1)
        assert old.terminate() == 0


@pytest.mark.nightly
def test_what_was_measured_is_kept_in_a_file_for_the_next_process(stack, tmp_path):
    quotas = [{"default_ip": True, "connection_creation_rate": 1}]
    file = tmp_path / "sensors"
    settings = {"ready": False, "limits": {"drain_s": 0}, "restart": {"sensors_file": str(file)}}
    proxy = stack.enter_context(ProxyProcess(NOBODY, quotas, **settings))
    proxy.wait_for(lambda: proxy.events("listening"), 10, "open ports")
    for _ in range(8):
        socket.create_connection((HOST, proxy.port)).close()
    proxy.wait_for(lambda: proxy.metric("ip_connection_accept_rate") > 0.5, 10, "a measured rate")
    assert proxy.terminate() == 0
    assert file.stat().st_mode & 0o777 == 0o600
    proxy.start()
    proxy.wait_for(lambda: proxy.events("sensors_taken_over"), 10, "the sensors")
    assert proxy.metric("ip_connection_accept_rate") > 0
    assert not file.exists()


@pytest.mark.nightly
def test_with_reuse_port_the_next_process_starts_while_the_old_one_still_runs(stack):
    settings = {"ready": False, "limits": {"drain_s": 0}, "restart": {"reuse_port": True}}
    old = stack.enter_context(ProxyProcess(NOBODY, **settings))
    old.wait_for(lambda: old.events("listening"), 10, "open ports")
    new = ProxyProcess(NOBODY, **settings)
    stack.callback(new.kill)
    new.metrics_port = old.metrics_port
    new.write_text(old.config_path.read_text())
    with Prober([*old.ports]) as prober:
        new.start()
        new.wait_for(lambda: new.events("listening"), 10, "open ports")
        assert old.terminate() == 0
        time.sleep(0.2)
    assert prober.failures == {}


# ----------------------------------------------------------------- with a cluster


class Pumped:
    """A load that a thread goes on with until it is stopped."""

    def __init__(self, load):
        self.load, self._error, self._done = load, None, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        self.load.arrive()

    def _run(self):
        try:
            self.load.go_on_until(self._done.is_set, "the end", most_s=1200)
        except BaseException as error:
            self._error = error


def restart_under_load(stack, cluster, proxy, topic, restart, count):
    """Restart a proxy again and again while producers of two libraries want more than their quota, and one reads along.

    No connection is refused, each record arrives once and in order, and nobody gets more than the quota.
    """
    topics = [f"{topic}-{number}" for number in range(2)]
    leaders = [make_topic(cluster.bootstrap_servers, each, partitions=PARTITIONS) for each in topics]
    of_librdkafka = {"bootstrap.servers": proxy.bootstrap, "client.id": "steady"}
    producers = [
        WithKafkaPython(topics[0], bootstrap_servers=proxy.bootstrap, client_id="steady"),
        WithConfluentKafka(topics[1], **of_librdkafka),
    ]
    library = library_of("confluent-kafka", proxy.bootstrap)
    stack.callback(library.close)
    reader = Reader(library, topics[1])
    begin = time.monotonic()
    loads = [Pumped(stack.enter_context(Load(producer, SIZE))) for producer in producers]
    with Prober(sorted(proxy.ports), asks=True) as prober:
        for _ in range(count):
            time.sleep(1.5)
            restart()
        time.sleep(1)
    for load in loads:
        load.stop()
    seconds = time.monotonic() - begin
    read_along(reader, loads[1].load.count)
    for load, each in zip(loads, topics, strict=True):
        load.load.assert_all_are_there_once_and_in_order(cluster, each)
    assert prober.connects > 200 * count
    assert prober.responses > 10
    assert prober.failures == {}
    assert_within_quota(leaders, loads, seconds)
    assert not proxy.events("internal_error")


def read_along(reader, count):
    wait_until(lambda: len(reader.records) >= count or reader.error, "all records to be read")
    reader.stop()
    assert_same((record.value.strip() for record in reader.records), map(str, range(count)))


def assert_within_quota(leaders, loads, seconds):
    """At each node both producers together; what they want is far more."""
    records = Counter()
    for of_topic, load in zip(leaders, loads, strict=True):
        for number in range(load.load.count):
            records[of_topic[number % PARTITIONS]] += 1
    most = LIMIT * (seconds + BURST_S + 1)
    used = {node: count * SIZE for node, count in records.items()}
    assert max(used.values()) <= most, (used, most)
    assert min(used.values()) >= LIMIT * seconds / 2, (used, seconds)


def throttled(stack, cls, cluster, tmp_path, **settings):
    quotas = [{"client_id": "steady", "producer_byte_rate": LIMIT}]
    return stack.enter_context(cls(cluster, quotas, limits={"drain_s": 3}, **settings))


@pytest.mark.rule("restart")
def test_two_handovers_under_load(stack, newest_kafka, tmp_path):
    proxy = throttled(stack, RelayedProxy, newest_kafka, tmp_path)
    restart_under_load(stack, newest_kafka, proxy, "handovers", proxy.take_over, 2)
    for line in proxy.events("handover_finished"):
        assert line["rows"] > 0


def test_a_plain_restart_costs_fifty_clients_no_more_than_that_of_a_killed_process(newest_kafka):
    make_topic(newest_kafka.bootstrap_servers, restart_costs.TOPIC)
    outages_s = {}
    for restart in (restart_costs.kill_and_start, restart_costs.start_again):
        with restart_costs.alone(ProxyProcess, restart, newest_kafka, limits={"drain_s": 60}) as way:
            [cost] = restart_costs.costs_of(*way, newest_kafka, 1, 50)
        outages_s[restart] = max(cost.outages_s)
        print(f"{restart.__name__}: {max(cost.outages_s):.1f} s")
    assert outages_s[restart_costs.start_again] < outages_s[restart_costs.kill_and_start] + 40


def test_each_record_arrives_once_though_the_proxy_is_stopped_and_started_and_nobody_is_idempotent(stack, newest_kafka):
    proxy = stack.enter_context(ProxyProcess(newest_kafka))
    topics = ["stopped-1", "stopped-2"]
    for topic in topics:
        make_topic(newest_kafka.bootstrap_servers, topic, partitions=PARTITIONS)
    one_by_one = {"enable.idempotence": False, "max.in.flight.requests.per.connection": 1}
    producers = [
        WithKafkaPython(topics[0], bootstrap_servers=proxy.bootstrap),
        WithConfluentKafka(topics[1], **{"bootstrap.servers": proxy.bootstrap, **one_by_one}),
    ]
    loads = [Pumped(stack.enter_context(Load(producer, SIZE))) for producer in producers]
    for _ in range(2):
        time.sleep(1.5)
        restart_costs.start_again(proxy)
        proxy.wait_until_ready()
    time.sleep(1)
    for load, topic in zip(loads, topics, strict=True):
        load.stop()
        load.load.assert_all_are_there_once_and_in_order(newest_kafka, topic)


@pytest.mark.nightly
def test_ten_handovers_under_load(stack, newest_kafka, tmp_path):
    proxy = throttled(stack, RelayedProxy, newest_kafka, tmp_path)
    restart_under_load(stack, newest_kafka, proxy, "ten-handovers", proxy.take_over, 10)


@pytest.mark.nightly
def test_ten_restarts_under_load_with_sockets_of_systemd(stack, newest_kafka, tmp_path):
    settings = {"restart": {"sensors_file": str(tmp_path / "sensors")}}
    proxy = throttled(stack, ActivatedProxy, newest_kafka, tmp_path, **settings)
    restart_under_load(stack, newest_kafka, proxy, "ten-restarts", proxy.restart, 10)
