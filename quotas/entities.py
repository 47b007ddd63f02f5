"""What quotas are set on, what they bound, and under which tags use is measured."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class InvalidQuota(ValueError):
    """A quota, or the entity that it is set on, is nonsense."""


class QuotaType(Enum):
    """What a quota bounds; the value is Kafka's configuration key."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"


class Default(Enum):
    """The type of DEFAULT, which no name can equal: a user may well be called `<default>`."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
"""Stands for every user, or every client-id, without a quota of its own."""

Name = str | Literal[Default.DEFAULT] | None


@dataclass(frozen=True, slots=True)
class Entity:
    """A user, a client-id, or a pair of them, each by name or as DEFAULT; None is a part that is not given.

    Prints as `user=alice, client-id=<default>`. Raises InvalidQuota for an entity without parts or with an empty name.
    """

    user: Name = None
    client_id: Name = None

    def __post_init__(self) -> None:
        if self.user is None and self.client_id is None:
            raise InvalidQuota("expected a user or a client-id, got neither")
        for part, name in (("user", self.user), ("client-id", self.client_id)):
            if name == "":
                raise InvalidQuota(f"expected a {part} or its default, got an empty name")

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return ", ".join(f"{part}={_shown(name)}" for part, name in parts if name is not None)


def _shown(name: str | Literal[Default.DEFAULT]) -> str:
    """The name, in quotes where it could be taken for something else."""
    if name is DEFAULT:
        return DEFAULT.value
    plain = name.isprintable() and name != DEFAULT.value and not set(name) & set("\"',= ")
    return name if plain else repr(name)


@dataclass(frozen=True, slots=True)
class SensorTags:
    """Under which user and client-id use is measured; empty strings for what does not count.

    Names are as the client gave them, without the encoding that brokers use in metric names.
    """

    user: str
    client_id: str
