"""Requests in flight under a request quota: answers/s at a broker with it, and at the proxy before one without.

Each client keeps so many requests of one API in flight on one connection, for 11 s that are not counted (the burst
from rest) and 22 s that are. A broker has one request of a connection at a time, so there it makes no difference how
many are sent ahead; at the proxy it must make none either. By how much the proxy's rates differ from the broker's at
any depth is what its model of costs makes of the API (docs/proofs/request-time.md).
"""

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from struct import unpack_from

from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from tests.fidelity.broker import set_request_quotas
from tests.fidelity.clients import Connection
from tests.fidelity.frames import Call, Frames, metadata, produce
from tests.integration.proxy_process import HOST, ProxyProcess

PERCENTS = (0.05, 1.0, 10.0)
DEPTHS = (1, 10, 100, 1000)
CALLS = ("Metadata", "Produce")
MOST_GAIN = 1.5
"""So much more than with one request in flight, or than a broker answers, may be answered with many."""

_ALONE_PERCENT = 10.0
"""Clients with such a quota, or a larger one, would take the machine from each other."""

_KAFKA_VERSION = "4.3.1"
_TOPIC = "pipelined"
_WARM_UP, _WARM_UP_PERCENT = "warm-up", 1e6
_WARM_UP_REQUESTS = 1000
_UNCOUNTED_S = 11.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Load:
    """What one client does on both sides."""

    api: str
    percent: float
    depth: int

    @property
    def client_id(self) -> str:
        """What it calls itself; no other client does."""
        return f"{self.api}-{self.percent}-{self.depth}"


@dataclass(frozen=True, slots=True)
class Rates:
    """Answers per second."""

    load: Load
    broker: float
    proxy: float

    @property
    def ratio(self) -> float:
        """The proxy's rate by the broker's."""
        return self.proxy / self.broker if self.broker else float("inf")


def call_of(api: str) -> Call:
    """A small request of this API."""
    return metadata(_TOPIC) if api == "Metadata" else produce(_TOPIC, 0, 1, 100)


class Client:
    """One connection that always has `depth` requests under way."""

    def __init__(self, address: tuple[str, int], load: Load) -> None:
        self.answered_s: list[float] = []
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._frames = Frames(call_of(load.api), load.client_id)
        self._sent = 0
        self._out = bytearray()
        self._in = bytearray()
        self._ask(load.depth)

    def _ask(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            self._out += self._frames.frame(self._sent)

    @property
    def events(self) -> int:
        """What it waits for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)

    def serve(self, events: int, now_s: float) -> None:
        """Take what is there, and ask as often again as was answered."""
        if events & selectors.EVENT_READ:
            data = self.socket.recv(_READ_BYTES)
            assert data, "the connection was closed"
            self._in += data
            self._ask(self._take(now_s))
        if self._out:
            try:
                del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                return

    def _take(self, now_s: float) -> int:
        at = taken = 0
        while len(self._in) - at >= 4 and len(self._in) >= (end := at + 4 + unpack_from(">i", self._in, at)[0]):
            at, taken = end, taken + 1
        del self._in[:at]
        self.answered_s += [now_s] * taken
        return taken


def drive(clients: Sequence[Client], seconds: float) -> None:
    """Serve all clients for so long."""
    end_s = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        waiting = {client: selector.register(client.socket, client.events, client).events for client in clients}
        while (now_s := time.monotonic()) < end_s:
            for key, events in selector.select(end_s - now_s):
                client = key.data
                client.serve(events, time.monotonic())
                if client.events != waiting[client]:
                    waiting[client] = selector.modify(client.socket, client.events, client).events


def measure(
    percents: Sequence[float] = PERCENTS, depths: Sequence[int] = DEPTHS, counted_s: float = 22.0
) -> list[Rates]:
    """All depths of an API and a quota at once, of a large quota one after the other."""
    loads = [Load(*of) for of in product(CALLS, percents, depths)]
    limits = {load.client_id: load.percent for load in loads} | {_WARM_UP: _WARM_UP_PERCENT}
    quotas = [{"client_id": client_id, "request_percentage": percent} for client_id, percent in limits.items()]
    with KafkaCluster(_KAFKA_VERSION, nodes=1) as judge, KafkaCluster(_KAFKA_VERSION, nodes=1) as behind:
        for cluster in (judge, behind):
            _make_topic(cluster)
        set_request_quotas(judge.address(1), limits)
        with ProxyProcess(behind, quotas) as proxy:
            sides = (judge.address(1), (HOST, proxy.node_ports[1]))
            for side in sides:
                _warm_up(side)
            found: list[Rates] = []
            for api, percent in product(CALLS, percents):
                some = [load for load in loads if (load.api, load.percent) == (api, percent)]
                for at_once in [[load] for load in some] if percent >= _ALONE_PERCENT else [some]:
                    found += _compare(at_once, sides, counted_s)
    return found


def _make_topic(cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [made] = admin.create_topics([NewTopic(_TOPIC, 1, 1)]).values()
    made.result(30)


def _warm_up(address: tuple[str, int]) -> None:
    """The broker's code is compiled, and the proxy has learned what these requests cost."""
    with Connection(address) as connection:
        for api in CALLS:
            frames = Frames(call_of(api), _WARM_UP)
            for _ in range(_WARM_UP_REQUESTS):
                connection.exchange_again(frames)


def _compare(loads: Sequence[Load], sides: Sequence[tuple[str, int]], counted_s: float) -> list[Rates]:
    clients = [[Client(side, load) for side in sides] for load in loads]
    begun_s = time.monotonic()
    drive([client for pair in clients for client in pair], _UNCOUNTED_S + counted_s)
    rates = []
    for load, pair in zip(loads, clients, strict=True):
        counted = [sum(at_s >= begun_s + _UNCOUNTED_S for at_s in client.answered_s) / counted_s for client in pair]
        rates.append(Rates(load, *counted))
        for client in pair:
            client.socket.close()
    return rates


def problems(found: Sequence[Rates], most_gain: float = MOST_GAIN) -> list[str]:
    """Where more is answered than a broker does with as many in flight, or the proxy with one; empty if nowhere."""
    words = []
    for rates in found:
        alone = next(one for one in found if one.load == Load(rates.load.api, rates.load.percent, 1))
        if rates.proxy > most_gain * max(rates.broker, alone.proxy):
            gain = f"{alone.proxy:.1f} with one in flight, the broker {rates.broker:.1f}"
            words.append(f"{rates.load.client_id}: {rates.proxy:.1f} answers/s, {gain}")
    return words


def table(found: Sequence[Rates]) -> str:
    """All rates as a Markdown table."""
    lines = [
        "| API | quota, % | in flight | broker, answers/s | proxy, answers/s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {rates.load.api} | {rates.load.percent:g} | {rates.load.depth:,} "
        f"| {rates.broker:,.1f} | {rates.proxy:,.1f} | {rates.ratio:.2f} |"
        for rates in found
    ]
    return "\n".join(lines)
