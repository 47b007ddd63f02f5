"""What one run may change of the quotas in force, so that they come nearer to those that are wanted.

No limit becomes less than 1/F, or more than F times, of what binds now. What binds an entity without a quota of its own
is the quota that it falls under by Kafka's precedence; a quota where nothing binds has nothing to be bounded by.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from quotas.entities import BYTE_RATES, Entity, QuotaType
from quotas.limits import UNLIMITED, WHOLE_WITHIN
from quotas.quota_table import QuotaTable

Limits = Mapping[Entity, Mapping[QuotaType, float]]

_WHOLE: Final = BYTE_RATES | {QuotaType.CONNECTION}
_NOBODY: Final = "\0"
"""Stands for users and client-ids that no quota names."""


class Bounds(NamedTuple):
    """How much may change in one run: by which factor a limit, above 1 (`inf`: any), and how many entities."""

    most_change: float = 2.0
    most_entities: int | None = None


class Inherited(NamedTuple):
    """What binds an entity that has no quota of its own: a limit, and the entity whose quota that is."""

    limit: float
    entity: Entity


@dataclass(frozen=True, slots=True)
class Change:
    """A quota of an entity, as it is, as it shall be after this run, and in the end; None: no quota.

    `why` says what keeps this run from going all the way, "" if nothing does.
    """

    entity: Entity
    quota_type: QuotaType
    before: float | None
    after: float | None
    wanted: float | None
    why: str = ""
    inherited: Inherited | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to be done after it."""
        return same(self.after, self.wanted)

    @property
    def lowers(self) -> bool:
        """Whether somebody may have less after it than before."""
        return self._bound(self.after) < self._bound(self.before)

    def _bound(self, own: float | None) -> float:
        if own is not None:
            return own
        return math.inf if self.inherited is None else self.inherited.limit

    def reversed(self) -> "Change":
        """What takes it back."""
        return Change(self.entity, self.quota_type, self.after, self.before, self.before)


class Planned(NamedTuple):
    """`changes` are for this run; `waiting` are entities' that --most-entities leaves for later ones."""

    changes: tuple[Change, ...]
    waiting: tuple[Change, ...]
    as_wanted: int
    """How many limits are as wanted already."""


def same(one: float | None, other: float | None) -> bool:
    """Whether two limits are equal; brokers may tell one as the next whole number."""
    if one is None or other is None:
        return one is other
    return one == other or abs(one - other) <= WHOLE_WITHIN


def planned(in_force: Limits, wanted: Limits, bounds: Bounds, *, prune: bool = False) -> Planned:
    """The changes that lead from `in_force` to `wanted`, as far as `bounds` let one run go.

    What `wanted` does not name stays, or with `prune` is removed. Entities whose limits are only raised come first.
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
    before = table.get(entity, {}).get(quota_type)
    inherited = inherited_by(table, entity, quota_type)
    base = before if before is not None or inherited is None else inherited.limit
    goal = wanted if wanted is not None or inherited is None else inherited.limit
    if base is None or goal is None:
        return Change(entity, quota_type, before, wanted, wanted, inherited=inherited)
    reached = step(base, goal, quota_type, most_change)
    if same(reached, goal):
        return Change(entity, quota_type, before, wanted, wanted, inherited=inherited)
    why = f"a factor of {most_change:g} a run: --most-change"
    return Change(entity, quota_type, before, reached, wanted, why, inherited)


def step(base: float, goal: float, quota_type: QuotaType, most_change: float) -> float:
    """The limit nearest to `goal` that is within the factor of `base`; by one at least where whole ones are meant.

    From 0, a ban, there is no factor: `goal`.
    """
    if math.isinf(most_change) or base == 0:
        return goal
    low, high = base / most_change, base * most_change
    if quota_type in _WHOLE:
        low = min(float(math.ceil(low)), base - 1)
        high = math.inf if math.isinf(high) else max(float(math.floor(high)), base + 1)
    return min(max(goal, low), high)


def inherited_by(table: QuotaTable, entity: Entity, quota_type: QuotaType) -> Inherited | None:
    """What would bind clients of an entity if it had no such quota of its own; None: nothing would.

    A part that it does not name, or names as the default, is that of clients which no quota names.
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
