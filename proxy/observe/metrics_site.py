"""The HTTP pages for scrapers and probes: /metrics, /livez, /readyz."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from prometheus_client import Gauge
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kafka_throttle.proxy.net.turns import finish_in_turns
from kafka_throttle.proxy.observe.http_listener import HttpListener
from kafka_throttle.proxy.observe.metrics import Metrics

_LAG_STEP_S = 0.25
_LAG_STEPS = 60
_MAX_ACCEPT_CHARACTERS = 1_024


class MetricsSite:
    """Serves the metrics and the health of one process.

    `not_ready` returns the reasons why the process cannot serve clients; it is empty when it can. `remarks` are about
    what is wrong all the same. `not_live` returns why the process is to be ended and started again. `gather` prepares
    what is scraped and returns it; without it that is what `metrics` has.
    """

    def __init__(
        self,
        metrics: Metrics,
        not_ready: Callable[[], Sequence[str]],
        most: int = 32,
        idle_s: float = 30,
        remarks: Callable[[], Sequence[str]] = lambda: (),
        gather: Callable[[], Awaitable[Collector]] | None = None,
        not_live: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._remarks = remarks
        self._not_live = not_live
        self._gather = gather or self._own
        probes = {"/livez": self._get_livez, "/readyz": self._get_readyz}
        pages = {"/metrics": self._get_metrics, **probes}
        routes = [web.get(path, handler) for path, handler in pages.items()]
        self.listener = HttpListener("metrics", routes, metrics.http_refused, most, idle_s, open_paths=probes)
        self.open = self.listener.open
        self._lag: asyncio.Task[None] | None = None

    async def start(self, bind: str, port: int) -> int:
        """Listen, and return the port; for port 0 the system chooses one. Raises ConfigErrors if it cannot be bound."""
        port = await self.listener.start(bind, port)
        self._lag = asyncio.create_task(measure_lag(self._metrics.event_loop_lag))
        return port

    async def stop(self) -> None:
        """Close the listener; responses under way have one second. May be called at any time, and twice."""
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        await self.listener.stop()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")[:_MAX_ACCEPT_CHARACTERS]
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # raised by the library for "version=x"
            encode, content_type = choose_encoder("")
        return web.Response(body=encode(await self._gather()), headers={"Content-Type": content_type})

    async def _own(self) -> Collector:
        await finish_in_turns(self._metrics.gather())
        return self._metrics.registry

    async def _get_livez(self, request: web.Request) -> web.Response:
        reasons = list(self._not_live())
        state: dict[str, object] = {"live": not reasons}
        return web.json_response(state | ({"reasons": reasons} if reasons else {}), status=503 if reasons else 200)

    async def _get_readyz(self, request: web.Request) -> web.Response:
        reasons, remarks = list(self._not_ready()), list(self._remarks())
        state: dict[str, object] = {"ready": not reasons, "reasons": reasons}
        return web.json_response(state | ({"remarks": remarks} if remarks else {}), status=503 if reasons else 200)


async def measure_lag(gauge: Gauge) -> None:
    """Set `gauge` to the longest delay of the event loop in the last 15 s, in seconds. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    latest: deque[float] = deque(maxlen=_LAG_STEPS)
    while True:
        due = loop.time() + _LAG_STEP_S
        await asyncio.sleep(_LAG_STEP_S)
        latest.append(max(loop.time() - due, 0.0))
        gauge.set(max(latest))
