"""The changes that one run may make, so that the quotas in force come nearer to the wanted ones.

No limit becomes less than 1/F of the limit in force, or more than F times as much. If an entity has no quota of its
own, the limit in force is that of the quota that applies to it by Kafka's precedence. Where no quota applies, a new
quota has no bound.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from kafka_throttle.quotas.entities import BYTE_RATES, SCOPED, Entity, QuotaType, Scope
from kafka_throttle.quotas.limits import UNLIMITED, WHOLE_WITHIN
from kafka_throttle.quotas.quota_table import QuotaTable

Limits = Mapping[Entity, Mapping[QuotaType, float]]

_WHOLE: Final = BYTE_RATES | {QuotaType.CONNECTION}
_NOBODY: Final = "\0"
"""Stands for users and client-ids that no quota names."""


class Bounds(NamedTuple):
    """How much may change in one run: by which factor (above 1; `inf`: any) a limit, and how many entities."""

    most_change: float = 2.0
    most_entities: int | None = None


class Inherited(NamedTuple):
    """What applies to an entity that has no quota of its own: a limit, and the entity whose quota that is."""

    limit: float
    entity: Entity


@dataclass(frozen=True, slots=True)
class Change:
    """A quota of an entity, as it is, as this run sets it, and as it is wanted in the end; None: no quota.

    `why` says why this run does not go all the way, "" if it does. `scope` is that of the quotas of the entity before,
    which a change keeps: only where it removes the last of them, its reversal has to set the scope again.
    """

    entity: Entity
    quota_type: QuotaType
    before: float | None
    after: float | None
    wanted: float | None
    why: str = ""
    inherited: Inherited | None = None
    scope: Scope = Scope.NODE

    @property
    def is_whole(self) -> bool:
        """Whether the quota is as wanted after this change."""
        return same(self.after, self.wanted)

    @property
    def lowers(self) -> bool:
        """Whether a client may get less after the change than before."""
        return self._bound(self.after) < self._bound(self.before)

    def _bound(self, own: float | None) -> float:
        if own is not None:
            return own
        return math.inf if self.inherited is None else self.inherited.limit

    def reversed(self) -> "Change":
        """The change that undoes this one."""
        return Change(self.entity, self.quota_type, self.after, self.before, self.before, scope=self.scope)


class Planned(NamedTuple):
    """The changes of this run, and `waiting`: those of entities that --most-entities leaves for later runs."""

    changes: tuple[Change, ...]
    waiting: tuple[Change, ...]
    as_wanted: int
    """The number of limits that are as wanted already."""


def same(one: float | None, other: float | None) -> bool:
    """Whether two limits are equal; brokers may report a limit as the next whole number."""
    if one is None or other is None:
        return one is other
    return one == other or abs(one - other) <= WHOLE_WITHIN


def planned(in_force: Limits, wanted: Limits, bounds: Bounds, *, prune: bool = False) -> Planned:
    """The changes that lead from `in_force` to `wanted`, as far as `bounds` let one run go.

    Quotas that `wanted` does not name stay, or with `prune` are removed. Entities whose limits are only raised come
    first.
    """
    table = in_force if isinstance(in_force, QuotaTable) else QuotaTable(in_force)
    found = list(_changes(table, wanted, bounds.most_change, prune))
    changes = [change for change in found if not same(change.before, change.wanted)]
    ranked = sorted(_by_entity(changes), key=lambda group: any(change.lowers for change in group))
    most = len(ranked) if bounds.most_entities is None else bounds.most_entities
    now = tuple(change for group in ranked[:most] for change in group)
    later = tuple(_put_off(change, most) for group in ranked[most:] for change in group)
    return Planned(now, later, len(found) - len(changes))


def _by_entity(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes of each entity, in the order of their names."""
    ordered = sorted(changes, key=lambda change: (str(change.entity), change.quota_type.value))
    for _, group in groupby(ordered, key=lambda change: change.entity):
        yield list(group)


def _changes(table: QuotaTable, wanted: Limits, most_change: float, prune: bool) -> Iterator[Change]:
    for entity, limits in wanted.items():
        for quota_type, limit in limits.items():
            yield _change(table, entity, quota_type, limit, most_change)
    for entity, own in table.items() if prune else ():
        for quota_type in own:
            if quota_type not in wanted.get(entity, ()):
                yield _change(table, entity, quota_type, None, most_change)


def _change(
    table: QuotaTable, entity: Entity, quota_type: QuotaType, wanted: float | None, most_change: float
) -> Change:
    before, scope = table.get(entity, {}).get(quota_type), _scope_of(table, entity)
    inherited = inherited_by(table, entity, quota_type)
    base = before if before is not None or inherited is None else inherited.limit
    goal = wanted if wanted is not None or inherited is None else inherited.limit
    if base is None or goal is None:
        return Change(entity, quota_type, before, wanted, wanted, "", inherited, scope)
    reached = step(base, goal, quota_type, most_change)
    if same(reached, goal):
        return Change(entity, quota_type, before, wanted, wanted, "", inherited, scope)
    why = f"a factor of {most_change:g} a run: --most-change"
    return Change(entity, quota_type, before, reached, wanted, why, inherited, scope)


def _scope_of(table: QuotaTable, entity: Entity) -> Scope:
    return Scope.CLUSTER if entity in table.of_cluster else Scope.NODE


def other_scopes(in_force: QuotaTable, wanted: QuotaTable) -> list[tuple[Entity, Scope]]:
    """The entities to which `wanted` gives another scope than is in force, with that scope. No plan changes a scope."""
    return [
        (entity, scope)
        for entity, limits in wanted.items()
        if not SCOPED.isdisjoint(limits) and (scope := _scope_of(wanted, entity)) is not _scope_of(in_force, entity)
    ]


def step(base: float, goal: float, quota_type: QuotaType, most_change: float) -> float:
    """The limit nearest to `goal` that is within the factor of `base`; whole numbers move by at least one.

    From 0, a ban, there is no factor: the result is `goal`.
    """
    if math.isinf(most_change) or base == 0:
        return goal
    low, high = base / most_change, base * most_change
    if quota_type in _WHOLE:
        low = min(float(math.ceil(low)), base - 1)
        high = math.inf if math.isinf(high) else max(float(math.floor(high)), base + 1)
    return min(max(goal, low), high)


def inherited_by(table: QuotaTable, entity: Entity, quota_type: QuotaType) -> Inherited | None:
    """The quota that would apply to clients of an entity if it had none of its own; None if none would.

    For parts that the entity does not name, or names as the default, a client is assumed that no quota names.
    """
    own = table.get(entity, {})
    others = {other: limit for other, limit in own.items() if other is not quota_type}
    rest = table.changed({entity: others}) if quota_type in own else table
    if entity.ip is not None:
        limit, rule = rest.ip_limit(_name(entity.ip))
    else:
        _, limit, rule = rest.tags_and_limit(quota_type, _name(entity.user), _name(entity.client_id))
    return None if rule is None or limit >= UNLIMITED else Inherited(limit, rule)


def _name(name: object) -> str:
    return name if isinstance(name, str) else _NOBODY


def _put_off(change: Change, most: int) -> Change:
    return replace(change, after=change.before, why=f"{most} entities a run: --most-entities")
