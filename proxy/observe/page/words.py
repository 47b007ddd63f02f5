"""Numbers, names and times as the status page shows them."""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import isinf

from kafka_throttle.common.printable import printable
from kafka_throttle.common.short_numbers import in_thousands, three_digits
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.quotas.entities import DEFAULT, Entity
from kafka_throttle.quotas.limits import UNLIMITED

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_LONG_ENTITY = 300
_LONG_KEY = 1_000


def size(value: float) -> str:
    """Bytes, in powers of 1,000 as quotas are written."""
    return in_thousands(value, _BYTES)


def number(value: float) -> str:
    """A number with separators for thousands, and decimal places only if it is small."""
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return three_digits(value)


def amount(value: float | None, unit: str | None) -> str:
    """A limit or a use in the unit of its quota; None means no limit."""
    if value is None or value >= UNLIMITED:
        return "no limit"
    if unit == "bytes/s":
        return f"{size(value)}/s"
    if unit == "percent of a thread":
        return f"{number(value)} % of a thread"
    return f"{number(value)} {unit or ''}".rstrip()


def percent(share: float) -> str:
    """A share as a percentage; one that is above 0 is not shown as 0."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:,.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def duration(ms: float) -> str:
    """A length of time in its two largest units."""
    if isinf(ms):
        return "for ever"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    for unit_s, unit, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit_s:
            rest = seconds % unit_s // part_s
            return f"{seconds // unit_s:,} {unit} {rest} {part}" if rest else f"{seconds // unit_s:,} {unit}"
    raise AssertionError(ms)


def clock_time(epoch_ms: float) -> str:
    """The time of day in UTC."""
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%H:%M:%S} UTC"


def time_of_day(at: str) -> str:
    """The time of day of a time in RFC 3339, such as a response of the API has it."""
    return f"{at.partition('T')[2].partition('.')[0]} UTC"


def entity(of: Entity | Form | None) -> str:
    """An entity as quotas are printed."""
    if isinstance(of, dict):
        of = Entity(**{part.replace("-", "_"): DEFAULT if name is None else name for part, name in of.items()})
    return printable(str(of), _LONG_ENTITY)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A number with its noun; `nouns` is the plural if that does not just end with s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def key(parts: Iterable[object]) -> str:
    """What tells a row from the others of its list."""
    return printable(" ".join(map(str, parts)), _LONG_KEY)
