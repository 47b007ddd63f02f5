"""One load at one level for some seconds, and what the broker's sensor and the client say of it."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

from tests.fidelity import sensors
from tests.fidelity.broker import Broker
from tests.fidelity.clients import Client, drive
from tests.fidelity.loads import Load, Place

IDLE, HALF, SATURATED = "idle", "half load", "saturation"
LEVELS = (IDLE, HALF, SATURATED)
IDLE_RATE = 5.0
_IDLE_S, _HALF_S, _SATURATED_S, _WARM_S = 9.0, 5.0, 3.0, 3.0
_FIRST_NUMBERS = count(0, 10_000_000)
_LOGGED = 300
_SETTLED_S = 0.3


@dataclass(slots=True)
class Figures:
    """What came of one load at one level in one run, the broker's thread time in microseconds."""

    requests: int
    seconds: float
    broker_us: float
    service_us: list[float] = field(repr=False)
    min_rtt_us: int
    exempt_us: float | None = None

    @property
    def broker_us_per_request(self) -> float:
        """The broker's handler and network threads."""
        return self.broker_us / self.requests


@dataclass(slots=True)
class Measured:
    """All that was found about one load; `rates` are requests/s at each level."""

    load: Load
    rates: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[Figures]] = field(default_factory=lambda: {level: [] for level in LEVELS})
    parts_us: dict[str, float] = field(default_factory=dict)


class Bench:
    """Runs loads against an address and reads the broker's sensors."""

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        self._broker = broker
        self._place = Place(address, broker.node_id)
        self._runs = count()

    def warm_up(self, found: Measured) -> None:
        """Run the load as fast as it gets, twice, and note its rate the second time."""
        for _ in range(2):
            client = self._client(found.load, None, _connections(found.load, SATURATED))
            with client:
                drive([client], _WARM_S)
                rate = len(client.seen.sent_ns) / _WARM_S
        found.rates = {IDLE: IDLE_RATE, HALF: min(rate / 2, found.load.most_rate), SATURATED: rate}

    def log(self, loads: Sequence[Measured]) -> None:
        """Note the parts of the time of some requests of each load at half load, from the broker's log."""
        cluster, node_id = self._broker.cluster, self._broker.node_id
        client_ids = []
        with sensors.request_log(cluster, node_id):
            for found in loads:
                with self._client_at(found, HALF) as client:
                    drive([client], min(_LOGGED / found.rates[HALF], _HALF_S))
                client_ids.append(client.client_id)
        logged = sensors.logged_parts_us(cluster, node_id)
        for found, client_id in zip(loads, client_ids, strict=True):
            found.parts_us = {part: statistics.mean(values) for part, values in logged.get(client_id, {}).items()}

    def run(self, loads: Sequence[Measured], level: str) -> None:
        """Run loads at a level at the same time: those of the level "idle" hardly feel one another."""
        seconds = {IDLE: _IDLE_S, HALF: _HALF_S, SATURATED: _SATURATED_S}[level]
        with ExitStack() as stack:
            clients = [stack.enter_context(self._client_at(found, level)) for found in loads]
            drive(clients, seconds)
            for found, client in zip(loads, clients, strict=True):
                found.runs[level].append(self._figures(found.load, client))

    def _client_at(self, found: Measured, level: str) -> Client:
        rate = None if level == SATURATED or found.load.waits else found.rates[level]
        return self._client(found.load, rate, _connections(found.load, level))

    def _client(self, load: Load, rate: float | None, connections: int) -> Client:
        client_id = f"{''.join(filter(str.isalnum, load.name))}-{next(self._runs)}"
        calls = load.calls(self._place, connections)
        return Client(self._place.address, client_id, calls, rate, load.depth, next(_FIRST_NUMBERS))

    def _figures(self, load: Load, client: Client) -> Figures:
        seconds = sensors.await_moment(client.seen.began_ns)
        percent = self._broker.sensors.request_rate(client.client_id)
        exempt = self._broker.sensors.exempt_rate() if load.exempt else None
        sent_ns = client.seen.sent_ns
        return Figures(
            requests=len(sent_ns),
            seconds=(sent_ns[-1] - sent_ns[0]) / 1e9,
            broker_us=sensors.microseconds(percent or 0.0, seconds),
            service_us=sorted(ns / 1000 for ns in client.seen.service_ns),
            min_rtt_us=min(connection.min_rtt_us for connection in client.connections),
            exempt_us=None if exempt is None else sensors.microseconds(exempt, seconds),
        )


def _connections(load: Load, level: str) -> int:
    if load.waits:
        return {IDLE: 3, HALF: load.connections, SATURATED: 4 * load.connections}[level]
    return load.connections
