"""One round: clients produce and consume through the proxy while everything breaks; then all records are counted."""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster, Mode
from tests.conservation.accounts import ChangeStatus, Double, Log, Sent, compare
from tests.conservation.batches import read_batches
from tests.conservation.clients import Child
from tests.conservation.confluent_reader import ends_of, scan
from tests.conservation.doubles import Journal, judge
from tests.conservation.faults import BACK, FRONT, GENEROUS, Faults, NodeFaults, Reloads, WireFaults, wait_in_sync
from tests.conservation.logs import Logs
from tests.conservation.pace import Plan
from tests.conservation.records import LARGE_BYTES, LARGE_EVERY
from tests.integration.proxy_process import HOST, ProxyFailed, ProxyProcess

FRONT_HOST, BACK_HOST = "127.0.0.2", "127.0.0.3"
"""Where the wire listens: before the proxy, on the proxy's ports, and before the nodes, on theirs."""

LISTENER = "CLIENTS"
"""The listener of the nodes that is advertised at BACK_HOST; the other one is for the cluster and for us."""

KINDS: dict[str, tuple[str, Mode]] = {
    "4.3.1-kraft": ("4.3.1", "kraft"),
    "3.9.2-kraft": ("3.9.2", "kraft"),
    "3.9.2-zookeeper": ("3.9.2", "zookeeper"),
}

_PARTITIONS = 6
_MEAN_BYTES = 900
"""Of a value, large ones included."""
_FLUSH_S = 400.0
_STUCK_S = 120.0
"""A reader that gets nothing for so long, while no fault happens and more is there, will get nothing at all."""
_EXTRA_S = 180.0
"""Beyond its time a round may take so long to see every kind of fault."""
_HONEST_REASONS = {
    "client_closed",
    "client_lost",
    "client_sent_nothing",
    "node_closed",
    "node_lost",
    "node_unreachable",
    "node_unknown",
    "shutdown",
}
"""Why connections may end while clients and nodes say nothing wrong."""


_OWN_ERRORS = ("internal_error", "background_task_failed", "accept_failed")
"""Lines of the proxy's log that tell of a mistake of its own."""


@dataclass(frozen=True)
class Member:
    """A producer of every round: its library, its part of all records, how it compresses and when it gives up."""

    library: str
    share: float
    compression: str = "none"
    timeout_s: float = 1000.0


MEMBERS = (
    Member("confluent", 0.35),
    Member("confluent", 0.30, "lz4"),
    Member("confluent", 0.20, "zstd"),
    Member("confluent", 0.05, timeout_s=3),
    Member("aiokafka", 0.06, "gzip"),
    Member("kafka_python", 0.04),
)
MODULES = {"confluent": "confluent_producers", "aiokafka": "aiokafka_both", "kafka_python": "kafka_python_both"}


@dataclass
class Report:
    """What one round has found; all counts of records but `read again` are of the scan at the nodes."""

    seed: int
    kafka: str
    direct: bool
    seconds: float = 0.0
    sent_bytes: int = 0
    records: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    missing_faults: list[str] = field(default_factory=list)
    throttles: dict[str, Any] = field(default_factory=dict)
    connections_opened: int = 0
    connections_closed: dict[str, int] = field(default_factory=dict)
    internal_errors: int = 0
    producers_made: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Doubles that librdkafka has been proved to have made."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


class ProxyBehindTheWire(ProxyProcess):
    """A proxy that sends its clients to the wire, and whose cluster does the same with it."""

    def config(self, quotas: Any = ()) -> dict[str, Any]:
        config = super().config(quotas)
        config["virtual_clusters"][0]["listeners"][0]["advertised_host"] = FRONT_HOST
        return config


def cluster_behind_the_wire(kind: str, say: Callable[[str], None]) -> KafkaCluster:
    """A cluster of three nodes with a listener that is advertised where the wire listens."""

    def extra(node_id: int) -> dict[str, str]:
        host, port = cluster.address(node_id)
        _, wired_port = cluster.address(node_id, LISTENER)
        return {
            "advertised.listeners": f"PLAINTEXT://{host}:{port},{LISTENER}://{BACK_HOST}:{wired_port}",
            "message.max.bytes": str(2 * LARGE_BYTES),
            "replica.fetch.max.bytes": str(4 * LARGE_BYTES),
            "log.segment.bytes": str(64 * LARGE_BYTES),
        }

    version, mode = KINDS[kind]
    cluster = KafkaCluster(version, mode, 3, listeners={LISTENER: "PLAINTEXT"}, extra=extra, say=say)
    return cluster


class Round:
    """`records` in all, or as many as come in `seconds`, and for up to three minutes more until each fault was seen.

    With `direct` the proxy is left out: clients are connected to the nodes by the wire alone. That tells whether a
    violation is the proxy's.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        kind: str,
        seed: int,
        *,
        number: int = 1,
        records: int = 0,
        seconds: float = 0,
        per_second: float = 2500,
        direct: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.report = Report(seed, kind, direct)
        self.folder = Path(tempfile.mkdtemp(prefix=f"kafka-throttle-conservation-{seed}-{number}-"))
        self._cluster = cluster
        self._records, self._seconds, self._per_second = records, seconds, per_second
        self._say = say
        self._seed = random.Random(f"{seed} round {number}").getrandbits(48)
        self._topics = {library: f"conservation-{library.replace('_', '-')}-{number}" for library in MODULES}
        self._partitions = dict.fromkeys(self._topics.values(), _PARTITIONS)
        self._plans = self._make_plans()
        self._proxy: ProxyBehindTheWire | None = None
        self._children: dict[str, Child] = {}
        self._began = time.monotonic()

    # --------------------------------------------------------------- running

    def run(self) -> Report:
        """Go through the round. Raises what keeps it from coming to an end; the folder is kept then."""
        try:
            self._make_topics()
            with ExitStack() as stack:
                bootstrap = self._connect(stack)
                self._run_clients(stack, bootstrap)
            self._delete_topics()
        finally:
            self._keep_logs()
        self.report.seconds = round(time.monotonic() - self._began, 1)
        if not self.report.violations:
            shutil.rmtree(self.folder)
        return self.report

    def _keep_logs(self) -> None:
        for name, tail in self._cluster.log_tails(20_000).items():
            (self.folder / f"{name}.log").write_text(tail)
        if self._proxy is not None:
            (self.folder / "proxy.log").write_text(self._proxy.tail(1_000_000))

    def _connect(self, stack: ExitStack) -> str:
        """Start wire and proxy; return where clients begin."""
        nodes = [self._cluster.address(node_id, LISTENER) for node_id in self._cluster.node_ids]
        routes = [f"{BACK}={BACK_HOST}:{port}={host}:{port}" for host, port in nodes]
        wired = ",".join(f"{BACK_HOST}:{port}" for _, port in nodes)
        if not self.report.direct:
            # Made before the wire, which has to know its ports; started after, as it needs it to reach the nodes.
            self._proxy = ProxyBehindTheWire(wired, [GENEROUS], throttle={"max_throttle_ms": 2000})
            stack.callback(self._proxy.kill)
            routes += [f"{FRONT}={FRONT_HOST}:{port}={HOST}:{port}" for port in sorted(self._proxy.ports)]
        wire = self._start(stack, "wire", str(self._seed), *routes)
        wire.news("listening", 90)
        if self._proxy is None:
            return wired
        self._proxy.start()
        return f"{FRONT_HOST}:{self._proxy.port}"

    def _run_clients(self, stack: ExitStack, bootstrap: str) -> None:
        producers = self._start_clients(stack, bootstrap)
        faults = self._start_faults()
        try:
            self._wait_for_producers(producers, faults)
        finally:
            for one in faults:
                one.done.set()
        for one in faults:
            one.stop()
            self.report.faults += one.counts
            self.report.violations += one.violations
            self.report.missing_faults += sorted(one.missing)
        wait_in_sync(self._cluster, self._partitions)
        self._hear_producers(producers)
        self._read_to_the_end()
        for child in self._children.values():
            self.report.troubles.update(child.troubles)
        self._account()
        if self._proxy is not None:
            self._examine(self._proxy)

    def _start(self, stack: ExitStack, module: str, *arguments: str) -> Child:
        child = Child(module, self.folder, *arguments)
        stack.callback(child.close)
        self._children[module] = child
        return child

    def _start_clients(self, stack: ExitStack, bootstrap: str) -> list[Child]:
        reader = self._start(stack, "confluent_reader")
        group = "conservation-reader"
        reader.order(folder=str(self.folder), bootstrap=bootstrap, partitions=self._partitions, group=group)
        producers = []
        for library, module in MODULES.items():
            child = self._start(stack, module)
            child.order(
                folder=str(self.folder),
                bootstrap=bootstrap,
                plans=[asdict(plan) for plan in self._plans if plan.topic == self._topics[library]],
                partitions={self._topics[library]: _PARTITIONS},
                group=f"{group}-{library}",
            )
            producers.append(child)
        return producers

    def _start_faults(self) -> list[Faults]:
        calm_s = (0.5, 2.0) if 0 < self._seconds <= 60 else (3.0, 15.0)
        faults: list[Faults] = [
            NodeFaults(self._cluster, self._partitions, self._seed, calm_s),
            WireFaults(self._children["wire"], self._seed, (BACK,) if self._proxy is None else (FRONT, BACK)),
        ]
        if self._proxy is not None:
            faults.append(Reloads(self._proxy, self._seed, self._per_second * _MEAN_BYTES / 3))
        for one in faults:
            one.start()
        return faults

    def _wait_for_producers(self, producers: list[Child], faults: list[Faults]) -> None:
        """Until they have sent all that they should, or have been stopped."""
        began = reported = time.monotonic()
        stopped = False
        while not all(child.has_news() for child in producers):
            time.sleep(0.2)
            now = time.monotonic()
            self._look_after(faults)
            if now - reported > 10:
                reported = now
                self._tell_progress(now - began, faults)
            overdue = now - began - self._seconds
            if self._seconds and not stopped and overdue > (_EXTRA_S if any(one.missing for one in faults) else 0):
                stopped = True
                for child in producers:
                    child.order(stop=True)

    def _look_after(self, faults: list[Faults]) -> None:
        if self._proxy is not None and not self._proxy.running:
            raise ProxyFailed(f"the proxy has ended\n{self._proxy.tail()}")
        for one in faults:
            if one.error is not None:
                raise one.error

    def _tell_progress(self, seconds: float, faults: list[Faults]) -> None:
        sent = sum(child.progress["sent"] for child in self._children.values())
        read = self._children["confluent_reader"].progress["read"]
        hit = sum(one.counts.total() for one in faults)
        self._say(f"{seconds:5.0f} s: {sent:,} records sent, {read:,} read, {hit} faults")

    def _hear_producers(self, producers: list[Child]) -> None:
        for child in producers:
            news = child.news("done", _FLUSH_S)
            self.report.producers_made += news["made"]
            self.report.throttles["told to librdkafka"] = (
                self.report.throttles.get("told to librdkafka", 0) + news["throttles"]
            )
            for report in news["done"]:
                self.report.records["sent"] += report["sent"]
                self.report.sent_bytes += report["bytes"]
                self.report.sizes += Counter({int(bits): count for bits, count in report["sizes"].items()})

    # ------------------------------------------------------------ accounting

    def _read_to_the_end(self) -> None:
        """Tell the live readers where the end is, and wait until they have come to it."""
        self._ends = ends_of(self._cluster.bootstrap_servers, self._partitions)
        readers = ("confluent_reader", "aiokafka_both", "kafka_python_both")
        for name in readers:
            self._children[name].order(read_to=self._ends)
        for name in readers:
            self._hear_reader(self._children[name])

    def _hear_reader(self, child: Child) -> None:
        read, moved_at = child.progress["read"], time.monotonic()
        while not child.has_news() and time.monotonic() < moved_at + _STUCK_S:
            if child.progress["read"] != read:
                read, moved_at = child.progress["read"], time.monotonic()
            time.sleep(0.1)
        if not child.has_news():
            child.order(give_up=True)
        news = child.news("complete", 120)
        self.report.records["read again"] += news["read_again"]
        self._add_faults_of_logs(news["faults"])
        if not news["complete"]:
            self.report.violations.append(f"stuck: {child.name} has read nothing more for {_STUCK_S:.0f} s")

    def _account(self) -> None:
        self._say("reading all at the nodes")
        scanned = scan(self._cluster.bootstrap_servers, self._ends)
        self._add_faults_of_logs(scanned.faults)
        views = {"confluent-kafka": self._partitions}
        for library, view in (("aiokafka", "aiokafka"), ("kafka_python", "kafka-python")):
            views[view] = {self._topics[library]: _PARTITIONS}
        sent = {
            topic: {
                plan.producer: Sent.load(self.folder, plan.producer, _PARTITIONS)
                for plan in self._plans
                if plan.topic == topic
            }
            for topic in self._partitions
        }
        for producers in sent.values():
            for one in producers.values():
                self.report.records["acknowledged"] += one.count(ChangeStatus.ACKNOWLEDGED)
                self.report.records["failed"] += one.count(ChangeStatus.FAILED)
        self.report.records += self._compare(scanned, sent)
        for view, partitions in views.items():
            logs = Logs(view, partitions)
            logs.load(self.folder)
            self._compare(logs, sent)

    def _compare(self, logs: Logs, sent: Mapping[str, Mapping[int, Sent]]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for topic, of_topic in logs.by_topic.items():
            for log in of_topic:
                findings = compare(log, sent[topic])
                counts += findings.counts
                self.report.violations += findings.violations
                if findings.doubles:
                    counts += self._judge(log, topic, findings.doubles)
        return counts

    def _judge(self, log: Log, topic: str, doubles: Sequence[Double]) -> Counter[str]:
        """Find out whose doing the doubles are, by the batches of any node: each has all of them by now."""
        folder = self._cluster.data_folder(self._cluster.node_ids[0]) / f"{topic}-{log.partition}"
        with self._children[MODULES["confluent"]].log.open(errors="replace") as lines:
            journal = Journal(lines)
        client_ids = {plan.producer: plan.client_id for plan in self._plans}
        batches = read_batches(folder)
        (self.folder / f"batches-{folder.name}").write_text("\n".join(map(str, batches)))
        judged = judge(log, topic, doubles, batches, journal, client_ids)
        self.report.violations += judged.violations
        self.report.remarks += judged.remarks
        return judged.counts

    def _add_faults_of_logs(self, faults: list[str]) -> None:
        self.report.violations += faults
        self.report.records["corrupt"] += sum("corrupt" in fault for fault in faults)

    def _examine(self, proxy: ProxyBehindTheWire) -> None:
        """What the proxy says of itself."""
        report = self.report
        for quota_type in ("produce", "fetch"):
            report.throttles[quota_type] = int(proxy.metric("throttles_total", quota_type=quota_type))
            report.throttles[f"{quota_type} s"] = round(proxy.metric("throttled_seconds_total", quota_type=quota_type))
        report.connections_opened = int(proxy.metric("connections_opened_total"))
        report.connections_closed = proxy.closed()
        for reason, count in report.connections_closed.items():
            if reason not in _HONEST_REASONS:
                report.violations.append(f"proxy: {count} connections closed with {reason}")
        try:
            proxy.stop()
            report.internal_errors = len(proxy.events("internal_error"))
            report.violations += [f"proxy: it has logged {event}" for event in _OWN_ERRORS if proxy.events(event)]
        except (ProxyFailed, ValueError) as error:  # ValueError: a line of its log is no JSON
            report.violations.append(f"proxy: {error}")

    # --------------------------------------------------------------- set-up

    def _make_plans(self) -> list[Plan]:
        counts = [round(member.share * self._records / LARGE_EVERY) * LARGE_EVERY for member in MEMBERS]
        counts[0] = self._records - sum(counts[1:])
        return [
            Plan(
                producer=number,
                client_id=f"conservation-{member.library}-{number}",
                topic=self._topics[member.library],
                partitions=_PARTITIONS,
                records=counts[number],
                per_second=member.share * self._per_second,
                seed=self._seed,
                compression=member.compression,
                timeout_s=member.timeout_s,
            )
            for number, member in enumerate(MEMBERS)
        ]

    def _make_topics(self) -> None:
        settings = {"min.insync.replicas": "2", "max.message.bytes": str(2 * LARGE_BYTES), "retention.ms": "-1"}
        with closing(KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers)) as admin:
            admin.create_topics(
                [
                    NewTopic(topic, num_partitions=count, replication_factor=3, topic_configs=settings)
                    for topic, count in self._partitions.items()
                ]
            )
        wait_in_sync(self._cluster, self._partitions)

    def _delete_topics(self) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers)) as admin:
            admin.delete_topics(list(self._partitions))
