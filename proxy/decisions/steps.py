"""Decisions that take long are made in steps, so that other connections have their turn in between."""

from collections.abc import Generator, Iterable
from typing import TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")
Steps = Generator[None, None, Result]
"""Yields between steps of a few ms, and returns the result."""

ITEMS_PER_STEP = 100


def collected(items: Iterable[Item | None]) -> Steps[list[Item]]:
    """A list of the items, made one by one. None is not an item, but work that has taken a step by itself."""
    found: list[Item] = []
    for number, item in enumerate(items, 1):
        if item is not None:
            found.append(item)
        if item is None or not number % ITEMS_PER_STEP:
            yield
    return found
