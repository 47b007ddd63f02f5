"""The operations of one second in the trace files of the spool, for the explanation of that second."""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kafka_throttle.proxy.config.settings import HistoryConfig, UsageConfig
from kafka_throttle.proxy.observe.past.look_up import Past, Trace
from kafka_throttle.quotas.records.usage_record import BadLine, Dropped, Row, TraceEvent, columns, read_line

_NAME = re.compile(r"\.?trace-.+-(?P<epoch>[0-9]{1,15})-(?P<file>[0-9]{6,})\.tsv(\.part)?")
_WALL = 2 + list(columns(TraceEvent)).index("wall_ms")
"""The column of the wall clock; before it are the version and the kind of the line, and other columns."""
_MAX_EVENTS = 10_000
_LONGEST_LINE = 1 << 20


def past_of(history: HistoryConfig, usage: UsageConfig, flush: Callable[[], None] = lambda: None) -> Past | None:
    """What answers for the past, from the history and, where there was one, from the trace. None without a history.

    `flush` writes what is still to be written.
    """
    if history.directory is None:
        return None
    traced = None if usage.directory is None else partial(traced_in, Path(usage.directory))
    return Past(Path(history.directory), history.keep_hours * 3600, traced, flush)


def traced_in(directory: Path, virtual_cluster: str, second: int) -> Trace:
    """The traced operations on the sensors of a virtual cluster in a second, in their order."""
    events: list[TraceEvent] = []
    has_gaps = False
    for path in _files(directory, second):
        for row in _rows(path, second):
            if isinstance(row, Dropped):
                has_gaps = True
            elif row.virtual_cluster == virtual_cluster:
                events.append(row)
            if len(events) > _MAX_EVENTS:
                return Trace(events[:_MAX_EVENTS], has_gaps=True)
    return Trace(events, has_gaps)


def _files(directory: Path, second: int) -> list[Path]:
    """The files that were still written to at the end of the second, in the order of writing."""
    found = []
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None and path.stat().st_mtime >= second:
                found.append((int(name["epoch"]), int(name["file"]), path))
    return [path for *_, path in sorted(found)]


def _rows(path: Path, second: int) -> Iterator[TraceEvent | Dropped]:
    """The events of the second, and the reports of dropped events that are next to them."""
    dropped: Dropped | None = None
    last_s = -1
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(_LONGEST_LINE):
            parts = line.split("\t", _WALL + 1)
            if parts[1:2] == [Dropped.KIND] and isinstance(row := _row(line), Dropped):
                dropped = row
            if parts[1:2] != [TraceEvent.KIND] or len(parts) <= _WALL or not parts[_WALL].isdecimal():
                continue
            before_s, last_s = last_s, int(parts[_WALL]) // 1000
            if dropped is not None and before_s <= second <= last_s:
                yield dropped
            dropped = None
            if last_s > second:
                return
            if last_s == second and isinstance(row := _row(line), TraceEvent):
                yield row
    if dropped is not None and last_s <= second:
        yield dropped


def _row(line: str) -> Row | None:
    try:
        return read_line(line)
    except BadLine:
        return None
