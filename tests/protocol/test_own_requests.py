"""The proxy's own requests in every version, and responses to them.

Responses of Kafka's own message classes are read as kafka-python reads them, and what we write is what it would.
"""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.frames import HEAD
from kafka_throttle.protocol.messages.api_versions import offer_request, versions_request
from kafka_throttle.protocol.messages.client_quotas import (
    EntityOperations,
    EntityPart,
    Operation,
    all_quotas_request,
    alteration_request,
    read_described,
)
from kafka_throttle.protocol.messages.described_configs import node_configs_request, topic_configs_request
from kafka_throttle.protocol.messages.metadata import nodes_request, topic_request
from kafka_throttle.protocol.messages.sasl import (
    authenticate_request,
    handshake_request,
    read_authenticate,
    read_authenticate_response,
    read_handshake,
)
from kafka_throttle.protocol.messages.topic_log import (
    EARLIEST,
    append_request,
    creation_request,
    fetch_request,
    offset_request,
)
from kafka_throttle.protocol.own_requests import CLIENT_ID, OwnRequest
from kafka_throttle.proxy.relay.request import read_request
from tests.support.message_vectors import KAFKA_VERSIONS, message_vectors

OPERATIONS = (Operation("producer_byte_rate", 5.5, False), Operation("request_percentage", 0.0, True))
ALTERATIONS = [
    EntityOperations((EntityPart("user", "Zoë"), EntityPart("client-id", None)), OPERATIONS),
    EntityOperations((EntityPart("ip", "10.0.0.1"),), ()),
]
METADATA, CONFIGS, DESCRIBE, ALTER = (
    nodes_request(),
    node_configs_request(7, ["num.partitions", "x"]),
    all_quotas_request(),
    alteration_request(ALTERATIONS, validate_only=True),
)
TOPIC_ID = bytes(range(16))
TOPIC, TOPIC_CONFIGS, CREATE, OFFSET, APPEND, FETCH = LOG = (
    topic_request("quotas"),
    topic_configs_request("quotas", ["cleanup.policy"]),
    creation_request("quotas", 3, {"cleanup.policy": "compact"}, 5_000),
    offset_request("quotas", 4, EARLIEST, 5_000),
    append_request("quotas", TOPIC_ID, b"batch", 5_000),
    fetch_request(TOPIC_ID, 4, 1 << 40, 500, 1 << 20, 2 << 20),
)
ALL = (
    METADATA,
    CONFIGS,
    DESCRIBE,
    ALTER,
    *LOG,
    handshake_request("PLAIN"),
    authenticate_request(b"t"),
    offer_request(),
)
RESPONSES = (
    (METADATA, MetadataResponse),
    (CONFIGS, DescribeConfigsResponse),
    (DESCRIBE, DescribeClientQuotasResponse),
    (ALTER, AlterClientQuotasResponse),
    (TOPIC, MetadataResponse),
    (TOPIC_CONFIGS, DescribeConfigsResponse),
    (CREATE, CreateTopicsResponse),
    (OFFSET, ListOffsetsResponse),
    (APPEND, ProduceResponse),
    (FETCH, FetchResponse),
)
every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)


@pytest.mark.parametrize(
    ("request_", "schema"),
    [
        (METADATA, MetadataRequest),
        (CONFIGS, DescribeConfigsRequest),
        (DESCRIBE, DescribeClientQuotasRequest),
        (ALTER, AlterClientQuotasRequest),
        (TOPIC, MetadataRequest),
        (TOPIC_CONFIGS, DescribeConfigsRequest),
        (CREATE, CreateTopicsRequest),
        (OFFSET, ListOffsetsRequest),
        (APPEND, ProduceRequest),
        (FETCH, FetchRequest),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_bodies_are_those_of_kafka_python_in_every_version(request_, schema):
    lowest, highest = request_.versions
    for version in range(lowest, highest + 1):
        body = request_.write(FieldWriter(is_flexible(request_, version)), version)
        message = schema.decode(body, version=version)
        message.with_header()
        assert bytes(message.encode(version=version)) == body, version


def is_flexible(request, version):
    return version >= APIS[request.api_key].first_flexible


def test_what_is_asked_for():
    asked = MetadataRequest.decode(METADATA.write(FieldWriter(True), 12), version=12)
    assert (asked.topics, asked.allow_auto_topic_creation) == ([], False)
    asked = DescribeConfigsRequest.decode(CONFIGS.write(FieldWriter(True), 4), version=4)
    [resource] = asked.resources
    assert (resource.resource_type, resource.resource_name) == (4, "7")
    assert resource.configuration_keys == ["num.partitions", "x"]
    asked = AlterClientQuotasRequest.decode(ALTER.write(FieldWriter(True), 1), version=1)
    assert [[(op.key, op.value, op.remove) for op in entry.ops] for entry in asked.entries] == [list(OPERATIONS), []]
    assert asked.validate_only


def asked(request, schema):
    version = request.versions[1]
    return schema.decode(request.write(FieldWriter(True), version), version=version)


def test_what_is_asked_about_a_log():
    metadata = asked(TOPIC, MetadataRequest)
    assert [topic.name for topic in metadata.topics] == ["quotas"]
    assert not metadata.allow_auto_topic_creation
    [resource] = asked(TOPIC_CONFIGS, DescribeConfigsRequest).resources
    assert (resource.resource_type, resource.resource_name) == (2, "quotas")
    [new] = asked(CREATE, CreateTopicsRequest).topics
    assert (new.name, new.num_partitions, new.replication_factor) == ("quotas", 1, 3)
    assert [(config.name, config.value) for config in new.configs] == [("cleanup.policy", "compact")]
    [of_topic] = asked(OFFSET, ListOffsetsRequest).topics
    [of_partition] = of_topic.partitions
    assert (of_topic.name, of_partition.current_leader_epoch, of_partition.timestamp) == ("quotas", 4, EARLIEST)
    produce = asked(APPEND, ProduceRequest)
    assert (produce.acks, bytes(produce.topic_data[0].partition_data[0].records)) == (-1, b"batch")
    assert produce.topic_data[0].topic_id.bytes == TOPIC_ID
    fetch = asked(FETCH, FetchRequest)
    assert (fetch.max_wait_ms, fetch.min_bytes, fetch.max_bytes, fetch.isolation_level) == (500, 1, 1 << 20, 0)
    assert (fetch.session_id, fetch.session_epoch, fetch.topics[0].topic_id.bytes) == (0, -1, TOPIC_ID)
    [of_partition] = fetch.topics[0].partitions
    assert (of_partition.fetch_offset, of_partition.current_leader_epoch) == (1 << 40, 4)


def read(frame):
    return read_request(frame, 0, len(frame), len(frame))


def test_heads_are_those_that_a_node_reads():
    for request in ALL:
        for version in range(request.versions[0], request.versions[1] + 1):
            frame = request.frame(version, 77)
            assert HEAD.unpack_from(frame) == (len(frame) - 4, request.api_key, version, 77, len(CLIENT_ID))
            assert frame[HEAD.size :].startswith(CLIENT_ID)
            body = request.write(FieldWriter(is_flexible(request, version)), version)
            assert frame[read(frame).body_at :] == body
    assert offer_request().frame(0, 9) == versions_request(9)


def responses(kafka_version, request):
    lowest, _ = request.versions
    found = [v for v in message_vectors(kafka_version) if v.key == request.api_key and v.is_response]
    return [vector for vector in found if vector.version >= lowest]


@every_kafka
@pytest.mark.parametrize(("request_", "schema"), RESPONSES, ids=lambda value: getattr(value, "name", ""))
def test_responses_of_kafka_are_read_as_kafka_python_reads_them(kafka_version, request_, schema):
    for vector in responses(kafka_version, request_):
        has_known_tags = request_ in (APPEND, FETCH)
        beyond_kafka_python = ("unknown tags", "mixed", *(["addresses among unknown tags"] if has_known_tags else []))
        if vector.version and vector.variant.startswith(beyond_kafka_python):
            request_.response(vector.frame, vector.version, vector.correlation_id)
            continue
        said, throttle_ms = request_.response(vector.frame, vector.version, vector.correlation_id)
        body = vector.frame[8 + (is_flexible(request_, vector.version)) :]
        try:
            expected = schema.decode(body, version=vector.version)
        except UnicodeDecodeError:  # kafka-python takes UTF-8 only
            continue
        assert seen(request_, said) == expected_of(request_, expected), str(vector)
        is_at_the_end = request_ is APPEND  # behind the results: it is not looked for
        assert throttle_ms == (0 if is_at_the_end else max(vector.throttle or 0, 0))


def seen(request, read):
    if request is DESCRIBE:
        described = read_described(read)
        return described.error_code, described.error_message, [tuple(map(list, one)) for one in described.entities]
    if request is ALTER:
        return [(one.error_code, one.error_message, list(one.parts)) for one in read]
    if request is TOPIC:
        nodes = {node_id: tuple(node) for node_id, node in read.nodes.items()}
        return read.error_code, read.topic_id, [tuple(one) for one in read.partitions], nodes, read.controller_id
    if request in LOG:
        return tuple(read)
    return read if request is CONFIGS else read.nodes


def expected_of(request, message):
    if request in LOG:
        return tuple(EXPECTED[request.name](message))
    if request is METADATA:
        return tuple((node.node_id, node.host, node.port) for node in message.brokers)
    if request is CONFIGS:
        configs = chain.from_iterable(result.configs for result in message.results)
        return {config.name: config.value for config in configs}
    if request is ALTER:
        return [(one.error_code, one.error_message, parts_of(one)) for one in message.entries]
    entries = [(parts_of(one), [(value.key, value.value) for value in one.values]) for one in message.entries or ()]
    return message.error_code, message.error_message, entries


def expected_topic(message):
    topic = message.topics[-1] if message.topics else None
    nodes = {node.node_id: (node.node_id, node.host, node.port) for node in message.brokers}
    yield getattr(message, "error_code", 0) or (topic.error_code if topic else 0)
    yield topic.topic_id.bytes if topic else bytes(16)
    partitions = topic.partitions if topic else ()
    yield [(one.partition_index, one.leader_id, one.leader_epoch, one.error_code) for one in partitions]
    yield nodes
    yield message.controller_id


def expected_configs(message):
    yield {config.name: config.value for result in message.results for config in result.configs}
    yield next((result.error_code for result in reversed(message.results) if result.error_code), 0)


def expected_created(message):
    return (message.topics[-1].error_code, message.topics[-1].error_message) if message.topics else (0, None)


def last_partition(topics, field):
    return next((getattr(topic, field)[-1] for topic in reversed(topics) if getattr(topic, field)), None)


def expected_offset(message):
    last = last_partition(message.topics, "partitions")
    return (last.error_code, last.offset) if last else (0, -1)


def expected_append(message):
    last = last_partition(message.responses, "partition_responses")
    return (last.error_code, last.base_offset, last.error_message) if last else (0, -1, None)


def expected_fetch(message):
    last = last_partition(message.responses, "partitions")
    return message.error_code or (last.error_code if last else 0), bytes(last.records or b"") if last else b""


EXPECTED = {
    "Metadata": expected_topic,
    "DescribeConfigs": expected_configs,
    "CreateTopics": expected_created,
    "ListOffsets": expected_offset,
    "Produce": expected_append,
    "Fetch": expected_fetch,
}


def parts_of(entry):
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def test_a_response_to_another_request_is_malformed():
    with pytest.raises(MalformedMessage, match="the response to request 2, expected that to 3"):
        DESCRIBE.response(bytes(4) + b"\0\0\0\2" + bytes(40), 0, 3)


@pytest.mark.parametrize("request_", ALL, ids=lambda request: request.name)
@given(data=st.binary(max_size=80), some=st.integers(0, 1000))
def test_any_bytes_are_read_or_refused(request_: OwnRequest, data, some):
    lowest, highest = request_.versions
    version = lowest + some % (highest - lowest + 1)
    try:
        said, _ = request_.response(bytes(4) + b"\0\0\0\1" + data, version, 1)
        if request_ is DESCRIBE:
            read_described(said)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("offer", "version"),
    [({3: (0, 99)}, 13), ({3: (0, 5)}, 5), ({3: (0, 1)}, 1), ({3: (0, 0)}, None), ({3: (14, 20)}, None), ({}, None)],
)
def test_the_newest_version_that_both_know_is_taken(offer, version):
    assert METADATA.version_for(offer) == version


def test_frames_of_a_login_are_those_that_the_proxy_reads_from_clients():
    frame = handshake_request("SCRAM-SHA-256").frame(1, 5)
    assert read_handshake(frame, read(frame).body_at) == "SCRAM-SHA-256"
    for version in range(3):
        frame = authenticate_request(b"token").frame(version, 5)
        assert bytes(read_authenticate(frame, read(frame).body_at, version)) == b"token"


@every_kafka
def test_responses_to_tokens_are_read_as_the_relay_reads_them(kafka_version):
    request = authenticate_request(b"token")
    for vector in responses(kafka_version, request):
        own, _ = request.response(vector.frame, vector.version, vector.correlation_id)
        relayed = read_authenticate_response(vector.frame, vector.version)
        assert (own.error_code, bytes(own.token)) == (relayed.error_code, bytes(relayed.token))
        assert "token=" not in repr(own)


def test_null_in_place_of_a_text_is_malformed():
    with pytest.raises(MalformedMessage, match="null in place of a string"):
        FieldReader(b"\0", 0, compact=True).text()
