"""What every producer of the checker has in common: how fast it sends, how much, to where, and what it has sent."""

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.conservation.accounts import Sent
from tests.conservation.records import Values


@dataclass(frozen=True)
class Plan:
    """What one producer is to do. `records` 0 means: until it is stopped. `per_second` is a pace, not a promise."""

    producer: int
    client_id: str
    topic: str
    partitions: int
    records: int
    per_second: float
    seed: int
    compression: str = "none"
    timeout_s: float = 1000.0
    """When a record has no response after so long, a producer of librdkafka gives up all that is under way."""


class Sender:
    """Says what to send now, and keeps the account of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sent = Sent(plan.producer, plan.partitions)
        self.sizes: Counter[int] = Counter()
        """How many values by the power of two that they are below."""
        self.bytes = 0
        self.count = 0
        self.stopped = False
        self._values = Values(plan.producer, plan.seed)
        self._random = random.Random(f"{plan.seed} partitions {plan.producer}")
        self._waiting: tuple[int, bytes] | None = None
        self._began = time.monotonic()

    @property
    def finished(self) -> bool:
        """Nothing more is to be sent."""
        return self.stopped or (self.count == self.plan.records > 0)

    @property
    def due(self) -> bool:
        """The next record's time has come."""
        return not self.finished and self.count < (time.monotonic() - self._began) * self.plan.per_second

    def next(self) -> tuple[int, int, bytes]:
        """Partition, sequence and value of the next record; the same until `accepted`."""
        if self._waiting is None:
            partition = self._random.randrange(self.plan.partitions)
            self._waiting = partition, self._values.make(partition, self.sent.next_sequence(partition))
        partition, value = self._waiting
        return partition, self.sent.next_sequence(partition), value

    def accepted(self) -> None:
        """The client has taken the record that `next` told, or has said that it could not send it."""
        assert self._waiting is not None
        partition, value = self._waiting
        self._waiting = None
        self.sent.add(partition)
        self.sizes[len(value).bit_length()] += 1
        self.bytes += len(value)
        self.count += 1

    def report(self) -> dict[str, Any]:
        """Plain data for the one who gave the plan."""
        return {"producer": self.plan.producer, "sent": self.count, "bytes": self.bytes, "sizes": dict(self.sizes)}
