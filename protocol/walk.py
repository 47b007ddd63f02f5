"""Walks over a response body by its shape, to find the few fields that a proxy changes.

A walk copies nothing, stores only positions, and can be continued when more bytes come: a response of many MiB is
walked while it streams through. Offsets count from the start of the frame, its length prefix included.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from kafka_throttle.protocol.api import (
    ARRAY,
    BYTES,
    COMPACT_ARRAY,
    COMPACT_BYTES,
    COMPACT_ENDPOINT,
    COMPACT_STRING,
    CONTROLLER,
    END,
    ENDPOINT,
    ENDPOINT_TYPE,
    FIXED,
    LEADER,
    NULLABLE,
    STRING,
    TAGS,
    THROTTLE,
    Shape,
)
from kafka_throttle.protocol.errors import MalformedMessage, TruncatedMessage
from kafka_throttle.protocol.primitives import Reader

_INT32: Final = Struct(">i")

BROKERS: Final = 1
"""The endpoint_type of a DescribeCluster response that lists brokers (2: controllers)."""


@dataclass(slots=True)
class Endpoint:
    """One address in a response: `host` and `port` are in [start, end)."""

    node_id: int
    host: bytes
    port: int
    start: int
    end: int
    compact: bool


@dataclass(slots=True)
class EndpointTag:
    """The tagged field that holds endpoints: its number at `at`, its size in [size_at, start), the end of its value."""

    at: int
    size_at: int
    start: int
    end: int


class _Level:
    """Where the walk is in one nested structure: which op comes next, and how many more of these structures follow."""

    __slots__ = ("end", "index", "left", "ops")

    def __init__(self, ops: Shape, left: int, end: int = -1) -> None:
        self.ops = ops
        self.index = 0
        self.left = left
        self.end = end
        """For a tagged value, the offset at which it must end; else -1."""


class _TagsLevel:
    """Where the walk is in a tag buffer: `left` tags follow; those in `known` are walked, the others stepped over."""

    __slots__ = ("known", "left")

    def __init__(self, known: dict[int, Shape], left: int) -> None:
        self.known = known
        self.left = left


class Walk:
    """A walk through one response body.

    `offset` is the next byte that it needs. `done` is true when no field that matters can follow. `array_at` is where
    the length of the first array is, and `tail_at` where the first top-level array ended, -1 until then. `led` are the
    partitions and controllers whose leader is one of `leaders`: where each begins, and whether it is a partition.
    """

    __slots__ = (
        "_depth",
        "_early",
        "array_at",
        "done",
        "endpoint_tag",
        "endpoint_type",
        "endpoints",
        "leaders",
        "led",
        "offset",
        "tail_at",
        "throttle_at",
    )

    def __init__(self, shape: Shape, body_at: int, leaders: frozenset[int] = frozenset()) -> None:
        self.offset = body_at
        self.leaders = leaders
        self.led: list[tuple[int, bool]] = []
        self.array_at = -1
        self.done = False
        self._early = False
        self.throttle_at = -1
        self.tail_at = -1
        self.endpoints: list[Endpoint] = []
        self.endpoint_tag: EndpointTag | None = None
        self.endpoint_type = BROKERS
        self._depth: list[_Level | _TagsLevel] = [_Level(shape, 1)]

    def advance(self, data: bytes | memoryview, data_at: int, stop_at_tail: bool = False) -> None:
        """Walk on over `data`, the bytes from offset `data_at` on; return when they run out or the walk is done.

        The bytes of `data` from `offset` on (part of a length or of an endpoint) must be given again, with what follows
        them. With `stop_at_tail` the walk also returns when it has passed the first top-level array. Raises
        MalformedMessage.
        """
        end = data_at + len(data)
        reader = Reader(data)
        try:
            while not self.done and self.offset < end:
                if stop_at_tail and self.tail_at >= 0:
                    return
                reader.offset = self.offset - data_at
                level = self._depth[-1]
                if isinstance(level, _TagsLevel):
                    self._step_tag(level, reader, data_at)
                else:
                    self._step_op(level, reader, data_at)
        except TruncatedMessage:
            return

    def fits(self, frame_bytes: int) -> bool:
        """Whether the walk is done and ended where the frame does (or before, if no field that matters followed)."""
        return self.done and (self.offset == frame_bytes or (self._early and self.offset < frame_bytes))

    def _step_op(self, level: _Level, reader: Reader, data_at: int) -> None:  # noqa: C901 one case for each op of a shape
        """Take the next op whole: after a TruncatedMessage nothing has changed."""
        op = level.ops[level.index]
        code = op[0]
        size = 0
        if code == FIXED:
            size = op[1]
        elif code in (COMPACT_STRING, COMPACT_BYTES):
            size = max(reader.uvarint() - 1, 0)
        elif code == TAGS:
            if count := reader.uvarint():
                self._enter(_TagsLevel(op[1], count), level, reader, data_at)
                return
        elif code in (COMPACT_ARRAY, ARRAY, NULLABLE):
            if count := _count(code, reader):
                self._enter(_Level(op[1], count), level, reader, data_at)
                return
            if len(self._depth) == 1 and self.tail_at < 0:
                self.tail_at = data_at + reader.offset
        elif code == STRING:
            size = _not_below_null(reader.int16())
        elif code == BYTES:
            size = _not_below_null(reader.int32())
        elif code == THROTTLE:
            self.throttle_at = data_at + reader.skip(4)
        elif code in (ENDPOINT, COMPACT_ENDPOINT):
            self.endpoints.append(_read_endpoint(reader, data_at, code == COMPACT_ENDPOINT))
        elif code == ENDPOINT_TYPE:
            self.endpoint_type = reader.int8()
        elif code == LEADER:
            at = data_at + reader.skip(6)
            if reader.int32() in self.leaders:
                self.led.append((at, True))
        elif code == CONTROLLER:
            if reader.int32() in self.leaders:
                self.led.append((self.offset, False))
        else:
            assert code == END
            self.done = self._early = True
        level.index += 1
        self.offset = data_at + reader.offset + size
        if level.index == len(level.ops):
            self._leave()

    def _enter(self, deeper: "_Level | _TagsLevel", level: _Level, reader: Reader, data_at: int) -> None:
        level.index += 1
        if self.array_at < 0:
            self.array_at = self.offset
        self.offset = data_at + reader.offset
        self._depth.append(deeper)

    def _step_tag(self, level: _TagsLevel, reader: Reader, data_at: int) -> None:
        at = data_at + reader.offset
        tag = reader.uvarint()
        size_at = data_at + reader.offset
        size = reader.uvarint()
        start = data_at + reader.offset
        level.left -= 1
        shape = level.known.get(tag)
        if shape is None:
            self.offset = start + size
            if not level.left:
                self._leave()
            return
        self.endpoint_tag = EndpointTag(at, size_at, start, start + size)
        self.offset = start
        self._depth.append(_Level(shape, 1, start + size))

    def _leave(self) -> None:
        """The innermost structure is complete: begin the next one like it, or go on in the one around it."""
        while self._depth:
            level = self._depth[-1]
            if isinstance(level, _TagsLevel):
                if level.left:
                    return
            elif level.index < len(level.ops):
                return
            elif level.left > 1:
                level.left -= 1
                level.index = 0
                return
            elif level.end >= 0 and level.end != self.offset:
                raise MalformedMessage(f"a tagged field ends at {self.offset}, its size says {level.end}")
            self._depth.pop()
            if len(self._depth) == 1 and self.tail_at < 0 and isinstance(level, _Level):
                self.tail_at = self.offset
        self.done = True


def _count(code: int, reader: Reader) -> int:
    """How many structures follow, 0 for null."""
    if code == COMPACT_ARRAY:
        return max(reader.uvarint() - 1, 0)
    if code == ARRAY:
        return _not_below_null(reader.int32())
    return 1 if reader.int8() >= 0 else 0


def _not_below_null(length: int) -> int:
    if length < -1:
        raise MalformedMessage(f"length {length}")
    return max(length, 0)


def _read_endpoint(reader: Reader, data_at: int, compact: bool) -> Endpoint:
    node_id = reader.int32()
    start = data_at + reader.offset
    host = (reader.compact_string() if compact else reader.string()) or b""
    port = reader.int32()
    return Endpoint(node_id, host, port, start, data_at + reader.offset, compact)
