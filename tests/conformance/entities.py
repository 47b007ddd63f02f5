"""Who is limited in random scripts: quota changes over all eight levels, and clients that they concern."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kafka_throttle.quotas.entities import DEFAULT, Entity, Name

USERS = ["alice", "bob", "carol", "dave", "ANONYMOUS", "CN=x,O=y"]
CLIENT_IDS = ["etl", "app", "web", "a b", "<default>", ""]

ANCHORS = [Entity(user="anchor"), Entity(client_id="anchor"), Entity("anchor", "anchor")]
"""A quota of each kind that always stays, and binds nobody."""

EVENTS_BETWEEN_CHANGES = 200

_CHANGES_OF_A_TIDE = 40
"""So long quotas become more, and then less: so that the weaker levels, too, have their time."""


_LEVELS = [
    ("named", "named"),
    ("named", "default"),
    ("named", None),
    ("default", "named"),
    ("default", "default"),
    ("default", None),
    (None, "named"),
    (None, "default"),
]
"""What the user and the client-id of an entity are; the strongest level first."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A new limit for an entity, None to remove it."""

    entity: Entity
    limit: float | None


@dataclass(slots=True)
class RandomQuotas:
    """Sets quotas of any entity, and removes those that are set, one at a time; in turns rather this and rather that.

    `anchored` keeps a quota of each kind of entity, for versions that forget a kind with its last quota.
    """

    rng: random.Random
    random_limit: Callable[[random.Random], float]
    anchored: bool
    _limited: set[Entity] = field(default_factory=set)
    _changes: int = 0

    def first(self) -> Iterator[QuotaChange]:
        """What is set before anything happens."""
        if self.anchored:
            yield from (QuotaChange(entity, 1e6) for entity in ANCHORS)

    def change(self) -> QuotaChange:
        """The next change."""
        rng = self.rng
        self._changes += 1
        ebbs = self._changes // _CHANGES_OF_A_TIDE % 2
        if self._limited and rng.random() < (0.8 if ebbs else 0.3):
            entity = rng.choice(sorted(self._limited, key=str))
            self._limited.remove(entity)
            return QuotaChange(entity, None)
        entity = self._entity()
        self._limited.add(entity)
        return QuotaChange(entity, self.random_limit(rng))

    def _entity(self) -> Entity:
        """Of any level, one as likely as another."""
        user, client_id = self.rng.choice(_LEVELS)
        return Entity(self._name(user, USERS), self._name(client_id, CLIENT_IDS[:-1]))

    def _name(self, kind: str | None, names: list[str]) -> Name:
        return None if kind is None else DEFAULT if kind == "default" else self.rng.choice(names)


def random_client(rng: random.Random) -> tuple[str, str]:
    """User and client-id; some come rarely, so that sensors begin at all times."""
    client_id = rng.choice(CLIENT_IDS) if rng.random() < 0.95 else f"client-{rng.randrange(100)}"
    return rng.choice(USERS), client_id


def random_step_ms(rng: random.Random) -> int:
    """Mostly within a window; now and then so long that a whole burst expires, never the hour that ends a sensor."""
    if rng.random() < 0.97:
        return rng.choice((0, 0, 1, 7, 40, 250, 999, 1000))
    return rng.randrange(30_000)


def level(entity: Entity) -> int:
    """Which of Kafka's eight levels an entity stands at; 1 is the strongest."""
    return _LEVELS.index((_kind(entity.user), _kind(entity.client_id))) + 1


def _kind(name: Name) -> str | None:
    return None if name is None else "default" if name is DEFAULT else "named"
