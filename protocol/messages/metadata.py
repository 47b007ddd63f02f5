"""The proxy's own requests for all nodes or one topic. Sources: `MetadataRequest.json`, `MetadataResponse.json`."""

from typing import NamedTuple

from kafka_throttle.protocol.api_key import METADATA
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.own_requests import OwnRequest

_NO_TOPICS_SINCE = 1
"""In earlier versions an empty list of topics asks for all topics."""
_THROTTLE_SINCE = 3
_AUTO_CREATION_SINCE = 4
_AUTHORIZED_OPERATIONS_SINCE = 8
_CLUSTER_OPERATIONS_UNTIL = 10
_TOPIC_ID_SINCE = 10
_ERROR_CODE_SINCE = 13
_NO_TOPIC_ID = bytes(16)


class MetadataNode(NamedTuple):
    """A node, and the address of its listener at which the request came."""

    node_id: int
    host: str
    port: int


class ClusterNodes(NamedTuple):
    """The nodes of a cluster, or the error code for which it does not name them; 0 is no error."""

    nodes: tuple[MetadataNode, ...]
    error_code: int


class TopicPartition(NamedTuple):
    """A partition of a topic, and the node that leads it; -1 for none."""

    number: int
    leader_id: int
    leader_epoch: int
    error_code: int


class TopicPlace(NamedTuple):
    """Where a topic is, or the error code for which that is not known; and all nodes by their id.

    `controller_id` is a node that may be asked to create topics.
    """

    error_code: int
    topic_id: bytes
    partitions: tuple[TopicPartition, ...]
    nodes: dict[int, MetadataNode]
    controller_id: int


def nodes_request() -> OwnRequest[ClusterNodes]:
    """The request for all nodes and no topic."""
    return OwnRequest(METADATA, _written, _read, _NO_TOPICS_SINCE)


def topic_request(name: str) -> OwnRequest[TopicPlace]:
    """The request for one topic, which is not created by it. Nodes before Kafka 2.8 cannot answer it."""

    def written(writer: FieldWriter, version: int) -> bytes:
        topic = _NO_TOPIC_ID + writer.text(name) + writer.end
        return writer.array([topic]) + _options(version) + writer.end

    return OwnRequest(METADATA, written, _read_topic, _TOPIC_ID_SINCE)


def _written(writer: FieldWriter, version: int) -> bytes:
    return writer.count(0) + _options(version) + writer.end


def _options(version: int) -> bytes:
    """No topic is created, and no authorized operations are listed."""
    booleans = int(version >= _AUTO_CREATION_SINCE)
    if version >= _AUTHORIZED_OPERATIONS_SINCE:
        booleans += 2 if version <= _CLUSTER_OPERATIONS_UNTIL else 1
    return bytes(booleans)


def _read(reader: FieldReader, version: int) -> ClusterNodes:
    if version >= _THROTTLE_SINCE:
        reader.skip(4)
    nodes = tuple(_node(reader) for _ in reader.elements(12 if not reader.compact else 11))
    if version < _ERROR_CODE_SINCE:
        return ClusterNodes(nodes, 0)
    reader.nullable_text()  # cluster_id
    reader.skip(4)  # controller_id
    no_topics = not reader.elements(1)
    return ClusterNodes(nodes, reader.int16() if no_topics else 0)


def _read_topic(reader: FieldReader, version: int) -> TopicPlace:
    reader.skip(4)  # throttle_time_ms
    nodes = {node.node_id: node for node in [_node(reader) for _ in reader.elements(11)]}
    reader.nullable_text()  # cluster_id
    controller_id = reader.int32()
    error_code, topic_id = 0, _NO_TOPIC_ID
    partitions: tuple[TopicPartition, ...] = ()
    for _ in reader.elements(28):
        error_code = reader.int16()
        reader.nullable_text()
        topic_id = reader.raw(16)
        reader.skip(1)  # is_internal
        partitions = tuple(_partition(reader) for _ in reader.elements(18))
        reader.skip(4)  # topic_authorized_operations
        reader.end()
    if version <= _CLUSTER_OPERATIONS_UNTIL:
        reader.skip(4)  # cluster_authorized_operations
    if version >= _ERROR_CODE_SINCE:
        error_code = reader.int16() or error_code
    return TopicPlace(error_code, topic_id, partitions, nodes, controller_id)


def _partition(reader: FieldReader) -> TopicPartition:
    error_code = reader.int16()
    partition = TopicPartition(reader.int32(), reader.int32(), reader.int32(), error_code)
    for _ in range(3):  # replica_nodes, isr_nodes, offline_replicas
        reader.skip(4 * max(0, len(reader.elements(4))))
    reader.end()
    return partition


def _node(reader: FieldReader) -> MetadataNode:
    node = MetadataNode(reader.int32(), reader.text(), reader.int32())
    reader.nullable_text()  # rack
    reader.end()
    return node
