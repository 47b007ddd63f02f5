"""A client that connects and asks for metadata again and again, and measures how long it had no response."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from kafka_throttle.protocol.api_key import METADATA
from kafka_throttle.protocol.primitives import int32
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

EVERY_S = 0.05
SLOW_S = 1.0
"""A longer time between two responses counts as an outage, also if no poll failed."""

_METADATA_VERSION = 1


class Poll(NamedTuple):
    """One connection and one request; `failure` is None if the response came."""

    ended_s: float
    failure: str | None = None


def outage_s(polls: Sequence[Poll]) -> float:
    """How long there was no response: the sum of the times between two responses with a failure between them, or
    that were longer than SLOW_S.
    """
    return sum(_gaps(polls))


def _gaps(polls: Sequence[Poll]) -> Iterator[float]:
    failed, answered_s = False, polls[0].ended_s if polls else 0.0
    for poll in polls:
        if poll.failure is not None:
            failed = True
            continue
        if failed or poll.ended_s - answered_s > SLOW_S:
            yield poll.ended_s - answered_s
        failed, answered_s = False, poll.ended_s
    if failed:
        yield polls[-1].ended_s - answered_s


class PollingClient:
    """Polls one address from a thread; use it as a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self.polls: list[Poll] = []
        self._address = host, port
        self._request = request(METADATA, _METADATA_VERSION, int32(0), client_id=b"polling")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(TIMEOUT_S)

    def is_steady(self, seconds: float) -> bool:
        """For how many seconds each poll has had its response."""
        begin_s = time.monotonic() - seconds
        late = [poll.failure for poll in reversed(self.polls) if poll.ended_s > begin_s]
        return bool(late) and not any(late)

    def between(self, begin_s: float, end_s: float) -> list[Poll]:
        """The polls that ended between two moments, and the last response before them."""
        answered = [poll for poll in self.polls if poll.ended_s < begin_s and poll.failure is None]
        return answered[-1:] + [poll for poll in self.polls if begin_s <= poll.ended_s < end_s]

    def _run(self) -> None:
        while not self._done.wait(EVERY_S):
            failure = self._poll()
            self.polls.append(Poll(time.monotonic(), failure))

    def _poll(self) -> str | None:
        try:
            with socket.create_connection(self._address, TIMEOUT_S) as sock, sock.makefile("rb") as stream:
                sock.sendall(self._request)
                size = int.from_bytes(stream.read(4), "big")
                return None if size and len(stream.read(size)) == size else "closed instead of a response"
        except OSError as error:
            return str(error)
