"""What serves clients in one process: the virtual clusters, and what they share."""

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from kafka_throttle.common.duties import Duty, troubles
from kafka_throttle.common.private_directory import DirectoryUnusable
from kafka_throttle.common.problems import Problem
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import Config, HistoryConfig, LimitsConfig, UsageConfig
from kafka_throttle.proxy.gate.admission import Admission
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate, limits_of
from kafka_throttle.proxy.gate.gate_metrics import InstanceGate
from kafka_throttle.proxy.net.swept_poller import new_poller
from kafka_throttle.proxy.observe.health import STOPPING, Muted, unwritten
from kafka_throttle.proxy.observe.metrics import Metrics, RelayTotals
from kafka_throttle.proxy.observe.page.process import Process
from kafka_throttle.proxy.observe.past.history import History
from kafka_throttle.proxy.observe.past.look_up import Past
from kafka_throttle.proxy.observe.past.ring import Ring
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.relay.connection_timeouts import TimeOuts
from kafka_throttle.proxy.server.connection import Connection
from kafka_throttle.proxy.server.descriptors import clients_within_descriptors
from kafka_throttle.proxy.server.drain import Drain
from kafka_throttle.proxy.server.fleet import membership
from kafka_throttle.proxy.server.fleet.fleet import Fleet
from kafka_throttle.proxy.server.fleet.transport import FleetTransport
from kafka_throttle.proxy.server.listener import Listener
from kafka_throttle.proxy.server.passed_sockets import PassedSockets
from kafka_throttle.proxy.server.quota_sources import renew
from kafka_throttle.proxy.server.restart import ports_of
from kafka_throttle.proxy.server.sharing import Sharing
from kafka_throttle.proxy.server.sockets import PortsTaken, bind_all
from kafka_throttle.proxy.server.tasks import Tasks
from kafka_throttle.proxy.server.tls_material import TlsMaterial, TlsPlace
from kafka_throttle.proxy.server.virtual_cluster import VirtualCluster
from kafka_throttle.proxy.usage.past_trace import past_of
from kafka_throttle.proxy.usage.recorder import Metered, Recorder, own_name, rules_of
from kafka_throttle.proxy.usage.spool import Spool
from kafka_throttle.proxy.usage.tracer import Tracer
from kafka_throttle.quotas.connection_quotas import ConnectionLimits, ConnectionQuotas
from kafka_throttle.quotas.row_copies import Sensing
from kafka_throttle.quotas.sources.source import Source

_HTTP_LISTENERS = 2
"""The listener for metrics, and the one for operators."""

_MIB = 1 << 20
_SWEEP_S = 1.0
_LONGEST_STEP_MS = 2_000
"""The most that one sweep adds to the waits of clients, also if the process or its machine stood still for longer."""
_LOOKS_AT_ONCE = 500
_ENOUGH = 0.9
"""If more than this part of the connections that are wanted is possible, that is no warning."""
_EXPIRIES_PER_SWEEP = 5
_LOOK_S = 0.02
_JOIN_S = 4.0
"""How long the ports stay closed, at most, until the other instances of a fleet know of this one."""
_LAST_BYTES_S = 1.0
"""How long clients have to take the last bytes, if no other process accepts clients meanwhile."""
_LAST_WRITES_S = 30.0
"""How long the process waits at its end until the last usage records are on disk."""
_LAST_WRITES_AT_ONCE_S = 1.0
"""The same after a second signal to stop."""

log = structlog.get_logger()


class Instance:
    """What serves clients, from the bound ports until the last connection is closed.

    `sources` has the source of the quotas of each virtual cluster, if another process has the configured ones;
    `transports` what carries the claims of its fleet, if that is not ZooKeeper.
    """

    def __init__(
        self,
        config_path: Path,
        config: Config,
        clock: Clock,
        metrics: Metrics,
        sources: Mapping[str, Source] = MappingProxyType({}),
        transports: Mapping[str, FleetTransport] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.clock = clock
        self.stop_asked = asyncio.Event()
        """Set when no client is to come any more."""
        self.end_asked = asyncio.Event()
        """Set when the instance is to end without waiting for anything of its clients."""
        self.tasks = Tasks()
        self._sweeping = Duty("looking for timeouts and for what has expired")
        self._metrics = metrics
        self._poller = poller = new_poller()
        quotas = ConnectionQuotas(ConnectionLimits(), clock.now_ms())
        self.gate = ConnectionGate(Admission(quotas, config.limits.max_held_connections), clock)
        sharing = Sharing()
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
                metrics,
                self.may_open,
                self.gate,
                config.usage,
                self._tracer,
                transports.get(cluster.name) or membership.transport_of(cluster, clock),
                sources.get(cluster.name),
                sharing,
            )
            for cluster in config.virtual_clusters
        ]
        self.sensing = Sensing({cluster.name: cluster.quota_manager for cluster in self.clusters}, quotas)
        self._recorder = self._recorder_of(config.usage)
        self._history = self._history_of(config.history)
        self._bound: list[tuple[Listener, dict[int, socket.socket]]] = []
        self._is_serving = False
        self._max_sockets = config.limits.max_connections
        self._warned_of_descriptors: tuple[int, int] | None = None
        """The connections that are possible and those that were wanted, of the last warning about descriptors."""
        self._room = 0
        """How many more sockets `may_open` allows before it counts the open ones again."""
        self._apply_limits()
        self._poller.sample(config.metrics.latency_sample, clock.now_us)
        self._add_metrics()

    def _add_metrics(self) -> None:
        """Have the metrics read what is counted elsewhere."""
        metrics = self._metrics
        metrics.add_relays(self._relay_totals)
        metrics.add_muted(self._muted)
        metrics.add_latency(lambda: (listener.latency for listener in self._listeners()))
        for cluster in self.clusters:
            metrics.add_health(cluster.health)
            metrics.add_sensors(cluster.sensor_totals)
            metrics.add_shadows(cluster.shadow_totals)
            metrics.add_caps(cluster.cap_totals)
            metrics.add_entities(cluster.entities(self.clock))
            if cluster.fleet is not None:
                metrics.add_fleet(cluster.fleet.totals)
        metrics.add_gate(
            self._instance_totals, self.gate.listener_totals, self.gate.cluster_totals, self.gate.address_uses
        )

    def shown(self, not_ready: Callable[[], list[str]]) -> Process:
        """What the status page shows. `not_ready` returns why clients cannot be served."""
        return Process(
            self.config.usage.instance or own_name(),
            self.clusters,
            self.clock,
            not_ready,
            self.remarks,
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
        connections = self.gate.admission.quotas
        metered = [
            Metered(cluster.meter, cluster.quota_manager, connections)
            for cluster in self.clusters
            if cluster.meter is not None
        ]
        instance = usage.instance or own_name()
        spool = Spool(Path(usage.directory), instance, self.clock.epoch_ms(), rules_of(usage))
        recorder = Recorder(metered, spool, usage.window_s, self.clock, self._tracer)
        self.gate.admission.quotas.tell = recorder.note_connection
        self._metrics.add_usage(recorder.totals)
        return recorder

    def _history_of(self, config: HistoryConfig) -> History | None:
        if config.directory is None:
            return None
        ring = Ring(Path(config.directory), config.max_mib * _MIB, config.keep_hours * 3600)
        history = History(self.clusters, ring, self.clock)
        self._metrics.add_history(history.totals)
        return history

    @property
    def past(self) -> Past | None:
        """What answers for seconds of the past; None if no history is written."""
        if self._history is None:
            return None
        return past_of(self.config.history, self.config.usage, self._history.flush)

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
                self.gate.log.note_full(self._max_sockets)
                return False
        self._room -= 1
        return True

    def _open_sockets(self) -> int:
        return sum(listener.open_sockets for listener in self._listeners())

    def _instance_totals(self) -> InstanceGate:
        return self.gate.instance_totals(self._open_sockets(), self._max_sockets)

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each; empty when they can."""
        if self.stop_asked.is_set():
            return [STOPPING]
        if not self._is_serving:
            return ["listeners are not bound yet"]
        return [reason for cluster in self.clusters for reason in cluster.health().not_ready()]

    def remarks(self) -> list[str]:
        """What is wrong though clients can be served, one line each."""
        of_clusters = [remark for cluster in self.clusters for remark in cluster.health().remarks()]
        return [
            *of_clusters,
            *unwritten("usage records", self._recorder),
            *unwritten("the history", self._history),
            *troubles(),
        ]

    def _muted(self) -> Iterator[Muted]:
        now_ms = self.clock.now_ms()
        return (Muted(*listener.key, listener.muted(now_ms)) for listener in self._listeners())

    def _listeners(self) -> Iterator[Listener]:
        return (listener for cluster in self.clusters for listener in cluster.listeners)

    def _fleets(self) -> Iterator[Fleet]:
        return (cluster.fleet for cluster in self.clusters if cluster.fleet is not None)

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

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(len(listener.connections) for listener in self._listeners())

    def show(self, place: TlsPlace, material: TlsMaterial | None) -> None:
        """Use this TLS material for a listener, or towards the nodes; None: plain TCP."""
        for cluster in self.clusters:
            if cluster.name == place.virtual_cluster:
                cluster.set_certified(place.listener, material)

    # ------------------------------------------------------------------- start

    def bind(self, passed: PassedSockets) -> list[socket.socket]:
        """Open all listening sockets of clients, or take those that were passed. Raises ConfigErrors."""
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
        self._bound = bound
        return [sock for _, sockets in bound for sock in sockets.values()]

    def start_recording(self, is_beside: Callable[[], bool] = lambda: False) -> None:
        """Start to write usage records. Raises ConfigErrors if they cannot be written.

        `is_beside` says whether the process that this one took over from still runs: it may write records, too.
        """
        if self._recorder is None:
            return
        try:
            self._recorder.start(is_beside)
        except DirectoryUnusable as error:
            raise ConfigErrors([Problem("usage.directory", str(error))]) from None
        self.tasks.keep(self._recorder.duty, self._recorder.run)
        self._note_settings()

    async def start(self) -> None:
        """Read the quotas, join the fleets, and begin to learn the nodes."""
        joining = [self.tasks.spawn("joining the fleet", fleet.join(_JOIN_S)) for fleet in self._fleets()]
        await asyncio.gather(*(cluster.book.start() for cluster in self.clusters))
        if self._history is not None:
            self._history.start()
            self.tasks.keep(self._history.duty, self._history.run)
        for cluster in self.clusters:
            duty = Duty("asking for nodes", f"virtual cluster {cluster.name}")
            self.tasks.keep(duty, cluster.upstream.discovery.keep_learning)
        await asyncio.gather(*joining)

    async def cut_start_short(self) -> None:
        """Once `stop_asked` is set, have `start` not wait for sources of quotas that are silent."""
        await self.stop_asked.wait()
        await asyncio.gather(*(cluster.book.cut_start_short() for cluster in self.clusters))

    async def until_ready(self) -> None:
        """Wait until clients could be served if the ports were open."""
        while any(reason for cluster in self.clusters for reason in cluster.health().not_ready()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def serve(self) -> None:
        """Accept connections at the bound ports."""
        _freeze_startup_objects()
        protocols = {
            (cluster.name, listener.name): cluster.client_protocol(listener)
            for cluster in self.config.virtual_clusters
            for listener in cluster.listeners
        }
        for listener, sockets in self._bound:
            listener.serve(sockets)
            log.info(
                "listening",
                virtual_cluster=listener.key.virtual_cluster,
                listener=listener.name,
                ports=sorted(sockets),
                security_protocol=protocols[listener.key.virtual_cluster, listener.name],
            )
        self._is_serving = True
        self._report_unknown_quotas()
        self.tasks.keep(self._sweeping, self._sweep)

    @property
    def is_serving(self) -> bool:
        """Whether the ports are open, and no end was asked for."""
        return self._is_serving and not self.stop_asked.is_set()

    def suspend(self) -> None:
        """Accept no connections until `resume` is called."""
        for listener in self._listeners():
            listener.acceptor.sockets.suspend()

    def resume(self) -> None:
        """Accept connections again."""
        for listener in self._listeners():
            listener.acceptor.sockets.resume()

    # -------------------------------------------------------------------- stop

    def ask_to_stop(self) -> None:
        """Not ready from now on. The second call has the instance end at once."""
        if self.stop_asked.is_set():
            log.warning("stopping_at_once")
            self.end_asked.set()
        self.stop_asked.set()

    def stop_listening(self, stays_open: bool) -> None:
        """Accept no more connections. `stays_open`: another process has the sockets, too, so no client is refused.

        Where other processes may listen at the same ports, connections that are not open yet go on.
        """
        if not stays_open and not self.config.restart.reuse_port:
            self._stop_accepting()
            return
        for listener in self._listeners():
            if not stays_open:
                listener.acceptor.sockets.accept_rest()
            listener.stop_listening()

    def _stop_accepting(self) -> None:
        """Accept no more connections, and close those that are on their way in."""
        for listener in self._listeners():
            listener.stop_accepting()
        self.gate.empty()

    async def drain(self, others_accept: Callable[[], bool]) -> None:
        """Close all connections within `limits.drain_s`, and wait for their last bytes.

        `others_accept` says whether another process or instance accepts the clients meanwhile.
        """
        self.gate.log.sum_up()
        log.info("stopping", connections=self.connections)
        loop, drain_s = asyncio.get_running_loop(), self.config.limits.drain_s
        begin = loop.time()
        drain = Drain(begin, drain_s)
        while not drain.is_over(loop.time()) and not self.end_asked.is_set():
            drain.look(list(self._connections()), loop.time(), others_accept())
            if drain.has_hurried(loop.time()):
                self._stop_accepting()
            if not self.connections and not self._under_way():
                break
            await asyncio.sleep(_LOOK_S)
        for connection in list(self._connections()):
            connection.give_up(CloseReason.SHUTDOWN)
        self._stop_accepting()
        await self._last_bytes(
            begin + drain_s if others_accept() else min(begin + drain_s, loop.time() + _LAST_BYTES_S)
        )
        await asyncio.sleep(0.05)

    async def _last_bytes(self, end_s: float) -> None:
        """Wait until closed connections have written all, at most until this time of the event loop."""
        loop = asyncio.get_running_loop()
        while self._unsent_bytes() and loop.time() < end_s and not self.end_asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def finish(self) -> None:
        """Close what is left, and write the last records."""
        for connection in [one for listener in self._listeners() for one in listener.lingering]:
            connection.abort()
        await asyncio.gather(*(fleet.stop() for fleet in self._fleets()))
        await self.tasks.cancel()
        await asyncio.gather(*(cluster.book.stop() for cluster in self.clusters))
        for cluster in self.clusters:
            cluster.address_quotas.stop()
        if self._recorder is not None:
            await self._recorder.stop(_LAST_WRITES_AT_ONCE_S if self.end_asked.is_set() else _LAST_WRITES_S)
        if self._history is not None:
            await self._history.stop(_LAST_WRITES_AT_ONCE_S)

    def _under_way(self) -> int:
        return sum(listener.acceptor.under_way for listener in self._listeners())

    async def until_end_asked(self, seconds: float) -> None:
        """Wait, at most until `end_asked` is set."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.end_asked.wait(), seconds)

    def _unsent_bytes(self) -> int:
        """How many bytes closed connections have still to write out."""
        lingering = (connection for listener in self._listeners() for connection in listener.lingering)
        return sum(connection.unsent_bytes for connection in lingering)

    # ------------------------------------------------------------------ upkeep

    async def _sweep(self) -> None:
        """Once a second: expire unused sensors, check the timeouts of connections, log episodes that are over."""
        last_ms = self.clock.now_ms()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_ms = self.clock.now_ms()
            step_ms, last_ms = min(now_ms - last_ms, _LONGEST_STEP_MS), now_ms
            for cluster in self.clusters:
                with self._sweeping:
                    cluster.book.report_unknown(self.clock.now_us())
                    cluster.report_full_tables(self.clock.now_us())
                for _ in range(_EXPIRIES_PER_SWEEP):
                    with self._sweeping:
                        cluster.quota_manager.expire(now_ms)
                    await asyncio.sleep(0)
            time_outs = _time_outs(self.config.limits)
            for number, connection in enumerate(self._connections(), 1):
                with self._sweeping:
                    connection.look_after(now_ms, step_ms, time_outs)
                if not number % _LOOKS_AT_ONCE:
                    await asyncio.sleep(0)
            with self._sweeping:
                self.gate.log.sum_up()

    def _report_unknown_quotas(self) -> None:
        for cluster in self.clusters:
            cluster.book.report_unknown(self.clock.now_us())

    async def apply(self, config: Config) -> None:
        """Have a changed configuration in force."""
        self.config = config
        settings = {cluster.name: cluster for cluster in config.virtual_clusters}
        for cluster in self.clusters:
            new = settings[cluster.name]
            cluster.upstream.reconfigure(new.upstream)
            cluster.quota_manager.set_caps(new.throttle.max_throttle_ms, new.throttle.max_debt_ms)
            membership.renew(cluster.transport, new)
            await asyncio.to_thread(renew, cluster.source, new)
            await cluster.book.take_up()
            cluster.set_rules(new)
        self._note_settings()
        self._metrics.top_entities = config.metrics.top_entities
        self._poller.sample(config.metrics.latency_sample, self.clock.now_us)
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

    def warn_of_descriptors(self) -> None:
        """Log that there are too few descriptors for the connections wanted; once, unless the numbers change.

        It is a warning if a tenth of the connections or more are not possible.
        """
        possible, wanted = self._max_sockets, self.config.limits.max_connections
        known, self._warned_of_descriptors = self._warned_of_descriptors, (possible, wanted)
        if possible < wanted and known != (possible, wanted):
            problem = (
                f"files that may be open allow {possible} connections, not {wanted}: raise LimitNOFILE (ulimit -n)"
            )
            log.log(
                _level_of_few(possible, wanted),
                "few_descriptors",
                max_connections=possible,
                setting="limits.max_connections",
                problem=problem,
            )


def _level_of_few(possible: int, wanted: int) -> int:
    return logging.WARNING if possible <= wanted * _ENOUGH else logging.INFO


def _time_outs(limits: LimitsConfig) -> TimeOuts:
    return TimeOuts(
        limits.first_byte_timeout_ms, limits.request_timeout_ms, limits.idle_timeout_ms, limits.unread_timeout_ms
    )


def _freeze_startup_objects() -> None:
    """Exclude all objects that exist before the first connection, mainly quotas, from garbage collection.

    With 100,000 quotas each full collection would block the event loop for some hundred ms. So this is no time for one:
    connections may wait already.
    """
    gc.freeze()
