"""From evidence to limits, in the stages of a roll-out.

Each limit is percentile x headroom, but nobody who is throttled gets more than today without being asked. The limits
are fitted to the capacity; what is left of it raises those below a floor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

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
from kafka_throttle.pipeline.recommend.limits import FLOORS, path_to, rounded_down, wanted, whole
from kafka_throttle.pipeline.report.words import share
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
    raise_throttled: float = 0.0
    """The share of all limits of today, of a virtual cluster and quota type, by which those of throttled entities may
    be raised together."""
    factor: float = 2.0
    """The largest factor by which a limit is lowered from one stage to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A limit for one entity and quota type, in units/s of the quota."""

    evidence: Evidence
    wanted: float
    """Percentile x headroom."""
    asked: float
    """The limit before it was fitted to the capacity: what is wanted, or less for an entity that is throttled today."""
    limit: float
    path: tuple[float, ...]
    """The limit in each stage; the last one is `limit`."""
    simulated: Simulated | None = None
    penalties: tuple[ConfidencePenalty, ...] = ()

    @property
    def cut(self) -> float:
        """The amount by which the capacity makes the limit less than what was asked for."""
        return max(self.asked - self.limit, 0.0)

    @property
    def held_back(self) -> float:
        """The amount by which the limit is less than what is wanted, because a throttled entity is not raised."""
        return max(self.wanted - self.asked, 0.0)

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
    groups: dict[tuple[str, QuotaType], list[Evidence]] = {}
    for one in evidence:
        if reason := too_thin(one, settings.by, settings.least_days, settings.least_windows):
            refusals.append(Refusal(one, reason))
        elif one.node is not None:
            groups.setdefault((one.subject.virtual_cluster, one.subject.quota_type), []).append(one)
    recommendations: list[Recommendation] = []
    fits: list[Fit] = []
    for (virtual_cluster, quota_type), group in groups.items():
        carried = capacity.per_node.get((virtual_cluster, quota_type), inf)
        weights = [capacity.weight(one.subject) for one in group]
        goals = [_wanted(one, settings) for one in group]
        asked = _held_back(group, goals, weights, settings.raise_throttled)
        given = _fitted(asked, weights, carried, quota_type)
        limits = _raised(group, asked, given, weights, carried, quota_type)
        for one, goal, ask, limit in zip(group, goals, asked, limits, strict=True):
            if limit > 0:
                recommendations.append(_recommended(one, goal, ask, limit, settings))
            else:
                refusals.append(Refusal(one, _too_small(carried)))
        if carried < inf:
            sums = {"asked": sum(asked), "given": sum(limits), "capacity": carried}
            cut = sum(limit < ask for ask, limit in zip(asked, limits, strict=True))
            fits.append(Fit(virtual_cluster=virtual_cluster, quota_type=quota_type, cut=cut, **sums))
    return Advice(_with_all_stages(recommendations), refusals, fits)


def _too_small(carried: float) -> str:
    if carried == inf:
        return "what it uses, or its limit of today, is below the smallest limit there is"
    return "its fair share of the capacity is below the smallest limit there is"


def _wanted(one: Evidence, settings: Settings) -> float:
    return 0.0 if one.node is None else wanted(one.node.demand, settings.headroom, one.subject.quota_type)


def _held_back(group: Sequence[Evidence], goals: Sequence[float], weights: Sequence[float], part: float) -> list[float]:
    """The goals; of entities that are throttled today's limits, and fair shares of what these may rise together."""
    most = part * sum(one.today for one in group if one.today is not None)
    bases = [min(_held(one), goal) for one, goal in zip(group, goals, strict=True)]
    rises = [goal - base for goal, base in zip(goals, bases, strict=True)]
    allowed = fair_shares(rises, weights, most)
    return [
        goal if more >= rise else _down(base + more, base, one.subject.quota_type) if more else base
        for one, goal, base, rise, more in zip(group, goals, bases, rises, allowed, strict=True)
    ]


def _held(one: Evidence) -> float:
    """The limit of today of an entity that is throttled; inf for others."""
    return inf if one.today is None or not one.throttled_windows else whole(one.today, one.subject.quota_type)


def _fitted(asked: Sequence[float], weights: Sequence[float], carried: float, quota_type: QuotaType) -> list[float]:
    shares = fair_shares(asked, weights, carried)
    return [ask if share >= ask else rounded_down(share, quota_type) for ask, share in zip(asked, shares, strict=True)]


def _raised(
    group: Sequence[Evidence],
    asked: Sequence[float],
    given: Sequence[float],
    weights: Sequence[float],
    carried: float,
    quota_type: QuotaType,
) -> list[float]:
    """The limits that were given, and those below the floor raised to it, as far as the capacity that is left goes.

    An entity that was throttled is not raised, nor one that got less than it asked for.
    """
    floor = FLOORS[quota_type]
    missing = [
        max(floor - limit, 0.0) if limit >= ask and not one.throttled_windows else 0.0
        for one, ask, limit in zip(group, asked, given, strict=True)
    ]
    more = fair_shares(missing, weights, max(carried - sum(given), 0.0))
    return [
        limit + lack if part >= lack else _down(limit + part, limit, quota_type)
        for limit, lack, part in zip(given, missing, more, strict=True)
    ]


def _down(limit: float, least: float, quota_type: QuotaType) -> float:
    return max(rounded_down(limit, quota_type), least)


def _recommended(evidence: Evidence, goal: float, asked: float, limit: float, settings: Settings) -> Recommendation:
    quota_type = evidence.subject.quota_type
    shared = inf if evidence.limit is None else limit if evidence.throttled_windows else evidence.limit
    path = path_to(limit, evidence.today, evidence.peak, quota_type, settings.stages, settings.factor, shared)
    return Recommendation(evidence=evidence, wanted=goal, asked=asked, limit=limit, path=tuple(path))


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
        replace(
            one,
            simulated=outcome,
            penalties=(*penalties(one.evidence, headroom, outcome, weekdays_missing), *_of_what_is_held_back(one)),
        )
        for one, outcome in zip(advice.recommendations, simulated, strict=True)
    ]
    return replace(advice, recommendations=judged)


def _of_what_is_held_back(one: Recommendation) -> list[ConfidencePenalty]:
    if not one.held_back:
        return []
    part = one.asked / one.wanted
    return [ConfidencePenalty(1, f"asks for {share(part)} of what it wants, as it is throttled: --raise-throttled")]
