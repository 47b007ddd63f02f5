"""Carrying out a plan where quotas are in force, and telling what came of each of its changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pipeline.rollout.audit import AuditLog
from pipeline.rollout.place import ENTITIES_A_REQUEST
from pipeline.rollout.plan import Change, same
from pipeline.rollout.plan_file import entity_form
from quotas.changes import Alteration, Quotas, SourceUnavailable
from quotas.entities import Entity, QuotaKey
from quotas.sources.source import Source


class ChangeStatus(Enum):
    """What became of a change; the value is the word for it in audit lines."""

    APPLIED = "applied"
    """It was read back."""
    REFUSED = "refused"
    """It is as before, and there is a reason."""
    UNKNOWN = "unknown"
    """It may have been written: what is in force could not be read any more, or is something else."""
    NOT_TRIED = "not tried"
    """Something before it went wrong."""


class Outcome(NamedTuple):
    """What became of a change; `found` is the limit that was read afterwards, None for none or not read."""

    change: Change
    status: ChangeStatus
    found: float | None = None
    problem: str = ""


class Standing(NamedTuple):
    """How the changes of a plan stand against what is in force now."""

    to_do: tuple[Change, ...]
    done: tuple[Change, ...]
    """In force already, and to be left alone."""
    drifted: tuple[tuple[Change, float | None], ...]
    """Neither as the plan found it nor as it wants it, with what is in force."""


def standing(changes: Sequence[Change], in_force: Quotas) -> Standing:
    """Which changes are still to be done, and which cannot be, as somebody else has changed what they change."""
    to_do, done, drifted = [], [], []
    for change in changes:
        found = limit_in(in_force, change)
        if same(found, change.after):
            done.append(change)
        elif same(found, change.before):
            to_do.append(change)
        else:
            drifted.append((change, found))
    return Standing(tuple(to_do), tuple(done), tuple(drifted))


def limit_in(quotas: Quotas, change: Change) -> float | None:
    """The limit that a change is about, as it is."""
    limit = quotas.get(change.entity, {}).get(QuotaKey(change.quota_type))
    return None if limit is None else limit.value


def alterations_of(changes: Sequence[Change]) -> list[Alteration]:
    """One for each entity."""
    return [
        Alteration(entity, {QuotaKey(change.quota_type): change.after for change in group})
        for entity, group in _by_entity(changes).items()
    ]


def _by_entity(changes: Sequence[Change]) -> dict[Entity, list[Change]]:
    groups: dict[Entity, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.entity, []).append(change)
    return groups


@dataclass(frozen=True)
class Audited:
    """Writes down what is about to be done, and what came of it; `about` stands in every line."""

    log: AuditLog
    about: Mapping[str, Any]
    now: Callable[[], str]

    def intend(self, changes: Sequence[Change]) -> None:
        """Before anything of it is done. Raises OSError; then it must not be done."""
        self.log.write(self._line(change, "intended") for change in changes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """What came of changes. Raises OSError."""
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
"""What a source has said to changes; None: that it has taken it."""


def carry_out(
    changes: Sequence[Change], source: Source, audited: Audited, said: Said, each: Callable[[int], None]
) -> None:
    """Write changes, those of one entity whole or not at all, and put into `said` what came of those that were tried.

    After something that was not taken no more is tried. `each` is told how many changes have been tried. Raises OSError
    if the audit cannot be written; what it was to tell of has not been tried.
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
    """What became of each change, by what is in force now: not by what was said, as a response can be lost."""
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
        change, ChangeStatus.UNKNOWN, found, problem or "it was taken, and is not in force: somebody else changed it"
    )
