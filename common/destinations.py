"""Which addresses of nodes may be connected to. Nodes report their own addresses, and these may be wrong."""

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from kafka_throttle.common.look_ups import Found

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address


class Destinations:
    """Says which addresses may be connected to: none where this process listens; if there are `places`, only these.

    `listeners` are local addresses with ports. `places` are networks, host names, and endings of host names that begin
    with a dot. A host that has one of these names may be at any address.
    """

    def __init__(self, listeners: Iterable[tuple[str, range]] = (), places: Iterable[Network | str] = ()) -> None:
        self._listeners = [(_plain(bind), ports) for bind, ports in listeners]
        self._ports = {port for _, ports in self._listeners for port in ports}
        self._networks = [place for place in places if not isinstance(place, str)]
        self._names = [plain_name(place) for place in places if isinstance(place, str)]
        self._is_bound = bool(self._networks or self._names)

    def allowed(self, host: str, found: Sequence[Found]) -> Sequence[Found]:
        """The addresses of a host, with their ports, that may be connected to. Raises OSError if there is none."""
        refusals = [self.refusal(host, where[0], where[1]) for _, where in found]
        if found and all(refusals):
            raise OSError(None, refusals[0])
        return [each for each, refusal in zip(found, refusals, strict=True) if refusal is None]

    def refusal(self, host: str, address: str, port: int) -> str | None:
        """Why this address of a host may not be connected to at this port; None if it may."""
        if port not in self._ports and not self._is_bound:
            return None
        for bind, ports in self._listeners:
            if port in ports and _is_at(_plain(address), bind):
                return "it is a listener of this proxy"
        if self._is_bound and not self._has_name(host) and not self._has_address(address):
            return "it is outside of upstream.node_networks"
        return None

    def refusal_of_host(self, host: str, port: int) -> str | None:
        """The same, as far as it is known before the name of the host is looked up."""
        if _is_number(host):
            return self.refusal(host, host, port)
        if self._is_bound and not self._networks and not self._has_name(host):
            return "it is outside of upstream.node_networks"
        return None

    def _has_name(self, host: str) -> bool:
        name = plain_name(host)
        return any(name.endswith(known) if known.startswith(".") else name == known for known in self._names)

    def _has_address(self, address: str) -> bool:
        plain = _plain(address)
        return any(plain in network for network in self._networks)


ANYWHERE = Destinations()

_OF_NOBODY = {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}
"""Addresses that are for documentation: no machine has them."""


def plain_name(host: str) -> str:
    """The one spelling of a host name."""
    return host.lower().removesuffix(".")


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _plain(text: str) -> Address:
    """An address without a zone; one that is IPv4 in IPv6 as IPv4."""
    address = ip_address(text.partition("%")[0])
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _is_at(address: Address, bind: Address) -> bool:
    """Whether a connection to `address` comes to a socket that is bound to `bind`."""
    if address.is_unspecified:  # the system takes it for this machine
        return bind.is_unspecified or bind.is_loopback
    if not bind.is_unspecified:
        return address == bind
    return (bind.version == 6 or address.version == 4) and _is_of_this_machine(address)


def _is_of_this_machine(address: Address) -> bool:
    if not _can_be_bound_to(address):
        return False
    if _can_be_bound_to(_OF_NOBODY[address.version]):  # ip_nonlocal_bind is set, as for addresses that move
        return address.is_loopback or _is_spoken_to_by_itself(address)
    return True


def _can_be_bound_to(address: Address) -> bool:
    """False also if there can be no socket to try it with: then a connection to the address will fail, too."""
    try:
        with _datagram_socket(address) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True


def _is_spoken_to_by_itself(address: Address) -> bool:
    """Whether this machine would send from an address what it sends there, as it does with an own address."""
    try:
        with _datagram_socket(address) as sock:
            sock.connect((str(address), 9))  # sends nothing
            source: str = sock.getsockname()[0]
    except OSError:
        return False
    return _plain(source) == address


def _datagram_socket(address: Address) -> socket.socket:
    return socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM)
