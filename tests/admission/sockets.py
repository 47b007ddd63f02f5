"""Several connections from one address at once, and how many of them are answered, closed, or left waiting."""

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.timeouts import TIMEOUT_S

API_VERSIONS = bytes.fromhex("0000000d00120000000000010003676f64")
"""Version 0, as any client may ask it first."""

Target = tuple[str, int]


@dataclass
class Batch:
    """Connections that were begun together. What was answered stays open until `leave`."""

    answered: list[socket.socket] = field(default_factory=list)
    waiting: list[socket.socket] = field(default_factory=list)
    closed: int = 0

    def wait(self, until: Callable[["Batch"], bool]) -> "Batch":
        """Listen to those that wait until it is as wanted; AssertionError if it does not come to that."""
        deadline = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            for sock in self.waiting:
                selector.register(sock, selectors.EVENT_READ)
            while not until(self):
                assert time.monotonic() < deadline, f"{len(self.answered)} answered, {self.closed} closed, and no more"
                for key, _ in selector.select(0.2):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    selector.unregister(sock)
                    self._hear(sock)
        return self

    def _hear(self, sock: socket.socket) -> None:
        self.waiting.remove(sock)
        try:
            response = sock.recv(4)
        except OSError:
            response = b""
        if response:
            self.answered.append(sock)
        else:
            self.closed += 1
            sock.close()

    def leave(self, count: int | None = None) -> None:
        """So many that were answered go away, or all, and those that wait, too."""
        for sock in self.answered[:count]:
            sock.close()
        del self.answered[:count]
        if count is None:
            for sock in self.waiting:
                sock.close()
            self.waiting.clear()


def connect(target: Target, address: str, count: int) -> Batch:
    """Begin so many connections, each with a request."""
    batch = Batch()
    for _ in range(count):
        sock = socket.socket()
        sock.settimeout(TIMEOUT_S)
        sock.bind((address, 0))
        sock.connect(target)
        try:
            sock.sendall(API_VERSIONS)
        except OSError:
            batch.closed += 1
            sock.close()
        else:
            batch.waiting.append(sock)
    return batch


def all_are_reported(batch: Batch) -> bool:
    """Nobody waits any more."""
    return not batch.waiting
