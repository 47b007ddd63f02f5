"""Record batches of a topic, in Kafka's format 2, by kafka-python's own code for them."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kafka.errors import KafkaError
from kafka.record.abc import ABCRecordBatch
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

_FORMAT: Final = 2
_NOT_COMPRESSED: Final = 0
_LONGEST_REASON: Final = 100
_FAULTS: Final = (KafkaError, ValueError, ArithmeticError, LookupError, struct.error)
"""What kafka-python raises for bytes that are none of its own."""
_NO_PRODUCER: Final = -1
_NO_LIMIT: Final = 1 << 30


class UnreadableBatch(ValueError):
    """Bytes that are no record batch as it was written: they may be others when they are read again."""


class Record(NamedTuple):
    """A record, at its offset; without a value it removes its key."""

    offset: int
    key: bytes | None
    value: bytes | None


class Batches(NamedTuple):
    """The records of whole batches, and the offset after the last batch.

    `skipped`: the batches whose records are left out, by their first offset, and why.
    """

    records: Sequence[Record]
    next_offset: int
    skipped: Mapping[int, str]


def batch_of(records: Iterable[tuple[bytes, bytes | None]], epoch_ms: int) -> bytes:
    """One batch with these keys and values, not compressed, which a node appends whole or not at all."""
    builder = DefaultRecordBatchBuilder(
        magic=_FORMAT,
        compression_type=_NOT_COMPRESSED,
        is_transactional=False,
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        batch_size=_NO_LIMIT,
    )
    for i, (key, value) in enumerate(records):
        builder.append(i, epoch_ms, key, value, [])
    return bytes(builder.build())


def records_in(data: bytes, first_offset: int, *, verifies: bool = True) -> Batches:
    """The records from `first_offset` on in the batches of a Fetch response, the last of which may be cut off.

    Markers of transactions are left out. A batch is skipped that is as it was written, and cannot be read: its format
    is older, its records make no sense, or it is compressed. That one is never unpacked: a thousand bytes may become a
    million. With `verifies` the checksum of each batch is looked at, which takes longer than all else; else that of
    those which are skipped. Raises UnreadableBatch.
    """
    records: list[Record] = []
    skipped: dict[int, str] = {}
    next_offset, start = first_offset, 0
    try:
        for batch in MemoryRecords(data):
            end = start + batch.size_in_bytes
            if verifies:
                _verify(batch)
            try:
                records += _records_of(batch, first_offset)
            except _FAULTS as error:
                if not verifies:
                    _verify(next(MemoryRecords(data[start:end])))
                skipped[batch.base_offset] = f"a batch that is not read: {error}"[:_LONGEST_REASON]
            next_offset = batch.next_offset if isinstance(batch, DefaultRecordBatch) else batch.base_offset + 1
            start = end
    except UnreadableBatch:
        raise
    except _FAULTS as error:
        raise UnreadableBatch(f"a batch after offset {first_offset} cannot be read: {error}") from error
    return Batches(records, next_offset, skipped)


def _verify(batch: ABCRecordBatch) -> None:
    if not 0 <= batch.magic <= _FORMAT:
        raise UnreadableBatch(f"the batch at offset {batch.base_offset} has format {batch.magic}, expected {_FORMAT}")
    if not batch.validate_crc():
        raise UnreadableBatch(f"the batch at offset {batch.base_offset} is damaged: its CRC is another")


def _records_of(batch: ABCRecordBatch, first_offset: int) -> list[Record]:
    """All records of a batch from an offset on. Raises one of _FAULTS."""
    if not isinstance(batch, DefaultRecordBatch) or batch.magic != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, got {batch.magic}")
    if batch.is_control_batch:
        return []
    if batch.compression_type != _NOT_COMPRESSED:
        raise ValueError(f"expected no compression, got type {batch.compression_type}")
    return [Record(record.offset, record.key, record.value) for record in batch if record.offset >= first_offset]
