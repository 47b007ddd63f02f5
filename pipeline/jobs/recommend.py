"""`kafka-throttle usage recommend`: limits from recorded use, with their evidence."""

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.common.places import made_of
from kafka_throttle.common.remote_path import AnyPath, path_of, put, writable_folder
from kafka_throttle.common.yaml_file import yaml_of
from kafka_throttle.pipeline.recommend import demand
from kafka_throttle.pipeline.recommend.advice import Advice, Recommendation, Settings, advise, judged
from kafka_throttle.pipeline.recommend.capacity import Capacity, capacity_of
from kafka_throttle.pipeline.recommend.evidence import Simulated, evidence_of
from kafka_throttle.pipeline.recommend.outcome import outcomes
from kafka_throttle.pipeline.recommend.page import comment_of, print_advice
from kafka_throttle.pipeline.recommend.quota_file import Limits, document
from kafka_throttle.pipeline.recommend.rows import csv_table, plain, stage_name
from kafka_throttle.pipeline.report.findings import KilledProcess
from kafka_throttle.pipeline.report.missing import killed_of, missing_of
from kafka_throttle.pipeline.report.summary import killed
from kafka_throttle.pipeline.report.tables import csv_of
from kafka_throttle.pipeline.report.words import count, moment, plural
from kafka_throttle.pipeline.simulate.candidate import candidate_of
from kafka_throttle.pipeline.simulate.response import response_of
from kafka_throttle.pipeline.spark.session import own_session
from kafka_throttle.pipeline.steps import EMPTY, Steps
from kafka_throttle.pipeline.table.accounts import read_accounts
from kafka_throttle.pipeline.table.table import read_usage
from kafka_throttle.quotas.entities import QuotaType

MOST_ENTITIES = 10_000
"""The number of entities of each quota type: those with most use. The others are only counted."""
_STEPS = 5
_ALL_ROWS = 2**31


def main(
    table: str,
    out: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    capacity: str | None = None,
    simulate: bool = True,
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> int:
    """Write quotas and evidence to the directory `out`; 0, or EMPTY where there is nothing to recommend.

    `capacity` is the path of a capacity file; `options` are fields of Settings. Raises ValueError (BadTable and others)
    for what cannot be used.
    """
    asked = Settings(**options)
    carried = Capacity() if capacity is None else made_of(path_of(capacity), capacity_of)
    folder = writable_folder(out)
    steps = Steps(_STEPS)
    steps.next("starting Spark")
    with own_session(master, memory, "kafka-throttle recommend", settings) as spark:
        usage = read_usage(spark, table, since_ms, until_ms)
        accounts = read_accounts(spark, table)
        missing = sum(one.records for one in missing_of(accounts))
        lost = killed_of(accounts)
        advice, known = recommended(usage, asked, carried, steps, missing=missing, lost=lost, simulate=simulate)
    steps.next("writing")
    known = {"table": table, **known}
    write(folder, advice, asked, known)
    print_advice(advice, asked, known, sys.stdout)
    _say(f"{folder / 'quotas.yaml'}: {count(len(advice.recommendations))} limits, {steps.seconds:.0f} s")
    return 0 if advice.recommendations else EMPTY


# ----------------------------------------------------------------- recommending


def recommended(
    usage: DataFrame,
    asked: Settings,
    capacity: Capacity,
    steps: Steps,
    *,
    missing: int = 0,
    lost: Sequence[KilledProcess] = (),
    simulate: bool = True,
) -> tuple[Advice, dict[str, Any]]:
    """The advice from usage records, and what is printed with it. ValueError if there are no records."""
    steps.next("how much there is")
    [extent] = (row.asDict() for row in demand.extent(usage).collect())
    if not extent["records"]:
        raise ValueError("there are no usage records in this time")
    weekdays = extent.pop("weekdays")
    steps.next("use by entity, node and window")
    rows = _demands(usage, asked, extent)
    advice = advise(map(evidence_of, rows), asked, capacity)
    steps.next("replaying what the recommended quotas would have done" if simulate else "judging, without a replay")
    simulated = _simulated(usage, asked, advice) if simulate else [None] * len(advice.recommendations)
    advice = judged(advice, simulated, asked.headroom, sorted(set(range(7)) - set(weekdays)))
    warnings = [*_warnings(rows, extent["records"], missing), *_left(advice.recommendations)]
    if lost:
        warnings.append(killed(lost))
    return advice, {**extent, "warnings": warnings}


def _demands(usage: DataFrame, asked: Settings, extent: Mapping[str, Any]) -> list[dict[str, Any]]:
    slot_ms = max(1_000, -(-extent["window_ms"] // 1_000) * 1_000)
    used = demand.used_by(usage, asked.by, asked.quota_types)
    nodes = demand.at_nodes(demand.slots(used, slot_ms), asked.percentile)
    demands = demand.demand(nodes, asked.least_windows)
    days = demand.whole_days(used, extent["begin_ms"], extent["end_ms"])
    shared = demand.shared_quotas(usage, asked.by, asked.quota_types)
    chosen = demand.largest(demands, days, MOST_ENTITIES).join(shared, demand.SUBJECT, "left")
    found = [row.asDict(recursive=True) for row in chosen.collect()]
    order = {quota_type.name.lower(): i for i, quota_type in enumerate(QuotaType)}
    return sorted(found, key=lambda row: (row["virtual_cluster"], order[row["quota_type"]], -row["value"], str(row)))


def _simulated(usage: DataFrame, asked: Settings, advice: Advice) -> list[Simulated]:
    if not advice.recommendations:
        return []
    candidate = candidate_of(document(_limits(advice.recommendations)))
    concerned = usage.where(F.col("quota_type").isin(*asked.quota_types))
    return outcomes(response_of(concerned, candidate)["sensors"], advice.recommendations)


def _warnings(rows: Iterable[Mapping[str, Any]], records: int, missing: int) -> Iterable[str]:
    if missing:
        part = missing / (records + missing)
        yield f"{count(missing)} usage records are missing in the whole table ({part:.2%} of this many): see usage gaps"
    for quota_type, of in {row["quota_type"]: row["of"] for row in rows}.items():
        if of > MOST_ENTITIES:
            most = f"the {count(MOST_ENTITIES)} entities with most use of {count(of)}"
            yield f"{quota_type}: {most}; the others are left out"


def _left(recommendations: Iterable[Recommendation]) -> Iterable[str]:
    if leaving := sum(bool(one.evidence.leaves.count) for one in recommendations):
        takes, entities = ("takes", "an entity") if leaving == 1 else ("take", "entities")
        quotas = "quotas that hold for others, too: these quotas no longer count their use"
        yield f"{plural(leaving, 'limit')} {takes} {entities} out of {quotas}"


def _limits(recommendations: Iterable[Recommendation], stage: int = -1) -> Limits:
    """The limits of a stage, counted from 0; of the last one by default."""
    for one in recommendations:
        subject = one.evidence.subject
        if (entity := subject.entity) is not None:
            limit = one.path[stage]
            yield subject.virtual_cluster, entity, subject.quota_type, limit, one.evidence.scope, comment_of(one, stage)


# ---------------------------------------------------------------------- writing


def write(folder: AnyPath, advice: Advice, asked: Settings, known: Mapping[str, Any]) -> None:
    """Write quotas.yaml, stage-<n>.yaml, and recommendation.json, .csv and .txt; remove stages of an earlier run."""
    period = f"use from {moment(known['begin_ms'])} to {moment(known['end_ms'])} UTC"
    comment = f"kafka-throttle usage recommend, {period}; evidence: recommendation.json"
    names = [stage_name(stage) for stage in range(advice.stages)]
    for path in folder.glob("stage-*.yaml"):
        if path.name not in names:
            path.unlink()
    for stage, name in enumerate(names):
        head = [f"Stage {stage + 1} of {len(names)}.", comment]
        put(folder / name, _encoded(yaml_of(document(_limits(advice.recommendations, stage)), head)))
    if names:
        last = yaml_of(document(_limits(advice.recommendations)), ["The last stage.", comment])
        put(folder / "quotas.yaml", _encoded(last))
    else:
        (folder / "quotas.yaml").unlink(missing_ok=True)
    put(folder / "recommendation.json", _encoded(json.dumps(plain(advice, asked, known), indent=1)))
    put(folder / "recommendation.csv", _encoded(csv_of(csv_table(advice))))
    text = io.StringIO()
    print_advice(advice, asked, known, text, shown=_ALL_ROWS)
    put(folder / "recommendation.txt", _encoded(text.getvalue()))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
