"""Quotas with the layers that they come from, their changes, and the tables of enforced and shadow quotas."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quotas.entities import Entity, QuotaKey, QuotaType
from quotas.limits import valid_limit
from quotas.quota_table import QuotaTable
from quotas.shared_map import SharedMap


class Limit(NamedTuple):
    """A limit, and the layer that it comes from (a file, a znode, the cluster), as `quotas describe` names it."""

    value: float
    layer: str


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

    `limits` has a limit for each key, or None to remove the quota if it exists.
    """

    entity: Entity
    limits: Mapping[QuotaKey, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, limit in self.limits.items():
            if limit is not None:
                valid_limit(self.entity, key.quota_type, limit)


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
        for entity, limits in changes.items():
            enforced[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if not key.shadow}
            shadow[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if key.shadow}
        return Tables(self.enforced.changed(enforced), self.shadow.changed(shadow))


def tables_of(quotas: Quotas) -> Tables:
    """The tables for these quotas."""
    return Tables(QuotaTable(), QuotaTable()).changed(quotas)
