"""Quotas in a compacted topic of the cluster itself: for several proxies, without ZooKeeper."""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Quotas, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, InvalidQuota
from kafka_throttle.quotas.sources.cluster_connection import ClusterClient, Credentials
from kafka_throttle.quotas.sources.source import SourceState
from kafka_throttle.quotas.sources.topic_log import (
    Client,
    LedElsewhere,
    LogPlace,
    OffsetGone,
    TopicLog,
    TopicMissing,
    TopicRefused,
)
from kafka_throttle.quotas.sources.topic_table import NOTHING, TopicTable, key_of, records_of

Result = TypeVar("Result")

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0
_ALTER_S = 10.0
_STOP_S = 1.0
_VALUE_BYTES = 50
_BATCH_BYTES = 256 << 10
"""Alterations that are written at once have about so many bytes: the least `max.message.bytes` in use has more."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Which topic of which cluster, and who the proxy is to it.

    `creates`: whether a topic that is missing is created at once, and not only when there is something to be written.
    `timeout_s` bounds the way to one node and its response, `alter_s` how long a batch of alterations may take.
    """

    topic: str
    bootstrap_servers: tuple[str, ...]
    credentials: Credentials = field(default_factory=Credentials)
    creates: bool = True
    timeout_s: float = 10.0
    alter_s: float = _ALTER_S


class TopicSource:
    """Quotas in a topic that is read from its beginning and followed, in a thread with an event loop of its own.

    An alteration is written in one batch and answered when it was read back: then each proxy that follows the topic has
    it, or has it in a moment. Of several alterations of one quota the one with the highest offset holds, the same
    everywhere. While the topic cannot be read, or is none that may be used, the last good quotas stay. A topic that is
    missing is created only by a proxy that has no quotas: else it was deleted, which is a problem and no change.
    """

    name = "topic"

    def __init__(
        self,
        settings: TopicSettings,
        connect: Callable[[str, Credentials, float], Client] = ClusterClient,
        epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._epoch_ms = epoch_ms
        self._follower = _Follower(settings, connect, self._take_up, self._note)
        self._quotas = NO_QUOTAS
        self._record_problems: Mapping[str, str] = MappingProxyType({})
        self._trouble: str | None = "not read yet"
        self._is_known = False
        self._changed: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self._attempted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quotas-topic", daemon=True)

    @property
    def quotas(self) -> Quotas:
        """What the topic says, without the nonsense in it."""
        return self._quotas

    @property
    def problems(self) -> Mapping[str, str]:
        """By the offset of a record, and of the topic as a whole."""
        of_topic = {} if (trouble := self._trouble) is None else {f"topic {self._settings.topic}": trouble}
        return MappingProxyType(of_topic | dict(self._record_problems))

    @property
    def state(self) -> SourceState:
        """Whether the topic was read to its end, and is followed."""
        read_s = self._follower.read_s
        age_s = None if read_s is None else time.monotonic() - read_s
        return SourceState(self._is_known, self._trouble is None, age_s)

    @property
    def is_missing(self) -> bool:
        """Whether there is no topic yet."""
        return isinstance(self._follower.trouble, TopicMissing)

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Read the topic, and from now on follow it; returns after the first attempt, or after the time-out."""
        self._quotas = last_good
        self._changed = changed
        self._loop = asyncio.SelectorEventLoop()
        self._thread.start()
        self._attempted.wait(self._settings.timeout_s)

    def stop(self) -> None:
        """End the thread, also one that waits for a node. `start` waits no longer."""
        self._stopped.set()
        self._attempted.set()
        self._call_in_loop(self._cancel)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def replace_servers(self, bootstrap_servers: tuple[str, ...], timeout_s: float) -> None:
        """Find the topic by these servers when it has to be found again."""
        self._follower.log.servers.replace(bootstrap_servers)
        self._follower.log.timeout_s = timeout_s

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write alterations, each in one batch, and wait until they were read back."""
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            return _all(alterations, SourceUnavailable("stopped; nothing is written"))
        batches = list(_batches(alterations))
        work = self._alter(batches)
        try:
            altering = asyncio.run_coroutine_threadsafe(work, loop)
            return altering.result((len(batches) + 1) * self._settings.alter_s)
        except (concurrent.futures.CancelledError, RuntimeError, TimeoutError):  # the loop ends, or is closed
            work.close()
            return _all(alterations, SourceUnavailable("stopped; it may be written"))

    # ----------------------------------------------------------- the thread

    def _run(self) -> None:
        assert self._loop is not None
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type,return-value]
            try:
                runner.run(self._follow())
            except asyncio.CancelledError:
                pass

    async def _follow(self) -> None:
        self._following = asyncio.current_task()
        if not self._stopped.is_set():
            await self._follower.follow(lambda: self._quotas)

    def _cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _call_in_loop(self, work: Callable[[], None]) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(work)
            except RuntimeError:  # closed already
                pass

    def _take_up(self, quotas: Quotas, problems: Mapping[str, str]) -> None:
        """The topic was read to its end."""
        before = self._quotas, self._record_problems, self._trouble
        self._quotas, self._record_problems, self._trouble, self._is_known = quotas, problems, None, True
        self._tell(before[0] is not quotas or before[1:] != (problems, None))

    def _note(self, trouble: str) -> None:
        """The topic cannot be read."""
        is_new, self._trouble = trouble != self._trouble, trouble
        self._tell(is_new)

    def _tell(self, has_changed: bool) -> None:
        if has_changed and not self._stopped.is_set():
            self._changed()
        self._attempted.set()

    # -------------------------------------------------------------- writing

    async def _alter(self, batches: Sequence[Sequence[Alteration]]) -> Sequence[Exception | None]:
        results: list[Exception | None] = []
        for batch in batches:
            refused: dict[int, Exception] = {}
            outcome: Exception | None = None
            records: list[tuple[bytes, bytes | None]] = []
            for i, alteration in enumerate(batch):
                try:
                    records += records_of(alteration, self._quotas.get(alteration.entity, NOTHING))
                except InvalidQuota as error:
                    refused[i] = AlterationRefused(str(error))
            try:
                if records:
                    await self._follower.write(records, self._epoch_ms(), self._settings.alter_s)
            except (AlterationRefused, SourceUnavailable) as error:
                outcome = error
            results += [refused.get(i, outcome) for i in range(len(batch))]
        return results


class _Follower:
    """Reads the topic to its end again and again, and writes to it; in one event loop."""

    def __init__(
        self,
        settings: TopicSettings,
        connect: Callable[[str, Credentials, float], Client],
        take_up: Callable[[Quotas, Mapping[str, str]], None],
        note: Callable[[str], None],
    ) -> None:
        self.log = TopicLog(
            settings.topic, settings.bootstrap_servers, settings.credentials, settings.timeout_s, connect
        )
        self.read_s: float | None = None
        """When all of it was last known to have been read, by `time.monotonic`."""
        self._take_up = take_up
        self._note = note
        self._table = TopicTable(settings.topic, NO_QUOTAS)
        self._place: LogPlace | None = None
        """Where it was when it was last open."""
        self._offset = 0
        """The next to be read."""
        self._published = -1
        """Up to this offset, without it, the quotas are those of the topic."""
        self._may_create = settings.creates
        self.trouble: SourceUnavailable | None = None
        """Why it is not open, or was not before."""
        self._news = asyncio.Condition()

    async def follow(self, quotas: Callable[[], Quotas]) -> None:
        """Follow the topic until this is cancelled; `quotas` are those in force."""
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        try:
            while True:
                try:
                    await self._read_on(quotas, backoff)
                except SourceUnavailable as error:
                    await self._lost(error)
                except Exception as error:  # our own bug: reported, but no end of reading
                    logging.getLogger(__name__).exception("quotas not read")
                    await self._lost(SourceUnavailable(f"cannot be read: {error!r}"))
                await asyncio.sleep(backoff.failed())
        finally:
            self.log.close()

    async def _lost(self, error: SourceUnavailable) -> None:
        self.log.close()
        if isinstance(error, OffsetGone):
            self._place = None
        self.trouble = error
        self._note(str(error))
        async with self._news:
            self._news.notify_all()

    async def _read_on(self, quotas: Callable[[], Quotas], backoff: Backoff) -> None:
        """Open the topic and read it. Raises SourceUnavailable."""
        place = await self._opened(quotas())
        was_known = self.read_s is not None
        while True:
            began_s = time.monotonic()
            found = await self.log.read(self._offset)
            for offset, why in found.skipped.items():
                self._table.note_skipped(offset, why)
            for record in found.records:
                self._table.take(record)
            self._offset = found.next_offset
            if self._offset >= place.end:
                await self._publish(quotas())
                backoff.succeeded()
            elif was_known:  # it shares the processor with the traffic
                await asyncio.sleep(min(1.0, time.monotonic() - began_s))

    async def _opened(self, quotas: Quotas) -> LogPlace:
        try:
            place = await self.log.open(may_create=self._may_create and not quotas)
        except TopicMissing as missing:
            if quotas:
                why = "it was deleted; the last good quotas stay in force until it is made again"
                raise TopicRefused(f"{missing}: {why}") from None
            raise TopicMissing(f"{missing} yet: it is created when a proxy starts or a quota is set") from None
        is_too_late = self.read_s is None or time.monotonic() - self.read_s > place.deletions_s / 2
        if is_too_late or not place.goes_on(self._place):
            self._table, self._offset, self._published = TopicTable(self.log.name, quotas), place.first, -1
        self._place = place
        return place

    async def _publish(self, before: Quotas) -> None:
        self.trouble = None
        self._take_up(self._table.quotas_after(before), self._table.problems)
        self.read_s = self.log.heard_s
        self._published = self._offset
        async with self._news:
            self._news.notify_all()

    async def write(self, records: Sequence[tuple[bytes, bytes | None]], epoch_ms: int, within_s: float) -> None:
        """Write records, and wait until they are taken up. Raises AlterationRefused or SourceUnavailable."""
        self._may_create = True
        deadline_s = asyncio.get_running_loop().time() + within_s
        topic_id, offset = await self._append(records, epoch_ms, deadline_s)
        read_back = self._until(lambda: self._has_read(topic_id, offset))
        await _by(deadline_s, read_back, lambda: f"{self._why}; it is written, but was not read back")

    async def _append(
        self, records: Sequence[tuple[bytes, bytes | None]], epoch_ms: int, deadline_s: float
    ) -> tuple[bytes, int]:
        """The id of the topic, and the offset of the last record there."""
        while True:
            await _by(deadline_s, self._until(self._may_write), lambda: f"{self._why}; nothing is written")
            place = self.log.place
            if place is None:  # it is refused
                raise SourceUnavailable(f"{self._why}; nothing is written")
            try:
                appending = self.log.append(records, epoch_ms)
                return place.topic_id, await _by(deadline_s, appending, lambda: f"{self._why}; it may be written")
            except LedElsewhere:
                await asyncio.sleep(_FIRST_RETRY_S)

    @property
    def _why(self) -> str:
        return str(self.trouble or f"topic {self.log.name} is not answered in time")

    def _may_write(self) -> bool:
        return self.log.place is not None or isinstance(self.trouble, TopicRefused)

    def _has_read(self, topic_id: bytes, offset: int) -> bool:
        place = self._place
        if place is not None and place.topic_id != topic_id:
            raise SourceUnavailable(f"topic {self.log.name} was made anew; it may not be written there")
        return self._published > offset

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(condition)


async def _by(deadline_s: float, work: Coroutine[Any, Any, Result], why: Callable[[], str]) -> Result:
    """What `work` returns. SourceUnavailable with `why` if that lasts beyond `deadline_s`, in the event loop's time."""
    try:
        async with asyncio.timeout_at(deadline_s):
            return await work
    except TimeoutError:
        raise SourceUnavailable(why()) from None


def _all(alterations: Sequence[Alteration], outcome: Exception | None) -> list[Exception | None]:
    return [outcome] * len(alterations)


def _batches(alterations: Sequence[Alteration]) -> Iterator[Sequence[Alteration]]:
    """The alterations in their order, in parts that are written at once: of different entities, and not too many."""
    batch: list[Alteration] = []
    entities: set[Entity] = set()
    size_bytes = 0
    for alteration in alterations:
        more_bytes = sum(len(key_of(alteration.entity, key)) + _VALUE_BYTES for key in alteration.limits)
        if alteration.entity in entities or (batch and size_bytes + more_bytes > _BATCH_BYTES):
            yield batch
            batch, entities, size_bytes = [], set(), 0
        batch.append(alteration)
        entities.add(alteration.entity)
        size_bytes += more_bytes
    if batch:
        yield batch
