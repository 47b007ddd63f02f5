"""Always backlogged clients, each a librdkafka instance of its own, all driven by one thread.

librdkafka tells the throttle time of every response and otherwise ignores it: what holds it back is the mute. Measured
before it was chosen: 156 of its instances at 14 MB/s take 8 % of one core, so all cells fit into one process.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.parity.cells import Cell

WRITTEN = "parity-written"
READ = "parity-read"
"""Names of fewer letters would not do: librdkafka 2.16 finds no room for a short response to Metadata v0."""

RECORD_BYTES = 16_000
RECORDS_PER_REQUEST = 4
REQUESTS_HELD = 8
"""How many produce requests' worth of records a producer has waiting or in flight."""

STARTS_OVER_S = 11.0
_ROUND_S = 0.02
SETTINGS: dict[str, dict[str, Any]] = {
    "new": {},
    # Produce v1 and Fetch v1, the first that tell a throttle time; Kafka 3.9 is the last to accept them.
    "old": {"api.version.request": False, "broker.version.fallback": "0.9.0"},
}
"""Settings of librdkafka for each kind of API versions."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A throttle time that a client was told, `at_s` after the start."""

    at_s: float
    throttle_s: float


@dataclass(slots=True)
class Seen:
    """What the client at one end of a connection has seen; `bytes_in_second` are those of record values."""

    bytes_in_second: list[int]
    throttles: list[Throttle] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Client:
    """One librdkafka instance; `serve` is called again and again, and gives way at once."""

    def __init__(self, cell: Cell, bootstrap: str, seconds: int) -> None:
        self.seen = Seen([0] * seconds)
        self._began_s = 0.0
        self._closing = False
        self.settings = {
            "bootstrap.servers": bootstrap,
            "client.id": cell.client_id,
            "throttle_cb": self._on_throttle,
            "error_cb": self.fail,
            "log_level": 2,
            **SETTINGS[cell.versions],
        }

    def start(self, began_s: float) -> None:
        self._began_s = began_s

    def close(self) -> None:
        """Give up what is under way, which is no error."""
        self._closing = True

    def count(self, size_bytes: int) -> None:
        second = int(time.monotonic() - self._began_s)
        if second < len(self.seen.bytes_in_second):
            self.seen.bytes_in_second[second] += size_bytes

    def _on_throttle(self, event: Any) -> None:
        if event.throttle_time > 0:  # zero when it is over
            self.seen.throttles.append(Throttle(time.monotonic() - self._began_s, event.throttle_time))

    def fail(self, error: KafkaError) -> None:
        if not self._closing:
            self.seen.errors.append(str(error))


class ProducerClient(_Client):
    """Keeps `REQUESTS_HELD` requests' worth of records with librdkafka; counts what is acknowledged."""

    def __init__(self, cell: Cell, bootstrap: str, partition: int, seconds: int) -> None:
        super().__init__(cell, bootstrap, seconds)
        self._partition = partition
        self._value = os.urandom(RECORD_BYTES)
        batches = {"batch.num.messages": RECORDS_PER_REQUEST, "linger.ms": 5, "acks": 1}
        self._producer = Producer({**self.settings, **batches})
        self._producer.list_topics(WRITTEN, timeout=30)

    def serve(self) -> None:
        self._producer.poll(0)
        while len(self._producer) < REQUESTS_HELD * RECORDS_PER_REQUEST:
            self._producer.produce(WRITTEN, self._value, partition=self._partition, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.count(RECORD_BYTES)
        else:
            self.fail(error)

    def close(self) -> None:
        super().close()
        self._producer.purge()
        self._producer.poll(0)


class ConsumerClient(_Client):
    """Reads its partition from the beginning, over and over."""

    def __init__(self, cell: Cell, bootstrap: str, partition: int, seconds: int, fetch_bytes: int) -> None:
        super().__init__(cell, bootstrap, seconds)
        self._at = TopicPartition(READ, partition, 0)
        reading = {
            "group.id": "parity",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": fetch_bytes,
            "fetch.wait.max.ms": 10,
        }
        self._consumer = Consumer({**self.settings, **reading})
        self._consumer.list_topics(READ, timeout=30)

    def start(self, began_s: float) -> None:
        super().start(began_s)
        self._consumer.assign([self._at])

    def serve(self) -> None:
        for message in self._consumer.consume(100, 0):
            error = message.error()
            if error is None:
                self.count(len(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._consumer.seek(self._at)
            else:
                self.fail(error)

    def close(self) -> None:
        super().close()
        self._consumer.close()


def connect(
    cell: Cell, bootstrap: str, partition: int, seconds: int, fetch_bytes: int
) -> list[ProducerClient | ConsumerClient]:
    """The clients of a cell, ready to start; consumers ask for `fetch_bytes` at a time."""
    if cell.role == "producer":
        return [ProducerClient(cell, bootstrap, partition, seconds) for _ in range(cell.connections)]
    return [ConsumerClient(cell, bootstrap, partition, seconds, fetch_bytes) for _ in range(cell.connections)]


def run(cells: Sequence[Sequence[ProducerClient | ConsumerClient]], seconds: int) -> None:
    """Start the clients of each cell together, one cell after the other, and serve each for so long.

    A client at its quota moves ten seconds' worth in one burst each 11 s. Cells that start together burst together
    ever after, and the time that their bursts take on a busy machine is lost to each of them.
    """
    began_s = time.monotonic()
    waiting = deque((began_s + number * STARTS_OVER_S / len(cells), of_cell) for number, of_cell in enumerate(cells))
    end_s = waiting[-1][0] + seconds
    serving: list[ProducerClient | ConsumerClient] = []
    while (now_s := time.monotonic()) < end_s:
        while waiting and waiting[0][0] <= now_s:
            of_cell = waiting.popleft()[1]
            for client in of_cell:
                client.start(now_s)
            serving += of_cell
        for client in serving:
            client.serve()
        time.sleep(max(now_s + _ROUND_S - time.monotonic(), 0))


def fill(bootstrap: str, partition: int, size_bytes: int) -> None:
    """Write what the consumers will read."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": RECORDS_PER_REQUEST, "linger.ms": 5})
    value = os.urandom(RECORD_BYTES)
    for _ in range(size_bytes // RECORD_BYTES):
        producer.produce(READ, value, partition=partition)
        while len(producer) > 50 * RECORDS_PER_REQUEST:
            producer.poll(0.01)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records for the consumers were not written")
