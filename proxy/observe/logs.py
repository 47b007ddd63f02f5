"""Sets up the log: one line for each event on standard error, also from libraries that use `logging`."""

import atexit
import io
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from kafka_throttle.common.printable import MAX_SHOWN_CHARACTERS, printable
from kafka_throttle.proxy.observe.log_writer import LogStream, LogWriter

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_MAX_LONG_CHARACTERS = 1_024
_MAX_ITEMS = 64
_LONG = frozenset({"event", "problem", "problems"})
"""Keys that may have long values, because they do not come from clients: messages of libraries, problems."""
_CHATTY = {"kafka": logging.CRITICAL, "aiohttp.access": logging.ERROR, "asyncio": logging.ERROR}
"""The least level that is logged of some libraries, unless the level is DEBUG.

kafka-python logs each failed attempt to connect as an error; our own event `cluster_unreachable` reports the result.
"""

_EMPTY: tuple[object, ...] = ("", b"", [], (), {}, frozenset())

_INDISCREET = ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser")
"""Loggers that write passwords at DEBUG."""

_LAST_LINES_S = 1.0
"""How long a process that ends waits at most until its last lines are written."""

_threshold = logging.INFO
_writer: LogWriter | None = None


def configure(level: str, form: Literal["json", "console"], worker: int | None = None) -> None:
    """Set up structlog and the standard logging module for this process. May be called again.

    Each line begins with its time, level and event, and has the process id, and the number of the `worker` if this
    process is one. Then come the keys of its logger, and those of the event. A key without a value is left out.
    """
    # Loggers that are bound to a connection outlive a change of the level, so they must not contain the level.
    structlog.configure(
        processors=[
            _drop_below_threshold,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            partial(_put_in_order, worker),
            _make_safe,
            _renderer(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=_Lines,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _IntoStructlog)]
    root.addHandler(_IntoStructlog())
    sys.unraisablehook = _tell_unraisable
    set_level(level)


def _tell_unraisable(what: "sys.UnraisableHookArgs") -> None:
    """Log an exception that Python cannot raise anywhere, except one that the TLS stage reports itself.

    That is a server name that is not ASCII: ssl fails to decode it before it calls our callback. Up to Python 3.13
    `what.object` is the name, from 3.14 on `what.err_msg` contains it.
    """
    is_name = isinstance(what.object, bytes) or "ssl servername callback" in (what.err_msg or "")
    if isinstance(what.exc_value, UnicodeDecodeError) and is_name:
        return
    log = structlog.get_logger()
    log.error("unraisable_error", place=repr(what.object), problem=what.err_msg, exc_info=what.exc_value)


def set_level(level: str) -> None:
    """Set the least level that is logged ("debug", "info", "warning" or "error"), at once for all loggers."""
    global _threshold
    _threshold = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(_threshold)
    for name, least in _CHATTY.items():
        logging.getLogger(name).setLevel(_threshold if _threshold == logging.DEBUG else max(_threshold, least))
    for name in _INDISCREET:
        logging.getLogger(name).setLevel(logging.INFO if _threshold == logging.DEBUG else logging.NOTSET)


def is_reported(level: int) -> bool:
    """Whether events of this level, one of those of `logging`, are logged."""
    return level >= _threshold


class _Bound:
    """A proxy for a logger that is made on first use."""

    __slots__ = ("_log", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._log: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._log is None:
            self._log = self._make()
        return getattr(self._log, name)


def bound_later(make: Callable[[], "FilteringBoundLogger"]) -> "FilteringBoundLogger":
    """A logger that `make` makes on first use, because most connections log nothing and binding keys takes time."""
    return cast("FilteringBoundLogger", _Bound(make))


def _renderer(form: str) -> Any:
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
    )


def _drop_below_threshold(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if structlog.processors.NAME_TO_LEVEL.get(method, logging.ERROR) < _threshold:
        raise structlog.DropEvent
    return event


def _put_in_order(worker: int | None, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put what every line has before the keys of this one.

    The process id is read for each line: a process that was forked logs with the settings of its parent at first.
    """
    first = {"timestamp": event["timestamp"], "level": event["level"], "event": event["event"]}
    return {**first, "pid": os.getpid(), "worker": worker, **event}


def _make_safe(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Make values safe: bytes of a client must not forge a log line, colour a terminal or fill the disk.

    Keys without a value are left out; 0 and false are values.
    """
    return {key: _safe(key, value) for key, value in event.items() if value is not None and value not in _EMPTY}


def _safe(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if key == "exception":
        return "\n".join(printable(line, _MAX_LONG_CHARACTERS) for line in str(value).splitlines())
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(key, item) for item in list(value)[:_MAX_ITEMS]]
    return printable(str(value), _MAX_LONG_CHARACTERS if key in _LONG else MAX_SHOWN_CHARACTERS)


# ------------------------------------------------------------- standard error


def write_in_thread() -> None:
    """Let a thread write all that this process writes to standard error from now on, so that no client waits for it.

    That is also what Python itself says there: tracebacks and warnings. Call it when the process forks no more.
    """
    global _writer
    if _writer is not None:
        return
    encoding, fd = sys.stderr.encoding, sys.stderr.fileno()
    _writer = writer = LogWriter(fd, partial(_dropped_notice, encoding))
    writer.start()
    raw = io.BufferedWriter(LogStream(writer, fd))
    sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
    atexit.register(flush)


def flush() -> None:
    """Wait until the last lines are written, but not for long. For the end of the process."""
    if _writer is not None:
        _writer.flush(_LAST_LINES_S)


def dropped_lines() -> int:
    """How many lines of this process were dropped, because they were not read or could not be written."""
    return 0 if _writer is None else _writer.dropped


def _dropped_notice(encoding: str, lines: int) -> bytes:
    made: list[str] = []
    log = structlog.wrap_logger(_Lines(write=made.append))
    log.error("log_lines_dropped", lines=lines)
    return "".join(made).encode(encoding, "backslashreplace")


def _write_line(line: str) -> None:
    """Ignores errors: the proxy goes on if nothing reads its standard error."""
    try:
        if _writer is None:
            sys.stderr.write(line)
            sys.stderr.flush()
        else:
            _writer.put(line.encode(sys.stderr.encoding, "backslashreplace"))
    except (OSError, ValueError):
        pass


class _Lines:
    """Ends each line, and passes it to `write`."""

    def __init__(self, *_: Any, write: Callable[[str], object] = _write_line) -> None:
        self._write = write

    def msg(self, line: str) -> None:
        """Write one line."""
        self._write(line + "\n")

    debug = info = warning = error = critical = exception = fatal = log = msg


class _IntoStructlog(logging.Handler):
    """Passes log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record under the name of its logger."""
        try:
            event = record.getMessage()
            level = max(record.levelno // 10 * 10, logging.DEBUG)
            structlog.get_logger().bind(logger=record.name).log(
                min(level, logging.CRITICAL), event, exc_info=record.exc_info or False
            )
        except Exception:
            self.handleError(record)
