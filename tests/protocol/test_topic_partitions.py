"""Requests for the partitions of topics, and their responses, as Kafka's own classes write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataRequest

from kafka_throttle.protocol.api_key import METADATA
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.messages.topic_partitions import (
    BY_ID_VERSION,
    BY_NAME_VERSION,
    TopicPartitions,
    partitions_by_id_request,
    partitions_by_name_request,
    read_topic_partitions,
)
from tests.support.message_vectors import KAFKA_VERSIONS, message_vectors
from tests.support.topic_frames import metadata_by_id, metadata_by_name

every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)
VERSIONS = (BY_NAME_VERSION, BY_ID_VERSION)


def responses(kafka_version):
    found = [v for v in message_vectors(kafka_version) if v.key == METADATA and v.is_response]
    return [v for v in found if v.version in VERSIONS]


def test_requests_ask_for_these_topics_and_create_none():
    frame = partitions_by_name_request([b"a", b"b" * 200], 77)
    request = MetadataRequest.decode(frame[4:], version=BY_NAME_VERSION, header=True)
    assert [topic.name for topic in request.topics] == ["a", "b" * 200]
    assert request.allow_auto_topic_creation is False
    assert int.from_bytes(frame[8:12], "big") == 77


def test_requests_by_id_ask_for_these_topics_and_create_none():
    ids = [bytes(range(i, i + 16)) for i in range(130)]
    frame = partitions_by_id_request(ids, 78)
    request = MetadataRequest.decode(frame[4:], version=BY_ID_VERSION, header=True)
    assert [topic.topic_id.bytes for topic in request.topics] == ids
    assert {topic.name for topic in request.topics} == {None}
    assert request.allow_auto_topic_creation is False
    assert request.include_topic_authorized_operations is False


def test_responses_say_how_many_partitions_there_are():
    frame = metadata_by_name(1, {b"a": 3, b"unknown": -1, b"b": 0})
    expected = [TopicPartitions(name, bytes(16), n) for name, n in ((b"a", 3), (b"unknown", 0), (b"b", 0))]
    assert read_topic_partitions(frame, BY_NAME_VERSION) == expected
    known, unknown = b"id-1".ljust(16), b"id-2".ljust(16)
    frame = metadata_by_id(1, {known: 150, unknown: -1})
    expected = [TopicPartitions(known, known, 150), TopicPartitions(None, unknown, 0)]
    assert read_topic_partitions(frame, BY_ID_VERSION) == expected


@every_kafka
def test_responses_of_kafka_are_read_whole(kafka_version):
    found = responses(kafka_version)
    assert {v.version for v in found} == set(VERSIONS)
    for vector in found:
        read_topic_partitions(vector.frame, vector.version)
        with pytest.raises(ProtocolError):
            read_topic_partitions(vector.frame[:-1], vector.version)
        with pytest.raises(ProtocolError):
            read_topic_partitions(vector.frame + b"\0", vector.version)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_raise_nothing_but_protocol_errors(data):
    vector = data.draw(st.sampled_from([v for v in responses("4.3.1") if len(v.frame) < 500]))
    frame = bytearray(vector.frame)
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_topic_partitions(bytes(frame), vector.version)
    except ProtocolError:
        pass
