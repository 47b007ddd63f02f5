"""The proxy's own request for all nodes and no topic. Sources: `MetadataRequest.json`, `MetadataResponse.json`."""

from typing import NamedTuple

from protocol.api_key import METADATA
from protocol.fields import FieldReader, FieldWriter
from protocol.own_requests import OwnRequest

_NO_TOPICS_SINCE = 1
"""In earlier versions an empty list of topics asks for all topics."""
_THROTTLE_SINCE = 3
_AUTO_CREATION_SINCE = 4
_AUTHORIZED_OPERATIONS_SINCE = 8
_CLUSTER_OPERATIONS_UNTIL = 10
_ERROR_CODE_SINCE = 13


class MetadataNode(NamedTuple):
    """A node, and the address of its listener at which the request came."""

    node_id: int
    host: str
    port: int


class ClusterNodes(NamedTuple):
    """The nodes of a cluster, or the error code for which it does not name them; 0 is no error."""

    nodes: tuple[MetadataNode, ...]
    error_code: int


def nodes_request() -> OwnRequest[ClusterNodes]:
    """The request for all nodes and no topic."""
    return OwnRequest(METADATA, _written, _read, _NO_TOPICS_SINCE)


def _written(writer: FieldWriter, version: int) -> bytes:
    booleans = int(version >= _AUTO_CREATION_SINCE)
    if version >= _AUTHORIZED_OPERATIONS_SINCE:
        booleans += 2 if version <= _CLUSTER_OPERATIONS_UNTIL else 1
    return writer.count(0) + bytes(booleans) + writer.end


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


def _node(reader: FieldReader) -> MetadataNode:
    node = MetadataNode(reader.int32(), reader.text(), reader.int32())
    reader.nullable_text()  # rack
    reader.end()
    return node
