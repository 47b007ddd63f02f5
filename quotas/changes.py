"""Quotas with the layers they stand in, changes of them, and the tables that are enforced and only measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quotas.entities import Entity, QuotaKey, QuotaType
from quotas.limits import valid_limit
from quotas.quota_table import QuotaTable
from quotas.shared_map import SharedMap


class Limit(NamedTuple):
    """A limit and the layer that it stands in, as `quotas describe` names it: a file, a znode, the cluster."""

    value: float
    layer: str


Quotas = Mapping[Entity, Mapping[QuotaKey, Limit]]
"""All quotas of a virtual cluster, valid each; an entity without any is not in it."""

NO_QUOTAS: Final[Quotas] = SharedMap()

Changes = Mapping[Entity, Mapping[QuotaKey, Limit] | None]
"""The quotas that entities have from now on; None: no more."""


class SourceUnavailable(Exception):
    """The source cannot be written, or read, now. The text says what is wrong and where."""


class AlterationRefused(Exception):
    """The source does not take this change. The text says why."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """Changes of one entity, all or nothing: a limit for each key, None to remove it, there or not.

    Raises InvalidQuota for a limit that is nonsense.
    """

    entity: Entity
    limits: Mapping[QuotaKey, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, limit in self.limits.items():
            if limit is not None:
                valid_limit(self.entity, key.quota_type, limit)


def changes_between(before: Quotas, now: Quotas) -> Changes:
    """What makes `before` equal to `now`."""
    if isinstance(before, SharedMap) and isinstance(now, SharedMap):
        return now.changes_since(before)
    changes: dict[Entity, Mapping[QuotaKey, Limit] | None] = {
        entity: limits for entity, limits in now.items() if before.get(entity) != limits
    }
    changes.update((entity, None) for entity in before if entity not in now)
    return changes


def following(before: Quotas, now: Quotas) -> Quotas:
    """The same as `now`, sharing with `before` what is equal."""
    shared = before if isinstance(before, SharedMap) else SharedMap(before)
    return shared.changed(changes_between(shared, now))


class Tables(NamedTuple):
    """The quotas that are enforced, and those that are only measured."""

    enforced: QuotaTable
    shadow: QuotaTable

    def changed(self, changes: Changes) -> "Tables":
        """Their successors; costs what is changed."""
        enforced: dict[Entity, dict[QuotaType, float]] = {}
        shadow: dict[Entity, dict[QuotaType, float]] = {}
        for entity, limits in changes.items():
            enforced[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if not key.shadow}
            shadow[entity] = {key.quota_type: limit.value for key, limit in (limits or {}).items() if key.shadow}
        return Tables(self.enforced.changed(enforced), self.shadow.changed(shadow))


def tables_of(quotas: Quotas) -> Tables:
    """The quotas without their layers, by what is done about them."""
    return Tables(QuotaTable(), QuotaTable()).changed(quotas)
