"""The clients of a run: good ones that send and read a little, one over its quota, and one that connects in a loop."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer

from kafka_throttle.protocol.primitives import compact_string, int16, int32, string
from tests.support.timeouts import TIMEOUT_S

STORM_ADDRESS = "127.0.0.9"
_RESET = struct.pack("ii", 1, 0)
_STORM_PAUSE_S = 0.02
_GOOD_PAUSE_S = 0.5
_QUIET = {"log_level": 0, "socket.connection.setup.timeout.ms": 10_000}


def _introduction(client_id: bytes, name: bytes, version: bytes) -> bytes:
    """ApiVersions in version 3, as clients begin."""
    head = int16(18) + int16(3) + int32(1) + string(client_id) + b"\0"
    frame = head + compact_string(name) + compact_string(version) + b"\0"
    return int32(len(frame)) + frame


class Looping:
    """A thread that calls `step` again and again while it is the context."""

    def __init__(self, step: Callable[[], Any], pause_s: float, end: Callable[[], Any] = lambda: None) -> None:
        self.rounds = 0
        self._step = step
        self._pause_s = pause_s
        self._end = end
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

    def _run(self) -> None:
        while not self._done.wait(self._pause_s):
            self._step()
            self.rounds += 1
        self._end()


def storm(host: str, port: int) -> Looping:
    """Connects from an address of its own, asks which APIs there are, and resets the connection."""
    request = _introduction(b"storm", b"storming", b"0.1")

    def step() -> None:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.settimeout(TIMEOUT_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.bind((STORM_ADDRESS, 0))
            sock.connect((host, port))
            sock.sendall(request)
            sock.recv(4)

    return Looping(step, _STORM_PAUSE_S)


def good(bootstrap: str, topic: str, client_id: str) -> Looping:
    """Sends a record twice a second and reads what all send, as a member of a group with its own name."""
    common = {"bootstrap.servers": bootstrap, "client.id": client_id, **_QUIET}
    producer = Producer(common)
    consumer = Consumer({**common, "group.id": client_id, "auto.offset.reset": "latest"})
    consumer.subscribe([topic])

    def step() -> None:
        with contextlib.suppress(BufferError):
            producer.produce(topic, b"good" * 10)
        producer.poll(0)
        consumer.poll(0)

    def end() -> None:
        producer.flush(5)
        consumer.close()

    return Looping(step, _GOOD_PAUSE_S, end)


def throttled(bootstrap: str, topic: str, client_id: str, bytes_per_second: int) -> Looping:
    """Sends at this rate, in ten records a second."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, **_QUIET})
    value = bytes(bytes_per_second // 10)

    def step() -> None:
        with contextlib.suppress(BufferError):
            producer.produce(topic, value)
        producer.poll(0)

    return Looping(step, 0.1, lambda: producer.flush(5))


def wait_until(moment_s: float) -> None:
    """Sleep until this time, in seconds since 1970."""
    time.sleep(max(moment_s - time.time(), 0))
