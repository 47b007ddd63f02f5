"""What the cluster can carry, as its operator declares it: the sum of all limits is fitted into it.

reserve: 0.2                     # of each capacity, kept free: for those who get no recommendation; 0 if not given
virtual_clusters:
  - name: main
    nodes: 3                     # needed where a total is given
    produce: {total: 300000000}  # units/s of all nodes together: each is taken to carry the same part of it
    fetch: {per_node: 200000000, reserve: 0.1}
    request: {per_node: 800}     # percent of a thread: 8 threads
weights:                         # 1e-6 to 1e6, the first that matches counts, else 1; * any text, ? one character
  - {user: "payments-*", weight: 3}
  - {client_id: batch, virtual_cluster: main, weight: 0.5}

A quota holds at each node, so what is fitted is one node's capacity: it suffices even if all come to the same node.
Mutations are counted at the controller and connections at the proxy; for them `per_node` is that one place's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.recommend.subject import Subject
from quotas.entities import QuotaType
from quotas.sources.entries import Problem, shown

_Share = Annotated[float, Field(ge=0, lt=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class BadCapacity(ValueError):
    """A declaration that cannot be used; its text has one line for each mistake."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Amount(_Model):
    total: _Positive | None = None
    per_node: _Positive | None = None
    reserve: _Share | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.total is None) == (self.per_node is None):
            raise ValueError("either total or per_node, got " + ("neither" if self.total is None else "both"))
        return self


class _Cluster(_Model):
    name: _Name
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = None
    produce: _Amount | None = None
    fetch: _Amount | None = None
    request: _Amount | None = None
    controller_mutation: _Amount | None = None
    connection: _Amount | None = None

    @model_validator(mode="after")
    def _nodes_of_totals(self) -> Self:
        totals = [name for name, amount in self.amounts() if amount.total is not None]
        if totals and self.nodes is None:
            raise ValueError(f"nodes, because a total is given ({', '.join(totals)}), got nothing")
        return self

    def amounts(self) -> Iterator[tuple[str, _Amount]]:
        for quota_type in QuotaType:
            name = quota_type.name.lower()
            if (amount := getattr(self, name)) is not None:
                yield name, amount


class _Weight(_Model):
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    virtual_cluster: str | None = None
    weight: Annotated[float, Field(ge=1e-6, le=1e6)]

    def fits(self, subject: Subject) -> bool:
        named = {part: getattr(self, part) for part in ("user", "client_id", "ip", "virtual_cluster")}
        return all(_matches(pattern, getattr(subject, part)) for part, pattern in named.items() if pattern is not None)


class _Sheet(_Model):
    reserve: _Share = 0.0
    virtual_clusters: Annotated[list[_Cluster], Field(min_length=1)]
    weights: list[_Weight] = []


@dataclass(frozen=True)
class Capacity:
    """What a node can carry, by virtual cluster and quota type, in units/s of the quota, less the reserve."""

    per_node: Mapping[tuple[str, QuotaType], float] = field(default_factory=dict)
    weights: Sequence[_Weight] = ()

    def weight(self, subject: Subject) -> float:
        """How much of a shortage's rest they get, in relation to others: 1 unless declared otherwise."""
        return next((rule.weight for rule in self.weights if rule.fits(subject)), 1.0)


def capacity_of(data: Any) -> Capacity:
    """The capacity that a YAML document declares. Raises BadCapacity with all its mistakes."""
    try:
        sheet = _Sheet.model_validate({} if data is None else data)
    except ValidationError as error:
        raise BadCapacity([_problem(one, data) for one in error.errors()]) from error
    if problems := list(_named_twice(sheet)):
        raise BadCapacity(problems)
    return Capacity(
        {
            (cluster.name, QuotaType[name.upper()]): _of_a_node(amount, cluster.nodes, sheet.reserve)
            for cluster in sheet.virtual_clusters
            for name, amount in cluster.amounts()
        },
        tuple(sheet.weights),
    )


def _of_a_node(amount: _Amount, nodes: int | None, reserve: float) -> float:
    carried = amount.per_node if amount.per_node is not None else (amount.total or 0.0) / (nodes or 1)
    return carried * (1 - (reserve if amount.reserve is None else amount.reserve))


def _named_twice(sheet: _Sheet) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, cluster in enumerate(sheet.virtual_clusters):
        if first.setdefault(cluster.name, i) != i:
            wanted = f"expected a name of its own, got that of virtual_clusters[{first[cluster.name]}]"
            yield Problem(f"virtual_clusters[{i}].name", f"{wanted}, {cluster.name!r}")


def _matches(pattern: str, text: str) -> bool:
    parts = {"*": ".*", "?": "."}
    regex = "".join(parts.get(part) or re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch(regex, text, re.DOTALL) is not None


# ------------------------------------------------------------------- problems

_EXPECTED = {
    "missing": "expected a value, got nothing",
    "model_type": "expected a mapping, got {got}",
    "model_attributes_type": "expected a mapping, got {got}",
    "dict_type": "expected a mapping, got {got}",
    "list_type": "expected a list, got {got}",
    "too_short": "expected at least one, got an empty list",
    "string_type": "expected text, got {got}",
    "string_too_short": "expected text, got {got}",
    "int_type": "expected a whole number, got {got}",
    "float_type": "expected a number, got {got}",
    "finite_number": "expected a number, got {got}",
    "greater_than": "expected a number above {gt:g}, got {got}",
    "greater_than_equal": "expected a number from {ge:g}, got {got}",
    "less_than_equal": "expected a number up to {le:g}, got {got}",
    "less_than": "expected a number below {lt:g}, got {got}",
}
_FIELDS: Mapping[tuple[str, ...], type[_Model]] = {
    (): _Sheet,
    ("virtual_clusters",): _Cluster,
    ("weights",): _Weight,
}


def _problem(error: Any, data: Any) -> Problem:
    loc = error["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    if error["type"] == "extra_forbidden":
        return Problem(path, _unknown_key(loc))
    if error["type"] == "value_error":
        return Problem(path, f"expected {error['ctx']['error']}")
    text = _EXPECTED.get(error["type"], "{msg}, got {got}")
    values = {**error.get("ctx", {}), "got": shown(error["input"]), "msg": error["msg"]}
    return Problem(path or "(file)", text.format(**values))


def _unknown_key(loc: tuple[str | int, ...]) -> str:
    around = tuple(part for part in loc[:-1] if isinstance(part, str))
    known = list(_FIELDS.get(around, _Amount).model_fields)
    close = get_close_matches(str(loc[-1]), known, 1)
    return "unknown key, " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
