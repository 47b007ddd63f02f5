"""Numbers and names as people read them."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

from kafka_throttle.common.short_numbers import in_thousands, three_digits
from kafka_throttle.pipeline.spark.day import DAY_MS

MOST_NAME = 56
MOST_TITLE = 400

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def size(value: float) -> str:
    """Bytes in powers of 1,000, as prices are."""
    return in_thousands(value, _SIZES)


def count(value: float) -> str:
    """A whole number with separators for thousands."""
    return f"{value:,.0f}"


def about(value: float) -> str:
    """A number with three digits, as `1.23 million`."""
    for least, name in ((999.5e9, "trillion"), (999.5e6, "billion"), (999.5e3, "million")):
        if abs(value) >= least:
            return f"{three_digits(value / {'trillion': 1e12, 'billion': 1e9, 'million': 1e6}[name])} {name}"
    return count(value) if abs(value) >= 100 or float(value).is_integer() else three_digits(value)


def duration(ms: float) -> str:
    """A length of time in its largest units."""
    for least, per, unit in ((2 * DAY_MS, DAY_MS, "d"), (3_600_000, 3_600_000, "h"), (60_000, 60_000, "min")):
        if ms >= least:
            return f"{_whole_or_short(ms / per)} {unit}"
    return f"{_whole_or_short(ms / 1_000)} s" if ms >= 1_000 else f"{ms:.0f} ms"


def _whole_or_short(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else three_digits(value)


def share(fraction: float) -> str:
    """Percent; a small share that is not 0 is not shown as 0."""
    percent = 100 * fraction
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.05:
        return "<0.1 %" if percent > 0 else ">-0.1 %"
    return f"{percent:,.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def ratio(value: float) -> str:
    """A number of things for each other thing, as `1.27`; a small one that is not 0 is not shown as 0."""
    return "0" if value == 0 else "<0.001" if value < 0.001 else f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def money(amount: Decimal, currency: str = "") -> str:
    """The amount with all its decimal places."""
    return f"{amount:,f} {currency}".rstrip()


def moment(ms: int) -> str:
    """A time in UTC, to the minute, or to the second if it is not a whole minute."""
    at = datetime.fromtimestamp(ms / 1_000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" if ms % 60_000 else f"{at:%Y-%m-%d %H:%M}"


def day(at: date) -> str:
    """A day as `Mon 26 Oct`."""
    return f"{at:%a} {at.day} {at:%b}"


def month(text: str) -> str:
    """The name of a month: `November 2026` for `2026-11`."""
    return f"{date.fromisoformat(f'{text}-01'):%B %Y}"


def visible(text: str) -> str:
    """The text with characters that are invisible or change the writing direction as escapes like `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def name(text: str, most: int = MOST_NAME) -> str:
    """A name that a client gave itself: visible, on one line, with its middle left out if it is long."""
    seen = visible(text)
    if len(seen) <= most:
        return seen
    end = most // 3
    return f"{seen[: most - end - 1]}…{seen[-end:]}"


def listed(names: list[str], most: int = 3) -> str:
    """Names as `a, b and c`, or `a, b, c and 4 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {count(len(names) - most)} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def unbroken(text: str) -> str:
    """The text without a line break between a number and its unit."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=(%|[kMGTPE]?B(/s)?|d|h|min|m?s|(m|b|tr)illion|[A-Z]{3})(?![A-Za-z0-9]))")


def plural(number: int, one: str, many: str = "") -> str:
    """A number with its noun, as `1 client`, `2 clients`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
