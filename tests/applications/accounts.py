"""Compares the records that an application has written with those that it was to write."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Account:
    """How many of the expected records there are, and how many mistakes of each kind."""

    expected: int
    written: int
    """Without doubles."""
    doubled: int = 0
    out_of_order: int = 0
    """Records of a key with a smaller number than the one before."""
    wrong: int = 0
    """Records that were not expected, and counts that differ from the number of records so far."""

    @property
    def missing(self) -> int:
        return self.expected - self.written

    @property
    def exact(self) -> bool:
        """Each record is there once, in the order of its key."""
        return not (self.missing or self.doubled or self.out_of_order or self.wrong)

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __str__(self) -> str:
        mistakes = {"doubled": self.doubled, "out of order": self.out_of_order, "wrong": self.wrong}
        found = [f"{count} {kind}" for kind, count in mistakes.items() if count]
        return ", ".join([f"{self.written:,} of {self.expected:,}", *found])


class Written:
    """The records of an application, in the order in which they were committed.

    Each key is to have its numbers from 0 on, each of them once. A value is a number, or a number and a count: how
    many records of its key the application says to have had.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}
        self._numbers: dict[str, set[str]] = {}

    @property
    def count(self) -> int:
        """How many there are, without doubles."""
        return sum(map(len, self._numbers.values()))

    def take(self, records: Iterable[tuple[str, str]]) -> None:
        """The next ones, as key and value."""
        for key, value in records:
            self._values.setdefault(key, []).append(value)
            self._numbers.setdefault(key, set()).add(value.partition(" ")[0])

    def account(self, expected: Mapping[str, int]) -> Account:
        """Beside how many records each key was to have."""
        strange = sum(len(values) for key, values in self._values.items() if key not in expected)
        accounts = (_account(self._values.get(key, []), count) for key, count in expected.items())
        return sum(accounts, Account(0, 0, wrong=strange))


def _account(values: Iterable[str], expected: int) -> Account:
    """Of one key."""
    seen: Counter[int] = Counter()
    out_of_order = wrong = before = 0
    for value in values:
        number, _, count = value.partition(" ")
        if int(number) >= expected or (count and int(count) != int(number) + 1):
            wrong += 1
            continue
        out_of_order += int(number) < before
        before = int(number)
        seen[before] += 1
    return Account(expected, len(seen), seen.total() - len(seen), out_of_order, wrong)
