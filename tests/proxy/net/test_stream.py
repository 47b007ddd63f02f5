"""Streams on real sockets: reads, writes, full buffers, and the end of either side."""

import asyncio
import errno
import fcntl
import os
import socket
import struct

import pytest

from kafka_throttle.proxy.net.stream import Stream, StreamSettings
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.byte_caps import ByteCap, Turnstile
from kafka_throttle.quotas.fair_queue import Whose
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

HIGH_WATER_BYTES = 64 * 1024


def now_ms():
    return int(asyncio.get_running_loop().time() * 1000)


def cap(limit):
    made = ByteCap(lambda ms: asyncio.get_running_loop().call_later(ms / 1000, lambda: made.pump(now_ms())).cancel)
    made.set_limit(limit, now_ms())
    return made


class StreamListener:
    """Notes each call of the stream."""

    def __init__(self, room=256 * 1024):
        self.room = room
        self.data = bytearray()
        self.reads = []
        self.reported = []
        self.waits = 0
        self.turns_of = Whose()
        self.hears_client_out = False
        self.on_bytes = self.on_room = lambda: None

    def bytes_came(self, side, data):
        self.data += data
        self.reads.append(len(data))
        self.on_bytes()

    def eof_came(self, side):
        self.reported.append("eof")

    def lost(self, side, error):
        self.reported.append("lost" if error is None else type(error).__name__)

    def writing_paused(self, side):
        self.reported.append("full")

    def writing_resumed(self, side):
        self.reported.append("room")
        self.on_room()

    def read_bytes(self):
        return self.room

    def reading_waits(self, side):
        self.waits += 1

    def whose(self):
        return self.turns_of


class Ends:
    """A stream, its owner, and the peer's blocking socket."""

    def __init__(self, room=256 * 1024, side=Side.CLIENT, caps=(), pair=None):
        ours, self.peer = pair or self.tcp_pair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        self.owner = StreamListener(room)
        settings = StreamSettings(new_poller(), side, HIGH_WATER_BYTES, Turnstile(caps), now_ms)
        self.stream = Stream(settings, ours, self.owner)

    def tcp_pair(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname(), timeout=TIMEOUT_S)
            return server.accept()[0], peer

    async def receive_all(self):
        """What the peer reads to the end, in a thread."""

        def read():
            got = bytearray()
            while data := self.peer.recv(1 << 20):
                got += data
            return bytes(got)

        return await asyncio.to_thread(read)

    def reset(self):
        """The peer goes away without a goodbye."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


@pytest.fixture
async def ends():
    made = Ends()
    yield made
    made.stream.abort()
    made.peer.close()


async def test_what_the_peer_sends_is_read_and_then_its_end_reported_once(ends):
    ends.peer.sendall(b"abc")
    await until(lambda: ends.owner.data == b"abc")
    ends.peer.shutdown(socket.SHUT_WR)
    await until(lambda: ends.owner.reported)
    ends.stream.pause_reading()
    ends.stream.resume_reading()
    await asyncio.sleep(0.02)
    assert ends.owner.reported == ["eof"]


async def test_no_read_takes_more_than_the_owner_has_room_for():
    ends = Ends(room=512)
    ends.peer.sendall(bytes(2000))
    await until(lambda: len(ends.owner.data) == 2000)
    assert max(ends.owner.reads) <= 512
    ends.stream.abort()
    ends.peer.close()


@pytest.mark.parametrize("side", Side)
async def test_over_a_cap_reading_goes_on_in_turns_until_all_is_there(side):
    of_all = cap(200_000)
    ends = Ends(side=side, caps=(cap(1_000_000), of_all))
    began_s = asyncio.get_running_loop().time()
    ends.peer.sendall(bytes(60_000))
    ends.peer.shutdown(socket.SHUT_WR)
    await until(lambda: ends.owner.reported == ["eof"])
    assert len(ends.owner.data) == 60_000
    assert asyncio.get_running_loop().time() - began_s > 0.15
    assert max(ends.owner.reads) <= of_all.turn_bytes == 4000
    assert ends.owner.waits > 1  # fewer, and for longer, on a busy machine
    assert of_all.read_bytes == 60_000
    ends.stream.abort()
    ends.peer.close()


async def test_a_stream_that_is_paused_or_gone_when_its_turn_comes_reads_nothing():
    of_all = cap(1)
    paused, gone = Ends(caps=(of_all,)), Ends(caps=(of_all,))
    of_all.reserve(10_000, now_ms())
    for ends in (paused, gone):
        ends.peer.sendall(b"abc")
    await until(lambda: of_all.waiting == 2)
    paused.stream.pause_reading()
    gone.stream.abort()
    assert of_all.waiting == 1
    of_all.set_limit(None, now_ms())
    assert (paused.owner.data, gone.owner.data, of_all.waiting) == (b"", b"", 0)
    paused.stream.resume_reading()
    await until(lambda: paused.owner.data == b"abc")
    paused.stream.abort()
    for ends in (paused, gone):
        ends.peer.close()


async def test_a_client_that_is_gone_is_noticed_while_it_waits_for_a_cap():
    of_all = cap(1)
    ends = Ends(caps=(of_all,))
    of_all.reserve(10_000, now_ms())
    ends.peer.sendall(b"abc")
    await until(lambda: of_all.waiting == 1)
    ends.reset()
    await until(lambda: ends.owner.reported)
    assert ends.owner.reported == ["ConnectionResetError"]
    assert of_all.waiting == 0


async def test_streams_of_one_owner_wait_for_each_other_at_a_cap_and_those_of_another_owner_do_not():
    of_all, order = cap(10), []
    streams = [(owner, Ends(caps=(of_all,))) for owner in [*["tenant"] * 5, "small"]]
    of_all.reserve(10_000, now_ms())
    for waiting, (owner, ends) in enumerate(streams):
        ends.owner.turns_of = Whose(owner)
        ends.owner.on_bytes = lambda owner=owner: order.append(owner)
        ends.peer.sendall(bytes(of_all.turn_bytes))
        await until(lambda waiting=waiting: of_all.waiting > waiting)
    of_all.set_limit(100_000, now_ms())
    await until(lambda: len(order) == 6)
    assert order[:3].count("small") == 1
    for _, ends in streams:
        ends.stream.abort()
        ends.peer.close()


async def test_a_paused_stream_leaves_bytes_in_the_kernel(ends):
    ends.stream.pause_reading()
    ends.peer.sendall(b"later")
    await asyncio.sleep(0.02)
    assert ends.owner.data == b""
    ends.stream.resume_reading()
    await until(lambda: ends.owner.data == b"later")


async def test_what_a_paused_stream_leaves_is_unread(ends):
    ends.stream.pause_reading()
    assert not ends.stream.unread
    ends.peer.sendall(b"more")
    await asyncio.sleep(0.05)
    assert ends.stream.unread
    ends.stream.resume_reading()
    await until(lambda: ends.owner.data == b"more")
    assert not ends.stream.unread
    ends.stream.abort()
    assert not ends.stream.unread


@pytest.mark.rule("order")
async def test_pieces_arrive_in_order_however_little_the_kernel_takes(ends):
    sent = [bytes([number % 251]) * (number * 37 % 4000 + 1) for number in range(3000)]
    for start in range(0, 3000, 1500):
        ends.stream.write(sent[start : start + 1500])  # more than one system call may take
    ends.stream.close()
    assert await ends.receive_all() == b"".join(sent)


async def test_a_full_buffer_is_reported_and_so_is_room(ends):
    piece = bytes(32 * 1024)
    while "full" not in ends.owner.reported:
        ends.stream.write([piece])
    reading = asyncio.create_task(ends.receive_all())
    await until(lambda: ends.owner.reported == ["full", "room"])
    assert ends.stream.written_late_bytes > 0
    ends.stream.close()
    assert len(await reading) % len(piece) == 0


async def test_closing_writes_out_what_is_buffered_even_to_a_peer_that_still_sends(ends):
    sent = bytes(4_000_000)
    ends.stream.write([sent])
    ends.stream.close()
    ends.peer.sendall(bytes(100_000))
    ends.stream.write([b"after the end"])
    assert await ends.receive_all() == sent
    assert ends.owner.reported == ["full", "room"]
    ends.peer.close()
    await until(lambda: ends.owner.reported[-1] == "lost")
    assert ends.owner.data == b""


async def test_closing_a_paused_stream_whose_peer_has_ended_takes_no_further_word(ends):
    ends.stream.pause_reading()
    ends.peer.sendall(b"unread")
    ends.peer.shutdown(socket.SHUT_WR)
    ends.stream.close()
    await until(lambda: ends.owner.reported == ["lost"])


async def test_hanging_up_does_not_wait_and_the_peer_has_all_that_was_sent(ends):
    ends.stream.write([b"the last"])
    ends.stream.hang_up()
    assert ends.owner.reported == ["lost"]
    assert await ends.receive_all() == b"the last"
    ends.stream.hang_up()
    assert ends.owner.reported == ["lost"]


async def test_hanging_up_with_something_unsent_writes_that_out_first(ends):
    sent = bytes(4_000_000)
    ends.stream.write([sent])
    ends.stream.hang_up()
    assert await ends.receive_all() == sent
    assert ends.owner.reported == ["full", "room"]
    ends.peer.close()
    await until(lambda: ends.owner.reported[-1] == "lost")


async def test_an_abort_drops_everything_at_once(ends):
    ends.stream.write([bytes(4_000_000)])
    ends.stream.abort()
    assert ends.owner.reported[-1] == "lost"
    assert len(await ends.receive_all()) < 4_000_000


async def test_a_reset_is_reported_with_its_error(ends):
    ends.reset()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])


async def test_what_came_before_a_fault_in_writing_is_delivered(ends):
    ends.stream.pause_reading()
    ends.peer.sendall(b"last words")
    await asyncio.sleep(0.01)
    ends.stream.resume_reading()
    ends.reset()
    await asyncio.sleep(0.01)
    ends.stream.write([b"into the void"])
    ends.stream.write([b"into the void"])
    await until(lambda: ends.owner.reported)
    assert ends.owner.data == b"last words"
    assert len(ends.owner.reported) == 1


async def test_a_peer_that_goes_while_it_is_not_read_and_bytes_wait_is_noticed(ends):
    ends.stream.pause_reading()
    while "full" not in ends.owner.reported:
        ends.stream.write([bytes(32 * 1024)])
    ends.reset()
    await until(lambda: ends.owner.reported[-1].endswith("Error"))
    assert ends.owner.reported[0] == "full"
    assert len(ends.owner.reported) == 2


async def test_a_client_that_is_gone_is_noticed_though_it_is_not_read(ends):
    ends.stream.pause_reading()
    ends.peer.sendall(b"unread")
    ends.reset()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])


async def test_a_client_that_is_gone_and_is_heard_out_is_read_to_its_end_first(ends):
    ends.owner.hears_client_out = True
    ends.stream.pause_reading()
    ends.peer.sendall(b"last words")
    ends.reset()
    await asyncio.sleep(0.02)
    assert ends.owner.reported == []
    ends.stream.resume_reading()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])
    assert ends.owner.data == b"last words"


async def test_a_client_that_is_gone_is_noticed_when_it_is_heard_out_no_longer(ends):
    ends.owner.hears_client_out = True
    ends.stream.pause_reading()
    ends.peer.sendall(b"unread")
    ends.reset()
    await asyncio.sleep(0.02)
    ends.owner.hears_client_out = False
    ends.stream.notice_loss()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])
    assert ends.owner.data == b""


async def test_a_peer_that_has_ended_its_side_is_seen_though_it_is_not_read(ends):
    ends.stream.pause_reading()
    ends.peer.sendall(b"unread")
    assert not ends.stream.peer_ended
    ends.peer.shutdown(socket.SHUT_WR)
    await until(lambda: ends.stream.peer_ended)
    assert ends.owner.reported == []


async def test_bytes_that_a_node_sent_before_it_went_are_delivered_when_the_owner_reads():
    ends = Ends(side=Side.NODE)
    ends.stream.pause_reading()
    ends.peer.sendall(b"a response")
    await asyncio.sleep(0.02)
    ends.reset()
    await asyncio.sleep(0.02)
    assert ends.owner.reported == []
    ends.stream.resume_reading()
    await until(lambda: ends.owner.reported == ["ConnectionResetError"])
    assert ends.owner.data == b"a response"


async def test_an_owner_may_close_from_within_a_read(ends):
    ends.owner.on_bytes = ends.stream.close
    ends.peer.sendall(b"x")
    assert await ends.receive_all() == b""
    ends.peer.close()
    await until(lambda: ends.owner.reported == ["lost"])


async def test_an_owner_may_close_when_there_is_room_again_though_the_peer_has_ended(ends):
    ends.owner.on_room = ends.stream.close
    ends.peer.shutdown(socket.SHUT_WR)
    await until(lambda: ends.owner.reported == ["eof"])
    while "full" not in ends.owner.reported:
        ends.stream.write([bytes(32 * 1024)])
    await ends.receive_all()
    await until(lambda: ends.owner.reported == ["eof", "full", "room", "lost"])


class Swept:
    """A stream that is written to amid a sweep of its poller, when the peer's byte is read."""

    def __init__(self, ends):
        self.ends = ends

    async def does(self, what):
        self.ends.owner.on_bytes = what
        self.ends.peer.sendall(b"!")
        await until(lambda: self.ends.owner.data)


async def test_what_is_written_amid_a_sweep_goes_out_in_one_piece_and_in_order():
    ends = Ends(pair=socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))  # what one call writes comes as one

    def write():
        for number in range(3):
            ends.stream.write([b"%d" % number, b"x"])
        with pytest.raises(BlockingIOError):
            ends.peer.recv(100, socket.MSG_DONTWAIT)

    await Swept(ends).does(write)
    assert ends.peer.recv(100) == b"0x1x2x"
    ends.stream.abort()
    ends.peer.close()


@pytest.mark.parametrize("end", ["close", "hang_up", "abort"])
async def test_what_was_written_amid_a_sweep_is_there_before_the_end(ends, end):
    def write_and_end():
        ends.stream.write([b"last words"])
        getattr(ends.stream, end)()

    await Swept(ends).does(write_and_end)
    assert await ends.receive_all() == b"last words"
    assert ends.stream.lost_bytes == 0


async def test_more_than_the_kernel_takes_amid_a_sweep_is_buffered_and_reported(ends):
    data = bytes(4 << 20)
    await Swept(ends).does(lambda: ends.stream.write([data]))
    await until(lambda: ends.owner.reported == ["full"])
    reader = asyncio.create_task(ends.receive_all())
    await until(lambda: ends.owner.reported == ["full", "room"])
    ends.stream.close()
    assert len(await reader) == len(data)


async def test_what_was_written_amid_a_sweep_to_a_peer_that_is_gone_counts_as_lost(ends):
    def write():
        ends.reset()
        ends.stream.write([b"12345"])
        ends.stream.write([b"67"])

    await Swept(ends).does(write)
    await until(lambda: ends.owner.reported)
    assert ends.stream.lost_bytes == 7


async def test_what_is_large_is_written_at_once_amid_a_sweep_behind_what_waits_there(ends):
    large = bytes(9 * 1024)
    there = []

    def write():
        ends.stream.write([b"small"])
        ends.stream.write([large])
        there.append(ends.peer.recv(100_000, socket.MSG_DONTWAIT))

    await Swept(ends).does(write)
    assert there == [b"small" + large]


async def test_a_stream_whose_socket_somebody_else_has_closed_is_lost_when_it_is_aborted():
    ours, peer = socket.socketpair()
    number = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 500)  # a low one would soon be that of a file of another thread
    ours.close()
    ends = Ends(pair=(socket.socket(fileno=number), peer))
    os.close(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        assert ends.stream.unread
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"].errno))
    ends.stream.abort()
    assert (ends.owner.reported, failures) == (["lost"], [errno.EBADF])
    peer.close()


async def test_the_owner_of_a_stream_whose_number_another_one_had_and_gave_back_is_told_of_its_end(ends):
    ends.stream._poller.forget(ends.stream._fd)
    with pytest.raises(KeyError):
        ends.stream.abort()
    assert ends.owner.reported == ["lost"]
