"""What clients with a mutation quota have just done to topics: a node knows it some ms after it has responded."""

from kafka_throttle.common.bounded import Bounded
from kafka_throttle.protocol.messages.topic_mutations import NO_TOPIC_ID

TopicKey = tuple[bytes | None, bytes]
"""A name and NO_TOPIC_ID, or None and a topic id."""

REMEMBERED_MS = 10_000
MAX_TOPICS = 10_000


class RecentTopics:
    """How many partitions topics of one cluster have after a recent change; 0 for a deleted one."""

    def __init__(self) -> None:
        self._changes: Bounded[TopicKey, tuple[int, int]] = Bounded(MAX_TOPICS)

    def note(self, name: bytes | None, topic_id: bytes, partitions: int, now_ms: int) -> None:
        """Note how many partitions a topic has now. It may be known by its name, its id, or both."""
        for key in ((name, NO_TOPIC_ID), (None, topic_id)):
            if key != (None, NO_TOPIC_ID):
                self._changes[key] = partitions, now_ms

    def partitions(self, key: TopicKey, now_ms: int) -> int | None:
        """How many partitions a topic has; None if it was not changed recently."""
        partitions, noted_ms = self._changes.get(key, (0, now_ms - REMEMBERED_MS))
        return partitions if now_ms - noted_ms < REMEMBERED_MS else None
