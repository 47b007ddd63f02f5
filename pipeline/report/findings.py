"""What Spark found, as much of it as is shown. Tables, sentences and the page are all made from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from kafka_throttle.pipeline.report.chargeback import Bill
from kafka_throttle.pipeline.report.forecast import Forecast
from kafka_throttle.pipeline.report.price_sheet import PriceSheet
from kafka_throttle.pipeline.spark.day import DAY_MS

Row = Mapping[str, Any]

_MAY_BE_MISSING_MS = 30 * 60_000


@dataclass(frozen=True, slots=True)
class Missing:
    """Records of one writer that are not in the table, from one sequence number to another one."""

    instance: str
    epoch: int
    first: int
    last: int
    dropped: bool
    """Whether the proxy itself has dropped them and reported that; if not, the reason is unknown."""

    @property
    def records(self) -> int:
        """The number of missing records."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class KilledProcess:
    """A process that was killed: the records of its end are in no table."""

    instance: str
    epoch: int
    before_ms: int
    """When the next process of the instance began."""
    flush_ms: int
    """The time of which it lost the records at most, if the machine went on; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the report shows. Rows are plain dicts of Python's numbers and texts; lists have at most `top_n`
    rows unless stated otherwise. Columns are those of the functions that are named.
    """

    table: str
    top_n: int
    since_ms: int | None = None
    until_ms: int | None = None
    records: int = 0
    begin_ms: int = 0
    end_ms: int = 0
    window_ms: int = 0
    """The usual length of the proxy's windows."""
    unlimited_bytes: int = 0
    totals: Row = field(default_factory=dict)
    """`figures.totals` of all records."""
    by_type: Sequence[Row] = ()
    """`figures.totals` by quota_type."""
    client_count: int = 0
    clients: Sequence[Row] = ()
    """`figures.by_levels` by CLIENT; the first by bytes, requests, handler time or throttled time."""
    user_count: int = 0
    users: Sequence[Row] = ()
    """The same by virtual cluster and user."""
    client_id_count: int = 0
    client_ids: Sequence[Row] = ()
    """The same by virtual cluster and client-id."""
    throttled: Sequence[Row] = ()
    """The same by CLIENT and quota_type, with rule and limit of the last throttle; the first by throttled time."""
    throttled_count: int = 0
    """The number of all rows of that kind."""
    throttled_clients: int = 0
    throttled_addresses: int = 0
    utilisation: Sequence[Row] = ()
    quotas_in_use: int = 0
    quotas_exceeded: int = 0
    """Quotas with windows in which more was used than the quota allows."""
    shared: Sequence[Row] = ()
    """`figures.shared`, the quotas with most wait first."""
    shadows: Sequence[Row] = ()
    shadow_rows: int = 0
    """The number of all clients, quota types and shadow quotas that would be throttled."""
    shadow_hurt: int = 0
    shadow_seen: int = 0
    """The number of clients that a shadow quota covers, counted for each quota type."""
    width_ms: int = 0
    timeline: Sequence[Row] = ()
    days: Sequence[Row] = ()
    """`figures.totals` by day."""
    episodes: Sequence[Row] = ()
    episode_count: int = 0
    sheet: PriceSheet | None = None
    bills: Sequence[Bill] = ()
    tenants: Sequence[Row] = ()
    """`figures.totals` by tenant."""
    unassigned: Sequence[Row] = ()
    """The clients that belong to no tenant, the first by bytes."""
    unassigned_count: int = 0
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """Forecasts by measure: `bytes`, `requests`, `handler_us`."""
    missing: Sequence[Missing] = ()
    killed: Sequence[KilledProcess] = ()
    clocks_ahead: Sequence[Row] = ()
    """`figures.clocks_ahead`."""
    quarantined: int = 0
    silences: Sequence[tuple[int, int]] = ()
    """Periods without any record, in ms since 1970."""

    @property
    def owed(self) -> Decimal:
        """The amount that all tenants together owe."""
        return sum((bill.total for bill in self.bills), Decimal(0))


MOST_BARS = 8
"""The number of clients in a chart."""


def largest(clients: Iterable[Row], measure: str) -> list[Row]:
    """The first MOST_BARS clients by a measure, without clients that have none of it."""
    return sorted((row for row in clients if row[measure]), key=lambda row: -row[measure])[:MOST_BARS]


def whole_days(days: Sequence[Row], begin_ms: int, end_ms: int) -> list[Row]:
    """The days without a first or last day of which more than half an hour is missing."""
    return [
        row
        for row in days
        if begin_ms <= _begin_of(row["day"]) + _MAY_BE_MISSING_MS
        and end_ms >= _begin_of(row["day"]) + DAY_MS - _MAY_BE_MISSING_MS
    ]


def _begin_of(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000


def silences(timeline: Sequence[Row], width_ms: int) -> list[tuple[int, int]]:
    """Periods of at least two widths between records of a timeline."""
    times = [row["at_ms"] for row in timeline]
    return [(a + width_ms, b) for a, b in pairwise(times) if b - a > 2 * width_ms]


WIDTHS_MS = (
    10_000,
    60_000,
    5 * 60_000,
    15 * 60_000,
    3_600_000,
    3 * 3_600_000,
    6 * 3_600_000,
    DAY_MS,
    7 * DAY_MS,
    28 * DAY_MS,
)
MOST_STEPS = 200


def width_for(begin_ms: int, end_ms: int) -> int:
    """The length of a step of a timeline that gives about MOST_STEPS steps at most."""
    return next(
        (width for width in WIDTHS_MS if (end_ms - begin_ms) / width <= MOST_STEPS),
        -(-(end_ms - begin_ms) // (MOST_STEPS * DAY_MS)) * DAY_MS,
    )
