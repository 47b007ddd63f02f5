"""Which nodes a Kafka cluster has, and how many partitions it gives a topic, asked for the proxy itself.

Metadata names the nodes in every Kafka. DescribeCluster came with Kafka 2.8, and tells no more about those that serve.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from quotas.changes import SourceUnavailable
from quotas.sources.cluster_connection import ClusterConnection, Credentials

_FIRST_VERSION_THAT_MAY_ASK_FOR_NO_TOPIC: Final = 1
_BROKER: Final = 4
"""The type of a resource that is a node, in DescribeConfigs."""
_NUM_PARTITIONS: Final = "num.partitions"
_NODES_ASKED: Final = 3


def metadata_request() -> Any:
    """Asks for all nodes and no topic."""
    return MetadataRequest(topics=[], min_version=_FIRST_VERSION_THAT_MAY_ASK_FOR_NO_TOPIC)


def nodes_named_by(server: str, credentials: Credentials, timeout_s: float) -> list[dict[str, Any]]:
    """The nodes that a server (host:port) names: broker_id, host, port. Blocks. Raises SourceUnavailable."""
    with closing(ClusterConnection(server, credentials, timeout_s)) as connection:
        response = connection.ask(metadata_request())
    nodes = [
        {"broker_id": node.node_id, "host": node.host, "port": node.port} for node in response.brokers if node.host
    ]
    if not nodes:
        raise SourceUnavailable(f"{server}: its answer to Metadata names no node (error {response.error_code or 0})")
    return nodes


def default_partitions_of(addresses: Mapping[int, str], credentials: Credentials, timeout_s: float) -> int | None:
    """num.partitions, as the first node says that tells it; None where none does. Blocks.

    `addresses` are host:port by node id. A node tells its own configuration only, to whoever may see it.
    """
    for node_id, address in list(addresses.items())[:_NODES_ASKED]:
        try:
            with closing(ClusterConnection(address, credentials, timeout_s)) as connection:
                return _num_partitions(connection.ask(_configuration_request(node_id)))
        except (SourceUnavailable, TypeError, ValueError):
            continue
    return None


def _configuration_request(node_id: int) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_NUM_PARTITIONS]
    )
    return DescribeConfigsRequest(resources=[resource])


def _num_partitions(response: Any) -> int:
    """Raises ValueError or TypeError where the response does not tell it."""
    for result in response.results:
        for config in result.configs or ():
            if config.name == _NUM_PARTITIONS:
                return int(config.value)
    raise ValueError(_NUM_PARTITIONS)
