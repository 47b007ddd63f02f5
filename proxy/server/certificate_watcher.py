"""Reloads certificates when their files change, and warns before they expire."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from common.duties import Duty
from proxy.clock import Clock
from proxy.config.problems import ConfigErrors
from proxy.observe.metrics import Metrics
from proxy.server.tls_material import Section, TlsMaterial, TlsPlace, certify

_LOOK_S = 1.0
_REJECTED_AGAIN_S = 30.0
"""After how long rejected files are read again, because the reason may be gone."""
_SOON_S = 30 * 86_400
_TELL_AGAIN_S = 86_400

Show = Callable[[TlsPlace, TlsMaterial | None], None]
"""Makes a listener, or the way to the nodes, use this TLS material; with None it uses plain TCP from now on."""


@dataclass(slots=True)
class _Rejected:
    """Files that cannot be used: what was reported about them, and when they are read again."""

    problems: list[str]
    again_at_ms: float


class CertificateWatcher:
    """Reloads changed certificate files; if a new file is wrong, the old certificate stays in use.

    Logs a warning for each certificate that has expired or expires soon.
    """

    def __init__(self, show: Show, clock: Clock, metrics: Metrics) -> None:
        self.duty = Duty("watching certificates")
        self._show = show
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger()
        self._kept: dict[TlsPlace, Section] = {}
        self._rejected: dict[TlsPlace, _Rejected] = {}
        self._ends_s: dict[TlsPlace, int] = {}
        self._reported_s: dict[TlsPlace, float] = {}

    def take_up(self, sections: Mapping[TlsPlace, Section]) -> None:
        """Use the TLS sections of a configuration that was just loaded."""
        for place in self._kept.keys() - sections.keys():
            self._forget(place)
        self._kept = dict(sections)
        for place, section in sections.items():
            self._use(place, section.certified)

    async def watch(self) -> None:
        """Check all files once a second; never returns."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for place, section in list(self._kept.items()):
                with self.duty:
                    if await asyncio.to_thread(section.files.changed) or self._is_due(place):
                        await self._renew(place, section)
            self._tell_of_ends()

    def _is_due(self, place: TlsPlace) -> bool:
        """Whether files that could not be used are to be read again, though they have not changed."""
        rejected = self._rejected.get(place)
        return rejected is not None and self._clock.now_ms() >= rejected.again_at_ms

    async def _renew(self, place: TlsPlace, section: Section) -> None:
        labels = (place.virtual_cluster, place.listener)
        try:
            context = await asyncio.to_thread(certify, section.path, section.files.tls)
        except ConfigErrors as errors:
            self._reject(place, [str(problem) for problem in errors.problems])
            return
        if self._kept.get(place) is section:  # no other configuration was loaded meanwhile
            self._metrics.certificate_reloads.labels(*labels, "applied").inc()
            self._log.info("certificate_renewed", virtual_cluster=labels[0], listener=labels[1])
            self._use(place, context)

    def _reject(self, place: TlsPlace, problems: list[str]) -> None:
        before = self._rejected.get(place)
        self._rejected[place] = _Rejected(problems, self._clock.now_ms() + _REJECTED_AGAIN_S * 1000)
        if before is None or before.problems != problems:
            self._metrics.certificate_reloads.labels(place.virtual_cluster, place.listener, "rejected").inc()
            self._log.error("certificate_rejected", problems=problems)

    def _use(self, place: TlsPlace, context: TlsMaterial) -> None:
        self._show(place, context)
        self._reported_s.pop(place, None)
        self._rejected.pop(place, None)
        self._ends_s.pop(place, None)
        if context.ends_s is not None:
            self._ends_s[place] = context.ends_s
            self._metrics.certificate_ends.labels(place.virtual_cluster, place.listener).set(context.ends_s)
        self._tell_of_ends()

    def _forget(self, place: TlsPlace) -> None:
        self._show(place, None)
        self._rejected.pop(place, None)
        if self._ends_s.pop(place, None) is not None:
            self._metrics.certificate_ends.remove(place.virtual_cluster, place.listener)

    def _tell_of_ends(self) -> None:
        """Log a warning once a day for each certificate that expires within 30 days."""
        now_s = self._clock.epoch_ms() / 1000
        for place, ends_s in self._ends_s.items():
            if ends_s - now_s < _SOON_S and now_s - self._reported_s.get(place, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
                self._reported_s[place] = now_s
                self._log.warning(
                    "certificate_expired" if ends_s < now_s else "certificate_expires_soon",
                    virtual_cluster=place.virtual_cluster,
                    listener=place.listener,
                    days_left=int((ends_s - now_s) // 86_400),
                )
