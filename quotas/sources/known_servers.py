"""The servers of a cluster that sources of quotas and fleets may ask."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from kafka_throttle.protocol.messages.metadata import MetadataNode

_MOST_NODES: Final = 32
_FRESH_S: Final = 30.0


def address_of(node: MetadataNode) -> str:
    """Where a node is, as host:port."""
    return f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}"


class KnownServers:
    """The servers (host:port) of one cluster: those of the configuration, then the nodes that it has named last.

    So the cluster can be reached while one of its known nodes responds, also if it is not in the configuration.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self.configured = tuple(configured)
        self.all = self.configured
        self._noted_s: float | None = None

    def replace(self, configured: Sequence[str]) -> None:
        """Take up the servers of a changed configuration. These may be another cluster, so the known nodes go."""
        if tuple(configured) != self.configured:
            self.configured = self.all = tuple(configured)
            self._noted_s = None

    def note(self, nodes: Iterable[MetadataNode]) -> None:
        """Note the nodes that the cluster has named. If there are none, those that it named before stay."""
        self._noted_s = time.monotonic()
        if addresses := [address_of(node) for node in nodes if node.host][:_MOST_NODES]:
            self.all = (*self.configured, *(address for address in addresses if address not in self.configured))

    @property
    def are_old(self) -> bool:
        """Whether the cluster should be asked for its nodes again."""
        return self._noted_s is None or time.monotonic() - self._noted_s > _FRESH_S
