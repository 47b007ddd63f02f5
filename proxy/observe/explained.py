"""The plain data that the admin API and the command line give about quotas."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka_throttle.common.printable import printable
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.proxy.observe.forms import (
    BucketForm,
    BucketUseForm,
    CapForm,
    ClaimForm,
    CostForm,
    CostsPage,
    EntityQuotasForm,
    ExplainedCapForm,
    ExplainedClientForm,
    ExplanationForm,
    ExplanationPage,
    LimitForm,
    NodeCostsForm,
    OriginForm,
    QuotasPage,
    RateUseForm,
    RuleForm,
    ShareForm,
    TagsForm,
    ThrottleForm,
    UseForm,
)
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.metrics import CapTotals
from kafka_throttle.quotas.changes import Limit, Quotas
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, SensorKey
from kafka_throttle.quotas.entities import SCOPED, QuotaKey, Scope, SensorTags
from kafka_throttle.quotas.explain import UNIT, Client, Explanation, Rule
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.request_costs import CostReading, RequestCosts
from kafka_throttle.quotas.sensors.token_buckets import BucketReading
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading
from kafka_throttle.quotas.shares.member import Explained
from kafka_throttle.quotas.sources.entry_forms import entity_form

MAX_PROBLEMS = 100
MAX_THROTTLES = 10
"""The most throttles in the explanation of one quota, the latest first."""

_ENTITIES_PER_STEP = 200
_MAX_CLAIMS = 20
_MAX_SHOWN_NAMES = 20
_NO_USER_NAMES: Mapping[str, str] = MappingProxyType({})
_NODES_PER_STEP = 10

Form = Mapping[str, Any]
"""A JSON object."""


class Observed(NamedTuple):
    """What a running proxy has measured for one explanation: its sensors with their shares, and the latest throttles
    by them.
    """

    uses: Sequence[tuple[SensorKey, SensorReading | BucketReading, Explained | None]] = ()
    throttles: Sequence[PastThrottle] = ()


class Cap(NamedTuple):
    """A byte cap in bytes/s for all clients of a listener, or with "" of the whole virtual cluster.

    `waits` counts the reads that had to wait, `waiting` those that wait now; both are None without a running proxy.
    """

    listener: str
    direction: str
    limit: int
    waits: int | None = None
    waited_ms: int | None = None
    waiting: int | None = None

    def form(self) -> ExplainedCapForm:
        """As JSON."""
        return {
            "listener": self.listener,
            "direction": self.direction,
            "limit": self.limit,
            "waits": self.waits,
            "waited_ms": self.waited_ms,
            "waiting": self.waiting,
        }


class Origin(NamedTuple):
    """Where quotas come from: the virtual cluster, the name of its source, and the problems of the source.

    `known`: whether the quotas are known, because the source was read once, or are those of an earlier process.
    """

    virtual_cluster: str
    source: str
    problems: Mapping[str, str]
    known: bool = True

    def form(self) -> OriginForm:
        """As JSON, with at most MAX_PROBLEMS problems."""
        shown = islice(self.problems.items(), MAX_PROBLEMS)
        return {
            "virtual_cluster": self.virtual_cluster,
            "source": self.source,
            "known": self.known,
            "problems": {printable(place): printable(problem, 1_000) for place, problem in shown},
        }


def quotas_form(origin: Origin, quotas: Quotas, offset: int, most: int) -> Generator[None, None, QuotasPage]:
    """A page of the quotas, in steps. They have no special order, but it stays the same until the quotas change."""
    entries: list[EntityQuotasForm] = []
    for entity, limits in islice(quotas.items(), offset, offset + most):
        by_quota = {key.text: limit_form(key, limit) for key, limit in limits.items()}
        entries.append({"entity": entity_form(entity), "limits": by_quota})
        if not len(entries) % _ENTITIES_PER_STEP:
            yield
    return {**origin.form(), "total": len(quotas), "offset": offset, "quotas": entries}


def cap_form(cap: CapTotals) -> CapForm:
    """What a byte cap let through and delayed."""
    return {
        "virtual_cluster": cap.virtual_cluster,
        "listener": cap.listener,
        "direction": cap.direction,
        "limit": cap.limit,
        "read_bytes": cap.read_bytes,
        "waits": cap.waits,
        "waited_ms": cap.waited_ms,
        "waiting": cap.waiting,
    }


def costs_form(virtual_cluster: str, costs: RequestCosts) -> Generator[None, None, CostsPage]:
    """The cost of requests at each node, in us of thread time, by the model that limits request times. In steps."""
    nodes: list[NodeCostsForm] = []
    for node_id, of_node in sorted(costs.by_node().items()):
        apis = {_api_name(reading.kind): _cost_form(reading) for reading in of_node.readings()}
        nodes.append({"node_id": node_id, "floor_us": round(of_node.floor_us, 1), "apis": apis})
        if not len(nodes) % _NODES_PER_STEP:
            yield
    return {"virtual_cluster": virtual_cluster, "nodes": nodes}


def _api_name(kind: int) -> str:
    return APIS[kind].name


def _cost_form(reading: CostReading) -> CostForm:
    origin = "pinned" if reading.pinned else "learned" if reading.samples else "shipped"
    cost = reading.cost
    return {
        "base_us": round(cost.base_us, 1),
        "per_kib_us": round(cost.per_kib_us, 2),
        "origin": origin,
        "samples": reading.samples,
    }


def limit_form(key: QuotaKey, limit: Limit) -> LimitForm:
    """A limit, the layer that it comes from, and where the use is measured that it limits."""
    scope = limit.scope if key.quota_type in SCOPED else Scope.CLUSTER
    return {"limit": number(limit.value), "layer": limit.layer, "scope": scope.value}


def number(value: float) -> int | float | None:
    """The value, as an int if it is whole; None if it means no limit."""
    if value >= UNLIMITED:
        return None
    return int(value) if float(value).is_integer() else value


def explained_form(
    origin: Origin,
    client: Client,
    explanations: Iterable[tuple[Explanation, Observed]],
    node_throttles: Iterable[PastThrottle],
    now_epoch_ms: int | None,
    caps: Iterable[Cap] = (),
    *,
    user_names: Mapping[str, str] = _NO_USER_NAMES,
    throttled: bool = False,
    notes: Sequence[str] = (),
) -> ExplanationPage:
    """The explanation of one client. `now_epoch_ms` is None without a running proxy."""
    now = now_epoch_ms or 0
    return {
        **origin.form(),
        "client": {"user": client.user, "client_id": client.client_id, "ip": client.ip},
        "throttled": throttled,
        "live": now_epoch_ms is not None,
        "quotas": [_explanation_form(explanation, observed, now) for explanation, observed in explanations],
        "node_throttles": [throttle_form(past, now) for past in node_throttles],
        "caps": [cap.form() for cap in caps],
        "others": [],
        "more": 0,
        "notes": [*notes, *_notes(client.user, user_names)],
    }


def explained_together(pages: Sequence[ExplanationPage], more: int, notes: Sequence[str]) -> ExplanationPage:
    """The explanations of several clients as one page: the first client with the others beside it."""
    first, *others = pages
    return {
        **first,
        "others": [_explained_client(page) for page in others],
        "more": more,
        "notes": [*notes, *first["notes"]],
    }


def _explained_client(page: ExplanationPage) -> ExplainedClientForm:
    return {
        "client": page["client"],
        "throttled": page["throttled"],
        "quotas": page["quotas"],
        "node_throttles": page["node_throttles"],
    }


def _notes(user: str, user_names: Mapping[str, str]) -> Iterator[str]:
    """What `sasl.user_names` says of a user: which logins are this user, and which user the logins of this name are."""
    shown = sorted(name for name, of_name in user_names.items() if of_name == user)
    if shown:
        names = ", ".join(printable(repr(name)) for name in shown[:_MAX_SHOWN_NAMES])
        more = f" and {len(shown) - _MAX_SHOWN_NAMES} more" if len(shown) > _MAX_SHOWN_NAMES else ""
        yield f"logins that show {names}{more} are this user, by sasl.user_names"
    if (other := user_names.get(user, user)) != user:
        yield f"logins that show this name are the user {printable(repr(other))}, by sasl.user_names: explain that user"


def _explanation_form(explanation: Explanation, observed: Observed, now_epoch_ms: int) -> ExplanationForm:
    key = explanation.key
    return {
        "quota": key.text,
        "unit": UNIT[key.quota_type],
        "enforced": not key.shadow,
        "rule": None if explanation.rule is None else _rule_form(explanation.rule),
        "overridden": [{**_rule_form(overridden.rule), "why": overridden.why} for overridden in explanation.overridden],
        "measured_as": None if explanation.tags is None else _tags_form(explanation.tags),
        "shared_by": explanation.shared_by,
        "notes": list(explanation.notes),
        "use": [use_form(*use) for use in observed.uses],
        "throttles": [throttle_form(past, now_epoch_ms) for past in observed.throttles],
    }


def _rule_form(rule: Rule) -> RuleForm:
    return {
        "entity": entity_form(rule.entity),
        "level": rule.level,
        "limit": number(rule.limit),
        "layer": rule.layer,
        "scope": rule.scope.value,
    }


def _tags_form(tags: SensorTags) -> TagsForm:
    return {"user": tags.user, "client_id": tags.client_id}


def use_form(
    key: SensorKey, reading: SensorReading | BucketReading, share: Explained | None = None
) -> RateUseForm | BucketUseForm:
    """What one sensor measures now; a token bucket has tokens instead of a rate. `node_id` is null for all nodes.

    `shared_by` is the entity whose new clients share this sensor because the sensor table was full.
    """
    use: UseForm = {
        "node_id": None if key.node_id == WHOLE_CLUSTER else key.node_id,
        "limit": number(reading.limit),
        "throttles": reading.throttles,
        "throttled_ms": reading.throttled_ms,
        "capped": reading.capped,
        "shared_by": None if key.shared_by is None else entity_form(key.shared_by),
        "share": None if share is None else share_form(share),
    }
    if not isinstance(reading, BucketReading):
        return {**use, "rate": reading.rate, "debt_ms": round(reading.debt_ms)}
    limited = reading.limit < UNLIMITED
    bucket: BucketForm | None = {"tokens": reading.tokens, "burst": reading.burst} if limited else None
    return {**use, "bucket": bucket, "refusals": reading.refusals}


def share_form(explained: Explained) -> ShareForm:
    """The part of a limit that an instance of a fleet enforces, and why."""
    claims = sorted(explained.others.items(), key=lambda claim: -claim[1].claim)
    others: list[ClaimForm] = [
        {"instance": printable(member), "claim": of_member.claim, "demand": of_member.demand}
        for member, of_member in claims[:_MAX_CLAIMS]
    ]
    return {
        "share": explained.share,
        "why": explained.why.value,
        "claim": explained.claim,
        "demand": explained.demand,
        "others_claim": sum(of_member.claim for _, of_member in claims),
        "others": others,
    }


def share_text(form: Form) -> str:
    """A ShareForm in words."""
    words = [f"share {_part(form['share'])}: {form['why']}"]
    if form["claim"] is not None:
        words.append(f"it claims {_part(form['claim'])} and wants {_part(form['demand'])}")
    if form["others"]:
        members = ", ".join(f"{other['instance']} {_part(other['claim'])}" for other in form["others"])
        words.append(f"others claim {_part(form['others_claim'])} ({members})")
    return "; ".join(words)


def _part(of_limit: float) -> str:
    return f"{of_limit:.1%}"


def throttle_form(past: PastThrottle, now_epoch_ms: int) -> ThrottleForm:
    """One throttle; `left_ms` is how much longer it mutes the client, if the client is connected."""
    until_epoch_ms = past.at_epoch_ms + past.throttle_time_ms
    return {
        "at": time_form(past.at_epoch_ms),
        "left_ms": max(until_epoch_ms - now_epoch_ms, 0),
        "throttle_time_ms": past.throttle_time_ms,
        "user": past.user,
        "client_id": past.client_id,
        "ip": past.ip,
        "node_id": past.node_id,
        "entity": None if past.entity is None else entity_form(past.entity),
        "rate": past.rate,
        "limit": None if past.limit is None else number(past.limit),
        "tokens": past.tokens,
        "throttles": past.throttles,
    }


def time_form(epoch_ms: int) -> str:
    """A wall clock time in UTC, as in RFC 3339."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
