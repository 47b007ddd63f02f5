"""A Kafka cluster as its clients see it: who its nodes are, where they really are, and which port stands for which."""

import re
from collections.abc import Callable, Collection, KeysView, Mapping
from math import inf

import structlog

from kafka_throttle.common.at_most_every import AtMostEvery
from kafka_throttle.common.destinations import ANYWHERE, Destinations, plain_name
from kafka_throttle.common.kinds import INT32_MAX, MAX_PORT
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import ListenerConfig
from kafka_throttle.proxy.decisions.facts import NoPortForNode

BOOTSTRAP_NODE_ID = -1
"""Stands for a node that was reached by a bootstrap address which no node calls its own."""

MAX_LEARNED_NODES = 10_000
_LEADS_BACK = "it leads back to this proxy"
_REPORTED_EVERY_US = 60_000_000
_LOOK_EVERY_US = 5_000_000
"""A look at the cluster is a connection: not each response that a node is left out of is worth one."""


class NodeDirectory:
    """Upstream addresses of a cluster's nodes, as its own responses name them."""

    def __init__(
        self,
        virtual_cluster: str = "",
        now_us: Callable[[], int] = lambda: 0,
        note_left_out: Callable[[str], None] = lambda listener: None,
        destinations: Destinations = ANYWHERE,
    ) -> None:
        self.now_us = now_us
        self.note_left_out = note_left_out
        """Is told, with the name of a listener, each time that a node is left out of a response there."""
        self.look: Callable[[], None] = lambda: None
        """Has the cluster asked for its nodes soon."""
        self._addresses: dict[int, HostPort] = {}
        self._gone_us: dict[int, int] = {}
        """Since when nodes are not among those of the cluster, the longest first."""
        self._destinations = destinations
        self._refused: dict[int, str] = {}
        """Why the proxy does not connect to the reported addresses of nodes, by node id."""
        self._ways_back: dict[int, HostPort] = {}
        """Reported addresses of nodes that lead back to this proxy, by node id."""
        self.virtual_cluster = virtual_cluster
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)

    @property
    def node_ids(self) -> KeysView[int]:
        """The nodes that it has named."""
        return self._addresses.keys()

    @property
    def present(self) -> list[int]:
        """The nodes that the cluster has now, in order."""
        return sorted(node_id for node_id in self._addresses if node_id not in self._gone_us)

    def addresses(self, most: int) -> list[HostPort]:
        """Where the nodes are that the cluster has now, in the order of their ids, at most so many."""
        return [self._addresses[node_id] for node_id in self.present[:most]]

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note the address of a node. An address that the proxy must not connect to is not noted, but logged once.

        The proxy must not connect to a port that is not valid (some ways to connect take it modulo 65,536, and reach
        another program), to itself, and to addresses where no node may be by the configuration.
        """
        if self._gone_us:
            self._gone_us.pop(node_id, None)
        if self._addresses.get(node_id) == (host, port) and node_id not in self._refused:
            return
        if not 1 <= port <= MAX_PORT:
            self._refuse(node_id, host, port, f"expected a port from 1 to {MAX_PORT}, got {port}")
        elif (why := self._refusal(node_id, host, port)) is not None:
            self._refuse(node_id, host, port, why)
        elif len(self._addresses) < MAX_LEARNED_NODES or node_id in self._addresses:
            self._addresses[node_id] = HostPort(host, port)
            self._refused.pop(node_id, None)

    def note_way_back(self, node_id: int) -> None:
        """Note that connections to this node come back, through a load balancer or another proxy: it is not there."""
        address = self._addresses.pop(node_id, None)
        if address is not None:
            self._ways_back[node_id] = address
            self._refuse(node_id, *address, _LEADS_BACK)

    @property
    def ways_back(self) -> Mapping[int, HostPort]:
        """The addresses of nodes that have led back to this proxy, by node id."""
        return self._ways_back

    def note_way_there(self, node_id: int) -> None:
        """Note that a node has responded at the address that led back before: it may be learned again."""
        self._ways_back.pop(node_id, None)

    def _refusal(self, node_id: int, host: str, port: int) -> str | None:
        if self._ways_back.get(node_id) == (host, port):
            return _LEADS_BACK
        return self._destinations.refusal_of_host(host, port)

    def _refuse(self, node_id: int, host: str, port: int, why: str) -> None:
        if node_id not in self._refused and len(self._refused) < MAX_LEARNED_NODES:
            self._refused[node_id] = f"{HostPort(host, port)}: {why}"
            problem = f"{why}, so the proxy does not connect to it"
            self._log.warning("node_address_refused", node_id=node_id, host=host, port=port, problem=problem)

    @property
    def refused(self) -> Mapping[int, str]:
        """Why the proxy does not connect to the reported addresses of nodes, each with the address, by node id."""
        return self._refused

    def note_all(self, node_ids: Collection[int]) -> None:
        """These are all nodes of the cluster now: others are gone. Of very many the longest gone are forgotten."""
        present = set(node_ids)
        self._refused = {node_id: why for node_id, why in self._refused.items() if node_id in present}
        self._ways_back = {node_id: where for node_id, where in self._ways_back.items() if node_id in present}
        for node_id in self._addresses:
            if node_id not in present:
                self._gone_us.setdefault(node_id, self.now_us())
        while self._gone_us and len(self._addresses) >= MAX_LEARNED_NODES:
            forgotten = next(iter(self._gone_us))
            del self._gone_us[forgotten], self._addresses[forgotten]

    def gone_for_s(self, node_id: int) -> float | None:
        """For how long a node has not been among those of the cluster; None: it is one of them."""
        if node_id not in self._addresses:
            return inf
        since_us = self._gone_us.get(node_id)
        return None if since_us is None else (self.now_us() - since_us) / 1e6

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
    """Which port of a listener stands for which node: one of its own for an id in `node_ids`, else one of the spares.

    A node has the spare at its id modulo their number, or the next one that is free: so instances that see the same
    nodes come to the same ports, and so do those that start anew. A port is free `spare_ports_kept_s` after its
    node has gone. Where none is, the node that has been gone for longest gives way at once.
    """

    def __init__(
        self, config: ListenerConfig, directory: NodeDirectory, let_go: Callable[[int], None] = lambda port: None
    ) -> None:
        """`let_go` is told of a port before it stands for another node."""
        self._let_go = let_go
        self._name = config.name
        self._host = config.advertised_host.encode()
        self._port_of = config.ports()
        self._spares = config.spares()
        self._kept_s = config.spare_ports_kept_s
        self._directory = directory
        self._node_of = {port: node_id for node_id, port in self._port_of.items()}
        self._node_of[config.port] = BOOTSTRAP_NODE_ID
        self._log = structlog.get_logger().bind(virtual_cluster=directory.virtual_cluster, listener=config.name)
        self._reports, self._looks = AtMostEvery(_REPORTED_EVERY_US), AtMostEvery(_LOOK_EVERY_US)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note the upstream address of a node."""
        self._directory.learn(node_id, host, port)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        """Host and port that clients are told for a node. Raises NoPortForNode."""
        port = self._port_of.get(node_id)
        if port is None:
            port = self._take_spare(node_id)
        return self._host, port

    def has_port(self, node_id: int) -> bool:
        """Whether clients can be told of a node: it has a port, or there is a spare port for it."""
        return node_id in self._port_of or self._spare_for(node_id) is not None

    def _take_spare(self, node_id: int) -> int:
        port = self._spare_for(node_id)
        if port is None:
            self._leave_out(node_id)
            raise NoPortForNode(f"node {node_id} has no port")
        before = self._node_of.pop(port, None)
        if before is not None:
            del self._port_of[before]
            self._let_go(port)
        self._port_of[node_id] = port
        self._node_of[port] = node_id
        return port

    def _spare_for(self, node_id: int) -> int | None:
        """The port for one more node; None if living ones have all of them."""
        first = node_id % len(self._spares) if self._spares else 0
        free_for = {port: self._free_for_s(port) for port in (*self._spares[first:], *self._spares[:first])}
        for port, free_s in free_for.items():
            if free_s is not None and free_s >= self._kept_s:
                return port
        gone = {port: free_s for port, free_s in free_for.items() if free_s is not None}
        return max(gone, key=gone.__getitem__) if gone else None

    def _free_for_s(self, port: int) -> float | None:
        """For how long a spare port has stood for no node of the cluster; None: it stands for one."""
        node_id = self._node_of.get(port)
        return inf if node_id is None else self._directory.gone_for_s(node_id)

    def _leave_out(self, node_id: int) -> None:
        """Count it, tell of it once a minute, and have the cluster looked at: perhaps others are gone."""
        self._directory.note_left_out(self._name)
        now_us = self._directory.now_us()
        if self._looks.is_due(now_us):
            self._directory.look()
        if responses := self._reports.times(now_us):
            spares = "all spare ports stand for other nodes" if self._spares else "no spare port is left for it"
            problem = f"it is not in node_ids, and {spares}: clients are not told of it"
            settings = ["node_ids", "spare_ports"]
            self._log.warning("node_left_out", node_id=node_id, problem=problem, settings=settings, responses=responses)

    def node_of(self, port: int) -> int | None:
        """The node that a local port stands for; None for a spare port that no node has taken."""
        return self._node_of.get(port)


class ListenerNames:
    """The host names of a listener that stand for nodes: all at one port, told apart by what a TLS client asks for."""

    def __init__(self, config: ListenerConfig, directory: NodeDirectory) -> None:
        assert config.advertised_node_host is not None
        self._pattern = config.advertised_node_host
        before, after = plain_name(self._pattern).split("{node_id}")
        self._name = re.compile(f"{re.escape(before)}(0|[1-9][0-9]{{0,9}}){re.escape(after)}")
        self._bootstrap = plain_name(config.advertised_host)
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

    def has_port(self, _node_id: int) -> bool:
        """True: every node has a host name."""
        return True

    def node_of(self, _port: int) -> int:
        """The node of a connection that names none."""
        return BOOTSTRAP_NODE_ID

    def node_named(self, name: str) -> int | None:
        """The node that a server name stands for, BOOTSTRAP_NODE_ID included; None if it is not one of our names."""
        name = plain_name(name)
        if name == self._bootstrap:
            return BOOTSTRAP_NODE_ID
        match = self._name.fullmatch(name)
        node_id = int(match[1]) if match else None
        return node_id if node_id is not None and node_id <= INT32_MAX else None


def addressing(
    config: ListenerConfig, directory: NodeDirectory, let_go: Callable[[int], None]
) -> ListenerPorts | ListenerNames:
    """How the clients of a listener address nodes."""
    return ListenerNames(config, directory) if config.advertised_node_host else ListenerPorts(config, directory, let_go)
