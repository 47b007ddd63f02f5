"""Connecting to nodes, and learning where they are."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from struct import unpack_from

import structlog

from common.backoff import Backoff
from common.connecting import MOST_TRIED, connected_to_first
from common.look_ups import LookUps, at_port, in_daemon_thread
from common.plain_words import plain_words, why_tls_failed
from common.race import AllFailed, Slow, race
from protocol.messages.metadata import MetadataNode, nodes_request
from proxy.config.kinds import HostPort
from proxy.config.settings import UpstreamConfig
from proxy.decisions.recent_topics import RecentTopics
from proxy.net.deadlines import Deadlines
from proxy.net.handshake import shake_hands
from proxy.net.poller import Poller
from proxy.net.tls_socket import TlsSocket
from proxy.relay.actions import CloseReason
from proxy.upstream.credentials import credentials_of
from proxy.upstream.dial import Dial, family_of
from proxy.upstream.node_socket import Cancellable, NodePaced, NodeSocket, NodeUnknown, NodeUnreachable, Reached
from proxy.upstream.pace import Pace
from proxy.upstream.topology import BOOTSTRAP_NODE_ID, NodeDirectory
from quotas.sources.cluster_connection import Credentials
from quotas.sources.cluster_faults import ConnectionFault, Fault
from quotas.sources.cluster_nodes import default_partitions_of, nodes_named_by, response_of

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 15.0
_MAX_PACES = 10_000
_SERVERS_LOOKED_AT = 3
_LONGEST_LOOK_S = 5.0
_ROUND_TRIP_EVERY_US = 10_000
"""The kernel is asked for the round trip to a node no more often."""
_MIN_RTT_AT = 148
"""In struct tcp_info of <linux/tcp.h>."""
_NEXT_SERVER_S = 1.0
"""A bootstrap server that has not answered by then is raced by the next one. TLS is part of the answer."""
_NEXT_LOOK_S = 3.0
"""The same for looks at the cluster."""
_LONGEST_EXTRA_LOOK_S = 2.0
"""So long nodes that are asked for num.partitions hold up what is known of all nodes."""


class Upstream:
    """The way to the nodes of one cluster."""

    def __init__(
        self,
        virtual_cluster: str,
        config: UpstreamConfig,
        directory: NodeDirectory,
        poller: Poller,
        note_connect_failure: Callable[[int], None],
        note_refresh_failure: Callable[[], None],
        note_paced: Callable[[int], None],
        now_us: Callable[[], int],
    ) -> None:
        self.config = config
        self.directory = directory
        self._poller = poller
        self._note_connect_failure = note_connect_failure
        self._note_refresh_failure = note_refresh_failure
        self._note_paced = note_paced
        self._now_us = now_us
        self._paces: dict[HostPort, Pace] = {}
        self._dials: Deadlines[Dial] | None = None
        self._ask_round_trip_us: dict[int, int] = {}
        self._tls: ssl.SSLContext | None = None
        self._next_source = 0
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)
        self._next_bootstrap = 0
        self._asked = asyncio.Event()
        directory.look = self._asked.set
        self._answered = asyncio.Condition()
        self._failing = False
        self._reported_reason = ""
        self._nodes: list[int] = []
        self._look_ups = LookUps(now_us)
        self._slow = Slow(now_us)
        self.recent_topics = RecentTopics()
        self._default_partitions: int | None = None
        self._asking: asyncio.Task[int | None] | None = None
        """For it."""
        self._reported_no_default = False

    # ---------------------------------------------------------------- connecting

    def open(self, node_id: int, first: bytes, whose: str, reached: Reached) -> Cancellable:
        """As `connect`, and have told what came of it. What needs no task for it gets none: a task costs more."""
        address = self._plain_address(node_id)
        place = None if address is None else self._by_number(address)
        if address is None or place is None:
            return asyncio.get_running_loop().create_task(self._connect_and_tell(node_id, first, whose, reached))
        return self._dial(node_id, address, place, first, reached)

    def _plain_address(self, node_id: int) -> HostPort | None:
        """Where a node is, if a connection to it needs nothing but to be opened, and is not tried elsewhere, too."""
        config = self.config
        if self._tls is not None or config.connections_per_second is not None or config.source_addresses:
            return None
        if node_id != BOOTSTRAP_NODE_ID:
            return self.directory.address(node_id)
        servers = config.bootstrap_servers
        return servers[0] if len(servers) == 1 else None

    def _by_number(self, address: HostPort) -> HostPort | None:
        """The same address if its host is one by number, or a name that is known to be just one."""
        if family_of(address.host) is not None:
            return address
        known = [str(where[0]) for _, where in self._look_ups.fresh(address.host)]
        alone = len(known) == 1 and family_of(known[0]) is not None  # not so with the zone of a link
        return HostPort(known[0], address.port) if alone else None

    def _dial(self, node_id: int, address: HostPort, place: HostPort, first: bytes, reached: Reached) -> Cancellable:
        def reported(outcome: socket.SocketType | OSError) -> None:
            if isinstance(outcome, OSError):
                reached(self._unreachable(node_id, address, outcome.strerror or str(outcome)))
                return
            node = self.directory.node_at(address) if node_id == BOOTSTRAP_NODE_ID else node_id
            reached(NodeSocket(outcome, node, self._round_trip_us(outcome, node)))

        if self._dials is None:
            self._dials = Deadlines(self.config.connect_timeout_ms / 1000, self._give_up_dialling)
        family = family_of(place.host)
        assert family is not None
        return Dial(self._poller, self._dials, family, place, first, reported)

    def _give_up_dialling(self, dial: Dial) -> None:
        dial.fail(TimeoutError(None, f"no connection within {self.config.connect_timeout_ms} ms"))

    async def _connect_and_tell(self, node_id: int, first: bytes, whose: str, reached: Reached) -> None:
        outcome: NodeSocket | Exception
        try:
            outcome = await self.connect(node_id, first, whose)
        except Exception as error:
            outcome = error
        reached(outcome)

    async def connect(self, node_id: int, first: bytes = b"", whose: str = "") -> NodeSocket:
        """A connection to a node; for BOOTSTRAP_NODE_ID to the bootstrap server that is the first to take one.

        `first` is sent before all else. Where connections are paced, it takes the turn of an address, `whose` it is.
        Raises NodeUnknown, NodeUnreachable, or NodePaced.
        """
        if node_id != BOOTSTRAP_NODE_ID:
            return await self._connect_to(node_id, await self.find(node_id), first, whose)
        servers = self._bootstrap_in_turn()
        attempts = [partial(self._connect_to, node_id, address, first, whose) for address in servers]
        try:
            number, upstream = await race(attempts, _NEXT_SERVER_S, lambda late: late.socket.close())
        except AllFailed as lost:
            raise _bootstrap_failure(lost.failures) from None
        self._slow.note(servers[:number])
        upstream.node_id = self.directory.node_at(servers[number])
        return upstream

    async def find(self, node_id: int) -> HostPort:
        """Where a node is; if nobody has said so yet, the cluster is asked. Raises NodeUnknown."""
        return self.directory.address(node_id) or await self._ask_for(node_id)

    def _bootstrap_in_turn(self) -> list[HostPort]:
        """The bootstrap servers, another one first each time, those that were slow to answer last."""
        servers = self.config.bootstrap_servers
        self._next_bootstrap = (self._next_bootstrap + 1) % len(servers)
        return self._slow.last([*servers[self._next_bootstrap :], *servers[: self._next_bootstrap]])

    async def _connect_to(self, node_id: int, address: HostPort, first: bytes, whose: str) -> NodeSocket:
        if self.config.connections_per_second is not None:
            await self._turn(node_id, address, whose)
        reason = CloseReason.NODE_UNREACHABLE
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000):
                sock = await self._connected(address, first)
                round_trip = self._round_trip_us(sock, node_id)
                secured = sock if self._tls is None else await self._secured(self._tls, sock, address)
                return NodeSocket(secured, node_id, round_trip)
        except TimeoutError:
            problem = f"no connection within {self.config.connect_timeout_ms} ms"
        except ssl.SSLError as error:
            refused = isinstance(error, ssl.SSLCertVerificationError)
            reason = CloseReason.NODE_CERTIFICATE_REFUSED if refused else CloseReason.NODE_TLS_FAILED
            problem = f"TLS: {why_tls_failed(error)}"
        except OSError as error:
            problem = error.strerror or str(error)
        raise self._unreachable(node_id, address, problem, reason)

    async def _connected(self, address: HostPort, first: bytes) -> socket.socket:
        """A non-blocking socket to the address of a host that is the first to take a connection. Raises OSError.

        It connects from another one of the source addresses each time.
        """
        places = self._slow.last([at_port(each, address.port) for each in await self._look_ups.of(address.host)])
        try:
            number, sock = await connected_to_first(places, first, self._sources_in_turn())
        except OSError:
            self._slow.note(places[:MOST_TRIED])
            raise
        self._slow.note(places[:number])
        return sock

    def _unreachable(
        self, node_id: int, address: HostPort, problem: str, reason: CloseReason = CloseReason.NODE_UNREACHABLE
    ) -> NodeUnreachable:
        """Count it, and have the cluster looked at: perhaps the node has moved."""
        self._note_connect_failure(node_id)
        self._look_ups.penalty(address.host)
        self._slow.note((address,))
        self._asked.set()
        return NodeUnreachable(f"{address}: {problem}", reason)

    def _round_trip_us(self, sock: socket.SocketType, node_id: int) -> int | None:
        """What the kernel knows of the way to a node; None where that was asked just now."""
        now_us = self._now_us()
        if now_us < self._ask_round_trip_us.get(node_id, now_us):
            return None
        self._ask_round_trip_us[node_id] = now_us + _ROUND_TRIP_EVERY_US
        return round_trip_us(sock)

    async def _secured(self, context: ssl.SSLContext, sock: socket.socket, address: HostPort) -> TlsSocket:
        try:
            tls = TlsSocket(sock, context, address.host)
            await shake_hands(self._poller, sock, tls)
        except BaseException:
            sock.close()
            raise
        return tls

    async def _turn(self, node_id: int, address: HostPort, whose: str) -> None:
        """Wait until one more connection to a node may be opened. NodePaced if that takes too long."""
        pace = self._paces.get(address)
        if pace is None:
            pace = self._paces[address] = self._new_pace()
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000):
                if await pace.turn(whose):
                    self._note_paced(node_id)
        except TimeoutError:
            bounds = f"connections_per_second {pace.per_second}, connect_timeout_ms {self.config.connect_timeout_ms}"
            raise NodePaced(f"{address}: no turn to connect ({bounds}, {pace.waiting} more wait)") from None

    def _new_pace(self) -> Pace:
        if len(self._paces) >= _MAX_PACES:
            self._paces = {address: pace for address, pace in self._paces.items() if not pace.unused}
        loop = asyncio.get_running_loop()
        pace = Pace(self._now_us, lambda seconds, serve: loop.call_later(seconds, serve).cancel)
        pace.set_rate(self.config.connections_per_second)
        return pace

    def _sources_in_turn(self) -> Sequence[str]:
        """The addresses to connect from, another one first each time."""
        sources = self.config.source_addresses
        if not sources:
            return ()
        self._next_source = (self._next_source + 1) % len(sources)
        return [*sources[self._next_source :], *sources[: self._next_source]]

    async def _ask_for(self, node_id: int) -> HostPort:
        """The address of a node that nobody has named yet, from a fresh look at the cluster."""
        self._asked.set()
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000), self._answered:
                await self._answered.wait_for(lambda: self.directory.address(node_id) is not None)
        except TimeoutError:
            raise NodeUnknown(f"the cluster has not named a node {node_id}") from None
        address = self.directory.address(node_id)
        assert address is not None
        return address

    # ------------------------------------------------------------------ learning

    async def keep_learning(self) -> None:
        """Ask the cluster for its nodes now, at each interval, and when a node is missing; never returns."""
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        while True:
            self._asked.clear()
            if await self._learn():
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
        try:
            brokers = await self._look()
        except Exception as error:  # whatever a library raises is a failed look, never the end of looking
            await self._tell_failure(error)
            self._failing = True
            self._note_refresh_failure()
            return False
        await self._look_for_default_partitions(brokers)
        for broker in brokers:
            self.directory.learn(*broker)
        nodes = sorted(broker.node_id for broker in brokers)
        if nodes:
            self.directory.note_all(nodes)
        if self._failing or nodes != self._nodes:
            self._log.info("cluster_reached", nodes=nodes)
        self._failing, self._nodes = False, nodes
        async with self._answered:
            self._answered.notify_all()
        return True

    async def _look(self) -> Sequence[MetadataNode]:
        """The nodes that are named by the bootstrap server that is the first to respond."""
        servers = self._bootstrap_in_turn()
        attempts = [partial(_brokers, str(server), self.config) for server in servers]
        try:
            number, found = await race(attempts, _NEXT_LOOK_S, bool)
        except AllFailed as lost:
            raise lost.failures[0] from None
        self._slow.note(servers[:number])
        return found

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
        """Log why the cluster cannot be had, once for each reason that is another than the last one."""
        servers = [str(server) for server in self.config.bootstrap_servers]
        looks = (_fault_at(server, self.config) for server in servers[:_SERVERS_LOOKED_AT])
        faults = [fault for fault in await asyncio.gather(*looks) if fault is not None]
        reason = next((fault.reason for _, fault in faults if fault.reason != "unreachable"), "unreachable")
        if self._failing and reason == self._reported_reason:
            return
        self._reported_reason = reason
        self._log.warning(
            "cluster_unreachable",
            bootstrap_servers=servers,
            error=plain_words(error),
            reason=reason if faults else None,
            problems=[f"{server}: {fault.problem}" for server, fault in faults],
            settings=sorted({setting for _, fault in faults for setting in fault.setting.split(", ")}),
        )

    def set_tls(self, context: ssl.SSLContext | None) -> None:
        """What connections to nodes speak TLS with from now on; None: they are plain."""
        self._tls = context

    def reconfigure(self, config: UpstreamConfig) -> None:
        """Take up changed bootstrap servers, times, and ways to connect."""
        if config.connect_timeout_ms != self.config.connect_timeout_ms:
            self._dials = None
        self.config = config
        for pace in self._paces.values():
            pace.set_rate(config.connections_per_second)

    def default_partitions(self) -> int:
        """How many partitions a topic gets that is created without a number; 1 while nobody has said so."""
        known = self.config.default_partitions or self._default_partitions
        if known is None and not self._reported_no_default:
            self._reported_no_default = True
            self._log.warning("default_partitions_unknown", taken=1, setting="upstream.default_partitions")
        return known or 1


def _bootstrap_failure(failures: Sequence[Exception]) -> Exception:
    """What keeps all bootstrap servers from being reached, in one."""
    for error in failures:
        if not isinstance(error, NodeUnreachable):
            return error
    reasons = [error.reason for error in failures if isinstance(error, NodeUnreachable)]
    return NodeUnreachable("; ".join(map(str, failures)), reasons[-1])


async def _own_credentials(config: UpstreamConfig) -> Credentials:
    """Who the proxy is to the cluster, from files that may be slow to read. Raises ConfigErrors."""
    return await in_daemon_thread(partial(credentials_of, config))


async def _brokers(server: str, config: UpstreamConfig) -> Sequence[MetadataNode]:
    """The nodes that a bootstrap server names. Raises SourceUnavailable."""
    return await nodes_named_by(server, await _own_credentials(config), config.connect_timeout_ms / 1000)


async def _num_partitions(brokers: Sequence[MetadataNode], config: UpstreamConfig) -> int | None:
    """The cluster's num.partitions; None where no node reports it."""
    addresses = {broker.node_id: str(HostPort(broker.host, broker.port)) for broker in brokers}
    return await default_partitions_of(addresses, await _own_credentials(config), config.connect_timeout_ms / 1000)


async def _fault_at(server: str, config: UpstreamConfig) -> tuple[str, Fault] | None:
    """What is wrong with a bootstrap server, as a connection of its own shows; None if nothing is."""
    try:
        await response_of(server, await _own_credentials(config), _LONGEST_LOOK_S, nodes_request())
    except ConnectionFault as error:
        return server, error.fault
    except Exception as error:  # of files: what is reported is only why something failed
        return server, Fault("unusable", plain_words(error), "upstream.admin")
    return None


def round_trip_us(sock: socket.SocketType) -> int:
    """The least time in microseconds that a packet and its acknowledgement took, as the kernel saw it."""
    found: int = unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _MIN_RTT_AT)[0]
    return found
