"""A queue in which entities take turns, so that an entity with many connections delays only its own connections."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from kafka_throttle.quotas.entities import ANONYMOUS, NOBODY, network_of

Item = TypeVar("Item", bound=Hashable)


class Whose(NamedTuple):
    """The owner of an item that waits: an `entity`, and the `part` of the entity that takes turns with its other parts.

    A part is a client-id, or a connection that has sent none. By default all items belong to one entity and one part.
    """

    entity: str = ""
    part: Hashable = None


def entity_of(user: str, address: str) -> str:
    """The entity whose turns a client takes: its user, or the network of its address where no user is known.

    The name of a user is never the same as an address.
    """
    return network_of(address) if user in (ANONYMOUS, NOBODY) else f"user={user}"


class FairQueue(Generic[Item]):
    """Items that wait for their turns. No item is in the queue twice.

    Entities take turns, one item each. Within the turns of an entity its parts take turns; the items of one part keep
    their order. So between two turns of an entity each other entity has at most one turn. Every call takes constant
    time. Memory is needed only for items that wait: an entity without items is forgotten.
    """

    def __init__(self) -> None:
        self._entities: OrderedDict[str, OrderedDict[Hashable, OrderedDict[Item, None]]] = OrderedDict()
        """The items of each part of each entity; what is next comes first, on all three levels."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, item: Item, whose: Whose) -> None:
        """Add an item behind the other items of the same part."""
        parts = self._entities.get(whose.entity)
        if parts is None:
            parts = self._entities[whose.entity] = OrderedDict()
        items = parts.get(whose.part)
        if items is None:
            items = parts[whose.part] = OrderedDict()
        items[item] = None
        self._length += 1

    def take(self) -> Item:
        """Remove and return the item whose turn it is. IndexError if the queue is empty."""
        if not self._length:
            raise IndexError("the queue is empty")
        entity, parts = next(iter(self._entities.items()))
        part, items = next(iter(parts.items()))
        self._entities.move_to_end(entity)
        parts.move_to_end(part)
        item = next(iter(items))
        self.remove(item, Whose(entity, part))
        return item

    def take_all(self) -> Iterator[Item]:
        """Remove all items, in the order of their turns, until the queue is empty."""
        while self._length:
            yield self.take()

    def remove(self, item: Item, whose: Whose) -> bool:
        """Remove an item that waits no longer. Returns whether it was in the queue."""
        parts = self._entities.get(whose.entity)
        items = None if parts is None else parts.get(whose.part)
        if parts is None or items is None or item not in items:
            return False
        del items[item]
        self._length -= 1
        if not items:
            del parts[whose.part]
        if not parts:
            del self._entities[whose.entity]
        return True

    def keep_turn(self, whose: Whose) -> None:
        """Let this entity and this part of it be the next, if they still wait, because their last turn is not over."""
        parts = self._entities.get(whose.entity)
        if parts is None:
            return
        self._entities.move_to_end(whose.entity, last=False)
        if whose.part in parts:
            parts.move_to_end(whose.part, last=False)
