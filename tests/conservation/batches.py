"""Batches as a node has them on disk: which producer wrote them, in which of its epochs, and what it numbered first.

A producer gives a batch its numbers once. Sent again by anybody else, or by the producer itself as it was, it has the
same ones, and a node drops it; so two copies with other numbers were both made by the client.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""RecordBatch, magic 2: offset, length, leader epoch, magic, crc, attributes, last offset delta, first and last time,
producer id and epoch, sequence, count of records."""

_BEFORE_LENGTH = 12
"""Offset and length are not counted in the length."""


class Batch(NamedTuple):
    """A batch's place and origin; both offsets are within it."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    last_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int

    @property
    def origin(self) -> tuple[int, int]:
        """Producer id and epoch: a node finds doubles among what has the same."""
        return self.producer_id, self.producer_epoch

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.last_offset}, producer id {self.producer_id}, epoch "
            f"{self.producer_epoch}, first sequence {self.sequence}, leader epoch {self.leader_epoch}, "
            f"time {self.last_ms}"
        )


def read_batches(folder: Path) -> list[Batch]:
    """All batches of a partition, from its folder in a node's data."""
    return [batch for path in sorted(folder.glob("*.log")) for batch in _batches_in(path)]


def _batches_in(path: Path) -> Iterator[Batch]:
    """Those whose header is whole: the node may be writing."""
    with path.open("rb") as segment:
        while len(header := segment.read(_HEADER.size)) == _HEADER.size:
            offset, length, leader_epoch, magic, _, _, delta, _, last_ms, *origin, _ = _HEADER.unpack(header)
            if magic != 2:
                raise ValueError(f"{path}: a batch of magic {magic} at byte {segment.tell() - _HEADER.size}")
            yield Batch(offset, offset + delta, leader_epoch, last_ms, *origin)
            segment.seek(_BEFORE_LENGTH + length - _HEADER.size, 1)
