"""What quotas cost a request within the proxy's own process: frames through real relays on real sensors.

No sockets: bytes go in at one side of a `Relay` and out at the other. 64 connections, of clients picked at random out
of all that have a quota, take turns, and every client has sensors in use. Times are CPU time of this thread.
Clients over their quota (OVER) wait, as they are told, until their throttle is over: its end belongs to the request.
"""

import gc
import random
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.relay.actions import Action, Close, Decision, DecisionRequest, RelayLimits, Send, WakeAt
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from tests.bench.memory import FETCH_RESPONSE, PRODUCE_RESPONSE, RESPONSE_HEADER, TOPIC

CONNECTIONS = 64
_TURNS_PER_BLOCK = 4
MICROSECONDS_PER_REQUEST = 33
"""How far the clock goes on with each request: as at 30,000 requests/s."""

NEVER_EXCEEDED = {
    QuotaType.PRODUCE: 1e15,
    QuotaType.FETCH: 1e15,
    QuotaType.REQUEST: 1e9,
    QuotaType.CONTROLLER_MUTATION: 1e9,
}

NONE, PRODUCE_ONLY, ALL, OVER = "none", "produce", "all", "over"
QUOTAS: Mapping[str, Mapping[QuotaType, float]] = {
    NONE: {},
    PRODUCE_ONLY: {QuotaType.PRODUCE: 1e15},
    ALL: NEVER_EXCEEDED,
    OVER: {QuotaType.PRODUCE: 10.0},  # one request is more than its window may have
}

OVER_LOAD = "produce-1"
"""The load with which clients are over their quota."""


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do: so many requests of `api` in flight, records of so many bytes."""

    title: str
    api: str
    records_bytes: int
    depth: int


LOADS = {
    "produce-1": Load("100 B produce, depth 1", "produce", 100, 1),
    "produce-16": Load("100 B produce, depth 16", "produce", 100, 16),
    "fetch-4k": Load("4 KiB fetch, depth 1", "fetch", 4096, 1),
}


# ---- entities ------------------------------------------------------------------------------------


def client_name(number: int) -> tuple[str, str]:
    """User and client-id of one of our clients."""
    return f"user-{number}", f"client-{number}"


def entities(count: int) -> list[Entity]:
    """One for each client, on the levels in turn: user, client-id, pair, all client-ids of a user."""
    kinds: Sequence[Callable[[str, str], Entity]] = (
        lambda user, client_id: Entity(user),
        lambda user, client_id: Entity(client_id=client_id),
        Entity,
        lambda user, client_id: Entity(user, DEFAULT),
    )
    return [kinds[number % 4](*client_name(number)) for number in range(count)]


DEFAULTS = (Entity(DEFAULT), Entity(client_id=DEFAULT), Entity(DEFAULT, DEFAULT))


def table(quotas: str, count: int) -> QuotaTable:
    """`count` entities and the defaults, with quotas that are never exceeded; none at all for NONE."""
    limits = QUOTAS[quotas]
    return QuotaTable(dict.fromkeys([*entities(count), *DEFAULTS], limits) if limits else {})


# ---- relays --------------------------------------------------------------------------------------


class _Nodes:
    """Nothing here asks for nodes."""

    def learn(self, node_id: int, host: str, port: int) -> None:
        raise AssertionError(node_id)

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        raise AssertionError(node_id)


class Client:
    """One connection and the frames of one load that go over it, with new correlation ids each time."""

    def __init__(self, quota_manager: ClientQuotaManager, load: Load, number: int, now_us: int) -> None:
        self.user, self.client_id = client_name(number)
        self._facts = ConnectionFacts(ListenerFacts("bench", _Nodes(), quota_manager, carried), 1, self.user)
        self._relay = Relay(quota_manager, RelayCounters(), RelayLimits(), self._facts.bind)
        self._requests = bytearray(b"".join(_request(load, self.client_id) for _ in range(load.depth)))
        self._responses = bytearray(b"".join(_response(load) for _ in range(load.depth)))
        self._request_bytes = len(self._requests) // load.depth
        self._response_bytes = len(self._responses) // load.depth
        self._depth = load.depth
        self._correlation_id = 0
        self._wake_ms = 0
        self._carry_out(self._relay.on_writable(Side.NODE, now_us), now_us)

    def frames(self) -> tuple[bytes, bytes]:
        """The next requests and the responses to them."""
        for i in range(self._depth):
            struct.pack_into(">i", self._requests, i * self._request_bytes + 8, self._correlation_id)
            struct.pack_into(">i", self._responses, i * self._response_bytes + 4, self._correlation_id)
            self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return bytes(self._requests), bytes(self._responses)

    def exchange(self, requests: bytes, responses: bytes, now_us: int) -> int:
        """One turn, from the client to the node and back; return the time at which no throttle hinders the next."""
        for side, data in ((Side.CLIENT, requests), (Side.NODE, responses)):
            actions = self._relay.on_bytes(side, data, now_us)
            if len(actions) != 1 or type(actions[0]) is not Send:
                self._carry_out(actions, now_us)
            if self._wake_ms and self._relay.answered:
                now_us, self._wake_ms = 1000 * self._wake_ms, 0
                self._carry_out(self._relay.on_time(now_us), now_us)
        return now_us

    def check(self) -> None:
        """Raise AssertionError if anything is not answered."""
        assert self._relay.idle
        assert self._relay.requests == self._relay.responses == self._correlation_id

    def _carry_out(self, actions: list[Action], now_us: int) -> None:
        for action in actions:
            assert not isinstance(action, Close), action
            if isinstance(action, WakeAt):
                self._wake_ms = action.at_ms
            if isinstance(action, DecisionRequest):
                decision = decide(action, self._facts, now_us // 1000)
                assert isinstance(decision, Decision)
                self._carry_out(self._relay.on_decision(action.ticket, decision, now_us), now_us)


def _frame(head: bytes, *rest: bytes) -> bytes:
    return struct.pack(">i", len(head) + sum(map(len, rest))) + b"".join((head, *rest))


def _request(load: Load, client_id: str) -> bytes:
    name = client_id.encode()
    if load.api == "produce":
        head = struct.pack(f">hhih{len(name)}s", 0, 7, 0, len(name), name)
        body = struct.pack(">hhii", -1, 1, 30_000, 1) + struct.pack(f">h{len(TOPIC)}s", len(TOPIC), TOPIC)
        return _frame(head, body, struct.pack(">iii", 1, 0, load.records_bytes), bytes(load.records_bytes))
    head = struct.pack(f">hhih{len(name)}s", 1, 11, 0, len(name), name)
    body = struct.pack(">iiiibii", -1, 500, 1, load.records_bytes, 0, 0, -1)
    body += struct.pack(f">ih{len(TOPIC)}si", 1, len(TOPIC), TOPIC, 1)
    return _frame(head, body, struct.pack(">iiqqiih", 0, -1, 0, -1, load.records_bytes, 0, 0))


def one_produce(number: int) -> bytes:
    """A Produce request of one of our clients."""
    return _request(LOADS["produce-1"], client_name(number)[1])


def _response(load: Load) -> bytes:
    if load.api == "produce":
        body = PRODUCE_RESPONSE.pack(1, len(TOPIC), TOPIC, 1, 0, 0, 0, -1, 0, 0)
        return RESPONSE_HEADER.pack(4 + len(body), 0) + body
    size = load.records_bytes
    body = FETCH_RESPONSE.pack(0, 0, 0, 1, len(TOPIC), TOPIC, 1, 0, 0, 0, 0, 0, 0, -1, size)
    return RESPONSE_HEADER.pack(4 + len(body) + size, 0) + body + bytes(size)


# ---- measuring -----------------------------------------------------------------------------------


class Bench:
    """Relays of one configuration of quotas, with `count` entities and the sensors of as many clients."""

    def __init__(self, quotas: str, count: int) -> None:
        self.quotas, self.count = quotas, count
        sensors = Sensors(4 * count + 2 * CONNECTIONS + 64)
        self.quota_manager = ClientQuotaManager(sensors, table(quotas, count))
        self.now_us = 10**12
        for number in range(count):
            self._charge(number)
        self._numbers = random.Random(5).choices(range(count), k=CONNECTIONS)
        self._clients: dict[str, list[Client]] = {}

    def _charge(self, number: int) -> None:
        """A client that came, used its sensors and went."""
        now_ms = self.now_us // 1000
        client_sensors = self.quota_manager.bind("bench", 1, *client_name(number), now_ms)
        for handle in (client_sensors.produce, client_sensors.fetch):
            if handle is not None:
                self.quota_manager.sensors.charge(handle, 100, now_ms)

    def clients(self, load: str) -> list[Client]:
        """The connections with this load; each has had its first request."""
        if load not in self._clients:
            made = [Client(self.quota_manager, LOADS[load], number, self.now_us) for number in self._numbers]
            for client in made:
                self.now_us = client.exchange(*client.frames(), self.now_us)
            self._clients[load] = made
        return self._clients[load]

    def ns_per_request(self, load: str, turns: int) -> float:
        """CPU time of one request and its response, in the mean of so many turns of all connections."""
        clients, depth = self.clients(load), LOADS[load].depth
        spent_ns = 0
        for _ in range(turns):
            work = [(client, *client.frames()) for client in clients]
            began_ns = time.thread_time_ns()
            for client, requests, responses in work:
                self.now_us += MICROSECONDS_PER_REQUEST * depth
                self.now_us = client.exchange(requests, responses, self.now_us)
            spent_ns += time.thread_time_ns() - began_ns
        for client in clients:
            client.check()
        return spent_ns / (turns * len(clients) * depth)

    def ns_per_client_id(self, clients: int) -> float:
        """CPU time of finding the sensors of a client whose connection asks, in the mean of clients picked at random.

        Each is made to ask by a change of its user's quotas that leaves them as they are.
        """
        now_ms, spent_ns = self.now_us // 1000, 0
        for number in random.Random(7).choices(range(self.count), k=clients):
            user, client_id = client_name(number)
            self.quota_manager.replace(self.quota_manager.table, now_ms, changed=[Entity(user)])
            began_ns = time.thread_time_ns()
            self.quota_manager.bind("bench", 1, user, client_id, now_ms)
            spent_ns += time.thread_time_ns() - began_ns
        return spent_ns / clients

    def calls_per_turn(self, load: str) -> int:
        """How many functions are called in one turn of all connections: the same whenever the same is done."""
        work = [(client, *client.frames()) for client in self.clients(load)]
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        self.now_us += 1  # each turn is a step of its own, in the same ms
        gc.disable()  # who listens to the collector is called, too: Hypothesis does
        sys.setprofile(note)
        try:
            for client, requests, responses in work:
                client.exchange(requests, responses, self.now_us)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: what quotas, of how many entities."""

    quotas: str
    count: int


Found = dict[str, dict[Cell, list[float]]]
"""By load and cell, ns per request of each round; by BIND, of finding the sensors of a client whose connection asks."""

BIND = "bind"


def _means(benches: Mapping[Cell, Bench], load: str, blocks: int) -> dict[Cell, float]:
    """ns per request of each cell, of so many blocks of a few turns, in which the cells take turns."""
    sums = dict.fromkeys(benches, 0.0)
    for _ in range(blocks):
        for cell, bench in benches.items():
            sums[cell] += bench.ns_per_request(load, _TURNS_PER_BLOCK)
    return {cell: total / blocks for cell, total in sums.items()}


def measure(counts: Sequence[int], rounds: int, blocks: int, say: Callable[[str], None]) -> Found:
    """Every cell `rounds` times; within a round, of `blocks` of a few turns of all connections, cells alternate."""
    cells = [Cell(NONE, 1), *(Cell(quotas, count) for quotas in (PRODUCE_ONLY, ALL) for count in counts)]
    over = Cell(OVER, 1)
    say("entities and sensors ...")
    benches = {cell: Bench(cell.quotas, cell.count) for cell in [*cells, over]}
    found: Found = {name: {cell: [] for cell in cells} for name in (*LOADS, BIND)}
    found[OVER_LOAD][over] = []
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for load in LOADS:
            measured = {cell: benches[cell] for cell in found[load]}
            for cell, mean in _means(measured, load, max(blocks // LOADS[load].depth, 1)).items():
                found[load][cell].append(mean)
        for cell in found[BIND]:
            found[BIND][cell].append(benches[cell].ns_per_client_id(CONNECTIONS * 2))
    gc.unfreeze()
    return found


def ratios(of_load: Mapping[Cell, Sequence[float]], cell: Cell, to: Cell = Cell(NONE, 1)) -> list[float]:
    """What a cell takes as a ratio to another one, round by round."""
    return [mine / other for mine, other in zip(of_load[cell], of_load[to], strict=True)]
