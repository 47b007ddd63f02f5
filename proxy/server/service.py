"""The running proxy: starts, reloads and stops the virtual clusters and everything that they share."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from common.file_signature import signature
from common.places import with_places
from common.private_directory import DirectoryUnusable
from common.problems import Problem, bounded
from common.service_manager import monotonic_usec
from protocol.api_table import APIS
from proxy.clock import Clock, SystemClock
from proxy.config.load import load_config
from proxy.config.problems import ConfigErrors, ConfigUnreadable
from proxy.config.reload import changes_needing_restart
from proxy.config.settings import (
    Config,
    HistoryConfig,
    LimitsConfig,
    UsageConfig,
    UsageTopicConfig,
)
from proxy.config.warnings import ephemeral_ports, warnings_of
from proxy.gate.admission import Admission
from proxy.gate.connection_gate import ConnectionGate, limits_of
from proxy.gate.gate_metrics import InstanceGate
from proxy.installed import installed_version, make_in_use
from proxy.net.swept_poller import new_poller
from proxy.observe import logs
from proxy.observe.api import AdminApi
from proxy.observe.health import Muted, Readiness
from proxy.observe.http_listener import HttpListener
from proxy.observe.http_secrets import HttpAccess, http_access
from proxy.observe.metrics import Metrics, RelayTotals
from proxy.observe.metrics_site import MetricsSite
from proxy.observe.page.process import Process
from proxy.observe.page.site import StatusPage
from proxy.observe.past.history import History
from proxy.observe.past.ring import Ring
from proxy.relay.connection_timeouts import TimeOuts
from proxy.server.certificate_watcher import CertificateWatcher
from proxy.server.connection import Connection
from proxy.server.descriptors import clients_within_descriptors
from proxy.server.drain import drain
from proxy.server.listener import Listener
from proxy.server.passed_sockets import PassedSockets
from proxy.server.quota_sources import leave_to_another, renew
from proxy.server.restart import Restart, ports_of
from proxy.server.sockets import PortsTaken, bind_all
from proxy.server.tls_material import Section, TlsMaterial, TlsPlace, tls_sections
from proxy.server.virtual_cluster import VirtualCluster
from proxy.upstream.credentials import topic_settings
from proxy.usage.past_trace import past_of
from proxy.usage.recorder import Metered, Recorder, own_name, rules_of
from proxy.usage.shipping import Order, Shipping
from proxy.usage.spool import Spool
from proxy.usage.tracer import Tracer
from quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from quotas.row_copies import Sensing

_LONGEST_TURN_OF_A_THREAD_S = 0.001
"""How long a thread may hold the interpreter while the event loop waits. Python's default of 5 ms halves its speed."""
_HTTP_LISTENERS = 2
"""The listener for metrics, and the one for operators."""

_MIB = 1 << 20
_SWEEP_S = 1.0
_LONGEST_STEP_MS = 2_000
"""The most that one sweep adds to the waits of clients, also if the process or its machine stood still for longer."""
_LOOKS_AT_ONCE = 500
_EXPIRIES_PER_SWEEP = 5
_WATCH_S = 0.25
_LOOK_S = 0.02
_REREAD_S = 2.0
_LAST_WRITES_S = 30.0
"""How long the process waits at its end until the last usage records are on disk."""
_LAST_WRITES_AT_ONCE_S = 1.0
"""The same after a second signal to stop."""

log = structlog.get_logger()


class Service:
    """The whole proxy, from binding the ports until the last connection is closed."""

    def __init__(self, config_path: Path, config: Config, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self._metrics = Metrics(CollectorRegistry(), config.metrics.top_entities)
        self._poller = poller = new_poller()
        quotas = ConnectionQuotas(ConnectionLimits(), clock.now_ms())
        self.gate = ConnectionGate(Admission(quotas, config.limits.max_held_connections), clock)
        trace = config.usage.trace
        chosen = [entity.entity() for entity in trace.entities]
        self._tracer = Tracer(chosen, trace.events_per_second, clock) if chosen else None
        self.clusters = [
            VirtualCluster(
                cluster,
                config_path,
                config.limits.max_sensors,
                poller,
                clock,
                self._metrics,
                self.may_open,
                self.gate,
                config.usage,
                self._tracer,
            )
            for cluster in config.virtual_clusters
        ]
        self._recorder = self._recorder_of(config.usage)
        self._shipping: Shipping | None = None
        self._config_path = config_path
        self._signature_at_start = signature(config_path)
        """Taken before the first port is bound: an operator who sees a port open may already change the file."""
        self._tasks: list[asyncio.Task[None]] = []
        self._max_sockets = config.limits.max_connections
        self._warned_of_descriptors: tuple[int, int] | None = None
        """The connections that are possible and those that were wanted, of the last warning about descriptors."""
        self._room = 0
        """How many more sockets `may_open` allows before it counts the open ones again."""
        self._bound = False
        self._restart = Restart(
            Sensing({cluster.name: cluster.quota_manager for cluster in self.clusters}, quotas), clock, self._metrics
        )
        self._sockets: list[socket.socket] = []
        """All listening sockets, those of the HTTP listeners included."""
        self._handover: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._end_asked = asyncio.Event()
        """Set by a second signal to stop: the process ends without waiting for anything of its clients."""
        self._reload_asked = asyncio.Event()
        self._certificates = CertificateWatcher(self._show, clock, self._metrics)
        http = (config.limits.max_http_connections, config.limits.http_idle_timeout_ms / 1000)
        self._readiness = Readiness(self.not_ready)
        self._metrics_site = MetricsSite(self._metrics, self._readiness.look, *http)
        self._api = AdminApi(self.clusters, clock)
        self._history = self._history_of(config.history, config.usage)
        throttled_at = None if self._history is None else self._api.throttled
        self._page = StatusPage(self._shown(), self._api.explain, *http, throttled_at)
        pages = [*self._api.routes(), *self._page.routes()]
        self._admin = HttpListener("admin", pages, self._metrics.http_refused, *http)
        self._apply_limits()
        self._poller.sample(config.metrics.latency_sample, clock.now_us)
        self._add_metrics()

    def _add_metrics(self) -> None:
        """Have the metrics read what is counted elsewhere."""
        self._metrics.add_relays(self._relay_totals)
        self._metrics.ready.set_function(lambda: not self.not_ready())
        self._note_reload(is_applied=True)
        self._metrics.add_muted(self._muted)
        self._metrics.add_latency(lambda: (listener.latency for listener in self._listeners()))
        for cluster in self.clusters:
            self._metrics.add_health(cluster.health)
            self._metrics.add_sensors(cluster.sensor_totals)
            self._metrics.add_shadows(cluster.shadow_totals)
            self._metrics.add_caps(cluster.cap_totals)
            self._metrics.add_entities(cluster.entities(self.clock))
        self._metrics.add_gate(
            self._instance_totals, self.gate.listener_totals, self.gate.cluster_totals, self.gate.address_uses
        )

    def _shown(self) -> Process:
        """What the status page shows."""
        return Process(
            self.config.usage.instance or own_name(),
            self.clusters,
            self.clock,
            self.not_ready,
            self._relay_totals,
            self._muted,
            self._instance_totals,
            self.gate.listener_totals,
            self.gate.address_uses,
            self._metrics.closed,
            self._metrics.loop_lag_s,
        )

    def _recorder_of(self, usage: UsageConfig) -> Recorder | None:
        if usage.directory is None:
            return None
        metered = [
            Metered(cluster.meter, cluster.quota_manager) for cluster in self.clusters if cluster.meter is not None
        ]
        instance = usage.instance or own_name()
        spool = Spool(Path(usage.directory), instance, self.clock.epoch_ms(), rules_of(usage))
        recorder = Recorder(metered, spool, usage.window_s, self.clock, self._tracer)
        self.gate.admission.quotas.tell = recorder.note_connection
        self._metrics.add_usage(recorder.totals)
        return recorder

    def _history_of(self, config: HistoryConfig, usage: UsageConfig) -> History | None:
        if config.directory is None:
            return None
        ring = Ring(Path(config.directory), config.max_mib * _MIB, config.keep_hours * 3600)
        history = History(self.clusters, ring, self.clock)
        self._metrics.add_history(history.totals)
        self._api.past = past_of(config, usage, history.flush)
        return history

    def _start_recording(self) -> None:
        """Start to write usage records. Raises ConfigErrors if they cannot be written."""
        if self._recorder is None:
            return
        try:
            self._recorder.start()
        except DirectoryUnusable as error:
            raise ConfigErrors([Problem("usage.directory", str(error))]) from None
        self._spawn(self._recorder.run())
        self._note_settings()
        if self.config.usage.kafka is not None:
            self._start_shipping(self.config.usage.kafka)

    def _start_shipping(self, kafka: UsageTopicConfig) -> None:
        """Start to ship usage records to a topic. Raises ConfigErrors if the password file cannot be read."""
        settings = topic_settings(kafka)
        assert self.config.usage.directory is not None
        directory = str(Path(self.config.usage.directory).absolute())
        logs = self.config.log
        self._shipping = Shipping(Order(directory, kafka.topic, settings, logs.level, logs.format))
        self._metrics.add_shipping(self._shipping.totals)
        self._shipping.start()

    def _note_settings(self) -> None:
        """Write the settings of the sensors into the trace, if there is one."""
        if self._tracer is not None:
            for cluster in self.clusters:
                quota_manager = cluster.quota_manager
                self._tracer.note_settings(
                    cluster.name, quota_manager.sensors, quota_manager.buckets, self.clock.now_ms()
                )

    # ----------------------------------------------------------------- queries

    def may_open(self) -> bool:
        """Whether the process may have one more client socket. Each call may be followed by one; a refusal is noted."""
        if self._room <= 0:
            self._room = self._max_sockets - self._open_sockets()
            if self._room <= 0:
                self.gate.log.note_full(self.config.limits.max_connections)
                return False
        self._room -= 1
        return True

    def _open_sockets(self) -> int:
        return sum(listener.open_sockets for listener in self._listeners())

    def _instance_totals(self) -> InstanceGate:
        return self.gate.instance_totals(self._open_sockets(), self._max_sockets)

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each; empty when they can."""
        if self._restart.is_succeeded:
            return ["another process has taken over"]
        if self._stop_asked.is_set():
            return ["stopping"]
        if not self._bound:
            return ["listeners are not bound yet"]
        return [reason for cluster in self.clusters for reason in cluster.health().not_ready()]

    def _muted(self) -> Iterator[Muted]:
        now_ms = self.clock.now_ms()
        return (Muted(*listener.key, listener.muted(now_ms)) for listener in self._listeners())

    def _listeners(self) -> Iterator[Listener]:
        return (listener for cluster in self.clusters for listener in cluster.listeners)

    def _set_access(self, access: HttpAccess) -> None:
        self._admin.guard.access = access.admin
        self._metrics_site.listener.guard.access = access.metrics

    def _show(self, place: TlsPlace, context: TlsMaterial | None) -> None:
        for section, listener in (("admin", self._admin), ("metrics", self._metrics_site.listener)):
            if place == TlsPlace("", section):
                listener.guests.tls = None if context is None else context.context
        for cluster in self.clusters:
            if cluster.name == place.virtual_cluster:
                cluster.set_certified(place.listener, context)

    # -------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Bind all ports, then accept connections. Raises ConfigErrors that name each port that cannot be bound.

        A process that takes over from another one gets its ports, and accepts when the other one has stopped to.
        """
        self._set_access(http_access(self.config, self._config_path))
        self._certificates.take_up(await asyncio.to_thread(tls_sections, self.config))
        bound = self._bind_all(self._restart.passed_sockets(self.config))
        self._start_recording()
        if not self._restart.takes_over:
            await self._start_http()
        log.info("starting", version=installed_version(), make=make_in_use(), pid=os.getpid())
        await asyncio.gather(*(cluster.book.start() for cluster in self.clusters))
        self._report_unknown_quotas()
        if self._history is not None:
            self._history.start()
            self._spawn(self._history.run())
        for cluster in self.clusters:
            self._spawn(cluster.upstream.discovery.keep_learning())
        gc.collect()
        await self._restart.take_over(self.config.restart.sensors_file, self._until_ready)
        _leave_to_itself_what_stays()
        for listener, sockets in bound:
            listener.serve(sockets)
            log.info(
                "listening",
                virtual_cluster=listener.key.virtual_cluster,
                listener=listener.name,
                ports=sorted(sockets),
            )
        self._bound = True
        if self._restart.takes_over:
            self._spawn(self._restart.follow())
            await self._start_http()
        self._restart.notify("READY=1", f"MAINPID={os.getpid()}")
        self._warn()
        self._spawn(self._sweep())
        self._spawn(self._page.history.keep())
        self._spawn(self._watch_config())
        self._spawn(self._certificates.watch())

    async def _start_http(self) -> None:
        await self._metrics_site.start(self.config.metrics.bind, self.config.metrics.port)
        await self._admin.start(self.config.admin.bind, self.config.admin.port)

    async def _until_ready(self) -> None:
        """Wait until clients could be served if the ports were open."""
        while any(reason for cluster in self.clusters for reason in cluster.health().not_ready()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _bind_all(self, passed: PassedSockets) -> list[tuple[Listener, dict[int, socket.socket]]]:
        """Open all listening sockets, or take those that were passed. Those of the HTTP listeners do not listen yet."""
        bound: list[tuple[Listener, dict[int, socket.socket]]] = []
        problems: list[Problem] = []
        for i, (cluster, config) in enumerate(zip(self.clusters, self.config.virtual_clusters, strict=True)):
            for k, (listener, settings) in enumerate(zip(cluster.listeners, config.listeners, strict=True)):
                try:
                    bound.append((listener, bind_all(settings.bind, ports_of(settings), passed.take)))
                except PortsTaken as error:
                    problems.append(Problem(f"virtual_clusters[{i}].listeners[{k}].port", str(error)))
        if problems:
            for _, sockets in bound:
                for sock in sockets.values():
                    sock.close()
            raise ConfigErrors(problems)
        take = partial(passed.take, ipv6_only=True)
        http = (
            self._metrics_site.open(self.config.metrics.bind, self.config.metrics.port, take),
            self._admin.open(self.config.admin.bind, self.config.admin.port, take),
        )
        self._sockets = [*(sock for _, sockets in bound for sock in sockets.values()), *http]
        passed.close_rest()
        return bound

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. SIGHUP reloads the configuration. SIGUSR2 has another process take over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)
        loop.add_signal_handler(signal.SIGUSR2, self._ask_for_successor)
        cutting_short = loop.create_task(self._cut_start_short())
        await self.start()
        cutting_short.cancel()
        await self._stop_asked.wait()
        await self.stop()

    async def _cut_start_short(self) -> None:
        """A signal to stop that comes during the start does not wait for sources of quotas that are silent."""
        await self._stop_asked.wait()
        await asyncio.gather(*(cluster.book.cut_start_short() for cluster in self.clusters))

    def _ask_to_stop(self) -> None:
        """A signal to stop has come. The proxy is not ready from now on; the second one ends it at once.

        A process that another one has taken over from stops already, so the first one ends it at once.
        """
        if self._stop_asked.is_set():
            log.warning("stopping_at_once")
            self._end_asked.set()
        self._stop_asked.set()
        self._readiness.look()

    # ---------------------------------------------------------------- handover

    def _ask_for_successor(self) -> None:
        """SIGUSR2 has come: have another process take over, unless this one starts or stops, or that is under way."""
        if self._bound and not self._stop_asked.is_set() and (self._handover is None or self._handover.done()):
            self._handover = self._spawn(self._hand_over())

    async def _hand_over(self) -> None:
        """Have another process take over; then this one stops."""
        timeout_s, is_ready = self.config.restart.successor_timeout_s, not self.not_ready()
        if await self._restart.hand_over(self._sockets, timeout_s, self._suspend, self._resume, is_ready):
            for cluster in self.clusters:
                leave_to_another(cluster.source)
            self._stop_asked.set()

    def _suspend(self) -> None:
        for listener in self._listeners():
            listener.acceptor.sockets.suspend()

    def _resume(self) -> None:
        for listener in self._listeners():
            listener.acceptor.sockets.resume()

    # -------------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Stop accepting after `drain.lame_duck_s`, wait for the responses in flight, and close everything within
        `limits.drain_s`. With a second signal to stop neither time is waited, and without the first one for a process
        that another one has taken over from.
        """
        self._stop_asked.set()
        self._readiness.look()
        self._restart.notify("STOPPING=1")
        charging: asyncio.Task[None] | None = None
        if self._restart.is_succeeded:
            charging = self._spawn(self._restart.keep_charging())
        else:
            if self._handover is not None:
                self._handover.cancel()
            await self._until_end_asked(self.config.drain.lame_duck_s)
        await self._stop_listening()
        self.gate.log.sum_up()
        log.info("stopping", connections=sum(len(listener.connections) for listener in self._listeners()))
        await self._drain(self.config.limits.drain_s)
        await self._restart.until_predecessor_ended(0 if self._end_asked.is_set() else self.config.limits.drain_s)
        if charging is not None:
            charging.cancel()
        await self._restart.leave_sensors(self.config.restart.sensors_file)
        for connection in [one for listener in self._listeners() for one in listener.lingering]:
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(cluster.book.stop() for cluster in self.clusters))
        for cluster in self.clusters:
            cluster.address_quotas.stop()
        if self._recorder is not None:
            await self._recorder.stop(_LAST_WRITES_AT_ONCE_S if self._end_asked.is_set() else _LAST_WRITES_S)
        if self._shipping is not None:
            await self._shipping.stop()
        if self._history is not None:
            await self._history.stop(_LAST_WRITES_AT_ONCE_S)
        self._page.live.end()
        await self._admin.stop()
        await self._metrics_site.stop()
        log.info("stopped")

    async def _stop_listening(self) -> None:
        """Accept no more connections. Where others listen at the same ports, those that are on their way in go on."""
        stays_open = self._restart.is_succeeded or self._restart.is_activated
        if not stays_open and not self.config.restart.reuse_port:
            self._stop_accepting()
            return
        for listener in self._listeners():
            if not stays_open:
                listener.acceptor.sockets.accept_rest()
            listener.stop_listening()
        if self._restart.is_succeeded:
            await asyncio.gather(self._admin.stop(), self._metrics_site.stop())

    def _stop_accepting(self) -> None:
        """Accept no more connections, and close those that are on their way in."""
        for listener in self._listeners():
            listener.stop_accepting()
        self.gate.empty()

    async def _drain(self, drain_s: float) -> None:
        """Close all connections within this time, and wait for their last bytes."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await drain(self._connections, self._under_way, drain_s, self._end_asked)
        self._stop_accepting()
        while self._unsent_bytes() and loop.time() < begin + drain_s and not self._end_asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(0.05)

    def _under_way(self) -> int:
        return sum(listener.acceptor.under_way for listener in self._listeners())

    async def _until_end_asked(self, seconds: float) -> None:
        """Wait, at most until a second signal to stop comes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._end_asked.wait(), seconds)

    def _unsent_bytes(self) -> int:
        """How many bytes closed connections have still to write out."""
        lingering = (connection for listener in self._listeners() for connection in listener.lingering)
        return sum(connection.unsent_bytes for connection in lingering)

    def _connections(self) -> Iterator[Connection]:
        return (connection for cluster in self.clusters for connection in cluster.connections)

    def _relay_totals(self) -> Iterator[RelayTotals]:
        for listener in self._listeners():
            for node_id, counters in listener.relays.counters.items():
                yield RelayTotals(
                    *listener.key,
                    node_id,
                    counters.connections_open,
                    counters.connections_opened,
                    {APIS[key].name: count for key, count in enumerate(counters.requests_by_api) if count},
                    counters.request_bytes,
                    counters.responses,
                    counters.response_bytes,
                    {quota_type.name.lower(): count for quota_type, count in counters.throttles.items()},
                    {quota_type.name.lower(): count for quota_type, count in counters.throttled_ms.items()},
                    node_throttles=counters.throttles_by_node,
                    withheld_bytes=counters.withheld_bytes,
                    mutations_refused=counters.mutations_refused,
                    authentications={"success": counters.authentications, "failure": counters.authentications_failed},
                    exempt_us=counters.exempt_us,
                )

    # ------------------------------------------------------------------ upkeep

    async def _sweep(self) -> None:
        """Once a second: expire unused sensors, check the timeouts of connections, log episodes that are over."""
        last_ms = self.clock.now_ms()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_ms = self.clock.now_ms()
            self._readiness.look()
            self._report_unknown_quotas()
            for cluster in self.clusters:
                cluster.report_full_tables(self.clock.now_us())
            step_ms, last_ms = min(now_ms - last_ms, _LONGEST_STEP_MS), now_ms
            for cluster in self.clusters:
                for _ in range(_EXPIRIES_PER_SWEEP):
                    cluster.quota_manager.expire(now_ms)
                    await asyncio.sleep(0)
            time_outs = _time_outs(self.config.limits)
            for number, connection in enumerate(self._connections(), 1):
                connection.look_after(now_ms, step_ms, time_outs)
                if not number % _LOOKS_AT_ONCE:
                    await asyncio.sleep(0)
            self.gate.log.sum_up()

    def _report_unknown_quotas(self) -> None:
        for cluster in self.clusters:
            cluster.book.report_unknown(self.clock.now_us())

    async def _watch_config(self) -> None:
        """Reload the configuration when the file has changed or SIGHUP came."""
        seen = self._signature_at_start
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reload_asked.wait(), _WATCH_S)
            found = signature(self._config_path)
            if found != seen or self._reload_asked.is_set():
                self._reload_asked.clear()
                seen = found
                if not await self.reload():
                    seen = None
                    await asyncio.sleep(_REREAD_S)

    async def reload(self) -> bool:
        """Load the configuration file again. If anything in it is wrong, the old configuration stays in force.

        Returns False if the file could not be read; then a later try may succeed.
        """
        self._restart.notify("RELOADING=1", monotonic_usec())
        try:
            return await self._reload()
        finally:
            self._restart.notify("READY=1")

    async def _reload(self) -> bool:
        try:
            path = self._config_path
            config, access, sections = await asyncio.to_thread(with_places, path, partial(_load_with_files, path))
        except ConfigErrors as errors:
            self._refuse_reload([str(problem) for problem in errors.problems])
            return not isinstance(errors, ConfigUnreadable)
        if fixed := changes_needing_restart(self.config, config):
            self._refuse_reload([f"{change} (needs a restart)" for change in fixed])
            return True
        self.config = config
        self._set_access(access)
        self._certificates.take_up(sections)
        await self._apply()
        self._warn()
        self._metrics.config_reloads.labels("applied").inc()
        self._note_reload(is_applied=True)
        log.info("config_reloaded")
        return True

    def _warn(self) -> None:
        """Log warnings about settings that are allowed but probably not intended."""
        for warning in bounded(warnings_of(self.config, ephemeral_ports()), "warnings"):
            log.warning("config_warning", problem=str(warning))
        self._warn_of_descriptors(self._max_sockets, self.config.limits.max_connections)

    def _warn_of_descriptors(self, possible: int, wanted: int) -> None:
        """Log that there are too few descriptors for the connections wanted; once, unless the numbers change."""
        known, self._warned_of_descriptors = self._warned_of_descriptors, (possible, wanted)
        if possible < wanted and known != (possible, wanted):
            log.warning("few_descriptors", max_connections=possible, setting="limits.max_connections")

    def _refuse_reload(self, problems: list[str]) -> None:
        self._metrics.config_reloads.labels("rejected").inc()
        self._note_reload(is_applied=False)
        log.error("config_rejected", file=str(self._config_path), problems=problems)

    def _note_reload(self, *, is_applied: bool) -> None:
        self._metrics.last_reload_ok.set(is_applied)
        if is_applied:
            self._metrics.last_reload_at.set(self.clock.epoch_ms() / 1000)

    async def _apply(self) -> None:
        settings = {cluster.name: cluster for cluster in self.config.virtual_clusters}
        for cluster in self.clusters:
            new = settings[cluster.name]
            cluster.upstream.reconfigure(new.upstream)
            cluster.quota_manager.set_caps(new.throttle.max_throttle_ms, new.throttle.max_debt_ms)
            await asyncio.to_thread(renew, cluster.source, new)
            await cluster.book.take_up()
            cluster.set_rules(new)
        self._note_settings()
        logs.set_level(self.config.log.level)
        self._metrics.top_entities = self.config.metrics.top_entities
        self._poller.sample(self.config.metrics.latency_sample, self.clock.now_us)
        self._apply_limits()

    def _apply_limits(self) -> None:
        wanted = self.config.limits.max_connections
        ports = sum(
            len(ports_of(listener)) for cluster in self.config.virtual_clusters for listener in cluster.listeners
        )
        others = ports + _HTTP_LISTENERS * (self.config.limits.max_http_connections + 1)
        self._max_sockets = clients_within_descriptors(wanted, others)
        self._room = 0
        self.gate.set_limits(limits_of(self.config.connections), self.config.limits.max_held_connections)
        for listener in self._listeners():
            listener.set_limits(self.config.limits)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_tell_failure)
        self._tasks.append(task)
        return task


def _time_outs(limits: LimitsConfig) -> TimeOuts:
    return TimeOuts(
        limits.first_byte_timeout_ms, limits.request_timeout_ms, limits.idle_timeout_ms, limits.unread_timeout_ms
    )


def _leave_to_itself_what_stays() -> None:
    """Exclude all objects that exist before the first connection, mainly quotas, from garbage collection.

    With 100,000 quotas each full collection would block the event loop for some hundred ms. So this is no time for one:
    connections may wait already.
    """
    gc.freeze()


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background_task_failed", exc_info=error)


def _load_with_files(path: Path) -> tuple[Config, HttpAccess, dict[TlsPlace, Section]]:
    config = load_config(path)
    return config, http_access(config, path), tls_sections(config)


def run(config_path: Path, config: Config) -> int:
    """Serve until a signal to stop, then return the exit status 0. Raises ConfigErrors if a port cannot be bound."""

    async def serve() -> None:
        await Service(config_path, config, SystemClock()).run()

    logs.configure(config.log.level, config.log.format)
    sys.setswitchinterval(_LONGEST_TURN_OF_A_THREAD_S)
    uvloop.run(serve())
    return 0
