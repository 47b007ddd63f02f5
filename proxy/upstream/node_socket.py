"""What comes of connecting to a node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kafka_throttle.proxy.net.tls_socket import AnySocket
from kafka_throttle.proxy.relay.actions import CloseReason


class NodeUnreachable(ConnectionError):
    """No address of a node, or of the bootstrap list, took a connection. The message says what was tried."""

    def __init__(self, message: str, reason: CloseReason = CloseReason.NODE_UNREACHABLE) -> None:
        super().__init__(message)
        self.reason = reason


class NodeUnknown(LookupError):
    """Nobody has named the address of this node yet."""


class NodePaced(ConnectionError):
    """Too many others wait for a connection to this node. The message says for how long, and why."""


@dataclass(slots=True)
class NodeSocket:
    """What connecting to a node gave: a non-blocking socket, and the round trip that the kernel saw, if asked."""

    socket: AnySocket
    node_id: int
    round_trip_us: int | None = None


class Cancellable(Protocol):
    """Something that is under way."""

    def cancel(self) -> object:
        """Have it end; it tells nothing more."""


Reached = Callable[[NodeSocket | Exception], None]
"""Is told what came of connecting to a node: NodeUnreachable, NodeUnknown or NodePaced, if not the socket."""
