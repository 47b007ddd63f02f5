"""Binds the ports of a listener and accepts connections at them."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.net.poller import READABLE, Poller

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

BACKLOG = 4096
_ACCEPTS_AT_ONCE = 64
_REST_S = 1.0
"""The pause in accepting after descriptors or memory have run out."""

_INET, _INET6, _STREAM = int(socket.AF_INET), int(socket.AF_INET6), int(socket.SOCK_STREAM)


class PortsTaken(OSError):
    """Ports that could not be bound; the message names each with its reason."""


def bind_all(
    bind: str, ports: Sequence[int], open_one: Callable[[str, int], socket.socket] | None = None
) -> dict[int, socket.socket]:
    """Listening sockets on all `ports` of the address `bind`, by port; none stays open if one fails.

    `open_one` opens one of them; `listening` without it. Raises PortsTaken with every port that failed.
    """
    open_one = open_one or listening
    bound: dict[int, socket.socket] = {}
    failures: list[str] = []
    for port in ports:
        try:
            bound[port] = open_one(bind, port)
        except OSError as error:
            reason = "already in use" if error.errno == errno.EADDRINUSE else error.strerror
            failures.append(f"{HostPort(bind, port)}: {reason}")
    if failures:
        for sock in bound.values():
            sock.close()
        raise PortsTaken("; ".join(failures))
    return bound


def accept(listening: socket.socket) -> tuple[socket.SocketType, tuple[Any, ...]]:
    """As `listening.accept()`, but returns a bare `_socket.socket`, non-blocking: faster than Python's wrapper."""
    fd, peer = listening._accept()  # type: ignore[attr-defined]
    try:
        sock = socket.SocketType(_INET if len(peer) == 2 else _INET6, _STREAM, 0, fd)
    except BaseException:
        os.close(fd)
        raise
    sock.setblocking(False)
    return sock, peer


def listening(bind: str, port: int, *, reuse_port: bool = False, ipv6_only: bool = False) -> socket.socket:
    """A socket that listens at this address and port. With `reuse_port` sockets of other processes may, too."""
    family = socket.AF_INET6 if ip_address(bind).version == 6 else socket.AF_INET
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if ipv6_only and family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        prepare(sock)
        sock.bind((bind, port))
        sock.listen(BACKLOG)
        stack.pop_all()
    return sock


def is_listened_at(bind: str, port: int) -> bool:
    """Whether a socket listens at this address and port."""
    family = socket.AF_INET6 if ip_address(bind).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((bind, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def prepare(sock: socket.socket) -> None:
    """Set the options of a listening socket, also of one that another process has opened."""
    # Sockets that are accepted inherit these two.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)


class ListeningSockets:
    """Accepts connections at the bound ports of a listener.

    `room` is asked before each round how many connections may come. `accepted` gets each with the port that it came to
    and the address of its peer.
    """

    def __init__(
        self,
        poller: Poller,
        room: Callable[[], int],
        accepted: Callable[[int, socket.SocketType, Sequence[Any]], None],
        log: "FilteringBoundLogger",
    ) -> None:
        self._poller = poller
        self._room = room
        self._accepted = accepted
        self._log = log
        self._sockets: list[tuple[int, socket.socket]] = []
        self._resting: set[socket.socket] = set()
        self._paused = False
        self._suspended = False
        self._left_alone: list[tuple[int, socket.socket]] = []
        """Sockets, with their ports, at which connections arrived during the pause."""

    def serve(self, sockets: dict[int, socket.socket]) -> None:
        """Start to accept connections on these bound sockets, given by port."""
        for port, sock in sockets.items():
            self._sockets.append((port, sock))
            self._watch(port, sock)

    def pause(self) -> None:
        """Accept nothing until `accept_more` is called."""
        self._paused = True

    def accept_more(self) -> None:
        """End the pause."""
        self._paused = False
        self._watch_again()

    def suspend(self) -> None:
        """Accept nothing until `resume` is called, whatever pauses end before."""
        self._suspended = True

    def resume(self) -> None:
        """Accept connections again, unless there is a pause."""
        self._suspended = False
        self._watch_again()

    def _watch_again(self) -> None:
        if not self._paused and not self._suspended:
            for port, sock in self._left_alone:
                self._watch(port, sock)
            self._left_alone.clear()

    def accept_rest(self) -> None:
        """Accept what nobody has accepted yet, as it is lost when the sockets are closed; unless there is a pause."""
        self._room()
        for port, sock in self._sockets:
            with contextlib.suppress(OSError):
                while not self._paused and self._accept_one(port, sock):
                    pass

    def stop(self) -> None:
        """Close all sockets."""
        idle = self._resting.union(sock for _, sock in self._left_alone)
        for _, sock in self._sockets:
            if sock not in idle:
                self._poller.remove(sock.fileno())
            sock.close()
        self._sockets.clear()
        self._resting.clear()
        self._left_alone.clear()

    def _watch(self, port: int, sock: socket.socket) -> None:
        self._poller.add(sock.fileno(), READABLE, partial(self.accept_all, port, sock))

    def accept_all(self, port: int, sock: socket.socket, _events: int = READABLE) -> None:
        """Accept the connections that have arrived, up to a limit: a storm must not block the event loop."""
        for _ in range(min(_ACCEPTS_AT_ONCE, self._room())):
            if self._paused or self._suspended:
                self._poller.remove(sock.fileno())
                self._left_alone.append((port, sock))
                return
            try:
                if not self._accept_one(port, sock):
                    return
            except OSError as error:
                self._rest(port, sock, error)
                return

    def _accept_one(self, port: int, sock: socket.socket) -> bool:
        """Accept a connection, if it has not ended meanwhile; False if none waits. Raises OSError."""
        try:
            client, peer = accept(sock)
        except BlockingIOError:
            return False
        except ConnectionAbortedError:
            return True
        try:
            self._accepted(port, client, peer)
        except Exception:
            self._log.exception("internal_error")
            client.close()
        return True

    def _rest(self, port: int, sock: socket.socket, error: OSError) -> None:
        """Stop accepting at a port for a while: descriptors or memory have run out, and a retry at once would spin."""
        self._log.error("accept_failed", port=port, error=error.strerror)
        self._poller.remove(sock.fileno())
        self._resting.add(sock)
        asyncio.get_running_loop().call_later(_REST_S, self._accept_again, port, sock)

    def _accept_again(self, port: int, sock: socket.socket) -> None:
        if sock in self._resting:
            self._resting.discard(sock)
            self._watch(port, sock)
