"""What goes wrong during a round: three threads that break wires, nodes and the configuration, each in its own rhythm.

Their choices follow from the seed; when they are made does not. Each begins with one of every kind, in random order.
"""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from demo.kafka_cluster import KafkaCluster
from tests.conservation.clients import Child
from tests.conservation.wire import REQUESTS, RESPONSES
from tests.integration.proxy_process import ProxyProcess

FRONT, BACK = "front", "back"
APIS = {"produce": 0, "fetch": 1}

_IN_SYNC_S = 180.0
_END_S = 400.0
_RELOAD_S = 60.0
_PREFERRED = 0


class FaultFailed(RuntimeError):
    """A fault could not be brought about, or has not passed: the checker is at its end, or the cluster."""


class Faults:
    """Brings about faults until it is stopped. `counts` has how many of each kind have happened."""

    def __init__(self, name: str, seed: int, kinds: Mapping[str, Callable[[], bool]]) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.violations: list[str] = []
        self.random = random.Random(f"{seed} {name}")
        self.done = threading.Event()
        self._kinds = kinds
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def missing(self) -> set[str]:
        """The kinds that have not happened yet."""
        return self._kinds.keys() - self.counts.keys()

    def pause(self) -> None:
        """Let some time pass between two faults."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the present fault pass, then no more. Raises what has stopped it before."""
        self.done.set()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise FaultFailed(f"{self.name}: a fault does not end")
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            for kind in self._order():
                if self.done.is_set():
                    return
                if self._kinds[kind]():
                    self.counts[kind] += 1
                self.pause()
        except BaseException as error:
            self.error = error

    def _order(self) -> Iterator[str]:
        while True:
            kinds = sorted(self.missing) or sorted(self._kinds)
            self.random.shuffle(kinds)
            yield from kinds if self.missing else kinds[:1]


# --------------------------------------------------------------------- wires


class WireFaults(Faults):
    """Resets within requests and answers of producers and consumers, and connections of which one half is broken."""

    def __init__(self, wire: Child, seed: int, links: Sequence[str]) -> None:
        kinds: dict[str, Callable[[], bool]] = {
            f"reset in a {api} {way[:-1]} ({link})": self._order_of(
                fault="reset", link=link, way=way, api=key, fraction=None
            )
            for link in links
            for way in (REQUESTS, RESPONSES)
            for api, key in APIS.items()
        }
        for link in links:
            kinds[f"all connections reset ({link})"] = self._order_of(fault="reset_all", link=link)
            for way in (REQUESTS, RESPONSES):
                for fault in ("half_broken", "half_closed", "stalled"):
                    name = f"{way[:-1]} side {fault.replace('_', ' ')} ({link})"
                    kinds[name] = self._order_of(fault=fault, link=link, way=way, seconds=None)
        super().__init__("wire faults", seed, kinds)
        self._wire = wire

    def pause(self) -> None:
        self.done.wait(self.random.uniform(0.1, 0.8))

    def _order_of(self, **order: Any) -> Callable[[], bool]:
        def act() -> bool:
            if "fraction" in order:
                order["fraction"] = self.random.choice([0.0, self.random.random(), 0.999])
            if "seconds" in order:
                order["seconds"] = self.random.uniform(0.5, 6)
            self._wire.order(**order)
            hit: int = self._wire.news("hit", 90)["hit"]
            return hit > 0

        return act


# --------------------------------------------------------------------- nodes


class NodeFaults(Faults):
    """Nodes killed, stopped and frozen, one at a time, and partitions that are led elsewhere."""

    def __init__(
        self, cluster: KafkaCluster, topics: Mapping[str, int], seed: int, calm_s: tuple[float, float]
    ) -> None:
        kinds = {
            "node killed and restarted": self._kill,
            "node stopped and restarted": self._stop,
            "node frozen": self._freeze,
            "leaders moved": self._move,
        }
        super().__init__("node faults", seed, kinds)
        self._cluster = cluster
        self._topics = topics
        self._calm_s = calm_s

    def pause(self) -> None:
        wait_in_sync(self._cluster, self._topics)
        self.done.wait(self.random.uniform(*self._calm_s))

    def _kill(self) -> bool:
        victim = self._victim()
        self._cluster.kill(victim)
        self.done.wait(self.random.uniform(0.5, 4))
        self._cluster.restart(victim)
        return True

    def _stop(self) -> bool:
        victim = self._victim()
        self._cluster.stop(victim)
        self.done.wait(self.random.uniform(0.5, 4))
        self._cluster.restart(victim)
        return True

    def _freeze(self) -> bool:
        victim = self._victim()
        self._cluster.freeze(victim)
        time.sleep(self.random.uniform(1, 9))  # on both sides of what the cluster's patience is
        self._cluster.thaw(victim)
        return True

    def _move(self) -> bool:
        orders = {
            TopicPartition(topic, partition): self.random.sample(self._cluster.node_ids, len(self._cluster.node_ids))
            for topic, count in self._topics.items()
            for partition in range(count)
        }

        def moved() -> bool:
            with closing(_admin(self._cluster)) as admin:
                admin.alter_partition_reassignments(orders)
                return True

        def elected() -> bool:
            with closing(_admin(self._cluster)) as admin:
                if admin.list_partition_reassignments():
                    return False
                admin.elect_leaders(_PREFERRED, list(orders), raise_errors=False)
                return True

        _until(moved, _IN_SYNC_S, "the reassignment to be taken")
        _until(elected, _IN_SYNC_S, "the reassignment")
        return True

    def _victim(self) -> int:
        return self.random.choice(self._cluster.node_ids)


def _admin(cluster: KafkaCluster) -> KafkaAdminClient:
    return KafkaAdminClient(
        bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=10_000, bootstrap_timeout_ms=10_000
    )


def wait_in_sync(cluster: KafkaCluster, topics: Mapping[str, int]) -> None:
    """Return when every node holds every partition of the topics. Raises FaultFailed after three minutes."""

    def in_sync() -> bool:
        with closing(_admin(cluster)) as admin:
            described = admin.describe_topics(list(topics))
            partitions = [found for topic in described for found in topic["partitions"]]
            return len(partitions) == sum(topics.values()) and all(
                len(found["isr_nodes"]) == len(cluster.node_ids) and found["leader_id"] > 0 for found in partitions
            )

    _until(in_sync, _IN_SYNC_S, "all copies to be in sync")


def _until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition; an error of Kafka's is a no."""
    deadline = time.monotonic() + timeout_s
    problem: Exception | None = None
    while True:
        try:
            if condition():
                return
        except (KafkaError, OSError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise FaultFailed(f"waited {timeout_s:.0f} s for {what}; last problem: {problem!r}")
        time.sleep(0.2)


# ------------------------------------------------------------- configuration

GENEROUS = {"default_client_id": True, "producer_byte_rate": 1 << 40, "consumer_byte_rate": 1 << 40}
"""Never exceeded, so that everybody is measured all the time."""


class Reloads(Faults):
    """Quotas that come and go, and files with mistakes, which must change nothing."""

    def __init__(self, proxy: ProxyProcess, seed: int, bytes_per_second: float) -> None:
        kinds = {
            "quotas tightened and lifted": self._tighten,
            "bad configuration refused": self._spoil,
            "reload by SIGHUP": self._hang_up,
        }
        super().__init__("reloads", seed, kinds)
        self._proxy = proxy
        self._rate = bytes_per_second

    def pause(self) -> None:
        self.done.wait(self.random.uniform(1, 4))

    def _tighten(self) -> bool:
        entity: dict[str, Any] = self.random.choice(
            [{"default_client_id": True}, {"user": "ANONYMOUS"}, {"user": "ANONYMOUS", "default_client_id": True}]
        )
        # Ten seconds' worth may be used at once, so that a twentieth binds after half a second.
        rate = max(1, int(self._rate * self.random.uniform(0.01, 0.05)))
        rates = {"producer_byte_rate": rate, "consumer_byte_rate": rate}
        kept = [GENEROUS] if "user" in entity else []
        self._reload([*kept, {**entity, **rates}])
        self.done.wait(self.random.uniform(2, 5))
        self._reload([GENEROUS])
        # On a slow machine, or while nodes are gone, clients may use too little to be throttled: then it comes again.
        return all(self._proxy.metric("throttles_total", quota_type=name) >= 1 for name in ("produce", "fetch"))

    def _spoil(self) -> bool:
        config = self._proxy.config([GENEROUS])
        quota = {"default_client_id": True, "producer_byte_rate": 1}
        text = self.random.choice(
            [
                json.dumps(self._proxy.config([{**quota, "producer_byte_rate": -1}])),
                json.dumps(self._proxy.config([quota, quota])),
                json.dumps({**config, "quotas": [quota]}),
                json.dumps(self._proxy.config([quota]))[:-20],
                "",
                "virtual_clusters: [",
            ]
        )
        self._expect("rejected", lambda: self._proxy.write_text(text), "a bad file")
        self._reload([GENEROUS])
        return True

    def _hang_up(self) -> bool:
        self._expect("applied", lambda: os.kill(self._proxy.pid, signal.SIGHUP), "SIGHUP")
        return True

    def _reload(self, quotas: list[dict[str, Any]]) -> None:
        self._expect("applied", lambda: self._proxy.write_config(quotas), "a good file")

    def _expect(self, result: str, act: Callable[[], None], what: str) -> None:
        before = self._results()
        act()
        deadline = time.monotonic() + _RELOAD_S
        while (after := self._results()) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        if after != {**before, result: before[result] + 1}:
            self.violations.append(f"reload: {what} should be {result}: {before} before, {after} after")

    def _results(self) -> dict[str, float]:
        return {result: self._proxy.metric("config_reloads_total", result=result) for result in ("applied", "rejected")}
