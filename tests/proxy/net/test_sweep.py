"""What the poller has read ahead in C, and what it writes in one call, whatever happens to the streams meanwhile."""

import asyncio
import contextlib
import importlib
import os
import socket
import struct
from collections import deque

import pytest

from kafka_throttle.proxy.net import poller as module
from kafka_throttle.proxy.net.poller import READABLE
from kafka_throttle.proxy.net.stream import Stream, StreamSettings
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.byte_caps import ByteCap, Turnstile
from kafka_throttle.quotas.fair_queue import Whose

pytestmark = pytest.mark.swept


class Owner:
    """Notes what comes, and does what it is told to do when bytes come."""

    def __init__(self):
        self.reads, self.reported = [], []
        self.on_bytes = self.on_pause = lambda: None

    def bytes_came(self, side, data):
        self.reads.append(data)
        self.on_bytes()

    def eof_came(self, side):
        self.reported.append("eof")

    def lost(self, side, error):
        self.reported.append("lost" if error is None else type(error).__name__)

    def writing_paused(self, side):
        self.reported.append("full")
        self.on_pause()

    def writing_resumed(self, side):
        self.reported.append("room")

    hears_client_out = False

    def read_bytes(self):
        return 256 * 1024

    def reading_waits(self, side):
        self.reported.append("waits")

    def whose(self):
        return Whose()


class Net:
    """Streams of one poller; they are ready in the order in which their peers have sent."""

    def __init__(self, stack):
        self.poller, self.stack = new_poller(), stack

    def stream(self, side=Side.CLIENT, turnstile=None):
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = self.stack.enter_context(socket.create_connection(server.getsockname(), timeout=5))
            ours, _ = server.accept()
        ours.setblocking(False)
        return self.stream_on(ours, peer, side, turnstile)

    def stream_on(self, ours, peer, side=Side.CLIENT, turnstile=None, high_water_bytes=64 * 1024):
        owner = Owner()
        settings = StreamSettings(self.poller, side, high_water_bytes, turnstile or Turnstile(), lambda: 0)
        stream = Stream(settings, ours, owner)
        self.stack.callback(stream.abort)
        return stream, owner, peer

    def serve(self):
        self.poller._serve()


@pytest.fixture
async def net():
    with contextlib.ExitStack() as stack:
        yield Net(stack)


def pair(net):
    """Ours, with a small buffer and non-blocking, and its peer's."""
    ours, theirs = (net.stack.enter_context(sock) for sock in socket.socketpair())
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024)
    theirs.settimeout(5)
    return ours, theirs


def two(net, side=Side.CLIENT):
    """Two streams that are ready in one batch, and what the first of them does is chosen by the test."""
    (_, first, peer), second = net.stream(), net.stream(side)
    peer.send(b"1")
    second[2].send(b"2")
    return first, *second


async def test_what_a_paused_stream_has_read_ahead_comes_first_when_it_reads_again(net):
    first, stream, owner, peer = two(net)
    first.on_bytes = stream.pause_reading
    net.serve()
    assert owner.reads == []
    assert stream.unread
    peer.send(b"3")
    net.serve()
    net.serve()
    assert owner.reads == []
    stream.resume_reading()
    assert owner.reads == []  # not amid what the owner does
    await asyncio.sleep(0.01)
    net.serve()
    assert owner.reads == [b"2", b"3"]


async def test_what_came_before_is_delivered_first_also_if_the_poller_is_sooner(net):
    first, stream, owner, peer = two(net, Side.NODE)
    first.on_bytes = stream.pause_reading
    net.serve()
    peer.send(b"3")
    stream.resume_reading()
    net.serve()
    net.serve()
    await asyncio.sleep(0)
    assert owner.reads == [b"2", b"3"]


async def test_a_client_is_read_ahead_no_further_than_if_it_were_muted(net):
    first, stream, owner, peer = two(net)
    peer.send(bytes(3000))
    first.on_bytes = stream.pause_reading
    net.serve()
    assert len(stream._ahead) == 512
    stream.resume_reading()
    await asyncio.sleep(0.01)
    net.serve()
    assert b"".join(owner.reads) == b"2" + bytes(3000)


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_nothing_is_delivered_after_the_end(net, end):
    first, stream, owner, peer = two(net)
    first.on_bytes = getattr(stream, end)
    net.serve()
    await asyncio.sleep(0.01)
    peer.close()
    net.serve()
    assert owner.reads == []
    assert owner.reported == ["lost"]


async def test_the_end_of_a_peer_and_its_reset_are_reported_though_they_were_read_ahead(net):
    _first, _stream, owner, peer = two(net)
    _, reset, gone = net.stream(Side.NODE)
    net.serve()
    peer.shutdown(socket.SHUT_WR)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    net.serve()
    net.serve()
    assert owner.reported == ["eof"]
    assert reset.reported == ["ConnectionResetError"]


async def test_an_end_that_was_read_ahead_of_a_pause_is_reported_after_it(net):
    (_, first, other), (stream, owner, peer) = net.stream(), net.stream(Side.NODE)
    other.send(b"1")
    peer.shutdown(socket.SHUT_WR)
    stream._on_bytes(b"x")
    first.on_bytes = stream.pause_reading
    net.serve()
    net.serve()
    assert owner.reported == []
    stream.resume_reading()
    await asyncio.sleep(0.01)
    net.serve()
    assert owner.reported == ["eof"]


async def test_a_number_that_is_used_again_within_a_batch_gets_nothing_of_the_former(net, monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_END", 0)  # sockets are closed at once
    first, stream, owner, _ = two(net)
    made = []

    def replace():
        stream.abort()
        new, new_owner, new_peer = net.stream()
        made.append((new, new_owner, new_peer))

    first.on_bytes = replace
    net.serve()
    [(_, new_owner, new_peer)] = made
    assert new_owner.reads == owner.reads == []
    new_peer.send(b"new")
    net.serve()
    assert new_owner.reads == [b"new"]


async def test_a_stream_that_is_capped_from_now_on_has_what_was_read_ahead_counted(net):
    cap = ByteCap(lambda ms: lambda: None)
    turnstile = Turnstile((cap,))
    _stream, owner, peer = net.stream(turnstile=turnstile)
    cap.set_limit(1_000_000, 0)
    turnstile.take_up()
    peer.send(bytes(300))
    net.serve()
    assert [len(read) for read in owner.reads] == [300]
    peer.send(bytes(200))
    net.serve()
    assert [len(read) for read in owner.reads] == [300, 200]


async def test_others_of_the_batch_get_their_bytes_though_one_fails(net):
    first, _, owner, _ = two(net)

    def fail():
        raise RuntimeError("a bug")

    first.on_bytes = fail
    with pytest.raises(RuntimeError):
        net.serve()
    assert owner.reads == [b"2"]
    assert not net.poller.sweeps


async def test_large_pieces_come_whole_after_the_first_and_small_ones_are_read_ahead_again(net):
    stream, owner, peer = net.stream(Side.NODE)
    reads = []
    stream._recv_into = lambda view, room, take=stream._recv_into: reads.append(take(view, room)) or reads[-1]
    for _ in range(3):
        peer.send(bytes(6000))
        net.serve()
        net.serve()
    assert [len(read) for read in owner.reads] == [4096, 1904, 6000, 6000]
    assert reads == [1904, 6000, 6000]
    for _ in range(5):
        peer.send(b"small")
        net.serve()
    assert owner.reads[4:] == [b"small"] * 5
    assert reads[3:] == [5, 5]


async def test_all_pieces_come_in_order_however_many_there_are(net):
    stream, owner, peer = net.stream()
    pieces = [b"%d," % number for number in range(700)]
    owner.on_bytes = lambda: [stream.write([piece]) for piece in pieces]
    peer.send(b"x")
    net.serve()
    while stream.unsent_bytes:
        net.serve()
    assert peer.recv(10_000) == b"".join(pieces)


async def test_small_pieces_around_a_large_one_come_once(net):
    stream, owner, peer = net.stream()
    pieces = [b"small", bytes(9_000), b"small, too", bytes(9_000), b"last"]
    owner.on_bytes = lambda: [stream.write([piece]) for piece in pieces]
    peer.send(b"x")
    net.serve()
    assert peer.recv(40_000) == b"".join(pieces)


async def test_what_is_written_after_the_end_goes_to_nobody_who_has_the_number_by_then(net):
    stream, _, _ = net.stream()
    _, owner, peer = net.stream()
    ours, theirs = pair(net)
    stream.abort()
    os.dup2(ours.fileno(), stream._fd)
    owner.on_bytes = lambda: stream.write([b"not for you"])
    peer.send(b"x")
    net.serve()
    os.close(stream._fd)
    ours.close()
    assert theirs.recv(100) == b""
    assert stream.lost_bytes == 11


async def test_what_is_written_when_another_is_full_comes_behind_what_the_kernel_did_not_take(net):
    """Both cannot be sent whole in one call; the first of them, when it reports that, has the second write more."""
    (one, one_owner, _), (two, _, _) = (net.stream_on(*pair(net), high_water_bytes=100) for _ in range(2))
    for stream in (one, two):
        with contextlib.suppress(BlockingIOError):
            while True:
                stream._socket.send(bytes(65536))
    _, trigger_owner, trigger_peer = net.stream()
    trigger_owner.on_bytes = lambda: [stream.write([b"A" * 8000]) for stream in (one, two)]
    one_owner.on_pause = lambda: two.write([b"after"])
    trigger_peer.send(b"x")
    net.serve()
    assert one_owner.reported == ["full"]
    assert b"".join(bytes(piece) for piece in two._unsent) == b"A" * 8000 + b"after"


async def test_a_watched_number_that_is_not_a_streams_is_called_as_before(net):
    ours, theirs = (net.stack.enter_context(sock) for sock in socket.socketpair())
    seen = []
    net.poller.add(ours.fileno(), READABLE, seen.append)
    theirs.send(b"x")
    net.serve()
    assert seen == [READABLE]
    net.poller.remove(ours.fileno())


# ---- the object in C by itself --------------------------------------------------------------------


@pytest.fixture
def sweep(net):
    return net.poller._sweep


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda sweep: sweep.add(-1, print, None), ValueError),
        (lambda sweep: sweep.add(2**70, print, None), ValueError),
        (lambda sweep: sweep.add(1, print), TypeError),
        (lambda sweep: sweep.add("1", print, None), TypeError),
        (lambda sweep: sweep.discard(4000), KeyError),
        (lambda sweep: sweep.discard(2**31 - 1), KeyError),
        (lambda sweep: sweep.set_ahead(4000, 1), KeyError),
        (lambda sweep: sweep.set_ahead(4000, 4097), ValueError),
        (lambda sweep: sweep.begin(0), ValueError),
        (lambda sweep: sweep.begin(257), ValueError),
        (lambda sweep: sweep.serve(65), ValueError),
        (lambda sweep: sweep.write([], ()), TypeError),
        (lambda sweep: sweep.write([(1, [b"x"])], []), TypeError),
        (lambda sweep: sweep.write([(1, (b"x",), None)], []), TypeError),
        (lambda sweep: sweep.write([("1", [b"x"], None)], []), TypeError),
        (lambda sweep: sweep.write([(1, ["text"], None)], []), TypeError),
    ],
)
async def test_what_is_no_descriptor_number_or_ticket_is_refused(sweep, call, error):
    with pytest.raises(error):
        call(sweep)


async def test_a_batch_within_a_batch_is_refused(net, sweep):
    ours, theirs = pair(net)
    refused = []

    def serve(_events):
        for call in (lambda: sweep.begin(1), lambda: sweep.serve(1)):
            with pytest.raises(RuntimeError) as raised:
                call()
            refused.append(str(raised.value))

    net.poller.add(ours.fileno(), READABLE, serve)
    theirs.send(b"x")
    net.serve()
    assert refused == ["a batch is under way"] * 2


async def test_a_failed_write_leaves_the_others_as_they_are_or_sent(net, sweep):
    (one, its_peer), (full, _), (other, _) = pair(net), pair(net), pair(net)
    socks, lists = [one, full, other, other], [[b"whole"], [bytes(100_000)], [b"1", 2], [b"later"]]
    tickets = [(sock.fileno(), pieces, n) for n, (sock, pieces) in enumerate(zip(socks, lists, strict=True))]
    rest = []
    with pytest.raises(TypeError):
        sweep.write(tickets, rest)
    assert its_peer.recv(100) == b"whole"
    [(writer, sent)] = rest
    assert writer == 1
    assert 0 < sent < 100_000
    assert lists == [[], [bytes(100_000)], [b"1", 2], [b"later"]]


async def test_more_pieces_than_go_into_one_call_are_a_rest(net, sweep):
    ours, peer = pair(net)
    pieces = [b"x"] * 300
    rest = []
    sweep.write([(ours.fileno(), pieces, "writer")], rest)
    assert rest == [("writer", 256)]
    assert peer.recv(1000) == b"x" * 256
    assert len(pieces) == 300


async def test_without_memory_nothing_is_sent_twice_and_nothing_is_left_out(net, sweep):
    """Each allocation of a write fails once: what was sent in part is noted, or its connection is shut down."""
    testcapi = importlib.import_module("_testcapi")  # of Python's own tests; its type stubs have it not
    failed = 0
    for number in range(12):
        (one, its_peer), (full, peer_of_full) = pair(net), pair(net)
        lists = [[b"wh", b"ole"], [bytes(100_000)]]
        tickets, rest = [(one.fileno(), lists[0], "one"), (full.fileno(), lists[1], "full")], []
        testcapi.set_nomemory(number, number + 1)
        try:
            sweep.write(tickets, rest)
        except MemoryError:
            failed += 1
        finally:
            testcapi.remove_mem_hooks()
        its_peer.setblocking(False)
        assert (its_peer.recv(100), lists[0]) == (b"whole", [])
        if rest:
            assert [writer for writer, _ in rest] == ["full"]
        else:
            while peer_of_full.recv(65536):
                pass  # to the end: it was shut down
        assert len(lists[1]) == 1
    assert failed


async def test_without_memory_bytes_that_were_read_are_delivered_or_the_connection_ends(net, sweep):
    testcapi = importlib.import_module("_testcapi")  # of Python's own tests; its type stubs have it not
    ended = 0
    for number in range(8):
        ours, peer = pair(net)
        came = deque()  # has room for one
        net.poller.add(ours.fileno(), READABLE, print, came.append)
        net.poller.set_ahead(ours.fileno(), 4096)
        peer.send(b"x" * 2000)
        assert sweep.begin(256)
        testcapi.set_nomemory(number, number + 1)
        try:
            sweep.serve(64)
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        net.poller.remove(ours.fileno())
        if not came:
            ended += 1
            assert peer.recv(1) == b""
    assert ended
