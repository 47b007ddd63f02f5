"""One load at one level for some seconds, and what the broker, the proxy and the client say of it."""

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

from tests.fidelity import sensors
from tests.fidelity.broker import Broker
from tests.fidelity.clients import Client, drive
from tests.fidelity.loads import Load, Place
from tests.fidelity.proxied import FidelityProxy

IDLE, HALF, SATURATED = "idle", "half load", "saturation"
LEVELS = (IDLE, HALF, SATURATED)
STEADY, FROZEN = "steady", "frozen"
IDLE_RATE, STEADY_RATE = 5.0, 50.0
FREEZE_S = 0.5
_SECONDS = {IDLE: 9.0, HALF: 4.0, SATURATED: 2.0, STEADY: 3.0, FROZEN: 3.0}
_WARM_S = 2.0
_FORGOTTEN_S = 11.5
"""A sensor's windows, and a bit more."""
_LOGGED = 300
_FIRST_NUMBERS = count(0, 10_000_000)


@dataclass(slots=True)
class Figures:
    """What came of one load at one level in one run; thread time in microseconds, of all requests together.

    That of an exempt load is what broker and proxy counted as nobody's. `service_us` are sorted.
    """

    requests: int
    seconds: float
    broker_us: float
    service_us: list[float] = field(repr=False)
    min_rtt_us: int
    proxy_us: float | None = None

    @property
    def broker_us_per_request(self) -> float:
        """The broker's handler and network threads."""
        return self.broker_us / self.requests

    @property
    def proxy_us_per_request(self) -> float | None:
        """What the proxy has charged."""
        return None if self.proxy_us is None else self.proxy_us / self.requests


@dataclass(slots=True)
class Measured:
    """All that was found about one load: requests/s at each level, and the parts of their time by the broker's log."""

    load: Load
    rates: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[Figures]] = field(default_factory=lambda: {level: [] for level in (*LEVELS, STEADY, FROZEN)})
    parts_us: dict[str, float] = field(default_factory=dict)


class Bench:
    """Runs loads at a broker, or through a proxy before it, and reads the sensors of both."""

    def __init__(self, broker: Broker, proxy: FidelityProxy | None = None) -> None:
        self._broker = broker
        self._proxy = proxy
        self._place = Place(proxy.node_address(broker.node_id) if proxy else broker.address, broker.node_id)
        self._runs = count()

    def warm_up(self, found: Measured) -> None:
        """Run the load as fast as it gets, twice, and note its rate the second time."""
        for _ in range(2):
            with self._client(found.load, None, _connections(found.load, SATURATED)) as client:
                drive([client], _WARM_S)
                rate = len(client.seen.sent_ns) / _WARM_S
        found.rates = {IDLE: IDLE_RATE, HALF: rate / 2, SATURATED: rate, STEADY: STEADY_RATE, FROZEN: STEADY_RATE}

    def log(self, loads: Sequence[Measured]) -> None:
        """Note the parts of the time of some requests of each load at half load, from the broker's log."""
        cluster, node_id = self._broker.cluster, self._broker.node_id
        client_ids = []
        with sensors.request_log(cluster, node_id):
            for found in loads:
                with self._client_at(found, HALF) as client:
                    drive([client], min(_LOGGED / found.rates[HALF], _SECONDS[HALF]))
                client_ids.append(client.client_id)
        logged = sensors.logged_parts_us(cluster, node_id)
        for found, client_id in zip(loads, client_ids, strict=True):
            found.parts_us = {part: statistics.mean(values) for part, values in logged.get(client_id, {}).items()}

    def run(self, loads: Sequence[Measured], level: str) -> None:
        """Run each load at a level by itself; those that idle hardly feel one another and go together.

        Exempt ones do not idle: what else is exempt at the broker is more than five requests a second are.
        """
        if level == IDLE:
            self._run([found for found in loads if not found.load.exempt], level)
        else:
            for found in loads:
                self._run([found], level)

    def freeze(self, found: Measured) -> None:
        """Run a load at 50 requests/s twice; the second time the node's process is stopped for half a second."""
        self._run([found], STEADY)
        freezer = threading.Timer(1.0, self._freeze_node)
        freezer.start()
        self._run([found], FROZEN)
        freezer.join()

    def _freeze_node(self) -> None:
        self._broker.cluster.freeze(self._broker.node_id)
        try:
            time.sleep(FREEZE_S)
        finally:
            self._broker.cluster.thaw(self._broker.node_id)

    def _run(self, loads: Sequence[Measured], level: str) -> None:
        if not loads:
            return
        with ExitStack() as stack:
            clients = [stack.enter_context(self._client_at(found, level)) for found in loads]
            before = self._exempt() if loads[0].load.exempt else None
            drive(clients, _SECONDS[level])
            for found, client in zip(loads, clients, strict=True):
                found.runs[level].append(self._figures(client, before))

    def _client_at(self, found: Measured, level: str) -> Client:
        rate = None if level == SATURATED or found.load.waits else found.rates[level]
        return self._client(found.load, rate, _connections(found.load, level))

    def _client(self, load: Load, rate: float | None, connections: int) -> Client:
        client_id = f"{''.join(filter(str.isalnum, load.name))}-{next(self._runs)}"
        calls = load.calls(self._place, connections)
        return Client(self._place.address, client_id, calls, rate, load.depth, next(_FIRST_NUMBERS))

    def _figures(self, client: Client, exempt_before: "_Exempt | None") -> Figures:
        seconds = sensors.await_moment(client.seen.began_ns)
        broker_us = sensors.microseconds(self._broker.sensors.request_rate(client.client_id) or 0.0, seconds)
        proxy_us = None if self._proxy is None else sensors.microseconds(self._proxy.rate(client.client_id), seconds)
        if exempt_before is not None:
            broker_us = sensors.microseconds(self._broker.sensors.exempt_rate() - exempt_before.rate, seconds)
            proxy_us = None if self._proxy is None else self._proxy.exempt_us() - exempt_before.proxy_us
        sent_ns = client.seen.sent_ns
        return Figures(
            requests=len(sent_ns),
            seconds=(sent_ns[-1] - sent_ns[0]) / 1e9,
            broker_us=broker_us,
            service_us=sorted(ns / 1000 for ns in client.seen.service_ns),
            min_rtt_us=min(connection.min_rtt_us for connection in client.connections),
            proxy_us=proxy_us,
        )

    def _exempt(self) -> "_Exempt":
        """What is exempt before a load is, once what was before that is forgotten."""
        time.sleep(_FORGOTTEN_S)
        proxy_us = self._proxy.exempt_us() if self._proxy else 0.0
        return _Exempt(self._broker.sensors.exempt_rate(), proxy_us)


@dataclass(frozen=True, slots=True)
class _Exempt:
    """Nobody's request time: the broker's as a rate, as it is a sensor of everybody that lives long, ours as a sum."""

    rate: float
    proxy_us: float


def _connections(load: Load, level: str) -> int:
    if load.waits:
        return {IDLE: 3, SATURATED: 4 * load.connections}.get(level, load.connections)
    return load.connections
