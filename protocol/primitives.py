"""Kafka's primitive types: reads them from a frame, and writes the few that splices need.

Source: the primitive types of Kafka's protocol guide. *Compact* types are those of flexible versions.
"""

from struct import Struct
from typing import Final

from kafka_throttle.protocol.errors import MalformedMessage, TruncatedMessage

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT64: Final = Struct(">d")

UVARINT_MAX_BYTES: Final = 5

MAX_HEADER_TAGS: Final = 64
"""No header has a tagged field so far. This limit makes it cheap to read a header again while it comes byte by byte."""


class Reader:
    """A cursor over one frame; copies only what it returns. Raises TruncatedMessage past the end."""

    __slots__ = ("_end", "_frame", "offset")

    def __init__(self, frame: bytes | memoryview, offset: int = 0) -> None:
        self._frame = frame
        self._end = len(frame)
        self.offset = offset

    def skip(self, size: int) -> int:
        """Step over `size` bytes; return where they began. A negative size is malformed."""
        start = self.offset
        if size < 0:
            raise MalformedMessage(f"length {size} at offset {start}")
        if start + size > self._end:
            raise TruncatedMessage(start, size, self._end)
        self.offset = start + size
        return start

    def int8(self) -> int:
        value = self._frame[self.skip(1)]
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self._frame, self.skip(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self._frame, self.skip(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack_from(self._frame, self.skip(8))[0]
        return value

    def float64(self) -> float:
        value: float = _FLOAT64.unpack_from(self._frame, self.skip(8))[0]
        return value

    def uvarint(self) -> int:
        """An unsigned LEB128 number of at most 32 bits; a longer one is malformed."""
        start, frame, value = self.offset, self._frame, 0
        for shift in range(0, 7 * UVARINT_MAX_BYTES, 7):
            byte = frame[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFF_FFFF:
                    break
                return value
        raise MalformedMessage(f"uvarint above 32 bits at offset {start}")

    def string(self) -> bytes | None:
        """The raw bytes of a (nullable) string: int16 length, negative for null."""
        return self._text(self.int16())

    def compact_string(self) -> bytes | None:
        """The raw bytes of a (nullable) compact string: uvarint length + 1, 0 for null."""
        return self._text(self.uvarint() - 1)

    def count(self, compact: bool, least_bytes: int) -> int:
        """How many elements an array has, -1 for null: int32, or uvarint + 1 if it is compact.

        A count is malformed if so many elements, of at least `least_bytes` each, do not fit into the bytes that are
        left: nothing is allocated for a false count.
        """
        count = self.uvarint() - 1 if compact else self.int32()
        if count < -1 or count * least_bytes > self._end - self.offset:
            raise MalformedMessage(f"{count} elements in {self._end - self.offset} bytes at offset {self.offset}")
        return count

    def tags(self, most: int = 0xFFFF_FFFF) -> int:
        """Step over a tag buffer of at most `most` tags, and return how many it had; more are malformed."""
        count = self.uvarint()
        if count > most:
            raise MalformedMessage(f"{count} tagged fields, {most} allowed")
        for _ in range(count):
            self.uvarint()
            self.skip(self.uvarint())
        return count

    def _text(self, length: int) -> bytes | None:
        if length < 0:
            return None
        start = self.skip(length)
        return bytes(self._frame[start : self.offset])


def uvarint(value: int) -> bytes:
    """`value` (0 to 2^32-1) as unsigned LEB128 in its shortest form."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def int32(value: int) -> bytes:
    """`value` as a big-endian int32."""
    return _INT32.pack(value)


def int16(value: int) -> bytes:
    """`value` as a big-endian int16."""
    return _INT16.pack(value)


def int64(value: int) -> bytes:
    """`value` as a big-endian int64."""
    return _INT64.pack(value)


def float64(value: float) -> bytes:
    """`value` as a big-endian double."""
    return _FLOAT64.pack(value)


def string(text: bytes) -> bytes:
    """A non-null string: int16 length and the bytes."""
    return _INT16.pack(len(text)) + text


def compact_string(text: bytes) -> bytes:
    """A non-null compact string: uvarint length + 1 and the bytes."""
    return uvarint(len(text) + 1) + text
