"""A throttle episode: one log line at its start and one at its end, however many requests it holds up."""

from dataclasses import dataclass

from proxy.relay.actions import Throttled

_OVER_AFTER_MS = 11_000
"""An episode ends when a whole quota window has passed since its last mute ended."""


@dataclass(slots=True)
class ThrottleEpisode:
    """A run of throttles on one connection without a pause of a window between them."""

    quota_type: str
    began_ms: int
    ends_ms: int
    throttles: int = 0
    longest_throttle_time_ms: int = 0

    @classmethod
    def begin(cls, throttled: Throttled, now_ms: int) -> "ThrottleEpisode":
        """The episode that a first throttle opens."""
        name = "node" if throttled.quota_type is None else throttled.quota_type.name.lower()
        return cls(name, now_ms, now_ms)

    def note(self, throttled: Throttled, now_ms: int) -> None:
        """One more throttle."""
        self.throttles += 1
        self.ends_ms = max(self.ends_ms, now_ms + throttled.throttle_time_ms)
        self.longest_throttle_time_ms = max(self.longest_throttle_time_ms, throttled.throttle_time_ms)

    def over(self, now_ms: int) -> bool:
        """True when nothing has prolonged it for a window."""
        return now_ms - self.ends_ms > _OVER_AFTER_MS

    def summary(self) -> dict[str, str | int]:
        """What the closing log line says."""
        return {
            "quota_type": self.quota_type,
            "throttles": self.throttles,
            "longest_throttle_time_ms": self.longest_throttle_time_ms,
            "duration_ms": self.ends_ms - self.began_ms,
        }
