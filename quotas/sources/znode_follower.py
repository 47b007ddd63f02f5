"""Keeps what is known of Kafka's quota znodes in step with ZooKeeper, and writes to them; over any connection."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from kafka_throttle.quotas.changes import Alteration, AlterationRefused, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, InvalidQuota, Scope
from kafka_throttle.quotas.sources.znodes import (
    CHANGE_PREFIX,
    CHANGES,
    ROOTS,
    Create,
    EntityNodes,
    Seen,
    Step,
    change_number,
    notification,
    notified_path,
    pairs_of,
    parents_of,
    steps_to,
)

BATCH: Final = 64
"""Requests under way at once, and alterations: what else is to be done waits for no more than these."""

_WRITE_ATTEMPTS = 100
_MISSING_ROOT_S = 1.0
"""How soon it is looked again for a root that is gone."""
_RESYNC_REST = 5
"""A re-sync rests this many times as long as it works, for it shares its processor with the traffic."""
_KEPT_MS = 15 * 60 * 1000
"""How old a notification may become, as in brokers."""
_DONE = object()


class ConnectionLost(Exception):
    """This connection is of no use any more; the text says why."""


class Failure(Exception):
    """A request failed for a reason of its own; the text says which."""


class Conflict(Failure):
    """Version conflict: the znode changed since it was read."""


class Forbidden(Failure):
    """We are not allowed to do this."""


class Connection(Protocol):
    """What is asked of ZooKeeper; paths are full. Each answers within seconds, or raises ConnectionLost."""

    def sync(self, path: str) -> None:
        """Have this server catch up with the leader."""

    def read(self, paths: Iterable[str]) -> Sequence[Seen | Failure | None]:
        """Each node, None if it is not there."""

    def made_ms(self, paths: Iterable[str]) -> Sequence[int | None]:
        """When each node was made, in ms since 1970; None if it is not there."""

    def children(
        self, paths: Iterable[str], watch: Callable[[Any], None] | None = None
    ) -> Sequence[list[str] | Failure | None]:
        """The names below each node, None if it is not there; `watch` is called once when they change."""

    def make(self, paths: Sequence[str]) -> Mapping[str, Failure]:
        """Make empty nodes, in this order, where there are none; those that could not be made."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete nodes as far as they are there and we may."""

    def commit(self, transactions: Iterable[Sequence[Step]]) -> Sequence[Failure | None]:
        """Carry out each list of steps, whole or not at all; the Create of a notification has its number appended."""


class Follower:
    """Keeps `nodes` in step with ZooKeeper while one connection lasts; in one thread, but for `_on_watch`."""

    def __init__(
        self,
        connection: Connection,
        chroot: str,
        nodes: EntityNodes,
        resync_s: float,
        epoch_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.is_loaded = False
        self._connection = connection
        self._resync_s = resync_s
        self._brokers = f"{chroot}/brokers"
        self._is_kafkas = False
        self._nodes = nodes
        self._epoch_ms = epoch_ms
        self._wake = wake
        self._was_reported = False
        self._load: Iterator[None] = iter(())
        self._load_at = -inf
        self._roots_at = inf
        self._highest: int | None = None
        self._roots: dict[str, str] = {}
        self._bad_changes: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with other nodes than those of entities, by their full path."""
        return {**self._roots, **self._bad_changes}

    def go_on(self) -> float:
        """Read what is due: notified changes, and a batch of the load under way. Returns s until more is due."""
        if self._highest is None:
            self._begin()
        if self._was_reported:
            self._take_changes()
        if time.monotonic() >= self._roots_at:
            self._look_for_roots()
        if time.monotonic() >= self._load_at:
            self._load_some()
        return max(0.0, min(self._load_at, self._roots_at) - time.monotonic())

    def _load_some(self) -> None:
        began = time.monotonic()
        if next(self._load, _DONE) is _DONE:
            self.is_loaded = True
            self._load_again_in(self._resync_s)
            self._roots_at = time.monotonic() + _MISSING_ROOT_S if self._roots else inf
        elif self.is_loaded:
            now = time.monotonic()
            self._load_at = now + _RESYNC_REST * (now - began)

    def _look_for_roots(self) -> None:
        """Read everything again if a root is back that was gone, or could not be read."""
        self._roots_at = time.monotonic() + _MISSING_ROOT_S
        if any(isinstance(names, list) for names in self._connection.children(self._roots)):
            self._load_again_in(0)

    def _begin(self) -> None:
        """Make what is missing above the roots, and have kazoo tell of notifications from now on."""
        self._connection.sync("/")
        changes = self._nodes.full(CHANGES)
        parts = changes.split("/")
        above = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        if failures := self._connection.make(above):
            raise ConnectionLost("; ".join(f"cannot make {path}: {failure}" for path, failure in failures.items()))
        self._is_kafkas = self._connection.made_ms([self._brokers]) != [None]
        self._highest = max((number for number, _ in self._notifications()), default=-1)
        self._load_again_in(0)

    def _load_again_in(self, delay_s: float) -> None:
        self._load, self._load_at = self._batches_to_load(), time.monotonic() + delay_s

    def _batches_to_load(self) -> Iterator[None]:
        """Read every entity, a batch each step; those that are known of and not there any more come last."""
        unseen = self._nodes.paths
        waiting: list[str] = []
        for root in ROOTS:
            names = self._names_below(root)
            if names is None:
                unseen = {path for path in unseen if not path.startswith(f"{root}/")}
            waiting += [f"{root}/{name}" for name in names or ()]
        while waiting:
            batch: Sequence[str] = waiting[-BATCH:]
            del waiting[-BATCH:]
            unseen.difference_update(batch)
            waiting += self._pairs_below(self._read(batch))
            yield
        for batch in _batches(sorted(unseen)):
            self._read(batch)
            yield

    def _take_changes(self) -> None:
        """Read the entities that notifications since the last time are about, and purge old notifications."""
        self._was_reported = False
        notifications = self._notifications()
        new = [name for number, name in notifications if self._highest is None or number > self._highest]
        for batch in _batches(new):
            self._read(self._paths_in(batch))
        self._highest = max((number for number, _ in notifications), default=self._highest)
        names = {self._change(name) for _, name in notifications}
        self._bad_changes = {path: why for path, why in self._bad_changes.items() if path in names}
        self._purge([name for _, name in notifications])

    def write(self, alterations: Sequence[Alteration], deadline: float) -> list[Exception | None]:
        """Write alterations, no two of which are of the same user; for each, None or what went wrong."""
        outcomes: list[Exception | None] = [SourceUnavailable("others keep changing it")] * len(alterations)
        waiting = dict(enumerate(alterations))
        for _ in range(_WRITE_ATTEMPTS):
            results = self._try_to_write(list(waiting.values()))
            for i, result in zip(list(waiting), results, strict=True):
                if not isinstance(result, Conflict):
                    outcomes[i] = result
                    del waiting[i]
            if not waiting or time.monotonic() > deadline:
                break
        return outcomes

    # -------------------------------------------------------------- reading

    def _read(self, paths: Sequence[str]) -> dict[str, Seen]:
        """Read entity nodes; those that are there."""
        found: dict[str, Seen] = {}
        for path, seen in zip(paths, self._connection.read(map(self._nodes.full, paths)), strict=True):
            if isinstance(seen, Failure):
                self._nodes.cannot_read(path, f"cannot be read: {seen}")
            elif seen is not None:
                found[path] = seen
                self._nodes.take(path, seen.data)
            elif self._nodes.full(parents_of(path)[0]) not in self._roots:
                self._nodes.take(path, None)
        return found

    def _names_below(self, root: str) -> list[str] | None:
        """The names below a root, which is made if it is missing; None where what was below it has to stay in force.

        A root that is gone is not one that is empty: somebody has deleted it, or ZooKeeper has lost its data.
        """
        full = self._nodes.full(root)
        [names] = self._connection.children([full])
        self._roots.pop(full, None)
        if isinstance(names, Failure):
            self._roots[full] = f"cannot be read: {names}; the last good quotas below it stay in force"
            return None
        if names is not None:
            return names
        if self._nodes.holds_below(root):
            self._roots[full] = "is gone; the last good quotas below it stay in force until it is made again"
            return None
        for failure in self._connection.make([full]).values():
            self._roots[full] = f"is missing and cannot be made: {failure}"
        return []

    def _pairs_below(self, seen: Mapping[str, Seen]) -> list[str]:
        """The paths of the pairs that these users have."""
        parents = [pairs_of(path) for path, node in seen.items() if node.children and parents_of(path) == ("users",)]
        found = self._connection.children(map(self._nodes.full, parents))
        return [
            f"{parent}/{name}"
            for parent, names in zip(parents, found, strict=True)
            if isinstance(names, list)
            for name in names
        ]

    def _notifications(self) -> list[tuple[int, str]]:
        """The numbers and names of all notifications, the oldest first; kazoo will tell of the next one."""
        changes = self._nodes.full(CHANGES)
        [names] = self._connection.children([changes], self._on_watch)
        if not isinstance(names, list):
            raise ConnectionLost(f"{changes} {f'cannot be read: {names}' if names else 'is gone'}")
        return sorted((number, name) for name in names if (number := change_number(name)) is not None)

    def _on_watch(self, event: object) -> None:
        self._was_reported = True
        self._wake()

    def _paths_in(self, names: Sequence[str]) -> list[str]:
        """The entities that notifications are about. After one that is nonsense all have to be read."""
        paths: set[str] = set()
        changes = [self._change(name) for name in names]
        for change, seen in zip(changes, self._connection.read(changes), strict=True):
            if not isinstance(seen, Seen):
                continue
            try:
                if path := notified_path(seen.data):
                    paths.add(path)
            except InvalidQuota as error:
                self._bad_changes[change] = f"{error}; all entities are read again"
                self._load_again_in(0)
        return sorted(paths)

    def _purge(self, names: Sequence[str]) -> None:
        """Delete notifications that are too old; of names in order, so that one that is not ends the search."""
        oldest_ms = self._epoch_ms() - _KEPT_MS
        for batch in (names[:1], *_batches(names[1:])):
            changes = [self._change(name) for name in batch]
            made_ms = self._connection.made_ms(changes)
            old = [change for change, made in zip(changes, made_ms, strict=True) if made is None or made < oldest_ms]
            self._connection.delete(old)
            if len(old) < len(batch):
                return

    def _change(self, name: str) -> str:
        return f"{self._nodes.full(CHANGES)}/{name}"

    # -------------------------------------------------------------- writing

    def _try_to_write(self, alterations: Sequence[Alteration]) -> list[Exception | None]:
        """One attempt at each. What somebody else was faster with has a conflict as its result."""
        plans = self._plans(alterations)
        to_commit = [plan for plan in plans if isinstance(plan, _Plan) and plan.steps]
        failures = iter(self._connection.commit([plan.steps for plan in to_commit]))
        results: list[Exception | None] = []
        for plan in plans:
            if isinstance(plan, Exception):
                results.append(plan)
                continue
            failure = next(failures) if plan.steps else None
            if failure is None:
                self._nodes.take(plan.path, plan.data)
            results.append(failure and _reported(failure, self._nodes.full(plan.path)))
        return results

    def _plans(self, alterations: Sequence[Alteration]) -> list["_Plan | Exception"]:
        """What to write for each alteration, by what is there now."""
        paths = [self._path_of(alteration.entity) for alteration in alterations]
        around = {
            near: None for path in paths if isinstance(path, str) for near in (*parents_of(path), path)
        }  # each once, in order
        seen = dict(zip(around, self._connection.read(map(self._nodes.full, around)), strict=True))
        return [
            path if isinstance(path, Exception) else self._plan(path, alteration, seen)
            for path, alteration in zip(paths, alterations, strict=True)
        ]

    def _path_of(self, entity: Entity) -> str | AlterationRefused:
        try:
            return self._nodes.path_of(entity)
        except InvalidQuota as error:
            return AlterationRefused(str(error))

    def _plan(
        self, path: str, alteration: Alteration, seen: Mapping[str, Seen | Failure | None]
    ) -> "_Plan | Exception":
        root, *_ = parents = parents_of(path)
        near: dict[str, Seen | None] = {}
        for each in (*parents, path):
            if isinstance(found := seen[each], Failure):
                return _reported(found, self._nodes.full(each))
            near[each] = found
        if near[root] is None:
            return SourceUnavailable(f"{self._nodes.full(root)} is gone; make it again first")
        if self._is_kafkas and (ours := _not_kafkas(alteration)):
            # Measured: it answers each with UNKNOWN_SERVER_ERROR, for it checks all keys of the node, not the new ones.
            return AlterationRefused(
                f"{self._nodes.full(path)} is a broker's too, which takes no changes of a node with {ours}"
            )
        node = near[path]
        try:
            data = self._nodes.changes_to(path, node.data if node else b"", alteration.limits, alteration.scope)
        except InvalidQuota as error:
            return AlterationRefused(str(error))
        steps = steps_to(path, data, near)
        reported = [Create(f"{CHANGES}/{CHANGE_PREFIX}", notification(path))] if steps else []
        return _Plan(path, data, [self._placed(step) for step in (*steps, *reported)])

    def _placed(self, step: Step) -> Step:
        return replace(step, path=self._nodes.full(step.path))


def _not_kafkas(alteration: Alteration) -> str:
    """What an alteration would write that brokers do not know; empty if nothing."""
    if any(key.shadow and limit is not None for key, limit in alteration.limits.items()):
        return "shadow quotas"
    return "a scope" if alteration.scope is Scope.CLUSTER else ""


class _Plan(NamedTuple):
    """The content that a node shall have, and what to do for that; the paths in the steps are full."""

    path: str
    data: bytes
    steps: Sequence[Step]


def _reported(failure: Failure, path: str) -> Exception:
    """A failure as the caller is told it; a conflict, of which he is not told, as it is."""
    if isinstance(failure, Conflict):
        return failure
    return (AlterationRefused if isinstance(failure, Forbidden) else SourceUnavailable)(f"{path}: {failure}")


def _batches(items: Sequence[str]) -> Iterator[Sequence[str]]:
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))
