"""A Streams application over a produce quota: with the quota at the nodes, and at a proxy before them, in turn.

    python -m tests.applications.throttled [--rounds 2] [--seconds 60] [--transaction-timeout-ms MS]

Two instances with two threads each (exactly_once_v2, a commit each 100 ms) have had time to share four partitions when
100,000 records are written there. Each producer has 20 kB/s at each of three nodes. Prints for each run how many
records are committed, and what was sent for them as seen on the wire.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.protocol.api_key import PRODUCE
from tests.applications.committed import Committed
from tests.applications.programs import Programs, Streams
from tests.applications.rig import PARTITIONS, make_topics
from tests.parity.sides import Entry, alter_client_quotas
from tests.parity.transactional import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RATE,
    Seen,
    relayed_cluster,
    relayed_proxy,
)
from tests.parity.wire import Exchange, Wire

_NODES = 3
_INSTANCES = _THREADS = 2
_RECORDS, _KEYS, _PADDING = 100_000, 20, "x" * 100
_SIDES = ("nodes", "proxy")
_SETTLES_S = 10.0
"""So long after all instances run, each thread has its partition."""
_QUIET_S = 12.0
"""All committed records are read when none has come for so long; transactions that were left open have timed out."""


@dataclass(frozen=True, slots=True)
class Run:
    """What an application did with its quota at one side."""

    side: str
    seen: Seen
    aborted: int
    """How often a thread found that its transaction had been aborted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """As the head of this file says."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs at each side (%(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="of each run (%(default)s)")
    parser.add_argument("--transaction-timeout-ms", type=int, default=10_000, help="(%(default)s, as in Streams)")
    options = parser.parse_args(arguments)
    print("\n".join(_HEAD))
    for run in measure(options.rounds, options.seconds, options.transaction_timeout_ms):
        print(line(run), flush=True)
    return 0


def measure(rounds: int, seconds: int, timeout_ms: int) -> Iterator[Run]:
    """The runs; the side that begins changes from round to round."""
    with relayed_cluster(_NODES) as (cluster, before_nodes):
        for number in range(rounds):
            for side in _SIDES[:: -1 if number % 2 else 1]:
                yield _run(cluster, before_nodes, side, f"{side}-{number}", seconds, timeout_ms)


def _fill(cluster: KafkaCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 20})
    for number in range(_RECORDS):
        value = f"{number // _KEYS}{_PADDING}"
        producer.produce(topic, value, str(number % _KEYS), partition=number % PARTITIONS)
        while len(producer) > 5_000:
            producer.poll(0.01)
    producer.flush(60)


def _run(cluster: KafkaCluster, before_nodes: Wire, side: str, name: str, seconds: int, timeout_ms: int) -> Run:
    fed, out = topics = [f"{name}-fed", f"{name}-out"]
    make_topics(cluster, topics, _NODES)
    before_nodes.exchanges.clear()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-throttle-throttled-")))
        bootstrap, wire = stack.enter_context(_throttled(cluster, before_nodes, side, _quotas(name)))
        settings = {
            "num.stream.threads": _THREADS,
            "replication.factor": _NODES,
            "producer.transaction.timeout.ms": timeout_ms,
        }
        streams = Streams(Programs(folder), bootstrap, name, topics, _INSTANCES, settings)
        for program in streams.programs:
            stack.callback(program.close)
        streams.wait_until_running()
        time.sleep(_SETTLES_S)
        _fill(cluster, fed)
        time.sleep(seconds)
        aborted = sum(program.log().count("Detected that the thread is being fenced") for program in streams.programs)
    return Run(side, Seen.of(_produces(wire, name), _committed(cluster, out)), aborted)


def _produces(wire: Wire, name: str) -> list[Exchange]:
    """What the threads of an application have written so far."""
    return [one for one in list(wire.exchanges) if one.api_key == PRODUCE and one.client_id.startswith(name)]


@contextmanager
def _throttled(
    cluster: KafkaCluster, before_nodes: Wire, side: str, quotas: Sequence[Entry]
) -> Iterator[tuple[str, Wire]]:
    """Where clients are throttled that have these quotas, and the relay before that."""
    if side == "nodes":
        alter_client_quotas(cluster.address(1), quotas)
        yield before_nodes.bootstrap, before_nodes
    else:
        with relayed_proxy(before_nodes, quotas) as (bootstrap, before_proxy):
            yield bootstrap, before_proxy


def _quotas(name: str) -> list[Entry]:
    """One for each producer, also of threads that take the place of those that die."""
    numbers = [(instance, thread) for instance in range(1, _INSTANCES + 1) for thread in range(1, 5 * _THREADS + 1)]
    return [
        {"client_id": f"{name}-{instance}-StreamThread-{thread}-producer", "producer_byte_rate": RATE}
        for instance, thread in numbers
    ]


def _committed(cluster: KafkaCluster, topic: str) -> int:
    with closing(Committed(cluster.bootstrap_servers, topic, PARTITIONS)) as committed:
        count, came_s = 0, time.monotonic()
        while time.monotonic() - came_s < _QUIET_S:
            if came := committed.take():
                count, came_s = count + came, time.monotonic()
    return count


_HEAD = (
    "| quota at | records committed | MB sent | records sent | sent again | CONCURRENT_TRANSACTIONS "
    "| OUT_OF_ORDER_SEQUENCE_NUMBER | INVALID_PRODUCER_EPOCH | transactions aborted |",
    "|---|---|---|---|---|---|---|---|---|",
)


def line(run: Run) -> str:
    """A row of the table."""
    seen = run.seen
    codes = (CONCURRENT_TRANSACTIONS, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH)
    figures = (seen.committed, seen.records, seen.sent_again, *(seen.errors[code] for code in codes), run.aborted)
    committed, *others = (f"{figure:,}" for figure in figures)
    return f"| {' | '.join([run.side, committed, f'{seen.request_bytes / 1e6:.1f}', *others])} |"


if __name__ == "__main__":
    sys.exit(main())
