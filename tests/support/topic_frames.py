"""Frames of CreateTopics, DeleteTopics, CreatePartitions and the Metadata of topics, made by hand."""

from collections.abc import Iterable
from struct import pack

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.messages.topic_mutations import NO_TOPIC_ID
from kafka_throttle.protocol.primitives import compact_string, string, uvarint

FLEXIBLE_SINCE = {CREATE_TOPICS: 5, DELETE_TOPICS: 4, CREATE_PARTITIONS: 2}


class Wire:
    """Writes the fields of one version of one API."""

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.flexible = version >= FLEXIBLE_SINCE[api_key]
        self.end = b"\0" if self.flexible else b""

    def text(self, text: bytes | None) -> bytes:
        if text is None:
            return b"\0" if self.flexible else pack(">h", -1)
        return compact_string(text) if self.flexible else string(text)

    def array(self, elements: Iterable[bytes] | None) -> bytes:
        if elements is None:
            return b"\0" if self.flexible else pack(">i", -1)
        listed = list(elements)
        count = uvarint(len(listed) + 1) if self.flexible else pack(">i", len(listed))
        return count + b"".join(listed)

    def request(self, topics: Iterable[bytes], rest: bytes, corr: int, client_id: bytes) -> bytes:
        head = pack(">hhi", self.api_key, self.version, corr) + string(client_id) + self.end
        return _frame(head + self.array(topics) + rest + self.end)

    def response(self, results: Iterable[bytes], corr: int, throttle_time_ms: int, throttle_since: int) -> bytes:
        throttle = pack(">i", throttle_time_ms) if self.version >= throttle_since else b""
        return _frame(pack(">i", corr) + self.end + throttle + self.array(results) + self.end)


def _frame(payload: bytes) -> bytes:
    return pack(">i", len(payload)) + payload


def new_topic(
    version: int,
    name: bytes,
    partitions: int = 1,
    replication_factor: int = -1,
    assigned: Iterable[int] = (),
    configs: Iterable[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """One topic of CreateTopics; each assignment is to broker 1."""
    wire = Wire(CREATE_TOPICS, version)
    assignments = wire.array(pack(">i", index) + wire.array([pack(">i", 1)]) + wire.end for index in assigned)
    settings = wire.array(wire.text(key) + wire.text(value) + wire.end for key, value in configs)
    return wire.text(name) + pack(">ih", partitions, replication_factor) + assignments + settings + wire.end


def create_topics(
    version: int, topics: Iterable[bytes], *, validate_only: bool = False, corr: int = 1, client_id: bytes = b"etl"
) -> bytes:
    """A CreateTopics request of topics that `new_topic` made."""
    rest = pack(">i", 30_000) + (bytes([validate_only]) if version >= 1 else b"")
    return Wire(CREATE_TOPICS, version).request(topics, rest, corr, client_id)


def delete_topics(version: int, topics: Iterable[bytes], *, corr: int = 1, client_id: bytes = b"etl") -> bytes:
    """A DeleteTopics request; from version 6 on topics of 16 bytes that begin with "id" are ids."""
    wire = Wire(DELETE_TOPICS, version)
    states = [deleted_topic(version, topic) for topic in topics]
    return wire.request(states, pack(">i", 30_000), corr, client_id)


def deleted_topic(version: int, topic: bytes) -> bytes:
    wire = Wire(DELETE_TOPICS, version)
    if version < 6:
        return wire.text(topic)
    by_id = is_id(topic)
    return wire.text(None if by_id else topic) + (topic if by_id else NO_TOPIC_ID) + wire.end


def is_id(topic: bytes) -> bool:
    return len(topic) == 16 and topic.startswith(b"id")


def grown_topic(version: int, name: bytes, count: int, assignments: int | None = None) -> bytes:
    """One topic of CreatePartitions; each of its `assignments` is to broker 1."""
    wire = Wire(CREATE_PARTITIONS, version)
    assigned = None if assignments is None else [wire.array([pack(">i", 1)]) + wire.end] * assignments
    return wire.text(name) + pack(">i", count) + wire.array(assigned) + wire.end


def create_partitions(
    version: int, topics: Iterable[bytes], *, validate_only: bool = False, corr: int = 1, client_id: bytes = b"etl"
) -> bytes:
    """A CreatePartitions request of topics that `grown_topic` made."""
    rest = pack(">i", 30_000) + bytes([validate_only])
    return Wire(CREATE_PARTITIONS, version).request(topics, rest, corr, client_id)


def created(
    version: int, name: bytes, error: int = 0, *, message: bytes | None = None, partitions: int = -1, configs: int = 0
) -> bytes:
    """One result of CreateTopics."""
    wire = Wire(CREATE_TOPICS, version)
    topic_id = (NO_TOPIC_ID if error else b"id" + name[:14].ljust(14, b"."),) if version >= 7 else ()
    text = (wire.text(message),) if version >= 1 else ()
    config = wire.text(b"retention.ms") + wire.text(b"1000") + b"\0\5\0" + wire.end
    details = (pack(">ih", partitions, 1 if partitions > 0 else -1), wire.array([config] * configs))
    return b"".join(
        (wire.text(name), *topic_id, pack(">h", error), *text, *(details if version >= 5 else ()), wire.end)
    )


def deleted(version: int, topic: bytes, error: int = 0, *, message: bytes | None = None) -> bytes:
    """One result of DeleteTopics."""
    wire = Wire(DELETE_TOPICS, version)
    by_id = version >= 6 and is_id(topic)
    topic_id = (topic if by_id else NO_TOPIC_ID,) if version >= 6 else ()
    text = (wire.text(message),) if version >= 5 else ()
    return b"".join((wire.text(None if by_id else topic), *topic_id, pack(">h", error), *text, wire.end))


def grown(version: int, name: bytes, error: int = 0, *, message: bytes | None = None) -> bytes:
    """One result of CreatePartitions."""
    wire = Wire(CREATE_PARTITIONS, version)
    return wire.text(name) + pack(">h", error) + wire.text(message) + wire.end


_THROTTLE_SINCE = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}


def mutated(api_key: int, version: int, results: Iterable[bytes], *, corr: int = 1, throttle_time_ms: int = 0) -> bytes:
    """A response of results that `created`, `deleted` or `grown` made."""
    return Wire(api_key, version).response(results, corr, throttle_time_ms, _THROTTLE_SINCE[api_key])


def metadata_by_name(corr: int, topics: dict[bytes, int], brokers: int = 3) -> bytes:
    """The response to Metadata v4: how many partitions each topic has; -1 where it is not known."""
    nodes = pack(">i", brokers) + b"".join(
        pack(">i", i) + string(b"node") + pack(">i", 9092) + pack(">h", -1) for i in range(brokers)
    )
    one = pack(">hii", 0, 0, 1) + pack(">iii", 2, 1, 2) + pack(">ii", 1, 1)
    listed = b"".join(
        pack(">h", 0 if count >= 0 else 3) + string(name) + b"\0" + pack(">i", max(count, 0)) + one * max(count, 0)
        for name, count in topics.items()
    )
    body = pack(">ii", corr, 0) + nodes + string(b"cluster") + pack(">i", 1) + pack(">i", len(topics)) + listed
    return _frame(body)


def metadata_by_id(corr: int, topics: dict[bytes, int], brokers: int = 3) -> bytes:
    """The response to Metadata v12, by id; the name of each topic is its id."""
    nodes = uvarint(brokers + 1) + b"".join(
        pack(">i", i) + compact_string(b"node") + pack(">i", 9092) + b"\0\0" for i in range(brokers)
    )
    ids = uvarint(2) + pack(">i", 1)
    one = pack(">hiii", 0, 0, 1, 7) + ids + ids + uvarint(1) + b"\0"
    listed = b"".join(
        pack(">h", 0 if count >= 0 else 100)
        + (compact_string(topic_id) if count >= 0 else b"\0")
        + topic_id
        + b"\0"
        + uvarint(max(count, 0) + 1)
        + one * max(count, 0)
        + pack(">i", -(2**31))
        + b"\0"
        for topic_id, count in topics.items()
    )
    head = pack(">i", corr) + b"\0" + pack(">i", 0) + nodes + compact_string(b"cluster") + pack(">i", 1)
    return _frame(head + uvarint(len(topics) + 1) + listed + b"\0")
