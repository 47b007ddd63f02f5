"""The advice as plain data: the content of recommendation.json, and the rows of recommendation.csv."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kafka_throttle.pipeline.recommend.advice import Advice, Fit, Recommendation, Refusal, Settings
from kafka_throttle.pipeline.recommend.evidence import Evidence
from kafka_throttle.pipeline.recommend.page import left_quotas
from kafka_throttle.pipeline.recommend.subject import Subject
from kafka_throttle.pipeline.report.tables import Column, Table

FORMAT = 1
"""The version of recommendation.json; later versions only add keys."""


def plain(advice: Advice, settings: Settings, known: Mapping[str, Any]) -> dict[str, Any]:
    """The whole advice in the form of JSON. `known`: further keys at the top."""
    return {
        "format": FORMAT,
        **known,
        "settings": asdict(settings),
        "stages": [stage_name(i) for i in range(advice.stages)],
        "capacity": [_fit(fit) for fit in advice.fits],
        "recommendations": [_recommendation(one, settings) for one in advice.recommendations],
        "refused": [_refusal(one) for one in advice.refusals],
    }


def stage_name(number: int) -> str:
    """The file name of a stage, counted from 0."""
    return f"stage-{number + 1}.yaml"


def _fit(fit: Fit) -> dict[str, Any]:
    return {**asdict(fit), "quota_type": fit.quota_type.value}


def _subject(subject: Subject) -> dict[str, Any]:
    return {
        "virtual_cluster": subject.virtual_cluster,
        "entity": {"user": subject.user or None, "client_id": subject.client_id or None, "ip": subject.ip or None},
        "quota": subject.quota_type.value,
    }


def _recommendation(one: Recommendation, settings: Settings) -> dict[str, Any]:
    return {
        **_subject(one.evidence.subject),
        "current": _current(one.evidence),
        "limit": one.limit,
        "wanted": one.wanted,
        "asked": one.asked,
        "cut_by_capacity": one.cut,
        "stages": list(one.path),
        "confidence": one.confidence,
        "doubts": [asdict(penalty) for penalty in one.penalties],
        "leaves": [asdict(quota) for quota in one.evidence.leaves.named],
        "leaves_count": one.evidence.leaves.count,
        "evidence": _evidence(one.evidence),
        "formula": {"percentile": settings.percentile, "headroom": settings.headroom},
        "simulated": None if one.simulated is None else asdict(one.simulated),
    }


def _refusal(one: Refusal) -> dict[str, Any]:
    current, evidence = _current(one.evidence), _evidence(one.evidence)
    return {**_subject(one.evidence.subject), "reason": one.reason, "current": current, "evidence": evidence}


def _current(evidence: Evidence) -> dict[str, Any] | None:
    if evidence.limit is None:
        return None
    return {"limit": evidence.limit, "rule": evidence.rule, "of_this_entity_alone": evidence.today is not None}


def _evidence(evidence: Evidence) -> dict[str, Any]:
    node = evidence.node
    return {
        "percentile_value": None if node is None else node.demand,
        "at_least": None if node is None else node.at_least,
        "node_id": None if node is None else node.node_id,
        "windows_at_node": None if node is None else node.windows,
        "peak": evidence.peak,
        "peak_node_id": evidence.peak_node_id,
        "nodes": evidence.nodes,
        "windows": evidence.windows,
        "days": evidence.days,
        "throttled_windows": evidence.throttled_windows,
        "throttled_windows_share": evidence.throttled_share,
        "throttled_ms": evidence.throttled_ms,
        "bound_by_stronger_quotas_share": evidence.elsewhere_share,
        "growth_per_week": evidence.growth_per_week,
    }


_COLUMNS = (
    Column("virtual_cluster", "", "text"),
    Column("user", "", "text"),
    Column("client_id", "", "text"),
    Column("ip", "", "text"),
    Column("quota", "", "text"),
    Column("current_limit", "", "number"),
    Column("current_rule", "", "text"),
    Column("recommended_limit", "", "number"),
    Column("asked_limit", "", "number"),
    Column("confidence", "", "text"),
    Column("why", "", "text"),
    Column("percentile_value", "", "number"),
    Column("at_least", "", "text"),
    Column("node_id", ""),
    Column("peak", "", "number"),
    Column("windows", ""),
    Column("days", ""),
    Column("throttled_windows", ""),
    Column("throttled_windows_share", "", "share"),
    Column("simulated_throttles", ""),
    Column("simulated_throttled_ms", ""),
    Column("simulated_greedy_throttled_ms", ""),
    Column("simulated_muted_share", "", "share"),
    Column("leaves", "", "text"),
)


def csv_table(advice: Advice) -> Table:
    """A row for each recommendation, with a column for each stage, and a row without limits for each refusal."""
    stages = tuple(Column(f"stage_{i + 1}_limit", "", "number") for i in range(advice.stages))
    rows = [_row(one.evidence) | _limits(one) for one in advice.recommendations]
    rows += [_row(one.evidence) | {"confidence": "refused", "why": one.reason} for one in advice.refusals]
    return Table("recommendation", "", (*_COLUMNS, *stages), rows)


def _row(evidence: Evidence) -> dict[str, Any]:
    subject = evidence.subject
    names = {"user": subject.user, "client_id": subject.client_id, "ip": subject.ip}
    current = {"current_limit": evidence.limit, "current_rule": evidence.rule}
    seen = _evidence(evidence)
    at_least = {None: None, True: "yes", False: "no"}[seen["at_least"]]
    quota = subject.quota_type.value
    return {
        "virtual_cluster": subject.virtual_cluster,
        **names,
        "quota": quota,
        **current,
        **seen,
        "at_least": at_least,
    }


def _limits(one: Recommendation) -> dict[str, Any]:
    simulated = {} if one.simulated is None else asdict(one.simulated)
    return {
        "recommended_limit": one.limit,
        "asked_limit": one.asked,
        "confidence": one.confidence,
        "why": "; ".join(penalty.reason for penalty in one.penalties),
        **{f"stage_{i + 1}_limit": limit for i, limit in enumerate(one.path)},
        **{f"simulated_{name}": value for name, value in simulated.items()},
        "leaves": left_quotas(one),
    }
