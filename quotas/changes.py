"""Quotas with the layers that they come from, their changes, and the tables of enforced and shadow quotas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafka_throttle.quotas.entities import SCOPED, Entity, InvalidQuota, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.limits import valid_limit
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.shared_map import SharedMap


class Limit(NamedTuple):
    """A limit, and the layer that it comes from (a file, a znode, the cluster), as `quotas describe` names it.

    `scope` counts for the quota types in SCOPED only. All quotas of an entity that have one have the same.
    """

    value: float
    layer: str
    scope: Scope = Scope.NODE


def limit_of(key: QuotaKey, value: float, layer: str, scope: Scope) -> Limit:
    """The limit of a quota of an entity with this scope."""
    return Limit(value, layer, scope if key.quota_type in SCOPED else Scope.NODE)


Quotas = Mapping[Entity, Mapping[QuotaKey, Limit]]
"""All quotas of a virtual cluster, all of them valid. Entities without quotas are not in it."""

NO_QUOTAS: Final[Quotas] = SharedMap()

Changes = Mapping[Entity, Mapping[QuotaKey, Limit] | None]
"""The new quotas of each changed entity; None if it has no quotas any more."""


class SourceUnavailable(Exception):
    """The source cannot be read or written now. The text says what is wrong and where."""


class AlterationRefused(Exception):
    """The source refuses this alteration. The text says why."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of the quotas of one entity, all or nothing. Raises InvalidQuota for an invalid limit.

    `limits` has a limit for each key, or None to remove the quota if it exists. `scope` is the new scope of all quotas
    of the entity that have one; None leaves it as it is. The scope is removed together with the last of these quotas.
    """

    entity: Entity
    limits: Mapping[QuotaKey, float | None] = field(default_factory=dict)
    scope: Scope | None = None

    def __post_init__(self) -> None:
        for key, limit in self.limits.items():
            if limit is not None:
                valid_limit(self.entity, key.quota_type, limit)


def has_scope(keys: Iterable[QuotaKey]) -> bool:
    """Whether one of these quotas has a scope."""
    return any(key.quota_type in SCOPED for key in keys)


def scope_of(limits: Mapping[QuotaKey, Limit]) -> Scope:
    """The scope of the quotas of one entity; NODE if none of them has one."""
    return next((limit.scope for key, limit in limits.items() if key.quota_type in SCOPED), Scope.NODE)


def check_scope(entity: Entity, keys: Iterable[QuotaKey]) -> None:
    """Raises InvalidQuota if an entity with these quotas cannot be given a scope."""
    if not has_scope(keys):
        expected = " or ".join(quota_type.value for quota_type in QuotaType if quota_type in SCOPED)
        raise InvalidQuota(f"scope of {entity}: expected {expected} with it, as other quotas are per cluster always")


def changes_between(before: Quotas, now: Quotas) -> Changes:
    """The changes that turn `before` into `now`."""
    if isinstance(before, SharedMap) and isinstance(now, SharedMap):
        return now.changes_since(before)
    changes: dict[Entity, Mapping[QuotaKey, Limit] | None] = {
        entity: limits for entity, limits in now.items() if before.get(entity) != limits
    }
    changes.update((entity, None) for entity in before if entity not in now)
    return changes


def following(before: Quotas, now: Quotas) -> Quotas:
    """A copy of `now` that shares all equal parts with `before`, so that later comparisons are fast."""
    shared = before if isinstance(before, SharedMap) else SharedMap(before)
    return shared.changed(changes_between(shared, now))


class Tables(NamedTuple):
    """The table of enforced quotas, and the table of shadow quotas, which are only measured."""

    enforced: QuotaTable
    shadow: QuotaTable

    def changed(self, changes: Changes) -> "Tables":
        """The tables after these changes. The cost depends on the number of changes, not on the size of the tables."""
        enforced: dict[Entity, dict[QuotaType, float]] = {}
        shadow: dict[Entity, dict[QuotaType, float]] = {}
        of_cluster: set[Entity] = set()
        for entity, limits in changes.items():
            enforced[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if not key.shadow}
            shadow[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if key.shadow}
            if limits and scope_of(limits) is Scope.CLUSTER:
                of_cluster.add(entity)
        return Tables(self.enforced.changed(enforced, of_cluster), self.shadow.changed(shadow, of_cluster))


def tables_of(quotas: Quotas) -> Tables:
    """The tables for these quotas."""
    return Tables(QuotaTable(), QuotaTable()).changed(quotas)
