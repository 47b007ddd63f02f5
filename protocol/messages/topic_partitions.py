"""The proxy's own Metadata requests, about the partitions of some topics, and their responses.

By name in version 4, which nodes have since Kafka 1.0; by topic id in version 12, which they have since 3.1 (KIP-516).
The requests create no topic. Sources: `MetadataRequest.json`, `MetadataResponse.json`.
"""

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from kafka_throttle.protocol.api_key import METADATA
from kafka_throttle.protocol.errors import MalformedMessage, TruncatedMessage
from kafka_throttle.protocol.own_requests import CLIENT_ID
from kafka_throttle.protocol.primitives import Reader, int16, int32, string, uvarint

BY_NAME_VERSION = 4
BY_ID_VERSION = 12

_FALSE = b"\0"
_NO_TAGS = b"\0"
_NO_NAME_NO_TAGS = b"\0\0"
_HEADER_BYTES = 8
_BROKER_IDS = struct.Struct(">i")
_PARTITION_BYTES = 10
_PARTITION_WITH_EPOCH_BYTES = 14


class TopicPartitions(NamedTuple):
    """A topic as a node knows it; 0 partitions if the node does not know it, or may not show it."""

    name: bytes | None
    topic_id: bytes
    partitions: int


class PartitionsRequest:
    """A request that is put together topic by topic: by their names or, in BY_ID_VERSION, by their ids of 16 bytes."""

    def __init__(self, api_version: int) -> None:
        self.count = 0
        """How many topics it asks for."""
        self._version = api_version
        self._topics = bytearray()

    def add(self, topic: bytes) -> None:
        """Ask for one more topic."""
        self.count += 1
        self._topics += string(topic) if self._version == BY_NAME_VERSION else topic + _NO_NAME_NO_TAGS

    def frame(self, correlation_id: int) -> bytes:
        """The whole frame."""
        head = int16(METADATA) + int16(self._version) + int32(correlation_id) + string(CLIENT_ID)
        if self._version == BY_NAME_VERSION:
            before, after = int32(self.count), _FALSE
        else:
            before, after = _NO_TAGS + uvarint(self.count + 1), 2 * _FALSE + _NO_TAGS
        size_bytes = len(head) + len(before) + len(self._topics) + len(after)
        return b"".join((int32(size_bytes), head, before, self._topics, after))


def partitions_by_name_request(names: Collection[bytes], correlation_id: int) -> bytes:
    """The request, a whole frame, for topics by their names."""
    return _whole(BY_NAME_VERSION, names, correlation_id)


def partitions_by_id_request(topic_ids: Collection[bytes], correlation_id: int) -> bytes:
    """The request, a whole frame, for topics by their ids, of 16 bytes each."""
    return _whole(BY_ID_VERSION, topic_ids, correlation_id)


def _whole(api_version: int, topics: Collection[bytes], correlation_id: int) -> bytes:
    request = PartitionsRequest(api_version)
    for topic in topics:
        request.add(topic)
    return request.frame(correlation_id)


def read_topic_partitions(frame: bytes, api_version: int) -> list[TopicPartitions]:
    """The topics in the response to one of these requests, a whole frame. Raises ProtocolError."""
    return list(each_topic_partitions(frame, api_version))


def each_topic_partitions(frame: bytes, api_version: int) -> Iterator[TopicPartitions]:
    """The topics in the response to one of these requests, a whole frame, one by one. Raises ProtocolError."""
    if api_version == BY_NAME_VERSION:
        return _read_by_name(Reader(frame, _HEADER_BYTES), frame)
    return _read_by_id(Reader(frame, _HEADER_BYTES), frame)


def _read_by_name(reader: Reader, frame: bytes) -> Iterator[TopicPartitions]:
    reader.skip(4)
    for _ in range(_length(reader, compact=False)):
        reader.skip(4)
        reader.string()
        reader.skip(4)
        reader.string()
    reader.string()
    reader.skip(4)
    for _ in range(_length(reader, compact=False)):
        reader.skip(2)
        name = reader.string()
        reader.skip(1)
        partitions = _length(reader, compact=False)
        _skip_partitions(reader, frame, partitions)
        yield TopicPartitions(name, bytes(16), partitions)
    _check_end(reader, frame)


def _read_by_id(reader: Reader, frame: bytes) -> Iterator[TopicPartitions]:
    reader.tags()
    reader.skip(4)
    for _ in range(_length(reader, compact=True)):
        reader.skip(4)
        reader.compact_string()
        reader.skip(4)
        reader.compact_string()
        reader.tags()
    reader.compact_string()
    reader.skip(4)
    for _ in range(_length(reader, compact=True)):
        reader.skip(2)
        name = reader.compact_string()
        id_at = reader.skip(17)
        partitions = _length(reader, compact=True)
        for _ in range(partitions):
            reader.skip(_PARTITION_WITH_EPOCH_BYTES)
            for _ in range(3):
                reader.skip(4 * _length(reader, compact=True))
            reader.tags()
        reader.skip(4)
        reader.tags()
        yield TopicPartitions(name, frame[id_at : id_at + 16], partitions)
    reader.tags()
    _check_end(reader, frame)


def _length(reader: Reader, compact: bool) -> int:
    return max(reader.count(compact, 1), 0)


def _skip_partitions(reader: Reader, frame: bytes, count: int) -> None:
    """Step over partitions of version 4, each with its replicas and those in sync, up to hundreds of thousands."""
    at, length_at = reader.offset, _BROKER_IDS.unpack_from
    try:
        for _ in range(count):
            at += _PARTITION_BYTES
            at += 4 + 4 * max(length_at(frame, at)[0], 0)
            at += 4 + 4 * max(length_at(frame, at)[0], 0)
    except struct.error:
        raise TruncatedMessage(at, 4, len(frame)) from None
    reader.skip(at - reader.offset)


def _check_end(reader: Reader, frame: bytes) -> None:
    if reader.offset != len(frame):
        raise MalformedMessage(f"{len(frame) - reader.offset} bytes after the last field")
