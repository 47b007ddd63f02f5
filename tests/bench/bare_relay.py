"""What Python takes to carry a connection, and no more: a yardstick for the proxy's accepts.

    python tests/bench/bare_relay.py LISTEN_PORT NODE_PORT

It connects to the node when the client's first bytes are here, passes on what either side sends, and closes both when
one ends. It reads no frame, counts nothing, writes no log, and loses what a full socket does not take: for one short
request a connection that is enough, and nothing else is to be measured with it.
"""

import select
import socket
import sys
from collections.abc import Callable

_ROOM_BYTES = 64 * 1024
_ACCEPTS_AT_ONCE = 16


class BareRelay:
    """All connections of one listening socket."""

    def __init__(self, listen_port: int, node_port: int) -> None:
        self._node = ("127.0.0.1", node_port)
        self._buffer = memoryview(bytearray(_ROOM_BYTES))
        self._peers: dict[int, tuple[socket.SocketType, socket.SocketType | None]] = {}
        self._first: dict[int, bytes] = {}
        self._listening = socket.create_server(("127.0.0.1", listen_port), backlog=4096)
        self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listening.setblocking(False)
        self._accept: Callable[[], tuple[int, object]] = self._listening._accept  # type: ignore[attr-defined]
        self._epoll = select.epoll()
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Until the process is ended."""
        listening = self._listening.fileno()
        while True:
            for fd, events in self._epoll.poll(-1, 256):
                if fd == listening:
                    self._take_in()
                elif fd not in self._peers:
                    continue
                elif events & select.EPOLLOUT:
                    self._epoll.modify(fd, select.EPOLLIN)
                    self._peers[fd][0].send(self._first.pop(fd))
                else:
                    self._pass_on(fd)

    def _take_in(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                fd, _ = self._accept()
            except BlockingIOError:
                return
            client = socket.SocketType(fileno=fd)
            client.setblocking(False)
            self._peers[fd] = client, None
            self._epoll.register(fd, select.EPOLLIN)

    def _pass_on(self, fd: int) -> None:
        sock, peer = self._peers[fd]
        try:
            count = sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._close(fd)
        elif peer is None:
            self._connect(fd, bytes(self._buffer[:count]))
        else:
            peer.send(self._buffer[:count])

    def _connect(self, client_fd: int, first: bytes) -> None:
        node = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        node.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        node.connect_ex(self._node)
        client, _ = self._peers[client_fd]
        self._peers[client_fd] = client, node
        self._peers[node.fileno()] = node, client
        self._first[node.fileno()] = first
        self._epoll.register(node.fileno(), select.EPOLLOUT)

    def _close(self, fd: int) -> None:
        sock, peer = self._peers.pop(fd)
        sock.close()
        if peer is not None:
            del self._peers[peer.fileno()]
            self._first.pop(peer.fileno(), None)
            peer.close()


if __name__ == "__main__":
    BareRelay(int(sys.argv[1]), int(sys.argv[2])).serve()
