"""How kafka-python's producer connects: to whichever address of a host answers first.

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

from quotas.sources.cluster_faults import words_of
from quotas.sources.cluster_stream import connected

_SCHEME: Final = "kafka-throttle"
PLAIN: Final = f"{_SCHEME}://plain"
"""As kafka-python's setting `proxy_url`: connections are made as said here."""

_LONGEST_S = 30.0


class _OwnSocket(KafkaNetSocket):  # type: ignore[misc]
    """Known to kafka-python by its scheme."""

    SCHEMES = (_SCHEME,)

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> list[tuple[str, int]]:
        """The name itself: it is looked up by `connect`, which may wait for it."""
        return [(host, port)]

    async def connect(
        self, net: Any, addrinfo: tuple[str, int], socket_options: Sequence[Any] = (), timeout_at: float | None = None
    ) -> socket.socket:
        """The socket, once it stands."""
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
    except RuntimeError:  # closed: nobody waits any more
        if isinstance(outcome, socket.socket):
            outcome.close()
