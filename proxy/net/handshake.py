"""TLS handshakes on the event loop: the bytes move there, what takes time is computed beside it."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from proxy.net.poller import READABLE, WRITABLE, Poller
from proxy.net.tls_socket import TlsSocket

_threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "tls")
"""The response to the peer's first words holds a signature, or wants one checked: a third of a millisecond with short
keys, six with long ones. OpenSSL computes it without Python's lock. All other steps take less than the way to a thread
and back, and cannot come faster than these."""


_UNREAD_BYTES = 65_536

Result = TypeVar("Result")


async def beside_the_loop(work: Callable[[], Result]) -> Result:
    """What comes of work that belongs to a handshake and may take long, done where handshakes are computed."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def shake_hands(poller: Poller, sock: socket.SocketType, tls: TlsSocket) -> None:
    """Go through the handshake of `tls`, which speaks on `sock`; nobody else watches that. Raises OSError, SSLError.

    To whom it fails for, OpenSSL tells why, as far as the kernel takes it at once.
    """
    loop = asyncio.get_running_loop()
    try:
        if not tls.tls.server_side:
            tls.step()
            await _send(poller, sock, tls)
        await _receive(poller, sock, tls)
        done = await loop.run_in_executor(_threads, tls.step)
        while not done:
            await _send(poller, sock, tls)
            await _receive(poller, sock, tls)
            done = tls.step()
        await _send(poller, sock, tls)
    except ssl.SSLError:
        with contextlib.suppress(OSError):
            tls.flush()
            sock.recv(_UNREAD_BYTES)  # else closing would reset the connection, and the peer never learn why
        raise


async def _receive(poller: Poller, sock: socket.SocketType, tls: TlsSocket) -> None:
    while True:
        try:
            return tls.receive()
        except BlockingIOError:
            await poller.ready(sock.fileno(), READABLE)


async def _send(poller: Poller, sock: socket.SocketType, tls: TlsSocket) -> None:
    while not tls.flush():
        await poller.ready(sock.fileno(), WRITABLE)
