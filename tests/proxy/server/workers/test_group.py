"""Workers that hang or end at a bad moment, over real links: they are replaced, left out or killed, each once."""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kafka_throttle.proxy.config.load import config_of
from kafka_throttle.proxy.observe.merged_metrics import Family
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.passed_sockets import PassedSockets
from kafka_throttle.proxy.server.workers import group
from kafka_throttle.proxy.server.workers.forker import Forked
from kafka_throttle.proxy.server.workers.group import NotStarted, Workers
from kafka_throttle.proxy.server.workers.link import Link
from kafka_throttle.proxy.server.workers.supervisor import Supervisor
from kafka_throttle.proxy.server.workers.worker import Beginning, WorkerProcess
from tests.fakes.clock import FakeClock
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

OLD, NEW = "old", "new"
"""Configurations: the workers only compare them."""


class Worker:
    """The process of a worker. `on` has what it does for a question, by its name; without that it answers None."""

    def __init__(self, number, sock):
        self.number = number
        self.on = {}
        self.asked = []
        self.beginning = None
        questions = ("serve", "apply", "stop", "metrics", "pulse")
        self.link = Link(
            sock,
            {"begin": self._begin, "end": lambda: None, "supply": lambda *_: None},
            {what: self._for(what) for what in questions},
        )

    def _begin(self, beginning):
        self.beginning = beginning

    def _for(self, what):
        async def answer(*args):
            self.asked.append((what, *args))
            return await self.on[what]() if what in self.on else None

        return answer

    async def hang(self):
        await asyncio.Event().wait()

    async def end(self):
        self.link.close()


class Processes:
    """In place of the process that forks workers. `prepare` is called with each new worker."""

    def __init__(self, monkeypatch):
        self.workers = []
        self.killed = []
        self.prepare = lambda worker: None
        self.ended = self.lost = lambda *_: None
        self._running = []
        monkeypatch.setattr("os.kill", self._kill)

    def watch(self):
        """As the real one."""

    close_listening = close = watch

    async def fork(self, number):
        ours, theirs = socket.socketpair()
        worker = Worker(number, theirs)
        self.prepare(worker)
        self.workers.append(worker)
        pid = len(self.workers)
        await worker.link.open()
        self._running.append(asyncio.create_task(self._run(pid, worker)))
        return Forked(pid, ours)

    async def _run(self, pid, worker):
        await worker.link.run()
        self.ended(pid, 0)

    def _kill(self, pid, number):
        assert number == signal.SIGKILL
        self.killed.append(pid)
        self.workers[pid - 1].link.close()

    async def end(self):
        for worker in self.workers:
            worker.link.close()
        await asyncio.gather(*self._running)


@pytest.fixture
async def processes(monkeypatch):
    made = Processes(monkeypatch)
    yield made
    await made.end()


class Group:
    """Two workers that have been started with the configuration `config`."""

    def __init__(self, processes, count=2):
        self.config = OLD
        self.ended = []
        self.metrics = Metrics(CollectorRegistry())
        self.workers = Workers(
            count,
            processes,
            lambda number: Beginning(self.config, {}),
            lambda number: self.config,
            {},
            self.ended.append,
            self.metrics,
        )

    def serving(self):
        return [worker.number for worker in self.workers.running if worker.is_serving]

    def restarts(self):
        return self.metrics.worker_restarts._value.get()

    async def replacing(self):
        """Wait until no worker is being replaced."""
        tasks = self.workers._tasks._tasks
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(task for task in tasks if "_replace" in str(task.get_coro())))


async def refuse():
    raise ValueError("not this one")


async def refuse_to_fork():
    raise OSError("no more processes")


async def test_an_exit_that_is_reported_late_is_of_no_worker(processes, monkeypatch):
    """Another process may have the same id later: it must not be taken for one that has ended."""
    monkeypatch.setattr(group, "_END_S", 0.0)
    monkeypatch.setattr(processes, "ended", lambda *_: None)
    pair = Group(processes)
    await pair.workers.start()
    late, processes.ended = processes.ended, lambda *_: None
    processes.workers[0].link.close()
    await until(lambda: len(processes.workers) == 3 and len(pair.serving()) == 2)
    late(1, 9)
    assert pair.workers._exits == {}
    late(1, 9)
    assert pair.workers._exits == {1: 9}
    await pair.workers.stop(0.1)


@pytest.mark.parametrize("fails", [Worker.hang, lambda worker: refuse()], ids=["hangs", "fails"])
async def test_a_worker_that_does_not_take_up_a_configuration_is_replaced_by_one_that_begins_with_it(
    processes, monkeypatch, fails
):
    monkeypatch.setattr(group, "_APPLY_S", 0.05)
    pair = Group(processes)
    await pair.workers.start()
    bad = processes.workers[0]
    bad.on["apply"] = lambda: fails(bad)
    pair.config = NEW
    await pair.workers.apply()
    await until(lambda: pair.restarts() == 1 and pair.serving() == [0, 1])
    assert processes.killed == [1]
    assert [worker.beginning.config for worker in processes.workers] == [OLD, OLD, NEW]
    assert ("apply", NEW) in processes.workers[1].asked
    await pair.workers.stop(TIMEOUT_S)


async def test_one_that_ends_when_it_takes_up_a_configuration_at_its_start_is_replaced_once(processes):
    single = Group(processes, count=1)
    await single.workers.start()

    def prepare(worker):
        async def changed():
            single.config = NEW

        if len(processes.workers) == 1:
            worker.on.update(serve=changed, apply=worker.end)

    processes.prepare = prepare
    processes.workers[0].link.close()
    await until(lambda: single.restarts() and single.serving())
    await single.replacing()
    assert len(processes.workers) == 3
    assert single.restarts() == 1
    await single.workers.stop(TIMEOUT_S)


async def test_a_worker_that_ends_while_all_start_is_a_problem_in_words(processes):
    processes.prepare = lambda worker: worker.on.update(serve=worker.end) if worker.number else None
    pair = Group(processes)
    with pytest.raises(NotStarted, match="worker 1 has ended before it served clients"):
        await pair.workers.start()
    await pair.workers.stop(0)


async def test_a_second_signal_ends_all_soon_though_a_worker_hangs(processes, monkeypatch):
    monkeypatch.setattr(group, "_AT_ONCE_S", 0.05)
    pair = Group(processes)
    await pair.workers.start()
    bad = processes.workers[1]
    bad.on["stop"] = bad.hang
    stopping = asyncio.create_task(pair.workers.stop(10 * TIMEOUT_S))
    await until(lambda: ("stop",) in bad.asked)
    assert not stopping.done()
    pair.workers.end()
    async with asyncio.timeout(TIMEOUT_S):
        await stopping
    assert processes.killed == [2], "the other one has ended by itself"


# --------------------------------------------------- workers that stand still


@pytest.fixture
def soon(monkeypatch):
    """Workers are asked often, and a silent one is given up soon."""
    for name in ("_STALLED_S", "_START_S", "_GIVEN_UP_S"):
        monkeypatch.setattr(group, name, 0.2)
    monkeypatch.setattr(group, "ANSWER_S", 0.02)
    monkeypatch.setattr(group, "_EVERY_S", 0.01)


async def test_a_worker_that_stands_still_is_ended_and_replaced(processes, soon):
    pair = Group(processes)
    await pair.workers.start()
    bad = processes.workers[1]
    bad.on["pulse"] = bad.hang
    await until(lambda: pair.restarts() == 1 and pair.serving() == [0, 1])
    assert processes.killed == [2]
    assert pair.workers.not_live() == []
    await pair.workers.stop(TIMEOUT_S)


async def test_one_that_stands_still_while_it_starts_has_not_started(processes, soon):
    processes.prepare = lambda worker: worker.on.update(serve=worker.hang, pulse=worker.hang)
    single = Group(processes, count=1)
    with pytest.raises(NotStarted, match="worker 0 has ended before it served clients"):
        await single.workers.start()
    assert processes.killed
    await single.workers.stop(0)


async def test_one_that_answers_with_an_error_does_not_stand_still(processes, soon):
    pair = Group(processes)
    await pair.workers.start()
    bad = processes.workers[0]
    bad.on["pulse"] = refuse
    await until(lambda: bad.asked.count(("pulse",)) > 50)
    assert processes.killed == []
    await pair.workers.stop(TIMEOUT_S)


async def test_time_in_which_the_supervisor_stood_still_itself_is_none_of_theirs(processes, monkeypatch):
    loop = asyncio.get_running_loop()
    time, stood_s = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: time() + stood_s[0])
    pair = Group(processes)
    await pair.workers.start()
    for number in range(5):
        looking = asyncio.create_task(pair.workers.look())
        await asyncio.sleep(0)
        stood_s[0] += 1_000
        await looking
        assert pair.workers.not_ready() == [], number
    assert processes.killed == []
    await pair.workers.stop(TIMEOUT_S)


async def test_the_proxy_is_not_live_while_a_worker_cannot_be_replaced(processes, soon):
    pair = Group(processes)
    await pair.workers.start()
    fork, processes.fork = processes.fork, lambda number: refuse_to_fork()
    processes.workers[1].link.close()
    await until(lambda: pair.workers.not_live())
    assert pair.workers.not_live() == ["worker 1 has not run for 0 s"]
    processes.fork = fork
    await until(lambda: pair.serving() == [0, 1])
    assert pair.workers.not_live() == []
    await pair.workers.stop(TIMEOUT_S)


# -------------------------------------------------------------------- supervisor


@pytest.fixture
def supervisor(processes):
    listener = {"name": "plain", "bind": "127.0.0.1", "port": 9092, "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["127.0.0.1:9"]}, "listeners": [listener]}
    config = config_of({"workers": 2, "virtual_clusters": [cluster], "drain": {"lame_duck_s": 0}})
    return Supervisor(Path("proxy.yaml"), config, FakeClock(), processes, PassedSockets())


async def test_a_worker_that_ends_during_a_scrape_is_counted_once(supervisor, processes):
    requests = ("kafka_throttle_requests_total", ())

    async def counted():
        return [Family("kafka_throttle_requests", "", "counter", {requests: 5.0})]

    release = asyncio.Event()

    async def later():
        await release.wait()
        return await counted()

    await supervisor._workers.start()
    quick, slow = processes.workers
    quick.on["metrics"] = slow.on["metrics"] = counted
    await supervisor._gather()
    slow.on["metrics"] = later
    scraping = asyncio.create_task(supervisor._gather())
    await until(lambda: slow.asked.count(("metrics",)) == 2 and quick.asked.count(("metrics",)) == 2)
    ended = supervisor._workers.running[0]
    await ended.link.ask("pulse")  # its answer to the scrape came before
    quick.link.close()
    await until(lambda: len(processes.workers) == 3)
    supervisor._take_metrics(ended, await counted())  # as if its answer had come with its end
    release.set()
    merged = await scraping
    [total] = [metric for metric in merged.collect() if metric.name == "kafka_throttle_requests"]
    assert [sample.value for sample in total.samples] == [10.0]
    await supervisor._workers.stop(TIMEOUT_S)


async def test_the_proxy_ends_with_status_1_if_a_worker_ends_while_it_starts(supervisor, processes):
    processes.prepare = lambda worker: worker.on.update(serve=worker.end) if worker.number else None
    supervisor.start = supervisor._workers.start
    async with asyncio.timeout(TIMEOUT_S):
        await supervisor.run()
    assert supervisor.status == 1
    assert all(worker.link.is_lost for worker in processes.workers)


# ------------------------------------------------------------------------ worker


async def test_a_worker_that_stops_does_so_to_the_end_if_its_supervisor_ends_meanwhile():
    ours, theirs = socket.socketpair()
    may_stop, begun = asyncio.Event(), asyncio.Event()
    stops = []

    class Begun:
        async def stop(self):
            begun.set()
            await may_stop.wait()
            stops.append(self)

    process = WorkerProcess(Path("proxy.yaml"), [], False, theirs)
    process._worker = Begun()
    running = asyncio.create_task(process.run())
    supervisor = Link(ours, {}, {})
    await supervisor.open()
    asking = asyncio.create_task(supervisor.ask("stop"))
    await begun.wait()
    supervisor.close()
    await until(lambda: process._link.is_lost)
    assert not running.done()
    may_stop.set()
    async with asyncio.timeout(TIMEOUT_S):
        await running
    assert stops == [process._worker]
    with suppress(Exception):
        await asking
