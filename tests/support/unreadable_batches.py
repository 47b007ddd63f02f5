"""Record batches whose checksums are good, and which the proxy does not read."""

from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from kafka_throttle.quotas.sources.topic_records import batch_of

_ATTRIBUTES, _CRC = DefaultRecordBatch.ATTRIBUTES_OFFSET, DefaultRecordBatch.CRC_OFFSET
_LZ4 = 3


def gzip_batch(records):
    builder = DefaultRecordBatchBuilder(2, DefaultRecordBatch.CODEC_GZIP, False, -1, -1, -1, 1 << 30)
    for i, (key, value) in enumerate(records):
        builder.append(i, 5, key, value, [])
    batch = bytes(builder.build())
    assert batch[_ATTRIBUTES + 1] == DefaultRecordBatch.CODEC_GZIP
    return batch


def compressed_batch(records):
    """One that says it is compressed by a method for which there may be no library."""
    batch = bytearray(batch_of(records, 5))
    batch[_ATTRIBUTES + 1] |= _LZ4
    return _signed(batch)


def nonsense_batch(records):
    """One whose last byte is a number of headers that it does not have."""
    batch = bytearray(batch_of(records, 5))
    batch[-1] = 2
    return _signed(batch)


def _signed(batch):
    batch[_CRC : _CRC + 4] = calc_crc32c(memoryview(batch)[_ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(batch)
