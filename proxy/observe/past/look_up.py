"""What was in a second of the past, from the segments on disk. Blocks on the disk: to be called in a thread."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from kafka_throttle.proxy.observe.explained import Observed, Origin, explained_form, limit_form, number, time_form
from kafka_throttle.proxy.observe.forms import (
    ChangeForm,
    OperationForm,
    OperationsForm,
    OriginForm,
    PastExplainedClientForm,
    PastExplanationForm,
    PastExplanationPage,
    PastThrottledForm,
    PastThrottledPage,
    WhenForm,
)
from kafka_throttle.proxy.observe.known_clients import MAX_EXPLAINED, Names, as_measured
from kafka_throttle.proxy.observe.past.moments import Held, NotHeld, second_of, second_text
from kafka_throttle.proxy.observe.past.records import Damaged, Head, Kinds, Others, PastLine, QuotasOf, Seconds, Version
from kafka_throttle.proxy.observe.past.segments import Reading, held_in, may_hold
from kafka_throttle.quotas.changes import Limit, Quotas, Tables, tables_of
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, plain_ip
from kafka_throttle.quotas.explain import Client, Explanation, explain
from kafka_throttle.quotas.precedence import covering
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import TraceEvent
from kafka_throttle.quotas.sources.entry_forms import entity_form

MAX_OPERATIONS = 100
"""The most operations on the sensors of one quota in an explanation."""

_NOT_KEPT = "the quotas of this time were not kept, as they need more than half a segment (history.max_mib)"
_DAMAGED = "damaged records were skipped: the quotas may be incomplete"
_NO_HOSTS = "quotas of host names are left out: which addresses the names had is not kept"


class Trace(NamedTuple):
    """The operations of a second in a trace. `has_gaps`: some were dropped."""

    events: Sequence[TraceEvent] = ()
    has_gaps: bool = False


Traced = Callable[[str, int], Trace]
"""The trace of a virtual cluster in a second; empty if there is none."""


@dataclass(slots=True)
class _Second:
    """What the segments hold of one second: the lines of each virtual cluster, and the records of quotas until then."""

    second: int
    first_s: int
    last_s: int
    lines: dict[str, list[PastLine]] = field(default_factory=dict)
    others: dict[str, Others] = field(default_factory=dict)
    quotas: Sequence[Head] = ()
    damaged: int = 0

    @property
    def end_ms(self) -> int:
        return (self.last_s + 1) * 1000

    def add(self, seconds: Seconds) -> None:
        """Add what one writer has recorded."""
        if seconds.clusters:
            self.first_s, self.last_s = min(self.first_s, seconds.first_s), max(self.last_s, seconds.last_s)
        for name, throttled in seconds.clusters.items():
            self.lines.setdefault(name, []).extend(throttled.lines)
            others, more = self.others.setdefault(name, Others()), throttled.others
            others.lines += more.lines
            others.throttles += more.throttles
            others.given_ms += more.given_ms
            others.throttled_ms += more.throttled_ms

    def quotas_of(self, virtual_cluster: str, wanted: Set[Entity]) -> "_PastQuotas":
        """The quotas of these entities that were in force in a virtual cluster at the end of the second."""
        found = _PastQuotas()
        names = {frozenset(entity_form(entity).items()) for entity in wanted}
        for head in self.quotas:
            try:
                record = head.record(lambda form: frozenset(form["entity"].items()) in names)
            except Damaged:
                self.damaged += 1
                continue
            if isinstance(record, QuotasOf) and record.virtual_cluster == virtual_cluster:
                found.take(record, self.end_ms)
        found.quotas = {entity: version.limits for entity, version in found.versions.items() if version.limits}
        return found


@dataclass(slots=True)
class _PastQuotas:
    """Quotas as of a time, with their last changes before."""

    source: str = ""
    known: bool = False
    kept: bool = True
    kinds: Kinds = field(default_factory=lambda: Kinds({}, {}))
    versions: dict[Entity, Version] = field(default_factory=dict)
    quotas: Quotas = field(default_factory=dict)

    def take(self, record: QuotasOf, end_ms: int) -> None:
        """Apply a record. A segment may begin with quotas that came into force just after the second."""
        if record.begins:
            self.versions = {}
            self.kept = record.kept
        self.source, self.known, self.kinds = record.source, record.known, record.kinds
        for entity, version in record.versions.items():
            is_later = version.since_ms is not None and version.since_ms >= end_ms
            self.versions[entity] = Version(version.before) if is_later else version

    def of(self, wanted: Set[Entity]) -> "_PastQuotas":
        """Those of some entities."""
        versions = {entity: version for entity, version in self.versions.items() if entity in wanted}
        quotas = {entity: limits for entity, limits in self.quotas.items() if entity in wanted}
        return replace(self, versions=versions, quotas=quotas)

    def tables(self) -> Tables:
        enforced, shadow = tables_of(self.quotas)
        return Tables(enforced.remembering(self.kinds.enforced), shadow.remembering(self.kinds.shadow))

    def changes(self, key: QuotaKey) -> Iterator[ChangeForm]:
        """The last change of this quota of each entity, as far as it is kept."""
        for entity, version in self.versions.items():
            old, new = _limit(version.before, key), _limit(version.limits, key)
            if version.since_ms is not None and old != new:
                yield {
                    "at": time_form(version.since_ms),
                    "entity": entity_form(entity),
                    "old": None if old is None else number(old.value),
                    "new": None if new is None else number(new.value),
                    "layer": None if new is None else new.layer,
                    "scope": None if new is None else limit_form(key, new)["scope"],
                }


def _limit(limits: Mapping[QuotaKey, Limit] | None, key: QuotaKey) -> Limit | None:
    return None if limits is None else limits.get(key)


class Past:
    """Answers questions about seconds of the past. Raises BadMoment or NotHeld, whose messages are for people.

    `flush` writes what is still to be written, and `traced` reads the trace, if there may be one.
    """

    def __init__(
        self,
        directory: Path,
        keep_s: int,
        traced: Traced | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._keep_s = keep_s
        self._traced = traced
        self._flush = flush

    def held(self, now_s: float) -> Held | None:
        """The range of seconds that may be asked for."""
        return held_in(self._directory, self._keep_s, now_s)

    def throttled(self, virtual_clusters: Iterable[str], at: str, most: int, now_s: float) -> PastThrottledPage:
        """Who was throttled at a time: the clients that were muted for longest first, and the sums of the others."""
        found = self._find(at, now_s)
        lines: list[tuple[int, PastThrottledForm]] = []
        clients: set[tuple[str, str]] = set()
        unknown: list[OriginForm] = []
        others, total = Others(), 0
        for name in virtual_clusters:
            past = found.lines.get(name, [])
            quotas = found.quotas_of(name, {each.line.first.entity for each in past if each.line.first.entity})
            lines += ((each.line.throttled_ms, _line_form(each, name, quotas)) for each in past)
            clients |= {(each.line.first.user, each.line.first.client_id) for each in past}
            more = found.others.get(name, Others())
            others = Others(
                others.lines + more.lines,
                others.throttles + more.throttles,
                others.given_ms + more.given_ms,
                others.throttled_ms + more.throttled_ms,
            )
            total += len(past) + more.lines
            if not quotas.known:
                unknown.append(Origin(name, quotas.source, {}, known=False).form())
        lines.sort(key=lambda line: -line[0])
        for _, form in lines[most:]:
            others.lines += 1
            others.throttles += form["throttles"]
            others.given_ms += form["given_ms"]
            others.throttled_ms += form["throttled_ms"]
        return {
            **_when(found),
            "precision": "second",
            "sort": "throttled",
            "clients": len(clients),
            "total": total,
            "more": others.lines,
            "others": {"throttles": others.throttles, "given_ms": others.given_ms, "throttled_ms": others.throttled_ms},
            "throttled": [form for _, form in lines[:most]],
            "quotas_unknown": unknown,
        }

    def explained(self, virtual_cluster: str, names: Names, at: str, now_s: float) -> PastExplanationPage:
        """The explanation of the quotas of the client with these names at a time. A client-id is as the client gave it.

        If the names fit several clients, those are explained that were throttled then.
        """
        found = self._find(at, now_s)
        lines = found.lines.get(virtual_cluster, [])
        clients, more, notes = _clients_in(lines, names)
        entities = {client: _entities_of(client) | _entities_of(_with_short_id(client)) for client in clients}
        quotas = found.quotas_of(virtual_cluster, frozenset().union(*entities.values()))
        trace = Trace() if self._traced is None else self._traced(virtual_cluster, found.second)
        explained = _Explained(virtual_cluster, lines, trace)
        first, *others = (explained.client(client, quotas.of(entities[client])) for client in clients)
        remarks = {_NOT_KEPT: not quotas.kept, _DAMAGED: found.damaged, _NO_HOSTS: names.ip is not None}
        return {
            **Origin(virtual_cluster, quotas.source, {}, quotas.known).form(),
            **_when(found),
            **first,
            "live": False,
            "node_throttles": [],
            "caps": [],
            "others": others,
            "more": more,
            "notes": [*notes, *(remark for remark, applies in remarks.items() if applies)],
        }

    def _find(self, at: str, now_s: float) -> _Second:
        self._flush()
        held = self.held(now_s)
        second = second_of(at, now_s, held)
        found = _Second(second, second, second)
        has_any = False
        for path in may_hold(self._directory, second):
            has_any = _read(path, second, found) or has_any
        if not has_any:
            reason = "no proxy wrote then, or it could not"
            raise NotHeld(f"at: the history has nothing of {second_text(second)}: {reason}; it has {held}")
        return found


def _read(path: Path, second: int, found: _Second) -> bool:
    """Add what a segment holds of a second; False if that is nothing."""
    reading = Reading(path)
    heads: list[Head] = []
    has_begun = has_any = False
    damaged = 0
    for head in reading.heads():
        if head.kind == "q":
            if not has_begun or head.first < (second + 1) * 1000:
                heads.append(head)
            continue
        has_begun = True
        if head.first <= second <= head.last:
            try:
                seconds = head.record()
            except Damaged:
                damaged += 1
                continue
            assert isinstance(seconds, Seconds)
            found.add(seconds)
            has_any = True
    if has_any:
        found.quotas = heads
        found.damaged += reading.damaged + damaged
    return has_any


def _when(found: _Second) -> WhenForm:
    """The second, the last one if several were recorded together, and how many damaged records were skipped."""
    return {"at": second_text(found.first_s), "until": second_text(found.last_s), "skipped": found.damaged}


def _clients_in(lines: Sequence[PastLine], names: Names) -> tuple[list[Client], int, list[str]]:
    """The clients to explain, at least one, how many more there are, and what is to be said of them."""
    if names.client is not None:
        return [names.client], 0, []
    client_ids = set() if names.client_id is None else {names.client_id, as_measured(names.client_id, QuotaTable())}
    ip = None if names.ip is None else plain_ip(names.ip)
    muted_ms: dict[Client, int] = {}
    for each in lines:
        first = each.line.first
        fits = names.user in (None, first.user) and (not client_ids or first.client_id in client_ids)
        if fits and ip in (None, first.ip):
            client = Client(first.user, first.client_id, names.ip)
            muted_ms[client] = muted_ms.get(client, 0) + each.line.throttled_ms
    if not muted_ms:
        which = f"no client with {names}" if any(name is not None for name in names) else "no client"
        stand_in, note = names.stand_in(f"{which} was throttled then, and it is not kept who else was connected")
        return [stand_in], 0, [note]
    first_ones = sorted(muted_ms, key=lambda client: (-muted_ms[client], client.user, client.client_id))
    return first_ones[:MAX_EXPLAINED], max(len(first_ones) - MAX_EXPLAINED, 0), []


def _with_short_id(client: Client) -> Client:
    """The client under the client-id that is measured if no quota names it."""
    return client._replace(client_id=as_measured(client.client_id, QuotaTable()))


class _Explained(NamedTuple):
    """What a second has for the explanations of its clients."""

    virtual_cluster: str
    lines: Sequence[PastLine]
    trace: Trace

    def client(self, client: Client, quotas: _PastQuotas) -> PastExplainedClientForm:
        """The explanation of one client, with the quotas that may cover it."""
        tables = quotas.tables()
        client = client._replace(client_id=as_measured(client.client_id, tables.enforced))
        explanations = explain(quotas.quotas, tables, client, known=quotas.known) if quotas.kept else []
        origin = Origin(self.virtual_cluster, quotas.source, {}, quotas.known)
        form = explained_form(origin, client, [(each, Observed()) for each in explanations], (), None)
        explained: list[PastExplanationForm] = [
            {
                **of_quota,
                "changes": list(quotas.changes(explanation.key)),
                "throttled": [self._line(each, quotas) for each in self.lines if _is_of(each, explanation)],
                **_operations(self.trace, explanation),
            }
            for explanation, of_quota in zip(explanations, form["quotas"], strict=True)
        ]
        precisions = {of_quota["precision"] for of_quota in explained}
        return {
            "precision": "exact" if "exact" in precisions else "second",
            "client": form["client"],
            "quotas": explained,
            "node_throttled": [
                self._line(each, quotas)
                for each in self.lines
                if each.line.first.quota_type is None
                and (each.line.first.user, each.line.first.client_id) == (client.user, client.client_id)
            ],
        }

    def _line(self, line: PastLine, quotas: _PastQuotas) -> PastThrottledForm:
        return _line_form(line, self.virtual_cluster, quotas)


def _entities_of(client: Client) -> set[Entity]:
    """The entities whose quotas may cover a client. Host names of its address are not known."""
    found = set(starmap(Entity, covering(client.user, client.client_id)))
    return found if client.ip is None else found | {Entity(ip=plain_ip(client.ip)), Entity(ip=DEFAULT)}


def _line_form(past: PastLine, virtual_cluster: str, quotas: _PastQuotas) -> PastThrottledForm:
    line = past.line.form(virtual_cluster, quotas.source, quotas.quotas)
    return {**line, "given_ms": past.given_ms, "charged": past.charged}


def _is_of(past: PastLine, explanation: Explanation) -> bool:
    """Whether the line is of a client that is measured together with the one that is explained, by this quota."""
    first, key = past.line.first, explanation.key
    return (
        not key.shadow
        and first.tags is not None
        and (first.quota_type, first.tags) == (key.quota_type, explanation.tags)
    )


def _operations(trace: Trace, explanation: Explanation) -> OperationsForm:
    """The traced operations on the sensors of a quota. The answer is exact if there are any, and none was dropped."""
    key, tags = explanation.key, explanation.tags
    events: list[TraceEvent] = []
    if tags is not None and key.quota_type is not QuotaType.CONNECTION:
        events = [
            event
            for event in trace.events
            if (event.quota_type, bool(event.shadow)) == (key.quota_type.name.lower(), key.shadow)
            and tags.user in ("", event.user)
            and tags.client_id in ("", event.client_id)
        ]
    return {
        "precision": "exact" if events and not trace.has_gaps else "second",
        "operations": [_operation_form(event) for event in events[:MAX_OPERATIONS]],
        "more_operations": max(len(events) - MAX_OPERATIONS, 0),
    }


def _operation_form(event: TraceEvent) -> OperationForm:
    return {
        "at": time_form(event.wall_ms),
        "operation": event.operation,
        "value": event.value,
        "throttle_time_ms": event.throttle_ms,
        "limit": event.limit,
        "node_id": event.node_id,
        "user": event.user,
        "client_id": event.client_id,
        "requests": event.count,
    }
