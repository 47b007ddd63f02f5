"""Times: now, and the day in UTC, by which tables are partitioned."""

import time
from datetime import UTC, date, datetime

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
