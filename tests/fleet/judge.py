"""What has to hold at every moment of a simulated fleet, whatever goes wrong."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite

from kafka_throttle.quotas.shares.division import floor_share

EPSILON = 1e-9
"""Sums of doubles that are 1 on paper."""


@dataclass(frozen=True)
class Enforced:
    """What one living instance enforces of one key at a moment."""

    instance: int
    share: float
    is_outside: bool
    """Its partition is older than the session time-out: the ensemble has no node of it, or it has heard nothing for so
    long. Or it was until a moment ago: it counts as cut off until all others have acknowledged that it is back."""
    is_apart: bool
    """The same, for long enough that it has to know."""
    members: int
    """How many members it knows, itself included."""
    is_known: bool
    """All others have acknowledged it."""


def broken_rule(shares: Iterable[Enforced]) -> str | None:
    """Which rule the shares of one key break, None if none.

    No share is 0, negative or more than the whole limit. Together they are at most the limit; each instance that the
    fleet has given up may have 1/N besides, N being the members that it knew. Who joins while another one is alone, and
    has not heard of it, has the floor besides.
    """
    total, allowed, inside = 0.0, 1.0, 0.0
    for each in shares:
        if not isfinite(each.share) or not 0 < each.share <= 1:
            return f"instance {each.instance} enforces a share of {each.share!r}"
        if not each.is_known and each.share <= floor_share(2):
            continue
        total += each.share
        if each.is_outside:
            allowed += 1 / each.members
            if each.is_apart and each.share > 1 / each.members + EPSILON:
                return f"instance {each.instance} is cut off from {each.members} members and enforces {each.share!r}"
        else:
            inside += each.share
    if inside > 1 + EPSILON:
        return f"the members of the fleet enforce {inside:.6f} together"
    if total > allowed + EPSILON:
        return f"all instances enforce {total:.6f} together, {allowed:.6f} are allowed"
    return None


@dataclass
class Verdicts:
    """Collects what is broken, the first of each kind, with the time."""

    now_ms: Callable[[], int]
    broken: str | None = None

    def note(self, problem: str | None) -> None:
        """Keep the first problem."""
        if problem is not None and self.broken is None:
            self.broken = f"{self.now_ms() / 1000:.3f} s: {problem}"
