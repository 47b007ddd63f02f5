"""Time that jumps, and TCP connections in it: bytes in order, bounded buffers, cuts anywhere, ends of every kind."""

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Protocol

Callback = Callable[[], None]

READ_BYTES = 256 * 1024
"""The most that the proxy reads at once."""


class Events:
    """What is to happen, by time and then in the order in which it was planned. Times in ms."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.happened = 0
        self._waiting: list[tuple[int, int, list[Callback | None]]] = []
        self._asked = 0

    def at(self, at_ms: int, callback: Callback) -> list[Callback | None]:
        """Call back then; what is returned is for `cancel`."""
        handle: list[Callback | None] = [callback]
        self._asked += 1
        heappush(self._waiting, (max(at_ms, self.now_ms), self._asked, handle))
        return handle

    def soon(self, callback: Callback) -> None:
        """Call back when all is done that is due now."""
        self.at(self.now_ms, callback)

    @staticmethod
    def cancel(handle: list[Callback | None]) -> None:
        handle[0] = None

    @property
    def next_ms(self) -> int | None:
        """When the next thing is to happen."""
        while self._waiting and self._waiting[0][2][0] is None:
            heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def run(self, most: int) -> bool:
        """Let everything happen, at most so many things; whether nothing is left to happen."""
        while self._waiting and self.happened < most:
            at_ms, _, handle = heappop(self._waiting)
            callback = handle[0]
            if callback is not None:
                handle[0] = None
                self.now_ms = at_ms
                self.happened += 1
                callback()
        return not self._waiting


class Reader(Protocol):
    """The reader of a pipe."""

    def readable(self) -> None:
        """There are bytes, the end, or a break to be read."""


class Pipe:
    """One direction of a connection: what is on its way and what has arrived, together at most `capacity` bytes."""

    def __init__(self, events: Events, rng: Random, capacity: int, delay_ms: int, cuts: int) -> None:
        self.arrived = bytearray()
        self.ended = False
        self.broken = False
        self.reader: Reader | None = None
        self.on_room: Callback | None = None
        self.on_unread: Callback | None = None
        """Called when bytes come that will never be read: a kernel resets the connection then."""
        self._events = events
        self._rng = rng
        self._capacity = capacity
        self._delay_ms = delay_ms
        self._cuts = cuts
        self._on_way = 0
        self._last_ms = 0
        self._closed = False
        self._wanted = False
        self._held_until_ms = 0

    def hold(self, until_ms: int) -> None:
        """Let nothing arrive before."""
        self._held_until_ms = until_ms

    def write(self, data: memoryview) -> int:
        """Send as much of `data` as there is room for; `on_room` is called when there is more."""
        taken = min(len(data), max(self._capacity - len(self.arrived) - self._on_way, 0))
        if taken < len(data):
            self._wanted = True
        if not taken or self._closed:
            return taken
        self._on_way += taken
        for segment in self._segments(bytes(data[:taken])):
            self._last_ms = max(self._last_ms, self._arrival_ms())
            self._events.at(self._last_ms, partial(self._arrive, segment))
        return taken

    def _arrival_ms(self) -> int:
        delay_ms = self._rng.randrange(self._delay_ms + 1) if self._delay_ms else 0
        return max(self._events.now_ms + delay_ms, self._held_until_ms)

    def _segments(self, data: bytes) -> list[bytes]:
        """`data` in pieces, cut near its ends rather than in its middle."""
        if not self._cuts or len(data) < 2:
            return [data]
        rng, last = self._rng, len(data) - 1
        cuts = set()
        for _ in range(rng.randrange(self._cuts + 1)):
            kind = rng.random()
            if kind < 0.3:
                cuts.add(rng.randint(1, min(40, last)))
            elif kind < 0.5:
                cuts.add(rng.randint(max(last - 20, 1), last))
            else:
                cuts.add(rng.randint(1, last))
        places = [0, *sorted(cuts), len(data)]
        return [data[a:b] for a, b in pairwise(places)]

    def _arrive(self, segment: bytes) -> None:
        if self.broken:
            return
        self._on_way -= len(segment)
        if self.on_unread is not None:
            self.on_unread()
            return
        self.arrived += segment
        if self.reader is not None:
            self.reader.readable()

    def close(self) -> None:
        """Nothing comes behind what was written."""
        if not self._closed:
            self._closed = True
            self._last_ms = max(self._last_ms, self._arrival_ms())
            self._events.at(self._last_ms, self._end)

    def _end(self) -> None:
        self.ended = True
        if self.reader is not None and not self.broken:
            self.reader.readable()

    def break_(self) -> None:
        """What is on its way is lost; what has arrived can still be read."""
        if not self.broken:
            self.broken = True
            if self.reader is not None:
                self._events.soon(self.reader.readable)
            if self.on_room is not None:
                self._events.soon(self.on_room)

    def read(self, most: int) -> bytes:
        """At most so many of the bytes that have arrived."""
        data = bytes(self.arrived[:most])
        del self.arrived[:most]
        if self._wanted and data and self.on_room is not None:
            self._wanted = False
            self._events.soon(self.on_room)
        return data


class Link:
    """A TCP connection of the proxy: a pipe each way."""

    def __init__(self, events: Events, rng: Random, capacity: int, delay_ms: int, cuts: int) -> None:
        self.to_proxy = Pipe(events, rng, capacity, delay_ms, cuts)
        self.from_proxy = Pipe(events, rng, capacity, delay_ms, cuts)

    @property
    def broken(self) -> bool:
        return self.to_proxy.broken or self.from_proxy.broken

    def refuse(self) -> None:
        """Close the proxy's end, of which nothing was read. Bytes that come then cause a reset."""
        self.from_proxy.close()
        if self.to_proxy.arrived:
            self.reset()
        else:
            self.to_proxy.on_unread = self.reset

    def reset(self) -> None:
        """Neither side hears more of the other than that the connection is gone."""
        self.to_proxy.break_()
        self.from_proxy.break_()


class Endpoint:
    """The far end of a link: a client's or a node's socket, with as much memory for what is to be sent as it takes."""

    def __init__(
        self, events: Events, link: Link, on_data: Callable[[bytes], None], on_gone: Callable[[str], None]
    ) -> None:
        self.unsent = bytearray()
        self.closed = False
        self._events = events
        self._link = link
        self._on_data = on_data
        self._on_gone = on_gone
        self._stalled_until_ms = 0
        self._ending = False
        self._resetting = False
        self._gone = False
        link.from_proxy.reader = self
        link.to_proxy.on_room = self._flush

    def send(self, data: bytes) -> None:
        """Send, at once or when there is room."""
        self.unsent += data
        self._flush()

    def _flush(self) -> None:
        link = self._link
        if link.to_proxy.broken:
            self._lost("reset")
        elif self.unsent:
            with memoryview(self.unsent) as view:
                taken = link.to_proxy.write(view)
            del self.unsent[:taken]
        if self._resetting and not self.unsent:
            self._events.at(self._events.now_ms + 1, self.reset)
        elif self._ending and not self.unsent:
            link.to_proxy.close()

    def stall(self, ms: int) -> None:
        """Read nothing for so long."""
        self._stalled_until_ms = max(self._stalled_until_ms, self._events.now_ms + ms)
        self._events.at(self._stalled_until_ms, self.readable)

    def readable(self) -> None:
        """Read what is there."""
        pipe = self._link.from_proxy
        if self._gone or self.closed or self._events.now_ms < self._stalled_until_ms:
            return
        if pipe.arrived:
            self._on_data(pipe.read(len(pipe.arrived)))
        if self.closed or pipe.arrived:
            return
        if pipe.broken:
            self._lost("reset")
        elif pipe.ended:
            self._lost("end")

    def _lost(self, how: str) -> None:
        if not self._gone and not self.closed:
            self._gone = how == "reset"
            self._on_gone(how)

    def half_close(self) -> None:
        """Send no more than what was given to `send` so far."""
        self._ending = True
        self._flush()

    def close(self) -> None:
        """Neither send more nor read. Bytes that come after it cause a reset."""
        if not self.closed:
            self.half_close()
            self.closed = True
            if self._link.from_proxy.arrived:
                self._link.reset()
            else:
                self._link.from_proxy.on_unread = self._link.reset

    def reset_when_sent(self) -> None:
        """Break the connection off after what was given to `send`."""
        self._resetting = True
        self._flush()

    def reset(self) -> None:
        """Break the connection off."""
        self.closed = True
        self._link.reset()


class Observer(Protocol):
    """What is called when something happens to a stream."""

    def bytes_came(self, data: bytes) -> None: ...

    def eof_came(self) -> None: ...

    def lost(self, error: str) -> None: ...

    def writing_paused(self) -> None: ...

    def writing_resumed(self) -> None: ...

    def room(self) -> int:
        """For how many bytes the next read has room."""


class Stream:
    """The proxy's end of a link. It behaves as proxy/net/stream.py.

    A write goes out at once as far as the kernel takes it; what it does not take waits. Above `high` bytes of that
    the observer is called from within the write, and again when a quarter of `high` is left. Of a side that is not
    read, neither the end nor a break is noticed. A break that a write finds is reported once all that came before it
    was read. A closing stream ends its writing, and reads and drops what comes until the peer ends, too.
    """

    def __init__(self, events: Events, link: Link, high: int, observer: Observer) -> None:
        self.reading = True
        self.closed = False
        self.kept_bytes = 0
        self.late_bytes = 0
        """How many bytes had to wait and have gone out since."""
        self._kept: deque[memoryview] = deque()
        self._paused = False
        self._ended = False
        self._fault = ""
        self._closing = False
        self._events = events
        self._link = link
        self._high = high
        self._observer = observer
        link.to_proxy.reader = self
        link.from_proxy.on_room = self._flush
        if link.to_proxy.arrived or link.to_proxy.ended or link.to_proxy.broken:
            events.soon(self.readable)

    @property
    def peer_ended(self) -> bool:
        """Whether the peer has ended its side, though perhaps not all that it sent was read."""
        return self._link.to_proxy.ended

    # ----------------------------------------------------------------- reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self._ended:
            self.reading = True
            self._events.soon(self.readable)

    def readable(self) -> None:
        """Read once, and again later if there is more."""
        pipe = self._link.to_proxy
        if not self.reading or self.closed:
            return
        if pipe.arrived:
            data = pipe.read(self._observer.room())
            if not self._closing:
                self._observer.bytes_came(data)
            if pipe.arrived or pipe.ended or pipe.broken:
                self._events.soon(self.readable)
        elif pipe.broken:
            self._end("connection reset by peer")
        elif pipe.ended:
            if self._fault or (self._closing and not self._kept):
                self._end(self._fault)
                return
            self._ended = True
            self.reading = False
            if not self._closing:
                self._observer.eof_came()

    # ----------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        if self._fault or self.closed or self._closing:
            return
        rest = memoryview(data)
        if not self._kept:
            if self._link.from_proxy.broken:
                self._give_up_writing()
                return
            rest = rest[self._link.from_proxy.write(rest) :]
        if rest:
            self._kept.append(rest)
            self.kept_bytes += len(rest)
            if self.kept_bytes > self._high and not self._paused:
                self._paused = True
                self._observer.writing_paused()

    def _flush(self) -> None:
        if self.closed or self._fault:
            return
        if self._link.from_proxy.broken:
            if self._kept:
                self._give_up_writing()
            return
        while self._kept:
            taken = self._link.from_proxy.write(self._kept[0])
            self.kept_bytes -= taken
            self.late_bytes += taken
            if taken < len(self._kept[0]):
                self._kept[0] = self._kept[0][taken:]
                break
            self._kept.popleft()
        if self._paused and self.kept_bytes <= self._high // 4:
            self._paused = False
            self._observer.writing_resumed()
        if self._closing and not self._kept and not self.closed:
            self._end_writing()

    def _give_up_writing(self) -> None:
        self._fault = "broken pipe"
        self._kept.clear()
        self.kept_bytes = 0
        if self.reading:
            self._events.soon(self.readable)
        else:
            self._events.soon(lambda: self._end(self._fault))

    # ----------------------------------------------------------------- closing

    def close(self) -> None:
        """Write out what waits, then end the writing."""
        if not self._closing and not self.closed:
            self._closing = True
            if not self._kept:
                self._end_writing()

    def _end_writing(self) -> None:
        if self._ended or self._fault:
            self._end("")
            return
        self._link.from_proxy.close()
        self.resume_reading()

    def abort(self) -> None:
        """End at once; what waits is lost."""
        if self._kept:
            self._link.reset()
        self._end("")

    def _end(self, error: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.reading = False
        self._kept.clear()
        self.kept_bytes = 0
        self._link.from_proxy.close()
        if self._link.to_proxy.arrived:
            self._link.reset()
        else:
            self._link.to_proxy.on_unread = self._link.reset
        self._observer.lost(error)
