"""A node that no port of the proxy is left for costs clients that node, and nothing else."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.test_leadership import Reader
from tests.integration.topics import make_topic
from tests.integration.workloads.__main__ import library_of
from tests.integration.workloads.scenarios import assert_same, wait_until
from tests.support.timeouts import TIMEOUT_S

LEFT_OUT = 3
LEADER_NOT_AVAILABLE = 5


@pytest.mark.parametrize("name", ["kafka-python", "confluent-kafka", "aiokafka"])
def test_clients_go_on_with_all_nodes_but_the_one_that_is_left_out(name, newest_kafka, start_proxy):
    topic = f"left-out-{name}"
    leaders = make_topic(newest_kafka.bootstrap_servers, topic, partitions=6)
    served = [partition for partition, leader in leaders.items() if leader != LEFT_OUT]
    assert 0 < len(served) < 6
    proxy = start_proxy(listener={"node_ids": ["1-2"]})
    library = library_of(name, proxy.bootstrap)
    producer = library.producer()
    values = [f"number {number}" for number in range(100)]
    for number, value in enumerate(values):
        producer.send(topic, served[number % len(served)], value)
    producer.flush()
    producer.close()
    reader = Reader(library, topic)
    wait_until(lambda: len(reader.records) >= len(values) or reader.error, "all records to be read")
    reader.stop()
    library.close()
    assert_same((record.value for record in reader.records), values)
    [line] = proxy.events("node_left_out")
    assert line["node_id"] == LEFT_OUT
    assert proxy.metric("nodes_left_out_total") > 0


def test_a_node_without_a_port_is_reported_as_by_a_broker_that_cannot_name_it(newest_kafka, start_proxy):
    topic = "left-out-told"
    leaders = make_topic(newest_kafka.bootstrap_servers, topic, partitions=3)
    proxy = start_proxy(listener={"node_ids": ["1-2"]})
    reported = AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(topic, timeout=TIMEOUT_S)
    assert sorted(reported.brokers) == [1, 2]
    for number, partition in reported.topics[topic].partitions.items():
        is_away = leaders[number] == LEFT_OUT
        assert partition.leader == (-1 if is_away else leaders[number])
        assert (partition.error.code() if partition.error else 0) == (LEADER_NOT_AVAILABLE if is_away else 0)
