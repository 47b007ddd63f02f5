"""What a fleet costs: three instances, each entity at two of them and throttled there, in a fleet and without one.

Without a fleet each instance has half the limit, so that both have the same number of requests to carry.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka_throttle.common.child_process import die_with_parent
from tests.live_fleet.network import processor_time_s
from tests.live_fleet.rig import INSTANCES, LEADER, Rig
from tests.support.places import ROOT

_REQUEST_BYTES = 600
_RATE = 600
_SETTLE_S = 40
_MEASURED_S = 30
_OPEN_S = 120


class Entities:
    """The process of entities.py."""

    def __init__(self, rig: Rig, count: int) -> None:
        self.connections = self.responses = 0
        addresses = [f"{instance.host}:{instance.node_ports[LEADER]}" for instance in rig.instances]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.live_fleet.entities", str(count), str(_REQUEST_BYTES), *addresses],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            preexec_fn=die_with_parent,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, connections: int) -> None:
        """Until so many connections have been made."""
        deadline = time.monotonic() + _OPEN_S
        while self.connections < connections:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.connections} of {connections} connections")
            time.sleep(0.1)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            self.connections, self.responses = found["connections"], found["responses"]


def measure(rig: Rig, entities: int, say: Callable[[str], None]) -> dict[str, Any]:
    """CPU of each instance in parts of one core, requests/s, and what is written to ZooKeeper."""
    found: dict[str, Any] = {"entities": entities}
    for name, fleet, rate in (("without", False, _RATE // 2), ("fleet", True, _RATE)):
        say(f"{entities} entities, {name}")
        quotas = [{"default_client_id": True, "producer_byte_rate": rate}]
        rig.run_instances(INSTANCES, fleet=fleet, quotas=quotas)
        with contextlib.closing(Entities(rig, entities)) as load:
            load.wait_for(2 * entities)
            time.sleep(_SETTLE_S)
            found[name] = _measured(rig, load, fleet)
        say(json.dumps(found[name]))
    return found


def _measured(rig: Rig, load: Entities, fleet: bool) -> dict[str, Any]:
    with _documents(rig) if fleet else contextlib.nullcontext() as documents:
        before = [processor_time_s(instance.pid) for instance in rig.instances]
        responses, began, written = load.responses, time.monotonic(), documents() if documents else {}
        time.sleep(_MEASURED_S)
        seconds = time.monotonic() - began
        after = [processor_time_s(instance.pid) for instance in rig.instances]
        found: dict[str, Any] = {
            "cpu": [round((b - a) / seconds, 3) for a, b in zip(before, after, strict=True)],
            "requests_per_second": round((load.responses - responses) / seconds, 1),
        }
        if documents:
            now = documents()
            writes = sum(now[name][0] - written.get(name, (0, 0))[0] for name in now)
            found["zookeeper"] = {
                "writes_per_second": round(writes / seconds, 2),
                "document_bytes": [size for _, size in now.values()],
            }
    return found


@contextlib.contextmanager
def _documents(rig: Rig) -> Iterator[Callable[[], Mapping[str, tuple[int, int]]]]:
    """Of each member how often its znode was written, and how long it is."""
    with rig.ensemble.client() as client:

        def look() -> Mapping[str, tuple[int, int]]:
            found = {}
            for name in client.get_children(rig.members_path):
                content, stat = client.get(f"{rig.members_path}/{name}")
                found[name] = stat.version, len(content)
            return found

        yield look
