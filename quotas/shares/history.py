"""What windows hold, by age, and what was given away of it. Amounts are seconds of the whole limit."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

ByAge = tuple[float, ...]
"""Amounts by age in windows; index 0 is the current window."""


class Freed(NamedTuple):
    """Share that a member gave away, or left behind, with what it had used of it. Nobody has taken it yet."""

    share: float
    by_age: ByAge
    since_ms: int
    """When `by_age` was true."""


NOTHING: Final = Freed(0.0, (), 0)


def aged(by_age: ByAge, by: int, windows: int) -> ByAge:
    """The same amounts `by` windows later; what is older than `windows` is gone."""
    return ((0.0,) * by + by_age)[:windows] if by < windows else ()


def scaled(by_age: ByAge, factor: float) -> ByAge:
    """All amounts times `factor`."""
    return tuple(amount * factor for amount in by_age)


def added(first: ByAge, second: ByAge) -> ByAge:
    """Amounts of the same age together."""
    return tuple(one + other for one, other in zip_longest(first, second, fillvalue=0.0))


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of the sensors: a window holds what was used in the last `count` - 1 to `count` of them."""

    count: int
    window_ms: int

    @property
    def seconds(self) -> float:
        """What is certainly within the window."""
        return max(self.count - 1, 1) * self.window_ms / 1000

    def now(self, freed: Freed, now_ms: int) -> Freed:
        """The same at `now_ms`; NOTHING when all of it is older than the window."""
        passed = max(now_ms - freed.since_ms, 0) // self.window_ms
        if passed == 0:
            return freed
        by_age = aged(freed.by_age, passed, self.count)
        return Freed(freed.share, by_age, freed.since_ms + passed * self.window_ms) if by_age else NOTHING

    def full(self, share: float) -> ByAge:
        """What somebody has used who had used this share to the full all the time."""
        return (share * self.window_ms / 1000,) * self.count

    def together(self, freed: Iterable[Freed], now_ms: int) -> Freed:
        """All of it at `now_ms`."""
        share = 0.0
        by_age: ByAge = ()
        for each in freed:
            current = self.now(each, now_ms)
            share, by_age = share + current.share, added(by_age, current.by_age)
        return Freed(share, by_age, now_ms)
