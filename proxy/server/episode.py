"""A throttle episode: one log line at its start and one at its end, however many throttles it has."""

from dataclasses import dataclass

from proxy.relay.actions import Throttled

_OVER_AFTER_MS = 11_000
"""An episode is over when a whole quota window has passed since its last mute ended."""


@dataclass(slots=True)
class ThrottleEpisode:
    """A run of throttles of one connection without a pause as long as a quota window between them."""

    quota_type: str
    began_ms: int
    ends_ms: int
    throttles: int = 0
    longest_throttle_time_ms: int = 0

    @classmethod
    def begin(cls, throttled: Throttled, now_ms: int) -> "ThrottleEpisode":
        """A new episode, with the quota type of its first throttle."""
        name = "node" if throttled.quota_type is None else throttled.quota_type.name.lower()
        return cls(name, now_ms, now_ms)

    def note(self, throttled: Throttled, now_ms: int) -> None:
        """Count a throttle."""
        self.throttles += 1
        self.ends_ms = max(self.ends_ms, now_ms + throttled.throttle_time_ms)
        self.longest_throttle_time_ms = max(self.longest_throttle_time_ms, throttled.throttle_time_ms)

    def over(self, now_ms: int) -> bool:
        """True when its last mute ended a quota window ago."""
        return now_ms - self.ends_ms > _OVER_AFTER_MS

    def summary(self) -> dict[str, str | int]:
        """The keys of the log line at its end."""
        return {
            "quota_type": self.quota_type,
            "throttles": self.throttles,
            "longest_throttle_time_ms": self.longest_throttle_time_ms,
            "duration_ms": self.ends_ms - self.began_ms,
        }
