"""TCP connections to a host: its addresses race, and the first that takes a connection is used (RFC 8305)."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from kafka_throttle.common.destinations import ANYWHERE, Destinations
from kafka_throttle.common.kinds import MAX_PORT
from kafka_throttle.common.look_ups import Found, at_port, look_up
from kafka_throttle.common.race import AllFailed, race

MOST_TRIED = 8
"""How many addresses of one name are tried."""
_NEXT_ADDRESS_S = 0.25
"""An address that has not answered by then is raced by the next one of the same name (RFC 8305, section 5)."""
_IP_BIND_ADDRESS_NO_PORT = 24
"""Of <linux/in.h>: the port is chosen with the destination, so that each may be used towards many."""


async def connected(host: str, port: int, first: bytes = b"", destinations: Destinations = ANYWHERE) -> socket.socket:
    """A socket that is connected to a host, whose name is looked up; see `connected_to_first`. Raises OSError."""
    if not 1 <= port <= MAX_PORT:  # some event loops would take it modulo 65,536
        raise OSError(None, f"there is no port {port}")
    found = [at_port(each, port) for each in await look_up(host)]
    _, sock = await connected_to_first(destinations.allowed(host, found), first)
    return sock


async def connected_to_first(
    places: Sequence[Found], first: bytes = b"", sources: Sequence[str] = ()
) -> tuple[int, socket.socket]:
    """The number of the first place that takes a connection, and a non-blocking socket to it. Raises OSError.

    At most MOST_TRIED places are tried. `first` is sent before all else. It connects from the first of `sources` that
    this machine has, of those of the place's family if there are any.
    """
    attempts = [partial(_connected, place, sources) for place in places[:MOST_TRIED]]
    try:
        number, sock = await race(attempts, _NEXT_ADDRESS_S, socket.socket.close)
    except AllFailed as lost:
        raise lost.failures[0] from None
    if first:
        try:
            if sock.send(first) != len(first):  # what is sent first finds room
                raise _failure(errno.ENOBUFS)
        except OSError:
            sock.close()
            raise
    return number, sock


async def _connected(place: Found, sources: Sequence[str]) -> socket.socket:
    """A socket that is connected to a place, from the first source that this machine has. Raises OSError."""
    family, where = place
    of_family = [source for source in sources if (":" in source) == (family == socket.AF_INET6)]
    failure: OSError | None = None
    for source in of_family or [""]:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if source:
                _bind(sock, source)
            await _connect(sock, where)
        except OSError as error:
            sock.close()
            failure = failure or error
            if error.errno != errno.EADDRNOTAVAIL:
                break
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failure is not None
    raise failure


def _bind(sock: socket.socket, source: str) -> None:
    """Have a socket connect from an address. The error for an address that this machine does not have names it."""
    sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    try:
        sock.bind((source, 0))
    except OSError as error:
        raise OSError(error.errno, f"cannot connect from {source}: {error.strerror}") from error


async def _connect(sock: socket.socket, where: tuple[Any, ...]) -> None:
    """As the event loop's `sock_connect`, without its second look-up, and with the system's text of an error."""
    error_number = sock.connect_ex(where)
    if error_number == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(sock, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_writer(sock)
        error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error_number:
        raise _failure(error_number)


def _failure(error_number: int) -> OSError:
    return OSError(error_number, os.strerror(error_number))
