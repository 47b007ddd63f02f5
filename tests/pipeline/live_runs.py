"""Simulated live runs: clients that use the proxy's own quota manager, and what the proxy would have written of it."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules
from kafka_throttle.pipeline.simulate.meter import PERCENT_SECONDS_PER_MS, type_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.fetch_rooms import FetchRooms, Place
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import (
    MOST_REPORTED,
    SecondOfUse,
    ThrottledUse,
    TraceEvent,
    UsageRecord,
    is_even,
    profile_text,
)
from kafka_throttle.quotas.sensors.address_rates import AddressRates
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

EPOCH_MS = 1_795_000_000_000
BEGIN_MS = 5_000_000
WINDOW_MS = 10_000
NODE_ID = 1
CLUSTER = "main"
PRODUCE, FETCH, REQUEST, CONNECTION, MUTATION = "produce", "fetch", "request", "connection", "controller_mutation"
REPORTED = (PRODUCE, FETCH)
"""Types of which profiles tell what was throttled, one by one."""


class Request(NamedTuple):
    """What a connection sends: `value`, not before `at_ms`."""

    at_ms: int
    value: float


Load = Callable[[Random], Iterator[Request]]
"""The requests of one connection in their order, in ms of the run."""


def greedy(size: float, begin_ms: int = 0, end_ms: int = 2**60) -> Load:
    """Always one more, as soon as it may."""

    def requests(random: Random) -> Iterator[Request]:
        while True:
            yield Request(begin_ms, size)

    return requests


def steady(rate: float, size: int, jitter: float = 0.5) -> Load:
    """As many bytes/s on average, whatever becomes of them."""

    def requests(random: Random) -> Iterator[Request]:
        step_ms = size / rate * 1000
        for i in count():
            yield Request(int((i + random.random() * jitter) * step_ms), size)

    return requests


def bursty(burst: int, size: int, period_ms: int, begin_ms: int = 0) -> Load:
    """So many bytes at once, again and again."""

    def requests(random: Random) -> Iterator[Request]:
        for i in count():
            at_ms = begin_ms + int((i + random.random() * 0.2) * period_ms)
            for _ in range(burst // size):
                yield Request(at_ms, size)

    return requests


@dataclass
class Connection:
    user: str
    client_id: str
    load: Load
    service_ms: int = 3


@dataclass
class LiveWindow:
    """What a record tells of one client's window, added up as the proxy does."""

    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    requests: int = 0
    throttles: int = 0
    throttled_ms: int = 0
    backlogged_ms: int = 0
    muted_ms: int = 0
    firsts_ms: dict[int, int] = field(default_factory=dict)
    throttled_in: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    requests_in: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    throttles_in: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    reported_in: dict[int, list[ThrottledUse]] = field(default_factory=lambda: defaultdict(list))

    def add(self, at_ms: int, value: float, throttle_ms: int, requests: int = 1, is_reported: bool = False) -> None:
        """A request at so many ms of the run; without a value it is refused, or paid for."""
        second = at_ms // 1000
        if not self.seconds[second]:
            self.firsts_ms[second] = at_ms % WINDOW_MS
        self.seconds[second] += value
        self.throttled_in[second] += throttle_ms
        self.requests_in[second] += requests
        self.throttles_in[second] += throttle_ms > 0
        if is_reported and throttle_ms and value:
            self.reported_in[second].append(ThrottledUse(at_ms % WINDOW_MS, value))
        self.requests += requests
        self.throttles += throttle_ms > 0
        self.throttled_ms += throttle_ms

    def profile(self) -> str:
        """As records have it."""
        peak, used = max(self.seconds.values()), sum(self.seconds.values())
        if is_even(len(self.seconds), WINDOW_MS // 1000, peak, used) and not self.throttled_ms:
            return ""
        counts = (self.seconds, self.throttled_in, self.requests_in, self.throttles_in)
        return profile_text(
            SecondOfUse(self.firsts_ms[s], *(count[s] for count in counts), self._reported(s))
            for s in sorted(self.seconds)
        )

    def _reported(self, second: int) -> tuple[ThrottledUse, ...]:
        reported = self.reported_in[second]
        return tuple(reported) if len(reported) <= MOST_REPORTED else ()


@dataclass
class LiveRun:
    events: list[TraceEvent]
    records: list[UsageRecord]
    throttled_ms: dict[tuple[str, str], int]
    used: dict[tuple[str, str], float]


def live_run(
    table: QuotaTable,
    connections: list[Connection],
    seconds: int,
    seed: int = 1,
    quota_type: str = PRODUCE,
    delivers: bool = False,
    paces: bool = False,
) -> LiveRun:
    """What `connections` do in so long under the quotas of `table`: all produce, or all fetch, or all ask, `value` in
    percent * s, or all connect from the address that is their user, or all create `value` partitions. A client that is
    refused, or gets no data as the proxy does not `deliver` what is over quota, does the same again. If the proxy
    `paces` fetches, they wait for their turns.
    """
    random = Random(seed)
    rates = AddressRates(11, 1000, 100)
    is_time = quota_type == REQUEST
    sensors = Sensors(1_000)
    quota_manager = ClientQuotaManager(sensors, table)
    rooms, places = FetchRooms(sensors), dict[int, Place]()
    loads = [connection.load(random) for connection in connections]
    turns: list[tuple[int, int, float]] = []
    for i, load in enumerate(loads):
        request = next(load)
        heappush(turns, (request.at_ms, i, request.value))
    events: list[TraceEvent] = []
    windows: dict[tuple[str, str, int], LiveWindow] = defaultdict(LiveWindow)
    throttled: dict[tuple[str, str], int] = defaultdict(int)
    used: dict[tuple[str, str], float] = defaultdict(float)
    muted_until: dict[tuple[str, str], int] = defaultdict(int)

    def mute(user: str, client_id: str, at_ms: int, throttle_ms: int) -> None:
        begin_ms, until_ms = max(at_ms, muted_until[user, client_id]), at_ms + throttle_ms
        windows[user, client_id, at_ms // WINDOW_MS].muted_ms += max(0, until_ms - begin_ms)
        muted_until[user, client_id] = max(begin_ms, until_ms)
        throttled[user, client_id] += throttle_ms

    while turns and turns[0][0] < seconds * 1000:
        at_ms, i, value = heappop(turns)
        connection = connections[i]
        user, client_id = connection.user, connection.client_id
        now_ms, operation, refused = BEGIN_MS + at_ms, "charge", False
        if quota_type == CONNECTION:
            throttle_ms = rates.measure(user, table.ip_limit(user)[0], False, now_ms)
            refused = throttle_ms > 0
        elif quota_type == MUTATION:
            operation, buckets = "spend" if delivers else "spend_strictly", quota_manager.buckets
            handle = quota_manager.bind(CLUSTER, NODE_ID, user, client_id, now_ms).mutation
            spend = buckets.spend_permissively if delivers else buckets.spend_strictly
            reported_ms = None if handle is None else spend(handle, value, now_ms)
            throttle_ms, refused = reported_ms or 0, reported_ms is not None and not delivers
        else:
            client_sensors = quota_manager.bind(CLUSTER, NODE_ID, user, client_id, now_ms)
            handle = (
                client_sensors.fetch
                if quota_type == FETCH
                else client_sensors.request
                if is_time
                else client_sensors.produce
            )
            charge = quota_manager.request_sensors.charge if is_time else sensors.charge
            if quota_type == FETCH and not (delivers or paces):
                charge, operation = sensors.charge_if_within, "charge_if_within"
            if paces and handle is not None:
                place = places.get(i) or places.setdefault(i, rooms.enter(handle, takes_turns=True))
                wait_ms = rooms.wait_ms(place, 2**31 - 1, now_ms)
                if wait_ms:
                    windows[user, client_id, at_ms // WINDOW_MS].add(at_ms, 0.0, wait_ms, requests=0)
                    mute(user, client_id, at_ms, wait_ms)
                    heappush(turns, (at_ms + wait_ms, i, value))
                    continue
                rooms.came(place, int(value))
            throttle_ms = 0 if handle is None else charge(handle, value, now_ms)
            refused = operation == "charge_if_within" and throttle_ms > 0
            if i in places:
                throttle_ms = rooms.told_ms(places[i], now_ms, throttle_ms)
        events.append(_event(len(events) + 1, now_ms, connection, value, throttle_ms, quota_type, operation))
        window = windows[user, client_id, at_ms // WINDOW_MS]
        got = 0 if refused else value
        window.add(at_ms, got / PERCENT_SECONDS_PER_MS if is_time else got, throttle_ms, 1, quota_type in REPORTED)
        if throttle_ms:
            mute(user, client_id, at_ms, throttle_ms)
        used[user, client_id] += got
        request = Request(at_ms, value) if refused else next(loads[i])
        free_ms = at_ms + throttle_ms
        if throttle_ms and request.at_ms <= free_ms:
            windows[user, client_id, free_ms // WINDOW_MS].backlogged_ms += throttle_ms
        lag_ms = random.randrange(1, connection.service_ms + 1)
        heappush(turns, (max(request.at_ms, free_ms + lag_ms), i, request.value))
    records = [
        _record(number, k, user, client_id, window, table, quota_type)
        for number, ((user, client_id, k), window) in enumerate(sorted(windows.items(), key=lambda w: w[0][2]), 1)
        if k < seconds * 1000 // WINDOW_MS
    ]
    return LiveRun(events, records, throttled, used)


def _event(
    sequence: int,
    now_ms: int,
    connection: Connection,
    value: float,
    throttle_ms: int,
    quota_type: str,
    operation: str,
) -> TraceEvent:
    return TraceEvent(
        instance="a",
        epoch=EPOCH_MS,
        sequence=sequence,
        at_ms=now_ms,
        wall_ms=EPOCH_MS + now_ms - BEGIN_MS,
        virtual_cluster=CLUSTER,
        node_id=NODE_ID,
        user=connection.user,
        client_id=connection.client_id,
        ip="",
        quota_type=quota_type,
        operation=operation,
        value=float(value),
        throttle_ms=throttle_ms,
        limit=None,
        rule="",
        sensor=0,
        shadow=0,
        count=1,
    )


def _record(
    number: int, k: int, user: str, client_id: str, window: LiveWindow, table: QuotaTable, quota_type: str
) -> UsageRecord:
    if quota_type == CONNECTION:
        limit, entity = table.ip_limit(user)
    else:
        _, limit, entity = table.tags_and_limit(type_of(quota_type), user, client_id)
    total = sum(window.seconds.values())
    return UsageRecord(
        instance="a",
        epoch=EPOCH_MS,
        sequence=number,
        begin_ms=EPOCH_MS + k * WINDOW_MS,
        end_ms=EPOCH_MS + (k + 1) * WINDOW_MS,
        virtual_cluster=CLUSTER,
        node_id=NODE_ID,
        user=user,
        client_id=client_id,
        ip="",
        quota_type=quota_type,
        used=total,
        peak=max(window.seconds.values(), default=0.0),
        requests=window.requests,
        in_bytes=int(total),
        out_bytes=0,
        throttles=window.throttles,
        throttled_ms=window.throttled_ms,
        backlogged_ms=window.backlogged_ms,
        limit=None if limit >= UNLIMITED else limit,
        rule="" if entity is None else str(entity),
        shadow_limit=None,
        shadow_rule="",
        shadow_throttles=0,
        shadow_throttled_ms=0,
        unsent_bytes=0,
        muted_ms=window.muted_ms,
        profile=window.profile(),
        scope="node",
        share=1.0,
    )


def candidate_with(table: QuotaTable) -> Candidate:
    """As a candidate file that says the same, and that fetches over quota get no data."""
    return Candidate(all_others=Rules(table, paces_fetches=False))
