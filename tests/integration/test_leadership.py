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
    """Writes numbered records by an idempotent producer until it is told to stop; flushing raises what went wrong."""

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
    """Reads all partitions from their beginning in a thread of its own."""

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
    "name", ["confluent-kafka", *(pytest.param(name, marks=pytest.mark.long) for name in ("kafka-python", "aiokafka"))]
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


def test_a_java_client_that_is_told_of_a_new_leader_goes_to_it_by_the_proxy(kafka, proxy):
    """KIP-951: Produce answers name the new leader and its address; leaders move several times while records flow."""
    topic = "leadership-java"
    make_topic(proxy.bootstrap, topic, PARTITIONS)
    moves = Moves(kafka, topic)
    moves.start()
    try:
        count = 4000
        options = ("--topic", topic, "--max-messages", str(count), "--throughput", "500", "--acks", "-1")
        command = kafka.tool_command("kafka-verifiable-producer", "--bootstrap-server", proxy.bootstrap, *options)
        while moves.count < 3 and moves.error is None:  # nearly always once
            observed = observe(command)
            assert observed.output.count("producer_send_success") == count
            assert_only(observed.connects, proxy.ports)
    finally:
        moves.stop()


class Moves:
    """Has each node in turn lead all partitions of a topic, by changing the order of its copies."""

    def __init__(self, kafka, topic):
        self.count = 0
        self.error = None
        self._kafka, self._topic = kafka, topic
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
            while not self._done.is_set():
                order = order[1:] + order[:1]
                partitions = [TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
                admin.alter_partition_reassignments(dict.fromkeys(partitions, order))
                wait_until(lambda: not admin.list_partition_reassignments(), "the reassignment")
                admin.elect_leaders(_PREFERRED, partitions, raise_errors=False)
                self.count += 1
                self._done.wait(1.5)
            admin.close()
        except BaseException as error:
            self.error = error
