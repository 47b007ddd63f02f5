"""Kafka's windowed rate and delay the slow way, straight from their description: the model that rows are held to."""

import math
from fractions import Fraction

INT32_MAX = 2**31 - 1


class WindowedRate:
    """Samples as lists of [start, last event, sum]; every charge looks at all of them."""

    def __init__(self, limit: float, samples: int, window_ms: int) -> None:
        self.limit, self.n, self.w = limit, samples, window_ms
        self.ring: list[list] = []
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.ring:
            self.ring.append([now, now, 0.0])
        elif now - self.ring[self.current][0] >= self.w:
            self.current = (self.current + 1) % (self.n + 1)
            self.ring[self.current : self.current + 1] = [[now, now, 0.0]]
        self.ring[self.current][1:] = [now, self.ring[self.current][2] + value]

    def measure(self, now: int) -> tuple[float, int]:
        """The rate, and by how many ms it was divided."""
        for sample in self.ring:
            if now - sample[1] >= self.n * self.w:
                sample[:] = [now, now, 0.0]
        total = 0.0
        for sample in self.ring:
            total += sample[2]
        window = now - min(sample[0] for sample in self.ring)
        window += max(self.n - 1 - window // self.w, 0) * self.w
        window = max(window, 1)
        return total / (window / 1000.0), window

    def charge(self, value: float, now: int) -> int:
        self.record(value, now)
        rate, window = self.measure(now)
        if rate <= self.limit:
            return 0
        return min(nearest((rate - self.limit) / self.limit * window), INT32_MAX)


def nearest(value: float) -> int:
    """To the nearest integer, halves up, by exact fractions."""
    if math.isinf(value):
        return 2**63 - 1 if value > 0 else -(2**63)
    return math.floor(Fraction(value) + Fraction(1, 2))
