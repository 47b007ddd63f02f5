"""The client of a connection, on real sockets: the peer, or the client that a trusted peer names."""

import asyncio
import socket
import struct
from ipaddress import ip_network

import pytest
import structlog

from kafka_throttle.protocol.identity.proxy_header import LOCAL_PROXY_HEADER, Endpoint, proxy_header_v2
from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.server.origin import Origin, origin_stage
from tests.support.waiting import until

V2 = proxy_header_v2(Endpoint("192.0.2.7", 40_000), Endpoint("192.0.2.1", 9092))
V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 9092\r\n"
REQUEST = b"\x00\x00\x00\x0a\x00\x12\x00\x03 bytes"
LOOPBACK = ip_network("127.0.0.0/8")
ELSEWHERE = ip_network("10.0.0.0/8")


class Way:
    """A socket on its way in through the stage, and its peer."""

    def __init__(self, required=True, trusted=(LOOPBACK,), timeout_ms=60_000):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname(), timeout=60)
            client, address = server.accept()
        client.setblocking(False)
        self.incoming = IncomingConnection(client, 9092, 1, address[0], "ANONYMOUS", structlog.get_logger())
        self.poller = Poller()
        self.stage = origin_stage(Origin(self.poller, trusted, required))
        self.stage.timeout_ms = timeout_ms
        self.ends = []

    def begin(self):
        self.stage.begin(
            self.incoming, lambda _: self.ends.append("on"), lambda _a, *why: self.ends.append((why[0].value, why[1]))
        )

    async def end(self):
        """How it left the stage; nothing of it is left in the poller."""
        await until(lambda: self.ends)
        [end] = self.ends
        assert not self.poller._handlers
        return end

    def unread(self):
        """All that the next stage reads, until the peer's end."""
        self.peer.close()
        self.incoming.socket.setblocking(True)
        with self.incoming.socket as sock:
            return b"".join(iter(lambda: sock.recv(4096), b""))


@pytest.fixture
async def way():
    return Way()


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("required", [True, False])
async def test_the_client_is_the_one_that_a_trusted_peer_names_and_its_own_bytes_stay(header, required):
    way = Way(required)
    way.peer.sendall(header + REQUEST)
    way.begin()
    assert await way.end() == "on"
    assert way.incoming.address == "192.0.2.7"
    reported = structlog.get_context(way.incoming.log)
    assert (reported["client"], reported["proxied_by"]) == ("192.0.2.7:40000", "127.0.0.1")
    assert way.unread() == REQUEST


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
async def test_a_header_may_come_byte_by_byte(way, header):
    way.begin()
    for byte in header:
        way.peer.sendall(bytes([byte]))
        await asyncio.sleep(0.001)
    assert await way.end() == "on"
    way.peer.sendall(REQUEST)
    assert way.unread() == REQUEST


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", LOCAL_PROXY_HEADER], ids=["unknown", "local"])
async def test_a_balancers_own_connection_has_its_own_address(way, header):
    way.peer.sendall(header + REQUEST)
    way.begin()
    assert await way.end() == "on"
    assert way.incoming.address == "127.0.0.1"
    assert way.incoming.of_balancer is (header == LOCAL_PROXY_HEADER)
    assert way.unread() == REQUEST


async def test_without_a_header_the_first_bytes_decide_and_stay():
    optional, required = Way(required=False), Way()
    for way in (optional, required):
        way.peer.sendall(REQUEST)
        way.begin()
    assert await optional.end() == "on"
    assert (optional.incoming.address, optional.unread()) == ("127.0.0.1", REQUEST)
    assert await required.end() == ("proxy_header_missing", f"begins with {REQUEST[:8].hex(' ')}")


async def test_what_an_untrusted_peer_says_of_itself_is_never_believed():
    optional, required = Way(required=False, trusted=(ELSEWHERE,)), Way(trusted=(ELSEWHERE,))
    for way in (optional, required):
        way.peer.sendall(V2 + REQUEST)
        way.begin()
    assert await optional.end() == "on"
    assert (optional.incoming.address, optional.unread()) == ("127.0.0.1", V2 + REQUEST)
    assert await required.end() == ("proxy_peer_untrusted", "127.0.0.1 is in none of the trusted networks")


async def test_an_untrusted_peer_is_not_waited_for():
    way = Way(required=False, trusted=(ELSEWHERE,))
    way.begin()
    assert await way.end() == "on"


@pytest.mark.parametrize("required", [True, False])
async def test_a_header_that_is_wrong_ends_the_connection(required):
    way = Way(required)
    way.peer.sendall(b"PROXY TCP4 192.0.2.7\r\n" + REQUEST)
    way.begin()
    reason, detail = await way.end()
    assert reason == "proxy_header_malformed"
    assert detail.startswith("v1: expected TCP4 or TCP6")


@pytest.mark.parametrize("sent", [b"", V2[:20], V1[:-1]], ids=["nothing", "v2", "v1"])
async def test_a_header_that_does_not_come_to_its_end_is_not_waited_for_for_ever(sent):
    way = Way(timeout_ms=50)
    way.peer.sendall(sent)
    way.begin()
    assert await way.end() == ("proxy_header_timeout", "not within 50 ms")


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("sent", [b"", V2[:20]], ids=["nothing", "a part"])
async def test_a_peer_that_goes_before_its_header_is_whole_is_noticed_at_once(way, sent, early):
    way.peer.sendall(sent)
    if early:
        way.peer.close()
    way.begin()
    await asyncio.sleep(0.02)
    way.peer.close()
    reported = ("client_closed", f"after {len(sent)} bytes of a PROXY header")
    assert await way.end() == (reported if sent else ("client_sent_nothing", ""))


async def test_a_peer_that_resets_is_noticed_at_once(way):
    way.begin()
    await asyncio.sleep(0.02)
    way.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    way.peer.close()
    reason, _ = await way.end()
    assert reason == "client_sent_nothing"


async def test_only_so_many_are_waited_for():
    way = Way()
    way.stage.most = 0
    way.begin()
    assert await way.end() == (CloseReason.TOO_MANY_PROXY_HEADERS.value, "")
