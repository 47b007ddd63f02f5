"""A simulated node for connections of the proxy's own, on a real socket."""

import contextlib
import socket
import threading
from struct import pack

from tests.support.timeouts import TIMEOUT_S

VERSIONS = {3: (0, 1), 17: (0, 1), 18: (0, 0), 36: (0, 0)}


class Listener:
    """Responds to ApiVersions, and to other requests with the bodies in `responses`, by API key; else it closes."""

    def __init__(self, context=None, responses=None, versions=None):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self._context, self._responses, self._versions = context, responses or {}, VERSIONS | (versions or {})
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.server.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        sock.settimeout(TIMEOUT_S)
        with contextlib.suppress(OSError, ValueError), sock:
            stream = sock if self._context is None else self._context.wrap_socket(sock, server_side=True)
            with stream.makefile("rwb") as file:
                while len(size := file.read(4)) == 4:
                    if int.from_bytes(size, "big") > 1_000_000:  # as a broker does with what is not Kafka's
                        break
                    frame = file.read(int.from_bytes(size, "big"))
                    body = self._body(frame)
                    if not body:
                        break
                    file.write(pack(">i", self._size_of(frame, body)) + frame[4:8] + body)
                    file.flush()

    def _size_of(self, frame, body):
        """The size that a response is announced with."""
        return len(body) + 4

    def _body(self, frame):
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        if key != 18:
            return self._responses.get(key, b"")
        keys = b"".join(pack(">hhh", key, *versions) for key, versions in self._versions.items())
        return pack(">hi", 35 if version else 0, len(self._versions)) + keys


def text(value):
    return pack(">h", len(value)) + value
