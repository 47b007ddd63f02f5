"""The limits that a quota may have."""

from math import inf
from typing import Final

from kafka_throttle.quotas.entities import BYTE_RATES, Entity, InvalidQuota, QuotaType

UNLIMITED: Final = 2.0**63 - 1
"""Kafka's bound for a client without a quota: 2^63-1 as a double."""

MAX_BYTE_RATE: Final = 2**63 - 1
"""The largest limit of produce and fetch quotas: the same number as an integer, as operators write it."""

MAX_CONNECTION_RATE: Final = 2**31 - 1

WHOLE_WITHIN: Final = 1e-6
"""How much a limit that must be whole may exceed a whole number; it is then kept unchanged, as in KRaft."""


def limit_text(limit: float) -> str:
    """A limit as people read it: a whole number without decimals, any other number by its shortest text."""
    if limit >= UNLIMITED:
        return "no limit"
    return str(int(limit) if float(limit).is_integer() else limit)


def valid_limit(entity: Entity, quota_type: QuotaType, limit: float) -> float:
    """`limit` as a double. Raises InvalidQuota if it is invalid, or if this kind of entity cannot have the quota type.

    The rules are those of a KRaft controller, with two differences: a connection rate may be 0, which bans the address;
    and NaN, and values below 1 for a type that must be whole, are refused.
    """
    problem = ""
    if entity.ip is not None and quota_type is not QuotaType.CONNECTION:
        problem = f"expected {QuotaType.CONNECTION.value}, the only quota of an address, got {quota_type.value}"
    elif entity.ip is None and quota_type is QuotaType.CONNECTION:
        problem = f"expected an address, as nothing else has this quota, got {entity}"
    elif expected := _expected(quota_type, limit):
        problem = f"{expected}, got {limit!r}"
    if problem:
        raise InvalidQuota(f"{quota_type.value} of {entity}: {problem}")
    return float(limit)


def _expected(quota_type: QuotaType, limit: float) -> str:
    """What the limit is expected to be, if `limit` is refused; otherwise empty."""
    if quota_type in BYTE_RATES:
        fits = 1 <= limit <= UNLIMITED and limit % 1 <= WHOLE_WITHIN
        return "" if fits else "expected a whole number from 1 to 2^63-1"
    if quota_type is QuotaType.CONNECTION:
        fits = limit == 0 or (1 <= limit <= MAX_CONNECTION_RATE and limit % 1 <= WHOLE_WITHIN)
        return "" if fits else "expected a whole number from 0 to 2^31-1"
    return "" if 0 < limit < inf else "expected a number above 0"
