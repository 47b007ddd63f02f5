"""Finds the new rows of a batch by runs of sequence numbers, not row by row.

A *run* is (writer, line offset, interval): the offset is sequence less line number, so within one offset no sequence
number comes twice. Two rows with the same sequence number are therefore always in different runs, and it is enough to
say for each run which part of its interval is new.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.table.accounts import Account, Accounts, Writer
from pipeline.table.intervals import Interval, Intervals, size, union


class Run(NamedTuple):
    """Rows of one writer and offset, with all the sequence numbers of the interval."""

    writer: Writer
    offset: int
    interval: Interval


class Decision(NamedTuple):
    """The part of a batch that is taken."""

    taken: list[Run]
    accounts: dict[Writer, Account]
    new: int
    duplicates: int


def judged(runs: Iterable[Run], known: Accounts) -> Decision:
    """The parts of the runs that are neither in the table nor in an earlier run."""
    of_writer: Mapping[Writer, list[Run]] = defaultdict(list)
    for run in runs:
        of_writer[run.writer].append(run)
    taken: list[Run] = []
    accounts = {}
    total = 0
    for writer, its_runs in of_writer.items():
        fresh = _fresh(its_runs, known.get(writer, Account()).present)
        accounts[writer] = Account(union(run.interval for run in fresh))
        taken += fresh
        total += size(run.interval for run in its_runs)
    new = size(run.interval for run in taken)
    return Decision(taken, accounts, new, total - new)


def _fresh(runs: list[Run], present: Intervals) -> list[Run]:
    """The new parts, by ascending first number: the run that reaches furthest covers everything before its end."""
    fresh = []
    covered = -1
    ends = [last for _, last in present]
    for run in sorted(runs, key=lambda run: run.interval):
        first, last = max(run.interval[0], covered + 1), run.interval[1]
        covered = max(covered, last)
        at = bisect_left(ends, first)
        while first <= last and at < len(present) and present[at][0] <= last:
            if first < present[at][0]:
                fresh.append(run._replace(interval=(first, present[at][0] - 1)))
            first = present[at][1] + 1
            at += 1
        if first <= last:
            fresh.append(run._replace(interval=(first, last)))
    return fresh
