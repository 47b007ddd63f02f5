"""Instances are killed and started every few seconds, under producers that always have more than the limit allows.

At the end every record is looked up at the nodes, as in tests/conservation, and the rate is compared with the limit. As
there, a record that is proved to be doubled by librdkafka itself is a remark.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.conservation.accounts import ChangeStatus, Double, Findings, Log, Sent, compare
from tests.conservation.batches import read_batches
from tests.conservation.clients import Child
from tests.conservation.confluent_reader import ends_of, scan
from tests.conservation.doubles import Journal, judge
from tests.conservation.pace import Plan
from tests.live_fleet.figures import burst_s, by_second, long_run, over_s
from tests.live_fleet.load import NICE
from tests.live_fleet.rig import FLEET, INSTANCES, Instance, Rig

EVERY_S = 5.0
_DOWN_S = 2.5
_PARTITIONS = 3
_COMPRESSIONS = ("none", "lz4", "zstd")
"""Of as many producers."""
_RECORD_BYTES = 900
"""On average."""
_DEMAND = 1.6
"""Of all producers, times the limit."""
_FLUSH_S = 400.0
_SAMPLE_S = 0.2


class Kills:
    """Kills one instance after the other and starts it again.

    From the thread that calls it: instances end with the thread that has started them.
    """

    def __init__(self, instances: Sequence[Instance], now: float) -> None:
        self.count = 0
        self._instances = instances
        self._next_at = now + EVERY_S
        self._down: Instance | None = None

    def go_on(self, now: float) -> None:
        """Do what is due."""
        if self._down is not None and now >= self._next_at - EVERY_S + _DOWN_S:
            self.end()
        if now >= self._next_at:
            self._next_at = now + EVERY_S
            self._down = self._instances[self.count % len(self._instances)]
            self._down.crash()
            self.count += 1

    def end(self) -> None:
        """Start the one that is down, ready or not when its turn comes again."""
        if self._down is not None:
            self._down.launch()
            self._down = None


class Chaos:
    """One run; `go` returns what was found as plain data."""

    def __init__(self, rig: Rig, seconds: int, say: Callable[[str], None] = lambda line: None) -> None:
        self._rig, self._seconds, self._say = rig, seconds, say
        self._topic = f"chaos-{uuid4().hex[:4]}"
        self._plans = [
            Plan(
                producer=number,
                client_id=self._topic,
                topic=self._topic,
                partitions=_PARTITIONS,
                records=0,
                per_second=_DEMAND * rig.limit / _RECORD_BYTES / len(_COMPRESSIONS),
                seed=number,
                compression=compression,
            )
            for number, compression in enumerate(_COMPRESSIONS)
        ]

    def go(self) -> dict[str, Any]:
        """Raises what keeps it from coming to an end; what was lost, doubled or out of order is in `violations`."""
        rig = self._rig
        rig.run_instances(INSTANCES, fleet=True)
        rig.make_topics([self._topic], _PARTITIONS)
        rig.balancer.open(FLEET, [instance.name for instance in rig.instances])
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            producers = Child("confluent_producers", folder)
            stack.callback(producers.close)
            producers.make_nice(NICE)
            producers.order(folder=name, bootstrap=rig.bootstrap(FLEET), plans=[asdict(plan) for plan in self._plans])
            kills = Kills(rig.instances, time.monotonic())
            series = self._watch(producers, kills)
            kills.end()
            producers.order(stop=True)
            for instance in rig.instances:
                instance.wait_until_ready()
                instance.lift_quotas()
            producers.news("done", _FLUSH_S)
            counts, found = self._account(folder, producers.log)
        return {
            "seconds": self._seconds,
            "limit": self._rig.limit,
            "kills": kills.count,
            "per_second": series,
            "long_run": long_run(series, self._rig.limit),
            "over_s": over_s(series, self._rig.limit),
            "burst_s": burst_s(series, self._rig.limit),
            "records": counts,
            "troubles": producers.troubles,
            "violations": found.violations,
            "remarks": found.remarks,
        }

    def _watch(self, producers: Child, kills: Kills) -> list[int]:
        """The bytes of each second, as the node has them on its disk, from the first one on."""
        samples: list[tuple[float, float]] = []
        began, told = time.monotonic(), time.monotonic()
        while (now := time.monotonic()) - began < self._seconds + 2 * _SAMPLE_S:
            written = self._rig.written_bytes(self._topic, _PARTITIONS)
            if not written:
                began = now
            samples.append((now, written))
            kills.go_on(now)
            if now - told > 30:
                told = now
                self._say(f"{now - began:5.0f} s: {producers.progress['sent']:,} records, {written / 1e6:.0f} MB")
            time.sleep(_SAMPLE_S)
        since_began = [(at - began, total) for at, total in samples if at >= began]
        return [round(value) for value in by_second(since_began, self._seconds)]

    def _account(self, folder: Path, log_of_producers: Path) -> tuple[dict[str, int], Findings]:
        """All producers' records beside what the nodes have."""
        self._say("reading all at the nodes")
        bootstrap = self._rig.cluster.bootstrap_servers
        logs = scan(bootstrap, ends_of(bootstrap, {self._topic: _PARTITIONS}))
        sent = {plan.producer: Sent.load(folder, plan.producer, _PARTITIONS) for plan in self._plans}
        found, present = Findings(violations=list(logs.faults)), 0
        for log in logs.by_topic[self._topic]:
            compared = compare(log, sent)
            present += log.next_offset
            judged = self._judged(log, compared.doubles, log_of_producers)
            found.violations += compared.violations + judged.violations
            found.remarks += judged.remarks
        counts = {status.name.lower(): sum(one.count(status) for one in sent.values()) for status in ChangeStatus}
        return {**counts, "present": present}, found

    def _judged(self, log: Log, doubles: Sequence[Double], log_of_producers: Path) -> Findings:
        """Whose doing the doubles of a partition are."""
        with log_of_producers.open(errors="replace") as lines:
            journal = Journal(lines)
        batches = read_batches(self._rig.folder_of(self._topic, log.partition))
        return judge(
            log, self._topic, doubles, batches, journal, {plan.producer: plan.client_id for plan in self._plans}
        )
