"""Measures what a restart costs clients: 50 of them poll a real node through the proxy while it is restarted.

python -m tests.integration.restart_costs [--rounds 5] [--clients 50]

Prints the figures behind the table in docs/reference/operations.md, for each way to restart. An outage is the time
between two responses of one client. A client connects again after 50 ms, and after each further failure twice as
late, up to 1 s, as Kafka's own clients do.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from struct import pack
from types import TracebackType
from typing import Any, NamedTuple, Self

import click

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.restarts import ActivatedProxy, RelayedProxy, is_running
from tests.integration.topics import leaders_of, make_topic
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

TOPIC = "restart-costs"
"""Without records; it must be there before."""

_POLL_S = 0.05
_SETTLE_S = 2.0
_BACKOFF_S = (0.05, 1.0)
_WAITING = 5
"""Every fifth client waits for records that do not come, with a Fetch that takes half a second."""

_ASKED = request(API_VERSIONS, 0, client_id=b"polls")
_ONE_PARTITION = pack(">iiqi", 1, 0, 0, 1_000_000)
_FETCH = request(
    FETCH,
    4,
    pack(">iiiibi", -1, 500, 1, 1_000_000, 0, 1) + pack(">h", len(TOPIC)) + TOPIC.encode() + _ONE_PARTITION,
    client_id=b"waits",
)


class Cost(NamedTuple):
    """What one restart cost: the longest pause of each client, and how often clients failed."""

    outages_s: list[float]
    refused: int
    unanswered: int


class Clients:
    """Clients that poll in a thread; use it as a context manager."""

    def __init__(self, port: int, leader_port: int, count: int) -> None:
        """`leader_port`: of the node that has the records of those that wait."""
        self._port = port
        self._leader_port = leader_port
        self._count = count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._outages_s = [0.0] * count
        self._polled_s = [0.0] * count
        self._refused = self._unanswered = 0
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._tasks = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def during(self, restart: Callable[[], object]) -> Cost:
        """What a restart costs, once every client has had responses again."""
        time.sleep(_SETTLE_S)
        self._outages_s = [0.0] * self._count
        self._refused = self._unanswered = 0
        restart()
        end_s = time.monotonic()
        while min(self._polled_s) <= end_s:
            assert time.monotonic() < end_s + TIMEOUT_S, "some clients got no response any more"
            time.sleep(0.01)
        time.sleep(_SETTLE_S)
        return Cost(list(self._outages_s), self._refused, self._unanswered)

    async def _begin(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._poll(number)) for number in range(self._count)]

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self, number: int) -> None:
        asked, port = (_ASKED, self._port) if number % _WAITING else (_FETCH, self._leader_port)
        backoff_s = _BACKOFF_S[0]
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                self._refused += 1
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_S[1])
                continue
            try:
                while True:
                    writer.write(asked)
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                    self._note(number)
                    backoff_s = _BACKOFF_S[0]
                    if await self._closes(reader):
                        break
            except (OSError, asyncio.IncompleteReadError):
                self._unanswered += 1
            finally:
                writer.close()
            await asyncio.sleep(backoff_s)

    async def _closes(self, reader: asyncio.StreamReader) -> bool:
        """Pause; whether the connection was closed meanwhile, as it may be when nothing is asked."""
        await asyncio.sleep(_POLL_S)
        return reader.at_eof()

    def _note(self, number: int) -> None:
        now_s = time.monotonic()
        if last_s := self._polled_s[number]:
            self._outages_s[number] = max(self._outages_s[number], now_s - last_s)
        self._polled_s[number] = now_s


# ------------------------------------------------------------------- the ways


def start_again(proxy: ProxyProcess) -> None:
    """Stop a proxy with SIGTERM, and start it when it has ended."""
    proxy.terminate()
    proxy.launch()


def kill_and_start(proxy: ProxyProcess) -> None:
    """The same with SIGKILL."""
    os.kill(proxy.pid, signal.SIGKILL)
    proxy.wait_for_exit()
    proxy.launch()


def succeed(proxy: RelayedProxy) -> None:
    """SIGUSR2, until the old process has ended."""
    first = proxy.pid
    proxy.take_over()
    proxy.wait_for(lambda: not is_running(first), TIMEOUT_S, "the end of the old process")


@contextmanager
def beside(cluster: KafkaCluster) -> Iterator[tuple[ProxyProcess, Callable[[], None]]]:
    """A proxy with `restart.reuse_port`, beside which the next one is started."""
    settings: dict[str, Any] = {"restart": {"reuse_port": True}}
    with ExitStack() as stack:
        running = [stack.enter_context(ProxyProcess(cluster, **settings))]

        def restart() -> None:
            old = running.pop()
            new = ProxyProcess(cluster, ready=False, **settings)
            stack.callback(new.kill)
            new.metrics_port = old.metrics_port
            new.write_text(old.config_path.read_text())
            new.start()
            new.wait_for(lambda: new.events("listening"), TIMEOUT_S, "open ports")
            old.terminate()
            running.append(new)

        yield running[0], restart


@contextmanager
def alone(cls: type[Any], restart: Callable[[Any], None], cluster: KafkaCluster, **settings: Any) -> Iterator[Any]:
    """A proxy of this class, and how to restart it."""
    with cls(cluster, **settings) as proxy:
        yield proxy, lambda: restart(proxy)


WAYS: dict[str, Callable[[KafkaCluster], Any]] = {
    "`SIGKILL`, then start": lambda cluster: alone(ProxyProcess, kill_and_start, cluster),
    "`SIGTERM`, then start": lambda cluster: alone(ProxyProcess, start_again, cluster),
    "the same, `workers: 2`": lambda cluster: alone(ProxyProcess, start_again, cluster, workers=2),
    "sockets from systemd": lambda cluster: alone(ActivatedProxy, ActivatedProxy.restart, cluster),
    "`restart.reuse_port`": beside,
    "`SIGUSR2`": lambda cluster: alone(RelayedProxy, succeed, cluster),
}


def costs_of(
    proxy: ProxyProcess, restart: Callable[[], object], cluster: KafkaCluster, rounds: int, clients: int
) -> list[Cost]:
    """What so many restarts cost, one after the other."""
    [leader] = leaders_of(cluster.bootstrap_servers, TOPIC).values()
    with Clients(proxy.port, proxy.node_ports[leader], clients) as polling:
        return [polling.during(restart) for _ in range(rounds)]


def row(way: str, costs: list[Cost]) -> str:
    """A row of the table."""
    every = [outage_s for cost in costs for outage_s in cost.outages_s]
    refused, unanswered = (median(column) for column in ([c.refused for c in costs], [c.unanswered for c in costs]))
    return f"| {way} | {median(every):.1f} s | {max(every):.1f} s | {refused:.0f} | {unanswered:.0f} |"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, help="How many restarts in each way.")
@click.option("--clients", default=50, show_default=True, help="How many clients poll.")
def main(rounds: int, clients: int) -> None:
    """As the head of this file says."""
    print("| way | outage, median | longest | refused | unanswered |\n|---|---|---|---|---|")
    with KafkaCluster("4.3.1", "kraft") as cluster:
        make_topic(cluster.bootstrap_servers, TOPIC)
        for way in WAYS:
            with WAYS[way](cluster) as (proxy, restart):
                print(row(way, costs_of(proxy, restart, cluster, rounds, clients)), flush=True)
            print(f"{way}: done", file=sys.stderr)


if __name__ == "__main__":
    main()
