"""An address that drops whoever knocks, as that of a machine that is gone."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def deaf_address(host: str = "127.0.0.1", port: int = 0) -> Iterator[tuple[str, int]]:
    """Host and port of a listener whose backlog is full: nobody answers further connections."""
    with contextlib.ExitStack() as stack:
        server = socket.socket()
        stack.enter_context(server)
        server.bind((host, port))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()
