"""The configuration file of a running process: read again when it has changed, or a signal asks for it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import structlog

from kafka_throttle.common.file_signature import Signature, signature
from kafka_throttle.common.places import with_places
from kafka_throttle.common.problems import bounded
from kafka_throttle.common.service_manager import monotonic_usec
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.problems import ConfigErrors, ConfigUnreadable
from kafka_throttle.proxy.config.reload import changes_needing_restart
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.config.warnings import ephemeral_ports, warnings_of, written_file_warnings
from kafka_throttle.proxy.observe import logs
from kafka_throttle.proxy.observe.http_secrets import HttpAccess, http_access
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.rejection import Rejection
from kafka_throttle.proxy.server.tls_material import Section, TlsPlace, tls_sections

_WATCH_S = 0.25
_UNREADABLE_AGAIN_S = 2.0

log = structlog.get_logger()


class Loaded(NamedTuple):
    """A configuration, with what was read from the files that it names."""

    config: Config
    access: HttpAccess
    sections: dict[TlsPlace, Section]


def load_with_files(path: Path) -> Loaded:
    """The configuration in the file. Raises ConfigErrors with every problem."""
    config = load_config(path)
    return Loaded(config, http_access(config, path), tls_sections(config))


class ConfigWatch:
    """Has changes of the configuration file put in force by `apply`. If anything in it is wrong, nothing changes.

    A changed file with a token or a password of an HTTP listener has the configuration loaded again, too.

    `notify` tells systemd about it.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        clock: Clock,
        metrics: Metrics,
        apply: Callable[[Loaded], Awaitable[None]],
        notify: Callable[..., None],
    ) -> None:
        self.config = config
        """The configuration in force."""
        self.reload_asked = asyncio.Event()
        self._path = path
        self._clock = clock
        self._metrics = metrics
        self._apply = apply
        self._notify = notify
        self._seen = self._look()
        """What the file, and those with secrets of HTTP listeners, looked like when they were read last. The first look
        is taken before the first port is bound: an operator who sees a port open may already change the file."""
        self._rejection = Rejection()
        self._note_reload(is_applied=True)

    def _look(self) -> Sequence[Signature | None]:
        """The signatures of the file, and of those that hold tokens and passwords of the HTTP listeners."""
        admin, metrics = self.config.admin, self.config.metrics
        secrets = (admin.token_file, admin.write_token_file, metrics.password_file)
        return [signature(path) for path in (self._path, *map(Path, filter(None, secrets)))]

    async def watch(self) -> None:
        """Reload the configuration when the file has changed or `reload_asked` is set, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self.reload_asked.wait()
            found = await asyncio.to_thread(self._look)  # a file system that hangs holds up nothing else
            if found != self._seen or self.reload_asked.is_set():
                self._rejection.forget()
            elif not self._rejection.is_due(self._clock.now_ms()):
                continue
            self.reload_asked.clear()
            self._seen = found
            await self.reload()

    async def reload(self) -> bool:
        """Load the configuration file again; whether it is in force.

        If anything in it is wrong, the old one stays in force, and `watch` reads the file again after a while.
        """
        self._notify("RELOADING=1", monotonic_usec())
        try:
            return await self._reload()
        except Exception:
            self._note_rejected()
            raise
        finally:
            self._notify("READY=1")

    async def _reload(self) -> bool:
        try:
            loaded = await asyncio.to_thread(with_places, self._path, partial(load_with_files, self._path))
        except ConfigErrors as errors:
            soon = {"again_s": _UNREADABLE_AGAIN_S} if isinstance(errors, ConfigUnreadable) else {}
            self._refuse([str(problem) for problem in errors.problems], **soon)
            return False
        if fixed := changes_needing_restart(self.config, loaded.config):
            self._refuse([f"{change} (needs a restart)" for change in fixed], again_s=inf)
            return False
        self._rejection.forget()
        self.config = loaded.config
        await self._apply(loaded)
        logs.set_level(loaded.config.log.level)
        await self.warn()
        self._metrics.config_reloads.labels("applied").inc()
        self._note_reload(is_applied=True)
        log.info("config_reloaded")
        return True

    async def warn(self) -> None:
        """Log warnings about settings that are allowed but probably not intended."""
        config = self.config
        of_files = await asyncio.to_thread(lambda: list(written_file_warnings(config)))
        for warning in bounded([*warnings_of(config, ephemeral_ports()), *of_files], "warnings"):
            log.warning("config_warning", problem=str(warning))

    def _refuse(self, problems: list[str], **when: float) -> None:
        if self._rejection.note(problems, self._clock.now_ms(), **when):
            self._note_rejected()
            log.error("config_rejected", file=str(self._path), problems=problems)

    def _note_rejected(self) -> None:
        self._metrics.config_reloads.labels("rejected").inc()
        self._note_reload(is_applied=False)

    def _note_reload(self, *, is_applied: bool) -> None:
        self._metrics.last_reload_ok.set(is_applied)
        if is_applied:
            self._metrics.last_reload_at.set(self._clock.epoch_ms() / 1000)
