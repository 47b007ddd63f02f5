"""Live runs against real Kafka, replayed: the same load with quotas, and with doubled ones.

    python -m tests.pipeline.real_runs [--seconds 60] [--rate 200000] [--keep DIRECTORY]

A cluster of one node, the proxy with trace and records switched on, and clients of each quota type: greedy producers
and consumers, a producer that stays below its quota, one that sends requests as fast as it may, one that makes topics
as fast as it may, one that connects as fast as it may. Prints two Markdown tables. The first is of the quotas in force:
throttle times live, how many of them the replay of the trace has otherwise, recorded throttle times, and the interval
by the replay of the records. The second is of the doubled quotas: what was used in the second run, and what the replays
of the first run's trace and records say of that, paced to greedy.
"""

import argparse
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.pipeline.simulate.backlog import Client, Replayed, Window, replay_run
from kafka_throttle.pipeline.simulate.candidate import Candidate, Rules
from kafka_throttle.pipeline.simulate.meter import measured_quota, value_of
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.records.usage_record import TraceEvent, UsageRecord, read_line
from tests.integration.proxy_process import ProxyProcess
from tests.pipeline.oracle.simulated_trace import TracedSensor, simulate_trace
from tests.support.timeouts import TIMEOUT_S

TOPIC = "real-runs"
FILL_BYTES = 48_000_000
_BATCH = 20_000
THROTTLE = {"fetch": "empty"}
"""A trace has all throttles of fetches only if they do not wait for turns."""
_API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
"""Version 0, without a client-id."""

Stop = threading.Event
Load = Callable[[str, str, Stop, float], None]
Key = tuple[str, str]
"""Client-id and quota type as records call it."""


def produce_greedily(bootstrap: str, client_id: str, stop: Stop, rate: float) -> None:
    """Always one request more, of one record."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0, "queue.buffering.max.messages": 20}
    )
    while not stop.is_set():
        try:
            producer.produce(TOPIC, bytes(_BATCH))
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(1)


def produce_openly(bootstrap: str, client_id: str, stop: Stop, rate: float) -> None:
    """60 % of the rate, whatever becomes of it."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0})
    while not stop.wait(_BATCH / (0.6 * rate)):
        producer.produce(TOPIC, bytes(_BATCH))
        producer.poll(0)
    producer.purge()
    producer.flush(1)


def fetch_greedily(bootstrap: str, client_id: str, stop: Stop, rate: float) -> None:
    """All that is in the topic, from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": "none",
            "fetch.message.max.bytes": 50_000,
            "queued.max.messages.kbytes": 64,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while not stop.is_set():
        consumer.consume(10, timeout=0.2)
    consumer.close()


def ask_greedily(bootstrap: str, client_id: str, stop: Stop, rate: float) -> None:
    """Metadata, again and again."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id})
    while not stop.is_set():
        admin.list_topics(timeout=TIMEOUT_S)


def make_topics_greedily(bootstrap: str, client_id: str, stop: Stop, rate: float) -> None:
    """Topics of two partitions, each asked for until it is made."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id})
    number = 0
    while not stop.is_set():
        number += 1
        topic = NewTopic(f"{client_id}-{time.time_ns()}-{number}", 2, 1)
        while not stop.is_set():
            try:
                admin.create_topics([topic], request_timeout=TIMEOUT_S)[topic.topic].result()
                break
            except KafkaException:
                stop.wait(0.01)


def connect_greedily(bootstrap: str, address: str, stop: Stop, rate: float) -> None:
    """From this address one connection after the other, each until it is answered, or refused."""
    host, port = bootstrap.split(":")
    while not stop.is_set():
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(address, 0)) as connection:
            connection.sendall(_API_VERSIONS)
            with suppress(ConnectionError):
                connection.recv(65_536)


@dataclass(frozen=True)
class Part:
    """One client, the type of quota that it is to meet, and its bound; for connections an address in place of it."""

    client_id: str
    quota_type: QuotaType
    load: Load
    bound: Callable[[float], float]
    is_open: bool = False

    @property
    def key(self) -> Key:
        """As records call it."""
        return self.client_id, self.quota_type.name.lower()

    @property
    def entity(self) -> Entity:
        """Whose quota it is."""
        if self.quota_type is QuotaType.CONNECTION:
            return Entity(ip=self.client_id)
        return Entity(client_id=self.client_id)

    @property
    def names(self) -> dict[str, Any]:
        """The entity as a proxy's file has it."""
        return {"ip" if self.quota_type is QuotaType.CONNECTION else "client_id": self.client_id}


PARTS = (
    Part("greedy-producer", QuotaType.PRODUCE, produce_greedily, lambda rate: rate),
    Part("open-producer", QuotaType.PRODUCE, produce_openly, lambda rate: rate, is_open=True),
    Part("greedy-consumer", QuotaType.FETCH, fetch_greedily, lambda rate: rate),
    Part("asker", QuotaType.REQUEST, ask_greedily, lambda rate: 0.25),
    Part("topic-maker", QuotaType.CONTROLLER_MUTATION, make_topics_greedily, lambda rate: 2.0),
    Part("127.0.0.77", QuotaType.CONNECTION, connect_greedily, lambda rate: 5.0),
)
"""The bound of the asker is so low that even on a busy machine it asks for more than twice of it."""


@dataclass
class Run:
    """What one run left in the spool."""

    events: list[TraceEvent] = field(default_factory=list)
    records: list[UsageRecord] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """All files of a proxy that has stopped."""
        run = cls()
        for path in sorted(folder.glob("*.tsv")):
            for row in map(read_line, path.read_text().splitlines(keepends=True)):
                if isinstance(row, TraceEvent):
                    run.events.append(row)
                elif isinstance(row, UsageRecord):
                    run.records.append(row)
        return run

    def records_of(self, key: Key) -> list[UsageRecord]:
        """Of one client and type."""
        return [record for record in self.records if (record.client_id or record.ip, record.quota_type) == key]

    def used(self, key: Key) -> float:
        """As records count it."""
        return sum(record.used for record in self.records_of(key))


def quotas(rate: float, factor: float, parts: Sequence[Part] = PARTS) -> list[dict[str, Any]]:
    """As a proxy's file has them."""
    names = {
        QuotaType.PRODUCE: "producer_byte_rate",
        QuotaType.FETCH: "consumer_byte_rate",
        QuotaType.REQUEST: "request_percentage",
        QuotaType.CONTROLLER_MUTATION: "controller_mutation_rate",
        QuotaType.CONNECTION: "connection_creation_rate",
    }
    bounds = {part: factor * part.bound(rate) for part in parts}
    return [
        {**part.names, names[part.quota_type]: int(bound) if bound.is_integer() else bound}
        for part, bound in ((part, float(bound)) for part, bound in bounds.items())
    ]


def candidate(rate: float, factor: float, parts: Sequence[Part] = PARTS) -> Candidate:
    """The same quotas as a candidate."""
    table = {part.entity: {part.quota_type: factor * part.bound(rate)} for part in parts}
    return Candidate(all_others=Rules(QuotaTable(table), paces_fetches=False))


def fill(bootstrap: str, size_bytes: int = FILL_BYTES) -> None:
    """Something to read."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 20_000, "linger.ms": 0})
    for _ in range(size_bytes // _BATCH):
        while True:
            try:
                producer.produce(TOPIC, bytes(_BATCH))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(TIMEOUT_S) == 0


def live(
    cluster: KafkaCluster,
    rate: float,
    factor: float,
    seconds: float,
    parts: Sequence[Part] = PARTS,
    keep: Path | None = None,
) -> Run:
    """All parts at once, for so long; the spool is copied to `keep`."""
    trace = {"entities": [part.names for part in parts]}
    with tempfile.TemporaryDirectory(prefix="kafka-throttle-real-") as folder:
        usage = {"directory": folder, "instance": "here", "trace": trace}
        with ProxyProcess(cluster, quotas(rate, factor, parts), throttle=THROTTLE, usage=usage) as proxy:
            stop = Stop()
            threads = [
                threading.Thread(target=part.load, args=(proxy.bootstrap, part.client_id, stop, rate), daemon=True)
                for part in parts
            ]
            for thread in threads:
                thread.start()
            stop.wait(seconds)
            stop.set()
            for thread in threads:
                thread.join(2 * TIMEOUT_S)
        if keep is not None:
            shutil.copytree(folder, keep)
        return Run.read(Path(folder))


def of_trace(run: Run, with_quotas: Candidate) -> dict[Key, list[TracedSensor]]:
    """What the replay of the trace says of each client, who is alone at its sensors, one for each node."""
    found: dict[Key, list[TracedSensor]] = defaultdict(list)
    for sensor in simulate_trace(run.events, with_quotas):
        place = sensor.key.place
        found[place.client_id or place.ip, place.quota_type].append(sensor)
    return found


def of_records(run: Run, key: Key, with_quotas: Candidate) -> list[Replayed]:
    """What the replay of the records says of a client, for each node; use is as charged."""
    rules = with_quotas.rules("main")
    assert rules is not None
    quota = measured_quota(rules, key[1], "ANONYMOUS", key[0], key[0])
    assert quota is not None
    nodes: dict[int, list[Window]] = defaultdict(list)
    for record in sorted(run.records_of(key), key=lambda record: record.begin_ms):
        nodes[record.node_id].append(Window.of(record))
    return [replay_run({key: windows}, rules, key[1], quota.limit, windows[-1].end_ms) for windows in nodes.values()]


def differing(run: Run, sensors: Iterable[TracedSensor]) -> int:
    """How many throttle times the replay of the trace has otherwise than they were live."""
    live_ms = {event.sequence: event.throttle_ms for event in run.events}
    return sum(
        live_ms[sequence] != reported_ms for sensor in sensors for sequence, reported_ms in sensor.reported.items()
    )


@dataclass(frozen=True)
class Compared:
    """One client; times in ms, use as charged. Pairs are of the paced and the greedy client, and those of use are of
    doubled quotas.
    """

    throttles: int
    live_ms: int
    differing: int
    recorded_ms: int
    records_ms: tuple[int, int]
    used: float
    by_trace: tuple[float, float]
    by_records: tuple[float, float]

    @property
    def outside_ms(self) -> int:
        """How far the recorded throttle time is outside of the interval that the records give; 0 inside."""
        low_ms, high_ms = sorted(self.records_ms)
        return max(low_ms - self.recorded_ms, self.recorded_ms - high_ms, 0)


def compared(part: Part, before: Run, after: Run, rate: float, parts: Sequence[Part] = PARTS) -> Compared:
    """The run, its replays, and the second run of one client."""
    key, same, doubled = part.key, candidate(rate, 1, parts), candidate(rate, 2, parts)
    sensors = of_trace(before, same)[key]
    clients = [client for sensor in sensors for client in sensor.live.values()]
    bounds = [sensor.replayed for sensor in of_trace(before, doubled)[key]]
    replayed, again = of_records(before, key, doubled), of_records(before, key, same)
    return Compared(
        sum(client.throttles for client in clients),
        sum(client.throttled_ms for client in clients),
        differing(before, sensors),
        sum(record.throttled_ms for record in before.records_of(key)),
        (sum(one.sensor.throttled_ms for one in again), sum(one.greedy_sensor.throttled_ms for one in again)),
        value_of(key[1], after.used(key)),
        (sum(one[Client.PACED].all.used for one in bounds), sum(one[Client.GREEDY].all.used for one in bounds)),
        (sum(one.sensor.used for one in replayed), sum(one.greedy_sensor.used for one in replayed)),
    )


def tables(before: Run, after: Run, rate: float, parts: Sequence[Part] = PARTS) -> str:
    """Both tables."""
    lines = [
        "| client | throttles live | throttled live | trace: differing | recorded | records: paced to greedy |",
        "|---|---|---|---|---|---|",
    ]
    more = [
        "| client | used, quotas doubled | trace: paced to greedy | records: paced to greedy |",
        "|---|---|---|---|",
    ]
    for part in parts:
        one = compared(part, before, after, rate, parts)
        low_ms, high_ms = sorted(one.records_ms)
        recorded = f"{one.recorded_ms / 1000:.1f} s | {low_ms / 1000:.1f} to {high_ms / 1000:.1f} s"
        times = f"{one.live_ms / 1000:.1f} s | {one.differing} | {recorded}"
        name = f"{part.client_id} ({part.key[1]})"
        lines.append(f"| {name} | {one.throttles} | {times} |")
        bounds = " | ".join(
            " to ".join(f"{used / one.used:.1%}" for used in pair) for pair in (one.by_trace, one.by_records)
        )
        more.append(f"| {name} | {one.used:.0f} | {bounds} |")
    return "\n".join([*lines, "", *more])


def both_live(rate: float, seconds: float, keep: Path | None = None) -> tuple[Run, Run]:
    """The run with quotas, and the one with doubled ones, of a cluster that is made for them."""
    with KafkaCluster(nodes=1) as cluster:
        fill(cluster.bootstrap_servers)
        before = live(cluster, rate, 1, seconds, keep=keep and keep / "live")
        return before, live(cluster, rate, 2, seconds, keep=keep and keep / "doubled")


def main() -> None:
    """Run both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=200_000, help="bytes/s")
    parser.add_argument("--keep", type=Path, help="a directory that is made, for both spools: live and doubled")
    arguments = parser.parse_args()
    before, after = both_live(arguments.rate, arguments.seconds, arguments.keep)
    print(tables(before, after, arguments.rate))


if __name__ == "__main__":
    main()
