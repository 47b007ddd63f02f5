"""Measures what the status page, the JSON API and a scrape cost with very many clients and addresses.

    python tests/bench/admin_listener.py [--clients 100000] [--addresses 10000] [--json FILE]

Within one process: the whole service in front of a cluster that is not there, `--clients` client-ids with sensors of
two quotas and a shadow quota, each hundredth throttled, and `--addresses` addresses whose rates are measured.
Another process asks. While one thing after the other is asked for, a task comes back all the time and notes the longest
single step of the event loop, and how late it was at worst: what other processes take is in that, too. Prints a
Markdown table, and the size of each response.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from kafka_throttle.proxy.installed import build_in_use, take_build

take_build()

import structlog  # noqa: E402

from demo.proxy_process import free_port_run  # noqa: E402
from kafka_throttle.proxy.clock import SystemClock  # noqa: E402
from kafka_throttle.proxy.config.load import config_of  # noqa: E402
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts  # noqa: E402
from kafka_throttle.proxy.observe.throttle_episode import ThrottleEpisode  # noqa: E402
from kafka_throttle.proxy.relay.actions import Throttled  # noqa: E402
from kafka_throttle.proxy.server.service import Service  # noqa: E402
from kafka_throttle.quotas.entities import QuotaType  # noqa: E402
from tests.bench import machine  # noqa: E402
from tests.bench.loop_lag import figures_during, table  # noqa: E402
from tests.bench.processes import say  # noqa: E402

PAGES = (
    ("/metrics", "a scrape"),
    ("/", "the status page, for the first time"),
    ("/", "the status page again"),
    ("/api/v1/throttled?limit=1000", "the API's page of throttled clients"),
    ("/search?q=client-99999", "a search for one client-id"),
    ("/search?q=client", "a search that fits every client-id"),
    ("/explain?user=user-1&client_id=client-1", "an explanation"),
)
OPEN_PAGES = "five open status pages"
_NODE = 1
_LIMIT = 1_000_000
_USERS = 100


def config(clients: int) -> dict[str, object]:
    """A configuration with quotas by default for each client-id and each address."""
    bootstrap, _, metrics, admin, nobody = free_port_run(5)  # the port after that of the bootstrap is the node's
    entries = [
        {
            "default_client_id": True,
            "producer_byte_rate": _LIMIT,
            "consumer_byte_rate": _LIMIT,
            "shadow_producer_byte_rate": _LIMIT,
        },
        {"default_ip": True, "connection_creation_rate": 100},
    ]
    listener = {"name": "plain", "bind": "127.0.0.1", "port": bootstrap, "node_ids": [_NODE]}
    return {
        "virtual_clusters": [
            {
                "name": "main",
                "upstream": {"bootstrap_servers": [f"127.0.0.1:{nobody}"]},
                "listeners": [listener],
                "quotas": {"entries": entries},
            }
        ],
        "metrics": {"port": metrics},
        "admin": {"port": admin},
        "limits": {"max_sensors": 2 * clients + clients // 8 + 16},
        "drain": {"lame_duck_s": 0},
    }


class Crowd:
    """A service, and the clients and addresses that it has measured."""

    def __init__(self, path: Path, clients: int, addresses: int) -> None:
        path.write_text(json.dumps(config(clients)))
        self.service = Service(path, config_of(json.loads(path.read_text())), SystemClock())
        self.clients = clients
        self.addresses = addresses

    def fill(self) -> None:
        """Charge all clients and addresses."""
        service, now_ms = self.service, self.service.clock.now_ms()
        [cluster] = service.instance.clusters
        manager = cluster.quota_manager
        for number in range(self.clients):
            facts = ConnectionFacts(ListenerFacts("main", None, manager, None), _NODE, f"user-{number % _USERS}")
            name = b"client-%d" % number
            sensors = facts.bind(name, now_ms)
            value = number * 7919 % (10 * _LIMIT) if number % 100 else 15 * _LIMIT
            throttle_time_ms = manager.sensors.charge(sensors.produce, value, now_ms)
            manager.shadow_sensors.charge(sensors.shadow_produce, value, now_ms)
            if throttle_time_ms:
                cause = Throttled(QuotaType.PRODUCE, throttle_time_ms, name)
                past = cluster.last_throttles.note(f"10.0.0.{number % 250}", cause, facts, now_ms)
                episode = ThrottleEpisode(past, now_ms, now_ms)
                episode.note(throttle_time_ms, now_ms)
                cluster.throttled.add(episode)
        rates = service.instance.gate.admission.quotas.rates("main")
        for number in range(self.addresses):
            rates.measure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 100.0, False, now_ms)


_ASKER = """
import selectors, socket, sys, time, urllib.request

def watch(port, pages, seconds):
    waiting, size = selectors.DefaultSelector(), 0
    for _ in range(pages):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET /live HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        waiting.register(sock, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in waiting.select(0.1):
            size += len(key.fileobj.recv(1 << 16))
    for key in list(waiting.get_map().values()):
        key.fileobj.close()
    return size

for line in sys.stdin:
    port, path, *seconds = line.split()
    if seconds:
        print(watch(int(port), int(path), float(seconds[0])), flush=True)
    else:
        print(len(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60).read()), flush=True)
"""


class Asker:
    """Another process that asks for pages. It starts before anything is measured: the start takes the loop's time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Self:
        """Start the process."""
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, "-c", _ASKER, stdin=pipe, stdout=pipe))

    async def size(self, *order: object) -> int:
        """Ask for a port and a path, or for a port, a number of open pages and a time; return the bytes that came."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{' '.join(map(str, order))}\n".encode())
        return int(await self._process.stdout.readline())

    async def stop(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()


async def measure(clients: int, addresses: int, open_s: float) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """For each page what `figures_during` says of it, and the sizes of the responses."""
    found, sizes = {}, {}
    asker = await Asker.start()
    with tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(Path(folder, "proxy.yaml"), clients, addresses)
        service = crowd.service
        await service.start()
        crowd.fill()
        gc.collect()
        gc.freeze()
        metrics_port, admin_port = service.config.metrics.port, service.config.admin.port
        orders = [(title, (metrics_port if path == "/metrics" else admin_port, path)) for path, title in PAGES]
        for title, order in [*orders, (OPEN_PAGES, (admin_port, 5, open_s))]:
            say(title)

            async def ask(title: str = title, order: tuple[object, ...] = order) -> None:
                sizes[title] = await asker.size(*order)

            found[title] = await figures_during(ask())
        gc.unfreeze()
        await service.stop()
    await asker.stop()
    return found, sizes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--addresses", type=int, default=10_000)
    parser.add_argument("--open-s", type=float, default=10.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    import uvloop  # the loop that the proxy runs on

    with contextlib.closing(asyncio.Runner(loop_factory=uvloop.new_event_loop)) as runner:
        found, sizes = runner.run(measure(options.clients, options.addresses, options.open_s))
    if options.json:
        report = {"machine": machine.facts(), "clients": options.clients, "addresses": options.addresses}
        options.json.write_text(json.dumps({**report, "found": found, "sizes": sizes}, indent=1) + "\n")
    print(table(found, f"{options.clients:,} client-ids, {options.addresses:,} addresses, {build_in_use()}"))
    for title, size in sizes.items():
        print(f"{title}: {size / 1024:.0f} KiB")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # only here: it is for the process
    main()
