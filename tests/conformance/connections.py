"""Random scripts for connection quotas, and how our own class answers them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kafka_throttle.quotas.connection_quotas import (
    NO_LIMIT,
    AddressKey,
    AddressLimits,
    Admission,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from tests.conformance.oracle import Step, bits

BEGIN_MS = 1_000_000

LISTENERS = ["FRONT", "BACK", "INTERNAL"]
BETWEEN_BROKERS = "INTERNAL"
ADDRESSES = [*(f"10.0.0.{i}" for i in range(1, 20)), "2001:db8::1", "2001:db8::2"]

MOST_AT_A_TIME = 400


@dataclass(slots=True)
class ConnectionScript:
    """Connections from random addresses to three listeners, one of them a broker's own, while all limits change.

    One connection is under way at a time: the next one arrives when it has gone on.
    """

    rng: random.Random
    ours: ConnectionQuotas
    _now_ms: int = BEGIN_MS
    _limits: dict[str, ConnectionLimits] = field(default_factory=dict)
    _open: list[tuple[str, str]] = field(default_factory=list)
    _of_addresses: AddressLimits = field(default_factory=AddressLimits)

    def steps(self, events: int) -> Iterator[Step]:
        """The script with our responses."""
        for listener in LISTENERS:
            yield self._add_or_remove(listener)
        for i in range(events):
            if i % 50 == 0:
                yield self._change()
            self._now_ms += self._step_ms()
            if self._open and (len(self._open) > MOST_AT_A_TIME or self.rng.random() < 0.4):
                yield self._end()
            else:
                yield self._connect()

    def _step_ms(self) -> int:
        return (
            self.rng.choice((0, 0, 0, 1, 7, 20, 40, 100)) if self.rng.random() < 0.997 else self.rng.randrange(20_000)
        )

    # ------------------------------------------------------------- connections

    def _connect(self) -> Step:
        rng, arrived_ms = self.rng, self._now_ms
        listener, address = rng.choice(sorted(self._limits)), self._address()
        reported_ms = self.ours.arrive(_key(listener), arrived_ms)
        gone = self._free_a_slot(listener)
        waits = reported_ms > 0 or bool(gone)
        if waits:
            self._now_ms += reported_ms + (rng.choice((0, 0, 1, 300)) if gone or rng.random() < 0.3 else 0)
        admission = self.ours.admit(_key(listener), address, self._now_ms)
        if admission.outcome is Outcome.ADMITTED:
            self._open.append((listener, address))
        rates = "" if waits else self._rates(listener)
        line = f"C\t{arrived_ms}\t{listener}\t{address}\t{reported_ms}\t{self._now_ms}\t{','.join(map('/'.join, gone))}"
        # Kafka looks at its clock once too early, once when a slot is missing, and once for each that is gone.
        looks = (reported_ms > 0) + bool(gone) + max(len(gone), 1) if waits else 0
        response = f"{self._now_ms}\t{looks} of {looks}\t{_reported(admission)}\t{self._address_rate(address)}{rates}"
        return Step(line, response, waits or admission.outcome is not Outcome.ADMITTED)

    def _free_a_slot(self, listener: str) -> list[tuple[str, str]]:
        """End connections until there is a slot; those that had to."""
        gone = []
        while not self.ours.has_slot(_key(listener)):
            full = self.ours.connections_of(_key(listener)) >= self._limits[listener].connections
            ending = self.rng.choice([each for each in self._open if not full or each[0] == listener])
            self._open.remove(ending)
            self.ours.leave(_key(ending[0]), ending[1])
            gone.append(ending)
        return gone

    def _end(self) -> Step:
        listener, address = self._open.pop(self.rng.randrange(len(self._open)))
        other = self.rng.choice(sorted(self._limits))
        self.ours.leave(_key(listener), address)
        left = self.ours.connections_from(AddressKey("main", address))
        too_many = self.ours.must_close_one(_key(other))
        return Step(f"E\t{self._now_ms}\t{listener}\t{address}\t{other}", f"{left}\t{str(too_many).lower()}", too_many)

    def _rates(self, listener: str) -> str:
        beyond_instance = listener == BETWEEN_BROKERS and len(self._limits) > 1
        instance = "-" if beyond_instance else bits(self.ours.instance_reading(self._now_ms).rate)
        return f"\t{instance}\t{bits(self.ours.listener_reading(_key(listener), self._now_ms).rate)}"

    def _address_rate(self, address: str) -> str:
        if self._of_addresses.rate_of(address) >= NO_LIMIT:
            return "-"
        reading = self.ours.address_reading(AddressKey("main", address), self._now_ms)
        assert reading is not None
        return bits(reading.rate)

    def _address(self) -> str:
        """Half of the connections are from a few."""
        return self.rng.choice(ADDRESSES[:3] if self.rng.random() < 0.5 else ADDRESSES)

    # ----------------------------------------------------------------- changes

    def _change(self) -> Step:
        """Something is configured anew."""
        rng, chance = self.rng, self.rng.random()
        if chance < 0.5:
            return self._limit_an_address(rng.choice(["*", *ADDRESSES[:3], *ADDRESSES]))
        if chance < 0.6:
            return self._limit_counts_of_addresses()
        if chance < 0.75:
            limits = ConnectionLimits(rng.choice((0, 5, 10, 20, NO_LIMIT)), rng.choice((1, 20, 100, 300, NO_LIMIT)))
            self.ours.set_instance_limits(limits, self._now_ms)
            return Step(f"B\t{self._now_ms}\t{_limits(limits)}", "")
        listener = rng.choice(LISTENERS)
        if (chance < 0.8 and set(self._limits) != {listener}) or listener not in self._limits:
            return self._add_or_remove(listener)
        limits = ConnectionLimits(rng.choice((1, 3, 5, 10, NO_LIMIT)), rng.choice((1, 10, 50, 150, NO_LIMIT)))
        self._limits[listener] = limits
        self.ours.set_listener_limits(_key(listener), limits, self._now_ms)
        return Step(f"L\t{self._now_ms}\t{listener}\t{_limits(limits)}", "")

    def _add_or_remove(self, listener: str) -> Step:
        if listener in self._limits:
            del self._limits[listener]
            self.ours.remove_listener(_key(listener))
            return Step(f"D\t{self._now_ms}\t{listener}", "")
        limits = self._limits[listener] = ConnectionLimits()
        self.ours.add_listener(_key(listener), limits, self._now_ms, protected=listener == BETWEEN_BROKERS)
        return Step(f"A\t{self._now_ms}\t{listener}", "")

    def _limit_an_address(self, address: str) -> Step:
        rate = self.rng.choice((None, 0, 1, 1, 1, 2, 3, 5, NO_LIMIT))
        if address == "*":
            limits = replace(self._of_addresses, creation_rate=NO_LIMIT if rate is None else float(rate))
        else:
            rates = {known: limit for known, limit in self._of_addresses.rates.items() if known != address}
            limits = replace(self._of_addresses, rates=rates if rate is None else {**rates, address: float(rate)})
        self._limit_addresses(limits)
        return Step(f"P\t{self._now_ms}\t{address}\t{'-' if rate is None else rate}", "")

    def _limit_counts_of_addresses(self) -> Step:
        rng = self.rng
        if rng.random() < 0.5:
            most = rng.choice((0, 1, 5, 20, NO_LIMIT))
            self._limit_addresses(replace(self._of_addresses, connections=most))
            return Step(f"N\t{self._now_ms}\t{most}", "")
        counts = {address: rng.choice((0, 2, 10, 50)) for address in rng.sample(ADDRESSES[:19], rng.randrange(5))}
        self._limit_addresses(replace(self._of_addresses, counts=counts))
        text = ",".join(f"{address}:{count}" for address, count in counts.items())
        return Step(f"O\t{self._now_ms}\t{text}", "")

    def _limit_addresses(self, limits: AddressLimits) -> None:
        self._of_addresses = limits
        self.ours.set_address_limits("main", limits)


def _key(listener: str) -> ListenerKey:
    return ListenerKey("main", listener)


def _limits(limits: ConnectionLimits) -> str:
    return f"{limits.creation_rate}\t{limits.connections}"


def _reported(admission: Admission) -> str:
    if admission.outcome is Outcome.ADMITTED:
        return "admitted"
    reported = admission.throttle_ms if admission.outcome is Outcome.TOO_FAST else admission.limit
    return f"{admission.outcome.value} {reported}"


def connection_script(seed: int, samples: int = 11, window_s: int = 1) -> ConnectionScript:
    """With as many rows for addresses as there are: those that are empty have to make place for others."""
    ours = ConnectionQuotas(ConnectionLimits(), BEGIN_MS, samples, window_s * 1000, max_addresses=32)
    return ConnectionScript(random.Random(seed), ours)
