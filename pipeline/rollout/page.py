"""The printed output of `usage plan` and `usage apply`."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from kafka_throttle.pipeline.rollout.apply import ChangeStatus, Outcome, PlanProgress
from kafka_throttle.pipeline.rollout.plan import Change, Planned
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.explain import always_overridden_by
from kafka_throttle.quotas.quota_table import QuotaTable

_HEADS = ("entity", "quota", "in force", "this run", "wanted", "")
_UNITS = "Byte rates in bytes/s, request_percentage in % of one thread, the others per second; each at every node."


def plan_page(planned: Planned, place: str) -> Iterator[str]:
    """The lines that describe a plan."""
    if not planned.changes:
        yield f"nothing to change at {place}: {counted(planned.as_wanted, 'limit')} as wanted already"
        return
    rows = [_row(change) for change in (*planned.changes, *planned.waiting)]
    yield from table(_HEADS, rows, right=(2, 3, 4))
    yield ""
    yield _UNITS
    entities = len({change.entity for change in planned.changes})
    kept = f"; {counted(planned.as_wanted, 'limit')} as wanted already" if planned.as_wanted else ""
    yield f"{counted(len(planned.changes), 'change')} of {counted(entities, 'entity')} at {place}{kept}"
    if left := sum(not change.is_whole for change in (*planned.changes, *planned.waiting)):
        yield f"{counted(left, 'limit')} will not be as wanted after this run: apply it, then plan again"


def _row(change: Change) -> tuple[str, ...]:
    entity, quota = str(change.entity), change.quota_type.value
    before = shown(change.before)
    if change.before is None and change.inherited is not None:
        before = f"none ({shown(change.inherited.limit)} by {change.inherited.entity})"
    now = "-" if change.after == change.before else shown(change.after)
    why = change.why
    if change.after is None and change.inherited is not None:
        why = f"then {shown(change.inherited.limit)} by {change.inherited.entity}"
    return entity, quota, before, now, shown(change.wanted), why


def warnings_of(planned: Planned, in_force: QuotaTable) -> Iterator[str]:
    """Warnings about quotas that will apply to no client, because another quota always comes first."""
    having: dict[QuotaType, set[Entity]] = {quota_type: set() for quota_type in QuotaType}
    for entity, limits in _after(planned.changes, in_force).items():
        for quota_type in limits:
            having[quota_type].add(entity)
    for change in planned.changes:
        if change.after is not None and (first := always_overridden_by(change.entity, having[change.quota_type])):
            yield f"{change.quota_type.value} of {change.entity}: {first.warning()}"


def _after(changes: Sequence[Change], in_force: QuotaTable) -> QuotaTable:
    limits = {change.entity: dict(in_force.get(change.entity, {})) for change in changes}
    for change in changes:
        limits[change.entity].pop(change.quota_type, None)
        if change.after is not None:
            limits[change.entity][change.quota_type] = change.after
    return in_force.changed(limits)


def drift_page(progress: PlanProgress, place: str) -> Iterator[str]:
    """The lines that say why nothing is done."""
    yield f"nothing is changed at {place}: other quotas are in force than when the plan was made; plan again"
    for change, found in progress.drifted:
        reported = f"the plan found {shown(change.before)} and sets {shown(change.after)}"
        yield f"  {change.quota_type.value} of {change.entity}: {reported}, in force is {shown(found)}"


def outcome_rows(
    outcomes: Sequence[Outcome], words: Mapping[ChangeStatus, str] = MappingProxyType({})
) -> Iterator[str]:
    """A line for each outcome; `words` replace the usual word of a status."""
    heads = ("", "entity", "quota", "before", "after", "")
    rows = []
    for outcome in outcomes:
        change = outcome.change
        after = outcome.found if outcome.status is ChangeStatus.APPLIED else change.after
        reported = words.get(outcome.status, outcome.status.value)
        limits = shown(change.before), shown(after)
        rows.append((reported, str(change.entity), change.quota_type.value, *limits, outcome.problem))
    return table(heads, rows, right=(3, 4))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Rows under their headings, as wide as necessary; the columns in `right` are aligned to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        cells = (
            f"{cell:>{w}}" if i in right else f"{cell:<{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def shown(limit: float | None) -> str:
    """A limit as people read it, without decimals if it is a whole number."""
    if limit is None:
        return "none"
    return f"{int(limit):,}" if limit.is_integer() else f"{limit:,}"


def counted(count: int, thing: str) -> str:
    """A number with its noun."""
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"
