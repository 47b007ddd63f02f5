"""Weighted max-min fairness: who wants little gets it, the others share what is left by their weights."""

from collections.abc import Sequence


def fair_shares(asked: Sequence[float], weights: Sequence[float], capacity: float) -> list[float]:
    """What each gets of `capacity`, in the order of `asked`.

    Nobody gets more than he asked for, all together not more than `capacity`. Where it does not suffice, all who get
    less than they asked for get the same for each unit of weight, and nobody gets more than that for his: so none of
    them could get more without another one, who has no more, getting less. Weights are above 0, the rest not below.
    """
    if sum(asked) <= capacity:
        return list(asked)
    shares = [0.0] * len(asked)
    left, weight_left = capacity, float(sum(weights))
    for i in sorted(range(len(asked)), key=lambda i: asked[i] / weights[i]):
        # Of doubles, what is left over may be a little off in the end.
        part = min(weights[i] / weight_left, 1.0) if weight_left > 0 else 1.0
        shares[i] = min(asked[i], left * part)
        left, weight_left = max(left - shares[i], 0.0), weight_left - weights[i]
    return shares
