"""Kafka's own command-line tools through the proxy, each watched for connections around it."""

import csv
import json
import re
from collections import Counter

import pytest

from tests.integration.observed_connects import assert_only, observe
from tests.integration.topics import make_topic, wait_until_known
from tests.support.waiting import wait_until


class Tools:
    """Runs the tools of a cluster's version against the proxy; every connection of each is checked."""

    def __init__(self, cluster, proxy):
        self.new = not cluster.version.startswith("3.")
        self.connects = Counter()
        self._cluster = cluster
        self._proxy = proxy

    def run(self, tool, *args, stdin=""):
        """What the tool printed on standard output."""
        command = self._cluster.tool_command(tool, "--bootstrap-server", self._proxy.bootstrap, *args)
        observed = observe(command, stdin=stdin)
        assert_only(observed.connects, self._proxy.ports)
        self.connects += observed.connects
        return observed.output

    def perf(self, *args):
        """The producer performance test, which 3.9 has take its servers as a property."""
        servers = f"bootstrap.servers={self._proxy.bootstrap}"
        option = "--command-property" if self.new else "--producer-props"
        command = self._cluster.tool_command("kafka-producer-perf-test", *args, option, servers, "acks=all")
        observed = observe(command)
        assert_only(observed.connects, self._proxy.ports)
        self.connects += observed.connects
        return observed.output

    def property(self, kind, text):
        """The option that sets a property of a producer or a consumer."""
        return ("--command-property" if self.new else f"--{kind}-property", text)

    def topic(self, name, partitions=3):
        """A new topic; not by a tool, as each takes a second or two to start."""
        make_topic(self._proxy.bootstrap, name, partitions)
        wait_until_known(self._cluster, name, partitions)
        return name


@pytest.fixture
def tools(kafka, proxy, record_property):
    made = Tools(kafka, proxy)
    yield made
    record_property("connects", dict(made.connects))


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_topics_are_created_described_grown_and_deleted(tools, kafka):
    topic = "java-topics"
    tools.run("kafka-topics", "--create", "--topic", topic, "--partitions", "3")
    wait_until_known(kafka, topic, 3)
    tools.run("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    wait_until_known(kafka, topic, 5)
    described = tools.run("kafka-topics", "--describe", "--topic", topic)
    partitions = re.findall(r"Partition: (\d)\s+Leader: (\d)\s+Replicas: (\S+)\s+Isr: (\S+)", described)
    assert [int(partition) for partition, *_ in partitions] == [0, 1, 2, 3, 4]
    assert all(sorted(replicas) == sorted("1,2,3") for _, _, replicas, _ in partitions)
    assert topic in tools.run("kafka-topics", "--list").split()
    tools.run("kafka-topics", "--delete", "--topic", topic)
    wait_until_known(kafka, topic, 0)
    assert topic not in tools.run("kafka-topics", "--list").split()


@pytest.mark.nightly
def test_the_console_tools_carry_every_compression(tools):
    topic = tools.topic("java-console")
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        lines = [f"{codec} {i} " + "abc" * 100 for i in range(200)]
        sent += lines
        stdin = "\n".join(lines) + "\n"
        tools.run("kafka-console-producer", "--topic", topic, "--compression-codec", codec, stdin=stdin)
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "1000", "--timeout-ms", "30000")
    assert sorted(tools.run("kafka-console-consumer", *reading).splitlines()) == sorted(sent)
    if tools.new:
        protocol = tools.property("consumer", "group.protocol=consumer")
        read = tools.run("kafka-console-consumer", *reading, "--group", "java-console-new", *protocol)
        assert sorted(read.splitlines()) == sorted(sent)
        groups = tools.run("kafka-consumer-groups", "--list", "--type", "consumer")
        assert "java-console-new" in groups, "the group did not use the new protocol"


@pytest.mark.nightly
def test_the_performance_tests_move_all_their_records(tools):
    topic = tools.topic("java-perf")
    count = 100_000
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "200", "--throughput", "-1")
    assert f"{count} records sent" in tools.perf(*load).splitlines()[-1]
    amount = ("--num-records" if tools.new else "--messages", str(count))
    options = ("--topic", topic, *amount, "--timeout", "30000", "--group", "java-perf")
    [row] = csv.DictReader(tools.run("kafka-consumer-perf-test", *options).splitlines(), skipinitialspace=True)
    read = row.get("data.consumed.in.nMsg") or row["num.records.consumed"]
    assert int(read) >= count


@pytest.mark.nightly
def test_a_transactional_performance_test_ends_all_its_transactions(tools):
    topic = tools.topic("java-transactions")
    load = ("--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "3000")
    printed = tools.perf(*load, "--transactional-id", "java-transactions", "--transaction-duration-ms", "200")
    assert "3000 records sent" in printed.splitlines()[-1]
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "3000", "--timeout-ms", "30000")
    assert (
        len(tools.run("kafka-console-consumer", *reading, "--isolation-level", "read_committed").splitlines()) == 3000
    )


@pytest.mark.every_kind
def test_the_verifiable_tools_lose_nothing(tools):
    topic = tools.topic("java-verifiable")
    count = 2000
    lines = json_lines(tools.run("kafka-verifiable-producer", "--topic", topic, "--max-messages", str(count)))
    assert sum(line["name"] == "producer_send_success" for line in lines) == count
    [summary] = [line for line in lines if line["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (count, count)
    for protocol in ("classic", "consumer") if tools.new else ("classic",):  # 3.9 has it switched off
        options = ("--topic", topic, "--group-id", f"{topic}-{protocol}", "--group-protocol", protocol)
        wanted = ("--max-messages", str(count), "--reset-policy", "earliest", "--verbose")
        lines = json_lines(tools.run("kafka-verifiable-consumer", *options, *wanted))
        values = [int(line["value"]) for line in lines if line["name"] == "record_data"]
        assert sorted(values) == list(range(count))


@pytest.mark.nightly
def test_configurations_of_topics_and_nodes_are_changed_and_described(tools):
    topic = tools.topic("java-configs", 1)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools.run("kafka-configs", "--alter", *of_topic, "--add-config", "retention.ms=123456")
    wait_until(lambda: "retention.ms=123456" in tools.run("kafka-configs", "--describe", *of_topic))
    of_node = ("--entity-type", "brokers", "--entity-name", "2")
    tools.run("kafka-configs", "--alter", *of_node, "--add-config", "log.cleaner.backoff.ms=15001")
    wait_until(lambda: "log.cleaner.backoff.ms=15001" in tools.run("kafka-configs", "--describe", *of_node))


@pytest.mark.nightly
def test_groups_are_listed_described_and_reset(tools):
    topic = tools.topic("java-groups", 2)
    tools.run("kafka-console-producer", "--topic", topic, stdin="".join(f"{i}\n" for i in range(50)))
    reading = ("--topic", topic, "--group", "java-groups", "--from-beginning", "--max-messages", "50")
    tools.run("kafka-console-consumer", *reading, "--timeout-ms", "30000")
    assert "java-groups" in tools.run("kafka-consumer-groups", "--list").split()
    described = tools.run("kafka-consumer-groups", "--describe", "--group", "java-groups")
    offsets = re.findall(rf"java-groups\s+{topic}\s+\d\s+(\d+)\s+(\d+)\s+0\s", described)
    assert sum(int(current) for current, _ in offsets) == 50
    back = ("--reset-offsets", "--group", "java-groups", "--topic", topic, "--to-earliest", "--execute")
    tools.run("kafka-consumer-groups", *back)
    described = tools.run("kafka-consumer-groups", "--describe", "--group", "java-groups")
    lags = re.findall(rf"java-groups\s+{topic}\s+\d\s+0\s+\d+\s+(\d+)\s", described)
    assert sum(map(int, lags)) == 50


def test_every_node_is_asked_for_its_versions_at_the_port_of_the_proxy(tools, proxy):
    printed = tools.run("kafka-broker-api-versions")
    found = {int(node): int(port) for port, node in re.findall(r"127\.0\.0\.1:(\d+) \(id: (\d+)", printed)}
    assert found == proxy.node_ports
    assert printed.count("Produce(0)") == 3
    assert "UNKNOWN" not in printed, "the proxy names an API that the tool does not know"


@pytest.mark.nightly
def test_the_end_offsets_are_counted(tools):
    topic = tools.topic("java-offsets", 3)
    tools.run("kafka-console-producer", "--topic", topic, stdin="".join(f"{i}\n" for i in range(70)))
    printed = tools.run("kafka-get-offsets", "--topic", topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in printed.split()) == 70
