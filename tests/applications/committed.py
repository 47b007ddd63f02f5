"""Reads the committed records that an application has written into a topic, directly at the nodes."""

from collections.abc import Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.applications.accounts import Account, Written

_MANY = 1000


class Committed:
    """The records that an application is to write into a topic, and the committed records that it has written."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.expected: Mapping[str, int] = {}
        """How many records of each key."""
        self._written = Written()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 200,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    @property
    def done(self) -> bool:
        """Everything is there."""
        return self._written.count >= sum(self.expected.values())

    def take(self, timeout_s: float = 0.2) -> int:
        """Read on; return how many records came."""
        messages = [one for one in self._consumer.consume(_MANY, timeout_s) if one.error() is None]
        self._written.take((one.key().decode(), one.value().decode()) for one in messages)
        return len(messages)

    def account(self) -> Account:
        """Of all that was read."""
        return self._written.account(self.expected)

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()
