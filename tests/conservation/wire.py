"""A wire that breaks when told to: forwards TCP between addresses and knows where Kafka's frames begin.

`python -m tests.conservation.wire SEED ROUTE...` with routes as LINK=HOST:PORT=HOST:PORT (listen, connect to). Orders
come as JSON lines on stdin, each is answered by one on stdout: {"hit": N, ...}, N connections hit, 0 when none fitted.

    {"fault": "reset", "link": L, "way": W, "api": A, "fraction": F}
        Both ends get an RST when F (0 to below 1) of the next request with API key A has passed ("way": "requests"),
        or of the next response on a connection whose last request was such a one ("way": "answers").
    {"fault": "reset_all", "link": L}
        Both ends of all connections get an RST, wherever they are.
    {"fault": "half_broken", "link": L, "way": W, "seconds": S}
        Whom W's bytes go to gets an RST, who sends them hears nothing more, and S seconds later gets one too.
    {"fault": "half_closed", "link": L, "way": W, "seconds": S}
        Whom W's bytes go to gets a FIN as if the sender had shut down; what is left after S seconds is reset.
    {"fault": "stalled", "link": L, "way": W, "seconds": S}
        For S seconds W's bytes stay where they are, then they flow on.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

REQUESTS, RESPONSES = "requests", "answers"
OPPOSITE = {REQUESTS: RESPONSES, RESPONSES: REQUESTS}

_ARMED_S = 5.0
_LINGER_S = 0.02
"""Between the last bytes and the reset: an RST may overtake bytes that have not been read."""
_RESET = struct.pack("ii", 1, 0)
_START = struct.Struct(">ih")
"""A frame's size and, in a request, its API key."""


class Frame(NamedTuple):
    """A frame whose start is in a chunk: where in it (below 0: in an earlier one), bytes with the size, API key."""

    begin: int
    length: int
    api: int


class Frames:
    """Follows one direction of a connection through its frames."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def begun_in(self, chunk: bytes) -> Iterator[Frame]:
        """The frames of which the sixth byte is in the chunk."""
        at = min(self._left, len(chunk))
        self._left -= at
        while at < len(chunk):
            missing = _START.size - len(self._head)
            self._head += chunk[at : at + missing]
            at = min(at + missing, len(chunk))
            if len(self._head) < _START.size:
                return
            size, api = _START.unpack(self._head)
            self._head = b""
            yield Frame(at - _START.size, size + 4, api)
            self._left = max(size + 4 - _START.size, 0)
            passed = min(self._left, len(chunk) - at)
            self._left -= passed
            at += passed


class Cut(NamedTuple):
    """An armed reset; `done` gets what came of it."""

    way: str
    api: int
    fraction: float
    done: asyncio.Future[dict[str, Any]]


class End(asyncio.Protocol):
    """One of the two sockets of a connection; `way` is where the bytes go that it reads."""

    def __init__(self, connection: "Connection", way: str) -> None:
        self._connection = connection
        self.way = way
        self.transport: asyncio.Transport | None = None
        self.held: set[str] = set()

    def _begin(self) -> None:
        if self.held and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def hold(self, why: str) -> None:
        """Do not read until `release` of the last reason."""
        self.held.add(why)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self, why: str) -> None:
        """Take back a `hold`."""
        self.held.discard(why)
        if not self.held and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def reset(self) -> None:
        """RST, now."""
        if self.transport is not None and not self.transport.is_closing():
            with contextlib.suppress(OSError):
                sock: socket.socket = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Not at once: only newer CPythons than Debian's 3.11.2 obey it here, and what comes too early would be lost.
        asyncio.get_running_loop().call_soon(self._begin)

    def data_received(self, data: bytes) -> None:
        self._connection.pass_on(self.way, data)

    def eof_received(self) -> bool:
        self._connection.end(self.way)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.lose(self.way)

    def pause_writing(self) -> None:
        self._connection.ends[OPPOSITE[self.way]].hold("slow")

    def resume_writing(self) -> None:
        self._connection.ends[OPPOSITE[self.way]].release("slow")


class Connection:
    """A client's connection and the one that was made for it; `api` is the key of the last request."""

    def __init__(self, link: str, all_of_them: set["Connection"]) -> None:
        self.link = link
        self.api = -1
        self.cut: Cut | None = None
        self.ends = {way: End(self, way) for way in (REQUESTS, RESPONSES)}
        self._frames = {way: Frames() for way in (REQUESTS, RESPONSES)}
        self._before_cut: int | None = None
        self._silent = False
        self._ended: set[str] = set()
        self._all = all_of_them

    async def run(self, host: str, port: int) -> None:
        """Connect to the other side and let the bytes flow; reset the client if that cannot be."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.ends[RESPONSES], host, port)
        except OSError:
            self.reset()
            return
        client = self.ends[REQUESTS].transport
        if client is None or client.is_closing():
            self.reset()
            return
        self._all.add(self)
        self.ends[REQUESTS].release("connecting")

    def pass_on(self, way: str, data: bytes) -> None:
        """Bytes have come that go `way`."""
        if self._silent:
            return
        for frame in self._frames[way].begun_in(data):
            if way == REQUESTS:
                self.api = frame.api
            if self.cut is not None and self.cut.way == way and self.cut.api == self.api and self._before_cut is None:
                self._begin_cut(self.cut, frame)
        if self._before_cut is not None and self.cut is not None and self.cut.way == way:
            data, self._before_cut = data[: self._before_cut], self._before_cut - len(data)
            if self._before_cut <= 0:
                self._finish_cut(self.cut)
        self._write(way, data)

    def _begin_cut(self, cut: Cut, frame: Frame) -> None:
        passes = int(cut.fraction * frame.length)
        self._before_cut = max(0, frame.begin + passes)
        if not cut.done.done():
            cut.done.set_result({"hit": 1, "frame_bytes": frame.length, "passed_bytes": max(passes, -frame.begin)})

    def _finish_cut(self, cut: Cut) -> None:
        self._silent = True
        asyncio.get_running_loop().call_later(_LINGER_S, self.reset)

    def _write(self, way: str, data: bytes) -> None:
        transport = self.ends[OPPOSITE[way]].transport
        if data and transport is not None and not transport.is_closing():
            transport.write(data)

    def end(self, way: str) -> None:
        """No more bytes go `way`; when both ways have ended, so has the connection."""
        if way in self._ended or self._silent:
            return
        self._ended.add(way)
        receiver = self.ends[OPPOSITE[way]].transport
        if receiver is None:
            self.reset()
        elif not receiver.is_closing():
            try:
                receiver.write_eof()
            except OSError:
                self.reset()  # it has been reset, and we have not heard of it yet
        if len(self._ended) == 2:
            for one in self.ends.values():
                if one.transport is not None:
                    one.transport.close()

    def lose(self, way: str) -> None:
        """The end whose bytes go `way` is gone."""
        self._all.discard(self)
        if self.cut is not None and not self.cut.done.done():
            self.cut.done.set_result({"hit": 0})
        if len(self._ended) < 2 and not self._silent:
            self.reset()

    def reset(self) -> None:
        """RST to both ends."""
        self._silent = True
        self._all.discard(self)
        for end in self.ends.values():
            end.reset()

    def break_half(self, way: str, seconds: float) -> None:
        """RST to whom the bytes go; who sends them is read, but nothing comes of it for some seconds."""
        self._silent = True
        self._all.discard(self)
        self.ends[OPPOSITE[way]].reset()
        asyncio.get_running_loop().call_later(seconds, self.reset)

    def close_half(self, way: str, seconds: float) -> None:
        """FIN to whom the bytes go."""
        self.ends[way].hold("closed")
        self.end(way)
        asyncio.get_running_loop().call_later(seconds, self.reset)

    def stall(self, way: str, seconds: float) -> None:
        """Do not read the bytes that go `way` for some seconds."""
        self.ends[way].hold("stalled")
        asyncio.get_running_loop().call_later(seconds, self.ends[way].release, "stalled")


class Wire:
    """All connections, and the faults that befall them."""

    def __init__(self, seed: str) -> None:
        self.connections: set[Connection] = set()
        self._random = random.Random(seed)

    async def listen(self, link: str, listen: tuple[str, int], connect: tuple[str, int]) -> None:
        """Forward from one address to another."""
        loop = asyncio.get_running_loop()

        def accept() -> End:
            connection = Connection(link, self.connections)
            connection.ends[REQUESTS].hold("connecting")
            running.add(task := loop.create_task(connection.run(*connect)))
            task.add_done_callback(running.discard)
            return connection.ends[REQUESTS]

        running: set[asyncio.Task[None]] = set()
        await loop.create_server(accept, *listen)

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry one order out."""
        living = [connection for connection in self.connections if connection.link == order["link"]]
        if order["fault"] == "reset_all":
            for connection in living:
                connection.reset()
            return {"hit": len(living)}
        if order["fault"] == "reset":
            return await self._cut(living, order)
        busy = [connection for connection in living if connection.api in (0, 1)]
        if not busy:
            return {"hit": 0}
        chosen = self._random.choice(busy)
        act = {"half_broken": chosen.break_half, "half_closed": chosen.close_half, "stalled": chosen.stall}
        act[order["fault"]](order["way"], order["seconds"])
        return {"hit": 1}

    async def _cut(self, living: list[Connection], order: dict[str, Any]) -> dict[str, Any]:
        fitting = [connection for connection in living if connection.api == order["api"] and connection.cut is None]
        if not fitting:
            return {"hit": 0}
        chosen = self._random.choice(fitting)
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        chosen.cut = Cut(order["way"], order["api"], order["fraction"], done)
        try:
            return await asyncio.wait_for(done, _ARMED_S)
        except TimeoutError:
            chosen.cut = None
            return {"hit": 0}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _serve(seed: str, routes: list[str]) -> None:
    wire = Wire(seed)
    for route in routes:
        link, listen, connect = route.split("=")
        await wire.listen(link, _address(listen), _address(connect))
    print(json.dumps({"listening": True}), flush=True)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), os.fdopen(0, "rb"))
    while line := await orders.readline():
        print(json.dumps(await wire.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2:]))
