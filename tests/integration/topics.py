"""Topics that a test needs before it begins."""

import time

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from tests.patience import PATIENCE_S


def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, int]:
    """Create a topic that all three nodes hold; return who leads each partition, once every partition has a leader."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=3)])
    except TopicAlreadyExistsError:
        raise AssertionError(f"{topic} exists already: two tests use the same name") from None
    finally:
        admin.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        leaders = leaders_of(bootstrap, topic)
        if len(leaders) == partitions and min(leaders.values()) > 0:
            return leaders
        assert time.monotonic() < deadline, f"{topic} has no leaders: {leaders}"
        time.sleep(0.05)


def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    """Who leads each partition, as any living node has it; nothing while none can be asked."""
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
