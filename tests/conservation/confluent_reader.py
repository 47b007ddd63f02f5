"""librdkafka's consumer: as a process that is the only member of a group, and as a scan of whole topics."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.conservation.logs import Logs
from tests.conservation.orders import Orders, tell

_MANY = 1000
_IDLE_S = 60.0


def make_consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    """A consumer that holds little in memory and stores an offset only when it is told to."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": group,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 1000,
            "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 1000,
            "socket.timeout.ms": 15_000,
            "reconnect.backoff.max.ms": 1000,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 50,
            "fetch.wait.max.ms": 200,
            **settings,
        }
    )


def ends_of(bootstrap: str, partitions: Mapping[str, int]) -> dict[str, list[int]]:
    """Where each partition's log ends, as its leader has it."""
    consumer = make_consumer(bootstrap, "conservation-ends")
    try:
        return {
            topic: [_end_of(consumer, TopicPartition(topic, partition)) for partition in range(count)]
            for topic, count in partitions.items()
        }
    finally:
        consumer.close()


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Asked again while the response is that another node leads by now, or that none can be reached; for 60 s."""
    deadline = time.monotonic() + _IDLE_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(partition, timeout=30, cached=False)[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return end


def scan(bootstrap: str, ends: Mapping[str, Sequence[int]]) -> Logs:
    """Read topics from their beginning to their ends. Raises TimeoutError when nothing comes any more."""
    logs = Logs("scan", {topic: len(of) for topic, of in ends.items()})
    consumer = make_consumer(bootstrap, "conservation-scan", **{"enable.auto.commit": False})
    try:
        consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for topic, of in ends.items()
                for partition in range(len(of))
            ]
        )
        came_at = time.monotonic()
        while not logs.have(ends):
            if take_some(consumer, logs, 0.5):
                came_at = time.monotonic()
            elif time.monotonic() > came_at + _IDLE_S:
                raise TimeoutError(f"the scan has {logs.count} records and gets no more")
    finally:
        consumer.close()
    return logs


def take_some(consumer: Consumer, logs: Logs, timeout_s: float, *, store: bool = False) -> int:
    """Put the next records into their logs; return how many. Errors of which the client recovers are left to it."""
    last: dict[tuple[str, int], int] = {}
    taken = 0
    for message in consumer.consume(_MANY, timeout_s):
        if message.error():
            continue
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        logs.take(topic, partition, offset, message.value())
        last[topic, partition] = offset
        taken += 1
    if store:
        for (topic, partition), offset in last.items():
            _store(consumer, TopicPartition(topic, partition, offset + 1))
    return taken


def _store(consumer: Consumer, position: TopicPartition) -> None:
    try:
        consumer.store_offsets(offsets=[position])
    except KafkaException:
        pass  # the partition has been taken from us meanwhile: it will be read again


def main() -> None:
    orders = Orders()
    logs = Logs("confluent-kafka", orders.given["partitions"])
    consumer = make_consumer(orders.given["bootstrap"], orders.given["group"])
    consumer.subscribe(list(orders.given["partitions"]))
    while not logs.have(orders.read_to) and not orders.give_up.is_set():
        take_some(consumer, logs, 0.5, store=True)
        orders.tell_progress(read=logs.count)
    consumer.close()
    logs.save(orders.folder)
    tell(read_again=logs.read_again, faults=logs.faults, complete=logs.have(orders.read_to))


if __name__ == "__main__":
    main()
