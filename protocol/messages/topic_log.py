"""The proxy's own requests that create, write and read a topic of one partition.

Record batches are opaque here. Sources: the schemas of CreateTopics, ListOffsets, Produce and Fetch.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kafka_throttle.protocol.api_key import CREATE_TOPICS, FETCH, LIST_OFFSETS, PRODUCE
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.protocol.primitives import int16, int32, int64

EARLIEST: Final = -2
LATEST: Final = -1
"""The offset after the last record that all in-sync replicas have. A new leader gives an error until it knows it."""

_FIRST_FLEXIBLE: Final = {CREATE_TOPICS: 5, LIST_OFFSETS: 6, PRODUCE: 9}
_FETCH_BY_ID_SINCE: Final = 13
_PRODUCE_BY_ID_SINCE: Final = 13
_CREATED_ID_SINCE: Final = 7
_LIST_TIMEOUT_SINCE: Final = 10
_REPLICA_UNTIL: Final = 14
_ALL_REPLICAS: Final = -1
_NO_REPLICA: Final = int32(-1)
_NO_EPOCH: Final = int32(-1)
_PARTITION: Final = int32(0)


class Created(NamedTuple):
    """What came of creating a topic: an error code, 0 for none, and the reason where the node gives one."""

    error_code: int
    error_message: str | None


class Offset(NamedTuple):
    """An offset of the partition, or the error code for which it is not known."""

    error_code: int
    offset: int


class Appended(NamedTuple):
    """The offset of the first record that was appended, or the error code for which none was."""

    error_code: int
    base_offset: int
    error_message: str | None


class Fetched(NamedTuple):
    """Record batches, the last of which may be cut off, or the error code for which there are none."""

    error_code: int
    batches: bytes


def creation_request(
    topic: str, replication_factor: int, configs: Mapping[str, str], timeout_ms: int
) -> OwnRequest[Created]:
    """The request that creates a topic with one partition."""

    def written(writer: FieldWriter, _version: int) -> bytes:
        settings = [writer.text(key) + writer.text(value) + writer.end for key, value in configs.items()]
        layout = int32(1) + int16(replication_factor) + writer.array([])
        one = writer.text(topic) + layout + writer.array(settings) + writer.end
        return writer.array([one]) + int32(timeout_ms) + b"\0" + writer.end

    return OwnRequest(CREATE_TOPICS, written, _read_created, _FIRST_FLEXIBLE[CREATE_TOPICS])


def _read_created(reader: FieldReader, version: int) -> Created:
    reader.skip(4)  # throttle_time_ms
    created = Created(0, None)
    for _ in reader.elements(12):
        reader.text()
        if version >= _CREATED_ID_SINCE:
            reader.skip(16)
        created = Created(reader.int16(), reader.nullable_text())
        reader.skip(6)  # num_partitions, replication_factor
        for _ in reader.elements(6):
            reader.text()
            reader.nullable_text()
            reader.skip(3)  # read_only, config_source, is_sensitive
            reader.end()
        reader.end()
    return created


def offset_request(topic: str, leader_epoch: int, which: int, timeout_ms: int) -> OwnRequest[Offset]:
    """The request for the EARLIEST or the LATEST offset of partition 0, for its leader in this epoch."""

    def written(writer: FieldWriter, version: int) -> bytes:
        partition = _PARTITION + int32(leader_epoch) + int64(which) + writer.end
        one = writer.text(topic) + writer.array([partition]) + writer.end
        timeout = int32(timeout_ms) if version >= _LIST_TIMEOUT_SINCE else b""
        return _NO_REPLICA + b"\0" + writer.array([one]) + timeout + writer.end

    return OwnRequest(LIST_OFFSETS, written, _read_offset, _FIRST_FLEXIBLE[LIST_OFFSETS])


def _read_offset(reader: FieldReader, _version: int) -> Offset:
    reader.skip(4)  # throttle_time_ms
    found = Offset(0, -1)
    for _ in reader.elements(2):
        reader.text()
        for _ in reader.elements(26):
            reader.skip(4)  # partition_index
            error_code = reader.int16()
            reader.skip(8)  # timestamp
            found = Offset(error_code, reader.int64())
            reader.skip(4)  # leader_epoch
            reader.end()
        reader.end()
    return found


def append_request(topic: str, topic_id: bytes, batch: bytes, timeout_ms: int) -> OwnRequest[Appended]:
    """The request that appends a batch to partition 0; answered when all in-sync replicas have it.

    Nodes since Kafka 4.1 append to the topic with this id only, older ones to any of that name.
    """

    def written(writer: FieldWriter, version: int) -> bytes:
        partition = _PARTITION + writer.blob(batch) + writer.end
        name = topic_id if version >= _PRODUCE_BY_ID_SINCE else writer.text(topic)
        one = name + writer.array([partition]) + writer.end
        acks = int16(_ALL_REPLICAS) + int32(timeout_ms)
        return writer.text(None) + acks + writer.array([one]) + writer.end

    return OwnRequest(PRODUCE, written, _read_appended, _FIRST_FLEXIBLE[PRODUCE])


def _read_appended(reader: FieldReader, version: int) -> Appended:
    appended = Appended(0, -1, None)
    for _ in reader.elements(3):
        if version >= _PRODUCE_BY_ID_SINCE:
            reader.skip(16)
        else:
            reader.text()
        for _ in reader.elements(33):
            reader.skip(4)  # index
            error_code, base_offset = reader.int16(), reader.int64()
            reader.skip(16)  # log_append_time_ms, log_start_offset
            for _ in reader.elements(6):
                reader.skip(4)  # batch_index
                reader.nullable_text()
                reader.end()
            appended = Appended(error_code, base_offset, reader.nullable_text())
            reader.end()
        reader.end()
    return appended


def fetch_request(
    topic_id: bytes, leader_epoch: int, offset: int, max_wait_ms: int, max_bytes: int, most_bytes: int
) -> OwnRequest[Fetched]:
    """The request for batches of partition 0 from `offset` on, from its leader in this epoch.

    It is answered when there is one, or after `max_wait_ms`; with more than `max_bytes` only if the first batch is
    larger. By the id of the topic: nodes since Kafka 3.1 have that.
    """

    def written(writer: FieldWriter, version: int) -> bytes:
        at = int32(leader_epoch) + int64(offset) + _NO_EPOCH + int64(-1)  # last_fetched_epoch, log_start_offset
        partition = _PARTITION + at + int32(max_bytes) + writer.end
        one = topic_id + writer.array([partition]) + writer.end
        replica = _NO_REPLICA if version <= _REPLICA_UNTIL else b""
        waits = int32(max_wait_ms) + int32(1) + int32(max_bytes)
        no_session = b"\0" + int32(0) + int32(-1)  # after isolation_level
        return replica + waits + no_session + writer.array([one]) + writer.array([]) + writer.text("") + writer.end

    return OwnRequest(FETCH, written, _read_fetched, _FETCH_BY_ID_SINCE, most_bytes)


def _read_fetched(reader: FieldReader, _version: int) -> Fetched:
    reader.skip(4)  # throttle_time_ms
    error_of_all = reader.int16()
    fetched = Fetched(error_of_all, b"")
    reader.skip(4)  # session_id
    for _ in reader.elements(18):
        reader.skip(16)  # topic_id
        for _ in reader.elements(36):
            reader.skip(4)  # partition_index
            error_code = reader.int16()
            reader.skip(24)  # high_watermark, last_stable_offset, log_start_offset
            for _ in reader.elements(17):
                reader.skip(16)  # producer_id, first_offset
                reader.end()
            reader.skip(4)  # preferred_read_replica
            fetched = Fetched(error_of_all or error_code, reader.nullable_blob())
            reader.end()
        reader.end()
    return fetched
