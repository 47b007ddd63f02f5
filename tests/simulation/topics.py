"""Topics of a simulated cluster: requests about them, as bytes and back, and what nodes make of these.

None of it is the product's: requests and responses of CreateTopics, DeleteTopics and CreatePartitions, and of the
Metadata that a proxy may request, are written and read here from Kafka's message definitions alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import pack, unpack_from

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS as GROW
from kafka_throttle.protocol.api_key import CREATE_TOPICS as CREATE
from kafka_throttle.protocol.api_key import DELETE_TOPICS as DELETE
from tests.simulation import wire
from tests.simulation.plan import RequestPlan, ResponsePlan, TopicPlan
from tests.simulation.wire import count, framed, tags, text

STRICT_SINCE = {CREATE: 6, DELETE: 5, GROW: 3}
"""The versions that KIP-599 brought, and those after them."""
FLEXIBLE_SINCE = {CREATE: 5, DELETE: 4, GROW: 2}
THROTTLE_SINCE = {CREATE: 2, DELETE: 1, GROW: 0}

NO_ID = bytes(16)
BY_NAME, BY_ID = 4, 12
"""The versions of Metadata that the proxy requests."""

OK, TIMED_OUT, THROTTLED = 0, 7, 89

MOST_PARTITIONS = 10_000
"""More a node does not add at once: a bit that is turned over would make a thousand million."""
_UNKNOWN_TOPIC, _INVALID_NAME, _EXISTS, _INVALID_PARTITIONS, _INVALID_REQUEST, _UNKNOWN_ID = 3, 17, 36, 37, 42, 100


# --------------------------------------------------------------------- requests


@dataclass(slots=True, frozen=True)
class Item:
    """One topic of a request, which stands in [start, end) of its frame."""

    start: int
    end: int
    name: bytes | None
    topic_id: bytes
    partitions: int = 0
    replication: int = -1
    assigned: tuple[int, ...] | None = ()

    @property
    def key(self) -> tuple[bytes | None, bytes]:
        return self.name, self.topic_id


@dataclass(slots=True, frozen=True)
class Call:
    """A request as it was read; the number of its topics stands in [array_at, first_at)."""

    api_key: int
    version: int
    items: tuple[Item, ...]
    array_at: int
    first_at: int
    validate_only: bool

    @property
    def strict(self) -> bool:
        return self.version >= STRICT_SINCE[self.api_key]

    def frame_without(self, frame: bytes, refused: Iterable[int]) -> bytes:
        """The frame with some of its topics taken out."""
        gone = set(refused)
        if not gone:
            return frame
        kept = [item for i, item in enumerate(self.items) if i not in gone]
        array = count(len(kept), True) + b"".join(frame[item.start : item.end] for item in kept)
        end = self.items[-1].end
        return framed(frame[4 : self.array_at] + array + frame[end:])


def request_body(plan: RequestPlan, cluster: "Cluster") -> bytes:
    """The body that a plan describes; ids are those that the cluster has when it is written."""
    compact = plan.version >= FLEXIBLE_SINCE[plan.api_key]
    topics = count(len(plan.topics), compact) + b"".join(_topic(plan, topic, compact, cluster) for topic in plan.topics)
    validates = plan.api_key == GROW or (plan.api_key == CREATE and plan.version >= 1)
    return topics + pack(">i", 30_000) + (bytes([plan.validate_only]) if validates else b"") + _end(compact)


def _end(compact: bool) -> bytes:
    return b"\0" if compact else b""


def _topic(plan: RequestPlan, topic: TopicPlan, compact: bool, cluster: "Cluster") -> bytes:
    end = tags(topic.tag_bytes) if compact else b""
    brokers = count(1, compact) + pack(">i", 1)
    if plan.api_key == CREATE:
        assigned = [pack(">i", i) + brokers + _end(compact) for i in range(max(topic.assigned, 0))]
        configs = [text(b"k%d" % i, compact) + text(b"v" * 20, compact) + _end(compact) for i in range(topic.configs)]
        numbers = pack(">ih", topic.partitions, topic.replication)
        arrays = count(len(assigned), compact) + b"".join(assigned) + count(len(configs), compact) + b"".join(configs)
        return text(topic.name, compact) + numbers + arrays + end
    if plan.api_key == GROW:
        array = count(topic.assigned, compact) + (brokers + _end(compact)) * max(topic.assigned, 0)
        return text(topic.name, compact) + pack(">i", topic.partitions) + array + end
    if plan.version < 6:
        return text(topic.name, compact)
    by_id = topic.by_id
    return text(None if by_id else topic.name, True) + (cluster.id_of(topic.name) if by_id else NO_ID) + end


class Unreadable(Exception):
    """Bytes that are not what they should be."""


class _Cursor:
    def __init__(self, frame: bytes, at: int, compact: bool) -> None:
        self.frame = frame
        self.at = at
        self.compact = compact

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.frame):
            raise Unreadable(f"{size} bytes at {self.at} of {len(self.frame)}")
        self.at += size
        return self.frame[self.at - size : self.at]

    def number(self, kind: str) -> int:
        size = {"b": 1, "h": 2, "i": 4}[kind]
        value: int = unpack_from(">" + kind, self.take(size))[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> 32:
                    break
                return value
            shift += 7
        raise Unreadable("no uvarint")

    def length(self) -> int:
        length = self.uvarint() - 1 if self.compact else self.number("i")
        if length < -1 or length > len(self.frame):
            raise Unreadable(f"{length} elements")
        return length

    def array(self) -> range:
        length = self.length()
        if length < 0:
            raise Unreadable("null in place of an array")
        return range(length)

    def text(self) -> bytes | None:
        size = self.uvarint() - 1 if self.compact else self.number("h")
        if size > 32_767:
            raise Unreadable("a text too long")
        return None if size < 0 else self.take(size)

    def words(self) -> bytes:
        value = self.text()
        if value is None:
            raise Unreadable("null in place of a string")
        return value

    def tags(self) -> None:
        for _ in range(self.uvarint() if self.compact else 0):
            self.uvarint()
            self.take(self.uvarint())


def read_call(frame: bytes, api_key: int, version: int, body_at: int) -> Call:
    """The request that a frame is. Raises Unreadable."""
    cursor = _Cursor(frame, body_at, version >= FLEXIBLE_SINCE[api_key])
    array_at, array = body_at, cursor.array()
    first_at = cursor.at
    items = tuple(_read_item(cursor, api_key, version) for _ in array)
    cursor.take(4)
    validates = api_key == GROW or (api_key == CREATE and version >= 1)
    validate_only = validates and cursor.number("b") != 0
    cursor.tags()
    if cursor.at != len(frame):
        raise Unreadable("more than a request")
    return Call(api_key, version, items, array_at, first_at, validate_only)


def _read_item(cursor: _Cursor, api_key: int, version: int) -> Item:
    start = cursor.at
    if api_key == DELETE:
        doomed, topic_id = (cursor.words(), NO_ID) if version < 6 else (cursor.text(), cursor.take(16))
        if version >= 6:
            cursor.tags()
        return Item(start, cursor.at, doomed, topic_id)
    name = cursor.words()
    partitions = cursor.number("i")
    if api_key == CREATE:
        replication = cursor.number("h")
        assigned = tuple(_read_assignment(cursor) for _ in cursor.array())
        for _ in cursor.array():
            cursor.words()
            cursor.text()
            cursor.tags()
        cursor.tags()
        return Item(start, cursor.at, name, NO_ID, partitions, replication, assigned)
    length = cursor.length()
    for _ in range(length):
        _read_brokers(cursor)
        cursor.tags()
    cursor.tags()
    return Item(start, cursor.at, name, NO_ID, partitions, -1, None if length < 0 else tuple(range(length)))


def _read_assignment(cursor: _Cursor) -> int:
    index = cursor.number("i")
    _read_brokers(cursor)
    cursor.tags()
    return index


def _read_brokers(cursor: _Cursor) -> None:
    cursor.take(4 * len(cursor.array()))


# ---------------------------------------------------------------------- results


@dataclass(slots=True)
class Result:
    """What became of one topic: what is reported, as data and as bytes, and how many partitions were really touched.

    `partitions` is -1 where they are not reported. `disturbed`: another client has changed the topic of late.
    """

    name: bytes | None
    topic_id: bytes
    error: int
    data: bytes
    partitions: int = -1
    did: int = 0
    changed_ms: int = -(2**40)

    def is_of(self, item: Item) -> bool:
        """Whether this may be what became of an item."""
        keys = [(self.name, self.topic_id)]
        if self.name is not None:
            keys.append((self.name, NO_ID))
        if self.topic_id != NO_ID:
            keys.append((None, self.topic_id))
        return item.key in keys


def refusal(call: Call, item: Item, name: bytes | None) -> bytes:
    """The result of a topic that a broker refuses for a quota: error 89, and the topic's name, if that is known."""
    has_id = (call.api_key == CREATE and call.version >= 7) or (call.api_key == DELETE and call.version >= 6)
    topic_id = item.topic_id if has_id else b""
    details = pack(">ih", -1, -1) + count(0, True) if call.api_key == CREATE else b""
    return text(name, True) + topic_id + pack(">h", THROTTLED) + text(None, True) + details + b"\0"


def matched(items: Sequence[Item], results: Sequence[Result]) -> list[Result | None]:
    """For each item the first result that is its, each result once."""
    left = list(results)
    found: list[Result | None] = []
    for item in items:
        mine = next((result for result in left if result.is_of(item)), None)
        if mine is not None:
            left = [result for result in left if result is not mine]
        found.append(mine)
    return found


# ---------------------------------------------------------------------- cluster


@dataclass(slots=True)
class _State:
    at_ms: int
    topic_id: bytes
    partitions: int


class Cluster:
    """The topics that there are. What Metadata says of them is `lag_ms` old."""

    def __init__(self, topics: int, lag_ms: int, default_partitions: int, now_ms: Callable[[], int]) -> None:
        self.default_partitions = default_partitions
        self.done = 0
        """How many partitions have come to be and gone, all in all."""
        self._now_ms = now_ms
        self._lag_ms = lag_ms
        self._ids = 0
        self._states: dict[bytes, list[_State]] = {}
        for i in range(topics):
            self._states[b"t%d" % i] = [_State(0, self._new_id(), i + 1)]

    def _new_id(self) -> bytes:
        self._ids += 1
        return b"id" + self._ids.to_bytes(14, "big")

    def _last(self, name: bytes) -> _State:
        return self._states.get(name, [_State(-(2**40), NO_ID, 0)])[-1]

    def id_of(self, name: bytes) -> bytes:
        """The id of a topic that there is or was; one that no topic has for others."""
        return self._last(name).topic_id if name in self._states else b"no" + name[:14].ljust(14, b"-")

    def name_of(self, topic_id: bytes) -> bytes | None:
        """Which topic has this id."""
        return next((name for name, states in self._states.items() if states[-1].topic_id == topic_id), None)

    def _seen(self, name: bytes) -> _State:
        """As Metadata has it."""
        states = self._states.get(name, [])
        until_ms = self._now_ms() - self._lag_ms
        return next((s for s in reversed(states) if s.at_ms <= until_ms), _State(0, NO_ID, 0))

    def _put(self, name: bytes, topic_id: bytes, partitions: int) -> None:
        self._states.setdefault(name, []).append(_State(self._now_ms(), topic_id, partitions))

    # ------------------------------------------------------------- what Metadata says

    def reported(self, topics: Sequence[tuple[bytes | None, bytes]]) -> list[tuple[bytes | None, bytes, int]]:
        """Name, id and partitions of each topic that is asked for; 0 partitions for one that is unknown."""
        listed: list[tuple[bytes | None, bytes, int]] = []
        for name, topic_id in topics:
            known = name
            if known is None:
                ids = {s.topic_id: each for each, states in self._states.items() for s in states}
                known = ids.get(topic_id)
            seen = self._seen(known) if known is not None else _State(0, NO_ID, 0)
            fits = seen.partitions > 0 and topic_id in (NO_ID, seen.topic_id)
            if fits:
                listed.append((known, seen.topic_id, seen.partitions))
            else:
                listed.append((name, topic_id, 0))
        return listed

    # ------------------------------------------------------------- what is done

    def do(self, call: Call, plan: RequestPlan) -> list[Result]:
        """Do what a request wants, and what its plan says of each topic; the results in the plan's order."""
        by_name = {topic.name: topic for topic in plan.topics}
        names = [item.name for item in call.items]
        results: list[Result] = []
        answered: set[tuple[bytes | None, bytes]] = set()
        for item in call.items:
            if item.key in answered:
                continue  # as nodes do, for each name one result
            answered.add(item.key)
            name = item.name if item.name is not None else self.name_of(item.topic_id)
            topic = by_name.get(name) if name is not None else None
            twice = call.api_key != DELETE and names.count(item.name) > 1
            results.append(self._do_one(call, item, name, topic.error if topic is not None else 0, twice))
        if plan.response.shuffled:
            results.reverse()
        return results[: max(len(results) - plan.response.dropped, 0)]

    def _do_one(self, call: Call, item: Item, name: bytes | None, planned: int, twice: bool) -> Result:
        error, change = self._judge(call, item, name)
        if twice:
            error = _INVALID_REQUEST
        error = error or planned
        did = 0
        before = self._last(name) if name is not None else _State(-(2**40), NO_ID, 0)
        topic_id = before.topic_id if before.partitions else NO_ID
        if error in (OK, TIMED_OUT) and not call.validate_only and name is not None:
            did = abs(change)
            self.done += did
            if call.api_key == CREATE:
                topic_id = self._new_id()
            self._put(name, topic_id, 0 if call.api_key == DELETE else before.partitions + change)
        reported_id = topic_id if error == OK and not (call.validate_only and call.api_key == CREATE) else NO_ID
        reported_name = name
        if item.name is None and error != OK:
            reported_name, reported_id = None, item.topic_id
        partitions = abs(change) if call.api_key == CREATE and error == OK and call.version >= 5 else -1
        has_id = (call.api_key == CREATE and call.version >= 7) or (call.api_key == DELETE and call.version >= 6)
        data = _result_bytes(call, reported_name, reported_id if has_id else b"", error, partitions)
        return Result(reported_name, reported_id if has_id else NO_ID, error, data, partitions, did, before.at_ms)

    def _judge(self, call: Call, item: Item, name: bytes | None) -> tuple[int, int]:
        """The error that a node finds, and by how many partitions the topic changes."""
        present = self._last(name).partitions if name is not None else 0
        if item.name is not None and item.topic_id != NO_ID:
            return _INVALID_REQUEST, 0
        if call.api_key == DELETE:
            if item.name is None:
                return (OK, -present) if present else (_UNKNOWN_ID, 0)
            return (OK, -present) if present else (_UNKNOWN_TOPIC, 0)
        if call.api_key == GROW:
            added = item.partitions - present
            if not present:
                return _UNKNOWN_TOPIC, 0
            fits = 0 < added <= MOST_PARTITIONS and (not item.assigned or len(item.assigned) == added)
            return (OK, added) if fits else (_INVALID_PARTITIONS, 0)
        if name is None or not is_topic_name(name):
            return _INVALID_NAME, 0
        if present:
            return _EXISTS, 0
        if item.assigned:
            whole = sorted(item.assigned) == list(range(len(item.assigned)))
            sound = whole and item.partitions == -1 and item.replication == -1
            return (OK, len(item.assigned)) if sound else (_INVALID_REQUEST, 0)
        wanted = self.default_partitions if item.partitions == -1 else item.partitions
        if not 0 < wanted <= MOST_PARTITIONS or item.replication == 0 or item.replication < -1:
            return _INVALID_PARTITIONS, 0
        return OK, wanted


def is_topic_name(name: bytes) -> bool:
    """Whether Kafka would have a topic called so."""
    legal = all(48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c in b"._-" for c in name)
    return 1 <= len(name) <= 249 and name not in (b".", b"..") and legal


def _result_bytes(call: Call, name: bytes | None, topic_id: bytes, error: int, partitions: int) -> bytes:
    key, version = call.api_key, call.version
    compact = version >= FLEXIBLE_SINCE[key]
    data = text(name, compact) + topic_id + pack(">h", error)
    if (key == CREATE and version >= 1) or (key == DELETE and version >= 5) or key == GROW:
        data += text(b"why" if error else None, compact)
    if key == CREATE and version >= 5:
        config = text(b"retention.ms", True) + text(b"1000", True) + b"\0\5\0\0"
        configs = 2 if error == OK else 0
        data += pack(">ih", partitions, 1 if partitions > 0 else -1) + count(configs, True) + config * configs
    return data + _end(compact)


def response_body(call: Call, plan: ResponsePlan, results: Sequence[Result]) -> wire.Body:
    """The body of the response that has these results."""
    compact = call.version >= FLEXIBLE_SINCE[call.api_key]
    throttle = pack(">i", plan.throttle_ms) if call.version >= THROTTLE_SINCE[call.api_key] else b""
    array = count(len(results), compact) + b"".join(result.data for result in results)
    body = throttle + array + (tags(plan.tag_bytes) if compact else b"")
    return wire.Body(body, body, 0 if throttle else -1, array=(len(throttle), len(throttle + array)))


# ------------------------------------------------------------------- Metadata requests of the proxy


def own_requests(call: Call) -> list[bytes]:
    """The Metadata requests with which a proxy learns all that it must know of the topics of a request."""
    keys: list[tuple[bytes | None, bytes]] = []
    for item in call.items:
        if item.key not in keys and has_one_key(item):
            keys.append(item.key)
    names = [name for name, _ in keys if name is not None]
    ids = [topic_id for name, topic_id in keys if name is None]
    frames = []
    if names:
        array = pack(">i", len(names)) + b"".join(text(name, False) for name in names)
        frames.append(_own_request(BY_NAME, array + b"\0"))
    if ids:
        array = count(len(ids), True) + b"".join(topic_id + b"\0\0" for topic_id in ids)
        frames.append(_own_request(BY_ID, b"\0" + array + b"\0\0\0"))
    return frames


def _own_request(version: int, body: bytes) -> bytes:
    return framed(pack(">hhi", 3, version, -0x6B74) + text(b"kafka-throttle", False) + body)


def has_one_key(item: Item) -> bool:
    """Whether a topic is named in one way that may be one."""
    if item.name is None:
        return item.topic_id != NO_ID
    return item.topic_id == NO_ID and is_topic_name(item.name)


def read_own_request(frame: bytes, version: int) -> list[tuple[bytes | None, bytes]]:
    """Which topics a Metadata request of these two versions asks for. Raises Unreadable."""
    cursor = _Cursor(frame, 12, False)
    cursor.text()
    if version == BY_NAME:
        return [(cursor.words(), NO_ID) for _ in cursor.array()]
    cursor.compact = True
    cursor.tags()
    wanted: list[tuple[bytes | None, bytes]] = []
    for _ in cursor.array():
        topic_id = cursor.take(16)
        wanted.append((cursor.text(), topic_id))
        cursor.tags()
    return wanted


def metadata_body(version: int, reported: Sequence[tuple[bytes | None, bytes, int]], plan: ResponsePlan) -> wire.Body:
    """The body of the response to a Metadata request of the proxy."""
    compact = version >= 9
    brokers = [_broker(i, compact) for i in range(plan.nodes)]
    start = pack(">i", plan.throttle_ms) + count(len(brokers), compact) + b"".join(brokers)
    start += text(b"cluster", compact) + pack(">i", 1)
    topics = [_described(name, topic_id, partitions, compact) for name, topic_id, partitions in reported]
    body = start + count(len(topics), compact) + b"".join(topics) + (tags(plan.tag_bytes) if compact else b"")
    return wire.Body(body, body, 0, reported=tuple(reported))


def _broker(node_id: int, compact: bool) -> bytes:
    return pack(">i", node_id) + text(b"inside", compact) + pack(">i", 9092) + text(None, compact) + _end(compact)


def _described(name: bytes | None, topic_id: bytes, partitions: int, compact: bool) -> bytes:
    if not compact:
        one = pack(">hii", 0, 0, 1) + pack(">iii", 2, 1, 2) + pack(">ii", 1, 1)
        error = 0 if partitions else _UNKNOWN_TOPIC
        return pack(">h", error) + text(name, False) + b"\0" + pack(">i", partitions) + one * partitions
    one = pack(">hiii", 0, 0, 1, 7) + count(1, True) + pack(">i", 1) + count(1, True) + pack(">i", 1) + b"\1\0"
    error = 0 if partitions else _UNKNOWN_ID
    start = pack(">h", error) + text(name, True) + topic_id + b"\0" + count(partitions, True)
    return start + one * partitions + pack(">i", -(2**31)) + b"\0"
