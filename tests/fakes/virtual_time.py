"""An event loop in which time passes only while it waits, and then at once."""

import asyncio
import selectors


class _Jumps(selectors.SelectSelector):
    def __init__(self):
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            self.now_s += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__(_Jumps())
        self._clock_resolution = 1e-6

    def time(self):
        return self._selector.now_s


class VirtualClock:
    """The clock of a process whose epoch is its own; it is not that of another."""

    def __init__(self, loop, offset_ms=0):
        self._loop = loop
        self._offset_ms = offset_ms

    def now_ms(self):
        return int(self._loop.time() * 1000) + self._offset_ms

    def now_us(self):
        return self.now_ms() * 1000

    def epoch_ms(self):
        return self.now_ms() + 1_700_000_000_000


def run(work):
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
