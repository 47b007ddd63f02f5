"""Topics that a test needs before it begins."""

import socket
import time

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import InvalidReplicationFactorError, KafkaError, TopicAlreadyExistsError

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.protocol.messages.topic_partitions import (
    BY_NAME_VERSION,
    partitions_by_name_request,
    read_topic_partitions,
)
from tests.support.timeouts import TIMEOUT_S


def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, int]:
    """Create a topic that all three nodes hold; return the leader of each partition, once every partition has one."""
    deadline = time.monotonic() + TIMEOUT_S
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        while not _created(admin, NewTopic(topic, num_partitions=partitions, replication_factor=3)):
            assert time.monotonic() < deadline, f"{topic} cannot be made: there are not three nodes"
            time.sleep(0.1)
    finally:
        admin.close()
    while True:
        leaders = leaders_of(bootstrap, topic)
        if len(leaders) == partitions and min(leaders.values()) > 0:
            return leaders
        assert time.monotonic() < deadline, f"{topic} has no leaders: {leaders}"
        time.sleep(0.05)


def _created(admin: KafkaAdminClient, topic: NewTopic) -> bool:
    """False while a node is taken for dead, for having stood still."""
    try:
        admin.create_topics([topic])
    except InvalidReplicationFactorError:
        return False
    except TopicAlreadyExistsError:
        raise AssertionError(f"{topic.name} exists already: two tests use the same name") from None
    return True


def wait_until_known(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    """Until each node knows the topic with so many partitions; with 0 of them until none knows it any more.

    A node that has stood still responds with what it knew before.
    """
    request = partitions_by_name_request([topic.encode()], 1)
    for node_id in cluster.node_ids:
        deadline = time.monotonic() + TIMEOUT_S
        with socket.create_connection(cluster.address(node_id), TIMEOUT_S) as sock, sock.makefile("rb") as stream:
            while True:
                sock.sendall(request)
                prefix = stream.read(4)
                response = prefix + stream.read(int.from_bytes(prefix, "big"))
                [found] = read_topic_partitions(response, BY_NAME_VERSION)
                if found.partitions == partitions:
                    break
                assert time.monotonic() < deadline, f"node {node_id} knows {found}"
                time.sleep(0.05)


def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    """The leader of each partition, as any living node has it; nothing while none responds."""
    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000, bootstrap_timeout_ms=5000)
    except (KafkaError, OSError):
        return {}
    try:
        [described] = admin.describe_topics([topic])
        return {found["partition_index"]: found["leader_id"] for found in described["partitions"]}
    except (KafkaError, OSError):
        return {}
    finally:
        admin.close()
