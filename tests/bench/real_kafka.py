"""Measures the proxy in front of a real Kafka node with Kafka's own tools, beside a direct connection and HAProxy.

    python tests/bench/real_kafka.py [--rounds 3] [--seconds 3] [--workloads produce-100,latency] [--json FILE]

The proxy has one core; node and clients share the others, and are the limit: this shows what users would see, where
speed.py shows what the proxies could do. HAProxy cannot rewrite the addresses that a node advertises, so there is
one node, and it advertises HAProxy's port on a listener for HAProxy alone. Records are produced and consumed by
Kafka's perf tools. End-to-end latency is measured under half of the load that the node took over the direct
connection, one record at a time, by confluent-kafka: Kafka's EndToEndLatency tells whole milliseconds only.
Candidates take turns within a round; figures are medians with their range, ratios medians of those within a round.
A run during which others used more than a fifth of a core is repeated. Prints Markdown.
"""

import argparse
import contextlib
import csv
import functools
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from demo.kafka_cluster import KafkaCluster
from demo.proxy_process import free_port_run
from tests.bench import machine
from tests.bench.candidates import DIRECT, HAPROXY, OURS, Candidate
from tests.bench.figures import Figures, Spread, cell, spread
from tests.bench.processes import (
    Cores,
    busy_seconds,
    cpu_seconds_of,
    cpu_seconds_with_the_ended,
    running,
    say,
    two_or_three_cores,
)
from tests.bench.speed import Runs, measure_unspoilt

TOOLS = "org.apache.kafka.tools."
KIB = 1 << 10
LISTENER = "HAPROXY"
TIMEOUT_S = 180
START_TIMEOUT_S = 60
WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the node: where clients bootstrap, and the process in between (direct: None)."""

    name: str
    bootstrap: str
    pid: int | None


@dataclass(slots=True)
class Bench:
    """The node, and what the direct connection was found to carry."""

    cluster: KafkaCluster
    administrator: AdminClient
    seconds: float
    rates: dict[int, float] = field(default_factory=dict)
    """Records/s that a producer reached directly, by record size in bytes."""


@contextlib.contextmanager
def new_topic(bench: Bench) -> Iterator[str]:
    """A topic with one partition for the length of a `with` block: the disk holds one run's records."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    for made in bench.administrator.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(TIMEOUT_S)
    try:
        yield name
    finally:
        for gone in bench.administrator.delete_topics([name]).values():
            gone.result(TIMEOUT_S)


# ---- Kafka's tools -------------------------------------------------------------------------------


def run_tool(bench: Bench, tool: str, *arguments: str) -> str:
    """What one of Kafka's tools prints on stdout. Raises RuntimeError with its output if it fails."""
    done = bench.cluster.run(bench.cluster.java_command(TOOLS + tool, *arguments), timeout_s=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{tool} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def produce(bench: Bench, bootstrap: str, topic: str, size: int, records: int, per_second: int = -1) -> Figures:
    """Produce `records` of `size` bytes; the figures are of those after the first quarter, or the first second."""
    warm_up = records // 4 if per_second < 0 else int(per_second * WARM_UP_S)
    printed = run_tool(
        bench,
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--record-size", str(size)),
        *("--num-records", str(records), "--warmup-records", str(warm_up), "--throughput", str(per_second)),
    )
    return {"records": records, **read_producer(printed, records - warm_up)}


def read_producer(printed: str, expected: int) -> Figures:
    """The last line of kafka-producer-perf-test with --warmup-records."""
    pattern = (
        r"(\d+) steady state records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).* (\d+) ms 50th.* (\d+) ms 99th"
    )
    matches = re.findall(pattern, printed)
    if len(matches) != 1 or int(matches[0][0]) != expected:
        raise RuntimeError(f"{expected} steady state records were to be sent:\n{printed}")
    _, records, mib, p50, p99 = matches[0]
    return {
        "records_per_second": float(records),
        "mib_per_second": float(mib),
        "ack_p50_ms": int(p50),
        "ack_p99_ms": int(p99),
    }


def consume(bench: Bench, bootstrap: str, topic: str, records: int) -> Figures:
    """Consume `records` from the beginning; without the time that the group takes to form."""
    printed = run_tool(
        bench,
        "ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", uuid.uuid4().hex),
        *("--num-records", str(records), "--timeout", "30000"),
    )
    return {"records": records, **read_consumer(printed, records)}


def read_consumer(printed: str, expected: int) -> Figures:
    """The table of kafka-consumer-perf-test. The last fetch may bring a few records too many."""
    row = next(csv.DictReader(printed.splitlines(), skipinitialspace=True))
    if int(row["data.consumed.in.nMsg"]) < expected:
        raise RuntimeError(f"{expected} records were to be consumed:\n{printed}")
    return {"records_per_second": float(row["fetch.nMsg.sec"]), "mib_per_second": float(row["fetch.MB.sec"])}


# ---- end-to-end latency --------------------------------------------------------------------------


def latencies_us(bootstrap: str, topic: str, size: int, seconds: float) -> list[float]:
    """How long records take from produce to consume, one after the other, after `WARM_UP_S`."""
    address = {"bootstrap.servers": bootstrap, "socket.nagle.disable": True}
    producer = Producer({**address, "linger.ms": 0, "acks": "all"})
    consumer = Consumer({**address, "group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    found = []
    try:
        _await_position(producer, consumer, topic)
        began = time.perf_counter()
        number = 0
        while (sent := time.perf_counter()) < began + WARM_UP_S + seconds:
            number += 1
            payload = number.to_bytes(8, "big").ljust(size, b"x")
            producer.produce(topic, payload)
            message = consumer.poll(TIMEOUT_S)
            took = time.perf_counter() - sent
            if message is None or message.error() or message.value() != payload:
                raise RuntimeError(
                    f"record {number} did not arrive: {message and (message.error() or message.value())}"
                )
            producer.poll(0)
            if sent >= began + WARM_UP_S:
                found.append(took * 1e6)
    finally:
        consumer.close()
        producer.flush(TIMEOUT_S)
    return found


def _await_position(producer: Producer, consumer: Consumer, topic: str) -> None:
    """Produce until something arrives, then until the last of it has arrived."""
    deadline = time.monotonic() + TIMEOUT_S
    number = 0
    arrived = None
    while arrived != number:
        if time.monotonic() > deadline:
            raise RuntimeError("the consumer finds no position")
        if arrived is None:
            number += 1
            producer.produce(topic, str(number).encode())
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            arrived = int(message.value())


def latency_at_half_load(bench: Bench, way: Way, size: int) -> Figures:
    """p50 and p99 in microseconds, while a producer sends half of what the direct connection carries."""
    half = int(bench.rates[size] / 2)
    records = int(half * (bench.seconds + 2 * WARM_UP_S + 2))
    with new_topic(bench) as loaded, new_topic(bench) as probed, ThreadPoolExecutor(1) as background:
        load = background.submit(produce, bench, way.bootstrap, loaded, size, records, half)
        _await_records(bench, loaded, half, load)
        took = latencies_us(way.bootstrap, probed, size, bench.seconds)
        figures = load.result()
    percentiles = statistics.quantiles(took, n=100, method="inclusive")
    return {
        "p50_us": percentiles[49],
        "p99_us": percentiles[98],
        "samples": len(took),
        "records": records + 2 * len(took),
        "load_records_per_second": figures["records_per_second"],
        "load_ack_p50_ms": figures["ack_p50_ms"],
        "load_ack_p99_ms": figures["ack_p99_ms"],
    }


def _await_records(bench: Bench, topic: str, count: int, load: Future[Figures]) -> None:
    """Wait until a topic holds `count` records: the load runs."""
    consumer = Consumer({"bootstrap.servers": bench.cluster.bootstrap_servers, "group.id": "unused"})
    with contextlib.closing(consumer):
        while not load.done():
            with contextlib.suppress(KafkaException):  # the topic is too new to be known everywhere
                if consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] >= count:
                    return
            time.sleep(0.1)
    raise RuntimeError(f"the load ended before it had begun: {load.result()}")


# ---- workloads -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing that is measured, and which of its figures are shown."""

    key: str
    title: str
    run: Callable[[Bench, Way], Figures]
    shown: Mapping[str, str]


def producing(size: int) -> Callable[[Bench, Way], Figures]:
    """As fast as one producer goes, for about `bench.seconds` and the warm-up."""

    def run(bench: Bench, way: Way) -> Figures:
        with new_topic(bench) as topic:
            return produce(bench, way.bootstrap, topic, size, int(bench.rates[size] * bench.seconds * 4 / 3))

    return run


def consuming(bench: Bench, way: Way) -> Figures:
    """What one producer makes in twice `bench.seconds`, consumed by one consumer."""
    records = int(bench.rates[KIB] * bench.seconds * 2)
    with new_topic(bench) as topic:
        produce(bench, bench.cluster.bootstrap_servers, topic, KIB, records)
        return consume(bench, way.bootstrap, topic, records)


WORKLOADS = (
    Workload("produce-100", "100 B produce", producing(100), {"records_per_second": "records/s"}),
    Workload("produce-1k", "1 KiB produce", producing(KIB), {"records_per_second": "records/s"}),
    Workload("consume", "1 KiB consume", consuming, {"records_per_second": "records/s"}),
    Workload(
        "latency",
        "end to end at half load",
        lambda bench, way: latency_at_half_load(bench, way, KIB),
        {"p50_us": "p50, us", "p99_us": "p99, us"},
    ),
)


# ---- measuring -----------------------------------------------------------------------------------


def measure(workload: Workload, bench: Bench, way: Way) -> Figures:
    """A workload's figures; the proxy's `cpu_us_per_record`; `others`, the share of a core of whatever is not ours."""
    began, busy = time.monotonic(), sum(busy_seconds().values())
    ours = cpu_seconds_with_the_ended(os.getpid())
    of_proxy = cpu_seconds_of(way.pid) if way.pid else 0.0
    figures = workload.run(bench, way)
    took = time.monotonic() - began
    ours = cpu_seconds_with_the_ended(os.getpid()) - ours
    if way.pid:
        figures["cpu_us_per_record"] = (cpu_seconds_of(way.pid) - of_proxy) / figures["records"] * 1e6
    figures["others"] = max(0.0, sum(busy_seconds().values()) - busy - ours) / took
    return figures


@contextlib.contextmanager
def forwarding(candidate: Candidate, port: int, node: int, cores: Cores, directory: Path) -> Iterator[Way]:
    """A candidate in front of the node, as soon as clients find the node through it."""
    assert candidate.command
    command = candidate.command(port, node, Path(tempfile.mkdtemp(dir=directory)))
    log = directory / f"{candidate.name}.log"
    with running(command, cores.proxy, log) as process:
        way = Way(candidate.name, f"127.0.0.1:{port}", process.pid)
        administrator = AdminClient({"bootstrap.servers": way.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(KafkaException):
                administrator.list_topics(timeout=2)
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{candidate.name} does not serve: {log.read_text()[-2000:]}")
        yield way


@contextlib.contextmanager
def node_behind_haproxy(haproxy_port: int) -> Iterator[KafkaCluster]:
    """One node that sends those who come to its second listener to HAProxy's port."""

    def properties(node_id: int) -> dict[str, str]:
        host, port = cluster.address(node_id)
        return {
            "advertised.listeners": f"PLAINTEXT://{host}:{port},{LISTENER}://{host}:{haproxy_port}",
            "log.segment.delete.delay.ms": "1000",
        }

    # The server's compiler may do all it can: the node lives long enough. The tools do not.
    cluster = KafkaCluster(
        nodes=1, listeners={LISTENER: "PLAINTEXT"}, extra=properties, jvm_options=(), heap="1g", say=say
    )
    with cluster:
        yield cluster


def calibrate(bench: Bench) -> None:
    """Find what the direct connection carries, which also lets the node's compiler see its work."""
    for size in (100, KIB):
        say(f"what does the direct connection carry? {size} B")
        guess = 10_000
        for _ in range(3):
            with new_topic(bench) as topic:
                figures = produce(bench, bench.cluster.bootstrap_servers, topic, size, guess)
            bench.rates[size] = figures["records_per_second"]
            guess = max(guess, int(bench.rates[size] * bench.seconds))


@contextlib.contextmanager
def three_ways(cores: Cores, seconds: float) -> Iterator[tuple[Bench, list[Way]]]:
    """The node, and the ways to it: direct, through HAProxy, through this project's proxy."""
    haproxy_port, our_port = free_port_run(1)[0], free_port_run(4)[0]
    with tempfile.TemporaryDirectory() as name, node_behind_haproxy(haproxy_port) as cluster:
        directory = Path(name)
        behind_haproxy, plain = cluster.address(1, LISTENER)[1], cluster.ports[1]
        administrator = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        with (
            forwarding(HAPROXY, haproxy_port, behind_haproxy, cores, directory) as through_haproxy,
            forwarding(OURS, our_port, plain, cores, directory) as through_ours,
        ):
            direct = Way(DIRECT.name, cluster.bootstrap_servers, None)
            yield Bench(cluster, administrator, seconds), [direct, through_haproxy, through_ours]


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Every candidate under every workload, `options.rounds` times, taking turns; the report for JSON."""
    cores = two_or_three_cores()
    # Node and tools, which this process starts, stay off the proxy's core.
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {cores.proxy})
    runs = Runs()
    with three_ways(cores, options.seconds) as (bench, ways):
        calibrate(bench)
        for number, workload in itertools.product(range(options.rounds), options.workloads):
            first = number % len(ways)
            for way in ways[first:] + ways[:first]:
                say(f"round {number + 1} of {options.rounds}: {workload.title}, {way.name}")
                run = functools.partial(measure, workload, bench, way)
                figures = measure_unspoilt(run, runs, options.tolerance, options.repeats)
                runs.figures.setdefault(workload.key, {}).setdefault(way.name, []).append(figures)
    return {
        "machine": machine.facts(),
        "kafka": bench.cluster.version,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "tolerance": options.tolerance,
        "discarded": runs.discarded,
        "spoilt_but_kept": runs.spoilt_but_kept,
        "direct_records_per_second": bench.rates,
        "runs": runs.figures,
    }


# ---- the report ----------------------------------------------------------------------------------


def ratio_to_direct(of_workload: Mapping[str, Sequence[Figures]], name: str, figure: str) -> Spread:
    """Spread of the ratios within the rounds."""
    pairs = zip(of_workload[name], of_workload[DIRECT.name], strict=True)
    return spread([mine[figure] / direct[figure] for mine, direct in pairs])


def table(runs: Mapping[str, Mapping[str, Sequence[Figures]]]) -> str:
    """Markdown: a line for each figure, the candidates beside one another."""
    names = [DIRECT.name, HAPROXY.name, OURS.name]
    proxies = [name for name in names if name != DIRECT.name]
    titles = [
        "",
        *names,
        *(f"{name} / {DIRECT.name}" for name in proxies),
        *(f"{name}: CPU, us/record" for name in proxies),
    ]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for workload in WORKLOADS:
        of_workload = runs.get(workload.key)
        for figure, unit in workload.shown.items() if of_workload else ():
            assert of_workload
            cells = [f"{workload.title}, {unit}"]
            cells += [cell(spread([run[figure] for run in of_workload[name]])) for name in names]
            cells += [cell(ratio_to_direct(of_workload, name, figure), 2) for name in proxies]
            cells += [
                cell(spread([run["cpu_us_per_record"] for run in of_workload[name]]), 2, False) for name in proxies
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def show(report: dict[str, Any]) -> None:
    """Print a report as Markdown."""
    print(table(report["runs"]) + "\n")
    print(
        f"Kafka {report['kafka']}, one node, one producer or consumer; {report['rounds']} rounds of about "
        f"{report['seconds']:g} s; medians (lowest - highest). "
        f"Thrown away because others used over {report['tolerance']:.0%} of a core: {report['discarded']} runs; "
        f"kept in spite of it: {report['spoilt_but_kept']}.\n{machine.sentence(report['machine'])}"
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="about the length of one run")
    keys = ", ".join(workload.key for workload in WORKLOADS)
    parser.add_argument("--workloads", type=workloads_named, default=list(WORKLOADS), help=keys)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--tolerance", type=float, default=0.20, help="share of a core that others may use in a run")
    parser.add_argument("--repeats", type=int, default=2, help="how often a spoilt run is repeated")
    return parser.parse_args(arguments)


def workloads_named(keys: str) -> list[Workload]:
    """The workloads of a list such as "latency,consume", in our order."""
    wanted = keys.split(",")
    if unknown := set(wanted) - {workload.key for workload in WORKLOADS}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return [workload for workload in WORKLOADS if workload.key in wanted]


def main() -> None:
    options = parse_options()
    report = measure_all(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
