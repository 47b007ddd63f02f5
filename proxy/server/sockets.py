"""Binds the ports of a listener and accepts connections at them."""

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from proxy.config.kinds import HostPort

BACKLOG = 4096

_INET, _INET6, _STREAM = int(socket.AF_INET), int(socket.AF_INET6), int(socket.SOCK_STREAM)


class PortsTaken(OSError):
    """Ports that could not be bound; the message names each with its reason."""


def bind_all(bind: str, ports: Sequence[int]) -> dict[int, socket.socket]:
    """Listening sockets on all `ports` of the address `bind`, by port; none stays open if one fails.

    Raises PortsTaken with every port that failed.
    """
    bound: dict[int, socket.socket] = {}
    failures: list[str] = []
    for port in ports:
        try:
            bound[port] = _listening(bind, port)
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


def _listening(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ip_address(bind).version == 6 else socket.AF_INET
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Sockets that are accepted inherit these two.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sock.bind((bind, port))
        sock.listen(BACKLOG)
        stack.pop_all()
    return sock
