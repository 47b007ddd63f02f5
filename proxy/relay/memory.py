"""The memory that all relays of a process share for messages that they need whole.

Large requests and responses that need a decision are collected whole. The `Holding` of a relay says how much the relay
holds; the `Memory` of the process has the sum. If there is no room for a message, the relay leaves its bytes in the
kernel until its turn comes. Pure: the owner of a Memory calls `serve` after each call of `on_change`.

No two relays ever wait for each other. Incomplete requests may have half of the memory, and end by a timeout while
other relays wait (`Holding.hinders`). The bytes that are here of a request that waits for room take no room from other
requests: they stay until the request has got room or has ended. A response never waits for a request, because requests
may wait for responses. One response at a time may be collected although there is no room: so at least one relay goes
on, and it waits only for its node.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kafka_throttle.quotas.fair_queue import FairQueue, Whose

SMALL_BYTES: Final = 16 * 1024
"""Messages up to this size never wait and do not count. Each connection may hold so much."""

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""How many bytes all relays of a process may hold together, without the one response that may exceed this."""

_COPIES: Final = 2
"""How often a message counts: for a moment it is there twice, when it is put together and when it is decided about."""


class Owner(Protocol):
    """The owner of a holding."""

    @property
    def whose(self) -> Whose:
        """The entity, and its part, whose turns it takes."""


class _Nobody:
    """The owner of a holding where there are no turns to take."""

    @property
    def whose(self) -> Whose:
        """No entity."""
        return Whose()


NOBODY: Final = _Nobody()


class Want:
    """The bytes for which a holding waits, for a request or a response."""

    __slots__ = ("bytes", "for_request", "holding", "whose")

    def __init__(self, holding: "Holding", for_request: bool, size_bytes: int, whose: Whose) -> None:
        self.holding = holding
        self.for_request = for_request
        self.bytes = size_bytes
        self.whose = whose


class _Line:
    """Holdings that wait. `first` is the one whose turn it is, until there is room for it."""

    __slots__ = ("_first", "_queue")

    def __init__(self) -> None:
        self._first: Want | None = None
        self._queue: FairQueue[Want] = FairQueue()

    def __len__(self) -> int:
        return len(self._queue) + (self._first is not None)

    @property
    def first(self) -> Want | None:
        """The one whose turn it is. None if no holding waits."""
        if self._first is None and len(self._queue):
            self._first = self._queue.take()
        return self._first

    def put(self, want: Want) -> None:
        """Add one that waits."""
        self._queue.put(want, want.whose)

    def pass_on(self) -> None:
        """Remove the first one."""
        self._first = None

    def remove(self, want: Want) -> bool:
        """Remove one. Returns whether it waited here."""
        if self._first is want:
            self._first = None
            return True
        return self._queue.remove(want, want.whose)


def _unheard() -> None:
    """Do nothing: `on_change` until it is set."""


class Memory:
    """The bytes that all relays of a process hold together, and the holdings that wait for room.

    - `on_change` is called when `serve` may find a holding whose turn has come.
    - `taken_bytes` is how many bytes are held now, with the copies that decisions make.
    """

    __slots__ = (
        "_asked_bytes",
        "_behind",
        "_exceeding",
        "_of",
        "_requests",
        "_responses",
        "_waiting_bytes",
        "most_bytes",
        "on_change",
        "taken_bytes",
    )

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self.most_bytes = most_bytes
        self.taken_bytes = 0
        self.on_change: Callable[[], None] = _unheard
        self._asked_bytes = 0
        """The part of `taken_bytes` that was taken for requests."""
        self._waiting_bytes = 0
        """The part of `taken_bytes` that is here of requests that wait for room."""
        self._of: dict[str, int] = {}
        """How many bytes each entity has taken, without those of requests that wait for room."""
        self._requests = _Line()
        self._responses = _Line()
        self._behind: dict[str, _Line] = {}
        """The requests that wait, by entity, until the entity itself holds less."""
        self._exceeding: Holding | None = None
        """The holding with the one response for which there was no room."""

    @property
    def crowded(self) -> bool:
        """Whether a holding waits for memory that others hold."""
        return len(self._requests) + len(self._responses) > 0

    @property
    def waiting(self) -> int:
        """How many holdings wait for room."""
        return len(self._requests) + len(self._responses) + sum(map(len, self._behind.values()))

    # -------------------------------------------------------------------- take

    def take_or_wait(self, want: Want) -> bool:
        """Take what is wanted, if there is room and no other holding waits; else wait. Returns whether it was taken.

        Requests wait only behind requests, and responses only behind responses.
        """
        if len(self._line_of(want)) or not (self._suits_entity(want) and self._fits(want)):
            self._wait(want)
            return False
        self._take(want)
        return True

    def serve(self) -> list["Holding"]:
        """Give room to the holdings that wait, in the order of their turns, as far as there is room; return them."""
        served: list[Holding] = []
        for line in (self._responses, self._requests):
            while (want := line.first) is not None:
                if self._suits_entity(want):
                    if not self._fits(want):
                        break
                    self._take(want)
                    want.holding.came(want)
                    served.append(want.holding)
                else:
                    self._behind.setdefault(want.whose.entity, _Line()).put(want)
                line.pass_on()
        return served

    def _line_of(self, want: Want) -> _Line:
        return self._requests if want.for_request else self._responses

    def _wait(self, want: Want) -> None:
        if self._suits_entity(want):
            self._line_of(want).put(want)
            self.on_change()
        else:
            self._behind.setdefault(want.whose.entity, _Line()).put(want)

    def _suits_entity(self, want: Want, more_bytes: int = 0) -> bool:
        """Whether the entity may take so much: all together an eighth of the memory, but always one request."""
        taken_bytes = self._of.get(want.whose.entity, 0) + more_bytes
        return not want.for_request or not taken_bytes or taken_bytes + want.bytes <= self.most_bytes // 8

    def _let_come(self, entity: str) -> None:
        """Put into the line as many requests of an entity as the entity may take now. There may be thousands."""
        behind = self._behind.get(entity)
        if behind is None:
            return
        more_bytes = 0
        while (want := behind.first) is not None and self._suits_entity(want, more_bytes):
            behind.pass_on()
            self._requests.put(want)
            more_bytes += want.bytes
        if not len(behind):
            del self._behind[entity]

    def _fits(self, want: Want) -> bool:
        if not want.for_request:
            return self.taken_bytes + want.bytes <= self.most_bytes or self._exceeding is None
        within = self.taken_bytes - self._waiting_bytes + want.bytes <= self.most_bytes
        is_first = want.whose.entity not in self._of
        return (within or is_first) and self._asked_bytes + want.bytes <= self.most_bytes // 2

    def _take(self, want: Want) -> None:
        if not want.for_request and self.taken_bytes + want.bytes > self.most_bytes:
            self._exceeding = want.holding
        want.holding.add(want)

    # ------------------------------------------------------------------ for holdings

    def count(self, entity: str, change_bytes: int, asked_bytes: int) -> None:
        """Note that an entity holds more or less than before; `asked_bytes` is the part of the change for requests."""
        self.taken_bytes += change_bytes
        self._asked_bytes += asked_bytes
        taken_bytes = self._of.get(entity, 0) + change_bytes
        if taken_bytes:
            self._of[entity] = taken_bytes
        else:
            self._of.pop(entity, None)
        if change_bytes < 0:
            self._let_come(entity)
        if (change_bytes < 0 or asked_bytes < 0) and self.crowded:
            self.on_change()

    def count_waiting(self, change_bytes: int) -> None:
        """Note that more or less than before is here of requests that wait for room."""
        self._waiting_bytes += change_bytes
        self.taken_bytes += change_bytes
        if change_bytes < 0 and self.crowded:
            self.on_change()

    def no_longer_exceeds(self, holding: "Holding") -> None:
        """Note that the response of this holding is not held any more."""
        if self._exceeding is holding:
            self._exceeding = None
            if self.crowded:
                self.on_change()

    def forget(self, want: Want) -> None:
        """Remove this from those that wait."""
        entity = want.whose.entity
        if self._line_of(want).remove(want):
            self._let_come(entity)
        elif (behind := self._behind.get(entity)) is not None and behind.remove(want) and not len(behind):
            del self._behind[entity]
        if self.crowded:
            self.on_change()


class Holding:
    """The bytes that one relay holds.

    - `request_bytes`, `response_bytes`: for the request and the response that are collected whole.
    - `kept_bytes`: all others that are held already. `bytes`: the sum of the three.
    - `waiting_bytes`: those that are here of a request that waits for room. They are not part of `bytes`.
    - `wake` is to be called when the relay has got the room for which it has waited.
    """

    __slots__ = (
        "_entity",
        "_memory",
        "_owner",
        "_request",
        "_response",
        "_waits",
        "bytes",
        "kept_bytes",
        "request_bytes",
        "response_bytes",
        "waiting_bytes",
        "wake",
    )

    def __init__(self, memory: Memory, owner: Owner) -> None:
        self.request_bytes = 0
        self.response_bytes = 0
        self.kept_bytes = 0
        self.bytes = 0
        self.waiting_bytes = 0
        self.wake: Callable[[], None] | None = None
        self._memory = memory
        self._owner = owner
        self._entity = ""
        self._request: Want | None = None
        self._response: Want | None = None
        self._waits = True
        """Whether it waits if there is no room. After the end of the connection it takes room without waiting."""

    @property
    def awaits_request(self) -> bool:
        """Whether it waits for room for a request."""
        return self._request is not None

    @property
    def awaits_response(self) -> bool:
        """Whether it waits for room for a response."""
        return self._response is not None

    @property
    def hinders(self) -> bool:
        """Whether it holds memory for a request while other holdings wait."""
        return self.request_bytes > 0 and self._memory.crowded

    def may_hold_request(self, size_bytes: int) -> bool:
        """Take room for a large request of this size. False if there is none: it waits for room from now on."""
        more = _COPIES * size_bytes - self.request_bytes
        if self._request is None and more > 0:
            want = Want(self, True, more, self._whose())
            if not self._memory.take_or_wait(want):
                self._request = want
        return self._request is None

    def may_hold_response(self, size_bytes: int) -> bool:
        """Take room for a large response of this size. False if there is none: it waits for room from now on."""
        more = _COPIES * size_bytes - self.response_bytes
        if more > 0 and not self._waits:
            self.settle(0, _COPIES * size_bytes, 0)
        elif self._response is None and more > 0:
            want = Want(self, False, more, self._whose())
            if not self._memory.take_or_wait(want):
                self._response = want
        return self._response is None

    def settle(self, request_bytes: int, response_bytes: int, kept_bytes: int, waiting_bytes: int = 0) -> None:
        """Set how many bytes are held now. For a request and a response these are no more than were taken for them."""
        kept_bytes = kept_bytes if kept_bytes > SMALL_BYTES else 0
        waiting_bytes = waiting_bytes if waiting_bytes > SMALL_BYTES else 0
        size_bytes = request_bytes + response_bytes + kept_bytes
        change = size_bytes - self.bytes
        asked_change = request_bytes - self.request_bytes
        if not self.bytes:
            self._entity = self._owner.whose.entity
        was_response = self.response_bytes
        self.request_bytes, self.response_bytes, self.kept_bytes = request_bytes, response_bytes, kept_bytes
        self.bytes = size_bytes
        if change or asked_change:
            self._memory.count(self._entity, change, asked_change)
        if waiting_bytes != self.waiting_bytes:
            more, self.waiting_bytes = waiting_bytes - self.waiting_bytes, waiting_bytes
            self._memory.count_waiting(more)
        if was_response and not response_bytes:
            self._memory.no_longer_exceeds(self)

    def close(self) -> None:
        """Hold nothing, and wait for nothing any more: the connection has ended."""
        self._waits = False
        if self.bytes or self.waiting_bytes:
            self.settle(0, 0, 0)
        for want in (self._request, self._response):
            if want is not None:
                self._memory.forget(want)
        self._request = self._response = self.wake = None

    # ------------------------------------------------------------------ for the memory

    def add(self, want: Want) -> None:
        """Count what was wanted as held."""
        if not self.bytes:
            self._entity = want.whose.entity
        if want.for_request:
            self.request_bytes += want.bytes
        else:
            self.response_bytes += want.bytes
        self.bytes += want.bytes
        self._memory.count(self._entity, want.bytes, want.bytes if want.for_request else 0)

    def came(self, want: Want) -> None:
        """Note that what it has waited for is taken."""
        if want.for_request:
            self._request = None
        else:
            self._response = None

    def _whose(self) -> Whose:
        whose = self._owner.whose
        return Whose(self._entity, whose.part) if self.bytes else whose
