"""Finds the client's address: reads the PROXY protocol header that a load balancer sends before the client's bytes."""

import asyncio
import contextlib
import select
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from kafka.record.util import calc_crc32c

from kafka_throttle.protocol.identity.proxy_header import (
    MAX_PROXY_HEADER_BYTES,
    MalformedProxyHeader,
    NoProxyHeader,
    ProxyHeader,
    read_proxy_header,
)
from kafka_throttle.proxy.config.kinds import Network
from kafka_throttle.proxy.gate.stages import IncomingConnection, SlowStage, TurnedAway
from kafka_throttle.proxy.net.poller import READABLE, Poller
from kafka_throttle.proxy.relay.actions import CloseReason

_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


def origin_stage(origin: "Origin") -> SlowStage:
    """The stage that reads PROXY headers, for a listener behind load balancers."""
    overdue, crowded = CloseReason.PROXY_HEADER_TIMEOUT, CloseReason.TOO_MANY_PROXY_HEADERS
    return SlowStage(origin.find_out, 5_000, 1_000, overdue, crowded)


@dataclass(slots=True)
class Origin:
    """The peers of a listener whose PROXY headers are `trusted`, and whether a header is `required`.

    Both may be changed at any time. The header is peeked at in the kernel's buffer, and then exactly its bytes are
    read: the bytes behind it are read by the next user of the socket, TLS or a relay.
    """

    poller: Poller
    trusted: Sequence[Network] = ()
    required: bool = False

    async def find_out(self, incoming: IncomingConnection) -> None:
        """Note the client that the peer's PROXY header names, and remove the header from the socket. Raises TurnedAway.

        The bytes of a peer that is not trusted are not searched for a header: they go on as Kafka bytes.
        """
        peer = incoming.address
        if not self._trusts(peer):
            if self.required:
                raise TurnedAway(CloseReason.PROXY_PEER_UNTRUSTED, f"{peer} is in none of the trusted networks")
            return
        header = await self._header(incoming.socket)
        if header is None:
            return
        _take(incoming.socket, header.length_bytes)
        incoming.of_balancer = header.local
        if header.source is not None:
            incoming.came_from(*header.source, header.destination)
            incoming.log = incoming.log.bind(proxied_by=peer)

    def _trusts(self, peer: str) -> bool:
        ip = ip_address(peer)
        return any(ip in network for network in self.trusted)

    async def _header(self, sock: socket.SocketType) -> ProxyHeader | None:
        """The PROXY header in the kernel's buffer; None if other bytes are there and a header is not required."""
        with _watching(self.poller, sock) as events:
            while True:
                gone = events.seen & _GONE
                try:
                    data = sock.recv(MAX_PROXY_HEADER_BYTES, socket.MSG_PEEK)
                    if header := read_proxy_header(data, calc_crc32c):
                        return header
                except BlockingIOError:
                    data = b""
                except OSError as error:
                    raise TurnedAway(CloseReason.CLIENT_SENT_NOTHING, str(error)) from error
                except NoProxyHeader as error:
                    if self.required:
                        raise TurnedAway(CloseReason.PROXY_HEADER_MISSING, str(error)) from error
                    return None
                except MalformedProxyHeader as error:
                    raise TurnedAway(CloseReason.PROXY_HEADER_MALFORMED, str(error)) from error
                else:
                    gone = gone or not data
                if gone and not data:
                    raise TurnedAway(CloseReason.CLIENT_SENT_NOTHING)
                if gone:
                    raise TurnedAway(CloseReason.CLIENT_CLOSED, f"after {len(data)} bytes of a PROXY header")
                await events.more()


class _Events:
    """The epoll events of a socket: `seen` collects them, `more` waits for the next."""

    def __init__(self) -> None:
        self.seen = 0
        self._came = asyncio.Event()

    def note(self, events: int) -> None:
        """Add events that epoll has reported."""
        self.seen |= events
        self._came.set()

    async def more(self) -> None:
        """Wait until events have come since the last call."""
        await self._came.wait()
        self._came.clear()


@contextlib.contextmanager
def _watching(poller: Poller, sock: socket.SocketType) -> Iterator[_Events]:
    """Watch a socket, edge-triggered: level-triggered epoll would report bytes that are only peeked at for ever."""
    events = _Events()
    poller.add(sock.fileno(), READABLE | select.EPOLLRDHUP | select.EPOLLET, events.note)
    try:
        yield events
    finally:
        poller.remove(sock.fileno())


def _take(sock: socket.SocketType, length_bytes: int) -> None:
    """Read a header of this length, which was peeked at before, and drop it."""
    while length_bytes:
        try:
            taken = len(sock.recv(length_bytes))
        except OSError as error:
            raise TurnedAway(CloseReason.CLIENT_LOST, str(error)) from error
        if not taken:
            raise TurnedAway(CloseReason.CLIENT_LOST, "the bytes of the PROXY header are gone")
        length_bytes -= taken
