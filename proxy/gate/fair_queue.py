"""A queue in which everybody has the next turn in turn: who brings very many waits for itself."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Things in the order in which each one's own were put, one of each at a time."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        """By whose they are, who is next first."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, whose: str, item: Item) -> None:
        """Behind whatever else is whose."""
        queue = self._queues.get(whose)
        if queue is None:
            queue = self._queues[whose] = deque()
        queue.append(item)
        self._length += 1

    def take(self) -> Item:
        """The next one's first. IndexError if there is none."""
        if not self._length:
            raise IndexError("nobody waits")
        whose, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        self._length -= 1
        if queue:
            self._queues[whose] = queue
        return item

    def take_all(self) -> Iterator[Item]:
        """Everything, until nothing is left."""
        while self._length:
            yield self.take()
