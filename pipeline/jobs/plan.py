"""`usage plan`: the changes that lead from the quotas in force to those of a file, in steps of bounded size."""

import math
import sys
from typing import Any

from kafka_throttle.common.problems import Problems
from kafka_throttle.common.remote_path import AnyPath
from kafka_throttle.pipeline.rollout.author import now, who
from kafka_throttle.pipeline.rollout.page import plan_page, warnings_of
from kafka_throttle.pipeline.rollout.place import Place, in_words_of_commands
from kafka_throttle.pipeline.rollout.plan import Bounds, other_scopes, planned
from kafka_throttle.pipeline.rollout.plan_file import Made, PlanFile, read_plan, write_plan
from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules, load_with_checksum
from kafka_throttle.quotas.changes import SourceUnavailable, tables_of


def main(
    place: Place,
    quotas: AnyPath,
    virtual_cluster: str | None = None,
    out: AnyPath | None = None,
    most_change: float = 2.0,
    most_entities: int | None = None,
    prune: bool = False,
    by: str | None = None,
) -> int:
    """Print the plan, and write it to `out`; 1 if the place cannot be read. ValueError for input that cannot be used.

    `virtual_cluster` chooses among those of a file that has several. `by` is the author, if another than the user of
    this process.
    """
    if out is not None:
        _refuse_what_is_no_plan(out)
    rules, checksum = wanted_rules(quotas, virtual_cluster)
    if prune and not rules.table:
        raise ValueError(f"{quotas}: expected at least one quota with --prune, which would remove all, got none")
    if rules.shadows:
        _warn(f"{rules.shadows} shadow quotas of {quotas} are left out: set them with `kafka-throttle quotas set`")
    try:
        with place.opened() as source:
            in_force, problems = tables_of(source.quotas).enforced, dict(source.problems)
    except SourceUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    for where, problem in problems.items():
        _warn(f"{where}: {in_words_of_commands(problem)}")
    found = planned(in_force, rules.table, Bounds(most_change, most_entities), prune=prune)
    for line in plan_page(found, place.name):
        print(line)
    if others := other_scopes(in_force, rules.table):
        [entity, scope], more = others[0], f" and of {len(others) - 1} others" if len(others) > 1 else ""
        _warn(
            f"the scope of {entity}{more} is not as in {quotas} ({scope.value}), and stays as it is: set it with "
            "`kafka-throttle quotas set --scope`"
        )
    for warning in warnings_of(found, in_force):
        _warn(warning)
    if out is not None:
        options = {
            "most_change": most_change if math.isfinite(most_change) else "inf",
            "most_entities": most_entities,
            "prune": prune,
        }
        made = Made(now(), by or who(), place.name, str(quotas), {**options, "quotas": checksum})
        _write(out, PlanFile(made, found.changes, found.waiting))
    return 0


def wanted_rules(path: AnyPath, virtual_cluster: str | None) -> tuple[Rules, str]:
    """The quotas that a file wants, and the file's checksum.

    Raises Problems with each problem and its place, or ValueError if it is not clear which quotas are meant.
    """
    candidate, checksum = load_with_checksum(path)
    return _chosen(candidate, path, virtual_cluster), checksum


def _chosen(candidate: Candidate, path: AnyPath, name: str | None) -> Rules:
    if candidate.all_others is not None:
        return candidate.all_others
    names = sorted(candidate.clusters)
    if name is None and len(names) == 1:
        return candidate.clusters[names[0]]
    if name is None or name not in candidate.clusters:
        got = "nothing" if name is None else repr(name)
        raise ValueError(f"{path}: --virtual-cluster: expected {' or '.join(names)}, got {got}")
    return candidate.clusters[name]


def _refuse_what_is_no_plan(out: AnyPath) -> None:
    """Refuse to replace anything but a plan or an empty file."""
    try:
        if not out.exists() or (out.is_file() and _is_empty(out)):
            return
        is_plan = out.is_file() and bool(read_plan(out))
    except OSError as error:
        raise ValueError(f"{out}: cannot be written: {error.strerror or error}") from error
    except Problems:
        is_plan = False
    if not is_plan:
        raise ValueError(f"{out}: is there already, and is no plan")


def _is_empty(path: AnyPath) -> bool:
    with path.open("rb") as file:
        return not file.read(1)


def _write(out: AnyPath, plan: PlanFile) -> None:
    try:
        write_plan(out, plan)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written: {error.strerror or error}") from error
    if plan.changes:
        print(f"{out} is written; `kafka-throttle usage apply {out}` with the same place carries it out")
    else:
        print(f"{out} is written, with nothing to do")


def _warn(text: Any) -> None:
    print(f"warning: {text}", file=sys.stderr)
