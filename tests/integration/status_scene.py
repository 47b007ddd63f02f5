"""A proxy at work in front of a real cluster, for the status page: clients that keep to their quotas, clients that do
not, a shadow quota, and connections that are refused.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import sin

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import make_topic

THROTTLED = "nightly-etl"
"""The client that wants far more than its quota."""

RATES = {
    THROTTLED: 2_600_000,
    "orders-api": 240_000,
    "billing": 90_000,
    "search-indexer": 800_000,
    "clickstream": 1_500_000,
    "fraud-scoring": 30_000,
    "warehouse-sync": 430_000,
}
"""What each client wants to produce, in bytes/s."""

QUOTAS = (
    {"client_id": THROTTLED, "producer_byte_rate": 1_000_000},
    {"client_id": "clickstream", "producer_byte_rate": 4_000_000, "shadow_producer_byte_rate": 1_200_000},
    {"client_id": "search-indexer", "producer_byte_rate": 1_000_000},
    {"client_id": "orders-api", "producer_byte_rate": 2_000_000, "consumer_byte_rate": 4_000_000},
    {"default_client_id": True, "producer_byte_rate": 500_000, "consumer_byte_rate": 1_000_000},
    {"default_ip": True, "connection_creation_rate": 50},
)
REPLAYING = "audit-replay"
"""A consumer that reads from the beginning, again and again, as fast as it may."""

_RECORD_BYTES = 10_000
_STEP_S = 0.05
_WAVE_S = 97.0
"""Each client wants a fifth more and less than its rate in turns of this length."""


@contextmanager
def scene(kafka, topic: str) -> Iterator[ProxyProcess]:
    """The proxy, while clients are at work. `topic` is made; all produce to it."""
    make_topic(kafka.bootstrap_servers, topic, partitions=1)
    source = {"state_file": "state.json"}
    sections = {"limits": {"drain_s": 0}, "usage": {"instance": "proxy-1"}, "history": {"directory": "history"}}
    with ProxyProcess(kafka, QUOTAS, source=source, **sections) as proxy:
        ending = threading.Event()
        clients = [
            threading.Thread(target=_produce, args=(proxy.bootstrap, topic, name, rate, ending), daemon=True)
            for name, rate in RATES.items()
        ]
        clients.append(threading.Thread(target=_consume, args=(proxy.bootstrap, topic, ending), daemon=True))
        for client in clients:
            client.start()
        for _ in range(3):
            _speak_http(proxy.port)
        try:
            yield proxy
        finally:
            ending.set()
            for client in clients:
                client.join()


def _produce(bootstrap: str, topic: str, name: str, rate: float, ending: threading.Event) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200,
            "message.timeout.ms": 600_000,
        }
    )
    before, wanted = time.monotonic(), 0.0
    while not ending.is_set():
        now = time.monotonic()
        wanted += rate * (now - before) * (1 + sin(6.28 * now / _WAVE_S + len(name)) / 5)
        before = now
        while wanted >= _RECORD_BYTES:
            try:
                producer.produce(topic, b"x" * _RECORD_BYTES, partition=0)
            except BufferError:  # throttled: what it wanted meanwhile is forgotten
                wanted = 0
            wanted -= _RECORD_BYTES
        producer.poll(_STEP_S)
    producer.purge()
    producer.flush(5)


def _consume(bootstrap: str, topic: str, ending: threading.Event) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "client.id": REPLAYING, "group.id": REPLAYING, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while not ending.is_set():
        message = consumer.poll(_STEP_S)
        if message is not None and message.error() is not None:
            consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.close()


def _speak_http(port: int) -> None:
    """A connection that the proxy refuses, as it is not Kafka."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
        sock.recv(100)
