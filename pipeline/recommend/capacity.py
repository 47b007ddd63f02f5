"""The capacity of the cluster, as its operator declares it: the sum of all limits must fit into it.

reserve: 0.2                     # of each capacity, kept free for all that get no recommendation; 0 if not given
virtual_clusters:
  - name: main
    nodes: 3                     # needed where a total is given
    produce: {total: 300000000}  # units/s of all nodes together: each carries the same part of it
    fetch: {per_node: 200000000, reserve: 0.1}
    request: {per_node: 800}     # percent of a thread: 8 threads
weights:                         # 1e-6 to 1e6, the first that matches counts, else 1; * any text, ? one character
  - {user: "payments-*", weight: 3}
  - {client_id: batch, virtual_cluster: main, weight: 0.5}

A quota applies at each node, so the limits are fitted to one node's capacity: they fit even if all clients use the
same node. Mutations are counted at the controller and connections at the proxy; for them `per_node` is the capacity
of that one place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import model_validator

from kafka_throttle.common.kinds import Many, Number, Some, Text, Whole
from kafka_throttle.common.problems import Problem
from kafka_throttle.common.settings import Settings, items, read_settings, repeated_names
from kafka_throttle.pipeline.recommend.subject import Subject
from kafka_throttle.quotas.entities import QuotaType

_SHARE = Number("a number of at least 0 and below 1", lambda number: 0 <= number < 1)
_WEIGHT = Number("a number from 0.000001 to 1000000", lambda number: 1e-6 <= number <= 1e6)
_Positive = Annotated[float | None, Number("a number above 0", lambda number: number > 0)]
_Pattern = Annotated[str | None, Text("text (numbers need quotes)", lambda _: True)]


class _Amount(Settings):
    total: _Positive = None
    per_node: _Positive = None
    reserve: Annotated[float | None, _SHARE] = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.total is None) != (self.per_node is None):
            return self
        return self.unless([f"expected either total or per_node, got {'neither' if self.total is None else 'both'}"])


class _Cluster(Settings):
    name: Annotated[str, Text("a name (numbers need quotes)", bool)]
    nodes: Annotated[int | None, Whole(1, 100_000)] = None
    produce: _Amount | None = None
    fetch: _Amount | None = None
    request: _Amount | None = None
    controller_mutation: _Amount | None = None
    connection: _Amount | None = None

    @model_validator(mode="after")
    def _nodes_of_totals(self) -> Self:
        totals = [name for name, amount in self.amounts() if amount.total is not None]
        if not totals or self.nodes is not None:
            return self
        return self.unless([f"expected nodes, because a total is given ({', '.join(totals)}), got nothing"])

    def amounts(self) -> Iterator[tuple[str, _Amount]]:
        for quota_type in QuotaType:
            name = quota_type.name.lower()
            if (amount := getattr(self, name)) is not None:
                yield name, amount


class _Weight(Settings):
    user: _Pattern = None
    client_id: _Pattern = None
    ip: _Pattern = None
    virtual_cluster: _Pattern = None
    weight: Annotated[float, _WEIGHT]

    def fits(self, subject: Subject) -> bool:
        named = {part: getattr(self, part) for part in ("user", "client_id", "ip", "virtual_cluster")}
        return all(_matches(pattern, getattr(subject, part)) for part, pattern in named.items() if pattern is not None)


class _Sheet(Settings):
    reserve: Annotated[float, _SHARE] = 0.0
    virtual_clusters: Some[_Cluster]
    weights: Many[_Weight] = ()


@dataclass(frozen=True)
class Capacity:
    """What a node can carry, by virtual cluster and quota type, in units/s of the quota, less the reserve."""

    per_node: Mapping[tuple[str, QuotaType], float] = field(default_factory=dict)
    weights: Sequence[_Weight] = ()

    def weight(self, subject: Subject) -> float:
        """The weight of an entity when a capacity is shared out: 1 unless declared otherwise."""
        return next((rule.weight for rule in self.weights if rule.fits(subject)), 1.0)


def capacity_of(data: Any) -> Capacity:
    """The capacity that a YAML document declares. Raises Problems with each problem and its place."""
    sheet = read_settings(_Sheet, {} if data is None else data, [_repeated])
    return Capacity(
        {
            (cluster.name, QuotaType[name.upper()]): _of_a_node(amount, cluster.nodes, sheet.reserve)
            for cluster in sheet.virtual_clusters
            for name, amount in cluster.amounts()
        },
        sheet.weights,
    )


def _of_a_node(amount: _Amount, nodes: int | None, reserve: float) -> float:
    carried = amount.per_node if amount.per_node is not None else (amount.total or 0.0) / (nodes or 1)
    return carried * (1 - (reserve if amount.reserve is None else amount.reserve))


def _repeated(data: Any) -> Iterator[Problem]:
    return repeated_names(items(data, "virtual_clusters"), "virtual_clusters")


def _matches(pattern: str, text: str) -> bool:
    parts = {"*": ".*", "?": "."}
    regex = "".join(parts.get(part) or re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch(regex, text, re.DOTALL) is not None
