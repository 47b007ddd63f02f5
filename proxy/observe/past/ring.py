"""What is kept of the past on disk: segments, the oldest of which are deleted. Blocks on the disk."""

import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from kafka_throttle.common.bounded import Bounded
from kafka_throttle.common.private_directory import check_directory, keep_directory
from kafka_throttle.proxy.observe.past.records import Kinds, QuotasOf, Seconds, Version, line_of
from kafka_throttle.proxy.observe.past.segments import SEGMENTS, Segment, make_room
from kafka_throttle.quotas.changes import Quotas, changes_between
from kafka_throttle.quotas.entities import Entity

_QUIET_S = 10
"""How many seconds in which nobody was throttled are written at a time."""


_CHANGES_KEPT = 10_000
"""Of so many entities each segment says when their quotas have changed."""


class TooLarge(Exception):
    """A record does not fit into a segment."""


class InForce(NamedTuple):
    """The quotas of a virtual cluster that came into force at a time."""

    at_ms: int
    virtual_cluster: str
    source: str
    known: bool
    kinds: Kinds
    quotas: Quotas


class _Known:
    """The quotas of one virtual cluster, with the changes since the process began."""

    def __init__(self, begin: InForce) -> None:
        self.now = begin
        self._changed: Bounded[Entity, Version] = Bounded(_CHANGES_KEPT)

    def change(self, news: InForce) -> QuotasOf:
        """Take up other quotas. Returns what has changed."""
        before = self.now.quotas
        changes = changes_between(before, news.quotas)
        versions = {entity: Version(limits, news.at_ms, before.get(entity)) for entity, limits in changes.items()}
        self.now = news
        for entity, version in versions.items():
            self._changed[entity] = version
        return self._record(versions)

    def all(self) -> QuotasOf:
        """All quotas, and the entities that had some earlier in this process."""
        versions = {entity: Version(limits) for entity, limits in self.now.quotas.items()}
        return self._record({**versions, **self._changed}, begins=True)

    def forget(self) -> QuotasOf:
        """In place of all quotas, that there are too many of them."""
        return self._record({}, begins=True, kept=False)

    def _record(self, versions: Mapping[Entity, Version], *, begins: bool = False, kept: bool = True) -> QuotasOf:
        now = self.now
        return QuotasOf(
            now.at_ms, now.virtual_cluster, now.source, now.known, now.kinds, versions, begins=begins, kept=kept
        )


class Ring:
    """Writes the records of one process. What fails raises OSError; the next record begins a new segment.

    `writer` is part of the names of the segments, and differs between processes. `lost_s` counts the seconds of
    segments that somebody has removed while they were written; another segment is begun then.
    """

    def __init__(self, directory: Path, max_bytes: int, keep_s: int, writer: str | None = None) -> None:
        self.directory = directory
        self._writer = writer or f"{os.getpid()}.{token_hex(3)}"
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._segment_bytes = max_bytes // SEGMENTS
        self._number = 0
        self._others_bytes = 0
        self.lost_s = 0
        self._segment: Segment | None = None
        self._known: dict[str, _Known] = {}
        self._quiet: Seconds | None = None
        """Seconds without throttles that are still to be written."""

    @property
    def size_bytes(self) -> int:
        """How large all segments were together when this process began the last one, and what it has written since."""
        return self._others_bytes + (0 if self._segment is None else self._segment.size_bytes)

    def put_quotas(self, in_force: InForce) -> None:
        """Quotas have come into force. The first ones of a virtual cluster are written with the next segment."""
        known = self._known.get(in_force.virtual_cluster)
        if known is None:
            self._known[in_force.virtual_cluster] = _Known(in_force)
            self.close_segment()
            return
        change = known.change(in_force)
        if self._segment is not None:
            self._write_changes(change)

    def put_seconds(self, seconds: Seconds) -> None:
        """One or more seconds are over. Those without throttles are written together, with what follows them."""
        quiet = self._quiet
        if seconds.clusters:
            self.flush()
            self._write(seconds)
        elif quiet is not None and quiet.last_s + 1 == seconds.first_s and _length_of(quiet) < _QUIET_S:
            self._quiet = Seconds(quiet.first_s, seconds.last_s)
        else:
            self.flush()
            self._quiet = seconds

    def flush(self) -> None:
        """Write the seconds that are still to be written."""
        if self._quiet is not None:
            self._write(self._quiet)
            self._quiet = None

    def close_segment(self) -> None:
        """End the segment."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    # ------------------------------------------------------------------ writing

    def _write_changes(self, change: QuotasOf) -> None:
        lines = b"".join(map(line_of, change.parts()))
        if self._has_room(lines):
            self._append(lines)
        else:
            self.close_segment()

    def _write(self, seconds: Seconds) -> None:
        line, first_s = line_of(seconds), seconds.first_s
        self._leave_removed()
        segment = self._segment
        may_take = segment is not None and 0 <= first_s - segment.first_s < self._keep_s // SEGMENTS
        if not may_take or not self._has_room(line):
            self._begin_segment(first_s)
        if not self._has_room(line):
            raise TooLarge(f"a record of {len(line)} bytes")
        self._append(line)
        if self._segment is not None:
            self._segment.seconds += _length_of(seconds)

    def _leave_removed(self) -> None:
        if self._segment is not None and not self._segment.is_in_place():
            self.lost_s += self._segment.seconds
            self.close_segment()

    def _has_room(self, lines: bytes) -> bool:
        return self._segment is not None and self._segment.size_bytes + len(lines) <= self._segment_bytes

    def _append(self, lines: bytes) -> None:
        segment, self._segment = self._segment, None
        assert segment is not None
        segment.append(lines)
        self._segment = segment

    def _begin_segment(self, first_s: int) -> None:
        """Begin a segment with all quotas, or without them if they need more than half of it."""
        self.close_segment()
        (keep_directory if self._number else check_directory)(self.directory)
        self._others_bytes = make_room(self.directory, self._writer, self._max_bytes, self._keep_s, first_s)
        lines = [self._lines(known) for known in self._known.values()]
        if sum(map(len, lines)) > self._segment_bytes // 2:
            lines = [line_of(known.forget()) for known in self._known.values()]
        self._number += 1
        self._segment = Segment(self.directory, self._writer, self._number, first_s, b"".join(lines))

    def _lines(self, known: _Known) -> bytes:
        return b"".join(map(line_of, known.all().parts()))


def _length_of(seconds: Seconds) -> int:
    return seconds.last_s - seconds.first_s + 1
