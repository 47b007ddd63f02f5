"""One HTTP listener of this process."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from common.at_most_every import AtMostEvery
from common.printable import printable
from common.problems import Problem
from proxy.config.problems import ConfigErrors
from proxy.observe.guests import REPORTED_EVERY_S, Guests

MAX_BODY_BYTES = 1_024

log = structlog.get_logger()


class HttpListener:
    """Serves one aiohttp application. `section` is the section of the configuration with its address and port.

    It takes `most` connections at a time, and closes those that have sent nothing, or no whole request, for `idle_s`.
    """

    def __init__(self, application: web.Application, section: str, most: int = 32, idle_s: float = 30) -> None:
        self._application = application
        self._section = section
        self._most = most
        self._idle_s = idle_s
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    def open(self, bind: str, port: int, open_socket: Callable[[str, int], socket.socket]) -> socket.socket:
        """Open the listening socket that `start` uses, and return it. Raises ConfigErrors if it cannot be bound."""
        try:
            self._socket = open_socket(bind, port)
        except OSError as error:
            raise ConfigErrors([self._bind_problem(error, bind, port)]) from error
        return self._socket

    async def start(self, bind: str, port: int) -> int:
        """Listen, and return the port; for port 0 the system chooses one. Raises ConfigErrors if it cannot be bound."""
        runner = web.AppRunner(
            self._application,
            access_log=None,
            logger=_logger(self._section),
            shutdown_timeout=1,
            keepalive_timeout=self._idle_s,
        )
        await runner.setup()
        assert runner.server is not None
        guests = Guests(self._section, runner.server, self._most, self._idle_s)
        loop, sock = asyncio.get_running_loop(), self._socket
        try:
            server = await (
                loop.create_server(guests, bind, port) if sock is None else loop.create_server(guests, sock=sock)
            )
        except OSError as error:
            await runner.cleanup()
            raise ConfigErrors([self._bind_problem(error, bind, port)]) from error
        self._runner, self._server = runner, server
        address: tuple[str, int] = server.sockets[0].getsockname()
        return address[1]

    async def stop(self) -> None:
        """Close the listener; responses under way have one second. May be called at any time, and twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def _bind_problem(self, error: OSError, bind: str, port: int) -> Problem:
        section = self._section
        if error.errno == errno.EADDRINUSE:
            return Problem(f"{section}.port", f"expected a free port of {bind}, got {port}, which is in use")
        if error.errno in (errno.EADDRNOTAVAIL, None):  # from Python 3.13 on, asyncio raises it without errno
            return Problem(f"{section}.bind", f"expected an address of this machine, got {bind!r}")
        expected = f"expected a port of {bind} to listen on, got {port}"
        return Problem(f"{section}.port", f"{expected}: {error.strerror}")


def _logger(section: str) -> logging.Logger:
    """The logger for aiohttp's messages about one listener, without a traceback for each request that is not HTTP."""
    logger = logging.Logger("aiohttp.server", logging.WARNING)  # not affected by settings of other loggers
    logger.parent = logging.getLogger()
    logger.addFilter(_NotHttp(section))
    return logger


class _NotHttp(logging.Filter):
    """Replaces aiohttp's traceback for each malformed request by a summary."""

    def __init__(self, section: str) -> None:
        super().__init__()
        self._section = section
        self._reports = AtMostEvery(REPORTED_EVERY_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged unchanged."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        if times := self._reports.times(asyncio.get_running_loop().time()):
            problem = printable(str(error))
            log.warning("http_requests_malformed", listener=self._section, connections=times, problem=problem)
        return False
