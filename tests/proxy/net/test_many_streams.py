"""Many streams of one poller that read, write, pause and end in each other's callbacks: bytes come once, in order."""

import asyncio
import contextlib
import random
import socket

import pytest

from kafka_throttle.proxy.net.stream import Stream, StreamSettings
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.side import Side

WRITTEN = (0, 1, 30, 700, 9_000, 30_000)
SENT = (1, 50, 511, 512, 513, 4_095, 4_096, 4_097, 9_000)
"""Around the sizes up to which the poller reads ahead."""

MOST_STREAMS, DEEPEST, STEPS, SETTLED = 40, 3, 60, 20


class End:
    """A stream with its peer, and what each side has given and got."""

    def __init__(self, world):
        self.world, self.random = world, world.random
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        for sock in (ours, self.peer):
            sock.setblocking(False)
        if self.random.random() < 0.5:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self.written, self.came_to_peer, self.sent, self.came = (bytearray() for _ in range(4))
        self.closing = self.lost_ = self.peer_closed = False
        side = self.random.choice(list(Side))
        self.stream = Stream(StreamSettings(world.poller, side, 20_000), ours, self)

    # What the stream calls.

    def bytes_came(self, side, data):
        assert not self.lost_
        assert self.stream._reading
        self.came += data
        self.world.act(self)

    def lost(self, side, error):
        assert not self.lost_
        self.lost_ = True
        self.world.act(self)

    def eof_came(self, side):
        self.world.act(self)

    writing_paused = writing_resumed = eof_came
    hears_client_out = False

    def read_bytes(self):
        return 65_536 if self.world.settles else self.random.choice((1, 100, 65_536))

    # What is done to the stream and by its peer.

    def act(self):
        chance = self.random.random()
        if chance < 0.6:
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self.write()
        elif chance < 0.75 and not self.lost_:
            self.stream.pause_reading()
        elif chance < 0.95 and not self.lost_:
            self.stream.resume_reading()
        elif chance > 0.96:
            self.closing = True
            self.random.choice((self.stream.close, self.stream.abort, self.stream.hang_up))()

    def write(self):
        sizes = self.random.choices(WRITTEN, k=self.random.choice((1, 1, 2, 4)))
        pieces = [bytes([self.random.randrange(256)]) * size for size in sizes]
        if not self.closing and not self.lost_:
            self.written += b"".join(pieces)
        self.stream.write(pieces)

    def let_peer_act(self):
        chance = self.random.random()
        with contextlib.suppress(OSError):
            if chance < 0.6:
                data = bytes([self.random.randrange(256)]) * self.random.choice(SENT)
                self.sent += data[: self.peer.send(data)]
            elif chance < 0.62:
                self.peer.shutdown(socket.SHUT_WR)
            elif chance < 0.63:
                self.peer_closed = True
                self.peer.close()
            if chance > 0.4:
                self.came_to_peer += self.peer.recv(self.random.choice((1, 1_000, 100_000)))

    def let_peer_read_all(self):
        with contextlib.suppress(OSError):
            while data := self.peer.recv(1 << 20):
                self.came_to_peer += data

    def check(self):
        assert self.written.startswith(self.came_to_peer)
        assert self.sent.startswith(self.came)

    def check_whole(self):
        """Nothing is left under way, unless somebody has ended the connection."""
        self.check()
        if not (self.lost_ or self.peer_closed or self.closing):
            assert len(self.came) == len(self.sent)
            assert len(self.came_to_peer) + self.stream.lost_bytes == len(self.written)


class World:
    """The streams of one poller."""

    def __init__(self, seed):
        self.random, self.poller = random.Random(seed), new_poller()
        self.settles, self._depth = False, 0
        self.ends = []
        self.add(self.random.choice((1, 3, 20)))

    def add(self, count):
        self.ends += [End(self) for _ in range(count)]

    def living(self):
        return [end for end in self.ends if not end.lost_]

    def act(self, end):
        """Do something to the stream that has called, and to others."""
        if self.settles or self._depth > DEEPEST:
            return
        self._depth += 1
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3))):
            living = self.living()
            (self.random.choice(living) if living and self.random.random() < 0.5 else end).act()
            if len(living) < MOST_STREAMS and self.random.random() < 0.02:
                self.add(1)
        self._depth -= 1

    async def step(self):
        self.poller._serve()
        await asyncio.sleep(0)

    async def run(self):
        for _ in range(STEPS):
            for end in self.living():
                end.let_peer_act()
            await self.step()
            if living := self.living():
                self.act(self.random.choice(living))
            for end in self.ends:
                end.check()

    async def settle(self):
        """Everybody reads until nothing comes any more."""
        self.settles = True
        for end in self.living():
            end.stream.resume_reading()
        before, quiet = None, 0
        while quiet < SETTLED:
            for end in self.living():
                end.let_peer_read_all()
            await self.step()
            now = [(len(end.came_to_peer), len(end.came)) for end in self.ends]
            quiet = quiet + 1 if now == before else 0
            before = now
            if quiet:
                await asyncio.sleep(0.01)

    def close(self):
        for end in self.ends:
            end.stream.abort()
            end.peer.close()
        asyncio.get_running_loop().remove_reader(self.poller._epoll.fileno())
        self.poller._epoll.close()


@pytest.mark.rule("nothing lost")
@pytest.mark.parametrize("seed", range(12))
async def test_each_byte_comes_once_and_in_order_whatever_streams_do_to_each_other(seed):
    world = World(seed)
    try:
        await world.run()
        await world.settle()
        for end in world.ends:
            end.check_whole()
    finally:
        world.close()
