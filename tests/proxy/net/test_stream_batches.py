"""What a stream writes amid sweeps, whatever else happens to it there, against the same outside of them."""

import asyncio
import contextlib
import socket

import hypothesis.strategies as st
from hypothesis import example, given, settings

from kafka_throttle.proxy.net.poller import READABLE
from kafka_throttle.proxy.net.stream import Stream, StreamSettings
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.side import Side

HIGH_WATER_BYTES = 30_000
ROOM_BYTES = 8 * 1024

_SIZES = st.sampled_from([0, 1, 40, 700, 3_000, 40_000])
_END = st.sampled_from([None, *((what, None) for what in ("close", "hang_up", "abort", "peer_goes"))])
_WRITE = st.tuples(st.just("write"), st.lists(_SIZES, min_size=1, max_size=3))
_STEP = (
    _WRITE
    | st.tuples(st.just("peer_reads"), _SIZES)
    | st.tuples(st.just("peer_sends"), st.just(9))
    | st.tuples(st.sampled_from(["pause", "resume", "peer_ends"]), st.none())
)
_SWEEP = st.lists(_STEP, min_size=1, max_size=4)
_LAST_SWEEP = st.tuples(_SWEEP, _END, st.lists(_STEP, max_size=2))
_SWEEPS = st.tuples(st.lists(_SWEEP, max_size=3), _LAST_SWEEP)
_REPLY = st.none() | _WRITE | _END

_ENDED_A_SWEEP_EARLIER = [[("peer_sends", 9)], [("peer_sends", 9), ("peer_ends", None)]], ([("write", [1])], None, [])


class Run:
    """A stream, and its owner, which does one thing when the stream is full, and one when bytes have come."""

    def __init__(self, stack, side, when_full, when_bytes_come):
        ours, self.peer = (stack.enter_context(sock) for sock in socket.socketpair())
        for sock in (ours, self.peer):
            sock.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES)
        self.sock = ours
        self.ours, self.theirs = (stack.enter_context(sock) for sock in socket.socketpair())
        self.poller = new_poller()
        self.when_full, self.when_bytes_come = when_full, when_bytes_come
        self.written, self.received, self.sent, self.data = bytearray(), bytearray(), bytearray(), bytearray()
        self.reported = []
        self.peer_left = self.aborted = False
        self.stream = Stream(StreamSettings(self.poller, side, HIGH_WATER_BYTES), ours, self)

    # What the stream tells.

    hears_client_out = False

    def bytes_came(self, side, data):
        self.data += data
        self.do(self.when_bytes_come)

    def eof_came(self, side):
        self.reported.append("eof")

    def lost(self, side, error):
        assert "lost" not in self.reported
        self.reported.append("lost")

    def writing_paused(self, side):
        self.reported.append("full")
        self.do(self.when_full)

    def writing_resumed(self, side):
        self.reported.append("room")

    def read_bytes(self):
        return 64 * 1024

    # What is done with it.

    def do(self, step):
        if step is None or "lost" in self.reported:
            return
        what, value = step
        if what == "write":
            begin = len(self.written)
            pieces = [(begin + 7 * at).to_bytes(8, "big") * (size // 8 + 1) for at, size in enumerate(value)]
            pieces = [piece[:size] for piece, size in zip(pieces, value, strict=True)]
            self.written += b"".join(pieces)
            self.stream.write(pieces)
        elif what == "peer_reads":
            self.receive(value)
        elif what == "peer_sends":
            with contextlib.suppress(OSError):
                self.sent += b"s" * self.peer.send(b"s" * value)
        elif what == "peer_ends":
            with contextlib.suppress(OSError):
                self.peer.shutdown(socket.SHUT_WR)
        elif what == "peer_goes":
            self.peer_left = True
            self.peer.close()
        else:
            self.aborted |= what == "abort"
            stream = self.stream
            {
                "pause": stream.pause_reading,
                "resume": stream.resume_reading,
                "close": stream.close,
                "hang_up": stream.hang_up,
                "abort": stream.abort,
            }[what]()

    def receive(self, most_bytes):
        with contextlib.suppress(OSError):
            while most_bytes > 0 and (data := self.peer.recv(most_bytes)):
                self.received += data
                most_bytes -= len(data)

    def in_a_sweep(self, steps):
        def take(_events):
            self.ours.recv(1)
            for step in steps:
                self.do(step)

        self.theirs.send(b"x")
        self.poller.add(self.ours.fileno(), READABLE, take)
        self.poller._serve()
        self.poller.remove(self.ours.fileno())

    async def finish(self):
        """Both sides take all there is for them until nothing moves any more; then the stream is closed."""
        self.do(("resume", None))
        for _ in range(200):
            before = len(self.received), len(self.data), self.stream.unsent_bytes, list(self.reported)
            self.receive(1 << 20)
            self.poller._serve()
            await asyncio.sleep(0)
            if before == (len(self.received), len(self.data), self.stream.unsent_bytes, self.reported):
                break
        self.finished_unsent_bytes = self.stream.unsent_bytes
        self.do(("abort", None))
        self.receive(1 << 20)


async def run(sweeps, side, when_full, when_bytes_come, amid):
    with contextlib.ExitStack() as stack:
        made = Run(stack, side, when_full, when_bytes_come)
        for steps in sweeps:
            if amid:
                made.in_a_sweep(steps)
            else:
                for step in steps:
                    made.do(step)
                made.poller._serve()
            await asyncio.sleep(0)
        early_abort = made.aborted
        await made.finish()
        asyncio.get_running_loop().remove_reader(made.poller._epoll.fileno())
        made.aborted = early_abort
        assert made.sock.fileno() == -1
        assert made.poller._handlers == {}
        assert not made.poller._soon
        assert not made.stream._to_send
        assert made.written.startswith(made.received)
        assert made.sent.startswith(made.data)
        accounted = len(made.received) + made.stream.lost_bytes
        assert accounted <= len(made.written) if made.peer_left else accounted == len(made.written)
        pauses = [what for what in made.reported if what in ("full", "room")]
        assert pauses == (["full", "room"] * len(pauses))[: len(pauses)]
        return made


@settings(max_examples=200)
@example(([], ([("write", [40])], ("close", None), [("write", [1])])), Side.CLIENT, None, None)
@example(([], ([("write", [40])], ("hang_up", None), [])), Side.NODE, None, None)
@example(([[("write", [40_000])]], ([("peer_reads", 40_000), ("write", [9])], None, [])), Side.CLIENT, None, None)
@example(_ENDED_A_SWEEP_EARLIER, Side.CLIENT, None, ("close", None))
@example(([], ([("peer_sends", 9)], None, [("write", [40_000])])), Side.CLIENT, None, ("abort", None))
@given(_SWEEPS, st.sampled_from(Side), _REPLY, _REPLY)
def test_what_is_written_amid_sweeps_comes_as_if_it_were_not(sweeps, side, when_full, when_bytes_come):
    first, (steps, end, more_steps) = sweeps
    last = [*steps, *([end] if end else []), *more_steps]
    with asyncio.Runner() as runner:
        amid, outside = (
            runner.run(run([*first, last], side, when_full, when_bytes_come, amid)) for amid in (True, False)
        )
    assert amid.reported.count("lost") == outside.reported.count("lost") == 1
    if when_full is None and not (amid.aborted or outside.aborted or amid.peer_left):
        assert amid.received == outside.received
        # Nothing is written any more where the socket is closed, and that may be a sweep earlier.
        more_written = len(amid.written) - len(outside.written)
        assert amid.stream.lost_bytes - outside.stream.lost_bytes == more_written
