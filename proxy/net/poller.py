"""One epoll set for all sockets that carry Kafka, served within the event loop.

uvloop sees a single descriptor, the set itself. All sockets that are ready are handled in one sweep, so the loop needs
no handle, callback and buffer for each socket.

What a sweep writes goes out in batches. Each write may have to wake a sleeping process, which costs more than the write
itself; when many writes follow each other, the first one also wakes the processes that wait for the others.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable
from socket import SocketType
from typing import Final, Protocol

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

SWEEP: Final = 256
"""How many sockets are served before timers and other work of the loop have their turn."""


BATCH: Final = 32
"""After so many sockets of a sweep the pending writes go out, so that no response waits for the end of a long one."""

_MOST_AT_END: Final = 64
"""How many sockets may wait to be closed: fewer than there are spare descriptors."""

_NONE: Final = -1

OnReady = Callable[[int], None]
OnBytes = Callable[[bytes | int], None]


class Writer(Protocol):
    """A stream whose small pieces wait for the end of the batch, in the list of its ticket."""

    def write_batch(self) -> None:
        """Write what waits, if it was not written since."""

    def keep_rest(self, sent: int) -> None:
        """The poller has sent so many bytes of what waits, or failed with -errno. Makes no call of others."""

    def rest_was_kept(self) -> None:
        """After `keep_rest` of all: calls of others may be made."""


Ticket = tuple[int, list[bytes | memoryview], Writer]
"""A descriptor, the pieces that wait, which may be none by then, and whose they are."""


class Poller:
    """Calls back with the epoll events of each descriptor, level-triggered."""

    reads_ahead = False
    """Whether streams get bytes with `on_bytes`, as far as they allow it with `set_ahead`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._handed_on = _NONE
        self._soon: deque[Callable[[], object]] = deque()
        self._at_end: deque[Callable[[], object]] = deque()
        self.sweeps = False
        """Whether a sweep is under way."""
        self.sampled_us = 0
        """When a sweep that is under way has found its sockets ready, if it is one of the sample; otherwise 0."""
        self._sample_every = 0
        self._sample_in = 0
        self._now_us: Callable[[], int] = lambda: 0
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._serve)

    def sample(self, every: int, now_us: Callable[[], int]) -> None:
        """Have `sampled_us` in one of `every` sweeps; 0: in none."""
        self._sample_every = self._sample_in = every
        self._now_us = now_us

    def add(self, fd: int, events: int, on_ready: OnReady, on_bytes: OnBytes | None = None) -> None:
        """Watch a descriptor; `on_ready(events)` must not raise, nor `on_bytes(bytes or errno)`."""
        self._register(fd, events)
        self._handlers[fd] = on_ready

    def _register(self, fd: int, events: int) -> None:
        if fd == self._handed_on:
            self._handed_on = _NONE
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)

    def set_ahead(self, fd: int, most_bytes: int) -> None:
        """Up to so many bytes of `fd` may be read ahead from now on; 0: none. No effect without `reads_ahead`."""

    def change(self, fd: int, events: int) -> None:
        """Watch a descriptor for these events from now on."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor."""
        self.forget(fd)
        self._epoll.unregister(fd)

    def hand_on(self, sock: SocketType, receive: Callable[[SocketType], object]) -> None:
        """Stop watching a socket and give it to `receive`, which closes it or adds it again: this is one call less."""
        fd = sock.fileno()
        self.forget(fd)
        self._handed_on = fd
        try:
            receive(sock)
        finally:
            self._handed_on = _NONE

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor that is closed next: the kernel then removes it from the set by itself."""
        del self._handlers[fd]

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call when the batch is over, or soon if there is no sweep.

        An exception of the call goes to the loop's exception handler, because other calls also wait for the end of the
        batch.
        """
        if self.sweeps:
            self._soon.append(call)
        else:
            asyncio.get_running_loop().call_soon(call)

    def write_later(self, ticket: Ticket) -> None:
        """Write what waits with the ticket when the batch is over. A sweep must be under way."""
        self._soon.append(ticket[2].write_batch)

    def at_end(self, call: Callable[[], object]) -> None:
        """Make a call when the sweep is over; at once if there is no sweep, or if many calls wait already.

        A socket that is closed then keeps its number as long as the sweep may still come to it. An exception of the
        call goes to the loop's exception handler.
        """
        if self.sweeps and len(self._at_end) < _MOST_AT_END:
            self._at_end.append(call)
        else:
            do_all(deque((call,)))

    async def ready(self, fd: int, events: int) -> None:
        """Wait for one of these events on a descriptor that nothing else watches, or until it has failed."""
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(fd, events, lambda _events: None if came.done() else came.set_result(None))
        try:
            await came
        finally:
            self.remove(fd)

    def _serve(self) -> None:
        self.sweeps = True
        try:
            self._serve_ready()
        finally:
            self.sweeps = False
            self.sampled_us = 0
            self._end_batch()
            if self._at_end:
                do_all(self._at_end)

    def _serve_ready(self) -> None:
        handler_of = self._handlers.get
        ready = self._epoll.poll(0, SWEEP)
        self._sample_some()
        while ready:
            for fd, events in ready[:BATCH]:
                on_ready = handler_of(fd)
                if on_ready is not None:
                    on_ready(events)
            del ready[:BATCH]
            if ready:
                self._end_batch()

    def _sample_some(self) -> None:
        if self._sample_in:
            self._sample_in -= 1
            if not self._sample_in:
                self._sample_in = self._sample_every
                self.sampled_us = self._now_us()

    def _end_batch(self) -> None:
        if self._soon:
            do_all(self._soon)


def do_all(calls: deque[Callable[[], object]]) -> None:
    """Make all calls. One that fails does not affect the others."""
    while calls:
        call = calls.popleft()
        try:
            call()
        except Exception as error:
            context = {"message": f"exception at the end of a sweep, in {call!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
