"""A broker with its own limits of connections, and a proxy with the same ones before a broker without."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from demo.kafka_cluster import KafkaCluster
from tests.admission.sockets import Target, all_are_reported, connect
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.support.timeouts import TIMEOUT_S

MARKER = "127.0.4.250"
"""Banned or not, and nothing else: it tells when what was set before is in force."""

_LISTENER = "CLIENTS"


@dataclass(frozen=True)
class Limits:
    """Rates by address (None: the default), counts by address, and what the listener takes."""

    rates: Mapping[str | None, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    listener_rate: int | None = None
    listener_count: int | None = None


class Side(Protocol):
    """Whatever admits connections."""

    target: Target

    def limit(self, limits: Limits) -> None:
        """Put these limits in force, and no others; returns when they are."""


class Broker:
    """A broker of Kafka 3.9.2 with ZooKeeper, whose ip quotas may be 0; clients have a listener of their own."""

    def __init__(self) -> None:
        self.cluster = KafkaCluster("3.9.2", "zookeeper", 1, listeners={_LISTENER: "PLAINTEXT"})
        self._set: set[str | None] = set()
        self._configured: set[str] = set()

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.target = self.cluster.address(1, _LISTENER)
        return self

    def __exit__(self, *failure: Any) -> None:
        self.cluster.__exit__(*failure)

    def limit(self, limits: Limits) -> None:
        """By its API; what is not an ip quota by kafka-configs."""
        self._configure(limits)
        for banned in (True, False):  # the marker last, so that what comes before it is in force when it is
            wanted = {**limits.rates, MARKER: 0} if banned else dict(limits.rates)
            self._alter(wanted)
            _until_marked(self.target, banned)

    def _alter(self, wanted: Mapping[str | None, int]) -> None:
        gone = self._set - wanted.keys()
        entries = [([("ip", ip)], [("connection_creation_rate", 0.0, True)]) for ip in gone]
        entries += [([("ip", ip)], [("connection_creation_rate", float(rate), False)]) for ip, rate in wanted.items()]
        entries.sort(key=lambda entry: entry[0][0][1] == MARKER)
        self._set = set(wanted)
        if entries:
            with QuotaClient(self.cluster.address(1)) as client:
                client.alter(entries)

    def _configure(self, limits: Limits) -> None:
        prefix = f"listener.name.{_LISTENER.lower()}."
        settings = {
            "max.connections.per.ip.overrides": ",".join(f"{ip}:{most}" for ip, most in limits.counts.items()),
            f"{prefix}max.connections": limits.listener_count,
            f"{prefix}max.connection.creation.rate": limits.listener_rate,
        }
        wanted = {name: f"{name}=[{value}]" for name, value in settings.items() if value}
        added, removed = ",".join(wanted.values()), ",".join(self._configured - wanted.keys())
        if not added and not removed:
            return
        self._configured = set(wanted)
        self.cluster.tool(
            "kafka-configs", "--bootstrap-server", self.cluster.bootstrap(), "--alter", "--entity-type", "brokers",
            "--entity-name", "1", *(["--add-config", added] if added else []),
            *(["--delete-config", removed] if removed else []),
        )  # fmt: skip


class Proxy:
    """The proxy before a broker without limits."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.process = ProxyProcess(cluster, limits={"drain_s": 0})
        self.target = (HOST, self.process.port)

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)

    def limit(self, limits: Limits) -> None:
        """By its file."""
        for banned in (True, False):
            rates = {**limits.rates, MARKER: 0} if banned else limits.rates
            entries = [
                {**({"default_ip": True} if ip is None else {"ip": ip}), "connection_creation_rate": rate}
                for ip, rate in rates.items()
            ]
            made = self.process.config(entries)
            [cluster] = made["virtual_clusters"]
            cluster["connections"] = {"max_connections_per_ip_overrides": dict(limits.counts)}
            listener = {
                "max_connections": limits.listener_count,
                "max_connection_creation_rate": limits.listener_rate,
            }
            given = {name: value for name, value in listener.items() if value is not None}
            cluster["listeners"][0]["connections"] = given
            self.process.write_text(json.dumps(made))
            _until_marked(self.target, banned)


def _until_marked(target: Target, banned: bool) -> None:
    """Wait until the marker is turned away, or is not."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        batch = connect(target, MARKER, 1).wait(all_are_reported)
        closed = batch.closed
        batch.leave()
        if bool(closed) == banned:
            return
        assert time.monotonic() < deadline, "what was set is not in force"
        time.sleep(0.05)


def both(stack: ExitStack) -> dict[str, Side]:
    """Both sides; the proxy's cluster is the broker's, by a listener that has no limits."""
    broker = stack.enter_context(Broker())
    return {"broker": broker, "proxy": stack.enter_context(Proxy(broker.cluster))}
