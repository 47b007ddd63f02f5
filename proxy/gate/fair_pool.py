"""Who is in a place that takes so many at a time, by origin: decided without a socket or a clock."""

from collections.abc import Iterator
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")


class FairPool(Generic[Ticket]):
    """Those who are here; each has a ticket, anything hashable, and comes from an origin.

    When the place is full, who has fewer here than the origin that has most takes the place of that one's oldest: an
    origin crowds out only itself. Where origins are not known, all are one.
    """

    def __init__(self) -> None:
        self._origins: dict[Ticket, str] = {}
        self._of: dict[str, dict[Ticket, None]] = {}
        """By origin, the oldest first."""

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._origins

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._origins)

    def enter(self, ticket: Ticket, origin: str) -> None:
        """One is here from now on."""
        self._origins[ticket] = origin
        self._of.setdefault(origin, {})[ticket] = None

    def leave(self, ticket: Ticket) -> None:
        """One that is here is not any more."""
        origin = self._origins.pop(ticket)
        del self._of[origin][ticket]
        if not self._of[origin]:
            del self._of[origin]

    def who_leaves_for(self, origin: str) -> Ticket | None:
        """Who has to leave so that one of this origin may come though there is no room: one that is of those who have
        most here, if they have more than this origin then would. None: nobody has to, and it may not come.
        """
        most: dict[Ticket, None] = max(self._of.values(), key=len, default={})
        if len(most) <= len(self._of.get(origin, ())) + 1:
            return None
        return next(iter(most))
