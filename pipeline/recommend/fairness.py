"""Weighted max-min fairness: small requests are met in full, the others share the rest by their weights."""

from collections.abc import Sequence


def fair_shares(asked: Sequence[float], weights: Sequence[float], capacity: float) -> list[float]:
    """The share of each request in `capacity`, in the order of `asked`.

    No share is larger than what was asked for, and their sum is at most `capacity`. If the capacity is not enough, all
    shares that are cut are the same per unit of weight, and no share is larger than that per unit of its weight. So no
    share could grow unless another one, which is not larger, shrank. Weights are above 0; capacity and requests are not
    negative.
    """
    if sum(asked) <= capacity:
        return list(asked)
    shares = [0.0] * len(asked)
    left, weight_left = capacity, float(sum(weights))
    for i in sorted(range(len(asked)), key=lambda i: asked[i] / weights[i]):
        # Because of rounding, the weight that is left may be slightly wrong at the end.
        part = min(weights[i] / weight_left, 1.0) if weight_left > 0 else 1.0
        shares[i] = min(asked[i], left * part)
        left, weight_left = max(left - shares[i], 0.0), weight_left - weights[i]
    return shares
