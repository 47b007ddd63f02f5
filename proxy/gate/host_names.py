"""Resolves the host names that ip quotas are set on."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kafka_throttle.common.duties import Duty
from kafka_throttle.common.look_ups import look_up
from kafka_throttle.common.printable import printable
from kafka_throttle.quotas.entities import plain_ip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_ASK_AGAIN_S = 30.0
_TIMEOUT_S = 10.0
_AT_ONCE = 64
_LONGEST_WAIT_S = 0.2

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns all addresses of a host, in their plain spelling. Raises OSError if the host has none."""


async def resolve(host: str) -> tuple[str, ...]:
    """All addresses of a host by the system's resolver, in their plain spelling."""
    async with asyncio.timeout(_TIMEOUT_S):
        found = await look_up(host)
    return tuple(dict.fromkeys(plain_ip(str(address[0])) for _, address in found))


class HostNames:
    """Resolves a set of names at once, and again every 30 s. The last good response is used while a look-up fails.

    `changed` is called whenever `addresses` has changed.
    """

    def __init__(self, changed: Callable[[], None], log: "FilteringBoundLogger", resolve: Resolve = resolve) -> None:
        self.addresses: Mapping[str, tuple[str, ...]] = {}
        """The addresses of each name; a name that was never resolved is missing."""
        self._changed = changed
        self._log = log
        self._resolve = resolve
        self._names: frozenset[str] = frozenset()
        self._unknown: set[str] = set()
        self._duty = Duty("resolving names of hosts")
        self._task: asyncio.Task[None] | None = None

    def follow(self, names: Collection[str]) -> None:
        """Resolve these names, and no others, from now on."""
        wanted = frozenset(names)
        if wanted != self._names:
            self._names = wanted
            self.stop()
            self._task = asyncio.get_running_loop().create_task(self._duty.keep(self._keep_resolving))

    def stop(self) -> None:
        """Stop resolving."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _keep_resolving(self) -> None:
        while True:
            await self.resolve_all()
            await asyncio.sleep(_ASK_AGAIN_S)

    async def resolve_all(self) -> None:
        """Resolve each name once, at most 64 at a time. Results are applied every 0.2 s: slow names delay no others."""
        some = asyncio.Semaphore(_AT_ONCE)
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._addresses_of(name, some)): name for name in self._names}
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=_LONGEST_WAIT_S)
                self._take({tasks[task]: task.result() for task in done})
        finally:
            for task in waiting:
                task.cancel()

    def _take(self, found: Mapping[str, tuple[str, ...]]) -> None:
        together = {**self.addresses, **found}
        addresses = {name: known for name, known in together.items() if known and name in self._names}
        if addresses != self.addresses:
            self.addresses = addresses
            self._changed()

    async def _addresses_of(self, name: str, some: asyncio.Semaphore) -> tuple[str, ...]:
        async with some:
            try:
                found = await self._resolve(name)
            except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
                if name not in self._unknown and len(self._unknown) < len(self._names):
                    self._unknown.add(name)
                    self._log.warning("host_not_resolved", host=printable(name), problem=printable(str(error)))
                return self.addresses.get(name, ())
            except Exception as error:
                self._duty.failed(error)
                return self.addresses.get(name, ())
        self._unknown.discard(name)
        return found
