"""Controller mutation quotas before a real cluster: the same frames at brokers with the quota, and clients' rates."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import unpack

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.protocol.messages.topic_mutations import STRICT_SINCE
from kafka_throttle.protocol.messages.topic_partitions import (
    BY_NAME_VERSION,
    partitions_by_name_request,
    read_topic_partitions,
)
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.topics import make_topic
from tests.support.disturbance import Disturbance
from tests.support.places import ROOT
from tests.support.quota_frames import alter_request, altered
from tests.support.timeouts import TIMEOUT_S
from tests.support.topic_frames import create_partitions, create_topics, delete_topics, grown_topic, new_topic
from tests.support.waiting import wait_until
from tests.support.whole_messages import read_mutation_response

RATE = 2.0
BURST = 11 * RATE
REFUSED = 89
DIRECT, PROXIED = "mutations-direct", "mutations-proxied"
KINDS = ("create", "grow", "delete")
_TIMEOUT_S = TIMEOUT_S


class Connection:
    """Single frames on one connection; use it as a context manager."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def exchange(self, frame: bytes) -> bytes:
        """The whole frame of the response."""
        self._socket.sendall(frame)
        prefix = self._stream.read(4)
        assert len(prefix) == 4, "the connection was closed"
        return prefix + self._stream.read(unpack(">i", prefix)[0])


@dataclass
class Bucket:
    """Between which numbers of tokens the bucket must be, given the times of requests and responses."""

    low: float = BURST
    high: float = BURST
    sent_s: float = field(default_factory=time.monotonic)
    answered_s: float = field(default_factory=time.monotonic)

    def refill(self, sent_s: float, answered_s: float) -> None:
        self.low = min(BURST, self.low + RATE * max(sent_s - self.answered_s, 0))
        self.high = min(BURST, self.high + RATE * (answered_s - self.sent_s))
        self.sent_s, self.answered_s = sent_s, answered_s

    def spend(self, partitions: int) -> None:
        self.low -= partitions
        self.high -= partitions

    def may_report(self, throttle_time_ms: int, slack_s: float) -> bool:
        """Whether that can be the rest of the time until it is full to 0, reported some time within `slack_s`."""
        least, most = -self.high / RATE - slack_s, -self.low / RATE
        return least * 1000 - 2 <= throttle_time_ms <= max(most, 0) * 1000 + 2


class Side:
    """One client, at a broker that has its quota or at the proxy, which has it; each request on a new connection."""

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self.address = address
        self.client_id = client_id.encode()
        self.prefix = client_id.encode()
        self.bucket = Bucket()

    def name(self, topic: str) -> bytes:
        return self.prefix + b"-" + topic.encode()

    def mutate(self, frame: bytes, spends: int) -> dict[bytes, int]:
        """The error code by the end of each topic's name, or by its id; the throttle time is checked."""
        key, version = unpack(">hh", frame[4:8])
        with Connection(self.address) as connection:
            sent_s = time.monotonic()
            frame = connection.exchange(frame)
            answered_s = time.monotonic()
        response = read_mutation_response(frame, key, version)
        reported_ms = unpack(">i", frame[response.throttle_at :][:4])[0]
        codes = {(r.name or r.topic_id).removeprefix(self.prefix + b"-"): r.error_code for r in response.results}
        self.bucket.refill(sent_s, answered_s)
        self.bucket.spend(spends)
        refused, reports = REFUSED in codes.values(), version < STRICT_SINCE[key]
        if reported_ms:
            assert refused or (reports and self.bucket.low < 0), (codes, reported_ms, self.bucket)
            assert self.bucket.may_report(reported_ms, answered_s - sent_s), (codes, reported_ms, self.bucket)
        else:
            assert not refused, codes
            assert not reports or self.bucket.high >= 0, (codes, self.bucket)
        return codes

    def create(self, *topics: tuple[str, int], version: int = 7, spends: int = 0, **how) -> dict[bytes, int]:
        listed = [new_topic(version, self.name(topic), count, 1) for topic, count in topics]
        return self.mutate(create_topics(version, listed, client_id=self.client_id, **how), spends)

    def delete(self, *topics: bytes, version: int = 6, spends: int = 0) -> dict[bytes, int]:
        return self.mutate(delete_topics(version, topics, client_id=self.client_id), spends)

    def grow(self, *topics: tuple[str, int], version: int = 3, spends: int = 0) -> dict[bytes, int]:
        listed = [grown_topic(version, self.name(topic), count) for topic, count in topics]
        return self.mutate(create_partitions(version, listed, client_id=self.client_id), spends)

    def wait_for_tokens(self, tokens: float) -> None:
        """Until there are certainly so many, or more."""
        time.sleep(max(self.bucket.answered_s + (tokens - self.bucket.low) / RATE - time.monotonic(), 0) + 0.1)

    def wait_until_known(self, *topics: str) -> None:
        """Wait until the node knows these topics."""
        frame = partitions_by_name_request([self.name(topic) for topic in topics], 1)
        with Connection(self.address) as connection:
            wait_until(
                lambda: all(t.partitions for t in read_topic_partitions(connection.exchange(frame), BY_NAME_VERSION)),
                timeout_s=_TIMEOUT_S,
            )


def script(side: Side, validate_only: bool) -> list[dict[bytes, int]]:
    """Requests to which both kinds of broker must respond alike, one after another.

    So much is overdrawn that there are no tokens again for 15 s, however long a process stands still meanwhile.
    """
    results = [side.create(("a", 10), ("b", 11), ("e", -1), spends=22), side.create(("f", 31), spends=31)]
    side.wait_until_known("a", "b")
    results += [
        side.create(("c", 1), ("none", 0), ("a", 5), ("twice", 1), ("twice", 1), ("bad name", 1), ("d", 2)),
        side.delete(side.name("a"), side.name("nobody"), b"\0\1" * 8),
        side.grow(("a", 12), ("b", 3), ("nobody", 5)),
        side.create(("p", 2), version=5, spends=2),
        side.grow(("a", 11), version=2, spends=1),
    ]
    if validate_only:
        results.append(side.create(("v", 1), validate_only=True))
    side.wait_until_known("p", "f")
    results.append(side.delete(side.name("p"), version=4, spends=2))
    side.wait_for_tokens(1)
    results += [side.grow(("a", 12), spends=1), side.delete(side.name("f"), spends=31), side.delete(side.name("a"))]
    return results


def set_broker_quota(address: tuple[str, int], client_id: str, rate: float) -> None:
    operation = ("controller_mutation_rate", rate, False)
    with Connection(address) as connection:
        response = connection.exchange(alter_request([([("client-id", client_id)], [operation])]))
    assert [entry.error_code for entry in altered(response)] == [0]


def controller_of(cluster: KafkaCluster) -> int:
    """The node that changes topics; with KRaft any does."""
    if cluster.mode == "kraft":
        return 1
    return int(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics().controller_id)


@contextmanager
def deleted_after(cluster: KafkaCluster, *prefixes: str) -> Iterator[None]:
    """Topics with this prefix are gone after the block: hundreds of partitions make a node's next start slow."""
    try:
        yield
    finally:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        left = [topic for topic in admin.list_topics(timeout=_TIMEOUT_S).topics if topic.startswith(prefixes)]
        for future in admin.delete_topics(left).values() if left else ():
            error = future.exception()  # one of them may be gone although that node has yet to hear of it
            assert error is None or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error


@pytest.mark.rule("bucket")
@pytest.mark.every_kind
@pytest.mark.nightly
def test_decisions_and_throttle_times_are_those_of_brokers_with_the_quota(kafka):
    quotas = [{"client_id": PROXIED, "controller_mutation_rate": RATE}]
    validate_only = kafka.mode == "kraft"
    node_id = controller_of(kafka)
    set_broker_quota(kafka.address(node_id), DIRECT, RATE)
    with (
        deleted_after(kafka, DIRECT, PROXIED),
        ProxyProcess(kafka, quotas, throttle={"charge_validate_only": validate_only}) as proxy,
    ):
        sides = [Side(kafka.address(node_id), DIRECT), Side((HOST, proxy.node_ports[node_id]), PROXIED)]
        with ThreadPoolExecutor(len(sides)) as threads:
            direct, proxied = threads.map(lambda side: script(side, validate_only), sides)
        assert proxied == direct
        refused = sum(code == REFUSED for codes in proxied for code in codes.values())
        assert proxy.metric("mutations_refused_total", node_id=str(node_id)) == refused > 3


# ------------------------------------------------------------------------------ rates

FAST = 10.0
AT_ONCE = 3


def end_of_burst(done: list[tuple[float, int]], rate: float) -> int | None:
    """Where in `done`, which has seconds and partitions, the burst is used up."""
    total = 0
    for i, (at_s, partitions) in enumerate(done):
        total += partitions
        if total > (11 + at_s - done[0][0]) * rate:
            return i
    return None


def rate_after_burst(done: list[tuple[float, int]], rate: float) -> float:
    """Partitions per second from where the burst is used up to the end; `done` has seconds and partitions."""
    i = end_of_burst(done, rate)
    assert i is not None, f"{sum(partitions for _, partitions in done)} partitions are no burst"
    began, ended = done[i][0], done[-1][0]
    after = sum(count for _, count in done[i + 1 :])
    print(f"{after} partitions in {ended - began:.2f} s: {after / (ended - began) / rate:.3f} of the quota")
    return after / (ended - began)


def is_held(rates: dict[str, float], disturbance: Disturbance) -> bool:
    """Whether all rates are that of the quota, within 5 %; roughly, when a process stood still."""
    least, most = (0.3, 3.0) if disturbance.seen else (0.95, 1.05)
    return all(least * FAST < rate < most * FAST for rate in rates.values())


def create_with_librdkafka(bootstrap: str, client_id: str, prefix: str, seconds: float) -> list[tuple[float, int]]:
    """Create topics one by one for so long, and until the burst is used up.

    A refusal is tried again at once, as the proxy does not read that yet.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id})
    done: list[tuple[float, int]] = []
    begin = time.monotonic()
    ends_s = begin + seconds
    while (now_s := time.monotonic()) < ends_s:
        if now_s > ends_s - 5 and end_of_burst(done, FAST) is None and now_s < begin + 2 * TIMEOUT_S:
            ends_s = now_s + 5
        topic = NewTopic(f"{prefix}-{len(done)}", AT_ONCE, 1)
        [future] = admin.create_topics([topic], request_timeout=60).values()
        error = future.exception()
        # A broker that waits long for its controller sends the request again.
        if error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            done.append((time.monotonic() - begin, AT_ONCE))
        elif error.args[0].code() != KafkaError.THROTTLING_QUOTA_EXCEEDED:
            raise error
    return done


@pytest.mark.exclusive
@pytest.mark.nightly
def test_librdkafka_creates_topics_at_the_rate_of_its_quota(newest_kafka, start_proxy):
    proxy = start_proxy([{"client_id": "librdkafka", "controller_mutation_rate": FAST}])
    with deleted_after(newest_kafka, "rate-rdkafka-"), Disturbance() as disturbance:
        done = create_with_librdkafka(proxy.bootstrap, "librdkafka", "rate-rdkafka", 11)
    assert is_held({"librdkafka": rate_after_burst(done, FAST)}, disturbance)
    assert proxy.metric("throttles_total", quota_type="controller_mutation") > 5


@pytest.mark.exclusive
@pytest.mark.nightly
def test_the_java_client_creates_grows_and_deletes_topics_at_the_rate_of_its_quota(newest_kafka, start_proxy):
    proxy = start_proxy([{"client_id": "java-" + kind, "controller_mutation_rate": FAST} for kind in KINDS])
    rates, created = {}, 0
    with deleted_after(newest_kafka, "rate-grow", "rate-java-"), Disturbance() as disturbance:
        make_topic(newest_kafka.bootstrap_servers, "rate-grow")
        for kind, topics, seconds in (
            ("create", "rate-java-", 30),
            ("grow", "rate-grow", 30),
            ("delete", "rate-java-", 60),
        ):
            arguments = (kind, topics, str(AT_ONCE), str(seconds), str(created))
            source = str(ROOT / "tests/java/MutationRate.java")
            command = newest_kafka.java_command(source, proxy.bootstrap, f"java-{kind}", *arguments)
            printed = newest_kafka.run(command, timeout_s=400)
            assert printed.returncode == 0, printed.stderr
            done = [(int(at) / 1000, int(count)) for at, count in map(str.split, printed.stdout.splitlines())]
            created = created or len(done)
            rates[kind] = rate_after_burst(done, FAST)
    assert is_held(rates, disturbance), rates


@pytest.mark.kafka
@pytest.mark.nightly
def test_the_cluster_is_asked_what_a_topic_without_a_number_of_partitions_gets():
    with KafkaCluster(nodes=1, extra=lambda node_id: {"num.partitions": "4"}) as cluster:
        quotas = [{"client_id": PROXIED, "controller_mutation_rate": RATE}]
        with ProxyProcess(cluster, quotas) as proxy:
            side = Side((HOST, proxy.node_ports[1]), PROXIED)
            assert side.create(*((f"t{i}", -1) for i in range(6)), spends=24) == {b"t%d" % i: 0 for i in range(6)}
            assert side.create(("t6", -1)) == {b"t6": REFUSED}
            assert not proxy.events("default_partitions_unknown")
