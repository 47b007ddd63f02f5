"""Consumer groups over a fetch quota: three members each of four clients, at a broker and at the proxy, side by side.

Both groups of a client read the same records of one cluster, at the same time: one at the nodes, where its client-id
has the quota, the other through the proxy, where another client-id has it. A group has formed when its last member has
joined for the first time, and 15 s more have passed, in which it has used up what Kafka allows at once at the
beginning. All figures are of the time from then on, a multiple of 11 s, Kafka's windows:

- **mean / limit**: bytes of records that its members read in a second, by three times the quota, as each of the three
  nodes grants it.
- **bytes that the node sends for each byte delivered**: all bytes that nodes sent to the proxy, as the proxy counts
  them, by those that members read.
- **without data**: the longest time in which one member read no record.
- **records read twice**, each time, and **rebalances**: how often a member was given its partitions anew.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import cache_dir, need_program
from tests.integration.proxy_process import ProxyProcess
from tests.live_fleet.figures import WINDOWS_S
from tests.parity.batches import fill, make_topic
from tests.parity.sides import alter_client_quotas
from tests.support.go_program import go_program
from tests.support.places import ROOT

KAFKA_VERSION = "4.3.1"
NODES = 3
"""A quota is for each node: so often a group may read its quota."""
PARTITIONS = 2 * NODES
MEMBERS = 3
FORMED_S = 15.0
"""So long after the last of its members has joined for the first time a group has formed."""
START_S = 120.0
"""For so long members may take to join: a JVM that compiles its program on a busy machine takes a minute."""
LONGEST_START_S = 60
"""There is so much more to read: what a group reads before it has formed, and the burst at its beginning."""
SMALL_BATCH_BYTES = 16_000
"""Of batches no larger than this it is checked how much the node sends."""
NEAR_THE_LIMIT = 0.95, 1.05
"""The mean by the limit, with `paced`."""
MOST_SENT = {"paced": 1.05, "empty": 1.8}
"""Bytes that a node may send for each byte delivered, by `throttle.fetch`."""
LONGEST_S = 3.0
"""For so long a member may be without data, with `paced`, where a batch is no more than a second's quota."""

_TESTS = ROOT / "tests"

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
    """What the members of one group have seen. Times are in seconds since the members were started."""

    times: dict[tuple[int, int], int] = field(default_factory=dict)
    """How often each record came, by partition and offset."""
    came: list[list[tuple[float, int]]] = field(default_factory=lambda: [[] for _ in range(MEMBERS)])
    """Of each member: when a record came, and its bytes."""
    joined_s: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MEMBERS)])
    errors: list[str] = field(default_factory=list)
    ended_s: float = 0.0

    @property
    def delivered_bytes(self) -> int:
        """Of all records until now."""
        return sum(size_bytes for came in self.came for _, size_bytes in came)

    @property
    def twice(self) -> int:
        """How many records came again, each time."""
        return sum(self.times.values()) - len(self.times)

    @property
    def has_joined(self) -> bool:
        """Whether all members have joined, or one never will."""
        return all(self.joined_s) or bool(self.errors)

    @property
    def formed_s(self) -> float:
        """When the group had formed; what is before it is in no figure but `twice`."""
        return max(joined_s[0] if joined_s else 0.0 for joined_s in self.joined_s) + FORMED_S

    @property
    def rebalances(self) -> int:
        """How often a member got its partitions anew after the group had formed."""
        return sum(at_s > self.formed_s for joined_s in self.joined_s for at_s in joined_s)

    @property
    def rate(self) -> float:
        """Bytes in a second, as the mean of a multiple of 11 s at the end."""
        seconds = max(1, int((self.ended_s - self.formed_s) / WINDOWS_S)) * WINDOWS_S
        begin_s = self.ended_s - seconds
        return sum(size_bytes for came in self.came for at_s, size_bytes in came if at_s >= begin_s) / seconds

    @property
    def longest_s(self) -> float:
        """The longest time without a record of one member."""
        return max(self._longest_s(came) for came in self.came)

    def _longest_s(self, came: Sequence[tuple[float, int]]) -> float:
        at_s = [self.formed_s, *(at_s for at_s, _ in came if at_s > self.formed_s), self.ended_s]
        return max(later - sooner for sooner, later in pairwise(at_s))


class Group:
    """The members of one group, each a process; use it as a context manager."""

    def __init__(self, command: Sequence[str], bootstrap: str, name: str, topic: str) -> None:
        self.seen = Seen()
        self._argv = [*command, bootstrap, name, name, topic]
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
        with self._lock:
            self._closing = True
            self.seen.ended_s = self._now_s()
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

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _note(self, words: Sequence[str], number: int) -> None:
        seen = self.seen
        with self._lock:
            if self._closing:
                return
            if words[0] == "joined":
                seen.joined_s[number].append(round(self._now_s(), 1))
            elif len(words) == 4:
                partition, offset, size_bytes = map(int, words[1:])
                seen.times[partition, offset] = seen.times.get((partition, offset), 0) + 1
                seen.came[number].append((self._now_s(), size_bytes))


@dataclass(frozen=True, slots=True)
class Load:
    """What all groups of a run have in common: the quota in bytes/s, for how long, batches, and `throttle.fetch`."""

    rate: int
    seconds: int
    batch_bytes: int = SMALL_BATCH_BYTES
    fetch: str = "empty"

    @property
    def limit(self) -> int:
        """What a group may read in a second from all nodes."""
        return NODES * self.rate


@dataclass(frozen=True, slots=True)
class Compared:
    """One client's groups at both sides; `sent_bytes` the nodes sent for the `delivered_bytes` of the proxy's group."""

    client: str
    load: Load
    broker: Seen
    proxy: Seen
    sent_bytes: float
    delivered_bytes: int

    @property
    def of_limit(self) -> tuple[float, float]:
        """The mean by the limit, at the broker and at the proxy."""
        return self.broker.rate / self.load.limit, self.proxy.rate / self.load.limit

    @property
    def sent_per_delivered(self) -> float:
        """Bytes that the nodes sent for each that was delivered."""
        return self.sent_bytes / max(self.delivered_bytes, 1)

    def problems(self) -> list[str]:
        """Why this group is worse off than it should be; empty if it is not."""
        return [f"{self.client}: {problem}" for problem in self._problems()]

    def _problems(self) -> Iterator[str]:
        load, proxy, (of_broker, mean) = self.load, self.proxy, self.of_limit
        yield from (error for seen in (self.broker, proxy) for error in seen.errors)
        if proxy.twice:
            yield f"{proxy.twice} records came twice"
        if proxy.rebalances:
            yield f"{proxy.rebalances} rebalances"
        if load.fetch == "paced":
            least, most = NEAR_THE_LIMIT
            if not least <= mean <= most:
                yield f"{mean:.3f} of the limit, expected {least} to {most}"
            if load.batch_bytes <= load.rate and proxy.longest_s > LONGEST_S:
                yield f"a member was {proxy.longest_s:.1f} s without data, expected at most {LONGEST_S} s"
        elif mean < of_broker:
            yield f"{mean:.3f} of the limit, {of_broker:.3f} at the broker"
        most_sent = MOST_SENT[load.fetch]
        if load.batch_bytes <= SMALL_BATCH_BYTES and self.sent_per_delivered > most_sent:
            yield f"{self.sent_per_delivered:.3f} bytes sent for each delivered, expected at most {most_sent}"


def measure(clients: Sequence[str], load: Load) -> list[Compared]:
    """Run the groups of one client after the other, those of both sides at the same time."""
    topic = f"groups-{load.batch_bytes}"
    with KafkaCluster(KAFKA_VERSION, nodes=NODES, heap="400m") as cluster:
        make_topic(cluster, topic, PARTITIONS)
        fill(cluster, topic, PARTITIONS, load.batch_bytes, load.limit * (load.seconds + LONGEST_START_S))
        alter_client_quotas(cluster.address(1), [_quota(f"{client}-broker", load.rate) for client in clients])
        quotas = [_quota(f"{client}-proxy", load.rate) for client in clients]
        with ProxyProcess(cluster, quotas, throttle={"fetch": load.fetch}) as proxy:
            return [_compared(client, load, topic, cluster, proxy) for client in clients]


def _quota(client_id: str, rate: int) -> dict[str, Any]:
    return {"client_id": client_id, "consumer_byte_rate": rate}


def _compared(client: str, load: Load, topic: str, cluster: KafkaCluster, proxy: ProxyProcess) -> Compared:
    command = CLIENTS[client](cluster)
    places = {"broker": cluster.bootstrap_servers, "proxy": proxy.bootstrap}
    groups = [Group(command, bootstrap, f"{client}-{side}", topic) for side, bootstrap in places.items()]
    of_broker, of_proxy = (group.seen for group in groups)
    with ExitStack() as stack:
        for group in groups:
            stack.enter_context(group)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and not (of_broker.has_joined and of_proxy.has_joined):
            time.sleep(0.1)
        time.sleep(FORMED_S)
        sent, delivered = _sent_bytes(proxy), of_proxy.delivered_bytes
        time.sleep(load.seconds)
        sent, delivered = _sent_bytes(proxy) - sent, of_proxy.delivered_bytes - delivered
    return Compared(client, load, of_broker, of_proxy, sent, delivered)


def _sent_bytes(proxy: ProxyProcess) -> float:
    """What nodes have sent: what went on to clients, and fetches over quota, which went to nobody."""
    return proxy.metric("response_bytes_total") + proxy.metric("withheld_bytes_total")


def problems(found: Sequence[Compared]) -> list[str]:
    """Why these are no proof; empty if they are."""
    return [problem for one in found for problem in one.problems()]


def table(found: Sequence[Compared]) -> str:
    """In Markdown: the broker's figure, then the proxy's."""
    lines = [
        "| client | `throttle.fetch` | batches, KB | mean / limit | bytes that the node sends for each byte delivered "
        "| longest without data, s | records read twice | rebalances |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        sides = one.broker, one.proxy
        cells = (
            one.client,
            one.load.fetch,
            f"{one.load.batch_bytes / 1000:g}",
            _pair(f"{mean:.3f}" for mean in one.of_limit),
            f"{one.sent_per_delivered:.3f}",
            _pair(f"{seen.longest_s:.1f}" for seen in sides),
            _pair(seen.twice for seen in sides),
            _pair(seen.rebalances for seen in sides),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(values: Iterable[object]) -> str:
    return " / ".join(map(str, values))


def as_json(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """The same for programs."""
    figures = ("rate", "longest_s", "twice", "rebalances", "delivered_bytes", "joined_s", "errors")
    return [
        {
            "client": one.client,
            **asdict(one.load),
            "sent_per_delivered": one.sent_per_delivered,
            **{side: {name: getattr(getattr(one, side), name) for name in figures} for side in ("broker", "proxy")},
        }
        for one in found
    ]


def write(found: Sequence[Compared], file: Path) -> None:
    """As JSON into a file."""
    file.write_text(json.dumps(as_json(found)) + "\n")
