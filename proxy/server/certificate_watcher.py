"""Reloads certificates when their files change, and warns before they expire."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.rejection import Rejection
from kafka_throttle.proxy.server.tls_material import OwnCertificate, Section, TlsMaterial, TlsPlace, certify

_LOOK_S = 1.0
_TELL_AGAIN_S = 86_400

Show = Callable[[TlsPlace, TlsMaterial | None], None]
"""Makes a listener, or the way to the nodes, use this TLS material; with None it uses plain TCP from now on."""


class _Told(NamedTuple):
    """What the log said last of the certificates of a place, and when (epoch, s)."""

    certificate: OwnCertificate
    has_expired: bool
    at_s: float


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
        self._rejections: defaultdict[TlsPlace, Rejection] = defaultdict(Rejection)
        self._used: dict[TlsPlace, TlsMaterial] = {}
        self._told: dict[TlsPlace, _Told] = {}

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
                    changed = await asyncio.to_thread(section.files.changed)
                    if changed or self._rejections[place].is_due(self._clock.now_ms()):
                        await self._renew(place, section)
            self._tell_of_ends()

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
        if self._rejections[place].note(problems, self._clock.now_ms()):
            self._metrics.certificate_reloads.labels(place.virtual_cluster, place.listener, "rejected").inc()
            self._log.error("certificate_rejected", problems=problems)

    def _use(self, place: TlsPlace, material: TlsMaterial) -> None:
        self._show(place, material)
        self._rejections[place].forget()
        self._told.pop(place, None)
        self._used[place] = material
        self._tell_of_ends()

    def _forget(self, place: TlsPlace) -> None:
        self._show(place, None)
        del self._rejections[place]
        if self._used.pop(place).chain:
            self._metrics.certificate_ends.remove(place.virtual_cluster, place.listener)
            self._metrics.certificate_due.remove(place.virtual_cluster, place.listener)

    def _tell_of_ends(self) -> None:
        """Show of each place when the most urgent of its certificates ends; log it once a day if that is soon."""
        now_s = self._clock.epoch_ms() / 1000
        for place, material in self._used.items():
            certificate = material.to_renew(now_s)
            if certificate is not None:
                labels = (place.virtual_cluster, place.listener)
                self._metrics.certificate_ends.labels(*labels).set(certificate.validity.ends_s)
                self._metrics.certificate_due.labels(*labels).set(certificate.validity.renewal_due_s)
                if (urgency := certificate.validity.urgency(now_s)) >= 0:
                    self._warn(place, _Told(certificate, urgency >= 1, now_s))

    def _warn(self, place: TlsPlace, now: _Told) -> None:
        before = self._told.get(place)
        if before is not None and before[:2] == now[:2] and now.at_s - before.at_s < _TELL_AGAIN_S:
            return
        self._told[place] = now
        file, subject, (_, ends_s) = now.certificate
        self._log.warning(
            "certificate_expired" if now.has_expired else "certificate_expires_soon",
            virtual_cluster=place.virtual_cluster,
            listener=place.listener,
            file=file,
            subject=subject,
            ends=datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            days_left=int((ends_s - now.at_s) // 86_400),
        )
