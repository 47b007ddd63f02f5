"""The time to wait after a failure: it doubles with each further failure."""


class Backoff:
    """Waits of `first_s` seconds, then twice as long each time, up to `longest_s`. Reads no clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def failed(self) -> float:
        """Note a failure. Returns how many seconds to wait."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return wait_s

    def succeeded(self) -> None:
        """Note a success: the next failure counts as the first one."""
        self._next_s = self._first_s
