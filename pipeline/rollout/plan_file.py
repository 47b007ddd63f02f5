"""A plan as a file: what a run shall change and what it found, with a checksum that tells whether it was edited.

The checksum is no signature: it is against slips, not against who means it.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from common.atomic_file import write_whole
from pipeline.rollout.plan import Change
from quotas.entities import DEFAULT, Entity, InvalidQuota, Name, QuotaType
from quotas.limits import valid_limit
from quotas.sources.entries import Problem, shown, unknown_keys

VERSION: Final = 1
MAX_FILE_BYTES: Final = 256 * 1024 * 1024

_VERSION_KEY = "kafka_throttle_plan"
_FIELDS = [_VERSION_KEY, "made", "changes", "waiting", "checksum"]
_CHANGE = ["entity", "quota", "before", "after", "wanted", "why"]
_MADE = ["at", "by", "place", "for", "options", "takes_back"]
_PARTS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}


class PlanErrors(ValueError):
    """Everything that is wrong with a plan's file; its text has one line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Made:
    """When (UTC, ISO 8601), by whom and where a plan was made, for which quotas, and with which options.

    `takes_back` is the checksum of the plan that this one takes back; "" if it takes back none.
    """

    at: str
    by: str
    place: str
    quotas: str
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_back: str = ""


@dataclass(frozen=True)
class PlanFile:
    """A plan, and where it comes from."""

    made: Made
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...] = ()

    @property
    def checksum(self) -> str:
        """Of all that it says."""
        return _checksum(self._content())

    def reversed(self, at: str, by: str) -> "PlanFile":
        """The plan that takes this one back, in one run."""
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
        """As the file has it."""
        return json.dumps({**self._content(), "checksum": self.checksum}, indent=1, ensure_ascii=False) + "\n"


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    write_whole(path, [plan.text().encode("utf-8", "surrogatepass")])


def read_plan(path: Path) -> PlanFile:
    """The plan in a file. PlanErrors with every problem and its place in it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PlanErrors([Problem(str(path), f"cannot be read: {error.strerror or error}")]) from error
    if len(data) > MAX_FILE_BYTES:
        raise PlanErrors([Problem(str(path), f"expected at most {MAX_FILE_BYTES} bytes, got more")])
    try:
        return parse_plan(data)
    except PlanErrors as errors:
        raise PlanErrors([Problem(f"{path}: {problem.path}", problem.problem) for problem in errors.problems]) from None


def parse_plan(data: bytes) -> PlanFile:
    """The plan that a file's bytes say. PlanErrors with every problem and its place."""
    try:
        raw = json.loads(data, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise PlanErrors([Problem(f"line {error.lineno}, column {error.colno}", f"no JSON: {error.msg}")]) from error
    except (ValueError, RecursionError) as error:
        raise PlanErrors([Problem("(file)", f"no JSON: {error}")]) from error
    if not isinstance(raw, dict) or _VERSION_KEY not in raw:
        raise PlanErrors([Problem("(file)", "expected a plan, as `usage plan --out` writes it, got something else")])
    if raw[_VERSION_KEY] != VERSION:
        raise PlanErrors([Problem(_VERSION_KEY, f"expected {VERSION}, got {shown(raw[_VERSION_KEY])}")])
    problems = list(unknown_keys(raw, _FIELDS, ""))
    content = {key: value for key, value in raw.items() if key != "checksum"}
    if raw.get("checksum") != (found := _checksum(content)):
        reported = f"expected {found}, got {shown(raw.get('checksum'))}: the file is not as it was written"
        problems.append(Problem("checksum", reported))
    made = _made(raw.get("made"), problems)
    changes = _changes(raw.get("changes"), "changes", problems)
    waiting = _changes(raw.get("waiting"), "waiting", problems)
    _refuse_doubled(changes, problems)
    if problems:
        raise PlanErrors(problems)
    return PlanFile(made, tuple(changes), tuple(waiting))


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --------------------------------------------------------------------- change


def entity_form(entity: Entity) -> dict[str, str | None]:
    """An entity as Kafka's API has it: its types, each with a name, or null for the default."""
    return {part: None if name is DEFAULT else name for part, name in entity.parts if name is not None}


def _form(change: Change) -> dict[str, Any]:
    return {
        "entity": entity_form(change.entity),
        "quota": change.quota_type.value,
        "before": change.before,
        "after": change.after,
        "wanted": change.wanted,
        "why": change.why,
    }


def _changes(raw: Any, path: str, problems: list[Problem]) -> list[Change]:
    if not isinstance(raw, list):
        problems.append(Problem(path, f"expected a list, got {shown(raw)}"))
        return []
    found = (_change(one, f"{path}[{i}]", problems) for i, one in enumerate(raw))
    return [change for change in found if change is not None]


def _change(raw: Any, path: str, problems: list[Problem]) -> Change | None:
    if not isinstance(raw, dict):
        problems.append(Problem(path, f"expected an object, got {shown(raw)}"))
        return None
    before = len(problems)
    problems += unknown_keys(raw, _CHANGE, path)
    entity = _entity(raw.get("entity"), f"{path}.entity", problems)
    quota_type = _quota_type(raw.get("quota"), f"{path}.quota", problems)
    if not isinstance(raw.get("why"), str):
        problems.append(Problem(f"{path}.why", f"expected a text, got {shown(raw.get('why'))}"))
    if entity is None or quota_type is None:
        return None
    found, set_to, wanted = (
        _limit(raw, name, entity, quota_type, path, problems) for name in ("before", "after", "wanted")
    )
    return Change(entity, quota_type, found, set_to, wanted, raw["why"]) if len(problems) == before else None


def _entity(raw: Any, path: str, problems: list[Problem]) -> Entity | None:
    if not isinstance(raw, dict):
        problems.append(Problem(path, f"expected an object, got {shown(raw)}"))
        return None
    found = list(unknown_keys(raw, list(_PARTS), path))
    names: dict[str, Name] = {}
    for part, name in raw.items():
        if name is not None and not isinstance(name, str):
            found.append(Problem(f"{path}.{part}", f"expected a name, or null for the default, got {shown(name)}"))
        elif part in _PARTS:
            names[_PARTS[part]] = DEFAULT if name is None else name
    try:
        entity = Entity(**names)
    except InvalidQuota as error:
        found = found or [Problem(path, str(error))]
    problems += found
    return None if found else entity


def _quota_type(raw: Any, path: str, problems: list[Problem]) -> QuotaType | None:
    known = [quota_type.value for quota_type in QuotaType]
    if raw in known:
        return QuotaType(raw)
    problems.append(Problem(path, f"expected {', '.join(known[:-1])} or {known[-1]}, got {shown(raw)}"))
    return None


def _limit(
    raw: Mapping[str, Any], name: str, entity: Entity, quota_type: QuotaType, path: str, problems: list[Problem]
) -> float | None:
    value = raw.get(name, "nothing")
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        problems.append(Problem(f"{path}.{name}", f"expected a number, or null for no quota, got {shown(value)}"))
        return None
    try:
        return valid_limit(entity, quota_type, value)
    except InvalidQuota as error:
        problems.append(Problem(f"{path}.{name}", str(error)))
        return None


def _refuse_doubled(changes: Sequence[Change], problems: list[Problem]) -> None:
    seen: set[tuple[Entity, QuotaType]] = set()
    for i, change in enumerate(changes):
        if (change.entity, change.quota_type) in seen:
            reported = f"expected each quota once, got {change.quota_type.value} of {change.entity} again"
            problems.append(Problem(f"changes[{i}]", reported))
        seen.add((change.entity, change.quota_type))


def _made(raw: Any, problems: list[Problem]) -> Made:
    if not isinstance(raw, dict):
        problems.append(Problem("made", f"expected an object, got {shown(raw)}"))
        return Made("", "", "", "")
    problems += unknown_keys(raw, _MADE, "made")
    for name in ("at", "by", "place", "for", "takes_back"):
        if not isinstance(raw.get(name), str):
            problems.append(Problem(f"made.{name}", f"expected a text, got {shown(raw.get(name))}"))
    if not isinstance(raw.get("options"), dict):
        problems.append(Problem("made.options", f"expected an object, got {shown(raw.get('options'))}"))
        return Made("", "", "", "")
    at, by, place, quotas, takes_back = (str(raw.get(name)) for name in ("at", "by", "place", "for", "takes_back"))
    return Made(at, by, place, quotas, raw["options"], takes_back)
