"""One producer that commits each 100 ms over a produce quota, at the nodes and at the proxy, as it is seen on the wire.

Kafka's own producer writes with acks=all in transactions. Two of them run at the same time in front of one cluster: one
has its quota at the nodes, the other at the proxy. Each connection goes through a relay that records every request and
response (wire.py); the producer at the proxy goes through two, one on either side of it. Compared is what is committed,
what was sent for it, and for the requests that are throttled: when the response leaves, when the connection is read
again, and what becomes of the requests behind.
"""

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.protocol.api_key import PRODUCE
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.parity.sides import alter_client_quotas
from tests.parity.wire import Exchange, Wire
from tests.support.java_program import java_source

KAFKA_VERSION = "4.3.1"
RATE = 20_000
RECORD_BYTES = 100
SECONDS = 45
MOST_APART = 1.25
"""So much more or less than at the nodes may be committed at the proxy."""
WITHIN_S = 0.025

CONCURRENT_TRANSACTIONS, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 51, 45, 47

_AT_NODES, _AT_PROXY = "at-nodes", "at-proxy"
_BEFORE_NODES, _BEFORE_PROXY = "127.0.0.7", "127.0.0.8"
"""Where the relays listen."""
_LISTENER = "CLIENTS"
_HEAP = "384m"
_EXIT_S = 120.0
_NO_PUNCTUATION = {ord(" "): "-", ord(","): None}


@dataclass(frozen=True, slots=True)
class Case:
    """What the producers write, and to which cluster.

    `patience_ms` is how long a node waits for the end of the transaction before, when a Produce begins the next one:
    `add.partitions.to.txn.retry.backoff.max.ms`, 100 by default. With 0 most transactions begin with
    CONCURRENT_TRANSACTIONS.
    """

    name: str
    nodes: int
    records: int
    linger_ms: int
    patience_ms: int = 100

    @property
    def cluster(self) -> tuple[int, int]:
        """Cases that are equal in this use one cluster."""
        return self.nodes, self.patience_ms


CASES = (
    Case("small requests", 3, 100, 5),
    Case("full batches", 3, 1000, 100),
    Case("small requests, one node", 1, 100, 5),
    Case("full batches, one node", 1, 400, 100),
    Case("small requests, nodes that do not wait", 3, 100, 5, patience_ms=0),
    Case("full batches, nodes that do not wait", 3, 1000, 100, patience_ms=0),
)


@dataclass(slots=True)
class Seen:
    """What one producer did, and what was seen of it on the wire between it and whoever throttles it."""

    committed: int = 0
    requests: int = 0
    request_bytes: int = 0
    records: int = 0
    """In all requests; those that were sent again count each time."""
    distinct: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    """How many partitions of a response have each error code."""
    throttles_ms: list[int] = field(default_factory=list)
    failed_and_throttled: int = 0
    left_ms: list[float] = field(default_factory=list)
    """When throttled responses came, after the request or the response before it, whichever was later."""
    read_again_ms: list[float] = field(default_factory=list)
    """When a request that was sent into a throttle got its response, after the end of the throttle."""

    @classmethod
    def of(cls, exchanges: Sequence[Exchange], committed: int) -> "Seen":
        """The Produce requests of one client."""
        seen = cls(committed)
        records: dict[tuple[bytes, int, int, int, int], int] = {}
        for one in exchanges:
            if one.api_key == PRODUCE:
                seen._add(one)
                for batch in one.batches:
                    records[batch.number] = batch.records
        seen.distinct = sum(records.values())
        for connection in sorted({one.connection for one in exchanges}):
            seen._look_at_throttles([one for one in exchanges if one.connection == connection and one.answered_s])
        return seen

    def _add(self, one: Exchange) -> None:
        self.requests += 1
        self.request_bytes += one.request_bytes
        self.records += sum(batch.records for batch in one.batches)
        self.errors.update(filter(None, one.errors))
        if one.throttle_time_ms:
            self.throttles_ms.append(one.throttle_time_ms)
            self.failed_and_throttled += any(one.errors)

    def _look_at_throttles(self, exchanges: Sequence[Exchange]) -> None:
        """Of one connection."""
        answered_s = free_s = 0.0
        for one in exchanges:
            assert one.answered_s is not None
            if one.sent_s < free_s:
                self.read_again_ms.append((one.answered_s - free_s) * 1000)
            elif one.throttle_time_ms:
                self.left_ms.append((one.answered_s - max(one.sent_s, answered_s)) * 1000)
            answered_s = one.answered_s
            free_s = max(free_s, answered_s + one.throttle_time_ms / 1000)

    @property
    def sent_again(self) -> int:
        """How many records were sent again, each time."""
        return self.records - self.distinct

    @property
    def too_soon(self) -> int:
        """How many requests that were sent into a throttle had their response before its end."""
        return sum(after_ms < -WITHIN_S * 1000 for after_ms in self.read_again_ms)


@dataclass(frozen=True, slots=True)
class Compared:
    """One case at both sides."""

    case: Case
    nodes: Seen
    proxy: Seen
    passed_ms: list[float]
    """How long the proxy kept each throttled request that found its connection free."""

    @property
    def of_nodes(self) -> float:
        """What was committed at the proxy, by what was at the nodes."""
        return self.proxy.committed / max(self.nodes.committed, 1)

    def problems(self) -> list[str]:
        """Where the two differ; empty if they do not."""
        found = []
        if not 1 / MOST_APART <= self.of_nodes <= MOST_APART:
            found.append(f"{self.case.name}: {self.proxy.committed} records, {self.nodes.committed} at the nodes")
        if self.proxy.too_soon:
            found.append(f"{self.case.name}: {self.proxy.too_soon} requests were read within a throttle")
        return found


def measure(cases: Sequence[Case] = CASES, seconds: int = SECONDS) -> list[Compared]:
    """One case after the other, both sides of each at the same time."""
    found = []
    for _, of_cluster in groupby(cases, lambda case: case.cluster):
        some = list(of_cluster)
        with relayed_cluster(some[0].nodes, some[0].patience_ms) as (cluster, before_nodes):
            alter_client_quotas(cluster.address(1), _quotas(_AT_NODES))
            found += [_compared(case, cluster, before_nodes, seconds) for case in some]
    return found


@contextmanager
def relayed_cluster(nodes: int, patience_ms: int = 100) -> Iterator[tuple[KafkaCluster, Wire]]:
    """A cluster, and a relay before the listener of its nodes for clients and the proxy."""

    def properties(node_id: int) -> Mapping[str, str]:
        _, own_port = cluster.address(node_id)
        _, port = cluster.address(node_id, _LISTENER)
        return {
            "advertised.listeners": f"PLAINTEXT://{HOST}:{own_port},{_LISTENER}://{_BEFORE_NODES}:{port}",
            "add.partitions.to.txn.retry.backoff.max.ms": str(patience_ms),
        }

    cluster = KafkaCluster(KAFKA_VERSION, nodes=nodes, listeners={_LISTENER: "PLAINTEXT"}, extra=properties, heap=_HEAP)
    with cluster:
        ports = [cluster.address(node_id, _LISTENER)[1] for node_id in cluster.node_ids]
        with Wire(_BEFORE_NODES, HOST, ports) as wire:
            yield cluster, wire


@contextmanager
def relayed_proxy(before_nodes: Wire, quotas: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Wire]]:
    """Where clients find a proxy before such a cluster: the address of a second relay, and that relay."""
    with (
        ProxyProcess(before_nodes.bootstrap, quotas, listener={"advertised_host": _BEFORE_PROXY}) as proxy,
        Wire(_BEFORE_PROXY, HOST, proxy.ports) as before_proxy,
    ):
        yield f"{_BEFORE_PROXY}:{proxy.port}", before_proxy


def _quotas(client_id: str) -> list[dict[str, Any]]:
    return [{"client_id": client_id, "producer_byte_rate": RATE}]


def _compared(case: Case, cluster: KafkaCluster, before_nodes: Wire, seconds: int) -> Compared:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-throttle-transactional-")))
        bootstrap, before_proxy = stack.enter_context(relayed_proxy(before_nodes, _quotas(_AT_PROXY)))
        before_nodes.exchanges.clear()
        sides = {_AT_NODES: before_nodes.bootstrap, _AT_PROXY: bootstrap}
        producers = {
            side: _Producer(case, cluster, folder / side, side, servers, seconds) for side, servers in sides.items()
        }
        committed = {side: producer.committed() for side, producer in producers.items()}
        inner = {(one.client_id, one.correlation_id): one for one in before_nodes.exchanges}
    at_nodes = [one for one in before_nodes.exchanges if one.client_id == _AT_NODES]
    at_proxy = [one for one in before_proxy.exchanges if one.client_id == _AT_PROXY]
    return Compared(
        case,
        Seen.of(at_nodes, committed[_AT_NODES]),
        Seen.of(at_proxy, committed[_AT_PROXY]),
        [(inner[one.client_id, one.correlation_id].sent_s - one.sent_s) * 1000 for one in throttled_alone(at_proxy)],
    )


def throttled_alone(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The throttled requests that were sent when no other request of their connection was in flight or throttled."""
    found, free_s = [], dict.fromkeys((one.connection for one in exchanges), 0.0)
    for one in exchanges:
        if one.answered_s is None:
            continue
        if one.throttle_time_ms and one.sent_s >= free_s[one.connection]:
            found.append(one)
        free_s[one.connection] = max(free_s[one.connection], one.answered_s + one.throttle_time_ms / 1000)
    return found


class _Producer:
    """The Java program, until it ends by itself."""

    def __init__(
        self, case: Case, cluster: KafkaCluster, folder: Path, side: str, bootstrap: str, seconds: int
    ) -> None:
        topic = f"{side}-{case.name.translate(_NO_PUNCTUATION)}"
        _make_topic(cluster, topic)
        folder.mkdir()
        properties = folder / "properties"
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": side,
            "transactional.id": topic,
            "acks": "all",
            "linger.ms": case.linger_ms,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        numbers = (case.nodes, case.records, RECORD_BYTES, seconds)
        argv = cluster.java_command(
            str(java_source("TransactionalProducer")), str(properties), topic, *map(str, numbers), heap="128m"
        )
        self._output, self._errors = folder / "output", folder / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(argv, stdout=output, stderr=errors, preexec_fn=die_with_parent)
        self._lasts_s = seconds + _EXIT_S

    def committed(self) -> int:
        """How many records it has committed, when it has ended."""
        try:
            if status := self._process.wait(self._lasts_s):
                raise RuntimeError(f"the producer ended with status {status}\n{self._errors.read_text()[-3000:]}")
        finally:
            self._process.kill()
        return int(self._output.read_text().split()[-1])


def _make_topic(cluster: KafkaCluster, topic: str) -> None:
    """A partition on each node, with a copy on each."""
    ids = cluster.node_ids
    copies = [[*ids[first:], *ids[:first]] for first in range(len(ids))]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [made] = admin.create_topics([NewTopic(topic, len(ids), replica_assignment=copies)]).values()
    made.result(30)


def problems(found: Sequence[Compared]) -> list[str]:
    """Where the two sides differ; empty if nowhere."""
    return [problem for one in found for problem in one.problems()]


def table(found: Sequence[Compared]) -> str:
    """In Markdown, the figure at the nodes first: what was done, and then what is seen of throttled requests."""
    lines = [
        "| case | records committed | ratio | kB sent | records sent again "
        "| CONCURRENT_TRANSACTIONS | OUT_OF_ORDER_SEQUENCE_NUMBER |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        figures = [
            [f"{seen.committed:,}" for seen in (one.nodes, one.proxy)],
            [f"{one.of_nodes:.2f}"],
            [f"{seen.request_bytes / 1000:,.0f}" for seen in (one.nodes, one.proxy)],
            [f"{seen.sent_again:,}" for seen in (one.nodes, one.proxy)],
            *(
                [f"{seen.errors[code]:,}" for seen in (one.nodes, one.proxy)]
                for code in (CONCURRENT_TRANSACTIONS, OUT_OF_ORDER_SEQUENCE_NUMBER)
            ),
        ]
        lines.append(f"| {one.case.name} | {' | '.join(' / '.join(pair) for pair in figures)} |")
    lines += [
        "",
        "| case | throttled | of these with an error | throttles, s | response leaves after, ms "
        "| sent into a throttle | response after its end, ms | before its end | the proxy passes it on after, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        figures = [
            [f"{of(seen)}" for seen in (one.nodes, one.proxy)]
            for of in (
                lambda seen: len(seen.throttles_ms),
                lambda seen: seen.failed_and_throttled,
                lambda seen: f"{sum(seen.throttles_ms) / 1000:.0f}",
                lambda seen: _middle(seen.left_ms),
                lambda seen: len(seen.read_again_ms),
                lambda seen: _middle(seen.read_again_ms),
                lambda seen: seen.too_soon,
            )
        ]
        cells = [" / ".join(pair) for pair in figures]
        lines.append(f"| {one.case.name} | {' | '.join(cells)} | {_middle(one.passed_ms)} |")
    return "\n".join(lines)


def _middle(times_ms: Sequence[float]) -> str:
    return f"{median(times_ms):.1f}" if times_ms else "-"
