"""Targets for messages: responses to the proxy's own requests, and messages about topics and quotas.

The first byte of an input says which message it is, in which version.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.identity.scram import HASHES, ScramClient
from kafka_throttle.protocol.messages.api_versions import offer_request
from kafka_throttle.protocol.messages.client_quotas import (
    AlterReader,
    EntityOperations,
    EntityPart,
    Operation,
    Verbatim,
    all_quotas_request,
    alteration_request,
    read_describe_request,
)
from kafka_throttle.protocol.messages.described_configs import node_configs_request, topic_configs_request
from kafka_throttle.protocol.messages.metadata import nodes_request, topic_request
from kafka_throttle.protocol.messages.sasl import authenticate_request, handshake_request
from kafka_throttle.protocol.messages.scram_credentials import only_user, without_refusal
from kafka_throttle.protocol.messages.topic_log import (
    EARLIEST,
    append_request,
    creation_request,
    fetch_request,
    offset_request,
)
from kafka_throttle.protocol.messages.topic_mutations import MutationReader, MutationResponseReader
from kafka_throttle.protocol.messages.topic_partitions import BY_ID_VERSION, BY_NAME_VERSION, read_topic_partitions
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.protocol.primitives import float64, int16, int32, string
from kafka_throttle.protocol.splices import splice_frame
from kafka_throttle.quotas.changes import NO_QUOTAS, SourceUnavailable
from kafka_throttle.quotas.sources.client_quotas import reported
from kafka_throttle.quotas.sources.cluster_conversation import Conversation, SaslLogin, Step
from kafka_throttle.quotas.sources.cluster_faults import NodeRefuses
from tests.fuzz.target import Target
from tests.support.quota_frames import alter_request, describe_request
from tests.support.sasl_frames import FIRST, NONCE, VERIFIER
from tests.support.topic_frames import (
    create_partitions,
    create_topics,
    created,
    delete_topics,
    deleted,
    grown,
    grown_topic,
    metadata_by_id,
    metadata_by_name,
    mutated,
    new_topic,
)
from tests.support.whole_messages import without

TURN = b"\n\n"
"""What comes of one side and what comes of the other take turns, with this between them."""

_PASSWORD = b"pencil"

# ---------------------------------------------------------------- own requests

_NODES, _CONFIGS = nodes_request(), node_configs_request(7, ["num.partitions"])
_QUOTAS = all_quotas_request()
_ALTERATION = alteration_request(
    [EntityOperations((EntityPart("user", "a"),), (Operation("producer_byte_rate", 5.5, False),))]
)
_START, _LOGIN, _OFFERS = handshake_request("PLAIN"), authenticate_request(b"t"), offer_request()
_OWN_REQUESTS: tuple[OwnRequest[Any], ...] = (
    _NODES,
    _CONFIGS,
    topic_request("t"),
    topic_configs_request("t", ["cleanup.policy"]),
    creation_request("t", 3, {"cleanup.policy": "compact"}, 5_000),
    offset_request("t", 4, EARLIEST, 5_000),
    append_request("t", bytes(16), b"batch", 5_000),
    fetch_request(bytes(16), 4, 0, 500, 1 << 20, 2 << 20),
    _QUOTAS,
    _ALTERATION,
    _START,
    _LOGIN,
    _OFFERS,
)
_CALLS = [
    (request, version) for request in _OWN_REQUESTS for version in range(request.versions[0], request.versions[1] + 1)
]


def _own_response(data: bytes) -> None:
    """A response is read or refused, and quotas among it are taken or are problems of the source."""
    request, version = _CALLS[data[0] % len(_CALLS)] if data else _CALLS[0]
    with suppress(ProtocolError):
        content, throttle_ms = request.response(int32(0) + int32(1) + data[1:], version, 1)
        assert throttle_ms >= 0
        if isinstance(content, Verbatim):
            with suppress(SourceUnavailable):
                found = reported(content, NO_QUOTAS)
                assert all(limit.value >= 0 for limits in found.quotas.values() for limit in limits.values())


def _response(request: OwnRequest[Any], version: int, body: bytes) -> bytes:
    """The input with this response."""
    return bytes([_CALLS.index((request, version))]) + body


_OFFERED = {3: 13, 17: 1, 18: 0, 32: 4, 36: 0, 48: 1, 49: 1}
_OFFER = (
    int16(0)
    + int32(len(_OFFERED))
    + b"".join(int16(api_key) + int16(0) + int16(highest) for api_key, highest in _OFFERED.items())
)
_HANDSHAKE = int16(0) + int32(1) + string(b"SCRAM-SHA-256")
_PLAIN, _COMPACT = FieldWriter(compact=False), FieldWriter(compact=True)


def _nodes(writer: FieldWriter) -> bytes:
    return writer.array([int32(7) + writer.text("node") + int32(9092) + writer.text(None) + writer.end])


def _configs(writer: FieldWriter, *settings: bytes) -> bytes:
    resource = int16(0) + writer.text(None) + b"\4" + writer.text("7") + writer.array(settings) + writer.end
    return int32(0) + writer.array([resource]) + writer.end


def _setting(writer: FieldWriter) -> bytes:
    synonyms = writer.array([writer.text("x.y") + writer.text("1") + b"\4" + writer.end])
    return writer.text("a.b") + writer.text("1") + bytes(3) + synonyms + b"\1" + writer.text(None) + writer.end


def _quotas(writer: FieldWriter) -> bytes:
    parts = writer.array([writer.text("ip") + writer.text("::1") + writer.end])
    values = writer.array([writer.text("connection_creation_rate") + float64(5.0) + writer.end])
    entries = writer.array([parts + values + writer.end])
    return int32(5) + int16(0) + writer.text(None) + entries + writer.end


_METADATA_13 = b"\0" + int32(0) + _nodes(_COMPACT) + b"\0" + int32(7) + b"\1" + int16(0) + b"\0"
_OWN_RESPONSES = (
    _response(_NODES, 1, _nodes(_PLAIN)),
    _response(_NODES, 13, _METADATA_13),
    _response(_CONFIGS, 0, _configs(_PLAIN)),
    _response(_CONFIGS, 4, b"\0" + _configs(_COMPACT, _setting(_COMPACT))),
    _response(_QUOTAS, 0, _quotas(_PLAIN)),
    _response(_QUOTAS, 1, b"\0" + _quotas(_COMPACT)),
    _response(_ALTERATION, 0, int32(0) + int32(1) + int16(0) + int16(-1) + int32(0)),
    _response(_START, 1, _HANDSHAKE),
    _response(_LOGIN, 2, b"\0" + int16(58) + b"\3no\2x" + bytes(9)),
    _response(_OFFERS, 0, _OFFER),
)


def _own_connection(data: bytes) -> None:
    """Whatever a node says, the password is never sent, and a login is a success only after the proof of the node."""
    login = SaslLogin("SCRAM-SHA-256", "user", _PASSWORD.decode(), NONCE)
    conversation, bodies = Conversation(), iter(data.split(TURN))
    with suppress(ProtocolError, NodeRefuses):
        is_in = _played(conversation.introduced(), bodies) and _played(conversation.log_in(login), bodies)
        assert is_in == conversation.logged_in
        for request in _OWN_REQUESTS if conversation.logged_in else ():
            _played(conversation.response_to(request), bodies)


def _played(step: Step[Any], bodies: Iterator[bytes]) -> bool:
    """Whether the step came to its end with these bodies of responses."""
    frame, _ = next(step)
    for body in bodies:
        assert _PASSWORD not in frame
        try:
            frame, _ = step.send(bytes(4) + frame[8:12] + body)
        except StopIteration:
            return True
    return False


def _token(text: str) -> bytes:
    return int16(0) + int16(-1) + int32(len(text)) + text.encode()


_CONVERSATIONS = (TURN.join((_OFFER, _HANDSHAKE, _token(FIRST), _token(VERIFIER), _METADATA_13)),)


def _scram(data: bytes) -> None:
    """A challenge and what follows it are taken or refused, and a second proof is refused."""
    login = ScramClient(list(HASHES)[data[0] % 2 if data else 0], "user", _PASSWORD.decode(), NONCE)
    challenge, _, verifier = data[1:].partition(TURN)
    with suppress(ProtocolError):
        proof = login.respond(challenge)
        assert proof is not None
        assert proof.startswith(f"c=biws,r={NONCE}".encode())
        assert _PASSWORD not in proof
        assert login.respond(verifier) is None
        with suppress(ProtocolError):
            login.respond(verifier)
            raise AssertionError("a message after the last one was taken")


_CHALLENGES = (b"\0" + FIRST.encode() + TURN + VERIFIER.encode(), b"\0e=other-error", b"\1" + FIRST.encode() + TURN)

# ---------------------------------------------------------------------- fields


def _count(reader: FieldReader) -> range:
    return reader.elements(1)


_READS: tuple[Callable[[FieldReader], object], ...] = (
    FieldReader.text,
    FieldReader.nullable_text,
    FieldReader.blob,
    FieldReader.end,
    FieldReader.int8,
    FieldReader.int16,
    FieldReader.int32,
    FieldReader.float64,
    FieldReader.uvarint,
    FieldReader.tags,
    _count,
)


def _fields(data: bytes) -> None:
    """Fields in any order: a read stays within the frame, and what it returns is read again as it is written."""
    compact, count = data[:1] > b"\x7f", data[0] & 15 if data else 0
    frame = data[1 + count :]
    reader, writer = FieldReader(frame, 0, compact), FieldWriter(compact)
    with suppress(ProtocolError):
        for which in data[1 : 1 + count]:
            start, read = reader.offset, _READS[which % len(_READS)]
            value = read(reader)
            assert start <= reader.offset <= len(frame)
            if isinstance(value, str):
                assert FieldReader(writer.text(value), 0, compact).text() == value
            elif isinstance(value, bytes):
                assert FieldReader(writer.blob(value), 0, compact).blob() == value
            elif isinstance(value, range):
                assert len(value) <= len(frame) - reader.offset


_FIELDS = (
    bytes([0x84, 0, 2, 10, 3]) + b"\4abc\3xy\2z\1\7\1x",
    bytes([0x04, 0, 2, 10, 1]) + string(b"abc") + int32(2) + b"xy" + int32(1) + int16(-1),
)

# ------------------------------------------------------------ topics and quotas

_MUTATIONS = [
    (api_key, version)
    for api_key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS)
    for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
]


def _topics(data: bytes) -> None:
    """Items and results are in order and within the frame, and a request without some of them is a request again."""
    api_key, version = _MUTATIONS[data[0] % len(_MUTATIONS)] if data else _MUTATIONS[0]
    frame = data[1:]
    with suppress(ProtocolError):
        response = MutationResponseReader(frame, api_key, version)
        results = list(response.results())
        _in_order([(result.start, result.end) for result in results], len(frame))
        assert response.response(results).end <= len(frame)
    with suppress(ProtocolError):
        reader = MutationReader(frame, api_key, version)
        items = [item for item in reader.items() if item is not None]
        _in_order([(item.start, item.end) for item in items], len(frame))
        request = reader.request(items)
        rest = b"".join(splice_frame(frame, len(frame) - 4, without(request, frame, range(0, len(items), 2))))
        again = MutationReader(rest, api_key, version)
        left = [item for item in again.items() if item is not None]
        assert [item[2:] for item in left] == [item[2:] for item in items[1::2]]
        assert again.request(left).validate_only == request.validate_only


def _in_order(places: list[tuple[int, int]], frame_bytes: int) -> None:
    ends = [0, *(end for _, end in places)]
    assert all(before <= start < end for before, (start, end) in zip(ends, places, strict=False)), places
    assert ends[-1] <= frame_bytes


def _mutation(api_key: int, version: int, frame: bytes) -> bytes:
    return bytes([_MUTATIONS.index((api_key, version))]) + frame


_TOPIC_ID = b"id" + bytes(14)
_TOPIC_FRAMES = (
    *(
        _mutation(CREATE_TOPICS, version, frame)
        for version in (APIS[CREATE_TOPICS].min_version, 7)
        for frame in (
            create_topics(
                version, [new_topic(version, b"a", 3), new_topic(version, b"b", -1, -1, [0], [(b"k", None)])]
            ),
            mutated(CREATE_TOPICS, version, [created(version, b"a", partitions=3, configs=2)]),
        )
    ),
    *(
        _mutation(DELETE_TOPICS, version, frame)
        for version in (APIS[DELETE_TOPICS].min_version, 6)
        for frame in (
            delete_topics(version, [b"a", _TOPIC_ID]),
            mutated(DELETE_TOPICS, version, [deleted(version, b"a", 3), deleted(version, _TOPIC_ID)]),
        )
    ),
    _mutation(CREATE_PARTITIONS, 3, create_partitions(3, [grown_topic(3, b"a", 5, 2), grown_topic(3, b"b", 6)])),
    _mutation(CREATE_PARTITIONS, 3, mutated(CREATE_PARTITIONS, 3, [grown(3, b"a", 37, message=b"no")])),
)


def _metadata(data: bytes) -> None:
    """No topic in a response has more partitions than the response has bytes."""
    for version in (BY_NAME_VERSION, BY_ID_VERSION):
        with suppress(ProtocolError):
            for topic in read_topic_partitions(data, version):
                assert 0 <= topic.partitions <= len(data)
                assert len(topic.topic_id) == 16


_TOPICS = {b"a": 3, b"unknown": -1, b"c": 0}
_METADATA = (metadata_by_name(1, _TOPICS), metadata_by_id(1, {_TOPIC_ID: 2, b"id" + b"\1" * 14: -1}))


def _quota_request(data: bytes) -> None:
    """A request about quotas is read or refused, and a refusal names the entities of the request."""
    version = data[0] & 1 if data else 0
    with suppress(ProtocolError):
        read_describe_request(data[1:], version)
        read_describe_request(data[1:], version, 2)
    with suppress(ProtocolError):
        reader = AlterReader(data[1:], version)
        entries = [entry for entry in reader.entries() if entry is not None]
        reader.request(tuple(entries))
        named, is_all = AlterReader(data[1:], version).named(len(data) * 2)
        assert is_all
        assert named == [entry.parts for entry in entries]


_QUOTA_REQUESTS = tuple(
    bytes([version]) + frame
    for version, validate_only in product((0, 1), (False, True))
    for frame in (
        describe_request([("user", 0, "a"), ("client-id", 1, None)], version=version),
        alter_request(
            [((("user", "a"), ("client-id", None)), (("producer_byte_rate", 5.5, False), ("x", 0.0, True)))],
            validate_only,
            version=version,
        ),
    )
)


def _scram_credentials(data: bytes) -> None:
    """A response that refuses becomes one without users, and what has become of it is left as it is."""
    with suppress(ProtocolError):
        only_user(data, 0)
    with suppress(ProtocolError):
        splices = without_refusal(data)
        changed = b"".join(splice_frame(data, len(data) - 4, splices))
        assert without_refusal(changed) == ()
        assert bool(splices) == (changed != data)


_SCRAM_CREDENTIALS = (
    b"\2\6alice\0\0",
    bytes(8) + b"\0" + int32(0) + int16(31) + b"\3no\1\0",
    bytes(8) + b"\0" + int32(0) + int16(0) + b"\0\1\0",
)

TARGETS = {
    "own-response": Target(_own_response, _OWN_RESPONSES),
    "own-connection": Target(_own_connection, _CONVERSATIONS),
    "scram": Target(_scram, _CHALLENGES),
    "fields": Target(_fields, _FIELDS),
    "topics": Target(_topics, _TOPIC_FRAMES),
    "metadata": Target(_metadata, _METADATA),
    "quota-request": Target(_quota_request, _QUOTA_REQUESTS),
    "scram-credentials": Target(_scram_credentials, _SCRAM_CREDENTIALS),
}
