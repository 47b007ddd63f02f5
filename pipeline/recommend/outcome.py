"""The results of the replay for each recommendation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka_throttle.pipeline.recommend.advice import Recommendation
from kafka_throttle.pipeline.recommend.evidence import Simulated
from kafka_throttle.pipeline.simulate.meter import type_of


def outcomes(sensors: Iterable[Mapping[str, Any]], recommendations: Sequence[Recommendation]) -> list[Simulated]:
    """The results for each recommendation, from the sensors in a response of `simulate`: an entity that is not among
    them was not throttled and would not be.
    """
    found: dict[tuple[str, str, str], Simulated] = {}
    for row in sensors:
        key = (row["virtual_cluster"], type_of(row["quota_type"]).value, row["new_rule"])
        found[key] = _together(found.get(key, Simulated()), row)
    return [found.get(_key(one), Simulated()) for one in recommendations]


def _key(recommendation: Recommendation) -> tuple[str, str, str]:
    subject = recommendation.evidence.subject
    return subject.virtual_cluster, subject.quota_type.value, str(subject)


def _together(one: Simulated, row: Mapping[str, Any]) -> Simulated:
    low, high = sorted((row["throttled_ms"], row["greedy_throttled_ms"]))
    return Simulated(
        one.throttles + row["throttles"],
        one.throttled_ms + low,
        one.greedy_throttled_ms + high,
        max(one.longest_ms, row["longest_ms"]),
        max(one.muted_share, row["muted_share"]),
    )
