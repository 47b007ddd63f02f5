"""A candidate quota file: what would be in force, and with which windows and caps it would be measured.

Any of these shapes, as YAML or JSON:

- a whole `proxy.yaml`: of each virtual cluster its `quotas` (`entries`, `windows`) and `throttle` count, the rest is
  not looked at;
- its `quotas` section by itself, with `throttle` beside it if wanted: for all virtual clusters;
- `entries` by themselves: likewise;
- the state file of source `file` (`overlay`): what it sets, without the operator's file under it.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import ConfigDict

from kafka_throttle.common.kinds import Many, Some, Text
from kafka_throttle.common.places import made_of
from kafka_throttle.common.problems import WHOLE_FILE, Problem, Problems, show
from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.common.settings import Settings, found_at, items, read_settings, repeated_names
from kafka_throttle.common.yaml_file import read_bounded
from kafka_throttle.quotas.entities import Entity, QuotaType, Scope
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sources.entries import QuotaEntry, ThrottleConfig, WindowsConfig, repeated_entities
from kafka_throttle.quotas.sources.overlay import DamagedOverlay, Entries, Entry, parse_overlay

_FILE = "file: the limits of another source do not stand here"


class _Quotas(Settings):
    """The section `quotas`: its entries and windows, and settings of a proxy that say nothing about limits."""

    source: Annotated[str, Text(_FILE, lambda text: text == "file")] = "file"
    entries: Many[QuotaEntry] = ()
    windows: WindowsConfig = WindowsConfig()
    state_file: Any = None
    zookeeper: Any = None
    topic: Any = None
    poll_interval_ms: Any = None
    request_costs: Any = None
    instances: Any = None
    admin_users: Any = None
    admin_listeners: Any = None
    describe_users: Any = None


class _QuotasWithThrottle(_Quotas):
    throttle: ThrottleConfig = ThrottleConfig()


class _Section(Settings):
    quotas: _Quotas
    throttle: ThrottleConfig = ThrottleConfig()


class _Cluster(Settings):
    """A virtual cluster of a proxy's file; the rest of it is not looked at."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Text("a name", bool)]
    quotas: _Quotas = _Quotas()
    throttle: ThrottleConfig = ThrottleConfig()


class _ProxyFile(Settings):
    model_config = ConfigDict(extra="ignore")

    virtual_clusters: Some[_Cluster]


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
    paces_fetches: bool = True
    """Whether a Fetch without room waits for its turn (`throttle.fetch: paced`), or gets no data."""
    shadows: int = 0
    """How many shadow quotas were left out."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As its quotas: a table stands by the hashes of names, which another process has others of."""
        quotas = {entity: dict(limits) for entity, limits in self.table.items()}
        others = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "table"}
        return _rules_of, (quotas, list(self.table.of_cluster), others)


def _rules_of(
    quotas: Mapping[Entity, Mapping[QuotaType, float]], of_cluster: Collection[Entity], others: Mapping[str, Any]
) -> Rules:
    return Rules(QuotaTable(quotas, of_cluster), **others)


@dataclass(frozen=True)
class Candidate:
    """What would be in force: for each virtual cluster by name, or for `all_others`."""

    clusters: Mapping[str, Rules] = field(default_factory=dict)
    all_others: Rules | None = None

    def rules(self, virtual_cluster: str) -> Rules | None:
        """Those of a virtual cluster; None: the file does not say, so nothing would be measured there."""
        return self.clusters.get(virtual_cluster, self.all_others)


def load_candidate(path: AnyPath) -> Candidate:
    """The candidate in the file. Problems with every one and its place."""
    return load_with_checksum(path)[0]


def load_with_checksum(path: AnyPath) -> tuple[Candidate, str]:
    """The same, and the checksum of the bytes that it was read from: a pipe has them only once."""
    content = read_bounded(path)

    def made(data: Any) -> Candidate:
        is_state_file = isinstance(data, Mapping) and "overlay" in data
        return _of_state_file(content, path) if is_state_file else candidate_of(data)

    return made_of(path, made, content), f"sha256:{hashlib.sha256(content).hexdigest()}"


def _of_state_file(content: bytes, path: AnyPath) -> Candidate:
    try:
        overlay, wrong = parse_overlay(content)
    except DamagedOverlay as error:
        raise Problems([Problem(str(path), str(error))]) from error
    if wrong:
        raise Problems([Problem(str(path), f"{place}: {problem}") for place, problem in wrong.items()])
    entries = {
        entity: Entry(
            {key: change.limit for key, change in changed.limits.items() if change.limit is not None},
            Scope.NODE if changed.scope is None else changed.scope.scope,
        )
        for entity, changed in overlay.items()
    }
    return Candidate(all_others=Rules(_enforced(entries), shadows=_shadows(entries)))


def candidate_of(data: Any) -> Candidate:
    """The candidate that lists, dicts and scalars describe. Problems with every one and its place."""
    if isinstance(data, list):
        return _of_entries(data)
    if not isinstance(data, Mapping):
        raise Problems([Problem(WHOLE_FILE, f"expected virtual_clusters, quotas or entries, got {show(data)}")])
    if "virtual_clusters" in data:
        file = read_settings(_ProxyFile, data, [_repeated])
        return Candidate({each.name: _rules(each.quotas, each.throttle) for each in file.virtual_clusters})
    if "quotas" in data:
        section = read_settings(_Section, data, [_repeated])
        return Candidate(all_others=_rules(section.quotas, section.throttle))
    quotas = read_settings(_QuotasWithThrottle, data, [_repeated])
    return Candidate(all_others=_rules(quotas, quotas.throttle))


def _of_entries(data: list[Any]) -> Candidate:
    """The candidate that is a list of entries. Paths of problems begin with the number of the entry."""
    try:
        return candidate_of({"entries": data})
    except Problems as errors:
        places = [each._replace(path=each.path.removeprefix("entries")) for each in errors.problems]
        raise Problems(places) from errors


def _repeated(data: Any) -> list[Problem]:
    """What is to stand there once, wherever it stands."""
    problems = list(repeated_names(items(data, "virtual_clusters"), "virtual_clusters"))
    for place in ("virtual_clusters[].quotas.entries", "quotas.entries", "entries"):
        for path, entries in found_at(data, place):
            problems += repeated_entities(entries, path)
    return problems


def _rules(quotas: _Quotas, throttle: ThrottleConfig) -> Rules:
    entries = {entry.entity(): entry.entry() for entry in quotas.entries}
    windows = quotas.windows
    return Rules(
        _enforced(entries),
        windows.quota_window_num,
        windows.quota_window_size_seconds * 1000,
        windows.controller_quota_window_num,
        windows.controller_quota_window_size_seconds * 1000,
        throttle.max_throttle_ms,
        throttle.max_debt_ms,
        throttle.fetch == "paced",
        _shadows(entries),
    )


def _enforced(entries: Entries) -> QuotaTable:
    enforced = {
        entity: {key.quota_type: limit for key, limit in entry.limits.items() if not key.shadow}
        for entity, entry in entries.items()
    }
    of_cluster = {entity for entity, entry in entries.items() if entry.scope is Scope.CLUSTER}
    return QuotaTable({entity: limits for entity, limits in enforced.items() if limits}, of_cluster)


def _shadows(entries: Entries) -> int:
    return sum(key.shadow for entry in entries.values() for key in entry.limits)
