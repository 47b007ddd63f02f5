"""The broker that is measured: one of two nodes, the one that is not the active controller, with JMX and topics."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster, free_ports
from tests.fidelity import frames, sensors
from tests.fidelity.clients import Connection
from tests.fidelity.frames import Call
from tests.fidelity.loads import EMPTY, KIB, PARTITIONS, READ, REPLICATED, SIZES, WRITTEN
from tests.support.quota_frames import Altered, alter_request, altered
from tests.support.timeouts import TIMEOUT_S

LIMIT_PERCENT = 100_000.0
"""So high that it throttles nobody: the sensors exist only where there is a quota."""
_TOPIC = {"segment.bytes": "16000000", "retention.bytes": "64000000", "file.delete.delay.ms": "1000"}
_KEPT = {"retention.ms": "-1"}
"""The records of `frames` are of 1970."""
PROPERTIES = {
    "log.retention.check.interval.ms": "5000",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "metrics.num.samples": "11",
    "metrics.sample.window.ms": "1000",
}
"""`exempt-request-time` is measured over the windows of all metrics, not those of quotas; so they are made equal."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A node of a cluster, and its sensors."""

    cluster: KafkaCluster
    node_id: int
    sensors: sensors.BrokerSensors

    @property
    def address(self) -> tuple[str, int]:
        return self.cluster.address(self.node_id)


@contextmanager
def start(version: str) -> Iterator[Broker]:
    """A cluster with a node to measure; its quotas let everybody through."""
    jmx_ports = dict(zip((1, 2), free_ports(2), strict=True))
    with (
        KafkaCluster(
            version,
            nodes=2,
            extra=lambda node_id: PROPERTIES,
            jvm_options=lambda node_id: sensors.jvm_options(jmx_ports[node_id]),
        ) as cluster,
        ExitStack() as stack,
    ):
        read = {id_: stack.enter_context(sensors.BrokerSensors(port)) for id_, port in jmx_ports.items()}
        node_id = next(id_ for id_, of_node in read.items() if not of_node.is_active_controller())
        make_topics(cluster, node_id)
        set_request_quotas(cluster.address(node_id), {None: LIMIT_PERCENT})
        yield Broker(cluster, node_id, read[node_id])


def set_request_quotas(address: tuple[str, int], percents: Mapping[Any, float | None]) -> None:
    """Set `request_percentage` for client-ids, or take it away; the client-id None is each that has none of its own."""
    entries = [
        ((("client-id", client_id),), (("request_percentage", percent or 0.0, percent is None),))
        for client_id, percent in percents.items()
    ]
    deadline = time.monotonic() + TIMEOUT_S
    with Connection(address) as connection:
        while refused := [response for response in _altered(connection, entries) if response.error_code]:
            assert time.monotonic() < deadline, refused
            time.sleep(0.1)


def _altered(connection: Connection, entries: Sequence[Any]) -> list[Altered]:
    return altered(bytes(4) + connection.ask(alter_request(entries)))


def make_topics(cluster: KafkaCluster, node_id: int) -> None:
    """The topics of the loads, all led by one node: for each size a partition with a batch of that size to fetch."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    everywhere = sorted(cluster.node_ids, key=lambda id_: id_ != node_id)
    copies = {WRITTEN: [node_id], READ: [node_id], EMPTY: [node_id], REPLICATED: everywhere}
    configs = {READ: {**_TOPIC, **_KEPT}}
    topics = [
        NewTopic(name, PARTITIONS, replica_assignment=[on] * PARTITIONS, config=configs.get(name, _TOPIC))
        for name, on in copies.items()
    ]
    for made in admin.create_topics(topics).values():
        made.result(TIMEOUT_S)
    _fill(cluster.address(node_id))


def delete_topics(cluster: KafkaCluster) -> None:
    """Take those of `make_topics` away."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for gone in admin.delete_topics([WRITTEN, READ, EMPTY, REPLICATED]).values():
        error = gone.exception(TIMEOUT_S)
        assert error is None or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error


def _fill(address: tuple[str, int]) -> None:
    """Every partition serves when this is done."""
    written = [frames.produce(topic, number, 1, KIB) for topic in (WRITTEN, REPLICATED) for number in range(PARTITIONS)]
    read = [frames.produce(READ, number, 1, size_bytes) for number, size_bytes in enumerate(SIZES)]
    with Connection(address) as connection:
        for call in (*written, *read, frames.fetch(EMPTY, 0, KIB, 0)):
            _until_accepted(connection, call)


def _until_accepted(connection: Connection, call: Call) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while error := call.error_code(connection.exchange(call)):
        assert time.monotonic() < deadline, f"API {call.api_key} is still answered with error {error}"
        time.sleep(0.1)
