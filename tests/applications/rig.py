"""One run: a proxy, the applications behind it, what feeds them, and the restarts."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from tests.applications.accounts import Account, Written
from tests.applications.feeding import Feeder
from tests.applications.figures import Run
from tests.applications.polling import PollingClient, outage_s
from tests.applications.programs import (
    NUMBERS_PER_SECOND,
    TASKS,
    ApplicationFailed,
    Connect,
    Program,
    Programs,
    Streams,
)
from tests.applications.restarting import Restart, RestartedProxy
from tests.integration.proxy_process import HOST
from tests.integration.topics import wait_until_known

PARTITIONS = 4
FIRST_AT_S = 8.0
EVERY_S = 12.0
"""From one restart to the next, and from the last one to the end of the feed, or longer: until all is well again."""
STEADY_S = 4.0
"""For so long the polling client has a response each time: then all is well again."""

_GIVE_UP_S = 150.0
"""Nothing new for so long: what is missing does not come any more."""
_DOUBLES_S = 3.0
"""How long doubles are waited for, once everything is there."""
_MANY = 1000

Say = Callable[[str], None]


class Application:
    """What an application is to write into a topic, and what it has written, as the cluster has it committed."""

    def __init__(self, bootstrap: str, topic: str, expected: Mapping[str, int]) -> None:
        self.expected = expected
        """How many records of each key."""
        self._written = Written()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 200,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    @property
    def done(self) -> bool:
        """Everything is there."""
        return self._written.count >= sum(self.expected.values())

    def take(self, timeout_s: float = 0.2) -> int:
        """Read on; return how many records came."""
        messages = [one for one in self._consumer.consume(_MANY, timeout_s) if one.error() is None]
        self._written.take((one.key().decode(), one.value().decode()) for one in messages)
        return len(messages)

    def account(self) -> Account:
        """Of all that was read."""
        return self._written.account(self.expected)

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()


class Rig:
    """A cluster, and runs in front of it, one after the other; `restarts` in each of them."""

    def __init__(self, cluster: KafkaCluster, restarts: int = 2, keep: Path | None = None, say: Say = print) -> None:
        self._cluster, self._restarts, self._keep, self._say = cluster, restarts, keep, say
        self._copies = min(3, len(cluster.node_ids))
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
        fed, counted, numbered = (f"{name}-{topic}" for topic in ("fed", "counted", "numbered"))
        self._make_topics([fed, counted, numbered])
        streams = Streams(programs, proxy.bootstrap, f"{name}-streams", [fed, counted])
        self._close_at_end(stack, streams.programs)
        connect = Connect(programs, proxy.bootstrap, f"{name}-connect", self._copies)
        self._close_at_end(stack, connect.programs)
        servers = self._cluster.bootstrap_servers
        of_streams = stack.enter_context(closing(Application(servers, counted, {})))
        numbers_of = {str(task): self._numbers for task in range(TASKS)}
        of_connect = stack.enter_context(closing(Application(servers, numbered, numbers_of)))
        streams.wait_until_running()
        connect.write_numbers(numbered, self._numbers)
        self._say(f"{name}: the applications run")
        polling = stack.enter_context(PollingClient(HOST, proxy.port))
        feeder = stack.enter_context(Feeder(proxy.bootstrap, fed))
        restarts = self._restart(how, proxy, polling, [of_streams, of_connect])
        feeder.stop()
        of_streams.expected = feeder.expected
        done_after_s = self._finish([of_streams, of_connect])
        bounds = [*(began_s for began_s, _ in restarts), time.monotonic()]
        for words in (*feeder.errors[:3], *streams.failures(), *connect.failures()):
            self._say(f"{name}: {words}")
        return Run(
            restart=how,
            outages_s=[outage_s(polling.between(begin_s, end_s)) for begin_s, end_s in pairwise(bounds)],
            ends_s=[ended_s for _, ended_s in restarts],
            refused=sum(poll.failure is not None for poll in list(polling.polls)),
            producer_wait_s=feeder.longest_wait_s(),
            streams=of_streams.account(),
            connect=of_connect.account(),
            done_after_s=done_after_s,
            streams_fenced=streams.fenced().total(),
            connect_fenced=connect.fenced().total(),
            dead_threads=len(streams.failures()),
            failed_tasks=len(connect.failures()),
        )

    def _restart(
        self, how: Restart, proxy: RestartedProxy, polling: PollingClient, applications: Sequence[Application]
    ) -> list[tuple[float, float]]:
        """When each restart began, and how long it waited for the end of the old process."""
        done: list[tuple[float, float]] = []
        began_s = time.monotonic() + FIRST_AT_S - EVERY_S
        for number in range(1, self._restarts + 1):
            self._read_until(began_s + EVERY_S, polling, applications)
            began_s = time.monotonic()
            done.append((began_s, proxy.restart(how)))
            self._say(f"{how} number {number}: the old process ended after {done[-1][1]:.1f} s")
        self._read_until(began_s + EVERY_S, polling, applications)
        return done

    @staticmethod
    def _read_until(at_s: float, polling: PollingClient, applications: Sequence[Application]) -> None:
        """Until this moment, or longer: until all is well again. Raises ApplicationFailed after some minutes."""
        while time.monotonic() < at_s or not polling.is_steady(STEADY_S):
            if time.monotonic() > at_s + _GIVE_UP_S:
                raise ApplicationFailed(f"the polling client has no steady response: {polling.polls[-1].failure}")
            for application in applications:
                application.take()

    def _finish(self, applications: Sequence[Application]) -> float:
        """Read on until everything is there, or nothing comes any more; seconds until then."""
        began_s = came_s = time.monotonic()
        while not all(application.done for application in applications):
            if sum(application.take() for application in applications):
                came_s = time.monotonic()
            elif time.monotonic() - came_s > _GIVE_UP_S:
                break
        done_after_s = time.monotonic() - began_s
        until_s = time.monotonic() + _DOUBLES_S
        while time.monotonic() < until_s:
            for application in applications:
                application.take()
        return done_after_s

    def _make_topics(self, topics: Sequence[str]) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers)) as admin:
            admin.create_topics(
                [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=self._copies) for topic in topics]
            )
        for topic in topics:
            wait_until_known(self._cluster, topic, PARTITIONS)

    @staticmethod
    def _close_at_end(stack: ExitStack, programs: Sequence[Program]) -> None:
        for program in programs:
            stack.callback(program.close)

    def _keep_logs(self, name: str, folder: Path, proxy: RestartedProxy) -> None:
        assert self._keep is not None
        kept = self._keep / name
        kept.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            shutil.copy(log, kept)
        (kept / "proxy.log").write_text(proxy.tail(100_000))
