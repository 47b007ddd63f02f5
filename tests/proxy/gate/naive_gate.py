"""Admission the slow way, straight from its description: the model that `Admission` is compared with.

All that waits or is held stands in lists that are searched; rates are those of `tests.quotas.windowed_rate`.
"""

from dataclasses import dataclass

from tests.quotas.windowed_rate import WindowedRate

WINDOW_MS = 1000
MANY = 10**9


@dataclass
class Limits:
    """Rates in connections/s and counts; `waits` is ip_refusal: wait."""

    instance_rate: int = MANY
    listener_rate: int = MANY
    address_rate: int = MANY
    instance: int = MANY
    listener: int = MANY
    address: int = MANY
    user: int = MANY
    held: int = MANY
    held_of_address: int = MANY
    waits: bool = False


@dataclass(eq=False)
class OnHold:
    number: int
    listener: str
    address: str
    until: int
    due: int | None


class NaiveGate:
    """What becomes of connections, as (number, word) in `log`."""

    def __init__(self, limits, listeners):
        self.limits = limits
        self.rate = rate(limits.instance_rate)
        self.rates = {name: rate(limits.listener_rate) for name in listeners}
        self.address_rates = {}
        self.waiting = []
        self.held = []
        self.open = {}
        self.log = []
        self.now = 0

    # ------------------------------------------------------------------ events

    def may_accept(self, listener):
        return all(name != listener for name, *_ in self.waiting)

    def arrive(self, number, listener, address, now):
        delay = max(charge(self.rate, now), charge(self.rates[listener], now))
        if delay or not self.has_slot(listener):
            self.waiting.append((listener, number, address, now + delay))
        else:
            self.admit(number, listener, address, now)

    def leave(self, number):
        del self.open[number]

    def advance(self, to):
        """Everything that is due until then, in its order."""
        while (at := self.next_due()) is not None and at <= to:
            self.now = max(at, self.now)
            self.serve(self.now)
        self.now = to

    # -------------------------------------------------------------------- time

    def next_due(self):
        times = [until for listener, _, _, until in self.waiting if self.has_slot(listener)]
        times += [held.due for held in self.held if held.due is not None]
        return min(times, default=None)

    def serve(self, now):
        for entry in list(self.waiting):
            listener, number, address, until = entry
            if until <= now and self.has_slot(listener):
                self.waiting.remove(entry)
                self.admit(number, listener, address, now)
        while due := [held for held in self.held if held.due is not None and held.due <= now]:
            self.end_hold(min(due, key=lambda held: held.due), now)

    def end_hold(self, held, now):
        if not self.limits.waits:
            self.held.remove(held)
            self.log.append((held.number, "ip_rate_exceeded"))
            return
        self.held.remove(held)
        self.try_again(held, now)
        while (queue := [other for other in self.held if other.address == held.address]) and queue[0].due is None:
            head = queue[0]
            delay = self.try_to_admit(head.number, head.listener, head.address, now)
            if delay and min(now + delay, head.until) > now:
                head.due = min(now + delay, head.until)
                self.held.remove(head)
                self.held.insert(0, head)
                self.sort_behind(head)
                return
            self.held.remove(head)
            if delay:
                self.log.append((head.number, "ip_rate_exceeded"))

    def sort_behind(self, head):
        """Of those with a time, who was given it first is served first; of an address, its head stands first."""
        self.held.remove(head)
        with_time = [held for held in self.held if held.due is not None]
        without = [held for held in self.held if held.due is None]
        self.held = [*with_time, head, *without]

    def try_again(self, held, now):
        if self.try_to_admit(held.number, held.listener, held.address, now):
            self.log.append((held.number, "ip_rate_exceeded"))

    def try_to_admit(self, number, listener, address, now):
        """0 when it has come in or was refused for good, else for how long it would be held."""
        charge(self.rate, now)
        charge(self.rates[listener], now)
        if not self.has_slot(listener):
            self.take_back(listener, now)
            self.log.append((number, "too_many_connections"))
            return 0
        return self.decide(number, listener, address, now)

    # --------------------------------------------------------------- decisions

    def has_slot(self, listener):
        here = sum(name == listener for name, _ in self.open.values())
        return here < self.limits.listener and len(self.open) < self.limits.instance

    def admit(self, number, listener, address, now):
        queue = [held for held in self.held if held.address == address]
        if self.limits.waits and queue:
            self.take_back(listener, now)
            delay, due = 1, None
        else:
            delay = self.decide(number, listener, address, now)
            due = now + delay
        if not delay:
            return
        if len(self.held) >= self.limits.held or len(queue) >= self.limits.held_of_address:
            self.log.append((number, "too_many_held"))
            return
        held = OnHold(number, listener, address, now + WINDOW_MS, due)
        self.held.append(held)
        if due is not None:
            self.sort_behind(held)

    def decide(self, number, listener, address, now):
        if self.limits.address_rate < MANY:
            sensor = self.address_rates.setdefault(address, rate(self.limits.address_rate))
            if delay := charge(sensor, now):
                sensor.record(-1.0, now)
                self.take_back(listener, now)
                return delay
        if sum(from_there == address for _, from_there in self.open.values()) >= self.limits.address:
            self.log.append((number, "too_many_from_ip"))
        else:
            self.open[number] = listener, address
            self.log.append((number, "admitted"))
        return 0

    def take_back(self, listener, now):
        self.rate.record(-1.0, now)
        self.rates[listener].record(-1.0, now)


def rate(limit):
    return WindowedRate(limit, 3, WINDOW_MS)


def charge(sensor, now):
    return min(sensor.charge(1.0, now), WINDOW_MS)
