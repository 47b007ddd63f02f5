"""A node that is alone in its cluster and responds only to ApiVersions and Metadata, for tests without Kafka."""

import contextlib
import socketserver
import struct
import threading
from collections.abc import Iterator

from kafka_throttle.protocol.api_key import API_VERSIONS, METADATA

_SERVED = {METADATA: (0, 1), API_VERSIONS: (0, 0)}
_UNSUPPORTED_VERSION = 35
NODE_ID = 1


@contextlib.contextmanager
def small_node(host: str = "127.0.0.1") -> Iterator[str]:
    """Its address, as host:port."""
    with _Server((host, 0), _Connection) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1_000


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while head := self.rfile.read(12):
                size, api_key, version, correlation_id = struct.unpack(">ihhi", head)
                self.rfile.read(size - 8)
                body = self._body(api_key, version)
                if body is None:
                    return
                self.wfile.write(struct.pack(">ii", 4 + len(body), correlation_id) + body)

    def _body(self, api_key: int, version: int) -> bytes | None:
        if api_key == API_VERSIONS:
            error = 0 if version == 0 else _UNSUPPORTED_VERSION
            versions = b"".join(struct.pack(">hhh", key, *of) for key, of in _SERVED.items())
            return struct.pack(">hi", error, len(_SERVED)) + versions
        if api_key == METADATA and version == 1:
            host, port = self.server.server_address
            named = struct.pack(">h", len(host)) + host.encode()
            brokers = struct.pack(">ii", 1, NODE_ID) + named + struct.pack(">ih", port, -1)
            return brokers + struct.pack(">ii", NODE_ID, 0)
        return None


def api_versions_request(correlation_id: int = 1) -> bytes:
    """A request that every client begins with."""
    return struct.pack(">ihhih", 10, API_VERSIONS, 0, correlation_id, -1)
