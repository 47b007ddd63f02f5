"""Records that say by themselves whose they are and whether they are whole.

A value is: crc32 of all that follows (4 bytes), producer (2), partition (2), sequence (8), random bytes. The sequence
counts the records of one producer in one partition from 0. All numbers are big-endian.
"""

import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

LARGE_BYTES = 1 << 20
LARGE_EVERY = 2000
"""One record in as many is LARGE_BYTES long."""

_HEAD = struct.Struct(">IHHQ")
_MEDIAN_BYTES, _SIGMA = 300, 0.6
_LONGEST_SMALL_BYTES = 1 << 16


class Identity(NamedTuple):
    """Which record a value is."""

    producer: int
    partition: int
    sequence: int


class NotARecord(ValueError):
    """The bytes are none of ours, or not as they were sent."""


def identify(value: bytes | None) -> Identity:
    """Which record a value is, after a look at each of its bytes. Raises NotARecord."""
    if value is None or len(value) < _HEAD.size:
        raise NotARecord("too short" if value is not None else "no value")
    crc, producer, partition, sequence = _HEAD.unpack_from(value)
    if zlib.crc32(memoryview(value)[4:]) != crc:
        raise NotARecord(f"wrong checksum in a value of {len(value)} bytes")
    return Identity(producer, partition, sequence)


class Values:
    """Makes the values of one producer; sizes are log-normal around 300 B, one in LARGE_EVERY has LARGE_BYTES."""

    def __init__(self, producer: int, seed: int) -> None:
        self._producer = producer
        self._random = random.Random(f"{seed} values {producer}")
        self._noise = self._random.randbytes(2 * LARGE_BYTES)
        self._sizes = self._endless_sizes()

    def make(self, partition: int, sequence: int) -> bytes:
        """The value of a record, of the next size."""
        length = next(self._sizes) - _HEAD.size
        begin = self._random.randrange(len(self._noise) - length)
        body = _HEAD.pack(0, self._producer, partition, sequence)[4:] + self._noise[begin : begin + length]
        return zlib.crc32(body).to_bytes(4, "big") + body

    def _endless_sizes(self) -> Iterator[int]:
        while True:
            large = self._random.randrange(LARGE_EVERY)
            for number in range(LARGE_EVERY):
                yield LARGE_BYTES if number == large else self._small()

    def _small(self) -> int:
        size = round(_MEDIAN_BYTES * self._random.lognormvariate(0, _SIGMA))
        return min(max(size, _HEAD.size), _LONGEST_SMALL_BYTES)
