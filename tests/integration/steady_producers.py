"""Producers of every client library that go on while something happens, and what has become of their records."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Self

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import ToolMissing
from tests.support.go_program import go_program
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

PARTITIONS = 3
_JAVA = ROOT / "tests/java/PipedProducer.java"
_IN_FLIGHT = 6


class Acknowledged(NamedTuple):
    """Where a record has gone; records are numbered from 0."""

    partition: int
    offset: int
    number: int


class SteadyProducer(Protocol):
    """Sends one record after the other, in order; `acknowledged` are those that have arrived."""

    def send(self, partition: int, value: str) -> None:
        """Have a record sent."""

    def acknowledged(self) -> Sequence[Acknowledged]:
        """What was acknowledged so far. AssertionError when a record has failed."""

    def close(self) -> None:
        """Wait for what is under way, and end."""


# ------------------------------------------------------------------ the libraries


class WithKafkaPython:
    """kafka-python; `settings` are the library's."""

    def __init__(self, topic: str, **settings: Any) -> None:
        self._topic = topic
        self._producer = KafkaProducer(acks="all", enable_idempotence=True, linger_ms=0, **settings)
        self._futures: list[Any] = []

    def send(self, partition: int, value: str) -> None:
        """As above."""
        self._futures.append(self._producer.send(self._topic, value.encode(), partition=partition))

    def acknowledged(self) -> Sequence[Acknowledged]:
        """As above."""
        done = [(number, future) for number, future in enumerate(self._futures) if future.is_done]
        assert all(future.succeeded() for _, future in done), [future.exception for _, future in done]
        return [Acknowledged(future.value.partition, future.value.offset, number) for number, future in done]

    def close(self) -> None:
        """As above."""
        self._producer.flush(TIMEOUT_S)
        self._producer.close(TIMEOUT_S)


class WithAiokafka:
    """aiokafka, in a thread that has a loop; `settings` are the library's."""

    def __init__(self, topic: str, **settings: Any) -> None:
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self._wait_for(self._start(settings))
        self._futures: list[asyncio.Future[Any]] = []

    @staticmethod
    async def _start(settings: Mapping[str, Any]) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(acks="all", enable_idempotence=True, **settings)
        await producer.start()
        return producer

    def _wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * TIMEOUT_S)

    def send(self, partition: int, value: str) -> None:
        """As above."""
        self._futures.append(self._wait_for(self._producer.send(self._topic, value.encode(), partition=partition)))

    def acknowledged(self) -> Sequence[Acknowledged]:
        """As above."""
        done = [(number, future.result()) for number, future in enumerate(self._futures) if future.done()]
        return [Acknowledged(reported.partition, reported.offset, number) for number, reported in done]

    def close(self) -> None:
        """As above."""
        self._wait_for(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class WithConfluentKafka:
    """confluent-kafka; `settings` are librdkafka's."""

    def __init__(self, topic: str, **settings: Any) -> None:
        self._topic = topic
        self._producer = Producer({"enable.idempotence": True, "linger.ms": 0, **settings})
        self._sent = 0
        self._acknowledged: list[Acknowledged] = []
        self._errors: list[KafkaError] = []

    def send(self, partition: int, value: str) -> None:
        """As above."""
        number = self._sent
        self._sent += 1

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._errors.append(error)
            else:
                self._acknowledged.append(Acknowledged(message.partition(), message.offset(), number))

        self._producer.produce(self._topic, value, partition=partition, on_delivery=note)

    def acknowledged(self) -> Sequence[Acknowledged]:
        """As above."""
        self._producer.poll(0)
        assert not self._errors
        return self._acknowledged

    def close(self) -> None:
        """As above."""
        assert self._producer.flush(2 * TIMEOUT_S) == 0


class Piped:
    """A program that sends the lines it is given and prints what was acknowledged: tests/java, tests/go/pipe."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
            preexec_fn=die_with_parent,
        )
        self._acknowledged: list[Acknowledged] = []
        self._errors: deque[str] = deque(maxlen=100)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._acknowledged.append(Acknowledged(*map(int, line.split())))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def send(self, partition: int, value: str) -> None:
        """As above."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{partition} {value}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(self._output()) from None

    def acknowledged(self) -> Sequence[Acknowledged]:
        """As above."""
        assert self._process.poll() in (None, 0), self._output()
        return self._acknowledged

    def close(self) -> None:
        """As above."""
        try:
            with contextlib.suppress(BrokenPipeError):
                self._pipes[0].close()
            status = self._process.wait(2 * TIMEOUT_S)
            for reader in self._readers:
                reader.join(TIMEOUT_S)
            assert status == 0, self._output()
        finally:
            self._process.kill()
            self._process.wait()
            for pipe in self._pipes:
                pipe.close()

    @property
    def _pipes(self) -> list[IO[str]]:
        process = self._process
        return [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]

    def _output(self) -> str:
        self._readers[1].join(TIMEOUT_S)
        return f"exit status {self._process.poll()}\n{''.join(self._errors)}"


def with_java(
    cluster: KafkaCluster,
    topic: str,
    properties: Path,
    settings: Mapping[str, str],
    hosts: Path | None = None,
    options: Sequence[str] = (),
) -> Piped:
    """Kafka's own producer with these properties, which are written to a file; names are looked up in `hosts`."""
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    of_jvm = ["-XX:TieredStopAtLevel=1", *([f"-Djdk.net.hosts.file={hosts}"] if hosts else []), *options]
    return Piped(cluster.java_command(str(_JAVA), str(properties), topic, options=of_jvm))


def with_franz_go(topic: str, settings: Mapping[str, Any], hosts: Path | None = None) -> Piped:
    """franz-go with settings as tests/go/pipe has them; names are looked up in `hosts`."""
    lines = [line.split() for line in hosts.read_text().splitlines()] if hosts else []
    known = {name: address for address, *names in lines for name in names}
    return Piped([str(go_program("pipe")), json.dumps({**settings, "hosts": known}), topic])


def piped(library: str, topic: str, settings: Mapping[str, Any], hosts: Path) -> Piped:
    """confluent-kafka or kafka-python in a separate process, in which libc looks names up in `hosts`.

    ToolMissing, with the line that installs it, where there is no nss_wrapper.
    """
    wrapper = next(Path("/usr/lib").glob("*/libnss_wrapper.so"), None)
    if wrapper is None:
        raise ToolMissing("nss_wrapper is missing. Install it with: apt-get install -y libnss-wrapper")
    program = [sys.executable, "-m", "tests.integration.piped_producer", library, json.dumps(settings), topic]
    return Piped(program, LD_PRELOAD=str(wrapper), NSS_WRAPPER_HOSTS=str(hosts))


# ---------------------------------------------------------------------- the load


class Load:
    """Numbered records to all partitions of a topic in turn, a few under way at a time; use it as a context manager."""

    def __init__(self, producer: SteadyProducer, size: int = 0) -> None:
        self._producer = producer
        self._size = size
        self._sent: dict[int, list[str]] = defaultdict(list)
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close()

    def send(self, size: int | None = None) -> None:
        """One record of so many bytes."""
        partition = self.count % PARTITIONS
        value = str(self.count).ljust(self._size if size is None else size)
        self._sent[partition].append(str(self.count))
        self.count += 1
        self._producer.send(partition, value)

    def go_on_until(self, enough: Callable[[], bool], what: str, most_s: float = 2 * TIMEOUT_S) -> None:
        """Send until something has come about."""
        deadline = time.monotonic() + most_s
        while not enough():
            assert time.monotonic() < deadline, f"waited {most_s:.0f} s for {what}, {self.count} records were sent"
            if self.count - len(self._producer.acknowledged()) < _IN_FLIGHT:
                self.send()
            time.sleep(0.02)

    def arrive(self) -> None:
        """Wait until all are acknowledged."""
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while (arrived := len(self._producer.acknowledged())) < self.count:
            assert time.monotonic() < deadline, f"{arrived} of {self.count} records have arrived"
            time.sleep(0.02)

    def assert_all_are_there_once_and_in_order(self, cluster: KafkaCluster, topic: str) -> None:
        """What the nodes have in a topic without other writers; checks that each acknowledgement is true."""
        self.arrive()
        found = read_all(cluster, topic, self.count)
        assert {partition: list(values) for partition, values in found.items()} == dict(self._sent)
        for reported in self._producer.acknowledged():
            assert found[reported.partition][str(reported.number)] == reported.offset


def read_all(cluster: KafkaCluster, topic: str, count: int) -> dict[int, dict[str, int]]:
    """The values in each partition with their offsets, in order. AssertionError if there are not `count`, or twins."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    found: dict[int, dict[str, int]] = {}
    try:
        total = sum(consumer.end_offsets(partitions).values())
        assert total == count, f"{topic} has {total} records, not {count}"
        deadline = time.monotonic() + TIMEOUT_S
        while (read := sum(map(len, found.values()))) < count:
            assert time.monotonic() < deadline, f"{read} of {count} records can be read"
            for messages in consumer.poll(1000).values():
                for message in messages:
                    found.setdefault(message.partition, {})[message.value.decode().strip()] = message.offset
    finally:
        consumer.close()
    return found
