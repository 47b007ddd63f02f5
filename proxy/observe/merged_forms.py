"""The responses of several workers as that of one proxy. Each function takes those of the workers that answered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from kafka_throttle.proxy.observe.explained import MAX_THROTTLES
from kafka_throttle.proxy.observe.forms import (
    CapForm,
    CapsPage,
    CostForm,
    CostsPage,
    ExplainedCapForm,
    ExplanationForm,
    ExplanationPage,
    NodeCostsForm,
    ShareForm,
    ThrottledForm,
    ThrottledPage,
    ThrottleForm,
)

Form = TypeVar("Form")
Merged = dict[str, Any]


def _grouped(forms: Iterable[Form], key: Callable[[Form], Any]) -> list[list[Form]]:
    """Those with equal keys together, in the order of the first ones."""
    groups: dict[Any, list[Form]] = {}
    for form in forms:
        groups.setdefault(repr(key(form)), []).append(form)
    return list(groups.values())


def _sum(numbers: Iterable[float | None]) -> Any:
    """The sum of those that are there; None if none is."""
    there = [number for number in numbers if number is not None]
    return sum(there) if there else None


# ------------------------------------------------------------------------ caps


def merged_caps(pages: Sequence[CapsPage]) -> CapsPage:
    """Each cap is divided among the workers."""
    caps = [cap for page in pages for cap in page["caps"]]
    groups = _grouped(caps, lambda cap: (cap["listener"], cap["direction"]))
    return {**pages[0], "caps": [_cap(group) for group in groups]}


_COUNTS_OF_CAPS = ("limit", "read_bytes", "waits", "waited_ms", "waiting")


def _cap(caps: Sequence[CapForm | ExplainedCapForm]) -> Any:
    sums = {name: _sum(cast(Merged, cap).get(name) for cap in caps) for name in _COUNTS_OF_CAPS if name in caps[0]}
    return {**caps[0], **sums}


# ----------------------------------------------------------------------- costs


def merged_costs(pages: Sequence[CostsPage]) -> CostsPage:
    """Each worker learns costs by itself: of each one what the worker with most samples has learned."""
    nodes = [node for page in pages for node in page["nodes"]]
    groups = _grouped(nodes, lambda node: node["node_id"])
    return {**pages[0], "nodes": [_costs(group) for group in groups]}


def _costs(nodes: Sequence[NodeCostsForm]) -> NodeCostsForm:
    apis: dict[str, CostForm] = {}
    for node in nodes:
        for api, cost in node["apis"].items():
            if api not in apis or cost["samples"] > apis[api]["samples"]:
                apis[api] = cost
    return {**nodes[0], "floor_us": min(node["floor_us"] for node in nodes), "apis": apis}


# ------------------------------------------------------------------- throttled

_FIRST: dict[str, Callable[[ThrottledForm], Any]] = {
    "left": lambda line: -line["left_ms"],
    "rate": lambda line: -_used(line),
    "since": lambda line: line["since"],
    "throttled": lambda line: -line["throttled_ms"],
}


def _used(line: ThrottledForm) -> float:
    limit, rate, bucket = line["limit"], line["rate"], line["bucket"]
    if limit and line["share"] is not None:
        limit *= line["share"]
    if bucket is not None:
        return (bucket["burst"] - bucket["tokens"]) / bucket["burst"] if bucket["burst"] else 0.0
    return rate / limit if limit and rate is not None else 0.0


def merged_throttled(pages: Sequence[ThrottledPage], sort: str, most: int) -> ThrottledPage:
    """The first `most` lines in the order `sort`: one for each client, quota and node, for all workers together."""
    lines = [line for page in pages for line in page["throttled"]]
    groups = _grouped(
        lines,
        lambda line: (line["virtual_cluster"], line["user"], line["client_id"], line["node_id"], line["quota_type"]),
    )
    merged = sorted(map(_throttled, groups), key=_FIRST[sort])[:most]
    twice = len(lines) - len(groups)
    clients, total = (sum(page[name] for page in pages) for name in ("clients", "total"))
    return {
        **pages[0],
        "clients": max(clients - twice, len({(line["user"], line["client_id"]) for line in merged})),
        "total": total - twice,
        "more": total - twice - len(merged),
        "connections": sum(page["connections"] for page in pages),
        "throttled": merged,
    }


def _throttled(lines: Sequence[ThrottledForm]) -> ThrottledForm:
    first = min(lines, key=lambda line: line["since"])
    if len(lines) == 1:
        return first
    buckets = [line["bucket"] for line in lines if line["bucket"] is not None]
    return {
        **first,
        "share": _sum(line["share"] for line in lines),
        "rate": _sum(line["rate"] for line in lines),
        "bucket": {name: sum(bucket[name] for bucket in buckets) for name in ("tokens", "burst")} if buckets else None,  # type: ignore[typeddict-item]
        "left_ms": max(line["left_ms"] for line in lines),
        "throttles": sum(line["throttles"] for line in lines),
        "throttled_ms": sum(line["throttled_ms"] for line in lines),
        "connections": sum(line["connections"] for line in lines),
    }


# ----------------------------------------------------------------- explanation


def merged_explanation(pages: Mapping[str, ExplanationPage]) -> ExplanationPage:
    """The explanations by workers, by their names. What applies is the same at each; what is measured is added up."""
    first, workers = next(iter(pages.values())), list(pages)
    caps = [cap for page in pages.values() for cap in page["caps"]]
    return {
        **first,
        "throttled": any(page["throttled"] for page in pages.values()),
        "quotas": [
            _explanation(forms, workers) for forms in zip(*(page["quotas"] for page in pages.values()), strict=False)
        ],
        "node_throttles": _latest(throttle for page in pages.values() for throttle in page["node_throttles"]),
        "caps": [_cap(group) for group in _grouped(caps, lambda cap: (cap["listener"], cap["direction"]))],
    }


def _explanation(forms: Sequence[ExplanationForm], workers: Sequence[str]) -> ExplanationForm:
    uses = [(name, cast(Merged, use)) for name, form in zip(workers, forms, strict=True) for use in form["use"]]
    groups = _grouped(uses, lambda use: (use[1]["node_id"], use[1]["shared_by"]))
    return {
        **forms[0],
        "notes": _notes([form["notes"] for form in forms], workers),
        "use": [cast(Any, _use(dict(group))) for group in groups],
        "throttles": _latest(throttle for form in forms for throttle in form["throttles"]),
    }


def _notes(notes: Sequence[Sequence[str]], workers: Sequence[str]) -> list[str]:
    """Notes of all workers once, those of single ones with the worker."""
    common = [note for note in notes[0] if all(note in of_worker for of_worker in notes)]
    own = zip(workers, notes, strict=True)
    return common + [f"worker {worker}: {note}" for worker, many in own for note in many if note not in common]


def _use(by_worker: Mapping[str, Merged]) -> Merged:
    """The use at all workers: of the limit each enforces a part."""
    uses = list(by_worker.values())
    first = uses[0]
    merged = {
        **first,
        "share": _share({worker: use["share"] for worker, use in by_worker.items() if use["share"] is not None}),
        "limit": _sum(use["limit"] for use in uses),
        **{name: sum(use[name] for use in uses) for name in ("throttles", "throttled_ms", "capped")},
    }
    if "rate" in first:
        return {**merged, "rate": sum(use["rate"] for use in uses), "debt_ms": max(use["debt_ms"] for use in uses)}
    buckets = [use["bucket"] for use in uses if use["bucket"] is not None]
    bucket = {name: sum(each[name] for each in buckets) for name in ("tokens", "burst")} if buckets else None
    return {**merged, "bucket": bucket, "refusals": sum(use["refusals"] for use in uses)}


def _share(shares: Mapping[str, ShareForm]) -> ShareForm | None:
    """What the workers enforce together, and why each its part. Claims of others are left out that are workers here."""
    if not shares:
        return None
    words = [f"worker {worker} {share['share']:.1%}: {share['why']}" for worker, share in shares.items()]
    claimed = [share for share in shares.values() if share["claim"] is not None]
    return {
        "share": sum(share["share"] for share in shares.values()),
        "why": "; ".join(words),
        "claim": _sum(share["claim"] for share in claimed),
        "demand": _sum(share["demand"] for share in claimed),
        "others_claim": 0.0,
        "others": [],
    }


def _latest(throttles: Iterable[ThrottleForm]) -> list[ThrottleForm]:
    return sorted(throttles, key=lambda throttle: throttle["at"], reverse=True)[:MAX_THROTTLES]
