"""New connections to a node, spread out in time: managed clusters refuse whoever opens too many a second."""

import asyncio
from collections.abc import Callable

from kafka_throttle.quotas.fair_queue import FairQueue, Whose

_CATCH_UP_US = 10_000
"""How late a timer may be without slowing things down."""


class Pace:
    """Gives turns at `per_second`, evenly; None: at once. Who has the next turn: see FairQueue.

    `wake_in(seconds, serve)` has to bring about that call after that time, and returns what calls it off.
    """

    def __init__(
        self, now_us: Callable[[], int], wake_in: Callable[[float, Callable[[], None]], Callable[[], object]]
    ) -> None:
        self.per_second: float | None = None
        self._now_us = now_us
        self._wake_in = wake_in
        self._next_us = 0.0
        self._call_off: Callable[[], object] | None = None
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @property
    def unused(self) -> bool:
        """Whether nothing of its state matters any more."""
        return not self._queue and self._next_us <= self._now_us()

    def set_rate(self, per_second: float | None) -> None:
        """From now on, also for those who wait."""
        self.per_second = per_second
        self._next_us = min(self._next_us, self._now_us() + self._interval_us)
        if self._call_off is not None:
            self._call_off()
        self._wake()

    async def turn(self, whose: Whose) -> bool:
        """Wait for a turn; whether there was a wait. A cancelled waiter gives up its turn."""
        if not self._queue and self._is_free():
            self._next_us = self._now_us() + self._interval_us
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(turn, whose)
        self._see_to_waking()
        try:
            await turn
        finally:
            self._queue.remove(turn, whose)
        return True

    def serve(self) -> None:
        """Give the turns that are due."""
        while self._queue and self._is_free():
            turn = self._queue.take()
            if not turn.done():  # cancelled a moment ago
                self._next_us = max(self._next_us, self._now_us() - _CATCH_UP_US) + self._interval_us
                turn.set_result(None)
        self._see_to_waking()

    @property
    def _interval_us(self) -> float:
        return 1e6 / self.per_second if self.per_second else 0.0

    def _is_free(self) -> bool:
        return not self.per_second or self._next_us <= self._now_us()

    def _see_to_waking(self) -> None:
        if self._queue and self._call_off is None:
            self._call_off = self._wake_in(max(self._next_us - self._now_us(), 1_000) / 1e6, self._wake)

    def _wake(self) -> None:
        self._call_off = None
        self.serve()
