"""Memory and turns that all connections of a process share: for messages held whole, and for slow decisions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kafka_throttle.protocol.api_key import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from kafka_throttle.proxy.relay.actions import DecisionRequest
from kafka_throttle.proxy.relay.memory import SMALL_BYTES, Memory
from kafka_throttle.quotas.fair_queue import FairQueue, Whose

_DECIDED_BYTES: Final = 2 * 1024 * 1024
"""How many bytes of messages are decided about at the same time. A request about quotas or topics may take thirty times
its bytes of memory while it is decided about."""

_DESCRIPTION_BYTES: Final = _DECIDED_BYTES // 2
"""How many bytes a request for all quotas counts: it is small, but its response is not."""


class DecisionTurns:
    """Turns for decisions that take many steps and much memory: only a few are made at the same time.

    Entities take turns. Small messages do not wait.
    """

    def __init__(self) -> None:
        self._under_way_bytes = 0
        self._waiting: FairQueue[tuple[asyncio.Future[None], int]] = FairQueue()

    @asynccontextmanager
    async def turn(self, whose: Whose, ask: DecisionRequest) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of the block."""
        size_bytes = _size_of(ask)
        if self._waiting or not self._fits(size_bytes):
            await self._wait(whose, size_bytes)
        else:
            self._under_way_bytes += size_bytes
        try:
            yield
        finally:
            self._end(size_bytes)

    async def _wait(self, whose: Whose, size_bytes: int) -> None:
        if not size_bytes:
            return
        came = asyncio.get_running_loop().create_future()
        self._waiting.put((came, size_bytes), whose)
        try:
            await came
        except asyncio.CancelledError:
            if not self._waiting.remove((came, size_bytes), whose) and not came.cancelled():
                self._end(size_bytes)
            raise

    def _fits(self, size_bytes: int) -> bool:
        return not self._under_way_bytes or self._under_way_bytes + size_bytes <= _DECIDED_BYTES

    def _end(self, size_bytes: int) -> None:
        self._under_way_bytes -= size_bytes
        while self._waiting and self._under_way_bytes < _DECIDED_BYTES:
            came, wanted_bytes = self._waiting.take()
            if not came.done():
                self._under_way_bytes += wanted_bytes
                came.set_result(None)


def _size_of(ask: DecisionRequest) -> int:
    """How many bytes a decision counts; 0 for a small message."""
    if ask.api_key == DESCRIBE_CLIENT_QUOTAS:
        return _DESCRIPTION_BYTES
    size_bytes = len(ask.frame) + sum(map(len, ask.own_responses))
    if size_bytes <= SMALL_BYTES:
        return 0
    return 2 * size_bytes if ask.api_key == ALTER_CLIENT_QUOTAS else size_bytes


class Sharing:
    """The memory and the turns. Relays that wait for memory get it in a later turn of the event loop, not within the
    call that frees it."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.decision_turns = DecisionTurns()
        self._serves = False
        self.memory.on_change = self._serve_soon

    def _serve_soon(self) -> None:
        if not self._serves:
            self._serves = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._serves = False
        for holding in self.memory.serve():
            if holding.wake is not None:
                holding.wake()
