"""One HTTP listener of this process."""

import asyncio
import errno
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from common.printable import shown
from common.problems import Problem
from proxy.config.problems import ConfigErrors
from proxy.observe.guests import Guests, ToldSeldom

MAX_BODY_BYTES = 1_024


class HttpListener:
    """Serves one application; `section` is where the configuration says at which address and port.

    It takes `most` connections at a time, and ends those that have sent nothing, or no whole request, for `idle_s`.
    """

    def __init__(self, application: web.Application, section: str, most: int = 32, idle_s: float = 30) -> None:
        self._application = application
        self._section = section
        self._most = most
        self._idle_s = idle_s
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, bind: str, port: int) -> int:
        """Listen; returns the port, one of the system's choice for 0. ConfigErrors if it cannot be had."""
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
        try:
            server = await asyncio.get_running_loop().create_server(guests, bind, port)
        except OSError as error:
            await runner.cleanup()
            raise ConfigErrors([self._bind_problem(error, bind, port)]) from error
        self._runner, self._server = runner, server
        address: tuple[str, int] = server.sockets[0].getsockname()
        return address[1]

    async def stop(self) -> None:
        """Close the listener; answers under way have a second. May be called at any time, and twice."""
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
        if error.errno in (errno.EADDRNOTAVAIL, None):  # from Python 3.13 on asyncio tells it without a number
            return Problem(f"{section}.bind", f"expected an address of this machine, got {bind!r}")
        expected = f"expected a port of {bind} to listen on, got {port}"
        return Problem(f"{section}.port", f"{expected}: {error.strerror}")


def _logger(section: str) -> logging.Logger:
    """What aiohttp tells of one listener; but bytes that are not HTTP are no error of ours."""
    logger = logging.Logger("aiohttp.server", logging.WARNING)  # whatever others have made of the root
    logger.parent = logging.getLogger()
    logger.addFilter(_NotHttp(section))
    return logger


class _NotHttp(logging.Filter):
    """Sums up what aiohttp would tell with a traceback each time."""

    def __init__(self, section: str) -> None:
        super().__init__()
        self._reported = ToldSeldom("http_requests_malformed", listener=section)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is told as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._reported.note(problem=shown(str(error)))
        return False
