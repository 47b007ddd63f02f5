"""Long work, done on the event loop in steps that take turns with everything else."""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from kafka_throttle.quotas.fair_queue import FairQueue, Whose

Result = TypeVar("Result")

OF_THE_PROXY: Final = Whose()
"""The work of operators and of the proxy itself."""


class _Line:
    """All long work of one event loop waits here for its next step, in the order of a FairQueue."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def take(self, whose: Whose) -> None:
        """Wait for the turn to take a step. It lasts until `pass_on`, which must be called."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(turn, whose)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came a moment ago
                self.pass_on()
            else:
                self._waiting.remove(turn, whose)
            raise

    def pass_on(self) -> None:
        """Give the turn to the work that is next."""
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


def finish_at_once(steps: Generator[None, None, Result]) -> Result:
    """Take all steps, and return the result: for commands, which have nothing else to do."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


async def finish_in_turns(steps: Generator[None, None, Result], whose: Whose = OF_THE_PROXY) -> Result:
    """Take all steps, with the event loop's other work between any two of them; return the result.

    One step at most is taken between two turns of the loop, however much long work there is. So a hundred clients that
    wait for long decisions delay other clients no more than one does; and a hundred that are one entity, or have one
    client-id of it, delay other long work no more than one does.
    """
    line = _lines.setdefault(asyncio.get_running_loop(), _Line())
    while True:
        await line.take(whose)
        try:
            next(steps)
            await asyncio.sleep(0)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            line.pass_on()
