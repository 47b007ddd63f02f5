"""What is known about one entity's use, and how reliable it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import log
from typing import Any

from kafka_throttle.pipeline.recommend.subject import PAIR, Subject
from kafka_throttle.pipeline.report.forecast import forecast
from kafka_throttle.pipeline.report.words import plural, share
from kafka_throttle.pipeline.simulate.meter import type_of
from kafka_throttle.quotas.entities import Scope

HIGH, MEDIUM, LOW = "high", "medium", "low"

MANY_DAYS = 14
GROWTH_PER_WEEK = 0.05
MUTED_SHARE = 0.01
MUCH_MUTED_SHARE = 0.05
BINDS_NOTHING = 0.99
"""The share of the use under quotas that come first from which another quota is of no effect."""
_PENALTY_OF_LOW = 3
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class AtNode:
    """Use at one node. `demand` is in units/s of the quota; `at_least`: the entity wanted more, but was throttled."""

    node_id: int
    windows: int
    demand: float
    at_least: bool


@dataclass(frozen=True, slots=True)
class SharedQuota:
    """A quota in force that holds for other entities, too, and counts an entity no longer once that has its own."""

    rule: str
    name: str
    """The name that it measures: with `<default>` in its rule there is a quota for each name."""
    limit: float
    others: int
    """How many other entities used it."""
    use_share: float
    """The share of the entity's use that it counted."""


@dataclass(frozen=True, slots=True)
class LeftQuotas:
    """The shared quotas that an entity's own quota would take it out of: `named` are those with most of its use."""

    named: tuple[SharedQuota, ...] = ()
    count: int = 0
    """The number of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A row of DEMAND. Rates are in units/s of the quota, one window long, at one node or by `scope` over all nodes."""

    subject: Subject
    node: AtNode | None
    """The node where the demand is largest, among those with enough windows."""
    thin: AtNode | None
    """The node where the demand is largest, among those with too few windows."""
    peak: float
    peak_node_id: int
    nodes: int
    windows: int
    """Windows with use, over all nodes; `days` are days with use."""
    days: int
    throttled_windows: int
    throttled_ms: int
    elsewhere_share: float
    """The share of the use to which quotas apply that come before the recommended one."""
    limit: float | None
    """The limit that was last in force, by the quota that `rule` names."""
    rule: str
    scope: Scope = Scope.NODE
    """That of this quota."""
    by_day: tuple[tuple[date, float], ...] = ()
    leaves: LeftQuotas = LeftQuotas()

    @property
    def throttled_share(self) -> float:
        """The share of the windows that were throttled."""
        return self.throttled_windows / self.windows if self.windows else 0.0

    @property
    def today(self) -> float | None:
        """The limit that applies to exactly this entity; None if there is none, or one that it shares with others."""
        return self.limit if self.limit is not None and self.subject.holds_alone(self.rule) else None

    @property
    def growth_per_week(self) -> float | None:
        """The growth as a fraction; None with less than two weeks of whole days."""
        trend = forecast(self.by_day).trend
        return None if trend is None else trend.growth_per_week


def evidence_of(row: Mapping[str, Any]) -> Evidence:
    """The evidence in a row of `demand.largest`, which is a dict of dicts."""
    names = (row[name] for name in ("user", "client_id", "ip"))
    latest = row["latest"]
    return Evidence(
        subject=Subject(row["virtual_cluster"], type_of(row["quota_type"]), *names),
        node=None if row["node"] is None else AtNode(**row["node"]),
        thin=None if row["thin"] is None else AtNode(**row["thin"]),
        peak=row["peak"]["rate"],
        peak_node_id=row["peak"]["node_id"],
        nodes=row["nodes"],
        windows=row["windows"],
        days=row["days"],
        throttled_windows=row["throttled_windows"],
        throttled_ms=row["throttled_ms"],
        elsewhere_share=row["elsewhere"] / row["value"] if row["value"] else 0.0,
        limit=latest["limit"],
        rule=latest["rule"] or "",
        scope=Scope(latest["scope"]),
        by_day=tuple((one["day"], one["value"]) for one in row["by_day"] or ()),
        leaves=_leaves(row),
    )


def _leaves(row: Mapping[str, Any]) -> LeftQuotas:
    used = row["value"]
    named = (
        SharedQuota(one["rule"], one["name"], one["limit"], one["others"], one["value"] / used if used else 0.0)
        for one in row["leaves"] or ()
    )
    return LeftQuotas(tuple(named), row["leaves_count"] or 0)


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the recommended quotas would have done, replayed by `simulate`: over all nodes, except for `muted_share`."""

    throttles: int = 0
    throttled_ms: int = 0
    """For a client that wants what was seen, in ms added up over connections."""
    greedy_throttled_ms: int = 0
    """For a client that always wants more while it is throttled."""
    longest_ms: int = 0
    muted_share: float = 0.0
    """The share of the time in which a client was muted, at the node where it is largest."""


@dataclass(frozen=True, slots=True)
class ConfidencePenalty:
    """A reason against a recommendation, and its weight."""

    weight: int
    reason: str


def too_thin(evidence: Evidence, by: str, least_days: int, least_windows: int) -> str:
    """The reason why nothing can be recommended; empty if something can."""
    if nameless := evidence.subject.nameless(by):
        return nameless
    if evidence.peak <= 0:
        return "used nothing"
    if evidence.today == 0:
        return "it is banned: its limit of today is 0"
    if evidence.days < least_days:
        return f"used on {plural(evidence.days, 'day')}, and at least {least_days} are asked for"
    if evidence.node is None:
        most = evidence.thin.windows if evidence.thin is not None else 0
        return f"used in at most {plural(most, 'window')} at a node, and at least {least_windows} are asked for"
    if evidence.elsewhere_share > BINDS_NOTHING:
        first = f"under quotas that come first, like {evidence.rule}: only a quota of {PAIR} would hold it"
        return f"{share(evidence.elsewhere_share)} of its use is {first}"
    return ""


def penalties(
    evidence: Evidence, headroom: float, simulated: Simulated | None, weekdays_missing: Sequence[int]
) -> list[ConfidencePenalty]:
    """All reasons that lower the confidence. `weekdays_missing`: weekdays without records, Monday is 0."""
    return [*_of_time(evidence, headroom, weekdays_missing), *_of_use(evidence), *_of_outcome(simulated)]


def _of_time(evidence: Evidence, headroom: float, weekdays_missing: Sequence[int]) -> list[ConfidencePenalty]:
    found = []
    if evidence.days < MANY_DAYS:
        found.append(ConfidencePenalty(1, f"used on {plural(evidence.days, 'day')} only"))
    if weekdays_missing:
        found.append(ConfidencePenalty(1, f"no records of a {', '.join(_WEEKDAYS[day] for day in weekdays_missing)}"))
    growth = evidence.growth_per_week
    if growth is not None and growth > GROWTH_PER_WEEK:
        weeks = log(headroom) / log(1 + growth)
        gone = f", so the headroom is used up in {plural(round(weeks), 'week')}" if headroom > 1 else ""
        found.append(ConfidencePenalty(1, f"grows by {share(growth)} a week{gone}"))
    return found


def _of_use(evidence: Evidence) -> list[ConfidencePenalty]:
    found = []
    node, thin = evidence.node, evidence.thin
    if node is not None and node.at_least:
        part = share(evidence.throttled_share)
        found.append(ConfidencePenalty(2, f"throttled in {part} of its windows: it wants at least this, perhaps more"))
    if node is not None and thin is not None and thin.demand > node.demand:
        more = thin.demand / node.demand if node.demand else float("inf")
        seen = plural(thin.windows, "window")
        found.append(ConfidencePenalty(1, f"{more:.1f} times as much at node {thin.node_id}, in {seen} only"))
    if evidence.elsewhere_share > 0.01:
        weight = 2 if evidence.elsewhere_share > 0.5 else 1
        found.append(ConfidencePenalty(weight, f"{share(evidence.elsewhere_share)} of it is bound by stronger quotas"))
    return found


def _of_outcome(simulated: Simulated | None) -> list[ConfidencePenalty]:
    if simulated is None or simulated.muted_share <= MUTED_SHARE:
        return []
    weight = 2 if simulated.muted_share > MUCH_MUTED_SHARE else 1
    return [ConfidencePenalty(weight, f"would have been throttled {share(simulated.muted_share)} of the time")]


def confidence(found: Sequence[ConfidencePenalty]) -> str:
    """`high` without any penalty, `medium` with small ones, otherwise `low`."""
    weight = sum(penalty.weight for penalty in found)
    return HIGH if not weight else LOW if weight >= _PENALTY_OF_LOW else MEDIUM
