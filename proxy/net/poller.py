"""One epoll set for all sockets that carry Kafka, served within the event loop.

uvloop sees a single descriptor, the set itself: whatever is ready is then handled in one sweep, without a handle, a
callback and a buffer of the loop's own for each socket.

What a sweep has to write goes out in batches. Each write may have to wake a process that sleeps, which costs more than
the write; where many follow at once, the first one wakes whoever waits for the others, too.
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable
from socket import SocketType

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

_SWEEP = 256
"""How many sockets are served before timers and other work of the loop have their turn."""


_BATCH = 32
"""After so many sockets what is to be written goes out: nobody waits for his response until a long sweep is over."""

_MOST_AT_END = 64
"""So many sockets that are to be closed may wait for that: less than there are descriptors to spare."""

_NONE = -1


class Poller:
    """Calls back with the epoll events of a descriptor, level-triggered."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._handed_on = _NONE
        self._soon: deque[Callable[[], object]] = deque()
        self._at_end: deque[Callable[[], object]] = deque()
        self.sweeps = False
        """Whether it is calling back now."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._serve)

    def add(self, fd: int, events: int, on_ready: Callable[[int], None]) -> None:
        """Watch a descriptor; `on_ready(events)` must not raise."""
        if fd == self._handed_on:
            self._handed_on = _NONE
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = on_ready

    def change(self, fd: int, events: int) -> None:
        """Watch for these events from now on."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Watch a descriptor no longer."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def hand_on(self, sock: SocketType, receive: Callable[[SocketType], object]) -> None:
        """The same for a socket that `receive` closes, or adds anew: that is one call less."""
        fd = sock.fileno()
        del self._handlers[fd]
        self._handed_on = fd
        try:
            receive(sock)
        finally:
            self._handed_on = _NONE

    def forget(self, fd: int) -> None:
        """The same for a descriptor that is closed next: the kernel then drops it by itself."""
        del self._handlers[fd]

    def soon(self, call: Callable[[], object]) -> None:
        """Have something done when the batch is over, or soon if nothing is swept now.

        What it raises goes to the loop's exception handler: others, too, wait for the end of the batch.
        """
        if self.sweeps:
            self._soon.append(call)
        else:
            asyncio.get_running_loop().call_soon(call)

    def at_end(self, call: Callable[[], object]) -> None:
        """The same when the sweep is over, or now if there is none, or if many wait for that.

        A socket that is closed then keeps its number as long as the sweep may come upon it.
        """
        if self.sweeps and len(self._at_end) < _MOST_AT_END:
            self._at_end.append(call)
        else:
            call()

    async def writable(self, fd: int) -> None:
        """Wait until a descriptor that nobody watches takes bytes, or has failed."""
        await self.ready(fd, WRITABLE)

    async def ready(self, fd: int, events: int) -> None:
        """Wait for one of these events on a descriptor that nobody watches, or until it has failed."""
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(fd, events, lambda _events: None if came.done() else came.set_result(None))
        try:
            await came
        finally:
            self.remove(fd)

    def _serve(self) -> None:
        handler_of = self._handlers.get
        self.sweeps = True
        try:
            ready = self._epoll.poll(0, _SWEEP)
            while ready:
                for fd, events in ready[:_BATCH]:
                    on_ready = handler_of(fd)
                    if on_ready is not None:
                        on_ready(events)
                del ready[:_BATCH]
                if ready:
                    _do_all(self._soon)
        finally:
            self.sweeps = False
            if self._soon:
                _do_all(self._soon)
            if self._at_end:
                _do_all(self._at_end)


def _do_all(calls: deque[Callable[[], object]]) -> None:
    """One that fails harms nobody else of the sweep."""
    while calls:
        call = calls.popleft()
        try:
            call()
        except Exception as error:
            context = {"message": f"exception at the end of a sweep, in {call!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
