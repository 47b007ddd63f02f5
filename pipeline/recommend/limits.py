"""Limits as people write them: rounded, not below a floor, and lowered in steps."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import floor, inf
from typing import Final

from kafka_throttle.quotas.entities import BYTE_RATES, QuotaType
from kafka_throttle.quotas.limits import MAX_BYTE_RATE, MAX_CONNECTION_RATE

FLOORS: Final[Mapping[QuotaType, float]] = {
    QuotaType.PRODUCE: 100_000,
    QuotaType.FETCH: 100_000,
    QuotaType.REQUEST: 1,
    QuotaType.CONTROLLER_MUTATION: 1,
    QuotaType.CONNECTION: 1,
}
"""To what a limit is raised if there is room, in the unit of the quota: below it a single request is throttled."""

DIGITS = 2
"""Significant digits of a recommended limit."""
FINE_DIGITS = 3
"""Significant digits of the limits of stages, and of limits that the capacity cuts."""
_EXACT = 1 - 1e-12
"""The precision of sums of doubles: an excess smaller than that is not rounded up."""
_WHOLE = BYTE_RATES | {QuotaType.CONNECTION}
_MOST = {QuotaType.PRODUCE: MAX_BYTE_RATE, QuotaType.FETCH: MAX_BYTE_RATE, QuotaType.CONNECTION: MAX_CONNECTION_RATE}


def rounded_up(value: float, quota_type: QuotaType, digits: int = DIGITS) -> float:
    """`value`, above 0, rounded up to `digits` significant digits; a whole number if the quota is one."""
    up = _rounded(value * _EXACT, digits, ROUND_CEILING)
    whole = up.to_integral_value(ROUND_CEILING) if quota_type in _WHOLE else up
    return min(float(whole), float(_MOST.get(quota_type, float("inf"))))


def rounded_down(value: float, quota_type: QuotaType, digits: int = FINE_DIGITS) -> float:
    """The same, rounded down: 0 if the quota is a whole number and `value` is less than 1."""
    down = _rounded(value, digits, ROUND_FLOOR)
    return float(down.to_integral_value(ROUND_FLOOR) if quota_type in _WHOLE else down)


def whole(value: float, quota_type: QuotaType) -> float:
    """`value`, rounded down if the quota is a whole number: records may have fractions."""
    return float(floor(value)) if quota_type in _WHOLE else value


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    exact = Decimal(repr(value))
    return exact if not exact else exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding)


def wanted(demand: float, headroom: float, quota_type: QuotaType) -> float:
    """The limit for `demand`, both in the unit of the quota, without a floor."""
    return rounded_up(demand * headroom, quota_type)


def path_to(
    limit: float,
    today: float | None,
    peak: float,
    quota_type: QuotaType,
    stages: int,
    factor: float,
    shared: float = inf,
) -> list[float]:
    """The limits of each stage of the roll-out, the last one `limit`. `today` is the limit in force, None if there is
    none.

    - A limit that is not below today's is set in the first stage.
    - An entity without a quota today, or with one above everything that was seen, gets room for `peak` in the first
      stage, the most that was seen: nothing that was seen would have been throttled. But an entity that shared a quota
      with others gets no more than `shared`, all that it could have had of it.
    - From there, or from a tighter limit of today, the limit goes down by the same factor each time, but never to less
      than 1/`factor` of the stage before: if necessary there are more stages than `stages`.

    With `stages` 1 there is no roll-out: the limit applies at once.
    """
    if stages == 1 or (today is not None and today <= limit):
        return [limit]
    room = rounded_up(peak, quota_type) if peak > 0 else 0.0
    if today is not None and today < peak:
        path, before = [], today
    else:
        before = max(limit, whole(min(room, shared if today is None else today), quota_type))
        path = [before]
    while before > limit:
        left = max(stages - len(path), 1)
        aim = max(before * (limit / before) ** (1 / left), before / factor)
        after = max(limit, rounded_up(aim, quota_type, FINE_DIGITS))
        if after >= before:
            # Rounding leaves no limit in between, or a limit of a few connections has no smaller step than one.
            after = limit if limit >= before / factor else before - 1
        before = after
        path.append(before)
    return path
