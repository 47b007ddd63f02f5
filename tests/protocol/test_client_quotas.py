"""Reading requests about quotas and writing their responses, against frames of Kafka's own message classes."""

import math
import random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.protocol.errors import MalformedMessage, ProtocolError
from kafka_throttle.protocol.messages.client_quotas import (
    AlteredEntity,
    DescribedEntity,
    EntityPart,
    RequestHead,
    alter_response,
    describe_refusal,
    read_describe_request,
)
from tests.support.message_vectors import KAFKA_VERSIONS, message_vectors
from tests.support.quota_frames import alter_request, altered, array, describe_request, described, text
from tests.support.whole_messages import describe_response, read_alter_request

every_kafka = pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS)


def vectors(kafka_version, api_key, is_response):
    found = [v for v in message_vectors(kafka_version) if v.key == api_key and v.is_response is is_response]
    assert {v.version for v in found} == {0, 1}
    return found


def is_bare(vector):
    """True if the frame has no unknown tagged fields."""
    return not vector.version or not vector.variant.startswith(("unknown tags", "mixed"))


def written(request, version):
    """The request as a client would write it."""
    head = {
        "version": version,
        "corr": request.head.correlation_id,
        "client_id": None if request.head.client_id is None else request.head.client_id.encode(),
    }
    if hasattr(request, "components"):
        return describe_request(request.components, request.strict, **head)
    return alter_request(request.entries, request.validate_only, **head)


@every_kafka
@pytest.mark.parametrize(
    ("api_key", "read"), [(DESCRIBE_CLIENT_QUOTAS, read_describe_request), (ALTER_CLIENT_QUOTAS, read_alter_request)]
)
def test_requests_of_kafka_are_read_whole(kafka_version, api_key, read):
    for vector in vectors(kafka_version, api_key, is_response=False):
        request = read(vector.frame, vector.version)
        assert request.head == RequestHead(vector.version, vector.correlation_id, vector.client_id), vector
        again = written(request, vector.version)
        assert again == vector.frame or not is_bare(vector), vector
        assert repr(read(again, vector.version)) == repr(request), vector


@every_kafka
def test_responses_to_describe_are_written_as_kafka_does(kafka_version):
    for vector in vectors(kafka_version, DESCRIBE_CLIENT_QUOTAS, is_response=True):
        if not is_bare(vector):
            continue
        response = _described_in_order(vector.frame, vector.version)
        head = RequestHead(vector.version, vector.correlation_id, None)
        error_code, message, entries = response
        if entries is None:
            again = describe_refusal(head, error_code, message)
        else:
            again = describe_response(head, [DescribedEntity([EntityPart(*p) for p in e], v) for e, v in entries])
        assert _like(again, response, vector) == vector.frame, vector


def _described_in_order(frame, version):
    from tests.support.quota_frames import _Response

    response = _Response(frame, version)
    return response.reader.int16(), response.text(), response.array(response.described)


def _like(frame, response, vector):
    """`frame` with what our responses never have: a throttle time, and an error together with entries."""
    at = 9 if vector.version else 8
    error_code, message, entries = response
    if entries is None:
        return frame[:at] + vector.frame[at : at + 4] + frame[at + 4 :]
    no_error = pack(">h", 0) + text(vector.version, "")
    error = pack(">h", error_code) + text(vector.version, message)
    assert frame[at + 4 :].startswith(no_error)
    changed = frame[4:at] + vector.frame[at : at + 4] + error + frame[at + 4 + len(no_error) :]
    return pack(">i", len(changed)) + changed


@every_kafka
def test_responses_to_alter_are_written_as_kafka_does(kafka_version):
    for vector in vectors(kafka_version, ALTER_CLIENT_QUOTAS, is_response=True):
        if not is_bare(vector):
            continue
        entries = [
            AlteredEntity(code, message, [EntityPart(*part) for part in entity])
            for code, message, entity in altered(vector.frame, vector.version)
        ]
        again = alter_response(RequestHead(vector.version, vector.correlation_id, None), entries)
        at = 9 if vector.version else 8
        assert again[:at] + vector.frame[at : at + 4] + again[at + 4 :] == vector.frame, vector


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("frame", [describe_request, alter_request])
def test_every_truncation_is_a_protocol_error(frame, version):
    if frame is describe_request:
        whole, read = (
            frame([("user", 0, "alice"), ("client-id", 2, None)], True, version=version),
            read_describe_request,
        )
    else:
        entries = [([("user", "a"), ("client-id", None)], [("k", 1.0, False)])]
        whole, read = frame(entries, True, version=version), read_alter_request
    for end in range(8, len(whole)):
        with pytest.raises(ProtocolError):
            read(whole[:end], version)
    read(whole, version)


HEADER = {
    0: pack(">ihhih", 0, 48, 0, 1, -1),
    1: pack(">ihhih", 0, 48, 1, 1, -1) + b"\0",
}


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (0, pack(">i", 2**31 - 1)),
        (0, pack(">i", 1_000) + bytes(4_000)),
        (0, pack(">i", -1) + b"\0"),
        (0, pack(">i", -2) + b"\0"),
        (1, b"\xff\xff\xff\xff\x0f"),
        (1, b"\xff\xff\xff\xff\x1f"),
        (1, b"\0\0\0"),
        (1, b"\x81\x08" + bytes(2_000)),
    ],
)
def test_a_count_that_is_too_large_is_refused_before_anything_is_allocated_for_it(version, body):
    for read in (read_describe_request, read_alter_request):
        with pytest.raises(MalformedMessage):
            read(HEADER[version] + body, version)


@pytest.mark.parametrize("version", [0, 1])
def test_null_where_the_schema_allows_none_is_refused(version):
    for frame in (
        describe_request([(None, 0, "a")], version=version),
        alter_request([([(None, "a")], [])], version=version),
        alter_request([([("user", "a")], [(None, 1.0, False)])], version=version),
    ):
        read = read_describe_request if frame[5] == DESCRIBE_CLIENT_QUOTAS else read_alter_request
        with pytest.raises(MalformedMessage, match="null in place of a string"):
            read(frame, version)


def test_text_that_is_not_utf_8_is_read_as_a_broker_reads_it():
    request = read_describe_request(describe_request([("user", 0, b"a\xffb")]), 1)
    assert request.components[0].match == "a\ufffdb"


def test_text_that_no_response_could_repeat_is_refused():
    assert read_describe_request(describe_request([("user", 0, "ä" * 16_383)]), 1).components[0].match == "ä" * 16_383
    for name in ("ä" * 16_384, b"\xff" * 11_000):
        with pytest.raises(MalformedMessage, match="a string of more than 32767 bytes"):
            read_describe_request(describe_request([("user", 0, name)]), 1)


@pytest.mark.parametrize("version", [0, 1])
def test_a_message_that_is_too_long_is_cut(version):
    head = RequestHead(version, 7, None)
    refused = described(describe_refusal(head, 42, "ä" * 20_000), version)
    assert refused == (42, "ä" * 16_383, None)
    [entry] = altered(alter_response(head, [AlteredEntity(42, "x" * 40_000, [EntityPart("user", None)])]), version)
    assert entry == (42, "x" * 32_767, (("user", None),))


@pytest.mark.parametrize("version", [0, 1])
def test_numbers_pass_bit_by_bit(version):
    numbers = [0.0, -0.0, 1e-300, -math.inf, 2.0**63, 1235.0000001]
    frame = alter_request([([], [("k", number, True) for number in numbers])], version=version)
    [entry] = read_alter_request(frame, version).entries
    assert [pack(">d", op.value) for op in entry.operations] == [pack(">d", number) for number in numbers]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.one_of(st.none(), texts)
versions = st.integers(0, 1)


@given(versions, st.lists(st.tuples(texts, st.integers(-128, 127), names)), st.booleans(), names)
def test_what_a_client_writes_to_describe_is_what_is_read(version, components, strict, client_id):
    client = None if client_id is None else client_id.encode()
    request = read_describe_request(describe_request(components, strict, version=version, client_id=client), version)
    assert (request.components, request.strict) == (tuple(components), strict)
    assert request.head == (version, 1, client_id)


operations = st.lists(st.tuples(texts, st.floats(allow_nan=False), st.booleans()))


@given(versions, st.lists(st.tuples(st.lists(st.tuples(texts, names)), operations)), st.booleans())
def test_what_a_client_writes_to_alter_is_what_is_read(version, entries, validate_only):
    request = read_alter_request(alter_request(entries, validate_only, version=version), version)
    assert request.entries == tuple((tuple(parts), tuple(ops)) for parts, ops in entries)
    assert request.validate_only is validate_only


@given(versions, st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_protocol_error(version, body):
    for read in (read_describe_request, read_alter_request):
        for frame in (body, HEADER[version] + body):
            try:
                read(frame, version)
            except ProtocolError:
                continue


def test_frames_with_a_byte_changed_are_a_request_or_a_protocol_error():
    rng = random.Random(5)
    whole = alter_request([([("user", "a"), ("ip", None)], [("k", 1.0, False)] * 3)] * 4)
    for _ in range(5_000):
        frame = bytearray(whole)
        frame[rng.randrange(8, len(frame))] = rng.randrange(256)
        try:
            read_alter_request(bytes(frame), 1)
        except ProtocolError:
            continue


def test_unknown_tagged_fields_are_stepped_over():
    tag = b"\x01\x07\x02hi"
    component = text(1, "user") + b"\0" + text(1, "alice") + tag
    body = b"\x02" + component + b"\x01" + tag
    request = read_describe_request(pack(">ihhih", 0, 48, 1, 1, -1) + tag + body, 1)
    assert (request.components, request.strict) == ((("user", 0, "alice"),), True)
    assert array(1, [], None) == b"\x01"
