"""A Kafka cluster as its clients see it: who its nodes are, where they really are, and which port stands for which."""

import re
from collections.abc import KeysView

import structlog

from proxy.config.kinds import INT32_MAX, MAX_PORT, HostPort
from proxy.config.settings import ListenerConfig
from proxy.verdicts.facts import NoPortForNode

BOOTSTRAP_NODE_ID = -1
"""Stands for a node that was reached by a bootstrap address which no node calls its own."""

MAX_LEARNED_NODES = 10_000


class NodeDirectory:
    """Upstream addresses of a cluster's nodes, as its own answers name them."""

    def __init__(self, virtual_cluster: str = "") -> None:
        self._addresses: dict[int, HostPort] = {}
        self._told: set[int] = set()
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)

    @property
    def reached(self) -> bool:
        """True once the cluster has named its nodes."""
        return bool(self._addresses)

    @property
    def node_ids(self) -> KeysView[int]:
        """The nodes that it has named."""
        return self._addresses.keys()

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note where a node is; the latest word counts, but for a port that there cannot be: that is logged once.

        Some ways to connect would take such a port modulo 65,536, and reach whoever listens there.
        """
        if not 1 <= port <= MAX_PORT:
            self._refuse(node_id, host, port)
        elif len(self._addresses) < MAX_LEARNED_NODES or node_id in self._addresses:
            self._addresses[node_id] = HostPort(host, port)
            self._told.discard(node_id)

    def _refuse(self, node_id: int, host: str, port: int) -> None:
        if node_id not in self._told and len(self._told) < MAX_LEARNED_NODES:
            self._told.add(node_id)
            problem = f"expected a port from 1 to {MAX_PORT}, got {port}: it is not connected to there"
            self._log.warning("node_address_refused", node_id=node_id, host=host, port=port, problem=problem)

    def address(self, node_id: int) -> HostPort | None:
        """Where a node is, None while nobody has said so."""
        return self._addresses.get(node_id)

    def node_at(self, address: HostPort) -> int:
        """The node that calls an address its own, BOOTSTRAP_NODE_ID if none does."""
        for node_id, known in self._addresses.items():
            if known == address:
                return node_id
        return BOOTSTRAP_NODE_ID


class ListenerPorts:
    """Which port of a listener stands for which node. Spare ports are given out as unknown ids appear."""

    def __init__(self, config: ListenerConfig, directory: NodeDirectory) -> None:
        self._host = config.advertised_host.encode()
        self._name = config.name
        self._port_of = config.ports()
        self._spares = config.spares()
        self._directory = directory
        self._node_of = {port: node_id for node_id, port in self._port_of.items()}
        self._node_of[config.port] = BOOTSTRAP_NODE_ID

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note the upstream address of a node."""
        self._directory.learn(node_id, host, port)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        """Host and port that clients are told for a node. Raises NoPortForNode."""
        port = self._port_of.get(node_id)
        if port is None:
            port = self._take_spare(node_id)
        return self._host, port

    def _take_spare(self, node_id: int) -> int:
        if not self._spares:
            raise NoPortForNode(
                f"node {node_id} is not in node_ids of listener {self._name!r} and no spare port is left: "
                f"add {node_id} to node_ids or ports to spare_ports"
            )
        port = self._spares.pop(0)
        self._port_of[node_id] = port
        self._node_of[port] = node_id
        return port

    def node_of(self, port: int) -> int | None:
        """The node that a local port stands for; None for a spare port that no node has taken."""
        return self._node_of.get(port)


def plain_host(name: str) -> str:
    """The one spelling of a host name."""
    return name.lower().removesuffix(".")


class ListenerNames:
    """The host names of a listener that stand for nodes: all at one port, told apart by what a TLS client asks for."""

    def __init__(self, config: ListenerConfig, directory: NodeDirectory) -> None:
        assert config.advertised_node_host is not None
        self._pattern = config.advertised_node_host
        before, after = plain_host(self._pattern).split("{node_id}")
        self._name = re.compile(f"{re.escape(before)}(0|[1-9][0-9]{{0,9}}){re.escape(after)}")
        self._bootstrap = plain_host(config.advertised_host)
        self._port = config.port
        self._directory = directory

    def __str__(self) -> str:
        return f"{self._bootstrap} and {self._pattern}"

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note the upstream address of a node."""
        self._directory.learn(node_id, host, port)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        """Host and port that clients are told for a node."""
        return self._pattern.replace("{node_id}", str(node_id)).encode(), self._port

    def node_of(self, _port: int) -> int:
        """The node of a connection that names none."""
        return BOOTSTRAP_NODE_ID

    def node_named(self, name: str) -> int | None:
        """The node that a server name stands for, BOOTSTRAP_NODE_ID included; None for a name of somebody else's."""
        name = plain_host(name)
        if name == self._bootstrap:
            return BOOTSTRAP_NODE_ID
        match = self._name.fullmatch(name)
        node_id = int(match[1]) if match else None
        return node_id if node_id is not None and node_id <= INT32_MAX else None


def addressing(config: ListenerConfig, directory: NodeDirectory) -> ListenerPorts | ListenerNames:
    """How the clients of a listener address nodes."""
    return ListenerNames(config, directory) if config.advertised_node_host else ListenerPorts(config, directory)
