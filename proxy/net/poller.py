"""One epoll set for all sockets that carry Kafka, served within the event loop.

uvloop sees a single descriptor, the set itself: whatever is ready is then handled in one sweep, without a handle, a
callback and a buffer of the loop's own for each socket.
"""

import asyncio
import select
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

_SWEEP = 256
"""How many sockets are served before timers and other work of the loop have their turn."""


class Poller:
    """Calls back with the epoll events of a descriptor, level-triggered."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._serve)

    def add(self, fd: int, events: int, on_ready: Callable[[int], None]) -> None:
        """Watch a descriptor; `on_ready(events)` must not raise."""
        self._epoll.register(fd, events)
        self._handlers[fd] = on_ready

    def change(self, fd: int, events: int) -> None:
        """Watch for these events from now on."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Watch a descriptor no longer."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """The same for a descriptor that is closed next: the kernel then drops it by itself."""
        del self._handlers[fd]

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
        for fd, events in self._epoll.poll(0, _SWEEP):
            on_ready = handler_of(fd)
            if on_ready is not None:
                on_ready(events)
