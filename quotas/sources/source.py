"""What every source of quotas gives and takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from quotas.entities import Entity, QuotaKey, QuotaType
from quotas.quota_table import QuotaTable, valid_limit


class Limit(NamedTuple):
    """A limit and the layer that it stands in, as `quotas describe` names it: a file, a znode, the cluster."""

    value: float
    layer: str


Quotas = Mapping[Entity, Mapping[QuotaKey, Limit]]
"""All quotas of a virtual cluster, valid each; an entity without any is not in it."""

NO_QUOTAS: Final[Quotas] = MappingProxyType({})


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


class Source(Protocol):
    """Where the quotas of one virtual cluster come from.

    A source keeps the last good quotas, entity by entity: what it cannot read or understand leaves those in force,
    is logged and counted once. Methods but `quotas` may block, so call them from a thread that may wait; `changed`
    is called from any thread.
    """

    name: str

    @property
    def quotas(self) -> Quotas:
        """The last good quotas; a snapshot that is never changed."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now: by its place (a path, an entity, the source itself), in words."""

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Read the quotas, and from now on tell when `quotas` or `problems` have changed.

        `last_good` are the quotas of an earlier process. They are what `quotas` begins with: all of them hold until the
        source has been read, and later those of an entity for which it brings nonsense. Returns after the first
        attempt to read, good or not.
        """

    def stop(self) -> None:
        """Tell nothing any more, and let go of files, connections and threads."""

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write each alteration, whole or not at all; for each, None or what went wrong.

        That is AlterationRefused or SourceUnavailable. What is written is in `quotas` when this returns.
        """


class Tables(NamedTuple):
    """The quotas that are enforced, and those that are only measured."""

    enforced: QuotaTable
    shadow: QuotaTable


def tables_of(quotas: Quotas) -> Tables:
    """The quotas without their layers, by what is done about them."""
    enforced: dict[Entity, dict[QuotaType, float]] = {}
    shadow: dict[Entity, dict[QuotaType, float]] = {}
    for entity, limits in quotas.items():
        enforced_here: dict[QuotaType, float] = {}
        shadow_here: dict[QuotaType, float] = {}
        for key, limit in limits.items():
            (shadow_here if key.shadow else enforced_here)[key.quota_type] = limit.value
        if enforced_here:
            enforced[entity] = enforced_here
        if shadow_here:
            shadow[entity] = shadow_here
    return Tables(QuotaTable(enforced), QuotaTable(shadow))
