"""The proxy of the demo: a separate process in front of a cluster, with quotas for the demo's clients."""

import json
import random
import re
import socket
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGTERM
from typing import Any

from demo.kept_processes import KeptProcesses

HOST = "127.0.0.1"
_NAME = "proxy"
_FIRST_PORT, _LAST_PORT = 12_000, 32_000
"""Below the ports of outgoing connections, so that none of those can be in the way."""

_START_S = 90.0
_LIMIT = re.compile(r"kafka_throttle_entity_limit\{(?P<labels>.*)\} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ProxyFailed(RuntimeError):
    """The proxy does not serve; the message ends with the last lines of its log."""


class ProxyProcess:
    """`python -m proxy run` with one listener for `nodes` nodes, numbered from 1; it ends with `processes`.

    `quotas` are entries as in the configuration file; every client may change them by Kafka's API. With `record` a
    usage record for every client and second goes to that directory.
    """

    def __init__(
        self,
        processes: KeptProcesses,
        bootstrap_servers: str,
        nodes: int,
        quotas: Sequence[dict[str, Any]],
        record: Path | None = None,
    ) -> None:
        self._processes = processes
        self.port, *_, self.metrics_port, admin_port = free_port_run(nodes + 3)
        config = {
            "virtual_clusters": [
                {
                    "name": "demo",
                    "upstream": {"bootstrap_servers": bootstrap_servers.split(",")},
                    "listeners": [
                        {"name": "plain", "bind": HOST, "port": self.port, "node_ids": [f"1-{nodes}"]},
                    ],
                    "quotas": {
                        "entries": list(quotas),
                        "state_file": str(processes.folder / "quotas.json"),
                        "admin_users": ["ANONYMOUS"],
                    },
                }
            ],
            "metrics": {"bind": HOST, "port": self.metrics_port},
            "admin": {"bind": HOST, "port": admin_port},
            "limits": {"drain_s": 1},
            **({} if record is None else {"usage": {"directory": str(record.resolve()), "window_s": 1, "file_s": 2}}),
        }
        self.config_path = processes.folder / "proxy.yaml"
        self.config_path.write_text(json.dumps(config, indent=1))  # JSON is YAML
        processes.start(_NAME, "-m", "proxy", "run", "-c", str(self.config_path))
        self._wait_until_ready()

    @property
    def bootstrap(self) -> str:
        """The address at which clients bootstrap, as host:port."""
        return f"{HOST}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The address that Prometheus would scrape."""
        return f"http://{HOST}:{self.metrics_port}/metrics"

    def scrape(self) -> list[str]:
        """The lines of /metrics."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as response:
            return str(response.read().decode()).splitlines()

    def limits(self) -> dict[tuple[str, str], float]:
        """The limits in force of client-ids that were seen, in bytes/s, by client-id and quota type."""
        found = {}
        for line in self.scrape():
            if match := _LIMIT.match(line):
                labels = dict(_LABEL.findall(match["labels"]))
                found[labels["client_id"], labels["quota_type"]] = float(match["value"])
        return found

    def stop(self) -> None:
        """End the proxy in order, with all its records written."""
        self._processes.signal(_NAME, SIGTERM, wait=True)

    def check(self) -> None:
        """Raises ProxyFailed if the process has ended."""
        if (status := self._processes.status(_NAME)) is not None:
            raise ProxyFailed(f"the proxy has ended with status {status}\n{self._processes.tail(_NAME)}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProxyFailed(f"the proxy is not ready after {_START_S:.0f} s\n{self._processes.tail(_NAME)}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}/readyz", timeout=5):
                return True
        except OSError:  # refused, or HTTPError while it is not ready
            return False


_given_out: set[int] = set()


def free_port_run(count: int) -> list[int]:
    """The first port of `count` consecutive ones that are free and were not given out by this process before, and the
    others.
    """
    for _ in range(200):
        ports = list(range(first := random.randrange(_FIRST_PORT, _LAST_PORT - count), first + count))
        if not _given_out.isdisjoint(ports):
            continue
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(closing(socket.socket())).bind((HOST, port))
            except OSError:
                continue
            _given_out.update(ports)
            return ports
    raise ProxyFailed("no run of free ports")
