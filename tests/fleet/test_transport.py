"""The model of ZooKeeper keeps the promises that the fleet's shares are built on."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from kafka_throttle.proxy.server.fleet.transport import TransportLost
from tests.fleet.ensemble import Ensemble, EnsemblePlan
from tests.fleet.events import PROCESS, Events, Process, SimulatedLoop
from tests.fleet.transport import Network, SimulatedTransport


class Fleet:
    """Members that publish numbers."""

    def __init__(self, members: int, seed: int = 0, loss: float = 0.0) -> None:
        self.events, rng = Events(), Random(seed)
        self.ensemble = Ensemble(self.events, EnsemblePlan(), rng)
        self.networks = [Network(self.events, rng, 3.0, loss) for _ in range(members)]
        self.processes = [Process(self.events) for _ in range(members)]
        self.transports = [
            SimulatedTransport(self.events, self.ensemble, network, process, rng, lambda at_ms: at_ms)
            for network, process in zip(self.networks, self.processes, strict=True)
        ]

    async def start(self) -> None:
        for number, (transport, process) in enumerate(zip(self.transports, self.processes, strict=True)):
            PROCESS.set(process)
            await transport.start(f"m{number}", lambda: None)
        PROCESS.set(None)

    async def published(self, number: int, content: bytes) -> None:
        """Publish as often as it takes."""
        while True:
            try:
                return await self.transports[number].publish(content)
            except TransportLost:
                await asyncio.sleep(0.1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks each 50 ms."""
        looks = iter(lambda: condition(), True)
        for _ in looks:
            await asyncio.sleep(0.05)


def simulate(fleet: Fleet, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop(fleet.events)

    async def run() -> None:
        await fleet.start()
        await steps()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    loop.run_until_complete(run())
    loop.close()


@pytest.mark.parametrize("seed", range(10))
def test_who_has_published_sees_all_that_was_ordered_before(seed):
    fleet = Fleet(4, seed, loss=0.01)
    ordered: list[tuple[str, int]] = []

    async def member(number: int) -> None:
        rng = Random(seed * 100 + number)
        for count in range(1, 40):
            await fleet.published(number, count.to_bytes(2))
            seen = fleet.transports[number].view()
            mine = ordered.index((f"m{number}", count))
            for name, before in ordered[:mine]:
                assert name == f"m{number}" or int.from_bytes(seen.get(name, b"")) >= before, (number, count)
            await asyncio.sleep(rng.random() * 0.3)

    order = fleet.ensemble._order

    def noted(change: Any) -> int:
        ordered.append((change.path, int.from_bytes(change.content or b"")))
        return order(change)

    fleet.ensemble._order = noted

    async def steps() -> None:
        await asyncio.gather(*(member(number) for number in range(4)))

    simulate(fleet, steps)


def test_a_member_that_is_cut_off_goes_after_its_session_and_comes_back_as_a_new_one():
    fleet = Fleet(2)

    async def steps() -> None:
        await fleet.published(0, b"a")
        await fleet.published(1, b"b")
        one, other = fleet.transports
        await fleet.until(lambda: one.view() == {"m1": b"b"})
        fleet.networks[1].cut()
        cut_ms = fleet.events.now_ms
        await fleet.until(lambda: one.view() == {})
        assert 6000 <= fleet.events.now_ms - cut_ms <= 6000 + 2 * 2000 + 200
        assert fleet.events.now_ms - other.heard_ms > 6000
        with pytest.raises(TransportLost):
            await other.publish(b"c")
        fleet.networks[1].mend()
        losses = other.losses
        await fleet.published(1, b"d")
        assert losses == 1
        assert other.view() == {"m0": b"a"}
        await fleet.until(lambda: one.view() == {"m1": b"d"})

    simulate(fleet, steps)


def test_a_process_that_stands_still_hears_nothing_until_it_goes_on():
    fleet = Fleet(2)

    async def steps() -> None:
        await fleet.published(0, b"a")
        await fleet.published(1, b"b")
        await fleet.until(lambda: fleet.transports[0].view() == {"m1": b"b"})
        fleet.processes[0].suspend(3000)
        await fleet.published(1, b"c")
        await asyncio.sleep(2.5)
        assert fleet.transports[0].view()["m1"] == b"b"
        await fleet.until(lambda: fleet.transports[0].view()["m1"] == b"c")
        assert fleet.transports[0].losses == 0

    simulate(fleet, steps)


def test_without_a_leader_nothing_is_ordered_and_sessions_go_on_after_it():
    fleet = Fleet(2)

    async def steps() -> None:
        await fleet.published(0, b"a")
        await fleet.published(1, b"b")
        fleet.ensemble.go_down(20_000)
        await asyncio.sleep(1)
        with pytest.raises(TransportLost):
            await fleet.transports[0].publish(b"c")
        await fleet.published(0, b"c")
        assert fleet.events.now_ms >= 20_000
        await fleet.until(lambda: fleet.transports[1].view().get("m0") == b"c")

    simulate(fleet, steps)
