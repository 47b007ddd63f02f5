"""What a quota is set on, and what it bounds."""

from dataclasses import dataclass
from enum import Enum


class QuotaType(Enum):
    """A quota by its configuration key."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"


class Default(Enum):
    """Stands for every user, or every client-id, without a quota of its own: a template, not a shared pool."""

    DEFAULT = "<default>"


DEFAULT = Default.DEFAULT

Name = str | Default | None
"""A name, the default, or None where the entity says nothing of it."""


class InvalidQuota(ValueError):
    """An entity that cannot be, or a limit that is nonsense."""


@dataclass(slots=True, frozen=True)
class Entity:
    """A user, a client-id, or a pair of both."""

    user: Name = None
    client_id: Name = None

    def __post_init__(self) -> None:
        if self.user is None and self.client_id is None:
            raise InvalidQuota("an entity needs a user or a client-id")
        if "" in (self.user, self.client_id):
            raise InvalidQuota("a name must not be empty")

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return ", ".join(
            f"{kind}={name.value if isinstance(name, Default) else name}" for kind, name in parts if name is not None
        )


@dataclass(slots=True, frozen=True)
class SensorTags:
    """Who shares one sensor: requests with equal tags do. A tag that does not count is empty."""

    user: str
    client_id: str
