"""The facts of the status page's sections, of several workers as those of one proxy."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from kafka_throttle.proxy.gate.gate_metrics import InstanceGate
from kafka_throttle.proxy.observe.forms import ThrottledPage
from kafka_throttle.proxy.observe.merged_forms import merged_throttled
from kafka_throttle.proxy.observe.metrics import ShadowTotals
from kafka_throttle.proxy.observe.most_used import QuotaUse
from kafka_throttle.proxy.observe.page.process import NodeState
from kafka_throttle.proxy.observe.page.search import MAX_HITS, Found
from kafka_throttle.proxy.observe.page.sections import MAX_ROWS, ClusterRow, EndRow, Facts, ListenerRow


def _groups(rows: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """Rows with equal keys together, in the order of the first ones."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _sum(numbers: Iterable[float | None]) -> Any:
    """The sum of those that are there; None if none is."""
    there = [number for number in numbers if number is not None]
    return sum(there) if there else None


def _throttled(facts: Sequence[Facts]) -> Facts:
    return {**facts[0], **merged_throttled(cast(Sequence[ThrottledPage], facts), "throttled", MAX_ROWS)}


def _quotas(facts: Sequence[Facts]) -> Facts:
    """A quota that is used at several workers counts at each of them."""
    rows = sorted(_uses(row for each in facts for row in each["rows"]), key=lambda use: -use.share)[:MAX_ROWS]
    limited = sum(each["limited"] for each in facts)
    return {
        **facts[0],
        "rows": rows,
        "limited": limited,
        "more": max(limited - len(rows), 0),
        "exceeded": sum(each["exceeded"] for each in facts),
        "is_whole": all(each["is_whole"] for each in facts),
        "looked_at": sum(each["looked_at"] for each in facts),
    }


def _uses(rows: Iterable[QuotaUse]) -> list[QuotaUse]:
    def key(use: QuotaUse) -> Any:
        return (use.virtual_cluster, use.node_id, use.quota_type, use.user, use.client_id, use.ip, use.shared_by)

    return [_use(group) for group in _groups(rows, key)]


def _use(uses: Sequence[QuotaUse]) -> QuotaUse:
    """The use at all workers: of the limit each enforces a part."""
    limit = sum(use.limit for use in uses)
    return replace(
        uses[0],
        share=sum(use.share * use.limit for use in uses) / limit if limit else 0.0,
        limit=limit,
        rate=_sum(use.rate for use in uses),
        tokens=_sum(use.tokens for use in uses),
        burst=_sum(use.burst for use in uses),
        throttles=sum(use.throttles for use in uses),
        throttled_ms=sum(use.throttled_ms for use in uses),
        throttled=any(use.throttled for use in uses),
    )


def _connections(facts: Sequence[Facts]) -> Facts:
    listeners = _groups((row for each in facts for row in each["listeners"]), lambda row: row[:2])
    ends = Counter[tuple[str, str, str]]()
    for each in facts:
        for end in each["ends"]:
            ends[end.reason, end.virtual_cluster, end.listener] += end.count
    gates: list[InstanceGate] = [each["instance"] for each in facts]
    return {
        **facts[0],
        "listeners": [_listener(rows) for rows in listeners],
        "instance": InstanceGate(*(_sum(getattr(gate, name) for gate in gates) for name in InstanceGate.__slots__)),
        "ends": [EndRow(*where, count) for where, count in ends.most_common(MAX_ROWS)],
        "more_ends": max(each["more_ends"] for each in facts),
    }


def _listener(rows: Sequence[ListenerRow]) -> ListenerRow:
    return ListenerRow(*rows[0][:2], *(_sum(numbers) for numbers in zip(*(row[2:] for row in rows), strict=True)))


def _nodes(facts: Sequence[Facts]) -> Facts:
    clusters = _groups((row for each in facts for row in each["clusters"]), lambda row: row.health.virtual_cluster)
    return {**facts[0], "clusters": [_cluster(rows) for rows in clusters]}


def _cluster(rows: Sequence[ClusterRow]) -> ClusterRow:
    """Its health is that at the worker where something is wrong, if there is one."""
    worst = max(rows, key=lambda row: len(list(row.health.not_ready())))
    states: dict[int, tuple[NodeState, int]] = {}
    for row in rows:
        for node, connections in row.nodes:
            known, count = states.get(node.node_id, (node, 0))
            states[node.node_id] = (node if node.gone_for_s is None else known, count + connections)
    return worst._replace(nodes=list(states.values())[:MAX_ROWS])


def _shadows(facts: Sequence[Facts]) -> Facts:
    totals: list[ShadowTotals] = [total for each in facts for total in each["totals"]]
    groups = _groups(totals, lambda total: (total.virtual_cluster, total.quota_type))
    rows = sorted(_uses(row for each in facts for row in each["rows"]), key=lambda use: -use.throttled_ms)[:MAX_ROWS]
    return {
        **facts[0],
        "totals": [
            replace(
                group[0],
                throttles=sum(total.throttles for total in group),
                throttled_ms=sum(total.throttled_ms for total in group),
            )
            for group in groups
        ],
        "rows": rows,
        "measured": sum(each["measured"] for each in facts),
    }


MERGED: Mapping[str, Callable[[Sequence[Facts]], Facts]] = {
    "throttled": _throttled,
    "quotas": _quotas,
    "connections": _connections,
    "nodes": _nodes,
    "shadows": _shadows,
}
"""What makes the facts of a section of those that workers have. The other sections are the supervisor's."""


def merged_hits(found: Sequence[Found]) -> Found:
    """The hits of all workers once, those first that are throttled somewhere."""
    hits: dict[Any, bool] = {}
    for each in found:
        for hit, is_throttled in each.hits:
            hits[hit] = hits.get(hit, False) or is_throttled
    only = {each.only for each in found if each.only is not None}
    shown = sorted(hits.items(), key=lambda item: not item[1])
    one = only.pop() if len(only) == 1 and len(hits) == 1 else None
    return Found(shown[:MAX_HITS], max(len(shown) - MAX_HITS, 0) + max(each.more for each in found), one)
