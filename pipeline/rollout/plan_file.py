"""A plan as a file: the changes of a run and the quotas that it found, with a checksum that shows later edits.

The checksum is no signature: it finds mistakes, not forgeries.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from kafka_throttle.common.kinds import Many, Number, Optional, Text
from kafka_throttle.common.problems import WHOLE_FILE, Problem, Problems, either, show
from kafka_throttle.common.remote_path import AnyPath, replace_whole
from kafka_throttle.common.settings import Settings, items, part, read_settings, valid
from kafka_throttle.pipeline.rollout.plan import Change
from kafka_throttle.quotas.entities import DEFAULT, SCOPE, Entity, InvalidQuota, QuotaType, Scope
from kafka_throttle.quotas.limits import valid_limit

VERSION: Final = 1
MAX_FILE_BYTES: Final = 256 * 1024 * 1024

_VERSION_KEY = "kafka_throttle_plan"


@dataclass(frozen=True)
class Made:
    """When (UTC, ISO 8601), by whom and where a plan was made, for which quotas, and with which options.

    `takes_back` is the checksum of the plan that this one undoes; "" if it undoes none.
    """

    at: str
    by: str
    place: str
    quotas: str
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_back: str = ""


@dataclass(frozen=True)
class PlanFile:
    """A plan with its origin."""

    made: Made
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...] = ()

    @property
    def checksum(self) -> str:
        """The checksum of the whole content."""
        return _checksum(self._content())

    def reversed(self, at: str, by: str) -> "PlanFile":
        """The plan that undoes this one, in one run."""
        made = Made(at, by, self.made.place, self.made.quotas, takes_back=self.checksum)
        return PlanFile(made, tuple(change.reversed() for change in self.changes))

    def _content(self) -> dict[str, Any]:
        made = self.made
        return {
            _VERSION_KEY: VERSION,
            "made": {
                "at": made.at,
                "by": made.by,
                "place": made.place,
                "for": made.quotas,
                "options": dict(made.options),
                "takes_back": made.takes_back,
            },
            "changes": [_form(change) for change in self.changes],
            "waiting": [_form(change) for change in self.waiting],
        }

    def text(self) -> str:
        """The content of the file."""
        return json.dumps({**self._content(), "checksum": self.checksum}, indent=1, ensure_ascii=False) + "\n"


def write_plan(path: AnyPath, plan: PlanFile) -> None:
    """Write the file whole or not at all, as `replace_whole` does. Raises OSError."""
    replace_whole(path, plan.text().encode("utf-8", "surrogatepass"))


def read_plan(path: AnyPath) -> PlanFile:
    """The plan in a file. Raises Problems with each problem and its place in the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Problems([Problem(str(path), f"cannot be read: {error.strerror or error}")]) from error
    if len(data) > MAX_FILE_BYTES:
        raise Problems([Problem(str(path), f"expected at most {MAX_FILE_BYTES} bytes, got more")])
    try:
        return parse_plan(data)
    except Problems as errors:
        raise errors.named(path) from errors


def parse_plan(data: bytes) -> PlanFile:
    """The plan in a file's bytes. Raises Problems with each problem and its place."""
    try:
        raw = json.loads(data, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise Problems([Problem(f"line {error.lineno}, column {error.colno}", f"no JSON: {error.msg}")]) from error
    except (ValueError, RecursionError) as error:
        raise Problems([Problem(WHOLE_FILE, f"no JSON: {error}")]) from error
    if not isinstance(raw, dict) or _VERSION_KEY not in raw:
        raise Problems([Problem(WHOLE_FILE, "expected a plan, as `usage plan --out` writes it, got something else")])
    if raw[_VERSION_KEY] != VERSION:
        raise Problems([Problem(_VERSION_KEY, f"expected {VERSION}, got {show(raw[_VERSION_KEY])}")])
    checksum = _checksum({key: value for key, value in raw.items() if key != "checksum"})
    plan = read_settings(_Plan, raw, [lambda found: _edited(found, checksum), _doubled])
    made = plan.made
    return PlanFile(
        Made(made.at, made.by, made.place, made.quotas, made.options, made.takes_back),
        tuple(change.change() for change in plan.changes),
        tuple(change.change() for change in plan.waiting),
    )


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --------------------------------------------------------------------- change

_QUOTAS: Final = frozenset(quota_type.value for quota_type in QuotaType)
_TEXT: Final = Text("a text", lambda _: True)
_Text = Annotated[str, _TEXT]
_Name = Annotated[str | None, Optional(Text("a name, or null for the default", lambda _: True))]
_Limit = Annotated[float | None, Optional(Number("a number from 0, or null for no quota", lambda limit: limit >= 0))]


def entity_form(entity: Entity) -> dict[str, str | None]:
    """An entity as in Kafka's API: its types, each with a name, or null for the default."""
    return {part: None if name is DEFAULT else name for part, name in entity.parts if name is not None}


def _form(change: Change) -> dict[str, Any]:
    scope = {} if change.scope is Scope.NODE else {SCOPE: change.scope.value}
    return {
        "entity": entity_form(change.entity),
        "quota": change.quota_type.value,
        "before": change.before,
        "after": change.after,
        "wanted": change.wanted,
        "why": change.why,
        **scope,
    }


class _Entity(Settings):
    """Names by type; null is the default of a type, and a type that is not given is no part of the entity."""

    user: _Name = None
    client_id: Annotated[_Name, Field(alias="client-id")] = None
    ip: _Name = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        try:
            self.entity()
        except InvalidQuota as error:
            return self.unless([str(error)])
        return self

    def entity(self) -> Entity:
        given = {part: getattr(self, part) for part in self.model_fields_set}
        return Entity(**{part: DEFAULT if name is None else name for part, name in given.items()})


class _Change(Settings):
    entity: _Entity
    quota: Annotated[str, Text(either([quota_type.value for quota_type in QuotaType]), _QUOTAS.__contains__)]
    before: _Limit
    after: _Limit
    wanted: _Limit
    why: _Text
    scope: Literal["node", "cluster"] = "node"

    @model_validator(mode="after")
    def _has_valid_limits(self) -> Self:
        problems, entity = [], self.entity.entity()
        for name in ("before", "after", "wanted"):
            try:
                if (limit := getattr(self, name)) is not None:
                    valid_limit(entity, QuotaType(self.quota), limit)
            except InvalidQuota as error:
                problems.append(Problem(name, str(error)))
        return self.unless(problems)

    def change(self) -> Change:
        limits = self.before, self.after, self.wanted
        return Change(self.entity.entity(), QuotaType(self.quota), *limits, self.why, scope=Scope(self.scope))


class _Made(Settings):
    at: _Text
    by: _Text
    place: _Text
    quotas: Annotated[str, _TEXT, Field(alias="for")]
    options: dict[str, Any]
    takes_back: _Text


class _Plan(Settings):
    kafka_throttle_plan: int
    made: _Made
    changes: Many[_Change]
    waiting: Many[_Change]
    checksum: Any = None


def _edited(plan: Any, checksum: str) -> Iterator[Problem]:
    if (found := part(plan, "checksum")) != checksum:
        yield Problem("checksum", f"expected {checksum}, got {show(found)}: the file is not as it was written")


def _doubled(plan: Any) -> Iterator[Problem]:
    seen: set[tuple[Entity, str]] = set()
    for i, raw in enumerate(items(plan, "changes")):
        if change := valid(_Change, raw):
            quota = (change.entity.entity(), change.quota)
            if quota in seen:
                yield Problem(f"changes[{i}]", f"expected each quota once, got {quota[1]} of {quota[0]} again")
            seen.add(quota)
