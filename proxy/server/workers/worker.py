"""One worker: a process that serves clients at its own sockets of the common ports, as the supervisor tells it."""

import asyncio
import gc
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from kafka_throttle.proxy.clock import Clock, SystemClock
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe import logs
from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.endpoints import Parameters
from kafka_throttle.proxy.observe.merged_metrics import Family, exported
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import measure_lag
from kafka_throttle.proxy.observe.page.history import Moment, moment_of
from kafka_throttle.proxy.observe.page.search import Found
from kafka_throttle.proxy.observe.page.sections import SECTIONS, Facts, Page
from kafka_throttle.proxy.server.certificate_watcher import CertificateWatcher
from kafka_throttle.proxy.server.instance import Instance
from kafka_throttle.proxy.server.passed_sockets import PassedSockets
from kafka_throttle.proxy.server.restart import Restart
from kafka_throttle.proxy.server.tls_material import Section, TlsPlace, tls_sections
from kafka_throttle.proxy.server.workers.link import Link
from kafka_throttle.proxy.server.workers.supplied_source import SuppliedSource, Supply
from kafka_throttle.proxy.server.workers.transport import WorkerTransport
from kafka_throttle.quotas.changes import Alteration

log = structlog.get_logger()

_SECTIONS = {section.name: section for section in SECTIONS}


class Supplied(NamedTuple):
    """What the supervisor has of a virtual cluster: the name of its source, its quotas, and the claims of workers."""

    source: str
    quotas: Supply
    claims: Mapping[str, bytes]


class Beginning(NamedTuple):
    """What a worker begins with: its configuration, and what there is of each virtual cluster."""

    config: Config
    clusters: Mapping[str, Supplied]


class Pulse(NamedTuple):
    """How a worker is: why it cannot serve clients, what is wrong all the same, and this moment of it."""

    not_ready: Sequence[str]
    remarks: Sequence[str]
    moment: Moment


class Worker:
    """A worker that has begun."""

    def __init__(
        self,
        link: Link,
        beginning: Beginning,
        config_path: Path,
        sockets: Sequence[socket.socket],
        is_activated: bool,
        clock: Clock,
    ) -> None:
        loop = asyncio.get_running_loop()
        config = beginning.config
        self.metrics = metrics = Metrics(CollectorRegistry(), config.metrics.top_entities)
        self.sources: dict[str, SuppliedSource] = {}
        self.transports: dict[str, WorkerTransport] = {}
        for cluster, supplied in beginning.clusters.items():
            source = self.sources[cluster] = SuppliedSource(supplied.source, partial(_altered, link, cluster), loop)
            source.take(supplied.quotas)
        for each in config.virtual_clusters:
            if each.fleet is None:  # else each worker is a member of that
                claims = beginning.clusters[each.name].claims
                self.transports[each.name] = WorkerTransport(each.name, link, claims, clock.now_ms)
        self.instance = Instance(config_path, config, clock, metrics, self.sources, self.transports)
        self._sockets = sockets
        self._certificates = CertificateWatcher(self.instance.show, clock, metrics)
        self._restart = Restart(self.instance.sensing, clock, metrics)
        self._restart.is_activated = is_activated
        self._process = self.instance.shown(self.instance.not_ready)
        self._page = Page(self._process)
        self._api = AdminApi(self.instance.clusters, clock)

    async def serve(self) -> None:
        """Accept connections. Raises ConfigErrors."""
        instance = self.instance
        self._certificates.take_up(await asyncio.to_thread(_sections, instance.config))
        instance.bind(PassedSockets(self._sockets))
        instance.start_recording()
        await instance.start()
        gc.collect()
        await self._restart.take_over(instance.config.restart.sensors_file, instance.until_ready)
        instance.serve()
        instance.warn_of_descriptors()
        instance.tasks.spawn("measuring the lag of the event loop", measure_lag(self.metrics.event_loop_lag))
        instance.tasks.keep(self._certificates.duty, self._certificates.watch)

    async def apply(self, config: Config) -> None:
        """Have a changed configuration in force."""
        self._certificates.take_up(await asyncio.to_thread(_sections, config))
        await self.instance.apply(config)
        logs.set_level(config.log.level)
        self.instance.warn_of_descriptors()

    async def stop(self) -> None:
        """Accept no more connections, and close those that are open within `limits.drain_s`."""
        instance = self.instance
        instance.stop_asked.set()
        instance.stop_listening(stays_open=self._restart.is_activated)
        await instance.drain(lambda: self._restart.others_accept(instance.config))
        await self._restart.leave_sensors(instance.config.restart.sensors_file)
        await instance.finish()
        log.info("worker_stopped")

    # --------------------------------------------------------------- questions

    async def pulse(self) -> Pulse:
        """How this worker is."""
        return Pulse(self.instance.not_ready(), self.instance.remarks(), moment_of(self._process))

    async def exported(self) -> list[Family]:
        """Its metrics."""
        await finish_in_turns(self.metrics.gather())
        return exported(self.metrics.registry)

    async def respond(self, endpoint: str, wanted: Parameters) -> Any:
        """The response of an endpoint of the API."""
        return await getattr(self._api, endpoint)(wanted)

    async def facts(self, section: str) -> Facts:
        """The facts of a section of the page."""
        return await self._page.facts(_SECTIONS[section])

    async def find(self, text: str) -> Found:
        """The clients of which a name contains `text`."""
        return await self._page.find(text)


async def _altered(link: Link, cluster: str, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
    results: Sequence[Exception | None] = await link.ask("alter", cluster, alterations)
    return results


def _sections(config: Config) -> dict[TlsPlace, Section]:
    """Those of clients and nodes; the supervisor has the others."""
    return {place: section for place, section in tls_sections(config).items() if place.virtual_cluster}


class WorkerProcess:
    """The process of a worker, from its fork to its end.

    `is_activated`: systemd has listening sockets of the proxy, too, and keeps them open.
    """

    def __init__(
        self, config_path: Path, sockets: Sequence[socket.socket], is_activated: bool, link: socket.socket
    ) -> None:
        self._config_path = config_path
        self._sockets = sockets
        self._is_activated = is_activated
        self._worker: Worker | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._link = Link(
            link,
            {"begin": self._begin, "supply": self._supply, "claims": self._take_claims, "end": self._end},
            {
                "serve": lambda: self._begun.serve(),
                "apply": lambda config: self._begun.apply(config),
                "stop": self._stop,
                "pulse": lambda: self._begun.pulse(),
                "metrics": lambda: self._begun.exported(),
                "respond": lambda endpoint, wanted: self._begun.respond(endpoint, wanted),
                "facts": lambda section: self._begun.facts(section),
                "find": lambda text: self._begun.find(text),
            },
        )

    async def run(self) -> None:
        """Do what the supervisor says until it closes the link. If it has ended by itself, close all connections."""
        await self._link.open()
        await self._link.run()
        if self._worker is None:
            return
        if self._stopping is None:
            log.error("supervisor_lost", problem="the supervisor has ended, so this worker stops")
        await self._stop()

    @property
    def _begun(self) -> Worker:
        assert self._worker is not None
        return self._worker

    async def _stop(self) -> None:
        """Stop once, also if the supervisor ends meanwhile."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._begun.stop())
        await self._stopping

    def _begin(self, beginning: Beginning) -> None:
        self._worker = Worker(
            self._link, beginning, self._config_path, self._sockets, self._is_activated, SystemClock()
        )

    def _supply(self, cluster: str, supply: Supply) -> None:
        self._begun.sources[cluster].take(supply)

    def _take_claims(self, cluster: str, member_id: str, content: bytes | None) -> None:
        self._begun.transports[cluster].take(member_id, content)

    def _end(self) -> None:
        self._begun.instance.end_asked.set()


def run_worker(
    config_path: Path,
    config: Config,
    sockets: Sequence[Sequence[socket.socket]],
    is_activated: bool,
    number: int,
    link: socket.socket,
) -> int:
    """Be the worker of this number, until the supervisor says that it stops. Returns the exit status."""
    logs.configure(config.log.level, config.log.format, worker=number)
    logs.write_in_thread()
    uvloop.run(WorkerProcess(config_path, sockets[number], is_activated, link).run())
    return 0
