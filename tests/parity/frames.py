"""The same frames at a broker with quotas and at the proxy before a broker without: every throttle time and mute.

Each client follows a script of Produce requests, on one connection to each side at the same times. What is compared is
the throttle time in each response, and for how long the connection then was mute: where the next request is sent into
the mute, its response tells.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.raw_client import Answered, RawClient
from tests.parity.sides import KAFKA_VERSION, alter_client_quotas
from tests.quotas.windowed_rate import WindowedRate

WITHIN_MS = 25
WITHIN_SHARE = 0.02
_REQUESTS = 30
_CLIENTS_OF_A_RATE = 4
_RATES = (20_000, 100_000, 300_000)
_INTO_THE_MUTE_MS = 40
_CRITICAL_MS = 40


@dataclass(frozen=True, slots=True)
class Step:
    """One request: when it is sent, in ms from the start, and its size. An early one is sent into the mute."""

    at_ms: int
    size_bytes: int
    early: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of one step on one side."""

    throttle_time_ms: int
    mute_ms: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """The same step on both sides."""

    client_id: str
    step: Step
    broker: Exchange
    proxy: Exchange

    @property
    def throttles_agree(self) -> bool:
        """Whether the throttle times are within 25 ms or 2 %."""
        return agree(self.broker.throttle_time_ms, self.proxy.throttle_time_ms)

    @property
    def mutes_agree(self) -> bool:
        """The same for how long the next request then waited, where it was sent into the mute."""
        theirs, ours = self.broker.mute_ms, self.proxy.mute_ms
        return theirs is None or ours is None or agree(theirs, ours)


def agree(theirs: float, ours: float) -> bool:
    """Whether two times in ms are as near to each other as is asked."""
    return abs(theirs - ours) <= max(WITHIN_MS, WITHIN_SHARE * theirs)


def script(seed: int, rate: int) -> list[Step]:
    """Requests for some four times the rate, planned with a rate as a broker keeps it.

    None is processed within 40 ms of the end of a window, of one of its samples or of a whole number of windows: there
    a ms decides about much, and no two connections are so equal.
    """
    rng = random.Random(seed)
    model = WindowedRate(rate, 11, 1000)
    steps: list[Step] = []
    free_ms = 0
    while len(steps) < _REQUESTS:
        size = max(int(rate * rng.choice((0.3, 1.0, 2.5, 4.0))), 200)
        muted_ms = free_ms - steps[-1].at_ms if steps else 0
        early = muted_ms > 2 * _INTO_THE_MUTE_MS and rng.random() < 0.7 and not is_critical(model, free_ms)
        processed_ms = free_ms if early else _next_quiet(model, free_ms + rng.randrange(60, 600))
        at_ms = free_ms - _INTO_THE_MUTE_MS if early else processed_ms
        steps.append(Step(at_ms, size, early))
        free_ms = processed_ms + model.charge(size, processed_ms)
    return steps


def _next_quiet(model: WindowedRate, at_ms: int) -> int:
    while is_critical(model, at_ms):
        at_ms += 10
    return at_ms


def is_critical(model: WindowedRate, at_ms: int) -> bool:
    """Whether some ms more or less would change more than some ms."""
    ages = [at_ms - time_ms for start, last, _ in model.ring for time_ms in (start, last)]
    return any(min(age % 1000, -age % 1000) < _CRITICAL_MS for age in ages)


def run_script(
    address: tuple[str, int], client_id: str, steps: Sequence[Step], ready: threading.Barrier
) -> list[Exchange]:
    """Carry a script out from when all are ready."""
    with RawClient(address, client_id) as client:
        responses: list[Answered] = []
        client.prepare(step.size_bytes for step in steps)
        ready.wait()
        start_s = time.monotonic() + 0.1
        for step in steps:
            time.sleep(max(start_s + step.at_ms / 1000 - time.monotonic(), 0.0))
            responses.append(client.produce(step.size_bytes))
    mutes = [
        (later.answered_s - sooner.answered_s) * 1000 if step.early else None
        for (sooner, later), step in zip(pairwise(responses), steps[1:], strict=True)
    ]
    return [Exchange(a.throttle_time_ms, mute) for a, mute in zip(responses, [*mutes, None], strict=True)]


def measure() -> list[Pair]:
    """All clients at once, both sides of each at the same instant."""
    plans = {
        f"frames-{rate}-{number}": (rate, script(rate + number, rate))
        for rate in _RATES
        for number in range(_CLIENTS_OF_A_RATE)
    }
    quotas = [{"client_id": client_id, "producer_byte_rate": rate} for client_id, (rate, _) in plans.items()]
    with KafkaCluster(KAFKA_VERSION, nodes=1) as judge, KafkaCluster(KAFKA_VERSION, nodes=1) as behind:
        alter_client_quotas(judge.address(1), quotas)
        with ProxyProcess(behind, quotas) as proxy:
            sides = [judge.address(1), (HOST, proxy.node_ports[1])]
            found: dict[tuple[str, int], list[Exchange]] = {}
            ready = threading.Barrier(2 * len(plans))

            def run(client_id: str, side: int) -> None:
                found[client_id, side] = run_script(sides[side], client_id, plans[client_id][1], ready)

            threads = [threading.Thread(target=run, args=(client_id, side)) for client_id in plans for side in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return [
        Pair(client_id, step, broker, proxy)
        for client_id, (_, steps) in plans.items()
        for step, broker, proxy in zip(steps, found[client_id, 0], found[client_id, 1], strict=True)
    ]


def table(pairs: Sequence[Pair]) -> str:
    """How near the two sides are to each other, by quota, as Markdown."""
    lines = [
        "| quota, bytes/s | answers | throttled | apart at most, ms | mutes | apart at most, ms |",
        "|---|---|---|---|---|---|",
    ]
    for rate in _RATES:
        of_rate = [pair for pair in pairs if pair.client_id.startswith(f"frames-{rate}-")]
        throttled = [pair for pair in of_rate if pair.broker.throttle_time_ms or pair.proxy.throttle_time_ms]
        throttles = [abs(pair.broker.throttle_time_ms - pair.proxy.throttle_time_ms) for pair in throttled]
        mutes = [abs(pair.broker.mute_ms - pair.proxy.mute_ms) for pair in of_rate if pair.broker.mute_ms is not None]
        cells = (rate, len(of_rate), len(throttled), max(throttles), len(mutes), f"{max(mutes):.0f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def problems(pairs: Sequence[Pair]) -> list[str]:
    """Every response that is further from the broker's than is asked, in words."""
    return [
        f"{pair.client_id}, {pair.step}: broker {pair.broker}, proxy {pair.proxy}"
        for pair in pairs
        if not (pair.throttles_agree and pair.mutes_agree)
    ]
