"""Listening sockets that were open before this process: systemd passes them, or the process that it takes over from."""

import socket
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

from kafka_throttle.common.problems import Problem
from kafka_throttle.common.service_manager import PassedFd
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.server.sockets import listening, prepare

LISTEN_FDS = "LISTEN_FDS"
"""The environment variable with the number of sockets that systemd passes."""


class PassedSockets:
    """Gives each setting of an address and port its socket: the one that was passed, or one that is opened now."""

    def __init__(self, sockets: Iterable[socket.socket] = (), *, reuse_port: bool = False) -> None:
        self._by_address = {address_of(sock): sock for sock in sockets}
        self._reuse_port = reuse_port

    def has(self, bind: str, port: int) -> bool:
        """Whether the socket of this address and port was passed, and not taken yet."""
        return HostPort(str(ip_address(bind)), port) in self._by_address

    def take(self, bind: str, port: int, *, ipv6_only: bool = False, reuse_port: bool = False) -> socket.socket:
        """The listening socket of this address and port. Raises OSError if it has to be opened, and cannot be."""
        sock = self._by_address.pop(HostPort(str(ip_address(bind)), port), None)
        if sock is None:
            return listening(bind, port, reuse_port=reuse_port or self._reuse_port, ipv6_only=ipv6_only)
        prepare(sock)
        return sock

    def close_rest(self) -> list[HostPort]:
        """Close the sockets that no setting has taken, and return their addresses."""
        for sock in self._by_address.values():
            sock.close()
        closed = list(self._by_address)
        self._by_address.clear()
        return closed


def address_of(sock: socket.socket) -> HostPort:
    """The address at which a socket listens."""
    host, port, *_ = sock.getsockname()
    return HostPort(str(ip_address(host.partition("%")[0])), port)


def from_systemd(
    passed: Iterable[PassedFd], wanted: Mapping[HostPort, str]
) -> tuple[list[socket.socket], list[Problem]]:
    """The sockets of these descriptors, and what is wrong with them.

    `wanted` has the setting of each address and port. Each socket must have one; the others are opened by the proxy.
    """
    sockets, problems = [], []
    for each in passed:
        try:
            sock = socket.socket(fileno=each.fd)
        except OSError as error:
            problems.append(Problem(LISTEN_FDS, f"expected sockets, got {error.strerror} for {each.fd} ({each.name})"))
            continue
        sockets.append(sock)
        problems += _problems_of(sock, each, wanted)
    return sockets, problems


def _problems_of(sock: socket.socket, passed: PassedFd, wanted: Mapping[HostPort, str]) -> Iterator[Problem]:
    said = f"systemd passes as socket {passed.fd} ({passed.name})"
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not _listens(sock):
        yield Problem(LISTEN_FDS, f"expected listening TCP sockets, got another one, which {said}")
        return
    where = address_of(sock)
    if where in wanted:
        return
    settings = {setting: address for address, setting in wanted.items() if address.port == where.port}
    for setting, address in settings.items():
        yield Problem(setting, f"expected {where}, which {said}, got {address}")
    if not settings:
        ports = ", ".join(map(str, sorted({address.port for address in wanted})))
        yield Problem(
            LISTEN_FDS, f"expected sockets for ports of the configuration ({ports}), got {where}, which {said}"
        )


def _listens(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
