"""The addresses of host names. Each look-up has its own thread, so that a slow one delays no other."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeAlias, TypeVar, cast

from kafka_throttle.common.bounded import Bounded

Result = TypeVar("Result")

Found: TypeAlias = tuple[int, tuple[Any, ...]]
"""An address family, and the address with its port as sockets of that family take it."""

LookUp: TypeAlias = Callable[[str], Awaitable[Sequence[Found]]]
"""Returns all addresses of a host, with port 0. Raises OSError if it has none."""

_FRESH_US = 5_000_000
_KEPT_US = 300_000_000
"""How long a response is used while there is no newer one."""
_LONGEST_WAIT_S = 1.0
"""How long the next response is waited for if there is an older one."""
_MOST_AT_ONCE = 128
_MOST_KEPT = 10_000


async def in_daemon_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, from a thread that does not delay the end of this process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(cast(Result, result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await future


async def look_up(host: str) -> Sequence[Found]:
    """The addresses from the system's resolver; address families alternate. Raises OSError.

    An IP address in place of a name needs no thread.
    """
    try:
        found = _asked(host, socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await in_daemon_thread(partial(_asked, host, 0))
    return _in_turn(found)


def _asked(host: str, flags: int) -> Sequence[Found]:
    if "\0" in host:  # the resolver would not see what follows
        raise OSError(None, "there is a zero byte in the name")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # a name that IDNA refuses
        raise OSError(None, str(error)) from None
    return [(family, where) for family, *_, where in found]


def _in_turn(found: Sequence[Found]) -> list[Found]:
    """The same addresses, alternating between the family of the first one and the other (RFC 8305, section 4)."""
    ours = [each for each in found if each[0] == found[0][0]]
    others = [each for each in found if each[0] != found[0][0]]
    return [each for each in chain.from_iterable(zip_longest(ours, others)) if each is not None]


def at_port(found: Found, port: int) -> Found:
    """The same address, with a port."""
    family, where = found
    return family, (where[0], port, *where[2:])


class LookUps:
    """Looks up names, each once at a time, and caches the responses for a moment.

    An older response is used for five minutes if a look-up fails, or takes longer than a second.
    """

    def __init__(self, now_us: Callable[[], int], look_up: LookUp = look_up) -> None:
        self._now_us = now_us
        self._look_up = look_up
        self._known: Bounded[str, tuple[Sequence[Found], int]] = Bounded(_MOST_KEPT)
        """The latest response for each host, and when it came."""
        self._asked: dict[str, asyncio.Task[Sequence[Found] | OSError]] = {}
        self._free = asyncio.Semaphore(_MOST_AT_ONCE)

    def fresh(self, host: str) -> Sequence[Found]:
        """The addresses of a host that are still fresh; none if the response is older."""
        found, came_us = self._known.get(host, ((), 0))
        return found if self._now_us() - came_us < _FRESH_US else ()

    def penalty(self, host: str) -> None:
        """Note that the known addresses of a host did not work: it is looked up again before they are used."""
        if host in self._known:
            found, came_us = self._known[host]
            self._known[host] = found, min(came_us, self._now_us() - _FRESH_US)

    async def of(self, host: str) -> Sequence[Found]:
        """The addresses of a host, with port 0. Raises OSError."""
        if fresh := self.fresh(host):
            return fresh
        task = self._asked.get(host)
        if task is None:
            task = self._asked[host] = asyncio.get_running_loop().create_task(self._ask(host))
        older, came_us = self._known.get(host, ((), 0))
        if self._now_us() - came_us > _KEPT_US:
            older = ()
        await asyncio.wait((task,), timeout=_LONGEST_WAIT_S if older else None)
        response = task.result() if task.done() else older
        if isinstance(response, OSError):
            if not older:
                raise response
            return older
        return response

    async def _ask(self, host: str) -> Sequence[Found] | OSError:
        try:
            async with self._free:
                found = await self._look_up(host)
        except OSError as error:
            return error
        else:
            self._known[host] = found, self._now_us()
            return found
        finally:
            del self._asked[host]
