"""A quota far below one request: 1 KB/s, and clients with default time-outs that write 1 MiB at a time.

One connection, and ten on another entity, of librdkafka and of kafka-python. A single throttle is never longer than
`max_throttle_ms`, so each connection moves one request per cap; what is cut off is debt of its entity, of which there
is at most `max_debt_ms`. Shows for each connection how many requests it moved, how far apart, which throttle times it
was told and what timed out; then reads the debt that the load has left behind, from the throttle time of a small
request on a new connection. No proof is given if anything timed out, if a connection moved more or less than one
request per cap, or if ten connections have left more debt than one.
"""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess
from tests.parity.sides import KAFKA_VERSION

RATE = 1_024
RECORD_BYTES = 1_048_000
"""With its frame a MiB; as much as kafka-python and brokers take by default."""
CAP_S = 20.0
MOST_DEBT_S = 60.0
TOPIC = "parity-tiny"

_PROBE_AFTER_S = 46.0
"""How long after its last charge a debt is read: what is left of `MOST_DEBT_S` then is below the cap, so told whole."""
_LATEST_S = 5.0
"""How much longer than the cap a connection may take for a request: clients take a while to see it, and to go on."""
_SLACK_S = 1.5
"""What a debt read from outside may be above the true one: the small request itself, and late acknowledgements."""
_ROUND_S = 0.01


@dataclass(slots=True)
class Moved:
    """What one connection has seen: when each request was acknowledged, the throttle times, what went wrong."""

    acknowledged_s: list[float] = field(default_factory=list)
    throttles_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        """The times between acknowledgements."""
        return [later - earlier for earlier, later in zip(self.acknowledged_s, self.acknowledged_s[1:], strict=False)]


class TinyClient(ABC):
    """A producer on a connection of its own; keeps `held` requests waiting or in flight until it is `stopped`."""

    library: str

    def __init__(self, held: int) -> None:
        self.moved = Moved()
        self.outstanding = 0
        self.stopped = False
        self._held = held

    def serve(self) -> None:
        """Called again and again; gives way at once."""
        self.poll()
        while not self.stopped and self.outstanding < self._held:
            self.outstanding += 1
            self.send()

    def done(self, error: object) -> None:
        self.outstanding -= 1
        if error is None:
            self.moved.acknowledged_s.append(time.monotonic())
        else:
            self.moved.errors.append(str(error))

    @abstractmethod
    def poll(self) -> None: ...

    @abstractmethod
    def send(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _Lines(logging.Handler):
    """Gives the log records of a library to a function."""

    def __init__(self, take: Any) -> None:
        super().__init__(logging.INFO)
        self.emit = take  # type: ignore[method-assign]


class Librdkafka(TinyClient):
    """Its time-outs are known from its log: a request that timed out is sent again and delivered later."""

    library = "librdkafka"

    def __init__(self, bootstrap: str, client_id: str, held: int, record_bytes: int = RECORD_BYTES) -> None:
        super().__init__(held)
        self._value = os.urandom(record_bytes)
        log = logging.getLogger(f"{client_id}-{id(self)}")
        log.propagate = False
        log.setLevel(logging.INFO)
        log.addHandler(_Lines(self._on_line))
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "message.max.bytes": RECORD_BYTES + 500,
                "throttle_cb": self._on_throttle,
                "error_cb": lambda error: self.moved.errors.append(str(error)),
                "logger": log,
            }
        )
        self._producer.list_topics(TOPIC, timeout=30)

    def poll(self) -> None:
        self._producer.poll(0)

    def send(self) -> None:
        self._producer.produce(TOPIC, self._value, partition=0, on_delivery=lambda error, _: self.done(error))

    def close(self) -> None:
        self._producer.purge()
        self._producer.poll(0)

    def _on_throttle(self, event: Any) -> None:
        if event.throttle_time > 0:  # zero when it is over
            self.moved.throttles_s.append(event.throttle_time)

    def _on_line(self, record: logging.LogRecord) -> None:
        if "timed out" in record.getMessage().lower():
            self.moved.errors.append(record.getMessage())


class KafkaPython(TinyClient):
    """Its log, written by the thread of its own that serves it, tells throttle times and time-outs."""

    library = "kafka-python"

    def __init__(self, bootstrap: str, client_id: str, held: int) -> None:
        super().__init__(held)
        self._value = os.urandom(RECORD_BYTES)
        self._threads: set[int] = set()
        logging.getLogger("kafka").addHandler(_Lines(self._on_line))
        logging.getLogger("kafka").propagate = False
        before = set(threading.enumerate())
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=client_id)
        self._producer.partitions_for(TOPIC)
        self._threads = {thread.ident for thread in set(threading.enumerate()) - before if thread.ident is not None}

    def poll(self) -> None:
        pass

    def send(self) -> None:
        sent = self._producer.send(TOPIC, self._value, partition=0)
        sent.add_callback(lambda _: self.done(None))
        sent.add_errback(self.done)

    def close(self) -> None:
        self._producer.close(timeout=1)

    def _on_line(self, record: logging.LogRecord) -> None:
        if record.thread not in self._threads:
            return
        if "throttled by broker" in record.msg and isinstance(record.args, tuple):
            self.moved.throttles_s.append(float(record.args[-1]) / 1000)  # type: ignore[arg-type]
        elif "timed out" in record.msg.lower():
            self.moved.errors.append(record.getMessage())


def run(clients: Sequence[TinyClient], seconds: float) -> None:
    """Serve all clients for so long, then until what they hold is acknowledged."""
    end_s = time.monotonic() + seconds
    while True:
        if time.monotonic() > end_s:
            for client in clients:
                client.stopped = True
        if all(client.stopped and not client.outstanding for client in clients):
            return
        for client in clients:
            client.serve()
        time.sleep(_ROUND_S)


@dataclass(slots=True)
class EntityMoved:
    """What all connections of one library on one entity have moved, and the debt that was left after the last."""

    library: str
    connections: list[Moved]
    began_s: float
    debt_s: float = 0.0

    @property
    def last_s(self) -> float:
        """When the last of its requests was acknowledged."""
        return max(moved.acknowledged_s[-1] for moved in self.connections)


def measure(
    seconds: float, held: int, connections: Sequence[int] = (1, 10)
) -> tuple[list[EntityMoved], dict[str, int]]:
    """The load, and the debts it left; and how connections to the proxy ended while it ran, by reason."""
    quotas = [{"default_client_id": True, "producer_byte_rate": RATE}]
    with KafkaCluster(KAFKA_VERSION, nodes=1, heap="400m") as cluster, ProxyProcess(cluster, quotas) as proxy:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        [made] = admin.create_topics([NewTopic(TOPIC, 1, 1)]).values()
        made.result(30)
        clients = {
            (kind, number): [kind(proxy.bootstrap, _client_id(kind.library, number), held) for _ in range(number)]
            for kind in (Librdkafka, KafkaPython)
            for number in connections
        }
        everybody = [client for of_entity in clients.values() for client in of_entity]
        ended_before = proxy.closed()
        began_s = time.monotonic()
        run(everybody, seconds)
        ended = {reason: count - ended_before.get(reason, 0) for reason, count in proxy.closed().items()}
        found = [
            EntityMoved(kind.library, [client.moved for client in of_entity], began_s)
            for (kind, _), of_entity in clients.items()
        ]
        for entity in sorted(found, key=lambda entity: entity.last_s):
            _read_debt(entity, proxy.bootstrap)
        for client in everybody:
            client.close()
    return found, {reason: count for reason, count in ended.items() if count}


def _client_id(library: str, connections: int) -> str:
    return f"{library}-{connections}"


def _read_debt(entity: EntityMoved, bootstrap: str) -> None:
    """Sends a small request when the debt is so far paid that its rest is told whole."""
    probe = Librdkafka(bootstrap, _client_id(entity.library, len(entity.connections)), 1, record_bytes=10)
    time.sleep(max(entity.last_s + _PROBE_AFTER_S - time.monotonic(), 0))
    probe.stopped, probe.outstanding = True, 1
    probe.send()
    deadline_s = time.monotonic() + 2 * CAP_S
    while probe.outstanding or not probe.moved.throttles_s:
        if time.monotonic() > deadline_s:
            break  # no throttle: nothing was owed
        probe.serve()
        time.sleep(_ROUND_S)
    [acknowledged_s] = probe.moved.acknowledged_s
    entity.debt_s = acknowledged_s + sum(probe.moved.throttles_s) - entity.last_s
    probe.close()


def problems(found: Sequence[EntityMoved], ended: dict[str, int]) -> list[str]:
    """Why a run is no proof; empty if it is."""
    words = [f"connections ended under load: {ended}"] if ended else []
    debt_of_one = {entity.library: entity.debt_s for entity in found if len(entity.connections) == 1}
    for entity in found:
        name = f"{entity.library}, {len(entity.connections)} on the entity"
        for moved in entity.connections:
            if moved.errors:
                words.append(f"{name}: {len(moved.errors)} errors, the first: {moved.errors[0]}")
            if not moved.gaps_s:
                words.append(f"{name}: a connection moved fewer than two requests")
            elif max(moved.gaps_s) > CAP_S + _LATEST_S:
                words.append(f"{name}: {max(moved.gaps_s):.1f} s between requests")
            if moved.acknowledged_s and len(moved.gaps_s) * CAP_S > moved.acknowledged_s[-1] - entity.began_s:
                words.append(f"{name}: {len(moved.gaps_s)} caps did not pass until the last request")
        most_s = min(MOST_DEBT_S, debt_of_one.get(entity.library, MOST_DEBT_S)) + _SLACK_S
        if entity.debt_s > most_s:
            words.append(f"{name}: a debt of {entity.debt_s:.1f} s")
    return words


def table(found: Sequence[EntityMoved]) -> str:
    """All connections as a Markdown table."""
    lines = [
        "| client | connections | requests | s between | throttle times, s | errors | debt left, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for entity in found:
        for number, moved in enumerate(entity.connections):
            gaps, throttles = (
                " ".join(f"{value:.1f}" for value in values) for values in (moved.gaps_s, moved.throttles_s)
            )
            first = number == 0
            lines.append(
                f"| {entity.library if first else ''} | {len(entity.connections) if first else ''} "
                f"| {len(moved.acknowledged_s)} | {gaps} | {throttles} | {len(moved.errors)} "
                f"| {f'{entity.debt_s:.1f}' if first else ''} |"
            )
    return "\n".join(lines)


def as_json(found: Sequence[EntityMoved], ended: dict[str, int]) -> dict[str, Any]:
    """The same figures; times in seconds since the start."""
    return {
        "rate": RATE,
        "request_bytes": RECORD_BYTES,
        "ended": ended,
        "problems": problems(found, ended),
        "entities": [
            {
                "library": entity.library,
                "debt_s": round(entity.debt_s, 2),
                "connections": [
                    {
                        "acknowledged_s": [round(at_s - entity.began_s, 2) for at_s in moved.acknowledged_s],
                        "throttles_s": [round(throttle_s, 2) for throttle_s in moved.throttles_s],
                        "errors": moved.errors,
                    }
                    for moved in entity.connections
                ],
            }
            for entity in found
        ],
    }
