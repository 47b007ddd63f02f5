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
from typing import Final

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

_SWEEP: Final = 256
"""How many sockets are served before timers and other work of the loop have their turn."""


_BATCH: Final = 32
"""After so many sockets of a sweep the pending writes go out, so that no response waits for the end of a long one."""

_MOST_AT_END: Final = 64
"""How many sockets may wait to be closed: fewer than there are spare descriptors."""

_NONE: Final = -1


class Poller:
    """Calls back with the epoll events of each descriptor, level-triggered."""

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

    def add(self, fd: int, events: int, on_ready: Callable[[int], None]) -> None:
        """Watch a descriptor; `on_ready(events)` must not raise."""
        if fd == self._handed_on:
            self._handed_on = _NONE
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = on_ready

    def change(self, fd: int, events: int) -> None:
        """Watch a descriptor for these events from now on."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def hand_on(self, sock: SocketType, receive: Callable[[SocketType], object]) -> None:
        """Stop watching a socket and give it to `receive`, which closes it or adds it again: this is one call less."""
        fd = sock.fileno()
        del self._handlers[fd]
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

    def at_end(self, call: Callable[[], object]) -> None:
        """Make a call when the sweep is over; at once if there is no sweep, or if many calls wait already.

        A socket that is closed then keeps its number as long as the sweep may still come to it.
        """
        if self.sweeps and len(self._at_end) < _MOST_AT_END:
            self._at_end.append(call)
        else:
            call()

    async def ready(self, fd: int, events: int) -> None:
        """Wait for one of these events on a descriptor that nothing else watches, or until it has failed."""
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
            if self._sample_in:
                self._sample_in -= 1
                if not self._sample_in:
                    self._sample_in = self._sample_every
                    self.sampled_us = self._now_us()
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
            self.sampled_us = 0
            if self._soon:
                _do_all(self._soon)
            if self._at_end:
                _do_all(self._at_end)


def _do_all(calls: deque[Callable[[], object]]) -> None:
    """Make all calls. One that fails does not affect the others."""
    while calls:
        call = calls.popleft()
        try:
            call()
        except Exception as error:
            context = {"message": f"exception at the end of a sweep, in {call!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
