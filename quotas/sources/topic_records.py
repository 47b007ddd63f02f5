"""Record batches of a topic, in Kafka's format 2, by kafka-python's own code for them."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

_FORMAT: Final = 2
_NOT_COMPRESSED: Final = 0
_NO_PRODUCER: Final = -1
_NO_LIMIT: Final = 1 << 30


class UnreadableBatch(ValueError):
    """Bytes that are no record batch of format 2, or one that cannot be read. The text says why."""


class Record(NamedTuple):
    """A record, at its offset; without a value it removes its key."""

    offset: int
    key: bytes | None
    value: bytes | None


class Batches(NamedTuple):
    """The records of whole batches, and the offset after the last batch; None if there is no whole batch."""

    records: Sequence[Record]
    next_offset: int | None


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

    Markers of transactions are left out. With `verifies` checksums are looked at, which takes longer than all else.
    Raises UnreadableBatch.
    """
    records: list[Record] = []
    next_offset: int | None = None
    try:
        for batch in MemoryRecords(data):
            if not isinstance(batch, DefaultRecordBatch):
                raise UnreadableBatch(f"a batch of format {batch.magic} after offset {first_offset}, expected format 2")
            if verifies and not batch.validate_crc():
                raise UnreadableBatch(f"the batch at offset {batch.base_offset} is damaged: its CRC is another")
            next_offset = batch.next_offset
            if not batch.is_control_batch:
                records += [
                    Record(record.offset, record.key, record.value) for record in batch if record.offset >= first_offset
                ]
    except (KafkaError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, UnreadableBatch):
            raise
        raise UnreadableBatch(f"a batch after offset {first_offset} cannot be read: {error}") from error
    return Batches(records, next_offset)
