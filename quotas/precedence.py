"""Kafka's order of precedence: of the quotas that cover a client, the one on the first level binds it (KIP-55)."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias

from kafka_throttle.quotas.entities import DEFAULT, Default, Entity, Name, SensorTags


class _Own(Enum):
    OWN = "own"


OWN: Final = _Own.OWN
"""In a level: the name of the client, not the default."""

Names: TypeAlias = tuple[Name, Name]
"""The user and the client-id of an entity."""

_Level: TypeAlias = tuple[_Own | Default | None, _Own | Default | None]

LEVELS: Final[tuple[_Level, ...]] = (
    (OWN, OWN),
    (OWN, DEFAULT),
    (OWN, None),
    (DEFAULT, OWN),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, OWN),
    (None, DEFAULT),
)
"""The levels of user and client-id, the highest precedence first."""

_NUMBERS: Final = {level: number for number, level in enumerate(LEVELS, 1)}
_LEVELS_WITHOUT_CLIENT_ID: Final = tuple(level for level in LEVELS if level[1] is not OWN)
_LEVELS_MEASURED_AS: Final = {
    (has_user, has_client_id): tuple(
        level for level in LEVELS if (level[0] is not None, level[1] is not None) == (has_user, has_client_id)
    )
    for has_user in (False, True)
    for has_client_id in (False, True)
}


def level_of(entity: Entity) -> int:
    """The number of the level of an entity: 1 to 8, or 1 to 2 for addresses."""
    if entity.ip is not None:
        return 2 if entity.ip is DEFAULT else 1
    return _NUMBERS[_place(entity.user), _place(entity.client_id)]


def _place(name: Name) -> _Own | Default | None:
    return OWN if isinstance(name, str) else name


def covering(user: str, client_id: str) -> Iterator[Names]:
    """The names of entities that cover a client, on all levels in order. Only defaults cover an empty client-id."""
    return _names(LEVELS if client_id else _LEVELS_WITHOUT_CLIENT_ID, user, client_id)


def always_before(entity: Entity) -> Iterator[Entity]:
    """The entities that precede `entity` for each of its clients that has a client-id, the highest precedence first.

    There are none for addresses.
    """
    if entity.ip is not None:
        return
    user, client_id = (name if isinstance(name, str) else "" for name in (entity.user, entity.client_id))
    for names in covering(user, client_id):
        if names == (entity.user, entity.client_id):
            return
        if "" not in names:
            yield Entity(*names)


def able_to_bind(tags: SensorTags) -> Iterator[Names]:
    """The names of entities whose quotas can bind use measured under `tags`, the highest precedence first.

    An empty client-id counts as none: no default for client-ids or for pairs binds it.
    """
    user, client_id = tags.user, tags.client_id
    return _names(_LEVELS_MEASURED_AS[bool(user), bool(client_id)], user, client_id)


def _names(levels: Iterable[_Level], user: str, client_id: str) -> Iterator[Names]:
    for of_user, of_client_id in levels:
        yield user if of_user is OWN else of_user, client_id if of_client_id is OWN else of_client_id
