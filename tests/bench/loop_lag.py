"""Measures for how long the event loop is held by what the proxy does with very many quotas and sensors.

    python tests/bench/loop_lag.py [--count 100000] [--json FILE]

Within one process: a book of quotas over a state file of `--count` entities, and as many clients with sensors. While
one thing after the other is done, a task comes back all the time and notes the longest single step of the event loop,
and how late it was at worst: what other threads and processes take is in that, too. Prints a Markdown table.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.proxy.clock import SystemClock
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.steps import QuotaAlteration, SlowDecision
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.top_entities import EntitySource, EntityUse
from kafka_throttle.proxy.relay.actions import Decision, DecisionKind, DecisionRequest
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import QuotaKey, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.sources.overlay import Change, Changed, Entry, format_overlay
from tests.bench import machine
from tests.bench.processes import say
from tests.bench.quota_relays import DEFAULTS, NEVER_EXCEEDED, client_name, entities
from tests.support.quota_frames import ALTER, DESCRIBE, alter_request, describe_request

PRODUCE = QuotaKey(QuotaType.PRODUCE)
LOG = structlog.get_logger()


_TICK_S = 0.001


class Ticking:
    """A task that comes back all the time, and what it saw, in seconds."""

    def __init__(self) -> None:
        self.longest_step_s = self.longest_collection_s = 0.0
        """The most processor time that the event loop's thread took between two ticks."""
        self.latest_s = 0.0
        self._collecting_since_s = 0.0

    def collecting(self, phase: str, info: object) -> None:
        """Python collects garbage, or has done so."""
        if phase == "start":
            self._collecting_since_s = time.monotonic()
        else:
            took_s = time.monotonic() - self._collecting_since_s
            self.longest_collection_s = max(self.longest_collection_s, took_s)

    async def tick(self) -> None:
        """Go on until cancelled."""
        while True:
            used, due = time.thread_time(), time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.longest_step_s = max(self.longest_step_s, time.thread_time() - used)
            self.latest_s = max(self.latest_s, time.monotonic() - due)


async def figures_during(work: Awaitable[object]) -> dict[str, float]:
    """What is seen while `work` is done, how long that took in all, and the CPU time of this process."""
    ticking = Ticking()
    task = asyncio.create_task(ticking.tick())
    await asyncio.sleep(5 * _TICK_S)
    ticking.longest_step_s = ticking.latest_s = 0.0
    gc.callbacks.append(ticking.collecting)
    began, cpu_began = time.monotonic(), time.process_time()
    await work
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    await asyncio.sleep(2 * _TICK_S)
    gc.callbacks.remove(ticking.collecting)
    task.cancel()
    return {
        "longest_step_s": ticking.longest_step_s,
        "longest_collection_s": ticking.longest_collection_s,
        "latest_s": ticking.latest_s,
        "took_s": took_s,
        "cpu_s": cpu_s,
    }


class Proxy:
    """What of the proxy knows quotas: a book over a state file, a quota manager, sensors of `count` clients,
    metrics.
    """

    def __init__(self, count: int, directory: Path) -> None:
        self.count = count
        self.limits = {QuotaKey(quota_type): Change(limit, None) for quota_type, limit in NEVER_EXCEEDED.items()}
        overlay = dict.fromkeys([*entities(count), *DEFAULTS], Changed(self.limits))
        state = directory / "state.json"
        state.write_bytes(format_overlay(overlay))
        self.source = FileSource({}, "proxy.yaml", state)
        self.clock = SystemClock()
        # As many rows as clients take, so that newcomers find the table full.
        self.quota_manager = ClientQuotaManager(Sensors(2 * count), QuotaTable())
        self.book = QuotaStore("main", self.source, self.quota_manager, self.clock, lambda source, count: None)
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.add_entities(EntitySource(self._uses))
        facts = ListenerFacts(
            "main", self, self.quota_manager, carried, lambda: self.book.quotas, self.book.entities_of
        )
        self.facts = ConnectionFacts(facts, 1, "admin", may_alter=True, may_describe=True)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Of the Nodes of a connection, which nothing here asks for."""

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        """As above."""
        raise AssertionError(node_id)

    def _uses(self) -> Iterator[EntityUse | None]:
        for key, reading in self.quota_manager.readings(self.clock.now_ms()):
            names = key.tags.user, key.tags.client_id
            yield EntityUse("main", key.node_id, key.quota_type.value, *names, reading.rate, reading.limit, 0)

    def bind(self, number: int) -> None:
        """A client comes, and is measured from now on."""
        self.quota_manager.bind("main", 1, *client_name(number), self.clock.now_ms())

    async def ask(self, api_key: int, frame: bytes) -> None:
        """A request about quotas, answered as a connection would have it answered."""
        decision = decide(
            DecisionRequest(1, DecisionKind.QUOTA_API, Side.CLIENT, api_key, 1, frame), self.facts, self.clock.now_ms()
        )
        if isinstance(decision, SlowDecision):
            decision = await finish_in_turns(decision.steps)
        if isinstance(decision, QuotaAlteration):
            decision = await finish_in_turns(decision.reply(await self.book.alter_quotas(decision, LOG)))
        assert isinstance(decision, Decision)
        assert decision.response

    # ---- what is done, one after the other

    async def change_one(self) -> None:
        """One entity, through Kafka's API."""
        await self.ask(ALTER, alter_request([((("user", "user-0"),), [(PRODUCE.text, 5e14, False)])]))

    async def change_a_default(self) -> None:
        """The default of pairs: every sensor is looked at."""
        parts = (("user", None), ("client-id", None))
        await self.ask(ALTER, alter_request([(parts, [(PRODUCE.text, 5e14, False)])]))

    async def change_many(self) -> None:
        """As many as one request may have."""
        changes = [((("user", f"new-{i}"),), [(PRODUCE.text, 5e14, False)]) for i in range(min(3300, self.count))]
        await self.ask(ALTER, alter_request(changes))

    async def change_all(self) -> None:
        """Every entity gets another quota by the operator's file."""
        limits = {QuotaKey(QuotaType.PRODUCE, shadow=True): 1e14}
        entries = {entity: Entry(limits) for entity in entities(self.count)[::4]}
        await asyncio.to_thread(self.source.replace, entries)
        await self.book.take_up()

    async def describe_all(self) -> None:
        """Everything, in one response."""
        await self.ask(DESCRIBE, describe_request([]))

    async def describe_one_user(self) -> None:
        """All entities of one user."""
        await self.ask(DESCRIBE, describe_request([("user", 0, "user-3")]))

    async def scrape(self) -> None:
        """All metrics."""
        await finish_in_turns(self.metrics.gather())
        generate_latest(self.metrics.registry)

    async def newcomers(self) -> None:
        """Clients that find the table full, with a quota by name and without."""
        for number in range(min(2000, self.count)):
            self.quota_manager.bind("main", 2, *client_name(number), self.clock.now_ms())
            self.quota_manager.bind("main", 1, "other", f"other-{number}", self.clock.now_ms())
            await asyncio.sleep(0)

    async def sweep(self) -> None:
        """What is done once a second."""
        for _ in range(20):
            self.quota_manager.expire(self.clock.now_ms())
            await asyncio.sleep(0)


DONE: Sequence[tuple[str, Callable[[Proxy], Awaitable[None]]]] = (
    ("one entity altered", Proxy.change_one),
    ("a default altered", Proxy.change_a_default),
    ("3,300 entities altered in one request", Proxy.change_many),
    ("a quarter of all entities changed in the file", Proxy.change_all),
    ("all described", Proxy.describe_all),
    ("one user described", Proxy.describe_one_user),
    ("metrics scraped", Proxy.scrape),
    ("4,000 newcomers, the table of sensors full", Proxy.newcomers),
    ("20 sweeps for idle sensors", Proxy.sweep),
)


async def measure(count: int) -> dict[str, dict[str, float]]:
    """For each thing what `figures_during` says."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        proxy = Proxy(count, Path(directory))
        await proxy.book.start()
        with contextlib.suppress(StopIteration):
            for number in range(count):
                proxy.bind(number)
        gc.collect()
        gc.freeze()
        for title, work in DONE:
            say(title)
            found[title] = await figures_during(work(proxy))
        gc.unfreeze()
        await proxy.book.stop()
    return found


def table(found: dict[str, dict[str, float]], heading: str) -> str:
    """The figures as Markdown."""
    figures_reported = "longest step, ms of CPU | garbage collection, ms | at most late, ms | took, ms | CPU, ms"
    lines = [f"| {heading} | {figures_reported} |", "|---|---|---|---|---|---|"]
    for title, figures in found.items():
        cells = " | ".join(f"{seconds * 1000:.1f}" for seconds in figures.values())
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    import uvloop  # the loop that the proxy runs on

    found = uvloop.run(measure(options.count))
    if options.json:
        report = {"machine": machine.facts(), "count": options.count, "found": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(found, f"{options.count:,} entities, as many clients with sensors"))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # only here: it is for the process
    main()
