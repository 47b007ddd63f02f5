"""The two HTTP listeners of the process: `metrics` for scrapers and probes, `admin` for operators."""

import asyncio
import socket
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.observe.http_listener import HttpListener
from kafka_throttle.proxy.observe.http_secrets import HttpAccess
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.observe.metrics_site import MetricsSite
from kafka_throttle.proxy.server.passed_sockets import PassedSockets
from kafka_throttle.proxy.server.tls_material import TlsMaterial, TlsPlace


def bounds_of(config: Config) -> tuple[int, float]:
    """How many connections each HTTP listener takes, and for how many seconds one may be idle."""
    return config.limits.max_http_connections, config.limits.http_idle_timeout_ms / 1000


class HttpListeners:
    """Serves `site`, and at the admin listener these `pages`."""

    def __init__(self, config: Config, metrics: Metrics, site: MetricsSite, pages: Sequence[web.RouteDef]) -> None:
        self._site = site
        self._admin = HttpListener("admin", pages, metrics.http_refused, *bounds_of(config))

    def open(self, config: Config, passed: PassedSockets) -> list[socket.socket]:
        """Open both sockets, or take those that were passed. They do not listen yet. Raises ConfigErrors."""
        take = partial(passed.take, ipv6_only=True)
        return [
            self._site.open(config.metrics.bind, config.metrics.port, take),
            self._admin.open(config.admin.bind, config.admin.port, take),
        ]

    async def start(self, config: Config) -> None:
        """Serve at both sockets."""
        await self._site.start(config.metrics.bind, config.metrics.port)
        await self._admin.start(config.admin.bind, config.admin.port)

    def set_access(self, access: HttpAccess) -> None:
        """Who may ask for what, from the next request on."""
        self._admin.guard.access = access.admin
        self._site.listener.guard.access = access.metrics

    def show(self, place: TlsPlace, material: TlsMaterial | None) -> None:
        """Use this TLS material if it is for one of the two; None: plain TCP."""
        for section, listener in (("admin", self._admin), ("metrics", self._site.listener)):
            if place == TlsPlace("", section):
                listener.guests.tls = None if material is None else material.context

    async def stop(self) -> None:
        """Close both."""
        await asyncio.gather(self._admin.stop(), self._site.stop())
