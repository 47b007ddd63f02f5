"""The spool: a directory with complete files of usage records and trace events, written by a separate thread.

The caller of `put` never waits. Records that find no room in the queue are dropped and counted, and a `dropped` line
reports them as soon as records of their stream are written again. Failed writes are retried every second. A process
that is killed loses the records in memory; written records survive, and complete files also survive a
crash of the machine. If somebody removes or moves the directory or a file that is being written, both are made again,
and what was in that file is written again: from the open file, which stays readable.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from kafka_throttle.common.atomic_file import sync_directory
from kafka_throttle.common.private_directory import DirectoryUnusable, check_directory, keep_directory
from kafka_throttle.proxy.usage.spool_file import FILE_LOST, SpoolFile, salvage
from kafka_throttle.quotas.records.usage_record import (
    TRACE,
    USAGE,
    Dropped,
    Header,
    Row,
    TraceEvent,
    UsageRecord,
    file_name,
)

log = structlog.get_logger()

STREAMS = (USAGE, TRACE)
_RETRY_S = 1.0
_TIDY_S = 10.0
_SALVAGE_S = 60.0
_IDLE_S = 60.0
"""Without locks, a file counts as a killed writer's when nothing was written to it for twice `file_s` and this time."""
_LAST_TRIES = 3
"""How often writing may fail after `close` was called."""
_ROWS_AT_ONCE = 500
"""How many records are written at once, before the event loop can run again."""

NO_ROOM = "no_room"
"""The reason for dropped records: the queue was full because writing failed or was too slow."""

BUG = "internal_error"
"""The reason for dropped records that could not be written because of a bug of the proxy."""


@dataclass(frozen=True, slots=True)
class SpoolRules:
    """When a file is complete, how long files are kept, and how many records may wait to be written."""

    file_bytes: int = 64 << 20
    file_s: int = 60
    total_bytes: int = 4 << 30
    total_trace_bytes: int = 1 << 30
    keep_s: int = 14 * 86_400
    keep_at_least_s: int = 3600
    queue_records: int = 100_000
    flush_ms: Mapping[str, int] = field(default_factory=dict)
    """By stream, how long records are in memory before they are put into the spool."""


@dataclass(slots=True)
class SpoolTotals:
    """The totals of one stream since the process started, and how many records wait."""

    stream: str
    written: int = 0
    written_bytes: int = 0
    files: int = 0
    deleted: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {NO_ROOM: 0})
    waiting: int = 0


@dataclass(slots=True)
class _Stream:
    totals: SpoolTotals
    dropped: list[Dropped] = field(default_factory=list)
    """Dropped records that are reported with the next written records."""
    file: SpoolFile | None = None
    file_number: int = 0
    begun_s: float = 0.0
    sequence: int = 1
    final: bool = False


class Spool:
    """Takes records from the event loop and writes them in a thread. The loop may call `put`, `drop` and `totals`."""

    def __init__(
        self,
        directory: Path,
        instance: str,
        epoch: int,
        rules: SpoolRules,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.instance = instance
        self.epoch = epoch
        self.rules = rules
        self.failures = 0
        """How often writing failed."""
        self._now_s = now_s
        self._streams = {stream: _Stream(SpoolTotals(stream)) for stream in STREAMS}
        self._queue: deque[tuple[str, list[Row]]] = deque()
        self._waiting = 0
        self._has_work = threading.Condition()
        self._closing = False
        self._problem: str | None = None
        self._closing_until_s = 0.0
        self._last_failures = 0
        self._is_unsynced = False
        self._unsalvaged: set[str] = set()
        """The names of files that cannot be salvaged, which were logged."""
        self._dropping = False
        self._tidied_s = -_TIDY_S
        self._salvaged_s = -_SALVAGE_S
        self._is_beside: Callable[[], bool] = lambda: False
        self._thread = threading.Thread(target=self._run, name="usage spool", daemon=True)

    # --------------------------------------------------------- for other threads

    def start(self, is_beside: Callable[[], bool] = lambda: False) -> None:
        """Prepare the directory, complete files of an earlier process, and start writing. Raises DirectoryUnusable.

        `is_beside` says whether the process that this one took over from still runs; it is called by another thread.
        """
        self._is_beside = is_beside
        check_directory(self.directory)
        self._salvage()
        self.epoch = max(self.epoch, self._latest_epoch() + 1)
        self._thread.start()

    def put(self, stream: str, rows: Sequence[Row], first: int, last: int) -> None:
        """Queue rows with the sequence numbers `first` to `last`. Never waits: drops them if there is no room."""
        with self._has_work:
            if self._waiting + len(rows) > self.rules.queue_records:
                self._drop(stream, first, last, NO_ROOM)
                return
            batch = [*self._streams[stream].dropped, *rows]
            self._streams[stream].dropped.clear()
            self._queue.append((stream, batch))
            self._count_waiting(stream, len(batch))
            self._has_work.notify()

    def drop(self, stream: str, first: int, last: int, reason: str) -> None:
        """Report that the records with these sequence numbers were dropped."""
        with self._has_work:
            self._drop(stream, first, last, reason)

    def _drop(self, stream: str, first: int, last: int, reason: str) -> None:
        of = self._streams[stream]
        of.totals.dropped[reason] = of.totals.dropped.get(reason, 0) + last - first + 1
        if reason == NO_ROOM and not self._dropping:
            self._dropping = True
            log.warning("usage_records_dropped", stream=stream, reason=reason, setting="usage.queue_records")
        before = of.dropped[-1] if of.dropped else None
        if before is not None and before.last_sequence + 1 == first and before.reason == reason:
            first = before.first_sequence
            of.dropped.pop()
        of.dropped.append(
            Dropped(
                instance=self.instance,
                epoch=self.epoch,
                stream=stream,
                first_sequence=first,
                last_sequence=last,
                reason=reason,
            )
        )

    def _count_waiting(self, stream: str, rows: int) -> None:
        self._waiting += rows
        self._streams[stream].totals.waiting += rows

    def totals(self) -> list[SpoolTotals]:
        """The totals of each stream."""
        return [of.totals for of in self._streams.values()]

    @property
    def problem(self) -> str | None:
        """Why records cannot be written now; None while they can."""
        return self._problem

    def close(self, timeout_s: float) -> bool:
        """Write what waits, complete all files and end. Blocks, for at most `timeout_s`: then it returns False."""
        with self._has_work:
            self._closing_until_s = self._now_s() + timeout_s
            self._closing = True
            self._has_work.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------- for the own thread

    def _run(self) -> None:
        while not (self._closing and self._all_is_done()):
            batch = None
            try:
                if not self._closing and self._now_s() - self._tidied_s >= _TIDY_S:
                    self._tidy()
                batch = self._next_batch()
                if batch is not None:
                    self._write(*batch)
                batch = None
                self._finish_due()
            except (OSError, DirectoryUnusable) as error:
                self._note_failure(error)
                time.sleep(_RETRY_S)
            except Exception:
                log.exception("internal_error")
                self._give_up(batch)
                time.sleep(_RETRY_S)
            else:
                self._note_success()

    def _all_is_done(self) -> bool:
        return not self._queue and all(of.final for of in self._streams.values())

    def _next_batch(self) -> tuple[str, list[Row]] | None:
        with self._has_work:
            if not self._queue and not self._closing:
                self._has_work.wait(self._until_due_s())
            if self._queue:
                return self._queue[0]
            if self._closing:
                for stream, of in self._streams.items():
                    if of.dropped:
                        self._queue.append((stream, list(of.dropped)))
                        self._count_waiting(stream, len(of.dropped))
                        of.dropped.clear()
            return self._queue[0] if self._queue else None

    def _until_due_s(self) -> float:
        begun = [of.begun_s for of in self._streams.values() if of.file is not None]
        return min(max(min(begun) + self.rules.file_s - self._now_s(), 0.0), _TIDY_S) if begun else _TIDY_S

    def _write(self, stream: str, rows: list[Row]) -> None:
        """Write the first batch of the queue in parts. Written rows are removed from `rows`, so a retry skips them."""
        of = self._streams[stream]
        while rows:
            some = rows[:_ROWS_AT_ONCE]
            file = self._file(stream, of)
            records = file.records
            of.totals.written_bytes += file.add(some)
            of.totals.written += file.records - records
            of.sequence = file.sequence
            del rows[:_ROWS_AT_ONCE]
            with self._has_work:
                self._count_waiting(stream, -len(some))
            if file.size_bytes >= self.rules.file_bytes:
                self._finish(stream, of)
        with self._has_work:
            self._queue.popleft()

    def _file(self, stream: str, of: _Stream) -> SpoolFile:
        """The file to write to. Another one is begun if there is none, or if it was removed or moved."""
        if of.file is None:
            of.file = self._begin(stream, of.file_number + 1, of.sequence)
            of.begun_s = self._now_s()
        elif not of.file.is_in_place():
            before, header = of.file, of.file.header
            of.file = self._begin(stream, header.file, header.first_sequence, before)
            before.close()
            self._note_new_place(of, before)
        of.file_number = of.file.header.file
        return of.file

    def _begin(self, stream: str, number: int, first: int, before: SpoolFile | None = None) -> SpoolFile:
        keep_directory(self.directory)
        header = Header(
            stream=stream,
            instance=self.instance,
            epoch=self.epoch,
            file=number,
            first_sequence=first,
            flush_ms=self.rules.flush_ms.get(stream, 0),
        )
        while (self.directory / file_name(header)).exists():  # without locks, another process may have salvaged ours
            header = replace(header, file=header.file + 1)
        return SpoolFile(self.directory, header, before)

    def _note_new_place(self, of: _Stream, before: SpoolFile) -> None:
        assert of.file is not None
        if of.file.lost:
            with self._has_work:
                dropped = of.totals.dropped
                dropped[FILE_LOST] = dropped.get(FILE_LOST, 0) + of.file.lost
        log.warning(
            "usage_file_written_again",
            file=before.part.name,
            directory=str(self.directory),
            records=of.file.records,
            lost=of.file.lost,
        )

    def _finish_due(self) -> None:
        last = self._closing and not self._queue
        for stream, of in self._streams.items():
            if last and not of.final:
                if of.file_number or stream == USAGE:
                    self._finish(stream, of, final=True)
                of.final = True
            elif of.file is not None and self._now_s() - of.begun_s >= self.rules.file_s:
                self._finish(stream, of)

    def _finish(self, stream: str, of: _Stream, final: bool = False) -> None:
        self._file(stream, of).finish(final=final, beside=self._is_beside())
        of.file = None
        of.totals.files += 1
        self._sync_directory()

    def _sync_directory(self) -> None:
        """Sync the directory of a complete file. If this fails, it is done again with the next file."""
        try:
            sync_directory(self.directory)
        except OSError as error:
            self.failures += 1
            if not self._is_unsynced:
                self._is_unsynced = True
                log.warning("usage_directory_not_synced", directory=str(self.directory), problem=_words(error))
        else:
            self._is_unsynced = False

    def _give_up(self, batch: tuple[str, list[Row]] | None) -> None:
        """Drop this batch, which is the first of the queue, after a bug of the proxy. Later batches are written."""
        if batch is not None:
            stream, rows = batch
            with self._has_work:
                self._queue.popleft()
                self._count_waiting(stream, -len(rows))
                if lost := [row.sequence for row in rows if isinstance(row, UsageRecord | TraceEvent)]:
                    self._drop(stream, lost[0], lost[-1], BUG)
        for of in self._streams.values():
            of.final = of.final or self._closing

    def _note_failure(self, error: OSError | DirectoryUnusable) -> None:
        self.failures += 1
        if self._problem is None:
            log.error("usage_writing_failed", directory=str(self.directory), problem=_words(error))
        self._problem = _words(error)
        self._last_failures += self._closing
        is_too_late = self._closing and self._now_s() + _RETRY_S >= self._closing_until_s
        if self._last_failures >= _LAST_TRIES or is_too_late:
            lost = sum(len(rows) for _, rows in self._queue) + sum(map(_lost_with, self._streams.values()))
            log.error("usage_records_lost", records=lost, problem="the proxy stops, and they cannot be written")
            with self._has_work:
                self._queue.clear()
            for of in self._streams.values():
                of.final = True

    def _note_success(self) -> None:
        if self._problem is not None:
            self._problem = None
            log.info("usage_writing_resumed", failures=self.failures)
        if self._dropping and not self._waiting:
            self._dropping = False
            dropped = {of.totals.stream: of.totals.dropped[NO_ROOM] for of in self._streams.values()}
            log.info("usage_records_kept_again", dropped=dropped)

    # --------------------------------------------------------------- retention

    def _salvage(self) -> None:
        """Complete the files of killed writers."""
        self._salvaged_s = self._now_s()
        own = [of.file.part for of in self._streams.values() if of.file is not None]
        for found in salvage(self.directory, 2 * self.rules.file_s + _IDLE_S, own):
            if found.path is not None:
                log.info("usage_file_salvaged", file=found.path.name, records=found.records)
            elif found.problem and found.part.name not in self._unsalvaged:
                self._unsalvaged.add(found.part.name)
                log.warning("usage_file_not_salvaged", file=found.part.name, problem=found.problem)

    def _tidy(self) -> None:
        """Salvage, and delete files that are too old or too many: the oldest first, none below `keep_at_least_s`."""
        self._tidied_s = self._now_s()
        try:
            if self._tidied_s - self._salvaged_s >= _SALVAGE_S:
                self._salvage()
            for stream, of in self._streams.items():
                limit = self.rules.total_bytes if stream == USAGE else self.rules.total_trace_bytes
                deleted = tidy(self.directory, stream, self.instance, limit, self.rules, time.time())
                of.totals.deleted += len(deleted)
                if deleted:
                    log.info(
                        "usage_files_deleted", stream=stream, files=len(deleted), first=deleted[0], last=deleted[-1]
                    )
        except (FileNotFoundError, NotADirectoryError):
            pass  # the directory is made again with the next file
        except OSError as error:
            log.warning("usage_files_not_deleted", problem=_words(error))

    def _latest_epoch(self) -> int:
        """Of this instance's files, also of those that another process still writes."""
        names = (
            FILE_NAME.fullmatch(path.name.removeprefix(".").removesuffix(".part")) for path in self.directory.iterdir()
        )
        return max((int(name["epoch"]) for name in names if name and name["instance"] == self.instance), default=0)


def _lost_with(of: _Stream) -> int:
    """How many records are lost if the file is left as it is. One that is in place is salvaged by the next process."""
    try:
        return 0 if of.file is None or of.file.is_in_place() else of.file.records
    except OSError:
        return 0


def _words(error: OSError | DirectoryUnusable) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


FILE_NAME = re.compile(r"(?P<stream>usage|trace)-(?P<instance>.+)-(?P<epoch>[0-9]{1,15})-(?P<file>[0-9]{6,})\.tsv")


def tidy(directory: Path, stream: str, instance: str, most_bytes: int, rules: SpoolRules, now_s: float) -> list[str]:
    """Delete the files of one stream and instance that exceed the rules. Returns their names, the oldest first."""
    found = []
    for path in directory.iterdir():
        name = FILE_NAME.fullmatch(path.name)
        if name and (name["stream"], name["instance"]) == (stream, instance):
            state = path.stat()
            found.append((int(name["epoch"]), int(name["file"]), path, state.st_mtime, state.st_size))
    total, deleted = sum(size for *_, size in found), []
    for *_, path, written_s, size in sorted(found):
        age_s = now_s - written_s
        if age_s < rules.keep_at_least_s or (age_s <= rules.keep_s and total <= most_bytes):
            break
        path.unlink()
        deleted.append(path.name)
        total -= size
    return deleted
