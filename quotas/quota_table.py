"""Which quota binds whom: Kafka's eight levels of precedence."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from quotas.entities import DEFAULT, Entity, InvalidQuota, Name, QuotaType, SensorTags
from quotas.sensors import UNLIMITED

Limits = Mapping[Entity, Mapping[QuotaType, float]]


@dataclass(slots=True, frozen=True)
class Rule:
    """What the walk over the levels found: who shares the sensor, its limit, and the entity it comes from.

    `limit` is in the quota's unit per second, UNLIMITED with no `entity`.
    """

    tags: SensorTags
    limit: float
    entity: Entity | None


class QuotaTable:
    """An immutable set of quotas. Raises InvalidQuota for a limit that is nonsense.

    `kinds` remembers, per quota type, which kinds of entity were ever named: it decides under which tags clients
    without a quota are measured, and a type of no kind is off (nothing is measured).
    """

    def __init__(self, limits: Limits, before: "QuotaTable | None" = None) -> None:
        self._limits: dict[QuotaType, dict[tuple[Name, Name], float]] = {}
        self._kinds: dict[QuotaType, set[tuple[bool, bool]]] = {}
        for quota_type in QuotaType:
            of_type = {
                (entity.user, entity.client_id): _checked(quota_type, rates[quota_type])
                for entity, rates in limits.items()
                if quota_type in rates
            }
            kinds = {(user is not None, client_id is not None) for user, client_id in of_type}
            self._limits[quota_type] = of_type
            self._kinds[quota_type] = kinds | (before._kinds[quota_type] if before else set())

    def succeeding(self, before: "QuotaTable") -> "QuotaTable":
        """This table as the successor of another: what kinds of entity were ever named is remembered."""
        limits: dict[Entity, dict[QuotaType, float]] = {}
        for quota_type, of_type in self._limits.items():
            for (user, client_id), limit in of_type.items():
                limits.setdefault(Entity(user, client_id), {})[quota_type] = limit
        return QuotaTable(limits, before)

    def measures(self, quota_type: QuotaType) -> bool:
        """True if an entity was ever given a quota of this type."""
        return bool(self._kinds[quota_type])

    def rule(self, quota_type: QuotaType, user: str, client_id: str) -> Rule:
        """What binds a client of `user` with `client_id` ("" for none)."""
        tags = self._tags(quota_type, user, client_id)
        limit, entity = self._limit(quota_type, tags)
        return Rule(tags, limit, entity)

    def limit(self, quota_type: QuotaType, tags: SensorTags) -> float:
        """The limit of a sensor, which follows from its tags alone."""
        return self._limit(quota_type, tags)[0]

    def limit_of(self, quota_type: QuotaType, entity: Entity) -> float:
        """The limit that one entity sets, UNLIMITED if it sets none."""
        return self._limits[quota_type].get((entity.user, entity.client_id), UNLIMITED)

    def _tags(self, quota_type: QuotaType, user: str, client_id: str) -> SensorTags:
        kinds = self._kinds[quota_type]
        if kinds == {(False, True)}:
            return SensorTags("", client_id)
        if kinds == {(True, False)}:
            return SensorTags(user, "")
        if kinds == {(True, True)}:
            return SensorTags(user, client_id)
        limits = self._limits[quota_type]
        for level_user, level_client_id in _levels(user, client_id):
            if (level_user, level_client_id) in limits:
                return SensorTags(
                    user if level_user is not None else "", client_id if level_client_id is not None else ""
                )
        return SensorTags("", client_id)

    def _limit(self, quota_type: QuotaType, tags: SensorTags) -> tuple[float, Entity | None]:
        limits = self._limits[quota_type]
        for user, client_id in _levels_of_tags(tags):
            limit = limits.get((user, client_id))
            if limit is not None:
                return limit, Entity(user, client_id)
        return UNLIMITED, None


def _levels(user: str, client_id: str) -> tuple[tuple[Name, Name], ...]:
    """The eight levels, most specific first. The default of level 8 does not match an empty client-id."""
    return (
        (user, client_id),
        (user, DEFAULT),
        (user, None),
        (DEFAULT, client_id),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, client_id),
        *(((None, DEFAULT),) if client_id else ()),
    )


def _levels_of_tags(tags: SensorTags) -> tuple[tuple[Name, Name], ...]:
    if tags.user and tags.client_id:
        user, client_id = tags.user, tags.client_id
        return ((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))
    if tags.user:
        return ((tags.user, None), (DEFAULT, None))
    if tags.client_id:
        return ((None, tags.client_id), (None, DEFAULT))
    return ()


def _checked(quota_type: QuotaType, limit: float) -> float:
    """A byte rate is a whole number above 0 that an int64 can hold."""
    if not isfinite(limit) or limit <= 0 or limit != int(limit) or limit > UNLIMITED:
        raise InvalidQuota(f"{quota_type.value}: expected a whole number from 1 to 2^63-1, got {limit}")
    return float(limit)
