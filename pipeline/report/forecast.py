"""The trend of daily sums, and a forecast of the next calendar month with an interval.

The trend is Theil-Sen's line: the median of the slopes between any two days, here of the same weekday, so that neither
weekdays nor a few odd days bend it. A day to come is as the last four of its weekday were (the median), times the
growth of the line since then.

The interval comes from the same forecast made on each earlier day and compared with the days that came then, as far as
the next month reaches. Where fewer days are known, the error is multiplied by the square root of the missing part. The
interval is as wide as 19 of 20 of these errors.
"""

import calendar
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt

from kafka_throttle.pipeline.report import words

TREND_DAYS = 14
MONTH_DAYS = 56
MOST_DAYS = 182
"""Older days are not used: quotas, teams and workloads change."""
WITHIN = 0.95
"""The part of the earlier forecasts that were off by less than the interval is wide."""
_WEEKS = 4
_LEAST_AHEAD = 7
"""Earlier forecasts of fewer days are not compared."""
_LEAST_OF_MIDDLE = 0.01
"""A falling line does not fall below this part of the median day."""

_Days = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of daily sums. `growth_per_week` is a fraction of the level in the middle of the days."""

    days: int
    growth_per_week: float


@dataclass(frozen=True, slots=True)
class Month:
    """The forecast of a calendar month: its sum is between `low` and `high` in nine of ten cases.

    `origins` is the number of earlier days on which the same forecast was made, and `error` by which part of the sum it
    was off on average.
    """

    month: str
    expected: float
    low: float
    high: float
    origins: int
    error: float

    def checked(self) -> str:
        """How far the forecast would have been off in the past, in words."""
        return f"made on {self.origins} earlier days, this forecast was off by {words.share(self.error)} on average"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast, or the reason why there is none or only a trend."""

    trend: Trend | None
    month: Month | None
    refusal: str = ""


def forecast(days: Sequence[tuple[date, float]]) -> Forecast:
    """The forecast from whole days and their sums, in order; a missing day does not count as a day without use."""
    days = list(days)[-MOST_DAYS:]
    if len(days) < TREND_DAYS:
        return Forecast(None, None, f"a trend needs {TREND_DAYS} whole days, and this time has {len(days)}")
    at = np.array([(day - days[0][0]).days for day, _ in days], dtype=np.float64)
    values = np.array([value for _, value in days], dtype=np.float64)
    slope, level = _line(at, values)
    middle = level + slope * float(np.median(at))
    trend = Trend(len(days), 7 * slope / middle if middle > 0 else 0.0)
    if len(days) < MONTH_DAYS:
        return Forecast(trend, None, f"a forecast needs {MONTH_DAYS} whole days, and this time has {len(days)}")
    if not values.any():
        return Forecast(trend, None, "there was no use at all")
    return Forecast(trend, _month(days[-1][0], at, values))


def _line(at: _Days, values: _Days) -> tuple[float, float]:
    """The slope and the level of Theil-Sen's line; level with fewer than two days of any weekday."""
    first, second = np.triu_indices(len(at), 1)
    of_one_weekday = (at[second] - at[first]) % 7 == 0
    first, second = first[of_one_weekday], second[of_one_weekday]
    slope = float(np.median((values[second] - values[first]) / (at[second] - at[first]))) if len(first) else 0.0
    return slope, float(np.median(values - slope * at))


def _month(last: date, at: _Days, values: _Days) -> Month:
    begin = (last.replace(day=1) + timedelta(32)).replace(day=1)
    length = calendar.monthrange(begin.year, begin.month)[1]
    reach = (begin - last).days - 1 + length
    ahead = at[-1] + 1 + np.arange(reach)
    expected = float(_expected(at, values, ahead)[-length:].sum())
    origins = range(TREND_DAYS, len(at) - _LEAST_AHEAD + 1)
    errors, days = np.array([_error(at, values, origin, reach) for origin in origins]).T
    width = float(np.quantile(errors * np.sqrt(reach / days), WITHIN))
    low, high = expected * max(1 - width, 0.0), expected * (1 + width)
    return Month(f"{begin:%Y-%m}", expected, low, high, len(errors), float(errors.mean()))


def _error(at: _Days, values: _Days, origin: int, reach: int) -> tuple[float, float]:
    """By which part of it the forecast was off that is made from the days before `origin`, and of how many days."""
    ahead = (at >= at[origin]) & (at < at[origin] + reach)
    expected, actual = float(_expected(at[:origin], values[:origin], at[ahead]).sum()), float(values[ahead].sum())
    return (abs(actual - expected) / expected if expected else float(actual > 0)), float(ahead.sum())


def _expected(at: _Days, values: _Days, ahead: _Days) -> _Days:
    """What these days ahead will carry."""
    slope, level = _line(at, values)
    middle = float(np.median(values))

    def line(days: _Days) -> _Days:
        return np.maximum(level + slope * days, middle * _LEAST_OF_MIDDLE) if middle > 0 else np.ones(len(days))

    flat = values / line(at)
    of_weekday = (flat[at % 7 == weekday][-_WEEKS:] for weekday in range(7))
    usual = np.array([np.median(days) if len(days) else np.median(flat) for days in of_weekday])
    expected: _Days = line(ahead) * usual[(ahead % 7).astype(np.int_)]
    return expected
