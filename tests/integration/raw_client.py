"""A client of single frames: what it sends, when the response came, and the throttle time in that."""

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import pack, unpack
from typing import Self

from kafka.record.default_records import DefaultRecordBatchBuilder

from kafka_throttle.protocol.api_key import PRODUCE as _PRODUCE

_VERSION = 7
_NO_SUCH_TOPIC = b"no-such-topic"
_ONE = pack(">i", 1)
_TIMEOUT_S = 60.0


@dataclass(slots=True, frozen=True)
class Answered:
    """What came of one request: times are of time.monotonic, in seconds."""

    sent_s: float
    answered_s: float
    throttle_time_ms: int


class RawClient:
    """One connection that sends Produce requests of a chosen size to a topic that does not exist; use it as a context
    manager.

    A broker charges them like any other, and has nothing to store. (It looks at the records first: corrupt ones it
    refuses without a charge.)
    """

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        source: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connects from the address `source`, or whatever the system chooses; over TLS with a context."""
        self._client_id = client_id.encode()
        self._socket = socket.create_connection(address, _TIMEOUT_S, (source, 0) if source else None)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0
        self._sent_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def produce(self, size_bytes: int) -> Answered:
        """Send one request of about `size_bytes` without its length prefix; what came of it.

        The first of a size takes a while to make, see `prepare`.
        """
        return self.exchange(self._produce_request(size_bytes), throttle_at=-4)

    def send_produce(self, size_bytes: int) -> None:
        """Send a request; `receive` is due."""
        self._send(self._produce_request(size_bytes))

    def prepare(self, sizes_bytes: Iterable[int]) -> None:
        """Make the records for requests of these sizes, so that sending takes no time."""
        for size_bytes in sizes_bytes:
            self._produce_request(size_bytes)

    def _produce_request(self, size_bytes: int) -> bytes:
        return produce_request(self._client_id, self._correlation_id, size_bytes)

    def exchange(self, request: bytes, throttle_at: int) -> Answered:
        """Send a request and read its response; its throttle time is at this offset after the length prefix."""
        self._send(request)
        return self.receive(throttle_at)

    def send(self, api_key: int, api_version: int, body: bytes) -> None:
        """Send a request and do not read its response."""
        self._send(pack(">hhi", api_key, api_version, 0) + _string(self._client_id) + body)

    def _send(self, request: bytes) -> None:
        self._sent_s = time.monotonic()
        self._socket.sendall(pack(">i", len(request)) + request)

    def receive(self, throttle_at: int) -> Answered:
        """Read the response to what was sent."""
        size = int.from_bytes(self._stream.read(4), "big")
        response = self._stream.read(size)
        answered_s = time.monotonic()
        assert size >= 4, "the connection was closed"
        assert int.from_bytes(response[:4], "big") == self._correlation_id
        self._correlation_id += 1
        begin = throttle_at % size
        return Answered(self._sent_s, answered_s, unpack(">i", response[begin : begin + 4])[0])


def produce_request(client_id: bytes, correlation_id: int, size_bytes: int) -> bytes:
    """A Produce request of about `size_bytes` to a topic that does not exist, without its length prefix."""
    head = pack(">hhi", _PRODUCE, _VERSION, correlation_id) + _string(client_id)
    before = head + pack(">hhi", -1, 1, 30_000) + _ONE + _string(_NO_SUCH_TOPIC) + _ONE + pack(">i", 0)
    batch = records(size_bytes - len(before) - 4)
    return before + pack(">i", len(batch)) + batch


@lru_cache(maxsize=1000)
def records(size_bytes: int) -> bytes:
    """A batch of one record of that size, as nearly as its lengths can express."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, size_bytes + 100)
    overhead = 61 + 7 + 3 * (size_bytes > 100) + (size_bytes > 8000)
    builder.append(0, 0, None, bytes(max(size_bytes - overhead, 0)), [])
    return bytes(builder.build())


def _string(text: bytes) -> bytes:
    return pack(">h", len(text)) + text
