"""How one limit is divided: max-min fair by demand.

All numbers are parts of the limit, from 0 to 1.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FLOORS: Final = 0.02
"""What is set aside for members that do not claim a key which others claim: half of it for those that know each other,
half for members that are just joining."""

TOTAL: Final = 1 - FLOORS
"""What all claims of a key together may be."""

TOLERANCE: Final = 0.05
"""A claim that differs from its target by a smaller part of the target stays as it is."""

LEAST: Final = 0.002
"""A smaller part of a limit is not worth a publication."""


class Budget(NamedTuple):
    """What may be given away of a key."""

    total: float
    """What all claims may be together."""
    floors: float
    """What all floors may be together."""

    def floor(self, members: int) -> float:
        """The share of a member that does not claim a key which another one of `members` claims."""
        return self.floors / (2 * max(members, 2))


RATE: Final = Budget(TOTAL, FLOORS)
COUNT: Final = Budget(1.0, 0.0)
"""A number of connections: parts below one connection are of no use, and one member has to be able to have all."""


class Claim(NamedTuple):
    """What one member claims of a key, and what it could use."""

    claim: float
    demand: float


class Division(NamedTuple):
    """How a key is divided, as one of its members sees it."""

    level: float
    """Up to here every demand is met."""
    fair: float
    """This member's part by max-min fairness; at most its demand."""
    target: float
    """The same with its part of what nobody demands."""
    lacking: float
    """What others claim less than their fair parts, if it is more than the tolerance."""
    free: float
    """What nobody claims; negative while claims add up to too much."""
    is_contended: bool
    """Somebody demands more than it claims."""


def floor_share(members: int) -> float:
    """The share of a member that does not claim a rate which another one of `members` claims."""
    return RATE.floor(members)


def implicit_share(members: int) -> float:
    """The share of each of `members` of a key that nobody claims."""
    return 1.0 if members <= 1 else TOTAL / members + floor_share(members)


def fair_level(demands: Sequence[float], total: float) -> float:
    """The level up to which every demand is met when `total` is divided; above all demands if `total` is enough.

    The parts min(demand, level) add up to `total`, or to all demands with equal parts of the rest on top.
    """
    left, count = total, len(demands)
    for demand in sorted(demands):
        if demand * count >= left:
            return left / count
        left -= demand
        count -= 1
    return max(demands, default=0.0) + left


def is_short(claim: float, fair: float) -> bool:
    """Whether a claim is too small to be left as it is."""
    return fair - claim > max(TOLERANCE * fair, LEAST)


def is_ample(claim: float, target: float) -> bool:
    """Whether a claim is too large to be left as it is when others are short."""
    return claim - target > max(TOLERANCE * target, LEAST)


def divide(mine: Claim, others: Iterable[Claim], total: float) -> Division:
    """Divide a key among the members that claim it."""
    claims = [mine, *others]
    level = fair_level([demand for _, demand in claims], total)
    spare, free, wanting, is_contended = total, total, 0, False
    for claim, demand in claims:
        free -= claim
        spare -= min(demand, level)
        wanting += demand > 0
        is_contended = is_contended or is_short(claim, demand)
    lacking = 0.0
    for claim, demand in claims[1:]:
        if is_short(claim, min(demand, level)):
            lacking += min(demand, level) - claim
    fair = min(mine.demand, level)
    target = fair + max(spare, 0.0) / wanting if mine.demand > 0 else 0.0
    return Division(level, fair, target, lacking, free, is_contended)
