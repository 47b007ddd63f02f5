"""A proxy with quotas of all kinds in front of a real node, and clients that use them: something to look at."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from demo.kafka_cluster import KafkaCluster
from demo.proxy_process import free_port_run
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import RawClient
from tests.integration.zookeeper_process import ZooKeeper
from tests.support.certificates import Authority

QUOTAS = [
    {"client_id": "noisy", "producer_byte_rate": 200_000},
    {"client_id": "steady", "producer_byte_rate": 100_000, "request_percentage": 50.0},
    {"client_id": "reader", "consumer_byte_rate": 300_000},
    {"client_id": "creator", "controller_mutation_rate": 0.5},
    {"default_client_id": True, "shadow_producer_byte_rate": 5_000, "shadow_consumer_byte_rate": 5_000},
]
_TOPIC = "observed"
_FILLED_BYTES = 4_000_000
_RECORD_BYTES = 20_000


@contextlib.contextmanager
def loaded_proxy(kafka: KafkaCluster, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy in front of a cluster of one node, under load until the end of the block."""
    certificate = Authority(folder).issue(HOST, valid=timedelta(days=100))
    tls = {"certificate_file": str(certificate.certificate_file), "key_file": str(certificate.key_file)}
    secured, of_node = free_port_run(2)
    topic = {"bootstrap_servers": [kafka.bootstrap_servers], "topic": "usage"}
    with (
        ZooKeeper() as zookeeper,
        ProxyProcess(
            kafka,
            QUOTAS,
            listener={"caps": {"ingress_bytes_per_s": 50_000_000}, "connections": {"max_connections": 1000}},
            more_listeners=[{"name": "tls", "bind": HOST, "port": secured, "spare_ports": [of_node], "tls": tls}],
            usage={"directory": str(folder / "usage"), "window_s": 1, "file_s": 2, "kafka": topic},
            throttle={"max_throttle_ms": 2000},
            fleet={"zookeeper": {"servers": [zookeeper.address]}},
            limits={"drain_s": 0},
        ) as proxy,
        _clients(proxy),
    ):
        yield proxy


@contextlib.contextmanager
def _clients(proxy: ProxyProcess) -> Iterator[None]:
    """Clients at work, each in a thread, until the end of the block."""
    _fill(proxy.bootstrap)
    over = threading.Event()
    works: list[Callable[[ProxyProcess, threading.Event], None]] = [_noisy, _steady, _reading, _creating, _looking]
    threads = [threading.Thread(target=work, args=(proxy, over), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def _fill(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="filler")
    for _ in range(_FILLED_BYTES // _RECORD_BYTES):
        producer.send(_TOPIC, bytes(_RECORD_BYTES))
    producer.flush()
    producer.close()


def _noisy(proxy: ProxyProcess, over: threading.Event) -> None:
    """Produces as much as it can."""
    with RawClient((HOST, proxy.node_ports[1]), "noisy") as client:
        while not over.is_set():
            client.produce(100_000)


def _steady(proxy: ProxyProcess, over: threading.Event) -> None:
    """Produces half of its quota."""
    with RawClient((HOST, proxy.node_ports[1]), "steady") as client:
        while not over.wait(0.1):
            client.produce(5_000)


def _reading(proxy: ProxyProcess, over: threading.Event) -> None:
    """Reads the topic again and again."""
    consumer = KafkaConsumer(
        _TOPIC,
        bootstrap_servers=proxy.bootstrap,
        client_id="reader",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=200_000,
    )
    while not over.is_set():
        if not consumer.poll(timeout_ms=500) and consumer.assignment():
            consumer.seek_to_beginning()
    consumer.close()


def _creating(proxy: ProxyProcess, over: threading.Event) -> None:
    """Creates topics faster than it may."""
    admin = KafkaAdminClient(bootstrap_servers=proxy.bootstrap, client_id="creator")
    number = 0
    while not over.wait(0.7):
        number += 1
        with contextlib.suppress(KafkaError):
            admin.create_topics([NewTopic(f"created-{number}", 1, 1)], timeout_ms=2000)
    admin.close()


def _looking(proxy: ProxyProcess, over: threading.Event) -> None:
    """Connects, asks one thing, and leaves."""
    while not over.wait(0.2):
        with RawClient((HOST, proxy.node_ports[1]), "looking") as client:
            client.produce(200)
