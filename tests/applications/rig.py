"""One run: a proxy, the applications behind it, what feeds them, and the restarts."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from kafka.admin import KafkaAdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from tests.applications.committed import Committed
from tests.applications.feeding import Feeder
from tests.applications.figures import Run
from tests.applications.polling import PollingClient, outage_s
from tests.applications.programs import (
    NUMBERS_PER_SECOND,
    TASKS,
    ApplicationFailed,
    Connect,
    Programs,
    Streams,
)
from tests.applications.restarting import Restart, RestartedProxy
from tests.integration.proxy_process import HOST
from tests.integration.topics import wait_until_known

PARTITIONS = 4
FIRST_AT_S = 8.0
EVERY_S = 12.0
"""Seconds from one restart to the next, and from the last one to the end of the feed; more until all is well again."""
STEADY_S = 4.0
"""All is well again when each poll has had its response for so many seconds."""

_GIVE_UP_S = 150.0
"""When no new record has come for so many seconds, those that are missing count as lost."""
_DOUBLES_S = 3.0
"""How many seconds the run waits for doubles, once all records are there."""

Say = Callable[[str], None]


class Applications:
    """Streams and Connect behind a proxy, and what they have written."""

    def __init__(self, stack: ExitStack, programs: Programs, proxy: str, cluster: KafkaCluster, name: str) -> None:
        self.fed, counted, self._numbered = topics = [f"{name}-{topic}" for topic in ("fed", "counted", "numbered")]
        copies = min(3, len(cluster.node_ids))
        make_topics(cluster, topics, copies)
        self.streams = Streams(programs, proxy, f"{name}-streams", [self.fed, counted])
        self.connect = Connect(programs, proxy, f"{name}-connect", copies)
        for program in (*self.streams.programs, *self.connect.programs):
            stack.callback(program.close)
        self.by_streams, self.by_connect = (
            stack.enter_context(closing(Committed(cluster.bootstrap_servers, topic, PARTITIONS)))
            for topic in (counted, self._numbered)
        )

    def run(self, numbers: int) -> None:
        """Let each task of Connect write so many numbers, and wait until all instances and tasks run."""
        self.streams.wait_until_running()
        self.connect.write_numbers(self._numbered, numbers)
        self.by_connect.expected = {str(task): numbers for task in range(TASKS)}

    @property
    def done(self) -> bool:
        """Whether all records that were to be written are there."""
        return self.by_streams.done and self.by_connect.done

    def take(self) -> int:
        """Read on; return how many records came."""
        return self.by_streams.take() + self.by_connect.take()

    def failures(self) -> list[str]:
        """Threads that died and tasks that have failed."""
        return [*self.streams.failures(), *self.connect.failures()]


def make_topics(cluster: KafkaCluster, topics: Sequence[str], copies: int) -> None:
    """Topics that each node knows."""
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=copies) for topic in topics])
    for topic in topics:
        wait_until_known(cluster, topic, PARTITIONS)


class Rig:
    """A cluster, and runs in front of it, one after the other; `restarts` in each of them."""

    def __init__(self, cluster: KafkaCluster, restarts: int = 2, keep: Path | None = None, say: Say = print) -> None:
        self._cluster, self._restarts, self._keep, self._say = cluster, restarts, keep, say
        self._numbers = int((FIRST_AT_S + EVERY_S * restarts) * NUMBERS_PER_SECOND)

    def run(self, how: Restart) -> Run:
        """Restart the proxy in this way. Raises what keeps the run from coming to an end."""
        with ExitStack() as stack:
            name = f"{how}-{uuid4().hex[:6]}"
            folder = Path(tempfile.mkdtemp(prefix="kafka-throttle-applications-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            proxy = stack.enter_context(RestartedProxy(self._cluster))
            if self._keep is not None:
                stack.callback(self._keep_logs, name, folder, proxy)
            return self._run(stack, how, name, proxy, Programs(folder, self._say))

    def _run(self, stack: ExitStack, how: Restart, name: str, proxy: RestartedProxy, programs: Programs) -> Run:
        applications = Applications(stack, programs, proxy.bootstrap, self._cluster, name)
        applications.run(self._numbers)
        self._say(f"{name}: the applications run")
        polling = stack.enter_context(PollingClient(HOST, proxy.port))
        feeder = stack.enter_context(Feeder(proxy.bootstrap, applications.fed))
        restarts = self._restart(how, proxy, polling, applications)
        feeder.stop()
        applications.by_streams.expected = feeder.expected
        done_after_s = finish(applications)
        for words in (*feeder.errors[:3], *applications.failures()):
            self._say(f"{name}: {words}")
        bounds = [*(began_s for began_s, _ in restarts), time.monotonic()]
        return Run(
            restart=how,
            outages_s=[outage_s(polling.between(begin_s, end_s)) for begin_s, end_s in pairwise(bounds)],
            ends_s=[ended_s for _, ended_s in restarts],
            refused=sum(poll.failure is not None for poll in list(polling.polls)),
            producer_wait_s=feeder.longest_wait_s(),
            streams=applications.by_streams.account(),
            connect=applications.by_connect.account(),
            done_after_s=done_after_s,
            streams_fenced=applications.streams.fenced().total(),
            connect_fenced=applications.connect.fenced().total(),
            dead_threads=len(applications.streams.failures()),
            failed_tasks=len(applications.connect.failures()),
        )

    def _restart(
        self, how: Restart, proxy: RestartedProxy, polling: PollingClient, applications: Applications
    ) -> list[tuple[float, float]]:
        """When each restart began, and how long it waited for the end of the old process."""
        done: list[tuple[float, float]] = []
        began_s = time.monotonic() + FIRST_AT_S - EVERY_S
        for number in range(1, self._restarts + 1):
            read_until(began_s + EVERY_S, polling, applications)
            began_s = time.monotonic()
            done.append((began_s, proxy.restart(how)))
            self._say(f"{how} number {number}: the old process ended after {done[-1][1]:.1f} s")
        read_until(began_s + EVERY_S, polling, applications)
        return done

    def _keep_logs(self, name: str, folder: Path, proxy: RestartedProxy) -> None:
        assert self._keep is not None
        kept = self._keep / name
        kept.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            shutil.copy(log, kept)
        (kept / "proxy.log").write_text(proxy.tail(100_000))


def read_until(at_s: float, polling: PollingClient, applications: Applications) -> None:
    """Wait until this moment, and until all is well again. Raises ApplicationFailed after some minutes."""
    while time.monotonic() < at_s or not polling.is_steady(STEADY_S):
        if time.monotonic() > at_s + _GIVE_UP_S:
            raise ApplicationFailed(f"the polling client has no steady response: {polling.polls[-1].failure}")
        applications.take()


def finish(applications: Applications) -> float:
    """Read until all records are there, or none comes any more; return the seconds. Then wait for doubles."""
    began_s = came_s = time.monotonic()
    while not applications.done and time.monotonic() - came_s < _GIVE_UP_S:
        if applications.take():
            came_s = time.monotonic()
    done_after_s = time.monotonic() - began_s
    read_on_until_s = time.monotonic() + _DOUBLES_S
    while time.monotonic() < read_on_until_s:
        applications.take()
    return done_after_s
