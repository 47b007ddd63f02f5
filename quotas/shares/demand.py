"""What the clients of one key could use at this instance."""

from typing import Final

from kafka_throttle.quotas.shares.moves import Use

_MARGIN: Final = 1.05
"""A demand is this much above the rate, so that a steady client is rarely throttled."""
_QUICK_MS: Final = 1500
_SLOW_MS: Final = 5000
_NOISE: Final = 0.3
"""A quick mean that differs from the slow one by a larger part is no noise."""

_PRESSED_MS: Final = 500
"""A client that has waited sends within this time, if it is still there."""
_PRESSED_ONCE: Final = 1.25
_IDLE_MS: Final = 1500
"""Without use for so long, and with nobody waiting, there is no demand."""

_GROWTH_THRESHOLD: Final = 1.1
"""A share that has throttled a client is too small by at least this factor,"""
_STILL: Final = 0.8
"""as long as the rate is at least this part of the product."""

_LOWER: Final = 0.8
_LOWER_MS: Final = 1000
"""A demand goes down when what is wanted has been below the part _LOWER of it for so long."""


class Demand:
    """The demand of one key, as part of the limit: the rate with a margin, without noise.

    Clients that are throttled cannot show what they want. After one throttle the demand is a little above the share,
    after another one as soon as the first has ended it is the whole limit; this stays until a throttle ends and no
    other one follows. After that a share that was too small is not asked for again.
    """

    __slots__ = ("_least", "_lower_since_ms", "_pressed_ms", "_presses", "_quick", "_slow", "_used_ms", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._quick = 0.0
        self._slow: float | None = None
        self._presses = 0
        self._pressed_ms = 0
        """When the last throttle ends, or has ended."""
        self._used_ms = 0
        self._least = 0.0
        self._lower_since_ms: int | None = None

    @property
    def is_uncertain(self) -> bool:
        """Whether there was one throttle: a greedy client or a steady one, that shows when the throttle has ended."""
        return self._presses == 1

    def update(self, use: Use, share: float, implicit: float, passed_ms: int, now_ms: int) -> None:
        """Take in what was used in the last `passed_ms`, while `share` was enforced."""
        self._press(use, now_ms)
        if use.rate > 0 or self._presses:
            self._used_ms = now_ms
        rate = self._smoothed(use.rate, passed_ms)
        if now_ms - self._used_ms >= _IDLE_MS:
            self._quick = self._slow = rate = self.value = 0.0
        more = share * _GROWTH_THRESHOLD
        if use.is_pressed and rate >= _STILL * more:
            self._least = max(self._least, more)
        if rate < _STILL * self._least:
            self._least = 0.0
        wanted = max(rate * _MARGIN, use.held, self._least)
        if self._presses == 1:
            wanted = max(wanted, share * _PRESSED_ONCE, implicit)
        elif self._presses > 1:
            wanted = 1.0
        if use.unit:
            # A number of connections has no noise.
            self.value = min(wanted, 1.0)
        else:
            self._follow(min(wanted, 1.0), now_ms)

    def _smoothed(self, rate: float, passed_ms: int) -> float:
        """The rate without noise: a slow mean, which follows a quick one where that is far away."""
        if self._slow is None:
            self._quick = self._slow = rate
        self._quick += (rate - self._quick) * passed_ms / (passed_ms + _QUICK_MS)
        self._slow += (rate - self._slow) * passed_ms / (passed_ms + _SLOW_MS)
        if abs(self._quick - self._slow) > _NOISE * self._slow:
            self._slow = self._quick
        return self._slow

    def _press(self, use: Use, now_ms: int) -> None:
        if use.is_pressed:
            self._presses += 1
            self._pressed_ms = max(self._pressed_ms, now_ms + use.waits_ms)
        elif now_ms - self._pressed_ms > _PRESSED_MS:
            self._presses = 0

    def _follow(self, wanted: float, now_ms: int) -> None:
        if wanted >= _LOWER * self.value:
            self._lower_since_ms = None
            self.value = max(self.value, wanted)
        elif self._lower_since_ms is None:
            self._lower_since_ms = now_ms
        elif now_ms - self._lower_since_ms >= _LOWER_MS:
            self._lower_since_ms = None
            self.value = wanted
