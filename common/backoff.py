"""How long to wait after a failure: twice as long after each one more."""


class Backoff:
    """Waits of `first_s` seconds, then twice as long each time, up to `longest_s`. Reads no clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def failed(self) -> float:
        """For how many seconds to wait now."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return wait_s

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self._next_s = self._first_s
