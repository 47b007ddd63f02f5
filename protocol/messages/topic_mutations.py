"""CreateTopics, DeleteTopics and CreatePartitions (KIP-599): reads which topics a request names, takes refused ones
out, and writes their results.

A message may name a million topics: what is remembered of each is its place, and little more, in flat arrays. Names
stay raw bytes. Items and results keep their place in the frame, so that what is sent on is what was received,
with unknown tagged fields. Offsets count from the frame's start, its length prefix included. Sources:
`CreateTopicsRequest.json` and its five neighbours.
"""

from array import array
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple, Protocol

from kafka_throttle.protocol.api_key import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafka_throttle.protocol.errors import MalformedMessage, TruncatedMessage
from kafka_throttle.protocol.fields import MAX_TAGS
from kafka_throttle.protocol.numbers_by_key import NO_NUMBER, NumbersByKey
from kafka_throttle.protocol.primitives import Reader, compact_string, int16, int32, uvarint
from kafka_throttle.protocol.splices import Splice, joined

TOPIC_MUTATIONS = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})

STRICT_SINCE = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""From these versions on clients know error 89; all these versions are flexible."""

THROTTLING_QUOTA_EXCEEDED = 89

ELEMENTS_AT_ONCE = 50
"""How many elements are processed in one step: messages with thousands are read, matched and merged in steps."""

NO_TOPIC_ID = bytes(16)

_FLEXIBLE_SINCE = {CREATE_TOPICS: 5, DELETE_TOPICS: 4, CREATE_PARTITIONS: 2}
_THROTTLE_SINCE = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
_VALIDATE_ONLY_SINCE = 1
_RESULT_TOPIC_ID_SINCE = {CREATE_TOPICS: 7, DELETE_TOPICS: 6, CREATE_PARTITIONS: 32767}
_MESSAGE_SINCE = {CREATE_TOPICS: 1, DELETE_TOPICS: 5, CREATE_PARTITIONS: 0}
_DETAILS_SINCE = 5
_STATES_SINCE = 6

NO_RESULT = NO_NUMBER
"""In place of the number of a result."""

GAPS = -1
"""In place of the number of partitions that have assignments."""

_BEFORE_AN_ID = b"/"
"""No valid name of a topic begins with it."""

_CLIENT_ID_AT = 12
_BODY_AT = 8
_MAX_STRING_BYTES = 32_767
_ASSIGNMENT_BYTES = 4
_NO_MESSAGE = b"\0"
_NO_DETAILS = int32(-1) + int16(-1) + uvarint(1)
"""num_partitions and replication_factor that are unknown, and no configurations."""


class TopicItem(NamedTuple):
    """One topic of a request, in [start, end).

    `partitions` is num_partitions of CreateTopics, count of CreatePartitions and 0 in DeleteTopics. `assigned` is how
    many partitions have assignments; GAPS if those of CreateTopics are not numbered from 0 on. DeleteTopics from v6 on
    names a topic by `name`, which may be None, or by `topic_id`, which is NO_TOPIC_ID if there is none.
    """

    start: int
    end: int
    name: bytes | None
    topic_id: bytes = NO_TOPIC_ID
    partitions: int = 0
    replication_factor: int = -1
    assigned: int = 0

    def key(self) -> bytes:
        """What two items that mean the same topic have in common: its name; its id, if the topic has no name here."""
        return _BEFORE_AN_ID + self.topic_id if self.name is None else self.name


class Topics(Protocol):
    """The topics of a request, by their numbers. Their assignments are not needed."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> TopicItem:
        """One of them."""


class Refusals(Protocol):
    """The proxy's own results, by the number of their item."""

    def __len__(self) -> int:
        """How many there are."""

    def __contains__(self, number: object, /) -> bool:
        """Whether there is one for this item."""

    def __getitem__(self, number: int, /) -> bytes:
        """The result of this item."""


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A request; the length of its array of topics is in [count_at, first_at)."""

    api_key: int
    api_version: int
    items: Topics
    count_at: int
    first_at: int
    validate_only: bool

    @property
    def strict(self) -> bool:
        """Whether this version knows error 89, so that topics may be refused."""
        return self.api_version >= STRICT_SINCE[self.api_key]

    def without(self, frame: bytes, refused: Collection[int]) -> Generator[None, None, tuple[Splice, ...]]:
        """The splices that take the items with these ascending numbers out of the request."""
        if not refused:
            return ()
        flexible = self.api_version >= _FLEXIBLE_SINCE[self.api_key]
        kept = len(self.items) - len(refused)
        splices = [Splice(self.count_at, self.first_at, uvarint(kept + 1) if flexible else int32(kept))]
        step: list[Splice] = []
        for number, i in enumerate(refused, 1):
            item = self.items[i]
            if step and step[-1].end == item.start:
                step[-1] = Splice(step[-1].start, item.end, b"")
            else:
                step.append(Splice(item.start, item.end, b""))
            if not number % ELEMENTS_AT_ONCE:
                splices += joined(frame, step)
                step = []
                yield
        return (*splices, *joined(frame, step))


class TopicPlaces:
    """The topics of a request, each read anew from its place in the frame: one takes 4 bytes.

    Their replication factors and assignments are not read.
    """

    def __init__(self, frame: bytes, api_key: int, api_version: int) -> None:
        self._fields = _Fields(frame, 0, api_key, api_version)
        self._starts = array("I")
        self._end = 0

    def add(self, item: TopicItem) -> None:
        """Add the topic that follows the last one."""
        self._starts.append(item.start)
        self._end = item.end

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> TopicItem:
        starts = self._starts
        end = starts[number + 1] if number + 1 < len(starts) else self._end
        return self._fields.topic_at(starts[number], end)

    def key(self, number: int) -> bytes:
        """The `TopicItem.key` of one of them."""
        return self._fields.topic_key_at(self._starts[number])


class TopicResult(NamedTuple):
    """The result for one topic, in [start, end). `partitions` is -1 if the response does not have it."""

    start: int
    end: int
    name: bytes | None
    topic_id: bytes
    error_code: int
    partitions: int = -1


class Results(Protocol):
    """The results in a response, by their numbers."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> TopicResult:
        """One of them."""


class ResultPlaces:
    """The results in a response, each read anew from its place in the frame: one takes 4 bytes."""

    def __init__(self, frame: bytes, api_key: int, api_version: int) -> None:
        self._fields = _Fields(frame, 0, api_key, api_version)
        self._starts = array("I")

    def add(self, result: TopicResult) -> None:
        """Add the result that follows the last one."""
        self._starts.append(result.start)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> TopicResult:
        self._fields.offset = self._starts[number]
        return self._fields.result()


class _Unclaimed:
    """The results that no item has got yet, found by name or by id. Of several with the same, the first comes first."""

    def __init__(self, results: Results) -> None:
        self.taken = bytearray(len(results))
        self._results = results
        self._by_name = NumbersByKey(len(results), self._name_of)
        self._by_id = NumbersByKey(len(results), self._id_of)
        self._next = array("i", [NO_RESULT]) * (2 * len(results))
        """After each result the next one with the same name, and then after each the next one with the same id."""

    def _name_of(self, number: int) -> bytes:
        name = self._results[number].name
        assert name is not None
        return name

    def _id_of(self, number: int) -> bytes:
        return self._results[number].topic_id

    def note(self, number: int) -> None:
        """Note a result. The last one is noted first."""
        result, next_one = self._results[number], self._next
        if result.name is not None:
            next_one[number] = self._by_name.get(result.name)
            self._by_name.put(result.name, number)
        if result.name is None or result.topic_id != NO_TOPIC_ID:
            next_one[number + len(self.taken)] = self._by_id.get(result.topic_id)
            self._by_id.put(result.topic_id, number)

    def take(self, item: TopicItem) -> int:
        """The number of the result for an item; NO_RESULT if there is none. Each result is given once."""
        if item.name is None:
            return self._take(self._by_id, item.topic_id, len(self.taken))
        number = self._by_name.get(item.name)
        if number != NO_RESULT and item.topic_id != NO_TOPIC_ID and self._results[number].topic_id != item.topic_id:
            return NO_RESULT
        return self._take(self._by_name, item.name, 0)

    def _take(self, firsts: NumbersByKey, key: bytes, offset: int) -> int:
        number = firsts.get(key)
        while number != NO_RESULT and self.taken[number]:
            number = self._next[number + offset]
        if number != NO_RESULT:
            self.taken[number] = 1
            following = self._next[number + offset]
            if following != NO_RESULT:
                firsts.put(key, following)
        return number


@dataclass(frozen=True, slots=True)
class MutationResponse:
    """A response. `throttle_at` is -1 if it has no throttle time; its results are in [count_at, end)."""

    results: Results
    throttle_at: int
    count_at: int
    end: int

    def matching(self, items: Topics, numbers: Sequence[int]) -> "Generator[None, None, array[int]]":
        """For each of the items with these numbers the number of its result, NO_RESULT if it has none.

        Each result is used once. Nodes give results in any order, and one result for a name that is given twice.
        """
        unclaimed = yield from self._unclaimed()
        return (yield from self._matching(unclaimed, items, numbers))

    def _unclaimed(self) -> Generator[None, None, _Unclaimed]:
        count = len(self.results)
        unclaimed = _Unclaimed(self.results)
        for done in range(1, count + 1):
            unclaimed.note(count - done)
            if not done % ELEMENTS_AT_ONCE:
                yield
        return unclaimed

    def _matching(
        self, unclaimed: _Unclaimed, items: Topics, numbers: Sequence[int]
    ) -> "Generator[None, None, array[int]]":
        found = array("i")
        for done, number in enumerate(numbers, 1):
            found.append(unclaimed.take(items[number]))
            if not done % ELEMENTS_AT_ONCE:
                yield
        return found

    def merging(self, frame: bytes, items: Topics, refusals: Refusals) -> Generator[None, None, Splice]:
        """The splice that puts the proxy's own results, by the number of their item, among those of a strict version.

        They come in the order of the request; results that belong to none of its items come last.
        """
        unclaimed = yield from self._unclaimed()
        merged = BytesIO()  # it grows step by step, and is not copied at the end
        merged.write(uvarint(len(refusals) + len(self.results) + 1))
        for number in range(len(items)):
            if number in refusals:
                merged.write(refusals[number])
            elif (found := unclaimed.take(items[number])) != NO_RESULT:
                merged.write(self._bytes_of(frame, found))
            if not (number + 1) % ELEMENTS_AT_ONCE:
                yield
        for number in range(len(self.results)):
            if not unclaimed.taken[number]:
                merged.write(self._bytes_of(frame, number))
            if not (number + 1) % ELEMENTS_AT_ONCE:
                yield
        return Splice(self.count_at, self.end, merged.getvalue())

    def _bytes_of(self, frame: bytes, number: int) -> bytes:
        result = self.results[number]
        return frame[result.start : result.end]


# ------------------------------------------------------------------------------ reading


class MutationReader:
    """Reads a request topic by topic: first all `items`, then the rest with `request`. Raises ProtocolError."""

    def __init__(self, frame: bytes, api_key: int, api_version: int) -> None:
        self._api_key, self._api_version = api_key, api_version
        self._fields = _Fields(frame, _CLIENT_ID_AT, api_key, api_version)
        self._fields.client_id()
        self._count_at, self.count = self._fields.offset, self._fields.length()
        self._first_at = self._fields.offset

    def items(self) -> Iterator[TopicItem | None]:
        """The topics, one by one, and None after each ELEMENTS_AT_ONCE assignments or configurations of a topic."""
        fields = self._fields
        item = {CREATE_TOPICS: fields.new_topic, DELETE_TOPICS: fields.deleted_topic}
        read = item.get(self._api_key, fields.grown_topic)
        for _ in range(self.count):
            yield from read()

    def request(self, items: Topics) -> MutationRequest:
        """The request with all its items, which were read."""
        fields, api_key, api_version = self._fields, self._api_key, self._api_version
        fields.skip(4)
        may_validate = api_key == CREATE_PARTITIONS or (
            api_key == CREATE_TOPICS and api_version >= _VALIDATE_ONLY_SINCE
        )
        validate_only = may_validate and fields.int8() != 0
        fields.end_of_message()
        return MutationRequest(api_key, api_version, items, self._count_at, self._first_at, validate_only)


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

    def response(self, results: Results) -> MutationResponse:
        """The response with all its results, which were read."""
        end = self._fields.offset
        self._fields.end_of_message()
        return MutationResponse(results, self._throttle_at, self._count_at, end)


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
        count = self.length(_ASSIGNMENT_BYTES)
        is_assigned, fit = bytearray(count), True
        for number in range(1, count + 1):
            index = self._assignment()
            if 0 <= index < count:
                is_assigned[index] = 1
            else:
                fit = False
            if not number % ELEMENTS_AT_ONCE:
                yield None
        distinct = is_assigned.count(1)
        assigned = distinct if fit and is_assigned.rfind(1) < distinct else GAPS
        for number in range(1, self.length() + 1):
            self.text()
            self.nullable_text()
            self.tags()
            if not number % ELEMENTS_AT_ONCE:
                yield None
        self.tags()
        yield TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, replication_factor, assigned)

    def _assignment(self) -> int:
        index = self.int32()
        self._broker_ids()
        self.tags()
        return index

    def deleted_topic(self) -> Iterator[TopicItem]:
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
        yield TopicItem(start, self.offset, name, NO_TOPIC_ID, partitions, -1, max(assignments, 0))

    def topic_at(self, start: int, end: int) -> TopicItem:
        """The topic in [start, end) of a frame that was read before, without its replication factor and assignments."""
        self.offset = start
        if self._key != DELETE_TOPICS:
            name = self.text()
            return TopicItem(start, end, name, NO_TOPIC_ID, self.int32())
        name_or_null = self.nullable_text()
        return TopicItem(start, end, name_or_null, NO_TOPIC_ID if self._version < _STATES_SINCE else self.topic_id())

    def topic_key_at(self, start: int) -> bytes:
        """The key of the topic that begins here."""
        self.offset = start
        name = self.nullable_text()
        return _BEFORE_AN_ID + self.topic_id() if name is None else name

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


class RefusalsResponse:
    """The response to a request of a strict version whose items, `count`, are all refused; throttle time 0.

    It grows refusal by refusal: to join them at the end would hold the event loop.
    """

    def __init__(self, correlation_id: int, count: int) -> None:
        self._frame = BytesIO()
        self._frame.write(b"".join((int32(0), int32(correlation_id), b"\0", int32(0), uvarint(count + 1))))

    def add(self, refusal: bytes) -> None:
        """Add the result of the next item."""
        self._frame.write(refusal)

    def frame(self) -> bytes:
        """The whole frame, once all items have their results."""
        frame = self._frame
        frame.write(b"\0")
        size_bytes = frame.tell() - 4
        frame.seek(0)
        frame.write(int32(size_bytes))
        return frame.getvalue()
