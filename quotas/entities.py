"""Entities (what quotas are set on), quota types, and the tags under which use is measured."""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Literal, NamedTuple

ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's name for the user of a client that is not authenticated."""

NOBODY: Final = ""
"""In place of a user while a client has to authenticate and has not done so."""

_IPV6_NETWORK_BITS: Final = 64
"""A network of IPv6 gets as many addresses as it likes; the first 64 bits are its own."""


class InvalidQuota(ValueError):
    """A quota, or the entity that it is set on, is invalid."""


class QuotaType(Enum):
    """What a quota limits; the value is Kafka's configuration key.

    PRODUCE and FETCH are in bytes/s, REQUEST in percent of one thread, CONTROLLER_MUTATION in partitions/s, CONNECTION
    in connections/s.
    """

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"

    __hash__ = object.__hash__  # each is one of a kind, and Enum's own hash takes much longer


BYTE_RATES: Final = frozenset({QuotaType.PRODUCE, QuotaType.FETCH})

SCOPED: Final = frozenset({QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST})
"""The quota types that have a Scope. The others are always measured over all nodes together."""


class Scope(Enum):
    """Where the use of a quota is measured: at each node by itself, as in Kafka, or over all nodes together."""

    NODE = "node"
    CLUSTER = "cluster"


SCOPE: Final = "scope"
"""The key of a scope, beside those of quotas: in YAML, znodes, state files and command lines."""

_SHADOW_PREFIX = "shadow_"


class QuotaKey(NamedTuple):
    """One quota of an entity: its type, and whether it is a shadow quota (measured, not enforced)."""

    quota_type: QuotaType
    shadow: bool = False

    @property
    def text(self) -> str:
        """The key as in YAML, znodes and command lines: `producer_byte_rate`, `shadow_producer_byte_rate`."""
        return f"{_SHADOW_PREFIX}{self.quota_type.value}" if self.shadow else self.quota_type.value

    @classmethod
    def parse(cls, text: str) -> "QuotaKey":
        """The key with this text. Raises InvalidQuota if there is none."""
        try:
            return cls(QuotaType(text.removeprefix(_SHADOW_PREFIX)), text.startswith(_SHADOW_PREFIX))
        except ValueError:
            raise InvalidQuota(f"unknown quota {text!r}") from None


class Default(Enum):
    """The type of DEFAULT. It differs from every name: a user may be called `<default>`."""

    DEFAULT = "<default>"


MAX_NAME_BYTES: Final = 2**15 - 1
"""The longest client-id of the protocol, in UTF-8."""

DEFAULT: Final = Default.DEFAULT
"""In place of a name: every user, client-id or address that has no quota under its name."""

Name = str | Literal[Default.DEFAULT] | None


@dataclass(frozen=True, slots=True)
class Entity:
    """A user, a client-id, a pair of them, or an IP address, each by name or as DEFAULT; None for a part not given.

    Prints as `user=alice, client-id=<default>`. An address is kept in its plain spelling: the shortest one, and the
    IPv4 one for a mapped address. A host name stays as it is. Raises InvalidQuota for an entity without parts, with an
    empty name, or with an address and another part.
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
        """Kafka's entity types, in the order of printing, with their names; None for a part not given."""
        return (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))

    def __str__(self) -> str:
        return ", ".join(f"{part}={_shown(name)}" for part, name in self.parts if name is not None)


def is_name(text: str) -> bool:
    """Whether an entity may have this name: 1 to MAX_NAME_BYTES bytes in UTF-8, so without half a surrogate pair."""
    try:
        return 0 < len(text.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def check_names(entity: Entity) -> None:
    """Raises InvalidQuota if the entity has a name that it may not have."""
    for part, name in entity.parts:
        if isinstance(name, str) and not is_name(name):
            raise InvalidQuota(f"expected a {part} of 1 to {MAX_NAME_BYTES} bytes in UTF-8, got {name[:50]!r}")


def is_ip(text: str) -> bool:
    """Whether `text` is an IP address, in any spelling."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def plain_ip(text: str) -> str:
    """The plain spelling of an address. Other texts, such as host names, are returned as they are."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Who stands behind an address where quotas do not matter: an IPv4 address for itself, of IPv6 the network of /64.

    A network that is larger already, as `2001:db8::/48`, stays as it is.
    """
    if ":" not in address:
        return address
    text, _, bits = address.partition("/")
    prefix = min(int(bits or _IPV6_NETWORK_BITS), _IPV6_NETWORK_BITS)
    return str(ip_network((text.partition("%")[0], prefix), strict=False))


def _shown(name: str | Literal[Default.DEFAULT]) -> str:
    """The name, in quotes if it could be misread."""
    if name is DEFAULT:
        return DEFAULT.value
    plain = name.isprintable() and name != DEFAULT.value and not set(name) & set("\"',= ")
    return name if plain else repr(name)


@dataclass(frozen=True, slots=True)
class SensorTags:
    """The user and client-id under which use is measured; an empty string for a part that does not count.

    Names are as the client gave them, without the encoding that brokers use in names of metrics.
    """

    user: str
    client_id: str
