"""DescribeClientQuotas and AlterClientQuotas, versions 0 and 1: reads the requests, writes the responses (KIP-546).

Version 1 only adds flexible encoding. Text that is not UTF-8 is read as a broker reads it: with U+FFFD in place of
invalid bytes. Unknown tagged fields are stepped over. Sources: `DescribeClientQuotasRequest.json` and its three
neighbours.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.protocol.errors import MalformedMessage
from kafka_throttle.protocol.fields import MAX_TAGS, FieldReader, FieldWriter
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.protocol.primitives import Reader, float64, int16, int32

EXACT = 0
"""Match type: the entity with this name."""
DEFAULT = 1
"""Match type: the default entity."""
ANY = 2
"""Match type: every entity of the type, named or default."""

MAX_STRING_BYTES = 32_767

ELEMENTS_AT_ONCE = 50
"""How many parts or operations of one entity are read in one step."""

_FIRST_COMPACT_VERSION = 1
_CORRELATION_ID_AT = 8
_THROTTLE_BYTES = 4
_MOST_BYTES_OF_QUOTAS = 256 << 20

_Element = TypeVar("_Element")


class EntityPart(NamedTuple):
    """An entity type and a name; None for the default entity of that type."""

    entity_type: str
    name: str | None


class FilterComponent(NamedTuple):
    """What an entity must have: this type, and a name that fits the match type (EXACT, DEFAULT, ANY)."""

    entity_type: str
    match_type: int
    match: str | None


class Operation(NamedTuple):
    """One key of an entity that is to be set or removed; when it is removed, the value does not matter."""

    key: str
    value: float
    remove: bool


class EntityOperations(NamedTuple):
    """All changes to one entity."""

    parts: tuple[EntityPart, ...]
    operations: tuple[Operation, ...]


class RequestHead(NamedTuple):
    """The parts of a request's header that a response and an audit need."""

    api_version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Which entities a request asks for; with `strict`, only those without any type that the filter does not name."""

    head: RequestHead
    components: tuple[FilterComponent, ...]
    strict: bool


@dataclass(frozen=True, slots=True)
class AlterRequest:
    """The changes of a request; with `validate_only` they are only checked."""

    head: RequestHead
    entries: tuple[EntityOperations, ...]
    validate_only: bool


class DescribedEntity(NamedTuple):
    """An entity and its quotas."""

    parts: Sequence[EntityPart]
    values: Sequence[tuple[str, float]]


class AlteredEntity(NamedTuple):
    """The result for one entity of an AlterClientQuotas request; error code 0 and no message if it has succeeded."""

    error_code: int
    error_message: str | None
    parts: Sequence[EntityPart]


def read_describe_request(
    frame: bytes | memoryview, api_version: int, most_components: int | None = None
) -> DescribeRequest:
    """The DescribeClientQuotas request in `frame`, which has its length prefix. Raises ProtocolError.

    Of a filter with more than `most_components`, only the first so many are read, and nothing after them.
    """
    body = _Body(frame, api_version)
    count = body.count(4 if body.compact else 5)
    if most_components is not None and count > most_components:
        return DescribeRequest(body.head, tuple(body.component() for _ in range(most_components)), False)
    components = tuple(body.component() for _ in range(count))
    strict = body.boolean()
    body.end()
    return DescribeRequest(body.head, components, strict)


class AlterReader:
    """Reads an AlterClientQuotas request entry by entry. Raises ProtocolError.

    Either all `entries` and then the rest with `request`, or only the entities that a refusal names, with `named`.
    """

    def __init__(self, frame: bytes | memoryview, api_version: int) -> None:
        self._body = _Body(frame, api_version)

    def entries(self) -> Iterator[EntityOperations | None]:
        """The entities, one by one, and None after each ELEMENTS_AT_ONCE parts or operations of one entity."""
        for _ in range(self._count()):
            yield from self._body.entry()

    def named(self, most_elements: int) -> tuple[list[tuple[EntityPart, ...]], bool]:
        """The entities among the first `most_elements` entities, parts and operations; and whether these are all."""
        body, left, named = self._body, most_elements, list[tuple[EntityPart, ...]]()
        count = self._count()
        while len(named) < count:
            left -= 1 + (parts := body.part_count())
            if left < 0:
                return named, False
            named.append(tuple(body.part() for _ in range(parts)))
            if len(named) < count:
                left -= (operations := body.operation_count())
                if left < 0:
                    return named, False
                for _ in range(operations):
                    body.operation()
                body.end()
        return named, True

    @property
    def head(self) -> RequestHead:
        """The parts of the request's header that a response needs."""
        return self._body.head

    def _count(self) -> int:
        return self._body.count(3 if self._body.compact else 8)

    def request(self, entries: tuple[EntityOperations, ...]) -> AlterRequest:
        """The request with all its entries."""
        validate_only = self._body.boolean()
        self._body.end()
        return AlterRequest(self._body.head, entries, validate_only)


class _Body:
    """Reads a request's header, and then its body."""

    def __init__(self, frame: bytes | memoryview, api_version: int) -> None:
        self.compact = api_version >= _FIRST_COMPACT_VERSION
        self._reader = Reader(frame, _CORRELATION_ID_AT)
        correlation_id, client_id = self._reader.int32(), self._reader.string()
        self.end()
        name = None if client_id is None else client_id.decode(errors="replace")
        self.head = RequestHead(api_version, correlation_id, name)

    def count(self, least_bytes: int) -> int:
        """How many elements, of at least `least_bytes` each, an array has; they follow."""
        count = self._reader.count(self.compact, least_bytes)
        if count < 0:
            raise MalformedMessage(f"null in place of an array, before offset {self._reader.offset}")
        return count

    def component(self) -> FilterComponent:
        component = FilterComponent(self._text(), self._reader.int8(), self._nullable_text())
        self.end()
        return component

    def entry(self) -> Iterator[EntityOperations | None]:
        """One entity, after a None for each ELEMENTS_AT_ONCE of its parts or operations."""
        parts, operations = list[EntityPart](), list[Operation]()
        yield from self._some(self.part, self.part_count(), parts)
        yield from self._some(self.operation, self.operation_count(), operations)
        self.end()
        yield EntityOperations(tuple(parts), tuple(operations))

    def _some(self, read: Callable[[], _Element], count: int, found: list[_Element]) -> Iterator[None]:
        for number in range(1, count + 1):
            found.append(read())
            if not number % ELEMENTS_AT_ONCE:
                yield None

    def part_count(self) -> int:
        return self.count(3 if self.compact else 4)

    def operation_count(self) -> int:
        return self.count(11)

    def boolean(self) -> bool:
        return self._reader.int8() != 0

    def end(self) -> None:
        """Step over the tagged fields that end every structure of a flexible version."""
        if self.compact:
            self._reader.tags(MAX_TAGS)

    def part(self) -> EntityPart:
        part = EntityPart(self._text(), self._nullable_text())
        self.end()
        return part

    def operation(self) -> Operation:
        operation = Operation(self._text(), self._reader.float64(), self.boolean())
        self.end()
        return operation

    def _text(self) -> str:
        text = self._nullable_text()
        if text is None:
            raise MalformedMessage(f"null in place of a string, before offset {self._reader.offset}")
        return text

    def _nullable_text(self) -> str | None:
        raw = self._reader.compact_string() if self.compact else self._reader.string()
        if raw is None:
            return None
        text = raw.decode(errors="replace")
        if len(text) * 4 > MAX_STRING_BYTES and len(text.encode()) > MAX_STRING_BYTES:
            raise MalformedMessage(f"a string of more than {MAX_STRING_BYTES} bytes before {self._reader.offset}")
        return text


class DescribeWriter:
    """Writes the response to a DescribeClientQuotas request entity by entity. As in KRaft its message is empty."""

    def __init__(self, head: RequestHead) -> None:
        self._writer = _Writer(head)

    def entities(self, entities: Sequence[DescribedEntity]) -> bytes:
        """The bytes of some entities."""
        return b"".join(map(self._writer.described, entities))

    def response(self, count: int, entities: Iterable[bytes]) -> bytes:
        """The response, a whole frame, with `count` entities."""
        return self._writer.frame(int16(0), self._writer.text(""), self._writer.count(count), *entities)


def describe_refusal(head: RequestHead, error_code: int, error_message: str | None) -> bytes:
    """The response, a whole frame, to a DescribeClientQuotas request with an error. A long message is cut."""
    writer = _Writer(head)
    return writer.frame(int16(error_code), writer.text(_cut(error_message)), writer.no_array)


def alter_response(head: RequestHead, entities: Iterable[AlteredEntity]) -> bytes:
    """The response to an AlterClientQuotas request, a whole frame. Messages that are too long are cut."""
    writer = AlterWriter(head)
    return writer.response(map(writer.entity, entities))


class AlterWriter:
    """Writes the response to an AlterClientQuotas request entity by entity. Messages that are too long are cut."""

    def __init__(self, head: RequestHead) -> None:
        self._writer = _Writer(head)

    def entity(self, entity: AlteredEntity) -> bytes:
        """The bytes of one entity."""
        return self._writer.altered(entity)

    def response(self, entities: Iterable[bytes]) -> bytes:
        """The response, a whole frame."""
        return self._writer.frame(self._writer.array(entities))


class _Writer(FieldWriter):
    """Writes the fields of a response; each method returns bytes."""

    def __init__(self, head: RequestHead) -> None:
        super().__init__(head.api_version >= _FIRST_COMPACT_VERSION)
        self._correlation_id = head.correlation_id
        self.no_array = b"\0" if self._compact else int32(-1)

    def frame(self, *fields: bytes) -> bytes:
        """The whole frame; throttle_time_ms, its first field, is 0."""
        parts = (int32(self._correlation_id), self.end, int32(0), *fields, self.end)
        return b"".join((int32(sum(map(len, parts))), *parts))

    def described(self, entity: DescribedEntity) -> bytes:
        values = self.array(self.text(key) + float64(value) + self.end for key, value in entity.values)
        return _parts(self, entity.parts) + values + self.end

    def altered(self, entity: AlteredEntity) -> bytes:
        error = int16(entity.error_code) + self.text(_cut(entity.error_message))
        return error + _parts(self, entity.parts) + self.end


def _parts(writer: FieldWriter, parts: Sequence[EntityPart]) -> bytes:
    return writer.array(writer.text(part.entity_type) + writer.text(part.name) + writer.end for part in parts)


def _cut(message: str | None) -> str | None:
    """The message, cut to what a string of the protocol can hold."""
    if message is None or len(message) * 4 <= MAX_STRING_BYTES:
        return message
    return message.encode()[:MAX_STRING_BYTES].decode(errors="ignore")


# ---------------------------------------------------------- requests of the proxy's own


class Verbatim(NamedTuple):
    """The body of a response to DescribeClientQuotas, not decoded: two of them can be compared without that."""

    version: int
    body: bytes


class Described(NamedTuple):
    """The quotas of a cluster, or an error code and perhaps a message."""

    error_code: int
    error_message: str | None
    entities: Sequence[DescribedEntity]


def all_quotas_request() -> OwnRequest[Verbatim]:
    """The proxy's own request for all quotas."""

    def written(writer: FieldWriter, _version: int) -> bytes:
        return writer.count(0) + b"\0" + writer.end

    def read(reader: FieldReader, version: int) -> Verbatim:
        return Verbatim(version, reader.rest())

    return OwnRequest(DESCRIBE_CLIENT_QUOTAS, written, read, most_bytes=_MOST_BYTES_OF_QUOTAS)


def read_described(verbatim: Verbatim) -> Described:
    """The content of a response to DescribeClientQuotas. Raises ProtocolError."""
    reader = FieldReader(verbatim.body, _THROTTLE_BYTES, verbatim.version >= _FIRST_COMPACT_VERSION)
    error_code, message = reader.int16(), reader.nullable_text()
    entities = [_described(reader) for _ in reader.elements(2)]
    reader.end()
    return Described(error_code, message, entities)


def _described(reader: FieldReader) -> DescribedEntity:
    parts = _read_parts(reader)
    values = []
    for _ in reader.elements(9):
        values.append((reader.text(), reader.float64()))
        reader.end()
    reader.end()
    return DescribedEntity(parts, values)


def alteration_request(
    entries: Iterable[EntityOperations], *, validate_only: bool = False
) -> OwnRequest[Sequence[AlteredEntity]]:
    """The proxy's own request to change quotas; with `validate_only` the changes are only checked."""
    listed = list(entries)

    def written(writer: FieldWriter, _version: int) -> bytes:
        return writer.array(_entry(writer, entry) for entry in listed) + bytes([validate_only]) + writer.end

    return OwnRequest(ALTER_CLIENT_QUOTAS, written, _read_altered, most_bytes=_MOST_BYTES_OF_QUOTAS)


def _entry(writer: FieldWriter, entry: EntityOperations) -> bytes:
    operations = writer.array(
        writer.text(key) + float64(value) + bytes([remove]) + writer.end for key, value, remove in entry.operations
    )
    return _parts(writer, entry.parts) + operations + writer.end


def _read_altered(reader: FieldReader, _version: int) -> Sequence[AlteredEntity]:
    reader.skip(_THROTTLE_BYTES)
    altered = []
    for _ in reader.elements(4):
        altered.append(AlteredEntity(reader.int16(), reader.nullable_text(), _read_parts(reader)))
        reader.end()
    return altered


def _read_parts(reader: FieldReader) -> Sequence[EntityPart]:
    parts = []
    for _ in reader.elements(2):
        parts.append(EntityPart(reader.text(), reader.nullable_text()))
        reader.end()
    return parts
