"""Which limits a quota may have, and the largest that there are."""

from math import inf

from quotas.entities import BYTE_RATES, Entity, InvalidQuota, QuotaType

UNLIMITED = 2.0**63 - 1
"""Kafka's bound for a client without a quota: 2^63-1 as a double."""

MAX_BYTE_RATE = 2**63 - 1
"""Of produce and fetch quotas; the same, as the whole number that operators write."""

MAX_CONNECTION_RATE = 2**31 - 1

WHOLE_WITHIN = 1e-6
"""By how much a number may exceed a whole one where whole ones are meant; it is then kept as it is (KRaft)."""


def valid_limit(entity: Entity, quota_type: QuotaType, limit: float) -> float:
    """`limit` as a double. InvalidQuota if it is nonsense, or no quota for this kind of entity.

    As a KRaft controller judges it, but that a connection rate may be 0, which bans, and that what is no number, or
    less than 1 where whole numbers are meant, is refused.
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
    """What is expected where `limit` is refused."""
    if quota_type in BYTE_RATES:
        fits = 1 <= limit <= UNLIMITED and limit % 1 <= WHOLE_WITHIN
        return "" if fits else "expected a whole number from 1 to 2^63-1"
    if quota_type is QuotaType.CONNECTION:
        fits = limit == 0 or (1 <= limit <= MAX_CONNECTION_RATE and limit % 1 <= WHOLE_WITHIN)
        return "" if fits else "expected a whole number from 0 to 2^31-1"
    return "" if 0 < limit < inf else "expected a number above 0"
