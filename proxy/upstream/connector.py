"""Connecting to nodes."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from struct import unpack_from

from kafka_throttle.common.connecting import MOST_TRIED, connected_to_first
from kafka_throttle.common.look_ups import LookUps, at_port
from kafka_throttle.common.plain_words import words_of
from kafka_throttle.common.race import AllFailed, Slow, race
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.settings import UpstreamConfig
from kafka_throttle.proxy.decisions.recent_topics import RecentTopics
from kafka_throttle.proxy.net.deadlines import Deadlines
from kafka_throttle.proxy.net.handshake import shake_hands
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.net.tls_socket import TlsSocket
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.upstream.dial import Dial, family_of
from kafka_throttle.proxy.upstream.discovery import LEADS_BACK, Discovery
from kafka_throttle.proxy.upstream.node_socket import Cancellable, NodePaced, NodeSocket, NodeUnreachable, Reached
from kafka_throttle.proxy.upstream.pace import Pace
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, NodeDirectory
from kafka_throttle.quotas.fair_queue import Whose
from kafka_throttle.quotas.sources.cluster_connection import mark_of

_MAX_PACES = 10_000
_ROUND_TRIP_EVERY_US = 10_000
"""The kernel is asked for the round trip to a node no more often."""
_MIN_RTT_AT = 148
"""In struct tcp_info of <linux/tcp.h>."""
_NEXT_SERVER_S = 1.0
"""A server that has not answered by then is raced by the next one. TLS is part of the answer."""


class _Attempt:
    """A connection that is being made in one way, or, after that has failed, in another one."""

    __slots__ = ("_under_way",)

    def __init__(self, under_way: Cancellable) -> None:
        self._under_way = under_way

    def go_on(self, under_way: Cancellable) -> None:
        """Note that the connection is being made in another way now."""
        self._under_way = under_way

    def cancel(self) -> None:
        """Give it up."""
        self._under_way.cancel()


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
        self._note_paced = note_paced
        self._now_us = now_us
        self._paces: dict[HostPort, Pace] = {}
        self._ask_round_trip_us: dict[int, int] = {}
        self._tls: ssl.SSLContext | None = None
        self._next_source = 0
        self._destinations = config.destinations
        self._mark = mark_of(virtual_cluster)
        self._set_deadlines()
        self._look_ups = LookUps(now_us)
        self._slow = Slow(now_us)
        self.discovery = Discovery(virtual_cluster, config, directory, self._slow, note_refresh_failure)
        self.recent_topics = RecentTopics()

    def open(
        self,
        node_id: int,
        first: bytes,
        whose: Callable[[], Whose],
        reached: Reached,
        mark: int | None = None,
    ) -> Cancellable:
        """As `connect`, but report the result by a callback. A connection that needs no task gets none, as tasks cost.

        A connection of the proxy's own that comes as a client's shows that the way leads back to this proxy: `mark`,
        see OpenUpstream, is its own. It ends here, and so does whatever else would go that way. Clients wait until that
        was looked at. Looks of other proxies do not wait, as two proxies would wait for each other.
        """
        if mark == self._mark:
            self.discovery.note_way_back(node_id)
            return self._refused(reached)
        if node_id == BOOTSTRAP_NODE_ID:
            if self.discovery.leads_back:
                return self._refused(reached)
            if mark is None and not self.discovery.has_looked:
                return self._open_after_look(partial(self.open, node_id, first, whose, reached))
        address = self._plain_address(node_id)
        place = None if address is None else self._by_number(address)
        if address is None or place is None:
            return self._connecting(node_id, first, whose, reached)
        return self._dial(node_id, address, place, first, whose, reached)

    def _refused(self, reached: Reached) -> Cancellable:
        return asyncio.get_running_loop().call_soon(reached, NodeUnreachable(LEADS_BACK))

    def _open_after_look(self, open_: Callable[[], Cancellable]) -> _Attempt:
        """Open a connection once it is known whether the bootstrap servers lead back to this proxy."""

        async def wait() -> None:
            await self.discovery.looked()
            attempt.go_on(open_())

        attempt = _Attempt(asyncio.get_running_loop().create_task(wait()))
        return attempt

    def _connecting(
        self, node_id: int, first: bytes, whose: Callable[[], Whose], reached: Reached
    ) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self._connect_and_tell(node_id, first, whose, reached))

    def _plain_address(self, node_id: int) -> HostPort | None:
        """Where a node is, if a connection to it needs nothing but to be opened, and is not tried elsewhere, too."""
        config = self.config
        if self._tls is not None or config.connections_per_second is not None or config.source_addresses:
            return None
        if node_id != BOOTSTRAP_NODE_ID:
            return self.directory.address(node_id)
        servers = config.bootstrap_servers
        return servers[0] if len(servers) == 1 and not self.discovery.is_late(servers[0]) else None

    def _by_number(self, address: HostPort) -> HostPort | None:
        """The same address if its host is one by number, or a name that is known to be just one; and if it may be
        connected to."""
        if family_of(address.host) is not None:
            refusal = self._destinations.refusal(address.host, address.host, address.port)
            return address if refusal is None else None
        known = [str(where[0]) for _, where in self._look_ups.fresh(address.host)]
        alone = len(known) == 1 and family_of(known[0]) is not None  # not so with the zone of a link
        if not alone or self._destinations.refusal(address.host, known[0], address.port) is not None:
            return None
        return HostPort(known[0], address.port)

    def _dial(
        self,
        node_id: int,
        address: HostPort,
        place: HostPort,
        first: bytes,
        whose: Callable[[], Whose],
        reached: Reached,
    ) -> Dial:
        """Dial a node. If the one bootstrap server does not take the connection soon, other nodes are tried, too."""
        is_first = node_id == BOOTSTRAP_NODE_ID

        def reported(outcome: socket.SocketType | OSError) -> None:
            if isinstance(outcome, OSError):
                failure = self._unreachable(node_id, address, words_of(outcome))
                if is_first and self.discovery.other_nodes():
                    dial.go_on(self._connecting(node_id, first, whose, reached))
                else:
                    reached(failure)
                return
            node = self.directory.node_at(address) if is_first else node_id
            reached(NodeSocket(outcome, node, self._round_trip_us(outcome, node)))

        deadlines = self._first_deadlines if is_first and len(self.directory.node_ids) > 1 else self._deadlines
        family = family_of(place.host)
        assert family is not None
        dial = Dial(self._poller, deadlines, family, place, first, reported)
        return dial

    def _set_deadlines(self) -> None:
        """Connections have to stand within these times, those to the first server sooner if there are others."""
        within_ms = self.config.connect_timeout_ms
        self._deadlines = _deadlines(within_ms)
        self._first_deadlines = _deadlines(min(round(_NEXT_SERVER_S * 1000), within_ms))

    async def _connect_and_tell(self, node_id: int, first: bytes, whose: Callable[[], Whose], reached: Reached) -> None:
        outcome: NodeSocket | Exception
        try:
            outcome = await self.connect(node_id, first, whose)
        except Exception as error:
            outcome = error
        reached(outcome)

    async def connect(self, node_id: int, first: bytes = b"", whose: Callable[[], Whose] = Whose) -> NodeSocket:
        """A connection to a node; for BOOTSTRAP_NODE_ID to the server that is the first to take one.

        `first` is sent before all else. Where connections are paced, it takes a turn of `whose`.
        Raises NodeUnknown, NodeUnreachable, or NodePaced.
        """
        if node_id != BOOTSTRAP_NODE_ID:
            return await self._connect_to(node_id, await self.discovery.find(node_id), first, whose)
        servers = self.discovery.servers_in_turn()
        attempts = [partial(self._connect_to, node_id, address, first, whose) for address in servers]
        try:
            number, upstream = await race(attempts, _NEXT_SERVER_S, lambda late: late.socket.close())
        except AllFailed as lost:
            raise _bootstrap_failure(lost.failures) from None
        self._slow.note(servers[:number])
        upstream.node_id = self.directory.node_at(servers[number])
        return upstream

    async def _connect_to(
        self, node_id: int, address: HostPort, first: bytes, whose: Callable[[], Whose]
    ) -> NodeSocket:
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
            problem = f"TLS: {words_of(error)}"
        except OSError as error:
            problem = words_of(error)
        raise self._unreachable(node_id, address, problem, reason)

    async def _connected(self, address: HostPort, first: bytes) -> socket.socket:
        """A non-blocking socket to the address of a host that is the first to take a connection. Raises OSError.

        It connects from another one of the source addresses each time.
        """
        found = [at_port(each, address.port) for each in await self._look_ups.of(address.host)]
        places = self._slow.last(self._destinations.allowed(address.host, found))
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
        self.discovery.ask()
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

    async def _turn(self, node_id: int, address: HostPort, whose: Callable[[], Whose]) -> None:
        """Wait until one more connection to a node may be opened. NodePaced if that takes too long."""
        pace = self._paces.get(address)
        if pace is None:
            pace = self._paces[address] = self._new_pace()
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000):
                if await pace.turn(whose()):
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

    def set_tls(self, context: ssl.SSLContext | None) -> None:
        """What connections to nodes speak TLS with from now on; None: they are plain."""
        self._tls = context

    def reconfigure(self, config: UpstreamConfig) -> None:
        """Take up changed bootstrap servers, times, and ways to connect."""
        self.discovery.reconfigure(config)
        has_other_times = config.connect_timeout_ms != self.config.connect_timeout_ms
        self.config = config
        if has_other_times:
            self._set_deadlines()
        for pace in self._paces.values():
            pace.set_rate(config.connections_per_second)


def _deadlines(within_ms: int) -> Deadlines[Dial]:
    text = f"no connection within {within_ms} ms"
    return Deadlines(within_ms / 1000, lambda dial: dial.fail(TimeoutError(None, text)))


def _bootstrap_failure(failures: Sequence[Exception]) -> Exception:
    """One error for all servers that could not be reached."""
    for error in failures:
        if not isinstance(error, NodeUnreachable):
            return error
    reasons = [error.reason for error in failures if isinstance(error, NodeUnreachable)]
    return NodeUnreachable("; ".join(map(str, failures)), reasons[-1])


def round_trip_us(sock: socket.SocketType) -> int:
    """The least time in microseconds that a packet and its acknowledgement took, as the kernel saw it."""
    found: int = unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _MIN_RTT_AT)[0]
    return found
