"""A client of one connection that describes and alters quotas by raw frames."""

import socket
from typing import Self

from tests.support.quota_frames import Altered, Described, alter_request, altered, describe_request, described

_TIMEOUT_S = 60.0


class QuotaClient:
    """Sends requests to one address; a context manager. ConnectionError when it is closed in place of a response."""

    def __init__(self, address: tuple[str, int], client_id: str = "quota-client") -> None:
        self._client_id = client_id.encode()
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def describe(self, components=(), strict=False, version=1) -> Described:
        """Components are (entity type, match type, match)."""
        frame = describe_request(components, strict, version=version, client_id=self._client_id)
        return described(self.exchange(frame), version)

    def alter(self, entries, validate_only=False, version=1) -> list[Altered]:
        """Entries are (entity, operations): (type, name) pairs and (key, value, remove) triples."""
        frame = alter_request(entries, validate_only, version=version, client_id=self._client_id)
        return altered(self.exchange(frame), version)

    def exchange(self, frame: bytes) -> bytes:
        """The response to a frame, each with its length prefix."""
        self._socket.sendall(frame)
        head = self._stream.read(4)
        response = head + self._stream.read(int.from_bytes(head, "big"))
        if len(response) < 8:
            raise ConnectionError("closed in place of a response")
        return response

    def clear(self) -> None:
        """Remove every quota that there is."""
        entries = self.describe().entries
        self.alter([(sorted(entity), [(key, 0.0, True) for key in values]) for entity, values in entries.items()])
