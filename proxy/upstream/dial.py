"""A TCP connection to an address by number, without a task, a name, or a timer of its own: what nearly all are."""

import errno
import os
import select
from collections.abc import Callable
from functools import lru_cache
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_ERROR,
    SO_KEEPALIVE,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    SocketType,
    inet_pton,
)
from typing import Any

from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.net.deadlines import Deadlines
from kafka_throttle.proxy.net.poller import WRITABLE, Poller
from kafka_throttle.proxy.upstream.node_socket import Cancellable

_FAILED = select.EPOLLERR | select.EPOLLHUP


@lru_cache
def family_of(host: str) -> int | None:
    """Of which family an address by number is; None: it is a name."""
    family = AF_INET6 if ":" in host else AF_INET
    try:
        inet_pton(family, host)
    except (OSError, ValueError):  # ValueError: there is a zero byte in it
        return None
    return family


def _told(_: SocketType | OSError) -> None:
    """In place of `then` at the end: it may refer back to the Dial, and Python's collector need not look for that."""


class Dial:
    """One connection that is being made; `then` is told the socket, or what failed."""

    __slots__ = ("_address", "_deadlines", "_family", "_first", "_instead", "_is_wanted", "_poller", "_socket", "_then")

    def __init__(
        self,
        poller: Poller,
        deadlines: "Deadlines[Dial]",
        family: int,
        address: HostPort,
        first: bytes,
        then: Callable[[SocketType | OSError], None],
    ) -> None:
        """It begins when the poller's batch is over. `first` is sent before all else."""
        self._poller = poller
        self._family = family
        self._address = address
        self._is_wanted = True
        self._instead: Cancellable | None = None
        self._deadlines = deadlines
        self._first = first
        self._then = then
        self._socket: SocketType | None = None
        poller.soon(self._begin)

    def _begin(self) -> None:
        if not self._is_wanted:
            return
        try:
            self._socket = self._connecting()
        except OSError as error:
            self.fail(error)
        else:
            self._deadlines.add(self)

    def _connecting(self) -> SocketType:
        sock = SocketType(self._family, SOCK_STREAM | SOCK_NONBLOCK)
        try:
            sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
            error_number = sock.connect_ex((self._address.host, self._address.port))
            if error_number not in (0, errno.EINPROGRESS):
                raise OSError(error_number, os.strerror(error_number))
            self._poller.add(sock.fileno(), WRITABLE, self._on_ready)
        except BaseException:
            sock.close()
            raise
        return sock

    def _on_ready(self, events: int) -> None:
        sock = self._socket
        assert sock is not None
        try:
            if events & _FAILED and (error_number := sock.getsockopt(SOL_SOCKET, SO_ERROR)):
                raise OSError(error_number, os.strerror(error_number))
            if self._first and sock.send(self._first) != len(self._first):  # what is sent first finds room
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        except OSError as error:
            self.fail(error)
        else:
            self._socket = None
            self._deadlines.discard(self)
            then, self._then = self._then, _told
            self._poller.hand_on(sock, then)

    def fail(self, error: OSError) -> None:
        """Give up, and tell why."""
        then = self._then
        self.cancel()
        then(error)

    def go_on(self, instead: Cancellable) -> None:
        """Note that it has failed, and that the connection is being made in this other way: `cancel` gives that up."""
        self._instead = instead

    def cancel(self) -> Any:
        """Give up; nobody is told."""
        if self._instead is not None:
            self._instead.cancel()
        self._is_wanted = False
        self._then = _told
        self._deadlines.discard(self)
        sock, self._socket = self._socket, None
        if sock is not None:
            self._poller.forget(sock.fileno())
            self._poller.at_end(sock.close)
