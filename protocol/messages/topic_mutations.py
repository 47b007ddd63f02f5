"""CreateTopics, DeleteTopics and CreatePartitions (KIP-599): reads which topics a request names, takes refused ones
out, and writes their results.

Names stay raw bytes. Items and results keep their place in the frame, so that what is sent on is what was received,
with unknown tagged fields. Offsets count from the frame's start, its length prefix included. Sources:
`CreateTopicsRequest.json` and its five neighbours.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import MalformedMessage, TruncatedMessage
from protocol.fields import MAX_TAGS
from protocol.primitives import Reader, compact_string, int16, int32, uvarint
from protocol.splices import Splice

TOPIC_MUTATIONS = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})

STRICT_SINCE = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""From these versions on clients know error 89; all these versions are flexible."""

THROTTLING_QUOTA_EXCEEDED = 89

ELEMENTS_AT_ONCE = 100
"""How many elements are processed in one step: messages with thousands are read, matched and merged in steps."""

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
"""num_partitions and replication_factor that are unknown, and no configurations."""


class TopicItem(NamedTuple):
    """One topic of a request, in [start, end).

    `partitions` is num_partitions of CreateTopics, count of CreatePartitions and 0 in DeleteTopics. `assigned` are the
    partition indexes of the assignments; those of CreatePartitions are numbered from 0; None for null. DeleteTopics
    from v6 on names a topic by `name`, which may be None, or by `topic_id`, which is NO_TOPIC_ID if there is none.
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
    """A request; the length of its array of topics is in [count_at, first_at)."""

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
    """The result for one topic, in [start, end). `partitions` is -1 if the response does not have it."""

    start: int
    end: int
    name: bytes | None
    topic_id: bytes
    error_code: int
    partitions: int = -1


@dataclass(frozen=True, slots=True)
class MutationResponse:
    """A response. `throttle_at` is -1 if it has no throttle time; its results are in [count_at, end)."""

    results: tuple[TopicResult, ...]
    throttle_at: int
    count_at: int
    end: int

    def matching(self, items: Sequence[TopicItem]) -> Generator[None, None, list[TopicResult | None]]:
        """The result of each item; each result is used once.

        Nodes give results in any order, and one result for a name that is given twice.
        """
        waiting: dict[tuple[bytes | None, bytes], list[TopicResult]] = {}
        for number, result in enumerate(reversed(self.results), 1):
            for key in _keys_of(result):
                waiting.setdefault(key, []).append(result)
            if not number % ELEMENTS_AT_ONCE:
                yield
        taken: set[int] = set()
        found: list[TopicResult | None] = []
        for number, item in enumerate(items, 1):
            found.append(_take(waiting.get((item.name, item.topic_id), []), taken))
            if not number % ELEMENTS_AT_ONCE:
                yield
        return found

    def merging(
        self, frame: bytes, items: Sequence[TopicItem], refusals: Mapping[int, bytes]
    ) -> Generator[None, None, Splice]:
        """The splice that puts the proxy's own results, by the number of their item, among those of a strict version.

        They come in the order of the request; results that belong to none of its items come last.
        """
        others = [item for i, item in enumerate(items) if i not in refusals]
        matched = yield from self.matching(others)
        found = iter(matched)
        pieces: list[bytes] = []
        for i in range(len(items)):
            pieces.append(refusals[i] if i in refusals else _bytes_of(next(found), frame))
            if not (i + 1) % ELEMENTS_AT_ONCE:
                yield
        known = {result.start for result in matched if result is not None}
        pieces += [_bytes_of(result, frame) for result in self.results if result.start not in known]
        count = len(refusals) + len(self.results)
        return Splice(self.count_at, self.end, uvarint(count + 1) + b"".join(pieces))


def _keys_of(result: TopicResult) -> set[tuple[bytes | None, bytes]]:
    """The names and ids by which a request may have asked for the topic of a result."""
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


class MutationReader:
    """Reads a request topic by topic: first all `items`, then the rest with `request`. Raises ProtocolError."""

    def __init__(self, frame: bytes, api_key: int, api_version: int) -> None:
        self._api_key, self._api_version = api_key, api_version
        self._fields = _Fields(frame, _CLIENT_ID_AT, api_key, api_version)
        self._fields.client_id()
        self._count_at, self._count = self._fields.offset, self._fields.length()
        self._first_at = self._fields.offset

    def items(self) -> Iterator[TopicItem | None]:
        """The topics, one by one, and None after each ELEMENTS_AT_ONCE assignments or configurations of a topic."""
        fields = self._fields
        item = {CREATE_TOPICS: fields.new_topic, DELETE_TOPICS: fields.doomed_topic}
        read = item.get(self._api_key, fields.grown_topic)
        for _ in range(self._count):
            yield from read()

    def request(self, items: Sequence[TopicItem]) -> MutationRequest:
        """The request with all its items."""
        fields, api_key, api_version = self._fields, self._api_key, self._api_version
        fields.skip(4)
        may_validate = api_key == CREATE_PARTITIONS or (
            api_key == CREATE_TOPICS and api_version >= _VALIDATE_ONLY_SINCE
        )
        validate_only = may_validate and fields.int8() != 0
        fields.end_of_message()
        return MutationRequest(api_key, api_version, tuple(items), self._count_at, self._first_at, validate_only)


class MutationResponseReader:
    """Reads a response result by result: first all `results`, then the rest with `response`. Raises ProtocolError."""

    def __init__(self, frame: bytes, api_key: int, api_version: int) -> None:
        self._fields = _Fields(frame, _BODY_AT, api_key, api_version)
        self._fields.tags()
        self._throttle_at = self._fields.skip(4) if api_version >= _THROTTLE_SINCE[api_key] else -1
        self._count_at, self._count = self._fields.offset, self._fields.length()

    def results(self) -> Iterator[TopicResult]:
        """The result for each topic, one by one."""
        for _ in range(self._count):
            yield self._fields.result()

    def response(self, results: Sequence[TopicResult]) -> MutationResponse:
        """The response with all its results."""
        end = self._fields.offset
        self._fields.end_of_message()
        return MutationResponse(tuple(results), self._throttle_at, self._count_at, end)


class _Fields(Reader):
    """Reads the structures of the three APIs."""

    __slots__ = ("_compact", "_key", "_version")

    def __init__(self, frame: bytes, offset: int, api_key: int, api_version: int) -> None:
        super().__init__(frame, offset)
        self._key = api_key
        self._version = api_version
        self._compact = api_version >= _FLEXIBLE_SINCE[api_key]

    def client_id(self) -> None:
        self.string()
        self.tags()

    def length(self, least_bytes: int = 1) -> int:
        """How many elements follow."""
        length = self.nullable_length(least_bytes)
        if length < 0:
            raise MalformedMessage(f"null in place of an array, before offset {self.offset}")
        return length

    def nullable_length(self, least_bytes: int = 1) -> int:
        return self.count(self._compact, least_bytes)

    def tags(self, most: int = MAX_TAGS) -> int:
        """Step over the tagged fields that end every structure of a flexible version."""
        return super().tags(most) if self._compact else 0

    def end_of_message(self) -> None:
        self.tags()
        if self.offset != self._end:
            raise MalformedMessage(f"{self._end - self.offset} bytes after the last field")

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

    def new_topic(self) -> Iterator[TopicItem | None]:
        start, name = self.offset, self.text()
        partitions, replication_factor = self.int32(), self.int16()
        assigned: list[int] = []
        for number in range(1, self.length() + 1):
            assigned.append(self._assignment())
            if not number % ELEMENTS_AT_ONCE:
                yield None
        for number in range(1, self.length() + 1):
            self.text()
            self.nullable_text()
            self.tags()
            if not number % ELEMENTS_AT_ONCE:
                yield None
        self.tags()
        yield TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, replication_factor, tuple(assigned))

    def _assignment(self) -> int:
        index = self.int32()
        self._broker_ids()
        self.tags()
        return index

    def doomed_topic(self) -> Iterator[TopicItem]:
        start = self.offset
        if self._version < _STATES_SINCE:
            name = self.text()
            yield TopicItem(start, self.offset, name)
            return
        name_or_null, topic_id = self.nullable_text(), self.topic_id()
        self.tags()
        yield TopicItem(start, self.offset, name_or_null, topic_id)

    def grown_topic(self) -> Iterator[TopicItem | None]:
        start, name, partitions = self.offset, self.text(), self.int32()
        assignments = self.nullable_length()
        for number in range(1, assignments + 1):
            self._broker_ids()
            self.tags()
            if not number % ELEMENTS_AT_ONCE:
                yield None
        self.tags()
        assigned = None if assignments < 0 else tuple(range(assignments))
        yield TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, -1, assigned)

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
                        at = self.offset + max(size - 1, 0)
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


def refusal(request: MutationRequest, item: TopicItem, name: bytes | None) -> bytes:
    """The result of an item that is refused with error 89, for strict versions. `name` is that of the topic, if known.

    As in a broker's result, a topic that was asked for by its id has its name, too.
    """
    topic_id = item.topic_id if request.api_version >= _RESULT_TOPIC_ID_SINCE[request.api_key] else b""
    text = b"\0" if name is None else compact_string(name)
    details = _NO_DETAILS if request.api_key == CREATE_TOPICS else b""
    return text + topic_id + int16(THROTTLING_QUOTA_EXCEEDED) + _NO_MESSAGE + details + b"\0"


def refusals_response(correlation_id: int, refusals: Iterable[bytes]) -> bytes:
    """The response, a whole frame, to a request of a strict version whose items are all refused; throttle time 0."""
    results = list(refusals)
    body = int32(correlation_id) + b"\0" + int32(0) + uvarint(len(results) + 1) + b"".join(results) + b"\0"
    return int32(len(body)) + body
