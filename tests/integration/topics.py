"""Topics that a test needs before it begins."""

import time

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

_WAIT_S = 30.0


def make_topic(
    bootstrap: str, topic: str, partitions: int = 1, *, replicas: dict[int, list[int]] | None = None
) -> dict[int, int]:
    """Create a topic and return who leads each partition, once every partition has a leader.

    `replicas` says which nodes hold each partition, the leader first; else all three hold all.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        if replicas is None:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=3)
        else:
            new = NewTopic(topic, replica_assignments=replicas)
        try:
            admin.create_topics([new])
        except TopicAlreadyExistsError:
            raise AssertionError(f"{topic} exists already: two tests use the same name") from None
        return _leaders(admin, topic, len(replicas or {}) or partitions)
    finally:
        admin.close()


def _leaders(admin: KafkaAdminClient, topic: str, partitions: int) -> dict[int, int]:
    deadline = time.monotonic() + _WAIT_S
    while True:
        [described] = admin.describe_topics([topic])
        leaders = {found["partition_index"]: found["leader_id"] for found in described["partitions"]}
        if len(leaders) == partitions and min(leaders.values()) > 0:
            return leaders
        assert time.monotonic() < deadline, f"{topic} has no leaders: {leaders}"
        time.sleep(0.05)
