"""The requests of the loads, made by hand: each with all it takes to send it time and again and to judge its
response.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack, pack_into, unpack_from

from kafka_throttle.protocol.api_key import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    SYNC_GROUP,
)
from kafka_throttle.protocol.primitives import Reader, string
from tests.integration.raw_client import records
from tests.support.topic_frames import create_topics, new_topic

_CORRELATION_AT = 8
"""Where the correlation id stands in a request, behind length, API key and version."""
_ONE = pack(">i", 1)
_SESSION_MS = 60_000
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Call:
    """One request without header. `error_code` finds it in a response without length prefix; `throttle_at` is where the
    throttle time stands in it, negative from its end.

    With `number_at` each request has a number of twelve digits written over its body there.
    """

    api_key: int
    version: int
    body: bytes
    error_code: Callable[[bytes], int]
    throttle_at: int | None = 4
    answered: bool = True
    number_at: int | None = None


class Frames:
    """Whole requests of one call by one client-id, each with the next correlation id."""

    def __init__(self, call: Call, client_id: str, first_number: int = 0) -> None:
        self.call = call
        head = pack(">hhi", call.api_key, call.version, 0) + string(client_id.encode())
        self._frame = bytearray(pack(">i", len(head) + len(call.body)) + head + call.body)
        self._number_at = None if call.number_at is None else 4 + len(head) + call.number_at
        self._number = first_number

    def frame(self, correlation_id: int) -> bytearray:
        """The next request; it is overwritten by the one after it."""
        pack_into(">i", self._frame, _CORRELATION_AT, correlation_id)
        if self._number_at is not None:
            self._frame[self._number_at : self._number_at + _DIGITS] = b"%012d" % self._number
            self._number += 1
        return self._frame


def _error_at(offset: int) -> Callable[[bytes], int]:
    def error_code(response: bytes) -> int:
        found: int = unpack_from(">h", response, offset)[0]
        return found

    return error_code


def api_versions() -> Call:
    """Version 2, which has no body."""
    return Call(API_VERSIONS, 2, b"", _error_at(4), throttle_at=-4)


def produce(topic: str, partition: int, acks: int, batch_bytes: int) -> Call:
    """Version 7 with one batch of one record, of that many bytes together."""
    name = string(topic.encode())
    batch = records(batch_bytes)
    body = pack(">hhi", -1, acks, 30_000) + _ONE + name + _ONE + pack(">ii", partition, len(batch)) + batch
    return Call(PRODUCE, 7, body, _error_at(4 + 4 + len(name) + 4 + 4), throttle_at=-4, answered=acks != 0)


def fetch(topic: str, partition: int, max_bytes: int, max_wait_ms: int, offset: int = 0) -> Call:
    """Version 11, without a session; it waits for one byte."""
    name = string(topic.encode())
    of_partition = pack(">iiqqi", partition, -1, offset, -1, max_bytes)
    of_topic = _ONE + name + _ONE + of_partition
    body = pack(">iiiibii", -1, max_wait_ms, 1, 100_000_000, 0, 0, -1) + of_topic + pack(">i", 0) + string(b"")
    return Call(FETCH, 11, body, _error_at(4 + 4 + 2 + 4 + 4 + len(name) + 4 + 4))


def metadata(topic: str) -> Call:
    """Version 8, of one topic."""
    body = _ONE + string(topic.encode()) + b"\0\0\0"
    return Call(METADATA, 8, body, _error_in_metadata)


def _error_in_metadata(response: bytes) -> int:
    reader = Reader(memoryview(response), 8)
    for _ in range(reader.int32()):
        reader.int32()  # node id
        reader.string()  # host
        reader.int32()  # port
        reader.string()  # rack
    reader.string()  # cluster id
    reader.int32()  # controller
    return reader.int16() if reader.int32() else -1


def offset_commit(group: str, topic: str) -> Call:
    """Version 7, by somebody who is no member: the group is used for its offsets only."""
    name = string(topic.encode())
    of_partition = pack(">iqi", 0, 1, -1) + string(b"")
    body = string(group.encode()) + pack(">i", -1) + string(b"") + pack(">h", -1) + _ONE + name + _ONE + of_partition
    return Call(OFFSET_COMMIT, 7, body, _error_at(4 + 4 + 4 + len(name) + 4 + 4))


def find_coordinator(group: str) -> Call:
    """Version 2."""
    return Call(FIND_COORDINATOR, 2, string(group.encode()) + b"\0", _error_at(8))


def coordinator(response: bytes) -> int:
    """The node that the response to a FindCoordinator of version 2 names, -1 if there is none."""
    reader = Reader(memoryview(response), 8)
    reader.int16()  # error code
    reader.string()  # its message
    return reader.int32()


def join_group(group: str, member_id: bytes) -> Call:
    """Version 5, by a consumer that supports one protocol. Without a member id the response is error 79 and the id."""
    session = pack(">ii", _SESSION_MS, _SESSION_MS)
    protocols = string(b"consumer") + _ONE + string(b"range") + pack(">i", 0)
    body = string(group.encode()) + session + string(member_id) + pack(">h", -1) + protocols
    return Call(JOIN_GROUP, 5, body, _error_at(8))


def generation_and_member(response: bytes) -> tuple[int, bytes]:
    """What the response to a JoinGroup of version 5 gives: the generation, and the id of the member that asked."""
    reader = Reader(memoryview(response), 10)
    generation = reader.int32()
    reader.string()  # protocol
    reader.string()  # leader
    return generation, bytes(reader.string() or b"")


def sync_group(group: str, generation: int, member_id: bytes) -> Call:
    """Version 3, by the leader, who assigns nothing."""
    assignment = _ONE + string(member_id) + pack(">i", 0)
    body = string(group.encode()) + pack(">i", generation) + string(member_id) + pack(">h", -1) + assignment
    return Call(SYNC_GROUP, 3, body, _error_at(8))


def heartbeat(group: str, generation: int, member_id: bytes) -> Call:
    """Version 3."""
    body = string(group.encode()) + pack(">i", generation) + string(member_id) + pack(">h", -1)
    return Call(HEARTBEAT, 3, body, _error_at(8))


def create_topic(prefix: str, validate_only: bool) -> Call:
    """Version 4, one topic of one partition, whose name ends in a number that each request has counted up."""
    name = prefix.encode() + b"0" * _DIGITS
    whole = create_topics(4, [new_topic(4, name, 1, 1)], validate_only=validate_only, client_id=b"")
    body = whole[4 + 8 + 2 :]
    return Call(
        CREATE_TOPICS,
        4,
        body,
        _error_at(4 + 4 + 4 + 2 + len(name)),
        number_at=body.index(name) + len(prefix),
    )
