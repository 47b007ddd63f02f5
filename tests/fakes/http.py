"""HTTP listeners of tests, and a server that is not kafka-throttle."""

import contextlib

from aiohttp import web
from prometheus_client import CollectorRegistry

from kafka_throttle.proxy.observe.http_listener import HttpListener
from kafka_throttle.proxy.observe.metrics import Metrics


def admin_listener(routes, **bounds):
    """The listener `admin` with these routes."""
    return HttpListener("admin", routes, Metrics(CollectorRegistry()).http_refused, **bounds)


@contextlib.asynccontextmanager
async def another_server(port):
    """An HTTP server that has no page."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield
    await runner.cleanup()
