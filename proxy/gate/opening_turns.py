"""How many admitted connections are opened in one turn of the event loop, and whose turn is next."""

import asyncio
from collections.abc import Callable

from kafka_throttle.proxy.gate.stages import IncomingConnection
from kafka_throttle.quotas.fair_queue import FairQueue, Whose

OPENED_AT_ONCE = 8
"""How many admitted connections go on in one turn of the event loop. That costs more than accepting them."""

_MOST_IN_TURN = 1024
"""No more connections are accepted while this many wait for their turn to go on."""


class OpeningTurns:
    """Admitted connections go on in turns of the event loop; `go_on` is called with those that had to wait.

    Addresses take turns (of IPv6 networks of /64): one with few connections overtakes a storm.
    """

    def __init__(self, go_on: Callable[[IncomingConnection], None]) -> None:
        self._go_on = go_on
        self._waiting: FairQueue[IncomingConnection] = FairQueue()
        self._at_once = 0
        """How many more connections may go on in this turn of the event loop."""

    def begin(self) -> int:
        """Begin a turn in which new connections are accepted. Returns how many may be."""
        self._at_once = 0 if self._waiting else OPENED_AT_ONCE
        return _MOST_IN_TURN - len(self._waiting)

    def is_now(self, incoming: IncomingConnection) -> bool:
        """Whether a connection may go on now. If not, `go_on` is called when it is the turn of its address."""
        if self._at_once:
            self._at_once -= 1
            return True
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.put(incoming, Whose(incoming.network))
        return False

    def _take(self) -> None:
        for _ in range(min(OPENED_AT_ONCE, len(self._waiting))):
            self._go_on(self._waiting.take())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take)

    def stop(self, turn_away: Callable[[IncomingConnection], None]) -> None:
        """Call `turn_away` with each connection that waits."""
        for incoming in self._waiting.take_all():
            turn_away(incoming)
