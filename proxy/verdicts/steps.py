"""Decisions that take long are made in steps, so that others have their turn in between."""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")
Steps = Generator[None, None, Result]
"""Yields between steps of a few ms; the result is what it returns."""

ITEMS_PER_STEP = 100


def finish(steps: Steps[Result]) -> Result:
    """Take all steps at once; what they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def collected(items: Iterable[Item]) -> Steps[list[Item]]:
    """A list of what is made one by one."""
    found: list[Item] = []
    left: Iterator[Item] = iter(items)
    for number, item in enumerate(left, 1):
        found.append(item)
        if not number % ITEMS_PER_STEP:
            yield
    return found
