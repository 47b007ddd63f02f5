"""Which records are in the table, and which are missing, by their sequence numbers."""

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

    def __add__(self, other: "Account") -> "Account":
        """What both know."""
        return Account(
            union(self.present + other.present), union(self.dropped + other.dropped), max(self.reported, other.reported)
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


def form_of(accounts: Accounts) -> list[dict[str, Any]]:
    """As it is written into the table's log."""
    return [
        {**writer._asdict(), "present": account.present, "dropped": account.dropped, "told": account.reported}
        for writer, account in sorted(accounts.items())
    ]


def accounts_of(form: Iterable[Mapping[str, Any]]) -> dict[Writer, Account]:
    """What was written into the table's log."""
    return {
        Writer(one["stream"], one["instance"], one["epoch"]): Account(
            _intervals(one["present"]), _intervals(one["dropped"]), one["told"]
        )
        for one in form
    }


def _intervals(form: Iterable[Iterable[int]]) -> Intervals:
    return tuple((first, last) for first, last in form)
