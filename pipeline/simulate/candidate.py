"""A candidate quota file: what would be in force, and with which windows and caps it would be measured.

Any of these shapes, as YAML or JSON:

- a whole `proxy.yaml`: of each virtual cluster its `quotas` (`entries`, `windows`) and `throttle` count, the rest is
  not looked at;
- its `quotas` section by itself, with `throttle` beside it if wanted: for all virtual clusters;
- `entries` by themselves: likewise;
- the state file of source `file` (`overlay`): what it sets, without the operator's file under it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.yaml_file import YamlFileError, parse_yaml, read_bounded, text_of
from quotas.entities import Entity, QuotaKey, QuotaType
from quotas.quota_table import QuotaTable
from quotas.sources.entries import Problem, read_entries, shown, unknown_keys
from quotas.sources.overlay import DamagedOverlay, parse_overlay

_WINDOWS = {
    "quota_window_num": 11,
    "quota_window_size_seconds": 1,
    "controller_quota_window_num": 11,
    "controller_quota_window_size_seconds": 1,
}
_QUOTAS = ["entries", "windows"]
_OTHER_QUOTAS = [
    "source",
    "state_file",
    "zookeeper",
    "poll_interval_ms",
    "request_costs",
    "instances",
    "admin_users",
    "admin_listeners",
    "describe_users",
]
"""What stands in `quotas` of a proxy's file and says nothing about limits."""

_THROTTLE = {"max_throttle_ms": 20_000, "max_debt_ms": 60_000}
_OTHER_THROTTLE = ["mode", "fetch", "charge_validate_only"]
_LONGEST_DELAY_MS = 8_000
_INT32_MAX = 2**31 - 1


class CandidateErrors(Exception):
    """Everything that is wrong with a candidate file; its text has one line for each problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Rules:
    """The quotas of one virtual cluster, and what a broker calls its windows; caps in ms. Shadow quotas are left out.

    `samples` and `window_ms` are for rates, those that begin with `bucket_` for controller mutations.
    """

    table: QuotaTable = field(default_factory=QuotaTable)
    samples: int = 11
    window_ms: int = 1000
    bucket_samples: int = 11
    bucket_window_ms: int = 1000
    max_throttle_ms: int = 20_000
    max_debt_ms: int = 60_000
    shadows: int = 0
    """How many shadow quotas were left out."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As its quotas: a table stands by the hashes of names, which another process has others of."""
        quotas = {entity: dict(limits) for entity, limits in self.table.items()}
        numbers = (self.samples, self.window_ms, self.bucket_samples, self.bucket_window_ms)
        return _rules_of, (quotas, *numbers, self.max_throttle_ms, self.max_debt_ms)


def _rules_of(quotas: Mapping[Entity, Mapping[QuotaType, float]], *numbers: int) -> Rules:
    return Rules(QuotaTable(quotas), *numbers)


@dataclass(frozen=True)
class Candidate:
    """What would be in force: for each virtual cluster by name, or for `all_others`."""

    clusters: Mapping[str, Rules] = field(default_factory=dict)
    all_others: Rules | None = None

    def rules(self, virtual_cluster: str) -> Rules | None:
        """Those of a virtual cluster; None: the file does not say, so nothing would be measured there."""
        return self.clusters.get(virtual_cluster, self.all_others)


def load_candidate(path: Path) -> Candidate:
    """The candidate in the file. CandidateErrors with every problem and its place."""
    return load_with_checksum(path)[0]


def load_with_checksum(path: Path) -> tuple[Candidate, str]:
    """The same, and the checksum of the bytes that it was read from: a pipe has them only once."""
    try:
        content = read_bounded(path)
        data = parse_yaml(text_of(content), str(path))
    except YamlFileError as error:
        raise CandidateErrors([Problem(error.place, error.problem)]) from error
    is_state_file = isinstance(data, Mapping) and "overlay" in data
    candidate = _of_state_file(content, path) if is_state_file else candidate_of(data)
    return candidate, f"sha256:{hashlib.sha256(content).hexdigest()}"


def parse_candidate(text: str) -> Candidate:
    """The candidate in a YAML text. CandidateErrors with every problem and its place."""
    try:
        data = parse_yaml(text, "(file)")
    except YamlFileError as error:
        raise CandidateErrors([Problem(error.place, error.problem)]) from error
    return candidate_of(data)


def _of_state_file(content: bytes, path: Path) -> Candidate:
    try:
        overlay = parse_overlay(content)
    except DamagedOverlay as error:
        raise CandidateErrors([Problem(str(path), str(error))]) from error
    entries = {
        entity: {key: change.limit for key, change in changes.items() if change.limit is not None}
        for entity, changes in overlay.items()
    }
    return Candidate(all_others=Rules(_enforced(entries), shadows=_shadows(entries)))


def candidate_of(data: Any) -> Candidate:
    """The candidate that lists, dicts and scalars describe. CandidateErrors with every problem and its place."""
    problems: list[Problem] = []
    if isinstance(data, list):
        entries = read_entries(data, "(file)", problems)
        candidate = Candidate(all_others=Rules(_enforced(entries), shadows=_shadows(entries)))
    elif not isinstance(data, Mapping):
        got = shown(data)
        raise CandidateErrors([Problem("(file)", f"expected virtual_clusters, quotas or entries, got {got}")])
    elif "virtual_clusters" in data:
        candidate = Candidate(_clusters(data["virtual_clusters"], problems))
    elif "quotas" in data:
        problems += unknown_keys(data, ["quotas", "throttle"], "")
        candidate = Candidate(all_others=_rules(data["quotas"], data.get("throttle"), "", "quotas", problems))
    else:
        problems += unknown_keys(data, [*_QUOTAS, "throttle", *_OTHER_QUOTAS], "")
        quotas = {key: value for key, value in data.items() if key != "throttle"}
        candidate = Candidate(all_others=_rules(quotas, data.get("throttle"), "", "", problems, reported=True))
    if problems:
        raise CandidateErrors(problems)
    return candidate


def _clusters(data: Any, problems: list[Problem]) -> dict[str, Rules]:
    if not isinstance(data, list) or not data:
        problems.append(Problem("virtual_clusters", f"expected a list with at least one, got {shown(data)}"))
        return {}
    clusters: dict[str, Rules] = {}
    for i, raw in enumerate(data):
        path = f"virtual_clusters[{i}]"
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(raw, Mapping):
            problems.append(Problem(path, f"expected a mapping, got {shown(raw)}"))
        elif not isinstance(name, str) or not name:
            problems.append(Problem(f"{path}.name", f"expected a name, got {shown(name)}"))
        elif name in clusters:
            problems.append(Problem(f"{path}.name", f"expected one of each name, got {name!r} again"))
        else:
            source = raw["quotas"].get("source", "file") if isinstance(raw.get("quotas"), Mapping) else "file"
            if source != "file":
                expected = "expected file: the limits of another source do not stand here"
                problems.append(Problem(f"{path}.quotas.source", f"{expected}, got {shown(source)}"))
            clusters[name] = _rules(raw.get("quotas"), raw.get("throttle"), path, f"{path}.quotas", problems)
    return clusters


def _rules(
    quotas: Any, throttle: Any, around: str, path: str, problems: list[Problem], reported: bool = False
) -> Rules:
    """`around` is the path of what `throttle` stands in; `reported`: unknown keys of `quotas` are known already."""
    quotas = _mapping(quotas, path, problems)
    throttle_path = f"{around}.throttle" if around else "throttle"
    throttle = _mapping(throttle, throttle_path, problems)
    if not reported:
        problems += unknown_keys(quotas, [*_QUOTAS, *_OTHER_QUOTAS], path)
    problems += unknown_keys(throttle, [*_THROTTLE, *_OTHER_THROTTLE], throttle_path)
    prefix = f"{path}." if path else ""
    windows = _mapping(quotas.get("windows"), f"{prefix}windows", problems)
    problems += unknown_keys(windows, list(_WINDOWS), f"{prefix}windows")
    numbers = {
        name: _whole(windows, name, default, 1, 3_600, f"{prefix}windows", problems)
        for name, default in _WINDOWS.items()
    }
    longest = _LONGEST_DELAY_MS if throttle.get("mode") == "delay" else _THROTTLE["max_throttle_ms"]
    entries = read_entries(quotas.get("entries"), f"{prefix}entries", problems)
    return Rules(
        _enforced(entries),
        numbers["quota_window_num"],
        numbers["quota_window_size_seconds"] * 1000,
        numbers["controller_quota_window_num"],
        numbers["controller_quota_window_size_seconds"] * 1000,
        _whole(throttle, "max_throttle_ms", longest, 1, _INT32_MAX, throttle_path, problems),
        _whole(throttle, "max_debt_ms", _THROTTLE["max_debt_ms"], 0, _INT32_MAX, throttle_path, problems),
        _shadows(entries),
    )


def _mapping(value: Any, path: str, problems: list[Problem]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"expected a mapping, got {shown(value)}"))
        return {}
    return value


def _whole(
    raw: Mapping[str, Any], name: str, default: int, low: int, high: int, path: str, problems: list[Problem]
) -> int:
    value = raw.get(name, default)
    if type(value) is not int or not low <= value <= high:
        expected = f"expected a whole number from {low} to {high}, got {shown(value)}"
        problems.append(Problem(f"{path}.{name}", expected))
        return default
    return value


def _enforced(entries: Mapping[Entity, Mapping[QuotaKey, float]]) -> QuotaTable:
    enforced = {
        entity: {key.quota_type: limit for key, limit in limits.items() if not key.shadow}
        for entity, limits in entries.items()
    }
    return QuotaTable({entity: limits for entity, limits in enforced.items() if limits})


def _shadows(entries: Mapping[Entity, Mapping[QuotaKey, float]]) -> int:
    return sum(key.shadow for limits in entries.values() for key in limits)
