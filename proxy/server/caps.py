"""The byte caps of one listener, or of one virtual cluster, on the event loop, and the streams that they apply to."""

import asyncio
from collections.abc import Callable

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import CapsConfig, LimitsConfig
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.net.stream import Stream, StreamListener, StreamSettings
from kafka_throttle.proxy.net.tls_socket import AnySocket, TlsSocket
from kafka_throttle.proxy.net.tls_stream import TlsStream
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.byte_caps import ByteCap, Turnstile


class Caps:
    """Two byte caps: `ingress` for bytes from clients, `egress` for bytes to clients. They have no limit at first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ingress = ByteCap(lambda ms: self._wake_in(self.ingress, ms))
        self.egress = ByteCap(lambda ms: self._wake_in(self.egress, ms))

    def set(self, config: CapsConfig) -> None:
        """Set the limits of this configuration section; a direction without a setting has no limit."""
        now_ms = self._clock.now_ms()
        self.ingress.set_limit(config.ingress_bytes_per_s, now_ms)
        self.egress.set_limit(config.egress_bytes_per_s, now_ms)

    def by_direction(self) -> dict[str, ByteCap]:
        """The two caps by the name of their direction, as metrics have it."""
        return {"ingress": self.ingress, "egress": self.egress}

    def _wake_in(self, cap: ByteCap, ms: int) -> Callable[[], object]:
        return asyncio.get_running_loop().call_later(ms / 1000, lambda: cap.pump(self._clock.now_ms())).cancel


class CappedStreams:
    """Opens the streams of a listener's connections, subject to its byte caps and those of its virtual cluster."""

    def __init__(self, caps_of_cluster: Caps, poller: Poller, clock: Clock) -> None:
        self.caps = Caps(clock)
        self._turnstiles = {
            Side.CLIENT: Turnstile((self.caps.ingress, caps_of_cluster.ingress)),
            Side.NODE: Turnstile((self.caps.egress, caps_of_cluster.egress)),
        }
        self._poller = poller
        self._now_ms = clock.now_ms
        self._settings: dict[Side, StreamSettings] = {}
        self.set_limits(LimitsConfig())

    def set_limits(self, limits: LimitsConfig) -> None:
        """Apply these limits to streams from now on."""
        self._settings = {
            side: StreamSettings(self._poller, side, limits.write_buffer_bytes, turnstile, self._now_ms)
            for side, turnstile in self._turnstiles.items()
        }

    def set_caps(self, caps: CapsConfig) -> None:
        """Set the byte caps of the listener. Call it after those of the virtual cluster have been set."""
        self.caps.set(caps)
        for turnstile in self._turnstiles.values():
            turnstile.take_up()

    def open(self, sock: AnySocket, side: Side, owner: StreamListener) -> Stream:
        """A new stream over a socket of one side."""
        settings = self._settings[side]
        return TlsStream(settings, sock, owner) if isinstance(sock, TlsSocket) else Stream(settings, sock, owner)
