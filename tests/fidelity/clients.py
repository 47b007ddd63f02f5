"""Connections that send requests at a pace or as fast as they are answered, and when the responses began."""

import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import unpack_from
from types import TracebackType
from typing import Self

from tests.fidelity.frames import Call, Frames, api_versions

_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 20
_KEPT_BYTES = 4096
_END_BYTES = 16_384
_MIN_RTT_AT = 148
"""In struct tcp_info, <linux/tcp.h>."""
WARM_UP = "warm-up"
"""The client-id of what is not measured."""


class ResponseRefused(AssertionError):
    """A response had an error code, or none came."""


class Connection:
    """One connection with at most `depth` requests under way."""

    def __init__(self, address: tuple[str, int], depth: int = 1) -> None:
        self.socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.depth = depth
        self.under_way: deque[int] = deque()
        self._correlation_id = 0
        self._head = bytearray()
        self._left = 0
        self._answered_ns = 0
        self.response = bytearray()
        self.exchange(api_versions())

    @property
    def min_rtt_us(self) -> int:
        """The least round trip that the kernel has seen, in microseconds."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found: int = unpack_from("I", info, _MIN_RTT_AT)[0]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def exchange(self, call: Call, client_id: str = WARM_UP) -> bytes:
        """Send one request and wait for its response, which comes without its length prefix."""
        return self.exchange_again(Frames(call, client_id))

    def exchange_again(self, frames: Frames) -> bytes:
        """The same for one of many requests."""
        self.send(frames, array("q"))
        return self._await()

    def ask(self, request: bytes) -> bytes:
        """The same for a whole frame."""
        self.socket.sendall(request)
        self.under_way.append(time.perf_counter_ns())
        return self._await()

    def _await(self) -> bytes:
        seen = Seen()
        while self.outstanding:
            self.receive(seen)
        return bytes(self.response)

    def send(self, frames: Frames, sent: "array[int]") -> None:
        """Send the next request; it is timed before its end is sent: afterwards the response may long have been
        there.
        """
        self._correlation_id += 1
        frame = memoryview(frames.frame(self._correlation_id))
        if len(frame) > _END_BYTES:
            self.socket.sendall(frame[:-_END_BYTES])
        now_ns = time.perf_counter_ns()
        self.socket.sendall(frame[-_END_BYTES:])
        sent.append(now_ns)
        if frames.call.answered:
            self.under_way.append(now_ns)

    def receive(self, seen: "Seen") -> None:
        """Take what there is; the responses that begin in it are noted with the time it took until then."""
        data = memoryview(self.socket.recv(_READ_BYTES))
        now_ns = time.perf_counter_ns()
        if not data:
            raise ResponseRefused("the connection was closed")
        while data:
            data = data[self._take(data, now_ns, seen) :]

    def _take(self, data: memoryview, now_ns: int, seen: "Seen") -> int:
        if self._left:
            taken = min(self._left, len(data))
            self._left -= taken
            self.response += data[: min(taken, max(_KEPT_BYTES - len(self.response), 0))]
            return taken
        if not self._head:
            self._begun(now_ns, seen)
        taken = min(4 - len(self._head), len(data))
        self._head += data[:taken]
        if len(self._head) == 4:
            self._left = int.from_bytes(self._head, "big")
            self._head.clear()
            self.response.clear()
        return taken

    def _begun(self, now_ns: int, seen: "Seen") -> None:
        """A request is served from when it was sent, or from when the one before it on the connection was answered."""
        sent_ns = self.under_way.popleft()
        seen.service_ns.append(now_ns - max(sent_ns, self._answered_ns))
        seen.answered_ns.append(now_ns)
        self._answered_ns = now_ns

    @property
    def outstanding(self) -> int:
        """How many requests are under way, counting one whose response is half read."""
        return len(self.under_way) + (self._left > 0 or len(self._head) > 0)

    def close(self) -> None:
        self.socket.close()


@dataclass(slots=True)
class Seen:
    """What a client saw; times are of time.perf_counter_ns."""

    sent_ns: "array[int]" = field(default_factory=lambda: array("q"))
    answered_ns: "array[int]" = field(default_factory=lambda: array("q"))
    service_ns: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def began_ns(self) -> int:
        """When the first was answered, or sent, if none is."""
        return self.answered_ns[0] if self.answered_ns else self.sent_ns[0]


class Client:
    """Connections of one client-id that send at `rate` requests a second together, or without one as fast as they are
    answered; use it as a context manager.

    `calls` are the requests of one connection each.
    """

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        calls: Sequence[Call],
        rate: float | None,
        depth: int = 1,
        first_number: int = 0,
    ) -> None:
        self.client_id = client_id
        self.seen = Seen()
        self.connections = [Connection(address, depth) for _ in calls]
        self._frames = [Frames(call, client_id, first_number + number * 1_000_000) for number, call in enumerate(calls)]
        self._answered = calls[0].answered
        self.period_ns = None if rate is None else int(1e9 / rate)
        self.due_ns = 0
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self.connections:
            connection.close()

    def give(self, now_ns: int) -> None:
        """Send what is due, as far as connections are free."""
        if self.period_ns is None:
            for number, connection in enumerate(self.connections):
                if not self._answered:
                    self._send(number)
                while self._answered and connection.outstanding < connection.depth:
                    self._send(number)
            return
        while self.due_ns <= now_ns and (number := self._free()) is not None:
            self._send(number)
            self.due_ns += self.period_ns

    def _send(self, number: int) -> None:
        self.connections[number].send(self._frames[number], self.seen.sent_ns)

    def _free(self) -> int | None:
        """The next connection in turn that is free."""
        count = len(self.connections)
        for offset in range(count):
            number = (self._turn + offset) % count
            if self.connections[number].outstanding < self.connections[number].depth:
                self._turn = number + 1
                return number
        return None

    def awaits_ns(self, end_ns: int) -> int:
        """When something is to be sent, whatever arrives."""
        if self.period_ns is None:
            return end_ns if self._answered else 0
        return self.due_ns if self._free() is not None else end_ns

    def settle(self) -> None:
        """Wait for all responses; AnswerRefused if the last of a connection has an error code."""
        for connection, frames in zip(self.connections, self._frames, strict=True):
            while connection.outstanding:
                connection.receive(self.seen)
            if not frames.call.answered:
                connection.exchange(api_versions())
            elif error := frames.call.error_code(bytes(connection.response)):
                raise ResponseRefused(f"{self.client_id}: error {error}")


def drive(clients: Sequence[Client], seconds: float) -> None:
    """Run all for so long, and wait for their last responses."""
    began_ns = time.perf_counter_ns()
    end_ns = began_ns + int(seconds * 1e9)
    for number, client in enumerate(clients):
        client.due_ns = began_ns + number * (client.period_ns or 0) // len(clients)
    by_socket = {connection.socket: (client, connection) for client in clients for connection in client.connections}
    while (now_ns := time.perf_counter_ns()) < end_ns:
        for client in clients:
            client.give(now_ns)
        until_ns = min(client.awaits_ns(end_ns) for client in clients)
        for found in _readable(by_socket, max(min(until_ns, end_ns) - time.perf_counter_ns(), 0) / 1e9):
            client, connection = by_socket[found]
            connection.receive(client.seen)
    for client in clients:
        client.settle()


def _readable(sockets: Iterable[socket.socket], timeout_s: float) -> list[socket.socket]:
    """By select: its timeout is in microseconds, that of epoll in milliseconds."""
    return select.select(list(sockets), (), (), timeout_s)[0]
