"""How kafka-python connects for the proxy itself: to whichever address of a host answers first.

By itself it looks names up on the thread that serves all its connections, and has the first address of a name use up
the time of all others.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kafka.errors import KafkaConnectionError
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket

from protocol.identity.proxy_header import LOCAL_PROXY_HEADER
from proxy.net.look_ups import MOST_TRIED, at_port, look_up
from proxy.upstream.race import AllFailed, race

_SCHEME: Final = "kafka-throttle"
PLAIN: Final = f"{_SCHEME}://plain"
"""As kafka-python's setting `proxy_url`: connections are made as said here."""
ANNOUNCED: Final = f"{_SCHEME}://announced"
"""The same, and a connection begins with a PROXY header that says it is the sender's own."""

_NEXT_ADDRESS_S = 0.25
_LONGEST_S = 30.0


class _OwnSocket(KafkaNetSocket):  # type: ignore[misc]
    """Known to kafka-python by its scheme."""

    SCHEMES = (_SCHEME,)

    def __init__(self, proxy_url: str) -> None:
        super().__init__(proxy_url)
        self._is_announced = proxy_url == ANNOUNCED

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> list[tuple[str, int]]:
        """The name itself: it is looked up by `connect`, which may wait for it."""
        return [(host, port)]

    async def connect(
        self, net: Any, addrinfo: tuple[str, int], socket_options: Sequence[Any] = (), timeout_at: float | None = None
    ) -> socket.socket:
        """The socket, once it stands and the header is sent."""
        reached = Future()
        within_s = _LONGEST_S if timeout_at is None else timeout_at - time.monotonic()
        work = partial(_connect_and_tell, net, reached, addrinfo, within_s)
        threading.Thread(target=work, name="own-connection", daemon=True).start()
        outcome = await reached
        if isinstance(outcome, Exception):
            raise KafkaConnectionError(_words_for(outcome, within_s)) from outcome
        sock: socket.socket = outcome
        for option in socket_options:
            sock.setsockopt(*option)
        if self._is_announced:
            sock.send(LOCAL_PROXY_HEADER)
        return sock


def _words_for(error: Exception, within_s: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no connection within {within_s:.3g} s"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _connect_and_tell(net: Any, reached: Future, address: tuple[str, int], within_s: float) -> None:
    outcome: socket.socket | Exception
    try:
        outcome = asyncio.run(asyncio.wait_for(_connected(*address), within_s))
    except Exception as error:
        outcome = error

    def tell() -> None:
        reached.success(outcome)

    try:
        net.call_soon_threadsafe(tell)
    except RuntimeError:  # closed: nobody waits any more
        if isinstance(outcome, socket.socket):
            outcome.close()


async def _connected(host: str, port: int) -> socket.socket:
    """A non-blocking socket to the address of a host that is the first to take a connection. Raises OSError."""
    places = [at_port(found, port) for found in await look_up(host)][:MOST_TRIED]
    try:
        _, sock = await race([partial(_connected_at, *place) for place in places], _NEXT_ADDRESS_S, socket.socket.close)
    except AllFailed as lost:
        raise lost.failures[0] from None
    return sock


async def _connected_at(family: int, where: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock
