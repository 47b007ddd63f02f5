"""A storm of connections on one door, and good clients beside it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_throttle.quotas.connection_quotas import (
    AddressLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerKey,
    Outcome,
)
from tests.support.places import ROOT

LISTENER = ListenerKey("main", "plain")
GOOD = tuple(f"127.0.2.{i}" for i in range(1, 6))

Reported = Mapping[str, Mapping[str, Any]]


def bad(count: int) -> tuple[str, ...]:
    """So many addresses of this machine."""
    return tuple(f"127.0.1.{i}" for i in range(1, count + 1))


@dataclass(slots=True)
class Seen:
    """What one door has done: to good clients without a storm (`calm`), to them in it, and to those that storm.

    `samples` are (s since the begin, KiB of memory, descriptors) of its process, if that is known.
    """

    calm: Reported
    good: Reported
    storm: Reported
    samples: list[tuple[float, int, int]] = field(default_factory=list)


def blow(
    target: tuple[str, int], addresses: Sequence[str], seconds: float, pid: int | None, calm_s: float = 11.0
) -> Seen:
    """A while without a storm, then one of so many seconds, with the good clients all the time."""
    calm = _finish(_start("good", target, GOOD, calm_s))
    began, samples = time.monotonic(), []
    storm, good = _start("storm", target, addresses, seconds), _start("good", target, GOOD, seconds)
    while time.monotonic() < began + seconds:
        if pid is not None:
            samples.append((round(time.monotonic() - began, 1), *memory_and_descriptors(pid)))
        time.sleep(1)
    return Seen(calm, _finish(good), _finish(storm), samples)


def _start(kind: str, target: tuple[str, int], addresses: Sequence[str], seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.storm.clients", kind, target[0], str(target[1]), ",".join(addresses)]
    return subprocess.Popen([*command, str(seconds)], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _finish(process: "subprocess.Popen[str]") -> Reported:
    out, _ = process.communicate()
    assert process.returncode == 0, process.returncode
    reported: Reported = json.loads(out)
    return reported


def memory_and_descriptors(pid: int) -> tuple[int, int]:
    """Resident KiB, and how many files are open."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def admitted_by_kafka(storm: Reported, rate: float) -> dict[str, int]:
    """How many of these attempts, at these times, Kafka's arithmetic admits from each address.

    By our own class for it, which tests/conformance holds to Kafka's bit for bit.
    """
    attempts = sorted((at_ms, address) for address, reported in storm.items() for at_ms in reported["attempts"])
    quotas = ConnectionQuotas(ConnectionLimits(), 0)
    quotas.add_listener(LISTENER, ConnectionLimits(), 0)
    quotas.set_address_limits("main", AddressLimits(creation_rate=rate))
    counts = dict.fromkeys(storm, 0)
    for at_ms, address in attempts:
        quotas.arrive(LISTENER, at_ms)
        if quotas.admit(LISTENER, address, at_ms).outcome is Outcome.ADMITTED:
            counts[address] += 1
            quotas.leave(LISTENER, address)
    return counts


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all are not above."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def summary(seen: Seen, rate: float) -> dict[str, Any]:
    """The figures of a door."""
    kafkas = admitted_by_kafka(seen.storm, rate)
    admitted = {address: len(reported["admitted"]) for address, reported in seen.storm.items()}
    ratios = [admitted[address] / kafkas[address] for address in kafkas if kafkas[address]]
    settled = [sample for sample in seen.samples if sample[0] >= min(11, seen.samples[-1][0] / 2)]
    return {
        "attempts": sum(len(reported["attempts"]) for reported in seen.storm.values()),
        "admitted_per_address": [min(admitted.values()), max(admitted.values())],
        "kafka_per_address": [min(kafkas.values()), max(kafkas.values())],
        "ratio": [round(min(ratios), 3), round(max(ratios), 3)],
        "good_attempts": sum(len(reported["attempts"]) for reported in seen.good.values()),
        "good_admitted": sum(len(reported["admitted"]) for reported in seen.good.values()),
        "calm_p99_ms": percentile(_took(seen.calm), 0.99),
        "good_p50_ms": percentile(_took(seen.good), 0.5),
        "good_p99_ms": percentile(_took(seen.good), 0.99),
        "memory_kib": [settled[0][1], settled[-1][1]] if settled else [],
        "descriptors": [min(sample[2] for sample in settled), max(sample[2] for sample in settled)] if settled else [],
    }


def _took(reported: Reported) -> list[float]:
    return [took_ms for of_address in reported.values() for took_ms in of_address["took_ms"]]


def table(found: Mapping[str, Mapping[str, Any]], say: Callable[[str], None] = print) -> None:
    """The figures of all doors as Markdown."""
    say("| door | attempts | admitted per bad address | by Kafka's arithmetic | ratio | good: admitted of | p99 calm"
        " | p99 in the storm | memory, KiB | descriptors |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, of in found.items():
        admitted, kafkas, ratio = (_span(of[key]) for key in ("admitted_per_address", "kafka_per_address", "ratio"))
        good = f"{of['good_admitted']} of {of['good_attempts']}"
        times = f"{of['calm_p99_ms']:.1f} ms | {of['good_p99_ms']:.1f} ms"
        held = f"{_span(of['memory_kib'])} | {_span(of['descriptors'])}"
        say(f"| {name} | {of['attempts']} | {admitted} | {kafkas} | {ratio} | {good} | {times} | {held} |")


def _span(of: Sequence[float]) -> str:
    return "-".join(map(str, of))
