"""The running proxy in one process."""

import asyncio
import gc
import os
import signal
import socket
import sys
from pathlib import Path

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.clock import Clock, SystemClock
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.installed import build_in_use, installed_version
from kafka_throttle.proxy.observe import logs
from kafka_throttle.proxy.observe.api import AdminApi
from kafka_throttle.proxy.observe.health import HANDED_OVER, Readiness
from kafka_throttle.proxy.observe.http_secrets import http_access
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import MetricsSite
from kafka_throttle.proxy.observe.page.sections import Page
from kafka_throttle.proxy.observe.page.site import StatusPage
from kafka_throttle.proxy.server.certificate_watcher import CertificateWatcher
from kafka_throttle.proxy.server.config_watch import ConfigWatch, Loaded
from kafka_throttle.proxy.server.http_listeners import HttpListeners, bounds_of
from kafka_throttle.proxy.server.instance import Instance
from kafka_throttle.proxy.server.quota_sources import leave_to_another
from kafka_throttle.proxy.server.restart import Restart
from kafka_throttle.proxy.server.tasks import Tasks
from kafka_throttle.proxy.server.tls_material import TlsMaterial, TlsPlace, tls_sections
from kafka_throttle.proxy.upstream.credentials import topic_credentials, topic_settings
from kafka_throttle.proxy.usage.shipping import Order, Shipping

_LONGEST_TURN_OF_A_THREAD_S = 0.001
"""How long a thread may hold the interpreter while the event loop waits. Python's default of 5 ms halves its speed."""

_LOOK_S = 1.0

log = structlog.get_logger()


class Service:
    """The whole proxy, from binding the ports until the last connection is closed."""

    def __init__(self, config_path: Path, config: Config, clock: Clock) -> None:
        self.clock = clock
        self._metrics = metrics = Metrics(CollectorRegistry(), config.metrics.top_entities)
        self.instance = Instance(config_path, config, clock, metrics)
        self._config_path = config_path
        self._restart = restart = Restart(self.instance.sensing, clock, metrics)
        self.configuration = ConfigWatch(config_path, config, clock, metrics, self._apply, restart.notify)
        self._tasks = Tasks()
        self._shipping: Shipping | None = None
        self._sockets: list[socket.socket] = []
        """All listening sockets, those of the HTTP listeners included."""
        self._handover: asyncio.Task[None] | None = None
        self._closing_http: asyncio.Task[None] | None = None
        self._certificates = CertificateWatcher(self._show, clock, metrics)
        self._readiness = Readiness(self.not_ready, clock.now_ms)
        api = AdminApi(self.instance.clusters, clock)
        api.past = self.instance.past
        throttled_at = None if api.past is None else api.throttled
        page = Page(self.instance.shown(self.not_ready))
        self._page = StatusPage(page, api.explain, *bounds_of(config), throttled_at)
        site = MetricsSite(metrics, self._readiness.look, *bounds_of(config), self.instance.remarks)
        self._http = HttpListeners(config, metrics, site, [*api.routes(), *self._page.routes()])
        metrics.workers.set(1)
        metrics.ready.set_function(lambda: not self.not_ready())

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.configuration.config

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each; empty when they can."""
        if (pid := self._restart.successor_pid) is not None:
            return [f"{HANDED_OVER}{pid}"]
        return self.instance.not_ready()

    def _show(self, place: TlsPlace, material: TlsMaterial | None) -> None:
        self._http.show(place, material)
        self.instance.show(place, material)

    # -------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Bind all ports, then accept connections. Raises ConfigErrors that name each port that cannot be bound.

        A process that takes over from another one gets its ports, and accepts when the other one has stopped to.
        """
        self._http.set_access(http_access(self.config, self._config_path))
        self._certificates.take_up(await asyncio.to_thread(tls_sections, self.config))
        passed = self._restart.passed_sockets(self.config)
        self._sockets = [*self.instance.bind(passed), *self._http.open(self.config, passed)]
        passed.close_rest()
        self.instance.start_recording(self._restart.is_beside)
        self._shipping = start_shipping(self.config, self._metrics)
        if not self._restart.takes_over:
            await self._http.start(self.config)
        log.info("starting", version=installed_version(), build=build_in_use())
        await self.instance.start()
        gc.collect()
        await self._restart.take_over(self.config.restart.sensors_file, self.instance.until_ready)
        self.instance.serve()
        if self._restart.takes_over:
            self._tasks.spawn("following the process before", self._restart.follow())
            await self._http.start(self.config)
        self._restart.notify("READY=1", f"MAINPID={os.getpid()}")
        await self.configuration.warn()
        self.instance.warn_of_descriptors()
        self._tasks.keep(Duty("reporting readiness"), self._keep_looking)
        self._tasks.keep(Duty("sampling for the status page"), self._page.history.keep)
        self._tasks.keep(Duty("watching the configuration"), self.configuration.watch)
        self._tasks.keep(self._certificates.duty, self._certificates.watch)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. SIGHUP reloads the configuration. SIGUSR2 has another process take over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self.configuration.reload_asked.set)
        loop.add_signal_handler(signal.SIGUSR2, self._ask_for_successor)
        cutting_short = loop.create_task(self.instance.cut_start_short())
        await self.start()
        cutting_short.cancel()
        await self.instance.stop_asked.wait()
        await self.stop()

    def _ask_to_stop(self) -> None:
        """A signal to stop has come. The proxy is not ready from now on; the second one ends it at once.

        A process that another one has taken over from stops already, so the first one ends it at once.
        """
        self.instance.ask_to_stop()
        self._readiness.look()

    async def _keep_looking(self) -> None:
        """Once a second, log what has changed of the reasons why clients cannot be served."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._readiness.look()

    # ---------------------------------------------------------------- handover

    def _ask_for_successor(self) -> None:
        """SIGUSR2 has come: have another process take over, unless this one starts or stops, or that is under way."""
        if self.instance.is_serving and (self._handover is None or self._handover.done()):
            self._handover = self._tasks.spawn("handing over", self._hand_over())

    async def _hand_over(self) -> None:
        """Have another process take over; then this one stops."""
        timeout_s, is_ready = self.config.restart.successor_timeout_s, not self.not_ready()
        suspend, resume = self.instance.suspend, self.instance.resume
        if await self._restart.hand_over(self._sockets, timeout_s, suspend, resume, is_ready):
            for cluster in self.instance.clusters:
                leave_to_another(cluster.source)
            self.instance.stop_asked.set()

    # -------------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Stop accepting after `drain.lame_duck_s`, wait for the responses in flight, and close everything within
        `limits.drain_s`. With a second signal to stop neither time is waited, and without the first one for a process
        that another one has taken over from.
        """
        instance = self.instance
        instance.stop_asked.set()
        self._readiness.look()
        self._restart.notify("STOPPING=1")
        charging: asyncio.Task[None] | None = None
        if self._restart.is_succeeded:
            charging = self._tasks.spawn("telling the process after what is charged", self._restart.keep_charging())
        else:
            if self._handover is not None:
                self._handover.cancel()
            await instance.until_end_asked(self.config.drain.lame_duck_s)
        instance.stop_listening(self._restart.is_succeeded or self._restart.is_activated)
        if self._restart.is_succeeded or not self.config.drain.lame_duck_s:
            self._close_http()
        await instance.drain(lambda: self._restart.others_accept(self.config))
        closing_http = self._close_http()
        await self._restart.until_predecessor_ended(0 if instance.end_asked.is_set() else self.config.limits.drain_s)
        if charging is not None:
            charging.cancel()
        await self._restart.leave_sensors(self.config.restart.sensors_file)
        await self._tasks.cancel()
        await instance.finish()
        if self._shipping is not None:
            await self._shipping.stop()
        await closing_http
        log.info("stopped")

    def _close_http(self) -> asyncio.Task[None]:
        """Close the HTTP listeners, at once for new connections: another process may listen at these ports."""
        if self._closing_http is None:
            self._page.live.end()
            self._closing_http = asyncio.create_task(self._http.stop())
        return self._closing_http

    # ------------------------------------------------------------ configuration

    async def _apply(self, loaded: Loaded) -> None:
        self._http.set_access(loaded.access)
        self._certificates.take_up(loaded.sections)
        await self.instance.apply(loaded.config)
        self.instance.warn_of_descriptors()


def start_shipping(config: Config, metrics: Metrics) -> Shipping | None:
    """Start to ship usage records to a topic, if there is one. Raises ConfigErrors if the password file is bad."""
    usage = config.usage
    if usage.directory is None or usage.kafka is None:
        return None
    credentials, settings = topic_credentials(usage.kafka), topic_settings(usage.kafka)
    directory, logging = str(Path(usage.directory).absolute()), config.log
    secret, extensions = credentials.secret, dict(credentials.sasl_extensions)
    order = Order(directory, usage.kafka.topic, settings, logging.level, logging.format, secret, extensions)
    shipping = Shipping(order)
    metrics.add_shipping(shipping.totals)
    shipping.start()
    return shipping


def run(config_path: Path, config: Config) -> int:
    """Serve until a signal to stop, then return the exit status 0. Raises ConfigErrors if a port cannot be bound."""

    async def serve() -> None:
        await Service(config_path, config, SystemClock()).run()

    logs.configure(config.log.level, config.log.format)
    logs.write_in_thread()
    sys.setswitchinterval(_LONGEST_TURN_OF_A_THREAD_S)
    uvloop.run(serve())
    return 0
