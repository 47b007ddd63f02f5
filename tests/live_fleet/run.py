"""One scenario on a rig: the same clients at the same time on all sides, and what arrived in each second."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from kazoo.exceptions import KazooException, NoNodeError

from kafka_throttle.common.child_process import die_with_parent
from tests.integration.proxy_process import TIMEOUT_S, ProxyFailed
from tests.live_fleet.figures import by_second
from tests.live_fleet.load import BATCH_BYTES, VALUE_BYTES
from tests.live_fleet.rig import BROKER, FLEET, SIDES, STORED, Rig
from tests.live_fleet.scenarios import Event, LoadClient, Scenario
from tests.support.places import ROOT

_SAMPLE_S = 0.2
_FLEET_SERIES = "kafka_throttle_fleet"

Samples = list[tuple[float, float]]
"""When, monotonic s, and the total until then."""


class LoadProcess:
    """The clients of one side and kind that are written in Python; see load.py."""

    def __init__(self, samples: Callable[[str], Samples]) -> None:
        self._samples = samples
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.live_fleet.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            preexec_fn=die_with_parent,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def order(self, **order: Any) -> None:
        """One line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """RuntimeError when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError("a load has ended")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            for name, total in report["bytes"].items():
                self._samples(name).append((report["at"], total))


class Run:
    """One scenario; `go` returns what was found as plain data, whose form is in docs/proofs/testing.md."""

    def __init__(self, rig: Rig, scenario: Scenario, say: Callable[[str], None] = lambda line: None) -> None:
        self._rig, self._scenario, self._say = rig, scenario, say
        self._entity = f"{scenario.name.replace(' ', '-').replace(',', '')}-{uuid4().hex[:4]}"
        self._instances = rig.instances[: scenario.instances]
        self._loads: dict[tuple[str, str], LoadProcess] = {}
        self._java: list[subprocess.Popen[bytes]] = []
        self._received: dict[tuple[str, str], Samples] = defaultdict(list)
        """By side and client, as the client says; what is written is seen at the node, too."""
        self._written: dict[tuple[str, str], Samples] = defaultdict(list)
        self._carried: dict[tuple[str, str, str], Samples] = defaultdict(list)
        self._metrics: list[dict[str, Any]] = []
        self._claims: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._began = 0.0
        self._failure: BaseException | None = None

    def go(self) -> dict[str, Any]:
        """Raises what has gone wrong."""
        scenario, rig = self._scenario, self._rig
        rig.run_instances(scenario.instances, fleet=scenario.fleet)
        topics = list(self._topics())
        if topics:
            rig.make_topics(topics)
        rig.set_broker_quota(self._client_id(BROKER))
        with ExitStack() as stack:
            for side in SIDES:
                self._open(side, scenario.open_first or tuple(range(1, scenario.instances + 1)))
                for kind in scenario.kinds:
                    self._loads[side, kind] = load = LoadProcess(lambda name, side=side: self._received[side, name])
                    stack.callback(load.close)
            stack.callback(self._end_java)
            watches = [self._watch_loads, self._watch_fleet]
            if scenario.fleet:
                client = stack.enter_context(rig.ensemble.client())
                watches.append(lambda now: self._watch_claims(now, client))
            self._began = time.monotonic()
            stack.enter_context(self._watching(watches))
            self._start_clients()
            self._act()
        if self._failure is not None:
            raise self._failure
        if topics:
            rig.delete_topics(topics)
        return self._found()

    # --------------------------------------------------------------- clients

    def _start_clients(self) -> None:
        """The second 0 of the run is when the slowest, Java's, has begun. A client that is led is waited for."""
        for client in sorted(self._scenario.clients, key=lambda client: client.library != "java"):
            if client.at is not None:
                self._open(FLEET, (client.at,))
            for side in SIDES:
                self._start(side, client)
            if client.library == "java" or client.at is not None:
                for side in SIDES:
                    self._wait_for_bytes(side, client)
            if client.library == "java":
                self._began = time.monotonic()

    def _start(self, side: str, client: LoadClient) -> None:
        topic = self._topic(side, client)
        bootstrap, client_id = self._rig.bootstrap(side), self._client_id(side)
        if client.library == "java":
            settings = {
                "client.id": client_id,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": BATCH_BYTES,
                "buffer.memory": 8 * BATCH_BYTES,
                "max.block.ms": 1_000_000,
                "delivery.timeout.ms": 1_000_000,
                "reconnect.backoff.max.ms": 500,
            }
            given = [f"{key}={value}" for key, value in settings.items()]
            command = self._rig.cluster.tool_command(
                "kafka-producer-perf-test",
                *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "100000000"),
                *("--throughput", "-1", "--record-size", str(VALUE_BYTES), "--command-property", *given),
            )
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
            self._java.append(process)
            return
        order = {"library": client.library, "kind": client.kind, "topic": topic, "rate": self._rate(client.demand)}
        self._loads[side, client.kind].order(start=client.name, bootstrap=bootstrap, client_id=client_id, **order)

    def _rate(self, demand: float | None) -> float | None:
        return None if demand is None else demand * self._rig.limit

    def _wait_for_bytes(self, side: str, client: LoadClient) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        samples = self._written if client.kind == "produce" else self._received
        while not any(total for _, total in samples[side, client.name]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{client.name} gets nothing through {side}")
            time.sleep(0.05)

    def _end_java(self) -> None:
        for process in self._java:
            process.kill()
            process.wait()

    def _client_id(self, side: str) -> str:
        return f"{self._entity}-{side}"

    def _topic(self, side: str, client: LoadClient) -> str:
        return f"{self._client_id(side)}-{client.name}".replace(" ", "-") if client.kind == "produce" else STORED

    def _topics(self) -> Iterator[str]:
        for side in SIDES:
            for client in self._scenario.clients:
                if client.kind == "produce":
                    yield self._topic(side, client)

    # ---------------------------------------------------------------- events

    def _act(self) -> None:
        for event in self._scenario.events:
            self._sleep_until(event.at)
            self._say(f"{event.at:4.0f} s: {event.words}")
            at = time.monotonic() - self._began
            self._carry_out(event)
            self._events.append({**vars(event), "words": event.words, "at": at, "planned_at": event.at})
        self._sleep_until(self._scenario.seconds + 2 * _SAMPLE_S)

    def _sleep_until(self, second: float) -> None:
        while (left := self._began + second - time.monotonic()) > 0 and self._failure is None:
            for load in self._loads.values():
                load.check()
            time.sleep(min(left, 0.2))
        if self._failure is not None:
            raise self._failure

    def _carry_out(self, event: Event) -> None:
        chosen = [self._rig.instances[number - 1] for number in event.instances]
        if event.action == "open":
            for side in SIDES:
                self._open(side, event.instances)
                self._rig.balancer.cut_connections(side)
        elif event.action == "demand":
            [client] = [client for client in self._scenario.clients if client.name == event.client]
            for side in SIDES:
                self._loads[side, client.kind].order(demand=[client.name, self._rate(event.rate)])
        else:
            for instance in chosen:
                {"kill": instance.crash, "start": instance.launch, "cut": instance.cut_off, "join": instance.join}[
                    event.action
                ]()

    def _open(self, side: str, numbers: tuple[int, ...]) -> None:
        rig = self._rig
        fleet = [rig.instances[number - 1].name for number in numbers]
        rig.balancer.open(side, {FLEET: fleet, BROKER: ["node"]}.get(side, [rig.single.name]))

    # ------------------------------------------------------------- observing

    @contextlib.contextmanager
    def _watching(self, watches: Sequence[Callable[[float], None]]) -> Iterator[None]:
        done = threading.Event()
        threads = [threading.Thread(target=self._keep_watching, args=(watch, done)) for watch in watches]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def _keep_watching(self, watch: Callable[[float], None], done: threading.Event) -> None:
        try:
            while not done.is_set():
                watch(time.monotonic())
                done.wait(_SAMPLE_S)
        except BaseException as error:
            self._failure = self._failure or error

    def _watch_loads(self, now: float) -> None:
        for side in SIDES:
            for client in self._scenario.clients:
                if client.kind == "produce":
                    written = self._rig.written_bytes(self._topic(side, client))
                    self._written[side, client.name].append((time.monotonic(), written))

    def _watch_fleet(self, now: float) -> None:
        for (side, server), totals in self._rig.balancer.carried_bytes().items():
            for way, total in zip(("to", "from"), totals, strict=True):
                self._carried[side, server, way].append((now, total))
        if self._metrics and now - self._metrics[-1]["at"] < 1:
            return
        for instance in self._instances:
            with contextlib.suppress(ProxyFailed):  # it was killed
                series = {
                    f"{name}{{{','.join(map('='.join, labels.items()))}}}": value
                    for name, labels, value in instance.series()
                    if name.startswith(_FLEET_SERIES)
                }
                self._metrics.append({"at": now, "instance": instance.name, **series})

    def _watch_claims(self, now: float, client: Any) -> None:
        """What the members have published of the entity, as anybody can read it in ZooKeeper."""
        of_member = {}
        try:
            for name in client.get_children(self._rig.members_path):
                with contextlib.suppress(NoNodeError):  # it has left meanwhile
                    of_member[name] = client.get(f"{self._rig.members_path}/{name}")[0]
        except KazooException:
            return  # this connection was lost, and not that of a member: the next look will do
        entries = {name: json.loads(content)["keys"] if content else [] for name, content in of_member.items()}
        own = [
            {"member": name, "quota": str(key[3]), "claim": claim, "demand": demand}
            for name, keys in sorted(entries.items())
            for key, claim, demand, *_ in keys
            if self._client_id(FLEET) in key
        ]
        self._claims.append({"at": now, "members": len(of_member), "claims": own})

    # -------------------------------------------------------------- the find

    def _found(self) -> dict[str, Any]:
        scenario = self._scenario
        return {
            **scenario.as_json(),
            "kinds": scenario.kinds,
            "limit": self._rig.limit,
            "fetch": self._rig.fetch,
            "value_bytes": VALUE_BYTES,
            "session_timeout_ms": 6000,
            "events": self._events,
            "sides": {side: {kind: dict(self._by_client(side, kind)) for kind in scenario.kinds} for side in SIDES},
            "carried": {
                f"{side} {server}": {way: self._series(self._carried[side, server, way]) for way in ("to", "from")}
                for side, server in sorted({key[:2] for key in self._carried})
            },
            "metrics": self._since_began(self._metrics),
            "claims": self._since_began(self._claims),
        }

    def _since_began(self, observed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, "at": round(one["at"] - self._began, 2)} for one in observed if one["at"] >= self._began]

    def _by_client(self, side: str, kind: str) -> Iterator[tuple[str, list[int]]]:
        samples: Mapping[tuple[str, str], Samples] = self._written if kind == "produce" else self._received
        for client in self._scenario.clients:
            if client.kind == kind:
                yield client.name, self._series(samples[side, client.name])

    def _series(self, samples: Samples) -> list[int]:
        since_began = [(at - self._began, total) for at, total in samples] or [(0.0, 0)]
        return [round(value) for value in by_second(since_began, self._scenario.seconds)]
