"""Clients of one load, in one process: `python -m tests.live_fleet.load`.

It reads JSON lines: {"start": NAME, "library": ..., "kind": "produce" or "fetch", "topic": ..., "bootstrap": ...,
"client_id": ..., "rate": BYTES/S or null for as fast as can be} and {"demand": [NAME, RATE]}; a rate of 0 is a pause.
It prints {"at": MONOTONIC S, "bytes": {NAME: TOTAL}} several times a second: bytes of values that were acknowledged or
read.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

VALUE_BYTES = 16_000
BATCH_BYTES = 32_000
WITH_DEFAULT_FETCH = "librdkafka, default fetch"
"""The library of a consumer that asks for as much as librdkafka does if nothing is set."""
_DEFAULT_FETCH_BYTES = 1_048_576
_HELD = 12
"""Values that a producer has under way or waiting; so a pause is one soon."""
_REPORT_S = 0.2
_NEVER_MS = 1_000_000
NICE = 19
"""The least priority of a process."""


class Demand:
    """How fast one client wants to go, and how far it has come."""

    def __init__(self, rate: float | None) -> None:
        self.bytes = 0
        self._rate = rate
        self._since = time.monotonic()
        self._due = 0.0

    def change(self, rate: float | None) -> None:
        """From now on."""
        self._rate, self._since, self._due = rate, time.monotonic(), 0.0

    def wait(self) -> None:
        """Until the next value may be sent or read."""
        while (rate := self._rate) is not None and (time.monotonic() - self._since) * rate < self._due:
            time.sleep(0.005)
        self._due += VALUE_BYTES


class Client(Protocol):
    """Works for ever, in a thread."""

    def __call__(self, order: dict[str, Any], demand: Demand) -> None: ...


def produce_by_librdkafka(order: dict[str, Any], demand: Demand) -> None:
    producer = Producer(
        {
            "bootstrap.servers": order["bootstrap"],
            "client.id": order["client_id"],
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "message.timeout.ms": _NEVER_MS,
            "reconnect.backoff.max.ms": 500,
        }
    )
    value, room = os.urandom(VALUE_BYTES), _HELD

    def settle(error: Any, message: Any) -> None:
        nonlocal room
        room += 1
        if error is None:
            demand.bytes += VALUE_BYTES
        else:
            print(f"not delivered: {error}", file=sys.stderr, flush=True)

    while True:
        demand.wait()
        while room <= 0:
            producer.poll(0.1)
        room -= 1
        producer.produce(order["topic"], value, partition=0, on_delivery=settle)
        producer.poll(0)


def produce_by_kafka_python(order: dict[str, Any], demand: Demand) -> None:
    producer = KafkaProducer(
        bootstrap_servers=order["bootstrap"],
        client_id=order["client_id"],
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        batch_size=BATCH_BYTES,
        delivery_timeout_ms=_NEVER_MS,
        reconnect_backoff_max_ms=500,
    )
    value, room = os.urandom(VALUE_BYTES), threading.Semaphore(_HELD)

    def settle(_: Any) -> None:
        demand.bytes += VALUE_BYTES
        room.release()

    def fail(error: Exception) -> None:
        print(f"not delivered: {error}", file=sys.stderr, flush=True)
        room.release()

    while True:
        demand.wait()
        room.acquire()
        producer.send(order["topic"], value, partition=0).add_callback(settle).add_errback(fail)


def fetch_by_librdkafka(order: dict[str, Any], demand: Demand, fetch_bytes: int = 2 * BATCH_BYTES) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": order["bootstrap"],
            "client.id": order["client_id"],
            "group.id": order["client_id"],
            "enable.auto.commit": False,
            "fetch.message.max.bytes": fetch_bytes,
            "queued.max.messages.kbytes": 256,
            "reconnect.backoff.max.ms": 500,
        }
    )
    consumer.assign([Place(order["topic"], 0, 0)])
    end = -1
    while True:
        demand.wait()
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        demand.bytes += len(message.value())
        end = max(end, consumer.get_watermark_offsets(Place(order["topic"], 0), cached=True)[1])
        if message.offset() == end - 1:
            consumer.seek(Place(order["topic"], 0, 0))


def fetch_by_kafka_python(order: dict[str, Any], demand: Demand) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=order["bootstrap"],
        client_id=order["client_id"],
        enable_auto_commit=False,
        check_crcs=False,
        max_partition_fetch_bytes=2 * BATCH_BYTES,
        max_poll_records=4,
        reconnect_backoff_max_ms=500,
    )
    place = TopicPartition(order["topic"], 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    [end] = consumer.end_offsets([place]).values()
    while True:
        for records in consumer.poll(1000).values():
            for record in records:
                demand.wait()
                demand.bytes += len(record.value)
                if record.offset == end - 1:
                    consumer.seek(place, 0)


CLIENTS: dict[tuple[str, str], Client] = {
    ("librdkafka", "produce"): produce_by_librdkafka,
    ("kafka-python", "produce"): produce_by_kafka_python,
    ("librdkafka", "fetch"): fetch_by_librdkafka,
    (WITH_DEFAULT_FETCH, "fetch"): partial(fetch_by_librdkafka, fetch_bytes=_DEFAULT_FETCH_BYTES),
    ("kafka-python", "fetch"): fetch_by_kafka_python,
}


def main() -> None:
    """Until standard input ends."""
    # Throttled clients spin: broker threads of librdkafka, the sender of kafka-python. It must cost nobody else's time.
    os.nice(NICE)
    demands: dict[str, Demand] = {}
    threading.Thread(target=_keep_reporting, args=(demands,), daemon=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        if "demand" in order:
            name, rate = order["demand"]
            demands[name].change(rate)
        else:
            demand = demands[order["start"]] = Demand(order["rate"])
            _in_thread(CLIENTS[order["library"], order["kind"]], order, demand)
    os._exit(0)  # the clients' threads and what they still hold are not waited for


def _in_thread(client: Client, order: dict[str, Any], demand: Demand) -> None:
    def run() -> None:
        try:
            client(order, demand)
        finally:  # a client that ends has failed, and a load without it is not the one that was asked for
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()


def _keep_reporting(demands: dict[str, Demand], say: Callable[[str], object] = print) -> None:
    while True:
        time.sleep(_REPORT_S)
        found = {name: demand.bytes for name, demand in list(demands.items())}
        say(json.dumps({"at": time.monotonic(), "bytes": found}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
