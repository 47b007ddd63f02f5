"""Reads and writes fields in the two encodings: plain in old versions of an API, compact in flexible ones."""

from collections.abc import Iterable
from typing import Final

from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.primitives import Reader, compact_string, int16, int32, string, uvarint

MAX_TAGS: Final = 64
"""How many tagged fields one structure may have."""


class FieldReader(Reader):
    """A Reader for one of the two encodings. In text, bytes that are not UTF-8 become U+FFFD, as at a broker."""

    __slots__ = ("compact",)

    def __init__(self, frame: bytes | memoryview, offset: int, compact: bool) -> None:
        super().__init__(frame, offset)
        self.compact = compact

    def elements(self, least_bytes: int) -> range:
        """One number for each element of the array that begins here; none for null. See `count` for `least_bytes`."""
        return range(self.count(self.compact, least_bytes))

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise MalformedMessage(f"null in place of a string, before offset {self.offset}")
        return text

    def nullable_text(self) -> str | None:
        raw = self.compact_string() if self.compact else self.string()
        return None if raw is None else raw.decode(errors="replace")

    def blob(self) -> bytes:
        """The bytes of a field of type `bytes`; null is malformed."""
        start = self.skip(self.uvarint() - 1 if self.compact else self.int32())
        return bytes(self._frame[start : self.offset])

    def nullable_blob(self) -> bytes:
        """The bytes of a field of type `bytes` or `records`; none for null."""
        size = self.uvarint() - 1 if self.compact else self.int32()
        return self.raw(max(size, 0))

    def raw(self, size: int) -> bytes:
        """So many bytes that have no length before them, such as a UUID."""
        start = self.skip(size)
        return bytes(self._frame[start : self.offset])

    def rest(self) -> bytes:
        """All bytes that follow."""
        return bytes(self._frame[self.offset :])

    def end(self) -> None:
        """Step over the tagged fields that end every structure of a flexible version."""
        if self.compact:
            self.tags(MAX_TAGS)


class FieldWriter:
    """Writes fields in one of the two encodings; each method returns bytes."""

    def __init__(self, compact: bool) -> None:
        self._compact = compact
        self.end = b"\0" if compact else b""
        """The bytes that end every structure."""

    def array(self, elements: Iterable[bytes]) -> bytes:
        listed = list(elements)
        return self.count(len(listed)) + b"".join(listed)

    def count(self, count: int) -> bytes:
        return uvarint(count + 1) if self._compact else int32(count)

    def text(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self._compact else int16(-1)
        return compact_string(text.encode()) if self._compact else string(text.encode())

    def blob(self, data: bytes) -> bytes:
        return self.count(len(data)) + data
