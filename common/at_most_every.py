"""Doing at intervals what there may be reason for at any time: a line of the log that anybody can bring about."""

from math import inf


class AtMostEvery:
    """Says whether something is due: once in an `interval` at most, in the unit of the clock that the caller reads."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = -inf

    def is_due(self, now: float) -> bool:
        """Whether to do it now; if so, it is taken as done."""
        if now - self._last < self._interval:
            return False
        self._last = now
        return True
