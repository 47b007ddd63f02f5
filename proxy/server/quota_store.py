"""The quotas of one virtual cluster: taken from their source, put in force, and written back when altered."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from kafka_throttle.common.at_most_every import AtMostEvery
from kafka_throttle.common.duties import Duty
from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.proxy.server.sharing import DecisionTurns
from kafka_throttle.quotas.changes import (
    NO_QUOTAS,
    Alteration,
    Changes,
    Limit,
    Quotas,
    SourceUnavailable,
    Tables,
    changes_between,
    tables_of,
)
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import Entity, QuotaKey, Scope
from kafka_throttle.quotas.shared_map import SharedMap
from kafka_throttle.quotas.sources.source import Source

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


Result = TypeVar("Result")

_THREADS = 4
_MOST_LISTED = 100
"""How many changes, and problems, of one batch have a log line each; of the others the log has the number."""
_UNKNOWN_EVERY_US = 60_000_000


class QuotaStore:
    """The quotas in force, as they were when last taken from the source. Belongs to the event loop.

    `note_problems` is called with the source's name and the number of its new problems. Without `reports`, another
    process reports the changes and the problems of the same quotas.
    """

    def __init__(
        self,
        virtual_cluster: str,
        source: Source,
        quota_manager: ClientQuotaManager,
        clock: Clock,
        note_problems: Callable[[str, int], None],
        *,
        reports: bool = True,
    ) -> None:
        self.source = source
        self.quotas = NO_QUOTAS
        self.since_ms = clock.epoch_ms()
        """When these quotas came into force, by the wall clock."""
        self.problems: Mapping[str, str] = {}
        self.when_changed: Callable[[Tables], None] = lambda _tables: None
        """Called with the new tables whenever quotas have changed."""
        self.when_taken_up: Callable[[], None] = lambda: None
        """Called whenever what the source has is in force, also if only its problems have changed."""
        self.alteration_turns = DecisionTurns()
        """Turns for requests that alter these quotas: they wait for the source, and nothing else waits for them."""
        self._reports = reports
        self._quota_manager = quota_manager
        self._clock = clock
        self._note_problems = note_problems
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, source=source.name)
        self._threads = ThreadPoolExecutor(_THREADS, "quotas")
        self._tables = tables_of(NO_QUOTAS)
        self._entities_of: SharedMap[str, tuple[Entity, ...]] = SharedMap()
        self._preparing = ThreadPoolExecutor(1, "quota-tables")
        """Separate from `_threads`, which may be blocked by a source."""
        self._taking_up = asyncio.Lock()
        self._duty = Duty("putting quotas in force", virtual_cluster)
        self._is_due = asyncio.Event()
        """The source may have something that is not in force."""
        self._taking_up_again: asyncio.Task[None] | None = None
        self._altering: Counter[_Setting] = Counter()
        """What alterations under way have set, and how many of them: their log lines name the client."""
        self._known = False
        self.refuses_while_unknown = False
        """Whether connections are refused while the quotas are not known: `quotas.when_unknown`."""
        self._reports_of_unknown = AtMostEvery(_UNKNOWN_EVERY_US)
        self._reported_unknown = False
        self._alterations_under_way: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Start the source and put its quotas in force; from now on changes in the source are applied."""
        loop = asyncio.get_running_loop()
        await self._in_thread(self.source.start, lambda: _call_soon(loop, self._is_due.set))
        await self.take_up()
        self._taking_up_again = loop.create_task(self._duty.keep(self._keep_taking_up))

    @property
    def known(self) -> bool:
        """Whether quotas are in force that were read from the source once, by this process or an earlier one."""
        if not self._known:
            self._known = self.source.state.known and self.source.quotas is self.quotas
        return self._known

    @property
    def problems_to_report(self) -> int:
        """How many problems the source has; 0 if another process reports them."""
        return len(self.problems) if self._reports else 0

    def may_serve(self) -> bool:
        """Whether connections may come: as long as the quotas are not known, the configuration says so."""
        return not self.refuses_while_unknown or self.known

    def report_unknown(self, now_us: int) -> None:
        """Log that the quotas are not known, once a minute as long as that is so, and when they are known."""
        if not self._reports:
            return
        if self.known:
            if self._reported_unknown:
                self._reported_unknown = False
                self._log.info("quotas_known")
        elif self._reports_of_unknown.is_due(now_us):
            self._reported_unknown = True
            effect = "connections are refused" if self.refuses_while_unknown else "connections are served without them"
            problem = f"the quotas are not known yet: {effect}"
            self._log.error("quotas_unknown", problem=problem, setting="quotas.when_unknown")

    async def cut_start_short(self) -> None:
        """Have `start` wait no longer for a source that is not read yet, as the process ends."""
        await self._in_thread(self.source.stop)

    async def stop(self) -> None:
        """Wait until alterations under way are written, then stop the source."""
        if self._alterations_under_way:
            await asyncio.wait(self._alterations_under_way)
        if self._taking_up_again is not None:
            async with self._taking_up:
                self._taking_up_again.cancel()
        await self._in_thread(self.source.stop)
        self._threads.shutdown(wait=False)
        self._preparing.shutdown(wait=False)

    async def _in_thread(self, work: Callable[..., Result], *args: Any) -> Result:
        """Run a call that may block in the store's own threads, so that nothing else waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def _keep_taking_up(self) -> None:
        """Put in force what changes in the source."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await self.take_up()

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.get_running_loop().create_task(work)
        self._alterations_under_way.add(task)
        task.add_done_callback(self._alterations_under_way.discard)
        return task

    async def take_up(self) -> None:
        """Put the source's current quotas in force. Clients that are muted stay muted until their time is over.

        A thread works out what changes; it is put in force in steps of a few ms. After an error it is tried again, each
        second.
        """
        try:
            async with self._taking_up:
                problems = dict(self.source.problems)
                if self._reports:
                    self._tell_problems(problems)
                self.problems = problems
                if self.source.quotas is not self.quotas:
                    await self._put_in_force(self.source.quotas)
                self._known = self.known
                self.when_taken_up()
        except Exception:
            self._is_due.set()
            raise

    async def _put_in_force(self, quotas: Quotas) -> None:
        loop, are_first = asyncio.get_running_loop(), not self._known
        news = await loop.run_in_executor(self._preparing, self._news, quotas, frozenset(self._altering))
        changed = news.changes.keys()
        if changed:
            self.since_ms = self._clock.epoch_ms()
            self.when_changed(news.tables)
            now_ms = self._clock.now_ms()
            for _ in self._quota_manager.replacing(news.tables.enforced, now_ms, news.tables.shadow, changed):
                await asyncio.sleep(0)
        self._tables, self._entities_of, self.quotas = news.tables, news.entities_of, quotas
        if not changed:
            return
        if self._reports:
            self._log.info("quotas_changed", entities=len(quotas), changed=len(changed))
        if self._reports and not are_first:
            self._audit_changes(news)

    def _news(self, now: Quotas, altering: Collection["_Setting"]) -> "_News":
        """The changes since quotas were last taken up, with the tables they lead to."""
        changes = changes_between(self.quotas, now)
        others = (
            change
            for change in _single_changes(self.quotas, changes)
            if (change.entity, change.key, change.new) not in altering
        )
        audited = list(islice(others, _MOST_LISTED))
        unlisted = sum(1 for _ in others)
        return _News(changes, self._tables.changed(changes), _by_user(self._entities_of, changes), audited, unlisted)

    def _audit_changes(self, news: "_News") -> None:
        """Log the changes that did not come through Kafka's API: these are logged with the client."""
        for change in news.audited:
            scope = None if change.scope is None else change.scope.value
            self._log.info("quota_changed", **change.log_keys(), layer=printable(change.layer), scope=scope)
        if news.unlisted:
            self._log.info("quota_changes_unlisted", changes=news.unlisted)

    def entities_of(self, user: str) -> tuple[Entity, ...]:
        """The entities with quotas that name this user."""
        found: tuple[Entity, ...] = self._entities_of.get(user, ())
        return found

    def _tell_problems(self, problems: Mapping[str, str]) -> None:
        """Log what is new. A key that is wrong may be so in each of very many entities."""
        new = [place for place, problem in problems.items() if self.problems.get(place) != problem]
        over = [place for place in self.problems if place not in problems]
        for place in new[:_MOST_LISTED]:
            self._log.warning("quota_problem", place=printable(place), problem=printable(problems[place], 1_000))
        for place in over[:_MOST_LISTED]:
            self._log.info("quota_problem_ended", place=printable(place))
        if len(over) > _MOST_LISTED:
            self._log.info("quota_problems_unlisted", ended=len(over) - _MOST_LISTED)
        if len(new) > _MOST_LISTED:
            self._log.warning("quota_problems_unlisted", problems=len(new) - _MOST_LISTED)
        if new:
            self._note_problems(self.source.name, len(new))

    async def alter_quotas(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Sequence[Exception | None]:
        """Have the source write alterations, put them in force, and log each in `log`.

        Returns for each alteration None, or the exception that says why it was refused. The work goes on if the caller
        is cancelled.
        """
        return await asyncio.shield(self._spawn(self._alter(alteration_request, log)))

    async def write(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """As `alter_quotas`, for a caller that logs them itself, and is not cancelled."""
        altering = Counter((each.entity, key, limit) for each in alterations for key, limit in each.limits.items())
        self._altering += altering
        try:
            results = await self._in_thread(self.source.alter, alterations)
            try:
                await self.take_up()
            except Exception as error:
                self._duty.failed(error)
                late = SourceUnavailable("written, but not in force yet: an error in the proxy, which tries it again")
                results = [result or late for result in results]
        finally:
            self._altering -= altering
        return results

    async def _alter(
        self, alteration_request: QuotaAlteration, log: "FilteringBoundLogger"
    ) -> Sequence[Exception | None]:
        before, alterations = self.source.quotas, alteration_request.alterations
        results = await self.write(alterations)
        log = log.bind(client_id=printable(alteration_request.client_id), source=self.source.name)
        for alteration, key, result in islice(_altered(alterations, results), _MOST_LISTED):
            old = before.get(alteration.entity, {}).get(key)
            change = _Change(alteration.entity, key, None if old is None else old.value, alteration.limits[key])
            if result is None:
                log.info("quota_altered", **change.log_keys())
            else:
                log.warning("quota_alteration_refused", problem=printable(str(result)), **change.log_keys())
        altered = {(each.entity, key) for each in alterations for key in each.limits}
        if (unlisted := len(altered) - _MOST_LISTED) > 0:
            log.info("quota_changes_unlisted", changes=unlisted)
        return results


class _Change(NamedTuple):
    """A change of one quota of one entity; None: there was or is none. `layer` is where it stands, or stood.

    `scope` is the new scope, None if it is as before.
    """

    entity: Entity
    key: QuotaKey
    old: float | None
    new: float | None
    layer: str = ""
    scope: Scope | None = None

    def log_keys(self) -> dict[str, str | float | None]:
        """The keys of every log line about a change."""
        return {"entity": printable(str(self.entity)), "quota": self.key.text, "old": self.old, "new": self.new}


_Setting = tuple[Entity, QuotaKey, float | None]
"""A limit that an alteration sets, None if it removes the quota."""


def _single_changes(before: Quotas, changes: Changes) -> Iterator[_Change]:
    """The quotas that have another value than before, or are new or gone."""
    for entity, limits in changes.items():
        old, new = before.get(entity, {}), limits or {}
        for key in dict.fromkeys((*old, *new)):
            was, now = old.get(key), new.get(key)
            old_value, new_value = (None if limit is None else limit.value for limit in (was, now))
            old_scope, new_scope = (Scope.NODE if limit is None else limit.scope for limit in (was, now))
            scope = None if now is None or old_scope is new_scope else new_scope
            if old_value != new_value or scope is not None:
                yield _Change(entity, key, old_value, new_value, (now or was or Limit(0, "")).layer, scope)


def _altered(
    alterations: Sequence[Alteration], results: Sequence[Exception | None]
) -> Iterator[tuple[Alteration, QuotaKey, Exception | None]]:
    """Each quota of each alteration, with the result of the alteration."""
    for alteration, result in zip(alterations, results, strict=True):
        for key in alteration.limits:
            yield alteration, key, result


class _News(NamedTuple):
    """The changes of the quotas, and the tables and the entities of each user after them.

    `audited` are the first changes that did not come through Kafka's API, `unlisted` is the number of the others.
    """

    changes: Changes
    tables: Tables
    entities_of: SharedMap[str, tuple[Entity, ...]]
    audited: Sequence[_Change]
    unlisted: int


def _by_user(before: SharedMap[str, tuple[Entity, ...]], changes: Changes) -> SharedMap[str, tuple[Entity, ...]]:
    found: dict[str, dict[Entity, None]] = {}
    for entity, limits in changes.items():
        if isinstance(entity.user, str):
            entities = found.setdefault(entity.user, dict.fromkeys(before.get(entity.user, ())))
            if limits:
                entities[entity] = None
            else:
                entities.pop(entity, None)
    return before.changed({user: tuple(entities) or None for user, entities in found.items()})


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
