"""The harness: what it starts serves, obeys, reports why it fails, and is gone when it should be."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from demo import kafka_cluster
from demo.kafka_cluster import _TOOLS, ClusterFailed, KafkaCluster, free_ports
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


SASL = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_alice="wonderland" username="alice" password="wonderland";'
)


def nodes_named_at(address, timeout_s=TIMEOUT_S, **settings):
    """The ids of the nodes that an address names, by a client which is not the one that the harness uses."""
    host, port = address
    with contextlib.closing(socket.create_connection(address, timeout=timeout_s)):
        pass
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": 0, **settings})
    return set(admin.list_topics(timeout=timeout_s).brokers)


def all_are_named_at(address, **settings):
    """Soon: the others may take a node that has stood still for dead."""
    return wait_until(lambda: nodes_named_at(address, **settings) == {1, 2, 3})


@contextlib.contextmanager
def healed(cluster):
    """Whatever happens in the block, the cluster is whole after it: other tests share it."""
    try:
        yield
    finally:
        for node_id in cluster.node_ids:
            if cluster.is_running(node_id):
                cluster.thaw(node_id)
            else:
                cluster.restart(node_id)
        for node_id in cluster.node_ids:
            cluster.wait_until_serving(node_id)


# --------------------------------------------------------------------- nodes


@pytest.mark.every_kind
def test_every_node_names_all_nodes_on_ports_below_those_of_outgoing_connections(kafka):
    for node_id in kafka.node_ids:
        assert all_are_named_at(kafka.address(node_id))
    assert len(set(kafka.ports.values())) == 3
    assert all(10_000 <= port < 32_000 for port in kafka.ports.values())
    assert kafka.bootstrap_servers == ",".join(f"127.0.0.1:{kafka.ports[node_id]}" for node_id in (1, 2, 3))


@pytest.mark.nightly
def test_a_killed_node_is_missed_by_the_others_and_comes_back_with_its_records_on_its_port(kafka):
    topic, address = f"survivors-{kafka.version}-{kafka.mode}", kafka.address(2)
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    kafka.tool("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "2:1:3", *servers)
    written = [f"record {number}" for number in range(100)]
    kafka.tool("kafka-console-producer", "--topic", topic, *servers, stdin="".join(f"{line}\n" for line in written))
    with healed(kafka):
        kafka.kill(2)
        assert not kafka.is_running(2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        wait_until(lambda: nodes_named_at(kafka.address(3)) == {1, 3})
        kafka.restart(2)
        assert kafka.address(2) == address
        assert all_are_named_at(address)
        read = kafka.tool(
            "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "100", *servers
        )
        assert read.splitlines() == written


@pytest.mark.nightly
def test_a_node_restarted_at_once_after_a_kill_serves_although_the_cluster_still_believes_in_its_last_life(kafka):
    with healed(kafka):
        kafka.kill(3)
        kafka.restart(3)
        assert all_are_named_at(kafka.address(3))


def test_a_frozen_node_takes_connections_and_does_not_respond_until_it_is_thawed(kafka):
    with healed(kafka):
        kafka.freeze(1)
        with pytest.raises(KafkaException):
            nodes_named_at(kafka.address(1), timeout_s=5)
        kafka.thaw(1)
        kafka.wait_until_serving(1)
        assert wait_until(lambda: 1 in nodes_named_at(kafka.address(1)))


@pytest.mark.nightly
def test_a_node_can_be_stopped_while_it_is_frozen(kafka):
    with healed(kafka):
        kafka.freeze(2)
        kafka.stop(2)
        assert not kafka.is_running(2)
        log = kafka.log_tail(2, 100_000)
        assert "Terminating process due to signal SIGTERM" in log
        assert "shut down completed" in log or "from SHUTTING_DOWN to SHUTDOWN" in log


# --------------------------------------------------------------------- tools


def test_every_tool_has_its_class_in_the_jars_and_prints_only_what_it_is_asked_for(kafka):
    for tool in _TOOLS:
        assert kafka.tool_command(tool, "--help")[-1] == "--help"
    assert kafka.tool("kafka-topics", "--version").split() == [kafka.version]


def test_a_failing_tool_raises_with_what_it_said(newest_kafka):
    with pytest.raises(RuntimeError, match="no-such-topic"):
        newest_kafka.tool(
            "kafka-topics",
            "--describe",
            "--topic",
            "no-such-topic",
            "--bootstrap-server",
            newest_kafka.bootstrap_servers,
        )


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started(newest_kafka):
    for timeout_s in (1, 10, 30):
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            newest_kafka.run(["sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=timeout_s)
        if raised.value.output:  # the shell has come so far
            break
    wait_until(lambda: not psutil.pid_exists(int(raised.value.output)))


def test_a_wrapper_gets_the_command_and_a_missing_one_does_no_harm(newest_kafka):
    wrapper = ("sh", "-c", 'echo wrapped; exec "$@"', "sh")
    assert newest_kafka.tool("kafka-topics", "--version", wrapper=wrapper).split() == ["wrapped", "4.3.1"]
    with pytest.raises(ClusterFailed, match="no-such-wrapper"):
        newest_kafka.tool("kafka-topics", "--version", wrapper=("no-such-wrapper",))
    assert all_are_named_at(newest_kafka.address(1))


def test_a_failed_test_keeps_every_log_and_says_where(newest_kafka, request, tmp_path):
    here = str(Path(__file__).with_name("conftest.py"))
    [conftest] = [made for made in request.config.pluginmanager.get_plugins() if getattr(made, "__file__", "") == here]
    reported = conftest.keep_logs(tmp_path)
    assert str(tmp_path) in reported.splitlines()[0]
    assert len(reported) < 20 * 300
    for node_id in (1, 2, 3):
        [log] = tmp_path.glob(f"*{newest_kafka.version}*node-{node_id}.log")
        assert "INFO" in log.read_text()


# --------------------------------------------------------------------- start


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("version", "mode", "taken"),
    [("3.9.2", "zookeeper", 0), ("4.3.1", "kraft", 1), ("3.9.2", "kraft", 2)],
    ids=["ZooKeeper's", "the controller's", "the node's"],
)
def test_a_port_that_is_taken_at_start_is_replaced(monkeypatch, version, mode, taken):
    offers = []
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:

        def offer(count, host):
            offers.append(free_ports(count, host))
            if len(offers) == 1:
                offers[0][taken] = other.getsockname()[1]
            return offers[-1]

        monkeypatch.setattr(kafka_cluster, "free_ports", offer)
        with KafkaCluster(version, mode, 1) as cluster:
            assert len(offers) == 2
            assert cluster.ports[1] in offers[1]
            assert nodes_named_at(cluster.address(1)) == {1}


@pytest.mark.nightly
def test_a_node_that_dies_at_start_is_an_error_with_the_reason_from_its_log():
    before = cluster_folders()
    with (
        pytest.raises(ClusterFailed, match=r"node-1 has ended[\s\S]*no\.such\.Authorizer"),
        KafkaCluster(nodes=1, extra=lambda node_id: {"authorizer.class.name": "no.such.Authorizer"}),
    ):
        pass
    assert cluster_folders() <= before


@pytest.mark.parametrize(("version", "mode"), [("4.3.1", "zookeeper"), ("2.8.2", "kraft"), ("2.1.1", "kraft")])
def test_a_mode_that_a_version_does_not_have_is_refused(version, mode):
    with pytest.raises(ValueError, match=f"{re.escape(version)} has no mode {mode}"):
        KafkaCluster(version, mode)


@pytest.mark.nightly
def test_a_node_has_further_listeners_properties_and_jvm_options_and_a_host_of_its_own():
    (jmx_port,) = free_ports(1, "127.0.0.2")
    extra = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": SASL,
        "num.partitions": "7",
    }
    jmx = (
        f"-Dcom.sun.management.jmxremote.port={jmx_port}",
        "-Dcom.sun.management.jmxremote.host=127.0.0.2",
        "-Dcom.sun.management.jmxremote.authenticate=false",
        "-Dcom.sun.management.jmxremote.ssl=false",
    )
    with KafkaCluster(
        nodes=1,
        host="127.0.0.2",
        listeners={"CLIENTS": "SASL_PLAINTEXT"},
        extra=lambda node_id: {**extra, "broker.rack": f"rack-{node_id}"},
        jvm_options=lambda node_id: jmx,
    ) as cluster:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
        address = cluster.address(1, "CLIENTS")
        assert cluster.bootstrap("CLIENTS") == f"127.0.0.2:{address[1]}" != cluster.bootstrap_servers
        assert nodes_named_at(address, **login, **{"sasl.password": "wonderland"}) == {1}
        with pytest.raises(KafkaException):
            nodes_named_at(address, 10, **login, **{"sasl.password": "looking-glass"})
        socket.create_connection(("127.0.0.2", jmx_port), timeout=TIMEOUT_S).close()
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        described = cluster.tool(
            "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1", *servers
        )
        assert re.search(r"\bnum\.partitions=7 ", described)
        assert re.search(r"\bbroker\.rack=rack-1 ", described)


@pytest.mark.nightly
def test_an_error_inside_the_block_carries_the_logs():
    with pytest.raises(ZeroDivisionError) as raised, KafkaCluster(nodes=1):
        1 / 0  # noqa: B018
    [note] = raised.value.__notes__
    assert "the end of node-1's log" in note
    assert "INFO" in note


# ----------------------------------------------------------------------- end

SERVES = """
import json, sys, threading, time
import psutil
from demo.kafka_cluster import KafkaCluster
with KafkaCluster("3.9.2", "zookeeper", 1) as cluster:
    threading.Thread(target=cluster.run, args=(["sh", "-c", "sleep 600 & wait"],), kwargs={"timeout_s": 600}).start()
    while not any(process.name() == "sleep" for process in psutil.Process().children(recursive=True)):
        time.sleep(0.05)
    FURTHER
    print("ready", flush=True)
    time.sleep(600)
"""
STARTS = """
from demo.kafka_cluster import KafkaCluster
KafkaCluster("4.3.1", "kraft", 1).__enter__()
"""
MOMENTS = {
    "while it serves": SERVES.replace("FURTHER", "pass"),
    "while a node that cannot is asked to stop": SERVES.replace(
        "FURTHER",
        "cluster.freeze(1); threading.Thread(target=cluster._order, daemon=True,"
        " kwargs={'signal': 'node-1', 'number': 15, 'wait': True}).start(); time.sleep(0.5)",
    ),
    "while it starts": STARTS,
}


def cluster_folders():
    return set(Path(tempfile.gettempdir()).glob("kafka-throttle-cluster-*"))


@contextlib.contextmanager
def owner_of_a_cluster(code, tmp_path):
    """A Python process that starts a cluster, with its temporary files in `tmp_path`, and is killed in the end."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, env=environment) as owner:
        try:
            yield owner
        finally:
            owner.kill()


def kept_by(owner):
    """The keeper and all that it has started."""
    return psutil.Process(owner.pid).children(recursive=True)


def names_of(processes):
    """Those that have not just ended."""
    names = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


@pytest.mark.parametrize(
    "moment", [pytest.param(moment, marks=pytest.mark.nightly if "cannot" in moment else ()) for moment in MOMENTS]
)
def test_nothing_is_left_of_a_cluster_whose_owner_is_killed(moment, tmp_path):
    with owner_of_a_cluster(MOMENTS[moment], tmp_path) as owner:
        if "starts" in moment:
            wait_until(lambda: "java" in names_of(kept_by(owner)))
        else:
            assert owner.stdout.readline() == b"ready\n"
            assert names_of(kept_by(owner)).count("java") == 2
        kept = kept_by(owner)
        names = names_of(kept)
        assert "starts" in moment or "sleep" in names
        assert len(list(tmp_path.glob("kafka-throttle-cluster-*"))) == 1
        os.kill(owner.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(kept, timeout=TIMEOUT_S)
        assert not alive
        wait_until(lambda: not list(tmp_path.glob("kafka-throttle-cluster-*")))


@pytest.mark.nightly
def test_nothing_is_left_when_a_fork_of_the_killed_owner_lives_on(tmp_path):
    forks = "fork = __import__('os').fork(); fork or time.sleep(600); print(fork, flush=True)"
    with owner_of_a_cluster(SERVES.replace("FURTHER", forks), tmp_path) as owner:
        fork = psutil.Process(int(owner.stdout.readline()))
        try:
            kept = [process for process in kept_by(owner) if process != fork]
            os.kill(owner.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs(kept, timeout=TIMEOUT_S)
            assert not alive
            assert fork.is_running()
            wait_until(lambda: not list(tmp_path.glob("kafka-throttle-cluster-*")))
        finally:
            fork.kill()


@pytest.mark.nightly
def test_no_process_is_left_when_the_keeper_itself_is_killed(tmp_path):
    with owner_of_a_cluster(SERVES.replace("FURTHER", "pass"), tmp_path) as owner:
        assert owner.stdout.readline() == b"ready\n"
        [keeper] = psutil.Process(owner.pid).children()
        nodes = [process for process in keeper.children() if process.name() == "java"]
        keeper.kill()
        _, alive = psutil.wait_procs(nodes, timeout=TIMEOUT_S)
        assert len(nodes) == 2
        assert not alive


@pytest.mark.nightly
def test_an_ordinary_end_leaves_nothing_either(tmp_path):
    code = "from demo.kafka_cluster import KafkaCluster\nwith KafkaCluster(nodes=1) as c: print(c.ports[1])"
    with owner_of_a_cluster(code, tmp_path) as owner:
        port = json.loads(owner.stdout.readline())
        assert owner.wait(TIMEOUT_S) == 0
        assert not list(tmp_path.iterdir())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
