"""A queue that serves its owners in turn: an owner with many items delays only its own."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of several owners. The owners take turns, one item each; the items of one owner keep their order."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        """The items of each owner; the owner whose turn is next comes first."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, whose: str, item: Item) -> None:
        """Add an item behind the other items of the owner `whose`."""
        queue = self._queues.get(whose)
        if queue is None:
            queue = self._queues[whose] = deque()
        queue.append(item)
        self._length += 1

    def take(self) -> Item:
        """Remove and return the first item of the next owner. IndexError if the queue is empty."""
        if not self._length:
            raise IndexError("the queue is empty")
        whose, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        self._length -= 1
        if queue:
            self._queues[whose] = queue
        return item

    def take_all(self) -> Iterator[Item]:
        """Remove all items, in their order, until the queue is empty."""
        while self._length:
            yield self.take()
