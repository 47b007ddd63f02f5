"""Closes the connections of a process that ends."""

import asyncio
from collections.abc import Callable, Iterable

from proxy.relay.actions import CloseReason
from proxy.server.connection import Connection

_LOOK_S = 0.02


async def drain(
    connections: Callable[[], Iterable[Connection]],
    under_way: Callable[[], int],
    drain_s: float,
    end_asked: asyncio.Event,
) -> None:
    """Close idle connections, the oldest first, spread evenly over the time, so that reconnects are spread too.

    Ends when no connection is left, and none of those that are `under_way` can be opened; or when the time is over, or
    `end_asked` is set: then connections are closed that are not idle.
    """
    loop = asyncio.get_running_loop()
    begin, most = loop.time(), 0
    while loop.time() < begin + drain_s and not end_asked.is_set():
        waiting = sorted(connections(), key=lambda connection: connection.opened_ms)
        if not waiting and not under_way():
            break
        most = max(most, len(waiting))
        due = 1 + int((loop.time() - begin) / drain_s * most)
        for connection in waiting[: max(due - (most - len(waiting)), 0)]:
            connection.leave()
        await asyncio.sleep(_LOOK_S)
    for connection in list(connections()):
        connection.give_up(CloseReason.SHUTDOWN)
