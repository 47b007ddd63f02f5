"""Streams over TLS, on real sockets: nothing is lost or left lying in what encryption holds back."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading

import pytest

from kafka_throttle.proxy.net.stream import StreamSettings
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.net.tls_socket import TlsSocket
from kafka_throttle.proxy.net.tls_stream import TlsStream
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.byte_caps import Turnstile
from tests.proxy.net.test_stream import HIGH_WATER_BYTES, StreamListener, cap, now_ms
from tests.support.certificates import Authority, client_context, server_context
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """(server's, client's)"""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    client = client_context(authority)
    client.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # CPython 3.11.2 sets it, later ones do not
    return server_context(authority.issue("localhost")), client


class Ends:
    """A TLS stream, its owner, and the peer: a blocking socket and what it speaks TLS with."""

    def __init__(self, contexts, room=256 * 1024, side=Side.CLIENT, caps=(), version=None):
        server, client = contexts
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.raw = socket.create_connection(listening.getsockname(), timeout=TIMEOUT_S)
            self.ours, _ = listening.accept()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        self.ours.setblocking(False)
        client.maximum_version = version or ssl.TLSVersion.MAXIMUM_SUPPORTED
        self.tls_socket = TlsSocket(self.ours, server)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.peer = client.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.lock = threading.Lock()
        self._shake_hands()
        self.owner = StreamListener(room)
        self.poller = new_poller()
        settings = StreamSettings(self.poller, side, HIGH_WATER_BYTES, Turnstile(caps), now_ms)
        self.stream = TlsStream(settings, self.tls_socket, self.owner)

    def _shake_hands(self):
        done = False
        while not done:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.peer.do_handshake()
                done = True
            self.push()
            with contextlib.suppress(BlockingIOError):
                self.tls_socket.receive()
            self.tls_socket.step()
            self.tls_socket.flush()
            if not done:
                self.incoming.write(self.raw.recv(1 << 16))

    def encrypted(self, data):
        with self.lock:
            self.peer.write(data)
            return self.outgoing.read()

    def push(self):
        self.raw.sendall(self.outgoing.read())

    def send(self, data):
        self.raw.sendall(self.encrypted(data))

    def goodbye(self):
        with contextlib.suppress(ssl.SSLError):
            self.peer.unwrap()
        self.push()

    async def receive_all(self):
        """(what the peer reads to the end, whether the end was a goodbye), in a thread."""

        def read():
            got = bytearray()
            while True:
                try:
                    with self.lock:
                        data = self.peer.read(1 << 18)
                    if not data:
                        return bytes(got), True
                    got += data
                except ssl.SSLWantReadError:
                    data = self.raw.recv(1 << 18)
                    with self.lock:
                        if data:
                            self.incoming.write(data)
                        else:
                            self.incoming.write_eof()
                except ssl.SSLZeroReturnError:
                    return bytes(got), True
                except ssl.SSLError as error:
                    if error.reason != "UNEXPECTED_EOF_WHILE_READING":  # for CPython 3.11.2 that is no SSLEOFError
                        raise
                    return bytes(got), False

        return await asyncio.to_thread(read)

    def reset(self):
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()

    def close(self):
        self.stream.abort()
        self.raw.close()


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def ends(request, contexts):
    made = Ends(contexts, version=request.param)
    yield made
    made.close()


async def test_what_the_peer_sends_is_read_and_then_its_goodbye_reported_once(ends):
    ends.send(b"abc")
    await until(lambda: ends.owner.data == b"abc")
    ends.goodbye()  # the socket stays open
    await until(lambda: ends.owner.reported)
    ends.stream.pause_reading()
    ends.stream.resume_reading()
    await asyncio.sleep(0.02)
    assert ends.owner.reported == ["eof"]


async def test_bytes_and_a_goodbye_in_one_packet_are_both_reported(ends):
    data = ends.encrypted(b"abc")
    with contextlib.suppress(ssl.SSLError):
        ends.peer.unwrap()
    ends.raw.sendall(data + ends.outgoing.read())
    await until(lambda: ends.owner.reported == ["eof"])
    assert ends.owner.data == b"abc"


async def test_an_end_without_a_goodbye_is_an_end(ends):
    ends.raw.sendall(ends.encrypted(b"abc"))
    ends.raw.shutdown(socket.SHUT_WR)
    await until(lambda: ends.owner.reported == ["eof"])
    assert ends.owner.data == b"abc"


async def test_a_damaged_record_is_reported_after_what_came_before_it(ends):
    damaged = bytearray(ends.encrypted(b"second"))
    damaged[-1] ^= 1
    ends.raw.sendall(ends.encrypted(b"third"))  # out of turn, too
    await until(lambda: ends.owner.reported)
    assert ends.owner.reported[0].startswith("SSL")
    assert ends.owner.data == b""


async def test_what_came_before_a_damaged_record_is_delivered(ends):
    good, damaged = ends.encrypted(b"first"), bytearray(ends.encrypted(b"second"))
    damaged[-1] ^= 1
    ends.raw.sendall(good + damaged)
    await until(lambda: ends.owner.reported)
    assert (ends.owner.reported, ends.owner.data) == (["SSLError"], b"first")


async def test_what_is_left_of_a_record_is_read_though_nothing_more_comes(contexts):
    ends = Ends(contexts, room=512)
    ends.send(bytes(20_000))
    await until(lambda: len(ends.owner.data) == 20_000)
    assert max(ends.owner.reads) <= 512
    ends.close()


async def test_what_is_left_is_read_when_reading_goes_on(contexts):
    ends = Ends(contexts, room=512)
    ends.owner.on_bytes = ends.stream.pause_reading
    ends.send(bytes(10_000))
    for number in range(1, 10_000 // 512 + 2):
        await until(lambda: len(ends.owner.reads) == number)  # noqa: B023
        await asyncio.sleep(0.002)
        assert len(ends.owner.reads) == number
        ends.stream.resume_reading()
    assert len(ends.owner.data) == 10_000
    ends.close()


async def test_what_is_left_of_a_record_or_in_the_kernel_is_unread(contexts):
    ends = Ends(contexts, room=512)
    await asyncio.sleep(0.01)
    assert not ends.stream.unread
    ends.owner.on_bytes = ends.stream.pause_reading
    ends.send(bytes(1000))
    await until(lambda: ends.owner.reads)
    assert ends.stream.unread
    ends.stream.resume_reading()
    await until(lambda: len(ends.owner.data) == 1000)
    ends.stream.resume_reading()
    await until(lambda: not ends.stream.unread)
    ends.stream.pause_reading()
    ends.send(b"more")
    await until(lambda: ends.stream.unread)
    ends.close()


async def test_what_came_with_the_end_of_the_handshake_is_read(contexts):
    server, client = contexts
    client.maximum_version = ssl.TLSVersion.TLSv1_3
    ends = Ends.__new__(Ends)
    ends.lock = threading.Lock()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ends.raw = socket.create_connection(listening.getsockname(), timeout=TIMEOUT_S)
        ours, _ = listening.accept()
    ours.setblocking(False)
    tls = TlsSocket(ours, server)
    ends.incoming, ends.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends.peer = client.wrap_bio(ends.incoming, ends.outgoing, server_hostname="localhost")
    for last in (False, True):
        with contextlib.suppress(ssl.SSLWantReadError):
            ends.peer.do_handshake()
        if last:
            ends.peer.write(b"at once")
        ends.push()
        tls.receive()
        assert tls.step() is last
        tls.flush()
        if not last:
            ends.incoming.write(ends.raw.recv(1 << 16))
    ends.owner = StreamListener()
    ends.stream = TlsStream(StreamSettings(new_poller(), Side.CLIENT, HIGH_WATER_BYTES), tls, ends.owner)
    await until(lambda: ends.owner.data == b"at once")
    ends.close()


async def test_a_record_that_comes_byte_by_byte_is_read(ends):
    for byte in ends.encrypted(b"abc"):
        ends.raw.sendall(bytes([byte]))
        await asyncio.sleep(0.0005)
    await until(lambda: ends.owner.data == b"abc")


@pytest.mark.parametrize("side", Side)
async def test_over_a_cap_reading_goes_on_in_turns_until_all_is_there(contexts, side):
    of_all = cap(200_000)
    ends = Ends(contexts, side=side, caps=(cap(1_000_000), of_all))
    ends.send(bytes(60_000))
    ends.goodbye()
    await until(lambda: ends.owner.reported == ["eof"])
    assert len(ends.owner.data) == 60_000
    assert max(ends.owner.reads) <= of_all.turn_bytes
    assert ends.owner.waits > 0
    assert of_all.read_bytes == 60_000
    ends.close()


async def test_pieces_arrive_in_order_however_little_the_kernel_takes(ends):
    sent = [bytes([number % 251]) * (number * 37 % 4000 + 1) for number in range(3000)]
    sent += [random.Random(6).randbytes(700_000), b"end"]
    for start in range(0, 3002, 1501):
        ends.stream.write(sent[start : start + 1501])
    ends.stream.close()
    assert await ends.receive_all() == (b"".join(sent), True)


async def test_a_full_buffer_is_reported_and_so_is_room(ends):
    piece = bytes(32 * 1024)
    while "full" not in ends.owner.reported:
        ends.stream.write([piece])
    reading = asyncio.create_task(ends.receive_all())
    await until(lambda: ends.owner.reported == ["full", "room"])
    ends.stream.close()
    data, _ = await reading
    assert len(data) % len(piece) == 0


async def test_what_was_encrypted_already_goes_out_without_a_further_write(ends):
    ends.stream.write([bytes(200_000)])
    assert ends.stream.unsent_bytes > 0
    reading = asyncio.create_task(ends.receive_all())
    await until(lambda: ends.stream.unsent_bytes == 0)
    ends.stream.close()
    assert await reading == (bytes(200_000), True)


async def test_closing_writes_out_what_is_buffered_even_to_a_peer_that_still_sends(ends):
    sent = bytes(4_000_000)
    ends.stream.write([sent])
    ends.stream.close()
    ends.send(bytes(100_000))
    ends.stream.write([b"after the end"])
    assert await ends.receive_all() == (sent, True)
    ends.raw.close()
    await until(lambda: ends.owner.reported[-1] == "lost")
    assert ends.owner.data == b""


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_a_peer_that_ended_first_gets_what_is_buffered_and_a_goodbye(ends, says_goodbye):
    sent = bytes(1_000_000)
    ends.stream.write([sent])
    if says_goodbye:
        ends.goodbye()
    else:
        ends.raw.shutdown(socket.SHUT_WR)
    await until(lambda: "eof" in ends.owner.reported)
    ends.stream.close()
    assert await ends.receive_all() == (sent, True)
    await until(lambda: ends.owner.reported[-1] == "lost")


async def test_a_client_that_is_gone_is_noticed_though_it_is_not_read(ends):
    ends.stream.pause_reading()
    ends.send(b"unread")
    ends.reset()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])


async def test_a_peer_that_goes_while_bytes_wait_is_noticed(ends):
    ends.stream.pause_reading()
    while "full" not in ends.owner.reported:
        ends.stream.write([bytes(32 * 1024)])
    ends.reset()
    await until(lambda: ends.owner.reported[-1].endswith("Error"))
    assert len(ends.owner.reported) == 2


async def test_an_abort_drops_everything_at_once(ends):
    ends.stream.write([bytes(4_000_000)])
    ends.stream.abort()
    assert ends.owner.reported[-1] == "lost"
    data, goodbye = await ends.receive_all()
    assert len(data) < 4_000_000
    assert not goodbye


async def test_both_directions_at_once_under_all_sizes(ends):
    """A storm of writes, pauses and reads: what arrives is what was sent."""
    rng = random.Random(6)
    down = rng.randbytes(3_000_000)
    up = rng.randbytes(3_000_000)
    reading = asyncio.create_task(ends.receive_all())

    def send_up():
        at = 0
        while at < len(up):
            size = rng.choice((1, 100, 5_000, 70_000))
            ends.send(up[at : at + size])
            at += size

    sending = asyncio.create_task(asyncio.to_thread(send_up))
    at = 0
    pieces = random.Random(7)
    while at < len(down):
        size = pieces.choice((1, 300, 20_000, 300_000))
        ends.stream.write([down[at : at + size // 2], down[at + size // 2 : at + size]])
        at += size
        ends.owner.room = pieces.choice((1, 512, 20_000, 256 * 1024))
        pieces.choice((ends.stream.pause_reading, ends.stream.resume_reading))()
        await asyncio.sleep(0)
    ends.owner.room = 256 * 1024
    ends.stream.resume_reading()
    await sending
    await until(lambda: len(ends.owner.data) == len(up))
    ends.stream.close()
    assert ends.owner.data == up
    assert await reading == (down, True)


async def test_a_peer_that_reads_a_little_is_seen_to_read(contexts):
    """Though the kernel tells of room only when much of its buffer is free, and a record is one piece."""
    ends = Ends(contexts)
    ends.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while "full" not in ends.owner.reported:
        ends.stream.write([bytes(16 * 1024)])
    await asyncio.sleep(0.05)  # what is under way comes to rest
    written, taken = ends.stream.written_late_bytes, ends.stream.taken_bytes
    got = 0
    async with asyncio.timeout(TIMEOUT_S):
        while ends.stream.taken_bytes == taken:
            got += len(ends.raw.recv(1000))
            await asyncio.sleep(0.001)
    assert got < 1_000_000
    assert written <= ends.stream.written_late_bytes
    ends.close()
    assert isinstance(ends.stream.taken_bytes, int)


async def test_a_node_that_is_gone_is_not_tried_again_and_again_while_a_cap_has_it_wait(contexts):
    """What is encrypted can go nowhere, and reading, which would find the end, waits for its turn."""
    of_all = cap(1)
    ends = Ends(contexts, side=Side.NODE, caps=(of_all,))
    for _ in range(20):  # the buffers of both systems fill up
        while ends.stream.unsent_bytes <= HIGH_WATER_BYTES:
            ends.stream.write([bytes(16 * 1024)])
        await asyncio.sleep(0.002)
    of_all.reserve(1_000, now_ms())
    ends.send(b"abc")
    await until(lambda: of_all.waiting == 1)
    ends.reset()
    await until(lambda: ends.stream._fault is not None)
    calls = []
    ends.stream._tls.flush = lambda: calls.append(1)
    for _ in range(100):
        await asyncio.sleep(0)
        ends.poller._serve()
    assert calls == []
    reported = len(ends.owner.reported)
    of_all.set_limit(None, now_ms())  # its turn has come
    await until(lambda: len(ends.owner.reported) > reported)
    ends.close()
