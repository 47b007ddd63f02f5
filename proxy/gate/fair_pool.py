"""A bounded set of tickets, shared fairly between the origins that they come from. Has no socket, reads no clock."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")


class FairPool(Generic[Ticket]):
    """A set of tickets (any hashable values), each with its origin. The caller holds the limit on their number.

    When the pool is full, a ticket of an origin with few tickets replaces the oldest ticket of the origin with most: an
    origin with many tickets displaces only its own. Where origins are not known, all tickets have the same one. Of
    IPv6 an origin should be a network (`network_of`): a client has as many addresses there as it likes.
    """

    def __init__(self) -> None:
        self._origins: dict[Ticket, str] = {}
        self._of: dict[str, dict[Ticket, None]] = {}
        """The tickets of each origin, the oldest first."""

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._origins

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._origins)

    def enter(self, ticket: Ticket, origin: str) -> None:
        """Add a ticket."""
        self._origins[ticket] = origin
        self._of.setdefault(origin, {})[ticket] = None

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket that is in the pool."""
        origin = self._origins.pop(ticket)
        del self._of[origin][ticket]
        if not self._of[origin]:
            del self._of[origin]

    def victim_for(self, origin: str) -> Ticket | None:
        """The ticket to remove from a full pool so that this origin can add one; None if this origin may not add one.

        It is the oldest ticket of the origin with most tickets, if that origin has more than this one would have then.
        """
        most: dict[Ticket, None] = max(self._of.values(), key=len, default={})
        if len(most) <= len(self._of.get(origin, ())) + 1:
            return None
        return next(iter(most))

    def oldest(self, gives_way: Callable[[Ticket], bool]) -> Ticket | None:
        """The oldest ticket that `gives_way` to any other, of the origin with most such tickets; None without any."""
        giving_way = ([ticket for ticket in tickets if gives_way(ticket)] for tickets in self._of.values())
        most: list[Ticket] = max(giving_way, key=len, default=[])
        return most[0] if most else None
