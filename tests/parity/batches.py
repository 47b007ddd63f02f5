"""A topic to be read under a fetch quota: batches of one size, as many on each node."""

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster

RECORD_BYTES = 4_000


def make_topic(cluster: KafkaCluster, topic: str, partitions: int = 1) -> None:
    """Without records; the nodes lead its partitions in turn."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    nodes = cluster.node_ids
    places = [[nodes[number % len(nodes)]] for number in range(partitions)]
    for made in admin.create_topics([NewTopic(topic, partitions, replica_assignment=places)]).values():
        made.result(30)


def fill(cluster: KafkaCluster, topic: str, partitions: int, batch_bytes: int, size_bytes: int) -> None:
    """So many bytes in all, one batch after the other to each partition in turn."""
    in_batch = max(1, batch_bytes // RECORD_BYTES)
    settings = {"batch.num.messages": in_batch, "linger.ms": 1_000}
    producer, value = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings}), os.urandom(RECORD_BYTES)
    for number in range(size_bytes // RECORD_BYTES // in_batch):
        for _ in range(in_batch):
            producer.produce(topic, value, partition=number % partitions)
        while len(producer) > 2_000:
            producer.poll(0.01)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records of {topic} were not written")
