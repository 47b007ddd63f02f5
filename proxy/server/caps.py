"""The byte caps of one listener, or of one virtual cluster, on the event loop."""

import asyncio
from collections.abc import Callable

from proxy.clock import Clock
from proxy.config.settings import CapsConfig
from quotas.byte_caps import ByteCap


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
