"""The supervisor of several workers: it owns what there is once, and answers for all of them."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from kafka_throttle.common.duties import Duty, troubles
from kafka_throttle.common.problems import Problem
from kafka_throttle.common.service_manager import notify, passed_fds
from kafka_throttle.proxy.clock import Clock, SystemClock
from kafka_throttle.proxy.config.kinds import worker_count
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import Config, VirtualClusterConfig
from kafka_throttle.proxy.installed import build_in_use, installed_version
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe import logs
from kafka_throttle.proxy.observe.health import STOPPING, Readiness, quota_remarks
from kafka_throttle.proxy.observe.http_secrets import http_access
from kafka_throttle.proxy.observe.merged_metrics import Family, MergedMetrics, exported
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import MetricsSite
from kafka_throttle.proxy.observe.page.site import StatusPage
from kafka_throttle.proxy.server.certificate_watcher import CertificateWatcher
from kafka_throttle.proxy.server.config_watch import ConfigWatch, Loaded
from kafka_throttle.proxy.server.http_listeners import HttpListeners, bounds_of
from kafka_throttle.proxy.server.passed_sockets import PassedSockets, from_systemd
from kafka_throttle.proxy.server.quota_sources import renew, source_of
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.server.restart import ports_of, wanted_sockets
from kafka_throttle.proxy.server.service import start_shipping
from kafka_throttle.proxy.server.sockets import PortsTaken, bind_all, listening
from kafka_throttle.proxy.server.tasks import Tasks
from kafka_throttle.proxy.server.tls_material import Section, TlsPlace, tls_sections
from kafka_throttle.proxy.server.workers.answers import AnswersOfWorkers, ClusterOfWorkers, PageOfWorkers
from kafka_throttle.proxy.server.workers.division import config_of_worker
from kafka_throttle.proxy.server.workers.forker import Forker
from kafka_throttle.proxy.server.workers.group import ANSWER_S, NotStarted, Running, Workers
from kafka_throttle.proxy.server.workers.supplied_source import Supply
from kafka_throttle.proxy.server.workers.transport import Claims
from kafka_throttle.proxy.server.workers.worker import Beginning, Supplied, run_worker
from kafka_throttle.proxy.usage.shipping import Shipping
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, changes_between
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.windowed_rate import Sensors

_LONGEST_TURN_OF_A_THREAD_S = 0.001
_LOOK_S = 1.0
_ENDS_S = 30.0
"""How much longer than `limits.drain_s` a worker may take to stop, for its last records."""

log = structlog.get_logger()


class SuppliedCluster:
    """The quotas of one virtual cluster: read from their source here, and sent to all workers."""

    def __init__(self, config: VirtualClusterConfig, config_path: Path, clock: Clock, metrics: Metrics) -> None:
        self.name = config.name
        self.is_one_of_several = config.is_one_of_several
        self.source = source_of(config, config_path)
        self.store = QuotaStore(
            config.name,
            self.source,
            ClientQuotaManager(Sensors(16), QuotaTable()),  # has the tables; nothing is measured here
            clock,
            lambda source, count: metrics.quota_problems.labels(config.name, source).inc(count),
        )
        self._sent = NO_QUOTAS

    def whole(self) -> tuple[str, Supply]:
        """What a worker begins with."""
        return self.source.name, Supply(dict(self._sent), self.store.problems, self.source.state)

    def news(self) -> Supply:
        """What has changed since the last call."""
        quotas = self.store.quotas
        changes, self._sent = changes_between(self._sent, quotas), quotas
        return Supply(changes, self.store.problems, self.source.state)


class Supervisor:
    """Loads the configuration, reads the quotas, and serves the HTTP listeners, for all workers."""

    def __init__(
        self, config_path: Path, config: Config, clock: Clock, forker: Forker, http_sockets: PassedSockets
    ) -> None:
        self._metrics = metrics = Metrics(CollectorRegistry(), config.metrics.top_entities)
        self._config_path = config_path
        self._clock = clock
        self._http_sockets = http_sockets
        self._forker = forker
        self._configuration = ConfigWatch(config_path, config, clock, metrics, self._apply, notify)
        self._clusters = [SuppliedCluster(cluster, config_path, clock, metrics) for cluster in config.virtual_clusters]
        claims = self._claims = Claims(
            lambda: [worker.number for worker in self._workers.running],
            lambda number, *message: self._workers.tell_one(number, *message),
        )
        asks: dict[str, Callable[..., Awaitable[Any]]] = {"alter": self._alter, **claims.asks}
        count = worker_count(config.workers)
        self._workers = Workers(count, forker, self._beginning, self._config_of, asks, self._note_end, metrics)
        self._merged = MergedMetrics()
        self._tasks = Tasks()
        self._looking = Duty("telling the workers of the sources of quotas")
        self._shipping: Shipping | None = None
        self._stop_asked = asyncio.Event()
        self._is_serving = False
        self.status = 0
        """The exit status of the process."""
        self._readiness = Readiness(self.not_ready, clock.now_ms)
        answers = AnswersOfWorkers(
            self._workers,
            [
                ClusterOfWorkers(each.name, each.store, each.source, is_one_of_several=each.is_one_of_several)
                for each in self._clusters
            ],
        )
        self._shown = PageOfWorkers(config, answers, self._workers, clock, self.not_ready, self.remarks)
        self._page = StatusPage(self._shown, answers.explain, *bounds_of(config))
        site = MetricsSite(
            metrics, self._readiness.look, *bounds_of(config), self.remarks, self._gather, self._workers.not_live
        )
        self._http = HttpListeners(config, metrics, site, [*answers.routes(), *self._page.routes()])
        self._certificates = CertificateWatcher(self._http.show, clock, metrics)
        metrics.ready.set_function(lambda: not self.not_ready())
        metrics.workers.set_function(lambda: len(self._workers.running))

    @property
    def _config(self) -> Config:
        return self._configuration.config

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each; empty when they can."""
        if self._stop_asked.is_set():
            return [STOPPING]
        if not self._is_serving:
            return ["the workers do not serve yet"]
        return self._workers.not_ready()

    def remarks(self) -> list[str]:
        """What is wrong though clients can be served, one line each."""
        of_quotas = [
            remark
            for cluster in self._clusters
            for remark in quota_remarks(cluster.name, cluster.source.name, cluster.store.problems_to_report)
        ]
        return [*self._workers.remarks(), *of_quotas, *troubles()]

    # ------------------------------------------------------------- for workers

    def _config_of(self, number: int) -> Config:
        return config_of_worker(self._config, number, self._workers.count)

    def _beginning(self, number: int) -> Beginning:
        clusters = {
            cluster.name: Supplied(*cluster.whole(), self._claims.of(cluster.name)) for cluster in self._clusters
        }
        return Beginning(self._config_of(number), clusters)

    async def _alter(
        self, worker: int, virtual_cluster: str, alterations: Sequence[Alteration]
    ) -> Sequence[Exception | None]:
        [store] = [cluster.store for cluster in self._clusters if cluster.name == virtual_cluster]
        return await store.write(alterations)

    def _supply(self, cluster: SuppliedCluster) -> None:
        self._workers.tell("supply", cluster.name, cluster.news())

    def _note_end(self, worker: Running) -> None:
        self._claims.end(worker.number)
        self._merged.end(worker.name)
        self._shown.note_end(worker)

    # -------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Read the quotas, start the workers, and serve the HTTP listeners. Raises ConfigErrors."""
        config = self._config
        self._http.set_access(http_access(config, self._config_path))
        self._certificates.take_up(_of_http(await asyncio.to_thread(tls_sections, config)))
        self._http.open(config, self._http_sockets)
        self._http_sockets.close_rest()
        self._shipping = start_shipping(config, self._metrics)
        await self._http.start(config)
        build, count = build_in_use(), self._workers.count
        log.info("starting", version=installed_version(), build=build, workers=count)
        for cluster in self._clusters:
            cluster.store.when_taken_up = partial(self._supply, cluster)
        await asyncio.gather(*(cluster.store.start() for cluster in self._clusters))
        await self._workers.start()
        await self._workers.look()
        self._is_serving = True
        self._report_unknown_quotas()
        notify("READY=1", f"MAINPID={os.getpid()}")
        await self._configuration.warn()
        self._tasks.keep(self._looking, self._keep_looking)
        self._tasks.keep(Duty("sampling for the status page"), self._page.history.keep)
        self._tasks.keep(Duty("watching the configuration"), self._configuration.watch)
        self._tasks.keep(self._certificates.duty, self._certificates.watch)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. SIGHUP reloads the configuration. SIGUSR2 is refused."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._configuration.reload_asked.set)
        loop.add_signal_handler(signal.SIGUSR2, self._refuse_to_hand_over)
        self._forker.lost = self._stop_without_forker
        cutting_short = loop.create_task(self._cut_start_short())
        try:
            await self.start()
        except NotStarted as error:
            log.error("proxy_not_started", problem=str(error))
            self.status = 1
            self._workers.end()
            self._stop_asked.set()
        except BaseException:
            await self._workers.stop(0)
            raise
        cutting_short.cancel()
        await self._stop_asked.wait()
        await self.stop()

    async def _cut_start_short(self) -> None:
        await self._stop_asked.wait()
        await asyncio.gather(*(cluster.store.cut_start_short() for cluster in self._clusters))

    def _ask_to_stop(self) -> None:
        if self._stop_asked.is_set():
            log.warning("stopping_at_once")
            self._workers.end()
        self._stop_asked.set()
        self._readiness.look()

    def _stop_without_forker(self) -> None:
        log.error("worker_forker_lost", problem="workers cannot be replaced any more, so the proxy stops")
        self.status = 1
        self._ask_to_stop()

    def _refuse_to_hand_over(self) -> None:
        self._metrics.handover_failures.inc()
        log.error(
            "handover_failed",
            problem="with workers of 2 or more no other process can take over: docs/reference/workers.md",
        )

    async def stop(self) -> None:
        """Stop: the workers stop accepting after `drain.lame_duck_s`, and close all within `limits.drain_s`."""
        notify("STOPPING=1")
        if not self._workers.end_asked.is_set():
            try:
                await asyncio.wait_for(self._workers.end_asked.wait(), self._config.drain.lame_duck_s)
            except TimeoutError:
                pass
        early = [] if self._config.drain.lame_duck_s else [asyncio.create_task(self._close_http())]
        await self._workers.stop(self._config.limits.drain_s + _ENDS_S)
        await asyncio.gather(self._close_http(), *early)
        await self._tasks.cancel()
        await asyncio.gather(*(cluster.store.stop() for cluster in self._clusters))
        if self._shipping is not None:
            await self._shipping.stop()
        log.info("stopped")

    async def _close_http(self) -> None:
        """Close the HTTP listeners, at once for new connections: another process may listen at these ports."""
        self._page.live.end()
        await self._http.stop()

    # ------------------------------------------------------------------ upkeep

    async def _keep_looking(self) -> None:
        """Once a second, tell the workers how the sources are, and log what has changed of the readiness."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for cluster in self._clusters:
                with self._looking:
                    cluster.store.report_unknown(self._clock.now_us())
                    self._supply(cluster)
            self._readiness.look()

    def _report_unknown_quotas(self) -> None:
        for cluster in self._clusters:
            cluster.store.report_unknown(self._clock.now_us())

    async def _gather(self) -> Collector:
        """The metrics of all processes. Of a worker that does not answer in time those of the last time stay."""
        await self._workers.ask_each("metrics", lambda worker: (), ANSWER_S, self._take_metrics)
        await finish_in_turns(self._metrics.gather())
        self._merged.take("", exported(self._metrics.registry))
        return self._merged

    def _take_metrics(self, worker: Running, families: Sequence[Family]) -> None:
        """What a worker that has ended had counted is in the sums already."""
        if worker in self._workers.running:
            self._merged.take(worker.name, families)

    async def _apply(self, loaded: Loaded) -> None:
        config = loaded.config
        self._http.set_access(loaded.access)
        self._certificates.take_up(_of_http(loaded.sections))
        settings = {cluster.name: cluster for cluster in config.virtual_clusters}
        for cluster in self._clusters:
            await asyncio.to_thread(renew, cluster.source, settings[cluster.name])
            await cluster.store.take_up()
        await self._workers.apply()


def _of_http(sections: dict[TlsPlace, Section]) -> dict[TlsPlace, Section]:
    return {place: section for place, section in sections.items() if not place.virtual_cluster}


# ------------------------------------------------------------------------ ports


def open_sockets(config: Config, count: int) -> tuple[list[list[socket.socket]], PassedSockets, bool]:
    """The listening sockets of each worker, those that systemd has passed for the HTTP listeners, and whether it has
    passed any.

    Each worker has its own socket of each port, among which the kernel spreads connections (SO_REUSEPORT). Sockets
    that systemd has passed are shared by all workers. Raises ConfigErrors that name each port that cannot be bound.
    """
    sockets, problems = from_systemd(passed_fds(), wanted_sockets(config))
    if problems:
        raise ConfigErrors(problems)
    passed = PassedSockets(sockets, reuse_port=config.restart.reuse_port)
    of_workers: list[list[socket.socket]] = [[] for _ in range(count)]
    for i, cluster in enumerate(config.virtual_clusters):
        for k, listener in enumerate(cluster.listeners):
            try:
                first = bind_all(listener.bind, ports_of(listener), partial(_first, passed, config))
            except PortsTaken as error:
                problems.append(Problem(f"virtual_clusters[{i}].listeners[{k}].port", str(error)))
                continue
            for number, mine in enumerate(of_workers):
                for port, sock in first.items():
                    mine.append(_one_more(sock, listener.bind, port) if number else sock)
    if problems:
        raise ConfigErrors(problems)
    return of_workers, passed, bool(sockets)


def _first(passed: PassedSockets, config: Config, bind: str, port: int) -> socket.socket:
    """The socket that was passed, or a new one, with which others may share the port.

    Without `restart.reuse_port` the port must be free: so it is bound once as if no other process could share it.
    """
    if not passed.has(bind, port) and not config.restart.reuse_port:
        listening(bind, port).close()
    return passed.take(bind, port, reuse_port=True)


def _one_more(sock: socket.socket, bind: str, port: int) -> socket.socket:
    """The socket of another worker. One that systemd has opened cannot have others beside it, so it is shared."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT):
        return listening(bind, port, reuse_port=True)
    return sock.dup()


def run(config_path: Path, config: Config) -> int:
    """Serve until a signal to stop, then return the exit status. Raises ConfigErrors if a port cannot be bound."""
    logs.configure(config.log.level, config.log.format)
    sys.setswitchinterval(_LONGEST_TURN_OF_A_THREAD_S)
    of_workers, passed, is_activated = open_sockets(config, worker_count(config.workers))
    be_worker = partial(run_worker, config_path, config, of_workers, is_activated)
    forker = Forker.start(of_workers, be_worker, passed.close_rest)
    logs.write_in_thread()
    for sockets in of_workers:
        for sock in sockets:
            sock.close()

    async def serve() -> int:
        supervisor = Supervisor(config_path, config, SystemClock(), forker, passed)
        await supervisor.run()
        return supervisor.status

    return uvloop.run(serve())
