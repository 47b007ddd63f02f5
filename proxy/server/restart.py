"""The place of this process between the one before it and the one after it."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from socket import socket

import structlog

from kafka_throttle.common.problems import Problem
from kafka_throttle.common.service_manager import notify, passed_fds
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.kinds import HostPort
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import Config, ListenerConfig
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server import sensors_file
from kafka_throttle.proxy.server.handover import (
    PAIR,
    HandingOver,
    HandoverFailed,
    NoWelcome,
    Predecessor,
    Successor,
    predecessor,
)
from kafka_throttle.proxy.server.passed_sockets import PassedSockets, from_systemd
from kafka_throttle.proxy.server.sensor_messages import SensorIntake
from kafka_throttle.proxy.server.sockets import is_listened_at
from kafka_throttle.quotas.row_copies import Sensing

log = structlog.get_logger()


class Restart:
    """Takes listening sockets and measurements over from the process before, and hands them to the one after."""

    def __init__(self, sensing: Sensing, clock: Clock, metrics: Metrics) -> None:
        self.is_activated = False
        """Whether systemd has the listening sockets, too, and keeps them open."""
        self._sensing = sensing
        self._clock = clock
        self._metrics = metrics
        self._intake = SensorIntake(sensing, clock)
        self._predecessor: Predecessor | None = None
        self._predecessor_ended = asyncio.Event()
        self._successor: Successor | None = None
        self._handing_over: HandingOver | None = None

    def notify(self, *states: str) -> None:
        """Tell systemd, as long as this process is the service."""
        if self._successor is None:
            notify(*states)

    # ------------------------------------------------------ the process before

    @property
    def takes_over(self) -> bool:
        """Whether the process before this one still runs, and hands over to this one."""
        return self._predecessor is not None

    def is_beside(self) -> bool:
        """Whether the process that this one took over from still runs. May be called by any thread."""
        return self._predecessor is not None and self._predecessor.is_running

    def passed_sockets(self, config: Config) -> PassedSockets:
        """The listening sockets that are open already. Raises ConfigErrors if they do not fit the configuration."""
        try:
            self._predecessor = predecessor()
        except HandoverFailed as error:
            raise ConfigErrors([Problem(PAIR, str(error))]) from None
        if self._predecessor is not None:
            sockets = self._predecessor.sockets
        else:
            sockets, problems = from_systemd(passed_fds(), wanted_sockets(config))
            if problems:
                raise ConfigErrors(problems)
            self.is_activated = bool(sockets)
        return PassedSockets(sockets, reuse_port=config.restart.reuse_port)

    async def take_over(self, file: str | None, until_ready: Callable[[], Awaitable[None]]) -> None:
        """Continue what the process before has measured, if it still runs, or has left a file.

        If it still runs, this returns when it accepts no more connections; if it is ready, `until_ready` is waited for
        before. Raises ConfigErrors if it was stopped before it could want that.
        """
        if self._predecessor is not None:
            try:
                await self._predecessor.take_over(self._intake, until_ready)
            except NoWelcome as error:
                raise ConfigErrors([Problem(PAIR, str(error))]) from None
            except HandoverFailed as error:
                log.warning("predecessor_lost", problem=str(error))
            self.is_activated = self._predecessor.is_activated
        elif file is None or not await sensors_file.take_up(Path(file), self._intake):
            return
        self._metrics.sensors_taken_over.set(self._intake.rows)
        log.info("sensors_taken_over", rows=self._intake.rows, left_out=self._intake.left_out)

    async def follow(self) -> None:
        """Tell the process before that this one accepts connections, and note what it charges until its end."""
        assert self._predecessor is not None
        await self._predecessor.follow(self._intake)
        self._predecessor_ended.set()

    # ------------------------------------------------------- the process after

    @property
    def is_succeeded(self) -> bool:
        """Whether another process has taken over: it accepts the connections."""
        return self.successor_pid is not None

    @property
    def successor_pid(self) -> int | None:
        """The number of the process that has taken over; None if there is none."""
        return None if self._successor is None else self._successor.pid

    def others_accept(self, config: Config) -> bool:
        """Whether other processes serve the clients of connections that are closed now, before this process has ended.

        Its own listening sockets must be closed. Where systemd has them, too, they say nothing.
        """
        if config.drain.lame_duck_s or self.is_activated:
            return self.is_succeeded or config.drain.lame_duck_s > 0
        listener = config.virtual_clusters[0].listeners[0]
        return is_listened_at(listener.bind, listener.port)

    async def hand_over(
        self,
        sockets: Sequence[socket],
        timeout_s: float,
        suspend: Callable[[], None],
        resume: Callable[[], None],
        is_ready: bool,
    ) -> bool:
        """Start a process that takes over. False if that has failed; then this process goes on as if nothing was."""
        log.info("handover_started", sockets=len(sockets))
        handing_over = HandingOver(self._sensing, self._clock, suspend, resume)
        try:
            if os.getpid() == 1:
                raise HandoverFailed("this is process 1, whose end is the end of its container: see restart.reuse_port")
            self._successor = await handing_over.to_successor(
                sockets, timeout_s, is_ready=is_ready, is_activated=self.is_activated
            )
        except HandoverFailed as error:
            self._metrics.handover_failures.inc()
            log.error("handover_failed", problem=str(error))
            return False
        self._handing_over = handing_over
        pid, suspended_ms = self._successor.pid, handing_over.suspended_ms
        log.info("handover_finished", successor_pid=pid, rows=handing_over.rows, suspended_ms=suspended_ms)
        return True

    async def keep_charging(self) -> None:
        """Tell the process after what the connections that are left here are charged with, until cancelled."""
        assert self._handing_over is not None
        assert self._successor is not None
        await self._handing_over.keep_charging(self._successor)

    async def until_predecessor_ended(self, timeout_s: float) -> None:
        """Wait until nothing comes any more that the process after this one has to know; at most this long."""
        if self.takes_over and self.is_succeeded:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._predecessor_ended.wait(), timeout_s)

    async def leave_sensors(self, file: str | None) -> None:
        """At the end, leave what was measured to the process after: what it does not know yet, or all in the file."""
        if self._handing_over is not None and self._successor is not None:
            await self._handing_over.finish(self._successor)
        elif file is not None:
            await sensors_file.keep(Path(file), self._sensing, self._clock)


def wanted_sockets(config: Config) -> dict[HostPort, str]:
    """The setting of each address and port to listen at."""
    wanted = {
        HostPort(str(ip_address(config.metrics.bind)), config.metrics.port): "metrics.bind",
        HostPort(str(ip_address(config.admin.bind)), config.admin.port): "admin.bind",
    }
    for i, cluster in enumerate(config.virtual_clusters):
        for k, listener in enumerate(cluster.listeners):
            bind, setting = str(ip_address(listener.bind)), f"virtual_clusters[{i}].listeners[{k}].bind"
            wanted |= {HostPort(bind, port): setting for port in ports_of(listener)}
    return wanted


def ports_of(config: ListenerConfig) -> list[int]:
    """All ports of a listener."""
    return [config.port, *config.ports().values(), *config.spares()]
