"""The four clients at work against one address, and their reports."""

import json
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

from demo.clients import CLIENTS
from demo.kept_processes import KeptProcesses

_READY_S = 90.0
_LAST_RECORDS_S = 60.0


class ClientFailed(RuntimeError):
    """A client has ended or does not begin; the message ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a client between the report before and `at_s`, monotonic."""

    at_s: float
    bytes: int
    records: int
    failed: int
    latency_us: list[int]
    throttle_ms: list[int]


@dataclass(frozen=True, slots=True)
class Seen:
    """The measurements of a client over a period; a percentile is None if nothing was measured."""

    bytes_per_second: float
    p50_ms: float | None
    p99_ms: float | None
    throttles: int
    mean_throttle_ms: float
    max_throttle_ms: int


@dataclass
class ClientReports:
    """All reports of one client, oldest first."""

    reports: list[Report] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Records that were acknowledged or read, each once."""
        return sum(report.records for report in self.reports)

    @property
    def failed(self) -> int:
        """Records that the client has given up."""
        return sum(report.failed for report in self.reports)

    def seen(self, from_s: float, to_s: float) -> Seen:
        """The measurements from one monotonic time to another."""
        found = list(self._between(from_s, to_s))
        latency_us = sorted(value for report in found for value in report.latency_us)
        throttle_ms = [value for report in found for value in report.throttle_ms]
        return Seen(
            sum(report.bytes for report in found) / max(to_s - from_s, 0.001),
            _percentile_ms(latency_us, 0.5),
            _percentile_ms(latency_us, 0.99),
            len(throttle_ms),
            sum(throttle_ms) / len(throttle_ms) if throttle_ms else 0.0,
            max(throttle_ms, default=0),
        )

    def _between(self, from_s: float, to_s: float) -> Iterator[Report]:
        first = bisect_left(self.reports, from_s, key=lambda report: report.at_s)
        end = bisect_left(self.reports, to_s, key=lambda report: report.at_s)
        return iter(self.reports[first:end])


def _percentile_ms(ascending_us: list[int], share: float) -> float | None:
    """The nearest-rank percentile."""
    if not ascending_us:
        return None
    rank = max(-int(-share * len(ascending_us) // 1), 1)
    return ascending_us[rank - 1] / 1000


class Load:
    """The four clients against `bootstrap`; `topics` gives the topic of each by its name."""

    def __init__(self, processes: KeptProcesses, phase: str, bootstrap: str, topics: dict[str, str]) -> None:
        self._processes = processes
        self._phase = phase
        self.clients = {name: ClientReports() for name in CLIENTS}
        self._ready: set[str] = set()
        for name in CLIENTS:
            processes.start(self._process(name), "-m", "demo.clients", name, bootstrap, topics[name])
        self._await_ready()
        self.began_s = time.monotonic()
        for name in CLIENTS:
            processes.signal(self._process(name), SIGUSR1)

    @property
    def elapsed_s(self) -> float:
        """The time since the clients began."""
        return time.monotonic() - self.began_s

    def read(self) -> None:
        """Read the clients' reports. Raises ClientFailed if a client has ended."""
        for name in CLIENTS:
            self._read(name)
            if self._processes.status(self._process(name)) is not None:
                raise ClientFailed(f"{name} has ended\n{self._processes.tail(self._process(name))}")

    def end(self) -> None:
        """Stop the noisy clients at once, the good producer when all is acknowledged, the good consumer when it has
        read all.
        """
        for name in ("noisy-producer", "noisy-consumer"):
            self._processes.signal(self._process(name), SIGKILL, wait=True)
        self._processes.signal(self._process("good-producer"), SIGTERM, wait=True)
        self._read("good-producer")
        producer, consumer = self.clients["good-producer"], self.clients["good-consumer"]
        deadline = time.monotonic() + _LAST_RECORDS_S
        while consumer.records < producer.records and time.monotonic() < deadline:
            time.sleep(0.05)
            self._read("good-consumer")
        self._processes.signal(self._process("good-consumer"), SIGTERM, wait=True)
        self._read("good-consumer")

    def _process(self, name: str) -> str:
        return f"{name}-{self._phase}"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while len(self._ready) < len(CLIENTS):
            self.read()
            if time.monotonic() > deadline:
                late = sorted(CLIENTS.keys() - self._ready)
                tail = self._processes.tail(self._process(late[0]))
                raise ClientFailed(f"{', '.join(late)} not ready after {_READY_S:.0f} s\n{tail}")
            time.sleep(0.05)

    def _read(self, name: str) -> None:
        for line in self._processes.new_lines(self._process(name)):
            if not line.startswith("{"):
                continue  # output of a library, stays in the file for `tail`
            found: dict[str, Any] = json.loads(line)
            if "ready" in found:
                self._ready.add(name)
            else:
                found["at_s"] = found.pop("at")
                self.clients[name].reports.append(Report(**found))
