"""A clock that stands still until it is told to move."""


class FakeClock:
    """Starts its two times at unrelated values, so that code which mixes them fails its test."""

    def __init__(self, now_ms: int = 5_000_000, epoch_ms: int = 1_700_000_000_123) -> None:
        self._now_ms = now_ms
        self._epoch_ms = epoch_ms

    def now_ms(self) -> int:
        return self._now_ms

    def now_us(self) -> int:
        return self._now_ms * 1000

    def epoch_ms(self) -> int:
        return self._epoch_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass on both."""
        if by_ms < 0:
            raise ValueError(f"monotonic time does not go back by {-by_ms} ms")
        self._now_ms += by_ms
        self._epoch_ms += by_ms

    def set_epoch(self, epoch_ms: int) -> None:
        """Step the wall clock alone, as NTP does."""
        self._epoch_ms = epoch_ms
