"""Headers of the PROXY protocol, as the specification words them, whole and cut anywhere, and bytes that are none."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.util import calc_crc32c

from kafka_throttle.protocol.identity.proxy_header import (
    LOCAL_PROXY_HEADER,
    MAX_PROXY_HEADER_BYTES,
    V1_MAX_BYTES,
    Endpoint,
    MalformedProxyHeader,
    NoProxyHeader,
    ProxyHeader,
    proxy_header_v2,
    read_proxy_header,
)

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LONGEST_V1 = b"PROXY UNKNOWN " + b"f" * 91 + b"\r\n"
TCP4 = pack(">4s4sHH", b"\x0a\x00\x00\x07", b"\x0a\x00\x00\x01", 40_000, 9092)
FROM, TO = Endpoint("10.0.0.7", 40_000), Endpoint("10.0.0.1", 9092)


def read(data):
    return read_proxy_header(data, calc_crc32c)


def v2(command=0x21, family=0x11, rest=TCP4):
    return SIGNATURE + pack(">BBH", command, family, len(rest)) + rest


def tlv(kind, value):
    return pack(">BH", kind, len(value)) + value


def checked(rest=TCP4, more=b""):
    """A header with the right checksum between other TLVs."""
    blank = v2(rest=rest + tlv(3, bytes(4)) + more)
    at = len(v2(rest=rest)) + 3
    return blank[:at] + calc_crc32c(blank).to_bytes(4, "big") + blank[at + 4 :]


@pytest.mark.parametrize(
    ("data", "source", "destination"),
    [
        (b"PROXY TCP4 10.0.0.7 10.0.0.1 40000 9092\r\n", FROM, TO),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",) + (Endpoint("255.255.255.255", 65535),) * 2,
        (b"PROXY TCP6 2001:DB8::0 ::1 1 0\r\n", Endpoint("2001:db8::", 1), Endpoint("::1", 0)),
        (b"PROXY UNKNOWN\r\n", None, None),
        (b"PROXY UNKNOWN ffff:: what ever\x00 1 2\r\n", None, None),
        (LONGEST_V1, None, None),
        (v2(), FROM, TO),
        (v2(family=0x21, rest=bytes(15) + b"\1" + bytes(15) + b"\2" + b"\0\5\0\6"), ("::1", 5), ("::2", 6)),
        (v2(rest=TCP4 + tlv(1, b"h2") + tlv(0xEE, b"") + tlv(5, bytes(128))), FROM, TO),
        (checked(), FROM, TO),
        (checked(more=tlv(2, b"kafka.example.com")), FROM, TO),
        (v2(family=0x12), None, None),
        (v2(family=0x22, rest=bytes(36)), None, None),
        (v2(family=0x31, rest=bytes(216)), None, None),
        (v2(family=0x32, rest=bytes(216) + tlv(4, b"noop")), None, None),
        (v2(family=0x00, rest=b""), None, None),
        (v2(rest=TCP4 + tlv(4, bytes(MAX_PROXY_HEADER_BYTES - 16 - 12 - 3))), FROM, TO),
    ],
)
def test_a_header_names_the_client(data, source, destination):
    assert read(data) == ProxyHeader(len(data), source, destination)


@pytest.mark.parametrize("family", [0, 0x11, 0xFF])
def test_local_is_the_balancers_own_connection_whatever_else_it_holds(family):
    data = v2(0x20, family, b"\1\2\3\4\5")
    assert read(data) == ProxyHeader(len(data), local=True)
    assert read(LOCAL_PROXY_HEADER) == ProxyHeader(16, local=True)


MALFORMED = [
    (b"PROXY \r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY tcp4 1.1.1.1 1.1.1.1 1 1\r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY TCP4 1.1.1.1  1.1.1.1 1 1\r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n", "v1: expected TCP4 or TCP6"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n\r\n", "v1: expected a port, got b'1\\n'"),
    (b"PROXY TCP4 ::1 ::1 1 1\r\n", "v1: expected an IPv4 address, got b'::1'"),
    (b"PROXY TCP6 1.1.1.1 ::1 1 1\r\n", "v1: expected an IPv6 address"),
    (b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", "v1: expected an IPv6 address"),
    (b"PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n", "v1: expected an IPv4 address"),
    (b"PROXY TCP4 1.1.1.\xff 1.1.1.1 1 1\r\n", "v1: expected an IPv4 address"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n", "v1: expected a port, got b'65536'"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 01\r\n", "v1: expected a port"),
    (b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n", "v1: expected a port"),
    (b"PROXY UNKNOWN" + b"x" * V1_MAX_BYTES, "v1: no line end within 107 bytes"),
    (LONGEST_V1[:-2] + b"f\r\n", "v1: no line end within 107 bytes"),
    (v2(command=0x11), "v2: version and command 0x11"),
    (v2(command=0x22), "v2: version and command 0x22"),
    (v2(family=0x13), "v2: family and transport 0x13"),
    (v2(family=0x41), "v2: family and transport 0x41"),
    (v2(rest=TCP4[:-1]), "v2: 11 bytes do not hold addresses of 12"),
    (v2(family=0x31, rest=bytes(215)), "v2: 215 bytes do not hold addresses of 216"),
    (v2(rest=bytes(MAX_PROXY_HEADER_BYTES - 15)), "v2: 4097 bytes announced, 4096 allowed"),
    (v2(command=0x20, rest=bytes(65_535)), "v2: 65551 bytes announced, 4096 allowed"),
    (v2(rest=TCP4 + b"\4\0"), "v2: 2 bytes at offset 28 are no TLV"),
    (v2(rest=TCP4 + b"\4\0\2x"), "v2: TLV 0x04 of 2 bytes at offset 31 runs past the end"),
    (v2(rest=TCP4 + tlv(3, bytes(3))), "v2: expected one checksum of 4 bytes"),
    (v2(rest=TCP4 + tlv(3, bytes(4)) * 2), "v2: expected one checksum of 4 bytes"),
    (v2(rest=TCP4 + tlv(3, b"\1\2\3\4")), "v2: the checksum does not match"),
    (checked()[:20] + b"\xff" + checked()[21:], "v2: the checksum does not match"),
]


@pytest.mark.parametrize(("data", "problem"), MALFORMED)
def test_the_error_says_what_is_wrong_with_a_header(data, problem):
    with pytest.raises(MalformedProxyHeader) as caught:
        read(data)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x1f\x00\x12",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"PROXY\r\n",
        b"proxy TCP4",
        b"\r\n\r\n\x00\r\nQUIT\r",
        b"\r\n\r\nP",
    ],
)
def test_bytes_that_begin_otherwise_are_no_header(data):
    with pytest.raises(NoProxyHeader, match="begins with"):
        read(data)


endpoints = st.builds(Endpoint, st.ip_addresses().map(str), st.integers(0, 65_535))


@given(endpoints, endpoints)
def test_what_is_written_is_read(source, destination):
    data = proxy_header_v2(source, destination)
    header = read(data + b"\0\0\0\x05")
    assert header.length_bytes == len(data) in (28, 52)
    for reported, meant in ((header.source, source), (header.destination, destination)):
        ip, wanted = ip_address(reported.ip), ip_address(meant.ip)
        if isinstance(ip, IPv6Address) and isinstance(wanted, IPv4Address):
            ip = ip.ipv4_mapped
        assert (ip, reported.port) == (wanted, meant.port)


def outcome(data):
    try:
        return read(data)
    except (NoProxyHeader, MalformedProxyHeader) as error:
        return type(error)


def v1_lines():
    words = st.lists(
        st.sampled_from([b"TCP4", b"TCP6", b"UNKNOWN", b"1.2.3.4", b"::1", b"1", b"70000", b""]), max_size=7
    )
    return words.map(lambda some: b"PROXY " + b" ".join(some) + b"\r\n")


def v2_headers():
    tlvs = st.lists(st.builds(tlv, st.sampled_from([1, 3, 4, 5]), st.binary(max_size=9)), max_size=4).map(b"".join)
    rest = st.one_of(st.builds(bytes.__add__, st.binary(min_size=12, max_size=12), tlvs), st.binary(max_size=300))
    bytes_of_sense = st.sampled_from([0, 0x11, 0x12, 0x20, 0x21, 0x31])
    return st.builds(v2, bytes_of_sense | st.integers(0, 255), bytes_of_sense | st.integers(0, 255), rest)


streams = st.builds(bytes.__add__, st.one_of(v1_lines(), v2_headers(), st.binary()), st.binary(max_size=20))


@given(streams)
@example(LONGEST_V1 + b"x")
@example(checked() + b"x")
@example(v2(0x20, 0xFF, b"\1\2\3\4\5"))
def test_the_result_does_not_depend_on_how_a_header_is_cut(stream):
    """No byte behind a header is read, and other bytes give only the two errors."""
    final = outcome(stream)
    for end in range(len(stream)):
        assert outcome(stream[:end]) in (None, final)
    if isinstance(final, ProxyHeader):
        assert outcome(stream[: final.length_bytes]) == final
        assert outcome(stream[: final.length_bytes - 1]) is None
