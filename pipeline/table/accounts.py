"""Which records are in the table, and which are missing, by their sequence numbers and by the ends of epochs."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.table.intervals import Intervals, union, without


class Writer(NamedTuple):
    """Whose numbers they are: each run of a proxy counts its usage records and its trace events from 1."""

    stream: str
    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of one writer's numbers."""

    present: Intervals = ()
    """In the table."""
    dropped: Intervals = ()
    """The proxy had no room for them, and has told so."""
    reported: int = 0
    """The highest number that a file's end tells to exist; what comes later is not known of."""
    final: bool = False
    """Whether an end says that there are no further records."""
    alone: bool = False
    """Whether an end says that no earlier process of the instance ran any more."""
    flush_ms: int = 0
    """The time of which a killed process loses the records; 0: not known."""

    def __add__(self, other: "Account") -> "Account":
        """What both know."""
        return Account(
            union(self.present + other.present),
            union(self.dropped + other.dropped),
            max(self.reported, other.reported),
            self.final or other.final,
            self.alone or other.alone,
            max(self.flush_ms, other.flush_ms),
        )

    @property
    def gaps(self) -> Intervals:
        """Numbers of records that exist, or did: they are neither here nor told to be dropped."""
        known = union(self.present + self.dropped)
        top = max(self.reported, known[-1][1] if known else 0)
        return without(((1, top),), known) if top else ()


Accounts = Mapping[Writer, Account]


def added(one: Accounts, other: Accounts) -> dict[Writer, Account]:
    """What both know of everybody."""
    nothing = Account()
    return {writer: one.get(writer, nothing) + other.get(writer, nothing) for writer in one.keys() | other.keys()}


class LostEnd(NamedTuple):
    """The end of an epoch whose process was killed: how many records were in it is not known."""

    writer: Writer
    before_ms: int
    """When the next process of the instance began, in ms since 1970: the use that is lost came earlier."""
    flush_ms: int
    """See Account."""


def lost_ends(accounts: Accounts) -> list[LostEnd]:
    """The epochs without a final end that a later epoch of the instance follows, in any stream.

    An epoch that began while the process before it still ran does not count as a later one until an end of it says that
    it runs alone.
    """
    begun: defaultdict[str, set[int]] = defaultdict(set)
    for writer, account in accounts.items():
        if account.alone:
            begun[writer.instance].add(writer.epoch)
    epochs = {instance: sorted(found) for instance, found in begun.items()}
    lost = []
    for writer, account in sorted(accounts.items()):
        later = epochs.get(writer.instance, [])
        at = bisect_right(later, writer.epoch)
        if not account.final and at < len(later):
            lost.append(LostEnd(writer, later[at], account.flush_ms))
    return lost


def form_of(accounts: Accounts) -> list[dict[str, Any]]:
    """As it is written into the table's log."""
    return [
        {
            **writer._asdict(),
            "present": account.present,
            "dropped": account.dropped,
            "told": account.reported,
            "final": account.final,
            "alone": account.alone,
            "flush_ms": account.flush_ms,
        }
        for writer, account in sorted(accounts.items())
    ]


def accounts_of(form: Iterable[Mapping[str, Any]]) -> dict[Writer, Account]:
    """What was written into the table's log. A log of an older version does not say which epochs are complete: all of
    them count as complete.
    """
    return {
        Writer(one["stream"], one["instance"], one["epoch"]): Account(
            _intervals(one["present"]),
            _intervals(one["dropped"]),
            one["told"],
            one.get("final", True),
            one.get("alone", True),
            one.get("flush_ms", 0),
        )
        for one in form
    }


def _intervals(form: Iterable[Iterable[int]]) -> Intervals:
    return tuple((first, last) for first, last in form)
