"""One HTTP listener of this process."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter

from kafka_throttle.common.duties import Duty
from kafka_throttle.common.printable import printable
from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.observe.guests import HttpConnections
from kafka_throttle.proxy.observe.http_guard import HttpGuard, failed, refused_as_malformed
from kafka_throttle.proxy.observe.http_refusals import HttpRefusals, Refusal
from kafka_throttle.quotas.entities import plain_ip

_LINGERING_S = 1.0
"""How long the rest of a body is read, so that the peer gets the response that it was refused with."""
_REST_S = 1.0
"""The pause in accepting after descriptors or memory have run out."""

log = structlog.get_logger()

_failures = logging.Logger("aiohttp.server", logging.WARNING)
"""The logger for failures at requests. It is not affected by settings of other loggers."""
_failures.parent = logging.getLogger()


class HttpListener:
    """Serves routes at one address, behind a guard. `section` is the section of the configuration with its address.

    It takes `most` connections at a time, and closes those that have sent nothing, or no whole request, for `idle_s`.
    `refused` counts what it refuses, by listener and reason. `open_paths` are for everybody.
    """

    def __init__(
        self,
        section: str,
        routes: Iterable[web.AbstractRouteDef],
        refused: Counter,
        most: int = 32,
        idle_s: float = 30,
        open_paths: Collection[str] = (),
    ) -> None:
        self._section = section
        self._refusals = HttpRefusals(section, refused)
        self.guard = HttpGuard(self._refusals, open_paths)
        self.guests = HttpConnections(self._refusals, self._new_handler, self.guard.is_asked, most, idle_s)
        self._application = self.guard.application(routes)
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._duty = Duty("accepting HTTP connections", f"listener {section}")
        self._accepting: asyncio.Task[None] | None = None

    def open(self, bind: str, port: int, open_socket: Callable[[str, int], socket.socket]) -> socket.socket:
        """Open the listening socket that `start` uses, and return it. Raises ConfigErrors if it cannot be bound."""
        try:
            self._socket = open_socket(bind, port)
        except OSError as error:
            raise ConfigErrors([self._bind_problem(error, bind, port)]) from error
        return self._socket

    async def start(self, bind: str, port: int) -> int:
        """Listen, and return the port; for port 0 the system chooses one. Raises ConfigErrors if it cannot be bound."""
        listening = self._socket or self.open(bind, port, _listening)
        listening.setblocking(False)
        self._runner = web.AppRunner(self._application, shutdown_timeout=1)
        await self._runner.setup()
        self._accepting = asyncio.get_running_loop().create_task(self._duty.keep(lambda: self._accept(listening)))
        address: tuple[str, int] = listening.getsockname()
        return address[1]

    async def stop(self) -> None:
        """Close the listener; responses under way have one second. May be called at any time, and twice."""
        if self._accepting is not None:
            accepting, self._accepting = self._accepting, None
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.guests.stop()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _accept(self, listening: socket.socket) -> None:
        """Take in connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_REST_S)
            else:
                self.guests.take_in(sock, plain_ip(address[0]))

    def _new_handler(self) -> "_Handler":
        assert self._runner is not None
        assert self._runner.server is not None
        return _Handler(self._refusals, self._runner.server, self.guests.idle_s)

    def _bind_problem(self, error: OSError, bind: str, port: int) -> Problem:
        section = self._section
        if error.errno == errno.EADDRINUSE:
            return Problem(f"{section}.port", f"expected a free port of {bind}, got {port}, which is in use")
        if error.errno == errno.EADDRNOTAVAIL:
            return Problem(f"{section}.bind", f"expected an address of this machine, got {bind!r}")
        expected = f"expected a port of {bind} to listen on, got {port}"
        return Problem(f"{section}.port", f"{expected}: {error.strerror}")


def _listening(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ip_address(bind).version == 6 else socket.AF_INET
    return socket.create_server((bind, port), family=family, backlog=socket.SOMAXCONN)


class _Handler(web.RequestHandler):
    """Speaks HTTP on one connection. It says nothing of itself to peers that do not speak HTTP."""

    __slots__ = ("_refusals",)

    def __init__(self, refusals: HttpRefusals, server: web.Server, idle_s: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=idle_s,
            lingering_time=_LINGERING_S,
            logger=_failures,
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
        )
        self._refusals = refusals

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The response to a request that is not HTTP, or that the proxy has failed at."""
        if isinstance(exc, HttpProcessingError):
            self._note_malformed(exc)
        else:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        if request.writer.output_size:
            raise ConnectionError("a part of the response has been sent already")
        return refused_as_malformed() if isinstance(exc, HttpProcessingError) else failed()

    def _note_malformed(self, error: HttpProcessingError) -> None:
        if times := self._refusals.times(Refusal.MALFORMED):
            log.warning(
                "http_requests_malformed",
                listener=self._refusals.listener,
                connections=times,
                problem=printable(str(error)),
            )
