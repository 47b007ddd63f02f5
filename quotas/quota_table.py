"""All quotas in force, and which of them binds whom."""

from collections.abc import Iterator, Mapping
from enum import Flag, auto
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import NamedTuple

from quotas.entities import DEFAULT, Entity, InvalidQuota, Name, QuotaType, SensorTags

UNLIMITED = 2.0**63 - 1
"""Kafka's bound for a client without a quota: 2^63-1 as a double."""


class Standing(NamedTuple):
    """Under which tags a client is measured, its limit in units/s, and the entity whose quota that is, if any."""

    tags: SensorTags
    limit: float
    entity: Entity | None


class _Kind(Flag):
    CLIENT_ID = auto()
    USER = auto()
    PAIR = auto()


_OFF = _Kind(0)


class QuotaTable(Mapping[Entity, Mapping[QuotaType, float]]):
    """The quotas of all entities; immutable.

    Limits are in bytes/s, whole numbers from 1 to 2^63-1. Raises InvalidQuota for any other.

    A quota type is off until an entity has a quota of it. Then clients without a quota are measured too, and under
    which tags depends on the kinds of entity (user, client-id, pair) that the type has ever been set on: a broker
    remembers them until it restarts, a table takes them over from its predecessor by `succeeding`.
    """

    def __init__(self, quotas: Mapping[Entity, Mapping[QuotaType, float]] | None = None) -> None:
        self._quotas = {
            entity: MappingProxyType({quota_type: _valid(entity, quota_type, v) for quota_type, v in limits.items()})
            for entity, limits in (quotas or {}).items()
        }
        self._limits: dict[QuotaType, dict[tuple[Name, Name], float]] = {
            quota_type: {
                (entity.user, entity.client_id): limits[quota_type]
                for entity, limits in self._quotas.items()
                if quota_type in limits
            }
            for quota_type in QuotaType
        }
        self._kinds = {
            quota_type: reduce(or_, (_kind(*names) for names in limits), _OFF)
            for quota_type, limits in self._limits.items()
        }

    def __getitem__(self, entity: Entity) -> Mapping[QuotaType, float]:
        return self._quotas[entity]

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._quotas)

    def __len__(self) -> int:
        return len(self._quotas)

    def succeeding(self, predecessor: "QuotaTable") -> "QuotaTable":
        """The same quotas, with the memory of which kinds of entity were ever in use."""
        table = QuotaTable(self._quotas)
        table._kinds = {t: self._kinds[t] | predecessor._kinds[t] for t in QuotaType}
        return table

    def is_on(self, quota_type: QuotaType) -> bool:
        """Whether clients are measured at all: true from the first quota of this type on."""
        return self._kinds[quota_type] is not _OFF

    def tags_and_limit(self, quota_type: QuotaType, user: str, client_id: str) -> Standing:
        """Where a client stands: the first of Kafka's eight levels that has a quota decides under which tags."""
        tags = self._tags(quota_type, user, client_id)
        limit, entity = self._by_tags(quota_type, tags)
        return Standing(tags, limit, entity)

    def limit_of(self, quota_type: QuotaType, tags: SensorTags) -> float:
        """The limit for what is measured under `tags`, in units/s; UNLIMITED if there is none."""
        return self._by_tags(quota_type, tags)[0]

    def _tags(self, quota_type: QuotaType, user: str, client_id: str) -> SensorTags:
        pair, of_user, of_client_id = SensorTags(user, client_id), SensorTags(user, ""), SensorTags("", client_id)
        kinds = self._kinds[quota_type]
        if kinds is _OFF or kinds is _Kind.CLIENT_ID:
            return of_client_id
        if kinds is _Kind.USER:
            return of_user
        if kinds is _Kind.PAIR:
            return pair
        limits = self._limits[quota_type]
        if (user, client_id) in limits or (user, DEFAULT) in limits:
            return pair
        if (user, None) in limits:
            return of_user
        if (DEFAULT, client_id) in limits or (DEFAULT, DEFAULT) in limits:
            return pair
        if (DEFAULT, None) in limits:
            return of_user
        return of_client_id

    def _by_tags(self, quota_type: QuotaType, tags: SensorTags) -> tuple[float, Entity | None]:
        limits = self._limits[quota_type]
        for names in _candidates(tags):
            if names in limits:
                return limits[names], Entity(*names)
        return UNLIMITED, None


def _candidates(tags: SensorTags) -> tuple[tuple[Name, Name], ...]:
    """The entities that can bind what is measured under `tags`, the strongest first.

    An empty client-id is the absence of one here: so no default for client-ids, or for pairs, ever binds it.
    """
    user, client_id = tags.user, tags.client_id
    if user and client_id:
        return (user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)
    if user:
        return (user, None), (DEFAULT, None)
    if client_id:
        return (None, client_id), (None, DEFAULT)
    return ()


def _kind(user: Name, client_id: Name) -> _Kind:
    if user is None:
        return _Kind.CLIENT_ID
    return _Kind.USER if client_id is None else _Kind.PAIR


def _valid(entity: Entity, quota_type: QuotaType, limit: float) -> float:
    """`limit` as a double. InvalidQuota unless it is a whole number of bytes/s that a broker could hold."""
    if not 0 < limit <= UNLIMITED or limit != int(limit):
        expected = "expected a whole number from 1 to 2^63-1"
        raise InvalidQuota(f"{quota_type.value} of {entity}: {expected}, got {limit!r}")
    return float(limit)
