"""The demo: four clients at a real cluster, first without and then through the proxy, and the results of both."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.text import Text

from demo.kafka_cluster import KafkaCluster
from demo.kept_processes import KeptProcesses
from demo.load import Load, Seen
from demo.proxy_process import ProxyProcess
from demo.recorded import RECORDED, go_on
from demo.screen import MB, WINDOW_S, Phase, Screen, libraries, summary_table
from kafka_throttle.common.jars import ToolMissing

QUOTAS = {
    "good-producer": 5 * MB,
    "good-consumer": 5 * MB,
    "noisy-producer": 1 * MB,
    "noisy-consumer": 2 * MB,
}
"""The quotas in bytes per second, at each node."""

_QUOTA_ENTRIES: tuple[dict[str, Any], ...] = (
    {"client_id": "noisy-producer", "producer_byte_rate": QUOTAS["noisy-producer"]},
    {"client_id": "noisy-consumer", "consumer_byte_rate": QUOTAS["noisy-consumer"]},
    {
        "default_client_id": True,
        "producer_byte_rate": QUOTAS["good-producer"],
        "consumer_byte_rate": QUOTAS["good-consumer"],
    },
)
_NODES = 3
_HELD = (0.85, 1.15)
"""Shares of the quota: a client that wants more counts as held to its quota if its rate is between them."""

_ARCHIVE_BYTES = 96 * MB
_ARCHIVE_RECORD_BYTES = 32_000
_WARM_UP_S = 3
"""The time before the first phase is measured: nodes that have just started are slow, which would flatter the proxy."""

_ERRORS = 3
"""The level of errors in syslog. librdkafka would otherwise write to the terminal, here into a table."""

_STOPPED = 130


@dataclass(frozen=True, slots=True)
class Split:
    """How the time is divided, in seconds: the length of each phase, and from when on each is measured."""

    direct_s: int
    direct_from_s: int
    proxied_s: int
    proxied_from_s: int

    @property
    def judges_rates(self) -> bool:
        """True if the measurement through the proxy covers whole windows after the first one."""
        return self.proxied_from_s >= WINDOW_S


def split(seconds: int) -> Split:
    """A short phase without the proxy, the rest through it, measured over as many whole windows as there are.

    The warm-up comes in addition to `seconds`.
    """
    direct_s = min(max(round(seconds * 0.18), 2), 10)
    proxied_s = seconds - direct_s
    windows = max((proxied_s - WINDOW_S) // WINDOW_S, 0)
    proxied_from_s = proxied_s - windows * WINDOW_S if windows else 1
    return Split(_WARM_UP_S + direct_s, _WARM_UP_S, proxied_s, proxied_from_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a phase: each client over the measured time, and the good records over the whole phase."""

    clients: Mapping[str, Seen]
    good_sent: int
    good_failed: int
    good_read: int

    @property
    def good_lost(self) -> int:
        """The number of good records that were not acknowledged or not read."""
        return self.good_failed + self.good_sent - self.good_read


def run_demo(seconds: int, json_output: bool, record: Path | None = None) -> int:
    """Run the load for `seconds` in all and show it; 0 if the results are as expected, 1 if not, 130 if interrupted.

    With `record` usage records go to that directory, and the load through the proxy goes on until it is interrupted.
    """
    screen = Screen(json_output)
    try:
        with _ending_on_signals():
            return _run(screen, split(seconds), json_output, record)
    except KeyboardInterrupt:
        screen.say("stopped; nothing is left behind")
        return _STOPPED
    except (RuntimeError, OSError, KafkaException, ToolMissing) as error:
        sentence = f"the demo has failed: {error}"
        screen.say_whole(Text(sentence, style="red"))
        if json_output:
            print(json.dumps({"ok": False, "verdict": sentence}))
        return 1


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(screen: Screen, plan: Split, json_output: bool, record: Path | None) -> int:
    screen.say(Text("kafka-throttle demo: two good and two noisy clients at one Kafka cluster", style="bold"))
    screen.say(f"  {plan.direct_s} s without the proxy, then {plan.proxied_s} s through it. Ctrl-C ends it cleanly.")
    with ExitStack() as stack:
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
        cluster = KafkaCluster(nodes=_NODES, say=lambda line: screen.say(f"  {line}"))
        with screen.step(f"starting {cluster}"):
            stack.enter_context(cluster)
        with screen.step("creating topics, writing 96 MB for the noisy consumer to read"):
            _create_topics(cluster.bootstrap_servers)
            _fill("archive", cluster.bootstrap_servers)
        processes = stack.enter_context(KeptProcesses())
        with screen.step("starting the proxy"):
            proxy = ProxyProcess(processes, cluster.bootstrap_servers, _NODES, _QUOTA_ENTRIES, record)
        screen.say(f"     clients at {proxy.bootstrap}, metrics at {proxy.metrics_url}")
        screen.say_whole(f"     meanwhile: {sys.executable} -m proxy top -c {proxy.config_path}")
        title = "1 of 2: without the proxy"
        direct, _ = _phase(
            screen,
            processes,
            Phase(title, plan.direct_s, {}),
            "direct",
            cluster.bootstrap_servers,
            plan.direct_from_s,
            None,
        )
        title = "2 of 2: through the proxy"
        proxied, metrics = _phase(
            screen,
            processes,
            Phase(title, plan.proxied_s, QUOTAS),
            "proxied",
            proxy.bootstrap,
            plan.proxied_from_s,
            proxy,
        )
        proxy.check()
        problems = problems_of(plan, direct, proxied)
        _summarize(screen, plan, direct, proxied, metrics, proxy.metrics_url)
        decision = "; ".join(problems) or decision_of(plan, direct, proxied)
        screen.say_whole(Text(decision, style="bold red" if problems else "bold green"))
        if json_output:
            print(json.dumps(as_json(plan, direct, proxied, metrics, decision, ok=not problems)), flush=True)
        if record is not None:
            go_on(
                screen, lambda: Load(processes, RECORDED, proxy.bootstrap, topics_of(RECORDED)), proxy, QUOTAS, record
            )
    return 1 if problems else 0


def _phase(
    screen: Screen,
    processes: KeptProcesses,
    phase: Phase,
    name: str,
    bootstrap: str,
    from_s: int,
    proxy: ProxyProcess | None,
) -> tuple[Outcome, list[str]]:
    """Run one phase; its outcome, and the most important lines of the metrics if the proxy was used."""
    with screen.step(f"starting four clients, {phase.title}"):
        load = Load(processes, name, bootstrap, topics_of(name))
    screen.watch(load, phase)
    metrics = telling(proxy.scrape()) if proxy else []
    load.end()
    began_s = load.began_s
    clients = {
        name: reports.seen(began_s + from_s, began_s + phase.duration_s) for name, reports in load.clients.items()
    }
    producer, consumer = load.clients["good-producer"], load.clients["good-consumer"]
    return Outcome(clients, producer.records, producer.failed, consumer.records), metrics


def topics_of(phase: str) -> dict[str, str]:
    """The topic of each client."""
    good = f"good-{phase}"
    return {"good-producer": good, "good-consumer": good, "noisy-producer": "noisy", "noisy-consumer": "archive"}


def _create_topics(bootstrap_servers: str) -> None:
    """Create the topics: the good ones on all nodes; the noisy one led by node 1, the archive on node 2. Quotas are per
    node.
    """
    spread = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    good = {f"good-{phase}": spread for phase in ("direct", "proxied", RECORDED)}
    placed = {**good, "noisy": [[1, 2, 3]], "archive": [[2]]}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": _ERRORS})
    topics = [NewTopic(name, num_partitions=len(nodes), replica_assignment=nodes) for name, nodes in placed.items()]
    for created in admin.create_topics(topics, operation_timeout=60).values():
        created.result(60)


def _fill(topic: str, bootstrap_servers: str) -> None:
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "queue.buffering.max.kbytes": 200_000}
    producer = Producer({**settings, "log_level": _ERRORS})
    payload = os.urandom(_ARCHIVE_RECORD_BYTES)
    for _ in range(_ARCHIVE_BYTES // _ARCHIVE_RECORD_BYTES):
        producer.produce(topic, payload, partition=0)
    if left := producer.flush(60):
        raise RuntimeError(f"the topic {topic} cannot be filled: {left} records are not acknowledged after 60 s")


# -------------------------------------------------------------------- results


def problems_of(plan: Split, direct: Outcome, proxied: Outcome) -> list[str]:
    """What was not as expected, as sentences."""
    problems = []
    for where, outcome in (("without the proxy", direct), ("through the proxy", proxied)):
        if outcome.good_sent == 0:
            problems.append(f"the good producer could send nothing {where}")
        elif outcome.good_lost:
            problems.append(f"{outcome.good_lost} of {outcome.good_sent} good records were lost {where}")
    for name in ("noisy-producer", "noisy-consumer"):
        seen, quota = proxied.clients[name], QUOTAS[name]
        if plan.judges_rates and not _HELD[0] <= seen.bytes_per_second / quota <= _HELD[1]:
            rate = f"{seen.bytes_per_second / MB:.2f} MB/s"
            problems.append(f"{name} was not held to its quota of {quota / MB:.2f} MB/s: it had {rate}")
        if plan.judges_rates and not seen.throttles:
            problems.append(f"{name} never got a throttle time")
    return problems


def decision_of(plan: Split, direct: Outcome, proxied: Outcome) -> str:
    """The last line of a run without problems."""
    good = "good-producer"
    latency = (
        f"{good} p99 {proxied.clients[good].p99_ms:.0f} ms (without the proxy {direct.clients[good].p99_ms:.0f} ms)"
    )
    kept = f"none of {direct.good_sent + proxied.good_sent:,} good records lost"
    if not plan.judges_rates:
        return f"{latency}, {kept}; too short to judge the rates: that takes --seconds 27"
    held = " and ".join(
        f"{name} held to {proxied.clients[name].bytes_per_second / MB:.2f} MB/s "
        f"(quota {QUOTAS[name] / MB:.2f}, without the proxy {direct.clients[name].bytes_per_second / MB:.2f})"
        for name in ("noisy-producer", "noisy-consumer")
    )
    return f"{held}, {latency}, {kept}"


def telling(lines: list[str]) -> list[str]:
    """The metrics of a scrape that say most about the noisy clients."""
    names = ("kafka_throttle_entity_rate{", "kafka_throttle_entity_throttle_seconds_total{")
    own = (
        ('node_id="1"', 'quota_type="produce"', "noisy-producer"),
        ('node_id="2"', 'quota_type="fetch"', "noisy-consumer"),
    )
    return [
        line
        for name in names
        for words in own
        for line in lines
        if line.startswith(name) and all(w in line for w in words)
    ]


def _summarize(
    screen: Screen, plan: Split, direct: Outcome, proxied: Outcome, metrics: list[str], metrics_url: str
) -> None:
    screen.say()
    screen.say(Text("the same load without the proxy (direct) and through it (proxy)", style="bold"))
    screen.say(summary_table(direct.clients, proxied.clients, QUOTAS, screen.console.width))
    screen.say(
        Text(
            f"direct: seconds {plan.direct_from_s} to {plan.direct_s}, no quotas. "
            f"proxy: seconds {plan.proxied_from_s} to {plan.proxied_s}"
            + (
                f"; Kafka's window of {WINDOW_S} s lets the first 10 s of quota through in one burst.\n"
                if plan.judges_rates
                else ", burst included.\n"
            )
            + "Throttle: the throttle_time_ms in the client's responses, mean and longest.\n"
            "Latency: producers until acknowledged, good-consumer from due at the producer until read.\n"
            f"{libraries()}.\n"
            f'{os.cpu_count()} cores carry the nodes, the proxy and the clients, so in "direct" all compete for them.',
            style="dim",
        )
    )
    screen.say(Text(f"\nfrom {metrics_url} while it ran:", style="bold"))
    for line in metrics:
        screen.say_whole(Text(f"  {line}"))
    screen.say()


def as_json(
    plan: Split, direct: Outcome, proxied: Outcome, metrics: list[str], decision: str, *, ok: bool
) -> dict[str, Any]:
    """The results as JSON; rates in bytes per second."""
    return {
        "ok": ok,
        "verdict": decision,
        "rates_judged": plan.judges_rates,
        "seconds": asdict(plan),
        "clients": {
            name: {
                "quota_bytes_per_second": quota,
                "share_of_quota": round(proxied.clients[name].bytes_per_second / quota, 4),
                "direct": asdict(direct.clients[name]),
                "proxied": asdict(proxied.clients[name]),
            }
            for name, quota in QUOTAS.items()
        },
        "good_records": {
            phase: {"sent": outcome.good_sent, "read": outcome.good_read, "lost": outcome.good_lost}
            for phase, outcome in (("direct", direct), ("proxied", proxied))
        },
        "metrics": metrics,
    }


if __name__ == "__main__":
    sys.exit(run_demo(40, json_output=False))
