"""Times: now, and the day in UTC, by which tables are partitioned, whatever the time zone of a Spark session."""

import time
from datetime import UTC, date, datetime

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

DAY_MS = 86_400_000


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def day_of(ms: int) -> str:
    """The day of a time in ms since 1970: `2026-11-22`."""
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


def begin_of(day: str) -> int:
    """When a day begins, in ms since 1970."""
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_MS


def utc_day(ms: Column) -> Column:
    """The day of a time in ms since 1970, a date: by arithmetic, as casts of timestamps follow the session's zone."""
    return F.date_from_unix_date(F.floor(ms / DAY_MS).cast("int"))
