"""Clients that obey throttle times (KIP-219): a connection sends a request, waits what it is told, sends the next."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import ceil
from random import Random
from typing import Final, Protocol

from tests.fleet.events import Events
from tests.fleet.plan import Load

_RECONNECT_MS: Final = 200
_NEVER: Final = 10**15


class Serving(Protocol):
    """An instance, as its clients see it."""

    is_open: bool
    incarnation: int

    def owed_ms(self, entity: int) -> int:
        """How long a new connection of this entity waits."""
        ...

    def charge(self, entity: int, amount: float) -> tuple[float, int]:
        """Take a request: what went through of it, and its throttle time in ms."""
        ...

    def when_running(self, callback: Callable[..., None], *args: object) -> None:
        """Call now, or when the process of the instance runs again."""
        ...


class Sent:
    """What went through: by entity and second, and by entity, instance and second; in units."""

    def __init__(self) -> None:
        self.of_entity: dict[int, Counter[int]] = defaultdict(Counter)
        self.at_instance: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)

    def add(self, entity: int, instance: int, amount: float, now_ms: int) -> None:
        second = now_ms // 1000
        self.of_entity[entity][second] += amount  # type: ignore[assignment]
        self.at_instance[entity, instance][second] += amount  # type: ignore[assignment]


class Balancer:
    """A load balancer before the instances: new connections go to those that it leads to, in turn."""

    def __init__(self, instances: Sequence[Serving]) -> None:
        self._instances = instances
        self._places = tuple(range(len(instances)))
        self._turn = 0

    def open(self, places: Sequence[int]) -> None:
        """Lead to these instances only; () is all."""
        self._places, self._turn = tuple(places) or tuple(range(len(self._instances))), 0

    def next(self) -> int:
        """The instance of the next connection; one that is open, if there is one."""
        for _ in self._places:
            place = self._places[self._turn % len(self._places)]
            self._turn += 1
            if self._instances[place].is_open:
                break
        return place


class Connection:
    """One connection of a load. What it wanted and could not send yet is its backlog."""

    def __init__(
        self,
        events: Events,
        rng: Random,
        instances: Sequence[Serving],
        balancer: Balancer,
        load: Load,
        limit: float,
        sent: Sent,
    ) -> None:
        self._events = events
        self._instances = instances
        self._balancer = balancer
        self._load = load
        self._limit = limit
        self._sent = sent
        self._amount = load.request_s * limit
        self._line_ms = round(self._amount / (load.line * limit / load.connections) * 1000)
        self._connected: tuple[int, int] | None = None
        self._turn = 0
        self._moves_at_ms = load.from_ms + load.moves_ms if load.moves_ms else _NEVER
        self.instance = load.instance
        self._rate = load.rate * limit / load.connections
        self._since_ms = load.from_ms
        self._done = 0.0
        # Connections do not begin in step.
        events.at(load.from_ms + rng.randrange(self._line_ms + 1), self._step, 0)

    def wanted(self, now_ms: int) -> float:
        """Everything that it has wanted until now, in units."""
        load, elapsed = self._load, now_ms - self._since_ms
        if load.on_ms:
            cycle = load.on_ms + load.off_ms
            elapsed = elapsed // cycle * load.on_ms + min(elapsed % cycle, load.on_ms)
        return self._rate * elapsed / 1000

    def demand(self, now_ms: int) -> float:
        """What it could use now, in limits; its whole line if it is behind."""
        if now_ms >= self._load.until_ms:
            return 0.0
        is_behind = self.wanted(now_ms) - self._done > 2 * self._amount
        return self._load.line / self._load.connections if is_behind else self._rate / self._limit

    def change(self, rate: float) -> None:
        """From now on it wants another rate, in limits; 0: nothing."""
        self._rate = rate * self._limit / self._load.connections
        self._since_ms, self._done = self._events.now_ms, 0.0
        self._wait(0)

    def lost(self, instance: int) -> None:
        """That instance is gone: a client of it connects again at once, whatever it was waiting for."""
        if self._connected is not None and self._connected[0] == instance:
            self._connected = None
            self._wait(_RECONNECT_MS)

    def _step(self, turn: int) -> None:
        """Send the next request, unless something else has to come first."""
        now_ms = self._events.now_ms
        if turn != self._turn or now_ms >= self._load.until_ms or not self._rate:
            return
        while now_ms >= self._moves_at_ms:
            self._moves_at_ms += self._load.moves_ms
            self.instance = (self.instance + 1) % len(self._instances)
        if self._load.is_balanced and self._connected is None:
            self.instance = self._balancer.next()
        serving = self._instances[self.instance]
        if not serving.is_open:
            self.instance = (self.instance + 1) % len(self._instances)
            self._wait(_RECONNECT_MS)
        elif self._connected != (self.instance, serving.incarnation):
            self._connected = self.instance, serving.incarnation
            self._wait(serving.owed_ms(self._load.entity))
        elif (missing := self._done + self._amount - self.wanted(now_ms)) > 0:
            self._wait(ceil(missing / self._rate * 1000))
        else:
            serving.when_running(self._send, turn)

    def _send(self, turn: int) -> None:
        serving, load, now_ms = self._instances[self.instance], self._load, self._events.now_ms
        if turn != self._turn:
            return
        taken, throttle_ms = serving.charge(load.entity, self._amount)
        if taken:
            self._done += taken
            self._sent.add(load.entity, self.instance, taken, now_ms)
        self._wait(max(throttle_ms, self._line_ms))

    def _wait(self, for_ms: int) -> None:
        """A connection that moves does not wait for what the instance before has told it."""
        now_ms = self._events.now_ms
        at_ms = now_ms + max(for_ms, 1)
        self._turn += 1
        self._events.at(min(at_ms, self._moves_at_ms) if self._moves_at_ms > now_ms else at_ms, self._step, self._turn)
