"""The four clients of the demo; each runs in a separate process, so that they do not share a GIL.

`python -m demo.clients NAME BOOTSTRAP TOPIC` prepares the client, reports that it is ready, waits for SIGUSR1, and
works until SIGTERM. It prints JSON lines: {"ready": true}, then several times a second what happened since the line
before:

    {"at": MONOTONIC S, "bytes": N, "records": N, "failed": N, "latency_us": [...], "throttle_ms": [...]}

Bytes are those of record values that were acknowledged or read. A throttle time is one that this client has seen in a
response: from librdkafka's throttle_cb, or from the warning that kafka-python logs for each throttled response.
"""

import json
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

GOOD_RECORD_BYTES = 2_000
GOOD_RECORDS_PER_SECOND = 100
GOOD_PARTITIONS = 3
NOISY_RECORD_BYTES = 8_000

_NOISY_RECORDS_HELD = 250
_REPORT_S = 0.2
_STAMP = struct.Struct(">qq")
"""The beginning of a good record: its number, and the monotonic nanosecond at which it was due."""


class Counters:
    """The counts of a client since its last report; several threads add to them."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._bytes = self._records = self._failed = 0
        self._latency_us: list[int] = []
        self._throttle_ms: list[int] = []

    def add(self, size_bytes: int, records: int = 1, since_s: float | None = None) -> None:
        """Count records that were acknowledged or read; the latency runs from `since_s`, monotonic."""
        now_s = time.monotonic()
        with self._lock:
            self._bytes += size_bytes
            self._records += records
            if since_s is not None:
                self._latency_us.append(int((now_s - since_s) * 1e6))

    def fail(self) -> None:
        """Count a record that the client has given up."""
        with self._lock:
            self._failed += 1

    def throttle(self, throttle_time_ms: int) -> None:
        """Count a response with a throttle time; zero is no throttle."""
        if throttle_time_ms > 0:
            with self._lock:
                self._throttle_ms.append(throttle_time_ms)

    def report(self) -> None:
        """Print the counts since the last report."""
        with self._lock:
            line = {
                "at": time.monotonic(),
                "bytes": self._bytes,
                "records": self._records,
                "failed": self._failed,
                "latency_us": self._latency_us,
                "throttle_ms": self._throttle_ms,
            }
            self._clear()
            print(json.dumps(line), flush=True)

    def await_start(self) -> None:
        """Report that this client is ready; return when it must begin. From then on reports are printed."""
        print(json.dumps({"ready": True}), flush=True)
        signal.sigwait({signal.SIGUSR1})
        threading.Thread(target=self._keep_reporting, daemon=True).start()

    def _keep_reporting(self) -> None:
        while True:
            time.sleep(_REPORT_S)
            self.report()


class ThrottleWarnings(logging.Handler):
    """Reads the throttle times from kafka-python's log, which has a warning for each throttled response."""

    def __init__(self, counters: Counters) -> None:
        super().__init__(logging.WARNING)
        self._counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        """Read a log record of kafka-python."""
        if "throttled by broker" in record.msg and isinstance(record.args, tuple):
            throttle_time_ms = record.args[-1]
            assert isinstance(throttle_time_ms, int)
            self._counters.throttle(throttle_time_ms)
        else:
            print(record.getMessage(), file=sys.stderr, flush=True)


def _watch_throttles_of_kafka_python(counters: Counters) -> None:
    logger = logging.getLogger("kafka")
    logger.addHandler(ThrottleWarnings(counters))
    logger.propagate = False


def _watch_throttles_of_librdkafka(counters: Counters) -> Callable[[Any], None]:
    return lambda event: counters.throttle(round(event.throttle_time * 1000))


def good_producer(bootstrap: str, topic: str, counters: Counters) -> None:
    """Sends 200 KB/s at an even pace that no slow response slows down; the latency runs from when a record was due."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "good-producer",
            "acks": "all",
            "linger.ms": 0,
            "throttle_cb": _watch_throttles_of_librdkafka(counters),
        }
    )
    producer.list_topics(topic, timeout=20)
    padding = os.urandom(GOOD_RECORD_BYTES - _STAMP.size)

    def delivered(due_s: float, error: Any, message: Any) -> None:
        if error is None:
            counters.add(GOOD_RECORD_BYTES, since_s=due_s)
        else:
            print(f"not delivered: {error}", file=sys.stderr, flush=True)
            counters.fail()

    counters.await_start()
    begin_s = time.monotonic()
    number = 0
    while not counters.stop.is_set():
        due_s = begin_s + number / GOOD_RECORDS_PER_SECOND
        if (ahead_s := due_s - time.monotonic()) > 0:
            producer.poll(ahead_s)
            continue
        stamp = _STAMP.pack(number, int(due_s * 1e9))
        producer.produce(
            topic, stamp + padding, partition=number % GOOD_PARTITIONS, on_delivery=partial(delivered, due_s)
        )
        producer.poll(0)
        number += 1
    producer.flush(20)
    for _ in range(len(producer)):
        counters.fail()


def good_consumer(bootstrap: str, topic: str, counters: Counters) -> None:
    """Reads the records of the good producer, in a group; each counts once, with its latency since it was due."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        client_id="good-consumer",
        group_id=f"good-consumer-of-{topic}",
        auto_offset_reset="earliest",
    )
    while len(consumer.assignment()) < GOOD_PARTITIONS:
        consumer.poll(timeout_ms=100)
    seen: set[int] = set()
    counters.await_start()
    while not counters.stop.is_set():
        for records in consumer.poll(timeout_ms=100).values():
            for record in records:
                number, due_ns = _STAMP.unpack_from(record.value)
                if number not in seen:
                    seen.add(number)
                    counters.add(len(record.value), since_s=due_ns / 1e9)


def noisy_producer(bootstrap: str, topic: str, counters: Counters) -> None:
    """Sends as fast as it can; kafka-python buffers as many records as it is given, so this function limits them."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id="noisy-producer",
        acks="all",
        batch_size=128 * 1024,
    )
    producer.partitions_for(topic)
    payload = os.urandom(NOISY_RECORD_BYTES)

    room = threading.Semaphore(_NOISY_RECORDS_HELD)

    def delivered(sent_s: float, metadata: Any) -> None:
        counters.add(NOISY_RECORD_BYTES, since_s=sent_s)
        room.release()

    def failed(error: Exception) -> None:
        print(f"not delivered: {error}", file=sys.stderr, flush=True)
        counters.fail()
        room.release()

    counters.await_start()
    while not counters.stop.is_set():
        if room.acquire(timeout=0.2):
            sent = producer.send(topic, payload)
            sent.add_callback(partial(delivered, time.monotonic()))
            sent.add_errback(failed)


def noisy_consumer(bootstrap: str, topic: str, counters: Counters) -> None:
    """Reads the same records again and again, as fast as it can."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "noisy-consumer",
            "group.id": "noisy-consumer",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "throttle_cb": _watch_throttles_of_librdkafka(counters),
        }
    )
    consumer.list_topics(topic, timeout=20)
    counters.await_start()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while not counters.stop.is_set():
        messages = consumer.consume(256, timeout=0.1)
        values = [message.value() for message in messages if message.error() is None]
        counters.add(sum(map(len, values)), len(values))
        errors = [message.error() for message in messages if message.error() is not None]
        if any(error.code() == KafkaError._PARTITION_EOF for error in errors):
            consumer.seek(TopicPartition(topic, 0, 0))


CLIENTS: dict[str, Callable[[str, str, Counters], None]] = {
    "good-producer": good_producer,
    "good-consumer": good_consumer,
    "noisy-producer": noisy_producer,
    "noisy-consumer": noisy_consumer,
}
LIBRARIES = {
    "good-producer": "confluent-kafka",
    "good-consumer": "kafka-python",
    "noisy-producer": "kafka-python",
    "noisy-consumer": "confluent-kafka",
}


def main() -> None:
    """Run one client until SIGTERM."""
    name, bootstrap, topic = sys.argv[1:]
    counters = Counters()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGTERM, lambda number, frame: counters.stop.set())
    _watch_throttles_of_kafka_python(counters)
    CLIENTS[name](bootstrap, topic, counters)
    counters.report()
    # The records that a noisy client still holds need not be sent, and closing would wait for them.
    os._exit(0)


if __name__ == "__main__":
    main()
