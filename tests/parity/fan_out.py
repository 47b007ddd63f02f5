"""Many connections under one fetch quota, and clients beside them: who gets the limit, and what it costs the node.

Raw connections to one node, which fetch again as soon as they have a response, whatever its throttle time says. The
first 22 s, Kafka's windows twice, are in no figure. Three questions, each to a proxy of its own:

- One, ten and a hundred connections of one client-id: bytes of whole batches that all of them read in a second, by the
  limit; the bytes that the node sends for each of them, as the proxy counts them; how even the shares are (Jain's
  index, 1 is equal); and the longest time in which one connection read nothing. With `empty`, which is how a broker
  does it, the same at a broker that has the quota: the shares must not be less even than there.
- One connection that reads beside fifty of the same client-id that wait for records that never come.
- Ten consumers without a quota, each with a small Fetch twenty times a second, beside a tenant with twenty connections
  that is far over its quota. The tenant fetches in every other slot of 6 s only: compared is how long the consumers'
  fetches take in slots with it and in those without it, but for their first 2 s. By how much two halves of the slots
  without it differ is noise.
"""

import asyncio
import math
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from struct import unpack_from

from kafka.protocol.consumer import FetchRequest, FetchResponse

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.child_process import die_with_parent
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.live_fleet.figures import SETTLED_AFTER_S, jain
from tests.parity.batches import fill, make_topic
from tests.parity.sides import alter_client_quotas
from tests.support.places import ROOT

KAFKA_VERSION = "4.3.1"
CONNECTIONS = (1, 10, 100)
BATCH_BYTES = 16_000
IDLE = 50
NEAR_THE_LIMIT = 0.95, 1.05
LEAST_JAIN = 0.95
MOST_SENT = 1.05
"""Bytes that the node may send for each that is read, with `paced`."""
MOST_SLOWER = 1.25
"""So much longer, or as much as noise makes it, fetches of others may take beside the tenant."""

BROKER = "at a broker"
"""In place of `throttle.fetch`."""

_TOPIC, _EMPTY_TOPIC = "fan-out", "nothing"
_CLIENT_ID, _TENANT = "crowd", "tenant"
_STORED_BYTES = 32_000_000
_VERSION = 11
_MAX_BYTES = 52_428_800
_PARTITION_MAX_BYTES = 1_048_576
_WAIT_MS = 500
_LONG_POLL_MS = 5_000
_GOOD, _PACE_S = 10, 0.05
_TENANT_CONNECTIONS = 20
_SLOT_S, _SETTLE_S = 6.0, 2.0
_WITH_TENANT, _WITHOUT = (0, 2), (1, 3)
"""Of four slots, those in which the tenant fetches, and the others."""

Address = tuple[str, int]


@dataclass(slots=True)
class Reader:
    """One connection that reads a topic from its beginning, over and over. Times are of time.monotonic."""

    address: Address
    client_id: str
    topic: str = _TOPIC
    wait_ms: int = _WAIT_MS
    partition_max_bytes: int = _PARTITION_MAX_BYTES
    came: list[tuple[float, int]] = field(default_factory=list)
    """When a response with whole batches had come, and their bytes."""
    took: list[tuple[float, float]] = field(default_factory=list)
    """When a Fetch was sent, and the seconds until its response had come."""
    _offset: int = 0
    _requests: int = 0

    async def read(self, pause: Callable[[], Awaitable[object]] | None = None) -> None:
        """Until it is cancelled; `pause` is waited for before each Fetch."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            while True:
                if pause is not None:
                    await pause()
                sent_s = time.monotonic()
                writer.write(self._request())
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                self._note(frame, sent_s, time.monotonic())
        finally:
            writer.close()

    def bytes_in(self, begin_s: float, end_s: float) -> int:
        """Of whole batches that came then."""
        return sum(size_bytes for at_s, size_bytes in self.came if begin_s <= at_s < end_s)

    def longest_s(self, begin_s: float, end_s: float) -> float:
        """The longest time without batches."""
        at_s = [begin_s, *(at_s for at_s, _ in self.came if begin_s <= at_s < end_s), end_s]
        return max(later - sooner for sooner, later in pairwise(at_s))

    def _request(self) -> bytes:
        of = FetchRequest.FetchTopic
        partition = of.FetchPartition(
            partition=0, fetch_offset=self._offset, partition_max_bytes=self.partition_max_bytes
        )
        request = FetchRequest(
            max_wait_ms=self.wait_ms,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            session_id=0,
            session_epoch=-1,
            topics=[of(topic=self.topic, partitions=[partition])],
            version=_VERSION,
        )
        self._requests += 1
        request.with_header(correlation_id=self._requests, client_id=self.client_id)
        encoded: bytes = request.encode(version=_VERSION, header=True, framed=True)
        return encoded

    def _note(self, frame: bytes, sent_s: float, now_s: float) -> None:
        self.took.append((sent_s, now_s - sent_s))
        response = FetchResponse.decode(frame, version=_VERSION, header=True)
        if response.error_code:
            raise RuntimeError(f"a Fetch had the error {response.error_code}")
        for partition in (partition for topic in response.responses for partition in topic.partitions):
            if partition.error_code:
                raise RuntimeError(f"a partition had the error {partition.error_code}")
            self._offset, size_bytes = whole_batches(partition.records or b"", self._offset)
            if size_bytes:
                self.came.append((now_s, size_bytes))
            if self._offset >= partition.high_watermark:
                self._offset = 0


def whole_batches(records: bytes, offset: int) -> tuple[int, int]:
    """The offset behind the last batch that is whole, and the bytes of all that are; the node cuts where it has to."""
    at = 0
    while len(records) >= at + 27:
        base, length = unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        offset = base + unpack_from(">i", records, at + 23)[0] + 1
        at += 12 + length
    return offset, at


async def read_all(
    readers: Sequence[Reader], idle: Sequence[Reader], at_s: Sequence[float], look: Callable[[], object]
) -> None:
    """Have all of them read, and look at each of the times."""
    reading = [asyncio.create_task(reader.read()) for reader in (*readers, *idle)]
    looking = asyncio.create_task(_look(at_s, look))
    await asyncio.wait([*reading, looking], return_when=asyncio.FIRST_COMPLETED)
    for task in reading:
        if task.done():
            task.result()  # none ends but by an error
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def _look(at_s: Sequence[float], look: Callable[[], object]) -> None:
    for one_s in at_s:
        await asyncio.sleep(one_s - time.monotonic())
        look()


@dataclass(frozen=True, slots=True)
class Shared:
    """What came of connections that share one quota, `idle` others beside them."""

    fetch: str
    connections: int
    idle: int
    of_limit: float
    sent_per_read: float
    jain: float
    longest_s: float

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.connections}" + (f" beside {self.idle} that wait" if self.idle else "")

    def problems(self, least_jain: float = LEAST_JAIN) -> Iterator[str]:
        """Why this is not right."""
        least, most = NEAR_THE_LIMIT
        if not least <= self.of_limit <= most:
            yield f"{self.name}: {self.of_limit:.3f} of the limit, expected {least} to {most}"
        if self.jain < least_jain:
            yield f"{self.name}: Jain's index {self.jain:.3f}, expected at least {least_jain:g}"
        if self.fetch == "paced" and self.sent_per_read > MOST_SENT:
            yield f"{self.name}: {self.sent_per_read:.3f} bytes sent for each read, expected at most {MOST_SENT}"


@dataclass(frozen=True, slots=True)
class Beside:
    """How long others' fetches took at the 99th percentile, in ms: beside the tenant, and in two halves without it."""

    fetch: str
    with_tenant_ms: float
    without_ms: float
    half_ms: float
    other_half_ms: float

    @property
    def ratio(self) -> float:
        """With the tenant, by without."""
        return self.with_tenant_ms / self.without_ms

    @property
    def noise(self) -> float:
        """One half without it, by the other; at least 1."""
        return max(self.half_ms / self.other_half_ms, self.other_half_ms / self.half_ms)

    def problems(self) -> Iterator[str]:
        """Why this is not right."""
        if self.ratio > (most := max(MOST_SLOWER, self.noise)):
            yield f"beside the tenant others' fetches took {self.ratio:.2f} times as long, expected at most {most:.2f}"


Found = tuple[Sequence[Shared], Beside]


def measure(fetch: str, rate: int, seconds: int, batch_bytes: int = BATCH_BYTES) -> Found:
    """All of it, one after the other, each for so many seconds after it has settled."""
    with filled_cluster(batch_bytes) as cluster:
        crowds = [(number, 0) for number in CONNECTIONS] + [(1, IDLE)]
        shared = [measure_shared(cluster, fetch, rate, seconds, *crowd) for crowd in crowds]
        beside = measure_beside(cluster, fetch, rate, seconds)
        if fetch == "empty":
            alter_client_quotas(cluster.address(1), [{"client_id": _CLIENT_ID, "consumer_byte_rate": rate}])
            shared += [measure_at_broker(cluster, rate, seconds, number) for number in CONNECTIONS]
        return shared, beside


@contextmanager
def filled_cluster(batch_bytes: int = BATCH_BYTES) -> Iterator[KafkaCluster]:
    """One node with what is read, in batches of one size, and with a topic that has nothing."""
    with KafkaCluster(KAFKA_VERSION, nodes=1, heap="400m") as cluster:
        for topic in (_TOPIC, _EMPTY_TOPIC):
            make_topic(cluster, topic)
        fill(cluster, _TOPIC, 1, batch_bytes, _STORED_BYTES)
        yield cluster


@contextmanager
def _proxy(cluster: KafkaCluster, fetch: str, client_id: str, rate: int) -> Iterator[tuple[ProxyProcess, Address]]:
    quotas = [{"client_id": client_id, "consumer_byte_rate": rate}]
    with ProxyProcess(cluster, quotas, throttle={"fetch": fetch}) as proxy:
        yield proxy, (HOST, proxy.node_ports[1])


def measure_shared(
    cluster: KafkaCluster, fetch: str, rate: int, seconds: int, connections: int, idle: int = 0
) -> Shared:
    """So many connections that read, and so many that wait."""
    with _proxy(cluster, fetch, _CLIENT_ID, rate) as (proxy, address):
        waiting = [Reader(address, _CLIENT_ID, _EMPTY_TOPIC, _LONG_POLL_MS) for _ in range(idle)]
        return _measure(fetch, address, rate, seconds, connections, waiting, lambda: _sent_bytes(proxy))


def measure_at_broker(cluster: KafkaCluster, rate: int, seconds: int, connections: int) -> Shared:
    """So many connections that read from the node itself, which has the quota. What it sends is not known there."""
    return _measure(BROKER, cluster.address(1), rate, seconds, connections, (), lambda: math.nan)


def _measure(
    fetch: str,
    address: Address,
    rate: int,
    seconds: int,
    connections: int,
    waiting: Sequence[Reader],
    sent_bytes: Callable[[], float],
) -> Shared:
    readers = [Reader(address, _CLIENT_ID) for _ in range(connections)]
    begin_s = time.monotonic() + SETTLED_AFTER_S
    end_s = begin_s + seconds
    sent: list[float] = []
    asyncio.run(read_all(readers, waiting, (begin_s, end_s), lambda: sent.append(sent_bytes())))
    read = [reader.bytes_in(begin_s, end_s) for reader in readers]
    return Shared(
        fetch,
        connections,
        len(waiting),
        of_limit=sum(read) / seconds / rate,
        sent_per_read=(sent[1] - sent[0]) / max(sum(read), 1),
        jain=jain(read),
        longest_s=max(reader.longest_s(begin_s, end_s) for reader in readers),
    )


def _sent_bytes(proxy: ProxyProcess) -> float:
    """What the node has sent: what went on to clients, and fetches over quota, which went to nobody."""
    return proxy.metric("response_bytes_total") + proxy.metric("withheld_bytes_total")


def measure_beside(cluster: KafkaCluster, fetch: str, rate: int, seconds: int) -> Beside:
    """The consumers here, the tenant in a process of its own."""
    with _proxy(cluster, fetch, _TENANT, rate) as (_, address):
        good = [Reader(address, f"good-{number}", partition_max_bytes=1) for number in range(_GOOD)]
        command = [sys.executable, "-m", "tests.parity.fan_out", str(address[1])]
        with subprocess.Popen(command, cwd=ROOT, preexec_fn=die_with_parent) as tenant:
            try:
                asyncio.run(_read_at_a_pace(good, SETTLED_AFTER_S + seconds))
                if tenant.poll() is not None:
                    raise RuntimeError("the tenant has ended")
            finally:
                tenant.kill()
    settled_s = good[0].took[0][0] + SETTLED_AFTER_S
    took = [one for reader in good for one in reader.took if one[0] > settled_s]
    return Beside(fetch, *(_p99_ms(took, slots) for slots in (_WITH_TENANT, _WITHOUT, _WITHOUT[:1], _WITHOUT[1:])))


def _p99_ms(took: Sequence[tuple[float, float]], slots: Sequence[int]) -> float:
    """The 99th percentile of each slot, and the median of those: what else the machine does spoils some slots."""
    in_slot = defaultdict(list)
    for sent_s, took_s in took:
        number, since_s = divmod(sent_s, _SLOT_S)
        if number % 4 in slots and (slots == _WITH_TENANT or since_s > _SETTLE_S):
            in_slot[number].append(took_s * 1000)
    return statistics.median(statistics.quantiles(values, n=100)[-1] for values in in_slot.values() if len(values) > 1)


async def _read_at_a_pace(readers: Sequence[Reader], seconds: float) -> None:
    reading = [asyncio.create_task(reader.read(lambda: asyncio.sleep(_PACE_S))) for reader in readers]
    done, _ = await asyncio.wait(reading, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # none ends but by an error
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def be_the_tenant(port: int) -> None:
    """Read as much as can be in its slots, until it is killed."""

    async def wait_for_slot() -> None:
        number, since_s = divmod(time.monotonic(), _SLOT_S)
        if number % 4 in _WITHOUT:
            await asyncio.sleep(_SLOT_S - since_s)

    readers = [Reader((HOST, port), _TENANT) for _ in range(_TENANT_CONNECTIONS)]
    await asyncio.gather(*(reader.read(wait_for_slot) for reader in readers))


def problems(found: Found) -> list[str]:
    """Why these are no proof; empty if they are."""
    shared, beside = found
    of_broker = {one.connections: one.jain for one in shared if one.fetch == BROKER}
    found_here = [one for one in shared if one.fetch != BROKER]
    least = [min(of_broker.get(one.connections, LEAST_JAIN), LEAST_JAIN) for one in found_here]
    of_shares = [problem for one, jain in zip(found_here, least, strict=True) for problem in one.problems(jain)]
    return [*of_shares, *beside.problems()]


def table(found: Found) -> str:
    """In Markdown."""
    shared, beside = found
    lines = [
        "| connections | `throttle.fetch` | sum / limit | bytes that the node sends for each byte read | Jain "
        "| longest without data, s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {one.fetch} | {one.of_limit:.3f} | {_known(one.sent_per_read)} | {one.jain:.3f} "
        f"| {one.longest_s:.1f} |"
        for one in shared
    ]
    lines += [
        "",
        "| `throttle.fetch` | beside the tenant, p99, ms | without it, p99, ms | ratio | noise |",
        "|---|---|---|---|---|",
        f"| {beside.fetch} | {beside.with_tenant_ms:.1f} | {beside.without_ms:.1f} | {beside.ratio:.2f} "
        f"| {beside.noise:.2f} |",
    ]
    return "\n".join(lines)


def _known(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


if __name__ == "__main__":
    asyncio.run(be_the_tenant(int(sys.argv[1])))
