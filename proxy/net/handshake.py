"""TLS handshakes on the event loop: bytes are read and written there; slow computation runs in threads beside it."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kafka_throttle.proxy.net.poller import READABLE, WRITABLE, Poller
from kafka_throttle.proxy.net.tls_socket import TlsSocket

_threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "tls")
"""The response to the peer's first message has a signature, or needs one to be checked: that takes a third of a
millisecond with short keys, six with long ones, and OpenSSL computes it without Python's lock. All other steps take
less time than the way to a thread and back, and cannot come faster than these.
"""


_UNREAD_BYTES = 65_536

Result = TypeVar("Result")


async def run_in_tls_threads(work: Callable[[], Result]) -> Result:
    """The result of slow work that belongs to a handshake, done in the threads where handshakes are computed."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def shake_hands(poller: Poller, sock: socket.SocketType, tls: TlsSocket) -> None:
    """Go through the handshake of `tls` on `sock`, which nothing else may watch. Raises OSError, SSLError.

    When it fails, OpenSSL's alert with the reason is sent to the peer, as far as the kernel takes it at once.
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
            sock.recv(_UNREAD_BYTES)  # otherwise closing would reset the connection, and the alert could be lost
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
