"""Connections of kafka-python's producer: to the address of a host that accepts the connection first.

Without this module the producer looks up names on the thread that serves all its connections, and the first address of
a name can use up the time for all others.
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

from kafka_throttle.common.connecting import connected
from kafka_throttle.common.plain_words import words_of

_SCHEME: Final = "kafka-throttle"
PLAIN: Final = f"{_SCHEME}://plain"
"""The value of kafka-python's setting `proxy_url` that makes it connect by this module."""

_LONGEST_S = 30.0


class _OwnSocket(KafkaNetSocket):  # type: ignore[misc]
    """The socket class that kafka-python finds by its scheme."""

    SCHEMES = (_SCHEME,)

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> list[tuple[str, int]]:
        """The host name itself. `connect` looks it up, because `connect` may wait."""
        return [(host, port)]

    async def connect(
        self, net: Any, addrinfo: tuple[str, int], socket_options: Sequence[Any] = (), timeout_at: float | None = None
    ) -> socket.socket:
        """The connected socket. Raises KafkaConnectionError."""
        reached = Future()
        within_s = _LONGEST_S if timeout_at is None else timeout_at - time.monotonic()
        work = partial(_connect_and_report, net, reached, addrinfo, within_s)
        threading.Thread(target=work, name="producer-connection", daemon=True).start()
        outcome = await reached
        if isinstance(outcome, Exception):
            timed_out = isinstance(outcome, TimeoutError) and outcome.errno is None
            text = f"no connection within {within_s:.3g} s" if timed_out else words_of(outcome)
            raise KafkaConnectionError(text) from outcome
        sock: socket.socket = outcome
        for option in socket_options:
            sock.setsockopt(*option)
        return sock


def _connect_and_report(net: Any, reached: Future, address: tuple[str, int], within_s: float) -> None:
    outcome: socket.socket | Exception
    try:
        outcome = asyncio.run(asyncio.wait_for(connected(*address), within_s))
    except Exception as error:
        outcome = error

    def report() -> None:
        reached.success(outcome)

    try:
        net.call_soon_threadsafe(report)
    except RuntimeError:  # the event loop is closed: the result is not needed any more
        if isinstance(outcome, socket.socket):
            outcome.close()
