"""The HTTP listener for scrapers and probes: /metrics, /livez, /readyz."""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import Gauge
from prometheus_client.exposition import choose_encoder

from proxy.config import ConfigError, ConfigErrors
from proxy.metrics import Metrics

_LAG_STEP_S = 0.25
_LAG_STEPS = 60
_MAX_ACCEPT_CHARACTERS = 1_024


class AdminServer:
    """Serves the metrics and the health of one process.

    `not_ready` says why the process cannot serve yet, one reason a line; nothing when it can.
    """

    def __init__(self, metrics: Metrics, not_ready: Callable[[], Sequence[str]]) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None
        self._lag: asyncio.Task[None] | None = None

    async def start(self, bind: str, port: int) -> int:
        """Listen; returns the port, one of the system's choice for 0. ConfigErrors if it cannot be had."""
        runner = web.AppRunner(self.application(), access_log=None, handle_signals=False, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, bind, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigErrors([_bind_problem(error, bind, port)]) from error
        self._runner = runner
        self._lag = asyncio.create_task(measure_lag(self._metrics.event_loop_lag))
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    async def stop(self) -> None:
        """Close the listener; answers under way have a second. May be called at any time, and twice."""
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def application(self) -> web.Application:
        """The three pages."""
        application = web.Application(client_max_size=1_024)
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/livez", self._get_livez)
        application.router.add_get("/readyz", self._get_readyz)
        return application

    async def _get_metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")[:_MAX_ACCEPT_CHARACTERS]
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # what the library makes of "version=x"
            encode, content_type = choose_encoder("")
        return web.Response(body=encode(self._metrics.registry), headers={"Content-Type": content_type})

    async def _get_livez(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _get_readyz(self, request: web.Request) -> web.Response:
        reasons = list(self._not_ready())
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)


def _bind_problem(error: OSError, bind: str, port: int) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError("metrics.port", f"expected a free port of {bind}, got {port}, which is in use")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError("metrics.bind", f"expected an address of this machine, got {bind!r}")
    return ConfigError("metrics.port", f"expected a port of {bind} to listen on, got {port}: {error.strerror}")


async def measure_lag(gauge: Gauge) -> None:
    """Keep in `gauge` how late the event loop was at worst in the last 15 s, in seconds; until cancelled."""
    loop = asyncio.get_running_loop()
    latest: deque[float] = deque(maxlen=_LAG_STEPS)
    while True:
        due = loop.time() + _LAG_STEP_S
        await asyncio.sleep(_LAG_STEP_S)
        latest.append(max(loop.time() - due, 0.0))
        gauge.set(max(latest))
