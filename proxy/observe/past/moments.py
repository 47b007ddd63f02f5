"""The seconds of the past that people name: `03:12:07`, `2026-11-25T03:12:07Z`, `-15m`."""

import re
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

from kafka_throttle.common.printable import printable

NO_HISTORY = "at: there is no history, as history.directory is not set"
"""The answer to who asks for a second of the past where none is kept."""

_EXPECTED = "at: expected a time like 03:12:07, 2026-11-25T03:12:07Z or -15m (UTC, unless it ends with an offset)"
_AGO = re.compile(r"-([0-9]{1,9})([smhd])")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})?")
_DATE_AND_TIME = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_TIME.pattern}")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAY_S = 86_400


class BadMoment(ValueError):
    """The text names no second, or several. The message begins with `at`."""


class NotHeld(LookupError):
    """The text names a second of which nothing is held. The message begins with `at`."""


class Held(NamedTuple):
    """The oldest and the newest second of which records are held, in s since 1970."""

    first_s: int
    last_s: int

    def __str__(self) -> str:
        return f"{second_text(self.first_s)} to {second_text(self.last_s)}"


def second_of(text: str, now_s: float, held: Held | None) -> int:
    """The second that a text names, in s since 1970. A time without a date is the only one of `held` that it may be.

    Raises BadMoment or NotHeld; the message says what is held.
    """
    if held is None:
        raise NotHeld("at: the history is still empty")
    seconds = _candidates(text, now_s, held)
    if len(seconds) > 1:
        choice = " or ".join(map(second_text, seconds))
        raise BadMoment(f"at: {text} is ambiguous, expected {choice}")
    [second] = seconds
    if second >= int(now_s):
        reason = "is not over yet" if second == int(now_s) else "is in the future"
        raise BadMoment(f"at: {second_text(second)} {reason}; the history has {held}")
    if not held.first_s <= second <= held.last_s:
        raise NotHeld(f"at: the history has nothing of {second_text(second)}; it has {held} only")
    return second


def _candidates(text: str, now_s: float, held: Held) -> list[int]:
    """The seconds that the text may name, at least one."""
    if ago := _AGO.fullmatch(text):
        return [int(now_s) - int(ago[1]) * _SECONDS[ago[2]]]
    try:
        if _DATE_AND_TIME.fullmatch(text):
            return [_epoch_s(datetime.fromisoformat(text))]
        if _TIME.fullmatch(text):
            return _of_days(time.fromisoformat(text), now_s, held)
    except (ValueError, OverflowError):
        pass
    raise BadMoment(f"{_EXPECTED}, got {printable(repr(text))}")


def _of_days(of_day: time, now_s: float, held: Held) -> list[int]:
    """The second of each day that is held; if none is, the last one in the past."""
    today = datetime.fromtimestamp(now_s, of_day.tzinfo or UTC).date()
    last = _epoch_s(datetime.combine(today, of_day))
    if last >= now_s:
        last -= _DAY_S
    days = range(last, held.first_s - 1, -_DAY_S)
    return [second for second in days if second <= held.last_s] or [last]


def _epoch_s(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)


def second_text(second: int) -> str:
    """A second in UTC, as in RFC 3339."""
    try:
        return datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{second} s since 1970"
