"""What the clients of one key could use at this instance."""

from typing import Final

from quotas.shares.history import Windows
from quotas.shares.moves import Use

_MARGIN: Final = 1.1
"""A demand is this much above the rate, so that a steady client is rarely throttled."""
_SMOOTHED_MS: Final = 1500
_PRESSED_MS: Final = 3000
_PRESSED_ONCE: Final = 1.25
_FULL: Final = 0.8
"""From this part of the share on, a window is full: clients wait, or will soon."""
_PEAK_MS: Final = 15_000
_GONE: Final = 0.7
_GONE_MS: Final = 1500
"""A rate that stays below the part _GONE of the demand for so long is no noise: the demand is lower now."""


class Demand:
    """The demand of one key, as part of the limit.

    Clients that are throttled cannot show what they want. After one throttle the demand is a little above the share,
    after another one within 3 s it is the whole limit; this stays while the window is full, because a client may be
    muted for long. Otherwise the demand is the rate with a margin. It is the largest of the last 15 to 30 s, so that
    noise changes nothing, but goes down at once when the rate is much lower.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._rate: float | None = None
        self._presses = 0
        self._pressed_ms = 0
        self._peak = 0.0
        self._peak_before = 0.0
        self._peak_since_ms = 0
        self._gone_since_ms: int | None = None

    def update(self, use: Use, share: float, implicit: float, windows: Windows, passed_ms: int, now_ms: int) -> None:
        """Take in what was used in the last `passed_ms`, while `share` was enforced."""
        wanted = min(max(self._smoothed(use.rate, passed_ms) * _MARGIN, use.held), 1.0)
        self._press(use, share, windows, now_ms)
        if self._presses == 1:
            wanted = min(max(wanted, share * _PRESSED_ONCE, implicit), 1.0)
        elif self._presses > 1:
            wanted = 1.0
        self._hold(wanted, now_ms)

    def _smoothed(self, rate: float, passed_ms: int) -> float:
        before = rate if self._rate is None else self._rate
        self._rate = before + (rate - before) * passed_ms / (passed_ms + _SMOOTHED_MS)
        return self._rate

    def _press(self, use: Use, share: float, windows: Windows, now_ms: int) -> None:
        if use.is_pressed:
            self._presses += 1
            self._pressed_ms = now_ms
        elif now_ms - self._pressed_ms > _PRESSED_MS and sum(use.used) < _FULL * share * windows.seconds:
            self._presses = 0

    def _hold(self, wanted: float, now_ms: int) -> None:
        if wanted >= _GONE * self.value:
            self._gone_since_ms = None
        elif self._gone_since_ms is None:
            self._gone_since_ms = now_ms
        if self._gone_since_ms is not None and now_ms - self._gone_since_ms >= _GONE_MS:
            self._gone_since_ms = None
            self._peak, self._peak_before, self._peak_since_ms = wanted, 0.0, now_ms
        elif now_ms - self._peak_since_ms >= _PEAK_MS:
            self._peak, self._peak_before, self._peak_since_ms = wanted, self._peak, now_ms
        else:
            self._peak = max(self._peak, wanted)
        self.value = max(self._peak, self._peak_before)
