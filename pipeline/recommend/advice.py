"""From evidence to limits: percentile x headroom, fitted to the capacity, in the stages of a roll-out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kafka_throttle.pipeline.recommend.capacity import Capacity
from kafka_throttle.pipeline.recommend.evidence import (
    ConfidencePenalty,
    Evidence,
    Simulated,
    confidence,
    penalties,
    too_thin,
)
from kafka_throttle.pipeline.recommend.fairness import fair_shares
from kafka_throttle.pipeline.recommend.limits import path_to, rounded_down, wanted
from kafka_throttle.quotas.entities import QuotaType


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a recommendation."""

    by: str = "user"
    quota_types: tuple[str, ...] = ("produce", "fetch", "request")
    """The names of quota types in usage records."""
    percentile: float = 0.99
    headroom: float = 1.3
    least_days: int = 7
    least_windows: int = 100
    stages: int = 3
    factor: float = 2.0
    """The largest factor by which a limit is lowered from one stage to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A limit for one entity and quota type, in units/s of the quota."""

    evidence: Evidence
    asked: float
    """The limit before it was fitted to the capacity."""
    limit: float
    path: tuple[float, ...]
    """The limit in each stage; the last one is `limit`."""
    simulated: Simulated | None = None
    penalties: tuple[ConfidencePenalty, ...] = ()

    @property
    def cut(self) -> float:
        """The amount by which the capacity makes the limit less than what was asked for."""
        return self.asked - self.limit

    @property
    def confidence(self) -> str:
        """`high`, `medium` or `low`."""
        return confidence(self.penalties)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entity and quota type for which nothing is recommended, with the reason."""

    evidence: Evidence
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the limits of one virtual cluster and quota type fit into its capacity: sums at one node, in units/s."""

    virtual_cluster: str
    quota_type: QuotaType
    capacity: float
    asked: float
    given: float
    cut: int
    """How many entities got less than they asked for."""


@dataclass(frozen=True, slots=True)
class Advice:
    """All recommendations and refusals."""

    recommendations: Sequence[Recommendation] = ()
    refusals: Sequence[Refusal] = ()
    fits: Sequence[Fit] = ()

    @property
    def stages(self) -> int:
        """The number of stages of the longest roll-out."""
        return max((len(one.path) for one in self.recommendations), default=0)


def advise(evidence: Iterable[Evidence], settings: Settings, capacity: Capacity) -> Advice:
    """The limits for all entities of which enough is known, without the result of the replay and its penalties."""
    refusals: list[Refusal] = []
    asked: dict[tuple[str, QuotaType], list[tuple[Evidence, float]]] = {}
    for one in evidence:
        if reason := too_thin(one, settings.by, settings.least_days, settings.least_windows):
            refusals.append(Refusal(one, reason))
        elif one.node is not None:
            limit = wanted(one.node.demand, settings.headroom, one.subject.quota_type)
            asked.setdefault((one.subject.virtual_cluster, one.subject.quota_type), []).append((one, limit))
    recommendations: list[Recommendation] = []
    fits: list[Fit] = []
    for (virtual_cluster, quota_type), group in asked.items():
        carried = capacity.per_node.get((virtual_cluster, quota_type))
        given = [limit for _, limit in group] if carried is None else _fitted(group, capacity, carried)
        for (one, limit), fair in zip(group, given, strict=True):
            if fair > 0:
                recommendations.append(_recommended(one, limit, fair, settings))
            else:
                refusals.append(Refusal(one, "its fair share of the capacity is below the smallest limit there is"))
        if carried is not None:
            sums = {"asked": sum(limit for _, limit in group), "given": sum(given), "capacity": carried}
            cut = sum(fair < limit for (_, limit), fair in zip(group, given, strict=True))
            fits.append(Fit(virtual_cluster=virtual_cluster, quota_type=quota_type, cut=cut, **sums))
    return Advice(_with_all_stages(recommendations), refusals, fits)


def _fitted(group: Sequence[tuple[Evidence, float]], capacity: Capacity, carried: float) -> list[float]:
    limits = [limit for _, limit in group]
    shares = fair_shares(limits, [capacity.weight(one.subject) for one, _ in group], carried)
    return [
        limit if share >= limit else rounded_down(share, one.subject.quota_type)
        for (one, limit), share in zip(group, shares, strict=True)
    ]


def _recommended(evidence: Evidence, asked: float, limit: float, settings: Settings) -> Recommendation:
    quota_type = evidence.subject.quota_type
    path = path_to(limit, evidence.today, evidence.peak, quota_type, settings.stages, settings.factor)
    return Recommendation(evidence=evidence, asked=asked, limit=limit, path=tuple(path))


def _with_all_stages(recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    """The recommendations, all with as many stages as the longest; an entity that has reached its limit stays there."""
    stages = max((len(one.path) for one in recommendations), default=0)
    return [replace(one, path=(*one.path, *[one.limit] * (stages - len(one.path)))) for one in recommendations]


def judged(
    advice: Advice,
    simulated: Iterable[Simulated | None],
    headroom: float,
    weekdays_missing: Sequence[int],
) -> Advice:
    """The advice with the outcome of the replay (one for each recommendation, in their order) and all penalties."""
    judged = [
        replace(one, simulated=outcome, penalties=tuple(penalties(one.evidence, headroom, outcome, weekdays_missing)))
        for one, outcome in zip(advice.recommendations, simulated, strict=True)
    ]
    return replace(advice, recommendations=judged)
