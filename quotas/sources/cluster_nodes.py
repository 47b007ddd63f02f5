"""Which nodes a Kafka cluster has, and how many partitions it gives a topic, asked for the proxy itself.

Metadata names the nodes in every Kafka. DescribeCluster came with Kafka 2.8, and says no more about those that serve.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final, TypeVar

from kafka_throttle.protocol.messages.described_configs import node_configs_request
from kafka_throttle.protocol.messages.metadata import MetadataNode, nodes_request
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials

Result = TypeVar("Result")

_NUM_PARTITIONS: Final = "num.partitions"
_NODES_ASKED: Final = 3


async def response_of(server: str, credentials: Credentials, timeout_s: float, request: OwnRequest[Result]) -> Result:
    """The response of a server (host:port) to one request. Raises ConnectionFault."""
    with closing(ClusterClient(server, credentials, timeout_s)) as client:
        return await client.ask(request)


async def nodes_named_by(server: str, credentials: Credentials, timeout_s: float) -> Sequence[MetadataNode]:
    """The nodes that a server (host:port) names. Raises SourceUnavailable."""
    response = await response_of(server, credentials, timeout_s, nodes_request())
    nodes = [node for node in response.nodes if node.host]
    if not nodes:
        raise SourceUnavailable(f"{server}: its response to Metadata names no node (error {response.error_code})")
    return nodes


async def default_partitions_of(addresses: Mapping[int, str], credentials: Credentials, timeout_s: float) -> int | None:
    """num.partitions, from the first node that reports it; None where none does.

    `addresses` are host:port by node id. A node reports its own configuration only, to clients that may see it.
    """
    for node_id, address in list(addresses.items())[:_NODES_ASKED]:
        try:
            configs = await response_of(
                address, credentials, timeout_s, node_configs_request(node_id, [_NUM_PARTITIONS])
            )
            if (number := int(configs[_NUM_PARTITIONS] or "")) > 0:
                return number
        except (SourceUnavailable, LookupError, ValueError):
            continue
    return None
