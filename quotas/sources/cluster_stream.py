"""A connection of the proxy's own to one address: how it is made, and whole frames over it."""

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from typing import Any, Final, TypeVar

from common.kinds import MAX_PORT
from common.look_ups import MOST_TRIED, at_port, look_up
from common.race import AllFailed, race
from protocol.errors import MalformedMessage
from quotas.sources.cluster_conversation import Step

Result = TypeVar("Result")

MAX_RESPONSE_BYTES: Final = 256 << 20
_NEXT_ADDRESS_S = 0.25


class ClusterStream:
    """Sends frames, and reads the response to each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def play(self, step: Step[Result]) -> Result:
        """Carry out a step of a conversation; what it returns. Raises as it does, or OSError, or EOFError."""
        try:
            frame = next(step)
            while True:
                frame = step.send(await self._response_to(frame))
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _response_to(self, frame: bytes) -> bytes:
        self._writer.write(frame)
        size = await self._reader.readexactly(4)
        size_bytes = int.from_bytes(size, "big")
        if size_bytes > MAX_RESPONSE_BYTES:
            raise MalformedMessage(f"a response of {size_bytes} bytes")
        return size + await self._reader.readexactly(size_bytes)

    async def ends_within(self, seconds: float) -> None:
        """Return when the node has sent anything, or time is over. Raises OSError, or EOFError, if it has closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reader.readexactly(1), seconds)

    def close(self) -> None:
        """Let go of the socket."""
        self._writer.transport.abort()


async def connected(host: str, port: int, first: bytes = b"") -> socket.socket:
    """A non-blocking socket to the address of a host that is the first to take a connection. Raises OSError.

    `first` is sent before all else.
    """
    if not 1 <= port <= MAX_PORT:  # some event loops would take it modulo 65,536
        raise OSError(None, f"there is no port {port}")
    places = [at_port(found, port) for found in await look_up(host)][:MOST_TRIED]
    try:
        _, sock = await race([partial(_connected_at, *place) for place in places], _NEXT_ADDRESS_S, socket.socket.close)
    except AllFailed as lost:
        raise lost.failures[0] from None
    try:
        if first:
            await asyncio.get_running_loop().sock_sendall(sock, first)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected_at(family: int, where: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def opened(sock: socket.socket, context: ssl.SSLContext | None, host: str) -> ClusterStream:
    """The stream over a socket, with TLS if there is a context for it. Raises OSError."""
    try:
        name = None if context is None else host
        reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    return ClusterStream(reader, writer)
