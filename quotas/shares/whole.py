"""How a number of connections is divided: max-min fair by demand as other limits, but in whole units.

Parts are from 0 to 1; a unit is one connection as part of the limit.
"""

from collections.abc import Mapping
from math import ceil

from kafka_throttle.quotas.shares.division import Claim, Division, is_short


def whole_parts(demands: Mapping[str, int], units: int) -> dict[str, int]:
    """Each member's part of so many units: at most its demand, and the least parts are as large as can be.

    Of members with equal parts, those that come first by their ids have the units that cannot be divided.
    """
    left, count, level = units, len(demands), max(demands.values(), default=0)
    for demand in sorted(demands.values()):
        if demand * count > left:
            level = left // count
            left -= level * count
            break
        left -= demand
        count -= 1
    parts = {member: min(demand, level) for member, demand in demands.items()}
    for member in sorted(member for member, demand in demands.items() if demand > level)[:left]:
        parts[member] += 1
    return parts


def divide_whole(me: str, mine: Claim, others: Mapping[str, Claim], unit: float) -> Division:
    """As `division.divide`, in whole units, for the member `me`."""
    units = round(1 / unit)
    claims = {me: mine, **others}
    demands = {member: _in_units(claim.demand, units) for member, claim in claims.items()}
    parts = whole_parts(demands, units)
    wanting = sorted(member for member, demand in demands.items() if demand)
    spare = units - sum(parts.values())
    targets = dict(parts)
    for place, member in enumerate(wanting):
        targets[member] += spare // len(wanting) + (place < spare % len(wanting))
    lacking = sum(
        parts[member] / units - claim.claim
        for member, claim in others.items()
        if is_short(claim.claim, parts[member] / units)
    )
    is_contended = any(is_short(claim.claim, demands[member] / units) for member, claim in claims.items())
    free = 1 - sum(claim.claim for claim in claims.values())
    return Division(max(parts.values()) / units, parts[me] / units, targets[me] / units, lacking, free, is_contended)


def _in_units(demand: float, units: int) -> int:
    """The units that cover a demand. Documents round demands to four digits."""
    return min(ceil(demand * units - max(1e-3, 1e-4 * units)), units) if demand > 0 else 0
