"""The PROXY protocol: a header that a load balancer puts before a client's bytes, with the client's address.

Source: "The PROXY protocol, versions 1 & 2" (HAProxy's doc/proxy-protocol.txt).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final, NamedTuple

from kafka_throttle.protocol.errors import ProtocolError

V1_MAX_BYTES: Final = 107
"""The longest header of version 1, with its line end, by the specification."""

MAX_PROXY_HEADER_BYTES: Final = 4096
"""The longest header of version 2 that is accepted. The specification allows 65,551 bytes; addresses and the
usual TLVs take a few hundred.
"""

V2_PREFIX_BYTES: Final = 16

_V1_SIGNATURE: Final = b"PROXY "
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_PREFIX = Struct(">12sBBH")
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_TCP4, _V2_TCP6, _V2_UNIX_STREAM = 0x11, 0x21, 0x31
_V2_FAMILIES = frozenset({0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32})
_ADDRESSES_BYTES = {0x1: 12, 0x2: 36, 0x3: 216}
"""The size of the addresses by address family, the upper half of the byte: IPv4, IPv6, Unix."""
_TLV_HEAD = Struct(">BH")
_CRC32C = 0x03
_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")


class NoProxyHeader(ProtocolError):
    """Bytes that do not begin like a header of either version."""


class MalformedProxyHeader(ProtocolError):
    """Bytes that begin like a header and then do not follow the specification."""


class Endpoint(NamedTuple):
    """An IP address, in its plain spelling, and a TCP port."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """What a header contains. Without a `source` the connection's own addresses count.

    That is the case with LOCAL (the load balancer connects for itself), UNKNOWN, a Unix socket, UDP, or an unspecified
    family.
    """

    length_bytes: int
    source: Endpoint | None = None
    destination: Endpoint | None = None
    local: bool = False


def read_proxy_header(data: bytes, crc32c: Callable[[bytes], int]) -> ProxyHeader | None:
    """The header at the beginning of `data`; None while it is not here whole. What follows it is not read.

    Raises NoProxyHeader or MalformedProxyHeader as soon as further bytes cannot change that. `crc32c` computes the
    checksum that a header may have.
    """
    for signature, read in ((_V1_SIGNATURE, _read_v1), (_V2_SIGNATURE, _read_v2)):
        if data.startswith(signature):
            return read(data, crc32c)
        if signature.startswith(data):
            return None
    raise NoProxyHeader(f"begins with {data[:8].hex(' ')}")


def proxy_header_v2(source: Endpoint, destination: Endpoint) -> bytes:
    """A header of version 2 for a TCP connection. Raises ValueError if an address is not an IP address.

    If one of the two is IPv6, the other is written as an IPv4-mapped address.
    """
    ends = ip_address(source.ip), ip_address(destination.ip)
    family = _V2_TCP4
    if any(ip.version == 6 for ip in ends):
        family = _V2_TCP6
        ends = _as_v6(ends[0]), _as_v6(ends[1])
    ports = source.port.to_bytes(2, "big") + destination.port.to_bytes(2, "big")
    body = ends[0].packed + ends[1].packed + ports
    return _V2_PREFIX.pack(_V2_SIGNATURE, _V2_PROXY, family, len(body)) + body


LOCAL_PROXY_HEADER: Final = _V2_PREFIX.pack(_V2_SIGNATURE, _V2_LOCAL, 0, 0)
"""The header for a connection that the sender makes for itself."""


def _as_v6(ip: IPv4Address | IPv6Address) -> IPv6Address:
    return ip if isinstance(ip, IPv6Address) else IPv6Address(b"\0" * 10 + b"\xff\xff" + ip.packed)


# ------------------------------------------------------------------- version 1


def _read_v1(data: bytes, _crc32c: Callable[[bytes], int]) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_MAX_BYTES)
    if end < 0:
        if len(data) < V1_MAX_BYTES:
            return None
        raise MalformedProxyHeader(f"v1: no line end within {V1_MAX_BYTES} bytes")
    words = data[len(_V1_SIGNATURE) : end].split(b" ")
    if words[0] == b"UNKNOWN":
        return ProxyHeader(end + 2)
    if len(words) != 5 or words[0] not in (b"TCP4", b"TCP6"):
        raise MalformedProxyHeader("v1: expected TCP4 or TCP6, two addresses and two ports, or UNKNOWN")
    version = 4 if words[0] == b"TCP4" else 6
    source = Endpoint(_v1_ip(words[1], version), _v1_port(words[3]))
    return ProxyHeader(end + 2, source, Endpoint(_v1_ip(words[2], version), _v1_port(words[4])))


def _v1_ip(word: bytes, version: int) -> str:
    try:
        ip = ip_address(word.decode("ascii"))
    except ValueError:
        ip = None
    if ip is None or ip.version != version or b"%" in word:
        raise MalformedProxyHeader(f"v1: expected an IPv{version} address, got {word[:64]!r}")
    return str(ip)


def _v1_port(word: bytes) -> int:
    if not _PORT.fullmatch(word) or int(word) > 65_535:
        raise MalformedProxyHeader(f"v1: expected a port, got {word[:64]!r}")
    return int(word)


# ------------------------------------------------------------------- version 2


def _read_v2(data: bytes, crc32c: Callable[[bytes], int]) -> ProxyHeader | None:
    if len(data) < V2_PREFIX_BYTES:
        return None
    _, command, family, rest_bytes = _V2_PREFIX.unpack_from(data)
    length_bytes = V2_PREFIX_BYTES + rest_bytes
    if command not in (_V2_LOCAL, _V2_PROXY):
        raise MalformedProxyHeader(f"v2: version and command 0x{command:02x}")
    if length_bytes > MAX_PROXY_HEADER_BYTES:
        raise MalformedProxyHeader(f"v2: {length_bytes} bytes announced, {MAX_PROXY_HEADER_BYTES} allowed")
    if command == _V2_LOCAL:  # the rest of it must be ignored
        return ProxyHeader(length_bytes, local=True) if len(data) >= length_bytes else None
    if family not in _V2_FAMILIES:
        raise MalformedProxyHeader(f"v2: family and transport 0x{family:02x}")
    addresses_bytes = _ADDRESSES_BYTES.get(family >> 4, rest_bytes)
    if rest_bytes < addresses_bytes:
        raise MalformedProxyHeader(f"v2: {rest_bytes} bytes do not hold addresses of {addresses_bytes}")
    if len(data) < length_bytes:
        return None
    header = data[:length_bytes]
    _check_tlvs(header, V2_PREFIX_BYTES + addresses_bytes, crc32c)
    return ProxyHeader(length_bytes, *_v2_endpoints(header, family))


def _v2_endpoints(header: bytes, family: int) -> tuple[Endpoint | None, Endpoint | None]:
    if family not in (_V2_TCP4, _V2_TCP6):
        return None, None
    ip_bytes = 4 if family == _V2_TCP4 else 16
    ips_end = V2_PREFIX_BYTES + 2 * ip_bytes
    source, destination = (ip_address(header[at : at + ip_bytes]) for at in (V2_PREFIX_BYTES, ips_end - ip_bytes))
    ports = (int.from_bytes(header[at : at + 2], "big") for at in (ips_end, ips_end + 2))
    return Endpoint(str(source), next(ports)), Endpoint(str(destination), next(ports))


def _check_tlvs(header: bytes, at: int, crc32c: Callable[[bytes], int]) -> None:
    """Step over all TLVs to the end of the header, and check the checksum if one of them has it."""
    checksum_at = 0
    while at < len(header):
        if at + _TLV_HEAD.size > len(header):
            raise MalformedProxyHeader(f"v2: {len(header) - at} bytes at offset {at} are no TLV")
        kind, value_bytes = _TLV_HEAD.unpack_from(header, at)
        at += _TLV_HEAD.size
        if at + value_bytes > len(header):
            raise MalformedProxyHeader(f"v2: TLV 0x{kind:02x} of {value_bytes} bytes at offset {at} runs past the end")
        if kind == _CRC32C:
            if value_bytes != 4 or checksum_at:
                raise MalformedProxyHeader("v2: expected one checksum of 4 bytes")
            checksum_at = at
        at += value_bytes
    if checksum_at:
        reported = int.from_bytes(header[checksum_at : checksum_at + 4], "big")
        if crc32c(header[:checksum_at] + bytes(4) + header[checksum_at + 4 :]) != reported:
            raise MalformedProxyHeader("v2: the checksum does not match")
