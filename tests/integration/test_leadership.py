"""A node dies under load and comes back: nothing is lost or doubled, and clients follow the leaders by the proxy."""

import threading
import time

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.integration.observed_connects import assert_only, observe
from tests.integration.topics import leaders_of, make_topic
from tests.integration.workloads.__main__ import library_of
from tests.integration.workloads.scenarios import Record, assert_same, wait_until

PARTITIONS = 6
_PREFERRED = 0


class Writer:
    """Writes numbered records by an idempotent producer until `stop` is called; flushing raises what went wrong."""

    def __init__(self, library, topic):
        self.sent = []
        self.error = None
        self._producer = library.producer(idempotent=True)
        self._topic = topic
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the producer does not come to an end"
        if self.error is not None:
            raise self.error

    def _run(self):
        try:
            while not self._done.is_set():
                for _ in range(20):
                    value = f"number {len(self.sent):06}"
                    self._producer.send(self._topic, len(self.sent) % PARTITIONS, value)
                    self.sent.append(value)
                time.sleep(0.02)
            self._producer.flush()
            self._producer.close()
        except BaseException as error:
            self.error = error


class Reader:
    """Reads all partitions from their beginning in a separate thread."""

    def __init__(self, library, topic):
        self.records: list[Record] = []
        self.error = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(library, topic), daemon=True)
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(120)
        if self.error is not None:
            raise self.error

    def _run(self, library, topic):
        try:
            consumer = library.consumer(topic)
            while not self._done.is_set():
                self.records += consumer.poll(0.2)
            consumer.close()
        except BaseException as error:
            self.error = error


def follows(proxy, topic, victim):
    leaders = leaders_of(proxy.bootstrap, topic)
    return len(leaders) == PARTITIONS and victim not in leaders.values()


@pytest.mark.parametrize(
    "name",
    ["confluent-kafka", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("kafka-python", "aiokafka"))],
)
def test_a_killed_node_costs_no_record(kafka, proxy, name):
    topic = f"leadership-{name}"
    leaders = make_topic(proxy.bootstrap, topic, PARTITIONS)
    victim = leaders[0]
    library = library_of(name, proxy.bootstrap)
    writer, reader = Writer(library, topic), Reader(library, topic)
    try:
        wait_until(lambda: len(reader.records) > 200, "records to flow")
        kafka.kill(victim)
        try:
            wait_until(lambda: follows(proxy, topic, victim), "other leaders")
            seen = len(reader.records)
            wait_until(lambda: len(reader.records) > seen + 200, "records to flow again")
        finally:
            kafka.restart(victim)
    finally:
        writer.stop()
    wait_until(lambda: len(reader.records) >= len(writer.sent), "the rest to be read")
    time.sleep(0.5)
    reader.stop()
    library.close()
    assert_same((record.value for record in reader.records), writer.sent)
    for partition in range(PARTITIONS):
        values = [record.value for record in reader.records if record.partition == partition]
        assert values == sorted(values), f"partition {partition} is out of order"
    assert not proxy.events("internal_error")


def test_a_java_client_that_learns_of_a_new_leader_goes_to_it_by_the_proxy(kafka, proxy, tmp_path):
    """KIP-951: Produce responses name the new leader and its address; leaders move several times while records flow."""
    topic = "leadership-java"
    make_topic(proxy.bootstrap, topic, PARTITIONS)
    config = tmp_path / "producer.properties"
    config.write_text("enable.idempotence=true\nretries=2147483647\n")  # of itself, the tool tries once
    moves = Moves(kafka, topic)
    moves.start()
    count = 4000
    options = ("--bootstrap-server", proxy.bootstrap, "--topic", topic, "--max-messages", str(count))
    options += ("--throughput", "500", "--producer.config", str(config))
    sent = []
    try:
        while moves.count < 3 and moves.error is None:  # nearly always once
            prefix = str(len(sent))
            sent += [f"{prefix}.{number}" for number in range(count)]
            command = kafka.tool_command("kafka-verifiable-producer", *options, "--value-prefix", prefix)
            observed = observe(command)
            assert observed.output.count("producer_send_success") == count
            assert_only(observed.connects, proxy.ports)
    finally:
        moves.stop()
    library = library_of("kafka-python", proxy.bootstrap)
    reader = Reader(library, topic)
    wait_until(lambda: len(reader.records) >= len(sent), "all records to be read")
    time.sleep(0.5)
    reader.stop()
    library.close()
    assert_same((record.value for record in reader.records), sent)


class Moves:
    """Has each node in turn lead all partitions of topics for a while, by changing the order of their copies."""

    def __init__(self, kafka, *topics, pause_s=1.5):
        self.count = 0
        self.error = None
        self._kafka, self._topics, self._pause_s = kafka, topics, pause_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(120)
        if self.error is not None:
            raise self.error

    def _run(self):
        try:
            admin = KafkaAdminClient(bootstrap_servers=self._kafka.bootstrap_servers)
            order = [1, 2, 3]
            partitions = [TopicPartition(topic, number) for topic in self._topics for number in range(PARTITIONS)]
            while not self._done.is_set():
                order = order[1:] + order[:1]
                admin.alter_partition_reassignments(dict.fromkeys(partitions, order))
                wait_until(lambda: not admin.list_partition_reassignments(), "the reassignment")
                self._lead(admin, order[0])
                self.count += 1
                self._done.wait(self._pause_s)
            admin.close()
        except BaseException as error:
            self.error = error

    def _lead(self, admin, node_id):
        """Have the first node of each partition's order elected; not at once where it is not in sync."""

        def leads():
            wanted = {topic: list(range(PARTITIONS)) for topic in self._topics}
            admin.elect_leaders(_PREFERRED, wanted, raise_errors=False)
            leaders = [leaders_of(self._kafka.bootstrap_servers, topic) for topic in self._topics]
            return all(set(found.values()) == {node_id} for found in leaders)

        wait_until(leads, f"node {node_id} to lead")
