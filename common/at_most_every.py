"""Limits how often something is done, such as a log line that any client can cause."""

from math import inf


class AtMostEvery:
    """Decides whether something is due: at most once in an `interval`, in the unit of the caller's clock."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = -inf

    def is_due(self, now: float) -> bool:
        """Whether to do it now. If so, it counts as done."""
        if now - self._last < self._interval:
            return False
        self._last = now
        return True
