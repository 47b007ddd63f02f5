"""The times of the service; everything that decides is given them as numbers."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells times that have nothing to do with each other."""

    def now_ms(self) -> int:
        """Monotonic milliseconds from an unknown start: for every difference and deadline."""
        ...

    def now_us(self) -> int:
        """The same in microseconds: for what is too short for milliseconds."""
        ...

    def epoch_ms(self) -> int:
        """Milliseconds since 1970 UTC, may jump: for records that leave the process."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Monotonic milliseconds since an unknown start."""
        return time.monotonic_ns() // 1_000_000

    def now_us(self) -> int:
        """Monotonic microseconds since the same start."""
        return time.monotonic_ns() // 1000

    def epoch_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000
