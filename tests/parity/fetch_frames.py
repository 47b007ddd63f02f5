"""The same Fetch frames at a broker with quotas and at the proxy, which withholds as a broker does, before one without.

Each client follows a script on one connection to each side, at the same times: single fetches, some sent into the
mute, or several written at once. It asks for one batch of a known size at a time, in a session or without. Whatever a
response says is compared: throttle time, error, session, and how much data it holds; and how long the mute was.
"""

import random
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from struct import pack, unpack_from
from typing import Any, Self

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.consumer import FetchRequest, FetchResponse

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.parity.frames import agree, is_critical
from tests.parity.sides import alter_client_quotas
from tests.quotas.windowed_rate import WindowedRate

KAFKA_VERSION = "4.3.1"
AS_A_BROKER = {"fetch": "empty", "max_throttle_ms": 2**31 - 1, "max_debt_ms": 0}
"""Settings of `throttle` with which the proxy does as a broker does."""

_TOPIC = "frames"
_RATES = (20_000, 100_000)
_FACTORS = (0.05, 0.3, 1.0, 2.5, 4.0)
_REQUESTS = 30
_LONGEST_MS = 60_000
_INTO_THE_MUTE_MS = 40
_CLEAR_MS = 80
_OVERHEAD_BYTES = 120
_ERROR_BYTES = 30
_TINY_RATE = 1
_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Kind:
    """How a client asks: in which version, in a session or not, how many fetches at once."""

    version: int
    sessions: bool = False
    at_once: int = 1

    def __str__(self) -> str:
        how = "sessions" if self.sessions else f"{self.at_once} at once" if self.at_once > 1 else "single"
        return f"v{self.version}, {how}"


KINDS = (
    Kind(4),
    Kind(6, at_once=2),
    Kind(11, at_once=3),
    Kind(11, sessions=True),
    Kind(12, sessions=True),
    Kind(16, at_once=3),
    Kind(17, sessions=True),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One fetch: when it is sent, in ms from the start, and the size of the batch it asks for.

    `waits` where the one before has it wait: it was sent into its mute. `wrong` where it names an epoch that is none.
    """

    at_ms: int
    size_bytes: int
    waits: bool = False
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What one client does."""

    client_id: str
    kind: Kind
    rate: int
    steps: Sequence[Step]


@dataclass(slots=True)
class Exchange:
    """What came of one step on one side. `session` is none, new, the same or another; times are of time.monotonic."""

    throttle_time_ms: int
    error: int
    session: str
    record_bytes: int
    answered_s: float
    mute_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """The same step on both sides."""

    plan: Plan
    step: Step
    broker: Exchange
    proxy: Exchange

    @property
    def differences(self) -> list[str]:
        """What is not as it is at the broker."""
        reported = ("error", "session", "record_bytes")
        found = [name for name in reported if getattr(self.broker, name) != getattr(self.proxy, name)]
        if not agree(self.broker.throttle_time_ms, self.proxy.throttle_time_ms):
            found.append("throttle_time_ms")
        theirs, ours = self.broker.mute_ms, self.proxy.mute_ms
        if theirs is not None and ours is not None and not agree(theirs, ours):
            found.append("mute_ms")
        return found


# ---------------------------------------------------------------------- planning


def script(seed: int, kind: Kind, rate: int) -> list[Step]:
    """Fetches for several times the rate, planned with a rate as a broker keeps it: what is over it is taken back.

    None is answered where some ms, or some bytes, more or less decide whether it is over the quota, or by how much.
    """
    rng = random.Random(seed)
    model = WindowedRate(rate, 11, 1000)
    steps: list[Step] = []
    free_ms = 0
    while len(steps) < _REQUESTS and free_ms < _LONGEST_MS:
        into_mute = bool(steps) and free_ms - steps[-1].at_ms > 2 * _INTO_THE_MUTE_MS and rng.random() < 0.6
        answered_ms = free_ms if into_mute else free_ms + rng.randrange(60, 600)
        at_ms = free_ms - _INTO_THE_MUTE_MS if into_mute else answered_ms
        group = _group(rng, kind, rate, model, at_ms, answered_ms)
        if group is None and into_mute:
            answered_ms = free_ms + rng.randrange(60, 600)
            at_ms = answered_ms
            group = _group(rng, kind, rate, model, at_ms, answered_ms)
        if group is None:
            free_ms += 15
            continue
        steps_of_group, model, free_ms = group
        steps += steps_of_group
    return steps


def _group(
    rng: random.Random, kind: Kind, rate: int, model: WindowedRate, at_ms: int, answered_ms: int
) -> tuple[list[Step], WindowedRate, int] | None:
    """What is written at once, the model after it, and when the last mute ends; None where that is not clear."""
    model = deepcopy(model)
    steps = []
    first_at_ms = answered_ms
    delay_ms: int | None = None
    for number in range(kind.at_once):
        wrong = kind.sessions and rng.random() < 0.15
        size = 0 if wrong else max(int(rate * rng.choice(_FACTORS)), 500)
        if delay_ms != 0 and is_critical(model, answered_ms):
            return None
        delay_ms = _clear_delay_ms(model, size + (_ERROR_BYTES if wrong else _OVERHEAD_BYTES), answered_ms)
        if delay_ms is None:
            return None
        steps.append(Step(at_ms, size, waits=number > 0 or at_ms < first_at_ms, wrong=wrong))
        answered_ms += delay_ms
    return steps, model, answered_ms


def _clear_delay_ms(model: WindowedRate, size: int, now_ms: int) -> int | None:
    """Charge it as a broker does; the throttle time, None where a little more or less would change much."""
    more = deepcopy(model).charge(size * 1.03 + 2 * _OVERHEAD_BYTES, now_ms)
    delay_ms = model.charge(size, now_ms)
    if delay_ms:
        model.record(-size, now_ms)
    clear = delay_ms > _CLEAR_MS or (not delay_ms and not more)
    return delay_ms if clear else None


def plans() -> list[Plan]:
    """All clients. Two have a quota that no response fits: what is told of errors then is seen."""
    found = [
        Plan(f"fetch-{number}-{rate}", kind, rate, script(100 * number + rate, kind, rate))
        for number, kind in enumerate(KINDS)
        for rate in _RATES
    ]
    for version in (11, 12):
        steps = [Step(500, 0, wrong=True), Step(700, 0, waits=True, wrong=True)]
        found.append(Plan(f"fetch-tiny-{version}", Kind(version, sessions=True), _TINY_RATE, steps))
    return found


# ---------------------------------------------------------------------- fetching


@dataclass(slots=True)
class Side:
    """Where to fetch, the topic's id there, and at which offset there is a batch of which size."""

    address: tuple[str, int]
    topic_id: uuid.UUID
    offsets: Mapping[int, int]


@dataclass(slots=True)
class Fetcher:
    """One connection; use it as a context manager."""

    plan: Plan
    side: Side
    _correlation_id: int = 0
    _session: int = 0
    _epoch: int = 0
    _known: int = 0
    _socket: socket.socket = field(init=False)
    _stream: Any = field(init=False)

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self.side.address, timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def run(self, ready: threading.Barrier) -> list[Exchange]:
        """Carry the plan out from when all are ready."""
        all_responses: list[tuple[bytes, str, float]] = []
        ready.wait()
        start_s = time.monotonic() + 0.1
        for group in _written_at_once(self.plan.steps):
            requests = b"".join(self._request(step) for step in group)
            first_id = self._correlation_id - len(group)
            time.sleep(max(start_s + group[0].at_ms / 1000 - time.monotonic(), 0.0))
            self._socket.sendall(requests)
            all_responses += [self._response(first_id + number) for number in range(len(group))]
        exchanges = [self._exchange(*response) for response in all_responses]
        for (sooner, later), step in zip(pairwise(exchanges), self.plan.steps[1:], strict=True):
            if step.waits and sooner.throttle_time_ms:
                later.mute_ms = (later.answered_s - sooner.answered_s) * 1000
        return exchanges

    def _request(self, step: Step) -> bytes:
        version, of = self.plan.kind.version, FetchRequest.FetchTopic
        partition = of.FetchPartition(
            partition=0, fetch_offset=self.side.offsets.get(step.size_bytes, 0), partition_max_bytes=1
        )
        topic = of(topic=_TOPIC, topic_id=self.side.topic_id, partitions=[partition])
        session_id, epoch = self._session, self._epoch
        if step.wrong:
            session_id, epoch = (session_id or 12_345), epoch + 7
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52_428_800,
            session_id=session_id if self.plan.kind.sessions else 0,
            session_epoch=epoch if self.plan.kind.sessions else -1,
            topics=[topic],
            version=version,
        )
        request.with_header(correlation_id=self._correlation_id, client_id=self.plan.client_id)
        self._correlation_id += 1
        encoded: bytes = request.encode(version=version, header=True, framed=True)
        return encoded

    def _response(self, correlation_id: int) -> tuple[bytes, str, float]:
        """The next response, what became of the session by it, and when it was here; to decode it has time."""
        frame = self._stream.read(int.from_bytes(self._stream.read(4), "big"))
        answered_s = time.monotonic()
        assert frame[:4] == pack(">i", correlation_id), "another answer was due"
        return frame, self._go_on(frame), answered_s

    def _go_on(self, frame: bytes) -> str:
        """Keep the session that a response names, as a client does; what became of it."""
        version = self.plan.kind.version
        if version < 7:
            return "none"
        [session_id] = unpack_from(">i", frame, 11 if version >= 12 else 10)
        before = self._session
        self._session, self._epoch = session_id, self._epoch + 1 if session_id else 0
        if not session_id:
            return "none"
        return "new" if not before else "the same" if before == session_id else "another"

    def _exchange(self, frame: bytes, session: str, answered_s: float) -> Exchange:
        version = self.plan.kind.version
        response = FetchResponse.decode(frame, version=version, header=True)
        records = sum(len(partition.records or b"") for topic in response.responses for partition in topic.partitions)
        return Exchange(
            response.throttle_time_ms, response.error_code if version >= 7 else 0, session, records, answered_s
        )


def _written_at_once(steps: Sequence[Step]) -> list[list[Step]]:
    groups: list[list[Step]] = []
    for step in steps:
        if groups and groups[-1][0].at_ms == step.at_ms:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def fill(cluster: KafkaCluster, sizes: Sequence[int]) -> tuple[uuid.UUID, dict[int, int]]:
    """A topic with a batch of each size; its id, and where each begins."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(_TOPIC, 1, 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for size in sizes:
        producer.produce(_TOPIC, bytes(size), partition=0)
        assert producer.flush(30) == 0
    described = admin.describe_topics(TopicCollection([_TOPIC]))[_TOPIC].result(30)
    topic_id = described.topic_id
    bits = topic_id.get_most_significant_bits() % 2**64 << 64 | topic_id.get_least_significant_bits() % 2**64
    return uuid.UUID(int=bits), {size: offset for offset, size in enumerate(sizes)}


def measure() -> list[Pair]:
    """All clients at once, both sides of each at the same instant."""
    of_all = plans()
    sizes = sorted({step.size_bytes for plan in of_all for step in plan.steps})
    quotas = [{"client_id": plan.client_id, "consumer_byte_rate": plan.rate} for plan in of_all]
    with KafkaCluster(KAFKA_VERSION, nodes=1) as judge, KafkaCluster(KAFKA_VERSION, nodes=1) as behind:
        filled = [fill(cluster, sizes) for cluster in (judge, behind)]
        alter_client_quotas(judge.address(1), quotas)
        with ProxyProcess(behind, quotas, throttle=AS_A_BROKER) as proxy:
            addresses = [judge.address(1), (HOST, proxy.node_ports[1])]
            sides = [Side(address, *of) for address, of in zip(addresses, filled, strict=True)]
            found: dict[tuple[str, int], list[Exchange]] = {}
            ready = threading.Barrier(2 * len(of_all))

            def run(plan: Plan, side: int) -> None:
                with Fetcher(plan, sides[side]) as fetcher:
                    found[plan.client_id, side] = fetcher.run(ready)

            threads = [threading.Thread(target=run, args=(plan, side)) for plan in of_all for side in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return [
        Pair(plan, step, broker, proxy)
        for plan in of_all
        for step, broker, proxy in zip(plan.steps, found[plan.client_id, 0], found[plan.client_id, 1], strict=True)
    ]


# ---------------------------------------------------------------------- telling


def table(pairs: Sequence[Pair]) -> str:
    """How near the two sides are to each other, by kind of client, as Markdown."""
    lines = [
        "| Fetch | answers | empty | errors | in a session | apart at most, ms | mutes | apart at most, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(pair.plan.kind for pair in pairs):
        of_kind = [pair for pair in pairs if pair.plan.kind == kind]
        throttles = [abs(pair.broker.throttle_time_ms - pair.proxy.throttle_time_ms) for pair in of_kind]
        mutes = [
            abs(pair.broker.mute_ms - pair.proxy.mute_ms)
            for pair in of_kind
            if pair.broker.mute_ms is not None and pair.proxy.mute_ms is not None
        ]
        cells = (
            kind,
            len(of_kind),
            sum(not pair.broker.record_bytes for pair in of_kind),
            sum(pair.broker.error != 0 for pair in of_kind),
            sum(pair.broker.session != "none" for pair in of_kind),
            max(throttles),
            len(mutes),
            f"{max(mutes, default=0.0):.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def problems(pairs: Sequence[Pair]) -> list[str]:
    """Every response that is not the broker's, in words."""
    return [
        f"{pair.plan.client_id}, {pair.step}, {', '.join(pair.differences)}: broker {pair.broker}, proxy {pair.proxy}"
        for pair in pairs
        if pair.differences
    ]
