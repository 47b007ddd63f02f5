"""Kinds of value that the configuration file takes, each with words for what it expects."""

import os
import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationInfo
from pydantic_core import CoreSchema, core_schema

from kafka_throttle.common.kinds import INT32_MAX, MAX_PORT, Kind, Many, Number, Text, Whole
from kafka_throttle.protocol.identity.sasl_names import Claim


class _FilePath(Kind):
    expected = "the path of a file, which counts from the folder of this one"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validate_in)

    def _validate_in(self, value: Any, info: ValidationInfo) -> str:
        """The path, from the folder in the context of the validation."""
        text: str = self.validate(value)
        return str(Path((info.context or {}).get("folder", "")) / text)

    def parse(self, value: Any) -> str:
        """The path as it is written."""
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        return value


class _Workers(Kind):
    expected = "a whole number from 1 to 64, or 'auto'"

    def parse(self, value: Any) -> int | str:
        """The number, or "auto"."""
        return "auto" if value == "auto" else Whole(1, 64).parse(value)


Workers = Annotated[int | Literal["auto"], _Workers()]


def worker_count(workers: int | Literal["auto"]) -> int:
    """How many workers are wanted; `auto` is one for each processor that this process may use."""
    return len(os.sched_getaffinity(0)) if workers == "auto" else workers


class HostPort(NamedTuple):
    """An address to connect to; an IPv6 host stands here without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Server(Kind):
    expected = "host:port (IPv6 in brackets)"
    _pattern = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")

    def parse(self, value: Any) -> HostPort:
        """The two parts of "host:port"."""
        if isinstance(value, HostPort):
            return value
        match = self._pattern.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError
        bracketed, plain, digits = match.groups()
        valid = _is_ip(bracketed, 6) if bracketed else _is_host(plain)
        if not valid or not 1 <= int(digits) <= MAX_PORT:
            raise ValueError
        return HostPort(bracketed or plain, int(digits))


Network = IPv4Network | IPv6Network


class _NodePlace(Kind):
    expected = "an IP address or network, a host name, or the end of host names like .kafka.example.com"

    def parse(self, value: Any) -> Network | str:
        """The network or the name."""
        try:
            return _Network().parse(value)
        except ValueError:
            if not isinstance(value, str) or not _is_host(value.removeprefix(".")) or _is_ip(value.removeprefix(".")):
                raise
            return value


class _Network(Kind):
    expected = "an IP address, or a network like 10.0.0.0/8 whose address ends where its prefix does"

    def parse(self, value: Any) -> Network:
        """The network; one of IPv4-mapped addresses as the IPv4 network that it stands for."""
        if isinstance(value, IPv4Network | IPv6Network):
            return value
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        network = ip_network(value)
        mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
        return ip_network((mapped, network.prefixlen - 96)) if mapped and network.prefixlen >= 96 else network


@dataclass(frozen=True)
class _Numbers(Kind):
    """One number, or a range of them as "first-last"; held as a `range`."""

    what: str
    low: int
    high: int

    @property
    def expected(self) -> str:  # type: ignore[override]
        """In words."""
        return f'a {self.what} or an ascending range "first-last" from {self.low} to {self.high}'

    def parse(self, value: Any) -> range:
        """The numbers, never none."""
        if isinstance(value, range) and value.step == 1:
            numbers = value
        elif type(value) is int:
            numbers = range(value, value + 1)
        elif isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", value)):
            first = int(match[1])
            numbers = range(first, int(match[2] or first) + 1)
        else:
            raise ValueError
        if numbers.stop <= numbers.start or numbers.start < self.low or numbers.stop - 1 > self.high:
            raise ValueError
        return numbers


def show_range(numbers: range) -> str:
    """The range as the file writes it: "3" or "0-5"."""
    return f"{numbers.start}-{numbers.stop - 1}" if len(numbers) > 1 else str(numbers.start)


def _is_ip(text: str, version: int = 0) -> bool:
    try:
        return version in (0, ip_address(text).version)
    except ValueError:
        return False


def _is_concrete_ip(text: str) -> bool:
    return _is_ip(text) and "%" not in text and not ip_address(text).is_unspecified


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches what listens at an IP address."""
    ip = ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def _is_host(text: str) -> bool:
    """True for an IP address or a name; underscores are common in container networks."""
    if _is_ip(text):
        return True
    labels = text.removesuffix(".").split(".")
    named = all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label) for label in labels)
    return named and len(text) <= 253 and not labels[-1].isdigit()


def is_znode_path(text: str) -> bool:
    """True for an absolute path without empty, "." or ".." steps."""
    steps = text[1:].split("/") if text != "/" else []
    plain = all(step not in ("", ".", "..") and step.isprintable() for step in steps)
    return text.startswith("/") and plain and len(text) <= 1_000


def is_user_of_http(text: str) -> bool:
    """True for a user name that HTTP Basic can carry (RFC 7617)."""
    return bool(text) and ":" not in text and text.isprintable()


def _is_token_url(text: str) -> bool:
    """True for an address that a secret may be sent to: by TLS, or within this machine."""
    try:
        url = urlsplit(text)
        has_port = url.port != 0
    except ValueError:
        return False
    host = url.hostname or ""
    if not _is_ascii(text) or " " in text or not _is_host(host) or not has_port or url.fragment or url.username:
        return False
    is_here = host == "localhost" or (_is_ip(host) and is_loopback(host))
    return url.scheme == "https" or (url.scheme == "http" and is_here)


def _is_name_of_extension(text: str) -> bool:
    """True for the key of a SASL extension (RFC 7628), but not for the one that has the token."""
    return re.fullmatch("[A-Za-z]+", text) is not None and text != "auth"


def _is_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text)


def is_advertisable(text: str) -> bool:
    """True for a host that clients can be told: a name, or one address."""
    return _is_host(text) and (not _is_ip(text) or _is_concrete_ip(text))


def _is_node_host(text: str) -> bool:
    """True for a host name with one {node_id} in it."""
    return text.count("{node_id}") == 1 and _is_host(text.replace("{node_id}", "2147483647")) and not _is_ip(text)


Name = Annotated[
    str,
    Text(
        "a name of 1 to 64 letters, digits, '.', '_' or '-'",
        lambda text: re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) is not None,
    ),
]


class _OauthClaim(Kind):
    expected = "the name of a claim, or a mapping of `claim` and `prefix`"

    def parse(self, value: Any) -> Claim:
        """The claim with what is put before its value."""
        if isinstance(value, Claim):
            return value
        entry = {"claim": value} if isinstance(value, str) else value
        if not isinstance(entry, dict) or not {"claim"} <= entry.keys() <= {"claim", "prefix"}:
            raise ValueError
        if not all(isinstance(text, str) for text in entry.values()) or not entry["claim"]:
            raise ValueError
        return Claim(entry["claim"], entry.get("prefix", ""))


OauthClaim = Annotated[Claim, _OauthClaim()]


Bind = Annotated[str, Text("an IP address", _is_ip)]


Port = Annotated[int, Whole(1, MAX_PORT)]


Server = Annotated[HostPort, _Server()]


def host_port(text: str) -> HostPort:
    """What a command line says as host:port. Raises ValueError."""
    return _Server().parse(text)


NodeIds = Annotated[range, _Numbers("node id", 0, INT32_MAX)]


Ports = Annotated[range, _Numbers("port", 1, MAX_PORT)]


IpNetwork = Annotated[Network, _Network()]


NodePlace = Annotated[Network | str, _NodePlace()]


def node_place(text: Any) -> Network | str:
    """Where a node may be. Raises ValueError."""
    return _NodePlace().parse(text)


SourceAddress = Annotated[str, Text("an IP address of this machine", _is_concrete_ip)]


Microseconds = Annotated[
    float, Number("a number of microseconds from 0 to 10000000", lambda number: 0 <= number <= 10_000_000)
]


FilePath = Annotated[str | None, _FilePath()]


HostNames = Many[Annotated[str, Text("a host name or an IP address, without a port", _is_host)]]


Names = Many[Annotated[str, Text("a string that is not empty (numbers need quotes)", bool)]]


Count = Annotated[int | None, Whole(0, INT32_MAX)]


CountsOfAddresses = dict[Annotated[str, Text("an IP address", _is_ip)], Annotated[int, Whole(0, INT32_MAX)]]


CountsOfUsers = dict[
    Annotated[str, Text("the name of a user (numbers need quotes)", bool)], Annotated[int, Whole(0, INT32_MAX)]
]


NamesOfUsers = dict[
    Annotated[str, Text("a name that logins show (numbers need quotes)", bool)],
    Annotated[str, Text("the name of a user (numbers need quotes)", bool)],
]


File = Annotated[str, _FilePath()]


TokenUrl = Annotated[
    str, Text("an https:// address, or an http:// address of this machine (as http://127.0.0.1/token)", _is_token_url)
]


Extensions = dict[
    Annotated[str, Text("a name of letters that is not auth", _is_name_of_extension)],
    Annotated[str, Text("a string of printable ASCII that is not empty (numbers need quotes)", _is_ascii)],
]


Ciphers = Annotated[str | None, Text("a list of ciphers as OpenSSL writes it", lambda text: bool(text.strip()))]


NodeHost = Annotated[str | None, Text("a host name with one {node_id} in it", _is_node_host)]
