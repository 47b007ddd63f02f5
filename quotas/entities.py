"""What quotas are set on, what they bound, and under which tags use is measured."""

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Final, Literal, NamedTuple


class InvalidQuota(ValueError):
    """A quota, or the entity that it is set on, is nonsense."""


class QuotaType(Enum):
    """What a quota bounds; the value is Kafka's configuration key.

    PRODUCE and FETCH are in bytes/s, REQUEST in percent of one thread, CONTROLLER_MUTATION in partitions/s, CONNECTION
    in connections/s.
    """

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


BYTE_RATES: Final = frozenset({QuotaType.PRODUCE, QuotaType.FETCH})

_SHADOW_PREFIX = "shadow_"


class QuotaKey(NamedTuple):
    """One quota of an entity: its type, and whether it is a shadow (measured, never felt)."""

    quota_type: QuotaType
    shadow: bool = False

    @property
    def text(self) -> str:
        """As YAML, znodes and command lines write it: `producer_byte_rate`, `shadow_producer_byte_rate`."""
        return f"{_SHADOW_PREFIX}{self.quota_type.value}" if self.shadow else self.quota_type.value

    @classmethod
    def parse(cls, text: str) -> "QuotaKey":
        """The key that `text` writes. InvalidQuota if there is none such."""
        try:
            return cls(QuotaType(text.removeprefix(_SHADOW_PREFIX)), text.startswith(_SHADOW_PREFIX))
        except ValueError:
            raise InvalidQuota(f"unknown quota {text!r}") from None


class Default(Enum):
    """The type of DEFAULT, which no name can equal: a user may well be called `<default>`."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
"""Stands for every user, or every client-id, or every address, without a quota of its own."""

Name = str | Literal[Default.DEFAULT] | None


@dataclass(frozen=True, slots=True)
class Entity:
    """A user, a client-id, a pair of them, or an IP address, each by name or as DEFAULT; None: a part not given.

    Prints as `user=alice, client-id=<default>`. An address has one spelling here: the shortest, and that of IPv4 for
    mapped ones; a host name stays as it is. Raises InvalidQuota for an entity without parts, with an empty name, or of
    an address together with something else.
    """

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def __post_init__(self) -> None:
        if self.ip is not None and (self.user is not None or self.client_id is not None):
            raise InvalidQuota("expected an ip by itself, got it together with a user or a client-id")
        if self.user is None and self.client_id is None and self.ip is None:
            raise InvalidQuota("expected a user, a client-id or an ip, got nothing")
        for part, name in self.parts:
            if name == "":
                raise InvalidQuota(f"expected a {part} or its default, got an empty name")
        if isinstance(self.ip, str):
            object.__setattr__(self, "ip", plain_ip(self.ip))

    @property
    def parts(self) -> tuple[tuple[str, Name], ...]:
        """Kafka's entity types, in the order in which they are told, with the name of each; None: not given."""
        return (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))

    def __str__(self) -> str:
        return ", ".join(f"{part}={_shown(name)}" for part, name in self.parts if name is not None)


def is_ip(text: str) -> bool:
    """Whether `text` is an IP address, in whatever spelling."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def plain_ip(text: str) -> str:
    """The one spelling of an address; what is no address, such as a host name, as it is."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


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
