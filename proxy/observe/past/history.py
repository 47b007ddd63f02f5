"""The history of a running proxy: reads each second when it is over, and has a thread write who was throttled."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from kafka_throttle.common.duties import Duty
from kafka_throttle.common.private_directory import DirectoryUnusable
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe import throttled_now
from kafka_throttle.proxy.observe.past.history_metrics import HistoryTotals
from kafka_throttle.proxy.observe.past.records import Kinds, Seconds
from kafka_throttle.proxy.observe.past.ring import InForce, Ring, TooLarge
from kafka_throttle.proxy.observe.past.seconds import SecondsOfCluster
from kafka_throttle.quotas.changes import Quotas

log = structlog.get_logger()

_MOST_SECONDS = 60
"""The most seconds of one record, after the process or its machine stood still."""
_MOST_WAITING = 60
"""How many records may wait for the disk; further ones are dropped and counted."""
_RETRY_S = 10.0
_FLUSH_S = 2.0


class Watched(throttled_now.Cluster, Protocol):
    """What the history needs of a virtual cluster."""

    @property
    def quotas_since_ms(self) -> int:
        """When the quotas came into force, by the wall clock."""


class History:
    """Writes the history of some virtual clusters into a ring. Belongs to the event loop, which never waits for it."""

    def __init__(
        self, clusters: Sequence[Watched], ring: Ring, clock: Clock, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._clusters = clusters
        self._seconds = {each.name: SecondsOfCluster(each.throttled, each.quota_manager) for each in clusters}
        self._noted: dict[str, tuple[Quotas, bool]] = {}
        """The quotas that were noted last, and whether they were known."""
        self.duty = Duty("writing the history")
        self._clock = clock
        self._writer = _Writer(ring, now_s)

    def start(self) -> None:
        """Start to write."""
        self._writer.start()

    async def run(self) -> None:
        """Note each second soon after it is over, until cancelled."""
        self._note_quotas()
        second = self._clock.epoch_ms() // 1000
        while True:
            await asyncio.sleep((1000 - self._clock.epoch_ms() % 1000 + 1) / 1000)
            now = self._clock.epoch_ms() // 1000
            if now != second:
                await self.note(min(max(second, now - _MOST_SECONDS), now - 1), now - 1)
                second = now

    async def note(self, first_s: int, last_s: int) -> None:
        """Note what came in these seconds."""
        self._note_quotas()
        clusters = {}
        for name, seconds in self._seconds.items():
            with self.duty:
                found = await finish_in_turns(seconds.take(self._clock))
                if found.lines:
                    clusters[name] = found
        self._writer.put(Seconds(first_s, last_s, clusters))

    def _note_quotas(self) -> None:
        for cluster in self._clusters:
            quotas, origin = cluster.quotas, cluster.origin
            if self._noted.get(cluster.name) == (quotas, origin.known):
                continue
            manager = cluster.quota_manager
            kinds = Kinds(manager.table.kinds(), manager.shadow.kinds())
            in_force = InForce(cluster.quotas_since_ms, cluster.name, origin.source, origin.known, kinds, quotas)
            if self._writer.put(in_force):
                self._noted[cluster.name] = quotas, origin.known

    def flush(self) -> None:
        """Write what waits, for a reader. Blocks, but not for long: call it in a thread."""
        self._writer.flush(_FLUSH_S)

    def totals(self) -> HistoryTotals:
        """What was written so far."""
        return self._writer.totals()

    @property
    def problem(self) -> str | None:
        """Why seconds cannot be written now; None while they can."""
        return self._writer.problem

    async def stop(self, timeout_s: float) -> None:
        """Note the second that has begun, and write everything that waits, for at most `timeout_s`."""
        second = self._clock.epoch_ms() // 1000
        await self.note(second, second)
        await asyncio.to_thread(self._writer.close, timeout_s)


class _Writer:
    """The thread that writes, and the queue before it. After a failure it drops seconds, and tries again later."""

    def __init__(self, ring: Ring, now_s: Callable[[], float]) -> None:
        self._ring = ring
        self._now_s = now_s
        self._queue: deque[InForce | Seconds | threading.Event] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._retry_at_s: float | None = None
        """When to write again after a failure; None while all is well."""
        self.problem: str | None = None
        self._written = self._dropped = self._failures = self._size_bytes = 0
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, record: InForce | Seconds) -> bool:
        """Queue a record. Never waits: drops it if too many wait, and returns False."""
        with self._changed:
            if len(self._queue) >= _MOST_WAITING:
                self._drop(record)
                return False
            self._queue.append(record)
            self._changed.notify()
            return True

    def flush(self, timeout_s: float) -> None:
        done = threading.Event()
        with self._changed:
            self._queue.append(done)
            self._changed.notify()
        done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def totals(self) -> HistoryTotals:
        return HistoryTotals(self._retry_at_s is None, self._written, self._dropped, self._failures, self._size_bytes)

    # ------------------------------------------------------- for the own thread

    def _run(self) -> None:
        while (record := self._next()) is not None:
            self._take(record)
        self._take(threading.Event())
        self._ring.close_segment()

    def _next(self) -> InForce | Seconds | threading.Event | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _take(self, record: InForce | Seconds | threading.Event) -> None:
        try:
            if isinstance(record, InForce):
                self._ring.put_quotas(record)
            elif self._retry_at_s is None or self._now_s() >= self._retry_at_s:
                self._write(record)
            else:
                self._drop(record)
        except (OSError, DirectoryUnusable) as error:
            self._note_failure(record, error)
        except TooLarge:
            self._drop(record)
        except Exception:
            log.exception("internal_error")
            self._drop(record)
        finally:
            if isinstance(record, threading.Event):
                record.set()

    def _write(self, record: Seconds | threading.Event) -> None:
        if isinstance(record, threading.Event):
            self._ring.flush()
            return
        lost_s = self._ring.lost_s
        self._ring.put_seconds(record)
        self._note_lost(self._ring.lost_s - lost_s)
        if self._retry_at_s is not None:
            self._ring.flush()
        self._written += record.last_s - record.first_s + 1
        self._size_bytes = self._ring.size_bytes
        if self._retry_at_s is not None:
            self._retry_at_s = self.problem = None
            log.info("history_writing_resumed", directory=str(self._ring.directory), failures=self._failures)

    def _note_lost(self, seconds: int) -> None:
        if seconds:
            self._dropped += seconds
            log.warning("history_segment_removed", directory=str(self._ring.directory), seconds=seconds)

    def _drop(self, record: object) -> None:
        if isinstance(record, Seconds):
            self._dropped += record.last_s - record.first_s + 1

    def _note_failure(self, record: object, error: Exception) -> None:
        self._failures += 1
        self._drop(record)
        problem = (isinstance(error, OSError) and error.strerror) or str(error)
        if self._retry_at_s is None:
            log.error("history_writing_failed", directory=str(self._ring.directory), problem=problem)
        self.problem = problem
        self._retry_at_s = self._now_s() + _RETRY_S
