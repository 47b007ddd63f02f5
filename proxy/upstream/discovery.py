"""Learning where the nodes of a cluster are: it is asked over connections of the proxy's own."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.common.plain_words import plain_words
from kafka_throttle.common.race import AllFailed, Slow, race
from kafka_throttle.protocol.messages.metadata import MetadataNode, nodes_request
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import UpstreamConfig
from kafka_throttle.proxy.upstream.credentials import credentials_at
from kafka_throttle.proxy.upstream.node_socket import NodeUnknown
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, NodeDirectory
from kafka_throttle.quotas.sources.cluster_faults import ConnectionFault, Fault
from kafka_throttle.quotas.sources.cluster_nodes import default_partitions_of, nodes_named_by, response_of

LEADS_BACK = "the bootstrap servers lead back to this proxy"
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 15.0
_SERVERS_LOOKED_AT = 3
_LONGEST_LOOK_S = 5.0
_NEXT_LOOK_S = 3.0
"""A server that has not answered by then is raced by the next one."""
_MOST_NODES_ASKED = 32
"""How many nodes stand in for bootstrap servers that do not answer."""
_LONGEST_EXTRA_LOOK_S = 2.0
"""So long nodes that are asked for num.partitions hold up what is known of all nodes."""


class Discovery:
    """Asks a cluster for its nodes, and for the number of partitions of a topic that is created without one.

    The nodes are noted in `directory`. Servers that are slow to respond are noted in `slow`.

    Bootstrap servers are asked first. When none of them answers, the nodes are asked that the cluster has, as far as
    they are known: while one node answers, the cluster can be reached.
    """

    def __init__(
        self,
        virtual_cluster: str,
        config: UpstreamConfig,
        directory: NodeDirectory,
        slow: Slow,
        note_failure: Callable[[], None],
    ) -> None:
        self.config = config
        self._directory = directory
        directory.look = self.ask
        self._slow = slow
        self._note_failure = note_failure
        self._turn = 0
        self._knows_nodes = True
        """Whether the nodes in the directory are those of the cluster of these bootstrap servers."""
        self._silent: frozenset[HostPort] = frozenset()
        self.leads_back = False
        """Whether a look of this proxy at its cluster came back to it, and no later look has got a response."""
        self._looked = asyncio.Event()
        self._looked.set()
        self._shown: dict[int, HostPort] = {}
        """The addresses of nodes at which the proxy has looked whether they lead back."""
        self._seeing: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._answered = asyncio.Condition()
        self._failing = False
        self.trouble: str | None = "it has not named its nodes yet"
        """Why the cluster cannot be reached; None if it named its nodes when it was asked last, or `lacks_login`."""
        self.lacks_login = False
        """Whether the cluster wants a login of the proxy, which has none. It is there all the same: clients log in by
        themselves, and the nodes are learned from the responses to them."""
        self._reported_reason = ""
        self._nodes: list[int] | None = None
        """The nodes that the cluster has named last; None before it has named any."""
        self._default_partitions: int | None = None
        self._asking: asyncio.Task[int | None] | None = None
        """The request for it that is under way."""
        self._reported_no_default = False
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)

    def ask(self) -> None:
        """Have the cluster asked for its nodes soon."""
        self._asked.set()

    async def find(self, node_id: int) -> HostPort:
        """Where a node is; if nobody has said so yet, the cluster is asked. Raises NodeUnknown."""
        address = self._directory.address(node_id)
        if address is None and (why := self._directory.refused.get(node_id)) is not None:
            raise NodeUnknown(f"the cluster says that node {node_id} is at {why}")
        return address or await self._ask_for(node_id)

    async def _ask_for(self, node_id: int) -> HostPort:
        """The address of a node that nobody has named yet, from a fresh look at the cluster."""
        self.ask()
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000), self._answered:
                await self._answered.wait_for(lambda: self._directory.address(node_id) is not None)
        except TimeoutError:
            raise NodeUnknown(f"the cluster has not named a node {node_id}") from None
        address = self._directory.address(node_id)
        assert address is not None
        return address

    def servers_in_turn(self) -> list[HostPort]:
        """The servers that may be asked: bootstrap servers, then other nodes, those that did not answer in time last.

        Of the bootstrap servers another one comes first each time, and so of the nodes.
        """
        return sorted(self._in_turn(), key=self.is_late)

    def is_late(self, server: HostPort) -> bool:
        """Whether a server was slow, or did not answer when it was asked last: it may take connections all the same."""
        return server in self._silent or self._slow.has(server)

    def _in_turn(self) -> list[HostPort]:
        """The same, whether they were slow or not."""
        self._turn += 1
        return [*_from(self.config.bootstrap_servers, self._turn), *_from(self.other_nodes(), self._turn)]

    def other_nodes(self) -> list[HostPort]:
        """Where the cluster has nodes that are not among the bootstrap servers."""
        if not self._knows_nodes:
            return []
        servers = self.config.bootstrap_servers
        return [address for address in self._directory.addresses(_MOST_NODES_ASKED) if address not in servers]

    @property
    def silent(self) -> list[HostPort]:
        """The bootstrap servers that did not answer when they were asked last."""
        return [server for server in self.config.bootstrap_servers if server in self._silent]

    def reconfigure(self, config: UpstreamConfig) -> None:
        """Take up changed settings. Other bootstrap servers may be those of another cluster: they are asked soon."""
        if config.bootstrap_servers != self.config.bootstrap_servers:
            self._knows_nodes, self._silent = False, frozenset()
            self._looked.clear()
            self.ask()
        self.config = config

    async def keep_learning(self) -> None:
        """Ask the cluster for its nodes now, at each interval, and when a node is missing; never returns."""
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        while True:
            self._asked.clear()
            servers = self.config.bootstrap_servers
            has_learned = await self._learn()
            if servers == self.config.bootstrap_servers:
                self._looked.set()
            if has_learned:
                backoff.succeeded()
                await self._sleep(self.config.metadata_refresh_s)
            else:
                await asyncio.sleep(backoff.failed())

    async def _sleep(self, seconds: float) -> None:
        """Wait, at most until somebody asks; but never ask the cluster more than twice a second."""
        await asyncio.sleep(_FIRST_RETRY_S)
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            pass

    async def _learn(self) -> bool:
        servers = self.config.bootstrap_servers
        try:
            brokers = await self._look()
        except Exception as error:  # whatever a library raises is a failed look, never the end of looking
            if _is_for_want_of_login(error) and not self.leads_back:
                self._go_on_without_login()
                return True
            self.lacks_login = False
            if not self._failing:
                self.trouble = self._words_for(error)
            await self._tell_failure(error)
            self._failing = True
            self._note_failure()
            return False
        await self._look_for_default_partitions(brokers)
        for broker in brokers:
            self._directory.learn(*broker)
        self._see_whether_nodes_lead_back()
        nodes = sorted(broker.node_id for broker in brokers)
        if nodes:
            self._directory.note_all(nodes)
        if self._failing or self._nodes is None:
            self._log.info("cluster_reached", nodes=nodes)
        self._tell_changes(self._nodes, nodes)
        self._failing, self._nodes, self.trouble, self.lacks_login = False, nodes, None, False
        if servers == self.config.bootstrap_servers:
            self._knows_nodes, self.leads_back = True, False
        async with self._answered:
            self._answered.notify_all()
        return True

    def _tell_changes(self, before: Sequence[int] | None, nodes: Sequence[int]) -> None:
        """Log which nodes are gone or have come, if these are others than before."""
        if before is not None and nodes != before:
            gone, come = sorted({*before} - {*nodes}), sorted({*nodes} - {*before})
            self._log.log(_level_of_changes(gone), "nodes_changed", gone=gone, come=come, nodes=nodes)

    def _go_on_without_login(self) -> None:
        """Leave it to clients to ask for the nodes. It is looked again as often as ever: the cluster may change."""
        if not self.lacks_login:
            servers = [str(server) for server in self.config.bootstrap_servers]
            self._log.warning("own_login_missing", bootstrap_servers=servers, settings=["upstream.admin"])
        self._failing, self.trouble, self.lacks_login = False, None, True

    async def _look(self) -> Sequence[MetadataNode]:
        """The nodes that are named by the first server that responds. Servers that do not respond are noted."""
        servers = self._in_turn()
        attempts = [partial(_brokers, str(server), self.config) for server in servers]
        try:
            number, found = await race(attempts, _NEXT_LOOK_S, bool)
        except AllFailed as lost:
            raise lost.failures[0] from None
        self._slow.note(servers[:number])
        self._note_silent(servers[:number], servers[number])
        return found

    def _note_silent(self, silent: Sequence[HostPort], answered: HostPort) -> None:
        """Note which servers did not answer before one did. Log it if one more does not, and when all do again."""
        before = self.silent
        self._silent = self._silent.union(silent) - {answered}
        if set(self.silent) - set(before):
            servers = [str(server) for server in self.silent]
            self._log.warning("bootstrap_servers_silent", bootstrap_servers=servers, asked=str(answered))
        elif before and not self.silent:
            self._log.info("bootstrap_servers_respond")

    async def _look_for_default_partitions(self, brokers: Sequence[MetadataNode]) -> None:
        """Ask the nodes for their num.partitions, if it is not set. Dead ones hold up nothing else for long."""
        if self.config.default_partitions:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(_num_partitions(brokers, self.config))
        await asyncio.wait((self._asking,), timeout=_LONGEST_EXTRA_LOOK_S)
        if self._asking.done() and self._asking.exception() is None:
            self._default_partitions = self._asking.result() or self._default_partitions

    async def _tell_failure(self, error: Exception) -> None:
        """Log each new reason why the cluster is unreachable."""
        servers = [str(server) for server in self.config.bootstrap_servers]
        looks = (_fault_at(server, self.config) for server in servers[:_SERVERS_LOOKED_AT])
        faults = [fault for fault in await asyncio.gather(*looks) if fault is not None]
        reason = next((fault.reason for _, fault in faults if fault.reason != "unreachable"), "unreachable")
        reason = "leads_back" if self.leads_back else reason
        if self._failing and reason == self._reported_reason:
            return
        self._reported_reason = reason
        self.trouble = self._words_for(error)
        self._log.warning(
            "cluster_unreachable",
            bootstrap_servers=servers,
            error=self.trouble,
            reason=reason if faults else None,
            problems=[f"{server}: {fault.problem}" for server, fault in faults],
            settings=sorted({setting for _, fault in faults for setting in fault.setting.split(", ")}),
        )

    def _words_for(self, error: Exception) -> str:
        return LEADS_BACK if self.leads_back else plain_words(error)

    @property
    def has_looked(self) -> bool:
        """Whether these bootstrap servers were looked at."""
        return self._looked.is_set()

    async def looked(self) -> None:
        """Wait until these bootstrap servers were looked at, or do not answer soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NEXT_LOOK_S):
                await self._looked.wait()
        self._looked.set()

    def note_way_back(self, node_id: int) -> None:
        """Note that the proxy's own connection to this node has come back as that of a client.

        Clients are refused until a look gets a response. Perhaps not all ways lead back, so that look is made soon.
        """
        if node_id == BOOTSTRAP_NODE_ID:
            self.leads_back = True
            self.ask()
        else:
            self._directory.note_way_back(node_id)

    def _see_whether_nodes_lead_back(self) -> None:
        """Look at each node, once at each address: if it leads back to this proxy, the look comes back.

        An address that led back is looked at each time. Once there is a response, a node may be there.
        """
        if self._seeing is None or self._seeing.done():
            found = {node_id: self._directory.address(node_id) for node_id in self._directory.present}
            new = {node_id: where for node_id, where in found.items() if where and self._shown.get(node_id) != where}
            self._shown = {node_id: where for node_id, where in self._shown.items() if node_id in found} | new
            ways_back = dict(self._directory.ways_back)
            self._seeing = asyncio.get_running_loop().create_task(self._look_at(list(new.values()), ways_back))

    async def _look_at(self, nodes: Sequence[HostPort], ways_back: Mapping[int, HostPort]) -> None:
        for node in nodes:
            await _fault_at(str(node), self.config)  # the response does not matter
        for node_id, where in ways_back.items():
            if await _fault_at(str(where), self.config) is None:
                self._directory.note_way_there(node_id)

    def default_partitions(self) -> int:
        """How many partitions a topic gets that is created without a number; 1 while nobody has said so."""
        known = self.config.default_partitions or self._default_partitions
        if known is None and not self._reported_no_default:
            self._reported_no_default = True
            self._log.warning("default_partitions_unknown", taken=1, setting="upstream.default_partitions")
        return known or 1


def _level_of_changes(gone: Sequence[int]) -> int:
    return logging.WARNING if gone else logging.INFO


def _is_for_want_of_login(error: Exception) -> bool:
    return isinstance(error, ConnectionFault) and error.fault.reason == "authentication_expected"


def _from(servers: Sequence[HostPort], turn: int) -> list[HostPort]:
    """The same servers, from another one on each time."""
    first = turn % len(servers) if servers else 0
    return [*servers[first:], *servers[:first]]


async def _brokers(server: str, config: UpstreamConfig) -> Sequence[MetadataNode]:
    """The nodes that a bootstrap server names. Raises SourceUnavailable."""
    return await nodes_named_by(server, credentials_at(config), config.connect_timeout_ms / 1000)


async def _num_partitions(brokers: Sequence[MetadataNode], config: UpstreamConfig) -> int | None:
    """The cluster's num.partitions; None where no node reports it."""
    addresses = {broker.node_id: str(HostPort(broker.host, broker.port)) for broker in brokers}
    return await default_partitions_of(addresses, credentials_at(config), config.connect_timeout_ms / 1000)


async def _fault_at(server: str, config: UpstreamConfig) -> tuple[str, Fault] | None:
    """What is wrong with a bootstrap server, as a connection of its own shows; None if nothing is."""
    try:
        await response_of(server, credentials_at(config), _LONGEST_LOOK_S, nodes_request())
    except ConnectionFault as error:
        return server, error.fault
    except Exception as error:  # of files: what is reported is only why something failed
        return server, Fault("unusable", plain_words(error), "upstream.admin")
    return None
