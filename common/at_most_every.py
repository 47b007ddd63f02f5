"""Limits how often something is done, such as a log line that any client can cause."""

from math import inf


class AtMostEvery:
    """Decides whether something is due: at most once in an `interval`, in the unit of the caller's clock."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = -inf
        self._times = 0

    def times(self, now: float) -> int:
        """Count one more occurrence. Returns how many there were since it was last due, this one included.

        0: it is not due now. Otherwise it counts as done.
        """
        self._times += 1
        if now - self._last < self._interval:
            return 0
        self._last = now
        times, self._times = self._times, 0
        return times

    def is_due(self, now: float) -> bool:
        """Whether to do it now. If so, it counts as done."""
        return self.times(now) > 0
