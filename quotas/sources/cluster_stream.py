"""Whole frames over a connection of the proxy's own."""

import asyncio
import contextlib
import socket
import ssl
from typing import TypeVar

from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.quotas.sources.cluster_conversation import Asked, Step

Result = TypeVar("Result")


class ClusterStream:
    """Sends frames, and reads the response to each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def play(self, step: Step[Result]) -> Result:
        """Carry out a step of a conversation; what it returns. Raises as it does, or OSError, or EOFError."""
        try:
            asked = next(step)
            while True:
                asked = step.send(await self._response_to(asked))
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _response_to(self, asked: Asked) -> bytes:
        self._writer.write(asked.frame)
        size = await self._reader.readexactly(4)
        size_bytes = int.from_bytes(size, "big")
        if size_bytes > asked.most_bytes:
            raise MalformedMessage(f"a response of {size_bytes} bytes, expected at most {asked.most_bytes}")
        return size + await self._reader.readexactly(size_bytes)

    @property
    def certificate(self) -> bytes:
        """The certificate of the node, in DER. Only with TLS."""
        found: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def ends_within(self, seconds: float) -> None:
        """Return when the node has sent anything, or time is over. Raises OSError, or EOFError, if it has closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reader.readexactly(1), seconds)

    def close(self) -> None:
        """Let go of the socket."""
        self._writer.transport.abort()


async def opened(sock: socket.socket, context: ssl.SSLContext | None, host: str) -> ClusterStream:
    """The stream over a socket, with TLS if there is a context for it. Raises OSError."""
    try:
        name = None if context is None else host
        reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
    except BaseException:
        _let_go(sock)
        raise
    return ClusterStream(reader, writer)


def _let_go(sock: socket.socket) -> None:
    """Let go of a socket whose stream has come to nothing.

    uvloop closes the descriptor itself, in some turns before `open_connection` has failed and in others after it. By
    then the number may be another socket's, which nobody but its owner may close.
    """
    if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        sock.close()
    else:
        sock.detach()
