"""Clients at the instances of a calm fleet: what they want, what their windows let through, and what is published."""

from collections.abc import Callable
from random import Random

from kafka_throttle.quotas.sensors.rows import WAITS_MS
from kafka_throttle.quotas.shares.moves import Key, Use
from tests.quotas.shares.fleet import WINDOW_MS, WINDOWS, Fleet, Instance, Rows

KEY: Key = ("client", "vc", "1", "produce", "alice")
TICK_MS = 50
LOOK_MS = 250
PUBLISH_MS = 1000
ORDERED_MS = 20
DELIVERED_MS = 50

Wanted = Callable[[int], float]
"""What a client wants at a time in ms since the start, as part of the limit per second."""


class Client:
    """One client of KEY at one instance: it sends what it wants, as long as its row does not throttle it."""

    def __init__(self, instance: Instance, wanted: Wanted) -> None:
        self.instance = instance
        self.wanted = wanted
        self.rows = Rows(instance.member)
        self.rows.open(KEY)
        self.muted_until_ms = 0
        self.sent: list[float] = []
        """By tick, in seconds of the limit."""
        self.is_pressed = False
        self._looked = 0
        self._window = 0

    def tick(self, now_ms: int, since_ms: int) -> None:
        amounts = self.rows.amounts[KEY]
        while self._window < now_ms // WINDOW_MS:
            self._window = max(self._window + 1, now_ms // WINDOW_MS - WINDOWS)
            amounts.insert(0, 0.0)
            del amounts[WINDOWS:]
        value = 0.0
        if now_ms >= self.muted_until_ms and (value := self.wanted(since_ms) * TICK_MS / 1000):
            amounts[0] += value
            elapsed_s = (WINDOWS - 1) * WINDOW_MS / 1000 + now_ms % WINDOW_MS / 1000
            share = self.rows.shares[KEY]
            if (over := sum(amounts) / elapsed_s - share) > 0:
                self.is_pressed = True
                throttle_ms = over / share * elapsed_s * 1000
                self.muted_until_ms = now_ms + int(min(throttle_ms, self._longest_ms(amounts, now_ms)))
        self.sent.append(value)

    def _longest_ms(self, amounts: list[float], now_ms: int) -> float:
        """As `kafka_throttle.quotas.sensors` cuts throttles of rows with a pace."""
        pace = self.instance.member.pace_of(KEY)
        if not pace:
            return WINDOWS * WINDOW_MS
        oldest = max(age for age, amount in enumerate(amounts) if amount)
        elapsed_ms = oldest * WINDOW_MS + now_ms % WINDOW_MS
        return max(WAITS_MS, sum(amounts) / pace * 1000 - elapsed_ms)

    def use(self, now_ms: int) -> Use:
        amounts = self.rows.amounts[KEY]
        ticks = self.sent[self._looked :]
        self._looked = len(self.sent)
        rate = sum(ticks) / (len(ticks) * TICK_MS / 1000) if ticks else 0.0
        is_pressed, self.is_pressed = self.is_pressed, False
        waits_ms = max(self.muted_until_ms - now_ms, 0)
        return Use(KEY, rate, is_pressed, tuple(amounts), waits_ms=waits_ms)


class Traffic:
    """A fleet in which all goes well, in steps of TICK_MS."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.fleet = Fleet()
        self.clients: dict[str, Client] = {}
        self.published: list[tuple[int, str]] = []
        """When, and by whom."""
        self.highest = 0.0
        """The largest sum of enforced shares."""
        self._started_ms = self.fleet.now_ms
        self._phases: dict[str, int] = {}
        self._published_ms: dict[str, int] = {}
        self._due: list[tuple[int, Callable[[], None]]] = []

    @property
    def passed_ms(self) -> int:
        return self.fleet.now_ms - self._started_ms

    def join(self, wanted: Wanted) -> Client:
        instance = self.fleet.join(offset_ms=self.random.randrange(1000) * TICK_MS)
        client = self.clients[instance.member.id] = Client(instance, wanted)
        self._phases[instance.member.id] = self.random.randrange(LOOK_MS // TICK_MS) * TICK_MS
        return client

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // TICK_MS):
            self.tick()

    def tick(self) -> None:
        fleet = self.fleet
        fleet.now_ms += TICK_MS
        due = [action for at_ms, action in self._due if at_ms <= fleet.now_ms]
        self._due = [(at_ms, action) for at_ms, action in self._due if at_ms > fleet.now_ms]
        for action in due:
            action()
        for name, client in self.clients.items():
            instance = client.instance
            client.tick(fleet.local(instance), self.passed_ms)
            if (fleet.now_ms + self._phases[name]) % LOOK_MS == 0:
                fleet.hear(instance)
                fleet.look(instance, [client.use(fleet.local(instance))])
            self._publish(instance)
            client.rows.apply(instance.member.take_moves())
        self.highest = max(self.highest, 1 + fleet.excess(KEY))

    def _publish(self, instance: Instance) -> None:
        name, now_ms = instance.member.id, self.fleet.now_ms
        if instance.in_flight is not None or now_ms - self._published_ms.get(name, 0) < PUBLISH_MS:
            return
        if self.fleet.publish(instance):
            self._published_ms[name] = now_ms
            self.published.append((self.passed_ms, name))
            self._due.append((now_ms + ORDERED_MS, lambda: self._order(instance)))

    def _order(self, instance: Instance) -> None:
        self.fleet.order(instance)
        self._due.append((self.fleet.now_ms + ORDERED_MS, lambda: self.fleet.confirm(instance)))
        for other in list(self.fleet.instances.values()):
            if other is not instance:
                delay_ms = self.random.randrange(DELIVERED_MS)
                self._due.append((self.fleet.now_ms + delay_ms, lambda other=other: self.fleet.deliver(other)))

    def total(self, from_ms: int, to_ms: int) -> float:
        """What all have sent in this time, in seconds of the limit."""
        return sum(self.sent(client, from_ms, to_ms) for client in self.clients.values())

    @staticmethod
    def sent(client: Client, from_ms: int, to_ms: int) -> float:
        return sum(client.sent[from_ms // TICK_MS : to_ms // TICK_MS])


def greedy(most: float = 3.0) -> Wanted:
    return lambda _: most


def paced(rate: float, noise: float = 0.0, seed: int = 0) -> Wanted:
    """A rate that is another one each second."""
    random = Random(seed)
    rates = [rate * (1 + random.uniform(-noise, noise)) for _ in range(1000)]
    return lambda passed_ms: rates[passed_ms // 1000 % 1000]


def moving(periods_ms: int, index: int, count: int, wanted: Wanted) -> Wanted:
    """Load that is at one instance after the other."""
    return lambda passed_ms: wanted(passed_ms) if passed_ms // periods_ms % count == index else 0.0
