"""What the bytes of each second say: how close to the limit, how far above it in any stretch, how fair, how soon."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

MINUTE_S = 60
WINDOWS_S = 11
"""Kafka's ten past windows and the current one: what was allowed at once at the beginning is over after it twice."""
SETTLED_AFTER_S = 2 * WINDOWS_S
_MEAN_OVER_S = 3
_WITHIN = 0.1


def by_second(samples: Sequence[tuple[float, float]], seconds: int) -> list[float]:
    """(Seconds since the beginning, total until then), in order -> what came in each second; between samples evenly."""
    totals = [_at(second, samples) for second in range(seconds + 1)]
    return [after - before for before, after in pairwise(totals)]


def _at(second: float, samples: Sequence[tuple[float, float]]) -> float:
    """The total at a moment. Before the first sample it is the first's, after the last one the last's."""
    before = samples[0]
    for sample in samples:
        if sample[0] >= second:
            (t0, v0), (t1, v1) = before, sample
            return v0 if t1 <= t0 else v0 + (v1 - v0) * (max(second, t0) - t0) / (t1 - t0)
        before = sample
    return before[1]


def long_run(series: Sequence[float], limit: float, begin: int = SETTLED_AFTER_S) -> float:
    """The mean rate as a part of the limit, over a multiple of 11 s at the end of the series, not before `begin`."""
    count = max(1, (len(series) - begin) // WINDOWS_S) * WINDOWS_S
    counted = series[max(0, len(series) - count) :]
    return sum(counted) / len(counted) / limit


def over_s(series: Sequence[float], limit: float, begin: int = 0) -> float | None:
    """What the worst 60 s in a row have too much (or too little, below 0), in seconds of the limit.

    None: the series has no 60 s from `begin` on.
    """
    totals = [0.0, *accumulate(series[begin:])]
    minutes = [after - before for before, after in zip(totals, totals[MINUTE_S:], strict=False)]
    return max(minutes) / limit - MINUTE_S if minutes else None


def burst_s(series: Sequence[float], limit: float, begin: int = 0) -> float:
    """The most by which any stretch of at most 60 s is above the limit, in seconds of the limit; at least 0."""
    totals = [0.0, *accumulate(value / limit - 1 for value in series[begin:])]
    found = (totals[end] - min(totals[max(0, end - MINUTE_S) : end]) for end in range(1, len(totals)))
    return max(0.0, *found)


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything, 1 of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def max_min(demands: Sequence[float], limit: float) -> list[float]:
    """The fair division of the limit: nobody gets more than it wants, and what is left is the same for the others."""
    fair = [0.0] * len(demands)
    left, open_ones = limit, sorted(range(len(demands)), key=lambda one: demands[one])
    while open_ones:
        one = open_ones[0]
        fair[one] = min(demands[one], left / len(open_ones))
        left -= fair[one]
        open_ones = open_ones[1:]
    return fair


def settled_after_s(by_client: Sequence[Sequence[float]], fair: Sequence[float], begin: int, end: int) -> int | None:
    """How many seconds after `begin` all clients are within a tenth of their fair rates, as means over three seconds.

    None: not before `end`. Who wants nothing has to have less than a tenth of the largest fair rate.
    """
    for second in range(begin, end - _MEAN_OVER_S + 1):
        if all(
            abs(sum(series[second : second + _MEAN_OVER_S]) / _MEAN_OVER_S - one) <= _WITHIN * (one or max(fair))
            for series, one in zip(by_client, fair, strict=True)
        ):
            return second - begin
    return None


def total_of(by_client: Mapping[str, Sequence[float]]) -> list[float]:
    """The sum of all clients, second by second."""
    return [sum(values) for values in zip(*by_client.values(), strict=True)]


def figures(found: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Side and kind -> figures of one scenario as run.py has found it."""
    return {
        side: {kind: _of_load(found, kind, by_client) for kind, by_client in kinds.items()}
        for side, kinds in found["sides"].items()
    }


def _of_load(found: Mapping[str, Any], kind: str, by_client: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    limit, series = found["limit"], total_of(by_client)
    greedy = [client["name"] for client in found["clients"] if client["kind"] == kind and client["demand"] is None]
    return {
        "long_run": long_run(series, limit),
        "over_s": over_s(series, limit),
        "over_later_s": over_s(series, limit, SETTLED_AFTER_S),
        "burst_s": burst_s(series, limit),
        "burst_later_s": burst_s(series, limit, SETTLED_AFTER_S),
        "jain": jain([sum(by_client[name][SETTLED_AFTER_S:]) for name in greedy]),
        "settled_after_s": list(_settling(found, kind, by_client)),
    }


def claims_fair_after_s(found: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Each change of demand in words, and how long after it every instance claimed nine tenths of its max-min fair
    part, by what it had published; None: not before the next change.

    For scenarios with one client at each instance.
    """
    changes = [event for event in found["events"] if event["action"] == "demand"]
    if not changes:
        return
    demands = {f"i{client['at']}": client["demand"] for client in found["clients"]}
    names = {client["name"]: f"i{client['at']}" for client in found["clients"]}
    ends = [*(change["at"] for change in changes), found["seconds"]][1:]
    for change, end in zip(changes, ends, strict=True):
        demands[names[change["client"]]] = change["rate"]
        parts = max_min([1.0 if demand is None else demand for demand in demands.values()], 1.0)
        fair, begin = dict(zip(demands, parts, strict=True)), change["at"]
        looks = (look for look in found["claims"] if begin <= look["at"] < end)
        at = next((look["at"] for look in looks if _are_fair(look["claims"], fair)), None)
        yield change["words"], None if at is None else at - begin


def _are_fair(claims: Sequence[Mapping[str, Any]], fair: Mapping[str, float]) -> bool:
    claimed = {claim["member"].partition("#")[0]: claim["claim"] for claim in claims}
    return all(claimed.get(instance, 0.0) >= (1 - _WITHIN) * part for instance, part in fair.items())


def _settling(found: Mapping[str, Any], kind: str, by_client: Mapping[str, Sequence[float]]) -> Iterator[int | None]:
    """For each change of demand, how long it took."""
    demands = {client["name"]: client["demand"] for client in found["clients"] if client["kind"] == kind}
    changes = [event for event in found["events"] if event["action"] == "demand" and event["client"] in demands]
    ends = [*(int(change["at"]) for change in changes), found["seconds"]][1:]
    for change, end in zip(changes, ends, strict=False):
        demands[change["client"]] = change["rate"]
        wanted = [found["limit"] * (1 if rate is None else rate) for rate in demands.values()]
        fair = max_min(wanted, found["limit"])
        yield settled_after_s([by_client[name] for name in demands], fair, int(change["at"]), end)
