"""Decisions that take long are made in steps, so that other connections have their turn in between."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kafka_throttle.proxy.relay.actions import Decision
from kafka_throttle.quotas.changes import Alteration

Result = TypeVar("Result")
Item = TypeVar("Item")
Steps = Generator[None, None, Result]
"""Yields between steps, which take less than a ms, and returns the result."""

ITEMS_PER_STEP = 50


@dataclass(slots=True, frozen=True)
class QuotaAlteration:
    """The quotas to write before a DecisionRequest has its Decision; `reply` makes it from the results of writing."""

    alterations: tuple[Alteration, ...]
    client_id: str
    reply: Callable[[Sequence[Exception | None]], Steps[Decision]]


@dataclass(slots=True, frozen=True)
class SlowDecision:
    """A decision that takes long: `steps` make it."""

    steps: Steps[Decision | QuotaAlteration]


def collected(items: Iterable[Item | None]) -> Steps[list[Item]]:
    """A list of the items, made one by one. None is not an item, but work that has taken a step by itself."""
    found: list[Item] = []
    for number, item in enumerate(items, 1):
        if item is not None:
            found.append(item)
        if item is None or not number % ITEMS_PER_STEP:
            yield
    return found
