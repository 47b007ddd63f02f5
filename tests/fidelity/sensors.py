"""What a broker says of its threads: `request-time` of a client-id by JMX, the parts of requests' times by its log."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import need_program
from tests.support.places import ROOT

_JAVA = ROOT / "tests/java/SensorReader.java"
_WINDOWS = 10
"""A broker's 11 samples less one: until the rate has as many whole windows, it divides by ten and what has begun."""
_LONGEST_S = 10.9
_CONNECTS_S = 60.0
_LOG_LINES = 30_000
_CLIENT_ID = re.compile(r'"clientId":"([^"]*)"')
_PART = re.compile(r'"(totalTime|requestQueueTime|localTime|remoteTime|responseQueueTime|sendTime)Ms":([0-9.E-]+)')


def jvm_options(port: int) -> tuple[str, ...]:
    """What has a JVM response JMX on a loopback port, to everybody there."""
    remote = "-Dcom.sun.management.jmxremote"
    return (
        f"{remote}.port={port}",
        f"{remote}.rmi.port={port}",
        f"{remote}.host=127.0.0.1",
        f"{remote}.authenticate=false",
        f"{remote}.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    )


class TooLate(RuntimeError):
    """A sensor was read when what it counts was half forgotten."""


class BrokerSensors:
    """One broker's JMX; use it as a context manager."""

    def __init__(self, port: int) -> None:
        java = need_program("java", "openjdk-17-jdk-headless")
        self._process = subprocess.Popen(
            [java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(_JAVA), f"127.0.0.1:{port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(_CONNECTS_S)

    def value(self, name: str, attribute: str) -> float | None:
        """An attribute of an MBean, None if there is no such bean."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\t{attribute}\n")
        self._process.stdin.flush()
        response = self._process.stdout.readline().strip()
        if not response:
            raise RuntimeError("the reader of JMX has ended")
        return None if response == "-" else float(response)

    def request_rate(self, client_id: str) -> float | None:
        """Thread time of a client-id now, in per cent of one thread."""
        return self.value(f"kafka.server:type=Request,client-id={client_id}", "request-time")

    def is_active_controller(self) -> bool:
        """Whether the cluster's controller is on this node."""
        return self.value("kafka.controller:type=KafkaController,name=ActiveControllerCount", "Value") == 1

    def exempt_rate(self) -> float:
        """Thread time of requests that no quota counts, of everybody, in per cent of one thread."""
        return self.value("kafka.server:type=Request", "exempt-request-time") or 0.0


def await_moment(began_ns: int) -> float:
    """Wait until a rate that began then can be turned into its sum; for how many seconds it counts.

    `rate` of 11 samples of 1 s (quota-semantics 3.1): in the first eleven seconds it divides by ten and the fraction of
    a second that has begun, which is near a half here, so that some milliseconds more or less are no matter.
    """
    while not 0.25 <= (elapsed_s := (time.perf_counter_ns() - began_ns) / 1e9) % 1 <= 0.75:
        time.sleep(0.01)
    if elapsed_s > _LONGEST_S:
        raise TooLate(f"the sensor is read {elapsed_s:.1f} s after its first request: too late for its sum")
    return _WINDOWS + elapsed_s % 1


def microseconds(rate_percent: float, seconds: float) -> float:
    """The thread time behind a rate over so many seconds: 100 % is all of one thread."""
    return rate_percent * seconds * 1e4


@contextmanager
def request_log(cluster: KafkaCluster, node_id: int) -> Iterator[None]:
    """Have a node log each request with the parts of its time. Its metrics have them too, but in whole milliseconds."""
    where = ("--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "broker-loggers")
    alter = (*where, "--entity-name", str(node_id), "--alter", "--add-config")
    cluster.tool("kafka-configs", *alter, "kafka.request.logger=DEBUG")
    try:
        yield
    finally:
        cluster.tool("kafka-configs", *alter, "kafka.request.logger=WARN")


def logged_parts_us(cluster: KafkaCluster, node_id: int) -> dict[str, dict[str, list[float]]]:
    """By client-id the parts of the time of each request in the log: queued, local, remote, ... in microseconds."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in cluster.log_tail(node_id, _LOG_LINES).splitlines():
        if client_id := _CLIENT_ID.search(line):
            of_client = found.setdefault(client_id[1], {})
            for part, value in _PART.findall(line):
                of_client.setdefault(part, []).append(float(value) * 1000)
    return found
