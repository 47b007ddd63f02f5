"""The table of the quotas in force, which finds the quota that binds a client."""

from collections.abc import Container, Iterator, Mapping, Set
from copy import copy
from enum import Flag, auto
from types import MappingProxyType
from typing import NamedTuple

from kafka_throttle.quotas.entities import DEFAULT, SCOPED, Entity, Name, QuotaType, Scope, SensorTags, is_ip
from kafka_throttle.quotas.limits import UNLIMITED, valid_limit
from kafka_throttle.quotas.precedence import able_to_bind, covering
from kafka_throttle.quotas.shared_map import SharedMap


class EffectiveQuota(NamedTuple):
    """The tags that a client is measured under, its limit in units/s, and the entity that the limit is set on."""

    tags: SensorTags
    limit: float
    entity: Entity | None


class _Kind(Flag):
    CLIENT_ID = auto()
    USER = auto()
    PAIR = auto()


class ConnectionRates(NamedTuple):
    """Limits in connections/s: the default (None: no limit), of single addresses, and of host names."""

    default: float | None = None
    by_address: SharedMap[str, float] = SharedMap()
    by_host: SharedMap[str, float] = SharedMap()


_OFF = _Kind(0)
_EVERY = _Kind.CLIENT_ID | _Kind.USER | _Kind.PAIR

LONG_CLIENT_ID = 256
"""Client-ids of at least this many characters are counted, for `names_long_client_id`."""


class QuotaTable(Mapping[Entity, Mapping[QuotaType, float]]):
    """The quotas of all entities; immutable, in no special order. Limits are in the unit of their type.

    Raises InvalidQuota for a limit that `valid_limit` refuses. `ip_limit` looks up the limits of addresses. The quotas
    of entities in `of_cluster` have the scope CLUSTER.

    A quota type is off until an entity has a quota of it. From then on clients without a quota are measured too. Their
    tags depend on the kinds of entity (user, client-id, pair) that ever had a quota of this type: a broker remembers
    these kinds until it restarts, and a table takes them over from its predecessor by `succeeding` or `changed`.
    """

    def __init__(
        self, quotas: Mapping[Entity, Mapping[QuotaType, float]] | None = None, of_cluster: Container[Entity] = ()
    ) -> None:
        self._quotas: SharedMap[Entity, Mapping[QuotaType, float]] = SharedMap()
        self._limits: dict[QuotaType, SharedMap[tuple[Name, Name], float]] = {t: SharedMap() for t in QuotaType}
        self._kinds = dict.fromkeys(QuotaType, _OFF)
        self._long_client_ids: Mapping[str, int] = {}
        self._of_cluster: SharedMap[Entity, bool] = SharedMap()
        self.connection_rates = ConnectionRates()
        """The limits of ip entities, with addresses in their plain spelling."""
        self._put(quotas or {}, of_cluster)

    def changed(
        self, changes: Mapping[Entity, Mapping[QuotaType, float]], of_cluster: Container[Entity] = ()
    ) -> "QuotaTable":
        """A new table in which each of these entities has exactly the given quotas, or none for an empty mapping.

        Their scope is CLUSTER for those in `of_cluster`, and NODE for the others. The cost depends on the number of
        changes, not on the size of the table.
        """
        table = copy(self)
        table._limits, table._kinds = dict(self._limits), dict(self._kinds)
        table._put(changes, of_cluster)
        return table

    def _put(self, changes: Mapping[Entity, Mapping[QuotaType, float]], of_cluster: Container[Entity]) -> None:
        quotas: dict[Entity, Mapping[QuotaType, float] | None] = {}
        limits_of: dict[QuotaType, dict[tuple[Name, Name], float | None]] = {t: {} for t in QuotaType}
        kinds: set[tuple[QuotaType, _Kind]] = set()
        for entity, limits in changes.items():
            valid = {t: valid_limit(entity, t, limit) for t, limit in limits.items()}
            quotas[entity] = MappingProxyType(valid) if valid else None
            if entity.ip is None:
                names = entity.user, entity.client_id
                for quota_type in self._quotas.get(entity, ()):
                    limits_of[quota_type][names] = None
                for quota_type, limit in valid.items():
                    limits_of[quota_type][names] = limit
                    kinds.add((quota_type, _kind(*names)))
        for quota_type, kind in kinds:
            self._kinds[quota_type] |= kind
        self._long_client_ids = self._counted_long_client_ids(quotas)
        self.connection_rates = self._changed_connection_rates(quotas)
        self._of_cluster = self._of_cluster.changed(
            {
                entity: True if limits and entity in of_cluster else None
                for entity, limits in quotas.items()
                if entity in of_cluster or entity in self._of_cluster
            }
        )
        self._quotas = self._quotas.changed(quotas)
        for quota_type, changed_limits in limits_of.items():
            if changed_limits:
                self._limits[quota_type] = self._limits[quota_type].changed(changed_limits)

    def _changed_connection_rates(self, changes: Mapping[Entity, Mapping[QuotaType, float] | None]) -> ConnectionRates:
        default, by_address, by_host = self.connection_rates
        addresses: dict[str, float | None] = {}
        hosts: dict[str, float | None] = {}
        for entity, limits in changes.items():
            rate = (limits or {}).get(QuotaType.CONNECTION)
            if entity.ip is DEFAULT:
                default = rate
            elif entity.ip is not None:
                (addresses if is_ip(entity.ip) else hosts)[entity.ip] = rate
        if addresses or hosts:
            by_address, by_host = by_address.changed(addresses), by_host.changed(hosts)
        return ConnectionRates(default, by_address, by_host)

    def _counted_long_client_ids(self, changes: Mapping[Entity, Mapping[QuotaType, float] | None]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for entity, limits in changes.items():
            client_id = entity.client_id
            if isinstance(client_id, str) and len(client_id) >= LONG_CLIENT_ID and client_id not in counts:
                counts[client_id] = self._long_client_ids.get(client_id, 0)
            if client_id in counts:
                counts[client_id] += (limits is not None) - (entity in self._quotas)
        if not counts:
            return self._long_client_ids
        return {name: count for name, count in {**self._long_client_ids, **counts}.items() if count}

    def __getitem__(self, entity: Entity) -> Mapping[QuotaType, float]:
        return self._quotas[entity]

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._quotas)

    def __len__(self) -> int:
        return len(self._quotas)

    def succeeding(self, predecessor: "QuotaTable") -> "QuotaTable":
        """The same quotas, with the memory of `predecessor` of which kinds of entity ever had a quota."""
        table = copy(self)
        table._kinds = {t: self._kinds[t] | predecessor._kinds[t] for t in QuotaType}
        return table

    def kinds(self) -> dict[str, int]:
        """Which kinds of entity ever had a quota of each type: a number by Kafka's key, for `remembering`."""
        return {quota_type.value: kinds.value for quota_type, kinds in self._kinds.items() if kinds is not _OFF}

    def remembering(self, kinds: Mapping[str, int]) -> "QuotaTable":
        """The same quotas, with the memory that another table gave as `kinds`."""
        table = copy(self)
        table._kinds = {t: self._kinds[t] | _Kind(kinds.get(t.value, 0) & _EVERY.value) for t in QuotaType}
        return table

    def measures_as(self, other: "QuotaTable") -> bool:
        """Whether both tables measure clients without a quota under the same tags."""
        return self._kinds == other._kinds

    def names_long_client_id(self, client_id: str) -> bool:
        """Whether an entity has this client-id of at least LONG_CLIENT_ID characters."""
        return client_id in self._long_client_ids

    def is_on(self, quota_type: QuotaType) -> bool:
        """Whether use of this quota type is measured: true from the first quota of the type on."""
        return self._kinds[quota_type] is not _OFF

    @property
    def of_cluster(self) -> Set[Entity]:
        """The entities whose quotas have the scope CLUSTER."""
        return self._of_cluster.keys()

    def scope_of(self, quota_type: QuotaType, entity: Entity | None) -> Scope:
        """Where use is measured that a quota of this entity binds. Without a quota (None) that is at each node."""
        if quota_type not in SCOPED:
            return Scope.CLUSTER
        return Scope.CLUSTER if entity in self._of_cluster else Scope.NODE

    def tags_and_limit(self, quota_type: QuotaType, user: str, client_id: str) -> EffectiveQuota:
        """The tags, limit and entity for a client. The first of Kafka's eight levels that has a quota decides."""
        tags = self._tags(quota_type, user, client_id)
        limit, entity = self.by_tags(quota_type, tags)
        return EffectiveQuota(tags, limit, entity)

    def limit_of(self, quota_type: QuotaType, tags: SensorTags) -> float:
        """The limit for use that is measured under `tags`, in units/s; UNLIMITED if there is none."""
        return self.by_tags(quota_type, tags)[0]

    def ip_limit(self, address: str) -> tuple[float, Entity | None]:
        """The limit in connections/s for `address` (in its plain spelling), and the entity that it is set on."""
        for name in (address, DEFAULT):
            limits: Mapping[QuotaType, float] = self._quotas.get(entity := Entity(ip=name), {})
            if QuotaType.CONNECTION in limits:
                return limits[QuotaType.CONNECTION], entity
        return UNLIMITED, None

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
        by_user, by_client_id = next((names for names in covering(user, client_id) if names in limits), (None, None))
        if by_user is None:
            return of_client_id
        return of_user if by_client_id is None else pair

    def by_tags(self, quota_type: QuotaType, tags: SensorTags) -> tuple[float, Entity | None]:
        """The limit for use that is measured under `tags`, and the entity that it is set on."""
        limits = self._limits[quota_type]
        for names in able_to_bind(tags):
            if names in limits:
                return limits[names], Entity(*names)
        return UNLIMITED, None


def _kind(user: Name, client_id: Name) -> _Kind:
    if user is None:
        return _Kind.CLIENT_ID
    return _Kind.USER if client_id is None else _Kind.PAIR
