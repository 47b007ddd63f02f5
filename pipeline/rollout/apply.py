"""Carries out a plan where quotas are in force, and reports what became of each change."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from kafka_throttle.pipeline.rollout.audit import AuditLog
from kafka_throttle.pipeline.rollout.place import ENTITIES_A_REQUEST
from kafka_throttle.pipeline.rollout.plan import Change, same
from kafka_throttle.pipeline.rollout.plan_file import entity_form
from kafka_throttle.quotas.changes import Alteration, Quotas, SourceUnavailable, has_scope
from kafka_throttle.quotas.entities import Entity, QuotaKey, Scope
from kafka_throttle.quotas.sources.source import Source


class ChangeStatus(Enum):
    """The status of a change; the value is its word in audit lines."""

    APPLIED = "applied"
    """The new limit was read back."""
    REFUSED = "refused"
    """The limit is as before, and there is a reason."""
    UNKNOWN = "unknown"
    """The limit may have been written: it could not be read back, or is neither the old nor the new one."""
    NOT_TRIED = "not tried"
    """An earlier change failed."""


class Outcome(NamedTuple):
    """The result of a change; `found` is the limit that was read afterwards, None for no limit or not read."""

    change: Change
    status: ChangeStatus
    found: float | None = None
    problem: str = ""


class PlanProgress(NamedTuple):
    """The changes of a plan, compared with what is in force now."""

    to_do: tuple[Change, ...]
    done: tuple[Change, ...]
    """In force already, and left alone."""
    drifted: tuple[tuple[Change, float | None], ...]
    """Neither as the plan found it nor as it sets it, with the limit in force."""


def progress_of(changes: Sequence[Change], in_force: Quotas) -> PlanProgress:
    """Which changes are still to be made, and which cannot be made because the limit has been changed meanwhile."""
    to_do, done, drifted = [], [], []
    for change in changes:
        found = limit_in(in_force, change)
        if same(found, change.after):
            done.append(change)
        elif same(found, change.before):
            to_do.append(change)
        else:
            drifted.append((change, found))
    return PlanProgress(tuple(to_do), tuple(done), tuple(drifted))


def limit_in(quotas: Quotas, change: Change) -> float | None:
    """The limit in `quotas` that a change is about."""
    limit = quotas.get(change.entity, {}).get(QuotaKey(change.quota_type))
    return None if limit is None else limit.value


def alterations_of(changes: Sequence[Change]) -> list[Alteration]:
    """One alteration for each entity."""
    return [
        Alteration(entity, {QuotaKey(change.quota_type): change.after for change in group}, _scope_to_set(group))
        for entity, group in _by_entity(changes).items()
    ]


def _scope_to_set(changes: Sequence[Change]) -> Scope | None:
    """The scope that goes with limits which an earlier change may have removed together with it."""
    is_back = any(one.scope is Scope.CLUSTER and one.before is None and one.after is not None for one in changes)
    return Scope.CLUSTER if is_back and has_scope(QuotaKey(one.quota_type) for one in changes) else None


def _by_entity(changes: Sequence[Change]) -> dict[Entity, list[Change]]:
    groups: dict[Entity, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.entity, []).append(change)
    return groups


@dataclass(frozen=True)
class Audited:
    """Writes down each change before it is made, and its result; every line has the keys of `about`."""

    log: AuditLog
    about: Mapping[str, Any]
    now: Callable[[], str]

    def intend(self, changes: Sequence[Change]) -> None:
        """Write the lines before any of the changes is made. Raises OSError; then the changes must not be made."""
        self.log.write(self._line(change, "intended") for change in changes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Write the results of changes. Raises OSError."""
        lines = []
        for outcome in outcomes:
            line = self._line(outcome.change, outcome.status.value)
            if outcome.problem:
                line |= {"problem": outcome.problem, "found": outcome.found}
            lines.append(line)
        self.log.write(lines)

    def _line(self, change: Change, event: str) -> dict[str, Any]:
        what = {"entity": entity_form(change.entity), "quota": change.quota_type.value}
        return {"at": self.now(), "event": event, **what, "before": change.before, "after": change.after, **self.about}


Said = dict[Change, Exception | None]
"""The responses of a source to changes; None: it has accepted the change."""


def carry_out(
    changes: Sequence[Change], source: Source, audited: Audited, said: Said, each: Callable[[int], None]
) -> None:
    """Write changes, those of one entity whole or not at all, and put the responses to the tried changes into `said`.

    After a change that was refused no more are tried. `each` is called with the number of changes that have been tried.
    Raises OSError if the audit cannot be written; then the changes that could not be recorded have not been tried.
    """
    for batch in _batches(changes):
        audited.intend(batch)
        said |= dict.fromkeys(batch, SourceUnavailable("interrupted while it was written"))
        alterations = alterations_of(batch)
        results = dict(zip((one.entity for one in alterations), source.alter(alterations), strict=True))
        said |= {change: results[change.entity] for change in batch}
        each(len(said))
        if any(results.values()):
            break


def _batches(changes: Sequence[Change]) -> Iterator[list[Change]]:
    groups = list(_by_entity(changes).values())
    for i in range(0, len(groups), ENTITIES_A_REQUEST):
        yield [change for group in groups[i : i + ENTITIES_A_REQUEST] for change in group]


def outcomes_of(changes: Sequence[Change], said: Said, read_back: Quotas | SourceUnavailable) -> list[Outcome]:
    """The result of each change, by what is in force now and not by the response, as a response can be lost."""
    return [_outcome(change, said, read_back) for change in changes]


def _outcome(change: Change, said: Said, read_back: Quotas | SourceUnavailable) -> Outcome:
    if change not in said:
        return Outcome(change, ChangeStatus.NOT_TRIED, problem="something before it went wrong")
    problem = str(said[change] or "")
    if isinstance(read_back, SourceUnavailable):
        why = "; ".join(filter(None, (problem, f"cannot be read back: {read_back}")))
        return Outcome(change, ChangeStatus.UNKNOWN, problem=why)
    found = limit_in(read_back, change)
    if same(found, change.after):
        return Outcome(change, ChangeStatus.APPLIED, found)
    if same(found, change.before) and problem:
        return Outcome(change, ChangeStatus.REFUSED, found, problem)
    return Outcome(
        change,
        ChangeStatus.UNKNOWN,
        found,
        problem or "it was accepted, but is not in force: it was changed again",
    )
