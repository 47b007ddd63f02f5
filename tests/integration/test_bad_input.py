"""Bytes that are not Kafka, or not right, reach the proxy's ports: that connection ends, and others go on."""

import os
import random
import socket
import ssl
import struct
import threading
import time

import pytest

from kafka_throttle.protocol.api_key import METADATA as _METADATA
from kafka_throttle.protocol.api_key import PRODUCE as _PRODUCE
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.support.timeouts import TIMEOUT_S


def request(api_key, version, body=b"", client_id=b"bad", size=None, correlation_id=7):
    """A request frame; `size` announces another length than it has."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id
    return struct.pack(">i", len(head + body) if size is None else size) + head + body


def tls_hello():
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="kafka")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


INPUTS = {
    "a TLS hello": (tls_hello(), "tls_unexpected", "looks like a TLS handshake"),
    "HTTP GET": (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "request_not_kafka", "looks like an HTTP request"),
    "HTTP POST": (b"POST /topics HTTP/1.1\r\n\r\n", "request_not_kafka", "looks like an HTTP request"),
    "an SSH banner": (b"SSH-2.0-OpenSSH_9.6\r\n", "request_not_kafka", "looks like SSH"),
    "a PROXY header": (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "request_not_kafka", "looks like a PROXY protocol v1"),
    "too large a frame": (struct.pack(">i", 2_000_001), "request_too_large", "2000001 bytes announced, 2000000"),
    "the largest length": (struct.pack(">i", 2**31 - 1), "request_too_large", "2147483647 bytes announced"),
    "a negative length": (struct.pack(">i", -5), "request_malformed", "a length prefix of -5"),
    "length zero": (struct.pack(">i", 0), "request_malformed", "a length prefix of 0"),
    "a length for less than a head": (struct.pack(">i", 7) + b"\0" * 7, "request_malformed", "a length prefix of 7"),
    "a whole head without a client id": (struct.pack(">ihhi", 8, 3, 1, 1), "request_malformed", "a length prefix of 8"),
    "an API that is none": (request(999, 0), "unsupported_api", "api key 999 version 0"),
    "a negative API": (request(-3, 0), "unsupported_api", "api key -3 version 0"),
    "a version too high": (request(_METADATA, 99), "unsupported_version", "Metadata (api key 3) version 99"),
    "a client id beyond the frame": (
        struct.pack(">ihhih", 10, _METADATA, 1, 1, 30_000) + b"x" * 40,
        "request_malformed",
        "a client id of 30000 bytes in a frame of 10",
    ),
    "a Produce without acks": (request(_PRODUCE, 3, b"\0"), "request_malformed", "Produce v3"),
}


@pytest.fixture(scope="module")
def proxy(newest_kafka):
    with ProxyProcess(newest_kafka, limits={"max_frame_bytes": 2_000_000}, log={"level": "debug"}) as process:
        yield process


@pytest.fixture(scope="module")
def bystander(proxy):
    """A client that requests metadata on two old connections all the time, and must get each response."""
    with Bystander(proxy.port) as to_bootstrap, Bystander(proxy.node_ports[2]) as to_node:
        yield (to_bootstrap, to_node)


class Bystander:
    def __init__(self, port):
        self.responses = 0
        self.error = None
        self._done = threading.Event()
        self._socket = socket.create_connection((HOST, port))
        self._socket.settimeout(TIMEOUT_S)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(TIMEOUT_S)
        self._socket.close()

    def _run(self):
        try:
            while not self._done.is_set():
                ask(self._socket, self.responses + 1)
                self.responses += 1
                time.sleep(0.005)
        except BaseException as error:
            self.error = error

    def assert_well(self):
        """It has no error and gets a response now."""
        seen = self.responses
        deadline = time.monotonic() + TIMEOUT_S
        while self.responses < seen + 3 and self.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.error is None, self.error
        assert self.responses >= seen + 3, "it gets no more responses"


def ask(sock, correlation_id):
    """One Metadata request for no topic; its response has to bear the correlation id."""
    sock.sendall(request(_METADATA, 1, struct.pack(">i", 0), b"bystander", correlation_id=correlation_id))
    size, found = struct.unpack(">ii", read_exactly(sock, 8))
    assert found == correlation_id
    read_exactly(sock, size - 4)


def read_exactly(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"closed after {len(data)} of {count} bytes"
        data += piece
    return data


def read_to_end(sock, timeout_s=TIMEOUT_S):
    """All that comes until the proxy closes; a reset is an end as well."""
    data = b""
    sock.settimeout(timeout_s)
    while True:
        try:
            piece = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def closed_since(proxy, before):
    """How many connections have been closed since `before`, by reason, but those that clients have closed."""
    return {
        reason: count - before.get(reason, 0)
        for reason, count in proxy.closed().items()
        if count > before.get(reason, 0)
    }


@pytest.mark.parametrize("at", ["bootstrap", "node 2"])
@pytest.mark.parametrize("name", INPUTS)
def test_bad_input_ends_its_own_connection_and_no_other(proxy, bystander, name, at):
    data, reason, detail = INPUTS[name]
    before, closings = proxy.closed(), len(proxy.events("connection_closed"))
    with socket.create_connection((HOST, proxy.port if at == "bootstrap" else proxy.node_ports[2])) as sock:
        client = "{}:{}".format(*sock.getsockname())
        sock.sendall(data)
        assert read_to_end(sock) == b""
    proxy.wait_for(lambda: closed_since(proxy, before) == {reason: 1}, 5, f"one more {reason}")
    line = proxy.closing_line(client, closings)
    assert line["reason"] == reason
    assert line["level"] in ("warning", "debug")  # what an address does again is logged once
    assert detail in line["detail"]
    for other in bystander:
        other.assert_well()


def test_a_frame_cut_short_by_the_client_is_logged(proxy, bystander):
    before, closings = proxy.closed(), len(proxy.events("connection_closed"))
    with socket.create_connection((HOST, proxy.node_ports[1])) as sock:
        sock.sendall(request(_METADATA, 1, struct.pack(">i", 0), size=500))
        sock.shutdown(socket.SHUT_WR)
        read_to_end(sock)
        client = "{}:{}".format(*sock.getsockname())
    proxy.wait_for(lambda: closed_since(proxy, before) == {"client_closed": 1}, 5, "one more client_closed")
    line = proxy.closing_line(client, closings)
    assert line["detail"] == "in the middle of a request"
    for other in bystander:
        other.assert_well()


@pytest.mark.parametrize("at", ["bootstrap", "node 1"])
def test_a_request_may_come_byte_by_byte(proxy, at):
    closings = len(proxy.events("connection_closed"))
    with socket.create_connection((HOST, proxy.port if at == "bootstrap" else proxy.node_ports[1])) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(TIMEOUT_S)
        for correlation_id in (1, 2):
            body = struct.pack(">i", 0)
            for byte in request(_METADATA, 1, body, b"a client with a long name", correlation_id=correlation_id):
                sock.sendall(bytes([byte]))
                time.sleep(0.002)
            size, found = struct.unpack(">ii", read_exactly(sock, 8))
            assert found == correlation_id
            read_exactly(sock, size - 4)
        client = "{}:{}".format(*sock.getsockname())
    assert proxy.closing_line(client, closings)["reason"] == "client_closed"  # else the next test would count it


_LONG_NAMED = request(_METADATA, 1, struct.pack(">i", 0), b"a client with a long name")


@pytest.mark.parametrize("sent", [0, 1, 4, 13, 14, 20, len(_LONG_NAMED)])
@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_goes_away_is_noticed_however_much_it_has_sent(proxy, sent, how):
    before = proxy.closed()
    sock = socket.create_connection((HOST, proxy.node_ports[3]))
    sock.sendall(_LONG_NAMED[:sent])
    time.sleep(0.1)
    if how == "resets":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    proxy.wait_for(lambda: sum(closed_since(proxy, before).values()) == 1, 5, "the connection to be closed")
    assert closed_since(proxy, before).keys() <= ({"client_closed", "client_lost"} if sent else {"client_sent_nothing"})


def test_a_good_request_before_the_bad_one_gets_its_response(proxy):
    closings = len(proxy.events("connection_closed"))
    with socket.create_connection((HOST, proxy.node_ports[3])) as sock:
        ask(sock, 5)
        sock.sendall(request(_METADATA, 99))
        assert read_to_end(sock) == b""
        client = "{}:{}".format(*sock.getsockname())
    assert proxy.closing_line(client, closings)["reason"] == "unsupported_version"


def test_garbage_never_hurts_anyone_else(proxy, bystander):
    seed = int(os.environ.get("KAFKA_THROTTLE_TEST_SEED", random.randrange(2**32)))
    print(f"KAFKA_THROTTLE_TEST_SEED={seed}")
    dice = random.Random(seed)
    before = proxy.closed()
    sent = 200
    for _ in range(sent):
        port = dice.choice(sorted(proxy.ports))
        with socket.create_connection((HOST, port)) as sock:
            garbage = dice.randbytes(dice.randrange(1, 3000))
            if dice.random() < 0.5:  # a frame that looks right at its edge
                garbage = struct.pack(">ihh", len(garbage) + 4, dice.randrange(0, 76), dice.randrange(0, 12)) + garbage
            try:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                read_to_end(sock, timeout_s=2)
            except OSError:
                pass  # closed while we were sending, or a request that the node takes its time over
    proxy.wait_for(lambda: sum(closed_since(proxy, before).values()) == sent, 20, f"{sent} connections to be closed")
    assert "internal_error" not in closed_since(proxy, before)
    assert not proxy.events("internal_error")
    for other in bystander:
        other.assert_well()
    assert proxy.status("readyz") == 200


def test_all_of_it_has_left_no_connection_behind(proxy, bystander):
    proxy.wait_for(lambda: proxy.metric("connections") == len(bystander), 15, "only the bystanders to be connected")
