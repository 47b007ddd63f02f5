"""Consumer groups over a fetch quota: three members each of four clients, at a broker and at the proxy, side by side.

A broker that is over a fetch quota responses without data, and soon asks to be asked again; so a client that has one
connection to a node for fetches and group calls (Sarama, KafkaJS) keeps its place in its group. The same groups read
the same records at both sides. Compared is what a user feels: records that came twice, rebalances after the group had
formed, and distinct records. Beside it stands what the node has to send for each byte that is delivered.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from common.child_process import die_with_parent
from common.jars import cache_dir, need_program
from demo.kafka_cluster import KafkaCluster
from tests.go_program import go_program
from tests.integration.proxy_process import ProxyProcess
from tests.parity.sides import alter_client_quotas

KAFKA_VERSION = "4.3.1"
TOPIC = "groups"
PARTITIONS = 6
MOST_OF_QUOTA = 3
"""A quota is for each node, and there are three: so often a group may read its quota."""
MEMBERS = 3
RECORD_BYTES = 5_000
FORMED_S = 15.0
"""So long after the last of its members has joined for the first time a group has formed."""
START_S = 120.0
"""For so long members may take to join: a JVM that compiles its program on a busy machine takes a minute."""
LEAST_OF_BROKER = 0.95
"""So many distinct records, of those that the broker's group read, are enough."""

_TESTS = Path(__file__).parents[1]

Command = Callable[[KafkaCluster], Sequence[str]]
"""What starts a member; bootstrap servers, client-id, group and topic go behind."""


def _java(cluster: KafkaCluster) -> Sequence[str]:
    return cluster.java_command(str(_TESTS / "java" / "GroupMember.java"), heap="96m")


def _librdkafka(cluster: KafkaCluster) -> Sequence[str]:
    return [sys.executable, str(Path(__file__).with_name("group_member.py"))]


def _kafkajs(cluster: KafkaCluster) -> Sequence[str]:
    return [need_program("node", "nodejs"), str(_kafkajs_folder() / "main.js")]


def _sarama(cluster: KafkaCluster) -> Sequence[str]:
    return [str(go_program("group"))]


CLIENTS: dict[str, Command] = {"java": _java, "librdkafka": _librdkafka, "kafkajs": _kafkajs, "sarama": _sarama}


def _kafkajs_folder() -> Path:
    """Where the program is with the KafkaJS of its lock file; the first call on a machine fetches it."""
    source = _TESTS / "js" / "group"
    files = [source / name for name in ("main.js", "package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = cache_dir() / f"js-group-{digest}"
    if not folder.exists():
        unfinished = folder.with_suffix(f".{os.getpid()}")
        unfinished.mkdir(parents=True)
        for file in files:
            shutil.copy(file, unfinished)
        command = [need_program("npm", "npm"), "ci", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True, timeout=240)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        unfinished.rename(folder)
    return folder


@dataclass(slots=True)
class Seen:
    """What the members of one group have seen: how often each record came, and when they joined."""

    times: dict[tuple[int, int], int] = field(default_factory=dict)
    delivered_bytes: int = 0
    joined_s: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MEMBERS)])
    errors: list[str] = field(default_factory=list)

    @property
    def distinct(self) -> int:
        """Records that came, each once."""
        return len(self.times)

    @property
    def twice(self) -> int:
        """How many came again, each time."""
        return sum(self.times.values()) - len(self.times)

    @property
    def has_formed(self) -> bool:
        """Whether all members have joined, or one never will."""
        return all(self.joined_s) or bool(self.errors)

    @property
    def rebalances(self) -> int:
        """How often a member got its partitions anew after the group had formed."""
        formed_s = max(joined_s[0] if joined_s else 0.0 for joined_s in self.joined_s) + FORMED_S
        return sum(at_s > formed_s for joined_s in self.joined_s for at_s in joined_s)


class Group:
    """The members of one group, each a process; use it as a context manager."""

    def __init__(self, command: Sequence[str], bootstrap: str, name: str) -> None:
        self.seen = Seen()
        self._argv = [*command, bootstrap, name, name, TOPIC]
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._closing = False
        self._members: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        for number in range(MEMBERS):
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            member = subprocess.Popen(self._argv, text=True, preexec_fn=die_with_parent, **pipes)
            reader = threading.Thread(target=self._read, args=(member, number), daemon=True)
            reader.start()
            self._members.append(member)
            self._readers.append(reader)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for member in self._members:
            member.kill()
            member.wait()
        for reader in self._readers:
            reader.join()

    def _read(self, member: subprocess.Popen[str], number: int) -> None:
        assert member.stdout is not None
        for line in member.stdout:
            self._note(line.split(), number)
        if not self._closing:
            self.seen.errors.append(f"a member ended with status {member.wait()}")

    def _note(self, words: Sequence[str], number: int) -> None:
        seen = self.seen
        with self._lock:
            if self._closing:
                return
            if words[0] == "joined":
                seen.joined_s[number].append(round(time.monotonic() - self._began_s, 1))
            elif len(words) == 4:
                partition, offset, size_bytes = map(int, words[1:])
                seen.times[partition, offset] = seen.times.get((partition, offset), 0) + 1
                seen.delivered_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class Compared:
    """One client's groups at both sides; `sent_bytes` are what the node behind the proxy sent."""

    client: str
    broker: Seen
    proxy: Seen
    sent_bytes: float

    @property
    def of_broker(self) -> float:
        """Distinct records at the proxy, by those at the broker."""
        return self.proxy.distinct / max(self.broker.distinct, 1)

    @property
    def sent_per_delivered(self) -> float:
        """Bytes that the node sent for each that was delivered."""
        return self.sent_bytes / max(self.proxy.delivered_bytes, 1)

    def problems(self) -> list[str]:
        """Why this group is worse off than at a broker; empty if it is not."""
        broker, proxy = self.broker, self.proxy
        found = [f"{self.client}: {error}" for seen in (broker, proxy) for error in seen.errors]
        if proxy.twice > broker.twice:
            found.append(f"{self.client}: {proxy.twice} records came twice, {broker.twice} at the broker")
        if proxy.rebalances > broker.rebalances:
            found.append(f"{self.client}: {proxy.rebalances} rebalances, {broker.rebalances} at the broker")
        if self.of_broker < LEAST_OF_BROKER:
            found.append(f"{self.client}: {self.of_broker:.3f} of the broker's distinct records")
        return found


def measure(clients: Sequence[str], rate: int, seconds: int, fetch: str = "empty") -> list[Compared]:
    """Run the groups of one client after the other at both sides at the same time, `seconds` from when both stand."""
    quotas = [{"client_id": client, "consumer_byte_rate": rate} for client in clients]
    with ExitStack() as stack:
        broker, behind = (stack.enter_context(KafkaCluster(KAFKA_VERSION, heap="400m")) for _ in range(2))
        for cluster in (broker, behind):
            _fill(cluster, MOST_OF_QUOTA * rate * (seconds + 30))
        alter_client_quotas(broker.address(1), quotas)
        proxy = stack.enter_context(ProxyProcess(behind, quotas, throttle={"fetch": fetch}))
        return [_compared(client, broker, proxy, seconds) for client in clients]


def _compared(client: str, broker: KafkaCluster, proxy: ProxyProcess, seconds: int) -> Compared:
    command = CLIENTS[client](broker)
    before = _sent_bytes(proxy)
    groups = [Group(command, bootstrap, client) for bootstrap in (broker.bootstrap_servers, proxy.bootstrap)]
    with ExitStack() as stack:
        for group in groups:
            stack.enter_context(group)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and not all(group.seen.has_formed for group in groups):
            time.sleep(0.1)
        time.sleep(seconds)
    of_broker, of_proxy = (group.seen for group in groups)
    return Compared(client, of_broker, of_proxy, _sent_bytes(proxy) - before)


def _sent_bytes(proxy: ProxyProcess) -> float:
    """What nodes have sent: what went on to clients, and fetches over quota, which went to nobody."""
    return proxy.metric("response_bytes_total") + proxy.metric("withheld_bytes_total")


def _fill(cluster: KafkaCluster, size_bytes: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(30)
    producer, value = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 20}), bytes(RECORD_BYTES)
    for number in range(size_bytes // RECORD_BYTES):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
        while len(producer) > 2_000:
            producer.poll(0.01)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records for the groups were not written")


def problems(found: Sequence[Compared]) -> list[str]:
    """Why these are no proof; empty if they are."""
    return [problem for one in found for problem in one.problems()]


def table(found: Sequence[Compared]) -> str:
    """In Markdown: the broker's figure, then the proxy's."""
    lines = [
        "| client | records read twice | rebalances | distinct records | by the broker's "
        "| bytes that the node sends for each |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        pairs = [(getattr(one.broker, name), getattr(one.proxy, name)) for name in ("twice", "rebalances", "distinct")]
        cells = [one.client, *(f"{broker} / {proxy}" for broker, proxy in pairs)]
        lines.append(f"| {' | '.join(cells)} | {one.of_broker:.3f} | {one.sent_per_delivered:.2f} |")
    return "\n".join(lines)


def as_json(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """The same for programs."""
    sides = [{"broker": one.broker, "proxy": one.proxy} for one in found]
    figures = ("twice", "rebalances", "distinct", "delivered_bytes", "joined_s")
    return [
        {
            "client": one.client,
            "sent_bytes": one.sent_bytes,
            **{side: {name: getattr(seen, name) for name in figures} for side, seen in of.items()},
        }
        for one, of in zip(found, sides, strict=True)
    ]


def write(found: Sequence[Compared], file: Path) -> None:
    """As JSON into a file."""
    file.write_text(json.dumps(as_json(found)) + "\n")
