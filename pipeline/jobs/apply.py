"""`usage apply`: carry out a plan, if the quotas that it found are still in force."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.pipeline.rollout.apply import (
    Audited,
    ChangeStatus,
    Outcome,
    PlanProgress,
    Said,
    alterations_of,
    carry_out,
    outcomes_of,
    progress_of,
)
from kafka_throttle.pipeline.rollout.audit import AuditLog, is_audit
from kafka_throttle.pipeline.rollout.author import now, who
from kafka_throttle.pipeline.rollout.page import counted, drift_page, outcome_rows
from kafka_throttle.pipeline.rollout.place import ENTITIES_A_REQUEST, Place, in_words_of_commands
from kafka_throttle.pipeline.rollout.plan import Change
from kafka_throttle.pipeline.rollout.plan_file import PlanFile, read_plan, write_plan
from kafka_throttle.quotas.changes import Quotas, SourceUnavailable
from kafka_throttle.quotas.sources.source import Source

_SHOWN_WITHIN_S: Final = 10.0
_LOOKS_EVERY_S: Final = 0.1
AUDIT_NAME: Final = "quota-audit.jsonl"


def main(
    plan: AnyPath,
    place: Place,
    dry_run: bool = False,
    audit: AnyPath | None = None,
    rollback_out: AnyPath | None = None,
    by: str | None = None,
    elsewhere: bool = False,
) -> int:
    """Carry out the plan, and report the result of each change; 0 if all is as planned, 1 if not.

    ValueError for a plan that cannot be used, or if the changes could not be written down. Then nothing is changed. The
    audit and the rollback plan are beside the plan, if no other place is given. `by` is the author, if another than the
    user of this process. A plan that was made at another place is refused, unless `elsewhere` is given.
    """
    found = read_plan(plan)
    rollback = rollback_out or _rollback(plan, found)
    audit = _audit(audit or plan.with_name(AUDIT_NAME), (plan, rollback))
    if found.made.place != place.name and not elsewhere:
        raise ValueError(
            f"{plan}: made at {found.made.place}, and this is {place.name}: plan again for it, or use --elsewhere"
        )
    try:
        with place.opened() as source:
            progress = progress_of(found.changes, source.quotas)
            about = _about(found, place, by)
            if progress.drifted:
                return _refused(progress, place, None if dry_run else audit, about)
            if not progress.to_do:
                print(f"nothing to do: {counted(len(progress.done), 'change')} in force already at {place.name}")
                return 0
            if dry_run:
                return _reported_only(progress.to_do, place, source)
            run = _Run(place, found, plan, audit, rollback, about)
            return run.carry_out(progress, source)
    except SourceUnavailable as error:
        _say(f"nothing is changed: {error}")
        return 1


def _audit(audit: AnyPath, plans: Sequence[AnyPath]) -> Path:
    """The file, if lines may be appended to it: that would damage a plan or a file of another kind.

    An object of a store can only be replaced, so that lines of two runs at one moment would be lost. Raises ValueError.
    """
    if not isinstance(audit, Path):
        raise ValueError(f"--audit: expected a file of this machine, to which lines are appended, got {audit}")
    for plan in plans:
        with suppress(OSError):  # one of the files does not exist yet
            if isinstance(plan, Path) and audit.samefile(plan):
                raise ValueError(f"{audit}: expected another file for the audit than {plan}, which is a plan")
    with suppress(OSError):  # reported when the file is opened
        if not is_audit(audit):
            raise ValueError(f"{audit}: expected a new file for the audit, or an audit: its first line is of none")
    return audit


def _rollback(path: AnyPath, plan: PlanFile) -> AnyPath:
    """The path beside the plan; if a file of that name undoes another plan, a path with this plan's checksum."""
    suffix = path.suffix or ".json"
    usual = path.with_name(f"{path.stem}.rollback{suffix}")
    if _taken_back(usual) in ("", plan.checksum):
        return usual
    return path.with_name(f"{path.stem}.rollback-{plan.checksum.removeprefix('sha256:')[:8]}{suffix}")


def _taken_back(path: AnyPath) -> str:
    """The checksum of the plan that the plan in this file undoes; "" if there is none."""
    try:
        return read_plan(path).made.takes_back
    except Problems:
        return ""


def _about(plan: PlanFile, place: Place, by: str | None) -> dict[str, str]:
    process = who()
    return {"by": by or process, "process": process, "where": place.name, "plan": plan.checksum, "run": uuid4().hex}


def _refused(found: PlanProgress, place: Place, audit: Path | None, about: Mapping[str, str]) -> int:
    for line in drift_page(found, place.name):
        _say(line)
    if audit is not None:
        outcomes = [
            Outcome(change, ChangeStatus.NOT_TRIED, limit, "in force is another limit than the plan found")
            for change, limit in found.drifted
        ]
        with _opened(audit) as log:
            Audited(log, about, now).tell(outcomes)
    return 1


def _reported_only(changes: Sequence[Change], place: Place, source: Source) -> int:
    """Print what would be done, and the place's response to it."""
    results = place.judged(source, alterations_of(changes))
    said = dict(zip((one.entity for one in alterations_of(changes)), results, strict=True))
    rows = []
    for change in changes:
        problem = said[change.entity]
        status = ChangeStatus.APPLIED if problem is None else ChangeStatus.REFUSED
        rows.append(Outcome(change, status, change.after, in_words_of_commands(str(problem or ""))))
    for line in outcome_rows(rows, words={ChangeStatus.APPLIED: "would set", ChangeStatus.REFUSED: "would be refused"}):
        print(line)
    refused = sum(row.status is ChangeStatus.REFUSED for row in rows)
    if place.asks_whether(source):
        reported = f", of which {place.name} would refuse {refused}"
    else:
        reported = f"; {place.name} was not asked whether it would refuse any: files and ZooKeeper cannot be"
    print(f"dry run, nothing is changed: {counted(len(rows), 'change')}{reported}")
    return int(refused > 0)


class _Run:
    """A run that makes changes."""

    def __init__(
        self, place: Place, plan: PlanFile, path: AnyPath, audit: Path, rollback: AnyPath, about: Mapping[str, str]
    ) -> None:
        self._place = place
        self._plan = plan
        self._path = path
        self._audit = audit
        self._rollback = rollback
        self._about = about

    def carry_out(self, found: PlanProgress, source: Source) -> int:
        with ExitStack() as stack:
            log = stack.enter_context(_opened(self._audit))
            self._write_rollback()
            audited = Audited(log, self._about, now)
            said: Said = {}
            try:
                carry_out(found.to_do, source, audited, said, _progress(len(found.to_do)))
            except OSError as error:
                _say(f"{self._audit}: cannot be written, so no more is tried: {error.strerror or error}")
            except KeyboardInterrupt:
                _say("interrupted; what is in force now is read")
            outcomes = outcomes_of(found.to_do, said, self._read_back(found.to_do, said))
            outcomes = [one._replace(problem=in_words_of_commands(one.problem)) for one in outcomes]
            is_written = self._write_down(audited, outcomes)
            self._tell(outcomes, len(found.done))
        return int(not is_written or any(outcome.status is not ChangeStatus.APPLIED for outcome in outcomes))

    def _write_down(self, audited: Audited, outcomes: Sequence[Outcome]) -> bool:
        try:
            audited.tell(outcomes)
        except OSError as error:
            _say(f"{self._audit}: what came of it is not written: {error.strerror or error}")
            return False
        return True

    def _write_rollback(self) -> None:
        """Write the rollback plan before anything is changed, so that it exists whatever happens then."""
        plan = self._plan.reversed(now(), self._about["by"])
        try:
            if self._rollback.exists() and _taken_back(self._rollback) != self._plan.checksum:
                raise ValueError(f"{self._rollback}: is there already, and is no plan that takes this one back")
            write_plan(self._rollback, plan)
        except OSError as error:
            raise ValueError(f"{self._rollback}: cannot be written: {error.strerror or error}") from error

    def _read_back(self, changes: Sequence[Change], said: Said) -> Quotas | SourceUnavailable:
        """What is in force now, read on a new connection; brokers may take a moment to report what they accepted."""
        deadline_s = time.monotonic() + _SHOWN_WITHIN_S
        taken = [change for change in changes if change in said and said[change] is None]
        while True:
            try:
                with self._place.opened() as source:
                    quotas = source.quotas
            except SourceUnavailable as error:
                return error
            if len(progress_of(taken, quotas).done) == len(taken) or time.monotonic() > deadline_s:
                return quotas
            time.sleep(_LOOKS_EVERY_S)

    def _tell(self, outcomes: Sequence[Outcome], done: int) -> None:
        statuses = Counter(outcome.status for outcome in outcomes)
        summary = ", ".join(f"{statuses[status]} {status.value}" for status in ChangeStatus if statuses[status])
        before = f", {done} in force before" if done else ""
        _print(
            *outcome_rows(outcomes),
            f"{summary} at {self._place.name}{before}, as read back; written down in {self._audit}",
            f"`kafka-throttle usage apply {self._rollback}` with the same place takes it back",
        )
        if statuses.keys() - {ChangeStatus.APPLIED}:
            _say(f"apply {self._path} again for the rest: what is in force already is left alone")


def _opened(path: Path) -> AuditLog:
    try:
        return AuditLog(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror or error}") from error


def _progress(total: int) -> Callable[[int], None]:
    """Shows on a terminal how many of very many changes have been written."""
    if total <= ENTITIES_A_REQUEST or not sys.stderr.isatty():
        return lambda count: None
    return lambda count: print(f"\r{count:,} of {total:,} changes", end="" if count < total else "\n", file=sys.stderr)


def _print(*lines: str) -> None:
    """Print to standard output and ignore if it is closed: the quotas in force do not depend on the output."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:
        _say(f"standard output: not all could be written: {getattr(error, 'strerror', None) or error}")
        with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # otherwise Python writes again when it ends, and fails


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr)
