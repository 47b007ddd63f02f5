"""CreateTopics, DeleteTopics and CreatePartitions: which topics a request names, taking some of them out of it, and
answering for those (KIP-599).

Names stay the bytes that they are. Items and results keep their place in the frame, so that what is sent on is what
was received, unknown tagged fields included. Offsets count from the frame's start, its length prefix included.
Sources: `CreateTopicsRequest.json` and its five neighbours.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import MalformedMessage, TooManyElements, TruncatedMessage
from protocol.primitives import Reader, compact_string, int16, int32, uvarint
from protocol.splices import Splice

CREATE_TOPICS = 19
DELETE_TOPICS = 20
CREATE_PARTITIONS = 37

TOPIC_MUTATIONS = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})

STRICT_SINCE = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""From these versions on clients know error 89; all of them are flexible."""

THROTTLING_QUOTA_EXCEEDED = 89

MAX_ELEMENTS = 10_000
"""How many topics, assignments, configurations and tagged fields one request may have, together: all are read at one
go. A KRaft controller, too, takes no more than 10,000 changes at a time.
"""

NO_TOPIC_ID = bytes(16)

_FLEXIBLE_SINCE = {CREATE_TOPICS: 5, DELETE_TOPICS: 4, CREATE_PARTITIONS: 2}
_THROTTLE_SINCE = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
_VALIDATE_ONLY_SINCE = 1
_RESULT_TOPIC_ID_SINCE = {CREATE_TOPICS: 7, DELETE_TOPICS: 6, CREATE_PARTITIONS: 32767}
_MESSAGE_SINCE = {CREATE_TOPICS: 1, DELETE_TOPICS: 5, CREATE_PARTITIONS: 0}
_DETAILS_SINCE = 5
_STATES_SINCE = 6

_CLIENT_ID_AT = 12
_BODY_AT = 8
_MAX_STRING_BYTES = 32_767
_NO_MESSAGE = b"\0"
_NO_DETAILS = int32(-1) + int16(-1) + uvarint(1)
"""num_partitions and replication_factor that nobody knows, no configurations."""


class TopicItem(NamedTuple):
    """One topic of a request; it stands in [start, end).

    `partitions` is num_partitions of CreateTopics, count of CreatePartitions and 0 in DeleteTopics. `assigned` are the
    partition indexes of the assignments, of CreatePartitions as if they were numbered from 0; None for null.
    DeleteTopics from v6 on names a topic by `name`, which may be None, or by `topic_id`, NO_TOPIC_ID where it has none.
    """

    start: int
    end: int
    name: bytes | None
    topic_id: bytes = NO_TOPIC_ID
    partitions: int = 0
    replication_factor: int = -1
    assigned: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """What a request is about: the length of its array of topics stands in [count_at, first_at)."""

    api_key: int
    api_version: int
    items: tuple[TopicItem, ...]
    count_at: int
    first_at: int
    validate_only: bool

    @property
    def strict(self) -> bool:
        """Whether this version knows error 89, so that topics may be refused."""
        return self.api_version >= STRICT_SINCE[self.api_key]

    def without(self, refused: Collection[int]) -> tuple[Splice, ...]:
        """The splices that take the items with these numbers out of the request."""
        if not refused:
            return ()
        flexible = self.api_version >= _FLEXIBLE_SINCE[self.api_key]
        kept = len(self.items) - len(refused)
        splices = [Splice(self.count_at, self.first_at, uvarint(kept + 1) if flexible else int32(kept))]
        for i in sorted(refused):
            item = self.items[i]
            if splices[-1].end == item.start and len(splices) > 1:
                splices[-1] = Splice(splices[-1].start, item.end, b"")
            else:
                splices.append(Splice(item.start, item.end, b""))
        return tuple(splices)


class TopicResult(NamedTuple):
    """What became of one topic; it stands in [start, end). `partitions` is -1 where the answer does not say."""

    start: int
    end: int
    name: bytes | None
    topic_id: bytes
    error_code: int
    partitions: int = -1


@dataclass(frozen=True, slots=True)
class MutationAnswer:
    """What an answer says. `throttle_at` is -1 if it has no throttle time; its results stand in [count_at, end)."""

    results: tuple[TopicResult, ...]
    throttle_at: int
    count_at: int
    end: int

    def matched(self, items: Sequence[TopicItem]) -> list[TopicResult | None]:
        """The result of each item, each result once. Nodes give them in any order, and one for a name given twice."""
        waiting: dict[tuple[bytes | None, bytes], list[TopicResult]] = {}
        for result in reversed(self.results):
            for key in _keys_of(result):
                waiting.setdefault(key, []).append(result)
        taken: set[int] = set()
        return [_take(waiting.get((item.name, item.topic_id), []), taken) for item in items]

    def merged(self, frame: bytes, items: Sequence[TopicItem], refusals: Mapping[int, bytes]) -> Splice:
        """The splice that puts results of our own, by the number of their item, among those of a strict version.

        They come in the order of the request; what belongs to none of its items comes last.
        """
        others = [item for i, item in enumerate(items) if i not in refusals]
        matched = self.matched(others)
        found = iter(matched)
        pieces = [refusals[i] if i in refusals else _bytes_of(next(found), frame) for i in range(len(items))]
        known = {result.start for result in matched if result is not None}
        rest = [result for result in self.results if result.start not in known]
        pieces += [_bytes_of(result, frame) for result in rest]
        count = len(refusals) + len(self.results)
        return Splice(self.count_at, self.end, uvarint(count + 1) + b"".join(pieces))


def _keys_of(result: TopicResult) -> set[tuple[bytes | None, bytes]]:
    """The names and ids under which the topic of a result may have been asked for."""
    keys = {(result.name, result.topic_id)}
    if result.name is not None:
        keys.add((result.name, NO_TOPIC_ID))
    if result.topic_id != NO_TOPIC_ID:
        keys.add((None, result.topic_id))
    return keys


def _take(waiting: list[TopicResult], taken: set[int]) -> TopicResult | None:
    while waiting:
        result = waiting.pop()
        if result.start not in taken:
            taken.add(result.start)
            return result
    return None


def _bytes_of(result: TopicResult | None, frame: bytes) -> bytes:
    return b"" if result is None else frame[result.start : result.end]


# ------------------------------------------------------------------------------ reading


def read_mutation_request(frame: bytes, api_key: int, api_version: int) -> MutationRequest:
    """The request that `frame` is, a whole one. Raises ProtocolError."""
    fields = _Fields(frame, _CLIENT_ID_AT, api_key, api_version)
    fields.client_id()
    item = {CREATE_TOPICS: fields.new_topic, DELETE_TOPICS: fields.doomed_topic, CREATE_PARTITIONS: fields.grown_topic}
    count_at, count = fields.offset, fields.length()
    first_at = fields.offset
    items = tuple(item[api_key]() for _ in range(count))
    fields.skip(4)
    may_validate = api_key == CREATE_PARTITIONS or (api_key == CREATE_TOPICS and api_version >= _VALIDATE_ONLY_SINCE)
    validate_only = may_validate and fields.int8() != 0
    fields.end_of_message()
    return MutationRequest(api_key, api_version, items, count_at, first_at, validate_only)


def read_mutation_answer(frame: bytes, api_key: int, api_version: int) -> MutationAnswer:
    """The answer that `frame` is, a whole one. Raises ProtocolError."""
    fields = _Fields(frame, _BODY_AT, api_key, api_version, most_elements=len(frame))
    fields.tags()
    throttle_at = fields.skip(4) if api_version >= _THROTTLE_SINCE[api_key] else -1
    count_at, count = fields.offset, fields.length()
    results = tuple(fields.result() for _ in range(count))
    end = fields.offset
    fields.end_of_message()
    return MutationAnswer(results, throttle_at, count_at, end)


class _Fields(Reader):
    """Reads what the three APIs are made of."""

    __slots__ = ("_compact", "_key", "_left", "_version")

    def __init__(
        self, frame: bytes, offset: int, api_key: int, api_version: int, most_elements: int = MAX_ELEMENTS
    ) -> None:
        super().__init__(frame, offset)
        self._key = api_key
        self._version = api_version
        self._compact = api_version >= _FLEXIBLE_SINCE[api_key]
        self._left = most_elements

    def client_id(self) -> None:
        self.string()
        self.tags()

    def length(self, least_bytes: int = 1) -> int:
        """How many elements follow; TooManyElements if they and those before them are more than allowed."""
        length = self.nullable_length(least_bytes)
        if length < 0:
            raise MalformedMessage(f"null in place of an array, before offset {self.offset}")
        return length

    def nullable_length(self, least_bytes: int = 1) -> int:
        length = self.count(self._compact, least_bytes)
        self._left -= max(length, 0)
        if self._left < 0:
            raise TooManyElements(f"more than {MAX_ELEMENTS} topics, assignments and configurations in one request")
        return length

    def tags(self, most: int = 0xFFFF_FFFF) -> int:
        """The tagged fields that end every structure of a flexible version."""
        count = super().tags(min(most, self._left)) if self._compact else 0
        self._left -= count
        return count

    def end_of_message(self) -> None:
        self.tags()
        if self.offset != self._end:
            raise MalformedMessage(f"{self._end - self.offset} bytes behind the last field")

    def nullable_text(self) -> bytes | None:
        text = self.compact_string() if self._compact else self.string()
        if text is not None and len(text) > _MAX_STRING_BYTES:
            raise MalformedMessage(f"a string of {len(text)} bytes before offset {self.offset}")
        return text

    def text(self) -> bytes:
        text = self.nullable_text()
        if text is None:
            raise MalformedMessage(f"null in place of a string, before offset {self.offset}")
        return text

    def topic_id(self) -> bytes:
        at = self.skip(16)
        return bytes(self._frame[at : at + 16])

    def _broker_ids(self) -> None:
        count = self.count(self._compact, 4)
        if count < 0:
            raise MalformedMessage(f"null in place of an array, before offset {self.offset}")
        self.skip(4 * count)

    def new_topic(self) -> TopicItem:
        start, name = self.offset, self.text()
        partitions, replication_factor = self.int32(), self.int16()
        assigned = tuple(self._assignment() for _ in range(self.length()))
        for _ in range(self.length()):
            self.text()
            self.nullable_text()
            self.tags()
        self.tags()
        return TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, replication_factor, assigned)

    def _assignment(self) -> int:
        index = self.int32()
        self._broker_ids()
        self.tags()
        return index

    def doomed_topic(self) -> TopicItem:
        start = self.offset
        if self._version < _STATES_SINCE:
            name = self.text()
            return TopicItem(start, self.offset, name)
        name_or_null, topic_id = self.nullable_text(), self.topic_id()
        self.tags()
        return TopicItem(start, self.offset, name_or_null, topic_id)

    def grown_topic(self) -> TopicItem:
        start, name, partitions = self.offset, self.text(), self.int32()
        assignments = self.nullable_length()
        for _ in range(assignments):
            self._broker_ids()
            self.tags()
        self.tags()
        assigned = None if assignments < 0 else tuple(range(assignments))
        return TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, -1, assigned)

    def result(self) -> TopicResult:
        start, name, topic_id, partitions = self.offset, self.nullable_text(), NO_TOPIC_ID, -1
        if self._version >= _RESULT_TOPIC_ID_SINCE[self._key]:
            topic_id = self.topic_id()
        error_code = self.int16()
        if self._version >= _MESSAGE_SINCE[self._key]:
            self.nullable_text()
        if self._key == CREATE_TOPICS and self._version >= _DETAILS_SINCE:
            partitions = self.int32()
            self.skip(2)
            self._skip_configs(self.nullable_length())
        self.tags()
        return TopicResult(start, self.offset, name, topic_id, error_code, partitions)

    def _skip_configs(self, count: int) -> None:
        """Step over configurations: name, value, three bytes, tags. There may be hundreds of thousands."""
        frame, at = self._frame, self.offset
        try:
            for _ in range(count):
                for _ in range(2):
                    size = frame[at]
                    if size < 0x80:
                        at += size or 1
                    else:
                        self.offset = at
                        size = self.uvarint()
                        at = self.offset + size - 1
                at += 3
                self.offset = at
                if frame[at]:
                    self.tags()
                    at = self.offset
                else:
                    at += 1
        except IndexError:
            raise TruncatedMessage(at, 1, self._end) from None
        self.offset = at


# ------------------------------------------------------------------------------ writing


def refusal(request: MutationRequest, item: TopicItem) -> bytes:
    """The result of an item that is refused with error 89; for strict versions."""
    topic_id = item.topic_id if request.api_version >= _RESULT_TOPIC_ID_SINCE[request.api_key] else b""
    name = b"\0" if item.name is None else compact_string(item.name)
    details = _NO_DETAILS if request.api_key == CREATE_TOPICS else b""
    return name + topic_id + int16(THROTTLING_QUOTA_EXCEEDED) + _NO_MESSAGE + details + b"\0"


def refusals_answer(correlation_id: int, refusals: Iterable[bytes]) -> bytes:
    """The whole frame that answers a request of a strict version all of whose items are refused; throttle time 0."""
    results = list(refusals)
    body = int32(correlation_id) + b"\0" + int32(0) + uvarint(len(results) + 1) + b"".join(results) + b"\0"
    return int32(len(body)) + body
