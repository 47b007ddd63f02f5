"""Problems in files that people write: each with its place, and text for its values."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

WHOLE_FILE = "(file)"
"""The place of a problem of the whole file, where the file's name is not known."""

_MOST_PROBLEMS = 100
"""How many problems of a file are reported."""

_MOST_BITS = 4_096
"""Larger numbers are shown by their size in bits: Python refuses to print one of 4,300 digits."""


class Problem(NamedTuple):
    """One problem: its place, such as `quotas.entries[0].user`, and what was expected and found there."""

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" + ("" if self.line is None else f" (line {self.line})")


class Problems(ValueError):
    """All problems of a file, or of a section of it. The text has one line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    def named(self, file: object) -> "Problems":
        """The same problems, each with the name of the file in front."""
        name = str(file)
        return Problems(
            [
                each._replace(path=name if each.path in (name, WHOLE_FILE) else f"{name}: {each.path}")
                for each in self.problems
            ]
        )


def bounded(problems: Iterable[Problem], what: str = "problems") -> list[Problem]:
    """The first problems, and one that says if there are more; they are not looked for."""
    rest = iter(problems)
    found = list(islice(rest, _MOST_PROBLEMS))
    return found if next(rest, None) is None else [*found, Problem(WHOLE_FILE, f"has more {what} than these")]


def listed(names: Sequence[object], most: int = 10) -> str:
    """The names as "a, b, c"; of very many the first ones, and how many more there are."""
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def show(value: Any) -> str:
    """A value from a file as one short line of text."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def either(names: Sequence[str]) -> str:
    """The names as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
