"""The day, UTC, by which tables are partitioned and days are counted."""

DAY_MS = 86_400_000
